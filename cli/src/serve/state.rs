//! What the server knows: sets, versions, buffers, and what the policy says of them.
//!
//! Used by the threads of the server, under one lock under which nothing is read or written but heads of buffers. A
//! version of one rank is a segment of [`Hierarchy`]: tier 0 is memory, tier 1 the store with all below it.
//! Invariants: a version counts from its `Put` on, and stays in one of both until its client or the rule of its set
//! gives it up; parts of a version belong together only if they are of one run of the set.

use super::buffers::{Buffer, Buffers};
use super::ensemble::Courses;
use super::fetching::Fetch;
use super::ranks::{Rank, Source, Stored, table_of};
use crate::exit::Failure;
use holdfast_image::Epoch;
use holdfast_objects::buffer::{Layout, State as BufferState, Table};
use holdfast_sys::attributes;
use holdfast_tiers::policy::{
    Action, Event, Hierarchy, Place, PolicyError, SegmentId, TierLimits, Ties, Transfer, part,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Memory, and the store with all below it.
pub const MEMORY: usize = 0;
pub const STORE: usize = 1;

/// First guesses of the rates into both, bytes a second; what is measured corrects them.
const RATES: [u64; 2] = [4 << 30, 500 << 20];

/// Of so many versions of a set that were not put yet hints are taken note of; they are advice.
pub const MOST_PROMISED: usize = 1 << 15;

/// The tiers, as the policy has them; `room`: most bytes of all buffers.
pub fn limits(room: u64) -> [TierLimits; 2] {
    let tier = |capacity, rate| TierLimits { capacity, contiguous: false, rate };
    [tier(Some(room), RATES[0]), tier(None, RATES[1])]
}

/// Each buffer is an open file: all of memory is at most so many parts of the files that the server may have open.
const FILES: (u64, u64) = (3, 4);

/// At most this part of memory is given ahead.
const AHEAD: u64 = 8;

/// A version of one rank.
pub struct Held {
    /// Its set, and its rank there.
    pub set: String,
    pub rank: u32,
    /// Its number, and the run that has put it.
    pub version: u64,
    pub run: u64,
    /// Bytes of its buffer.
    pub bytes: u64,
    /// Where it lies in memory, if it does.
    pub buffer: Option<Buffer>,
    /// What is in it; `None`: its client is filling it.
    pub content: Option<Arc<(Table, Layout)>>,
    /// When it was put.
    pub put_at: Instant,
    /// What the store has.
    pub stored: Option<Stored>,
}

impl Held {
    /// One that is neither anywhere yet nor known what is in it.
    pub fn new(set: &str, rank: u32, (version, run): (u64, u64), bytes: u64) -> Held {
        let (set, put_at) = (set.to_owned(), Instant::now());
        Held { set, rank, version, run, bytes, buffer: None, content: None, put_at, stored: None }
    }
}

/// A set of objects.
#[derive(Default)]
pub struct Set {
    /// Its ranks.
    pub ranks: u32,
    /// The run that is under way, and the ranks that have opened it.
    pub run: u64,
    pub opened: BTreeSet<u32>,
    /// Its clients, by number.
    pub clients: BTreeMap<u64, Arc<OwnedFd>>,
    /// Versions that were hinted at before they were put, by rank and number.
    pub promised: BTreeMap<(u32, u64), SegmentId>,
    /// So many of the newest whole versions are kept.
    pub keep: Option<u64>,
    /// What the store has of each rank.
    pub members: BTreeMap<u32, Arc<Mutex<Rank>>>,
    /// Where its images are.
    pub sources: BTreeMap<u32, Source>,
    /// How many ranks each run has had: a set that was put by other ranks is not whole for these.
    ranks_of: BTreeMap<u64, u32>,
    /// By version, run and rank.
    pub versions: BTreeMap<(u64, u64), BTreeMap<u32, SegmentId>>,
    /// By rank: what went wrong with its versions, until it was told.
    pub failures: BTreeMap<u32, Vec<String>>,
}

/// See the head of the file.
pub struct State {
    start: Instant,
    policy: Hierarchy,
    next: u64,
    pub held: BTreeMap<SegmentId, Held>,
    pub sets: BTreeMap<String, Set>,
    pub buffers: Buffers,
    /// Copies that are to be made.
    pub due: Vec<Transfer>,
    /// Copies from the store into memory that are being made.
    pub fetching: BTreeMap<SegmentId, Arc<Fetch>>,
    /// Those that no tier takes, or has.
    pub lost: BTreeSet<SegmentId>,
    /// Those that a client asked room for or wanted back, and that it has gone before it was its turn.
    pub abandoned: Vec<SegmentId>,
    /// What clients were given for their next put, by number of the buffer; most bytes of all of that.
    pub ahead: BTreeMap<u64, (Buffer, Transfer)>,
    most_ahead: u64,
    /// When the policy wants to be asked again.
    pub wake: Option<Instant>,
    /// Images that go.
    pub removals: Vec<(Arc<Mutex<Rank>>, Epoch)>,
    /// What goes when it is in use no longer.
    retiring: BTreeSet<SegmentId>,
    /// What was put, is to be kept, and is not in the store yet.
    unstored: BTreeSet<SegmentId>,
    /// What is being stored: its buffers may not be filled with something else.
    pub committing: BTreeSet<SegmentId>,
    /// How many versions each group had.
    #[cfg(test)]
    pub groups: Vec<usize>,
    /// Buffers that could not be read: for the first client that comes.
    pub unread: Vec<String>,
    pub stopping: bool,
    /// Most bytes of all buffers, and for how many each counts at least.
    pub room: u64,
    pub least: u64,
    /// How versions go to the store.
    pub courses: Courses,
}

impl State {
    /// Nothing yet; `room`: most bytes of all buffers.
    pub fn new(buffers: Buffers, room: u64) -> State {
        let files = attributes::limit(0, libc::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        State {
            start: Instant::now(),
            policy: Hierarchy::for_many(&limits(room), Ties::default()),
            next: 0,
            held: BTreeMap::new(),
            sets: BTreeMap::new(),
            buffers,
            due: Vec::new(),
            fetching: BTreeMap::new(),
            lost: BTreeSet::new(),
            abandoned: Vec::new(),
            ahead: BTreeMap::new(),
            most_ahead: room / AHEAD,
            wake: None,
            removals: Vec::new(),
            retiring: BTreeSet::new(),
            unstored: BTreeSet::new(),
            committing: BTreeSet::new(),
            #[cfg(test)]
            groups: Vec::new(),
            unread: Vec::new(),
            stopping: false,
            room,
            least: room / part(files, FILES.0, FILES.1).max(1),
            courses: Courses::default(),
        }
    }

    /// For how many bytes a buffer of so many counts in memory.
    pub fn weight(&self, bytes: u64) -> u64 {
        bytes.max(self.least)
    }

    /// A segment that has no other name.
    pub fn new_segment(&mut self) -> SegmentId {
        self.next += 1;
        SegmentId(self.next)
    }

    /// The segment that a version of a rank will be when it is put; `None`: there are hints of too many such.
    pub fn promised(&mut self, set: &str, version: (u32, u64)) -> Option<SegmentId> {
        let new = self.new_segment();
        let promised = &mut self.sets.get_mut(set)?.promised;
        match promised.get(&version) {
            None if promised.len() >= MOST_PROMISED => None,
            _ => Some(*promised.entry(version).or_insert(new)),
        }
    }

    /// Tells the policy what happened, and takes note of what it says.
    ///
    /// # Errors
    /// It cannot have happened.
    pub fn step(&mut self, event: Event) -> Result<(), PolicyError> {
        let now = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for action in self.policy.step(now, event)? {
            match action {
                Action::Erase(segment, MEMORY) => self.leave_memory(segment),
                Action::Erase(segment, _) => self.leave_store(segment),
                Action::Copy(transfer) => self.begin(transfer)?,
                Action::Wake(at) => {
                    let at = self.start + Duration::from_nanos(at);
                    self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
                }
                Action::Lost(segment) => drop(self.lost.insert(segment)),
            }
        }
        Ok(())
    }

    /// A copy is to be made. One whose client has gone is over at once: it would hold its room for ever; and one into
    /// memory of what is in a buffer already, which is what a server that died has left.
    fn begin(&mut self, transfer: Transfer) -> Result<(), PolicyError> {
        let is_there = |held: &Held| held.content.is_some() && held.buffer.is_some();
        if is_of(&transfer, Place::Application, Place::Tier(MEMORY))
            && self.held.get(&transfer.segment).is_some_and(is_there)
        {
            return self.step(Event::Copied(transfer));
        }
        let own = self.abandoned.iter().position(|segment| *segment == transfer.segment);
        match own.filter(|_| transfer.is_of_application()) {
            Some(at) => {
                self.abandoned.swap_remove(at);
                self.step(match transfer.is_down() {
                    true => Event::Withdrawn(transfer),
                    false => Event::Copied(transfer),
                })
            }
            None => {
                self.due.push(transfer);
                Ok(())
            }
        }
    }

    /// Whether so many bytes may be given ahead.
    pub fn may_give_ahead(&self, bytes: u64) -> bool {
        self.ahead.values().map(|(buffer, _)| buffer.bytes).sum::<u64>() + bytes <= self.most_ahead
    }

    /// Takes back what was given ahead and is not in use: others wait for room.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn revoke_ahead(&mut self) -> Result<(), PolicyError> {
        for (number, (buffer, transfer)) in std::mem::take(&mut self.ahead) {
            // Its client may still look at it, and says nothing.
            self.buffers.use_once(number);
            if buffer.revoke().is_ok_and(|is_free| is_free) {
                self.withdraw(transfer)?;
            }
        }
        Ok(())
    }

    /// What a client was filling is given up.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn withdraw(&mut self, transfer: Transfer) -> Result<(), PolicyError> {
        let done = self.step(Event::Withdrawn(transfer));
        // One that passed memory by has no instance there.
        self.leave_memory(transfer.segment);
        done
    }

    /// The time at which the policy wanted to be asked again has come.
    pub fn tick(&mut self) {
        if self.wake.take_if(|wake| *wake <= Instant::now()).is_some() {
            // No error but by a defect, which the next event meets as well.
            let _ = self.step(Event::Tick);
            self.retire_more();
        }
    }

    /// A buffer is needed no longer.
    pub fn leave_memory(&mut self, segment: SegmentId) {
        if let Some(buffer) = self.held.get_mut(&segment).and_then(|held| held.buffer.take()) {
            if self.committing.contains(&segment) {
                self.buffers.use_once(buffer.number);
            }
            self.buffers.give_up(buffer);
        }
        self.forget_if_gone(segment);
    }

    /// A buffer that a server which died has left and that cannot be read.
    pub fn put_aside(&mut self, buffer: &Buffer, why: &str) {
        let path = self.buffers.put_aside(buffer);
        let text = format!(
            "what a server that was killed has left in {} cannot be read ({why}): a version that was put may be \
             missing; the file stays until it is removed, or the machine ends",
            path.display()
        );
        tracing::warn!("{text}");
        self.unread.push(text);
    }

    fn leave_store(&mut self, segment: SegmentId) {
        if let Some(held) = self.held.get_mut(&segment)
            && let Some(stored) = held.stored.take()
            && let Some(rank) = self.sets.get(&held.set).and_then(|set| set.members.get(&held.rank))
        {
            self.removals.push((Arc::clone(rank), stored.epoch));
        }
        self.forget_if_gone(segment);
    }

    fn forget_if_gone(&mut self, segment: SegmentId) {
        if self.policy.knows(segment) {
            return;
        }
        self.unstored.remove(&segment);
        let Some(held) = self.held.remove(&segment) else { return };
        let Some(set) = self.sets.get_mut(&held.set) else { return };
        // It was stored with another one, and given up before it was its turn.
        if let (Some(stored), Some(rank)) = (held.stored, set.members.get(&held.rank)) {
            self.removals.push((Arc::clone(rank), stored.epoch));
        }
        let key = (held.version, held.run);
        if let Some(parts) = set.versions.get_mut(&key) {
            if parts.get(&held.rank) == Some(&segment) {
                parts.remove(&held.rank);
            }
            if parts.is_empty() {
                set.versions.remove(&key);
            }
        }
    }

    /// Takes note of what the store has of a rank.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn found(&mut self, set: &str, rank: u32, stored: Stored) -> Result<(), Failure> {
        let table = table_of(&stored.record);
        // What cannot be laid out in a buffer was not put by way of one.
        let Ok(layout) = Layout::of(&table) else { return Ok(()) };
        let (key, bytes) = ((table.version, table.run), layout.len);
        let segment = self.new_segment();
        let (content, stored) = (Some(Arc::new((table, layout))), Some(stored));
        self.held.insert(segment, Held { content, stored, ..Held::new(set, rank, key, bytes) });
        self.publish(segment);
        let bytes = self.weight(bytes);
        self.step(Event::Found { segment, bytes, tier: STORE }).map_err(defect)
    }

    /// A version counts from now on, in place of one that was put before.
    pub fn publish(&mut self, segment: SegmentId) {
        let Some(held) = self.held.get(&segment) else { return };
        if held.stored.is_none() {
            self.unstored.insert(segment);
        }
        let (key, rank) = ((held.version, held.run), held.rank);
        let set = self.sets.entry(held.set.clone()).or_default();
        if let Some(content) = &held.content {
            set.ranks_of.insert(held.run, content.0.ranks);
        }
        if let Some(before) = set.versions.entry(key).or_default().insert(rank, segment) {
            self.retire(before);
        }
    }

    /// Whether all ranks have put their part of a version in one run; the newest such run.
    pub fn whole_run(&self, set: &str, version: u64) -> Option<u64> {
        let set = self.sets.get(set)?;
        let runs = set.versions.range((version, 0)..=(version, u64::MAX)).rev();
        runs.filter(|((_, run), parts)| set.is_whole(*run, parts)).map(|((_, run), _)| *run).next()
    }

    /// The newest whole version, below a bound if one is given.
    pub fn newest(&self, set: &str, below: Option<u64>) -> Option<u64> {
        let set = self.sets.get(set)?;
        let end = (below.unwrap_or(u64::MAX), if below.is_some() { 0 } else { u64::MAX });
        let mut whole = set.versions.range(..end).rev().filter(|((_, run), parts)| set.is_whole(*run, parts));
        whole.next().map(|((version, _), _)| *version)
    }

    /// The segment of a rank's version that a restore takes: of this run if it has put it, else of one in which the
    /// version is whole.
    pub fn restorable(&self, set: &str, rank: u32, version: u64) -> Result<Option<SegmentId>, String> {
        let Some(known) = self.sets.get(set) else { return Ok(None) };
        let of = |run: u64| known.versions.get(&(version, run))?.get(&rank).copied();
        if let Some(own) = of(known.run).or_else(|| of(self.whole_run(set, version)?)) {
            return Ok(Some(own));
        }
        let most =
            known.versions.range((version, 0)..=(version, u64::MAX)).map(|(_, parts)| parts.len()).max();
        most.map_or(Ok(None), |parts| {
            Err(format!(
                "version {version} of {set} is not whole: {parts} of {} ranks have put it",
                known.ranks
            ))
        })
    }

    /// A segment that was written ahead is this version now.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn name(&mut self, segment: SegmentId, version: u64) -> Result<(), PolicyError> {
        let Some(held) = self.held.get_mut(&segment) else { return Ok(()) };
        held.version = version;
        let key = (held.rank, version);
        match self.sets.get_mut(&held.set).and_then(|set| set.promised.remove(&key)) {
            Some(promised) => self.step(Event::Named { promised, segment }),
            None => Ok(()),
        }
    }

    /// Whether something that a rank has put is not in the store yet.
    pub fn is_pending(&self, set: &str, rank: u32) -> bool {
        let mut held = self.unstored.iter().filter_map(|segment| self.held.get(segment));
        held.any(|held| held.set == set && held.rank == rank)
    }

    /// Whether it is given up, as soon as it is in use no longer.
    pub fn is_retiring(&self, segment: SegmentId) -> bool {
        self.retiring.contains(&segment)
    }

    /// A version is given up: at once, or when no copy of it is under way.
    pub fn retire(&mut self, segment: SegmentId) {
        self.retiring.insert(segment);
        self.unstored.remove(&segment);
        self.retire_more();
    }

    /// A rank goes on with a run in which it has put no version above this one: those above it were put after the
    /// image from which it was restarted.
    pub fn undo(&mut self, set: &str, rank: u32, (run, highest): (u64, Option<u64>)) {
        let Some(set) = self.sets.get_mut(set) else { return };
        let first = highest.map_or(0, |highest| highest.saturating_add(1));
        let above = set.versions.range_mut((first, 0)..).filter(|((_, of), _)| *of == run);
        // They are offered no longer, though a copy of one may still be under way.
        let above: Vec<SegmentId> = above.filter_map(|(_, parts)| parts.remove(&rank)).collect();
        set.versions.retain(|_, parts| !parts.is_empty());
        above.into_iter().for_each(|segment| self.retire(segment));
    }

    /// Gives up what could not be given up before.
    pub fn retire_more(&mut self) {
        for segment in self.retiring.clone() {
            let mut is_over = true;
            for tier in [MEMORY, STORE] {
                let is_there = self.policy.state(segment, tier).is_some();
                if is_there && matches!(self.step(Event::Remove(segment, tier)), Err(PolicyError::InUse(..)))
                {
                    is_over = false;
                }
            }
            if is_over {
                self.retiring.remove(&segment);
            }
        }
    }

    /// Versions that the rule of a set does not keep go: those before the oldest of the newest `keep` that the store
    /// has whole.
    pub fn apply_rule(&mut self, name: &str) {
        let Some(set) = self.sets.get(name) else { return };
        let Some(keep) = set.most_kept() else { return };
        let is_stored =
            |segment: &SegmentId| self.held.get(segment).is_some_and(|held| held.stored.is_some());
        let whole = |run: u64, parts: &BTreeMap<u32, SegmentId>| {
            set.is_whole(run, parts) && parts.values().all(is_stored)
        };
        let kept = set.versions.iter().filter(|((_, run), parts)| whole(*run, parts));
        let mut kept: Vec<u64> = kept.map(|((version, _), _)| *version).collect();
        kept.dedup();
        let Some(oldest) = kept.len().checked_sub(keep).map(|at| kept[at]) else { return };
        let goes: Vec<SegmentId> =
            set.versions.range(..(oldest, 0)).flat_map(|(_, parts)| parts.values().copied()).collect();
        goes.into_iter().for_each(|segment| self.retire(segment));
    }

    /// Versions that the rule of a set would not keep need not reach the store, if newer ones are whole and no part of
    /// them is there or on its way: where versions come faster than the store takes them, some are passed over, and
    /// those that are not are so on all ranks.
    pub fn pass_over(&mut self, name: &str) {
        let Some(set) = self.sets.get(name) else { return };
        let Some(keep) = set.most_kept() else { return };
        let is_untouched = |segment: &SegmentId| {
            let is_moving = self.policy.is_read(*segment, MEMORY);
            self.unstored.contains(segment) && !is_moving
        };
        // The newest run is that of the clients: none of its parts is to come for a version that is whole.
        let whole = set.versions.iter().rev().filter(|((_, run), parts)| set.is_whole(*run, parts));
        let goes: Vec<SegmentId> = whole
            .skip(keep)
            .filter(|(_, parts)| parts.values().all(is_untouched))
            .flat_map(|(_, parts)| parts.values().copied())
            .collect();
        goes.into_iter().for_each(|segment| self.retire(segment));
    }

    /// Whether a version waits for others of its rank, and no other rank has something for the store.
    pub fn is_held_back(&self, segment: SegmentId) -> bool {
        let Some(held) = self.held.get(&segment) else { return false };
        let is_own = |other: &Held| (other.rank, &other.set) == (held.rank, &held.set);
        self.courses.holds((&held.set, held.rank), segment, held.put_at)
            && self.unstored.iter().filter_map(|other| self.held.get(other)).all(is_own)
    }

    /// What was put, is to be kept, and is not in the store yet.
    pub fn unstored(&self) -> impl Iterator<Item = SegmentId> {
        self.unstored.iter().copied()
    }

    /// Whether the policy has it in memory.
    pub fn is_in_memory(&self, segment: SegmentId) -> bool {
        self.policy.state(segment, MEMORY).is_some()
    }

    /// Whether all that was put is where it is to be in the end.
    pub fn is_settled(&self) -> bool {
        self.removals.is_empty() && self.unstored.is_empty()
    }

    /// The copy of this kind that is to be made first, taken off the list.
    pub fn take_due(&mut self, is_mine: impl Fn(&State, &Transfer) -> bool) -> Option<Transfer> {
        let at = self.due.iter().position(|transfer| is_mine(self, transfer))?;
        Some(self.due.remove(at))
    }

    /// The head of a buffer says that the store has its version, too.
    pub fn mark_stored(&mut self, segment: SegmentId, stored: Stored) {
        self.unstored.remove(&segment);
        if let Some(held) = self.held.get_mut(&segment) {
            held.stored = Some(stored);
            // The next server finds it twice, and takes that of the store.
            let _ = held.buffer.iter().try_for_each(|buffer| buffer.set_state(BufferState::Stored));
        }
    }
}

impl Set {
    /// How many whole versions are kept; `None`: all.
    fn most_kept(&self) -> Option<usize> {
        self.keep.and_then(|keep| usize::try_from(keep).ok()).filter(|keep| *keep > 0)
    }

    fn is_whole(&self, run: u64, parts: &BTreeMap<u32, SegmentId>) -> bool {
        self.ranks > 0
            && self.ranks_of.get(&run) == Some(&self.ranks)
            && (0..self.ranks).all(|rank| parts.contains_key(&rank))
    }
}

/// From the application, or to it.
pub fn is_of(transfer: &Transfer, from: Place, to: Place) -> bool {
    (transfer.from, transfer.to) == (from, to)
}

/// An event that cannot have happened is a defect.
pub fn defect(error: PolicyError) -> Failure {
    Failure::new(crate::exit::Exit::Internal, format!("the policy of the tiers: {error}"))
}
