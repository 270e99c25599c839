//! A file of memory that is mapped here, and pinned for devices where the driver does that: what goes between them and
//! another process that has the file goes at the full speed of the link, without a copy.
//!
//! Used by the keeper (`holdfast __keeper`), for the ring between it and its agent. Invariants: the mapping lasts as
//! long as the window; it is pinned no longer than it is mapped. Fails by: the error of mmap(2), and [`DeviceError`],
//! after which it can be used as it is.
//!
//! # Safety
//! The mapping is this window's own, and has the length that the file had; who else has the file does not shorten it,
//! and touches it only while nothing here uses [`Window::bytes`]: the keeper and its agent take turns.
#![allow(unsafe_code)]

use crate::cuda_memory::{Device, DeviceError};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// See the head of the file.
#[derive(Debug)]
pub struct Window {
    at: NonNull<u8>,
    len: usize,
    pinned: Option<Rc<Device>>,
}

impl Window {
    /// So many bytes of a file, which has them.
    ///
    /// # Errors
    /// ENOMEM; EINVAL: no bytes, or the file is shorter.
    pub fn of(file: BorrowedFd<'_>, len: usize) -> io::Result<Window> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        // SAFETY: all zero is a struct stat, which the call fills.
        let mut is: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes one struct stat.
        crate::check(i64::from(unsafe { libc::fstat(file.as_raw_fd(), &raw mut is) }))?;
        if len == 0 || u64::try_from(is.st_size).map_err(|_| invalid())? < len as u64 {
            return Err(invalid());
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel finds room.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Window { at: NonNull::new(at.cast()).ok_or_else(invalid)?, len, pinned: None })
    }

    /// Has the driver pin it, for all devices.
    ///
    /// # Errors
    /// The driver does not: copies are as slow as those of any memory.
    pub fn pin(&mut self, device: &Rc<Device>) -> Result<(), DeviceError> {
        if self.pinned.is_none() {
            device.register(self.at.cast(), self.len)?;
            self.pinned = Some(Rc::clone(device));
        }
        Ok(())
    }

    /// It is.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// What is in it.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping, as the head of the file says.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(device) = self.pinned.take()
            && device.unregister(self.at.cast()).is_err()
        {
            // What is pinned may not go away.
            return;
        }
        // SAFETY: the window's own mapping, which nothing refers to any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_in_the_file_is_in_the_window_and_the_other_way_round() {
        let file = File::from(crate::memfd::unsealed(c"window").unwrap());
        assert_eq!(Window::of(file.as_fd(), 4096).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        file.set_len(8192).unwrap();
        let mut window = Window::of(file.as_fd(), 8192).unwrap();
        file.write_all_at(b"there", 4096).unwrap();
        assert_eq!(&window.bytes()[4096..4101], b"there");
        window.bytes()[..4].copy_from_slice(b"here");
        let mut found = [0; 4];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((&found, window.is_pinned(), window.bytes().len()), (b"here", false, 8192));
    }
}
