//! Stop a program, capture what the kernel knows of it, freeze its memory, rebuild it.
//!
//! * [`Tracer`]: the one OS thread that traces (ptrace binds a tracee to the thread that seized it).
//! * `stop`: seize, interrupt, wait, let go; `repair`: what interrupted calls must not notice; `slots`: continuation.
//! * `guard`: engine `slots`, the agent's half.
//! * `inject`: system calls run inside a stopped thread. `freeze`: the frozen copy.
//! * [`Tracking`]: which pages were written. `snapshot`: copy or frozen copy. [`LivePages`]: pages before the stop.
//! * `capture`: the process record. [`rebuild`]: the way back.
//! * `refuse`: what cannot be checkpointed, in words. [`check`]: the look at it that stops nothing.
//!
//! See `docs/architecture.md`.
#![deny(unsafe_code)]

mod capture;
mod check;
mod cut;
mod error;
mod freeze;
mod inject;
mod job;
pub mod rebuild;
mod refuse;
mod stop;
mod thread_pool;
mod tracer;
mod track;

pub use capture::contents::Contents;
pub use check::{CheckError, CheckOptions, check};
pub use cut::{Cut, CutError, CutOptions, Engine, Roster, Target};
pub use error::TraceError;
pub use freeze::engine::{Plan, Planner};
pub use freeze::frozen_memory::FrozenMemory;
pub use freeze::guard::{Class, Events, Guard, GuardOptions, Seen, SlotCount};
pub use job::adopt::{Adopted, cannot_speak, loads_libraries};
pub use job::members::{FaultCounters, Members};
pub use job::membership::is_of_job;
pub use job::process_age::Awaited;
pub use refuse::process as refuse_process;
pub use tracer::{Parked, Tracer};
pub use track::precopy_source::LivePages;
pub use track::tracking::Tracking;
