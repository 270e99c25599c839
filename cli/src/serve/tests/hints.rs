//! Hints, right and wrong: what is in memory is what the policy alone, under copies that take no time, has there; what
//! is wrong costs neither memory nor an end.

use super::super::state::{MOST_PROMISED, limits};
use super::*;
use holdfast_tiers::policy::{Action, Event, Hierarchy, Place, SegmentId, Ties, Transfer};
use std::collections::{BTreeSet, VecDeque};

const VERSIONS: u64 = 16;
const ROOM: u64 = 5;

/// The policy under copies that take no time.
struct Simulated {
    policy: Hierarchy,
    in_memory: BTreeSet<u64>,
    now: u64,
}

impl Simulated {
    fn new() -> Simulated {
        let policy = Hierarchy::for_many(&limits(ROOM * bytes()), Ties::default());
        Simulated { policy, in_memory: BTreeSet::new(), now: 0 }
    }

    fn step(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.now += 1;
            if let Event::Copied(Transfer { segment, to: Place::Tier(MEMORY), .. }) = event {
                self.in_memory.insert(segment.0);
            }
            for action in self.policy.step(self.now, event).unwrap() {
                match action {
                    Action::Copy(transfer) => events.push_back(Event::Copied(transfer)),
                    Action::Erase(segment, MEMORY) => drop(self.in_memory.remove(&segment.0)),
                    _ => {}
                }
            }
        }
    }

    fn put(&mut self, version: u64) {
        self.step(Event::Write { segment: SegmentId(version), bytes: bytes(), discardable: false });
    }
}

fn bytes() -> u64 {
    layout(0, 0, 1, 0).len
}

/// The orders of the paper on VELOC's prefetching.
fn order(kind: &str) -> Vec<u64> {
    let mut order: Vec<u64> = (1..=VERSIONS).collect();
    match kind {
        "reverse" => order.reverse(),
        "irregular" => order.sort_by_key(|version| (version * 0x9E37_79B9) % 101),
        _ => {}
    }
    order
}

#[test]
fn memory_has_what_the_simulated_policy_has_there() {
    for kind in ["reverse", "sequential", "irregular"] {
        for is_hinted in [true, false] {
            let (world, mut simulated) = (World::new(ROOM), Simulated::new());
            let mut client = world.client(0, 1);
            let same = |what: &str, simulated: &Simulated| {
                let expected: Vec<u64> = simulated.in_memory.iter().copied().collect();
                let what = format!("{kind}, hints {is_hinted}, {what}: expected are {expected:?}");
                world.wait_until(&what, |world| world.in_memory() == expected);
            };
            for version in order(kind).into_iter().filter(|_| is_hinted) {
                client.tell(&Request::Hint { version });
                simulated.step(Event::Hint(SegmentId(version)));
            }
            for version in 1..=VERSIONS {
                client.put(version);
                assert_eq!(client.ask(&Request::Wait), Answer::Done);
                simulated.put(version);
                same(&format!("put {version}"), &simulated);
                if !is_hinted {
                    let newest = version.saturating_sub(ROOM - 1).max(1)..=version;
                    assert_eq!(world.in_memory(), newest.collect::<Vec<_>>(), "without hints as LRU has it");
                }
            }
            if is_hinted {
                client.tell(&Request::Start);
                simulated.step(Event::StartPrefetch);
                same("start", &simulated);
            }
            for version in order(kind) {
                let was_there = world.in_memory().contains(&version);
                assert!(was_there || !is_hinted, "{kind}: {version} was not there in time");
                assert_eq!(client.restore(version), Ok(client.run));
                simulated.step(Event::Restore(SegmentId(version)));
                same(&format!("restored {version}"), &simulated);
            }
        }
    }
}

/// A hundred thousand of versions that never come, and of others in a wrong order.
#[test]
fn wrong_hints_cost_neither_memory_nor_an_end() {
    let world = World::new(ROOM);
    let mut client = world.client(0, 1);
    for number in 0..100_000 {
        let version = if number % 2 == 0 { 1_000 + number } else { 1 + number * 7 % VERSIONS };
        client.tell(&Request::Hint { version });
        if number == 50_000 {
            client.tell(&Request::Start);
        }
    }
    for version in 1..=VERSIONS {
        client.put(version);
    }
    for version in order("irregular") {
        assert_eq!(client.restore(version), Ok(client.run));
    }
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert!(world.in_memory().len() <= usize::try_from(ROOM).unwrap(), "{:?}", world.in_memory());
    {
        let state = world.server.state.lock();
        assert!(state.sets["set"].promised.len() <= MOST_PROMISED);
        assert_eq!(state.held.len(), usize::try_from(VERSIONS).unwrap());
    }
    // The next run of the program begins without them.
    drop(client);
    world.wait_until("the client has gone", |world| world.server.state.lock().sets["set"].clients.is_empty());
    let client = world.client(0, 1);
    assert!(world.server.state.lock().sets["set"].promised.is_empty());
    drop(client);
}
