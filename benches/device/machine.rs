//! Threads that obey a policy with real bytes: on a device, the host and a disk, in real or virtual time.
//!
//! As the simulator (`benches/policy/simulator.rs`), with a thread for each direction of the links to the host and to
//! the disk; the application's thread makes the copies from and to its own buffer, which is on the device. A copy takes
//! what its link has for it, and its bytes are moved meanwhile. What a rival says that a tier has without a copy
//! (`rivals.rs`) is copied there at once and takes no time.
//! Every restore is compared with what was written.

use crate::clock::{Member, State, Timed};
use crate::memory::{End, Hand, Memory, Slot};
use crate::simulator::{Engine, Op, Outcome};
use holdfast_tiers::policy::{Action, Event, Place, SegmentId, Transfer, transfer_ns};
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

/// Threads of the links: number of the link, and whether it is the one downwards.
const LANES: [(usize, bool); 4] = [(1, true), (1, false), (2, true), (2, false)];
/// The thread that makes a copy: an index of those, or the application's.
const APPLICATION: usize = LANES.len();
/// A multiple of 8.
const NOISE: usize = 1 << 20;

/// Of what the tiers are made.
pub struct Setup {
    /// Bytes of a segment: a multiple of 8.
    pub bytes: usize,
    /// Segments on the device, on the host, in the file.
    pub slots: [usize; 3],
    /// Bytes per second of the links to them, both ways.
    pub rates: [u64; 3],
    pub is_real: bool,
}

/// An instance of a segment on a tier.
struct Kept {
    slot: Arc<Slot>,
    arriving: bool,
}

struct Inner {
    engine: Box<dyn Engine + Send>,
    /// Copies that are to begin, and when that was decided.
    due: Vec<(Transfer, u64)>,
    tiers: [BTreeMap<SegmentId, Kept>; 3],
    stopping: bool,
    slowest_reads: u64,
    hand: Hand,
}

struct Machine<'a> {
    setup: &'a Setup,
    memory: Memory,
    noise: Vec<u8>,
    shared: Timed<Inner>,
}

/// Runs a program to its end.
pub fn run(setup: &Setup, file: File, engine: Box<dyn Engine + Send>, program: &[Op]) -> Outcome {
    let memory = Memory::new(setup.bytes, setup.slots, file);
    let inner = Inner {
        engine,
        due: Vec::new(),
        tiers: Default::default(),
        stopping: false,
        slowest_reads: 0,
        hand: memory.hand(),
    };
    let machine = Machine {
        setup,
        memory,
        noise: noise(NOISE + setup.bytes),
        shared: Timed::new(inner, LANES.len() + 1, setup.is_real),
    };
    std::thread::scope(|scope| {
        for thread in 0..LANES.len() {
            let machine = &machine;
            scope.spawn(move || machine.serve(thread));
        }
        machine.application(program)
    })
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.rotate_left(29).to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(|_| word()).collect()
}

impl Inner {
    /// Tiers have what the engine says that they have.
    fn settle(&mut self, memory: &Memory, of_event: Option<SegmentId>) {
        for tier in [1, 0] {
            let Inner { engine, tiers, .. } = self;
            tiers[tier].retain(|&id, kept| kept.arriving || engine.holds(tier, id));
            let more: Vec<SegmentId> = self.tiers[0].keys().copied().chain(of_event).collect();
            for id in more {
                if self.engine.holds(tier, id) && !self.tiers[tier].contains_key(&id) {
                    self.fill(memory, id, tier);
                }
            }
        }
    }

    fn fill(&mut self, memory: &Memory, id: SegmentId, tier: usize) {
        let source = self.tiers.iter().find_map(|tier| tier.get(&id).filter(|kept| !kept.arriving));
        let source = source.unwrap_or_else(|| panic!("{id:?} is on no tier"));
        let (from, slot) = (End::Slot(Arc::clone(&source.slot)), memory.slot(tier));
        memory.copy(&mut self.hand, &from, &End::Slot(Arc::clone(&slot)));
        self.tiers[tier].insert(id, Kept { slot, arriving: false });
    }
}

fn thread_of(transfer: &Transfer) -> usize {
    let lane = (transfer.link(), transfer.is_down());
    let is_application = [transfer.from, transfer.to].contains(&Place::Application);
    let place = LANES.iter().position(|known| *known == lane).filter(|_| !is_application);
    place.unwrap_or(APPLICATION)
}

fn segment(event: &Event) -> Option<SegmentId> {
    match event {
        Event::Restore(id) | Event::Hint(id) => Some(*id),
        Event::Write { segment, .. } => Some(*segment),
        Event::Copied(transfer) => Some(transfer.segment),
        _ => None,
    }
}

impl Machine<'_> {
    fn step(&self, event: Event) {
        let mut state = self.shared.lock();
        let now = self.shared.now(&state);
        if let Event::Copied(Transfer { segment, to: Place::Tier(tier), .. }) = event
            && let Some(kept) = state.tiers[tier].get_mut(&segment)
        {
            kept.arriving = false;
        }
        let actions = state.engine.step(now, event);
        self.obey(&mut state, now, actions, segment(&event));
        if state.engine.is_flushed() {
            self.shared.wake(&mut state, APPLICATION);
        }
    }

    fn obey(&self, inner: &mut State<Inner>, now: u64, actions: Vec<Action>, of_event: Option<SegmentId>) {
        for action in &actions {
            if let Action::Erase(id, tier) = action {
                inner.tiers[*tier].remove(id);
            }
        }
        inner.settle(&self.memory, of_event);
        for action in actions {
            match action {
                Action::Erase(..) => {}
                Action::Copy(transfer) => {
                    if let Place::Tier(tier) = transfer.to {
                        let kept = Kept { slot: self.memory.slot(tier), arriving: true };
                        inner.tiers[tier].insert(transfer.segment, kept);
                    }
                    let reads_slowest = !transfer.is_down() && transfer.from == Place::Tier(2);
                    inner.slowest_reads += u64::from(reads_slowest);
                    inner.due.push((transfer, now));
                    self.shared.wake(inner, thread_of(&transfer));
                }
                Action::Wake(_) | Action::Lost(_) => panic!("{action:?}, but no copy fails"),
            }
        }
    }

    /// Makes a copy that is due for this thread, if there is one.
    fn copy(&self, member: &Member<'_, Inner>, hand: &mut Hand, thread: usize) -> bool {
        let mut state = self.shared.lock();
        let Some(index) = state.due.iter().position(|(transfer, _)| thread_of(transfer) == thread) else {
            return false;
        };
        let (transfer, decided) = state.due.remove(index);
        let end = |place| match place {
            Place::Application => End::Buffer,
            Place::Tier(tier) => End::Slot(Arc::clone(&state.tiers[tier][&transfer.segment].slot)),
        };
        let (from, to) = (end(transfer.from), end(transfer.to));
        drop(state);
        self.memory.copy(hand, &from, &to);
        let took = transfer_ns(transfer.bytes, self.setup.rates[transfer.link()]);
        member.sleep_until(decided + took);
        drop((from, to));
        self.step(Event::Copied(transfer));
        true
    }

    /// Waits for a copy that is due for this thread; `false`: there will be none.
    fn wait(&self, member: &Member<'_, Inner>, thread: usize) -> bool {
        let mut state = self.shared.lock();
        while !state.due.iter().any(|(transfer, _)| thread_of(transfer) == thread) {
            if state.stopping {
                return false;
            }
            member.wait(&mut state);
        }
        true
    }

    /// The thread of one direction of a link.
    fn serve(&self, thread: usize) {
        let member = self.shared.enter(thread);
        let mut hand = self.memory.hand();
        while self.wait(&member, thread) {
            self.copy(&member, &mut hand, thread);
        }
    }

    /// Makes the copy of a segment from or to the application, and says how long that and the wait for it took.
    fn blocked(&self, member: &Member<'_, Inner>, hand: &mut Hand, event: Event) -> u64 {
        let since = self.shared.now(&self.shared.lock());
        self.step(event);
        self.wait(member, APPLICATION);
        self.copy(member, hand, APPLICATION);
        self.shared.now(&self.shared.lock()) - since
    }

    /// The content of a segment.
    fn content(&self, segment: SegmentId) -> Vec<u8> {
        let from = (segment.0 as usize * 4096) % NOISE;
        let mut bytes = self.noise[from..from + self.setup.bytes].to_vec();
        bytes[..8].copy_from_slice(&segment.0.to_le_bytes());
        bytes
    }

    fn application(&self, program: &[Op]) -> Outcome {
        let member = self.shared.enter(APPLICATION);
        let mut hand = self.memory.hand();
        let mut found = vec![0; self.setup.bytes];
        let (mut outcome, mut resumed) = (Outcome::default(), 0);
        for (index, &op) in program.iter().enumerate() {
            match op {
                Op::Compute(ns) => {
                    if let Some(&Op::Write(segment, _)) = program.get(index + 1) {
                        hand.write(&self.content(segment), self.memory.buffer());
                    }
                    member.sleep_until(resumed + ns);
                }
                Op::Write(segment, bytes) => {
                    let event = Event::Write { segment, bytes, discardable: true };
                    outcome.writes_ns += self.blocked(&member, &mut hand, event);
                }
                Op::Restore(segment) => {
                    outcome.restores_ns += self.blocked(&member, &mut hand, Event::Restore(segment));
                    resumed = self.shared.now(&self.shared.lock());
                    hand.read(self.memory.buffer(), &mut found);
                    assert!(found == self.content(segment), "{segment:?} has other bytes");
                    continue;
                }
                Op::Hint(segment) => self.step(Event::Hint(segment)),
                Op::StartPrefetch => self.step(Event::StartPrefetch),
                Op::WaitFlushed => self.wait_flushed(&member),
                Op::Barrier => {}
            }
            resumed = self.shared.now(&self.shared.lock());
        }
        let mut state = self.shared.lock();
        state.stopping = true;
        (0..LANES.len()).for_each(|thread| self.shared.wake(&mut state, thread));
        Outcome { slowest_reads: state.slowest_reads, ..outcome }
    }

    fn wait_flushed(&self, member: &Member<'_, Inner>) {
        let mut state = self.shared.lock();
        let now = self.shared.now(&state);
        let actions = state.engine.drain(now);
        self.obey(&mut state, now, actions, None);
        while !state.engine.is_flushed() {
            member.wait(&mut state);
        }
    }
}
