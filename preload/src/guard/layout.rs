//! The area of engine `slots`: typed access to its tables.
//!
//! Runs in: the host program, any thread, also in the handler of SIGSEGV. Invariants: the layout is [`GuardArea`].
//! The area is reserved once, in the constructor, and never unmapped; untouched pages cost nothing. Fails by:
//! [`current`] is `None` where the program was not started with the engine or the room was refused.
//!
//! # Safety
//! Tables are reached by numbers that are bounded here; all entries are atomics, valid at any content.
#![allow(unsafe_code)]

use crate::sys;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use holdfast_abi::{GuardArea, GuardRange, PAGE};

/// Most threads that the agent sees wait; the model has room for fewer.
pub const MAX_WAITERS: usize = GuardArea::MAX_WAITERS;

static BASE: AtomicUsize = AtomicUsize::new(0);

/// The area of this process.
#[derive(Clone, Copy)]
pub struct Area(usize);

/// A row of the table of ranges.
#[derive(Clone, Copy)]
pub struct Range {
    /// First byte.
    pub start: usize,
    /// First byte after it.
    pub end: usize,
    /// Number of its first page.
    pub first: usize,
}

impl Range {
    /// Number of the page after its last one.
    pub fn after(&self) -> usize {
        self.first + (self.end - self.start) / PAGE
    }
    /// Address of the page with that number.
    pub fn address(&self, page: usize) -> usize {
        self.start + (page - self.first) * PAGE
    }
}

/// The area, if the program was started with engine `slots`.
#[inline(always)]
pub fn current() -> Option<Area> {
    let base = BASE.load(Relaxed);
    (base != 0).then_some(Area(base))
}

/// Reserves it. Called by the constructor only.
pub fn reserve() -> Option<Area> {
    let start = sys::map(GuardArea::LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE).ok()?;
    sys::name_mapping(start, GuardArea::LEN, c"holdfast slots");
    if !sys::wipe_on_fork(start, PAGE) {
        // SAFETY: mapped above, and nothing else knows it.
        let _ = unsafe { sys::unmap(start, GuardArea::LEN) };
        return None;
    }
    BASE.store(start.addr(), Relaxed);
    current()
}

impl Area {
    /// Its first byte.
    pub fn address(self) -> u64 {
        self.0 as u64
    }
    fn at<T>(self, offset: usize, index: usize, count: usize) -> &'static T {
        let place = self.0 + offset + index.min(count - 1) * size_of::<T>();
        // SAFETY: all callers name a table of `count` entries of the area, which stays mapped; T is an atomic there.
        unsafe { &*core::ptr::with_exposed_provenance::<T>(place) }
    }
    /// The word at a byte offset below [`GuardArea::FLAGS`].
    #[inline(always)]
    pub fn word(self, offset: usize) -> &'static AtomicU64 {
        self.at(0, offset / 8, GuardArea::FLAGS / 8)
    }
    /// What the agent says of a page.
    pub fn flag(self, page: usize) -> &'static AtomicU8 {
        self.at(GuardArea::FLAGS, page, GuardArea::MAX_PAGES)
    }
    /// What threads of the program say of it.
    pub fn state(self, page: usize) -> &'static AtomicU32 {
        self.at(GuardArea::STATE, page, GuardArea::MAX_PAGES)
    }
    /// An entry of the log.
    pub fn log(self, index: usize) -> &'static AtomicU32 {
        self.at(GuardArea::LOG, index, GuardArea::MAX_PAGES)
    }
    /// An entry of the ring of free slots.
    pub fn ring(self, index: usize) -> &'static AtomicU32 {
        self.at(GuardArea::RING, index, GuardArea::MAX_SLOTS)
    }
    /// First byte of a slot.
    pub fn slot(self, number: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(
            self.0 + GuardArea::SLOTS + number.min(GuardArea::MAX_SLOTS - 1) * PAGE,
        )
    }
    /// A row of the table of ranges.
    pub fn range(self, index: usize) -> Range {
        let row = GuardArea::RANGE_TABLE + index.min(GuardArea::MAX_RANGES - 1) * GuardArea::RANGE_ENTRY;
        let field = |offset: usize| self.word(row + offset).load(Relaxed) as usize;
        Range {
            start: field(GuardRange::START),
            end: field(GuardRange::END),
            first: field(GuardRange::FIRST),
        }
    }
}
