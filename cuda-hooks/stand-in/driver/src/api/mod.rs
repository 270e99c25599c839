//! What the exported functions do: arguments are checked and read here, and nothing else is decided. `table.rs` has
//! which function is which.

pub mod array;
pub mod checkpoint;
pub mod context;
pub mod copy;
pub mod device;
pub mod event;
pub mod function;
pub mod graph;
pub mod hint;
pub mod host;
pub mod library;
pub mod memory;
pub mod module;
pub mod pool;
pub mod resolve;
pub mod shared;
pub mod stream;
pub mod texture;
pub mod vmm;
