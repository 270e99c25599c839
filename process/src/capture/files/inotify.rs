//! What an inotify instance watches, from fdinfo (fs/notify/fdinfo.c), which knows inodes and file handles, not paths.
//!
//! [`FileReader::inotify`] runs inside the stop; the paths are looked for after it ([`find_paths`]): where libholdfast
//! has noted that the program watches; by the handle, for who may (CAP_DAC_READ_SEARCH); else among folders that the
//! program has to do with, what lies in them, and everything below its working folder. What was found is known from
//! then on. The job does not notice: attributes are no event. A folder is listed although a watch of the job sees
//! that, if there is no other way, once. How it fails: a refusal names the inode.

use super::{FileReader, Found, Obstacle};
use crate::capture::watchers::{Watchers, in_kernel};
use holdfast_abi::{SharedPage, WatchedPaths};
use holdfast_image::bytes::Name;
use holdfast_image::record::{FileTable, Object, Watch};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_sys::{fd, inotify, mountinfo, procfs, procmem};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const FIONREAD: libc::c_ulong = 0x541b;
/// Files that are looked at below the working folder, at most.
const MOST: usize = 50_000;
/// Folders that are often watched.
const USUAL: [&str; 8] = ["/", "/tmp", "/etc", "/var", "/var/log", "/run", "/dev", "/dev/shm"];

impl FileReader<'_> {
    /// What an inotify instance is; paths are still to be found.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn inotify(&self, found: &Found) -> Result<Object, Obstacle> {
        let taken = self.take(found)?;
        if fd::ioctl_int(taken.as_fd(), FIONREAD).unwrap_or(0) > 0 {
            return Err(Obstacle::Passing(
                "an inotify instance with events that were not read yet; try again".into(),
            ));
        }
        let lines = found.info.text.lines().filter(|line| line.starts_with("inotify "));
        let watches: Option<Vec<Watch>> = lines.map(parse).collect();
        let mut watches = watches.ok_or_else(|| Obstacle::from("its fdinfo cannot be understood"))?;
        watches.sort_unstable_by_key(|watch| watch.wd);
        Ok(Object::Inotify { watches })
    }
}

/// `inotify wd:1 ino:3c4a7 sdev:fe00000 mask:100 ignored_mask:0 fhandle-bytes:8 fhandle-type:1 f_handle:a7c4…`.
fn parse(line: &str) -> Option<Watch> {
    let value = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    let number = |key: &str| u64::from_str_radix(value(key)?, 16).ok();
    let handle = || {
        let (bytes, rest) = value("f_handle:")?.as_bytes().as_chunks::<2>();
        let digit = |byte: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(byte).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = bytes.iter().map(digit).collect();
        let kind = i32::try_from(number("fhandle-type:")?).ok()?;
        bytes.filter(|_| rest.is_empty()).map(|bytes| (kind, bytes))
    };
    Some(Watch {
        wd: i32::try_from(number("wd:")?).ok()?,
        mask: u32::try_from(number("mask:")?).ok()?,
        path: Name::default(),
        device: number("sdev:")?,
        inode: number("ino:")?,
        handle: handle(),
    })
}

/// Device as the kernel has it, and inode.
type Id = (u64, u64);

fn id(metadata: &Metadata) -> Id {
    (in_kernel(metadata.dev()), metadata.ino())
}

/// A process, as far as it may tell where it watches.
#[derive(Clone, Debug)]
pub struct Watching {
    /// Its id.
    pub pid: i32,
    /// Its working folder.
    pub cwd: PathBuf,
    /// The page of libholdfast in it; 0: there is none.
    pub shared: u64,
}

impl Watching {
    /// The paths that libholdfast has noted (`preload/src/watches.rs`). Each may be anything.
    fn noted(&self) -> Vec<PathBuf> {
        self.read_noted().unwrap_or_default()
    }

    fn read_noted(&self) -> io::Result<Vec<PathBuf>> {
        if self.shared == 0 {
            return Ok(Vec::new());
        }
        let table = procmem::read_u64(self.pid, self.shared + SharedPage::WATCHED as u64)?;
        if table == 0 {
            return Ok(Vec::new());
        }
        let count = procmem::read_u64(self.pid, table.wrapping_add(WatchedPaths::COUNT as u64))?;
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(WatchedPaths::MAX);
        let mut bytes = vec![0; count * WatchedPaths::LEN];
        procmem::read(self.pid, table.wrapping_add(WatchedPaths::PATHS as u64), &mut bytes)?;
        let text =
            |path: &[u8]| path.split(|byte| *byte == 0).next().map(|text| OsStr::from_bytes(text).into());
        Ok(bytes
            .chunks_exact(WatchedPaths::LEN)
            .filter_map(text)
            .filter(|path: &PathBuf| path.is_absolute())
            .collect())
    }
}

/// Finds the paths of all watches of a job, whose first table has the descriptions. After the stop, or at a running
/// program. Refusals come with the place of a process.
pub fn find_paths(tables: &mut [&mut FileTable], processes: &[Watching]) -> Vec<(usize, Refusal)> {
    let Some(first) = tables.first() else { return Vec::new() };
    let all = first.descriptions.iter().filter_map(|description| match &description.object {
        Object::Inotify { watches } => Some(watches),
        _ => None,
    });
    let mut open: HashMap<Id, Option<(i32, Vec<u8>)>> =
        all.flatten().map(|watch| ((watch.device, watch.inode), watch.handle.clone())).collect();
    if open.is_empty() {
        return Vec::new();
    }
    let mut paths = HashMap::new();
    known_before(&mut open, &mut paths);
    by_note(&mut open, &mut paths, processes);
    by_handle(&mut open, &mut paths);
    by_search(&mut open, &mut paths, first, processes, &Watchers::of(&first.descriptions));
    by_search(&mut open, &mut paths, first, processes, &Watchers::default());
    *KNOWN.lock() = Some(paths.clone());
    let mut refusals = Vec::new();
    for index in 0..first.descriptions.len() {
        let holder = holder(tables, index);
        let Object::Inotify { watches } = &mut tables[0].descriptions[index].object else { continue };
        for watch in watches {
            if let Some(path) = paths.get(&(watch.device, watch.inode)) {
                watch.path = Name::from(path.as_path());
                watch.handle = None;
                continue;
            }
            let (place, fd) = holder.unwrap_or((0, -1));
            let subject = Subject::Descriptor { fd, name: "anon_inode:inotify".into() };
            let reason = format!(
                "it watches inode {} of device {}:{}, whose path cannot be found: keep it below the working folder, or \
                 run the agent as root",
                watch.inode,
                watch.device >> 20,
                watch.device & 0xf_ffff
            );
            refusals.push((place, Refusal { subject, reason }));
        }
    }
    refusals
}

/// Who has a description, and under which number.
fn holder(tables: &[&mut FileTable], description: usize) -> Option<(usize, i32)> {
    tables.iter().enumerate().find_map(|(place, table)| {
        let mut own = table.descriptors.iter();
        own.find(|descriptor| descriptor.description as usize == description)
            .map(|descriptor| (place, descriptor.fd))
    })
}

type Open = HashMap<Id, Option<(i32, Vec<u8>)>>;
type Paths = HashMap<Id, PathBuf>;

/// Where the watches of the last look were.
static KNOWN: Mutex<Option<Paths>> = Mutex::new(None);

fn known_before(open: &mut Open, paths: &mut Paths) {
    let known = KNOWN.lock();
    let known = known.iter().flatten().filter(|(id, path)| open.contains_key(id) && is_at(path, **id));
    paths.extend(known.map(|(id, path)| (*id, path.clone())));
    open.retain(|id, _| !paths.contains_key(id));
}

/// Where the programs have said that it is. A restart opens no path with a link in it.
fn by_note(open: &mut Open, paths: &mut Paths, processes: &[Watching]) {
    if open.is_empty() {
        return;
    }
    for path in processes.iter().flat_map(Watching::noted) {
        // What it leads to, or the link itself (IN_DONT_FOLLOW).
        let beside = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
        for found in fs::canonicalize(&path).ok().into_iter().chain(beside()) {
            let Ok(metadata) = fs::symlink_metadata(&found) else { continue };
            if open.remove(&id(&metadata)).is_some() {
                paths.insert(id(&metadata), found);
            }
        }
    }
}

fn by_handle(open: &mut Open, paths: &mut Paths) {
    if open.is_empty() {
        return;
    }
    // Without them the search goes on, and says what it has not found.
    let mounts = mountinfo::own().unwrap_or_default();
    open.retain(|&(device, inode), handle| {
        let Some((kind, bytes)) = handle else { return true };
        let found = mounts.iter().filter(|mount| mount.device == device).find_map(|mount| {
            let file = inotify::open_by_handle(&mount.point, *kind, bytes).ok()?;
            let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
            is_at(&path, (device, inode)).then_some(path)
        });
        let is_open = found.is_none();
        paths.extend(found.map(|path| ((device, inode), path)));
        is_open
    });
}

fn is_at(path: &Path, wanted: Id) -> bool {
    path.is_absolute() && fs::symlink_metadata(path).is_ok_and(|metadata| id(&metadata) == wanted)
}

/// Lists no folder of which `watchers` would hear.
fn by_search(
    open: &mut Open,
    paths: &mut Paths,
    first: &FileTable,
    processes: &[Watching],
    watchers: &Watchers,
) {
    if open.is_empty() {
        return;
    }
    let list = |folder: &Path| {
        let quiet = !watchers.hear_listing(folder);
        quiet.then(|| fs::read_dir(folder).ok()).flatten().into_iter().flatten().flatten().take(MOST)
    };
    let mut look = |path: &Path| {
        let Ok(metadata) = fs::symlink_metadata(path) else { return (open.is_empty(), false) };
        if open.remove(&id(&metadata)).is_some() {
            paths.insert(id(&metadata), path.to_owned());
        }
        (open.is_empty(), metadata.is_dir())
    };
    let folders = known_folders(first, processes);
    if folders.iter().any(|folder| look(folder).0) {
        return;
    }
    for folder in &folders {
        for entry in list(folder) {
            if look(&entry.path()).0 {
                return;
            }
        }
    }
    let starts: BTreeSet<&PathBuf> = processes.iter().map(|process| &process.cwd).collect();
    let (mut below, mut seen) = (VecDeque::from_iter(starts.into_iter().cloned()), 0);
    while let Some(folder) = below.pop_front() {
        for entry in list(&folder) {
            seen += 1;
            let (done, is_folder) = look(&entry.path());
            if done || seen > MOST {
                return;
            }
            if is_folder {
                below.push_back(entry.path());
            }
        }
    }
}

/// Folders that the programs have to do with, and files that they have open or mapped: each with what it lies in.
fn known_folders(first: &FileTable, processes: &[Watching]) -> Vec<PathBuf> {
    let open = first.descriptions.iter().filter_map(|description| match &description.object {
        Object::Regular { path, .. } | Object::Directory { path, .. } => Some(path.as_path().to_owned()),
        _ => None,
    });
    let own = processes.iter().flat_map(|Watching { pid, cwd, .. }| {
        let home = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let home = home.split(|&byte| byte == 0).find_map(|line| line.strip_prefix(b"HOME="));
        let home = home.map(|home| PathBuf::from(OsStr::from_bytes(home)));
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok();
        let mapped = procfs::maps(*pid, *pid).unwrap_or_default().into_iter();
        let mapped = mapped.map(|mapping| PathBuf::from(OsStr::from_bytes(&mapping.name)));
        std::iter::once(cwd.clone()).chain(home).chain(exe).chain(mapped.collect::<BTreeSet<_>>())
    });
    let mut known = HashSet::new();
    let above = own.chain(open).flat_map(|path| path.ancestors().map(Path::to_owned).collect::<Vec<_>>());
    let all = above.chain(USUAL.iter().map(PathBuf::from));
    all.filter(|path| path.is_absolute() && !path.starts_with("/proc") && known.insert(path.clone()))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_understood() {
        let line = "inotify wd:1a ino:3c4a7 sdev:fe00000 mask:84000100 ignored_mask:0 fhandle-bytes:4 fhandle-type:1 \
                    f_handle:a7c40300";
        let watch = parse(line).unwrap();
        assert_eq!((watch.wd, watch.inode, watch.device), (26, 0x3c4a7, 0xfe << 20));
        assert_eq!((watch.mask, watch.handle), (0x8400_0100, Some((1, vec![0xa7, 0xc4, 3, 0]))));
        assert!(parse("inotify wd:x").is_none());
    }

    #[test]
    fn paths_are_found_below_the_working_folder() {
        let folder = std::env::temp_dir().join(format!("watches-{}/a/b", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let wanted = id(&fs::metadata(&folder).unwrap());
        let mut open = Open::from([(wanted, None)]);
        let mut paths = Paths::new();
        let top = folder.parent().unwrap().parent().unwrap();
        let pid = std::process::id().cast_signed();
        let own = Watching { pid, cwd: top.to_owned(), shared: 0 };
        assert_eq!(own.noted(), Vec::<PathBuf>::new());
        by_search(&mut open, &mut paths, &FileTable::default(), &[own], &Watchers::default());
        assert_eq!(paths.get(&wanted), Some(&folder));
        fs::remove_dir_all(top).unwrap();
    }
}
