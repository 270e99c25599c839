//! The process record: what the kernel knows of a stopped process.
//!
//! * [`maps`], [`locks`]: mappings, their flags and where their pages are. * [`files`]: descriptors and data in flight.
//! * [`links`]: files whose name was removed while they have another one. * [`folder`]: the current directory.
//! * [`rights`]: ids and capabilities. * [`segments`]: System V shared memory.
//! * [`attributes`]: what a process and its threads tell of their settings.
//! * [`state`]: signals, timers, limits, layout, threads. * [`processor`]: instruction sets.
//!
//! Called by the tracer thread. What runs inside the stop and what after it is said at each function: inside the stop
//! only what could change.

pub mod attributes;
pub mod contents;
pub mod files;
pub mod folder;
pub mod identity;
pub mod ids;
pub mod ipc;
pub mod links;
pub mod locks;
pub mod maps;
pub mod processor;
pub mod rights;
pub mod segments;
pub mod state;
