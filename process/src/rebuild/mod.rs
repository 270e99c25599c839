//! The restart: a process record and its pages become a running program again.
//!
//! Two parties work together, joined by a socket that keeps message boundaries:
//! * the front (`holdfast restart`) calls [`birth`]: it creates the new process with its old id, which gives itself its
//!   folder, descriptors and session by ordinary calls ([`life`], [`files`]), makes all other processes of the job
//!   ([`family`]), and executes the program's executable, as they do;
//! * the agent calls [`finish`](fn@finish): it stops each process before its first instruction, plants the *seed*
//!   ([`seed`]), a few instructions that work through tables of system calls, and has it rebuild its own address space
//!   and threads by such tables ([`site`], [`hand`], [`place`], [`fill`], [`tasks`], [`last`]); then it lets all go.
//!
//! What must hold: one OS thread of the agent makes all ptrace calls. How it fails: whatever goes wrong before the
//! program is let go, all new processes are killed and the error says what, on what, and what to do; files that were cut
//! back keep what was cut off in the store.

mod attributes;
mod birth;
mod chosen;
mod common;
mod contents;
mod datagrams;
mod error;
mod family;
mod figures;
mod files;
mod fill;
mod finish;
mod folder;
mod hand;
mod ipc;
mod last;
mod lazy;
mod life;
mod member;
mod mirror;
mod nameless;
mod namespace;
mod objects;
mod onward;
mod place;
mod preflight;
pub mod processor;
mod regular;
pub mod renamed;
mod report;
mod rights;
mod seed;
mod segments;
mod shared;
mod site;
mod socket_files;
mod sockets;
mod stopped;
mod tasks;
mod terminals;
mod tracker;
mod vdso;
mod view;
mod watches;

pub use birth::{BirthOptions, Born, Ids, birth};
pub use common::Common;
pub use error::{FRONT, RebuildError};
pub use figures::RebuildFigures;
pub use finish::{FinishOptions, Rebuilt, RebuiltMember, finish};
pub use preflight::preflight;
