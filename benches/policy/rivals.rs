//! What the policy is compared with: LRU, FIFO, managed memory (UVM-like), no device cache (ADIOS-like), Belady.
//!
//! All are better than in reality: their caches have no fragmentation, a restore is delivered past the caches and is
//! in all faster ones at once, a prefetch goes straight to the device.
//!
//! * LRU, FIFO: flush at once, insert what is restored, no hints.
//! * UVM-like: LRU; the device's memory is written back only when its room is needed; hints are prefetched.
//! * ADIOS-like: written through a buffer on the host, restored from the slowest tier.
//! * Belady: knows the order of the restores from the beginning; evicts what is used last, moves what it evicts from
//!   the device to the host at no cost, and prefetches; what is restored is gone. `greedy`: a prefetch may also evict
//!   what will have to be read once more, if that is used later.

use crate::simulator::Engine;
use holdfast_tiers::policy::{Action, Event, Place, SegmentId, Transfer};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Lru,
    Fifo,
    Uvm,
    Adios,
    Belady { greedy: bool },
}

#[derive(Clone, Copy, Default)]
struct Entry {
    bytes: u64,
    complete: bool,
    /// Copies that read it.
    readers: u32,
    came: u64,
    used: u64,
    /// Prefetched, and not yet restored.
    kept: bool,
}

pub struct Rival {
    kind: Kind,
    capacity: [u64; 3],
    used: [u64; 3],
    entries: [BTreeMap<SegmentId, Entry>; 3],
    sizes: BTreeMap<SegmentId, u64>,
    down: [VecDeque<SegmentId>; 3],
    busy: [[bool; 2]; 3],
    restores: VecDeque<SegmentId>,
    hints: VecDeque<SegmentId>,
    /// Belady: when each segment is used; once used it is taken out.
    next_use: BTreeMap<SegmentId, u64>,
    discardable: bool,
    prefetching: bool,
    clock: u64,
}

impl Rival {
    /// `order`: of the restores, for Belady.
    pub fn new(kind: Kind, device: u64, host: u64, order: &[SegmentId]) -> Rival {
        Rival {
            kind,
            capacity: [device, host, u64::MAX],
            used: [0; 3],
            entries: Default::default(),
            sizes: BTreeMap::new(),
            down: Default::default(),
            busy: [[false; 2]; 3],
            restores: VecDeque::new(),
            hints: VecDeque::new(),
            next_use: order.iter().enumerate().map(|(index, &id)| (id, index as u64)).collect(),
            discardable: false,
            prefetching: false,
            clock: 0,
        }
    }

    fn belady(&self) -> bool {
        matches!(self.kind, Kind::Belady { .. })
    }

    fn has(&self, tier: usize, id: SegmentId) -> bool {
        self.entries[tier].get(&id).is_some_and(|entry| entry.complete)
    }

    fn below(&self, tier: usize, id: SegmentId) -> bool {
        (tier + 1..3).any(|tier| self.has(tier, id))
    }

    fn insert(&mut self, tier: usize, id: SegmentId, complete: bool, kept: bool) {
        let bytes = self.sizes[&id];
        let entry = Entry { bytes, complete, readers: 0, came: self.clock, used: self.clock, kept };
        if self.entries[tier].insert(id, entry).is_none() {
            self.used[tier] += bytes;
        }
    }

    fn remove(&mut self, tier: usize, id: SegmentId) {
        if let Some(entry) = self.entries[tier].remove(&id) {
            self.used[tier] -= entry.bytes;
        }
    }

    fn fits(&self, tier: usize, bytes: u64) -> bool {
        self.capacity[tier] - self.used[tier] >= bytes
    }

    /// Whether an entry may go; `for_use`: for a prefetch of what is used then.
    fn evictable(&self, tier: usize, id: SegmentId, entry: &Entry, for_use: Option<u64>) -> bool {
        let consumed = self.belady() && !self.next_use.contains_key(&id);
        let safe = self.below(tier, id) || (consumed && self.discardable);
        if !entry.complete || entry.readers > 0 || !safe || self.restores.contains(&id) {
            return false;
        }
        match (for_use, self.kind) {
            (None, _) => true,
            (Some(wanted), Kind::Belady { greedy }) => {
                let elsewhere = self.has(1 - tier, id);
                consumed
                    || (self.use_of(id) > wanted && (greedy || elsewhere || self.can_move(tier, entry.bytes)))
            }
            (Some(_), _) => !entry.kept,
        }
    }

    fn use_of(&self, id: SegmentId) -> u64 {
        self.next_use.get(&id).copied().unwrap_or(u64::MAX)
    }

    /// Room on the host for what the device gives up.
    fn can_move(&self, tier: usize, bytes: u64) -> bool {
        let spent = |(id, entry): (&SegmentId, &Entry)| {
            let gone = !self.next_use.contains_key(id) && (self.discardable || self.has(2, *id));
            let free =
                entry.complete && entry.readers == 0 && (gone || (self.has(0, *id) && self.has(2, *id)));
            if free { entry.bytes } else { 0 }
        };
        let spare = self.capacity[1] - self.used[1];
        tier == 0 && spare + self.entries[1].iter().map(spent).sum::<u64>() >= bytes
    }

    fn victim(&self, tier: usize, for_use: Option<u64>) -> Option<SegmentId> {
        let may = self.entries[tier].iter().filter(|(id, entry)| self.evictable(tier, **id, entry, for_use));
        match self.kind {
            Kind::Fifo => may.min_by_key(|(_, entry)| entry.came),
            Kind::Belady { .. } => may.max_by_key(|(id, _)| (self.use_of(**id), self.has(1 - tier, **id))),
            _ => may.min_by_key(|(_, entry)| entry.used),
        }
        .map(|(id, _)| *id)
    }

    fn make_room(&mut self, tier: usize, bytes: u64, for_use: Option<u64>) -> bool {
        while !self.fits(tier, bytes) {
            let Some(id) = self.victim(tier, for_use) else { return false };
            let unread = self.next_use.contains_key(&id);
            let size = self.sizes[&id];
            self.remove(tier, id);
            if self.belady() && tier == 0 && unread && !self.has(1, id) && self.has(2, id) {
                let use_of = Some(self.use_of(id));
                if self.make_room(1, size, use_of) {
                    self.insert(1, id, true, false);
                }
            }
        }
        true
    }

    fn start(&mut self, id: SegmentId, from: Place, to: Place, actions: &mut Vec<Action>) {
        let transfer = Transfer { segment: id, from, to, bytes: self.sizes[&id], offset: 0 };
        self.busy[transfer.link()][usize::from(transfer.is_down())] = true;
        if let Place::Tier(tier) = from
            && let Some(entry) = self.entries[tier].get_mut(&id)
        {
            entry.readers += 1;
        }
        actions.push(Action::Copy(transfer));
    }

    fn dispatch(&mut self, actions: &mut Vec<Action>) {
        for link in [2, 1, 0] {
            self.start_down(link, actions);
        }
        for link in 0..3 {
            if !self.busy[link][0] && !self.start_restore(link, actions) && link > 0 {
                self.start_prefetch(link, actions);
            }
        }
    }

    fn start_down(&mut self, link: usize, actions: &mut Vec<Action>) {
        while !self.busy[link][1] {
            let Some(&id) = self.down[link].front() else { return };
            let from = (0..link).rev().find(|&tier| self.has(tier, id));
            let written = self.entries.iter().any(|tier| tier.contains_key(&id));
            if self.entries[link].contains_key(&id) || (from.is_none() && written) {
                self.down[link].pop_front();
                continue;
            }
            if !self.make_room(link, self.sizes[&id], None) {
                if link == 0 {
                    self.write_back(actions);
                }
                return;
            }
            self.down[link].pop_front();
            self.insert(link, id, false, false);
            self.start(id, from.map_or(Place::Application, Place::Tier), Place::Tier(link), actions);
        }
    }

    /// UVM-like: the least recently used goes to the host now.
    fn write_back(&mut self, actions: &mut Vec<Action>) {
        if self.kind != Kind::Uvm || !self.down[1].is_empty() || self.busy[1][1] {
            return;
        }
        let dirty = self.entries[0].iter().filter(|(id, entry)| entry.complete && !self.below(0, **id));
        let oldest = dirty.min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id);
        if let Some(oldest) = oldest {
            self.down[1].push_back(oldest);
            self.start_down(1, actions);
        }
    }

    fn start_restore(&mut self, link: usize, actions: &mut Vec<Action>) -> bool {
        let source = |id: &SegmentId| {
            let arriving = self.entries[0].get(id).is_some_and(|entry| !entry.complete);
            let tiers = if self.kind == Kind::Adios { 2..3 } else { 0..3 };
            !arriving && { tiers }.find(|&tier| self.has(tier, *id)) == Some(link)
        };
        let Some(index) = self.restores.iter().position(source) else { return false };
        let Some(id) = self.restores.remove(index) else { return false };
        self.start(id, Place::Tier(link), Place::Application, actions);
        true
    }

    fn start_prefetch(&mut self, link: usize, actions: &mut Vec<Action>) {
        if !self.prefetching || !(self.kind == Kind::Uvm || self.belady()) {
            return;
        }
        let wanted = |id: &SegmentId| {
            let source = (0..3).find(|&tier| self.has(tier, *id));
            let idle = source.is_some_and(|tier| self.entries[tier].get(id).is_some_and(|e| e.readers == 0));
            source == Some(link) && idle && !self.entries[0].contains_key(id) && !self.restores.contains(id)
        };
        let Some(id) = self.hints.iter().copied().find(wanted) else { return };
        let bytes = self.sizes[&id];
        // Not begun if it cannot be ended.
        let for_use = Some(self.use_of(id));
        let free: u64 = self.entries[0]
            .iter()
            .filter(|(id, entry)| self.evictable(0, **id, entry, for_use))
            .map(|(_, entry)| entry.bytes)
            .sum();
        if self.capacity[0] - self.used[0] + free >= bytes && self.make_room(0, bytes, for_use) {
            self.insert(0, id, false, true);
            self.start(id, Place::Tier(link), Place::Tier(0), actions);
        } else {
            self.write_back(actions);
        }
    }

    fn copied(&mut self, transfer: Transfer) {
        let id = transfer.segment;
        self.busy[transfer.link()][usize::from(transfer.is_down())] = false;
        if let Place::Tier(from) = transfer.from
            && let Some(entry) = self.entries[from].get_mut(&id)
        {
            entry.readers -= 1;
        }
        if let Place::Tier(to) = transfer.to
            && let Some(entry) = self.entries[to].get_mut(&id)
        {
            entry.complete = true;
            (entry.came, entry.used) = (self.clock, self.clock);
        }
        match (transfer.from, transfer.to) {
            (_, Place::Tier(to)) if transfer.is_down() => {
                let lazy = self.kind == Kind::Uvm && to == 0;
                let spent = self.belady() && self.discardable && !self.next_use.contains_key(&id);
                if to < 2 && !lazy && !spent {
                    self.down[to + 1].push_back(id);
                }
            }
            (Place::Tier(from), Place::Application) => self.delivered(id, from),
            (Place::Tier(from), Place::Tier(_)) if self.belady() => self.leaves(from, id),
            (Place::Tier(2), Place::Tier(0)) => self.insert_if(1, id),
            _ => {}
        }
    }

    /// Belady: what the device has, the host need not.
    fn leaves(&mut self, tier: usize, id: SegmentId) {
        if tier == 1 && self.has(2, id) {
            self.remove(1, id);
        }
    }

    fn insert_if(&mut self, tier: usize, id: SegmentId) {
        if !self.entries[tier].contains_key(&id) && self.make_room(tier, self.sizes[&id], None) {
            self.insert(tier, id, true, false);
        }
    }

    fn delivered(&mut self, id: SegmentId, from: usize) {
        if let Some(index) = self.hints.iter().position(|&hint| hint == id) {
            self.hints.remove(index);
        }
        self.next_use.remove(&id);
        for tier in 0..2 {
            if let Some(entry) = self.entries[tier].get_mut(&id) {
                entry.used = self.clock;
                entry.kept = false;
            }
        }
        if self.belady() && self.discardable {
            self.down.iter_mut().for_each(|queue| queue.retain(|&queued| queued != id));
        }
        if !self.belady() && self.kind != Kind::Adios {
            (0..from).rev().for_each(|tier| self.insert_if(tier, id));
        }
    }
}

impl Engine for Rival {
    fn step(&mut self, _now: u64, event: Event) -> Vec<Action> {
        self.clock += 1;
        match event {
            Event::Write { segment, bytes, discardable } => {
                self.discardable = discardable;
                self.sizes.insert(segment, bytes);
                self.down[usize::from(self.kind == Kind::Adios)].push_back(segment);
            }
            Event::Restore(segment) => self.restores.push_back(segment),
            Event::Hint(segment) => {
                if !self.belady() {
                    self.hints.push_back(segment);
                }
            }
            Event::StartPrefetch => {
                self.prefetching = true;
                if self.belady() {
                    let mut order: Vec<_> = self.next_use.iter().map(|(&id, &at)| (at, id)).collect();
                    order.sort_unstable();
                    self.hints = order.into_iter().map(|(_, id)| id).collect();
                }
            }
            Event::Copied(transfer) => self.copied(transfer),
            // Nothing fails here, is found, removed or given up.
            Event::Failed(_)
            | Event::Remove(..)
            | Event::Tick
            | Event::Found { .. }
            | Event::Named { .. }
            | Event::Discard(_)
            | Event::Replaced(_)
            | Event::Withdrawn(_) => {}
        }
        let mut actions = Vec::new();
        self.dispatch(&mut actions);
        actions
    }

    fn is_flushed(&self) -> bool {
        let waits = self.kind == Kind::Uvm && self.entries[0].keys().any(|&id| !self.below(0, id));
        !waits && self.down.iter().all(VecDeque::is_empty) && !self.busy.iter().any(|link| link[1])
    }

    fn holds(&self, tier: usize, segment: SegmentId) -> bool {
        self.has(tier, segment)
    }

    fn drain(&mut self, _now: u64) -> Vec<Action> {
        if self.kind == Kind::Uvm {
            let dirty: Vec<_> = self.entries[0].keys().copied().filter(|&id| !self.below(0, id)).collect();
            self.down[1].extend(dirty);
        }
        let mut actions = Vec::new();
        self.dispatch(&mut actions);
        actions
    }
}
