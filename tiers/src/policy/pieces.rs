//! One tier's cache in pieces (files in a folder, pages of a pool), where only sizes count: what may be evicted, in
//! the order in which it would be.
//!
//! Used by [`super::Hierarchy`], whose every change of a segment is told here before room is looked for. So nothing
//! weighs all that is there when something new comes: a server's memory has some ten thousand segments.
//! Invariants: never more than the capacity; the choice equals that of `best_pieces` among all (the tests compare them
//! at each choice).

use super::SegmentId;
use std::collections::BTreeMap;

/// Which segments go first, and among those of one group by [`Order::rank`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// A restore has had it.
    Spent,
    /// No hint is for it, and another cache has it.
    Elsewhere,
    /// No hint is for it.
    Unhinted,
    /// A hint is for it.
    Hinted,
}

/// What goes first has the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub group: Group,
    pub rank: u64,
}

/// How it is with a segment here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evictable {
    /// It is in use, or no slower tier will have it.
    Blocked,
    /// It can go when it has been flushed; `kept`: it waits for its restore, and goes only where nothing else can.
    Later { kept: bool },
    /// It can go now.
    Now { order: Order, kept: bool },
}

#[derive(Clone, Debug)]
struct Piece {
    bytes: u64,
    /// In the order in which they came.
    number: u64,
    evictable: Evictable,
    is_held: bool,
}

/// The segments of a cache.
#[derive(Clone, Debug)]
pub(super) struct Pieces {
    capacity: u64,
    used: u64,
    next: u64,
    all: BTreeMap<SegmentId, Piece>,
    /// What can go now; the second ones are kept for their restores.
    now: [BTreeMap<(Order, u64), SegmentId>; 2],
    /// Bytes of these, and of those that can go later.
    bytes_now: [u64; 2],
    bytes_later: [u64; 2],
    held: u64,
}

impl Pieces {
    /// An empty cache.
    pub fn new(capacity: u64) -> Pieces {
        Pieces {
            capacity,
            used: 0,
            next: 0,
            all: BTreeMap::new(),
            now: Default::default(),
            bytes_now: [0; 2],
            bytes_later: [0; 2],
            held: 0,
        }
    }

    /// Its size.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that nothing has.
    pub fn gap(&self) -> u64 {
        self.capacity - self.used
    }

    /// Bytes that were prefetched or restored, and are not free yet.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// All segments and their sizes.
    pub fn list(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        self.all.iter().map(|(id, piece)| (*id, piece.bytes))
    }

    /// The same in the order in which they came.
    #[cfg(test)]
    pub fn by_age(&self) -> Vec<(SegmentId, u64)> {
        let mut all: Vec<_> = self.all.iter().map(|(id, piece)| (piece.number, *id, piece.bytes)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id, bytes)| (id, bytes)).collect()
    }

    /// A segment comes, for which there is room.
    pub fn add(&mut self, id: SegmentId, bytes: u64) {
        self.erase(id);
        let piece = Piece { bytes, number: self.next, evictable: Evictable::Blocked, is_held: false };
        self.all.insert(id, piece);
        self.next += 1;
        self.used += bytes;
    }

    /// A segment goes. Whether it was there.
    pub fn erase(&mut self, id: SegmentId) -> bool {
        self.note(id, Evictable::Blocked, false);
        let Some(piece) = self.all.remove(&id) else { return false };
        self.used -= piece.bytes;
        true
    }

    /// Takes note of how it is with a segment.
    pub fn note(&mut self, id: SegmentId, evictable: Evictable, is_held: bool) {
        let Some(piece) = self.all.get_mut(&id) else { return };
        let before = std::mem::replace(&mut piece.evictable, evictable);
        let was_held = std::mem::replace(&mut piece.is_held, is_held);
        let (bytes, number) = (piece.bytes, piece.number);
        self.held = self.held + if is_held { bytes } else { 0 } - if was_held { bytes } else { 0 };
        match before {
            Evictable::Blocked => {}
            Evictable::Later { kept } => self.bytes_later[usize::from(kept)] -= bytes,
            Evictable::Now { order, kept } => {
                self.bytes_now[usize::from(kept)] -= bytes;
                self.now[usize::from(kept)].remove(&(order, number));
            }
        }
        match evictable {
            Evictable::Blocked => {}
            Evictable::Later { kept } => self.bytes_later[usize::from(kept)] += bytes,
            Evictable::Now { order, kept } => {
                self.bytes_now[usize::from(kept)] += bytes;
                self.now[usize::from(kept)].insert((order, number), id);
            }
        }
    }

    /// What goes for something that is written, and whether that has to wait for flushes, and is not known yet; `None`:
    /// there is not so much. `instead`: of what waits for its restore, too.
    pub fn for_write(&self, bytes: u64, instead: bool) -> Option<(Vec<SegmentId>, bool)> {
        let sum = |two: &[u64; 2]| two[0] + if instead { two[1] } else { 0 };
        let now = self.gap() + sum(&self.bytes_now);
        if now < bytes {
            return (now + sum(&self.bytes_later) >= bytes).then(|| (Vec::new(), true));
        }
        let kept = if instead { Some(&self.now[1]) } else { None };
        let order = merged(self.now[0].iter(), kept.into_iter().flatten());
        self.enough(bytes, order).map(|chosen| (chosen, false))
    }

    /// What can go now of a group.
    pub fn in_order(&self, group: Group) -> impl Iterator<Item = SegmentId> {
        let range = || {
            let end = |rank, number| (Order { group, rank }, number);
            end(0, 0)..=end(u64::MAX, u64::MAX)
        };
        merged(self.now[0].range(range()), self.now[1].range(range()))
    }

    /// The first ones, so many that there is room for so many bytes, and none that could be left out.
    pub fn enough(&self, bytes: u64, order: impl Iterator<Item = SegmentId>) -> Option<Vec<SegmentId>> {
        let size = |id: &SegmentId| self.all.get(id).map_or(0, |piece| piece.bytes);
        let (mut chosen, mut sum) = (Vec::new(), self.gap());
        for id in order {
            if sum >= bytes {
                break;
            }
            sum += size(&id);
            chosen.push(id);
        }
        if sum < bytes {
            return None;
        }
        // The last one made it enough; of those before, the nearest that are not needed beside it stay.
        for place in (0..chosen.len()).rev() {
            let without = sum - size(&chosen[place]);
            if without >= bytes {
                sum = without;
                chosen.remove(place);
            }
        }
        Some(chosen)
    }
}

type Entry<'a> = (&'a (Order, u64), &'a SegmentId);

fn merged<'a>(
    one: impl Iterator<Item = Entry<'a>>,
    other: impl Iterator<Item = Entry<'a>>,
) -> impl Iterator<Item = SegmentId> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let is_one = match (one.peek(), other.peek()) {
            (Some((first, _)), Some((second, _))) => first < second,
            (first, _) => first.is_some(),
        };
        let next = if is_one { one.next() } else { other.next() };
        next.map(|(_, id)| *id)
    })
}
