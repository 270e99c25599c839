//! The process record: what the kernel knows of a stopped process.
//!
//! * [`maps`]: mappings and where their pages are. * [`files`]: descriptors and data in flight.
//! * [`state`]: signals, timers, limits, layout, threads.
//!
//! Called by the tracer thread. What runs inside the stop and what after it is said at each function: inside the stop
//! only what could change.

pub mod files;
pub mod identity;
pub mod maps;
pub mod state;
