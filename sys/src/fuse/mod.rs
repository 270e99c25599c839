//! A file of our own that others map: a FUSE file system with one file, on a mount that has no place in any folder.
//!
//! Used by the page server (`cli/src/page_server.rs`). The mount is made by fsopen(2) and fsmount(2), never attached:
//! it is there as long as a process has the file open or mapped, and nothing of it is left when none has. An ordinary
//! user gets it in a user and mount namespace of its own ([`own_mounts`]); who maps the file may be in any other.
//! [`protocol`] has the messages, [`serve`] the threads that answer. By hand: `nix` has neither call; the crate `fuser`
//! mounts on paths alone.
//!
//! What must hold: **no process that has the device ever waits for something of its own file system**: not by opening,
//! reading, or closing the file, nor by putting pages into the kernel's cache (FUSE_NOTIFY_STORE, which waits for a
//! page that is being read). The kernel ends the waiting of all others when the last descriptor of the device is closed
//! (fs/fuse/dev.c, `fuse_dev_release`), which the death of the server does. A thread of the server that waits itself
//! cannot be killed, keeps the device open, and has the whole host wait with it: sync(2) takes the lock of each
//! superblock (fs/sync.c). So the file is opened by another process ([`Mount::open`]), and read ahead by that one.
//! How it fails: as the kernel says; [`serve::Server::serve`] returns when no process has the file any more.
//!
//! # Safety
//! All calls take numbers and strings of C that live through the call.
#![allow(unsafe_code)]

pub mod protocol;
pub mod serve;

use crate::fd::owned;
use crate::{attributes, check, objects, unix_socket};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sched::CloneFlags;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const DEVICE: &CStr = c"/dev/fuse";
/// include/uapi/linux/mount.h.
const FSOPEN_CLOEXEC: u32 = 1;
const FSCONFIG_SET_FLAG: u32 = 0;
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
const FSMOUNT_CLOEXEC: u32 = 1;
const MOUNT_ATTR_RDONLY: u32 = 1;
const MOUNT_ATTR_NOSUID: u32 = 2;
const MOUNT_ATTR_NODEV: u32 = 4;

/// Takes the caller, which must be a single thread, into a user and a mount namespace of its own, where it may mount.
///
/// # Errors
/// EPERM, ENOSPC: this host allows its users no namespaces.
pub fn own_mounts() -> io::Result<()> {
    let (user, group) = (unix_socket::effective_user(), attributes::effective_group());
    nix::sched::unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// The kernel's end of the file system.
#[derive(Debug)]
pub struct Device(File);

/// What is in the file.
pub trait Content: Sync {
    /// Fills `out` with what is at `offset`; both are whole pages.
    ///
    /// # Errors
    /// Who reads there gets EIO, who has touched it SIGBUS.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// The same for the process that reads ahead.
    ///
    /// # Errors
    /// Nothing is read ahead; who touches it asks for itself.
    fn read_ahead(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Of what is read ahead, all of one unit is best read by one thread.
    fn unit(&self, offset: u64) -> u64;
    /// No process has the file any more, but for the one that reads ahead. May be called again, by any thread.
    fn gone(&self);
}

/// A mount without a place.
#[derive(Debug)]
pub struct Mount(OwnedFd);

impl Mount {
    /// Opens the file. Not for the process that has the device, or a child of it that has not executed yet. `ahead`:
    /// to read ahead, which is no use of the file.
    ///
    /// # Errors
    /// As the server says.
    pub fn open(&self, name: &CStr, ahead: bool) -> io::Result<OwnedFd> {
        let flags = libc::O_RDONLY | if ahead { libc::O_NONBLOCK } else { 0 };
        crate::at::open(self.0.as_fd(), name, flags.cast_unsigned(), 0)
    }
}

impl From<OwnedFd> for Mount {
    fn from(mount: OwnedFd) -> Mount {
        Mount(mount)
    }
}

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reading in large parts from now on (POSIX_FADV_SEQUENTIAL): [`protocol::LONGEST`].
///
/// # Errors
/// As posix_fadvise.
pub fn read_in_sequence(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL)?)
}

/// Has the kernel ask for a range, [`protocol::LONGEST`] at most, without waiting for it (POSIX_FADV_WILLNEED).
///
/// # Errors
/// As posix_fadvise.
pub fn begin_reading(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let number = |number: u64| i64::try_from(number).map_err(io::Error::other);
    Ok(posix_fadvise(file, number(offset)?, number(len)?, PosixFadviseAdvice::POSIX_FADV_WILLNEED)?)
}

/// Makes the file system and its mount.
///
/// # Errors
/// EACCES, ENOENT: /dev/fuse cannot be opened. EPERM: the caller may not mount.
pub fn mount() -> io::Result<(Device, Mount)> {
    let device = objects::open(DEVICE, libc::O_RDWR.cast_unsigned(), 0).map_err(|error| {
        io::Error::new(error.kind(), format!("opening {}: {error}", DEVICE.to_string_lossy()))
    })?;
    // SAFETY: a string of C and a number; the result is a new descriptor.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), FSOPEN_CLOEXEC) })?;
    let number = CString::new(device.as_raw_fd().to_string())?;
    let (user, group) = (unix_socket::effective_user(), attributes::effective_group());
    let (user, group) = (CString::new(user.to_string())?, CString::new(group.to_string())?);
    let settings = [
        (c"source", c"holdfast"),
        (c"fd", &number),
        (c"rootmode", c"40000"),
        (c"user_id", &user),
        (c"group_id", &group),
    ];
    for (key, value) in settings {
        configure(&context, FSCONFIG_SET_STRING, Some((key, value)))?;
    }
    // sync(2) has nothing to do with a superblock that is read alone.
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: numbers, a string of C and null, as the command wants them (fs/fsopen.c).
    check(unsafe {
        libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_SET_FLAG, c"ro".as_ptr(), null, 0)
    })?;
    configure(&context, FSCONFIG_CMD_CREATE, None)?;
    // Not NOEXEC: compilers make code of memory that was data at the checkpoint.
    let attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    // SAFETY: numbers; the result is a new descriptor.
    let mount =
        owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) })?;
    Ok((Device(File::from(device)), Mount(mount)))
}

fn configure(context: &OwnedFd, command: u32, setting: Option<(&CStr, &CStr)>) -> io::Result<()> {
    let null = std::ptr::null();
    let (key, value) = setting.map_or((null, null), |(key, value)| (key.as_ptr(), value.as_ptr()));
    // SAFETY: numbers, and strings of C or null, as the command wants them (fs/fsopen.c).
    check(unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0) })
        .map(|_| ())
}

impl Device {
    /// The next request: its length. None: no process has the file any more.
    fn next(&self, request: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0).read(request) {
                Ok(len) => return Ok(Some(len)),
                // Interrupted, or the request was taken back before it was read (fs/fuse/dev.c, fuse_dev_do_read).
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT)) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn answer(&self, unique: u64, answer: Result<&[u8], i32>) {
        let (errno, bytes) = match answer {
            Ok(bytes) => (0, bytes),
            Err(errno) => (errno, &[][..]),
        };
        let head = protocol::answer_head(unique, errno, bytes.len());
        // ENOENT: who asked has been killed.
        let _ = (&self.0).write_vectored(&[IoSlice::new(&head), IoSlice::new(bytes)]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::protocol::Identity;
    use super::serve::Server;
    use super::*;
    use crate::spawn::{Start, wait};
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};

    /// Each page holds its number; there is none from [`BAD`] on; those from [`SLOW`] on come when they may.
    #[derive(Default)]
    struct Numbers {
        asked: AtomicU64,
        ahead: AtomicU64,
        gone: AtomicUsize,
        slow: Mutex<(usize, bool)>,
        changed: Condvar,
    }
    const SLOW: u64 = 1 << 38;
    const BAD: u64 = 1 << 40;

    impl Content for Numbers {
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if offset >= BAD {
                return Err(io::ErrorKind::Other.into());
            }
            if offset >= SLOW {
                let mut slow = self.slow.lock().unwrap();
                slow.0 += 1;
                self.changed.notify_all();
                drop(self.changed.wait_while(slow, |slow| !slow.1).unwrap());
            }
            for (page, bytes) in (offset / 4096..).zip(out.chunks_mut(4096)) {
                bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&page.to_ne_bytes()));
            }
            Ok(())
        }
        fn read_ahead(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.ahead.fetch_add(1, Ordering::Relaxed);
            self.read(offset, out)
        }
        fn unit(&self, offset: u64) -> u64 {
            offset >> 20
        }
        fn gone(&self) {
            self.gone.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A shell that has the mount as descriptor 3, a process of its own, as all that use the file must be.
    fn shell(mount: &Mount, script: &str) -> i32 {
        let null = || objects::open(c"/dev/null", libc::O_RDWR.cast_unsigned(), 0).unwrap();
        let error = io::stderr().as_fd().try_clone_to_owned().unwrap();
        let start = Start {
            path: c"/bin/sh".into(),
            arguments: vec![c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
            environment: vec![c"PATH=/usr/bin:/bin".into()],
            descriptors: vec![null(), null(), error, mount.as_fd().try_clone_to_owned().unwrap()],
            ..Start::default()
        };
        start.spawn().unwrap()
    }

    fn serving(numbers: &Numbers, use_it: impl FnOnce(Mount)) {
        // Without the device, or the right to mount, there is nothing to be tested here.
        let Ok((device, mount)) = mount() else { return };
        let identity = Identity::new("a-file", 0, 0);
        let server = Server::new(&device, &identity, numbers, u32::MAX);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| server.serve().unwrap());
            }
            scope.spawn(|| server.serve_ahead());
            scope.spawn(|| server.answer_the_killed());
            use_it(mount);
        });
        assert_ne!(numbers.gone.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_is_read_and_ends_with_its_users() {
        let numbers = Numbers::default();
        serving(&numbers, |mount| {
            let script = "
                page() { dd if=/proc/self/fd/3/a-file bs=4096 skip=$1 count=1 2> /dev/null | od -An -tu8 -N8; }
                test ! -e /proc/self/fd/3/other || exit 1
                test $(page 7) = 7 || exit 2
                test $(page 1048576) = 1048576 || exit 3
                test -z \"$(page 268435456)\" || exit 4";
            let status = wait(shell(&mount, script), true).unwrap().unwrap();
            assert!(status.success(), "{status}");
        });
        assert_eq!(numbers.ahead.load(Ordering::Relaxed), 0);
    }

    /// With as many of them as there are threads: one is always at the device.
    #[test]
    fn who_waits_for_a_page_can_be_killed_and_others_open_the_file_meanwhile() {
        let numbers = Numbers::default();
        serving(&numbers, |mount| {
            // Without reading ahead of the kernel's own: it is the read of a single page that cannot be killed.
            let slow = "exec python3 -c \"
import os
file = os.open('/proc/self/fd/3/a-file', os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
os.pread(file, 10, 1 << 38)\"";
            let waiting = [shell(&mount, slow), shell(&mount, slow), shell(&mount, slow)];
            {
                let slow = numbers.slow.lock().unwrap();
                drop(numbers.changed.wait_while(slow, |slow| slow.0 == 0).unwrap());
            }
            let opened = wait(shell(&mount, "exec < /proc/self/fd/3/a-file"), true).unwrap().unwrap();
            assert!(opened.success());
            for pid in waiting {
                crate::ptrace::kill(pid, libc::SIGKILL).unwrap();
                assert!(wait(pid, true).unwrap().is_some());
            }
            numbers.slow.lock().unwrap().1 = true;
            numbers.changed.notify_all();
        });
    }
}
