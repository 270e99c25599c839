//! What a checkpoint consists of, as plain data.
//!
//! * [`units`]: addresses, page counts, epochs: numbers that carry their unit in the type.
//! * [`record`]: what the kernel knows about a process, as captured at the stop.
//! * [`attributes`]: settings of processes and threads in it.
//! * [`pages`]: runs of pages, and the two small traits that join what has pages with what stores them.
//! * [`page_set`]: sets of pages.
//! * [`host_addresses`], [`addresses`]: addresses of hosts, and sockets at other ones, for a restart elsewhere.
//! * [`address_space`]: the address spaces of several processes in one.
//! * [`fork_plan`]: in which order the processes of a job are forked at a restart.
//! * [`spare_numbers`]: where a restart keeps descriptors besides the program's own.
//! * [`paths`]: files that were moved between checkpoint and restart.
//! * [`processor`]: what of a processor an image depends on.
//! * [`cuda`]: what an image says of the CUDA state of a process.
//! * [`manifest`]: the commit of an image: process record, frame table, page index, figures.
//! * [`namespaces`], [`mounts`]: namespaces that programs have made, and what is mounted in one.
//! * [`kinds`]: how a checkpoint was made: engine, tracker.
//! * [`objects`]: what an image says of memory that a program has put into the store itself.
//! * [`confinement`], [`landlock`]: what threads have forbidden themselves.
//! * [`control`]: messages between libholdfast, the agent and the commands.
//! * [`size`]: numbers of bytes as users write them.
//! * [`refusal`]: what a checkpoint cannot contain, and why.
//!
//! Invariants: no system call, no file, no unsafe in this crate; everything that is decoded from bytes is checked
//! before it is computed with. See `docs/format.md`.
#![forbid(unsafe_code)]

pub mod address_space;
pub mod addresses;
pub mod aio;
pub mod attributes;
pub mod bytes;
pub mod confinement;
mod contents;
pub mod control;
pub mod credentials;
pub mod cuda;
mod files;
pub mod folders;
pub mod fork_plan;
pub mod framing;
pub mod host_addresses;
mod inode;
mod inotify;
mod ipc;
pub mod kinds;
mod known_ids;
pub mod landlock;
pub mod ldt;
pub mod manifest;
pub mod mounts;
pub mod namespaces;
pub mod objects;
pub mod page_set;
pub mod pages;
pub mod paths;
pub mod pid_namespaces;
pub mod processor;
mod queues;
pub mod record;
pub mod refusal;
mod region;
pub mod size;
mod sockets;
pub mod spare_numbers;
pub mod streams;
mod sysv_shm;
mod terminals;
#[doc(hidden)]
pub mod testing;
mod timers;
pub mod units;
mod unlinked;
mod zombie;

pub use units::{Addr, Epoch, PAGE_SIZE, PageCount};
