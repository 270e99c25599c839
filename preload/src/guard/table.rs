//! Who may write a guarded page, and what must happen before: the protocol between the writers and the agent.
//!
//! Runs in: the handler of SIGSEGV, and wrappers with all signals blocked; raw system calls only.
//! A page of the table is *closed* (state 0, mapped read-only) until a thread opens it. The thread claims it
//! ([`GuardArea::BUSY`]), and only then looks whether the agent has stored it: if so it is opened; if not and a slot is
//! free its content is copied there, the slot is published, then the page is opened; else the claim is given back and
//! the thread waits. The agent marks a page as stored, and only then looks at its state: so either the claim sees the
//! mark, or the agent sees the claim.
//! Invariants: what the agent writes no thread writes, and the other way round. A slot is published before its page is
//! opened, so whatever sees a new byte sees the slot. A page is opened once in an epoch, and logged once. While
//! [`GuardArea::INSIDE`] is not 0 the agent begins no epoch. A thread stays busy for the time of a copy, never while it
//! waits.
//! All interleavings: `model.rs` beside this file.
//! Fails by: [`GuardArea::DOUBT`]: the image of this epoch is given up, the program goes on. A dead agent is found out,
//! and then everything is opened.
//!
//! # Safety
//! Pages are read and reopened only where the agent's table says that they are memory of the program, readable and
//! writable but for the guard.
#![allow(unsafe_code)]

use super::layout::{Area, MAX_WAITERS, Range};
use super::platform;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use holdfast_abi::{GuardArea, PAGE};

/// Time between two looks at a page that is waited for, nanoseconds.
const NAP_NS: i64 = 20_000;
/// An agent that gave no sign for so long is looked after, milliseconds.
const SILENCE_MS: i64 = 200;

/// So many pages were opened one by one: each may have made two mappings, of which a process has 65530. From then on
/// all stored pages around a page are opened with it, up to [`WIDE`] on each side.
const MANY: u64 = 8192;
const WIDE: usize = 512;

/// What became of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// No page of the table.
    Elsewhere,
    /// It had been opened before.
    Open,
    /// It is open now.
    Opened,
}

/// Counts this thread among those that look at the tables.
pub struct Inside(Area);

impl Inside {
    /// Enters. Signals must be blocked: a handler that jumps out would leave the count behind.
    pub fn enter(area: Area) -> Inside {
        area.word(GuardArea::INSIDE).fetch_add(1, SeqCst);
        Inside(area)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.word(GuardArea::INSIDE).fetch_sub(1, SeqCst);
    }
}

/// Number of ranges, and of those that end at or below `address`.
fn place(area: Area, address: usize) -> (usize, usize) {
    let count = (area.word(GuardArea::RANGES).load(Acquire) as usize).min(GuardArea::MAX_RANGES);
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if area.range(middle).end <= address {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (count, low)
}

/// The range and number of the page at `address`.
pub fn find(area: Area, address: usize) -> Option<(Range, usize)> {
    let (count, index) = place(area, address);
    let range = area.range(index);
    (index < count && range.start <= address).then(|| (range, range.first + (address - range.start) / PAGE))
}

/// Whether something is guarded. A forked child finds out here that it is one, and opens its copy.
pub fn is_armed(area: Area) -> bool {
    if area.word(GuardArea::ARMED).load(Acquire) != 0 {
        return true;
    }
    if area.word(GuardArea::RANGES).load(Acquire) != 0 {
        forked(area);
    }
    false
}

/// In a forked child: its copy of the memory is not flushed, so all of it is opened.
pub fn forked(area: Area) {
    area.word(GuardArea::INSIDE).store(0, Relaxed);
    let count = (area.word(GuardArea::RANGES).load(Acquire) as usize).min(GuardArea::MAX_RANGES);
    for index in 0..count {
        open_rest(area, area.range(index));
    }
    // The agent's word; but no agent knows this memory.
    area.word(GuardArea::RANGES).store(0, Release);
}

/// Sees to it that the page at `address` may be written. `all`: its neighbours will be written as well.
///
/// The caller is [`Inside`].
pub fn resolve(area: Area, address: usize, all: bool) -> Found {
    let Some((range, page)) = find(area, address) else { return Found::Elsewhere };
    let mut waiting = Waiting::new(area);
    let mut first = true;
    loop {
        if area.word(GuardArea::ABANDONED).load(Acquire) != 0 {
            open_rest(area, range);
            return Found::Opened;
        }
        let state = area.state(page).load(Acquire);
        if state & GuardArea::BUSY != 0 {
            platform::nap(1000);
        } else if state != 0 {
            return if first { Found::Open } else { Found::Opened };
        } else if let Some(work) = Work::begin(area, range, page, waiting.pulse.is_some()) {
            work.finish(all);
            return Found::Opened;
        } else if area.state(page).load(Acquire) == 0 {
            waiting.pause(page);
        }
        first = false;
    }
}

/// A page that this thread has claimed, and its neighbours.
struct Work {
    area: Area,
    range: Range,
    page: usize,
}

impl Work {
    /// Claims the page and saves its content if it must be. `None`: another thread has it, or there is no slot.
    fn begin(area: Area, range: Range, page: usize, waited: bool) -> Option<Work> {
        let work = Work { area, range, page };
        if !work.claim(page) {
            return None;
        }
        let stored = area.flag(page).load(SeqCst) & GuardArea::DONE != 0;
        if !stored && !work.save(page) {
            area.state(page).store(0, Release);
            return None;
        }
        work.log(
            page,
            if waited {
                GuardArea::WAIT
            } else if stored {
                GuardArea::AVOIDED
            } else {
                GuardArea::COW
            },
        );
        Some(work)
    }

    fn claim(&self, page: usize) -> bool {
        let claimed = self.area.state(page).compare_exchange(0, GuardArea::BUSY, SeqCst, Relaxed).is_ok();
        platform::order_of_seqcst();
        claimed
    }

    /// Copies the page to a slot and publishes it.
    fn save(&self, page: usize) -> bool {
        let Some(slot) = pop(self.area) else { return false };
        // SAFETY: the page is mapped and readable (the agent's table; wrappers of calls that unmap wait for the claim);
        // the slot is this thread's alone until it is published.
        unsafe { platform::copy_page(self.range.address(page), self.area.slot(slot)) };
        self.area.state(page).store(GuardArea::BUSY | (slot as u32 + 1), SeqCst);
        true
    }

    fn log(&self, page: usize, class: u32) {
        let index = self.area.word(GuardArea::LOG_HEAD).fetch_add(1, AcqRel) as usize;
        if index < GuardArea::MAX_PAGES {
            self.area.log(index).store(page as u32 | class << GuardArea::CLASS_SHIFT, Release);
        }
    }

    /// Opens the page together with neighbours that are stored, or will be written soon and can be copied.
    fn finish(self, all: bool) {
        let group = self.area.word(GuardArea::GROUP).load(Relaxed).clamp(1, GuardArea::MAX_GROUP) as usize;
        let group = if group.is_power_of_two() { group } else { 1 };
        // Groups are aligned by address, so that they do not depend on where a range begins.
        let offset = (self.range.address(self.page) / PAGE) & (group - 1);
        let least = self.page.saturating_sub(offset).max(self.range.first);
        let most = (self.page + (group - offset)).min(self.range.after());
        let (up, down) = direction(self.page, group);
        let (mut low, mut high) = (self.page, self.page + 1);
        while high < most && self.take(high, all || up) {
            high += 1;
        }
        while low > least && self.take(low - 1, all || down) {
            low -= 1;
        }
        if self.area.word(GuardArea::LOG_HEAD).load(Relaxed) > MANY {
            while high < self.range.after().min(self.page + WIDE) && self.take(high, false) {
                high += 1;
            }
            while low > self.range.first.max(self.page.saturating_sub(WIDE)) && self.take(low - 1, false) {
                low -= 1;
            }
        }
        self.open(low, high);
    }

    /// Whether a neighbour may be opened in the same go.
    fn take(&self, page: usize, predicted: bool) -> bool {
        let state = self.area.state(page).load(Acquire);
        if state != 0 {
            return state & (GuardArea::BUSY | GuardArea::GONE) == 0;
        }
        let flag = self.area.flag(page).load(Acquire);
        if flag & GuardArea::DONE == 0
            && !((predicted || flag & GuardArea::LIKELY != 0) && has_plenty(self.area))
        {
            return false;
        }
        if !self.claim(page) {
            return false;
        }
        let stored = self.area.flag(page).load(SeqCst) & GuardArea::DONE != 0;
        if !stored && !self.save(page) {
            self.area.state(page).store(0, Release);
            return false;
        }
        self.log(
            page,
            GuardArea::PREDICTED >> GuardArea::CLASS_SHIFT
                | if stored { GuardArea::AVOIDED } else { GuardArea::COW },
        );
        true
    }

    fn open(&self, low: usize, high: usize) {
        let (start, len) = (self.range.address(low), (high - low) * PAGE);
        // SAFETY: pages of the table that this thread has claimed, or that are open already.
        if unsafe { platform::open_memory(start, len) }.is_err() {
            // Too many mappings (ENOMEM), or the program has changed the mapping behind our back.
            self.area.word(GuardArea::DOUBT).store(1, SeqCst);
            open_rest(self.area, self.range);
        }
        for page in low..high {
            let state = self.area.state(page);
            let value = state.load(Relaxed);
            // No other thread is busy between two pages that were taken.
            if value & GuardArea::BUSY != 0 {
                state.store(
                    if value == GuardArea::BUSY { GuardArea::OPENED } else { value & !GuardArea::BUSY },
                    Release,
                );
            }
        }
    }
}

/// Where writing goes from here, by the page that was resolved before: up, down.
fn direction(page: usize, group: usize) -> (bool, bool) {
    static LAST_PAGE: AtomicUsize = AtomicUsize::new(usize::MAX / 2);
    let last = LAST_PAGE.swap(page, Relaxed);
    (page > last && page - last <= group, page < last && last - page <= group)
}

/// Takes a free slot.
fn pop(area: Area) -> Option<usize> {
    let pool = area.word(GuardArea::POOL).load(Relaxed).min(GuardArea::MAX_SLOTS as u64);
    if pool == 0 {
        return None;
    }
    let head = area.word(GuardArea::FREE_HEAD);
    let mut at = head.load(Acquire);
    while at < area.word(GuardArea::FREE_TAIL).load(Acquire) {
        // Not overwritten before `head` moves: at most `pool` slots are free at once.
        let slot = area.ring((at % pool) as usize).load(Acquire) as usize;
        match head.compare_exchange(at, at + 1, AcqRel, Acquire) {
            Ok(_) => return (slot < GuardArea::MAX_SLOTS).then_some(slot),
            Err(now) => at = now,
        }
    }
    None
}

/// Whether slots may be spent on what is only likely: more than a quarter is free.
fn has_plenty(area: Area) -> bool {
    let free = area
        .word(GuardArea::FREE_TAIL)
        .load(Relaxed)
        .saturating_sub(area.word(GuardArea::FREE_HEAD).load(Relaxed));
    free > area.word(GuardArea::POOL).load(Relaxed) / 4
}

/// Opens what is left of a range, but for what the program has changed itself.
fn open_rest(area: Area, range: Range) {
    let mut page = range.first;
    while page < range.after() {
        let begin = page;
        while page < range.after() && area.state(page).load(Acquire) & GuardArea::GONE == 0 {
            page += 1;
        }
        if begin < page {
            // SAFETY: pages of the table that the program has left as they were.
            let _ = unsafe { platform::open_memory(range.address(begin), (page - begin) * PAGE) };
        }
        page += 1;
    }
}

/// The agent's heartbeat, as one thread has seen it.
pub struct Pulse {
    area: Area,
    beat: u64,
    since_ms: i64,
}

impl Pulse {
    /// From now on.
    pub fn new(area: Area) -> Pulse {
        Pulse {
            area,
            beat: area.word(GuardArea::HEARTBEAT).load(Relaxed),
            since_ms: platform::monotonic_ms(),
        }
    }
    /// For how long it has not moved, milliseconds.
    pub fn silent_ms(&mut self) -> i64 {
        let (beat, now) = (self.area.word(GuardArea::HEARTBEAT).load(Relaxed), platform::monotonic_ms());
        if beat != self.beat {
            (self.beat, self.since_ms) = (beat, now);
        }
        now - self.since_ms
    }
}

/// A thread that waits for the agent.
struct Waiting {
    area: Area,
    /// Since it began to wait.
    pulse: Option<Pulse>,
    entry: Option<usize>,
}

impl Waiting {
    fn new(area: Area) -> Waiting {
        Waiting { area, pulse: None, entry: None }
    }

    /// Tells the agent, sleeps a little, and looks after the agent.
    fn pause(&mut self, page: usize) {
        if self.pulse.is_none() {
            self.entry = (0..MAX_WAITERS).find(|index| {
                let entry = self.area.word(GuardArea::WAITERS + index * 8);
                entry.compare_exchange(0, page as u64 + 1, AcqRel, Relaxed).is_ok()
            });
        }
        let pulse = self.pulse.get_or_insert_with(|| Pulse::new(self.area));
        platform::nap(NAP_NS);
        if pulse.silent_ms() > SILENCE_MS {
            *pulse = Pulse::new(self.area);
            if !platform::agent_is_there() {
                self.area.word(GuardArea::ABANDONED).store(1, Release);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(index) = self.entry {
            self.area.word(GuardArea::WAITERS + index * 8).store(0, Release);
        }
    }
}

/// Opens every page of the range for a system call, or (`gone`) for the program to unmap, move or protect it.
///
/// The caller is [`Inside`].
pub fn prepare(area: Area, start: usize, len: usize, gone: bool) {
    let Some(end) = start.checked_add(len) else { return };
    let (count, first) = place(area, start);
    for index in first..count {
        let range = area.range(index);
        if end <= range.start {
            return;
        }
        let from = start.max(range.start) / PAGE * PAGE;
        let to = end.min(range.end);
        for address in (from..to).step_by(PAGE) {
            resolve(area, address, true);
            if gone {
                let page = range.first + (address - range.start) / PAGE;
                area.state(page).fetch_or(GuardArea::GONE, AcqRel);
            }
        }
    }
}
