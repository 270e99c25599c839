//! Who makes whom: from the records of all processes of a job, in which order and state a restart has to fork them so
//! that parents, sessions and process groups come out as they were.
//!
//! Called at a checkpoint (what cannot be made again is refused by name) and by the new processes of a restart. The
//! rules are those of the kernel: a process is born into the session and group of its parent, can leave them only for
//! ones of its own (setsid(2)) or for another group of its session (setpgid(2)), and falls to the nearest child
//! subreaper above it, or to process 1, when its parent ends (kernel/exit.c, find_new_reaper). So a child that is in
//! the session which its parent left is forked before the parent leaves it, and a process whose parent is gone is
//! forked by a *helper*, which ends.
//!
//! Invariants: pure; every process of the record is in a plan exactly once, however hostile the record is.

mod births;
mod inside;

use crate::bytes::Name;
use crate::pid_namespaces::Inside;
use crate::record::{ProcessRecord, ZombieRecord};
use std::collections::{BTreeMap, BTreeSet};

/// Most generations: each is on the stack of the process that works through a plan.
const DEEPEST: usize = 1000;

/// One process to be made, and what it makes in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Birth {
    /// What it becomes.
    pub who: Who,
    /// Its id; 0: any that no process of the job has.
    pub pid: i32,
    /// It is made in a pid namespace of the job's own.
    pub inside: Option<Inside>,
    /// Process 1 of the pid namespace for its children, if that is another one than its own.
    pub children_in: Option<i32>,
    /// It makes a session of its own.
    pub session: bool,
    /// Its process group.
    pub group: Group,
    /// A child is born into the group that it joins: it joins it before.
    pub joins_early: bool,
    /// Orphans fall to it while the others are made (PR_SET_CHILD_SUBREAPER).
    pub subreaper: bool,
    /// Made while it is in the session and group that it was born into.
    pub before: Vec<Birth>,
    /// Made when it is in those that it is to have, except for a group that it joins: that may be one of theirs.
    pub after: Vec<Birth>,
}

/// What a new process becomes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Who {
    /// A process of the program, by its place in the job.
    Process(usize),
    /// A child that has ended and is not waited for.
    Zombie {
        /// As wait(2) tells it.
        status: i32,
        /// Its name.
        comm: Name,
    },
    /// A process that is gone. It ends when all are in their places.
    Helper,
}

/// A new process's group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// That into which it is born, or that of its own session.
    Inherited,
    /// Its own.
    Own,
    /// Another one, which another process of the plan leads, by its number for this one.
    Joined(i32),
}

impl Birth {
    /// All that it makes, in order.
    pub fn children(&self) -> impl Iterator<Item = &Birth> {
        self.before.iter().chain(&self.after)
    }
    /// The same, children with smaller ids first where the order among them is free.
    #[must_use]
    pub fn by_id(self) -> Birth {
        let sorted = |births: Vec<Birth>| {
            let mut births: Vec<Birth> = births.into_iter().map(Birth::by_id).collect();
            births.sort_by_key(|birth| birth.pid);
            births
        };
        Birth { before: sorted(self.before), after: sorted(self.after), ..self }
    }
    /// The id that a process beside or below it has for it.
    pub fn known(&self, other: &Birth) -> i32 {
        match (self.inside, other.inside) {
            (Some(_), Some(inside)) => inside.pid,
            _ => other.pid,
        }
    }
    /// It and all below it.
    pub fn all(&self) -> Vec<&Birth> {
        std::iter::once(self).chain(self.children().flat_map(Birth::all)).collect()
    }
}

/// When a process is forked by its maker: see [`Birth`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Moment {
    Before,
    After,
}

/// What must hold where a process is born.
#[derive(Clone, Copy, Default, Debug)]
struct Need {
    /// Its maker is in this session then.
    session: Option<i32>,
    /// Its maker is in the group of the first process then, which cannot be joined by number.
    first_group: bool,
}

#[derive(Debug)]
struct Node {
    who: Who,
    pid: i32,
    inside: Option<Inside>,
    children_in: Option<i32>,
    session: bool,
    group: Group,
    joins_early: bool,
    subreaper: bool,
    maker: Option<usize>,
    before: Vec<usize>,
    after: Vec<usize>,
}

impl Node {
    fn new(who: Who, pid: i32, session: bool) -> Node {
        let (before, after) = (Vec::new(), Vec::new());
        let (inside, children_in, group) = (None, None, Group::Inherited);
        let (joins_early, subreaper, maker) = (false, false, None);
        Node { who, pid, inside, children_in, session, group, joins_early, subreaper, maker, before, after }
    }
}

#[derive(Clone, Copy, Debug)]
struct Zombie<'a> {
    record: &'a ZombieRecord,
    node: usize,
    /// It is made where its session is.
    in_session: bool,
}

struct Planner<'a> {
    /// All processes; the node of each has its number.
    all: Vec<&'a ProcessRecord>,
    places: BTreeMap<i32, usize>,
    /// Of each process, in their order.
    children: Vec<Vec<usize>>,
    /// Ids of threads.
    threads: BTreeSet<i32>,
    /// Group and session of the first process, if no process may lead the group: it is of the shell that started the
    /// job, or one that the first process makes only where no terminal is.
    first_group: Option<(i32, i32)>,
    needs: Vec<Need>,
    /// When a process is forked by its parent; none: it is not its parent that makes it.
    moments: Vec<Option<Moment>>,
    nodes: Vec<Node>,
    /// Children that have ended, by their ids.
    zombies: BTreeMap<i32, Zombie<'a>>,
    /// Nodes of leaders that are gone, by the ids of their sessions, and to whom what they make falls.
    sessions: BTreeMap<i32, (usize, Option<usize>)>,
    /// Nodes of leaders that are gone, by the ids of their groups.
    groups: BTreeMap<i32, usize>,
    /// Helpers without an id, by who makes them.
    nameless: BTreeMap<(usize, Moment), usize>,
    /// Nodes that another process than their parent makes, and to whom they fall.
    orphans: Vec<(usize, Option<usize>)>,
}

/// Plans the births of all processes of a job; the first process is the root.
///
/// # Errors
/// Names the process whose parent, session or group no order of forks brings about.
pub fn plan(record: &ProcessRecord) -> Result<Birth, String> {
    let mut planner = Planner::new(record)?;
    planner.place_zombies();
    planner.place_processes()?;
    planner.choose_groups()?;
    planner.check_orphans()?;
    Ok(planner.birth(0))
}

fn leads_session(process: &ProcessRecord) -> bool {
    process.sid == process.pid
}

/// See [`Planner::first_group`].
fn first_group(all: &[&ProcessRecord]) -> Option<(i32, i32)> {
    let first = all.first().filter(|first| !leads_session(first))?;
    let (group, own) = (first.pgid, first.pgid == first.pid);
    let somebodys = |process: &&ProcessRecord| {
        process.pid == group || process.zombies.iter().any(|zombie| zombie.pid == group)
    };
    (own || !all.iter().any(somebodys)).then_some((group, first.sid))
}

impl<'a> Planner<'a> {
    fn new(record: &'a ProcessRecord) -> Result<Planner<'a>, String> {
        let all: Vec<&ProcessRecord> = record.processes().collect();
        let places: BTreeMap<i32, usize> =
            all.iter().zip(0..).map(|(process, at)| (process.pid, at)).collect();
        let node = |(process, at): (&&ProcessRecord, usize)| {
            let inside = process.inner.map(|inner| Inside { init: inner.init, pid: inner.pid });
            let node = Node::new(Who::Process(at), process.pid, leads_session(process));
            Node { inside, children_in: process.children_in, ..node }
        };
        let mut children = vec![Vec::new(); all.len()];
        for (at, process) in all.iter().enumerate().skip(1) {
            match places.get(&process.ppid) {
                Some(parent) if *parent >= at => {
                    return Err(format!("process {} comes before its parent", process.pid));
                }
                Some(parent) => children[*parent].push(at),
                None => {}
            }
        }
        let mut planner = Planner {
            nodes: all.iter().zip(0..).map(node).collect(),
            needs: vec![Need::default(); all.len()],
            moments: vec![None; all.len()],
            children,
            threads: all.iter().flat_map(|process| &process.threads).map(|thread| thread.tid).collect(),
            first_group: first_group(&all),
            all,
            places,
            zombies: BTreeMap::new(),
            sessions: BTreeMap::new(),
            groups: BTreeMap::new(),
            nameless: BTreeMap::new(),
            orphans: Vec::new(),
        };
        // From the last to the first: what children need, their parents may have to need too.
        for at in (0..planner.all.len()).rev() {
            planner.settle(at);
        }
        Ok(planner)
    }

    fn parent(&self, at: usize) -> Option<usize> {
        if at == 0 { None } else { self.places.get(&self.all[at].ppid).copied() }
    }

    fn is_first_group(&self, group: i32, session: i32) -> bool {
        self.first_group == Some((group, session))
    }

    fn in_first_group(&self, at: usize) -> bool {
        self.is_first_group(self.all[at].pgid, self.all[at].sid)
    }

    /// What one process needs, when its children's needs are known; and when it forks them.
    fn settle(&mut self, at: usize) {
        let process = self.all[at];
        let leads = leads_session(process);
        let mut need =
            Need { session: (!leads).then_some(process.sid), first_group: self.in_first_group(at) };
        for child in std::mem::take(&mut self.children[at]) {
            let Need { session, first_group } = self.needs[child];
            self.moments[child] = match session {
                None => Some(Moment::After),
                Some(session) if session == process.sid => {
                    // In the parent's session, but in the group that the parent left.
                    let early = first_group && !self.in_first_group(at);
                    need.first_group |= early;
                    Some(if early { Moment::Before } else { Moment::After })
                }
                Some(session)
                    if leads
                        && need.session.is_none_or(|other| other == session)
                        && self.may_be_born_into(at, session) =>
                {
                    need.session = Some(session);
                    need.first_group |= first_group;
                    Some(Moment::Before)
                }
                Some(_) => None,
            };
        }
        for zombie in &process.zombies {
            if need.session.is_none() && zombie.sid != zombie.pid && zombie.sid != process.pid {
                need.session = Some(zombie.sid).filter(|session| self.may_be_born_into(at, *session));
            }
        }
        self.needs[at] = need;
    }

    /// Whether a process that leads a session may have been born into another one. What falls to a subreaper may be of
    /// a session that it was never in.
    fn may_be_born_into(&self, at: usize, session: i32) -> bool {
        !self.adopts(at)
            || match self.parent(at) {
                Some(parent) => self.all[parent].sid == session,
                None => session == 0,
            }
    }

    /// Whether a session is that of the process that starts the restart (0: as seen from a pid namespace of one's own).
    fn is_outside(&self, session: i32) -> bool {
        session == 0 || self.needs[0].session == Some(session)
    }

    fn attach(&mut self, maker: usize, moment: Moment, node: usize) {
        self.nodes[node].maker = Some(maker);
        match moment {
            Moment::Before => self.nodes[maker].before.push(node),
            Moment::After => self.nodes[maker].after.push(node),
        }
    }

    fn add(&mut self, maker: usize, moment: Moment, node: Node) -> usize {
        self.nodes.push(node);
        self.attach(maker, moment, self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// Children that have ended. Where one was is of use to others only as a number: what cannot be had of it is left
    /// out.
    fn place_zombies(&mut self) {
        let mut adopted = Vec::new();
        for at in 0..self.all.len() {
            let parent = self.all[at];
            for record in &parent.zombies {
                let who = Who::Zombie { status: record.status, comm: record.comm.clone() };
                let inside = record.inner_pid.zip(parent.inner);
                let inside = inside.map(|(pid, inner)| Inside { init: inner.init, pid });
                self.nodes.push(Node { inside, ..Node::new(who, record.pid, record.sid == record.pid) });
                let node = self.nodes.len() - 1;
                let left_session = record.sid != parent.sid && self.needs[at].session == Some(record.sid);
                let left_group = self.is_first_group(record.pgid, record.sid)
                    && self.needs[at].first_group
                    && !self.in_first_group(at);
                let in_session = left_session || record.sid == parent.sid || record.sid == record.pid;
                self.zombies.insert(record.pid, Zombie { record, node, in_session });
                if !in_session && self.adopts(at) {
                    adopted.push((record, node, at));
                } else {
                    let moment = if left_session || left_group { Moment::Before } else { Moment::After };
                    self.attach(at, moment, node);
                }
            }
        }
        for (record, node, at) in adopted {
            let placed = self.place_orphan(node, (Some(record.sid), None), Some(at));
            if placed.is_err() {
                self.attach(at, Moment::After, node);
            } else if let Some(zombie) = self.zombies.get_mut(&record.pid) {
                zombie.in_session = true;
                self.nodes[at].subreaper = !self.all[at].is_init();
            }
        }
    }

    fn place_processes(&mut self) -> Result<(), String> {
        for at in 1..self.all.len() {
            match (self.parent(at), self.moments[at]) {
                (Some(parent), Some(moment)) => self.attach(parent, moment, at),
                (None, _) => {
                    self.place_orphan(at, (self.needs[at].session, self.leader_of_old(at, false)), None)?
                }
                (Some(parent), None) if self.adopts(parent) => {
                    self.nodes[parent].subreaper = !self.all[parent].is_init();
                    let session = (self.needs[at].session, self.leader_of_old(at, false));
                    self.place_orphan(at, session, Some(parent))?;
                }
                (Some(parent), None) => {
                    return Err(format!(
                        "process {}: it, or a child of it, is in session {}, in which its parent {} was not when it \
                         was born",
                        self.all[at].pid,
                        self.needs[at].session.unwrap_or(0),
                        self.all[parent].pid
                    ));
                }
            }
        }
        Ok(())
    }

    /// A process that was made, in a session, by one that is gone, and fell to `heir` (none: to process 1).
    fn place_orphan(
        &mut self,
        node: usize,
        (session, leader): (Option<i32>, Option<Inside>),
        heir: Option<usize>,
    ) -> Result<(), String> {
        let (maker, moment) = match session {
            None => (0, Moment::After),
            Some(session) => self.in_session(session, leader, heir).map_err(|what| {
                format!("process {}, which was made by one that has ended: {what}", self.nodes[node].pid)
            })?,
        };
        let maker = if let Who::Process(_) = self.nodes[maker].who {
            match self.nameless.get(&(maker, moment)) {
                Some(helper) => *helper,
                None => {
                    let helper = self.add(maker, moment, self.nameless_at(maker));
                    self.nameless.insert((maker, moment), helper);
                    helper
                }
            }
        } else {
            maker
        };
        self.attach(maker, Moment::After, node);
        self.orphans.push((node, heir));
        Ok(())
    }

    /// Who is in a session, and when.
    fn find_session(&self, session: i32) -> Result<Option<(usize, Moment)>, String> {
        let leader =
            self.places.get(&session).or_else(|| self.zombies.get(&session).map(|zombie| &zombie.node));
        match leader {
            Some(&node) if self.nodes[node].session => Ok(Some((node, Moment::After))),
            Some(_) => Err(format!("its session {session} is not led by the process of that id")),
            None if self.is_outside(session) => {
                let moment = if leads_session(self.all[0]) { Moment::Before } else { Moment::After };
                Ok(Some((0, moment)))
            }
            None => Ok(self.sessions.get(&session).map(|(node, _)| (*node, Moment::After))),
        }
    }

    /// The same; a session whose leader is gone gets one that will be.
    fn in_session(
        &mut self,
        session: i32,
        leader: Option<Inside>,
        heir: Option<usize>,
    ) -> Result<(usize, Moment), String> {
        if let Some((_, other)) = self.sessions.get(&session)
            && *other != heir
        {
            return Err(format!("the processes of session {session} have fallen to several subreapers"));
        }
        if let Some(found) = self.find_session(session)? {
            return Ok(found);
        }
        self.refuse_thread(session, "session")?;
        let node = Node { inside: leader, ..Node::new(Who::Helper, session, true) };
        let node = self.add(heir.unwrap_or(0), Moment::After, node);
        self.sessions.insert(session, (node, heir));
        Ok((node, Moment::After))
    }

    fn refuse_thread(&self, id: i32, what: &str) -> Result<(), String> {
        if self.threads.contains(&id) {
            Err(format!("its {what} {id} has the id of a thread"))
        } else {
            Ok(())
        }
    }

    fn choose_groups(&mut self) -> Result<(), String> {
        for at in 0..self.all.len() {
            let group = self.group_of(at).map_err(|what| format!("process {}: {what}", self.all[at].pid))?;
            self.nodes[at].group = group;
        }
        let zombies: Vec<Zombie<'_>> = self.zombies.values().copied().collect();
        for Zombie { record, node, in_session } in zombies {
            let (group, session) = (record.pgid, record.sid);
            self.nodes[node].group = if session == record.pid {
                Group::Inherited
            } else if group == record.pid {
                Group::Own
            } else if in_session && record.inner_pid.is_none() {
                self.join(group, session, None).unwrap_or(Group::Inherited)
            } else {
                Group::Inherited
            };
        }
        Ok(())
    }

    fn group_of(&mut self, at: usize) -> Result<Group, String> {
        let process = self.all[at];
        let (group, session) = (process.pgid, process.sid);
        if leads_session(process) {
            return Ok(Group::Inherited);
        }
        if group == process.pid {
            return Ok(Group::Own);
        }
        match self.leader_of_old(at, true) {
            None if process.inner.is_some() => self.born_into(at),
            leader => {
                let joined = self.join(group, session, leader)?;
                let number = leader.map_or(group, |leader| leader.pid);
                Ok(if joined == Group::Inherited { joined } else { Group::Joined(number) })
            }
        }
    }

    /// The group of one that leads neither it nor a session. `leader`: where its leader was, if that is gone.
    fn join(&mut self, group: i32, session: i32, leader: Option<Inside>) -> Result<Group, String> {
        if group == 0 || self.is_first_group(group, session) {
            return Ok(Group::Inherited);
        }
        match self.leader_of(group, session) {
            Some(true) => Ok(Group::Joined(group)),
            Some(false) => {
                Err(format!("the process that led its group {group} cannot be in that group again"))
            }
            None => self.group_without_leader(group, session, leader),
        }
    }

    /// A group whose leader is gone gets one that will be.
    fn group_without_leader(
        &mut self,
        group: i32,
        session: i32,
        leader: Option<Inside>,
    ) -> Result<Group, String> {
        // Whatever group the restart is in takes the place of those of the shell that started the job.
        if self.is_outside(session) && leads_session(self.all[0]) {
            return Ok(Group::Inherited);
        }
        self.refuse_thread(group, "process group")?;
        let found =
            self.find_session(session)?.ok_or_else(|| format!("no process makes its session {session}"))?;
        let (maker, moment) = self.maker_inside(found, leader, session)?;
        let helper = Node { group: Group::Own, inside: leader, ..Node::new(Who::Helper, group, false) };
        let helper = self.add(maker, moment, helper);
        self.groups.insert(group, helper);
        Ok(Group::Joined(group))
    }

    /// Whether the process with the id of a group leads it, in this session; none: there is no such process.
    fn leader_of(&self, group: i32, session: i32) -> Option<bool> {
        if let Some(&at) = self.places.get(&group) {
            return Some(self.all[at].pgid == group && self.all[at].sid == session);
        }
        if let Some(Zombie { record, in_session, .. }) = self.zombies.get(&group) {
            return Some(*in_session && (record.pgid, record.sid) == (group, session));
        }
        // The leader of a session leads its group too.
        (self.groups.contains_key(&group) || self.sessions.contains_key(&group)).then_some(true)
    }
}

#[cfg(test)]
mod tests;
