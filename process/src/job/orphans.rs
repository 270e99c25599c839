//! Processes of the job that have lost their parent before the agent heard of them.
//!
//! Used by `adopt` and `stopped_group`, on the tracer thread. Children of a process that ends go to a reaper above the
//! job (kernel/exit.c, `find_new_reaper`); one that has not registered by then is tied to the job by nothing but its
//! environment, or libholdfast's page in its memory where it has written over that. Everybody can write an
//! environment: what it says counts only in processes with the agent's own ids, in those that were seen as descendants
//! of the job before, and where the job's key is in it; those that root's agent was told of from birth
//! ([`crate::job::births`]) are of the job whatever it says. All others are not, whatever they do: they are not
//! stopped, and not waited for inside the stop. One whose environment its own user may not read (set-group-id, not
//! dumpable) is taken for the job's if it could be ([`Orphans::may_be_hidden`]). What must hold: [`Orphans::look`]
//! comes before the stop, so that inside it only what is new must be looked at. Of whom it is not known whose they
//! are, they are taken for the job's if they have the agent's ids: the checkpoint fails rather than leave one out.

use crate::error::CutError;
use crate::job::library_page::{LibraryPage, Says};
use crate::job::lineage::Lineages;
use crate::job::membership::{self, Descendants, Marks, has_own_ids, parent};
use crate::job::process_age;
use holdfast_sys::children::all_children;
use holdfast_sys::environment::{self, Environment};
use holdfast_sys::procfs::{self, Status};
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A process that is ending and takes longer is not waited for: it may be anybody's.
const ENDING: Duration = Duration::from_secs(2);
/// So long it may take until two looks at the children of the reapers are the same. One takes some 50 us.
const SETTLED: Duration = Duration::from_millis(5);
/// Nor longer until none of them ends while it is looked at: other users' processes may come and go there all the time.
const QUICK: Duration = Duration::from_millis(10);
/// And so long until two looks at all processes of the machine show the same of the agent's own user: the program may
/// be stopped.
const LOOKED_AT: Duration = Duration::from_millis(100);
/// And what executes a program and has other ids than the agent, until its environment can be read.
const EXECUTING: Duration = Duration::from_millis(20);
/// How often that is tried.
const MOMENT: Duration = Duration::from_millis(1);
/// Who inherits orphans whose ancestors are all of another pid namespace: what has entered a container.
const INIT: i32 = 1;

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Orphans {
    marks: Marks,
    /// The job's processes have the same pid namespace as this one.
    program: Option<i32>,
    /// All that are known.
    pids: Vec<i32>,
    /// Processes above the job.
    reapers: BTreeSet<i32>,
    /// Their children that are not of the job.
    others: HashSet<i32>,
    /// Those of other users that are.
    descendants: Descendants,
    /// Where it is in them.
    page: LibraryPage,
    /// What they execute.
    lineages: Lineages,
}

/// Whose a child of a reaper is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// The job's, or it cannot be known just now.
    Ours,
    /// Another job's.
    Others,
    /// It has ended. Its own children may have got to the reaper after that was looked at.
    Nobodys,
    /// It has other ids, and executes a program just now: it may be anybody's.
    Unknown,
}

impl Orphans {
    /// Looks at the processes above those of the job. `agent`: socket of the job's agent, and the job's key, which may
    /// be empty; `descendants`: seen before; `page` and `lineages`: of the job's processes.
    ///
    /// # Errors
    /// Busy: their children come and go all the time.
    pub fn look(
        (page, lineages): (LibraryPage, Lineages),
        pids: &[i32],
        (socket, key): (&Path, &[u8]),
        descendants: &Descendants,
    ) -> Result<Orphans, CutError> {
        let mut reapers: BTreeSet<i32> = (!pids.contains(&INIT)).then_some(INIT).into_iter().collect();
        for &pid in pids {
            let mut above = parent(pid);
            // A parent of the job is on the list itself.
            while let Some(next) = above.filter(|above| !pids.contains(above) && reapers.insert(*above)) {
                above = parent(next);
            }
        }
        let marks = Marks::of(pids, socket, key);
        let (program, descendants) = (pids.first().copied(), descendants.clone());
        let pids = pids.to_vec();
        let mut orphans =
            Orphans { marks, program, pids, reapers, descendants, page, lineages, others: HashSet::new() };
        let children = orphans.all_children()?;
        let begun = Instant::now();
        let is_other = |child: &i32| loop {
            match orphans.whose(*child) {
                Whose::Unknown if begun.elapsed() < EXECUTING => thread::sleep(MOMENT),
                whose => return matches!(whose, Whose::Others | Whose::Nobodys),
            }
        };
        let others = children.into_iter().filter(is_other).collect();
        orphans.others = others;
        Ok(orphans)
    }

    /// Those that are none of `pids`.
    ///
    /// # Errors
    /// As [`Orphans::look`].
    pub fn besides(&self, pids: &[i32]) -> Result<Vec<i32>, CutError> {
        self.besides_within(pids, QUICK, LOOKED_AT)
    }

    /// By a look at the children of the reapers that takes no longer than `quick`, else at all processes of the
    /// machine.
    fn besides_within(&self, pids: &[i32], quick: Duration, limit: Duration) -> Result<Vec<i32>, CutError> {
        let (begun, mut ended) = (Instant::now(), HashSet::new());
        let is_new = |child: &i32| !pids.contains(child) && !self.others.contains(child);
        while let Ok(children) = self.children() {
            let fresh: Vec<(i32, Whose)> =
                children.into_iter().filter(is_new).map(|child| (child, self.whose(child))).collect();
            let those =
                |whose: Whose| fresh.iter().filter(move |(_, is)| *is == whose).map(|(child, _)| *child);
            let (ours, count) = (those(Whose::Ours).collect::<Vec<i32>>(), ended.len());
            ended.extend(those(Whose::Nobodys));
            if !ours.is_empty() || ended.len() == count {
                return Ok(ours);
            }
            if begun.elapsed() >= quick {
                break;
            }
        }
        let all = self.children_by_scan(limit)?.into_iter();
        Ok(all.filter(|child| is_new(child) && self.whose(*child) == Whose::Ours).collect())
    }

    fn children(&self) -> io::Result<Vec<i32>> {
        let reapers: Vec<i32> = self.reapers.iter().copied().collect();
        all_children(&reapers, SETTLED)
    }

    /// The children of the reapers, or those that may be of the job where others come and go all the time.
    fn all_children(&self) -> Result<Vec<i32>, CutError> {
        self.children().or_else(|_| self.children_by_scan(LOOKED_AT))
    }

    /// The children of the reapers that may be of the job, among all processes of the machine: however many others
    /// come and go meanwhile, of whatever user. None is left out, for two looks have shown the same, so that none that
    /// may be of the job has ended between them; of those whose environment says that they are not of the job nothing
    /// else is born that counts.
    fn children_by_scan(&self, limit: Duration) -> Result<Vec<i32>, CutError> {
        let begun = Instant::now();
        let mut strangers = HashSet::new();
        let mut look = || -> Vec<i32> {
            let all = procfs::processes().unwrap_or_default();
            all.into_iter().filter(|pid| self.counts(*pid, &mut strangers)).collect()
        };
        let (mut before, mut now) = (look(), look());
        while now != before {
            if begun.elapsed() > limit {
                return Err(busy());
            }
            (before, now) = (now, look());
        }
        now.retain(|pid| parent(*pid).is_some_and(|parent| self.reapers.contains(&parent)));
        Ok(now)
    }

    /// Whether a process may be the job's. `strangers`: known not to be; one that is found not to be is added.
    fn counts(&self, pid: i32, strangers: &mut HashSet<i32>) -> bool {
        if strangers.contains(&pid) || self.others.contains(&pid) {
            return false;
        }
        let may = self.may_be_ours(pid);
        if !matches!(may, Ok(true)) {
            return self.is_proven(pid);
        }
        let is_stranger = self.whose_given(pid, may) == Whose::Others;
        if is_stranger {
            strangers.insert(pid);
        }
        !is_stranger
    }

    /// Whether its environment counts without a key.
    fn may_be_ours(&self, pid: i32) -> io::Result<bool> {
        Ok(has_own_ids(pid)? || self.descendants.has(pid))
    }

    /// Whether the environment of a process says so: nothing else ties it to the job.
    pub fn is_marked(&self, pid: i32) -> bool {
        match self.may_be_ours(pid) {
            Ok(true) if !self.was_born(pid) => {
                matches!(environment::of(pid), Ok(Environment::Is(text)) if self.is_ours(pid, &text))
            }
            Ok(_) => self.whose_by_key(pid) == Whose::Ours,
            Err(_) => false,
        }
    }

    /// Whether a child of a reaper is the job's though it has other ids.
    fn is_proven(&self, pid: i32) -> bool {
        (self.marks.have_key() || self.descendants.are_told())
            && !self.others.contains(&pid)
            && parent(pid).is_some_and(|parent| self.reapers.contains(&parent))
            && self.whose_by_key(pid) == Whose::Ours
    }

    /// Of a process with other ids. It is not waited for: others may do what they like.
    fn whose_by_key(&self, pid: i32) -> Whose {
        if self.was_born(pid) {
            return if has_ended(pid) { Whose::Nobodys } else { Whose::Ours };
        }
        if !self.marks.have_key() {
            return Whose::Others;
        }
        match environment::of(pid) {
            Ok(Environment::Is(text)) if self.marks.prove(&text) && self.is_beside(pid) => Whose::Ours,
            Ok(Environment::Executing) => Whose::Unknown,
            _ => Whose::Others,
        }
    }

    /// Whether a process is the job's by its environment or, where that does not name any job, by what it was born
    /// with: libholdfast's page, which is there before the first instruction of a child made by fork, or, where it has
    /// no such page, the random bytes of the program that it executes, or what the kernel tells root of its birth. What
    /// has none of these is of a user's job whose program was to know nothing of it.
    fn is_ours(&self, pid: i32, environment: &[u8]) -> bool {
        if self.marks.are_in(environment) {
            return self.is_beside(pid);
        }
        // A descendant of the program began after it: what is older is not looked into, on a host with many processes.
        let is_older = self.program.is_some_and(|program| !is_younger(pid, program));
        if is_older || Marks::name_a_job(environment) {
            return false;
        }
        match self.page.of_process(pid) {
            Says::Socket(path) => self.marks.have_socket(&path) && self.is_beside(pid),
            Says::Nothing => {
                let is_copy = || self.program.is_some() && self.lineages.have(pid);
                (self.descendants.was_born(pid) || is_copy()) && self.is_beside(pid)
            }
            Says::Unknown => self.may_be_hidden(pid),
        }
    }

    /// Whether it has other ids, and was born below one of the job.
    fn was_born(&self, pid: i32) -> bool {
        self.descendants.was_born(pid) && has_own_ids(pid).is_ok_and(|own| !own) && self.is_beside(pid)
    }

    /// Another copy of the job has the same marks.
    fn is_beside(&self, pid: i32) -> bool {
        self.program.is_none_or(|program| membership::are_together(pid, program))
    }

    /// Whether a child of a reaper that its own user may not look into can be of the job: it began after the program,
    /// and is in a control group that processes of the job are in. More is not to be seen of it.
    fn may_be_hidden(&self, pid: i32) -> bool {
        let group = control_group(pid);
        self.program.is_some_and(|program| is_younger(pid, program))
            && group.is_some()
            && self.pids.iter().any(|one| control_group(*one) == group)
            && self.is_beside(pid)
    }

    /// The orphans that may be of the job and that its user may not look into. While it runs on.
    ///
    /// # Errors
    /// [`CutError::Busy`]: children come and go so that none is known to be left out; of /proc.
    pub fn hidden(&self) -> Result<Vec<i32>, CutError> {
        let is_hidden = |pid: &i32| {
            let forbidden = || environment::of(*pid).is_err_and(|error| is_forbidden(&error));
            matches!(self.may_be_ours(*pid), Ok(true)) && forbidden() && self.whose(*pid) == Whose::Ours
        };
        let all = self.all_children()?;
        Ok(all.into_iter().filter(|pid| !self.pids.contains(pid)).filter(is_hidden).collect())
    }

    fn whose(&self, pid: i32) -> Whose {
        self.whose_given(pid, self.may_be_ours(pid))
    }

    /// `may`: whether its environment counts without a key.
    fn whose_given(&self, pid: i32, may: io::Result<bool>) -> Whose {
        if pid.cast_unsigned() == std::process::id() {
            return Whose::Others;
        }
        match may {
            Ok(true) if !self.was_born(pid) => {}
            Ok(_) => return self.whose_by_key(pid),
            Err(_) => return Whose::Nobodys,
        }
        match environment::of(pid) {
            Ok(Environment::Is(text)) if self.is_ours(pid, &text) => Whose::Ours,
            // Asked of its memory: one that has ended since has none that could have answered.
            Ok(Environment::Is(text)) if Marks::name_a_job(&text) || has_environment(pid) => Whose::Others,
            Ok(Environment::Executing) => Whose::Ours,
            Ok(Environment::Ending | Environment::Is(_)) | Err(_) if has_ended(pid) => Whose::Nobodys,
            Ok(Environment::Ending | Environment::Is(_))
                if process_age::of(pid).is_some_and(|age| age < ENDING) =>
            {
                Whose::Ours
            }
            Err(error) if is_forbidden(&error) && self.may_be_hidden(pid) => Whose::Ours,
            // What must not be read belongs to another user, or is set-user-id.
            Ok(Environment::Ending | Environment::Is(_)) | Err(_) => Whose::Others,
        }
    }
}

/// Whether a process began after another one, or with it.
fn is_younger(pid: i32, program: i32) -> bool {
    procfs::start_time(pid) >= procfs::start_time(program)
}

fn has_environment(pid: i32) -> bool {
    matches!(environment::of(pid), Ok(Environment::Is(_)))
}

fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Of a process, as the kernel tells it to everybody (proc_pid_cgroup(5)).
fn control_group(pid: i32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/cgroup")).ok()
}

fn busy() -> CutError {
    let what = "processes above the job start and end children all the time, so Holdfast cannot tell \
        whether one of them is of the job";
    CutError::Busy { what: what.into() }
}

/// Whether it is gone or a zombie: it has given its children away, as all of its threads have (kernel/exit.c,
/// exit_notify).
fn has_ended(pid: i32) -> bool {
    let ended = |tid: i32| Status::read(pid, tid).map_or(true, |status| status.has_ended());
    procfs::tasks(pid).map_or(true, |tids| tids.into_iter().all(ended))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_abi::environment::ENV_SOCKET;
    use std::process::{Child, Command};

    /// The other tests of this process have children that come and go.
    fn when_calm<T>(mut ask: impl FnMut() -> Result<T, CutError>) -> T {
        loop {
            match ask() {
                Err(CutError::Busy { .. }) => std::thread::yield_now(),
                answer => return answer.unwrap(),
            }
        }
    }

    #[test]
    fn a_child_of_a_reaper_is_known_by_its_environment() {
        let own = std::process::id().cast_signed();
        let socket = Path::new("/run/job/agent.sock");
        let start = |socket: &str| Command::new("sleep").arg("20").env(ENV_SOCKET, socket).spawn().unwrap();
        let (mut program, mut stranger) = (start("/run/job/agent.sock"), start("/run/other/agent.sock"));
        let known = [program.id().cast_signed()];
        let shows = |pid: i32| matches!(environment::of(pid), Ok(Environment::Is(text)) if !text.is_empty());
        while !shows(stranger.id().cast_signed()) || !shows(known[0]) {
            std::thread::yield_now();
        }
        let orphans =
            when_calm(|| Orphans::look(Default::default(), &known, (socket, &[]), &Descendants::default()));
        assert!(orphans.reapers.contains(&own) && orphans.reapers.contains(&INIT), "{orphans:?}");
        assert!(orphans.others.contains(&stranger.id().cast_signed()));
        // A child of another test counts until it has executed its program.
        let seen = || {
            let besides = when_calm(|| orphans.besides(&known));
            besides.iter().filter(|pid| parent(**pid) == Some(own)).count()
        };
        let (begun, mut count) = (std::time::Instant::now(), seen());
        while count > 0 && begun.elapsed() < Duration::from_secs(5) {
            count = seen();
        }
        assert_eq!(count, 0);
        let mut orphan = start("/run/job/agent.sock");
        let pid = orphan.id().cast_signed();
        assert!(when_calm(|| orphans.besides(&known)).contains(&pid));
        while !shows(pid) {
            std::thread::yield_now();
        }
        assert!(orphans.is_marked(pid) && !orphans.is_marked(own) && !Orphans::default().is_marked(pid));
        for child in [&mut program, &mut stranger, &mut orphan] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!when_calm(|| orphans.besides(&known)).contains(&pid));
    }

    /// One that has ended may have left children: the list is read once more, but not for ever.
    #[test]
    fn one_that_has_ended_is_a_reason_to_look_again() {
        let parent = Command::new("sh").args(["-c", "true & exec sleep 20"]).spawn().unwrap();
        let parent = Killed(parent);
        let pid = parent.0.id().cast_signed();
        let ended = || all_children(&[pid], SETTLED).unwrap().into_iter().any(has_ended);
        while !ended() || procfs::link(&format!("/proc/{pid}/exe")).unwrap().ends_with(b"sh") {
            std::thread::yield_now();
        }
        let orphans = Orphans { reapers: BTreeSet::from([pid]), ..Orphans::default() };
        let now = Duration::ZERO;
        // By both ways; other tests make processes all the time.
        assert_eq!(orphans.besides_within(&[], now, Duration::from_secs(20)).unwrap(), [0; 0]);
        assert_eq!(orphans.besides(&[]).unwrap(), [0; 0]);
    }

    /// What the same user does besides, however fast, does not prevent a look at all processes.
    #[test]
    fn a_storm_of_others_of_the_same_user_is_looked_through() {
        let storm = || {
            let forever = ["-c", "while :; do /bin/true; done"];
            Killed(Command::new("sh").args(forever).env(ENV_SOCKET, "/run/other").spawn().unwrap())
        };
        let storms = [storm(), storm(), storm()];
        let socket = Path::new("/run/job/storm.sock");
        let orphan = Killed(Command::new("sleep").arg("60").env(ENV_SOCKET, socket).spawn().unwrap());
        let pid = orphan.0.id().cast_signed();
        let reapers = storms.iter().map(|storm| storm.0.id().cast_signed());
        let reapers = reapers.chain([std::process::id().cast_signed()]).collect();
        let orphans = Orphans { marks: Marks::of(&[], socket, &[]), reapers, ..Orphans::default() };
        let found = orphans.children_by_scan(Duration::from_secs(60)).unwrap();
        assert!(found.contains(&pid), "{found:?}");
    }

    /// No failure of a test leaves it behind.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Whatever it is doing when it is looked at, it is not taken for another user's.
    #[test]
    fn an_orphan_that_executes_programs_all_the_time_is_ours() {
        let socket = Path::new("/run/job/executes.sock");
        let again = ["-c", "exec sh -c \"$0\" \"$0\"", "exec sh -c \"$0\" \"$0\""];
        let others = (0..60).map(|i| (format!("NAME{i}"), "x".repeat(80)));
        let child = Command::new("sh").args(again).envs(others).env(ENV_SOCKET, socket).spawn().unwrap();
        let mut child = Killed(child);
        let pid = child.0.id().cast_signed();
        let mut orphans = Orphans::default();
        while !orphans.is_marked(pid) {
            orphans =
                when_calm(|| Orphans::look(Default::default(), &[], (socket, &[]), &Descendants::default()));
        }
        // It grows older than what has just begun, too.
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            assert_eq!(orphans.whose(pid), Whose::Ours);
        }
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        assert_eq!(orphans.whose(pid), Whose::Nobodys);
    }
}
