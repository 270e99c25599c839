//! Identity of files that a restart needs unchanged: path, size, time, build-id. Outside the stop, but for
//! [`SharedFiles`]; cached.
//!
//! No file of the program is opened: it might notice ([`super::open_file`]). A build-id is that of the file whose head
//! the program has mapped. It runs meanwhile, and may map another one there (dlclose, dlopen): what is mapped is looked
//! at before and after the reading, which is done several times.

use super::maps::{self, Kind, Mapped};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{FileIdentity, Inode, Ownership};
use holdfast_image::refusal::Refusal;
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::{procmap, procmem};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// What /proc appends to the path of what is gone (fs/d_path.c, path_with_deleted).
pub(crate) const DELETED: &[u8] = b" (deleted)";
/// Bytes from the start of a file in which its build-id is looked for.
const HEAD_LEN: u64 = 64 * 1024;
/// How often a head is read, which must give the same each time.
const READINGS: usize = 3;

/// Identities of files seen before.
#[derive(Debug, Default)]
pub struct Identities {
    known: HashMap<(Name, u64, i64), Option<Blob>>,
}

impl Identities {
    /// The identity of the file at `path`, if it is the one with this inode; `None`: replaced, or deleted. `pid`,
    /// `all`: a process that may have its head mapped, and its mappings.
    pub fn of<'a>(
        &mut self,
        path: &Path,
        inode: Option<u64>,
        (pid, all): (i32, impl Iterator<Item = &'a Mapping>),
    ) -> Option<FileIdentity> {
        let identity = at_once(path, inode)?;
        let key = (identity.path.clone(), identity.size, identity.mtime_ns);
        let build_id = match self.known.get(&key) {
            Some(known) => known.clone(),
            // Not known for good: the mapping has gone, and another process may have one.
            None => mapped_build_id(path, inode, pid, all).and_then(|found| {
                self.known.insert(key, found.clone());
                found
            }),
        };
        Some(FileIdentity { build_id, ..identity })
    }
}

/// The build-id of a file, if any, where a process has mapped its beginning privately; `None`: it has no such mapping
/// now.
fn mapped_build_id<'a>(
    path: &Path,
    inode: Option<u64>,
    pid: i32,
    mut all: impl Iterator<Item = &'a Mapping>,
) -> Option<Option<Blob>> {
    let found = all.find(|one| {
        let is_it = inode.is_none_or(|inode| inode == one.inode) && maps::path_of(&one.name) == path;
        !one.shared && one.offset == 0 && is_it
    })?;
    let is_there = || {
        let look = |tid| procmap::at(tid, found.start).ok().flatten();
        procfs::by_any_thread(pid, look).is_ok_and(|it| {
            (it.start, it.offset, it.device, it.inode) == (found.start, 0, found.device, found.inode)
        })
    };
    let len = usize::try_from((found.end - found.start).min(HEAD_LEN)).ok()?;
    let read = || {
        let mut head = vec![0; len];
        procmem::read(pid, found.start, &mut head).ok().filter(|()| is_there())?;
        Some(parse_build_id(&head))
    };
    // Another file can be there in one reading, and be gone again, while this thread waits for a processor.
    let build_id = is_there().then(read)??;
    (1..READINGS).all(|_| read().as_ref() == Some(&build_id)).then_some(build_id)
}

/// The same without a build-id.
fn at_once(path: &Path, inode: Option<u64>) -> Option<FileIdentity> {
    let metadata = fs::metadata(path).ok()?;
    if inode.is_some_and(|inode| inode != metadata.ino()) {
        return None;
    }
    let (size, mode, mtime_ns) = (metadata.len(), metadata.mode() & 0o7777, mtime_ns(&metadata));
    let inode = Some(inode_of(&metadata));
    Some(FileIdentity { path: Name::from(path), size, mtime_ns, build_id: None, mode, inode, inside: None })
}

/// Files that are mapped shared, as they are inside the stop: as soon as the program runs on it may remove or replace
/// them, and what it shares with them would be memory of its own in the image.
#[derive(Debug, Default)]
pub struct SharedFiles(HashMap<(Vec<u8>, u64), FileIdentity>);

impl SharedFiles {
    /// Looks at all that are mapped shared: one call for each.
    pub fn of(all: &[Mapped]) -> SharedFiles {
        let mut found = HashMap::new();
        let shared = all.iter().filter(|mapped| mapped.kind == Kind::SharedFile);
        for mapping in shared.map(|mapped| &mapped.mapping) {
            let key = (mapping.name.clone(), mapping.inode);
            if !found.contains_key(&key)
                && let Some(identity) = at_once(maps::path_of(&mapping.name), Some(mapping.inode))
            {
                found.insert(key, identity);
            }
        }
        SharedFiles(found)
    }

    /// Refuses those among `all` that are not at their paths: in another mount namespace, or under a file system that
    /// was mounted over them.
    pub fn missing(&self, all: &[Mapped]) -> Vec<Refusal> {
        let shared =
            all.iter().filter(|mapped| mapped.kind == Kind::SharedFile).map(|mapped| &mapped.mapping);
        let missing = shared.filter(|mapping| !self.0.contains_key(&(mapping.name.clone(), mapping.inode)));
        let reason = "a shared mapping of a file that is not found at its path (another mount namespace?)";
        missing.map(|mapping| maps::refuse(mapping, reason.to_owned())).collect()
    }

    /// What the image says of one.
    pub fn identity(&self, mapping: &Mapping) -> Option<FileIdentity> {
        self.0.get(&(mapping.name.clone(), mapping.inode)).cloned()
    }
}

/// Which file it is, and whose.
pub fn inode_of(metadata: &fs::Metadata) -> Inode {
    Inode {
        device: metadata.dev(),
        inode: metadata.ino(),
        born_ns: born_ns(metadata),
        mode: metadata.mode(),
        owner: Some(owner_of(metadata)),
    }
}

/// Whose file it is.
pub fn owner_of(metadata: &fs::Metadata) -> Ownership {
    Ownership { user: metadata.uid(), group: metadata.gid() }
}

/// Modification time in nanoseconds since 1970.
pub fn mtime_ns(metadata: &fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Time of birth likewise, where the file system knows it.
pub fn born_ns(metadata: &fs::Metadata) -> Option<i64> {
    let since = metadata.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

/// The GNU build-id of an ELF file, if it has one within its first 64 KiB (where linkers put it). At a restart.
pub fn build_id(path: &Path) -> Option<Blob> {
    let mut head = Vec::new();
    // It may be a named pipe by now.
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    file.take(HEAD_LEN).read_to_end(&mut head).ok()?;
    parse_build_id(&head)
}

/// Finds the NT_GNU_BUILD_ID note (elf(5)) in the head of an ELF file.
pub fn parse_build_id(head: &[u8]) -> Option<Blob> {
    const PT_NOTE: u32 = 4;
    const NT_GNU_BUILD_ID: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| {
        usize::try_from(u64::from_le_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?)).ok()
    };
    if head.get(..5)? != b"\x7fELF\x02" {
        return None;
    }
    let (table, entry_len, entries) = (long(32)?, usize::from(half(54)?), usize::from(half(56)?));
    for index in 0..entries {
        let at = table.checked_add(index * entry_len)?;
        if at.checked_add(56)? > head.len() || word(at)? != PT_NOTE {
            continue;
        }
        let (mut note, end) = (long(at + 8)?, long(at + 8)?.checked_add(long(at + 32)?)?);
        while note.checked_add(12)? <= end.min(head.len()) {
            let (name_len, data_len, kind) =
                (word(note)? as usize, word(note + 4)? as usize, word(note + 8)?);
            let data = note.checked_add(12 + name_len.next_multiple_of(4))?;
            if kind == NT_GNU_BUILD_ID && head.get(note + 12..note + 16)? == b"GNU\0" {
                return Some(Blob(head.get(data..data.checked_add(data_len)?)?.to_vec()));
            }
            note = data.checked_add(data_len.next_multiple_of(4))?;
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_build_id_is_found_and_nonsense_is_survived() {
        assert!(build_id(Path::new("/bin/sh")).is_some_and(|id| id.0.len() == 20));
        let mut head = fs::read("/bin/sh").unwrap_or_default();
        head.truncate(4096);
        for at in 0..head.len().min(1200) {
            let mut broken = head.clone();
            broken[at] ^= 0xff;
            let _ = parse_build_id(&broken);
            let _ = parse_build_id(&head[..at]);
        }
    }

    /// Two files in turn at one address, as dlclose and dlopen do it: neither gets the build-id of the other.
    #[test]
    fn a_build_id_is_of_the_file_that_is_mapped_and_not_of_the_next_one() {
        const PROGRAM: &str = "import ctypes, os, time\n\
            mmap = ctypes.CDLL(None).mmap\n\
            mmap.restype, mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_long] * 5\n\
            files = [os.open(name, os.O_RDONLY) for name in ('/bin/sh', '/bin/ls')]\n\
            at = mmap(None, 65536, 1, 2, files[0], 0)\n\
            print(at, flush=True)\n\
            parent = os.getppid()\n\
            while os.getppid() == parent:\n  for f in files: mmap(at, 65536, 1, 18, f, 0); time.sleep(0.001)\n";
        let mut python = Command::new("/usr/bin/python3");
        let mut child = python.args(["-c", PROGRAM]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (at, pid): (u64, i32) = (line.trim().parse().unwrap(), child.id().cast_signed());
        let mut seen = 0;
        for _ in 0..2000 {
            let all = procfs::maps(pid, pid).unwrap();
            let Some(it) = all.iter().find(|one| one.start == at) else { continue };
            let path = maps::path_of(&it.name);
            let found = Identities::default().of(path, Some(it.inode), (pid, all.iter())).unwrap();
            if found.build_id.is_some() {
                assert_eq!(found.build_id, build_id(path), "{}", path.display());
                seen += 1;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen > 0);
    }
}
