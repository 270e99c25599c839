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

mod adopt;
mod age;
mod capture;
mod check;
mod cut;
mod describe;
mod error;
mod freeze;
mod group;
mod guard;
mod hold;
mod huge;
mod inject;
mod inside;
mod known;
mod live;
mod mark;
mod members;
mod memory;
mod names;
mod orphans;
mod ours;
pub mod rebuild;
mod refuse;
mod repair;
mod slots;
mod snapshot;
mod speak;
mod spread;
mod stop;
mod sweep;
mod tasks;
mod threads;
mod together;
mod told;
mod tracer;
mod track;
mod xstate;

pub use adopt::{Adopted, cannot_speak, loads_libraries};
pub use age::Awaited;
pub use capture::contents::Contents;
pub use check::{CheckError, CheckOptions, check};
pub use cut::{Cut, CutError, CutOptions, Engine, Roster, Target};
pub use error::TraceError;
pub use guard::{Class, Events, Guard, GuardOptions, Seen, SlotCount};
pub use live::LivePages;
pub use mark::is_of_job;
pub use members::{FaultCounters, Members};
pub use memory::FrozenMemory;
pub use refuse::process as refuse_process;
pub use snapshot::{Plan, Planner};
pub use tracer::{Parked, Tracer};
pub use track::Tracking;
