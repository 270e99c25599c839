//! Reading the text files of /proc, with as few calls as can be: inside a stop there are hundreds of them.
//!
//! `std::fs::read` asks for the size first, which is 0 here, and then reads 32, 64, 128 … bytes until it is at the end.
//! Called by `procfs`, and for files of /proc that have no parser there. Many files of one folder are read through a
//! [`ProcFolder`]: the way to /proc/PID/task/TID/fdinfo is longer for the kernel than all that it says of one
//! descriptor.
//!
//! By hand: readlinkat(2), for which `nix` allocates 4 KiB, and asks for the size of the link where that is not enough:
//! in /proc the kernel says 0.
//!
//! # Safety
//! The call takes a descriptor that is owned, a NUL-terminated name, and a buffer of the length that is told.
#![allow(unsafe_code)]

use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Room for what is read at once, bytes. A list (maps, smaps) comes in pieces of at most a page, whatever the room
/// (fs/seq_file.c, seq_read_iter).
const ROOM: usize = 4096;

fn read(mut file: impl Read, is_record: bool) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut piece = [0_u8; ROOM];
    loop {
        let len = file.read(&mut piece)?;
        text.extend_from_slice(&piece[..len]);
        if len == 0 || is_record && len < ROOM {
            return Ok(text);
        }
    }
}

/// A file that is a list: of mappings, of timers.
///
/// # Errors
/// It cannot be opened or read.
pub fn list(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read(File::open(path)?, false)
}

/// A file that the kernel makes as a whole (single_open and simple_read_from_buffer: stat, status, comm, fdinfo …):
/// where less comes than there is room for, that was all.
///
/// # Errors
/// It cannot be opened or read.
pub fn record(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read(File::open(path)?, true)
}

/// A file as one call shows it, whatever its length: what a second call would add may be of another moment.
///
/// # Errors
/// It cannot be opened or read.
pub fn at_once(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut text = vec![0; 4 * ROOM];
    loop {
        let len = file.read_at(&mut text, 0)?;
        if len < text.len() {
            text.truncate(len);
            return Ok(text);
        }
        text.resize(4 * text.len(), 0);
    }
}

/// As [`record`], as text.
///
/// # Errors
/// As [`record`]; it is not UTF-8.
pub fn record_text(path: impl AsRef<Path>) -> io::Result<String> {
    text(record(path)?)
}

/// A list as text.
///
/// # Errors
/// As [`list`]; it is not UTF-8.
pub fn list_text(path: impl AsRef<Path>) -> io::Result<String> {
    text(list(path)?)
}

/// As [`list`], of a file that was read before: it is made anew where it is read from its beginning (fs/seq_file.c,
/// seq_read_iter).
///
/// # Errors
/// It cannot be read; ESRCH: it is of a thread that has ended.
pub fn list_again(file: &File) -> io::Result<Vec<u8>> {
    read(Again(file, 0), false)
}

/// The same as [`list_again`], as [`record`].
///
/// # Errors
/// The same.
pub fn record_again(file: &File) -> io::Result<Vec<u8>> {
    read(Again(file, 0), true)
}

/// A file from its beginning, wherever others have read.
struct Again<'a>(&'a File, u64);

impl Read for Again<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read_at(buffer, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// A folder of /proc whose files are looked at by their names.
#[derive(Debug)]
pub struct ProcFolder(File);

impl ProcFolder {
    /// Opens it.
    ///
    /// # Errors
    /// It is gone, or not ours to look at.
    pub fn open(path: impl AsRef<Path>) -> io::Result<ProcFolder> {
        File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_PATH).open(path).map(ProcFolder)
    }

    /// A file in it, to be read more than once ([`record_again`], [`list_again`]).
    ///
    /// # Errors
    /// It is not there, or not ours to look at.
    pub fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        Ok(nix::fcntl::openat(&self.0, name, flags, Mode::empty()).map(File::from)?)
    }

    /// As [`record`].
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub fn record(&self, name: &str) -> io::Result<Vec<u8>> {
        read(self.file(name)?, true)
    }

    /// As [`record_text`].
    ///
    /// # Errors
    /// As [`ProcFolder::record`]; it is not UTF-8.
    pub fn record_text(&self, name: &str) -> io::Result<String> {
        text(self.record(name)?)
    }

    /// As [`list_text`].
    ///
    /// # Errors
    /// It cannot be opened or read; it is not UTF-8.
    pub fn list_text(&self, name: &str) -> io::Result<String> {
        text(read(self.file(name)?, false)?)
    }

    /// Where a symbolic link leads, as the kernel writes it.
    ///
    /// # Errors
    /// It is gone, or no link.
    pub fn link(&self, name: &str) -> io::Result<Vec<u8>> {
        let name = CString::new(name)?;
        let mut target = vec![0_u8; 256];
        loop {
            let (room, into) = (target.len(), target.as_mut_ptr().cast());
            // SAFETY: the name ends with NUL; at most `room` bytes are written, which `target` has.
            let len = unsafe { libc::readlinkat(self.0.as_raw_fd(), name.as_ptr(), into, room) };
            let len = usize::try_from(crate::check(len as i64)?).unwrap_or(0);
            if len < room {
                target.truncate(len);
                return Ok(target);
            }
            target.resize(2 * room, 0);
        }
    }

    /// Device and inode of what a link leads to.
    ///
    /// # Errors
    /// It is gone.
    pub fn identity(&self, name: &str) -> io::Result<(u64, u64)> {
        let facts = nix::sys::stat::fstatat(&self.0, name, AtFlags::empty())?;
        Ok((facts.st_dev, facts.st_ino))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn through_a_folder_all_is_the_same() {
        let folder = ProcFolder::open("/proc/self").unwrap();
        assert_eq!(folder.record("auxv").unwrap(), record("/proc/self/auxv").unwrap());
        assert_eq!(folder.list_text("cmdline").unwrap(), list_text("/proc/self/cmdline").unwrap());
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(folder.link("exe").unwrap(), exe.as_os_str().as_bytes());
        let metadata = std::fs::metadata(exe).unwrap();
        assert_eq!(folder.identity("exe").unwrap(), (metadata.dev(), metadata.ino()));
        assert!(folder.record("nothing").is_err() && folder.link("maps").is_err());
        assert!(folder.identity("nothing").is_err() && ProcFolder::open("/proc/self/maps").is_err());
    }

    #[test]
    fn long_links_come_whole() {
        let base = std::env::temp_dir().join(format!("holdfast-link-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        for len in [1, 255, 256, 257, 511, 512, 3000] {
            let (target, name) = ("x".repeat(len), len.to_string());
            std::os::unix::fs::symlink(&target, base.join(&name)).unwrap();
            assert_eq!(ProcFolder::open(&base).unwrap().link(&name).unwrap(), target.as_bytes(), "{len}");
        }
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn files_come_whole_whatever_their_length() {
        let folder = std::env::temp_dir().join(format!("holdfast-proctext-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for len in [0, 1, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM, 3 * ROOM + 7, 4 * ROOM, 16 * ROOM + 1] {
            let path = folder.join(len.to_string());
            let text: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
            std::fs::write(&path, &text).unwrap();
            assert_eq!(record(&path).unwrap(), text, "{len}");
            assert_eq!(list(&path).unwrap(), text, "{len}");
            assert_eq!(at_once(&path).unwrap(), text, "{len}");
            let file = File::open(&path).unwrap();
            for _ in 0..2 {
                assert_eq!(record_again(&file).unwrap(), text, "{len}");
                assert_eq!(list_again(&file).unwrap(), text, "{len}");
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(record("/proc/self/nothing").is_err());
    }

    #[test]
    fn the_same_as_in_the_ordinary_way() {
        for file in ["maps", "auxv", "comm", "environ", "limits"] {
            let path = format!("/proc/self/{file}");
            // Threads of other tests come and go with their stacks.
            let same = (0..1000).any(|_| list(&path).unwrap() == std::fs::read(&path).unwrap());
            assert!(same, "{file}");
        }
        assert_eq!(record("/proc/self/auxv").unwrap(), std::fs::read("/proc/self/auxv").unwrap());
    }
}
