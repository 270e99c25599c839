//! A file of memory that is mapped here, and pinned for devices where the driver does that: what goes between them and
//! another process that has the file goes at the full speed of the link, without a copy.
//!
//! Used by the keeper (`holdfast __keeper`), for the ring between it and its agent. Copies of several parts may be
//! under way at once. Invariants: the mapping lasts as long as the window; it is pinned no longer than it is mapped;
//! no one gets a part that a copy is under way to or from: it is waited for. Fails by: the error of mmap(2), and
//! [`DeviceError`], after which it can be used as it is.
//!
//! # Safety
//! The mapping is this window's own, and has the length that the file had; who else has the file does not shorten it,
//! and touches a part only while nothing here uses that ([`Window::part`]): the keeper and its agent take turns. What a
//! device reads or writes is a part of the mapping, listed until an event behind it has happened, or the device has
//! done all; what is listed is not lent.
#![allow(unsafe_code)]

use crate::cuda_memory::{Device, DeviceError, Event};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::rc::Rc;

/// See the head of the file.
#[derive(Debug)]
pub struct Window {
    at: NonNull<u8>,
    len: usize,
    pinned: Option<Rc<Device>>,
    under_way: Vec<UnderWay>,
}

/// What a device may still read or write.
#[derive(Debug)]
struct UnderWay {
    part: Range<usize>,
    device: Rc<Device>,
    /// `None`: the device made none; it is waited for all of it.
    done: Option<Event>,
}

impl UnderWay {
    fn wait(&self) -> Result<(), DeviceError> {
        self.done.as_ref().map_or_else(|| self.device.finish(), Event::wait)
    }
}

/// CUDA_ERROR_INVALID_VALUE: said here of a part that the window does not have.
const INVALID: DeviceError = DeviceError { function: "a part of a window", code: 1 };

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
        Ok(Window {
            at: NonNull::new(at.cast()).ok_or_else(invalid)?,
            len,
            pinned: None,
            under_way: Vec::new(),
        })
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

    /// Its length; never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    fn has(&self, part: &Range<usize>) -> bool {
        part.start <= part.end && part.end <= self.len
    }

    /// What is in a part of it: nothing is under way there. `None`: it is not so long.
    pub fn part(&mut self, part: Range<usize>) -> Option<&mut [u8]> {
        if !self.has(&part) {
            return None;
        }
        // A device that has failed copies nothing more.
        let _ = self.wait(&part);
        // SAFETY: a part of the mapping, as the head of the file says; it is the caller's as long as the window is.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().add(part.start), part.len()) })
    }

    /// Waits until nothing is under way in a part.
    ///
    /// # Errors
    /// What was begun has failed.
    pub fn wait(&mut self, part: &Range<usize>) -> Result<(), DeviceError> {
        let overlaps = |one: &mut UnderWay| one.part.start < part.end && part.start < one.part.end;
        let these: Vec<UnderWay> = self.under_way.extract_if(.., overlaps).collect();
        these.iter().map(UnderWay::wait).fold(Ok(()), Result::and)
    }

    /// Begins to copy what is at several places of a device, one behind the other, into a part.
    ///
    /// # Errors
    /// It is not as long as they are; see [`DeviceError`].
    pub fn begin_to_host(
        &mut self,
        device: &Rc<Device>,
        places: &[Range<u64>],
        part: Range<usize>,
    ) -> Result<(), DeviceError> {
        let bytes: u64 = places.iter().map(|place| place.end.saturating_sub(place.start)).sum();
        if !self.has(&part) || bytes != part.len() as u64 {
            return Err(INVALID);
        }
        self.wait(&part)?;
        let mut begun = Ok(());
        let mut at = part.start;
        for place in places.iter().filter(|place| place.start < place.end) {
            let len = (place.end - place.start) as usize;
            // SAFETY: a part of the mapping, of which nothing is lent, and which is listed below.
            begun = unsafe { device.to_host_later(place.start, self.at.add(at), len) };
            if begun.is_err() {
                break;
            }
            at += len;
        }
        self.list(device, part);
        begun
    }

    /// Begins to copy parts to a device: each to its address there.
    ///
    /// # Errors
    /// There is no such part; see [`DeviceError`].
    pub fn begin_to_device(
        &mut self,
        device: &Rc<Device>,
        parts: &[(Range<usize>, u64)],
    ) -> Result<(), DeviceError> {
        let Some(all) = parts.iter().map(|(part, _)| part.clone()).reduce(around) else { return Ok(()) };
        if !parts.iter().all(|(part, _)| self.has(part)) {
            return Err(INVALID);
        }
        self.wait(&all)?;
        let mut begun = Ok(());
        for (part, to) in parts.iter().filter(|(part, _)| !part.is_empty()) {
            // SAFETY: as above.
            begun = unsafe { device.to_device_later(*to, self.at.add(part.start), part.len()) };
            if begun.is_err() {
                break;
            }
        }
        self.list(device, all);
        begun
    }

    fn list(&mut self, device: &Rc<Device>, part: Range<usize>) {
        self.under_way.push(UnderWay { part, device: Rc::clone(device), done: device.event().ok() });
    }
}

fn around(one: Range<usize>, other: Range<usize>) -> Range<usize> {
    one.start.min(other.start)..one.end.max(other.end)
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.wait(&(0..self.len));
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
        assert_eq!(window.part(4096..4101).unwrap(), b"there");
        window.part(0..4).unwrap().copy_from_slice(b"here");
        assert!(window.part(0..8193).is_none());
        let mut found = [0; 4];
        file.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((&found, window.is_pinned()), (b"here", false));
    }
}
