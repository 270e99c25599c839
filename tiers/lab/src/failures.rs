//! A program with failures, played through: what the planner's model computes, by drawing lots.
//!
//! Time passes, images are made and copied to their levels, failures come by chance; each image is remembered with the
//! levels that have it. Nothing of the planner's states is used, and nothing is solved, so that a fault in either is
//! seen as a difference. What is assumed is the same: docs/plan.md. Used by tests and by the bench that prints the
//! tables. Invariant: the same seed gives the same run.

use holdfast_tiers::policy::planner::{Level, Schedule};

/// What came of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Played {
    /// The part of its time in which the program did what it did not have to do again.
    pub efficiency: f64,
    /// The standard error of that, by the differences between parts of the run.
    pub error: f64,
    /// How many failures came.
    pub failures: u64,
}

/// Parts of a run, by which its error is told.
const PARTS: u64 = 40;

/// Lots: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
struct Lots(u64);

impl Lots {
    /// From 0 to less than 1.
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn wait(&mut self, rate: f64) -> f64 {
        -(1.0 - self.part()).ln() / rate
    }
}

/// A flush: of the image after so many slots, with so much left.
#[derive(Clone, Copy, Debug)]
struct Flush {
    image: i64,
    left: f64,
}

#[derive(Clone, Debug)]
struct Image {
    /// Slots that the program had done.
    slot: i64,
    /// The levels that have it.
    whole: Vec<bool>,
    /// Flushes that were under way when it had been made.
    flushes: Vec<Option<Flush>>,
}

struct Play<'a> {
    levels: &'a [Level],
    interval: f64,
    periods: Vec<i64>,
    lots: Lots,
    time: f64,
    failures: u64,
    /// Time until the next failure.
    next: f64,
    slot: i64,
    images: Vec<Image>,
    flushes: Vec<Option<Flush>>,
}

/// Plays so many failures.
///
/// # Panics
/// The schedule is none of these levels, or a level gets an image before it has the one before.
pub fn play(levels: &[Level], schedule: &Schedule, failures: u64, seed: u64) -> Played {
    let mut play = Play::new(levels, schedule, seed);
    let mut parts: Vec<(f64, f64)> = Vec::new();
    for part in 1..=PARTS {
        let (slot, time) = (play.slot, play.time);
        while play.failures < failures * part / PARTS {
            play.slot();
        }
        parts.push(((play.slot - slot) as f64 * schedule.interval, play.time - time));
    }
    let (work, time) = parts.iter().fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
    let efficiency = work / time;
    // Of a ratio of sums: Cochran, Sampling Techniques, 6.
    let squares: f64 = parts.iter().map(|(work, time)| (work - efficiency * time).powi(2)).sum();
    let count = PARTS as f64;
    let error = (squares / (count - 1.0) / count).sqrt() / (time / count);
    Played { efficiency, error, failures: play.failures }
}

impl<'a> Play<'a> {
    fn new(levels: &'a [Level], schedule: &Schedule, seed: u64) -> Play<'a> {
        let periods = schedule.periods().unwrap_or_default().into_iter().map(i64::from).collect::<Vec<_>>();
        assert_eq!(periods.len(), levels.len(), "a count for each level but the highest");
        let mut lots = Lots(seed);
        let next = lots.wait(levels.iter().map(|level| level.rate).sum());
        let flushes = vec![None; levels.len()];
        let first = Image { slot: 0, whole: vec![true; levels.len()], flushes: flushes.clone() };
        let interval = schedule.interval;
        Play {
            levels,
            interval,
            periods,
            lots,
            time: 0.0,
            failures: 0,
            next,
            slot: 0,
            images: vec![first],
            flushes,
        }
    }

    /// Computes a slot and takes its checkpoint, or fails and is restarted.
    fn slot(&mut self) {
        let made = (0..self.levels.len())
            .rev()
            .find(|level| (self.slot + 1) % self.periods[*level] == 0)
            .unwrap_or(0);
        let mut work = self.interval;
        while work > 0.0 {
            let under_way = self.levels.iter().zip(&self.flushes).filter(|(_, flush)| flush.is_some());
            let slower = 1.0 + under_way.map(|(level, _)| level.slowdown).sum::<f64>();
            let Some(passed) = self.pass(work * slower) else { return };
            // What is left after rounding is nothing.
            work = if passed >= work * slower { 0.0 } else { work - passed / slower };
        }
        let mut stop = self.levels[made].cost;
        while stop > 0.0 {
            let Some(passed) = self.pass(stop) else { return };
            stop -= passed;
        }
        self.slot += 1;
        self.checkpoint(made);
    }

    /// Lets this time pass, or less: up to the end of a flush. None: a failure came, and is over.
    fn pass(&mut self, most: f64) -> Option<f64> {
        let ends = self.flushes.iter().flatten().map(|flush| flush.left).fold(most, f64::min);
        if self.next < ends {
            self.time += self.next;
            self.fail();
            return None;
        }
        (self.time, self.next) = (self.time + ends, self.next - ends);
        for level in 0..self.levels.len() {
            let Some(flush) = &mut self.flushes[level] else { continue };
            flush.left -= ends;
            if flush.left <= 0.0 {
                let slot = flush.image;
                self.flushes[level] = None;
                self.images
                    .iter_mut()
                    .filter(|image| image.slot == slot)
                    .for_each(|image| image.whole[level] = true);
                self.forget();
            }
        }
        Some(ends)
    }

    /// Images that no failure leads to any more: those before the newest that the highest level has.
    fn forget(&mut self) {
        let top = self.images.iter().rposition(|image| image.whole.last() == Some(&true)).unwrap_or(0);
        self.images.drain(..top);
    }

    fn checkpoint(&mut self, made: usize) {
        let mut whole = vec![false; self.levels.len()];
        let flushes = self.levels.iter().zip(&mut whole).zip(&mut self.flushes).take(made + 1);
        for ((level, whole), flush) in flushes {
            assert!(flush.is_none(), "a level gets an image before it has the one before");
            *whole = level.flush == 0.0;
            *flush = (level.flush > 0.0).then_some(Flush { image: self.slot, left: level.flush });
        }
        self.images.push(Image { slot: self.slot, whole, flushes: self.flushes.clone() });
        self.forget();
    }

    /// Which failure it was; when the next one comes.
    fn draw(&mut self) -> usize {
        self.failures += 1;
        let rate: f64 = self.levels.iter().map(|level| level.rate).sum();
        self.next = self.lots.wait(rate);
        let mut at = self.lots.part() * rate;
        for (number, level) in self.levels.iter().enumerate() {
            if at < level.rate {
                return number;
            }
            at -= level.rate;
        }
        self.levels.iter().rposition(|level| level.rate > 0.0).unwrap_or(0)
    }

    /// A failure, and restarts until one is not disturbed.
    fn fail(&mut self) {
        let highest = self.levels.len() - 1;
        let mut needed = self.draw();
        loop {
            let has = |image: &Image| (needed..=highest).find(|level| image.whole[*level]);
            let at = self.images.iter().rposition(|image| has(image).is_some()).unwrap_or(0);
            let from = has(&self.images[at]).unwrap_or(highest);
            self.images.truncate(at + 1);
            let restart = self.levels[from].restart;
            loop {
                if self.next >= restart {
                    (self.time, self.next) = (self.time + restart, self.next - restart);
                    return self.go_on();
                }
                self.time += self.next;
                let failed = self.draw();
                if failed >= from && from < highest {
                    needed = failed.max(from + 1);
                    break;
                }
            }
        }
    }

    /// As it was at the newest image; a flush that has ended since is not done again.
    fn go_on(&mut self) {
        let Some(image) = self.images.last() else { return };
        self.slot = image.slot;
        let is_done = |flush: &Flush, level: usize| {
            self.images.iter().any(|image| image.slot == flush.image && image.whole[level])
        };
        let flushes = image.flushes.iter().enumerate();
        let flushes = flushes.map(|(level, flush)| flush.filter(|flush| !is_done(flush, level))).collect();
        self.flushes = flushes;
    }
}
