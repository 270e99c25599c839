//! The namespaces of a thread, and the root directory of its process. Of some kinds a restart makes anew what programs
//! have made ([`MADE_ANEW`], `capture::namespaces`); in those of other kinds all processes of a job must be where the
//! job is. Other root directories are the business of `capture::root`.
//!
//! Those are the agent's (the program was started beside it), or what the restart gave the first process: a user, a pid
//! and a mount namespace, a time namespace. Used by `refuse`, and by `rebuild` for what it made.
//! Fails by: nothing is known of what cannot be read, as of a thread that has ended, and of kinds that the kernel does
//! not have.

use holdfast_sys::procfs;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Their files under /proc/PID/ns, and their names (namespaces(7)). For the children: a process that has left its pid
/// or time namespace is in the new one with its children, or its next program, only.
const KINDS: [(&str, &str); 8] = [
    ("mnt", MOUNT),
    ("uts", "uts"),
    ("ipc", "ipc"),
    ("net", "network"),
    ("user", "user"),
    ("cgroup", "cgroup"),
    (PID, PID_NAME),
    ("time_for_children", "time"),
];
const PID: &str = "pid_for_children";

/// Kinds of which a restart makes others than the job's anew.
pub const MADE_ANEW: [&str; 7] = ["uts", "ipc", "network", "user", "cgroup", MOUNT, PID_NAME];
/// What [`KINDS`] calls pid namespaces.
pub const PID_NAME: &str = "pid";
const MOUNT: &str = "mount";

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Namespaces {
    links: [Option<Vec<u8>>; KINDS.len()],
    /// Device and inode of the root directory.
    root: Option<(u64, u64)>,
    /// Its pid namespace for children has no process yet: the kernel does not name it then (kernel/pid_namespace.c,
    /// pidns_for_children_get).
    empty_pid: bool,
    /// Of those of a job: a process that is in its mount namespace as long as the job lives, where we are in another.
    viewer: Option<i32>,
    /// Of those of a job: whether it is in another pid namespace than we are, right below ours.
    pids_below: bool,
}

impl Namespaces {
    /// Those of a thread.
    pub fn of(pid: i32, tid: i32) -> Namespaces {
        let folder = format!("/proc/{pid}/task/{tid}");
        let link = |kind: &str| procfs::link(&format!("{folder}/ns/{kind}")).ok();
        let links = KINDS.map(|(kind, _)| link(kind));
        let root = fs::metadata(format!("{folder}/root")).ok().map(|root| (root.dev(), root.ino()));
        let unnamed = KINDS.iter().zip(&links).any(|((kind, _), link)| *kind == PID && link.is_none());
        // Last: a thread that ends has none at all.
        let empty_pid = unnamed && link("mnt").is_some();
        Namespaces { links, root, empty_pid, viewer: None, pids_below: false }
    }

    /// Those of a job, by its first process, which may have its children elsewhere.
    pub fn of_job(first: i32) -> Namespaces {
        let mut all = Namespaces::of(first, first);
        let own = procfs::link(&format!("/proc/{first}/ns/pid")).ok();
        for (link, (kind, _)) in all.links.iter_mut().zip(KINDS) {
            if kind == PID {
                link.clone_from(&own);
            }
        }
        all.pids_below = procfs::Status::read(first, first).is_ok_and(|status| status.is_nested());
        Namespaces { empty_pid: false, ..all }
    }

    /// Of those of a job: the place of its ids among those of a process ([`procfs::Status::at_depth`]).
    pub fn depth(&self) -> usize {
        1 + usize::from(self.pids_below)
    }

    /// The pid namespace of its children is one that has no process yet.
    pub fn has_empty_pid(&self) -> bool {
        self.empty_pid
    }

    /// Our own.
    pub fn own() -> Namespaces {
        let own = std::process::id().cast_signed();
        Namespaces::of(own, own)
    }

    /// With a process that is in its mount namespace.
    pub fn seen_by(self, viewer: i32) -> Namespaces {
        Namespaces { viewer: Some(viewer), ..self }
    }

    /// That process.
    pub fn viewer(&self) -> Option<i32> {
        self.viewer
    }

    /// The inode of the mount namespace of a process, if these are those of a job and it is in another one.
    pub fn other_mounts(&self, pid: i32) -> Option<u64> {
        let job = self.links.first()?.as_deref()?;
        let own = procfs::link(&format!("/proc/{pid}/ns/mnt")).ok()?;
        if own == job { None } else { inode(&own) }
    }

    /// The inode of the network namespace of a process; `None`: it has ended.
    pub fn network_of(pid: i32) -> Option<u64> {
        inode(&procfs::link(&format!("/proc/{pid}/ns/net")).ok()?)
    }

    /// The inode of the pid namespace of a process, if these are those of a job and it is in another one.
    pub fn other_pids(&self, pid: i32) -> Option<u64> {
        let own = procfs::link(&format!("/proc/{pid}/ns/pid")).ok()?;
        inode(&own).filter(|own| self.inode(PID_NAME).is_some_and(|job| job != *own))
    }

    /// The kinds that differ, by name.
    pub fn differing(&self, other: &Namespaces) -> Vec<&'static str> {
        let differ = |(one, other): (&Option<Vec<u8>>, &Option<Vec<u8>>)| match (one, other) {
            (Some(one), Some(other)) => one != other,
            _ => false,
        };
        let links = KINDS.iter().zip(self.links.iter().zip(&other.links));
        links
            .filter(|((kind, _), links)| {
                differ(*links)
                    || *kind == PID
                        && self.empty_pid != other.empty_pid
                        && links.0.is_some() != links.1.is_some()
            })
            .map(|((_, name), _)| *name)
            .collect()
    }

    /// The inode of one, by the name of its kind.
    pub fn inode(&self, kind: &str) -> Option<u64> {
        let place = KINDS.iter().position(|(_, name)| *name == kind)?;
        inode(self.links.get(place)?.as_deref()?)
    }

    /// Whether the root directory is another one than that with this device and inode.
    pub fn has_other_root(&self, other: (u64, u64)) -> bool {
        self.root.is_some_and(|own| own != other)
    }
}

/// That of a link like `mnt:[4026531840]`.
pub fn inode(link: &[u8]) -> Option<u64> {
    std::str::from_utf8(link).ok()?.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_has_ours_and_what_has_ended_none() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let (own, of_child) = (Namespaces::own(), Namespaces::of(pid, pid));
        assert_eq!(own.differing(&of_child), Vec::<&str>::new());
        assert!(own.links[0].is_some() && own.root.is_some() && own.root == of_child.root);
        child.kill().unwrap();
        // A zombie.
        while !procfs::Status::read(pid, pid).unwrap().has_ended() {
            std::thread::yield_now();
        }
        let ended = Namespaces::of(pid, pid);
        assert!(own.differing(&ended).is_empty());
        child.wait().unwrap();
        assert_eq!(Namespaces::of(pid, pid), Namespaces::default());
    }

    #[test]
    fn differences_are_named() {
        let own = Namespaces::own();
        let mut other = own.clone();
        other.links[1] = Some(b"uts:[1]".to_vec());
        other.links[7] = None;
        assert_eq!((own.differing(&other), own.has_other_root((0, 0))), (vec!["uts"], true));
        // As after unshare(CLONE_NEWPID), before the first child.
        let empty = Namespaces { empty_pid: true, ..own.clone() };
        assert_eq!(own.differing(&empty), Vec::<&str>::new(), "the name tells more");
        let mut empty = empty;
        empty.links[6] = None;
        assert_eq!(own.differing(&empty), ["pid"]);
        assert_eq!((other.inode("uts"), other.inode("time"), other.inode("x")), (Some(1), None, None));
    }
}
