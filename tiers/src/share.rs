//! What the processes that write into one store from a host share: memory for what is not in the store yet, and the
//! rate at which the store is written.
//!
//! Used by the agents of a store's jobs and by its server of objects. Each has a file in a folder of its user in
//! memory, which says how much memory it may still take, and the rate that its user wants; a file counts while its
//! process holds the lock of it. `clock` in the same folder says until when the rate is used up.
//! Invariants: what is decided by what others may take is decided with the folder's lock, so that no two decide by the
//! same; nothing waits for another process longer than that takes. A folder that cannot be used is none: each then
//! counts alone.

use crate::link::Link;
use crate::lock;
use crate::tier::posix;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BASE: &str = "/dev/shm";
const LOCK: &str = "lock";
const CLOCK: &str = "clock";
/// Most bytes that may be caught up after a pause of a rate.
pub(crate) const BURST: u64 = 256 << 10;
/// So many folders of other stores are looked at by each that comes.
const SWEPT: usize = 32;
/// So many names are tried.
const TRIES: u32 = 1000;

/// See the head of the file: one process's part.
pub struct Share(Option<Own>);

struct Own {
    folder: PathBuf,
    /// Open as long as the folder is used.
    all: File,
    path: PathBuf,
    file: File,
    clock: Link,
    said: Mutex<Said>,
}

/// What a file says.
#[derive(Clone, Copy, Default)]
struct Said {
    /// Bytes of memory that its process may still take.
    memory: u64,
    /// Bytes a second; 0: none is wanted.
    rate: u64,
}

/// What another process may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The process.
    pub pid: u32,
    /// Bytes of memory.
    pub memory: u64,
}

impl Share {
    /// That of this process in the store that has this folder.
    ///
    /// # Errors
    /// The folder in memory cannot be made or used.
    pub fn of(store: &Path) -> io::Result<Share> {
        let top = Path::new(BASE).join(format!("holdfast-share-{}", lock::euid()));
        let failed = |why: io::Error| io::Error::new(why.kind(), format!("{}: {why}", top.display()));
        Ok(Share(Some(Own::make(&top, store).map_err(failed)?)))
    }

    /// One that has nothing in common with others.
    pub fn alone() -> Share {
        Share(None)
    }

    /// The store is to be written with so many bytes a second, by all together.
    pub fn want_rate(&self, rate: Option<u64>) {
        self.say(|said| said.rate = rate.unwrap_or(0));
    }

    /// The rate that is wanted for the store; the greatest, where several are.
    pub fn rate(&self) -> Option<u64> {
        let own = self.0.as_ref()?;
        let others = own.locked(Own::others);
        let all = others.into_iter().map(|(_, said)| said.rate).chain([own.said.lock().rate]);
        all.filter(|rate| *rate > 0).max()
    }

    /// This process may take so much memory from now on, as is decided by what others may still take.
    pub fn claim(&self, decide: impl FnOnce(&[Claim]) -> u64) {
        let Some(own) = &self.0 else {
            decide(&[]);
            return;
        };
        own.locked(|own| {
            let others = own.others().into_iter();
            let others: Vec<Claim> = others.map(|(pid, said)| Claim { pid, memory: said.memory }).collect();
            self.set_memory(decide(&others));
        });
    }

    /// So much memory it may still take; less than it was.
    pub fn set_memory(&self, bytes: u64) {
        self.say(|said| said.memory = bytes);
    }

    /// Takes the store's rate for so many bytes. Returns how long to wait before they are written; `None`: it is not
    /// shared.
    pub(crate) fn take(&self, bytes: u64, rate: u64) -> Option<Duration> {
        Some(self.0.as_ref()?.clock.take_at(bytes, rate))
    }

    fn say(&self, change: impl FnOnce(&mut Said)) {
        let Some(own) = &self.0 else { return };
        let mut said = own.said.lock();
        change(&mut said);
        // What is not written costs room or time, nothing else.
        let _ = own.file.write_all_at(&said.encode(), 0);
    }
}

impl Said {
    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.memory.to_le_bytes());
        bytes[8..].copy_from_slice(&self.rate.to_le_bytes());
        bytes
    }

    fn decode([memory, rate]: [[u8; 8]; 2]) -> Said {
        Said { memory: u64::from_le_bytes(memory), rate: u64::from_le_bytes(rate) }
    }
}

impl Own {
    fn make(top: &Path, store: &Path) -> io::Result<Own> {
        let meta = fs::metadata(store)?;
        let folder = top.join(format!("{:x}-{:x}", meta.dev(), meta.ino()));
        for path in [top, &folder] {
            posix::make_folder(path, false).map_err(io::Error::other)?;
        }
        for number in 0..TRIES {
            posix::make_folder(&folder, false).map_err(io::Error::other)?;
            let all = match open(&folder.join(LOCK)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                all => all?,
            };
            all.lock()?;
            if all.metadata()?.nlink() == 0 {
                // The last one has just left.
                continue;
            }
            let clock = Link::at(&folder.join(CLOCK), BURST)?;
            let path = folder.join(format!("{}-{number}", std::process::id()));
            let file = open(&path)?;
            // A process of another pid namespace may have the name; or this one has, for a second time.
            if lock::try_lock(&file)? {
                file.set_len(0)?;
                file.write_all_at(&Said::default().encode(), 0)?;
                all.unlock()?;
                sweep(top, &folder);
                return Ok(Own { folder, all, path, file, clock, said: Mutex::default() });
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// With the lock of the folder, which is only looked at without it if it cannot be had.
    fn locked<T>(&self, act: impl FnOnce(&Own) -> T) -> T {
        let locked = self.all.lock();
        let done = act(self);
        if locked.is_ok() {
            let _ = self.all.unlock();
        }
        done
    }

    /// What others say, by process. What those who have died said goes. With the lock.
    fn others(&self) -> Vec<(u32, Said)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(pid) = name.split_once('-').and_then(|(pid, _)| pid.parse().ok()) else { continue };
            if path == self.path {
                continue;
            }
            let Ok(file) = open_there(&path) else { continue };
            let mut bytes = [[0; 8]; 2];
            match lock::is_locked(&file) {
                Ok(false) => drop(fs::remove_file(&path)),
                _ if file.read_exact_at(bytes.as_flattened_mut(), 0).is_ok() => {
                    found.push((pid, Said::decode(bytes)));
                }
                _ => {}
            }
        }
        found
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.all.lock().is_err() {
            return;
        }
        let _ = fs::remove_file(&self.path);
        leave(&self.folder);
        let _ = self.all.unlock();
    }
}

/// Removes a folder that no process uses any more. With its lock.
fn leave(folder: &Path) {
    let is_used = |entry: &fs::DirEntry| {
        let is_common = [LOCK, CLOCK].iter().any(|name| entry.file_name() == *name);
        !is_common && open_there(&entry.path()).map_or(true, |file| lock::is_locked(&file).unwrap_or(true))
    };
    let Ok(entries) = fs::read_dir(folder) else { return };
    let all: Vec<fs::DirEntry> = entries.flatten().collect();
    if all.iter().any(is_used) {
        return;
    }
    // The lock last: who waits for it sees that it is gone.
    for entry in all.iter().filter(|entry| entry.file_name() != LOCK) {
        let _ = fs::remove_file(entry.path());
    }
    let _ = fs::remove_file(folder.join(LOCK));
    let _ = fs::remove_dir(folder);
}

/// Removes what processes that were killed have left of other stores, of some of them at a time.
fn sweep(top: &Path, own: &Path) {
    let others = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    for folder in others.filter(|folder| folder != own).take(SWEPT) {
        // One whose lock another process has is in use.
        if let Ok(all) = open_there(&folder.join(LOCK))
            && all.try_lock().is_ok()
        {
            leave(&folder);
            let _ = all.unlock();
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

fn open_there(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A folder that is a store, and one in which its users share.
    struct World(PathBuf);

    impl World {
        fn new(name: &str) -> World {
            let top = std::env::temp_dir().join(format!("holdfast-share-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&top);
            fs::create_dir_all(top.join("store")).unwrap();
            World(top)
        }

        fn user(&self) -> Share {
            Share(Some(Own::make(&self.0.join("shares"), &self.0.join("store")).unwrap()))
        }

        fn files(&self) -> Vec<PathBuf> {
            let folder = fs::read_dir(self.0.join("shares")).unwrap().next();
            let Some(folder) = folder else { return Vec::new() };
            fs::read_dir(folder.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// What others may still take, as this one sees it.
    fn seen(share: &Share) -> u64 {
        let mut sum = 0;
        share.claim(|others| {
            sum = others.iter().map(|claim| claim.memory).sum();
            0
        });
        sum
    }

    #[test]
    fn each_sees_what_others_may_take_as_long_as_they_live() {
        let world = World::new("memory");
        let (one, two) = (world.user(), world.user());
        assert_eq!(seen(&one), 0);
        two.claim(|others| {
            assert_eq!(others, [Claim { pid: std::process::id(), memory: 0 }]);
            70
        });
        let three = world.user();
        three.claim(|others| 100 - others.iter().map(|claim| claim.memory).sum::<u64>());
        assert_eq!(seen(&one), 100);
        two.set_memory(20);
        assert_eq!(seen(&one), 50);
        // As if its process had been killed: the file stays, its lock does not.
        let own = two.0.as_ref().unwrap();
        lock::unlock(&own.file).unwrap();
        assert_eq!(seen(&one), 30);
        assert!(!own.path.exists());
        drop((two, three));
        assert_eq!(seen(&one), 0);
        assert_eq!(world.files().len(), 3);
        drop(one);
        assert_eq!(world.files(), Vec::<PathBuf>::new());
        assert_eq!(seen(&world.user()), 0);
    }

    #[test]
    fn what_killed_processes_have_left_goes_with_the_next_one_of_any_store() {
        let world = World::new("swept");
        let (killed, other) = (world.user(), world.0.join("other"));
        lock::unlock(&killed.0.as_ref().unwrap().file).unwrap();
        fs::create_dir(&other).unwrap();
        let shares = || fs::read_dir(world.0.join("shares")).unwrap().count();
        let next = Own::make(&world.0.join("shares"), &other).unwrap();
        assert_eq!(shares(), 1);
        // One that lives stays.
        let living = world.user();
        let _more = Own::make(&world.0.join("shares"), &other).unwrap();
        assert_eq!((shares(), seen(&living)), (2, 0));
        drop(next);
    }

    #[test]
    fn one_rate_is_shared_by_all_and_the_greatest_that_is_wanted() {
        let world = World::new("rate");
        let (server, agent, other) = (world.user(), world.user(), world.user());
        assert_eq!(server.rate(), None);
        agent.want_rate(Some(1000));
        other.want_rate(Some(400));
        assert_eq!((server.rate(), agent.rate()), (Some(1000), Some(1000)));
        agent.want_rate(None);
        assert_eq!(server.rate(), Some(400));
        // What one has taken the other waits for.
        let first = agent.take(10_000, 1000).unwrap();
        assert!(first <= Duration::from_secs(10), "{first:?}");
        let second = server.take(10_000, 1000).unwrap();
        assert!(second > Duration::from_secs(15), "{second:?}");
        assert_eq!(Share::alone().take(1, 1), None);
    }

    #[test]
    fn a_folder_of_anybody_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let world = World::new("open");
        let top = world.0.join("shares");
        fs::create_dir(&top).unwrap();
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Own::make(&top, &world.0.join("store")).is_err());
    }
}
