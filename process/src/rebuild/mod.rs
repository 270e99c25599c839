//! The restart: a process record and its pages become a running program again.
//!
//! Two processes work together, joined by a socket that keeps message boundaries:
//! * the front (`holdfast restart`) calls [`birth`]: it creates the new process with its old id, gives it its folder,
//!   descriptors and session by ordinary calls ([`life`], [`files`]), and has it execute the program's executable;
//! * the agent calls [`finish`](fn@finish): it stops that process before its first instruction, plants the *seed*
//!   ([`seed`]), a few instructions that work through tables of system calls, and has it rebuild its own address space
//!   and threads by such tables ([`hand`], [`place`], [`fill`], [`tasks`], [`last`]), then lets it go.
//!
//! What must hold: one OS thread of the agent makes all ptrace calls. How it fails: whatever goes wrong before the
//! program is let go, the new process is killed and the error says what, on what, and what to do; files that were cut
//! back keep what was cut off in the store.

mod birth;
mod error;
mod figures;
mod files;
mod fill;
mod finish;
mod hand;
mod last;
mod lazy;
mod life;
mod mirror;
mod namespace;
mod objects;
mod place;
mod preflight;
mod regular;
mod report;
mod seed;
mod tasks;
mod tracker;

pub use birth::{BirthOptions, Born, Ids, birth};
pub use error::RebuildError;
pub use figures::RebuildFigures;
pub use finish::{FinishOptions, Rebuilt, finish};
pub use preflight::preflight;
