//! Objects: memory that a program puts into the store itself, as versions, and takes back.
//!
//! * [`wire`]: messages between a client and the server of a store (`holdfast serve`).
//! * [`buffer`]: the file in memory that a version lies in: a header, a table of objects, their bytes.
//! * [`boundary`]: what holds for functions that programs in C call.
//! * [`veloc_file`]: the files that VELOC itself writes.
//! * [`client`]: one rank of a set, in a program: puts and restores versions, starts the server where none is.
//!
//! Used by the server (`cli/src/serve`) and by the client libraries beside this crate. A put is a copy into a buffer by
//! the thread of the caller, and one message; all else is the server's. Invariant: what is read from the other side is
//! checked before it is computed with.

#![deny(unsafe_code)]

pub mod boundary;
pub mod buffer;
pub mod client;
pub mod veloc_file;
pub mod wire;
