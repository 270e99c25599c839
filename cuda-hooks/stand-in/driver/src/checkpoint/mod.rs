//! The driver's checkpoint API: any process of the same user that has initialised the driver asks the process in
//! question, which has a thread to answer (driver API, "CUDA Checkpointing": the "restore thread").
//!
//! `client` asks, `server` is the thread, `process` what the process does, `job_file` what it keeps outside, `message`
//! what goes between them.
//!
//! The thread waits for a signal that is sent to it alone, with a token; the asking process listens at an abstract
//! socket of that name, and is answered there. So between two requests the process has no socket of the driver's, and
//! after a restart its thread answers as before, whatever its number is now. How the real driver does it is not known.
//!
//! What is the real driver's is in `process`: which state allows what, what is refused, what hangs.

pub mod client;
mod job_file;
pub mod message;
pub mod process;
pub mod server;
