//! Guarded memory while the program runs: its content at the cut, page by page, and word of what is stored.
//!
//! Runs in: the flush workers (read, release) and the watcher (poll), at the same time. Why what is read is the
//! content at the cut: a page is read from the program, then the tracker is asked whether it was written since the
//! cut, then the page's state is read. A thread publishes the copy before it opens the page: so if the state still
//! says closed, no thread had opened it when it was read; else the slot has the content. A page that was written and
//! never opened was changed behind the guard (a system call that no wrapper knows, unmapped by one): then the image
//! fails. Invariants: a slot is freed by pushing it to the ring, entry first; only the holder of the lock pushes.
//! Fails by: an error from [`Guard::read`]: the checkpoint must fail. The program goes on in any case.

use super::plan::Layout;
use super::remote::Remote;
use holdfast_abi::GuardArea;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_sys::pagemap::{self, IS_PRESENT, IS_SWAPPED, IS_WRITTEN};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::atomic::{Ordering, fence};

/// How the first write to a page went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The writer waited.
    Wait,
    /// The page was copied to a slot.
    Cow,
    /// The page had been stored.
    Avoided,
}

/// A page that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Which.
    pub page: Addr,
    /// How.
    pub class: Class,
    /// Along with a neighbour: it may not have been written at all.
    pub predicted: bool,
}

/// What happened since the last [`Guard::poll`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// Pages that threads wait for just now.
    pub waiting: Vec<Addr>,
    /// Pages that were opened, in this order.
    pub seen: Vec<Seen>,
    /// Slots in use.
    pub used: PageCount,
    /// The image of this epoch must fail.
    pub doubt: bool,
}

#[derive(Debug, Default)]
struct State {
    tail: u64,
    /// Entries of the log that were read.
    logged: u64,
    heartbeat: u64,
    /// Released pages that a thread was just copying: their slots are freed later.
    late: HashSet<u64>,
}

/// Guarded memory of one epoch.
#[derive(Debug)]
pub struct Guard {
    remote: Remote,
    pid: i32,
    layout: Layout,
    pagemap: File,
    state: Mutex<State>,
}

fn wrong(what: String) -> io::Error {
    io::Error::other(what)
}

impl Guard {
    /// For a program that was just armed.
    pub(super) fn new(remote: Remote, pid: i32, layout: Layout, pagemap: File) -> Guard {
        let state = State { tail: layout.slots, ..State::default() };
        Guard { remote: remote.by(pid), pid, layout, pagemap, state: Mutex::new(state) }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    /// Guarded dirty pages.
    pub fn pages(&self) -> &PageSet {
        &self.layout.pages
    }
    /// Slots in all.
    pub fn slots(&self) -> PageCount {
        PageCount(self.layout.slots)
    }
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }
    pub(super) fn remote(&self) -> Remote {
        self.remote
    }

    /// Fills `buffer` with the guarded pages from `start` on, as they were at the cut.
    ///
    /// # Errors
    /// The program ended, or changed a page behind the guard: the checkpoint must fail.
    pub fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
        let pages = buffer.len() as u64 / PAGE_SIZE;
        let (range, first) = self
            .layout
            .find(start)
            .filter(|(range, first)| first + pages <= range.first + range.run.pages.0)
            .ok_or_else(|| wrong(format!("the page at {start} is not guarded")))?;
        self.read_program(start, buffer)?;
        fence(Ordering::SeqCst);
        let intact = self.intact(start, pages)?;
        fence(Ordering::SeqCst);
        let states = self.remote.states(first, pages)?;
        for (index, (&state, page)) in
            states.iter().zip(buffer.chunks_exact_mut(PAGE_SIZE as usize)).enumerate()
        {
            let address = range.address(first + index as u64);
            match state & !(GuardArea::BUSY | GuardArea::GONE) {
                0 if state & GuardArea::GONE == 0 && intact.contains(address) => {}
                0 | GuardArea::OPENED => {
                    return Err(wrong(format!(
                        "the page at {address} changed behind the guard: a system call wrote to it, or unmapped it, \
                         past libholdfast; use another engine for this program"
                    )));
                }
                slot => self.read_slot(slot - 1, page)?,
            }
        }
        Ok(())
    }

    fn read_program(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
        use holdfast_sys::procmem;
        let Err(error) = procmem::read(self.pid, start.0, buffer) else { return Ok(()) };
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Err(wrong("the program ended before its image was stored".into()));
        }
        // A page that was saved may have been unmapped since: the others are read one by one.
        for (index, page) in buffer.chunks_exact_mut(PAGE_SIZE as usize).enumerate() {
            let _ = procmem::read(self.pid, start.0 + index as u64 * PAGE_SIZE, page);
        }
        Ok(())
    }

    /// The pages from `start` on that are there and were not written since the cut.
    fn intact(&self, start: Addr, pages: u64) -> io::Result<PageSet> {
        let mut runs = Vec::new();
        let end = start.0 + pages * PAGE_SIZE;
        let any = IS_PRESENT | IS_SWAPPED;
        pagemap::scan(&self.pagemap, start.0, end, any, any | IS_WRITTEN, |region| {
            if region.categories & IS_WRITTEN == 0 {
                runs.push(PageRun::between(Addr(region.start), Addr(region.end)));
            }
        })?;
        Ok(PageSet::from(runs))
    }

    fn read_slot(&self, slot: u32, page: &mut [u8]) -> io::Result<()> {
        if u64::from(slot) >= self.layout.slots {
            return Err(wrong(format!("slot {slot} of {} does not exist", self.layout.slots)));
        }
        self.remote.read(GuardArea::SLOTS + slot as usize * PAGE_SIZE as usize, page)
    }

    /// `run` is stored: its pages may be written freely, and their slots are free again.
    ///
    /// # Errors
    /// The program ended.
    pub fn release(&self, run: PageRun) -> io::Result<()> {
        for (first, count) in self.layout.parts(run) {
            self.remote.flag(first, count, GuardArea::DONE)?;
            // The mark before the look, as the handler claims before it looks at the mark.
            fence(Ordering::SeqCst);
            let states = self.remote.states(first, count)?;
            let mut state = self.state();
            let mut free = Vec::new();
            for (page, value) in (first..).zip(states) {
                match value & !(GuardArea::BUSY | GuardArea::GONE) {
                    0 if value & GuardArea::BUSY != 0 => {
                        state.late.insert(page);
                    }
                    0 | GuardArea::OPENED => {}
                    slot => free.push(slot - 1),
                }
            }
            self.push(&mut state, &free)?;
        }
        Ok(())
    }

    fn push(&self, state: &mut State, slots: &[u32]) -> io::Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        for slot in slots {
            let entry = usize::try_from(state.tail % self.layout.slots.max(1)).unwrap_or(0);
            self.remote.write(GuardArea::RING + entry * 4, &slot.to_le_bytes())?;
            state.tail += 1;
        }
        fence(Ordering::SeqCst);
        self.remote.set(GuardArea::FREE_TAIL, state.tail)
    }

    /// Shows the program that the agent lives, and looks at what happened. To be called every 100 us or so while the
    /// flush goes on, and every 100 ms at the very least.
    ///
    /// # Errors
    /// The program ended.
    pub fn poll(&self) -> io::Result<Events> {
        let mut state = self.state();
        state.heartbeat += 1;
        self.remote.set(GuardArea::HEARTBEAT, state.heartbeat)?;
        let late: Vec<u64> = state.late.iter().copied().collect();
        for page in late {
            let value = self.remote.states(page, 1)?.first().copied().unwrap_or(0);
            match value & !(GuardArea::BUSY | GuardArea::GONE) {
                0 if value & GuardArea::BUSY != 0 => continue,
                0 | GuardArea::OPENED => {}
                slot => self.push(&mut state, &[slot - 1])?,
            }
            state.late.remove(&page);
        }
        let words = self.remote.words(GuardArea::FREE_HEAD, 4)?;
        let word = |offset: usize| words.get((offset - GuardArea::FREE_HEAD) / 8).copied().unwrap_or(0);
        let mut events = Events {
            used: PageCount((word(GuardArea::FREE_HEAD) + self.layout.slots).saturating_sub(state.tail)),
            doubt: word(GuardArea::DOUBT) != 0 || word(GuardArea::ABANDONED) != 0,
            ..Events::default()
        };
        self.read_log(&mut state, word(GuardArea::LOG_HEAD), &mut events)?;
        let waiting = self.remote.words(GuardArea::WAITERS, GuardArea::MAX_WAITERS)?;
        let waited = waiting.into_iter().filter_map(|number| self.layout.address(number.checked_sub(1)?));
        events.waiting = waited.collect();
        Ok(events)
    }

    fn read_log(&self, state: &mut State, head: u64, events: &mut Events) -> io::Result<()> {
        /// Entries per call.
        const STEP: u64 = 1 << 16;
        let count = head.min(GuardArea::MAX_PAGES as u64).saturating_sub(state.logged).min(STEP);
        let from = usize::try_from(state.logged).unwrap_or(0);
        let entries = self.remote.halves(GuardArea::LOG + from * 4, usize::try_from(count).unwrap_or(0))?;
        // 0: its number was taken, but it is not written yet.
        for entry in entries.into_iter().take_while(|entry| *entry != 0) {
            state.logged += 1;
            let class = match entry >> GuardArea::CLASS_SHIFT & GuardArea::CLASS_MASK {
                GuardArea::WAIT => Class::Wait,
                GuardArea::COW => Class::Cow,
                _ => Class::Avoided,
            };
            let predicted = entry & GuardArea::PREDICTED != 0;
            if let Some(page) = self.layout.address(u64::from(entry & GuardArea::LOG_PAGE)) {
                events.seen.push(Seen { page, class, predicted });
            }
        }
        Ok(())
    }
}
