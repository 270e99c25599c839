//! System calls run inside a stopped thread of another process.
//!
//! * [`stub`]: the few instructions that run there, and the table of calls that they work through.
//! * [`frame`]: the signal frame that takes the thread back if the agent dies in the middle.
//! * [`vdso_call`]: the first calls in a process that has no memory for the stub.
//! * [`live_thread`]: running one table in one thread and reading the results.
//! * [`born`]: a process that one of them has made.
//! * [`permission`]: which calls the program's own seccomp filters allow. * [`filter_calls`]: how one is installed.
//! * [`call_names`]: for messages.
//! * [`copied_files`]: descriptors of the process, sent to the agent.
//! * [`remote_thread`]: what these have in common with the calls of a restart: the loop that waits for the end.
//!
//! Called by the cut (`freeze`, `capture`) and by the restart (`rebuild`). What must hold: the thread is in a ptrace
//! stop of ours, and the ranges of [`holdfast_image::record::InjectArea`] are used by nothing else.

pub mod area;
pub mod born;
pub mod call_names;
pub mod copied_files;
pub mod filter_calls;
pub mod frame;
pub mod live_thread;
pub mod permission;
pub mod remote_thread;
pub mod stub;
pub mod vdso_call;
