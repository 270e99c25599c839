//! Files without a name that a program has open or mapped: memfds, and files that were deleted.
//!
//! Part of the files part of the process record. Written by `process::capture::files::nameless`, read by
//! `process::rebuild::nameless`. Invariants: plain data; a byte is stored once: in the page index where a shared
//! mapping covers it, else in [`NamelessFile::content`]; a byte that is in neither is zero.

use crate::bytes::{Blob, Name};
use crate::page_set::PageSet;
use serde::{Deserialize, Serialize};

/// What kind of file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamelessKind {
    /// memfd_create(2).
    Memfd,
    /// Deleted, or never linked (O_TMPFILE).
    Deleted,
}

/// A file without a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamelessFile {
    /// Kind.
    pub kind: NamelessKind,
    /// The name given to memfd_create; of a deleted file: where it was.
    pub name: Name,
    /// Inode at the cut: two files of one name are told apart.
    pub inode: u64,
    /// Length.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// F_GET_SEALS; 0 for what has none.
    pub seals: u32,
    /// User and group that own it. Absent: not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<(u32, u32)>,
    /// When it was last written, in nanoseconds since the epoch. Absent: not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ns: Option<i64>,
    /// It was known by mappings alone: what these do not show is not known, and no process can come to it any more.
    #[serde(default)]
    pub by_mapping: bool,
    /// Content that no shared mapping covers, ascending, without holes.
    pub content: Vec<ContentPiece>,
    /// At a checkpoint: its device, and all names by which it was opened, as /proc prints them: a file that had two
    /// names is one file.
    #[serde(skip)]
    pub opened_as: (u64, Vec<Name>),
    /// At a checkpoint, of one that is known by mappings alone: what they show of it, by offset in it.
    #[serde(skip)]
    pub shown: PageSet,
}

/// Some content of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentPiece {
    /// Byte offset in the file.
    pub offset: u64,
    /// Bytes.
    pub data: Blob,
}
