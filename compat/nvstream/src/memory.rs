//! The memory of an object, and which of its pages were written since it was put.
//!
//! Written pages are noted by the kernel (userfaultfd in WP_ASYNC mode, Linux 6.7: no signal, and what the kernel
//! writes for read(2) counts too). Under `holdfast run` they are compared instead: a page can be noted for one only
//! (mm/userfaultfd.c, a mapping has one context), and that is the checkpoint. So they are where the kernel refuses.
//! A note costs the program a fault, some 0.9 µs, and saves a copy, some 0.7 µs: an object of which most pages were
//! written is copied as a whole and not noted, and looked at again after some versions.
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
/// An object that was not worth noting is not looked at for so many versions.
const UNNOTED: u32 = 32;

/// What notes written pages, for all objects.
#[derive(Debug)]
pub(crate) struct Notes {
    fault: Userfault,
    pagemap: File,
    /// Whether it counts what notes cost.
    counts: bool,
}

impl Notes {
    /// `None`: objects are compared. Without `counts` pages are noted whatever it costs, so that few bytes are put.
    pub(crate) fn new(counts: bool) -> Option<Notes> {
        if std::env::var_os(UNDER_RUN).is_some() {
            return None;
        }
        let fault = Userfault::of_this_process().ok()?;
        Some(Notes { fault, pagemap: File::open("/proc/self/pagemap").ok()?, counts })
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
    /// It is not noted for so many versions.
    unnoted: u32,
    /// What was written since the last put that was done.
    written: Written,
}

#[derive(Debug)]
enum Written {
    /// All: it was never put, or is not noted.
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
        Ok(Memory { start: start.cast(), size, mapped, is_noted, unnoted: 0, written: Written::All })
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

    /// Where it is mapped, from where to where.
    fn range(&self) -> (u64, u64) {
        (self.start.addr() as u64, (self.start.addr() + self.mapped) as u64)
    }

    /// A put was done.
    pub(crate) fn was_put(&mut self, notes: Option<&Notes>) {
        let (from, to) = self.range();
        if self.unnoted > 0 {
            self.unnoted -= 1;
            // The next put is of all of it, and notes begin with that.
            self.is_noted =
                self.unnoted == 0 && notes.is_some_and(|notes| notes.fault.register(from, to).is_ok());
            return;
        }
        let pages = self.mapped / PAGE as usize;
        let written = match &self.written {
            Written::All => 0,
            Written::Pages(written) => written.iter().filter(|is_written| **is_written).count(),
        };
        let costs = |notes: &&Notes| self.is_noted && notes.counts && 2 * written > pages;
        if notes.filter(costs).is_some_and(|notes| notes.fault.unregister(from, to).is_ok()) {
            (self.is_noted, self.unnoted, self.written) = (false, UNNOTED, Written::All);
        } else {
            self.written = Written::Pages(vec![false; pages]);
        }
    }
}

/// What of each has changed since the last put that was done. From now on what is written is noted anew: before it is
/// copied, so that nothing is missed. Neighbours are looked at by one call.
pub(crate) fn changed(memories: &mut [&mut Memory], notes: Option<&Notes>) -> Vec<Changed> {
    let mut changes: Vec<Changed> = memories
        .iter()
        .map(|memory| match memory.written {
            Written::All => Changed::All,
            Written::Pages(_) => Changed::Unknown,
        })
        .collect();
    let Some(notes) = notes else { return changes };
    let noted = (0..memories.len()).filter(|at| memories[*at].is_noted);
    let mut order: Vec<((u64, u64), usize)> = noted.map(|at| (memories[at].range(), at)).collect();
    order.sort_unstable();
    for group in order.chunk_by(|(one, _), (next, _)| one.1 == next.0) {
        let (Some(((from, _), _)), Some(((_, to), _))) = (group.first(), group.last()) else { continue };
        let scanned = pagemap::scan_written_and_protect(
            &notes.pagemap,
            *from,
            *to,
            IS_WPALLOWED,
            IS_WRITTEN,
            |region| {
                let first = group.partition_point(|((_, end), _)| *end <= region.start);
                let touched = group.get(first..).unwrap_or_default().iter();
                for ((start, end), at) in touched.take_while(|((start, _), _)| *start < region.end) {
                    let page = |address: u64| usize::try_from((address - start) / PAGE).unwrap_or(0);
                    let pages = page(region.start.max(*start))..page(region.end.min(*end));
                    if let Written::Pages(now) = &mut memories[*at].written {
                        now.get_mut(pages).unwrap_or_default().fill(true);
                    }
                }
            },
        );
        for (_, at) in group {
            let memory = &mut memories[*at];
            match (&scanned, &memory.written) {
                (Ok(()), Written::Pages(now)) => {
                    let written = now.iter().enumerate().filter(|(_, is_written)| **is_written);
                    let pages = written.map(|(page, _)| u32::try_from(page).unwrap_or(u32::MAX));
                    changes[*at] = Changed::Pages(layout::runs(pages));
                }
                (Ok(()), Written::All) => {}
                // Not known: the program may have changed the mapping.
                (Err(_), _) => {
                    memory.is_noted = false;
                    memory.written = Written::Pages(vec![true; memory.mapped / PAGE as usize]);
                    changes[*at] = Changed::Unknown;
                }
            }
        }
    }
    changes
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
        let notes = Notes::new(true);
        let mut memory = Memory::new(5 * PAGE as usize + 1, notes.as_ref()).unwrap();
        let look = |memory: &mut Memory| changed(&mut [memory], notes.as_ref()).remove(0);
        assert_eq!(look(&mut memory), Changed::All);
        assert_eq!(look(&mut memory), Changed::All, "that put failed");
        memory.was_put(notes.as_ref());
        let start = memory.address();
        let write = |page: usize| {
            // SAFETY: within the mapping.
            unsafe { start.add(page * PAGE as usize).write_volatile(1) };
        };
        [1, 2, 5].into_iter().for_each(write);
        let all = vec![Run { first: 1, pages: 2 }, Run { first: 5, pages: 1 }];
        let expected = |runs: Vec<Run>| if notes.is_some() { Changed::Pages(runs) } else { Changed::Unknown };
        assert_eq!(look(&mut memory), expected(all.clone()));
        assert_eq!(look(&mut memory), expected(all), "that put failed");
        memory.was_put(notes.as_ref());
        assert_eq!(look(&mut memory), expected(Vec::new()));
        assert_eq!(memory.bytes()[PAGE as usize], 1);
        // Of six pages four: they are not noted, until some versions later.
        memory.was_put(notes.as_ref());
        (0..4).for_each(write);
        let most = vec![Run { first: 0, pages: 4 }];
        assert_eq!(look(&mut memory), expected(most));
        for _ in 0..=UNNOTED {
            memory.was_put(notes.as_ref());
            assert_eq!(look(&mut memory), if notes.is_some() { Changed::All } else { Changed::Unknown });
        }
        memory.was_put(notes.as_ref());
        write(3);
        assert_eq!(look(&mut memory), expected(vec![Run { first: 3, pages: 1 }]));
    }
}
