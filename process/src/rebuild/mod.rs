//! The restart: a process record and its pages become a running program again.
//!
//! Two parties work together, joined by a socket that keeps message boundaries. The folders say where code runs:
//! * `front`: `holdfast restart`, which creates the first new process with its old id.
//! * `new_process`: the new processes up to their exec. They give themselves folder, descriptors and session by
//!   ordinary calls, the first makes the others, and each executes the program's executable.
//! * `agent`: takes each of them over before its first instruction, plants the *seed*, a few instructions that work
//!   through tables of system calls, has it rebuild its own address space and threads by such tables, and resumes
//!   all.
//!
//! What lies beside the folders is used by more than one of them.
//!
//! What must hold: one OS thread of the agent makes all ptrace calls. How it fails: whatever goes wrong before the
//! program is resumed, all new processes are killed and the error says what, on what, and what to do; files that
//! were cut back keep what was cut off in the store.

pub mod addresses;
mod agent;
mod error;
mod file_role;
mod front;
mod gone_files;
mod handshake;
mod inotify;
mod job;
mod kept_fds;
mod members;
mod new_process;
pub mod newer_files;
pub(crate) mod paths;
mod preflight;
mod proc_self;
pub mod processor;
pub mod renamed;
mod rseq;
mod shared_files;
mod shared_memfd;
mod socket_addresses;
mod socket_setup;
pub mod streams;
#[cfg(test)]
pub(crate) mod testing;
mod timings;
mod vdso;

pub use agent::in_place::{self, InPlaceError};
pub use agent::options::{RebuildOptions, Rebuilt, RebuiltMember};
pub use agent::pages::MIN_MAPPED_LEN;
pub use agent::rebuild_job::rebuild_job;
pub use error::{Peer, RebuildError};
pub use front::counted::begin_ahead;
pub use front::dying::{self, NamedProcess};
pub use front::ids::Ids;
pub use front::spawn::{SpawnOptions, Spawned, spawn};
pub use preflight::{is_same_build, preflight};
pub use timings::RebuildTimings;
