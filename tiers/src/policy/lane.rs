//! One direction of a link: what waits for it, what is under way; and the cache that it leads to.
//!
//! Used by [`super::Hierarchy`].

use super::SegmentId;
use super::fragments::Fragments;
use super::pieces::Pieces;
use super::transfer::Transfer;
use std::collections::{BTreeMap, VecDeque};

/// What waits, the next one first; one segment may wait more than once.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    order: VecDeque<SegmentId>,
    times: BTreeMap<SegmentId, u32>,
}

impl Queue {
    pub fn push_back(&mut self, id: SegmentId) {
        self.order.push_back(id);
        *self.times.entry(id).or_default() += 1;
    }

    pub fn push_front(&mut self, id: SegmentId) {
        self.order.push_front(id);
        *self.times.entry(id).or_default() += 1;
    }

    pub fn pop_front(&mut self) -> Option<SegmentId> {
        let id = self.order.pop_front()?;
        if let Some(times) = self.times.get_mut(&id) {
            *times -= 1;
            if *times == 0 {
                self.times.remove(&id);
            }
        }
        Some(id)
    }

    /// This one waits no longer.
    pub fn remove(&mut self, id: SegmentId) {
        if self.times.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }

    pub fn has(&self, id: SegmentId) -> bool {
        self.times.contains_key(&id)
    }

    pub fn front(&self) -> Option<SegmentId> {
        self.order.front().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = SegmentId> {
        self.order.iter().copied()
    }
}

/// A direction of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// What waits for it. Down: for the tier; up: restores of any tier wait in `Hierarchy::restores`.
    pub(super) queue: Queue,
    pub(super) active: Option<(Transfer, u64)>,
    pub(super) failures: u32,
    pub(super) not_before: u64,
}

impl Lane {
    /// Whether this segment waits for it, or is under way.
    pub fn has(&self, id: SegmentId) -> bool {
        self.active.is_some_and(|(transfer, _)| transfer.segment == id) || self.queue.has(id)
    }
}

/// A bounded tier's room.
#[derive(Clone, Debug)]
pub(super) enum Cache {
    /// Each segment lies there in one piece.
    Contiguous(Fragments),
    /// Only sizes count.
    Pieces(Pieces),
}

impl Cache {
    /// An empty one.
    pub fn new(capacity: u64, contiguous: bool) -> Cache {
        match contiguous {
            true => Cache::Contiguous(Fragments::new(capacity)),
            false => Cache::Pieces(Pieces::new(capacity)),
        }
    }

    pub fn capacity(&self) -> u64 {
        match self {
            Cache::Contiguous(fragments) => fragments.capacity(),
            Cache::Pieces(pieces) => pieces.capacity(),
        }
    }

    /// Gives up a segment's room.
    pub fn erase(&mut self, id: SegmentId) {
        match self {
            Cache::Contiguous(fragments) => fragments.erase(id),
            Cache::Pieces(pieces) => pieces.erase(id),
        };
    }
}
