//! The commands, one file each. Every one takes its arguments, does its work through the libraries, and returns the
//! exit code or a [`Failure`](crate::exit::Failure) that says what to do.

pub mod cat;
pub mod check;
pub mod checkpoint;
pub mod completions;
pub mod copies;
pub mod doctor;
pub mod export;
pub mod fetch;
mod gang;
mod gang_list;
pub mod import;
pub mod kill;
pub mod list;
pub mod logs;
pub mod look;
pub mod man;
mod memory;
pub mod places;
pub mod plan;
pub mod prune;
mod prune_report;
pub mod report;
pub mod restart;
pub mod restart_lost;
pub mod rollback;
pub mod run;
pub mod set;
pub mod show;
mod show_objects;
mod sources;
pub mod streams;
pub mod sync;
pub mod tier_list;
pub mod veloc;
pub mod verify;
pub mod watch;
