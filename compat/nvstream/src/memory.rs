//! The memory of an object, and which of its pages were written since it was put.
//!
//! Written pages are noted by the kernel (userfaultfd in WP_ASYNC mode, Linux 6.7: no signal, and what the kernel
//! writes for read(2) counts too). Under `holdfast run` they are compared instead: a page can be noted for one only
//! (mm/userfaultfd.c, a mapping has one context), and that is the checkpoint. So they are where the kernel refuses.
//!
//! # Safety
//! The memory is a mapping of this value alone. Slices of it are made for one copy, while, as the header demands, no
//! other thread writes to it.
#![allow(unsafe_code)]

use holdfast_streams::layout::{self, PAGE};
use holdfast_streams::writer::Changed;
use holdfast_sys::pagemap::{self, IS_WPALLOWED, IS_WRITTEN};
use holdfast_sys::userfault::Userfault;
use std::fs::File;
use std::io;

/// Set in programs that `holdfast run` has started.
const UNDER_RUN: &str = "HOLDFAST_SOCKET";

/// What notes written pages, for all objects.
#[derive(Debug)]
pub(crate) struct Notes {
    fault: Userfault,
    pagemap: File,
}

impl Notes {
    /// `None`: objects are compared.
    pub(crate) fn new() -> Option<Notes> {
        if std::env::var_os(UNDER_RUN).is_some() {
            return None;
        }
        let fault = Userfault::of_this_process().ok()?;
        Some(Notes { fault, pagemap: File::open("/proc/self/pagemap").ok()? })
    }
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Memory {
    start: *mut u8,
    /// Bytes of the object.
    size: usize,
    /// Bytes of the mapping.
    mapped: usize,
    is_noted: bool,
    /// What was written since the last put that was done.
    written: Written,
}

#[derive(Debug)]
enum Written {
    /// All: it was never put.
    All,
    /// These pages, and what is noted besides.
    Pages(Vec<bool>),
}

// SAFETY: memory of the process, of no thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Zeroed.
    ///
    /// # Errors
    /// As mmap(2).
    pub(crate) fn new(size: usize, notes: Option<&Notes>) -> io::Result<Memory> {
        let mapped = size.max(1).checked_next_multiple_of(PAGE as usize);
        let mapped = mapped.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, rights, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let (from, to) = (start.addr() as u64, (start.addr() + mapped) as u64);
        let is_noted = notes.is_some_and(|notes| notes.fault.register(from, to).is_ok());
        Ok(Memory { start: start.cast(), size, mapped, is_noted, written: Written::All })
    }

    /// For C.
    pub(crate) fn address(&self) -> *mut u8 {
        self.start
    }

    /// Its bytes, while no other thread writes to them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping, which has as many bytes; the header's promise.
        unsafe { std::slice::from_raw_parts(self.start, self.size) }
    }

    /// What has changed since the last put that was done. From now on what is written is noted anew: before it is
    /// copied, so that nothing is missed.
    pub(crate) fn changed(&mut self, notes: Option<&Notes>) -> Changed {
        let Some(notes) = notes.filter(|_| self.is_noted) else {
            return match self.written {
                Written::All => Changed::All,
                Written::Pages(_) => Changed::Unknown,
            };
        };
        let (from, to) = (self.start.addr() as u64, (self.start.addr() + self.mapped) as u64);
        let pages = self.mapped / PAGE as usize;
        let mut now = match std::mem::replace(&mut self.written, Written::All) {
            Written::All => None,
            Written::Pages(pages) => Some(pages),
        };
        let scanned =
            pagemap::scan_written_and_protect(&notes.pagemap, from, to, IS_WPALLOWED, IS_WRITTEN, |region| {
                let page = |address: u64| usize::try_from((address - from) / PAGE).unwrap_or(0);
                if let Some(now) = &mut now {
                    let end = page(region.end).min(now.len());
                    now.get_mut(page(region.start)..end).unwrap_or_default().fill(true);
                }
            });
        match (scanned, now) {
            (Ok(()), Some(now)) => {
                let written = now.iter().enumerate().filter(|(_, is_written)| **is_written);
                let runs = layout::runs(written.map(|(page, _)| u32::try_from(page).unwrap_or(u32::MAX)));
                self.written = Written::Pages(now);
                Changed::Pages(runs)
            }
            (Ok(()), None) => Changed::All,
            // Not known: the program may have changed the mapping.
            (Err(_), _) => {
                self.is_noted = false;
                self.written = Written::Pages(vec![true; pages]);
                Changed::Unknown
            }
        }
    }

    /// A put was done.
    pub(crate) fn was_put(&mut self) {
        self.written = Written::Pages(vec![false; self.mapped / PAGE as usize]);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, which the program does not use any more: it has given the object up.
        unsafe { libc::munmap(self.start.cast(), self.mapped) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_streams::layout::Run;

    #[test]
    fn written_pages_are_known_until_they_are_put() {
        let notes = Notes::new();
        let mut memory = Memory::new(5 * PAGE as usize + 1, notes.as_ref()).unwrap();
        assert_eq!(memory.changed(notes.as_ref()), Changed::All);
        assert_eq!(memory.changed(notes.as_ref()), Changed::All, "that put failed");
        memory.was_put();
        let write = |page: usize| {
            // SAFETY: within the mapping.
            unsafe { memory.address().add(page * PAGE as usize).write_volatile(1) };
        };
        [1, 2, 5].into_iter().for_each(write);
        let all = vec![Run { first: 1, pages: 2 }, Run { first: 5, pages: 1 }];
        let expected = |runs: Vec<Run>| if notes.is_some() { Changed::Pages(runs) } else { Changed::Unknown };
        assert_eq!(memory.changed(notes.as_ref()), expected(all.clone()));
        assert_eq!(memory.changed(notes.as_ref()), expected(all), "that put failed");
        memory.was_put();
        assert_eq!(memory.changed(notes.as_ref()), expected(Vec::new()));
        assert_eq!(memory.bytes()[PAGE as usize], 1);
    }
}
