//! The mounts of a namespace that a program of the job has made, as a restart makes them again; and what lies in one.
//!
//! Part of the process record: the tree is in the namespace ([`crate::namespaces`]), what lies in it says so by
//! [`Within`] or [`Inside`]. Written by `process::capture::mounts`, read by `process::rebuild`. Invariants: plain data;
//! mounts are in the order in which they are made, each after what it lies on ([`check`]).

use crate::bytes::{Blob, Name};
use crate::inode::{Inode, Ownership};
use crate::unlinked::ContentPiece;
use serde::{Deserialize, Serialize};
use std::path::Component;

/// Something that is open in a mount namespace of a program's own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Within {
    /// The namespace, by its place in the list; at a checkpoint, until that is made, its inode.
    pub namespace: u64,
    /// Its path there. Where it is in the job, the path beside this tells.
    pub path: Name,
}

/// A file that a process in such a namespace has mapped, or executes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Inside {
    /// Its path there.
    pub path: Name,
    /// It is nowhere else: the path beside this is no path of the job's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only: bool,
}

/// All mounts of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MountTree {
    /// Its root is another one than the job's (pivot_root(2)), and the first mount of the list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pivoted: bool,
    /// What it hears of, and tells, of the mounts that it was cloned from.
    pub propagation: Propagation,
    /// Mounts of the job's that are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<Name>,
    /// What is to be made or changed.
    pub mounts: Vec<MountRecord>,
    /// File systems that are nowhere else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_systems: Vec<TmpfsRecord>,
}

/// mount_namespaces(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// Neither.
    #[default]
    Private,
    /// It hears.
    Slave,
    /// Both; nothing in it differs.
    Shared,
}

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// Where.
    pub point: Name,
    /// MS_* of mount(2) that belong to a mount.
    pub flags: u64,
    /// What.
    #[serde(flatten)]
    pub source: MountSource,
}

/// What is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MountSource {
    /// What is there already, with the job's mounts or below one before, with other flags.
    Kept,
    /// Something that the job sees, too.
    Bind {
        /// Where.
        from: Name,
        /// With what is mounted below it.
        recursive: bool,
        /// Which it was, and whose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inode: Option<Inode>,
    },
    /// A file without a name.
    File {
        /// What is in it.
        content: Blob,
        /// Permission bits.
        mode: u32,
        /// Whose.
        owner: Ownership,
    },
    /// One of [`MountTree::file_systems`].
    Tmpfs {
        /// Which.
        file_system: u32,
        /// What of it: a folder, from its own root.
        root: Name,
    },
    /// A file system that the kernel fills.
    Kernel {
        /// `proc`, `sysfs`, `mqueue`, `devpts`.
        file_system: String,
        /// Its options.
        options: String,
        /// Of `proc`: it shows a pid namespace that a program of the job has made, whose process 1 has this id in the
        /// job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid_namespace: Option<u64>,
    },
    /// A part of one of those, which was mounted before.
    Part {
        /// Its place among the mounts.
        of: u32,
        /// What of it, from its root.
        root: Name,
    },
}

impl MountTree {
    /// Whether the mount at a place is made when all processes are there: it shows a pid namespace that one of them has
    /// made, or lies on a mount that does.
    pub fn is_late(&self, place: usize) -> bool {
        let Some(mount) = self.mounts.get(place) else { return false };
        let shows =
            |one: &MountRecord| matches!(one.source, MountSource::Kernel { pid_namespace: Some(_), .. });
        let mut before = self.mounts.iter().take(place + 1).filter(|one| shows(one));
        before.any(|late| mount.point.as_path().starts_with(late.point.as_path()))
    }
}

/// A file system in memory, with what is in it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TmpfsRecord {
    /// Source, as the program has named it.
    pub source: Name,
    /// Options.
    pub options: String,
    /// It cannot be written to, wherever it is mounted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// What is in the folder that is mounted first; that folder itself is the first. Each behind its folder.
    pub entries: Vec<TmpfsEntry>,
}

/// A file of one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TmpfsEntry {
    /// Relative path; empty: the folder that is mounted.
    pub path: Name,
    /// Permission bits.
    pub mode: u32,
    /// Whose, as the agent sees it.
    pub owner: Ownership,
    /// When it was last written, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// What it is.
    #[serde(flatten)]
    pub kind: TmpfsKind,
}

/// What it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TmpfsKind {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Length.
        size: u64,
        /// What of it is not zero, ascending.
        content: Vec<ContentPiece>,
    },
    /// A symbolic link.
    Link {
        /// Where it leads.
        to: Name,
    },
    /// Another name of one before.
    Same {
        /// Its place.
        of: u32,
    },
    /// A named pipe.
    Fifo,
}

/// Whether a tree can be computed with: image files are not trusted.
///
/// # Errors
/// Says what is wrong.
pub(crate) fn check(tree: &MountTree) -> Result<(), String> {
    let plain = |name: &Name, rooted: bool| {
        let mut parts = name.as_path().components();
        (!rooted || parts.next() == Some(Component::RootDir))
            && parts.all(|part| matches!(part, Component::Normal(_)))
            && !name.0.contains(&0)
    };
    for (place, mount) in tree.mounts.iter().enumerate() {
        let right = match &mount.source {
            MountSource::Part { of, root } => {
                let whole = tree.mounts.get(*of as usize).map(|whole| &whole.source);
                (*of as usize) < place
                    && plain(root, true)
                    && matches!(whole, Some(MountSource::Kernel { .. }))
            }
            MountSource::Bind { from, .. } => plain(from, true),
            MountSource::Tmpfs { file_system, root } => {
                plain(root, true) && (*file_system as usize) < tree.file_systems.len()
            }
            _ => true,
        };
        if !right || !plain(&mount.point, true) {
            return Err(format!("the mount at {} is none that can be made", mount.point));
        }
    }
    if tree.pivoted && tree.mounts.first().is_none_or(|first| first.point.0 != b"/") {
        return Err("a mount namespace without a root".into());
    }
    for entries in tree.file_systems.iter().map(|one| &one.entries) {
        for (place, entry) in entries.iter().enumerate() {
            let right = match &entry.kind {
                TmpfsKind::Same { of } => (*of as usize) < place,
                TmpfsKind::File { size, content } => {
                    let ends =
                        content.iter().map(|piece| piece.offset.checked_add(piece.data.0.len() as u64));
                    ends.into_iter().all(|end| end.is_some_and(|end| end <= *size))
                }
                _ => true,
            };
            if !right || !plain(&entry.path, false) || (place == 0) != entry.path.0.is_empty() {
                return Err(format!("{}: a file of a mount namespace is out of place", entry.path));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(mounts: &[(&str, MountSource)], entries: Vec<TmpfsEntry>) -> MountTree {
        let record = |(point, source): &(&str, MountSource)| MountRecord {
            point: Name::from(*point),
            flags: 6,
            source: source.clone(),
        };
        let file_systems = vec![TmpfsRecord { entries, ..TmpfsRecord::default() }];
        MountTree { mounts: mounts.iter().map(record).collect(), file_systems, ..MountTree::default() }
    }

    fn entry(path: &str, kind: TmpfsKind) -> TmpfsEntry {
        let owner = Ownership { user: 0, group: 0 };
        TmpfsEntry { path: Name::from(path), mode: 0o755, owner, mtime_ns: 0, kind }
    }

    #[test]
    fn what_was_written_is_read() {
        let tmpfs = MountSource::Tmpfs { file_system: 0, root: Name::from("/newroot") };
        let content = vec![ContentPiece { offset: 1, data: Blob(vec![1, 2]) }];
        let entries = vec![entry("", TmpfsKind::Folder), entry("a", TmpfsKind::File { size: 3, content })];
        let all = tree(&[("/", MountSource::Kept), ("/mnt", tmpfs)], entries);
        let text = serde_json::to_string(&all).unwrap_or_default();
        assert_eq!(serde_json::from_str::<MountTree>(&text).ok(), Some(all.clone()), "{text}");
        assert_eq!(check(&all), Ok(()));
    }

    #[test]
    fn what_leads_elsewhere_is_none() {
        let tmpfs = |file_system, root: &str| MountSource::Tmpfs { file_system, root: Name::from(root) };
        for (point, source) in [
            ("/a/../b", MountSource::Kept),
            ("a", MountSource::Kept),
            ("/mnt", tmpfs(1, "/")),
            ("/mnt", tmpfs(0, "/../x")),
        ] {
            assert!(check(&tree(&[(point, source)], Vec::new())).is_err(), "{point}");
        }
        let root = || entry("", TmpfsKind::Folder);
        for other in [
            entry("../a", TmpfsKind::Fifo),
            entry("", TmpfsKind::Folder),
            entry("a", TmpfsKind::Same { of: 1 }),
            entry("/a", TmpfsKind::Folder),
        ] {
            assert!(check(&tree(&[], vec![root(), other])).is_err());
        }
        assert!(
            check(&MountTree { pivoted: true, ..tree(&[("/mnt", MountSource::Kept)], Vec::new()) }).is_err()
        );
    }
}
