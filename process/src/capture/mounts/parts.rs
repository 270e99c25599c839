//! What the look at a mount namespace deals with.
//!
//! Used by [`super::View`] and its parts. Plain data.

use holdfast_image::bytes::Name;
use holdfast_sys::mountinfo::Mount;
use std::path::{Path, PathBuf};

/// In the words of a refusal.
pub const REMEDY: &str = "start `holdfast run` inside";

/// A mount of it.
#[derive(Debug)]
pub struct Seen {
    pub mount: Mount,
    /// Where the job sees the same.
    pub outside: Option<PathBuf>,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The mount that it lies on.
    pub mount: u64,
    /// Device and inode.
    pub file: (u64, u64),
}

/// A path below a root.
pub fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A path as records have it.
pub fn name(path: &Path) -> Name {
    Name::from(path)
}
