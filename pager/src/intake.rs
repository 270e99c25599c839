//! What a pre-copy stores: as much as it may, as long as little of it has to be stored again.
//!
//! Used by the agent while the program runs. A page that is written before its turn is left alone, because it will be
//! stored after the stop anyway. One that is written after it was handed out was stored in vain: as many may be as are
//! one page in [`SHARE`] of the image, and half of those that are dirty. What the program will write
//! until the stop is taken to be as much as it wrote since it was looked at last, and to be all pages that were stored:
//! a program that goes through its memory may be right behind what is stored. Pages that are written over and over
//! again count once, so that the rate falls as soon as they are all known.
//!
//! Programs that go through their memory mostly do so upwards, again and again: the pages right below the place where
//! one is seen writing are those that it will write last. So pages are handed out downwards from there. Where writes
//! have no such order, none is better than another.
//!
//! Invariants: no clock and no system call, time and what was written come in; every page is handed out once in a pass;
//! what is not handed out costs time after the stop, never a page.

use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::time::Duration;

/// For one page in so many of the image, a page may be stored in vain.
pub const SHARE: u64 = 20;
/// So few pages may be stored in vain whatever there is: 1 MiB.
pub const LEAST: PageCount = PageCount((1 << 20) / PAGE_SIZE);
/// Shorter runs of written pages are no sign of a program that goes through its memory.
const FRONT: PageCount = PageCount(16);

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct Intake {
    /// What waits; the end of the last run is the next.
    waiting: Vec<PageRun>,
    /// What is below it goes first.
    front: Addr,
    /// What was handed out, and not written since; and since it was looked last.
    kept: PageSet,
    taken: Vec<PageRun>,
    /// How many pages may be stored in vain, and were.
    most: PageCount,
    lost: PageCount,
    /// Pages that are written in a second.
    rate: f64,
    /// How many pages may still be handed out, where that is bounded.
    trusted: Option<PageCount>,
}

impl Intake {
    /// Of a checkpoint for which so many pages are dirty, of an image of so many.
    pub fn new(dirty: PageCount, image: PageCount) -> Intake {
        let most = Intake::most(dirty, image);
        let (front, lost) = (Addr(u64::MAX), PageCount(0));
        let (waiting, kept, taken) = (Vec::new(), PageSet::new(), Vec::new());
        Intake { waiting, front, kept, taken, most, lost, rate: 0.0, trusted: None }
    }
    /// Of a program that was not seen writing, and then wrote more at once than may be stored in vain: no more than
    /// that is handed out at all.
    #[must_use]
    pub fn wary(self) -> Intake {
        Intake { trusted: Some(self.most), ..self }
    }
    /// How many pages may be stored in vain of a checkpoint for which so many are dirty, of an image of so many.
    pub fn most(dirty: PageCount, image: PageCount) -> PageCount {
        PageCount((image.0 / SHARE).min(dirty.0 / 2)).max(LEAST)
    }
    /// A pass begins, which is to store `pages`; `written`: what was written since the one before, those included.
    pub fn begin(&mut self, pages: PageSet, written: &PageSet) {
        self.lose(written);
        self.front = Addr(u64::MAX);
        self.wait_for(pages);
        self.rate = 0.0;
    }
    /// All that was written since the pass began; so much later than it was looked last, or than the beginning.
    pub fn saw(&mut self, written: &PageSet, within: Duration) {
        let before = self.waiting().0;
        let lost = self.lose(written);
        let longest = written.runs().iter().max_by_key(|run| run.pages).filter(|run| run.pages >= FRONT);
        if let Some(longest) = longest.filter(|_| !self.has_begun()) {
            self.front = longest.start;
        }
        self.wait_for(self.all_waiting().difference(written));
        let fresh = lost.0 + (before - self.waiting().0);
        self.rate = fresh as f64 / within.as_secs_f64().max(1e-6);
    }
    fn all_waiting(&self) -> PageSet {
        self.waiting.iter().copied().collect()
    }
    fn all_kept(&self) -> PageSet {
        self.kept.union(&self.taken.iter().copied().collect())
    }
    fn wait_for(&mut self, pages: PageSet) {
        self.waiting = pages.into_runs();
        let below = self.waiting.partition_point(|run| run.start < self.front);
        self.waiting.rotate_left(below);
    }
    fn lose(&mut self, written: &PageSet) -> PageCount {
        let all = self.all_kept();
        self.taken.clear();
        let before = all.pages().0;
        self.kept = all.difference(written);
        let lost = PageCount(before - self.kept.pages().0);
        self.lost.0 += lost.0;
        lost
    }
    /// What is worth looking at.
    pub fn watched(&self) -> PageSet {
        self.all_waiting().union(&self.all_kept())
    }
    /// Pages that wait.
    pub fn waiting(&self) -> PageCount {
        PageCount(self.waiting.iter().map(|run| run.pages.0).sum())
    }
    /// How many pages may still be stored in vain.
    pub fn left(&self) -> PageCount {
        PageCount(self.most.0.saturating_sub(self.lost.0))
    }
    /// Whether something was handed out that was not written since.
    pub fn has_begun(&self) -> bool {
        !self.kept.is_empty() || !self.taken.is_empty()
    }
    /// Whether more may be handed out, if the stop is so far ahead.
    pub fn has_room(&self, ahead: Duration) -> bool {
        self.left().0 > 0
            && self.trusted != Some(PageCount(0))
            && self.rate * ahead.as_secs_f64() <= self.left().0 as f64
    }
    /// Hands out the next pages, at most so many: appends them to `into`, ascending but where it goes on from the top.
    pub fn take(&mut self, most: PageCount, into: &mut Vec<PageRun>) {
        let mut room = self.trusted.map_or(most, |trusted| trusted.min(most)).0;
        let before = into.len();
        while room > 0
            && let Some(run) = self.waiting.pop()
        {
            let pages = run.pages.0.min(room);
            let now = PageRun { start: Addr(run.end().0 - pages * PAGE_SIZE), pages: PageCount(pages) };
            if run.start < now.start {
                self.waiting.push(PageRun::between(run.start, now.start));
            }
            room -= pages;
            into.push(now);
        }
        if let Some(trusted) = &mut self.trusted {
            trusted.0 -= into[before..].iter().map(|run| run.pages.0).sum::<u64>();
        }
        into[before..].reverse();
        self.taken.extend_from_slice(&into[before..]);
    }
    /// Nothing more is to be handed out.
    pub fn give_up(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);
    const AHEAD: Duration = Duration::from_millis(100);

    fn run(from: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(from * PAGE_SIZE), pages: PageCount(pages) }
    }
    fn set(runs: &[PageRun]) -> PageSet {
        runs.iter().copied().collect()
    }
    fn begun(pages: u64) -> Intake {
        let mut intake = Intake::new(PageCount(pages), PageCount(pages));
        intake.begin(set(&[run(0, pages)]), &PageSet::new());
        intake
    }

    #[test]
    fn what_is_not_written_is_all_handed_out_once() {
        let mut intake = begun(1000);
        let mut all = Vec::new();
        while intake.waiting().0 > 0 {
            assert!(intake.has_room(AHEAD));
            let before = all.len();
            intake.take(PageCount(300), &mut all);
            assert!(all.len() > before);
            intake.saw(&PageSet::new(), 20 * MS);
        }
        assert_eq!(all.iter().map(|run| run.pages.0).sum::<u64>(), 1000);
        assert_eq!(set(&all), set(&[run(0, 1000)]));
        assert_eq!(intake.watched(), set(&[run(0, 1000)]));
    }

    #[test]
    fn what_is_written_before_its_turn_is_left_alone_and_what_was_stored_counts() {
        let mut intake = begun(100_000);
        intake.take(PageCount(10_000), &mut Vec::new());
        assert_eq!(intake.left(), PageCount(5000));
        intake.saw(&set(&[run(89_000, 2000)]), 20 * MS);
        assert_eq!((intake.left(), intake.waiting()), (PageCount(4000), PageCount(89_000)));
        // Seen once more: nothing new.
        intake.saw(&set(&[run(89_000, 2000)]), 20 * MS);
        assert_eq!((intake.left(), intake.waiting()), (PageCount(4000), PageCount(89_000)));
        // The next pass may store it again; what it finds written and was stored is lost, too.
        intake.begin(set(&[run(88_000, 4000)]), &set(&[run(88_000, 4000)]));
        assert_eq!((intake.left(), intake.waiting()), (PageCount(3000), PageCount(4000)));
        intake.give_up();
        assert_eq!((intake.waiting(), intake.watched()), (PageCount(0), set(&[run(92_000, 8000)])));
    }

    #[test]
    fn a_program_that_wrote_all_at_once_is_not_trusted_with_more_than_may_be_lost() {
        let mut intake = begun(100_000).wary();
        let mut all = Vec::new();
        while intake.has_room(AHEAD) {
            intake.take(PageCount(1500), &mut all);
            intake.saw(&PageSet::new(), 20 * MS);
        }
        assert_eq!((set(&all).pages(), intake.waiting()), (intake.left(), PageCount(95_000)));
    }

    #[test]
    fn what_a_sweep_has_just_left_behind_goes_first() {
        let mut intake = begun(1000);
        intake.saw(&set(&[run(400, 50)]), 10 * MS);
        let mut all = Vec::new();
        for _ in 0..3 {
            intake.take(PageCount(350), &mut all);
        }
        assert_eq!(all, [run(50, 350), run(700, 300), run(0, 50), run(450, 250)]);
    }

    #[test]
    fn nothing_is_stored_of_a_program_that_may_write_it_all_before_the_stop() {
        let mut intake = begun(100_000);
        intake.saw(&set(&[run(0, 501)]), 10 * MS);
        assert!(!intake.has_room(AHEAD));
        // Written again: known by now.
        intake.saw(&set(&[run(0, 502)]), 10 * MS);
        assert!(intake.has_room(AHEAD));
        assert_eq!(begun(10).left(), LEAST);
        let little = Intake::new(PageCount(1000), PageCount(100_000));
        assert_eq!(little.left(), PageCount(500), "half of what is dirty");
    }

    /// A program in virtual time.
    #[derive(Clone, Copy, Debug)]
    struct Program {
        pages: u64,
        /// Pages that it writes in a millisecond.
        pace: u64,
        /// 0: a sweep; else so many of ten writes go to one tenth of the pages, the others anywhere.
        hot: u64,
    }

    impl Program {
        fn writes(self, millisecond: u64) -> PageSet {
            let one = |count: u64| {
                let random = count.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    ^ (count >> 3).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let page = match self.hot {
                    0 => count % self.pages,
                    hot if random % 10 < hot => (random >> 20) % (self.pages / 10),
                    _ => (random >> 20) % self.pages,
                };
                run(page, 1)
            };
            (millisecond * self.pace..(millisecond + 1) * self.pace).map(one).collect()
        }
    }

    /// A pre-copy of a program, by workers that store `speed` pages in a millisecond; a look every 20 ms, the stop 50
    /// ms after the last page was taken. Returns the pages that were stored, and those of them that were written
    /// again.
    fn simulate(program: Program, speed: u64) -> (u64, u64) {
        let mut intake = begun(program.pages);
        let mut written = PageSet::new();
        let (mut now, mut looked, mut stored) = (0, 20, PageSet::new());
        let step = |written: &mut PageSet, now: &mut u64| {
            *written = written.union(&program.writes(*now));
            *now += 1;
        };
        while now < 20 {
            step(&mut written, &mut now);
        }
        intake.saw(&written, 20 * MS);
        let mut tries = 5;
        while intake.waiting().0 > 0 && tries > 0 {
            let mut taken = Vec::new();
            if intake.has_room(AHEAD) {
                intake.take(PageCount(speed), &mut taken);
            } else if now == looked {
                tries = if intake.has_begun() { 0 } else { tries - 1 };
            }
            stored = stored.union(&PageSet::from(taken));
            step(&mut written, &mut now);
            if now >= looked + 20 {
                intake.saw(&written, 20 * MS);
                looked = now;
            }
        }
        for _ in 0..50 {
            step(&mut written, &mut now);
        }
        // `written` is all since the pass: what was written before it was stored was not handed out, but for the time
        // between two looks, and that is lost as well.
        (stored.pages().0, stored.intersection(&written).pages().0)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        #[test]
        fn one_page_in_twenty_is_the_most_that_is_stored_in_vain(
            pages in 5_000..60_000_u64, pace in 0..300_u64, speed in 20..400_u64, hot in 0..10_u64,
        ) {
            let program = Program { pages, pace, hot };
            let (stored, in_vain) = simulate(program, speed);
            let most = (pages / SHARE).max(LEAST.0);
            prop_assert!(in_vain <= most + most / 5, "{in_vain} of {stored}, at most {most}: {program:?} {speed}");
            if pace == 0 {
                prop_assert_eq!((stored, in_vain), (pages, 0));
            }
        }
    }

    #[test]
    fn most_of_a_heap_that_is_written_slowly_is_stored_before_the_stop() {
        for hot in [0, 5, 9] {
            // 1 GiB, stored at 800 MB/s; 40 MB/s are written.
            let (stored, in_vain) = simulate(Program { pages: 262_144, pace: 10, hot }, 200);
            assert!(stored > 262_144 * 9 / 10 && in_vain <= 262_144 / 20, "{hot}: {stored}, {in_vain}");
            // Five times as fast.
            let (stored, _) = simulate(Program { pages: 262_144, pace: 50, hot }, 200);
            assert!(stored > 262_144 / 2, "{hot}: {stored}");
        }
    }
}
