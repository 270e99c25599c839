//! Stop a program, capture what the kernel knows of it, freeze its memory, rebuild it.
//!
//! Each folder is one step; no part imports what orchestrates it.
//!
//! * On top: [`Tracer`], the one OS thread that traces (ptrace binds a tracee to the thread that seized it); `cut`, one
//!   checkpoint's stop from beginning to end; [`check`], the look that stops nothing.
//! * `job`: who is of the job, and its processes as they are stopped together.
//! * `stop`: seize, interrupt, wait, repair interrupted calls, resume.
//! * `inject`: system calls run inside a stopped thread.
//! * `track`: which pages were written; [`LiveMemory`], pages before the stop.
//! * `freeze`: how the memory of the instant is kept: copied, cloned, guarded.
//! * `capture`: the process record: descriptors, mappings, signals, settings.
//! * [`cuda`]: the driver's part of a checkpoint, before and after the stop.
//! * [`rebuild`]: the way back.
//! * Leaves: `error`, `options`, `namespaces`, `gang`, `net_tables`, `tcp_table`, `refuse` (what cannot be
//!   checkpointed, in words), `thread_pool`.
//!
//! See `docs/architecture.md`.
#![deny(unsafe_code)]

mod capture;
mod check;
mod connection;
pub mod cuda;
mod cut;
mod error;
mod folder_walk;
mod freeze;
mod gang;
mod host_addresses;
mod inject;
mod job;
mod mapped_files;
mod namespaces;
mod net_tables;
mod options;
pub mod rebuild;
mod refuse;
mod stop;
mod tcp_table;
mod thread_pool;
mod tracer;
mod track;

pub use capture::closed_files::ClosedFiles;
pub use capture::contents::Contents;
pub use capture::filter_counts::of_the_host as filters_of_the_host;
pub use capture::identity::{build_id, mtime_ns};
pub use capture::written_files::Saving;
pub use check::{CheckError, CheckOptions, check};
pub use cut::Cut;
pub use error::{CutError, TraceError};
pub use freeze::frozen_memory::FrozenMemory;
pub use freeze::guard::{Class, Events, Guard, GuardOptions, Seen, SlotCount};
pub use freeze::tracer_queue::Parked;
pub use gang::{Gang, GangError, Phase};
pub use job::adopt::{cannot_register, loads_libraries};
pub use job::births::Births;
pub use job::members::{FaultCounters, Members};
pub use job::membership::{Kinship, ancestors, is_of_job};
pub use job::process_age::Awaited;
pub use job::target::{Adopted, Roster, Target};
pub use mapped_files::MappedFiles;
pub use namespaces::Namespaces;
pub use options::{CutOptions, Engine, Plan, Planner};
pub use refuse::{is_unregistered, process as refuse_process};
pub use tracer::{PartlyStopped, Tracer};
pub use track::precopy_source::LiveMemory;
pub use track::tracking::Tracking;
