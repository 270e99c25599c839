//! Watches of inotify(7): made again with their numbers, and what the restart itself has done is taken out.
//!
//! [`add`] runs in the new process that holds them, when all files are open; [`drain`] in the agent, when the program's
//! files are as they were: from then on events are the program's. How it fails: what is not there any more is a note.

use super::error::RebuildError;
use super::job::Job;
use super::paths::Opener;
use holdfast_image::record::{Object, Watch};
use holdfast_sys::{at, fd, inotify};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

const FIONREAD: libc::c_ulong = 0x541b;
/// Numbers are given in rising order: to a larger one than this the way is too long.
const HIGHEST: i32 = 1 << 20;
/// What inotify_add_watch takes of what fdinfo tells (fs/notify/inotify/inotify_user.c).
const TAKEN: u32 = libc::IN_ALL_EVENTS | libc::IN_ONESHOT | libc::IN_EXCL_UNLINK;

/// Adds watches, in the order of their numbers; a note for each that there is not. `opener`: of the process.
pub fn add(inotify: BorrowedFd<'_>, watches: &[Watch], opener: &Opener) -> Vec<String> {
    let mut notes = Vec::new();
    for wanted in watches {
        if let Err(error) = add_one(inotify, wanted, opener) {
            notes.push(format!("{} is not watched any more (inotify): {error}", wanted.path));
        }
    }
    notes
}

/// The very file that was watched, opened. What has its place by now may not be the process's to watch.
fn same(wanted: &Watch, path: &CStr) -> Option<File> {
    let flags = (libc::O_PATH | libc::O_NOFOLLOW).cast_unsigned();
    let file = File::from(at::open_without_links(path, flags).ok()?);
    let now = file.metadata().ok()?;
    // As the kernel has it (include/linux/kdev_t.h).
    let device = u64::from(libc::major(now.dev())) << 20 | u64::from(libc::minor(now.dev()));
    (now.ino() == wanted.inode && device == wanted.device).then_some(file)
}

/// The kernel gives the next number each time (idr_alloc_cyclic).
fn add_one(inotify: BorrowedFd<'_>, wanted: &Watch, opener: &Opener) -> io::Result<()> {
    let path = CString::new(wanted.path.0.clone())?;
    let same = same(wanted, &path);
    let _acting = if same.is_some() { None } else { opener.act()? };
    let (path, follow) = match &same {
        Some(file) => (CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?, 0),
        None => (path, libc::IN_DONT_FOLLOW),
    };
    loop {
        let wd = inotify::add(inotify, &path, wanted.mask & TAKEN | follow)?;
        if wd == wanted.wd {
            return Ok(());
        }
        inotify::remove(inotify, wd)?;
        if wd > wanted.wd || wanted.wd > HIGHEST {
            return Err(io::Error::other(format!("its number {} is not to be had", wanted.wd)));
        }
        // A removed watch says so.
        if wd % 64 == 0 {
            take_out(inotify)?;
        }
    }
}

fn take_out(inotify: BorrowedFd<'_>) -> io::Result<()> {
    let mut file = File::from(inotify.try_clone_to_owned()?);
    let mut buffer = [0; 4096];
    while fd::ioctl_int(inotify, FIONREAD)? > 0 {
        let _ = file.read(&mut buffer)?;
    }
    Ok(())
}

/// Takes out all events, while all processes are stopped. `take`: a description, from its holder.
///
/// # Errors
/// A process is gone.
pub fn drain(job: &Job<'_>, take: impl Fn(usize) -> io::Result<File>) -> Result<(), RebuildError> {
    for (index, description) in job.descriptions().iter().enumerate() {
        if !matches!(description.object, Object::Inotify { .. }) {
            continue;
        }
        let Some((_, fd)) = job.holder(index) else { continue };
        take(index)
            .and_then(|taken| take_out(taken.as_fd()))
            .map_err(RebuildError::io(format!("emptying descriptor {fd} (inotify)")))?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::bytes::Name;

    #[test]
    fn numbers_come_back_and_the_way_to_them_is_not_seen() {
        let watch = |wd: i32, path: &str| Watch {
            wd,
            mask: libc::IN_CREATE | 0x8000_0000,
            path: Name::from(std::path::Path::new(path)),
            device: 0,
            inode: 0,
            handle: None,
        };
        let inotify = inotify::inotify().unwrap();
        let all = [watch(3, "/"), watch(200, "/proc"), watch(300, "/no/such")];
        let opener = Opener::of(&crate::rebuild::testing::record(Vec::new()));
        let notes = add(inotify.as_fd(), &all, &opener);
        assert!(notes.len() == 1 && notes[0].starts_with("/no/such is not watched"), "{notes:?}");
        take_out(inotify.as_fd()).unwrap();
        let info = std::fs::read_to_string(format!(
            "/proc/self/fdinfo/{}",
            std::os::fd::AsRawFd::as_raw_fd(&inotify)
        ));
        let info = info.unwrap();
        assert!(info.contains("wd:3 ") && info.contains("wd:c8 "), "{info}");
    }
}
