//! CUDA: a process that uses devices is brought, by the driver itself, into a state that an image can hold.
//!
//! * [`uses`]: which processes use CUDA: what /proc shows of them.
//! * [`driver`]: the driver's checkpoint API as a trait, [`DriverCheckpoint`].
//! * [`sequence`]: in which order it is called around a cut, and how every failure is undone.
//!
//! The order of one checkpoint: Lock every process, Checkpoint every process, nothing of a device is left; the stop and
//! the cut, in which the driver's threads are threads like others; all threads run again; Restore every process, Unlock
//! every process. See `docs/cuda.md`. A gate inside the program, closed before Lock and opened after Unlock, will be
//! the first and the last step where libholdfast has one.

pub mod driver;
pub mod sequence;
pub mod uses;

pub use driver::{Cause, CudaState, DriverCheckpoint, DriverError};
pub use sequence::{SuspendError, Suspended, obstacles, restore_all, settle_all, suspend};
pub use uses::{CudaUse, Libcuda};
