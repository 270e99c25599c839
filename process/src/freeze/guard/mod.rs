//! Engine `slots`: the agent's half of the copy-on-write that libholdfast does in the program (docs/slots.md).
//!
//! * [`plan`] decides what can be guarded: pure, no system calls.
//! * [`arm`] looks at the stopped program for it, and guards the memory ([`arm`]), inside the stop of a cut.
//! * [`pages`] reads guarded pages while the program runs, and says what is stored: [`Guard`].
//! * [`lift`] ends it: a short stop in which everything that is still closed is opened.
//! * [`remote`]: the tables in the program.
//!
//! What must hold: the guard is armed after everything else of the stop was copied, since its tables are memory of the
//! program; and it is lifted before the next cut, which would find wrong protections otherwise.

mod arm;
mod lift;
mod options;
mod pages;
mod plan;
mod remote;
mod rows;

pub use arm::{Guardable, Survey, arm, survey};
pub use lift::lift;
pub use options::{GuardOptions, SlotCount};
pub use pages::{Class, Events, Guard, Seen};
