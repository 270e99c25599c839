//! Which mounts of a namespace are the job's, and what makes the others.
//!
//! Called by [`super::View`]. A namespace begins as a copy of the one that it was cloned from; what is mounted in it
//! then is a part of something that the job sees (a bind mount, with what is below it or without), or is its own. What
//! lies under another mount, where no path leads, is not made again. Pure but for the two lookups. Fails by: words.

use super::parts::{Found, REMEDY, Seen, name};
use holdfast_image::bytes::Blob;
use holdfast_image::mounts::{MountRecord, MountSource, MountTree, Propagation, TmpfsRecord};
use holdfast_image::record::Ownership;
use holdfast_sys::mountinfo::Mount;
use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// More are not made.
const MOST: usize = 4096;
/// What the kernel appends to the root of a mount whose file is gone (fs/d_path.c, `dentry_path`).
const DELETED: &[u8] = b"//deleted";
/// File systems that the kernel fills, and that are made anew.
const OF_KERNEL: [&str; 4] = ["proc", "sysfs", "mqueue", "devpts"];

/// What is found at a path.
pub struct Ground<'a> {
    /// In the namespace.
    pub inner_at: &'a dyn Fn(&Path) -> io::Result<Found>,
    /// In that of the job.
    pub outer_at: &'a dyn Fn(&Path) -> io::Result<Found>,
}

/// All of it.
#[derive(Debug)]
pub struct Analysis {
    /// Every mount.
    pub seen: Vec<Seen>,
    /// What a restart makes.
    pub tree: MountTree,
    /// Devices of its own file systems.
    pub devices: Vec<u64>,
}

/// A mount under examination.
struct One {
    mount: Mount,
    outside: Option<PathBuf>,
    /// It comes with another one, which has these flags.
    comes_with: Option<u64>,
}

/// See the head.
///
/// # Errors
/// There is one that no restart could make.
pub fn analyse(own: Vec<Mount>, home: &[Mount], ground: &Ground<'_>) -> Result<Analysis, String> {
    if own.len() > MOST {
        return Err(format!(
            "its mount namespace has {} mounts, and a restart makes at most {MOST}",
            own.len()
        ));
    }
    let root = Path::new("/");
    let at_root = |found: io::Result<Found>, all: &[Mount]| {
        let found = found.ok()?;
        all.iter().find(|mount| mount.id == found.mount).cloned()
    };
    let unclear = || format!("its mount namespace has no root that can be understood: {REMEDY}");
    let base = at_root((ground.inner_at)(root), &own).ok_or_else(unclear)?;
    let home_base = at_root((ground.outer_at)(root), home).ok_or_else(unclear)?;
    let pivoted = (base.device, &base.root) != (home_base.device, &home_base.root);
    let own = in_order(own, &base);
    let mut work = Work {
        all: own.into_iter().map(|mount| One { mount, outside: None, comes_with: None }).collect(),
        home,
        ground,
        tree: MountTree { pivoted, propagation: propagation(&base), ..MountTree::default() },
        devices: HashMap::new(),
        of_kernel: HashMap::new(),
    };
    if !pivoted {
        for mount in home {
            let comes = work.comes(mount, &mount.point);
            if !comes && (ground.outer_at)(&mount.point).is_ok_and(|found| found.mount == mount.id) {
                work.tree.removed.push(name(&mount.point));
            }
        }
    }
    for place in 0..work.all.len() {
        work.settle(place)?;
    }
    let tree = &work.tree;
    if tree.propagation == Propagation::Shared && (pivoted || tree.mounts.len() + tree.removed.len() > 0) {
        return Err(format!(
            "its mount namespace is not its job's, and shares what is mounted in it with that (MS_SHARED): {REMEDY}"
        ));
    }
    let mut devices: Vec<(u64, u32)> =
        work.devices.iter().map(|(device, (number, _))| (*device, *number)).collect();
    devices.sort_by_key(|(_, number)| *number);
    Ok(Analysis {
        seen: work.all.into_iter().map(|one| Seen { mount: one.mount, outside: one.outside }).collect(),
        tree: work.tree,
        devices: devices.into_iter().map(|(device, _)| device).collect(),
    })
}

/// Each behind that on which it lies, and what was made first before others; the root first of all.
fn in_order(own: Vec<Mount>, base: &Mount) -> Vec<Mount> {
    let parents: HashMap<u64, u64> = own.iter().map(|mount| (mount.id, mount.parent)).collect();
    let depth = |id: u64| {
        let mut id = id;
        let steps = (0..own.len()).take_while(|_| match parents.get(&id).filter(|parent| **parent != id) {
            Some(parent) => {
                id = *parent;
                true
            }
            None => false,
        });
        steps.count()
    };
    let keys: HashMap<u64, (bool, usize)> =
        own.iter().map(|mount| (mount.id, (mount.id != base.id, depth(mount.id)))).collect();
    let mut own = own;
    own.sort_by_key(|mount| (keys.get(&mount.id).copied(), mount.id));
    own
}

fn propagation(base: &Mount) -> Propagation {
    match (base.shared, base.slave) {
        (true, _) => Propagation::Shared,
        (false, true) => Propagation::Slave,
        (false, false) => Propagation::Private,
    }
}

struct Work<'a> {
    all: Vec<One>,
    home: &'a [Mount],
    ground: &'a Ground<'a>,
    tree: MountTree,
    /// Number and shown root of each file system of its own.
    devices: HashMap<u64, (u32, PathBuf)>,
    /// Place of the first mount of each that the kernel fills.
    of_kernel: HashMap<u64, u32>,
}

impl Work<'_> {
    /// Whether a mount of the job's has come along, to that place.
    fn comes(&mut self, mount: &Mount, point: &Path) -> bool {
        let is_it = |one: &&mut One| {
            one.outside.is_none()
                && one.mount.point == point
                && (one.mount.device, &one.mount.root) == (mount.device, &mount.root)
        };
        let Some(one) = self.all.iter_mut().find(is_it) else { return false };
        (one.outside, one.comes_with) = (Some(mount.point.clone()), Some(mount.flags));
        true
    }

    /// What is to be done for one.
    fn settle(&mut self, place: usize) -> Result<(), String> {
        let one = &self.all[place];
        let mount = one.mount.clone();
        let found = (self.ground.inner_at)(&mount.point);
        let is_shown = found.as_ref().is_ok_and(|found| found.mount == mount.id);
        if let Some(before) = one.comes_with {
            if is_shown && before != mount.flags {
                self.add(&mount, MountSource::Kept);
            }
            return Ok(());
        }
        match &found {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(refusal(&mount, &format!("which cannot be looked at ({error})")));
            }
            _ if !is_shown => return Ok(()),
            _ => {}
        }
        let source = match found.ok().and_then(|found| self.outside(&mount, found.file)) {
            Some((from, recursive)) => {
                let recursive = self.below(&mount, &from, recursive)?;
                let source = MountSource::Bind { from: name(&from), recursive, inode: None };
                self.all[place].outside = Some(from);
                source
            }
            None => self.own(&mount)?,
        };
        self.add(&mount, source);
        Ok(())
    }

    fn add(&mut self, mount: &Mount, source: MountSource) {
        self.tree.mounts.push(MountRecord { point: name(&mount.point), flags: mount.flags, source });
    }

    /// Where the job sees the same, and what it has mounted below that.
    fn outside(&self, mount: &Mount, file: (u64, u64)) -> Option<(PathBuf, Vec<Mount>)> {
        if is_gone(mount) {
            return None; // it may be the name of another file
        }
        let mut all: Vec<(&Mount, PathBuf)> = self
            .home
            .iter()
            .filter(|home| home.device == mount.device)
            .filter_map(|home| {
                let rest = mount.root.strip_prefix(&home.root).ok()?;
                let rest = Some(rest).filter(|rest| *rest != Path::new(""));
                Some((home, rest.map_or_else(|| home.point.clone(), |rest| home.point.join(rest))))
            })
            .collect();
        // The same place first.
        all.sort_by_key(|(home, at)| (*at != mount.point, std::cmp::Reverse(home.root.as_os_str().len())));
        let is_it = |(home, at): &(&Mount, PathBuf)| {
            (self.ground.outer_at)(at).is_ok_and(|found| (found.mount, found.file) == (home.id, file))
        };
        let (_, at) = all.into_iter().find(is_it)?;
        let below = self.home.iter().filter(|other| other.point != at && other.point.starts_with(&at));
        let below = below.cloned().collect();
        Some((at, below))
    }

    /// Whether what the job has mounted below has come along.
    fn below(&mut self, mount: &Mount, from: &Path, below: Vec<Mount>) -> Result<bool, String> {
        let (mut came, mut missing) = (0, 0);
        for other in below {
            let rest = other.point.strip_prefix(from).unwrap_or(Path::new(""));
            if self.comes(&other, &mount.point.join(rest)) {
                came += 1;
            } else if (self.ground.outer_at)(&other.point).is_ok_and(|found| found.mount == other.id) {
                missing += 1;
            }
        }
        match (came, missing) {
            (0, _) => Ok(missing == 0),
            (_, 0) => Ok(true),
            _ => Err(refusal(mount, &format!("with a part of what is mounted below {}", from.display()))),
        }
    }

    /// What the job does not see.
    fn own(&mut self, mount: &Mount) -> Result<MountSource, String> {
        if is_gone(mount) {
            let owner = Ownership { user: 0, group: 0 };
            return Ok(MountSource::File { content: Blob::default(), mode: 0, owner });
        }
        if self.home.iter().any(|home| home.device == mount.device) {
            return Err(refusal(mount, "a part of a file system of the job's that is not at a path there"));
        }
        let options = |left_out: &[&str]| {
            let all = mount.options.split(',').filter(|one| !["rw", "ro", ""].contains(one));
            let kept = all.filter(|one| !left_out.iter().any(|name| one.starts_with(name)));
            kept.collect::<Vec<_>>().join(",")
        };
        if mount.kind == "tmpfs" {
            let next = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
            let root = || mount.root.clone();
            let (file_system, shown) = self.devices.entry(mount.device).or_insert_with(|| (next, root()));
            if !mount.root.starts_with(shown) {
                return Err(refusal(
                    mount,
                    "a part of a file system that another part was mounted of before",
                ));
            }
            let file_system = *file_system;
            if file_system == next {
                self.tree.file_systems.push(TmpfsRecord {
                    source: name(&mount.source),
                    // Those are of its root folder, which is among its files.
                    options: options(&["mode=", "uid=", "gid="]),
                    read_only: mount.options.split(',').any(|one| one == "ro"),
                    entries: Vec::new(),
                });
            }
            return Ok(MountSource::Tmpfs { file_system, root: name(&mount.root) });
        }
        if OF_KERNEL.contains(&mount.kind.as_str()) && mount.root == Path::new("/") {
            let (file_system, options) = (mount.kind.clone(), options(&[]));
            let next = u32::try_from(self.tree.mounts.len()).unwrap_or(u32::MAX);
            self.of_kernel.entry(mount.device).or_insert(next);
            return Ok(MountSource::Kernel { file_system, options, pid_namespace: None });
        }
        if let Some(of) = self.of_kernel.get(&mount.device) {
            return Ok(MountSource::Part { of: *of, root: name(&mount.root) });
        }
        Err(refusal(mount, "which a restart cannot make"))
    }
}

/// Whether what is mounted has no name any more.
fn is_gone(mount: &Mount) -> bool {
    mount.root.as_os_str().as_bytes().ends_with(DELETED)
}

fn refusal(mount: &Mount, why: &str) -> String {
    format!("its mount namespace has a mount at {} ({}), {why}: {REMEDY}", mount.point.display(), mount.kind)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::mountinfo::parse;

    const HOME: &str = "27 1 254:0 / / rw - ext4 d rw\n22 27 0:21 / /proc rw - proc p rw\n\
                        24 27 0:6 / /dev rw - devtmpfs d rw\n25 24 0:23 / /dev/shm rw - tmpfs t rw\n";

    /// The topmost mount at a path; files are told apart by their path in the file system.
    fn at(all: &[Mount], path: &Path) -> io::Result<Found> {
        let covers = |mount: &&Mount| path.starts_with(&mount.point);
        let mount = all.iter().filter(covers).max_by_key(|mount| (mount.point.as_os_str().len(), mount.id));
        let mount = mount.ok_or(io::ErrorKind::NotFound)?;
        let rest = path.strip_prefix(&mount.point).unwrap();
        let file = if rest == Path::new("") { mount.root.clone() } else { mount.root.join(rest) };
        let sum =
            file.as_os_str().as_bytes().iter().fold(7_u64, |sum, byte| sum * 31 % 65_521 + u64::from(*byte));
        Ok(Found { mount: mount.id, file: (mount.device, sum) })
    }

    fn analysed(own: &str) -> Result<Analysis, String> {
        let (own, home) = (parse(own.as_bytes()).unwrap(), parse(HOME.as_bytes()).unwrap());
        let (inner, outer) = (own.clone(), home.clone());
        let ground =
            Ground { inner_at: &|path: &Path| at(&inner, path), outer_at: &|path: &Path| at(&outer, path) };
        analyse(own, &home, &ground)
    }

    fn points(tree: &MountTree) -> Vec<(String, &MountSource)> {
        tree.mounts.iter().map(|mount| (mount.point.to_string(), &mount.source)).collect()
    }

    #[test]
    fn a_copy_has_what_was_added_changed_and_taken_away() {
        let found = analysed(
            "40 39 254:0 / / rw master:1 - ext4 d rw\n41 40 0:21 / /proc rw - proc p rw\n\
             42 40 0:6 / /dev ro - devtmpfs d rw\n50 40 0:40 / /mnt rw - tmpfs none rw,size=4k,uid=1000\n",
        )
        .unwrap();
        assert!(!found.tree.pivoted && found.tree.propagation == Propagation::Slave);
        assert_eq!(found.tree.removed, [name(Path::new("/dev/shm"))]);
        let tmpfs = MountSource::Tmpfs { file_system: 0, root: name(Path::new("/")) };
        assert_eq!(points(&found.tree), [("/dev".into(), &MountSource::Kept), ("/mnt".into(), &tmpfs)]);
        assert_eq!((found.tree.file_systems[0].options.as_str(), found.devices), ("size=4k", vec![0x28]));
        assert_eq!(found.seen[1].outside.as_deref(), Some(Path::new("/proc")));
    }

    #[test]
    fn a_new_root_is_made_of_what_the_job_sees() {
        let found = analysed(
            "60 59 254:0 /srv/image / ro - ext4 d rw\n61 60 0:6 / /dev rw - devtmpfs d rw\n\
             62 61 0:23 / /dev/shm rw - tmpfs t rw\n63 60 254:0 /etc/hosts /etc/hosts rw - ext4 d rw\n\
             64 60 254:0 /tmp/x//deleted /etc/passwd rw - ext4 d rw\n",
        )
        .unwrap();
        let bind =
            |from: &str, recursive| MountSource::Bind { from: name(Path::new(from)), recursive, inode: None };
        let all = points(&found.tree);
        assert!(found.tree.pivoted);
        assert_eq!(all[0], ("/".into(), &bind("/srv/image", true)));
        assert_eq!(all[1], ("/dev".into(), &bind("/dev", true)));
        assert_eq!(all[2], ("/etc/hosts".into(), &bind("/etc/hosts", true)));
        assert!(all.len() == 4 && matches!(all[3].1, MountSource::File { .. }));
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let with = |line: &str| {
            let own = format!("40 39 254:0 / / rw - ext4 d rw\n41 40 0:21 / /proc rw - proc p rw\n{line}\n");
            analysed(&own).err()
        };
        for (line, point) in [
            ("50 40 0:50 / /mnt rw - fuse x rw", "/mnt (fuse)"),
            ("50 40 0:51 /net /net rw - proc p rw", "/net (proc)"),
        ] {
            assert!(with(line).is_some_and(|why| why.contains(point)), "{line}");
        }
        assert!(
            analysed("40 39 254:0 / / ro shared:1 - ext4 d rw\n").is_err_and(|why| why.contains("MS_SHARED"))
        );
        assert!(analysed("40 39 0:9 / / rw - tmpfs d rw\n").is_ok());
    }
}
