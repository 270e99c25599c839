//! Memory of the device and of the host, as the driver's API knows it.
//!
//! `physical` has the device's bytes, `space` its addresses, `heap` what was allocated; `copy` are copies as streams
//! make them; `ranges` and `raw` are under them.

pub mod copy;
pub mod heap;
pub mod physical;
mod ranges;
mod raw;
pub mod space;
