//! The agent's half of a restart, in new processes that are stopped at their exec.
//!
//! [`rebuild_job`] is the order of all processes, [`rebuild_process`] that of one. Memory: [`seed`],
//! [`address_space`], [`pages`], [`fill`], [`lazy`], [`tracker`], [`vdso`](super::vdso). Kernel state: [`threads`],
//! [`process_state`], [`attributes`], [`credentials`], [`owners`], [`job_control`], [`proc_files`], [`root`],
//! [`namespaces`], [`filters`].
//! What the user changes: [`environment`]. What outlives processes: [`regular`], [`contents`], [`unlinked`],
//! [`sysv_shm`], [`ipc`], [`queues`]. [`in_place`]: a rollback, in processes that are there.

mod address_space;
mod aio;
mod attributes;
mod choose_id;
mod contents;
mod credentials;
mod environment;
mod fill;
mod filters;
pub mod in_place;
mod ipc;
mod ipc_owner;
mod job_control;
mod landlock;
mod lazy;
mod ldt;
mod namespaces;
pub mod options;
mod own_folder;
mod owners;
pub(super) mod pages;
mod passed_files;
mod proc_files;
mod process_pages;
mod process_state;
mod protection_keys;
mod queues;
mod ranges;
pub mod rebuild_job;
mod rebuild_process;
mod regular;
mod remote_calls;
mod resume;
mod root;
mod saved_files;
mod seed;
mod seize;
mod sysv_shm;
mod taken_files;
mod threads;
mod tracker;
mod unlinked;
