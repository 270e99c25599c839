//! The mappings part of the process record: what is mapped where, and what backs it.
//!
//! Part of [`crate::record`], where it is checked. Invariants: plain data.

use crate::Addr;
use crate::attributes::MemoryPolicy;
use crate::bytes::{Blob, Name};
use crate::inode::Inode;
use crate::mounts::Inside;
use serde::{Deserialize, Serialize};

/// PROT_EXEC (include/uapi/asm-generic/mman-common.h).
const PROT_EXEC: u32 = 4;
/// PROT_WRITE (include/uapi/asm-generic/mman-common.h).
const PROT_WRITE: u32 = 2;

/// One mapping (a line of `/proc/PID/maps`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// First byte.
    pub start: Addr,
    /// First byte after it.
    pub end: Addr,
    /// `PROT_READ|WRITE|EXEC` bits.
    pub prot: u32,
    /// What backs it.
    pub backing: Backing,
    /// `VmFlags` that matter at restart, two letters each as in `/proc/PID/smaps` (gd, hg, nh, dc, wf, dd, lo, lf,
    /// mg, sr, rr, dp); of explicit huge pages also their size: hp21 (2 MiB), hp30 (1 GiB).
    pub vm_flags: Vec<String>,
    /// What the program called it (`PR_SET_VMA_ANON_NAME`).
    #[serde(default)]
    pub name: Option<Name>,
    /// `mbind(2)`.
    #[serde(default)]
    pub memory_policy: Option<MemoryPolicy>,
}

impl Region {
    /// Whether the image has the content of what it maps shared: it was mapped for writing. What may merely become
    /// writable is what the file is.
    pub fn is_written(&self) -> bool {
        self.prot & PROT_WRITE != 0
    }

    /// Whether it has a flag of `VmFlags`.
    pub fn has(&self, flag: &str) -> bool {
        self.vm_flags.iter().any(|own| own == flag)
    }

    /// The protection key that the program has given it (pkeys(7)). That of memory that may only be executed is the
    /// kernel's.
    pub fn key(&self) -> Option<u32> {
        let number = self.vm_flags.iter().find_map(|flag| flag.strip_prefix("key")?.parse().ok());
        number.filter(|_| self.prot != PROT_EXEC)
    }

    /// Of explicit huge pages: the shift of their size.
    pub fn huge_shift(&self) -> Option<u32> {
        self.vm_flags.iter().find_map(|flag| match flag.as_str() {
            "hp21" => Some(21),
            "hp30" => Some(30),
            _ => None,
        })
    }
}

/// What backs a mapping.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Backing {
    /// Private anonymous memory (heap, stacks, bss; also memory that a lazy restart mapped from an image).
    Anonymous,
    /// Private mapping of a file: pages that differ from it are in the page index.
    PrivateFile {
        /// Index into [`FileTable::mapped`].
        file: u32,
        /// Byte offset of the mapping in it.
        offset: u64,
    },
    /// Shared mapping of a regular file; its pages in the page index are the file's content at the cut.
    SharedFile {
        /// Index into [`FileTable::mapped`].
        file: u32,
        /// Byte offset of the mapping in it.
        offset: u64,
        /// Whether the file was opened for writing (VmFlags `mw`).
        writable: bool,
    },
    /// Mapping of a file without a name.
    Nameless {
        /// Index into [`FileTable::nameless`] of the first process.
        file: u32,
        /// Byte offset of the mapping in it.
        offset: u64,
        /// MAP_SHARED: its pages in the page index are the file's content at the cut; otherwise those that differ
        /// from it.
        shared: bool,
        /// A shared one may be made writable: it was opened for writing (VmFlags `mw`).
        writable: bool,
    },
    /// Shared anonymous memory that only this process maps; content in the page index.
    SharedAnonymous {
        /// Same number: same object.
        object: u64,
        /// Byte offset in the object.
        offset: u64,
        /// Size of the whole object, bytes.
        object_size: u64,
    },
    /// System V shared memory; content in the page index.
    SystemV {
        /// Index into [`FileTable::segments`] of the first process.
        segment: u32,
        /// Byte offset of the mapping in it.
        offset: u64,
        /// It may be made writable: it was not attached with SHM_RDONLY (VmFlags `mw`).
        writable: bool,
    },
    /// `[vdso]`, `[vvar]`, `[vvar_vclock]`: moved, never stored.
    Kernel {
        /// The name between the brackets.
        name: String,
    },
}

/// Identity of a file that a restart needs unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Absolute path.
    pub path: Name,
    /// Length in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// GNU build-id of an ELF file.
    pub build_id: Option<Blob>,
    /// Permission bits. Absent: 0600.
    #[serde(default = "private")]
    pub mode: u32,
    /// Which one it was, and whose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
    /// Of a process in a mount namespace that a program has made: what it is called there, if not so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

impl FileIdentity {
    /// Where its process finds it.
    pub fn path_of_process(&self) -> &Name {
        self.inside.as_ref().map_or(&self.path, |inside| &inside.path)
    }

    /// Whether a restart finds it at no path of its own.
    pub fn is_only_inside(&self) -> bool {
        self.inside.as_ref().is_some_and(|inside| inside.only)
    }
}

fn private() -> u32 {
    0o600
}
