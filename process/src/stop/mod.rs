//! Stopping threads so that they do not notice, and letting them go.
//!
//! * [`interrupt`]: seize, interrupt, wait, detach. [`resume`]: stopped programs, and how they go on.
//! * [`partial_stop`]: all threads but a few.
//! * [`threads`]: registers and states. [`syscall_restart`], [`continuation`]: how an interrupted call is repaired.
//! * [`job_control`]: SIGSTOP and SIGCONT beside our stop. [`task_files`]: files of threads in /proc. [`xstate`]:
//!   vector state.

pub(crate) mod continuation;
pub(crate) mod interrupt;
pub(crate) mod job_control;
pub(crate) mod partial_stop;
pub(crate) mod process_errors;
pub(crate) mod repair;
pub(crate) mod resume;
pub(crate) mod stages;
pub(crate) mod syscall_restart;
pub(crate) mod task_files;
pub(crate) mod threads;
pub(crate) mod xstate;
