//! Segments over tiers: what moves where, and when.
//!
//! Called by the threads of the store, one call of [`Hierarchy::step`] for each thing that happened, and by the
//! simulator. Tier 0 is the fastest; the last one has no bound, or never gets more than it holds. What a step decides
//! is in `dispatch` (which copies begin) and `room` (what is evicted for them); this file has the types and what the
//! end of a copy means.
//!
//! Each link (tier 0: from and to the application; tier k: from and to tier k - 1) has one copy under way in each
//! direction. Down: segments in the order in which they were written. Up: restores that wait, before prefetches, the
//! nearest hint first. A restore is delivered from the fastest tier that has the segment, past the caches: it needs
//! no room, so whatever the hints were, it never waits for one.
//! Invariants: an instance that is the only complete copy is not erased, but when its segment is `discardable` and was
//! restored; room is taken when the copy begins, never twice; a failed copy leaves the tables as if it had not begun.

use super::SegmentId;
use super::lane::{Cache, Lane};
use super::rates::measured;
use super::restore_queue::RestoreQueue;
use super::state::{Change, IllegalChange, State};
use super::transfer::{Place, Transfer};
use super::wanted::Wanted;
use super::window::Ties;
use std::collections::{BTreeMap, VecDeque};

/// What the policy has to know of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Bytes of its cache; `None`: no bound.
    pub capacity: Option<u64>,
    /// Each segment has to lie there in one piece.
    pub contiguous: bool,
    /// Bytes per second into it from the next faster tier: a first guess, corrected by what is measured.
    pub rate: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The application has a new segment; it waits until the copy from its buffer has ended.
    Write {
        /// The segment.
        segment: SegmentId,
        /// Its size, not 0.
        bytes: u64,
        /// Once restored it will not be needed again, and need not reach slower tiers.
        discardable: bool,
    },
    /// The application waits for a segment.
    Restore(SegmentId),
    /// It will want this one, after those that it has hinted at before.
    Hint(SegmentId),
    /// What was hinted at before it was written has another name: it is this segment.
    Named {
        /// The segment of the hints.
        promised: SegmentId,
        /// What it is.
        segment: SegmentId,
    },
    /// A tier has this one already: found there by its user, who has just begun. A faster one is told of later.
    Found {
        /// The segment.
        segment: SegmentId,
        /// Its size, not 0.
        bytes: u64,
        /// The tier.
        tier: usize,
    },
    /// Once restored it will not be needed again, and need not reach slower tiers.
    Discard(SegmentId),
    /// A newer segment has what this one was for: it will hardly be restored, as long as no hint says so.
    Replaced(SegmentId),
    /// Prefetching may begin.
    StartPrefetch,
    /// A copy has ended well.
    Copied(Transfer),
    /// This tier is to have the segment no longer, though it may be the only copy: its versions were removed there.
    Remove(SegmentId, usize),
    /// A copy has failed: from the application the next tier takes it at once, else down it is tried again after a
    /// while; up another copy is taken.
    Failed(Transfer),
    /// The application has given up this copy of its own, and with it the segment, which no tier has.
    Withdrawn(Transfer),
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// This segment's room on this tier is given up.
    Erase(SegmentId, usize),
    /// Begin this copy, and tell of its end.
    Copy(Transfer),
    /// Send a [`Event::Tick`] at this time, if nothing else has happened by then.
    Wake(u64),
    /// The only copy cannot be read, or there is none: the restore has failed. Or no tier takes it: the write has, and
    /// is as if it had never been.
    Lost(SegmentId),
}

/// An event that cannot have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A segment is written once.
    #[error("segment {0:?} was written before")]
    Twice(SegmentId),
    /// Restore of what was never written, or of what was discarded.
    #[error("segment {0:?} is on no tier")]
    Unknown(SegmentId),
    /// A tier has more than its bound allows.
    #[error("segment {0:?} has no room on tier {1}")]
    NoRoom(SegmentId, usize),
    /// What is being copied cannot be removed: try again when that has ended.
    #[error("segment {0:?} is in use on tier {1}")]
    InUse(SegmentId, usize),
    /// The end of a copy that was not begun.
    #[error("no such copy is under way: {0:?}")]
    NoSuchCopy(Transfer),
    /// A defect of the policy.
    #[error(transparent)]
    Illegal(#[from] IllegalChange),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instance {
    pub(super) state: State,
    /// Copies to the application or to a faster tier that read it now.
    pub(super) readers: u32,
    /// The step in which it came or was last read.
    pub(super) used: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    pub(super) discardable: bool,
    /// In the order of writing.
    pub(super) number: u64,
    /// Restored, and not hinted at since.
    pub(super) delivered: bool,
    /// Replaced by a newer one, and not hinted at since.
    pub(super) replaced: bool,
    pub(super) tiers: Vec<Option<Instance>>,
}

impl Segment {
    pub(super) fn complete(&self, tier: usize) -> bool {
        self.tiers[tier].is_some_and(|instance| instance.state.complete())
    }

    /// The fastest tier that has all of it.
    pub(super) fn fastest(&self) -> Option<usize> {
        (0..self.tiers.len()).find(|&tier| self.complete(tier))
    }

    pub(super) fn copied_below(&self, tier: usize) -> bool {
        (tier + 1..self.tiers.len()).any(|below| self.complete(below))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tier {
    /// `None`: no bound.
    pub(super) cache: Option<Cache>,
    pub(super) rate: u64,
    pub(super) down: Lane,
    pub(super) up: Lane,
}

/// The policy of several tiers.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    pub(super) tiers: Vec<Tier>,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    /// By their numbers.
    pub(super) written: BTreeMap<u64, SegmentId>,
    pub(super) hints: RestoreQueue,
    /// Restores that wait for their delivery to begin, the first come first.
    pub(super) restores: VecDeque<SegmentId>,
    pub(super) prefetching: bool,
    pub(super) wanted: Wanted,
    /// What was changed, and is to be looked at again.
    pub(super) touched: Vec<SegmentId>,
    /// Copies from and to the application that need no lane: it has several threads.
    pub(super) apart: Option<Vec<(Transfer, u64)>>,
    pub(super) ties: Ties,
    /// Number of the step.
    pub(super) steps: u64,
    pub(super) now: u64,
}

/// First and greatest pause after a failed copy.
const PAUSES: (u64, u64) = (100_000_000, 60_000_000_000);

impl Hierarchy {
    /// Empty tiers, the fastest first.
    pub fn new(tiers: &[TierLimits], ties: Ties) -> Hierarchy {
        let tier = |limits: &TierLimits| Tier {
            cache: limits.capacity.map(|capacity| Cache::new(capacity, limits.contiguous)),
            rate: limits.rate,
            down: Lane::default(),
            up: Lane::default(),
        };
        Hierarchy {
            tiers: tiers.iter().map(tier).collect(),
            segments: BTreeMap::new(),
            written: BTreeMap::new(),
            hints: RestoreQueue::default(),
            restores: VecDeque::new(),
            prefetching: false,
            wanted: Wanted::new(tiers.len()),
            touched: Vec::new(),
            apart: None,
            ties,
            steps: 0,
            now: 0,
        }
    }

    /// The same; any number of copies from and to the application may be under way at a time: it has many threads, or
    /// is many processes, of which none waits for another.
    pub fn for_many(tiers: &[TierLimits], ties: Ties) -> Hierarchy {
        Hierarchy { apart: Some(Vec::new()), ..Hierarchy::new(tiers, ties) }
    }

    /// Takes note of an event, and says what is to be done.
    pub fn step(&mut self, now_ns: u64, event: Event) -> Result<Vec<Action>, PolicyError> {
        self.now = now_ns;
        self.steps += 1;
        let mut actions = Vec::new();
        match event {
            Event::Write { segment, bytes, discardable } => self.write(segment, bytes, discardable)?,
            Event::Restore(segment) => self.restore(segment)?,
            Event::Hint(segment) => self.hint(segment)?,
            Event::Named { promised, segment } => self.hints.rename(promised, segment),
            Event::Found { segment, bytes, tier } => self.found(segment, bytes, tier, &mut actions)?,
            Event::Discard(segment) => self.discard(segment)?,
            Event::Replaced(segment) => self.replaced(segment)?,
            Event::StartPrefetch => self.prefetching = true,
            Event::Copied(transfer) => self.copied(transfer)?,
            Event::Failed(transfer) => self.failed(transfer, &mut actions)?,
            Event::Remove(segment, tier) => self.remove(segment, tier, &mut actions)?,
            Event::Withdrawn(transfer) => self.withdrawn(transfer, &mut actions)?,
            Event::Tick => {}
        }
        self.dispatch(&mut actions)?;
        self.refresh();
        Ok(actions)
    }

    /// Nothing is being written or waits to be: every segment is where it is to be in the end.
    pub fn is_flushed(&self) -> bool {
        let arriving = self.apart.iter().flatten().any(|(transfer, _)| transfer.is_down());
        !arriving && self.tiers.iter().all(|tier| tier.down.active.is_none() && tier.down.queue.is_empty())
    }

    /// Whether it has a segment: it was written, or is being written, and was not given up on all tiers.
    pub fn knows(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Whether a copy of a segment is under way that reads it on a tier.
    pub fn is_read(&self, segment: SegmentId, tier: usize) -> bool {
        let instance = self.segments.get(&segment).and_then(|segment| *segment.tiers.get(tier)?);
        instance.is_some_and(|instance| instance.readers > 0) || self.flush_reads(segment, tier)
    }

    /// The state of a segment on a tier; `None`: it has no instance there.
    pub fn state(&self, segment: SegmentId, tier: usize) -> Option<State> {
        Some((*self.segments.get(&segment)?.tiers.get(tier)?)?.state)
    }

    fn write(&mut self, segment: SegmentId, bytes: u64, discardable: bool) -> Result<(), PolicyError> {
        if self.segments.contains_key(&segment) {
            return Err(PolicyError::Twice(segment));
        }
        self.add(segment, bytes, discardable);
        self.enqueue(segment, 0);
        Ok(())
    }

    fn discard(&mut self, id: SegmentId) -> Result<(), PolicyError> {
        self.segments.get_mut(&id).ok_or(PolicyError::Unknown(id))?.discardable = true;
        self.touch(id);
        Ok(())
    }

    fn replaced(&mut self, id: SegmentId) -> Result<(), PolicyError> {
        self.segments.get_mut(&id).ok_or(PolicyError::Unknown(id))?.replaced = true;
        self.hints.forget(id);
        self.touch(id);
        Ok(())
    }

    pub(super) fn add(&mut self, segment: SegmentId, bytes: u64, discardable: bool) {
        let tiers = vec![None; self.tiers.len()];
        let number = self.written.last_key_value().map_or(0, |(number, _)| number + 1);
        let new =
            Segment { bytes: bytes.max(1), discardable, number, delivered: false, replaced: false, tiers };
        self.segments.insert(segment, new);
        self.written.insert(number, segment);
    }

    fn restore(&mut self, segment: SegmentId) -> Result<(), PolicyError> {
        if !self.segments.contains_key(&segment) {
            return Err(PolicyError::Unknown(segment));
        }
        self.restores.push_back(segment);
        self.touch(segment);
        Ok(())
    }

    fn hint(&mut self, id: SegmentId) -> Result<(), PolicyError> {
        if let Some(segment) = self.segments.get_mut(&id).filter(|segment| segment.replaced) {
            segment.replaced = false;
            self.touch(id);
        }
        if let Some(segment) = self.segments.get(&id).filter(|segment| segment.delivered) {
            if segment.discardable {
                return Ok(());
            }
            self.needed(id, 0)?;
            if let Some(segment) = self.segments.get_mut(&id) {
                segment.delivered = false;
            }
            self.touch(id);
        }
        self.hints.push(id);
        Ok(())
    }

    fn remove(&mut self, id: SegmentId, tier: usize, actions: &mut Vec<Action>) -> Result<(), PolicyError> {
        let instance = self.segments.get(&id).and_then(|segment| *segment.tiers.get(tier)?);
        let Instance { state, readers, .. } = instance.ok_or(PolicyError::Unknown(id))?;
        if !state.complete() || readers > 0 || self.flush_reads(id, tier) {
            return Err(PolicyError::InUse(id, tier));
        }
        self.drop_instance(id, tier, actions);
        self.gone(id, tier)
    }

    /// A tier has a segment no longer: the next slower copy is needed again, or the segment is no more.
    pub(super) fn gone(&mut self, id: SegmentId, tier: usize) -> Result<(), PolicyError> {
        self.touch(id);
        let Some(segment) = self.segments.get(&id) else { return Ok(()) };
        if segment.tiers.iter().all(Option::is_none) {
            self.forget(id);
        } else if !segment.delivered {
            self.needed(id, tier + 1)?;
        }
        Ok(())
    }

    pub(super) fn forget(&mut self, id: SegmentId) {
        if let Some(segment) = self.segments.remove(&id) {
            self.written.remove(&segment.number);
        }
        self.hints.forget(id);
        self.touch(id);
    }

    /// A segment waits for a tier from now on.
    pub(super) fn enqueue(&mut self, id: SegmentId, tier: usize) {
        self.tiers[tier].down.queue.push_back(id);
        self.touch(id);
    }

    /// The first one that waits for a tier does so no longer.
    pub(super) fn dequeue(&mut self, tier: usize) {
        let first = self.tiers[tier].down.queue.pop_front();
        self.touched.extend(first);
    }

    pub(super) fn change(&mut self, id: SegmentId, tier: usize, change: Change) -> Result<(), PolicyError> {
        let segment = self.segments.get_mut(&id).ok_or(PolicyError::Unknown(id))?;
        let instance = segment.tiers[tier].as_mut().ok_or(PolicyError::Unknown(id))?;
        instance.state = instance.state.after(change)?;
        self.touch(id);
        Ok(())
    }

    /// The fastest consumed instance from a tier on is no longer that.
    pub(super) fn needed(&mut self, id: SegmentId, from: usize) -> Result<(), PolicyError> {
        let Some(segment) = self.segments.get(&id) else { return Ok(()) };
        let Some(tier) = (from..self.tiers.len()).find(|&tier| segment.complete(tier)) else { return Ok(()) };
        let below = segment.copied_below(tier);
        if segment.tiers[tier].is_some_and(|instance| instance.state == State::Consumed) {
            self.change(id, tier, Change::Needed)?;
            if below {
                self.change(id, tier, Change::FlushDone)?;
            }
        }
        Ok(())
    }

    /// Takes a copy off its lane.
    fn ended(&mut self, transfer: Transfer) -> Result<u64, PolicyError> {
        self.touch(transfer.segment);
        let error = PolicyError::NoSuchCopy(transfer);
        let tier = self.tiers.get_mut(transfer.link()).ok_or(error)?;
        let since = match self.apart.as_mut().filter(|_| transfer.is_of_application()) {
            Some(apart) => {
                let at = apart.iter().position(|(active, _)| *active == transfer).ok_or(error)?;
                apart.swap_remove(at).1
            }
            None => {
                let lane = if transfer.is_down() { &mut tier.down } else { &mut tier.up };
                lane.active.take_if(|(active, _)| *active == transfer).ok_or(error)?.1
            }
        };
        if let (Place::Tier(from), Some(segment)) = (transfer.from, self.segments.get_mut(&transfer.segment))
            && let Some(instance) = segment.tiers[from].as_mut()
        {
            instance.used = self.steps;
            if !transfer.is_down() {
                instance.readers -= 1;
            }
        }
        Ok(since)
    }

    fn copied(&mut self, transfer: Transfer) -> Result<(), PolicyError> {
        let since = self.ended(transfer)?;
        let id = transfer.segment;
        match (transfer.from, transfer.to) {
            (_, Place::Tier(to)) if transfer.is_down() => {
                let tier = &mut self.tiers[to];
                tier.rate = measured(tier.rate, transfer.bytes, self.now.saturating_sub(since));
                tier.down.failures = 0;
                self.arrived(id, to)?;
            }
            (Place::Tier(from), Place::Tier(to)) => {
                self.change(id, to, Change::ReadDone)?;
                if self.tiers[from].cache.is_some() {
                    self.change(id, from, Change::Promoted)?;
                }
            }
            (Place::Tier(from), Place::Application) => self.delivered(id, from)?,
            (Place::Application, _) => {}
        }
        Ok(())
    }

    /// A tier has all of a segment, from a faster one or the application.
    pub(super) fn arrived(&mut self, id: SegmentId, tier: usize) -> Result<(), PolicyError> {
        self.change(id, tier, Change::WriteDone)?;
        for faster in 0..tier {
            if self.segments.get(&id).is_some_and(|segment| segment.complete(faster)) {
                self.change(id, faster, Change::FlushDone)?;
            }
        }
        let segment = self.segments.get(&id).ok_or(PolicyError::Unknown(id))?;
        if segment.copied_below(tier) {
            return self.change(id, tier, Change::FlushDone);
        }
        if tier + 1 < self.tiers.len() && !(segment.delivered && segment.discardable) {
            self.enqueue(id, tier + 1);
        }
        Ok(())
    }

    /// The application has the segment: its instances are consumed, but for the one on a tier without a bound.
    fn delivered(&mut self, id: SegmentId, from: usize) -> Result<(), PolicyError> {
        self.change(id, from, Change::Wanted)?;
        self.change(id, from, Change::Delivered)?;
        self.hints.restored(id);
        let segment = self.segments.get_mut(&id).ok_or(PolicyError::Unknown(id))?;
        if segment.discardable {
            self.hints.forget(id);
            self.tiers.iter_mut().for_each(|tier| tier.down.queue.remove(id));
        }
        let number = segment.number;
        // A guess that this one comes again is not one of the application.
        let hinted = self.hints.is_hinted(id);
        segment.delivered = !hinted;
        let named = |number: u64| {
            let id = self.written.get(&number)?;
            self.segments.get(id).filter(|segment| !segment.delivered).map(|_| *id)
        };
        self.hints.follow(number, named);
        if hinted {
            return self.needed(id, from);
        }
        let segment = self.segments.get(&id).ok_or(PolicyError::Unknown(id))?;
        let complete: Vec<usize> = (0..self.tiers.len()).filter(|&tier| segment.complete(tier)).collect();
        for tier in complete {
            if tier != from && self.tiers[tier].cache.is_some() {
                self.change(id, tier, Change::Promoted)?;
            }
        }
        Ok(())
    }

    fn failed(&mut self, transfer: Transfer, actions: &mut Vec<Action>) -> Result<(), PolicyError> {
        self.ended(transfer)?;
        let id = transfer.segment;
        if let Place::Tier(to) = transfer.to {
            self.drop_instance(id, to, actions);
        }
        if transfer.from == Place::Application {
            // It waits for no tier that has failed before.
            let open = |tier: &Tier| tier.down.not_before <= self.now;
            match self.tiers.iter().skip(transfer.link() + 1).position(open) {
                Some(next) => self.enqueue(id, transfer.link() + 1 + next),
                None => {
                    self.forget(id);
                    actions.push(Action::Lost(id));
                }
            }
        } else if transfer.is_down() {
            let lane = &mut self.tiers[transfer.link()].down;
            let pause = (PAUSES.0 << lane.failures.min(20)).min(PAUSES.1);
            lane.failures += 1;
            lane.not_before = self.now.saturating_add(pause);
            lane.queue.push_front(id);
        } else if let (Place::Tier(from), Place::Application) = (transfer.from, transfer.to) {
            // This tier cannot give it; another may. The last copy stays: what it is worth is not for us to say.
            let others =
                |segment: &Segment| (0..segment.tiers.len()).any(|t| t != from && segment.complete(t));
            if self.segments.get(&id).is_some_and(others) {
                // A flush that reads it now has its own end; until then it is tried again.
                if !self.flush_reads(id, from) {
                    self.drop_instance(id, from, actions);
                }
                self.restores.push_front(id);
            } else {
                self.hints.restored(id);
                actions.push(Action::Lost(id));
            }
        } else {
            self.hints.restored(id);
        }
        Ok(())
    }

    fn withdrawn(&mut self, transfer: Transfer, actions: &mut Vec<Action>) -> Result<(), PolicyError> {
        if transfer.from != Place::Application {
            return Err(PolicyError::NoSuchCopy(transfer));
        }
        self.ended(transfer)?;
        if let Place::Tier(to) = transfer.to {
            self.drop_instance(transfer.segment, to, actions);
        }
        self.forget(transfer.segment);
        Ok(())
    }

    /// A copy to a slower tier reads this instance.
    pub(super) fn flush_reads(&self, id: SegmentId, tier: usize) -> bool {
        let reads = |(copy, _): (Transfer, u64)| copy.segment == id && copy.from == Place::Tier(tier);
        self.tiers.iter().any(|below| below.down.active.is_some_and(reads))
    }

    pub(super) fn drop_instance(&mut self, id: SegmentId, tier: usize, actions: &mut Vec<Action>) {
        self.touch(id);
        if let Some(segment) = self.segments.get_mut(&id) {
            segment.tiers[tier] = None;
        }
        if let Some(cache) = self.tiers[tier].cache.as_mut() {
            cache.erase(id);
        }
        actions.push(Action::Erase(id, tier));
    }
}
