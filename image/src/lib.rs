//! What a checkpoint consists of, as plain data.
//!
//! * [`units`]: addresses, page counts, epochs: numbers that carry their unit in the type.
//! * [`record`]: what the kernel knows about a process, as captured at the stop.
//! * [`attributes`]: settings of processes and threads in it.
//! * [`pages`]: runs of pages, and the two small traits that join whoever has pages with whoever stores them.
//! * [`set`]: sets of pages.
//! * [`space`]: the address spaces of several processes in one.
//! * [`tree`]: in which order the processes of a job are forked at a restart.
//! * [`paths`]: files that were moved between checkpoint and restart.
//! * [`processor`]: what of a processor an image depends on.
//! * [`manifest`]: the commit of an image: process record, frame table, page index, figures.
//! * [`control`]: messages between libholdfast, the agent and the commands.
//! * [`refusal`]: what a checkpoint cannot contain, and why.
//!
//! Invariants: no system call, no file, no unsafe in this crate; everything that is decoded from bytes is checked
//! before it is computed with. See `docs/format.md`.
#![forbid(unsafe_code)]

pub mod attributes;
pub mod bytes;
mod contents;
pub mod control;
mod files;
mod ipc;
pub mod manifest;
mod nameless;
pub mod pages;
pub mod paths;
pub mod processor;
pub mod record;
pub mod refusal;
pub mod rights;
mod segments;
pub mod set;
pub mod space;
mod terminals;
pub mod tree;
pub mod units;
mod watches;

pub use units::{Addr, Epoch, PAGE_SIZE, PageCount};
