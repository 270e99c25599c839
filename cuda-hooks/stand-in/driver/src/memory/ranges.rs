//! Which parts of something are free: device memory, a slab, a pool. Pure. Used by `physical` and `heap`.

use std::collections::BTreeMap;

/// Free parts, from where to how many bytes; neighbours are joined.
#[derive(Clone, Default, Debug)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// All of it.
    pub fn new(length: u64) -> Ranges {
        Ranges(BTreeMap::from([(0, length)]))
    }

    /// Takes the first part that is large enough.
    pub fn take(&mut self, length: u64) -> Option<u64> {
        let (&at, &free) = self.0.iter().find(|part| *part.1 >= length)?;
        self.0.remove(&at);
        if free > length {
            self.0.insert(at + length, free - length);
        }
        Some(at)
    }

    /// Gives a part back that was taken.
    pub fn give(&mut self, at: u64, length: u64) {
        let (mut from, mut bytes) = (at, length);
        if let Some((&before, &free)) = self.0.range(..at).next_back()
            && before + free == at
        {
            self.0.remove(&before);
            (from, bytes) = (before, bytes + free);
        }
        if let Some(behind) = self.0.remove(&(at + length)) {
            bytes += behind;
        }
        self.0.insert(from, bytes);
    }

    /// Nothing is taken of so many bytes.
    pub fn all_free(&self, length: u64) -> bool {
        self.0.get(&0) == Some(&length)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again_in_any_order() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut ranges = Ranges::new(96);
            let taken = [(); 3].map(|()| ranges.take(32).unwrap());
            assert_eq!(taken, [0, 32, 64]);
            assert_eq!(ranges.take(1), None);
            for n in order {
                assert!(!ranges.all_free(96));
                ranges.give(taken[n], 32);
            }
            assert!(ranges.all_free(96));
            assert_eq!(ranges.take(96), Some(0));
        }
    }

    proptest::proptest! {
        /// A number below 40 takes so many, a higher one gives back what was taken at about that place of the list.
        #[test]
        fn nothing_is_taken_twice(steps in proptest::collection::vec(1u64..80, 1..200)) {
            let (mut ranges, mut taken) = (Ranges::new(500), Vec::<(u64, u64)>::new());
            for step in steps {
                if step < 40 {
                    let Some(at) = ranges.take(step) else { continue };
                    assert!(at + step <= 500);
                    assert!(taken.iter().all(|&(other, length)| at + step <= other || other + length <= at));
                    taken.push((at, step));
                } else if !taken.is_empty() {
                    let (at, length) = taken.remove(step as usize % taken.len());
                    ranges.give(at, length);
                }
            }
            for (at, length) in taken {
                ranges.give(at, length);
            }
            assert!(ranges.all_free(500));
        }
    }
}
