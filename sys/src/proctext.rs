//! Reading the text files of /proc, with as few calls as can be: inside a stop there are hundreds of them.
//!
//! `std::fs::read` asks for the size first, which is 0 here, and then reads 32, 64, 128 … bytes until it is at the end.
//! Called by `procfs` and by whoever reads a file of /proc that has no parser there.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Room for what is read at once, bytes. A list (maps, smaps) comes in pieces of at most a page, whatever the room
/// (fs/seq_file.c, seq_read_iter).
const ROOM: usize = 4096;

fn read(path: &Path, is_record: bool) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
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
    read(path.as_ref(), false)
}

/// A file that the kernel makes as a whole (single_open and simple_read_from_buffer: stat, status, comm, fdinfo …): where less comes
/// than there is room for, that was all.
///
/// # Errors
/// It cannot be opened or read.
pub fn record(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read(path.as_ref(), true)
}

/// The same as text.
///
/// # Errors
/// As [`record`]; it is not UTF-8.
pub fn record_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(record(path)?).map_err(io::Error::other)
}

/// A list as text.
///
/// # Errors
/// As [`list`]; it is not UTF-8.
pub fn list_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(list(path)?).map_err(io::Error::other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn files_come_whole_whatever_their_length() {
        let folder = std::env::temp_dir().join(format!("holdfast-proctext-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for len in [0, 1, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM, 3 * ROOM + 7] {
            let path = folder.join(len.to_string());
            let text: Vec<u8> = (0..len).map(|at| b'a' + (at % 26) as u8).collect();
            std::fs::write(&path, &text).unwrap();
            assert_eq!(record(&path).unwrap(), text, "{len}");
            assert_eq!(list(&path).unwrap(), text, "{len}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(record("/proc/self/nothing").is_err());
    }

    #[test]
    fn the_same_as_in_the_ordinary_way() {
        for file in ["maps", "auxv", "comm", "environ", "limits"] {
            let path = format!("/proc/self/{file}");
            assert_eq!(list(&path).unwrap(), std::fs::read(&path).unwrap(), "{file}");
        }
        assert_eq!(record("/proc/self/auxv").unwrap(), std::fs::read("/proc/self/auxv").unwrap());
    }
}
