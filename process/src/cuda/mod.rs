//! CUDA: a process that uses devices is brought, by the driver itself, into a state that an image can hold.
//!
//! * [`uses`]: which processes use CUDA: what /proc shows of them.
//! * [`driver`]: the driver's checkpoint API as a trait, [`DriverCheckpoint`].
//! * [`hooks`]: what libholdfast has seen of it in a process, and where its calls wait.
//! * [`data`]: device memory that libholdfast owns, brought to the program's own memory and back.
//! * `discarded`: device memory that an image need not have.
//! * [`devices`]: which device takes the place of which of an image.
//! * [`job_file`]: the driver's file about the processes of a job.
//! * [`room`]: whether the host has the memory for it.
//! * [`named`]: what no driver checkpoints, and is known before one is asked.
//! * [`sequence`]: in which order it is called around a cut, and how every failure is undone.
//!
//! The order of one checkpoint: the gates of libholdfast closed, and nothing of the program inside the driver; the
//! device memory that libholdfast owns is away; Lock every process, Checkpoint every process, nothing of a device is
//! left; the stop and the cut, in which the driver's threads are threads like others; all threads run again; Restore
//! every process, Unlock every process; device memory is back; the gates open.
//! See `docs/cuda.md`.

pub mod data;
pub mod devices;
mod discarded;
pub mod driver;
pub mod hooks;
pub mod job_file;
pub mod named;
pub mod room;
pub mod sequence;
pub mod uses;

pub use data::{Held, Keep, Kept, Limits, Spare};
pub use driver::{Cause, CudaState, DriverCheckpoint, DriverError};
pub use hooks::{Closed, Hooks, Inside};
pub use sequence::{
    PartialStop, PartialStops, SuspendError, Suspended, obstacles, restore_all, settle_all, suspend,
};
pub use uses::{CudaUse, Libcuda};
