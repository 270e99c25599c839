//! Which bytes of which member are a stripe.
//!
//! ```text
//!  4 members, 1 may be lost: a stream has 3 chunks (D), and each member has one chunk of parity (P)
//!            member 0   member 1   member 2   member 3
//!  stripe 0  P          D 0        D 1        D 2
//!  stripe 1  D 2        P          D 0        D 1
//!  stripe 2  D 1        D 2        P          D 0
//!  stripe 3  D 0        D 1        D 2        P
//! ```
//! The ring of SCR and FMI (Sato 2014, ch. 5), for any number of losses: in stripe s the member s + d has parity for d
//! below the losses, and for all others chunk d - losses of its stream. Streams are padded with zeros to the longest.
//! Invariants: a member has no parity of its own stream, and one chunk at most of each stripe, so that the loss of a
//! member is the loss of one part of each stripe.

/// See the head of the file. Members are numbered within the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    members: usize,
    losses: usize,
    /// Length of a chunk, bytes.
    chunk: u64,
}

/// What a member has of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Of its stream.
    Data,
    /// Of its parity.
    Parity,
}

/// Where a part of a stripe lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The member, in the group.
    pub member: usize,
    /// What it is there.
    pub part: Part,
    /// Where it begins there, bytes.
    pub offset: u64,
}

impl Layout {
    /// Chunks are multiples of so many bytes: what Reed-Solomon works on.
    const UNIT: u64 = 64;

    /// Of a group with these lengths of streams. `None`: it is too small, or too long.
    pub fn new(lens: &[u64], losses: usize) -> Option<Layout> {
        let data = lens.len().checked_sub(losses).filter(|data| *data > 0 && losses > 0)?;
        let longest = lens.iter().copied().max()?;
        let chunk = longest.div_ceil(data as u64).checked_next_multiple_of(Layout::UNIT)?;
        chunk.checked_mul(lens.len() as u64)?;
        Some(Layout { members: lens.len(), losses, chunk })
    }

    /// Length of a chunk, bytes.
    pub fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Parts of a stripe that are data.
    pub fn data(&self) -> usize {
        self.members - self.losses
    }

    /// Length of each member's parity, bytes.
    pub fn parity_len(&self) -> u64 {
        self.chunk * self.losses as u64
    }

    /// The parts of a stripe, as [`super::Code`] counts them: parity, then data. There is a stripe for each member.
    pub fn stripe(&self, stripe: usize) -> Vec<Place> {
        let place = |d: usize| {
            let member = (stripe + d) % self.members;
            match d.checked_sub(self.losses) {
                Some(data) => Place { member, part: Part::Data, offset: data as u64 * self.chunk },
                None => Place { member, part: Part::Parity, offset: d as u64 * self.chunk },
            }
        };
        (0..self.members).map(place).collect()
    }

    /// The stripe of which a member has part `d`.
    pub fn stripe_of(&self, member: usize, d: usize) -> usize {
        (member + self.members - d % self.members) % self.members
    }

    /// The parts of a stripe that are parity, by number.
    pub fn parity_parts(&self) -> std::ops::Range<usize> {
        0..self.losses
    }

    /// Those that are data.
    pub fn data_parts(&self) -> std::ops::Range<usize> {
        self.losses..self.members
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn chunks_hold_the_longest_stream() {
        let layout = Layout::new(&[100, 1000, 0, 7], 1).unwrap();
        assert_eq!((layout.chunk(), layout.data(), layout.parity_len()), (384, 3, 384));
        assert_eq!(Layout::new(&[1, 2], 2), None);
        assert_eq!(Layout::new(&[], 1), None);
        assert_eq!(Layout::new(&[u64::MAX, 1], 1), None);
        assert_eq!(Layout::new(&[0, 0], 1).unwrap().chunk(), 0);
    }

    proptest! {
        #[test]
        fn each_byte_of_a_stream_is_in_one_stripe_and_no_member_is_twice_in_one(
            members in 2_usize..12,
            losses in 1_usize..4,
        ) {
            prop_assume!(members > losses);
            let layout = Layout::new(&vec![6400; members], losses).unwrap();
            let mut chunks = BTreeSet::new();
            for stripe in 0..members {
                let places = layout.stripe(stripe);
                let on: BTreeSet<usize> = places.iter().map(|place| place.member).collect();
                prop_assert_eq!(on.len(), members);
                for (d, place) in places.into_iter().enumerate() {
                    prop_assert_eq!(layout.stripe_of(place.member, d), stripe);
                    prop_assert_eq!(place.part == Part::Parity, layout.parity_parts().contains(&d));
                    prop_assert!(chunks.insert((place.member, place.part == Part::Data, place.offset)));
                }
            }
            prop_assert_eq!(chunks.len(), members * members);
        }
    }
}
