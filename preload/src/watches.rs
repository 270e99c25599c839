//! Where the program has put watches (inotify_add_watch(2)), which the kernel does not tell an ordinary user: it shows
//! the inode of a watch, and opens no file by its handle for who may not search all folders.
//!
//! Runs in: the host program, any thread, also in signal handlers. Invariant: the call and its result are the kernel's;
//! what is noted is where the agent looks first, and it takes nothing that has another inode
//! (`process/src/capture/files/inotify.rs`). Fails by: a path that is not noted, because it is long, or because the
//! call was made past the C library's function; the agent looks elsewhere then.
//!
//! # Safety
//! The export has the C signature of the function whose place it takes. The path is read only after the kernel has
//! read it.
#![allow(unsafe_code)]

use crate::{host, shared, sys};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use holdfast_abi::{SharedPage, WatchedPaths};

/// Laid out as [`WatchedPaths`].
#[repr(C)]
struct Noted {
    count: AtomicU64,
    paths: [[AtomicU8; WatchedPaths::LEN]; WatchedPaths::MAX],
}

const _: () = assert!(size_of::<Noted>() == size_of::<WatchedPaths>());

static NOTED: Noted = Noted {
    count: AtomicU64::new(0),
    paths: [const { [const { AtomicU8::new(0) }; WatchedPaths::LEN] }; WatchedPaths::MAX],
};

type Path = [u8; WatchedPaths::LEN];

/// The text at `start` appended to what is in `path` up to `from`; `None`: it does not fit.
///
/// # Safety
/// `start` leads to a text that ends with NUL.
unsafe fn append(path: &mut Path, from: usize, start: *const c_char) -> Option<()> {
    let room = path.get_mut(from..)?;
    for (index, byte) in room.iter_mut().enumerate() {
        // SAFETY: no byte before this one was the end; the caller's promise.
        *byte = unsafe { start.add(index).read() } as u8;
        if *byte == 0 {
            return Some(());
        }
    }
    None
}

/// The working folder at the beginning of `path`, with a slash behind it; its length.
fn folder(path: &mut Path) -> Option<usize> {
    let args = [path.as_mut_ptr().expose_provenance(), path.len(), 0, 0, 0, 0];
    // SAFETY: the kernel writes at most so many bytes to `path`.
    let len = usize::try_from(unsafe { sys::raw(libc::SYS_getcwd, args) }).ok()?;
    // With the NUL.
    let end = len.checked_sub(1).filter(|_| path.first() == Some(&b'/'))?;
    *path.get_mut(end)? = b'/';
    Some(end + 1)
}

/// Takes note of a path.
///
/// # Safety
/// `given` leads to a text that ends with NUL.
unsafe fn note(given: *const c_char) -> Option<()> {
    let mut path = [0; WatchedPaths::LEN];
    // SAFETY: the caller's promise: there is one byte at least.
    let is_absolute = unsafe { given.read() } as u8 == b'/';
    let from = if is_absolute { 0 } else { folder(&mut path)? };
    // SAFETY: the caller's promise.
    unsafe { append(&mut path, from, given)? };
    let place = NOTED.count.fetch_add(1, Relaxed) as usize % WatchedPaths::MAX;
    for (slot, byte) in NOTED.paths.get(place)?.iter().zip(path) {
        slot.store(byte, Relaxed);
    }
    shared::word(SharedPage::WATCHED).store(core::ptr::from_ref(&NOTED).addr() as u64, Relaxed);
    Some(())
}

/// `inotify_add_watch(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
    let args = [fd as usize, path.addr(), mask as usize, 0, 0, 0];
    // SAFETY: the caller's promise.
    let result = unsafe { sys::raw(libc::SYS_inotify_add_watch, args) };
    if result >= 0 {
        // SAFETY: the kernel has read the path.
        let _ = unsafe { note(path) };
    }
    host::from_kernel(result) as c_int
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn noted(place: usize) -> Vec<u8> {
        let bytes: Vec<u8> = NOTED.paths[place].iter().map(|byte| byte.load(Relaxed)).collect();
        bytes.split(|byte| *byte == 0).next().unwrap().to_vec()
    }

    #[test]
    fn paths_are_noted_from_the_root_on_and_long_ones_are_not() {
        // SAFETY: texts with a NUL at their end.
        unsafe {
            note(c"/usr/share".as_ptr()).unwrap();
            note(c"a/b".as_ptr()).unwrap();
            assert!(note([b'/'; 300].map(|byte| byte as c_char).as_ptr()).is_none());
        }
        let relative = std::env::current_dir().unwrap().join("a/b");
        assert_eq!([noted(0), noted(1)], [b"/usr/share".to_vec(), relative.to_str().unwrap().into()]);
        assert_eq!(NOTED.count.load(Relaxed), 2);
        assert_ne!(shared::word(SharedPage::WATCHED).load(Relaxed), 0);
    }
}
