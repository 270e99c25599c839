//! What file system a folder of the store is on, and small files of our own in it.
//!
//! Asked by a restart: what is mapped from files of other hosts may change, and be slow, without notice. Notes that a
//! restart leaves for the next one count only if no other user can have written them.

use holdfast_sys::{fd, unix_socket};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Whether a folder is on a file system of this host: memory mapped from elsewhere would hang or end the program when
/// the network does. Numbers: include/uapi/linux/magic.h and the file systems' own sources.
pub fn is_local(folder: &Path) -> bool {
    const REMOTE: [u64; 11] = [
        0x6969,      // nfs
        0x517B,      // smb
        0xFF53_4D42, // cifs
        0xFE53_4D42, // smb2
        0x0BD0_0BD0, // lustre
        0x6573_5546, // fuse
        0x00C3_6400, // ceph
        0x4750_4653, // gpfs
        0x1983_0326, // beegfs
        0x5346_414F, // afs
        0x0102_1997, // 9p
    ];
    fd::file_system_type(folder).is_ok_and(|kind| !REMOTE.contains(&(kind & 0xFFFF_FFFF)))
}

/// So many unfinished files of one name there may be.
const MOST_WRITERS: u32 = 100;

/// Opens a file of this user that no other user may write or read.
pub fn open_own(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let is = file.metadata().ok()?;
    (is.is_file() && is.uid() == unix_socket::effective_user() && is.mode() & 0o077 == 0).then_some(file)
}

/// Writes such a file, whole or not at all. Of several that do so at the same time the last one counts.
///
/// # Errors
/// As the calls.
pub fn write_own(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let own = |number| path.with_file_name(format!(".tmp-{name}-{number}"));
    let create = |fresh: &Path| File::options().write(true).create_new(true).mode(0o600).open(fresh);
    // What a crash leaves of it goes with the next agent (`Job::clean`).
    let (fresh, mut file) = (0..MOST_WRITERS)
        .map(own)
        .find_map(|fresh| match create(&fresh) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            made => Some(made.map(|file| (fresh, file))),
        })
        .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&fresh, path));
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// Writes less than a block over what such a file has, where there is no room for another file: a block that is there
/// need not be found. Who reads it meanwhile may find a part of both.
///
/// # Errors
/// As the calls; the file is not there.
pub fn write_over(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)
}

/// What a folder and all that is in it takes of the disk, bytes, as du(1) counts it: blocks, and a file with several
/// names once. What goes meanwhile counts for nothing.
pub fn on_disk(folder: &Path) -> u64 {
    /// Of st_blocks (stat(2)).
    const BLOCK: u64 = 512;
    let (mut sum, mut seen, mut left) = (0, BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(path) = left.pop() {
        let Ok(about) = path.symlink_metadata() else { continue };
        if about.nlink() > 1 && !about.is_dir() && !seen.insert((about.dev(), about.ino())) {
            continue;
        }
        sum += about.blocks() * BLOCK;
        if about.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    sum
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_takes_what_du_says() {
        let folder = std::env::temp_dir().join(format!("on-disk-{}", std::process::id()));
        fs::create_dir_all(folder.join("below")).unwrap();
        fs::write(folder.join("below/a"), vec![7; 100_000]).unwrap();
        fs::hard_link(folder.join("below/a"), folder.join("b")).unwrap();
        File::create(folder.join("hole")).unwrap().set_len(1 << 30).unwrap();
        let du = std::process::Command::new("du").arg("-sB1").arg(&folder).output().unwrap();
        let du: u64 = String::from_utf8(du.stdout).unwrap().split('\t').next().unwrap().parse().unwrap();
        assert_eq!(on_disk(&folder), du);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(on_disk(&folder), 0);
    }

    #[test]
    fn only_a_file_of_our_own_is_opened() {
        let folder = std::env::temp_dir().join(format!("own-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let note = folder.join("note");
        let read = || {
            let mut text = String::new();
            open_own(&note)?.read_to_string(&mut text).ok()?;
            Some(text)
        };
        assert_eq!(read(), None);
        write_own(&note, b"a").unwrap();
        // One who writes at the same time has not finished yet.
        fs::write(folder.join(".tmp-note-0"), b"other").unwrap();
        write_own(&note, b"b").unwrap();
        assert_eq!(read().as_deref(), Some("b"));
        assert_eq!(fs::read(folder.join(".tmp-note-0")).unwrap(), b"other");
        fs::set_permissions(&note, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(read(), None);
        fs::set_permissions(&note, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&note, folder.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &note).unwrap();
        assert_eq!(read(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
