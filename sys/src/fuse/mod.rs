//! A file of our own that others map: a FUSE file system with one file, on a mount that has no place in any folder.
//!
//! Used by the page server (`cli/src/page_server.rs`). The mount is made by fsopen(2) and fsmount(2), never attached:
//! it is there as long as anybody has the file open or mapped, and nothing of it is left when nobody has. An ordinary
//! user gets it in a user and mount namespace of its own ([`own_mounts`]); who maps the file may be in any other.
//! [`protocol`] has the messages. By hand: `nix` has neither call; the crate `fuser` mounts on paths alone.
//!
//! What must hold: the server never touches the file itself, or it would wait for itself.
//! How it fails: as the kernel says; [`Device::serve`] returns when nobody has the file any more.
//!
//! # Safety
//! All calls take numbers and strings of C that live through the call.
#![allow(unsafe_code)]

pub mod protocol;

use crate::fd::owned;
use crate::{attributes, check, objects, unix_socket};
use nix::sched::CloneFlags;
use protocol::{Identity, Request};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

const DEVICE: &CStr = c"/dev/fuse";
/// include/uapi/linux/mount.h.
const FSOPEN_CLOEXEC: u32 = 1;
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
}

/// A mount without a place.
#[derive(Debug)]
pub struct Mount(OwnedFd);

impl Mount {
    /// Opens the file, which asks the server: not to be called by its only thread.
    ///
    /// # Errors
    /// As the server says.
    pub fn open(&self, name: &CStr) -> io::Result<OwnedFd> {
        crate::at::open(self.0.as_fd(), name, libc::O_RDONLY.cast_unsigned(), 0)
    }
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
    /// Answers requests for a file until nobody has it any more. May run in several threads at once.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn serve(&self, file: &Identity, content: &dyn Content) -> io::Result<()> {
        let (mut request, mut pages) = (vec![0; protocol::REQUEST_LEN], Vec::new());
        loop {
            let len = match (&self.0).read(&mut request) {
                Ok(len) => len,
                // Interrupted, or the request was taken back before it was read (fs/fuse/dev.c, fuse_dev_do_read).
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ENOENT)) =>
                {
                    continue;
                }
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some((unique, request)) = Request::parse(&request[..len]) else { continue };
            match request {
                Request::Read { offset, len } => {
                    pages.resize(len, 0);
                    match content.read(offset, &mut pages) {
                        Ok(()) => self.answer(unique, Ok(&pages)),
                        Err(_) => self.answer(unique, Err(libc::EIO)),
                    }
                }
                other => {
                    if let Some(answer) = file.answer(&other) {
                        self.answer(unique, answer.as_deref().map_err(|errno| *errno));
                    }
                }
            }
        }
    }

    /// Puts whole pages into the kernel's cache of the file, before anybody asks for them.
    ///
    /// # Errors
    /// ENOENT: the file is not in use. ENOMEM.
    pub fn store(&self, offset: u64, pages: &[u8]) -> io::Result<()> {
        let head = protocol::store_head(offset, pages.len());
        (&self.0).write_vectored(&[IoSlice::new(&head), IoSlice::new(pages)]).map(|_| ())
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
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each page holds its number; there is none from [`BAD`] on.
    struct Numbers(AtomicU64);
    const BAD: u64 = 1 << 40;

    impl Content for Numbers {
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if offset >= BAD {
                return Err(io::ErrorKind::Other.into());
            }
            for (page, bytes) in (offset / 4096..).zip(out.chunks_mut(4096)) {
                bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&page.to_ne_bytes()));
            }
            Ok(())
        }
    }

    #[test]
    fn a_file_is_read_and_stored_and_ends_with_its_users() {
        // Without the device, or the right to mount, there is nothing to be tested here.
        let Ok((device, mount)) = mount() else { return };
        let (identity, numbers) = (Identity::new("a-file", 0, 0), Numbers(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| device.serve(&identity, &numbers).unwrap());
            }
            assert!(mount.open(c"other").is_err());
            let file = File::from(mount.open(c"a-file").unwrap());
            drop(mount);
            let read = |page: u64| {
                let mut bytes = [0; 4096];
                file.read_exact_at(&mut bytes, page * 4096)
                    .map(|()| u64::from_ne_bytes(bytes[8..16].try_into().unwrap()))
            };
            assert_eq!(read(7).unwrap(), 7);
            // Far away, where nothing was read ahead.
            assert_eq!(read(1 << 20).unwrap(), 1 << 20);
            assert!(read(BAD / 4096).is_err());
            device.store(100 << 30, &[1; 8192]).unwrap();
            let asked = numbers.0.load(Ordering::Relaxed);
            assert_eq!(read((100 << 30) / 4096).unwrap(), 0x0101_0101_0101_0101);
            assert_eq!(numbers.0.load(Ordering::Relaxed), asked);
            drop(file);
        });
    }
}
