//! The restart: a process record and its pages become a running program again.
//!
//! Two parties work together, joined by a socket that keeps message boundaries:
//! * the front (`holdfast restart`) calls [`spawn`]: it creates the new process with its old id, which gives itself its
//!   folder, descriptors and session by ordinary calls ([`child`], [`files`]), makes all other processes of the job
//!   ([`fork_tree`]), and executes the program's executable, as they do;
//! * the agent calls [`agent`](fn@finish): it stops each process before its first instruction, plants the *seed*
//!   ([`seed`]), a few instructions that work through tables of system calls, and has it rebuild its own address space
//!   and threads by such tables ([`process`], [`remote_calls`], [`address_space`], [`pages`], [`threads`], [`process_state`]); then it lets all go.
//!
//! What must hold: one OS thread of the agent makes all ptrace calls. How it fails: whatever goes wrong before the
//! program is let go, all new processes are killed and the error says what, on what, and what to do; files that were cut
//! back keep what was cut off in the store.

mod address_space;
mod agent;
mod attributes;
mod child;
mod chosen;
mod contents;
mod credentials;
mod cwd;
mod datagrams;
mod error;
mod files;
mod fork_tree;
mod handshake;
mod inotify;
mod ipc;
mod job_control;
mod last_pid;
mod lazy;
mod member;
mod namespace;
mod objects;
mod pages;
mod preflight;
mod proc_files;
mod process;
mod process_pages;
mod process_state;
pub mod processor;
mod regular;
mod remote_calls;
pub mod renamed;
mod seed;
mod shared_anonymous;
mod shared_memfd;
mod socket_files;
mod sockets;
mod spawn;
mod sysv_shm;
mod terminals;
mod threads;
mod timings;
mod tracker;
mod unlinked;
mod vdso;

pub use agent::{FinishOptions, Rebuilt, RebuiltMember, finish};
pub use error::{FRONT, RebuildError};
pub use preflight::preflight;
pub use shared_memfd::Common;
pub use spawn::{BirthOptions, Born, Ids, birth};
pub use timings::RebuildFigures;
