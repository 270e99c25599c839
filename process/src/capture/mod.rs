//! The process record: what the kernel knows of a stopped process.
//!
//! * [`maps`], [`mlock`]: mappings, their flags and where their pages are. * [`shared_memory`], [`touched`]: what of
//!   shared memory is copied. * [`files`]: descriptors and data in flight.
//! * [`name_caches`]: what nscd and SSSD have given the process.
//! * [`hardlinks`]: files whose name was removed while they have another one. * [`cwd`]: the current directory.
//! * [`root`]: the root directory. * [`namespaces`]: those that it has made.
//! * [`credentials`]: ids and capabilities. * [`sysv_shm`]: System V shared memory.
//! * [`attributes`]: what a process and its threads tell of their settings.
//! * [`landlock`], [`landlock_notes`], [`filters`], [`filter_counts`]: what threads have forbidden themselves.
//! * [`ldt`]: its segments.
//! * [`aio`]: contexts of Linux AIO. * [`protection_keys`]: those that it has allocated.
//! * [`written_files`], [`contents`]: which files are saved, and what is in them; [`running_files`]: before the stop;
//!   [`closed_files`]: those that no process has open.
//! * [`state`]: signals, timers, limits, layout, threads. * [`processor`]: instruction sets.
//!
//! Called by the tracer thread. What runs inside the stop and what after it is said at each function: inside the stop
//! only what could change.

pub mod aio;
pub mod attributes;
pub mod build_record;
pub mod capture_job;
pub mod capture_process;
pub mod closed_files;
pub mod contents;
pub mod credentials;
pub mod cwd;
pub mod files;
pub mod filter_counts;
pub mod filters;
mod folders;
pub mod hardlinks;
pub mod identity;
pub mod ipc;
pub mod landlock;
mod landlock_notes;
pub mod last_pid;
pub mod ldt;
pub mod made_namespaces;
pub mod map_flags;
pub mod maps;
pub mod mlock;
pub mod mounts;
pub mod name_caches;
pub mod namespaces;
pub mod open_file;
pub mod own_folder;
pub mod own_proc;
pub mod pid_namespaces;
pub mod processor;
pub mod protection_keys;
pub mod regions;
pub mod root;
pub mod running_files;
pub mod shared_memory;
pub mod state;
pub mod sysv_shm;
pub mod touched;
pub mod watchers;
pub mod written_files;
