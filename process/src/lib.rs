//! Stop a program, capture what the kernel knows of it, freeze its memory, rebuild it.
//!
//! * [`Tracer`]: the one OS thread that traces (ptrace binds a tracee to the thread that seized it).
//! * `stop`: seize, interrupt, wait, let go; `repair`: what interrupted calls must not notice; `slots`: continuation.
//! * `inject`: system calls run inside a stopped thread. `freeze`: the frozen copy.
//! * `capture`: the process record. [`rebuild`]: the way back.
//!
//! See `docs/architecture.md`.
#![deny(unsafe_code)]

mod capture;
mod cut;
mod describe;
mod error;
mod freeze;
mod inject;
mod memory;
pub mod rebuild;
mod repair;
mod slots;
mod stop;
mod threads;
mod tracer;
mod xstate;

pub use cut::{Cut, CutError, CutOptions, Engine, Target};
pub use error::TraceError;
pub use memory::FrozenMemory;
pub use tracer::Tracer;
