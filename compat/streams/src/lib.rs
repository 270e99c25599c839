//! Streams: one process puts versions of named objects into a log in memory, others read them beside it.
//!
//! * [`layout`]: the bytes of a log: file header, cursors, records, tables;
//! * `record`: records read back, all checked; [`objects`]: what there is at a version, and where;
//! * [`writer`]: appends, and `room`: when the oldest records may go;
//! * [`reader`]: follows; `locks`: who is alive;
//! * [`place`]: where logs are; [`message`]: what readers on other hosts and their server say.
//!
//! Used by `libnvstream.so` (compat/nvstream) and by `holdfast cat` and `holdfast streams`. No server: a put is a copy
//! past the caches into a mapped file, and one word that commits it. Mechanism: NVStream (HPDC'18), with its repairs: a
//! record counts when its commit word fits, which has its position; the head moves when nothing needs what is before
//! it, neither a reader nor the newest version. Invariants: whatever dies at whatever moment, the log has all versions
//! that were committed and are not older than its head, and nothing of others.

#![deny(unsafe_code)]

pub mod error;
pub mod layout;
mod locks;
pub mod message;
pub mod objects;
pub mod place;
pub mod reader;
mod record;
mod room;
pub mod writer;

pub use error::Error;
