//! Hints: what the application says it will restore, in this order; and guesses, where it moves by equal steps.
//!
//! Used by [`super::Hierarchy`]. Hints come at any time, for segments that are not written yet too, and cannot be
//! taken back. They are advice: one that others overtake again and again goes to the end of the queue, and in the end
//! is given up, so that wrong ones do not pile up in front of right ones. An application that restores otherwise than
//! it has hinted is not trusted until it does again: then nothing is read ahead of it, nor evicted, by its hints.
//! Invariant: numbers in `order` ascend.

use super::SegmentId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// So often may a hint be overtaken by restores of what was to come later, before it goes to the end; and so often
/// again, before it is given up.
const PATIENCE: usize = 8;
/// More are not taken note of.
const MOST_HINTS: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Hint {
    number: u64,
    segment: SegmentId,
    /// It was moved to the end once.
    moved: bool,
}

/// A restore follows the hints if its own is one of the first, or if one of so many before it is used up: that is how
/// each of several ranks goes through its part of the queue.
const NEAR: usize = 16;
/// Trust grows by a restore that follows and shrinks by one that does not, up to the first number; it ends at the
/// second one, and begins again at the third, which it has at first.
const TRUST: (u32, u32, u32) = (16, 4, 12);
/// Guesses come after all hints.
const GUESSED: u64 = 1 << 63;

/// So many equal steps make a guess, of so many further ones.
const EQUAL_STEPS: u32 = 3;
const GUESSES: u64 = 16;

/// The steps between the last restores, by the numbers of the segments in the order of writing.
#[derive(Clone, Copy, Debug, Default)]
struct Trail {
    number: u64,
    step: i64,
    equal: u32,
}

/// The queue.
#[derive(Clone, Debug)]
pub(super) struct RestoreQueue {
    order: VecDeque<Hint>,
    /// The numbers of each segment's hints, ascending.
    numbers: BTreeMap<SegmentId, VecDeque<u64>>,
    next: u64,
    trail: Trail,
    /// Behind all hints.
    guesses: Vec<SegmentId>,
    /// The numbers of the hints whose restores have overtaken the first one.
    overtakers: BTreeSet<u64>,
    trust: u32,
    is_trusted: bool,
    /// Segments whose places have changed, until they were asked for; and whether all have.
    touched: Vec<SegmentId>,
    all_touched: bool,
}

impl Default for RestoreQueue {
    fn default() -> RestoreQueue {
        RestoreQueue {
            order: VecDeque::new(),
            numbers: BTreeMap::new(),
            next: 0,
            trail: Trail::default(),
            guesses: Vec::new(),
            overtakers: BTreeSet::new(),
            trust: TRUST.2,
            is_trusted: true,
            touched: Vec::new(),
            all_touched: false,
        }
    }
}

impl RestoreQueue {
    /// One more hint, behind all others.
    pub fn push(&mut self, segment: SegmentId) {
        if self.order.len() < MOST_HINTS {
            self.append(segment, false);
        }
    }

    fn append(&mut self, segment: SegmentId, moved: bool) {
        self.touched.push(segment);
        self.order.push_back(Hint { number: self.next, segment, moved });
        self.numbers.entry(segment).or_default().push_back(self.next);
        self.next += 1;
    }

    /// The hints of one segment are those of another one.
    pub fn rename(&mut self, from: SegmentId, to: SegmentId) {
        let Some(numbers) = self.numbers.remove(&from) else { return };
        for number in &numbers {
            if let Ok(at) = self.order.binary_search_by_key(number, |hint| hint.number) {
                self.order[at].segment = to;
            }
        }
        self.touched.extend([from, to]);
        let all = self.numbers.entry(to).or_default();
        all.extend(numbers);
        all.make_contiguous().sort_unstable();
    }

    /// How many hints are before a segment's first one; guesses follow the last hint.
    pub fn distance(&self, segment: SegmentId) -> Option<u64> {
        let hints = if self.is_trusted { self.order.len() } else { 0 };
        let hint = self.index(segment).filter(|_| self.is_trusted);
        hint.or_else(|| Some(hints + self.guess(segment)?)).map(|index| index as u64)
    }

    fn guess(&self, segment: SegmentId) -> Option<usize> {
        self.guesses.iter().position(|&guess| guess == segment)
    }

    /// Where a segment is in the queue: of two the nearer one has the less.
    pub fn place(&self, segment: SegmentId) -> Option<u64> {
        let hint = self.numbers.get(&segment).and_then(|numbers| numbers.front().copied());
        hint.filter(|_| self.is_trusted).or_else(|| Some(GUESSED + self.guess(segment)? as u64))
    }

    /// The segments whose places have changed since they were taken, added to `touched`; whether all may have.
    pub fn take_touched(&mut self, touched: &mut Vec<SegmentId>) -> bool {
        touched.append(&mut self.touched);
        std::mem::take(&mut self.all_touched)
    }

    /// Whether a hint for it is left.
    pub fn is_hinted(&self, segment: SegmentId) -> bool {
        self.numbers.contains_key(&segment)
    }

    fn index(&self, segment: SegmentId) -> Option<usize> {
        let number = *self.numbers.get(&segment)?.front()?;
        self.order.binary_search_by_key(&number, |hint| hint.number).ok()
    }

    /// The segments hinted at and guessed, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = SegmentId> {
        let hints = self.order.iter().filter(|_| self.is_trusted);
        hints.map(|hint| hint.segment).chain(self.guesses.iter().copied())
    }

    /// The segment of this number in the order of writing was restored: if that was the last of equal steps, guesses
    /// are the next numbers. `named`: the segment of a number.
    pub fn follow(&mut self, number: u64, named: impl Fn(u64) -> Option<SegmentId>) {
        let step = number.wrapping_sub(self.trail.number).cast_signed();
        let equal = if step == self.trail.step { self.trail.equal.saturating_add(1) } else { 1 };
        self.trail = Trail { number, step, equal };
        self.touched.append(&mut self.guesses);
        if step != 0 && equal >= EQUAL_STEPS {
            let ahead =
                (1..=GUESSES).map(|far| number.wrapping_add_signed(step.wrapping_mul(far.cast_signed())));
            self.guesses.extend(ahead.filter_map(named));
            self.touched.extend(&self.guesses);
        }
    }

    /// A segment was restored: its first hint is used up, and those before it were overtaken once more.
    pub fn restored(&mut self, segment: SegmentId) {
        let Some(index) = self.index(segment) else { return };
        let number = self.order[index].number;
        self.follows(index);
        self.take(index);
        self.overtakers.insert(number);
        // The most overtaken are the first ones, for what is before a hint was overtaken whenever it was.
        while let Some(&hint) = self.order.front() {
            self.overtakers = self.overtakers.split_off(&hint.number);
            if self.overtakers.len() < PATIENCE {
                return;
            }
            self.take(0);
            if !hint.moved {
                self.append(hint.segment, true);
            }
        }
        self.overtakers.clear();
    }

    /// The hint at an index is that of a restore: whether the application does as it has said.
    fn follows(&mut self, index: usize) {
        let before = index.checked_sub(NEAR).map(|before| self.order[before].number);
        let is_next = before.is_none_or(|before| self.order[index].number - before > NEAR as u64);
        self.trust = if is_next { (self.trust + 1).min(TRUST.0) } else { self.trust.saturating_sub(1) };
        let is_trusted = if self.is_trusted { self.trust > TRUST.1 } else { self.trust >= TRUST.2 };
        self.all_touched |= is_trusted != self.is_trusted;
        self.is_trusted = is_trusted;
    }

    /// All hints of a segment that will never be there again.
    pub fn forget(&mut self, segment: SegmentId) {
        self.guesses.retain(|&guess| guess != segment);
        self.touched.push(segment);
        if self.numbers.remove(&segment).is_some() {
            self.order.retain(|hint| hint.segment != segment);
        }
    }

    fn take(&mut self, index: usize) {
        let Some(hint) = self.order.remove(index) else { return };
        self.touched.push(hint.segment);
        if let Some(numbers) = self.numbers.get_mut(&hint.segment) {
            numbers.retain(|&number| number != hint.number);
            if numbers.is_empty() {
                self.numbers.remove(&hint.segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(ids: impl IntoIterator<Item = u64>) -> RestoreQueue {
        let mut queue = RestoreQueue::default();
        ids.into_iter().for_each(|id| queue.push(SegmentId(id)));
        queue
    }

    #[test]
    fn distances_follow_the_restores() {
        let mut queue = queue([7, 8, 7, 9]);
        assert_eq!(queue.distance(SegmentId(7)), Some(0));
        queue.restored(SegmentId(7));
        assert_eq!(queue.distance(SegmentId(7)), Some(1));
        assert_eq!(queue.distance(SegmentId(9)), Some(2));
        queue.restored(SegmentId(5));
        assert_eq!(queue.iter().count(), 3);
        queue.forget(SegmentId(7));
        assert_eq!(queue.iter().collect::<Vec<_>>(), [SegmentId(8), SegmentId(9)]);
    }

    #[test]
    fn hints_of_one_name_are_those_of_another() {
        let mut queue = queue([7, 8, 7, 9, 8]);
        queue.rename(SegmentId(8), SegmentId(7));
        assert_eq!(queue.iter().map(|id| id.0).collect::<Vec<_>>(), [7, 7, 7, 9, 7]);
        for left in [4, 3, 2] {
            queue.restored(SegmentId(7));
            assert_eq!(queue.iter().count(), left);
        }
        assert_eq!((queue.distance(SegmentId(9)), queue.distance(SegmentId(7))), (Some(0), Some(1)));
        queue.rename(SegmentId(1), SegmentId(2));
        assert!(!queue.is_hinted(SegmentId(8)) && !queue.is_hinted(SegmentId(2)));
    }

    #[test]
    fn equal_steps_are_continued() {
        let mut queue = queue([3]);
        let named = |number: u64| (number < 100).then_some(SegmentId(number));
        for number in [90, 88, 86] {
            queue.follow(number, named);
            assert_eq!(queue.iter().count(), 1);
        }
        queue.follow(84, named);
        assert_eq!(queue.distance(SegmentId(3)), Some(0));
        assert_eq!(queue.distance(SegmentId(82)), Some(1));
        assert_eq!(queue.iter().last(), Some(SegmentId(84 - 32)));
        queue.forget(SegmentId(82));
        assert_eq!(queue.distance(SegmentId(82)), None);
        queue.follow(85, named);
        assert_eq!(queue.iter().count(), 1, "steps are no longer equal");
    }

    #[test]
    fn hints_that_are_not_followed_count_no_longer_until_they_are() {
        let mut queue = queue(0..10_000);
        let wrong = |n: u64| SegmentId(1000 + n * 7919 % 8000);
        let count = (0..30).take_while(|n| {
            queue.restored(wrong(*n));
            queue.distance(SegmentId(500)).is_some()
        });
        assert!((5..20).contains(&count.count()));
        assert!(queue.place(SegmentId(500)).is_none() && queue.iter().next().is_none());
        let mut touched = Vec::new();
        assert!(queue.take_touched(&mut touched), "all have other places now");
        // It begins to do as it has said, from somewhere on.
        let count = (9500..9600).take_while(|id| {
            queue.restored(SegmentId(*id));
            queue.distance(SegmentId(500)).is_none()
        });
        assert!((8..20).contains(&count.count()));
        assert!(queue.place(SegmentId(9700)) < queue.place(SegmentId(9800)));
    }

    #[test]
    fn ranks_that_each_go_through_their_part_follow_the_hints() {
        for is_in_blocks in [true, false] {
            let (ranks, each) = (8, 50);
            let hint = |rank: u64, step: u64| SegmentId(rank * 1000 + step);
            let blocks = (0..ranks).flat_map(|rank| (0..each).map(move |step| (rank, step)));
            let turns = (0..each).flat_map(|step| (0..ranks).map(move |rank| (rank, step)));
            let order: Vec<(u64, u64)> =
                if is_in_blocks { blocks.collect() } else { turns.clone().collect() };
            let mut queue = RestoreQueue::default();
            order.iter().for_each(|(rank, step)| queue.push(hint(*rank, *step)));
            for (rank, step) in turns {
                queue.restored(hint(rank, step));
                assert!(queue.is_trusted, "{is_in_blocks} {rank} {step}");
            }
        }
    }

    #[test]
    fn a_hint_that_is_never_followed_goes_to_the_end() {
        let mut queue = queue(0..20);
        for id in 1..=8 {
            assert_eq!(queue.distance(SegmentId(0)), Some(0));
            queue.restored(SegmentId(id));
        }
        assert_eq!(queue.distance(SegmentId(0)), Some(11));
        assert_eq!(queue.distance(SegmentId(9)), Some(0));
        (9..20).for_each(|id| queue.restored(SegmentId(id)));
        (20..40).for_each(|id| queue.push(SegmentId(id)));
        (20..28).for_each(|id| queue.restored(SegmentId(id)));
        assert!(!queue.is_hinted(SegmentId(0)));
    }
}
