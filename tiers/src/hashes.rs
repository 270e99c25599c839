//! Content hashes of pages, 128 bits each, by address.
//!
//! Kept in the agent's memory only: they tell whether a page that was read is still what the parent holds. 16 bytes a
//! page, in tables for 2 MiB each that an image and its successor share until one of them changes.
//! Invariant: 0 means "not known", and is the hash of no page.

use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};
use std::collections::BTreeMap;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Pages of one table: 2 MiB of memory.
const PAGES: u64 = 512;

type Table = [u128; PAGES as usize];

/// The hash of a page.
pub(crate) fn hash_of(page: &[u8]) -> u128 {
    xxh3_128(page).max(1)
}

/// See the head of the file.
#[derive(Clone, Default)]
pub(crate) struct Hashes {
    tables: BTreeMap<u64, Arc<Table>>,
}

fn split(page: Addr) -> (u64, usize) {
    let number = page.0 / PAGE_SIZE;
    (number / PAGES, (number % PAGES) as usize)
}

impl Hashes {
    /// The hash of the page at this address; 0: not known.
    pub(crate) fn get(&self, page: Addr) -> u128 {
        let (table, slot) = split(page);
        self.tables.get(&table).map_or(0, |table| table[slot])
    }

    pub(crate) fn set(&mut self, page: Addr, hash: u128) {
        let (table, slot) = split(page);
        let table = self.tables.entry(table).or_insert_with(|| Arc::new([0; PAGES as usize]));
        Arc::make_mut(table)[slot] = hash;
    }

    /// Takes over all hashes that `newer` knows.
    pub(crate) fn overlay(&mut self, newer: Hashes) {
        for (number, newer) in newer.tables {
            let Some(table) = self.tables.get_mut(&number) else {
                self.tables.insert(number, newer);
                continue;
            };
            let table = Arc::make_mut(table);
            for (own, new) in table.iter_mut().zip(newer.iter()).filter(|(_, new)| **new != 0) {
                *own = *new;
            }
        }
    }

    /// Forgets the pages of a run.
    pub(crate) fn forget(&mut self, run: PageRun) {
        let (first, end) = (run.start.0 / PAGE_SIZE, run.end().0 / PAGE_SIZE);
        for (number, table) in self.tables.range_mut(first / PAGES..end.div_ceil(PAGES)) {
            let base = number * PAGES;
            let from = first.saturating_sub(base).min(PAGES) as usize;
            let to = end.saturating_sub(base).min(PAGES) as usize;
            if table[from..to].iter().any(|&hash| hash != 0) {
                Arc::make_mut(table)[from..to].fill(0);
            }
        }
    }

    /// Forgets every page that lies in none of `runs`, which are ascending.
    pub(crate) fn keep(&mut self, runs: impl Iterator<Item = PageRun>) {
        let mut runs = runs.peekable();
        self.tables.retain(|number, table| {
            let (base, end) = (number * PAGES, (number + 1) * PAGES);
            let mut kept = [false; PAGES as usize];
            while let Some(run) = runs.peek() {
                let (from, to) = (run.start.0 / PAGE_SIZE, run.end().0 / PAGE_SIZE);
                if from < end && to > base {
                    kept[(from.max(base) - base) as usize..(to.min(end) - base) as usize].fill(true);
                }
                if to > end {
                    break;
                }
                runs.next();
            }
            if table.iter().zip(&kept).any(|(&hash, &kept)| hash != 0 && !kept) {
                let table = Arc::make_mut(table);
                for (hash, _) in table.iter_mut().zip(&kept).filter(|(_, kept)| !**kept) {
                    *hash = 0;
                }
            }
            table.iter().any(|&hash| hash != 0)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::PageCount;

    fn run(page: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) }
    }

    #[test]
    fn what_is_not_kept_is_not_known() {
        let mut hashes = Hashes::default();
        let known = |hashes: &Hashes| -> Vec<u64> {
            (0..4096).filter(|page| hashes.get(Addr(page * PAGE_SIZE)) != 0).collect()
        };
        for page in (0..2048).step_by(2) {
            hashes.set(Addr(page * PAGE_SIZE), u128::from(page) + 1);
        }
        let older = hashes.clone();
        hashes.keep([run(3, 2), run(510, 4), run(700, 1), run(900, 700)].into_iter());
        let expected: Vec<u64> = [4, 510, 512, 700].into_iter().chain((900..1600).step_by(2)).collect();
        assert_eq!(known(&hashes), expected);
        hashes.forget(run(510, 391));
        assert_eq!(known(&hashes), [4].into_iter().chain((902..1600).step_by(2)).collect::<Vec<_>>());
        assert_eq!(known(&older).len(), 1024, "tables are shared, not changed");
        hashes.overlay(older);
        assert_eq!(known(&hashes).len(), 1024);
        assert!(hash_of(&[0; 4096]) != 0);
    }
}
