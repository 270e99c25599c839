//! The files of unix sockets: a dead one is in the way of a socket that is to be bound, and one that was deleted or
//! renamed must become that again.
//!
//! Called by `sockets`, in the new process, in its working folder. What must hold: a name that another program uses
//! is left alone.

use crate::rebuild::error::RebuildError;
use holdfast_image::record::SocketRecord;
use holdfast_sys::socket;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Most bytes of a path in an address; a zero ends it where it is shorter (unix(7)).
const ADDRESS_PATH: usize = 108;

/// Where the file is now that a socket was bound to.
fn target_of(record: &SocketRecord) -> Option<PathBuf> {
    Some(record.path()?.with_file_name(record.renamed.as_ref()?.as_path()))
}

/// Has the file of a socket that was just bound be where it was: nowhere, or under another name.
///
/// # Errors
/// Somebody else uses that name; the file cannot get it.
pub fn settle(record: &SocketRecord) -> Result<(), RebuildError> {
    let (Some(path), Some(target)) = (record.path(), target_of(record)) else {
        remove(record);
        return Ok(());
    };
    remove_dead(&target, record)?;
    fs::rename(path, &target).map_err(RebuildError::io(format!(
        "renaming {} to {}",
        path.display(),
        target.display()
    )))
}

/// Removes the file that a socket was just bound to, where it had lost it, or has another by and by; others may not
/// have one.
pub fn remove(record: &SocketRecord) {
    if let Some(path) = record.path().filter(|_| record.deleted || record.renamed.is_some()) {
        let _ = fs::remove_file(path);
    }
}

/// Removes the file of a socket that no process has any more.
///
/// # Errors
/// Somebody has it; it is no socket.
pub fn remove_dead(path: &Path, record: &SocketRecord) -> Result<(), RebuildError> {
    let failed = |what: &str| RebuildError::io(format!("{what} {}", path.display()));
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let asked = socket::new(libc::AF_UNIX, record.socket_type.cast_signed(), 0).map_err(failed("asking"))?;
    let dead = metadata.file_type().is_socket()
        && address_of(path).is_some_and(|address| {
            socket::connect(asked.as_fd(), &address)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        });
    if dead {
        return fs::remove_file(path).map_err(failed("removing the dead socket"));
    }
    let (name, what) =
        (path.display(), "another program uses this name: end that program, or move the file away");
    Err(RebuildError::InUse(format!("{name}: {what}")))
}

/// Bytes of a struct sockaddr_un. `None`: the path is too long for one.
fn address_of(path: &Path) -> Option<Vec<u8>> {
    let path = path.as_os_str().as_bytes();
    let family = u16::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
    let end = if path.len() < ADDRESS_PATH { &[0][..] } else { &[] };
    (path.len() <= ADDRESS_PATH).then(|| [&family[..], path, end].concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::bytes::{Blob, Name};
    use holdfast_image::record::SocketState;
    use std::os::unix::net::UnixListener;

    fn record(path: &Path, renamed: Option<&str>) -> SocketRecord {
        SocketRecord {
            domain: libc::AF_UNIX.cast_unsigned(),
            socket_type: libc::SOCK_STREAM.cast_unsigned(),
            protocol: 0,
            local: Blob(address_of(path).unwrap()),
            state: SocketState::Idle,
            options: Vec::new(),
            mode: 0o755,
            deleted: false,
            renamed: renamed.map(|name| Name(name.as_bytes().to_vec())),
            messages: Vec::new(),
        }
    }

    #[test]
    fn a_file_gets_its_name_unless_somebody_else_has_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-socket-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        let record = record(&first, Some("second"));
        for _ in 0..2 {
            // The second time what is left of the first has the name.
            let made = UnixListener::bind(&first).unwrap();
            settle(&record).unwrap();
            assert!(!first.exists() && second.exists());
            drop(made);
        }
        fs::remove_file(&second).unwrap();
        let other = UnixListener::bind(&second).unwrap();
        let made = UnixListener::bind(&first).unwrap();
        assert!(settle(&record).is_err());
        drop((other, made));
        fs::remove_file(&second).unwrap();
        fs::write(&second, "x").unwrap();
        assert!(settle(&record).is_err());
        remove(&record);
        assert!(!first.exists() && second.exists());
        let length = |path: usize| address_of(Path::new(&"x".repeat(path))).map(|address| address.len());
        assert_eq!([107, 108, 109].map(length), [Some(110), Some(110), None]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
