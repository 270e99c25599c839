//! Regular files, as both halves of a restart see them: what the program does with one, and whether it can be put back.

use super::error::RebuildError;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileTable, Object};

/// Whether a description with these flags may write.
pub fn may_write(flags: u32) -> bool {
    flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned()
}

/// Whether a description with these flags can do nothing but append.
fn only_appends(flags: u32) -> bool {
    let wanted = libc::O_WRONLY | libc::O_APPEND;
    let asked = libc::O_ACCMODE | libc::O_APPEND | libc::O_PATH;
    flags & asked.cast_unsigned() == wanted.cast_unsigned()
}

/// What the program does with a file, by all its descriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It reads it.
    Read,
    /// It writes it.
    Written,
    /// It can do nothing but append to it: what is in it already is nothing to it. Such files are rotated away, and
    /// it goes on in an empty one.
    Appended,
    /// It writes it, and the image has what was in it (put back by the agent's `contents`).
    Saved,
}

impl Role {
    /// Of what an object is.
    pub fn of(table: &FileTable, object: &Object) -> Role {
        let Object::Regular { device: own_device, inode: own_inode, .. } = object else { return Role::Read };
        if table.content_of(object).is_some() {
            return Role::Saved;
        }
        let is_it = |other: &&Description| match &other.object {
            Object::Regular { device, inode, .. } => (device, inode) == (own_device, own_inode),
            _ => false,
        };
        let all = || table.descriptions.iter().filter(is_it).map(|one| one.flags);
        if !all().any(may_write) {
            Role::Read
        } else if all().all(only_appends) {
            Role::Appended
        } else {
            Role::Written
        }
    }

    /// Whether it writes it, and the image does not have what was in it.
    pub fn is_written(self) -> bool {
        matches!(self, Role::Written | Role::Appended)
    }
}

/// A file that the program writes must not be shorter than it was.
///
/// # Errors
/// It is.
pub fn refuse_shrunk(path: &Name, size: u64, now: u64) -> Result<(), RebuildError> {
    if now >= size {
        return Ok(());
    }
    Err(RebuildError::file(
        path,
        format!(
            "the program writes it, and it has {now} bytes now but had {size} at the checkpoint; put the missing \
             bytes back, or lengthen it if they do not matter (truncate -s {size})"
        ),
    ))
}
