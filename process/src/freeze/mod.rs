//! How the memory of the instant is kept while the program runs on.
//!
//! * [`engine`]: copy, clone or guard, whichever costs less. [`clone`]: the frozen copy. [`guard`]: engine `slots`.
//! * [`frozen_memory`]: reads the pages, wherever they are kept.

pub(crate) mod clone;
pub(crate) mod engine;
pub(crate) mod frozen_memory;
pub(crate) mod guard;
pub(crate) mod retained;
pub(crate) mod tracer_queue;
