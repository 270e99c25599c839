//! Hints: what the application says it will restore, in this order; and guesses, where it moves by equal steps.
//!
//! Used by [`super::Hierarchy`]. Hints come at any time, for segments that are not written yet too, and cannot be
//! taken back. They are advice: one that others overtake again and again goes to the end of the queue, and in the end
//! is given up, so that wrong ones do not pile up in front of right ones.
//! Invariant: numbers in `order` ascend.

use super::SegmentId;
use std::collections::{BTreeMap, VecDeque};

/// So often may a hint be overtaken by restores of what was to come later, before it goes to the end; and so often
/// again, before it is given up.
const PATIENCE: u32 = 8;
/// More are not taken note of.
const MOST_HINTS: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Hint {
    number: u64,
    segment: SegmentId,
    overtaken: u32,
    /// It was moved to the end once.
    moved: bool,
}

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
#[derive(Clone, Debug, Default)]
pub(super) struct RestoreQueue {
    order: VecDeque<Hint>,
    /// The numbers of each segment's hints, ascending.
    numbers: BTreeMap<SegmentId, VecDeque<u64>>,
    next: u64,
    trail: Trail,
    /// Behind all hints.
    guesses: Vec<SegmentId>,
}

impl RestoreQueue {
    /// One more hint, behind all others.
    pub fn push(&mut self, segment: SegmentId) {
        if self.order.len() < MOST_HINTS {
            self.append(segment, false);
        }
    }

    fn append(&mut self, segment: SegmentId, moved: bool) {
        self.order.push_back(Hint { number: self.next, segment, overtaken: 0, moved });
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
        let all = self.numbers.entry(to).or_default();
        all.extend(numbers);
        all.make_contiguous().sort_unstable();
    }

    /// How many hints are before a segment's first one; guesses follow the last hint.
    pub fn distance(&self, segment: SegmentId) -> Option<u64> {
        self.index(segment)
            .or_else(|| {
                let guess = self.guesses.iter().position(|&guess| guess == segment)?;
                Some(self.order.len() + guess)
            })
            .map(|index| index as u64)
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
        self.order.iter().map(|hint| hint.segment).chain(self.guesses.iter().copied())
    }

    /// The segment of this number in the order of writing was restored: if that was the last of equal steps, guesses
    /// are the next numbers. `named`: the segment of a number.
    pub fn follow(&mut self, number: u64, named: impl Fn(u64) -> Option<SegmentId>) {
        let step = number.wrapping_sub(self.trail.number).cast_signed();
        let equal = if step == self.trail.step { self.trail.equal.saturating_add(1) } else { 1 };
        self.trail = Trail { number, step, equal };
        self.guesses.clear();
        if step != 0 && equal >= EQUAL_STEPS {
            let ahead =
                (1..=GUESSES).map(|far| number.wrapping_add_signed(step.wrapping_mul(far.cast_signed())));
            self.guesses.extend(ahead.filter_map(named));
        }
    }

    /// A segment was restored: its first hint is used up, and those before it were overtaken once more.
    pub fn restored(&mut self, segment: SegmentId) {
        let Some(index) = self.index(segment) else { return };
        self.take(index);
        for hint in self.order.range_mut(..index) {
            hint.overtaken += 1;
        }
        // The most overtaken are the first ones, for what is before a hint was overtaken whenever it was.
        while let Some(hint) = self.order.front().filter(|hint| hint.overtaken >= PATIENCE) {
            let hint = *hint;
            self.take(0);
            if !hint.moved {
                self.append(hint.segment, true);
            }
        }
    }

    /// All hints of a segment that will never be there again.
    pub fn forget(&mut self, segment: SegmentId) {
        self.guesses.retain(|&guess| guess != segment);
        if self.numbers.remove(&segment).is_some() {
            self.order.retain(|hint| hint.segment != segment);
        }
    }

    fn take(&mut self, index: usize) {
        let Some(hint) = self.order.remove(index) else { return };
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
