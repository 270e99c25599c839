//! Which copies begin now.
//!
//! Part of [`super::Hierarchy`]; called at the end of each step. Down before up: what is written makes room below.
//! Invariants: at most one copy per link and direction, but for those of the application in [`Hierarchy::for_many`]; a
//! segment has at most one copy under way to a tier.

use super::SegmentId;
use super::hierarchy::{Action, Hierarchy, PolicyError};
use super::room::Room;
use super::state::Change;
use super::transfer::{Place, Transfer};
use std::collections::VecDeque;

/// What is farther away is not prefetched.
const MOST_DISTANCE: u64 = 1024;
/// So many of the next hints may go straight to a faster tier than the next one. What is wanted later has the time for
/// two copies; and more would have the fastest tier filled past the next one, whose room is then for nothing.
const STRAIGHT: u64 = 4;

impl Hierarchy {
    pub(super) fn dispatch(&mut self, actions: &mut Vec<Action>) -> Result<(), PolicyError> {
        // From the slowest link, so that a tier has got rid of what it can before it gets more; and what does not fit
        // a tier goes to the link of the next one, which is then asked once more.
        loop {
            let mut skipped = false;
            for link in (0..self.tiers.len()).rev() {
                skipped |= self.start_down(link, actions)?;
            }
            if !skipped {
                break;
            }
        }
        for link in 0..self.tiers.len() {
            while self.apart.is_some() && self.start_restore(link, actions)? {}
            if self.tiers[link].up.active.is_none() && !self.start_restore(link, actions)? && link > 0 {
                self.start_prefetch(link, actions)?;
            }
        }
        Ok(())
    }

    /// A tier has this segment already.
    pub(super) fn found(
        &mut self,
        id: SegmentId,
        bytes: u64,
        tier: usize,
        actions: &mut Vec<Action>,
    ) -> Result<(), PolicyError> {
        if self.segments.get(&id).is_some_and(|segment| segment.tiers[tier].is_some()) {
            return Err(PolicyError::Twice(id));
        }
        let is_new = !self.segments.contains_key(&id);
        if is_new {
            self.add(id, bytes, false);
        }
        let Room::Placed(_) = self.room(tier, id, None, actions)? else {
            if is_new {
                self.forget(id);
            }
            return Err(PolicyError::NoRoom(id, tier));
        };
        self.new_instance(id, tier, Change::WriteStarted)?;
        self.arrived(id, tier)
    }

    /// The next segment that waits for a link. Whether one was sent on to the next link.
    fn start_down(&mut self, link: usize, actions: &mut Vec<Action>) -> Result<bool, PolicyError> {
        while self.tiers[link].down.active.is_none() {
            let Some(id) = self.tiers[link].down.queue.front() else { break };
            if self.tiers[link].down.not_before > self.now {
                actions.push(Action::Wake(self.tiers[link].down.not_before));
                break;
            }
            let Some(from) = self.source(id, link) else {
                self.dequeue(link);
                continue;
            };
            if let Some(passed) = self.put_off(id, from, link) {
                return Ok(passed);
            }
            match self.room(link, id, None, actions)? {
                Room::Placed(offset) => {
                    self.dequeue(link);
                    self.new_instance(id, link, Change::WriteStarted)?;
                    self.begin(id, from, Place::Tier(link), offset, actions);
                }
                Room::Wait => break,
                Room::Never if link + 1 < self.tiers.len() => {
                    self.dequeue(link);
                    self.enqueue(id, link + 1);
                    return Ok(true);
                }
                // More than the slowest tier can hold: it stays where it is.
                Room::Never => {
                    self.dequeue(link);
                }
            }
        }
        Ok(false)
    }

    /// A flush that costs more than it gives stays in the queue; or passes this tier by, where the next link has
    /// nothing else to do. Whether it has passed; `None`: it is to be made.
    fn put_off(&mut self, id: SegmentId, from: Place, link: usize) -> Option<bool> {
        let Place::Tier(from) = from else { return None };
        let bytes = self.segments.get(&id)?.bytes;
        if link + 1 == self.tiers.len() || !self.can_be_put_off(from, link, bytes) {
            return None;
        }
        let next = &self.tiers[link + 1].down;
        let is_idle = next.active.is_none() && next.queue.is_empty();
        if is_idle {
            self.dequeue(link);
            self.enqueue(id, link + 1);
        }
        Some(is_idle)
    }

    /// From where a segment goes down; `None`: it need not, or cannot any more.
    fn source(&self, id: SegmentId, link: usize) -> Option<Place> {
        let segment = self.segments.get(&id)?;
        if segment.tiers[link].is_some() {
            return None;
        }
        match (0..link).rev().find(|&tier| segment.complete(tier)) {
            Some(tier) => Some(Place::Tier(tier)),
            None if segment.tiers.iter().all(Option::is_none) => Some(Place::Application),
            None => None,
        }
    }

    /// The first restore whose segment is on this tier and on no faster one. Whether there was one.
    fn start_restore(&mut self, link: usize, actions: &mut Vec<Action>) -> Result<bool, PolicyError> {
        let (known, lost): (VecDeque<_>, VecDeque<_>) =
            self.restores.drain(..).partition(|id| self.segments.contains_key(id));
        self.restores = known;
        actions.extend(lost.into_iter().map(Action::Lost));
        let ready = |id: &SegmentId| {
            // What is on its way to a faster tier is there before it would be delivered from here.
            self.segments
                .get(id)
                .is_some_and(|segment| segment.fastest() == Some(link) && !self.promoting(*id))
        };
        let Some(index) = self.restores.iter().position(ready) else { return Ok(false) };
        let Some(id) = self.restores.remove(index) else { return Ok(false) };
        self.begin(id, Place::Tier(link), Place::Application, 0, actions);
        Ok(true)
    }

    /// A copy of the segment to a faster tier is under way.
    fn promoting(&self, id: SegmentId) -> bool {
        self.tiers.iter().any(|tier| {
            tier.up
                .active
                .is_some_and(|(transfer, _)| transfer.segment == id && transfer.to != Place::Application)
        })
    }

    /// The nearest hint whose segment is on this tier and on no faster one: to the next faster one, or straight to a
    /// tier that has, or gets, all that is hinted at before it.
    fn start_prefetch(&mut self, link: usize, actions: &mut Vec<Action>) -> Result<(), PolicyError> {
        if !self.prefetching {
            return Ok(());
        }
        self.refresh();
        let Some(id) = self.wanted.first(link) else { return Ok(()) };
        let Some(distance) = self.hints.distance(id).filter(|far| *far < MOST_DISTANCE) else {
            return Ok(());
        };
        let first = if distance < STRAIGHT { self.fastest_in_turn(distance) } else { link - 1 };
        for tier in first..link {
            if self.segments.get(&id).is_none_or(|segment| segment.tiers[tier].is_some()) {
                continue;
            }
            if let Room::Placed(offset) = self.room(tier, id, Some(distance), actions)? {
                self.new_instance(id, tier, Change::ReadStarted)?;
                self.begin(id, Place::Tier(link), Place::Tier(tier), offset, actions);
                break;
            }
        }
        Ok(())
    }

    /// The fastest tier of which everything that is hinted at before has a part, or of a faster one: what goes straight
    /// there takes no room from what comes sooner.
    fn fastest_in_turn(&self, distance: u64) -> usize {
        let has = |id: SegmentId| {
            // What is not written yet needs no room of a prefetch.
            let segment = self.segments.get(&id)?;
            segment.tiers.iter().position(Option::is_some)
        };
        self.hints.iter().zip(0..distance).filter_map(|(id, _)| has(id)).max().unwrap_or(0)
    }

    fn begin(&mut self, id: SegmentId, from: Place, to: Place, offset: u64, actions: &mut Vec<Action>) {
        self.touch(id);
        let Some(segment) = self.segments.get_mut(&id) else { return };
        let transfer = Transfer { segment: id, from, to, bytes: segment.bytes, offset };
        if let Place::Tier(tier) = from
            && !transfer.is_down()
            && let Some(instance) = segment.tiers[tier].as_mut()
        {
            instance.readers += 1;
        }
        match self.apart.as_mut().filter(|_| transfer.is_of_application()) {
            Some(apart) => apart.push((transfer, self.now)),
            None => {
                let tier = &mut self.tiers[transfer.link()];
                let lane = if transfer.is_down() { &mut tier.down } else { &mut tier.up };
                lane.active = Some((transfer, self.now));
            }
        }
        actions.push(Action::Copy(transfer));
    }
}
