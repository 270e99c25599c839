//! A rollback: the processes of a job that lives go on from one of its images, without new ones.
//!
//! Called by the agent, while the tracer holds all processes of the job ([`crate::CutOptions::hold`]). [`Plan::new`]
//! compares what a cut has just recorded with the image's record: what cannot be put back is refused by name
//! ([`compare`], [`objects`], [`mappings`]). [`Plan::stage`] reads and checks the pages that may differ ([`memory`]).
//! Up to there nothing of the program is touched, and it goes on as after any stop. [`put_back`] then does all of it
//! on the tracer thread ([`restore`], [`state`]).
//!
//! What must hold: from the first change on every process dies with the agent (PTRACE_O_EXITKILL), and the caller
//! ends the job after a failure: there is no half of one time and half of another. How it fails: [`InPlaceError`] says
//! which of both it was.

mod compare;
mod mappings;
mod memory;
mod objects;
mod plan;
mod restore;
mod state;

pub use plan::{Held, Plan};
pub use restore::{InPlace, InPlaceError, put_back};
