//! Programs, tiers and links in virtual time, over the `step` of the policy or of one that it is compared with.
//!
//! A link has its own rate in each direction, or one for both; of each process one copy at a time and direction;
//! copies that share a link share its rate evenly. A copy past several tiers takes what the slowest link on its way
//! takes, and uses that one only.
//! Nothing is measured: the same numbers in every run.

use holdfast_tiers::policy::{Action, Event, Hierarchy, Place, SegmentId, Transfer, transfer_ns};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// What decides.
pub trait Engine {
    /// As [`holdfast_tiers::policy::Hierarchy::step`].
    fn step(&mut self, now: u64, event: Event) -> Vec<Action>;
    /// Everything is on the slowest tier.
    fn is_flushed(&self) -> bool;
    /// A tier has all of a segment.
    fn holds(&self, tier: usize, segment: SegmentId) -> bool;
    /// The program waits for that.
    fn drain(&mut self, _now: u64) -> Vec<Action> {
        Vec::new()
    }
}

impl Engine for Hierarchy {
    fn step(&mut self, now: u64, event: Event) -> Vec<Action> {
        Hierarchy::step(self, now, event).unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_flushed(&self) -> bool {
        Hierarchy::is_flushed(self)
    }

    fn holds(&self, tier: usize, segment: SegmentId) -> bool {
        self.state(segment, tier).is_some_and(|state| state.complete())
    }
}

/// What a program does, one after the other.
#[derive(Clone, Copy)]
pub enum Op {
    Compute(u64),
    Write(SegmentId, u64),
    WaitFlushed,
    StartPrefetch,
    Hint(SegmentId),
    Restore(SegmentId),
    /// Waits for all other processes.
    Barrier,
}

/// Bytes per second of each link; index: the slower tier.
pub struct Links {
    pub down: Vec<u64>,
    pub up: Vec<u64>,
    /// How many processes share each; those of one number to the next multiple of that.
    pub shared_by: Vec<usize>,
    /// Whether both directions of each share its rate, as on a disk.
    pub one_rate: Vec<bool>,
}

impl Links {
    /// The same both ways, for one process.
    pub fn own(rates: &[u64]) -> Links {
        let count = rates.len();
        Links {
            down: rates.to_vec(),
            up: rates.to_vec(),
            shared_by: vec![1; count],
            one_rate: vec![false; count],
        }
    }
}

#[derive(Default, Clone)]
pub struct Outcome {
    /// Time that the program waited in writes, and in restores; not for the flush where it asked for that.
    pub writes_ns: u64,
    pub restores_ns: u64,
    /// Copies that read the slowest tier.
    pub slowest_reads: u64,
    /// Bytes that went to it.
    pub flushed: u64,
    /// At each restore, how many of those that come next, without a gap, the fastest tier has.
    pub distances: Vec<u64>,
}

impl Outcome {
    pub fn blocked_ns(&self) -> u64 {
        self.writes_ns + self.restores_ns
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// Of a copy, if it was not put off since.
    End {
        copy: usize,
        version: u64,
    },
    Program(usize),
    Wake(usize),
}

#[derive(PartialEq, Clone, Copy)]
enum Waits {
    No,
    Write(SegmentId),
    Restore(SegmentId),
    Flushed,
    Barrier,
}

/// A program, and what decides for it.
pub struct Process<'a> {
    pub engine: &'a mut dyn Engine,
    pub program: &'a [Op],
}

struct Running<'a> {
    it: Process<'a>,
    /// Index of its next operation.
    next: usize,
    waits: Waits,
    /// Since when it waits; `u64::MAX`: it computes.
    since: u64,
    outcome: Outcome,
    busy: Vec<[bool; 2]>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Lane {
    link: usize,
    /// Not of a link whose directions share its rate.
    is_down: bool,
    /// Which of several links of this kind.
    number: usize,
}

struct Copying {
    transfer: Transfer,
    process: usize,
    lane: Lane,
    /// Nanoseconds that it takes from `since` on if nothing else is on its link.
    left: u64,
    since: u64,
    version: u64,
}

struct Simulation<'a> {
    processes: Vec<Running<'a>>,
    links: &'a Links,
    discardable: bool,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, What)>>,
    copies: Vec<Copying>,
    lanes: BTreeMap<Lane, Vec<usize>>,
    number: u64,
}

/// Runs a program to its end.
pub fn simulate(engine: &mut dyn Engine, links: &Links, program: &[Op], discardable: bool) -> Outcome {
    simulate_all(vec![Process { engine, program }], links, discardable).remove(0)
}

/// Runs several at the same time to their ends.
pub fn simulate_all<'a>(processes: Vec<Process<'a>>, links: &'a Links, discardable: bool) -> Vec<Outcome> {
    let busy = vec![[false; 2]; links.down.len()];
    let running = |it| Running {
        it,
        next: 0,
        waits: Waits::No,
        since: 0,
        outcome: Outcome::default(),
        busy: busy.clone(),
    };
    let mut simulation = Simulation {
        processes: processes.into_iter().map(running).collect(),
        links,
        discardable,
        now: 0,
        events: BinaryHeap::new(),
        copies: Vec::new(),
        lanes: BTreeMap::new(),
        number: 0,
    };
    for process in 0..simulation.processes.len() {
        simulation.at(0, What::Program(process));
    }
    while let Some(Reverse((at, _, what))) = simulation.events.pop() {
        simulation.now = at;
        match what {
            What::End { copy, version } if simulation.copies[copy].version != version => {}
            What::End { copy, .. } => simulation.ended(copy),
            What::Wake(process) => {
                simulation.step(process, Event::Tick);
                simulation.go_on(process);
            }
            What::Program(process) => simulation.program(process),
        }
    }
    let ended = |it: &Running<'_>| it.next == it.it.program.len() && it.waits == Waits::No;
    assert!(simulation.processes.iter().all(ended), "a program never ended: deadlock");
    simulation.processes.into_iter().map(|running| running.outcome).collect()
}

impl Simulation<'_> {
    fn at(&mut self, time: u64, what: What) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, what)));
    }

    fn step(&mut self, process: usize, event: Event) {
        let actions = self.processes[process].it.engine.step(self.now, event);
        self.obey(process, actions);
    }

    fn obey(&mut self, process: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Copy(transfer) => self.begin(process, transfer),
                Action::Wake(at) => self.at(at, What::Wake(process)),
                Action::Erase(..) => {}
                Action::Lost(segment) => panic!("{segment:?} is lost"),
            }
        }
    }

    fn begin(&mut self, process: usize, transfer: Transfer) {
        let (link, is_down) = (transfer.link(), transfer.is_down());
        let running = &mut self.processes[process];
        let busy = &mut running.busy[link][usize::from(is_down)];
        assert!(!*busy, "{transfer:?}: the link is in use");
        *busy = true;
        let last = self.links.up.len() - 1;
        running.outcome.slowest_reads += u64::from(!is_down && transfer.from == Place::Tier(last));
        if transfer.to == Place::Tier(last) {
            running.outcome.flushed += transfer.bytes;
        }
        let rate = if is_down { self.links.down[link] } else { self.links.up[link] };
        let is_down = is_down && !self.links.one_rate[link];
        let lane = Lane { link, is_down, number: process / self.links.shared_by[link] };
        self.pass_time(lane);
        let left = transfer_ns(transfer.bytes, rate);
        self.copies.push(Copying { transfer, process, lane, left, since: self.now, version: 0 });
        self.lanes.entry(lane).or_default().push(self.copies.len() - 1);
        self.put_off(lane);
    }

    /// What was copied over a link until now.
    fn pass_time(&mut self, lane: Lane) {
        let together = self.lanes.entry(lane).or_default();
        for &copy in together.iter() {
            let copy = &mut self.copies[copy];
            copy.left = copy.left.saturating_sub((self.now - copy.since) / together.len() as u64);
            copy.since = self.now;
        }
    }

    /// When the copies of a link will have ended.
    fn put_off(&mut self, lane: Lane) {
        let together = self.lanes[&lane].clone();
        for &index in &together {
            let copy = &mut self.copies[index];
            copy.version += 1;
            let (version, end) = (copy.version, self.now + copy.left * together.len() as u64);
            self.at(end, What::End { copy: index, version });
        }
    }

    fn ended(&mut self, copy: usize) {
        let Copying { transfer, process, lane, .. } = self.copies[copy];
        self.pass_time(lane);
        if let Some(together) = self.lanes.get_mut(&lane) {
            together.retain(|&other| other != copy);
        }
        self.put_off(lane);
        let running = &mut self.processes[process];
        running.busy[transfer.link()][usize::from(transfer.is_down())] = false;
        let waited = self.now.saturating_sub(running.since);
        if transfer.to == Place::Application && running.waits == Waits::Restore(transfer.segment) {
            running.outcome.restores_ns += waited;
            running.waits = Waits::No;
        } else if transfer.from == Place::Application && running.waits == Waits::Write(transfer.segment) {
            running.outcome.writes_ns += waited;
            running.waits = Waits::No;
        }
        self.step(process, Event::Copied(transfer));
        let running = &mut self.processes[process];
        if running.waits == Waits::Flushed && running.it.engine.is_flushed() {
            running.waits = Waits::No;
        }
        self.go_on(process);
    }

    /// If what it waited for has just come.
    fn go_on(&mut self, process: usize) {
        let running = &self.processes[process];
        if running.waits == Waits::No && running.since != u64::MAX {
            self.program(process);
        }
    }

    /// A program, until it computes or waits.
    fn program(&mut self, process: usize) {
        while let Some(&op) = self.processes[process].it.program.get(self.processes[process].next) {
            let now = self.now;
            let running = &mut self.processes[process];
            running.next += 1;
            running.since = now;
            match op {
                Op::Compute(ns) => {
                    running.since = u64::MAX;
                    return self.at(now + ns, What::Program(process));
                }
                Op::Write(segment, bytes) => {
                    running.waits = Waits::Write(segment);
                    let discardable = self.discardable;
                    return self.step(process, Event::Write { segment, bytes, discardable });
                }
                Op::Restore(segment) => {
                    running.waits = Waits::Restore(segment);
                    let distance = running.distance();
                    running.outcome.distances.push(distance);
                    return self.step(process, Event::Restore(segment));
                }
                Op::WaitFlushed => {
                    running.waits = Waits::Flushed;
                    let actions = running.it.engine.drain(now);
                    self.obey(process, actions);
                    let running = &mut self.processes[process];
                    if !running.it.engine.is_flushed() {
                        return;
                    }
                    running.waits = Waits::No;
                }
                Op::Barrier => {
                    running.waits = Waits::Barrier;
                    return self.barrier();
                }
                Op::StartPrefetch => self.step(process, Event::StartPrefetch),
                Op::Hint(segment) => self.step(process, Event::Hint(segment)),
            }
        }
        // Not called again by the ends of copies.
        self.processes[process].since = u64::MAX;
    }

    fn barrier(&mut self) {
        if self.processes.iter().all(|running| running.waits == Waits::Barrier) {
            for process in 0..self.processes.len() {
                let running = &mut self.processes[process];
                (running.waits, running.since) = (Waits::No, u64::MAX);
                self.at(self.now, What::Program(process));
            }
        }
    }
}

impl Running<'_> {
    fn distance(&self) -> u64 {
        let coming = self.it.program[self.next..].iter();
        let ids = coming.filter_map(|op| if let Op::Restore(id) = op { Some(*id) } else { None });
        ids.take_while(|&id| self.it.engine.holds(0, id)).count() as u64
    }
}
