//! The file of a unix socket: its permissions, and whether it still has the name that the socket was bound to.
//!
//! Called by `sockets`, inside the stop or for a look at a running program. A file that has got another name (as
//! servers do that bind beside the old socket and then take its place) is looked for in its folder, by its inode.

use crate::capture::hardlinks;
use crate::capture::identity::owner_of;
use holdfast_image::bytes::Name;
use holdfast_image::record::{SenderFile, SocketRecord, unix_path};
use holdfast_sys::fd;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Completes the record of a socket that has a path. `inode`: what the kernel says of its file, lower half. `is_apart`:
/// the process is in a mount namespace of its own.
///
/// # Errors
/// Its name is that of a file by now which is no socket: a restart could not bind it there.
pub(super) fn look(
    (pid, is_apart): (i32, bool),
    inode: Option<u32>,
    record: &mut SocketRecord,
) -> Result<(), String> {
    let Some(name) = record.path().map(Path::to_owned) else { return Ok(()) };
    if name.is_absolute() && !has_our_root(pid) {
        return Err(format!(
            "its name {} is one in another root directory (chroot), where a restart cannot bind it: give it a name \
             that is relative to the working folder, or start `holdfast run` inside the directory",
            name.display()
        ));
    }
    if is_apart && !is_outside(pid, &name) {
        return Err(format!(
            "its name {} is one in a mount namespace of its own, where a restart cannot bind it: start `holdfast run` \
             inside",
            name.display()
        ));
    }
    let path = Path::new(&format!("/proc/{pid}/cwd")).join(&name);
    let here = fs::symlink_metadata(&path);
    let is_it = |found: &Metadata| {
        found.file_type().is_socket() && inode.is_none_or(|inode| lower(found.ino()) == inode)
    };
    if !here.as_ref().is_ok_and(is_it)
        && let Some((name, found)) = inode.and_then(|inode| elsewhere(&path, inode))
    {
        record.mode = found.mode() & 0o7777;
        record.owner = Some(owner_of(&found));
        record.renamed = Some(Name(name.into_vec()));
        return Ok(());
    }
    record.deleted = here.as_ref().map_or_else(
        |error| error.kind() == io::ErrorKind::NotFound,
        |found| !is_it(found) && !may_be(&path, found),
    );
    record.owner = here.as_ref().ok().filter(|_| !record.deleted).map(owner_of);
    if record.deleted && here.as_ref().is_ok_and(|found| !found.file_type().is_socket()) {
        return Err(format!(
            "its name {} is that of a file by now that is no socket, where a restart could not bind it: remove or \
             rename that file, or close the socket",
            name.display()
        ));
    }
    record.mode = here.map_or(0o777, |found| found.mode()) & 0o7777;
    Ok(())
}

/// The file of a socket that has sent a message and may be gone by now.
pub(super) fn of_sender(pid: i32, address: &[u8]) -> Option<SenderFile> {
    let path = unix_path(address)?;
    let found = fs::symlink_metadata(Path::new(&format!("/proc/{pid}/cwd")).join(path)).ok()?;
    found
        .file_type()
        .is_socket()
        .then(|| SenderFile { mode: found.mode() & 0o7777, owner: Some(owner_of(&found)) })
}

/// Whether a path that the process has given leads where ours does. One that has ended has none.
fn has_our_root(pid: i32) -> bool {
    let root =
        |who: &str| fs::metadata(format!("/proc/{who}/root")).map(|root| (root.dev(), root.ino())).ok();
    root(&pid.to_string()).is_none_or(|it| Some(it) == root("self"))
}

/// Whether what a process in a mount namespace of its own finds by a name is what the job finds.
fn is_outside(pid: i32, name: &Path) -> bool {
    let Ok(rest) = name.strip_prefix("/") else { return false };
    let it = |path: &Path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino())).ok();
    let inside = it(&Path::new(&format!("/proc/{pid}/root")).join(rest));
    inside.is_some() && inside == it(name)
}

/// Whether a file may be it though it has another inode: where the kernel's inodes are not those of the files
/// (overlayfs), the socket that has the name is taken for it.
fn may_be(path: &Path, found: &Metadata) -> bool {
    /// include/uapi/linux/magic.h.
    const OVERLAYFS: u64 = 0x794c_7630;
    found.file_type().is_socket()
        && path.parent().is_none_or(|folder| fd::file_system_type(folder).is_ok_and(|kind| kind == OVERLAYFS))
}

fn lower(inode: u64) -> u32 {
    u32::try_from(inode & u64::from(u32::MAX)).unwrap_or(0)
}

/// The socket with this inode in the folder of a path.
fn elsewhere(path: &Path, inode: u32) -> Option<(OsString, Metadata)> {
    let folder = path.parent()?;
    let it = |name: &OsString| {
        let found = fs::symlink_metadata(folder.join(name)).ok()?;
        (found.file_type().is_socket() && lower(found.ino()) == inode).then(|| (name.clone(), found))
    };
    hardlinks::named(folder, |names| {
        names.iter().filter(|(other, _)| lower(**other) == inode).find_map(|(_, name)| it(name))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::testing;
    use holdfast_sys::{sock_diag, socket};
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_file_of_a_socket_is_found_under_its_new_name() {
        let folder = std::env::temp_dir().join(format!("holdfast-socket-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        let made = UnixListener::bind(&first).unwrap();
        let inode =
            fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made))).unwrap().ino();
        let own = std::process::id().cast_signed();
        let seen = || {
            let local = socket::local_address(made.as_fd()).unwrap();
            let mut record = testing::socket(libc::AF_UNIX.cast_unsigned(), local);
            look((own, false), sock_diag::unix_socket(inode).unwrap().file, &mut record)?;
            Ok::<_, String>((record.deleted, record.renamed))
        };
        let name = |path: &Path| Some(Name(path.file_name().unwrap().as_bytes().to_vec()));
        assert_eq!(seen(), Ok((false, None)));
        fs::rename(&first, &second).unwrap();
        assert_eq!(seen(), Ok((false, name(&second))));
        let other = UnixListener::bind(&first).unwrap();
        assert_eq!(seen(), Ok((false, name(&second))), "another one has the name");
        fs::remove_file(&second).unwrap();
        assert_eq!(seen(), Ok((true, None)), "its own name is gone, and another one has its old one");
        drop(other);
        fs::remove_file(&first).unwrap();
        assert_eq!(seen(), Ok((true, None)));
        fs::write(&first, "x").unwrap();
        assert!(seen().unwrap_err().contains("no socket"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
