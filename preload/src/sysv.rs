//! Tables of System V ids in the page of shared variables: those that the program knows, each with the kernel's.
//!
//! Runs in: the host program, any thread, also in signal handlers. Used by [`crate::segments`] and [`crate::ipc`].
//! Invariants: an id that is not in a table is the same on both sides. Tables are inherited by fork, not by exec.

use crate::shared;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use holdfast_abi::{IdPair, SharedPage};

/// Bit of a kernel's id: the entry is complete.
const VALID: u64 = (SharedPage::IPC_VALID as u64) << 32;

/// Places of a table in the page.
pub struct Table {
    count: usize,
    entries: usize,
    most: usize,
}

/// Of shared memory: written by the agent, and empty but after a restart that could not give all ids back.
pub const SEGMENTS: Table = Table {
    count: SharedPage::SEGMENT_COUNT,
    entries: SharedPage::SEGMENT_TABLE,
    most: SharedPage::SEGMENT_MAX,
};
/// Of shared memory: all that was made or attached, by the ids that the program knows.
pub const USED_SEGMENTS: Table = Table {
    count: SharedPage::USED_SEGMENT_COUNT,
    entries: SharedPage::USED_SEGMENT_TABLE,
    most: SharedPage::USED_SEGMENT_MAX,
};
/// Of semaphore sets: all that were used.
pub const SEMAPHORES: Table = Table {
    count: SharedPage::SEMAPHORE_COUNT,
    entries: SharedPage::SEMAPHORE_TABLE,
    most: SharedPage::IPC_MAX,
};
/// Of message queues: all that were used.
pub const QUEUES: Table =
    Table { count: SharedPage::QUEUE_COUNT, entries: SharedPage::QUEUE_TABLE, most: SharedPage::IPC_MAX };

impl Table {
    /// The first entry (id that the program knows, id of the kernel) that something says anything to.
    fn find<T>(&self, matches: impl Fn(i32, i32) -> Option<T>) -> Option<T> {
        let count = shared::from_agent(self.count).min(self.most as u64) as usize;
        (0..count).find_map(|index| {
            let pair = shared::from_agent(self.entries + index * size_of::<IdPair>());
            if pair == 0 { None } else { matches(pair as i32, (pair >> 32) as i32 & i32::MAX) }
        })
    }

    /// The kernel's id.
    pub fn to_kernel(&self, id: i32) -> i32 {
        self.find(|known, kernel| (known == id).then_some(kernel)).unwrap_or(id)
    }

    /// The id that the program knows.
    pub fn to_known(&self, id: i32) -> i32 {
        self.find(|known, kernel| (kernel == id).then_some(known)).unwrap_or(id)
    }

    /// Takes note of an object that is used, by the kernel's id. `is_gone`: whether there is none with an id any
    /// more; only asked when there is no room.
    pub fn used(&self, kernel: i32, is_gone: impl Fn(i32) -> bool) {
        if kernel < 0 || self.find(|_, other| (other == kernel).then_some(())).is_some() || self.enter(kernel)
        {
            return;
        }
        let mut removed = false;
        self.forget(|other| {
            let gone = is_gone(other);
            removed |= gone;
            gone
        });
        if !removed || !self.enter(kernel) {
            shared::word(self.count).store(self.most as u64 + 1, Relaxed);
        }
    }

    /// Enters an object. Two threads may enter the same one: a reader of the table takes it once.
    fn enter(&self, kernel: i32) -> bool {
        let pair = u64::from(kernel as u32) | u64::from(kernel as u32) << 32 | VALID;
        let taken = (0..self.most).find(|index| {
            let entry = shared::word(self.entries + index * size_of::<IdPair>());
            entry.compare_exchange(0, pair, SeqCst, SeqCst).is_ok()
        });
        let Some(index) = taken else { return false };
        shared::word(self.count).fetch_max(index as u64 + 1, SeqCst);
        true
    }

    /// Takes objects out that are gone.
    pub fn forget(&self, is_gone: impl FnMut(i32) -> bool) {
        let mut is_gone = is_gone;
        for index in 0..self.most {
            let entry = shared::word(self.entries + index * size_of::<IdPair>());
            let pair = entry.load(SeqCst);
            if pair != 0 && is_gone((pair >> 32) as i32 & i32::MAX) {
                // Another thread may have taken it out, and a third one in.
                let _ = entry.compare_exchange(pair, 0, SeqCst, SeqCst);
            }
        }
    }

    /// Gets an id by `call`. One that the program knows as that of something else cannot be used; the kernel gives
    /// another one next time, and `remove` removes the first.
    pub fn get(&self, call: impl Fn() -> isize, remove: impl FnOnce(isize)) -> isize {
        let first = call();
        let is_taken = |id: isize| {
            id >= 0
                && self
                    .find(|known, kernel| (known as isize == id && kernel as isize != id).then_some(()))
                    .is_some()
        };
        if self.to_known(first as i32) as isize != first || !is_taken(first) {
            return self.to_known(first as i32) as isize;
        }
        let second = call();
        if second == first || is_taken(second) {
            return second; // by its key: nothing can be done
        }
        remove(first);
        second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn ids_are_translated_and_one_that_is_known_for_another_is_not_given() {
        let pair = |known: u32, kernel: u32| u64::from(known) | u64::from(kernel) << 32;
        let table = SEGMENTS;
        shared::word(table.entries).store(pair(100, 7100), Relaxed);
        shared::word(table.entries + 8).store(pair(101, 100), Relaxed);
        assert_eq!((table.to_kernel(100), table.to_known(7100)), (100, 7100), "nothing while there are none");
        shared::word(table.count).store(2, Relaxed);
        assert_eq!([table.to_kernel(100), table.to_kernel(101), table.to_kernel(5)], [7100, 100, 5]);
        assert_eq!([table.to_known(7100), table.to_known(100), table.to_known(5)], [100, 101, 5]);
        let (asked, removed) = (Cell::new(0), Cell::new(0));
        let giving = |ids: [isize; 2]| {
            asked.set(0);
            let call = || {
                asked.set(asked.get() + 1);
                ids[asked.get() - 1]
            };
            table.get(call, |id| removed.set(id))
        };
        assert_eq!((giving([7100, 0]), asked.get()), (100, 1));
        assert_eq!((giving([8, 0]), asked.get()), (8, 1));
        assert_eq!((giving([-17, 0]), asked.get()), (-17, 1));
        assert_eq!((giving([101, 9]), asked.get()), (9, 2), "the program would take it for the other one");
        assert_eq!(removed.get(), 101);
        shared::word(table.count).store(u64::MAX, Relaxed);
        assert_eq!(table.to_kernel(3), 3, "a count beyond the table is cut");
        shared::word(table.count).store(0, Relaxed);
    }

    #[test]
    fn what_is_used_is_entered_once_and_what_does_not_fit_is_counted() {
        let table = QUEUES;
        let none = |_| false;
        [7, 7, -1, 0].into_iter().for_each(|id| table.used(id, none));
        assert_eq!(shared::word(table.count).load(Relaxed), 2);
        assert_eq!(shared::word(table.entries).load(Relaxed), 7 | 7 << 32 | VALID);
        assert_eq!((table.to_kernel(0), table.to_known(7), table.get(|| 7, |_| ())), (0, 7, 7));
        let count = || shared::word(table.count).load(Relaxed);
        table.forget(|id| id == 7);
        table.used(9, none);
        assert_eq!((count(), shared::word(table.entries).load(Relaxed) as i32), (2, 9), "room is used again");
        (100..1000).for_each(|id| table.used(id, |other| (100..other.max(id)).contains(&other)));
        assert!(count() <= table.most as u64, "what is gone makes room");
        (1000..1200).for_each(|id| table.used(id, none));
        assert_eq!(count(), table.most as u64 + 1);
        table.forget(|_| true);
        shared::word(table.count).store(0, Relaxed);
    }
}
