//! The GPU cache of one device: chunks that a checkpoint has taken, until the image has them, and then, as long as
//! there is room, for a rollback to it.
//!
//! Used by [`super::blocks`], one for each device, from checkpoint to checkpoint. Chunks are taken in segments; which
//! segment is in the cache, and what goes when the room is used up, is decided by [`Hierarchy`] with two tiers: the
//! cache, and what is below: memory of the host until the image has it, then the image. What the policy would move down
//! stays where it is, for it moves by being read for the image ([`Cache::stored`]). What an image has may be evicted at
//! once: first what newer images have replaced, then what was not used for longest; what a rollback has read goes last.
//! Invariants: a chunk that was taken can be read until it is stored; every segment takes as much room as the longest,
//! so that what goes is room for what comes; the copies are the caller's ([`Moves`]), and so is the time. Fails by:
//! words of what a copy failed with; then the whole cache is to be given up.

use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::Digest;
use holdfast_tiers::policy::{Action, Event, Hierarchy, Place, SegmentId, TierLimits, Ties, Transfer};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

/// Chunks of a segment.
pub const SEGMENT: usize = 64;
/// What each of them takes of the cache.
pub const ROOM: u64 = SEGMENT as u64 * CHUNK;
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
    /// From the cache to memory of the program's.
    fn bring(&mut self, offset: u64, address: u64, bytes: u64) -> Result<(), String>;
}

/// A chunk of the program's, and what it is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Its slot.
    pub slot: u64,
    /// What an image has of it.
    pub digest: Digest,
    /// Where it is on the device.
    pub address: u64,
}

/// What a committed image has.
pub struct Committed<'a> {
    /// The digest of what it has of a slot.
    pub digest: &'a dyn Fn(u64) -> Option<Digest>,
    /// Slots whose chunks became zero.
    pub zero: &'a [u64],
}

enum Where {
    /// Not copied yet.
    Source,
    Cache(u64),
    Host(Vec<u8>),
    /// The image has it, and the cache has not.
    Image,
}

struct Segment {
    /// Of its chunks, in their order.
    slots: Vec<u64>,
    /// The same, once an image has them.
    digests: Vec<Digest>,
    /// Place of the first in the list of its checkpoint.
    first: usize,
    is: Where,
    /// Bytes that the image does not have yet.
    left: u64,
    /// Chunks of which no newer image has another one.
    newest: usize,
}

/// See the head of the file.
pub struct Cache {
    policy: Hierarchy,
    now: u64,
    /// By their numbers, in the order in which they were taken.
    segments: BTreeMap<u64, Segment>,
    next: u64,
    /// Where a segment can lie.
    free: Vec<u64>,
    /// Of the checkpoint under way, by slot: segment and place in it.
    taken: BTreeMap<u64, (u64, usize)>,
    /// What images have: segment and place in it.
    kept: HashMap<Digest, (u64, usize)>,
    /// Which segment has the newest of a slot.
    newest: BTreeMap<u64, u64>,
    /// What the policy wants to have below next.
    leaving: Option<Transfer>,
    /// Bytes of this checkpoint that went to the host because the cache was full.
    pub spilled: u64,
}

impl Cache {
    /// An empty one of so many bytes.
    pub fn new(capacity: u64) -> Cache {
        let capacity = capacity / ROOM * ROOM;
        let cache = TierLimits { capacity: Some(capacity), contiguous: false, rate: RATES.0 };
        let below = TierLimits { capacity: None, contiguous: false, rate: RATES.1 };
        Cache {
            policy: Hierarchy::new(&[cache, below], Ties::default()),
            now: 0,
            segments: BTreeMap::new(),
            next: 0,
            free: (0..capacity / ROOM).rev().map(|nth| nth * ROOM).collect(),
            taken: BTreeMap::new(),
            kept: HashMap::new(),
            newest: BTreeMap::new(),
            leaving: None,
            spilled: 0,
        }
    }

    /// Takes the chunks of these slots, in their order, for an image; see [`Cache::over`].
    pub fn take(&mut self, now: u64, slots: &[u64], moves: &mut dyn Moves) -> Result<(), String> {
        (self.now, self.spilled) = (now, 0);
        for (nth, slots) in slots.chunks(SEGMENT).enumerate() {
            let (id, first, left) = (self.next, nth * SEGMENT, slots.len() as u64 * CHUNK);
            self.next += 1;
            self.taken.extend(slots.iter().enumerate().map(|(place, slot)| (*slot, (id, place))));
            let (slots, digests) = (slots.to_vec(), Vec::new());
            self.segments.insert(id, Segment { slots, digests, first, is: Where::Source, left, newest: 0 });
            self.write(id, moves)?;
        }
        Ok(())
    }

    fn step(&mut self, event: Event) -> Result<Vec<Action>, String> {
        self.policy.step(self.now, event).map_err(|error| error.to_string())
    }

    fn write(&mut self, id: u64, moves: &mut dyn Moves) -> Result<(), String> {
        let segment = SegmentId(id);
        let actions = self.step(Event::Write { segment, bytes: ROOM, discardable: false })?;
        self.obey(actions, moves)?;
        // It waits for room: something has to leave.
        while self.segments.get(&id).is_some_and(|segment| matches!(segment.is, Where::Source)) {
            self.leave(moves)?;
        }
        Ok(())
    }

    fn obey(&mut self, actions: Vec<Action>, moves: &mut dyn Moves) -> Result<(), String> {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            let transfer = match action {
                Action::Copy(transfer) => transfer,
                Action::Erase(SegmentId(id), 0) => {
                    queue.extend(self.evicted(id)?);
                    continue;
                }
                _ => continue,
            };
            let Some(segment) = self.segments.get_mut(&transfer.segment.0) else { continue };
            match (transfer.from, transfer.to) {
                (Place::Application, Place::Tier(0)) => {
                    let offset = self.free.pop().ok_or("the GPU cache has less room than it should")?;
                    moves.gather(segment.first, segment.slots.len(), offset)?;
                    segment.is = Where::Cache(offset);
                }
                (Place::Application, _) => {
                    let mut bytes = vec![0; segment.slots.len() * CHUNK as usize];
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

    /// The policy has given a segment's room up. What the image has of it is not asked for here any more.
    fn evicted(&mut self, id: u64) -> Result<Vec<Action>, String> {
        let Some(segment) = self.segments.get_mut(&id) else { return Ok(Vec::new()) };
        if let Where::Cache(offset) = segment.is {
            self.free.push(offset);
            segment.is = Where::Image;
        }
        if segment.left > 0 || self.policy.state(SegmentId(id), 1).is_none() {
            return Ok(Vec::new());
        }
        self.forget(id);
        self.step(Event::Remove(SegmentId(id), 1))
    }

    fn forget(&mut self, id: u64) {
        let Some(segment) = self.segments.remove(&id) else { return };
        if let Where::Cache(offset) = segment.is {
            self.free.push(offset);
        }
        for digest in segment.digests {
            if self.kept.get(&digest).is_some_and(|(of, _)| *of == id) {
                self.kept.remove(&digest);
            }
        }
        for slot in segment.slots {
            if self.newest.get(&slot) == Some(&id) {
                self.newest.remove(&slot);
            }
        }
    }

    /// The next segment goes to the host.
    fn leave(&mut self, moves: &mut dyn Moves) -> Result<(), String> {
        let transfer =
            self.leaving.take().ok_or("the GPU cache has no room, and nothing that could leave it")?;
        if let Some(segment) = self.segments.get_mut(&transfer.segment.0)
            && let Where::Cache(offset) = segment.is
            && segment.left > 0
        {
            let mut bytes = vec![0; segment.slots.len() * CHUNK as usize];
            moves.fetch(offset, &mut bytes)?;
            self.spilled += bytes.len() as u64;
            segment.is = Where::Host(bytes);
            self.free.push(offset);
        }
        let actions = self.step(Event::Copied(transfer))?;
        self.obey(actions, moves)
    }

    /// Everything goes to the host, or for good where an image has it: the device's memory is needed.
    pub fn give_way(&mut self, moves: &mut dyn Moves) -> Result<(), String> {
        while self.leaving.is_some() {
            self.leave(moves)?;
        }
        let stored: Vec<u64> =
            self.segments.iter().filter(|(_, segment)| segment.left == 0).map(|(id, _)| *id).collect();
        stored.into_iter().try_for_each(|id| self.drop_segment(id, moves))
    }

    /// A segment that is not being moved is in the cache no longer.
    fn drop_segment(&mut self, id: u64, moves: &mut dyn Moves) -> Result<(), String> {
        for tier in 0..2 {
            if self.policy.state(SegmentId(id), tier).is_some() {
                let actions = self.step(Event::Remove(SegmentId(id), tier))?;
                self.obey(actions, moves)?;
            }
        }
        self.forget(id);
        Ok(())
    }

    /// Reads from a byte of a chunk on that was taken. `false`: the chunk is none of this cache's.
    pub fn read(
        &self,
        slot: u64,
        skip: usize,
        into: &mut [u8],
        moves: &mut dyn Moves,
    ) -> Result<bool, String> {
        let Some((id, place)) = self.taken.get(&slot) else { return Ok(false) };
        let from = place * CHUNK as usize + skip;
        match self.segments.get(id).map(|segment| &segment.is) {
            Some(Where::Cache(offset)) => moves.fetch(offset + from as u64, into)?,
            Some(Where::Host(bytes)) => {
                let found = bytes.get(from..).and_then(|rest| rest.get(..into.len()));
                into.copy_from_slice(found.ok_or("more was asked for than a chunk has")?);
            }
            Some(Where::Source | Where::Image) | None => {
                return Err(format!("chunk {slot} was given up already"));
            }
        }
        Ok(true)
    }

    fn place(&self, (id, place): (u64, usize)) -> Option<u64> {
        let Where::Cache(offset) = self.segments.get(&id)?.is else { return None };
        Some(offset + place as u64 * CHUNK)
    }

    /// Where a chunk that was taken is in the cache; `None`: it is none of this cache's, or somewhere else by now.
    pub fn offset(&self, slot: u64) -> Option<u64> {
        self.place(*self.taken.get(&slot)?)
    }

    /// Where a chunk is that an image has.
    pub fn find(&self, digest: Digest) -> Option<u64> {
        self.place(*self.kept.get(&digest)?)
    }

    /// What is there with this digest is something else.
    pub fn lose(&mut self, digest: Digest) {
        self.kept.remove(&digest);
    }

    /// So many bytes of a cache of this length that no chunk needs: the first of them, on a boundary of chunks. Where
    /// there are none beside what images have, some of that goes.
    pub fn gap(&mut self, bytes: u64, len: u64) -> Option<u64> {
        if let Some(found) = self.gap_beside(bytes, len, |_| true) {
            return Some(found);
        }
        let found = self.gap_beside(bytes, len, |segment| segment.left > 0)?;
        let end = found + bytes;
        let is_there = |segment: &Segment| match segment.is {
            Where::Cache(offset) => offset < end && found < offset + ROOM,
            _ => false,
        };
        let there = self.segments.iter().filter(|(_, segment)| is_there(segment));
        let going: Vec<u64> = there.map(|(id, _)| *id).collect();
        going.into_iter().try_for_each(|id| self.drop_segment(id, &mut Nothing)).ok()?;
        Some(found)
    }

    fn gap_beside(&self, bytes: u64, len: u64, is_used: impl Fn(&Segment) -> bool) -> Option<u64> {
        let of_segment = |segment: &Segment| match segment.is {
            Where::Cache(offset) if is_used(segment) => {
                Some((offset, offset + segment.slots.len() as u64 * CHUNK))
            }
            _ => None,
        };
        let mut used: Vec<(u64, u64)> = self.segments.values().filter_map(of_segment).collect();
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

    /// The image has so many bytes of a chunk: a whole segment of them may be evicted.
    pub fn stored(&mut self, now: u64, slot: u64, bytes: u64, moves: &mut dyn Moves) -> Result<(), String> {
        self.now = now;
        let Some(segment) = self.taken.get(&slot).and_then(|(id, _)| self.segments.get_mut(id)) else {
            return Ok(());
        };
        segment.left = segment.left.saturating_sub(bytes);
        if segment.left == 0 && matches!(segment.is, Where::Host(_)) {
            segment.is = Where::Image;
        }
        // In the policy's order: a segment that is stored earlier waits for those before it.
        while let Some(transfer) = self.leaving {
            if self.segments.get(&transfer.segment.0).is_some_and(|segment| segment.left > 0) {
                break;
            }
            self.leave(moves)?;
        }
        Ok(())
    }

    /// The image is committed; or it has failed (`None`): what was taken for it is given up.
    pub fn over(
        &mut self,
        now: u64,
        image: Option<Committed<'_>>,
        moves: &mut dyn Moves,
    ) -> Result<(), String> {
        self.now = now;
        let taken = std::mem::take(&mut self.taken);
        let mut all: Vec<u64> = taken.values().map(|(id, _)| *id).collect();
        all.sort_unstable();
        all.dedup();
        for id in &all {
            if let Some(segment) = self.segments.get_mut(id) {
                segment.left = 0;
            }
        }
        while self.leaving.is_some() {
            self.leave(moves)?;
        }
        for id in all {
            if !image.as_ref().is_some_and(|image| self.keep(id, image.digest)) {
                self.drop_segment(id, moves)?;
            }
        }
        let Some(image) = image else { return Ok(()) };
        let now_zero = image.zero.iter().map(|slot| (*slot, None));
        for (slot, by) in taken.into_iter().map(|(slot, (id, _))| (slot, Some(id))).chain(now_zero) {
            self.replace(slot, by.filter(|id| self.segments.contains_key(id)))?;
        }
        Ok(())
    }

    /// What an image has of a segment can be found from now on. Whether it is in the cache.
    fn keep(&mut self, id: u64, digest: &dyn Fn(u64) -> Option<Digest>) -> bool {
        let Some(segment) = self.segments.get_mut(&id) else { return false };
        let digests: Option<Vec<Digest>> = segment.slots.iter().map(|slot| digest(*slot)).collect();
        let Some(digests) = digests.filter(|_| matches!(segment.is, Where::Cache(_))) else { return false };
        self.kept.extend(digests.iter().enumerate().map(|(place, digest)| (*digest, (id, place))));
        (segment.newest, segment.digests) = (0, digests);
        true
    }

    /// From now on this segment has the newest of a slot, or none.
    fn replace(&mut self, slot: u64, by: Option<u64>) -> Result<(), String> {
        let before = match by {
            Some(id) => self.newest.insert(slot, id),
            None => self.newest.remove(&slot),
        };
        if before == by {
            return Ok(());
        }
        if let Some(segment) = by.and_then(|id| self.segments.get_mut(&id)) {
            segment.newest += 1;
        }
        let Some(segment) = before.and_then(|id| self.segments.get_mut(&id)) else { return Ok(()) };
        segment.newest = segment.newest.saturating_sub(1);
        match before.filter(|_| segment.newest == 0) {
            Some(id) => self.step(Event::Replaced(SegmentId(id))).map(drop),
            None => Ok(()),
        }
    }

    /// These slots are no more.
    pub fn gone(&mut self, slots: Range<u64>) -> Result<(), String> {
        let known: Vec<u64> = self.newest.range(slots).map(|(slot, _)| *slot).collect();
        known.into_iter().try_for_each(|slot| self.replace(slot, None))
    }

    /// Chunks that images have go back to where they were. Slots of those that were there still.
    pub fn bring(&mut self, now: u64, wanted: &[Wanted], moves: &mut dyn Moves) -> Result<Vec<u64>, String> {
        self.now = now;
        let mut of_segment: BTreeMap<u64, Vec<(usize, Wanted)>> = BTreeMap::new();
        for one in wanted {
            if let Some(&(id, place)) = self.kept.get(&one.digest) {
                of_segment.entry(id).or_default().push((place, *one));
            }
        }
        let mut brought = Vec::new();
        for (id, all) in of_segment {
            let Some(offset) = self.place((id, 0)) else { continue };
            let actions = self.step(Event::Restore(SegmentId(id)))?;
            for (offset, address, bytes) in parts(offset, &all) {
                moves.bring(offset, address, bytes)?;
            }
            let is_read =
                |action: &Action| matches!(action, Action::Copy(read) if read.to == Place::Application);
            let (read, others): (Vec<Action>, _) = actions.into_iter().partition(is_read);
            self.obey(others, moves)?;
            for action in read {
                let Action::Copy(transfer) = action else { continue };
                let actions = self.step(Event::Copied(transfer))?;
                self.obey(actions, moves)?;
            }
            // The program may well go back to it again.
            let actions = self.step(Event::Hint(SegmentId(id)))?;
            self.obey(actions, moves)?;
            for (_, one) in all {
                self.replace(one.slot, Some(id))?;
                brought.push(one.slot);
            }
        }
        Ok(brought)
    }
}

/// Chunks of a segment at an offset, as few copies: from where, to where, bytes.
fn parts(offset: u64, all: &[(usize, Wanted)]) -> Vec<(u64, u64, u64)> {
    let mut parts: Vec<(u64, u64, u64)> = Vec::new();
    for (place, one) in all {
        let from = offset + *place as u64 * CHUNK;
        match parts.last_mut() {
            Some((begin, to, bytes)) if *begin + *bytes == from && *to + *bytes == one.address => {
                *bytes += CHUNK;
            }
            _ => parts.push((from, one.address, CHUNK)),
        }
    }
    parts
}

/// What is asked for where nothing is to be copied.
struct Nothing;

impl Moves for Nothing {
    fn gather(&mut self, _: usize, _: usize, _: u64) -> Result<(), String> {
        Err("nothing is to be taken now".into())
    }
    fn take(&mut self, first: usize, _: &mut [u8]) -> Result<(), String> {
        self.gather(first, 0, 0)
    }
    fn fetch(&mut self, _: u64, _: &mut [u8]) -> Result<(), String> {
        self.gather(0, 0, 0)
    }
    fn bring(&mut self, _: u64, _: u64, _: u64) -> Result<(), String> {
        self.gather(0, 0, 0)
    }
}

#[cfg(test)]
mod tests;
