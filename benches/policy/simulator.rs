//! A program, tiers and links in virtual time, over the `step` of the policy or of one that it is compared with.
//!
//! A link has its own rate in each direction and one copy at a time; a copy past several tiers takes what the slowest
//! link on its way takes, and uses that one only. Nothing is measured: the same numbers in every run.

use holdfast_tiers::policy::{Action, Event, Hierarchy, Place, SegmentId, Transfer, transfer_ns};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What decides.
pub trait Engine {
    /// As [`holdfast_tiers::policy::Hierarchy::step`].
    fn step(&mut self, now: u64, event: Event) -> Vec<Action>;
    /// Everything is on the slowest tier.
    fn is_flushed(&self) -> bool;
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
}

/// Bytes per second of each link; index: the slower tier.
pub struct Links {
    pub down: Vec<u64>,
    pub up: Vec<u64>,
}

#[derive(Default, Clone, Copy)]
pub struct Outcome {
    /// Time that the program waited in writes and restores; not for the flush where it asked for that.
    pub blocked_ns: u64,
    /// Copies that read the slowest tier.
    pub slowest_reads: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    End(usize),
    Program,
    Wake,
}

#[derive(PartialEq, Clone, Copy)]
enum Waits {
    No,
    Write(SegmentId),
    Restore(SegmentId),
    Flushed,
}

struct Simulation<'a> {
    engine: &'a mut dyn Engine,
    links: &'a Links,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, What)>>,
    copies: Vec<Transfer>,
    number: u64,
    waits: Waits,
    since: u64,
    outcome: Outcome,
    busy: Vec<[bool; 2]>,
}

/// Runs a program to its end.
pub fn simulate(engine: &mut dyn Engine, links: &Links, program: &[Op], discardable: bool) -> Outcome {
    let mut simulation = Simulation {
        engine,
        links,
        now: 0,
        events: BinaryHeap::new(),
        copies: Vec::new(),
        number: 0,
        waits: Waits::No,
        since: 0,
        outcome: Outcome::default(),
        busy: vec![[false; 2]; links.down.len()],
    };
    simulation.at(0, What::Program);
    let mut ops = program.iter().copied().peekable();
    while let Some(Reverse((at, _, what))) = simulation.events.pop() {
        simulation.now = at;
        match what {
            What::End(copy) => simulation.ended(copy),
            What::Wake => simulation.step(Event::Tick),
            What::Program => {}
        }
        if what == What::Program || simulation.goes_on() {
            simulation.program(&mut ops, discardable);
        }
    }
    assert!(ops.peek().is_none() && simulation.waits == Waits::No, "the program never ended: deadlock");
    simulation.outcome
}

impl Simulation<'_> {
    fn at(&mut self, time: u64, what: What) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, what)));
    }

    fn step(&mut self, event: Event) {
        let actions = self.engine.step(self.now, event);
        self.obey(actions);
    }

    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Copy(transfer) => {
                    let (link, down) = (transfer.link(), transfer.is_down());
                    let busy = &mut self.busy[link][usize::from(down)];
                    assert!(!*busy, "{transfer:?}: the link is in use");
                    *busy = true;
                    let last = self.links.up.len() - 1;
                    self.outcome.slowest_reads += u64::from(!down && transfer.from == Place::Tier(last));
                    let rate = if down { self.links.down[link] } else { self.links.up[link] };
                    self.copies.push(transfer);
                    self.at(self.now + transfer_ns(transfer.bytes, rate), What::End(self.copies.len() - 1));
                }
                Action::Wake(at) => self.at(at, What::Wake),
                Action::Erase(..) => {}
                Action::Lost(segment) => panic!("{segment:?} is lost"),
            }
        }
    }

    fn ended(&mut self, copy: usize) {
        let transfer = self.copies[copy];
        self.busy[transfer.link()][usize::from(transfer.is_down())] = false;
        let done = if transfer.to == Place::Application {
            Waits::Restore(transfer.segment)
        } else if transfer.from == Place::Application {
            Waits::Write(transfer.segment)
        } else {
            Waits::No
        };
        if self.waits == done && done != Waits::No {
            self.outcome.blocked_ns += self.now - self.since;
            self.waits = Waits::No;
        }
        self.step(Event::Copied(transfer));
        if self.waits == Waits::Flushed && self.engine.is_flushed() {
            self.waits = Waits::No;
        }
    }

    /// What the program waited for has just come.
    fn goes_on(&mut self) -> bool {
        self.waits == Waits::No && self.since != u64::MAX
    }

    /// The program, until it computes or waits.
    fn program(&mut self, ops: &mut impl Iterator<Item = Op>, discardable: bool) {
        // Not called again by the end of a copy while it computes.
        self.since = u64::MAX;
        for op in ops {
            self.since = self.now;
            match op {
                Op::Compute(ns) => {
                    self.since = u64::MAX;
                    return self.at(self.now + ns, What::Program);
                }
                Op::Write(segment, bytes) => {
                    self.waits = Waits::Write(segment);
                    self.step(Event::Write { segment, bytes, discardable });
                }
                Op::Restore(segment) => {
                    self.waits = Waits::Restore(segment);
                    self.step(Event::Restore(segment));
                }
                Op::WaitFlushed => {
                    self.waits = Waits::Flushed;
                    let actions = self.engine.drain(self.now);
                    self.obey(actions);
                    if self.engine.is_flushed() {
                        self.waits = Waits::No;
                        continue;
                    }
                }
                Op::StartPrefetch => {
                    self.step(Event::StartPrefetch);
                    continue;
                }
                Op::Hint(segment) => {
                    self.step(Event::Hint(segment));
                    continue;
                }
            }
            return;
        }
        self.since = u64::MAX;
    }
}
