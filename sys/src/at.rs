//! Files by a folder and a name, and paths without symbolic links: for what must not be led elsewhere while it works.
//!
//! Calls of `nix`. How they fail: as the kernel says; ELOOP of [`open_without_links`] means that a part of the path is
//! a symbolic link.

use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::{Mode, SFlag, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::UnlinkatFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Opens a path no part of which may be a symbolic link (RESOLVE_NO_SYMLINKS), O_CLOEXEC.
///
/// # Errors
/// ELOOP: a part is one. ENOSYS: before Linux 5.6.
pub fn open_without_links(path: &CStr, flags: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(flags.cast_signed()) | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(nix::fcntl::openat2(AT_FDCWD, path, how)?)
}

/// The same of an absolute path from another root, out of which nothing leads.
///
/// # Errors
/// As [`open_without_links`].
pub fn open_within(root: BorrowedFd<'_>, path: &CStr, flags: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(flags.cast_signed()) | OFlag::O_CLOEXEC;
    let resolve = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_IN_ROOT;
    Ok(nix::fcntl::openat2(root, path, OpenHow::new().flags(flags).resolve(resolve))?)
}

/// `openat(2)` of a name, which is not followed if it is a symbolic link, O_CLOEXEC.
///
/// # Errors
/// As openat; ELOOP: it is one, and is not opened with O_PATH.
pub fn open(folder: BorrowedFd<'_>, name: &CStr, flags: u32, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(flags.cast_signed()) | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(nix::fcntl::openat(folder, name, flags, Mode::from_bits_retain(mode))?)
}

/// The same file, opened once more with other flags: by the descriptor, not by a path.
///
/// # Errors
/// As open; ENOENT: /proc is not there.
pub fn reopen(fd: BorrowedFd<'_>, flags: u32) -> io::Result<OwnedFd> {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    crate::objects::open(&path, flags, 0)
}

/// Removes a name: of a file, or of an empty folder.
///
/// # Errors
/// As unlinkat.
pub fn remove(folder: BorrowedFd<'_>, name: &CStr, is_folder: bool) -> io::Result<()> {
    let flag = if is_folder { UnlinkatFlags::RemoveDir } else { UnlinkatFlags::NoRemoveDir };
    Ok(nix::unistd::unlinkat(folder, name, flag)?)
}

/// Gives a file another name in the same folder.
///
/// # Errors
/// As renameat.
pub fn rename(folder: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    Ok(nix::fcntl::renameat(folder, from, folder, to)?)
}

/// Makes a folder.
///
/// # Errors
/// As mkdirat.
pub fn make_folder(folder: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    Ok(nix::sys::stat::mkdirat(folder, name, Mode::from_bits_retain(mode))?)
}

/// Makes a named pipe.
///
/// # Errors
/// As mknodat.
pub fn make_fifo(folder: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    Ok(nix::sys::stat::mknodat(folder, name, SFlag::S_IFIFO, Mode::from_bits_retain(mode), 0)?)
}

/// Makes a folder that is open the working folder.
///
/// # Errors
/// As fchdir.
pub fn enter(folder: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::unistd::fchdir(folder)?)
}

/// Makes a named pipe at a path.
///
/// # Errors
/// As mkfifo.
pub fn make_fifo_at(path: &Path, mode: u32) -> io::Result<()> {
    Ok(nix::unistd::mkfifo(path, Mode::from_bits_retain(mode))?)
}

/// Sets when what is at a path was last written, in nanoseconds since the epoch; of a symbolic link, that itself.
///
/// # Errors
/// As utimensat.
pub fn set_written(path: &Path, ns: i64) -> io::Result<()> {
    let time = TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let not_followed = UtimensatFlags::NoFollowSymlink;
    Ok(nix::sys::stat::utimensat(AT_FDCWD, path, &TimeSpec::UTIME_OMIT, &time, not_followed)?)
}

/// Gives an open file, of which O_PATH is enough, another name. `path`: not followed.
///
/// # Errors
/// As linkat.
pub fn link(file: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(nix::unistd::linkat(AT_FDCWD, from.as_c_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_link_on_the_way_is_an_error_and_a_folder_is_what_was_opened() {
        let base = fs::canonicalize(std::env::temp_dir()).unwrap().join(format!("at-{}", std::process::id()));
        let c_path = |path: &std::path::Path| CString::new(path.as_os_str().as_bytes()).unwrap();
        fs::create_dir_all(base.join("folder")).unwrap();
        fs::create_dir_all(base.join("other")).unwrap();
        fs::write(base.join("folder/file"), "own").unwrap();
        fs::write(base.join("other/file"), "other").unwrap();
        let path = c_path(&base.join("folder/file"));
        let opened = open_without_links(&path, libc::O_PATH.cast_unsigned()).unwrap();
        let folder = open_without_links(&c_path(&base.join("folder")), libc::O_PATH.cast_unsigned()).unwrap();
        fs::rename(base.join("folder"), base.join("moved")).unwrap();
        std::os::unix::fs::symlink(base.join("other"), base.join("folder")).unwrap();
        let error = open_without_links(&path, 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let text = std::io::read_to_string(fs::File::from(reopen(opened.as_fd(), 0).unwrap())).unwrap();
        assert_eq!(text, "own");
        link(opened.as_fd(), &c_path(&base.join("linked"))).unwrap();
        remove(folder.as_fd(), c"file", false).unwrap();
        assert!(base.join("other/file").exists() && base.join("linked").exists());
        assert!(!base.join("moved/file").exists());
        make_fifo(folder.as_fd(), c"fifo", 0o600).unwrap();
        rename(folder.as_fd(), c"fifo", c"pipe").unwrap();
        assert!(open(folder.as_fd(), c"pipe", libc::O_PATH.cast_unsigned(), 0).is_ok());
        fs::remove_dir_all(base).unwrap();
    }
}
