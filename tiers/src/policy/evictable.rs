//! How it is with each segment: whether it may be evicted from caches in pieces, whether it is to be prefetched.
//!
//! Part of [`super::Hierarchy`]. Whatever changes a segment touches it; before room or a prefetch is looked for, what
//! was touched is looked at again. So no step looks at all segments.
//! Invariant: what is noted of a segment that was not touched since is as it would be found now (the tests compare the
//! choices with those of a search over all).

use super::SegmentId;
use super::hierarchy::{Hierarchy, Segment};
use super::lane::Cache;
use super::pieces::{Evictable, Group, Order};
use super::state::State;

impl Hierarchy {
    /// Something about a segment changes.
    pub(super) fn touch(&mut self, id: SegmentId) {
        self.touched.push(id);
    }

    /// Takes note of all that has changed.
    pub(super) fn refresh(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        if self.hints.take_touched(&mut touched) {
            touched = self.segments.keys().copied().collect();
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            self.wanted.note(id, self.wanted_at(id));
            for tier in 0..self.tiers.len() {
                if matches!(self.tiers[tier].cache, Some(Cache::Pieces(_))) {
                    let evictable = self.evictable(id, tier);
                    let is_held = self.is_held(id, tier);
                    if let Some(Cache::Pieces(pieces)) = &mut self.tiers[tier].cache {
                        pieces.note(id, evictable, is_held);
                    }
                }
            }
        }
    }

    /// It was prefetched or restored, and its room is not free yet.
    pub(super) fn is_held(&self, id: SegmentId, tier: usize) -> bool {
        matches!(self.state(id, tier), Some(State::Reading | State::Ready | State::Consumed))
    }

    fn evictable(&self, id: SegmentId, tier: usize) -> Evictable {
        let Some(segment) = self.segments.get(&id) else { return Evictable::Blocked };
        let Some(instance) = segment.tiers[tier].filter(|i| i.state.complete() && i.readers == 0) else {
            return Evictable::Blocked;
        };
        if self.restores.contains(&id) {
            return Evictable::Blocked;
        }
        let is_spent = self.is_spent(segment, tier);
        let kept = !is_spent && instance.state == State::Ready;
        if self.is_free(segment, tier) && !self.flush_reads(id, tier) {
            let (group, rank) = match self.hints.place(id) {
                _ if is_spent => (Group::Spent, 0),
                Some(place) => (Group::Hinted, u64::MAX - place),
                None if self.elsewhere(segment, tier) => (Group::Elsewhere, instance.used),
                None => (Group::Unhinted, instance.used),
            };
            return Evictable::Now { order: Order { group, rank }, kept };
        }
        let is_due = self.tiers[tier + 1..].iter().any(|below| below.down.has(id));
        if is_due { Evictable::Later { kept } } else { Evictable::Blocked }
    }

    /// The link by which a segment is to be prefetched, and the place of its hint.
    fn wanted_at(&self, id: SegmentId) -> Option<(usize, u64)> {
        let place = self.hints.place(id)?;
        let segment = self.segments.get(&id)?;
        let link = segment.fastest().filter(|link| *link > 0)?;
        let most = self.tiers[link - 1].cache.as_ref().map_or(u64::MAX, Cache::capacity);
        let is_read = segment.tiers[link].is_some_and(|instance| instance.readers > 0);
        let is_wanted = !is_read
            && segment.tiers[link - 1].is_none()
            && segment.bytes <= most
            && !self.restores.contains(&id);
        is_wanted.then_some((link, place))
    }

    /// It can go from a tier without being lost.
    pub(super) fn is_free(&self, segment: &Segment, tier: usize) -> bool {
        segment.copied_below(tier) || (segment.delivered && segment.discardable)
    }
}
