//! What a checkpoint consists of, as plain data.
//!
//! * [`units`]: addresses, page counts, epochs: numbers that carry their unit in the type.
//! * [`record`]: what the kernel knows about a process, as captured at the stop.
//! * [`pages`]: runs of pages, and the two small traits that join whoever has pages with whoever stores them.
//! * [`set`]: sets of pages.
//! * [`manifest`]: the commit of an image: process record, frame table, page index, figures.
//! * [`control`]: messages between libholdfast, the agent and the commands.
//!
//! Invariants: no system call, no file, no unsafe in this crate; everything that is decoded from bytes is checked
//! before it is computed with. See `docs/format.md`.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod control;
pub mod manifest;
pub mod pages;
pub mod record;
pub mod set;
pub mod units;

pub use units::{Addr, Epoch, PAGE_SIZE, PageCount};
