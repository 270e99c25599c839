//! Buffers: files in memory, each with one version of one rank.
//!
//! Used by the server. They lie in a folder of the user's in /dev/shm, named after the store: by its folder, and by a
//! number in it (`objects/id`), so that neither a copy of it nor a new one in its place is taken for it. The next
//! server of the store finds there what this one has not brought to the store when it was killed. Invariants: never
//! more than the server's room for all of them together, but for what is passed by the cache; a buffer that was given
//! up has no state that counts before it is used again; one that a client may still have in use, of which this server
//! does not hear that it is done with it, is not used again.
//! Fails by: the error of the file system, with its path.

use super::leftovers;
use crate::exit::{Exit, Failure};
use crate::{sharing, tiers};
use holdfast_objects::buffer::{
    CLAIMED_AT, CLOSED_AT, FOUND, HEAD, Head, Layout, REVOKED, STATE_AT, State, Table,
};
use holdfast_objects::wire;
use holdfast_sys::cgroup::{self, Room};
use holdfast_sys::{fd, unix_socket};
use holdfast_tiers::{Claim, Share};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Where memory is.
const BASE: &str = "/dev/shm";
/// So many that are free stay for the next ones of their length: new pages cost more than a copy.
const SPARE: usize = 64;
/// And so many bytes.
const SPARE_BYTES: u64 = 256 << 20;
/// Where nothing is left, all buffers have this part of the limit.
const LEAST: u64 = 64;
/// How the name of one that cannot be read ends.
pub const UNREAD: &str = ".unread";

/// A buffer that is in use.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Its number.
    pub number: u64,
    /// Its length, bytes.
    pub bytes: u64,
    /// Open for reading and writing.
    pub file: Arc<File>,
}

/// See the head of the file.
pub struct Buffers {
    folder: PathBuf,
    /// Held as long as it is served.
    _lock: File,
    /// Open, so that its end is known: a folder that was removed has no links.
    store: File,
    next: u64,
    /// Numbers of all that are there.
    live: BTreeSet<u64>,
    spare: Vec<Buffer>,
    /// Those that clients may have in use, who do not say when they are done.
    once: BTreeSet<u64>,
    /// Bytes of all that are there, and what others are told of it.
    used: u64,
    room: u64,
    share: Arc<Share>,
}

impl Buffers {
    /// The buffers of a store, and those that a server which died has left. `room`: most bytes of all of them, as
    /// `share` tells others.
    ///
    /// # Errors
    /// The folder cannot be made or listed, or is another user's.
    pub fn open(store: &Path, room: u64, share: Arc<Share>) -> Result<(Buffers, Vec<Buffer>), Failure> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| Failure::system(format_args!("buffers in {}", path.display()), &error)
        };
        let meta = fs::metadata(store).map_err(failed(store))?;
        let top = Path::new(BASE).join(format!("holdfast-objects-{}", unix_socket::effective_user()));
        let folder = top.join(format!("{}-{:x}-{:x}", id_of(store)?, meta.dev(), meta.ino()));
        make(&top).map_err(failed(&top))?;
        let lock = leftovers::occupy(&folder, store, make).map_err(failed(&folder))?;
        let store = File::open(store).map_err(failed(store))?;
        let (mut left, mut next) = (Vec::new(), 0);
        for entry in fs::read_dir(&folder).map_err(failed(&folder))? {
            let entry = entry.map_err(failed(&folder))?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().unwrap_or("");
            let Ok(number) = name.strip_suffix(UNREAD).unwrap_or(name).parse::<u64>() else { continue };
            next = next.max(number + 1);
            if !name.ends_with(UNREAD) {
                left.push(found(&path, number).map_err(failed(&path))?);
            }
        }
        let once: BTreeSet<u64> = left.iter().map(|buffer| buffer.number).collect();
        let (live, spare, used) =
            (once.clone(), Vec::new(), left.iter().map(|buffer: &Buffer| buffer.bytes).sum());
        let buffers = Buffers { folder, _lock: lock, store, next, live, spare, once, used, room, share };
        buffers.tell();
        Ok((buffers, left))
    }

    /// One of this length, without a state that counts; of those that are free one of `known`, if there is such a one,
    /// which its client has mapped.
    ///
    /// # Errors
    /// Memory is short.
    pub fn take(&mut self, bytes: u64, known: &BTreeSet<u64>) -> io::Result<Buffer> {
        let fits = |spare: &Buffer| spare.bytes == bytes;
        let best = self.spare.iter().position(|spare| fits(spare) && known.contains(&spare.number));
        if let Some(at) = best.or_else(|| self.spare.iter().position(fits)) {
            return Ok(self.spare.swap_remove(at));
        }
        let number = self.next;
        let path = self.path(number);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        self.next += 1;
        // What there is no room for is an error here, and no SIGBUS of the client's.
        let made = fd::allocate(&file, bytes);
        if let Err(error) = made {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.live.insert(number);
        self.used += bytes;
        self.tell();
        Ok(Buffer { number, bytes, file: Arc::new(file) })
    }

    /// Others are told what may still be taken.
    fn tell(&self) {
        self.share.set_memory(self.room.saturating_sub(self.used));
    }

    /// This one is not among them any more.
    fn forget(&mut self, buffer: &Buffer) {
        self.live.remove(&buffer.number);
        self.used = self.used.saturating_sub(buffer.bytes);
        self.tell();
    }

    /// This one is needed no longer.
    pub fn give_up(&mut self, buffer: Buffer) {
        let is_empty = buffer.set_state(State::Empty).is_ok();
        let bytes: u64 = self.spare.iter().map(|spare| spare.bytes).sum();
        let is_free = is_empty && !self.once.remove(&buffer.number);
        if is_free && self.spare.len() < SPARE && bytes + buffer.bytes <= SPARE_BYTES {
            self.spare.push(buffer);
            return;
        }
        self.forget(&buffer);
        // A file that stays is found by the next server, which sees what is in it.
        let _ = fs::remove_file(self.path(buffer.number));
    }

    /// This one is not used again when it is needed no longer: its client does not say when it is done with it.
    pub fn use_once(&mut self, number: u64) {
        self.once.insert(number);
    }

    /// This one, which cannot be read, stays for the user to look at; its path.
    pub fn put_aside(&mut self, buffer: &Buffer) -> PathBuf {
        self.forget(buffer);
        self.once.remove(&buffer.number);
        let (path, aside) =
            (self.path(buffer.number), self.folder.join(format!("{}{UNREAD}", buffer.number)));
        match fs::rename(&path, &aside) {
            Ok(()) => aside,
            Err(_) => path,
        }
    }

    /// Whether there is a buffer of this number.
    pub fn has(&self, number: u64) -> bool {
        self.live.contains(&number)
    }

    /// Those that are free go; and the folder, if it has no others or the store is no more.
    pub fn leave(&mut self) {
        for buffer in std::mem::take(&mut self.spare) {
            self.forget(&buffer);
            let _ = fs::remove_file(self.path(buffer.number));
        }
        match self.is_store_gone() {
            true => leftovers::remove(&self.folder),
            false => leftovers::leave(&self.folder),
        }
    }

    /// Whether the folder of the store was removed: what is in memory can be brought nowhere.
    pub fn is_store_gone(&self) -> bool {
        self.store.metadata().is_ok_and(|meta| meta.nlink() == 0)
    }

    /// As if its server had been killed.
    #[cfg(test)]
    pub fn unlock(&self) {
        let _ = self._lock.unlock();
    }

    /// The folder, and the one of all stores of this user.
    pub fn folders(&self) -> (PathBuf, PathBuf) {
        (self.folder.clone(), self.folder.parent().unwrap_or(&self.folder).to_owned())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }
}

impl Buffer {
    /// The head, the table, and where things are; `None`: it has no version.
    ///
    /// # Errors
    /// It cannot be read, or is not as it must be.
    pub fn version(&self) -> Result<Option<(Head, Table, Layout)>, String> {
        // Its server was killed when it had just made it.
        if self.bytes == 0 {
            return Ok(None);
        }
        let mut head = [0; HEAD as usize];
        self.file.read_exact_at(&mut head, 0).map_err(|error| error.to_string())?;
        // It was closed before anything was put into it.
        if head
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == 0 || (CLOSED_AT..CLAIMED_AT + 4).contains(&(at as u64)))
        {
            return Ok(None);
        }
        let head = Head::decode(&head)?;
        if head.state == State::Empty {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(head.table).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, HEAD).map_err(|error| error.to_string())?;
        let (table, layout) = head.table(&bytes)?;
        if layout.len > self.bytes {
            return Err(format!("it is to have {} bytes and has {}", layout.len, self.bytes));
        }
        Ok(Some((head, table, layout)))
    }

    /// Writes head and table of a version, with this state.
    ///
    /// # Errors
    /// As write(2).
    pub fn write_head(&self, layout: &Layout, state: State) -> io::Result<()> {
        self.file.write_all_at(&layout.table, HEAD)?;
        self.file.write_all_at(&layout.head(state), 0)
    }

    /// Whether its client, which it was given to ahead, gets to know that it is taken back before it fills it.
    ///
    /// # Errors
    /// As write(2).
    pub fn revoke(&self) -> io::Result<bool> {
        self.file.write_all_at(&REVOKED.to_le_bytes(), CLOSED_AT)?;
        fence(Ordering::SeqCst);
        let mut claimed = [0; 4];
        self.file.read_exact_at(&mut claimed, CLAIMED_AT)?;
        Ok(claimed == [0; 4])
    }

    /// Its client may fill it some time, and says when it begins.
    ///
    /// # Errors
    /// As write(2).
    pub fn give_ahead(&self) -> io::Result<()> {
        self.file.write_all_at(&0_u32.to_le_bytes(), CLAIMED_AT)
    }

    /// Changes its state.
    ///
    /// # Errors
    /// As write(2).
    pub fn set_state(&self, state: State) -> io::Result<()> {
        self.file.write_all_at(&(state as u32).to_le_bytes(), STATE_AT)
    }
}

/// A buffer of a server that has died. From now on its client knows that, if it is still filling it: it asks for
/// another one. What it has put before is there.
pub fn found(path: &Path, number: u64) -> io::Result<Buffer> {
    let file = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let bytes = file.metadata()?.len();
    let mut closed = [0; 4];
    if bytes >= HEAD {
        file.read_exact_at(&mut closed, CLOSED_AT)?;
    }
    // It tells its age, too: only what is not closed yet is changed.
    if bytes >= HEAD && closed == [0; 4] {
        file.write_all_at(&FOUND.to_le_bytes(), CLOSED_AT)?;
        // Its state is looked at after that.
        fence(Ordering::SeqCst);
    }
    Ok(Buffer { number, bytes, file: Arc::new(file) })
}

/// The number of a store, made with its first server.
fn id_of(store: &Path) -> Result<String, Failure> {
    let path = wire::folder(store).join("id");
    let failed =
        |what: &str, error: &io::Error| Failure::system(format_args!("{what} {}", path.display()), error);
    match fs::read_to_string(&path) {
        Ok(id) if id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit()) => return Ok(id),
        // What is not whole was being written when its server was killed: it had no buffers yet.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("reading", &error)),
    }
    let id = tiers::new_id()?;
    fs::write(&path, &id).map_err(|error| failed("writing", &error))?;
    Ok(id)
}

fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let meta = fs::symlink_metadata(folder)?;
    if !meta.is_dir() || meta.uid() != unix_socket::effective_user() || meta.mode() & 0o077 != 0 {
        let why = "it is not a folder of this user's alone; remove it, or have its owner do so";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Most bytes of all buffers, where the user has not said: a quarter of what the control group and the host allow, and
/// half of what /dev/shm has room for, without what the agents of the store may still take.
///
/// # Errors
/// /dev/shm cannot be looked at.
pub fn usual_room(claims: &[Claim]) -> Result<u64, Failure> {
    let rooms = [cgroup::tightest(std::process::id()), cgroup::of_host()];
    let of = |room: Room| {
        let left = room.left().saturating_sub(sharing::claimed(claims, &room));
        (room.limit / 4).min(left.max(room.limit / LEAST))
    };
    let memory = rooms.into_iter().flatten().map(of).min();
    let folder = fd::disk_room(Path::new(BASE))
        .map_err(|error| Failure::new(Exit::Internal, format!("looking at {BASE}: {error}")))?;
    let theirs = claims.iter().fold(0, |sum: u64, claim| sum.saturating_add(claim.memory));
    Ok(memory.unwrap_or(u64::MAX).min(folder.free.saturating_sub(theirs) / 2))
}
