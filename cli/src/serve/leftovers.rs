//! Folders in memory of stores that no server serves: what a server that was killed has left.
//!
//! Used by a server, for its own folder and, once, for those of other stores of its user. A folder has buffers, a lock
//! (`lock`) that its server holds as long as it lives, and a note (`store`) of where its store is. What goes:
//! * buffers without a version, and with one that the store has: the next server of the store would remove them, too;
//! * all of it, if the store is provably no more ([`is_gone`]).
//!
//! A folder without a lock is of a server before there were locks. It is looked at when nothing in it has changed for a
//! day and no process has anything in it open or mapped; then its buffers go that no server would miss.
//!
//! Invariants: nothing is touched whose lock is held; a version that may be nowhere else stays as long as there is a
//! doubt, and what cannot be looked at is one. Fails by doing nothing, with a line in the log.

use super::buffers::{self, Buffer, UNREAD};
use holdfast_objects::buffer::State;
use holdfast_sys::{procfs, unix_socket};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const LOCK: &str = "lock";
const NOTE: &str = "store";
/// A store may have been moved to a place that is not known: versions that may be in memory alone stay so long after
/// they were put.
const AGE: Duration = Duration::from_secs(24 * 3600);

/// Takes the lock of a store's folder, which `make` makes, and notes where the store is.
///
/// # Errors
/// As open(2), flock(2), write(2).
pub fn occupy(folder: &Path, store: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<File> {
    loop {
        make(folder)?;
        let lock = match options().create(true).truncate(false).open(folder.join(LOCK)) {
            // A server of another store has just removed the folder.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            lock => lock?,
        };
        lock.lock()?;
        if !is_at(&lock, &folder.join(LOCK))? {
            continue;
        }
        let path = store.canonicalize()?;
        let new = folder.join("store.new");
        fs::write(&new, Note::of(&path)?.encode())?;
        fs::rename(&new, folder.join(NOTE))?;
        return Ok(lock);
    }
}

/// Removes a folder that has no buffers any more, and whose lock the caller holds.
pub fn leave(folder: &Path) {
    let is_buffer = |name: &OsStr| ![LOCK, NOTE].iter().any(|own| *name == **own);
    let Ok(mut entries) = fs::read_dir(folder) else { return };
    // What cannot be read is one.
    if entries.any(|entry| entry.map_or(true, |entry| is_buffer(&entry.file_name()))) {
        return;
    }
    remove(folder);
}

/// Removes a folder with all that is in it.
pub fn remove(folder: &Path) {
    // The lock last: until then the folder is whose lock it is.
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name() != LOCK) {
        let _ = fs::remove_file(entry.path());
    }
    let _ = fs::remove_file(folder.join(LOCK));
    let _ = fs::remove_dir(folder);
}

/// Goes through the folders of all stores of this user but this one.
pub fn sweep(top: &Path, own: &Path) {
    let entries = match fs::read_dir(top) {
        Ok(entries) => entries,
        Err(error) => {
            return tracing::warn!("looking for what servers have left in {}: {error}", top.display());
        }
    };
    let used = OnceCell::new();
    for folder in entries.flatten().map(|entry| entry.path()).filter(|path| path != own) {
        if let Err(error) = sweep_one(&folder, &used) {
            tracing::warn!("{} stays, as it cannot be looked at: {error}", folder.display());
        }
    }
}

fn sweep_one(folder: &Path, used: &OnceCell<io::Result<BTreeSet<OsString>>>) -> io::Result<()> {
    let lock = match options().open(folder.join(LOCK)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return sweep_older(folder, used),
        lock => lock?,
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    if !is_at(&lock, &folder.join(LOCK))? {
        return Ok(());
    }
    let (mut newest, mut useless) = (SystemTime::UNIX_EPOCH, Vec::new());
    for entry in fs::read_dir(folder)? {
        let (path, name) = {
            let entry = entry?;
            (entry.path(), entry.file_name())
        };
        let name = name.to_str().unwrap_or("");
        if let Ok(number) = name.parse::<u64>()
            && is_useless(&buffers::found(&path, number)?)
        {
            useless.push(path);
        } else if name.strip_suffix(UNREAD).unwrap_or(name).parse::<u64>().is_ok() {
            newest = newest.max(fs::symlink_metadata(&path)?.modified()?);
        }
    }
    useless.iter().try_for_each(fs::remove_file)?;
    let is_old = newest.elapsed().is_ok_and(|age| age >= AGE);
    if newest == SystemTime::UNIX_EPOCH {
        leave(folder);
    } else if is_old && is_gone(&Note::decode(&fs::read(folder.join(NOTE))?)?)? {
        tracing::info!("{} goes: its store was removed", folder.display());
        remove(folder);
    }
    Ok(())
}

/// One without a lock; `used`: the folders that processes use, once they were looked for.
fn sweep_older(folder: &Path, used: &OnceCell<io::Result<BTreeSet<OsString>>>) -> io::Result<()> {
    // One that is empty: its server was killed when it had just made it.
    if fs::remove_dir(folder).is_ok() {
        return Ok(());
    }
    let meta = fs::symlink_metadata(folder)?;
    let (mut newest, mut useless) = (meta.modified()?, Vec::new());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        newest = newest.max(fs::symlink_metadata(&path)?.modified()?);
        let number = path.file_name().and_then(OsStr::to_str).and_then(|name| name.parse().ok());
        if let Some(number) = number
            && is_useless(&buffers::found(&path, number)?)
        {
            useless.push(path);
        }
    }
    if meta.uid() != unix_socket::effective_user() || newest.elapsed().is_ok_and(|age| age < AGE) {
        return Ok(());
    }
    let top = folder.parent().unwrap_or(folder);
    let name = folder.file_name().unwrap_or_default();
    match used.get_or_init(|| in_use(top)) {
        Err(error) => return Err(io::Error::new(error.kind(), format!("who uses it is not known: {error}"))),
        Ok(used) if used.contains(name) => return Ok(()),
        Ok(_) => {}
    }
    useless.iter().try_for_each(fs::remove_file)?;
    // One with a version that may be nowhere else stays.
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// The folders in one of which a process has something open or mapped.
///
/// # Errors
/// A process of a user who may enter them cannot be looked at.
fn in_use(top: &Path) -> io::Result<BTreeSet<OsString>> {
    let own = unix_socket::effective_user();
    let mut used = BTreeSet::new();
    let mut note = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path)).strip_prefix(top).ok();
        used.extend(path.and_then(|path| path.iter().next()).map(OsStr::to_owned));
    };
    for pid in procfs::processes()? {
        let is_other =
            || fs::metadata(format!("/proc/{pid}")).is_ok_and(|meta| own != 0 && meta.uid() != own);
        let mut look = || -> io::Result<()> {
            procfs::maps(pid, pid)?.iter().for_each(|mapping| note(&mapping.name));
            for fd in procfs::descriptors(pid, pid)? {
                // One that was closed meanwhile is none.
                let target = procfs::link(&format!("/proc/{pid}/fd/{fd}"));
                target.iter().for_each(|target| note(target));
            }
            Ok(())
        };
        match look() {
            Err(_) if procfs::existence(pid) != procfs::Existence::Living || is_other() => {}
            done => done?,
        }
    }
    Ok(used)
}

/// Whether none would miss it: only its store's next server would use it, and that does not.
fn is_useless(buffer: &Buffer) -> bool {
    buffer.version().is_ok_and(|found| found.is_none_or(|(head, ..)| head.state != State::Put))
}

/// Where a store is.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Note {
    path: PathBuf,
    /// Its number, and device and number of the folder that it is in.
    inode: u64,
    parent: (u64, u64),
}

impl Note {
    fn of(path: &Path) -> io::Result<Note> {
        let inode = fs::metadata(path)?.ino();
        let parent = fs::metadata(path.parent().unwrap_or(path))?;
        Ok(Note { path: path.to_owned(), inode, parent: (parent.dev(), parent.ino()) })
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = format!("{} {} {}\n", self.inode, self.parent.0, self.parent.1);
        [numbers.as_bytes(), self.path.as_os_str().as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> io::Result<Note> {
        let damaged = || io::Error::new(ErrorKind::InvalidData, "the note of its store is damaged");
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let numbers = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged())?;
        let numbers: Vec<u64> = numbers.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [inode, device, folder] = numbers[..] else { return Err(damaged()) };
        Ok(Note { path: OsStr::from_bytes(&bytes[end + 1..]).into(), inode, parent: (device, folder) })
    }
}

/// Whether a store is no more: the folder that it was in is there, the same one, on the same file system, and has no
/// entry of its name, nor one that is the store under another name.
fn is_gone(note: &Note) -> io::Result<bool> {
    let parent = note.path.parent().unwrap_or(&note.path);
    let meta = match fs::metadata(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        meta => meta?,
    };
    if (meta.dev(), meta.ino()) != note.parent {
        return Ok(false);
    }
    match fs::symlink_metadata(&note.path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        there => return there.map(|_| false),
    }
    for entry in fs::read_dir(parent)? {
        if std::os::unix::fs::DirEntryExt::ino(&entry?) == note.inode {
            return Ok(false);
        }
    }
    Ok(true)
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

/// Whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        meta => meta.map(|meta| (meta.dev(), meta.ino()) == (own.dev(), own.ino())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_objects::buffer::{Layout, Table};
    use std::os::unix::fs::FileExt;

    /// A folder of all stores and a store, both in a place of their own.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let root = std::env::temp_dir().join(format!("holdfast-left-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("parent/store")).unwrap();
            fs::create_dir(root.join("top")).unwrap();
            Place(root)
        }

        fn store(&self) -> PathBuf {
            self.0.join("parent/store")
        }

        fn folder(&self) -> PathBuf {
            self.0.join("top/one")
        }

        /// As a server that was killed leaves it: a buffer in each state, which were put so long ago.
        fn killed(&self, age: Duration) {
            let lock = occupy(&self.folder(), &self.store(), |path| fs::create_dir(path)).unwrap();
            let table = Table { set: "set".into(), ranks: 1, ..Table::default() };
            let layout = Layout::of(&table).unwrap();
            for (number, state) in [State::Empty, State::Put, State::Stored].into_iter().enumerate() {
                let file = File::create(self.folder().join(number.to_string())).unwrap();
                file.set_len(layout.len).unwrap();
                file.write_all_at(&layout.table, holdfast_objects::buffer::HEAD).unwrap();
                file.write_all_at(&layout.head(state), 0).unwrap();
                file.set_modified(SystemTime::now() - age).unwrap();
            }
            drop(lock);
        }

        /// What a sweep leaves.
        fn swept(&self) -> Vec<String> {
            sweep(&self.0.join("top"), Path::new("/own"));
            let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_only_memory_may_have_stays_until_its_store_is_provably_gone() {
        let place = Place::new("gone");
        place.killed(2 * AGE);
        let stays = ["1", LOCK, NOTE];
        let back = |path: &Path| File::options().write(true).open(path).unwrap();
        let age = || back(&place.folder().join("1")).set_modified(SystemTime::now() - 2 * AGE).unwrap();
        assert_eq!(place.swept(), stays, "the store is there");
        age();
        // As if nothing were mounted there.
        fs::rename(place.0.join("parent"), place.0.join("elsewhere")).unwrap();
        assert_eq!(place.swept(), stays, "the folder that the store is in is not there");
        fs::create_dir(place.0.join("parent")).unwrap();
        assert_eq!(place.swept(), stays, "it is another folder");
        fs::remove_dir(place.0.join("parent")).unwrap();
        fs::rename(place.0.join("elsewhere"), place.0.join("parent")).unwrap();
        fs::rename(place.store(), place.0.join("parent/moved")).unwrap();
        assert_eq!(place.swept(), stays, "it has another name");
        fs::remove_dir(place.0.join("parent/moved")).unwrap();
        back(&place.folder().join("1")).set_modified(SystemTime::now()).unwrap();
        assert_eq!(place.swept(), stays, "it was put not long ago");
        age();
        assert!(place.swept().is_empty());
        assert!(!place.folder().exists());
    }

    #[test]
    fn of_a_folder_without_a_lock_goes_what_none_would_miss_when_none_uses_it() {
        let place = Place::new("older");
        place.killed(2 * AGE);
        for own in [LOCK, NOTE] {
            fs::remove_file(place.folder().join(own)).unwrap();
        }
        assert_eq!(place.swept(), ["0", "1", "2"], "the folder was changed a moment ago");
        let folder = File::open(place.folder()).unwrap();
        let age = || folder.set_modified(SystemTime::now() - 2 * AGE).unwrap();
        age();
        assert_eq!(place.swept(), ["0", "1", "2"], "it is open");
        drop(folder);
        // Who may not look at all processes of its user leaves it.
        let is_known = in_use(&place.0).is_ok();
        let left = place.swept();
        assert!(if is_known { left == ["1"] } else { left.len() == 3 }, "{left:?}");
    }

    #[test]
    fn what_a_living_server_has_is_not_touched_and_what_is_in_the_store_goes() {
        let place = Place::new("lives");
        place.killed(2 * AGE);
        fs::remove_dir(place.store()).unwrap();
        let lock = options().open(place.folder().join(LOCK)).unwrap();
        lock.lock().unwrap();
        assert_eq!(place.swept(), ["0", "1", "2", LOCK, NOTE]);
        fs::remove_file(place.folder().join("1")).unwrap();
        drop(lock);
        assert!(place.swept().is_empty() && !place.folder().exists());
    }
}
