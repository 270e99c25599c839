//! Watches of inotify(7).
//!
//! Part of the files part of the process record. Written by `process::capture::files::watches`, read by
//! `process::rebuild::watches`. Invariants: plain data.

use crate::bytes::Name;
use serde::{Deserialize, Serialize};

/// A watch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watch {
    /// Its number; the same again at restart.
    pub wd: i32,
    /// IN_* bits.
    pub mask: u32,
    /// Absolute path of what is watched.
    pub path: Name,
    /// Device (major << 20 | minor, as the kernel has it) and inode at the cut.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Type and bytes of its file handle, in hexadecimal digits, while the path is not known.
    #[serde(skip)]
    pub handle: Option<(i32, Vec<u8>)>,
}
