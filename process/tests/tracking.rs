//! The tracker against this very process: whatever is done to its memory, no page that changed goes unreported.
//!
//! # Safety
//! One reserved range of address space is mapped, moved, advised and unmapped at will; nothing else lies in it, and it
//! is only touched through raw pointers while it is mapped and readable.
#![allow(unsafe_code, clippy::unwrap_used, clippy::panic, missing_docs)]

use holdfast_image::PAGE_SIZE;
use holdfast_process::Tracking;
use holdfast_sys::userfault;
use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

const PAGE: usize = PAGE_SIZE as usize;
const PAGES: usize = 2048;
const LEN: usize = PAGES * PAGE;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A range of address space; `mapped` says which of its pages can be read.
struct Arena {
    base: usize,
    mapped: Vec<bool>,
    writable: Vec<bool>,
    /// In a guard region: mapped, and not to be touched (then `mapped` does not say so).
    guarded: Vec<bool>,
    of_file: Vec<bool>,
    random: Random,
    log: Vec<String>,
}

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FRESH: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;

impl Arena {
    fn new(seed: u64) -> Arena {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: fresh memory at a place that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Arena {
            base: base.addr(),
            mapped: vec![false; PAGES],
            writable: vec![false; PAGES],
            guarded: vec![false; PAGES],
            of_file: vec![false; PAGES],
            random: Random(seed),
            log: Vec::new(),
        }
    }
    fn at(&self, page: usize) -> *mut libc::c_void {
        (self.base + page * PAGE) as *mut libc::c_void
    }
    fn range(&mut self) -> (usize, usize) {
        let first = self.random.below(PAGES);
        (first, 1 + self.random.below((PAGES - first).min(64)))
    }
    fn is_mapped(&self, first: usize, pages: usize) -> bool {
        self.mapped[first..first + pages].iter().all(|&mapped| mapped)
    }
    fn content(&self, page: usize) -> Option<Vec<u8>> {
        // SAFETY: the page is mapped readable.
        self.mapped[page].then(|| unsafe { std::slice::from_raw_parts(self.at(page).cast(), PAGE).to_vec() })
    }

    fn map(&mut self, file: &File) {
        use std::os::fd::AsRawFd;
        let (first, pages) = self.range();
        let of_file = self.random.below(3) == 0;
        let (flags, fd) =
            if of_file { (libc::MAP_PRIVATE | libc::MAP_FIXED, file.as_raw_fd()) } else { (FRESH, -1) };
        // SAFETY: replaces pages of the arena.
        let result = unsafe { libc::mmap(self.at(first), pages * PAGE, RW, flags, fd, 0) };
        assert_eq!(result, self.at(first));
        self.mapped[first..first + pages].fill(true);
        self.writable[first..first + pages].fill(true);
        self.guarded[first..first + pages].fill(false);
        self.of_file[first..first + pages].fill(of_file);
        self.log.push(format!("map {first}+{pages} file {of_file}"));
    }

    fn write(&mut self, source: &mut File) {
        let (first, pages) = self.range();
        let by_call = self.random.below(2) == 0;
        let fit = |&page: &usize| self.mapped[page] && self.writable[page];
        for page in (first..first + pages).filter(fit).collect::<Vec<_>>() {
            let value = self.random.next();
            // SAFETY: mapped, writable pages of the arena, in both cases.
            unsafe {
                if by_call {
                    let buffer = std::slice::from_raw_parts_mut(self.at(page).cast::<u8>(), 1 + page % PAGE);
                    source.read_exact(buffer).unwrap();
                } else {
                    self.at(page).cast::<u64>().add(self.random.below(512)).write_volatile(value);
                }
            }
        }
        self.log.push(format!("write {first}+{pages} by call {by_call}"));
    }

    fn advise(&mut self) {
        let (first, pages) = self.range();
        let all = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_PAGEOUT,
        ];
        let advice = all[self.random.below(all.len())];
        // SAFETY: pages of the arena; advice that does not fit fails.
        unsafe { libc::madvise(self.at(first), pages * PAGE, advice) };
        self.log.push(format!("advise {first}+{pages} {advice}"));
    }

    /// Takes the right to write away, for longer or for a moment.
    fn protect(&mut self) {
        let (first, pages) = self.range();
        if self.is_mapped(first, pages) {
            let writable = self.random.below(2) == 0;
            let last = if writable { RW } else { libc::PROT_READ };
            // SAFETY: pages of the arena, readable at the end.
            unsafe {
                assert_eq!(libc::mprotect(self.at(first), pages * PAGE, libc::PROT_NONE), 0);
                assert_eq!(libc::mprotect(self.at(first), pages * PAGE, last), 0);
            }
            self.writable[first..first + pages].fill(writable);
            self.log.push(format!("protect {first}+{pages} writable {writable}"));
        }
    }

    fn unmap(&mut self) {
        let (first, pages) = self.range();
        // SAFETY: leaves a hole of the arena, which nothing else of this test maps into.
        let result = unsafe { libc::mmap(self.at(first), pages * PAGE, libc::PROT_NONE, FRESH, -1, 0) };
        assert_eq!(result, self.at(first));
        self.mapped[first..first + pages].fill(false);
        self.guarded[first..first + pages].fill(false);
        self.log.push(format!("unmap {first}+{pages}"));
    }

    /// Puts guards over pages, or takes those away that are there.
    fn guard(&mut self) {
        const INSTALL: i32 = 102; // MADV_GUARD_INSTALL and MADV_GUARD_REMOVE, Linux 6.13
        const REMOVE: i32 = 103;
        let (first, pages) = self.range();
        let install = self.random.below(2) == 0;
        // Of files there are none: libholdfast sees to that (`advice.rs`).
        if install && (!self.is_mapped(first, pages) || self.of_file[first..first + pages].contains(&true)) {
            return;
        }
        let advice = if install { INSTALL } else { REMOVE };
        // SAFETY: pages of the arena; an older kernel refuses, and changes nothing.
        if unsafe { libc::madvise(self.at(first), pages * PAGE, advice) } != 0 {
            return;
        }
        for page in first..first + pages {
            if install || self.guarded[page] {
                (self.mapped[page], self.guarded[page]) = (!install, install);
            }
        }
        self.log.push(format!("guard {first}+{pages} {install}"));
    }

    /// Moves pages onto others (of one mapping: the kernel refuses more).
    fn shift(&mut self) {
        let (from, pages) = self.range();
        let to = self.random.below(PAGES - pages);
        if from + pages > to && to + pages > from || !self.is_mapped(from, pages) {
            return;
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let len = pages * PAGE;
        // SAFETY: both lie in the arena; the hole that is left is filled at once.
        unsafe {
            if libc::mremap(self.at(from), len, len, flags, self.at(to)) == libc::MAP_FAILED {
                return;
            }
            assert_eq!(libc::mmap(self.at(from), len, libc::PROT_NONE, FRESH, -1, 0), self.at(from));
        }
        self.mapped[from..from + pages].fill(false);
        self.mapped[to..to + pages].fill(true);
        self.guarded[to..to + pages].fill(false);
        self.writable.copy_within(from..from + pages, to);
        self.of_file.copy_within(from..from + pages, to);
        self.log.push(format!("move {from}+{pages} to {to}"));
    }

    fn fork(&mut self) {
        // SAFETY: the child writes to its own copy of one page and ends at once.
        unsafe {
            match libc::fork() {
                0 => {
                    let writable = |&page: &usize| self.mapped[page] && self.writable[page];
                    if let Some(page) = (0..PAGES).find(writable) {
                        self.at(page).cast::<u64>().write_volatile(1);
                    }
                    libc::_exit(0)
                }
                pid => assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid),
            }
        }
        self.log.push("fork".into());
    }
}

fn tracking() -> Tracking {
    // SAFETY: numbers only; the result is a new descriptor that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_userfaultfd, userfault::FLAGS) as i32) };
    let tracking = Tracking::new(Some(fd));
    assert_eq!(tracking.kind(), holdfast_image::kinds::Tracker::Userfaultfd);
    tracking
}

fn churn(seed: u64) {
    let path = std::env::temp_dir().join(format!("holdfast-tracking-{}-{seed}", std::process::id()));
    std::fs::write(&path, vec![7_u8; LEN]).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut noise = File::open("/dev/urandom").unwrap();
    let pid = std::process::id().cast_signed();
    let tracking = tracking();
    let mut arena = Arena::new(seed);
    let mut before: Vec<Option<Vec<u8>>> = vec![None; PAGES];
    let (mut reported, mut spared) = (0, 0);
    for _ in 0..60 {
        arena.log.clear();
        for _ in 0..1 + arena.random.below(12) {
            match arena.random.below(10) {
                0 | 1 => arena.map(&file),
                2..=4 => arena.write(&mut noise),
                5 => arena.advise(),
                6 => arena.protect(),
                7 => arena.shift(),
                8 => arena.guard(),
                _ if arena.random.below(2) == 0 => arena.unmap(),
                _ => arena.fork(),
            }
        }
        let written = tracking.pass(pid).unwrap();
        tracking.precopied(&written);
        let now: Vec<Option<Vec<u8>>> = (0..PAGES).map(|page| arena.content(page)).collect();
        for (page, (old, new)) in before.iter().zip(&now).enumerate() {
            let told = written.contains(holdfast_image::Addr(arena.at(page).addr() as u64));
            assert!(!(told && arena.guarded[page]), "seed {seed}: page {page} is a guard; {:#?}", arena.log);
            let (Some(old), Some(new)) = (old, new) else { continue };
            reported += u64::from(told);
            spared += u64::from(!told && old == new);
            // A page that went back to zeros or to its file is not "written": the image drops it.
            let gone = new.iter().all(|&byte| byte == 0) || new.iter().all(|&byte| byte == 7);
            assert!(told || old == new || gone, "seed {seed}: page {page} changed; {:#?}", arena.log);
        }
        before = now;
    }
    assert!(reported > 100 && spared > 1000, "the churn does something: {reported} reported, {spared} not");
}

#[test]
fn no_change_goes_unreported() {
    for seed in 1..=8_u64 {
        churn(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
    }
}

/// Memory that nothing has touched yet, moved next to tracked memory, is joined with it, and the whole loses its
/// registration, but the pages keep their marks.
#[test]
fn a_neighbour_that_moves_in_hides_nothing() {
    let pid = std::process::id().cast_signed();
    let tracking = tracking();
    let arena = Arena::new(1);
    // SAFETY: pages 0 to 15 and 32 to 47 of the arena, which this test owns.
    unsafe {
        for first in [0, 32] {
            assert_eq!(libc::mmap(arena.at(first), 16 * PAGE, RW, FRESH, -1, 0), arena.at(first));
        }
        std::slice::from_raw_parts_mut(arena.at(0).cast::<u8>(), 16 * PAGE).fill(1);
    }
    let told = |page: usize| {
        let written = tracking.pass(pid).unwrap();
        tracking.precopied(&written);
        written.contains(holdfast_image::Addr(arena.at(page).addr() as u64))
    };
    assert!(told(3));
    assert!(!told(3));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: as above; the target is part of the arena.
    unsafe {
        assert_eq!(libc::mremap(arena.at(32), 16 * PAGE, 16 * PAGE, flags, arena.at(16)), arena.at(16));
        arena.at(3).cast::<u64>().write_volatile(2);
    }
    assert!(told(3));
    // And from then on it is tracked again.
    assert!(!told(3));
    // SAFETY: as above.
    unsafe { arena.at(3).cast::<u64>().write_volatile(3) };
    assert!(told(3));
}
