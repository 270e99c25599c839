//! The files of unix sockets: a dead one is in the way of a socket that is to be bound, and one that was deleted or
//! renamed must become that again.
//!
//! Called by `sockets`, in the new process, in its working folder. What must hold: a name that another program uses
//! is left alone.

use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{self, Opener, Place, new_name};
use crate::rebuild::socket_addresses;
use holdfast_image::bytes::Name;
use holdfast_image::record::SocketRecord;
use holdfast_sys::{attributes, socket};
use std::ffi::{CString, OsStr};
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most bytes of a path in an address; a zero ends it where it is shorter (unix(7)).
const ADDRESS_PATH: usize = 108;

/// Binds a socket to its path, as the process that had it.
///
/// # Errors
/// Another program uses that name; the process may not make it.
pub fn bind(made: &OwnedFd, path: &Path, record: &SocketRecord, opener: &Opener) -> Result<(), RebuildError> {
    let failed = |error: io::Error| socket_addresses::not_bound(record, error);
    let (_acting, place) = opener.place_as_given(path, record.owner).map_err(failed)?;
    remove_dead(&place, path, record)?;
    bind_with_mode(made, record, &place).map_err(failed)
}

/// Its file has its permission bits from the start (net/unix/af_unix.c, unix_bind_bsd), so
/// that the path need not be resolved again.
fn bind_with_mode(made: &OwnedFd, record: &SocketRecord, place: &Place) -> io::Result<()> {
    let mask = attributes::umask(!record.mode & 0o777);
    let bound = socket::bind(made.as_fd(), &record.local.0);
    attributes::umask(mask);
    bound?;
    if record.mode & !0o777 != 0 {
        let file = place.look()?;
        if file.metadata()?.file_type().is_socket() {
            paths::change_mode(file.as_fd(), record.mode)?;
        }
    }
    Ok(())
}

/// The file of a socket that gets its name when no other socket has to be bound to that any more. Until then it has a
/// name of ours, which goes with this if it comes to nothing.
#[derive(Debug)]
pub struct Renaming {
    /// Where it is, under our name.
    place: Place,
    /// What it is to be called.
    name: CString,
    target: PathBuf,
    record: SocketRecord,
    opener: Opener,
    done: bool,
}

impl Renaming {
    /// Gives it its name.
    ///
    /// # Errors
    /// Another program uses that name; the file cannot get it.
    pub fn finish(mut self) -> Result<(), RebuildError> {
        let failed = || RebuildError::io(format!("renaming a socket to {}", self.target.display()));
        let _acting = self.opener.act_at(&self.target, self.record.owner).map_err(failed())?;
        let name = OsStr::from_bytes(self.name.as_bytes());
        let wanted = Place::within(self.place.folder(), name).map_err(failed())?;
        remove_dead(&wanted, &self.target, &self.record)?;
        self.place.rename(&wanted.name).map_err(failed())?;
        self.done = true;
        Ok(())
    }
}

impl Drop for Renaming {
    fn drop(&mut self) {
        if !self.done {
            let _ =
                self.opener.act_at(&self.target, self.record.owner).and_then(|_acting| self.place.remove());
        }
    }
}

/// Has the file of a socket that was just bound be nowhere, where its name was gone, or under a name of ours, where it
/// was renamed.
///
/// # Errors
/// It cannot be renamed.
pub fn settle(record: &SocketRecord, opener: &Opener) -> Result<Option<Renaming>, RebuildError> {
    let (Some(path), Some(renamed)) = (record.path(), &record.renamed) else {
        remove(record, opener);
        return Ok(None);
    };
    let target = path.with_file_name(renamed.as_path());
    let failed = || RebuildError::io(format!("renaming {} to {}", path.display(), target.display()));
    let (_acting, place) = opener.place_as_given(path, record.owner).map_err(failed())?;
    let name = CString::new(renamed.0.clone()).map_err(|error| failed()(error.into()))?;
    let ours = Place::within(place.folder(), OsStr::new(&new_name())).map_err(failed())?;
    place.rename(&ours.name).map_err(failed())?;
    let (record, opener) = (record.clone(), opener.clone());
    Ok(Some(Renaming { place: ours, name, target, record, opener, done: false }))
}

/// The file of a socket that was just bound, and whose name is gone: what holds it leads to the socket
/// ([`address_of_held`]) when the name is removed.
///
/// # Errors
/// It is not there.
pub fn hold(record: &SocketRecord, opener: &Opener) -> io::Result<Option<OwnedFd>> {
    let Some(path) = record.path().filter(|_| record.number.is_some()) else { return Ok(None) };
    let (_acting, place) = opener.place_as_given(path, record.owner)?;
    Ok(Some(place.look()?.into()))
}

/// The address of a socket whose file is held.
pub fn address_of_held(file: &OwnedFd) -> Option<Vec<u8>> {
    address_of(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

/// Removes the file that a socket was just bound to, where it had lost it, or has another by and by; others may not
/// have one.
pub fn remove(record: &SocketRecord, opener: &Opener) {
    if let Some(path) = record.path().filter(|_| record.deleted || record.renamed.is_some()) {
        let _ = opener.place_as_given(path, record.owner).and_then(|(_acting, place)| place.remove());
    }
}

/// Removes the file of a socket that no process has any more. `path`: for messages.
///
/// # Errors
/// A process has it; it is no socket; it is another user's.
fn remove_dead(place: &Place, path: &Path, record: &SocketRecord) -> Result<(), RebuildError> {
    let failed = |what: &str| RebuildError::io(format!("{what} {}", path.display()));
    let refused = |why: String| RebuildError::file(&Name::from(path), why);
    let file = match place.look() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("looking at"))?,
    };
    let now = file.metadata().map_err(failed("looking at"))?;
    let asked = socket::new(libc::AF_UNIX, record.socket_type.cast_signed(), 0).map_err(failed("asking"))?;
    // The same file, whatever has its name by now.
    let file = OwnedFd::from(file);
    let dead = now.file_type().is_socket()
        && address_of_held(&file).is_some_and(|address| {
            socket::connect(asked.as_fd(), &address)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        });
    if !dead {
        let (name, what) =
            (path.display(), "another program uses this name: end that program, or move the file away");
        return Err(RebuildError::InUse(format!("{name}: {what}")));
    }
    match owner_differs(record, &now, path) {
        Some(why) => Err(refused(why)),
        None => place.remove().map_err(failed("removing the dead socket")),
    }
}

/// Why a file that has the name of a socket may not be removed, whether it is in use or not.
fn owner_differs(record: &SocketRecord, now: &Metadata, path: &Path) -> Option<String> {
    let owner = record.owner.filter(|owner| owner.user != now.uid())?;
    Some(format!(
        "a file of user {} has this name, and the program's socket was user {}'s: remove it, or take its name \
         (restart --accept-replaced {})",
        now.uid(),
        owner.user,
        path.display()
    ))
}

/// The same for a look before the restart. `folder`: where the process was.
pub fn other_owner(record: &SocketRecord, folder: &Path) -> Option<String> {
    let path = record.path().filter(|_| !record.deleted && record.renamed.is_none())?;
    let there = folder.join(path);
    let why = owner_differs(record, &there.symlink_metadata().ok()?, path)?;
    Some(format!("{}: {why}", there.display()))
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
    use crate::rebuild::testing;
    use std::fs;
    use std::os::unix::net::UnixListener;

    fn record(path: &Path, renamed: Option<&str>) -> SocketRecord {
        SocketRecord {
            mode: 0o755,
            renamed: renamed.map(|name| Name(name.as_bytes().to_vec())),
            ..holdfast_image::testing::socket(libc::AF_UNIX.cast_unsigned(), address_of(path).unwrap())
        }
    }

    #[test]
    fn a_file_gets_its_name_unless_another_has_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-socket-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        let opener = Opener::of(&testing::record(Vec::new()));
        let record = record(&first, Some("second"));
        for _ in 0..2 {
            // The second time what is left of the first has the name.
            let made = UnixListener::bind(&first).unwrap();
            settle(&record, &opener).unwrap().unwrap().finish().unwrap();
            assert!(!first.exists() && second.exists());
            drop(made);
        }
        fs::remove_file(&second).unwrap();
        let other = UnixListener::bind(&second).unwrap();
        let made = UnixListener::bind(&first).unwrap();
        let finished = || settle(&record, &opener).unwrap().unwrap().finish();
        assert!(finished().is_err() && !first.exists());
        drop((other, made));
        fs::remove_file(&second).unwrap();
        fs::write(&second, "x").unwrap();
        let made = UnixListener::bind(&first).unwrap();
        assert!(finished().is_err());
        drop(made);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "what was not finished is gone");
        let length = |path: usize| address_of(Path::new(&"x".repeat(path))).map(|address| address.len());
        assert_eq!([107, 108, 109].map(length), [Some(110), Some(110), None]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
