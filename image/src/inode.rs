//! Which file it was at the cut, and whose: by that a restart knows it again, and tells it from another user's file of
//! the same name.
//!
//! Part of the files part of the process record. Invariants: plain data; what an image of old does not tell is `None`,
//! and is not compared.

use serde::{Deserialize, Serialize};

/// S_IFMT and S_IFREG (include/uapi/linux/stat.h).
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// User and group of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ownership {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// A file as the kernel knew it at the cut (stat(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inode {
    /// Device: another one after a reboot on some file systems.
    pub device: u64,
    /// Number.
    pub inode: u64,
    /// Time of birth, nanoseconds, where it is known: a number may be given again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_ns: Option<i64>,
    /// Kind and permission bits.
    pub mode: u32,
    /// Whose it was. `None`: not known, or the user of the restart takes whatever is there now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
}

impl Inode {
    /// A regular file with these permission bits.
    pub fn regular(
        (device, inode): (u64, u64),
        born_ns: Option<i64>,
        mode: u32,
        owner: Option<Ownership>,
    ) -> Inode {
        Inode { device, inode, born_ns, mode: REGULAR | mode & !KIND, owner }
    }

    /// Whether it is this very file now. A device has another number after a reboot, on some file systems.
    pub fn is(&self, now: &Inode) -> bool {
        (self.inode, self.born_ns) == (now.inode, now.born_ns)
    }

    /// Whether another file is of the same kind.
    pub fn is_kind_of(&self, mode: u32) -> bool {
        self.mode & KIND == mode & KIND
    }
}
