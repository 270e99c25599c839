//! The mount namespace that a program of the job has made: what is mounted in it, and where the job finds the same.
//!
//! Called before the stop to refuse ([`survey`]), by `check` too, and inside it to record ([`View`]). /proc shows a
//! path in such a namespace as it is there, and the agent is not in it: each is followed by the mount that it lies on
//! ([`View::place`]) to where the job has it, or is only inside ([`tmpfs`]). Fails by: words for a refusal. A process
//! that has ended is in none.

mod parts;
mod tmpfs;
mod tree;

use crate::capture::identity::{DELETED, inode_of};
use crate::namespaces::{self, Namespaces, PID_NAME};
use holdfast_image::bytes::Name;
use holdfast_image::mounts::{Inside, MountSource, MountTree};
use holdfast_sys::mountinfo::{self, Mount};
use holdfast_sys::procfs::{self, Mapping, Status};
use parking_lot::Mutex;
use parts::{Found, REMEDY, within};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tree::Analysis;

/// `starttime` of /proc/PID/stat, counted from behind the name (proc_pid_stat(5); a blank comes first).
const STARTED: usize = 20;
/// So many are known at most.
const KNOWN_MOST: usize = 16;

/// One.
#[derive(Debug)]
pub struct View {
    /// A process that is in it.
    pid: i32,
    /// The inode of the namespace.
    pub inode: u64,
    /// Its root, as the agent gets there.
    folder: PathBuf,
    /// Without what is in its file systems.
    found: Arc<Analysis>,
    /// Ids of the job's mounts, and of ours.
    home: HashSet<u64>,
    /// The inode of the job's pid namespace.
    pids_of_job: Option<u64>,
    /// The process is in another one.
    is_inside: bool,
}

/// Where something in it is for the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// There.
    Outside(Vec<u8>),
    /// Nowhere.
    Only,
}

impl View {
    /// Of the namespace of a process, if it is not the job's.
    ///
    /// # Errors
    /// A restart could not make it again.
    pub fn of(pid: i32, job: &Namespaces) -> Result<Option<View>, String> {
        let Some(inode) = job.other_mounts(pid) else { return Ok(None) };
        match View::read(pid, inode, job) {
            Err(_) if job.other_mounts(pid).is_none() => Ok(None), // it has ended
            other => other.map(Some),
        }
    }

    fn read(pid: i32, inode: u64, job: &Namespaces) -> Result<View, String> {
        let unread = |what: &str, error: io::Error| format!("the mounts of {what} cannot be read: {error}");
        let own = mountinfo::of(pid).map_err(|error| unread("its mount namespace", error))?;
        let (home, outer) = home(job).map_err(|error| unread("its job", error))?;
        let folder = PathBuf::from(format!("/proc/{pid}/root"));
        let (inner_at, outer_at) = (|path: &Path| look(&folder, path), |path: &Path| look(&outer, path));
        let root = File::options().read(true).custom_flags(libc::O_PATH).open(&folder);
        let root = root.and_then(|root| mountinfo::id_of(root.as_fd()));
        let is_root = root.is_ok_and(|root| inner_at(Path::new("/")).is_ok_and(|found| found.mount == root));
        if !is_root || procfs::link(&format!("/proc/{pid}/root")).map_err(|error| error.to_string())? != b"/"
        {
            return Err(format!(
                "its root directory is another one than that of its mount namespace (chroot), which is not supported: \
                 {REMEDY}"
            ));
        }
        let ground = tree::Ground { inner_at: &inner_at, outer_at: &outer_at };
        let found = known(inode, own, home.clone(), &ground)?;
        // What a restart was given is on ours.
        let ours = mountinfo::own().map_err(|error| unread("this process", error))?;
        let home = home.into_iter().chain(ours).map(|mount| mount.id).collect();
        let (pids_of_job, is_inside) = (job.inode(PID_NAME), job.other_pids(pid).is_some());
        let view = View { pid, inode, folder, found, home, pids_of_job, is_inside };
        view.check_proc(&outer)?;
        Ok(view)
    }

    /// File systems that are nowhere else, by their devices.
    pub fn devices(&self) -> &[u64] {
        &self.found.devices
    }

    /// A restart works inside by /proc, which must show the processes of the job, or at least its children to who has
    /// made a pid namespace for them (`unshare --mount-proc`).
    fn check_proc(&self, outer: &Path) -> Result<(), String> {
        let proc = Path::new("/proc");
        let children = procfs::link(&format!("/proc/{}/ns/pid_for_children", self.pid)).ok();
        if self
            .shown_inside(proc)
            .is_some_and(|shown| children.and_then(|link| namespaces::inode(&link)) == Some(shown))
        {
            return Ok(());
        }
        match (look(&self.folder, proc), look(outer, proc)) {
            (Ok(own), Ok(home)) if own.file == home.file || self.shows_it(proc) => Ok(()),
            _ => Err(format!("its mount namespace has no /proc of its job: mount it there, or {REMEDY}")),
        }
    }

    /// Whether a file system of kind proc has the process by the id that it has in its pid namespace.
    fn shows_it(&self, point: &Path) -> bool {
        let Ok(status) = Status::read(self.pid, self.pid) else { return false };
        let (Some(inner), Some(own)) = (status.innermost("NStgid"), status.number("Tgid")) else {
            return false;
        };
        let started = |stat: &[u8]| {
            // The name before that may have anything in it.
            let rest = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
            rest.split(|byte| *byte == b' ').nth(STARTED).map(<[u8]>::to_vec)
        };
        let of = |path: PathBuf| started(&fs::read(path).ok()?);
        let shown = of(within(&self.folder, point).join(format!("{inner}/stat")));
        shown.is_some() && shown == of(PathBuf::from(format!("/proc/{own}/stat")))
    }

    /// The inode of the pid namespace that a file system of kind proc shows, if it is one that can be looked into.
    fn shown_inside(&self, point: &Path) -> Option<u64> {
        let link = within(&self.folder, point).join("1/ns/pid");
        let shown = namespaces::inode(&procfs::link(link.to_str()?).ok()?)?;
        Some(shown).filter(|shown| self.pids_of_job.is_some_and(|job| job != *shown))
    }

    /// What is there, and its namespace's mounts. `None`: it cannot be looked at.
    pub fn find(&self, path: &[u8]) -> Option<(u64, Metadata)> {
        let at = within(&self.folder, Path::new(OsStr::from_bytes(path)));
        let file = File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(at).ok()?;
        Some((mountinfo::id_of(file.as_fd()).ok()?, file.metadata().ok()?))
    }

    /// Where a path on one of its mounts is for the job. `None`: the mount is none of it.
    pub fn place(&self, mount: u64, path: &[u8]) -> Option<Place> {
        let seen = self.found.seen.iter().find(|seen| seen.mount.id == mount)?;
        let (path, end) = path.strip_suffix(DELETED).map_or((path, &b""[..]), |path| (path, DELETED));
        let rest = Path::new(OsStr::from_bytes(path)).strip_prefix(&seen.mount.point).ok();
        Some(match (&seen.outside, rest) {
            (Some(outside), Some(rest)) => {
                let there = if rest == Path::new("") { outside.clone() } else { outside.join(rest) };
                Place::Outside([&there.into_os_string().into_vec()[..], end].concat())
            }
            _ => Place::Only,
        })
    }

    /// Whether a mount is one of the job's.
    pub fn is_of_job(&self, mount: u64) -> bool {
        self.home.contains(&mount)
    }

    /// The same, of what a link of /proc leads to: the path inside, and where it is for the job.
    ///
    /// # Errors
    /// It is on a mount that neither has.
    pub fn follow(&self, link: &str) -> Result<Option<(Vec<u8>, Place)>, String> {
        let seen = |error: io::Error| error.to_string();
        let file = File::options().read(true).custom_flags(libc::O_PATH).open(link).map_err(seen)?;
        let path = procfs::link(link).map_err(seen)?;
        let mount = mountinfo::id_of(file.as_fd()).map_err(seen)?;
        match self.place(mount, &path) {
            Some(place) => Ok(Some((path, place))),
            None if self.is_of_job(mount) => Ok(None),
            None => Err(format!("{} {DETACHED}", String::from_utf8_lossy(&path))),
        }
    }

    fn translate(&self, pid: i32, maps: &mut [Mapping]) -> Result<Insides, String> {
        let mut insides = Insides::new();
        let mut known: HashMap<(Vec<u8>, u64), Vec<u8>> = HashMap::new();
        for mapping in maps.iter_mut() {
            if mapping.name.first() != Some(&b'/') || mapping.name.ends_with(DELETED) {
                continue;
            }
            let key = (mapping.name.clone(), mapping.inode);
            let now = match known.get(&key) {
                Some(now) => now.clone(),
                None => self.named(pid, mapping, &mut insides)?,
            };
            known.insert(key, now.clone());
            mapping.name = now;
        }
        Ok(insides)
    }

    /// What a mapped file is called here.
    fn named(&self, pid: i32, mapping: &Mapping, insides: &mut Insides) -> Result<Vec<u8>, String> {
        let name = &mapping.name;
        let path = Name(name.clone());
        let Some((mount, _)) = self.find(name).filter(|(_, found)| found.ino() == mapping.inode) else {
            let outside = fs::symlink_metadata(path.as_path());
            if outside.is_ok_and(|found| found.ino() == mapping.inode) {
                return Err(format!(
                    "it has mapped {path} outside its mount namespace, where it is not at that path, which is not \
                     supported: {REMEDY}"
                ));
            }
            return Ok(name.clone()); // replaced
        };
        let (now, only) = match self.place(mount, name) {
            Some(Place::Outside(outside)) => (outside, false),
            Some(Place::Only) => ([format!("/proc/{pid}/root").as_bytes(), name].concat(), true),
            None => return Err(format!("{path} {DETACHED}")),
        };
        if now != *name {
            insides.insert(now.clone(), Inside { path, only });
        }
        Ok(now)
    }

    /// All of it, with what is in its file systems.
    ///
    /// # Errors
    /// That is too much, or cannot be read.
    pub fn contents(&self) -> Result<MountTree, String> {
        self.walk(true)
    }

    /// `read`: with what is in the files.
    fn walk(&self, read: bool) -> Result<MountTree, String> {
        let mut tree = self.found.tree.clone();
        let mut walk =
            tmpfs::Walk::new(&self.folder, self.found.seen.iter().map(|seen| &seen.mount.point), read);
        let mut done = HashSet::new();
        for mount in &mut tree.mounts {
            let point = mount.point.as_path();
            match &mut mount.source {
                MountSource::Tmpfs { file_system, .. } if done.insert(*file_system) => {
                    let entries = walk.all(point)?;
                    if let Some(one) = tree.file_systems.get_mut(*file_system as usize) {
                        one.entries = entries;
                    }
                }
                MountSource::Bind { from, inode, .. } => {
                    *inode = fs::symlink_metadata(from.as_path()).ok().as_ref().map(inode_of);
                }
                MountSource::File { content, mode, owner } => {
                    (*content, *mode, *owner) = walk.file(point)?;
                }
                MountSource::Kernel { file_system, pid_namespace, .. } if file_system == "proc" => {
                    let shown = self.shown_inside(point);
                    if shown.is_none() && (self.is_inside || !self.shows_it(point)) {
                        return Err(format!(
                            "its mount namespace has a /proc of another pid namespace at {}: {REMEDY}",
                            point.display()
                        ));
                    }
                    *pid_namespace = shown;
                }
                MountSource::Kernel { file_system, .. } if file_system == "devpts" => {
                    walk.no_terminals(point)?
                }
                _ => {}
            }
        }
        late(&tree)?;
        Ok(tree)
    }
}

/// What the files of a process are called inside that have another path here, by that.
pub type Insides = HashMap<Vec<u8>, Inside>;

/// Gives the files that a process has mapped the paths by which the job has them, or, of those that are only inside,
/// one by which the agent gets there.
///
/// # Errors
/// One has been mapped outside, and is not to be found inside.
pub fn translate(pid: i32, job: &Namespaces, maps: &mut [Mapping]) -> Result<Insides, String> {
    View::of(pid, job)?.map_or(Ok(Insides::new()), |view| view.translate(pid, maps))
}

/// The same before the stop, and whether all else could be recorded.
///
/// # Errors
/// A restart could not make the namespace again.
pub fn survey(pid: i32, job: &Namespaces, maps: &mut [Mapping]) -> Result<(), String> {
    let Some(view) = View::of(pid, job)? else { return Ok(()) };
    view.walk(false)?;
    view.translate(pid, maps).map(drop)
}

/// What lies on a mount that no namespace of the job has any more, in the words of a refusal.
pub const DETACHED: &str =
    "is on a mount that was taken away (umount), where a restart would not find it: close it";

/// What was found of a namespace. As long as mountinfo says the same of it and of the job's, it is what is there: where
/// mounts lie, what each shows, and what that is called, follow from it.
struct Known {
    inode: u64,
    own: Vec<Mount>,
    home: Vec<Mount>,
    found: Arc<Analysis>,
}

/// The same for all processes in it, many of which are looked at in one stop.
fn known(
    inode: u64,
    own: Vec<Mount>,
    home: Vec<Mount>,
    ground: &tree::Ground<'_>,
) -> Result<Arc<Analysis>, String> {
    static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());
    let is_it = |one: &&Known| one.inode == inode && one.own == own && one.home == home;
    if let Some(known) = KNOWN.lock().iter().find(is_it) {
        return Ok(Arc::clone(&known.found));
    }
    let found = Arc::new(tree::analyse(own.clone(), &home, ground)?);
    let mut all = KNOWN.lock();
    all.retain(|one| one.inode != inode);
    if all.len() >= KNOWN_MOST {
        all.remove(0);
    }
    all.push(Known { inode, own, home, found: Arc::clone(&found) });
    Ok(found)
}

/// The job's mounts, and its root.
fn home(job: &Namespaces) -> io::Result<(Vec<Mount>, PathBuf)> {
    let own = std::process::id().cast_signed();
    if job.other_mounts(own).is_none() {
        return Ok((mountinfo::own()?, PathBuf::from("/")));
    }
    match job.viewer().filter(|pid| job.other_mounts(*pid).is_none()) {
        Some(pid) => Ok((mountinfo::of(pid)?, PathBuf::from(format!("/proc/{pid}/root")))),
        None => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
}

/// What lies on a /proc of a pid namespace of the job's own is mounted by another process than the rest.
fn late(tree: &MountTree) -> Result<(), String> {
    for (place, mount) in tree.mounts.iter().enumerate().filter(|(place, _)| tree.is_late(*place)) {
        let is_of = |file_system: u32| {
            let of = |source: &MountSource| match source {
                MountSource::Tmpfs { file_system: of, .. } => *of == file_system,
                _ => false,
            };
            let mut others = tree.mounts.iter().enumerate().filter(|(place, _)| !tree.is_late(*place));
            others.any(|(_, other)| of(&other.source))
        };
        let wrong = match &mount.source {
            MountSource::File { .. } => true,
            MountSource::Part { of, .. } => !tree.is_late(*of as usize),
            MountSource::Tmpfs { file_system, .. } => is_of(*file_system),
            _ => false,
        };
        if wrong {
            return Err(format!(
                "the mount at {}, on a /proc of a pid namespace of its own: {REMEDY} ({place})",
                mount.point
            ));
        }
    }
    Ok(())
}

fn look(root: &Path, path: &Path) -> io::Result<Found> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags).open(within(root, path))?;
    let found = file.metadata()?;
    Ok(Found { mount: mountinfo::id_of(file.as_fd())?, file: (found.dev(), found.ino()) })
}
