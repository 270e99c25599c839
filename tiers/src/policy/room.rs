//! Room in a cache: what may be evicted, and what that costs.
//!
//! Part of [`super::Hierarchy`]; called when a copy is about to begin.
//! What is written or flushed may evict all that has a copy below, or will have: the caller waits for that. A
//! prefetch waits for nothing and takes nothing that is worth more than itself: what is consumed; what another cache
//! has as well, if its hint is farther away; and a small part of the cache from what has no hint, or one farther away.
//! Invariant: as long as copies end, something that is written or flushed gets room in the end: what is there for a
//! restore is blocked only while there is another window.

use super::SegmentId;
use super::fragments::{Fragment, Fragments};
use super::hierarchy::{Action, Hierarchy, Instance, PolicyError, Segment};
use super::lane::Cache;
use super::pieces::{Group, Pieces};
use super::rates::transfer_ns;
use super::state::{Change, State};
use super::window::{Weight, best_window};
use std::collections::BTreeMap;

/// A prefetch may evict the only cached copy of what has no hint, as long as this part of the cache is not there for
/// restores yet: what is restored makes room for what is prefetched next.
const SHARE: u64 = 8;
/// The same of what has a hint farther away: it must be read once more.
const SHARE_HINTED: u64 = 64;
/// Distances of what has no hint begin here (greater for what was not used for longer), then what another cache has
/// too, what is consumed, gaps.
const NO_HINT: u64 = 1 << 30;
const ELSEWHERE: u64 = 1 << 38;
const CONSUMED: u64 = 1 << 40;
/// A cache is not short of room as long as this part of it is free, or can be at once; or so many segments fit into
/// what is.
const SPARE: u64 = 2;
const SPARE_SEGMENTS: u64 = 16;
const GAP: u64 = CONSUMED + 1;

/// For what room is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Bytes from a faster tier or the application.
    Write,
    /// The same, where there is no window without what waits for a restore.
    WriteInstead,
    /// A segment whose hint is so far away; `instead`: a share of the cache may be taken from what is worth more.
    Prefetch {
        /// The distance.
        wanted: u64,
        /// See above.
        instead: bool,
    },
}

/// What came of it.
pub(super) enum Room {
    /// It is there, at this offset.
    Placed(u64),
    /// It will be there when other copies have ended.
    Wait,
    /// The cache is smaller than this.
    Never,
}

/// What is evicted.
enum Chosen {
    /// Fragments of a contiguous cache.
    Window(Vec<usize>),
    /// Segments of one in pieces.
    Pieces(Vec<SegmentId>),
}

impl Hierarchy {
    /// Makes room for a segment on a tier, if that can be had now, by erasing what is in the way.
    pub(super) fn room(
        &mut self,
        tier: usize,
        id: SegmentId,
        prefetch: Option<u64>,
        actions: &mut Vec<Action>,
    ) -> Result<Room, PolicyError> {
        self.refresh();
        let bytes = self.segments.get(&id).ok_or(PolicyError::Unknown(id))?.bytes;
        let Some(cache) = &self.tiers[tier].cache else { return Ok(Room::Placed(0)) };
        if bytes > cache.capacity() {
            return Ok(Room::Never);
        }
        let purposes: &[Purpose] = match prefetch {
            None => &[Purpose::Write, Purpose::WriteInstead],
            Some(wanted) => {
                &[Purpose::Prefetch { wanted, instead: false }, Purpose::Prefetch { wanted, instead: true }]
            }
        };
        // What a link that fails has yet to take may stay for ever: nothing waits for it as long as there is a choice.
        let failing = self.tiers[tier + 1..].iter().any(|below| below.down.failures > 0);
        for &purpose in purposes {
            match self.choose(tier, bytes, purpose) {
                Some((chosen, false)) => {
                    return self.evict(tier, &chosen, id, bytes, actions).map(Room::Placed);
                }
                Some(_) if !failing => return Ok(Room::Wait),
                _ => {}
            }
        }
        Ok(Room::Wait)
    }

    /// What is to be evicted, and whether that has to wait for flushes.
    fn choose(&self, tier: usize, bytes: u64, purpose: Purpose) -> Option<(Chosen, bool)> {
        match self.tiers[tier].cache.as_ref()? {
            Cache::Contiguous(fragments) => {
                let weights = self.weights(tier, fragments, purpose)?;
                let window = best_window(&weights, bytes, self.ties)?;
                Some((Chosen::Window(window.range.collect()), window.wait_ns > 0))
            }
            Cache::Pieces(pieces) => {
                let chosen = self.choose_pieces(tier, pieces, bytes, purpose);
                #[cfg(test)]
                self.compare(tier, pieces, bytes, purpose, chosen.as_ref());
                chosen.map(|(pieces, waits)| (Chosen::Pieces(pieces), waits))
            }
        }
    }

    fn weights(&self, tier: usize, fragments: &Fragments, purpose: Purpose) -> Option<Vec<Weight>> {
        let held = fragments.list().iter().filter(|part| part.owner.is_some_and(|id| self.is_held(id, tier)));
        let shares = shares(purpose, held.map(|part| part.bytes).sum(), fragments.capacity())?;
        let ahead = self.flush_times(tier);
        let weigh = |fragment: &Fragment| match fragment.owner {
            None => Weight { bytes: fragment.bytes, wait_ns: 0, distance: GAP, blocked: false },
            Some(owner) => self.weigh((tier, owner), fragment.bytes, purpose, shares, &ahead),
        };
        Some(fragments.list().iter().map(weigh).collect())
    }

    fn choose_pieces(
        &self,
        tier: usize,
        pieces: &Pieces,
        bytes: u64,
        purpose: Purpose,
    ) -> Option<(Vec<SegmentId>, bool)> {
        let Purpose::Prefetch { wanted, .. } = purpose else {
            return pieces.for_write(bytes, purpose == Purpose::WriteInstead);
        };
        let shares = shares(purpose, pieces.held(), pieces.capacity())?;
        let has_others =
            (0..self.tiers.len()).any(|other| other != tier && self.tiers[other].cache.is_some());
        let is_elsewhere =
            |id: &SegmentId| self.segments.get(id).is_some_and(|segment| self.elsewhere(segment, tier));
        let is_farther = |id: &SegmentId| self.hints.distance(*id).is_none_or(|far| far > wanted);
        let order = pieces
            .in_order(Group::Spent)
            .chain(pieces.in_order(Group::Elsewhere))
            .chain(pieces.in_order(Group::Unhinted).take_while(|_| shares.0))
            .chain(
                pieces
                    .in_order(Group::Hinted)
                    .take_while(|id| (shares.1 || has_others) && is_farther(id))
                    .filter(|id| shares.1 || is_elsewhere(id)),
            );
        pieces.enough(bytes, order).map(|chosen| (chosen, false))
    }

    /// What was chosen is what a search among all finds.
    #[cfg(test)]
    fn compare(
        &self,
        tier: usize,
        pieces: &Pieces,
        bytes: u64,
        purpose: Purpose,
        chosen: Option<&(Vec<SegmentId>, bool)>,
    ) {
        let list = pieces.by_age();
        let held = list.iter().filter(|(id, _)| self.is_held(*id, tier)).map(|(_, bytes)| bytes).sum();
        let ahead = self.flush_times(tier);
        let found = shares(purpose, held, pieces.capacity()).and_then(|shares| {
            let weigh =
                |(id, bytes): &(SegmentId, u64)| self.weigh((tier, *id), *bytes, purpose, shares, &ahead);
            let gap = Weight { bytes: pieces.gap(), wait_ns: 0, distance: GAP, blocked: pieces.gap() == 0 };
            let weights: Vec<Weight> = list.iter().map(weigh).chain([gap]).collect();
            super::window::best_pieces(&weights, bytes)
        });
        let ids = |indices: &[usize]| -> std::collections::BTreeSet<SegmentId> {
            indices.iter().filter_map(|index| list.get(*index)).map(|(id, _)| *id).collect()
        };
        let found = found
            .map(|(indices, wait_ns)| if wait_ns > 0 { (ids(&[]), true) } else { (ids(&indices), false) });
        let chosen = chosen.map(|(ids, waits)| (ids.iter().copied().collect(), *waits));
        assert_eq!(chosen, found, "{bytes} bytes on tier {tier}, instead of {list:?}");
    }

    /// Whether a flush to a tier is better put off: it would cost the last cached copy of something, and the cache that
    /// it comes from is not short of room.
    pub(super) fn can_be_put_off(&self, from: usize, to: usize, bytes: u64) -> bool {
        // What is free in a contiguous one may be no window for what is written next.
        let Some(Cache::Pieces(cache)) = &self.tiers[from].cache else { return false };
        let spare = (cache.capacity() / SPARE).min(bytes.saturating_mul(SPARE_SEGMENTS));
        self.at_once(to, |segment| self.is_spent(segment, to) || self.elsewhere(segment, to)) < bytes
            && self.at_once(from, |_| true) >= spare
    }

    /// Bytes on a tier that are free, or can be at once, of what is chosen.
    fn at_once(&self, tier: usize, chosen: impl Fn(&Segment) -> bool) -> u64 {
        let can_go = |id: &SegmentId| {
            self.segments.get(id).is_none_or(|segment| self.is_free(segment, tier) && chosen(segment))
        };
        match &self.tiers[tier].cache {
            None => 0,
            Some(Cache::Contiguous(fragments)) => {
                let free = fragments.list().iter().filter(|part| part.owner.is_none_or(|id| can_go(&id)));
                free.map(|part| part.bytes).sum()
            }
            Some(Cache::Pieces(pieces)) => {
                pieces.gap() + pieces.list().filter(|(id, _)| can_go(id)).map(|(_, bytes)| bytes).sum::<u64>()
            }
        }
    }

    pub(super) fn is_spent(&self, segment: &Segment, tier: usize) -> bool {
        segment.delivered
            || segment.replaced
            || segment.tiers[tier].is_some_and(|instance| instance.state == State::Consumed)
    }

    /// When each segment that waits for its flush from a tier will be below.
    fn flush_times(&self, tier: usize) -> BTreeMap<SegmentId, u64> {
        let mut times = BTreeMap::new();
        for below in self.tiers.iter().skip(tier + 1) {
            let mut bytes = 0;
            if let Some((transfer, since)) = below.down.active {
                let whole = transfer_ns(transfer.bytes, below.rate);
                times.insert(transfer.segment, whole.saturating_sub(self.now.saturating_sub(since)).max(1));
                bytes += transfer.bytes;
            }
            for id in below.down.queue.iter() {
                bytes += self.segments.get(&id).map_or(0, |segment| segment.bytes);
                times.entry(id).or_insert(transfer_ns(bytes, below.rate).max(1));
            }
        }
        times
    }

    /// `shares`: whether a prefetch may evict what no other cache has and what has no hint; what has a farther one.
    fn weigh(
        &self,
        (tier, id): (usize, SegmentId),
        bytes: u64,
        purpose: Purpose,
        shares: (bool, bool),
        flush_times: &BTreeMap<SegmentId, u64>,
    ) -> Weight {
        let blocked = Weight { bytes, wait_ns: 0, distance: 0, blocked: true };
        let Some(segment) = self.segments.get(&id) else { return blocked };
        let Some(instance) = segment.tiers[tier].filter(|i| i.state.complete() && i.readers == 0) else {
            return blocked;
        };
        if self.restores.contains(&id) {
            return blocked;
        }
        let hint = self.hints.distance(id);
        let spent = self.is_spent(segment, tier);
        let distance = match hint {
            _ if spent => CONSUMED,
            Some(hint) => hint,
            None if self.elsewhere(segment, tier) => NO_HINT + ELSEWHERE + (self.steps - instance.used),
            None => NO_HINT + (self.steps - instance.used),
        };
        let free = self.is_free(segment, tier);
        let wait_ns = match flush_times.get(&id) {
            _ if free && !self.flush_reads(id, tier) => 0,
            Some(&ns) => ns,
            None => return blocked,
        };
        let allowed = match purpose {
            Purpose::Write => spent || instance.state != State::Ready,
            Purpose::WriteInstead => true,
            Purpose::Prefetch { wanted, .. } => {
                let share = if hint.is_none() { shares.0 } else { shares.1 };
                let worth_less =
                    hint.is_none_or(|hint| hint > wanted) && (share || self.elsewhere(segment, tier));
                wait_ns == 0 && (spent || worth_less)
            }
        };
        Weight { bytes, wait_ns, distance, blocked: !allowed }
    }

    /// Another cache has the segment too.
    pub(super) fn elsewhere(&self, segment: &Segment, tier: usize) -> bool {
        (0..self.tiers.len())
            .any(|other| other != tier && self.tiers[other].cache.is_some() && segment.complete(other))
    }

    fn evict(
        &mut self,
        tier: usize,
        chosen: &Chosen,
        id: SegmentId,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) -> Result<u64, PolicyError> {
        // Who is there is asked before it is overwritten.
        let (owners, offset) = match (self.tiers[tier].cache.as_mut(), chosen) {
            (Some(Cache::Contiguous(fragments)), Chosen::Window(window)) => {
                let owners = window.iter().filter_map(|&index| fragments.list()[index].owner).collect();
                (owners, fragments.place(window, id, bytes).unwrap_or(0))
            }
            (Some(Cache::Pieces(pieces)), Chosen::Pieces(owners)) => {
                for owner in owners {
                    pieces.erase(*owner);
                }
                pieces.add(id, bytes);
                (owners.clone(), 0)
            }
            _ => (Vec::new(), 0),
        };
        for owner in owners {
            if self.state(owner, tier) == Some(State::Ready) {
                self.change(owner, tier, Change::Demoted)?;
            }
            actions.push(Action::Erase(owner, tier));
            if let Some(segment) = self.segments.get_mut(&owner) {
                segment.tiers[tier] = None;
            }
            self.gone(owner, tier)?;
        }
        Ok(offset)
    }

    pub(super) fn new_instance(
        &mut self,
        id: SegmentId,
        tier: usize,
        change: Change,
    ) -> Result<(), PolicyError> {
        let used = self.steps;
        let segment = self.segments.get_mut(&id).ok_or(PolicyError::Unknown(id))?;
        segment.tiers[tier] = Some(Instance { state: State::Init, readers: 0, used });
        self.change(id, tier, change)
    }
}

/// Whether a prefetch may evict what no other cache has and what has no hint, and what has a farther one, with so much
/// held of a cache; `None`: it need not be looked for.
fn shares(purpose: Purpose, held: u64, capacity: u64) -> Option<(bool, bool)> {
    let share = |part| matches!(purpose, Purpose::Prefetch { instead: true, .. }) && held < capacity / part;
    let shares = (share(SHARE), share(SHARE_HINTED));
    (shares.0 || !matches!(purpose, Purpose::Prefetch { instead: true, .. })).then_some(shares)
}
