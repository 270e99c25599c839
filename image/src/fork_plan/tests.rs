//! Plans carried out in a model of the kernel: whatever a job did to become what it is, the plan makes it again.

#![allow(clippy::expect_used)]

use super::*;
use crate::testing::empty_record;
use proptest::prelude::*;

/// Session and group of the shell that starts jobs.
const OUTSIDE: i32 = 5;
const INIT: i32 = 1;
const FIRST: i32 = 10;

#[derive(Clone, Debug)]
struct Process {
    parent: i32,
    sid: i32,
    pgid: i32,
    ended: bool,
    subreaper: bool,
}

/// Processes by their ids, with the kernel's rules for what they may do.
#[derive(Default)]
struct World {
    all: BTreeMap<i32, Process>,
}

impl World {
    fn fork(&mut self, parent: i32, pid: i32) {
        let (sid, pgid) = self.all.get(&parent).map_or((0, 0), |p| (p.sid, p.pgid));
        let in_use = self.all.values().any(|p| p.sid == pid || p.pgid == pid);
        assert!(!in_use && !self.all.contains_key(&pid), "id {pid} is in use");
        self.all.insert(pid, Process { parent, sid, pgid, ended: false, subreaper: false });
    }
    fn set_session(&mut self, pid: i32) -> bool {
        if self.all.values().any(|p| p.pgid == pid) {
            return false;
        }
        self.change(pid, |p| (p.sid, p.pgid) = (pid, pid));
        true
    }
    fn set_group(&mut self, pid: i32, group: i32) -> bool {
        let sid = self.all[&pid].sid;
        let exists = self.all.values().any(|p| (p.pgid, p.sid) == (group, sid));
        let may = sid != pid && (group == pid || exists);
        if may {
            self.change(pid, |p| p.pgid = group);
        }
        may
    }
    fn change(&mut self, pid: i32, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.all.get_mut(&pid) {
            change(process);
        }
    }
    /// What gets the children of one that ends.
    fn heir(&self, pid: i32) -> i32 {
        let mut above = self.all[&pid].parent;
        while let Some(process) = self.all.get(&above) {
            if process.subreaper {
                return above;
            }
            above = process.parent;
        }
        INIT
    }
    fn end(&mut self, pid: i32) {
        let heir = self.heir(pid);
        self.all.values_mut().filter(|p| p.parent == pid).for_each(|p| p.parent = heir);
        self.change(pid, |p| p.ended = true);
        self.all.retain(|_, p| !(p.ended && p.parent == INIT));
    }
    /// What a checkpoint finds.
    fn record(&self) -> ProcessRecord {
        let mut processes = self.all.iter().filter(|(_, p)| !p.ended).map(|(pid, process)| {
            let own = self.all.iter().filter(|(_, p)| p.ended && p.parent == *pid);
            let zombies = own.map(|(pid, p)| ZombieRecord {
                pid: *pid,
                inner_pid: None,
                pgid: p.pgid,
                sid: p.sid,
                status: 0,
                comm: Name::default(),
            });
            let mut record = empty_record();
            (record.pid, record.ppid) = (*pid, process.parent);
            (record.sid, record.pgid) = (process.sid, process.pgid);
            record.zombies = zombies.collect();
            record.attributes.child_subreaper = process.subreaper;
            record
        });
        let mut first = processes.next().expect("the first never ends");
        first.others = processes.collect();
        first
    }
}

/// A plan at work.
#[derive(Default)]
struct Restart {
    world: World,
    joins: Vec<(i32, i32)>,
    helpers: Vec<i32>,
    zombies: Vec<i32>,
    next: i32,
}

impl Restart {
    fn run(plan: &Birth) -> World {
        let mut restart = Restart { next: 100_000, ..Restart::default() };
        restart.make(INIT, plan);
        for _ in 0..=restart.joins.len() {
            restart.joins.retain(|(pid, group)| !restart.world.set_group(*pid, *group));
        }
        assert!(restart.joins.is_empty(), "groups that were not made: {:?} in {plan:?}", restart.joins);
        for zombie in restart.zombies {
            restart.world.end(zombie);
        }
        for helper in restart.helpers {
            restart.world.end(helper);
            restart.world.all.remove(&helper);
        }
        restart.world
    }

    fn make(&mut self, maker: i32, birth: &Birth) {
        self.next += 1;
        let pid = if birth.pid == 0 { self.next } else { birth.pid };
        self.world.fork(maker, pid);
        self.world.change(pid, |p| p.subreaper = birth.subreaper);
        birth.before.iter().for_each(|child| self.make(pid, child));
        if birth.session {
            assert!(self.world.set_session(pid), "{pid} cannot make a session");
        }
        match birth.group {
            Group::Inherited => {}
            Group::Own => assert!(self.world.set_group(pid, pid), "{pid} cannot make a group"),
            Group::Joined(group) => self.joins.push((pid, group)),
        }
        birth.after.iter().for_each(|child| self.make(pid, child));
        match birth.who {
            Who::Process(_) => {}
            Who::Zombie { .. } => self.zombies.push(pid),
            Who::Helper => self.helpers.push(pid),
        }
    }
}

/// A job that has lived: who did what is chosen by bytes.
fn history(first: (i32, i32), steps: &[(u8, u8, u8)], subreapers: bool) -> World {
    let mut world = World::default();
    let (sid, pgid) = first;
    world.all.insert(FIRST, Process { parent: INIT, sid, pgid, ended: false, subreaper: false });
    for (number, &(what, who, whom)) in (FIRST + 1..).zip(steps) {
        let alive: Vec<i32> = world.all.iter().filter(|(_, p)| !p.ended).map(|(pid, _)| *pid).collect();
        let who = alive[usize::from(who) % alive.len()];
        let other = alive[usize::from(whom) % alive.len()];
        match what % 9 {
            0..=2 => world.fork(who, number),
            3 => drop(world.set_session(who)),
            4 => drop(world.set_group(who, who)),
            5 => drop(world.set_group(who, world.all[&other].pgid)),
            6 | 7 if who != FIRST => world.end(who),
            8 if subreapers => world.change(who, |p| p.subreaper = true),
            _ => {
                let ended = world.all.iter().find(|(_, p)| p.ended && p.parent == who).map(|(pid, _)| *pid);
                ended.map(|pid| world.all.remove(&pid));
            }
        }
    }
    world
}

fn check(first: (i32, i32), steps: &[(u8, u8, u8)], subreapers: bool) -> Result<(), TestCaseError> {
    let world = history(first, steps, subreapers);
    let record = world.record();
    let plan = match plan(&record) {
        Ok(plan) => plan,
        Err(why) => {
            let moved = why.contains("cannot be in that group again");
            prop_assert!(moved || subreapers, "{why}\n{:?}", world.all);
            return Ok(());
        }
    };
    let again = Restart::run(&plan);
    prop_assert_eq!(
        plan.all().iter().filter(|b| matches!(b.who, Who::Process(_))).count(),
        1 + record.others.len()
    );
    let started_by_first = leads_session(&record);
    let all: Vec<&ProcessRecord> = record.processes().collect();
    let starters = first_group(&all).map(|(group, _)| group).filter(|group| *group != FIRST);
    for (pid, was) in &world.all {
        let now = again.all.get(pid);
        let ids = |p: &Process| {
            // What a process outside the job's own session has of its starter is the new starter's.
            let sid = if p.sid == OUTSIDE { 0 } else { p.sid };
            let foreign = started_by_first && sid == 0 && p.pgid != *pid
                || p.pgid == OUTSIDE
                || starters == Some(p.pgid);
            (p.parent, sid, if foreign { 0 } else { p.pgid })
        };
        if was.ended {
            prop_assert_eq!(now.map(|p| (p.parent, p.ended)), Some((was.parent, true)), "zombie {}", pid);
        } else {
            prop_assert_eq!(now.map(ids), Some(ids(was)), "process {} of {:?} by {:?}", pid, world.all, plan);
        }
    }
    prop_assert_eq!(again.all.len(), world.all.len(), "none is left over");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 1000 }, ..ProptestConfig::default() })]

    #[test]
    fn what_a_job_became_is_made_again(
        first in prop::sample::select(vec![(FIRST, FIRST), (OUTSIDE, FIRST), (OUTSIDE, OUTSIDE)]),
        steps in prop::collection::vec(any::<(u8, u8, u8)>(), 0..60),
        subreapers in any::<bool>(),
    ) {
        check(first, &steps, subreapers)?;
    }
}

fn job(processes: &[(i32, i32, i32, i32)]) -> ProcessRecord {
    let mut all = processes.iter().map(|&(pid, ppid, sid, pgid)| ProcessRecord {
        pid,
        ppid,
        sid,
        pgid,
        ..empty_record()
    });
    let mut first = all.next().expect("a process");
    first.others = all.collect();
    first
}

#[test]
fn a_shell_and_its_pipeline_are_forked_in_place() {
    // An interactive shell without a terminal of ours: two groups, the leader of the second waiting for its fellow.
    let record = job(&[(10, 1, 10, 10), (11, 10, 10, 11), (12, 10, 10, 11), (13, 12, 13, 13)]);
    let made = plan(&record).expect("a plan");
    assert!(made.session && made.before.is_empty());
    let groups: Vec<Group> = made.after.iter().map(|child| child.group).collect();
    assert_eq!(groups, [Group::Own, Group::Joined(11)]);
    assert!(made.after[1].after[0].session);
}

#[test]
fn a_daemon_gets_the_session_of_a_leader_that_is_gone() {
    let made = plan(&job(&[(10, 1, 10, 10), (14, 1, 12, 12)])).expect("a plan");
    let leader = &made.after[0];
    assert_eq!((&leader.who, leader.pid, leader.session), (&Who::Helper, 12, true));
    assert_eq!(leader.after[0].pid, 14);
    assert_eq!(leader.after[0].group, Group::Joined(12));
}

#[test]
fn a_child_that_ended_in_a_group_whose_leader_is_gone_is_in_it_again() {
    let mut record = job(&[(10, 1, 10, 10)]);
    let (pid, pgid, sid, comm) = (14, 12, 10, crate::bytes::Name::from("gone"));
    record.zombies.push(ZombieRecord { pid, inner_pid: None, pgid, sid, status: 0, comm });
    let made = plan(&record).expect("a plan");
    let group = |pid: i32| made.all().into_iter().find(|birth| birth.pid == pid).map(|birth| birth.group);
    assert_eq!((group(12), group(14)), (Some(Group::Own), Some(Group::Joined(12))));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refusal = |processes: &[(i32, i32, i32, i32)]| plan(&job(processes)).expect_err("no plan");
    // A child in a session that its parent never saw.
    let why = refusal(&[(10, 1, 10, 10), (11, 10, 10, 10), (12, 11, 99, 99)]);
    assert!(why.contains("process 12") && why.contains("session 99") && why.contains("parent 11"), "{why}");
    let why = refusal(&[(10, 1, 10, 10), (12, 11, 10, 10), (11, 10, 10, 10)]);
    assert!(why.contains("process 12") && why.contains("before its parent"), "{why}");
    // Two orphans, each in the session of the other's child.
    let why =
        refusal(&[(10, 1, 10, 10), (11, 1, 14, 14), (12, 1, 13, 13), (13, 11, 13, 13), (14, 12, 14, 14)]);
    assert!(why.contains("process 11"), "{why}");
    // Quadratic in its length: minutes under miri.
    if cfg!(miri) {
        return;
    }
    let chain: Vec<(i32, i32, i32, i32)> = (10..2000).map(|pid| (pid, pid - 1, 10, 10)).collect();
    assert!(refusal(&chain).contains("generations"));
}
