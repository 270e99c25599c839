//! The GPU cache of one device: chunks that a checkpoint has taken, until the image has them.
//!
//! Used by [`super::blocks`], one for each checkpoint. Chunks are taken in segments; which segment lies where, and what
//! moves when the room on the device is used up, is decided by [`Hierarchy`] with two tiers: the cache, and memory of
//! the host. What the policy would move to the host stays where it is as long as there is room, for it moves by being
//! read for the image ([`Cache::stored`]). Invariants: a chunk that was taken can be read until it is stored; the
//! copies are the caller's ([`Moves`]), and no clock is read here. Fails by: words of what a copy failed with.

use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_tiers::policy::{Action, Event, Hierarchy, Place, SegmentId, TierLimits, Ties, Transfer};
use std::collections::{BTreeMap, VecDeque};

/// Chunks of a segment.
pub const SEGMENT: usize = 64;
/// A first guess of the policy's: bytes per second, on the device and to the host.
const RATES: (u64, u64) = (1_000_000_000_000, 20_000_000_000);

/// What copies.
pub trait Moves {
    /// The chunks from number `first` of the list on, `count` of them, into the cache.
    fn gather(&mut self, first: usize, count: usize, offset: u64) -> Result<(), String>;
    /// The same to the host, past the cache.
    fn take(&mut self, first: usize, into: &mut [u8]) -> Result<(), String>;
    /// From the cache to the host.
    fn fetch(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String>;
}

enum Where {
    /// Not copied yet.
    Source,
    Cache(u64),
    Host(Vec<u8>),
    /// The image has it.
    Stored,
}

struct Segment {
    first: usize,
    count: usize,
    is: Where,
    /// Bytes that the image does not have yet.
    left: u64,
}

/// See the head of the file.
pub struct Cache {
    policy: Hierarchy,
    segments: Vec<Segment>,
    /// By slot: its place in the list of chunks.
    places: BTreeMap<u64, usize>,
    /// What the policy wants to have on the host next.
    leaving: Option<Transfer>,
    /// Bytes that went to the host because the cache was full.
    pub spilled: u64,
}

impl Cache {
    /// Takes the chunks of these slots, in their order, into a cache of so many bytes.
    pub fn take(slots: &[u64], capacity: u64, moves: &mut dyn Moves) -> Result<Cache, String> {
        let cache = TierLimits { capacity: Some(capacity), contiguous: true, rate: RATES.0 };
        let host = TierLimits { capacity: None, contiguous: false, rate: RATES.1 };
        let policy = Hierarchy::new(&[cache, host], Ties::default());
        let places = slots.iter().enumerate().map(|(nth, slot)| (*slot, nth)).collect();
        let mut made = Cache { policy, segments: Vec::new(), places, leaving: None, spilled: 0 };
        for first in (0..slots.len()).step_by(SEGMENT) {
            let count = SEGMENT.min(slots.len() - first);
            made.segments.push(Segment { first, count, is: Where::Source, left: count as u64 * CHUNK });
            made.write(made.segments.len() - 1, moves)?;
        }
        Ok(made)
    }

    fn step(&mut self, event: Event) -> Result<Vec<Action>, String> {
        self.policy.step(0, event).map_err(|error| error.to_string())
    }

    fn write(&mut self, nth: usize, moves: &mut dyn Moves) -> Result<(), String> {
        let (segment, bytes) = (SegmentId(nth as u64), self.segments[nth].left);
        let actions = self.step(Event::Write { segment, bytes, discardable: false })?;
        self.obey(actions, moves)?;
        // It waits for room: something has to leave.
        while matches!(self.segments[nth].is, Where::Source) {
            self.leave(moves)?;
        }
        Ok(())
    }

    fn obey(&mut self, actions: Vec<Action>, moves: &mut dyn Moves) -> Result<(), String> {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            let Action::Copy(transfer) = action else { continue };
            let Some(segment) =
                usize::try_from(transfer.segment.0).ok().and_then(|n| self.segments.get_mut(n))
            else {
                continue;
            };
            match (transfer.from, transfer.to) {
                (Place::Application, Place::Tier(0)) => {
                    moves.gather(segment.first, segment.count, transfer.offset)?;
                    segment.is = Where::Cache(transfer.offset);
                }
                (Place::Application, _) => {
                    let mut bytes = vec![0; segment.count * CHUNK as usize];
                    moves.take(segment.first, &mut bytes)?;
                    self.spilled += bytes.len() as u64;
                    segment.is = Where::Host(bytes);
                }
                _ => {
                    self.leaving = Some(transfer);
                    continue;
                }
            }
            queue.extend(self.step(Event::Copied(transfer))?);
        }
        Ok(())
    }

    /// The next segment goes to the host.
    fn leave(&mut self, moves: &mut dyn Moves) -> Result<(), String> {
        let transfer =
            self.leaving.take().ok_or("the GPU cache has no room, and nothing that could leave it")?;
        let nth = usize::try_from(transfer.segment.0).unwrap_or(usize::MAX);
        if let Some(segment) = self.segments.get_mut(nth)
            && let Where::Cache(offset) = segment.is
        {
            let mut bytes = vec![0; segment.count * CHUNK as usize];
            moves.fetch(offset, &mut bytes)?;
            self.spilled += bytes.len() as u64;
            segment.is = Where::Host(bytes);
        }
        let actions = self.step(Event::Copied(transfer))?;
        self.obey(actions, moves)
    }

    /// Everything goes to the host: the device's memory is needed.
    pub fn give_way(&mut self, moves: &mut dyn Moves) -> Result<(), String> {
        while self.leaving.is_some() {
            self.leave(moves)?;
        }
        Ok(())
    }

    /// Reads from a byte of a chunk on. `false`: the chunk is none of this cache's.
    pub fn read(
        &self,
        slot: u64,
        skip: usize,
        into: &mut [u8],
        moves: &mut dyn Moves,
    ) -> Result<bool, String> {
        let Some(&place) = self.places.get(&slot) else { return Ok(false) };
        let Some(segment) = self.segments.get(place / SEGMENT) else { return Ok(false) };
        let from = (place - segment.first) * CHUNK as usize + skip;
        match &segment.is {
            Where::Cache(offset) => moves.fetch(offset + from as u64, into)?,
            Where::Host(bytes) => {
                let found = bytes.get(from..).and_then(|rest| rest.get(..into.len()));
                into.copy_from_slice(found.ok_or("more was asked for than a chunk has")?);
            }
            Where::Source | Where::Stored => {
                return Err(format!("chunk {slot} was given up already"));
            }
        }
        Ok(true)
    }

    /// Where a chunk is in the cache; `None`: it is none of this cache's, or somewhere else by now.
    pub fn offset(&self, slot: u64) -> Option<u64> {
        let place = *self.places.get(&slot)?;
        let segment = self.segments.get(place / SEGMENT)?;
        let Where::Cache(offset) = segment.is else { return None };
        Some(offset + (place - segment.first) as u64 * CHUNK)
    }

    /// So many bytes of a cache of this length that no chunk needs: the first of them, on a boundary of chunks.
    pub fn gap(&self, bytes: u64, len: u64) -> Option<u64> {
        let of_segment = |segment: &Segment| match segment.is {
            Where::Cache(offset) => Some((offset, offset + segment.count as u64 * CHUNK)),
            _ => None,
        };
        let mut used: Vec<(u64, u64)> = self.segments.iter().filter_map(of_segment).collect();
        used.sort_unstable();
        used.push((len, len));
        let mut from = 0;
        for (start, end) in used {
            if start.saturating_sub(from) >= bytes {
                return Some(from);
            }
            from = from.max(end);
        }
        None
    }

    /// The image has so many bytes of a chunk: what it has of a whole segment is given up.
    pub fn stored(&mut self, slot: u64, bytes: u64, moves: &mut dyn Moves) -> Result<(), String> {
        let Some(segment) = self.places.get(&slot).and_then(|&place| self.segments.get_mut(place / SEGMENT))
        else {
            return Ok(());
        };
        segment.left = segment.left.saturating_sub(bytes);
        if segment.left == 0 {
            segment.is = Where::Stored;
        }
        // In the policy's order: a segment that is stored earlier waits for those before it.
        while let Some(transfer) = self.leaving {
            let nth = usize::try_from(transfer.segment.0).unwrap_or(usize::MAX);
            if !self.segments.get(nth).is_some_and(|one| matches!(one.is, Where::Stored)) {
                break;
            }
            self.leave(moves)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A device whose chunk n of the list is full of n.
    struct Model {
        cache: Vec<u8>,
        fetched: u64,
    }

    const SIZE: usize = CHUNK as usize;

    fn chunk(nth: usize) -> u8 {
        u8::try_from(nth % 251).unwrap() + 1
    }

    impl Moves for Model {
        fn gather(&mut self, first: usize, count: usize, offset: u64) -> Result<(), String> {
            for nth in 0..count {
                let at = offset as usize + nth * SIZE;
                self.cache[at..at + SIZE].fill(chunk(first + nth));
            }
            Ok(())
        }
        fn take(&mut self, first: usize, into: &mut [u8]) -> Result<(), String> {
            into.chunks_mut(SIZE).enumerate().for_each(|(nth, into)| into.fill(chunk(first + nth)));
            Ok(())
        }
        fn fetch(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String> {
            self.fetched += into.len() as u64;
            into.copy_from_slice(&self.cache[offset as usize..offset as usize + into.len()]);
            Ok(())
        }
    }

    fn all_is_there(cache: &Cache, slots: &[u64], model: &mut Model) {
        let mut bytes = vec![0; 4096];
        for (nth, slot) in slots.iter().enumerate() {
            assert!(cache.read(*slot, 8192, &mut bytes, model).unwrap());
            assert!(bytes.iter().all(|byte| *byte == chunk(nth)), "chunk {nth}");
        }
    }

    #[test]
    fn every_chunk_is_there_whatever_the_cache_has_room_for() {
        let slots: Vec<u64> = (0..300).map(|n| 1000 + 3 * n).collect();
        let whole = slots.len() * SIZE;
        for (capacity, spills) in
            [(whole, false), (whole / 2, true), (SEGMENT * SIZE, true), (SIZE, true), (0, true)]
        {
            let mut model = Model { cache: vec![0; capacity], fetched: 0 };
            let cache = Cache::take(&slots, capacity as u64, &mut model).unwrap();
            assert_eq!(cache.spilled > 0, spills, "capacity {capacity}");
            assert!(spills || model.fetched == 0, "nothing moves as long as there is room");
            all_is_there(&cache, &slots, &mut model);
            assert!(!cache.read(1001, 0, &mut [0; 16], &mut model).unwrap());
        }
    }

    #[test]
    fn gaps_are_where_no_chunk_is_any_more() {
        let slots: Vec<u64> = (0..192).collect();
        let whole = 192 * CHUNK;
        let mut model = Model { cache: vec![0; whole as usize], fetched: 0 };
        let mut cache = Cache::take(&slots, whole, &mut model).unwrap();
        assert_eq!((cache.gap(1, whole), cache.gap(CHUNK, whole + CHUNK)), (None, Some(whole)));
        assert_eq!((cache.offset(70), cache.offset(192)), (Some(70 * CHUNK), None));
        (64..128).for_each(|slot| cache.stored(slot, CHUNK, &mut model).unwrap());
        let segment = SEGMENT as u64 * CHUNK;
        assert_eq!((cache.gap(segment, whole), cache.gap(segment + 1, whole)), (Some(segment), None));
        (0..64).for_each(|slot| cache.stored(slot, CHUNK, &mut model).unwrap());
        assert_eq!((cache.gap(2 * segment, whole), cache.offset(70)), (Some(0), None));
        assert_eq!(cache.offset(130), Some(130 * CHUNK));
    }

    #[test]
    fn a_cache_gives_way_and_what_is_stored_is_given_up() {
        let slots: Vec<u64> = (32..232).collect();
        let whole = slots.len() * SIZE;
        let mut model = Model { cache: vec![0; whole], fetched: 0 };
        let mut cache = Cache::take(&slots, whole as u64, &mut model).unwrap();
        // The second segment before the first.
        for slot in (96..160).chain(32..96) {
            cache.stored(slot, CHUNK / 2, &mut model).unwrap();
            cache.stored(slot, CHUNK / 2, &mut model).unwrap();
        }
        assert!(cache.read(40, 0, &mut [0; 16], &mut model).is_err());
        assert_eq!(model.fetched, 0);
        cache.give_way(&mut model).unwrap();
        assert_eq!(model.fetched, 72 * CHUNK);
        model.cache.fill(0);
        let mut bytes = [0; 16];
        for slot in 160..232 {
            assert!(cache.read(slot, 0, &mut bytes, &mut model).unwrap());
            assert_eq!(bytes, [chunk(slot as usize - 32); 16]);
        }
    }
}
