//! One tier's cache: a buffer cut into segments and gaps, in which each segment is in one piece, at its offset.
//!
//! Used by [`super::Hierarchy`]; where only sizes count: [`super::pieces`].
//! Invariants: fragments cover the buffer without overlap, in the order of their offsets; no two gaps are neighbours;
//! none is empty.

use super::SegmentId;

/// A part of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    /// Where it begins.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    /// Whose it is; `None`: a gap.
    pub owner: Option<SegmentId>,
}

/// The table of a buffer.
#[derive(Clone, Debug)]
pub(super) struct Fragments {
    list: Vec<Fragment>,
    capacity: u64,
}

impl Fragments {
    /// An empty buffer.
    pub fn new(capacity: u64) -> Fragments {
        let gap = Fragment { offset: 0, bytes: capacity, owner: None };
        Fragments { list: if capacity == 0 { Vec::new() } else { vec![gap] }, capacity }
    }

    /// All fragments, by offset.
    pub fn list(&self) -> &[Fragment] {
        &self.list
    }

    /// Size of the buffer.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Puts a segment instead of some fragments, given by their ascending indices, which are neighbours; what is over
    /// becomes a gap. Its offset; or `None` (and nothing is changed) where they are too small.
    pub fn place(&mut self, chosen: &[usize], segment: SegmentId, bytes: u64) -> Option<u64> {
        let (&first, &last) = (chosen.first()?, chosen.last()?);
        if last >= self.list.len() || last - first + 1 != chosen.len() {
            return None;
        }
        let room: u64 = chosen.iter().map(|&index| self.list[index].bytes).sum();
        let rest = room.checked_sub(bytes)?;
        // With a gap before them, so that what is over lies behind, where the next one will go.
        let before = first.checked_sub(1).filter(|&before| self.list[before].owner.is_none());
        let rest = rest + before.map_or(0, |before| self.list[before].bytes);
        let first = before.unwrap_or(first);
        let offset = self.list[first].offset;
        let gap = Fragment { offset: offset + bytes, bytes: rest, owner: None };
        let placed = Fragment { offset, bytes, owner: Some(segment) };
        let with_gap = [placed, gap];
        self.list.splice(first..=last, with_gap.into_iter().take(1 + usize::from(rest > 0)));
        if rest > 0 {
            self.join(first + 2);
        }
        Some(offset)
    }

    /// Makes a gap of a segment's fragment. Whether it had one.
    pub fn erase(&mut self, segment: SegmentId) -> bool {
        let Some(index) = self.list.iter().position(|fragment| fragment.owner == Some(segment)) else {
            return false;
        };
        self.list[index].owner = None;
        self.join(index + 1);
        self.join(index);
        true
    }

    /// Makes one gap of the fragment at an index and the one before it, where both are gaps.
    fn join(&mut self, index: usize) {
        let gap = |fragment: Option<&Fragment>| fragment.is_some_and(|fragment| fragment.owner.is_none());
        if index > 0 && gap(self.list.get(index)) && gap(self.list.get(index - 1)) {
            self.list[index - 1].bytes += self.list[index].bytes;
            self.list.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fragments_always_cover_the_buffer(
            steps in prop::collection::vec((0usize..20, 1usize..4, 1u64..40, any::<bool>()), 0..200),
        ) {
            check(&mut Fragments::new(100), &steps)?;
        }
    }

    fn check(table: &mut Fragments, steps: &[(usize, usize, u64, bool)]) -> Result<(), TestCaseError> {
        for (id, &(start, len, bytes, erase)) in steps.iter().enumerate() {
            if erase {
                if let Some(owner) = table.list().get(start).and_then(|fragment| fragment.owner) {
                    prop_assert!(table.erase(owner));
                }
            } else {
                let chosen: Vec<usize> = (start..start + len).collect();
                table.place(&chosen, SegmentId(id as u64), bytes);
            }
            let mut end = 0;
            for fragment in table.list() {
                prop_assert_eq!(fragment.offset, end);
                prop_assert!(fragment.bytes > 0);
                end += fragment.bytes;
            }
            prop_assert_eq!(end, table.capacity());
            prop_assert!(table.list().windows(2).all(|two| two[0].owner.or(two[1].owner).is_some()));
        }
        Ok(())
    }
}
