//! The new processes make each other, as [`holdfast_image::fork_plan`] has planned it.
//!
//! Runs in the first new process, between the making of all descriptors and their being put in place
//! ([`super::child`]), and goes on in every process that is forked. A process is in its place when it is in its
//! session and group and has made its children; all of them have the write end of a pipe until then. When the last
//! has closed it, helpers, which take the part of processes that are gone, end, and the others go on.
//!
//! What must hold: SIGCHLD is not blocked, and at its default. Then the end of a helper or of a child that stays a
//! zombie leaves no pending signal, which would survive the exec (kernel/signal.c, sig_ignored).

use super::pid_namespaces::{self, PidNamespaces};
use crate::rebuild::error::RebuildError;
use crate::rebuild::front::ids::{self, Ids};
use crate::rebuild::handshake;
use crate::rebuild::job::Job;
use holdfast_image::bytes::Name;
use holdfast_image::fork_plan::{Birth, Group, Who};
use holdfast_sys::{attributes, clone, fd, ptrace, signals, spawn};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long the leader of a group is waited for.
const GROUP_LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);
/// How long a process that has failed waits to be ended by the front.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What a process has forked, and with which ids.
type Children<'p> = Vec<(&'p Birth, i32)>;

/// Makes all processes of a plan.
pub struct ForkTree<'a> {
    report: &'a OwnedFd,
    /// Places of the processes that share their directory and umask with their parents.
    in_one_folder: BTreeSet<usize>,
    /// Ids that only one process may have.
    taken: BTreeSet<i32>,
    inside: PidNamespaces,
    /// Of all processes, where each is made when it is the turn of its id.
    turns: Option<BTreeSet<i32>>,
    /// End of file: all are in their places.
    all_placed: OwnedFd,
    unfinished: OwnedFd,
}

impl<'a> ForkTree<'a> {
    /// Of a job.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(
        job: &Job<'_>,
        plan: &Birth,
        ids: Ids,
        report: &'a OwnedFd,
    ) -> Result<ForkTree<'a>, RebuildError> {
        let taken = ids::wanted_ids(job.record)?;
        let (all_placed, unfinished) = fd::pipe(0).map_err(RebuildError::io("making a pipe"))?;
        let turns = (ids == Ids::Counted).then(|| plan.all().iter().map(|planned| planned.pid).collect());
        let inside = PidNamespaces::of(job.record);
        let processes = job.record.processes().enumerate();
        let in_one_folder = processes.filter(|(_, one)| one.shares_folder).map(|(index, _)| index).collect();
        Ok(ForkTree { report, in_one_folder, taken, inside, turns, all_placed, unfinished })
    }

    /// Makes all others and returns in each process that shall execute, with its place in the job. `settle` gives the
    /// first process its session and group; `settled` is called in each process, with its place, when it
    /// has a session of its own or not, and before it makes others in that.
    ///
    /// # Errors
    /// Names the process that could not be made.
    pub fn make(
        self,
        plan: &Birth,
        settle: impl FnOnce() -> Result<(), RebuildError>,
        settled: impl Fn(usize) -> Result<(), RebuildError>,
    ) -> Result<usize, RebuildError> {
        let (own, made) = match self.fork_all(plan, settle, settled) {
            Ok(forked) => forked,
            Err(error) => {
                // The front ends all that it knows of. Meanwhile the others wait: no process may turn to the agent.
                let _ = handshake::announce(self.report);
                handshake::send(self.report, &handshake::failure_message(&error));
                std::thread::sleep(END_LIMIT);
                return Err(error);
            }
        };
        let ForkTree { all_placed, unfinished, .. } = self;
        drop(unfinished);
        if let Who::Zombie { status, comm } = &own.who {
            end_as(*status, comm);
        }
        let _ = File::from(all_placed).read(&mut [0]);
        let Who::Process(index) = own.who else { attributes::exit_now(0) };
        wait_for_helpers(own, &made);
        if let Some(init) = own.children_in {
            pid_namespaces::enter_for_children(init)?;
        }
        Ok(index)
    }

    /// Returns in each process when it is in its place: what it is, and its children.
    fn fork_all<'p>(
        &self,
        plan: &'p Birth,
        settle: impl FnOnce() -> Result<(), RebuildError>,
        settled: impl Fn(usize) -> Result<(), RebuildError>,
    ) -> Result<(&'p Birth, Children<'p>), RebuildError> {
        let (mut own, mut settle) = (plan, Some(settle));
        let mut made = Vec::new();
        'child: loop {
            if own.subreaper {
                attributes::adopt_orphans();
            }
            for child in &own.before {
                match self.fork(own, child)? {
                    0 => {
                        (own, made, settle) = (child, Vec::new(), None);
                        continue 'child;
                    }
                    pid => made.push((child, pid)),
                }
            }
            match settle.take() {
                Some(settle) => settle()?,
                None => make_session_or_group(own)?,
            }
            if let (true, Group::Joined(group)) = (own.joins_early, own.group) {
                join(own, group)?;
            }
            if let Who::Process(index) = own.who {
                settled(index)?;
            }
            for child in &own.after {
                match self.fork(own, child)? {
                    0 => {
                        (own, made, settle) = (child, Vec::new(), None);
                        continue 'child;
                    }
                    pid => made.push((child, pid)),
                }
            }
            break;
        }
        if let (false, Group::Joined(group)) = (own.joins_early, own.group) {
            join(own, group)?;
        }
        Ok((own, made))
    }

    /// Forks one; 0 in it.
    fn fork(&self, own: &Birth, child: &Birth) -> Result<i32, RebuildError> {
        let shares = matches!(child.who, Who::Process(index) if self.in_one_folder.contains(&index));
        let flags = if shares { libc::CLONE_FS as u64 } else { 0 };
        loop {
            let forked = match (&self.turns, child.inside) {
                (Some(turns), _) => {
                    wait_for_turn(turns, child.pid).and_then(|()| clone::fork_when_due(flags, child.pid))
                }
                // What shares a folder is in no namespace that its job has made.
                (None, Some(inside)) => self.inside.fork(own, (child.pid, inside), &self.taken),
                (None, None) => clone::fork_with(flags, child.pid),
            };
            let pid = forked.map_err(|error| {
                // The front may try another way to the ids.
                let name = if child.pid == 0 { "of a helper".to_owned() } else { child.pid.to_string() };
                RebuildError::Ids(format!("id {name} cannot be chosen: {error}"))
            })?;
            let own = if pid == 0 { attributes::own_pid() } else { pid };
            if child.pid == 0 && child.inside.is_none() && self.taken.contains(&own) {
                // The kernel gave it the id of a process that is still to be made.
                if pid == 0 {
                    attributes::exit_now(0);
                }
                let _ = spawn::wait(pid, true);
                continue;
            }
            if pid == 0
                && let Who::Process(_) = child.who
            {
                attributes::allow_tracing();
                handshake::announce(self.report)?;
            }
            return Ok(pid);
        }
    }
}

/// Waits until the process with the id before this one is there: it may be another process's child.
fn wait_for_turn(turns: &BTreeSet<i32>, pid: i32) -> io::Result<()> {
    let Some(before) = turns.range(..pid).next_back() else { return Ok(()) };
    let begun = Instant::now();
    while !fs::exists(format!("/proc/{before}"))? {
        if begun.elapsed() > GROUP_LIMIT {
            return Err(io::Error::other(format!("process {before} was not made in time")));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// A session or group of its own.
fn make_session_or_group(own: &Birth) -> Result<(), RebuildError> {
    let io = |what: &str| RebuildError::io(format!("process {}: making {what} of its own", own.pid));
    if own.session {
        attributes::new_session().map_err(io("a session"))?;
    }
    if own.group == Group::Own {
        attributes::own_group().map_err(io("a process group"))?;
    }
    Ok(())
}

/// Joins a group as soon as it exists.
fn join(own: &Birth, group: i32) -> Result<(), RebuildError> {
    let begun = Instant::now();
    loop {
        match attributes::join_group(group) {
            Ok(()) => return Ok(()),
            // Its group is a number to its parent; it has nothing else that could be in the way.
            Err(_) if matches!(own.who, Who::Zombie { .. }) && begun.elapsed() > GROUP_LIMIT => return Ok(()),
            Err(error) if begun.elapsed() > GROUP_LIMIT => {
                let what = format!("process {}: joining process group {group}", own.pid);
                return Err(RebuildError::io(what)(error));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Waits for the helpers that are among the caller's children, or fall to it, and for the end of those that stay.
fn wait_for_helpers(own: &Birth, made: &[(&Birth, i32)]) {
    for (child, pid) in made {
        match child.who {
            Who::Process(_) => continue,
            Who::Zombie { .. } => drop(attributes::wait_for_end(*pid)),
            Who::Helper => drop(spawn::wait(*pid, true)),
        }
        // Only what has an id of its own is made by helpers, and falls to the caller only if that is a subreaper.
        let fallen: Children<'_> = child.children().map(|fallen| (fallen, own.known(fallen))).collect();
        wait_for_helpers(own, &fallen);
    }
}

/// Ends as wait(2) is to tell it, but for a dumped core: there is none again.
fn end_as(status: i32, comm: &Name) -> ! {
    let _ = fs::write("/proc/self/comm", &comm.0);
    // Too short for a file, and the limit at which no program is started that would take one (fs/coredump.c). Not
    // PR_SET_DUMPABLE: the status would be hidden from the agent.
    let _ = attributes::set_limit(0, libc::RLIMIT_CORE, 1, 1);
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        signals::set_mask(0);
        let _: io::Result<()> = ptrace::kill(attributes::own_pid(), signal);
    }
    attributes::exit_now(libc::WEXITSTATUS(status))
}
