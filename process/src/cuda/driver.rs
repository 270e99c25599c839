//! The CUDA driver's checkpoint API, as far as Holdfast calls it, and what can go wrong with a call.
//!
//! Source: "CUDA Driver API", module CUDA Checkpointing (CUDA 12.8 and later); cuda.h 13.0, CUprocessState. Implemented
//! by the process that calls the driver and by the agent's end of it (`cli/src/cuda/`); a caller inside the program can
//! come later. What must hold for an implementation: every call returns, if need be with [`Cause::Deadline`]; after an
//! error the state of the process is unknown, and [`DriverCheckpoint::state`] tells it, by a fresh caller if need be.

use holdfast_sys::cuda::describe;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// State of a process, as the driver has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CudaState {
    /// Its calls are carried out.
    Running,
    /// Its calls wait.
    Locked,
    /// Its calls wait, and all that it had on devices is in its own memory.
    Checkpointed,
    /// It cannot go on ("uncorrectable error during the checkpoint/restore process").
    Failed,
    /// On its way there, by a call of another process or one that had no answer.
    Checkpointing,
    /// On its way back.
    Restoring,
    /// One that is not documented.
    Other(i32),
}

impl From<i32> for CudaState {
    fn from(number: i32) -> CudaState {
        match number {
            0 => CudaState::Running,
            1 => CudaState::Locked,
            2 => CudaState::Checkpointed,
            3 => CudaState::Failed,
            4 => CudaState::Checkpointing,
            5 => CudaState::Restoring,
            other => CudaState::Other(other),
        }
    }
}

impl From<CudaState> for i32 {
    fn from(state: CudaState) -> i32 {
        match state {
            CudaState::Running => 0,
            CudaState::Locked => 1,
            CudaState::Checkpointed => 2,
            CudaState::Failed => 3,
            CudaState::Checkpointing => 4,
            CudaState::Restoring => 5,
            CudaState::Other(other) => other,
        }
    }
}

impl fmt::Display for CudaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaState::Running => f.write_str("RUNNING"),
            CudaState::Locked => f.write_str("LOCKED"),
            CudaState::Checkpointed => f.write_str("CHECKPOINTED"),
            CudaState::Failed => f.write_str("FAILED"),
            CudaState::Checkpointing => f.write_str("CHECKPOINTING"),
            CudaState::Restoring => f.write_str("RESTORING"),
            CudaState::Other(number) => write!(f, "state {number}"),
        }
    }
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The driver said so: a CUresult.
    Code(i32),
    /// There was no answer in time. Whether the call has been carried out is not known.
    Deadline(Duration),
    /// The process that calls the driver ended during the call. The same holds.
    CallerEnded,
    /// There is no such process, and none can be started.
    NoCaller(String),
    /// It was not called: its devices have less free memory than the call needs, and it would not recover from that.
    NoRoom(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Code(code) => f.write_str(&describe(*code)),
            Cause::Deadline(time) => write!(f, "no answer in {} s", time.as_secs_f32()),
            Cause::CallerEnded => f.write_str("the process that calls the driver ended"),
            Cause::NoCaller(why) | Cause::NoRoom(why) => f.write_str(why),
        }
    }
}

/// A call that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{function}: {cause}")]
pub struct DriverError {
    /// Name of the driver's function.
    pub function: &'static str,
    /// Why.
    pub cause: Cause,
}

/// Names of the driver's functions, for messages.
pub mod names {
    /// RUNNING to LOCKED.
    pub const LOCK: &str = "cuCheckpointProcessLock";
    /// LOCKED to CHECKPOINTED.
    pub const CHECKPOINT: &str = "cuCheckpointProcessCheckpoint";
    /// CHECKPOINTED to LOCKED.
    pub const RESTORE: &str = "cuCheckpointProcessRestore";
    /// LOCKED to RUNNING.
    pub const UNLOCK: &str = "cuCheckpointProcessUnlock";
    /// Which it is.
    pub const STATE: &str = "cuCheckpointProcessGetState";
    /// The thread of the process that answers the driver.
    pub const RESTORE_THREAD: &str = "cuCheckpointProcessGetRestoreThreadId";
}

/// See the head of the file. `pid`: as the caller sees the process.
pub trait DriverCheckpoint: Send + Sync {
    /// The state of a process.
    ///
    /// # Errors
    /// See [`Cause`].
    fn state(&self, pid: i32) -> Result<CudaState, DriverError>;
    /// The thread by which the process answers the driver: one that has none has not begun to use CUDA itself.
    ///
    /// # Errors
    /// See [`Cause`].
    fn restore_thread(&self, pid: i32) -> Result<i32, DriverError>;
    /// New calls wait, and what was submitted is done; if that takes too long, nothing has happened.
    ///
    /// # Errors
    /// See [`Cause`].
    fn lock(&self, pid: i32) -> Result<(), DriverError>;
    /// All that it has on devices comes into its own memory.
    ///
    /// # Errors
    /// See [`Cause`].
    fn checkpoint(&self, pid: i32) -> Result<(), DriverError>;
    /// The way back.
    ///
    /// # Errors
    /// See [`Cause`].
    fn restore(&self, pid: i32) -> Result<(), DriverError>;
    /// Calls go on.
    ///
    /// # Errors
    /// See [`Cause`].
    fn unlock(&self, pid: i32) -> Result<(), DriverError>;
    /// The process is about to end as it is: it is not to be restored any more.
    fn over(&self, pid: i32);
}
