//! The state of a chunk, and the lists of those that have changed. The twin of `holdfast_list`, and of what
//! `holdfast_hash` says of a chunk.

use crate::digest::{Digest, Keys, digest, is_zero};

/// How a chunk compares with the digest that its slot had; a byte on the device.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The same.
    Clean = 0,
    /// Another, or there was none.
    Dirty = 1,
    /// Another, or there was none, and the chunk is all zero.
    Zero = 2,
}

impl State {
    /// Of a chunk whose slot had that digest; and the digest that it has now.
    pub fn of(keys: &Keys, chunk: &[u8], previous: Digest) -> (State, Digest) {
        let fresh = digest(keys, chunk);
        let state = match (fresh == previous, is_zero(chunk)) {
            (true, _) => State::Clean,
            (false, false) => State::Dirty,
            (false, true) => State::Zero,
        };
        (state, fresh)
    }

    /// What a byte of the device means.
    pub const fn from_byte(byte: u8) -> Option<State> {
        match byte {
            0 => Some(State::Clean),
            1 => Some(State::Dirty),
            2 => Some(State::Zero),
            _ => None,
        }
    }
}

/// How long the two lists are, as the device has it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Chunks with bytes to be stored.
    pub dirty: u64,
    /// Chunks to be stored that are all zero.
    pub zero: u64,
}

impl Counts {
    /// Size on the device.
    pub const BYTES: u64 = 16;

    /// What the device has written there, of so many chunks. `None` if that cannot be.
    pub fn from_bytes(bytes: [u8; Self::BYTES as usize], chunks: u64) -> Option<Counts> {
        let both = u128::from_le_bytes(bytes);
        let (dirty, zero) = (both as u64, (both >> 64) as u64);
        (dirty.checked_add(zero)? <= chunks).then_some(Counts { dirty, zero })
    }
}

/// Writes the numbers of the chunks that have changed, ascending, as far as there is room for them; the counts are
/// those of all.
pub fn list(states: &[u8], dirty: &mut [u32], zero: &mut [u32]) -> Counts {
    let mut counts = Counts::default();
    let (mut dirty, mut zero) = (dirty.iter_mut(), zero.iter_mut());
    for (chunk, &state) in (0..).zip(states) {
        let (count, place) = match State::from_byte(state) {
            Some(State::Dirty) => (&mut counts.dirty, dirty.next()),
            Some(State::Zero) => (&mut counts.zero, zero.next()),
            _ => continue,
        };
        *count = count.saturating_add(1);
        if let Some(place) = place {
            *place = chunk;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ascending_and_counts_are_of_all() {
        let (mut dirty, mut zero) = ([9; 2], [9; 4]);
        let counts = list(&[1, 0, 2, 1, 7, 2, 1], &mut dirty, &mut zero);
        assert_eq!(counts, Counts { dirty: 3, zero: 2 });
        assert_eq!((dirty, zero), ([0, 3], [2, 5, 9, 9]));
    }

    #[test]
    fn counts_that_cannot_be_are_rejected() {
        let bytes = |dirty: u64, zero: u64| (u128::from(zero) << 64 | u128::from(dirty)).to_le_bytes();
        assert_eq!(Counts::from_bytes(bytes(3, 4), 7), Some(Counts { dirty: 3, zero: 4 }));
        assert_eq!(Counts::from_bytes(bytes(3, 5), 7), None);
        assert_eq!(Counts::from_bytes(bytes(u64::MAX, 2), 7), None);
    }

    #[test]
    fn a_chunk_is_dirty_until_its_digest_is_known() {
        let keys = Keys::new([3; 16]);
        let (state, known) = State::of(&keys, b"data", Digest::NONE);
        assert_eq!(state, State::Dirty);
        assert_eq!(State::of(&keys, b"data", known).0, State::Clean);
        assert_eq!(State::of(&keys, b"date", known).0, State::Dirty);
        let (state, known) = State::of(&keys, &[0; 100], known);
        assert_eq!(state, State::Zero);
        assert_eq!(State::of(&keys, &[0; 100], known).0, State::Clean);
        assert_eq!(State::of(&keys, &[0; 99], known).0, State::Zero);
    }
}
