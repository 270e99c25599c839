//! The area of engine `slots`: where its tables lie, and typed access to them.
//!
//! Runs in: the host program, any thread, also in the handler of SIGSEGV.
//! Invariants: the numbers are those of `holdfast_image::control::GuardArea` (compared by a test). The area is reserved
//! once, in the constructor, and never unmapped; untouched pages cost nothing.
//! Fails by: [`current`] is `None` where the program was not started with the engine or the room was refused.
//!
//! # Safety
//! Tables are reached by numbers that are bounded here; all entries are atomics, valid at any content.
#![allow(unsafe_code)]

use crate::sys;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

pub const ARMED: usize = 0;
pub const HANDLER: usize = 4096;
pub const THREAD: usize = 4104;
pub const FREE_HEAD: usize = 8192;
pub const LOG_HEAD: usize = 8200;
pub const DOUBT: usize = 8208;
pub const ABANDONED: usize = 8216;
pub const INSIDE: usize = 8224;
pub const RANGES: usize = 12288;
pub const GROUP: usize = 12296;
pub const POOL: usize = 12304;
pub const FREE_TAIL: usize = 12312;
pub const HEARTBEAT: usize = 12320;
pub const LAST: usize = 12328;
pub const LARGE_COUNT: usize = 16384;
pub const LARGE_TABLE: usize = 16392;
pub const LARGE_MAX: usize = 16384;
pub const LARGE_LEN: usize = 1 << 20;
pub const RANGE_TABLE: usize = 294_912;
pub const MAX_RANGES: usize = 20_480;
pub const WAITERS: usize = 786_432;
pub const MAX_WAITERS: usize = 512;
pub const FLAGS: usize = 790_528;
pub const DONE: u8 = 1;
pub const LIKELY: u8 = 2;
pub const MAX_PAGES: usize = 1 << 24;
pub const STATE: usize = FLAGS + MAX_PAGES;
pub const BUSY: u32 = 1 << 31;
pub const GONE: u32 = 1 << 30;
pub const OPENED: u32 = (1 << 30) - 1;
pub const LOG: usize = STATE + 4 * MAX_PAGES;
pub const WAIT: u32 = 1;
pub const COW: u32 = 2;
pub const AVOIDED: u32 = 3;
pub const PREDICTED: u32 = 1 << 28;
pub const RING: usize = LOG + 4 * MAX_PAGES;
pub const MAX_SLOTS: usize = 1 << 20;
pub const SLOTS: usize = RING + 4 * MAX_SLOTS;
pub const LEN: usize = SLOTS + PAGE * MAX_SLOTS;
pub const MAX_GROUP: u64 = 64;
/// Bytes in a page of x86-64.
pub const PAGE: usize = 4096;

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
    let start = sys::map(LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE).ok()?;
    sys::name_mapping(start, LEN, c"holdfast slots");
    if !sys::wipe_on_fork(start, PAGE) {
        // SAFETY: mapped above, nobody knows it.
        let _ = unsafe { sys::unmap(start, LEN) };
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
    /// The word at a byte offset below [`FLAGS`].
    #[inline(always)]
    pub fn word(self, offset: usize) -> &'static AtomicU64 {
        self.at(0, offset / 8, FLAGS / 8)
    }
    /// What the agent says of a page.
    pub fn flag(self, page: usize) -> &'static AtomicU8 {
        self.at(FLAGS, page, MAX_PAGES)
    }
    /// What threads of the program say of it.
    pub fn state(self, page: usize) -> &'static AtomicU32 {
        self.at(STATE, page, MAX_PAGES)
    }
    /// An entry of the log.
    pub fn log(self, index: usize) -> &'static AtomicU32 {
        self.at(LOG, index, MAX_PAGES)
    }
    /// An entry of the ring of free slots.
    pub fn ring(self, index: usize) -> &'static AtomicU32 {
        self.at(RING, index, MAX_SLOTS)
    }
    /// First byte of a slot.
    pub fn slot(self, number: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.0 + SLOTS + number.min(MAX_SLOTS - 1) * PAGE)
    }
    /// A row of the table of ranges.
    pub fn range(self, index: usize) -> Range {
        let row = RANGE_TABLE + index.min(MAX_RANGES - 1) * 24;
        let field = |offset: usize| self.word(row + offset).load(Relaxed) as usize;
        Range { start: field(0), end: field(8), first: field(16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::control::{GuardArea, SharedPage};

    #[test]
    fn the_layout_is_the_one_that_the_agent_knows() {
        macro_rules! same {
            ($($name:ident)*) => { $(assert_eq!($name as u64, GuardArea::$name as u64, stringify!($name));)* };
        }
        same!(ARMED HANDLER THREAD FREE_HEAD LOG_HEAD DOUBT ABANDONED INSIDE RANGES GROUP POOL FREE_TAIL HEARTBEAT LAST);
        same!(LARGE_COUNT LARGE_TABLE LARGE_MAX LARGE_LEN RANGE_TABLE MAX_RANGES WAITERS MAX_WAITERS FLAGS DONE LIKELY);
        same!(MAX_PAGES STATE BUSY GONE OPENED LOG WAIT COW AVOIDED PREDICTED RING MAX_SLOTS SLOTS LEN MAX_GROUP);
        assert_eq!(crate::shared::GUARD_AREA, SharedPage::GUARD_AREA);
        const { assert!(LARGE_TABLE + 16 * LARGE_MAX <= GuardArea::TABLES) };
        const { assert!(RANGE_TABLE >= GuardArea::TABLES && RANGE_TABLE + 24 * MAX_RANGES <= WAITERS) };
        const {
            assert!(
                WAITERS + 8 * MAX_WAITERS <= FLAGS
                    && STATE.is_multiple_of(PAGE)
                    && SLOTS.is_multiple_of(PAGE)
            )
        };
    }
}
