//! What the control groups of a process let it have of memory: versions 2 and 1, its own group and those above it.
//!
//! Used by the agent before a checkpoint and by `doctor`. Read from /proc/PID/cgroup (cgroups(7)), the mounts of this
//! process and the groups' files (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). Fails by: `None`
//! where nothing is limited or nothing can be read; a group above the visible ones is not seen.

use crate::mountinfo::{self, Mount};
use std::fs;
use std::path::{Path, PathBuf};

/// The group that has least left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// Its folder.
    pub group: PathBuf,
    /// What it may have, bytes.
    pub limit: u64,
    /// What of that is in use and cannot be had back: all but files' pages, which the kernel drops when it needs them.
    pub used: u64,
}

impl Room {
    /// What is left, bytes.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The names that one version has for its files.
struct Names {
    /// Each limits, in bytes; "max", or more than any machine has: no limit.
    limits: &'static [&'static str],
    used: &'static str,
    /// Lines of `memory.stat` with what can be had back, of the group and those below it.
    reclaimable: &'static [&'static str],
}

const VERSION_2: Names = Names {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};
const VERSION_1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};
/// No limit in version 1 is the largest number of pages (`PAGE_COUNTER_MAX`).
const UNLIMITED: u64 = 1 << 60;

/// The group of a process, or above it, that has least left; `None`: none limits it.
pub fn tightest(pid: u32) -> Option<Room> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = mountinfo::own().ok()?;
    let folders = [(path_of(&groups, false), false), (path_of(&groups, true), true)];
    let rooms = folders.into_iter().filter_map(|(path, first)| {
        let (folder, mount) = folder_of(&mounts, path?, first)?;
        let names = if first { &VERSION_1 } else { &VERSION_2 };
        let all = folder.ancestors().take_while(|folder| folder.starts_with(&mount));
        all.filter_map(|folder| room(folder, names)).min_by_key(Room::left)
    });
    rooms.min_by_key(Room::left)
}

/// What the whole host has (proc_meminfo(5)); as its group: "/".
pub fn of_host() -> Option<Room> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let bytes = |name: &str| {
        let number = line(name)?.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(number.saturating_mul(1024))
    };
    let (limit, left) = (bytes("MemTotal")?, bytes("MemAvailable")?);
    Some(Room { group: "/".into(), limit, used: limit.saturating_sub(left) })
}

/// The group's path in /proc/PID/cgroup: of the line of version 2 (`0::PATH`), or of version 1's that has `memory`.
fn path_of(groups: &str, first: bool) -> Option<&str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it =
            if first { controllers.split(',').any(|one| one == "memory") } else { controllers.is_empty() };
        is_it.then_some(path)
    })
}

/// Folder of a group, and of the mount that it is in.
fn folder_of(mounts: &[Mount], path: &str, first: bool) -> Option<(PathBuf, PathBuf)> {
    mounts.iter().find_map(|mount| {
        let is_it = match mount.kind.as_str() {
            "cgroup2" => !first,
            "cgroup" => first && mount.options.split(',').any(|option| option == "memory"),
            _ => false,
        };
        // In a container the mount may begin at its own group.
        let below = Path::new(path).strip_prefix(&mount.root);
        let below = below.or_else(|_| Path::new(path).strip_prefix("/")).ok()?;
        is_it.then(|| (mount.point.join(below), mount.point.clone()))
    })
}

fn room(folder: &Path, names: &Names) -> Option<Room> {
    let number = |name: &&str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = names.limits.iter().filter_map(number).min().filter(|limit| *limit < UNLIMITED)?;
    let reclaimable =
        fs::read_to_string(folder.join("memory.stat")).map_or(0, |stat| sum_of(&stat, names.reclaimable));
    let used = number(&names.used)?.saturating_sub(reclaimable);
    Some(Room { group: folder.to_owned(), limit, used })
}

/// The sum of some lines of `memory.stat`.
fn sum_of(stat: &str, names: &[&str]) -> u64 {
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.trim().parse::<u64>().unwrap_or(0))
    };
    stat.lines().filter_map(value).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_that_of_the_version() {
        let both = "4:cpu,memory:/a/b\n1:name=systemd:/s\n0::/user.slice/x:y\n";
        assert_eq!(path_of(both, true), Some("/a/b"));
        assert_eq!(path_of(both, false), Some("/user.slice/x:y"));
        assert_eq!(path_of("0::/\n", true), None);
    }

    #[test]
    fn the_folder_is_below_the_mount_wherever_that_begins() {
        let of = |text: &str| mountinfo::parse(text.as_bytes()).unwrap();
        let mounts = of("30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
                         31 30 0:27 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        let found = |path, first| folder_of(&mounts, path, first).map(|(folder, _)| folder);
        assert_eq!(found("/a/b", false), Some("/sys/fs/cgroup/a/b".into()));
        assert_eq!(found("/", false), Some("/sys/fs/cgroup".into()));
        assert_eq!(found("/docker/1/x", true), Some("/sys/fs/cgroup/memory/x".into()));
        assert_eq!(folder_of(&of("30 23 0:26 / /proc rw - proc proc rw"), "/", false), None);
        let odd = of("30 23 0:26 / /a\\040b rw - cgroup2 cgroup2 rw");
        assert_eq!(folder_of(&odd, "/g", false), Some(("/a b/g".into(), "/a b".into())));
    }

    #[test]
    fn what_the_kernel_can_have_back_is_not_in_use() {
        let folder = std::env::temp_dir().join(format!("holdfast-cgroup-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "500\n");
        write("memory.stat", "anon 300\ninactive_file 100\nactive_file 50\nfile 160\n");
        assert_eq!(room(&folder, &VERSION_2), None);
        write("memory.high", "600\n");
        let found = room(&folder, &VERSION_2).unwrap();
        assert_eq!((found.limit, found.used, found.left()), (600, 350, 250));
        write("memory.max", "400\n");
        assert_eq!(room(&folder, &VERSION_2).unwrap().left(), 50);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(room(&folder, &VERSION_1), None);
        fs::remove_dir_all(folder).unwrap();
        // Whatever this machine has.
        assert!(tightest(std::process::id()).is_none_or(|room| room.limit > 0));
        assert_eq!(tightest(u32::MAX), None);
        assert!(of_host().unwrap().left() > 0);
    }
}
