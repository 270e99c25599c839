//! What ties a process to a job when nothing else does: `HOLDFAST_SOCKET` in its environment, which names the job's
//! agent.
//!
//! Used by `orphans` and `adopt`, and by the agent for processes that register. The environment is in the memory of
//! the program, and a restart changes nothing there: in a job that was restarted under another name, or from a store
//! that was moved, it names an agent that is no more, or one that has another job by now. What such processes execute
//! registers with that one. What must hold: marks alone do not tell a job from its copy; the ancestors do, or the pid
//! namespace. And everybody can write a mark: it counts only in a process with the agent's own ids ([`has_own_ids`]),
//! in one that was seen as a descendant ([`Descendants`]), or beside the job's key (`HOLDFAST_KEY`), known to those
//! alone who may look into a process of the job ([`Marks::prove`]). Nor does the job learn its marks from who may
//! have written them: the key is what the agent was told at its start, or has from the image, and sockets of other
//! agents are those that members with the agent's own ids name.

use crate::job::births::Births;
use crate::refuse;
use holdfast_abi::environment::{ENV_KEY, ENV_MEMBER_KEY, ENV_MEMBER_SOCKET, ENV_SOCKET};
use holdfast_sys::environment::{self, Environment};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::{children, unix_socket};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Whether all ids of a process (real, effective, saved, of the file system) are the agent's user. A mark in the
/// environment of any other process says nothing: its user may have written it.
///
/// # Errors
/// It is gone.
pub fn has_own_ids(pid: i32) -> io::Result<bool> {
    let own = unix_socket::effective_user();
    Ok(user_ids(pid)?.iter().all(|id| *id == own))
}

/// As whom a process opens files.
///
/// # Errors
/// It is gone.
pub fn file_system_user(pid: i32) -> io::Result<u32> {
    user_ids(pid).map(|ids| ids[3])
}

/// Real, effective, saved, of the file system (proc_pid_status(5)).
fn user_ids(pid: i32) -> io::Result<[u32; 4]> {
    let status = Status::read(pid, pid)?;
    let ids = status.get("Uid").unwrap_or_default().split_whitespace().map_while(|id| id.parse().ok());
    let ids: Vec<u32> = ids.collect();
    ids.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Processes that were seen below one of the job, each with when it began: the kernel alone says who descends from
/// whom.
#[derive(Clone, Debug, Default)]
pub struct Descendants {
    seen: BTreeMap<i32, u64>,
    /// Who was born below one, of root's job.
    births: Option<Arc<Births>>,
}

impl Descendants {
    /// With those that the kernel tells of.
    pub fn and(births: Option<Arc<Births>>) -> Descendants {
        Descendants { births, ..Descendants::default() }
    }

    /// Whether the kernel tells of them.
    pub fn are_told(&self) -> bool {
        self.births.is_some()
    }

    /// Whether the kernel has told that this one was born below one of the job. Not Holdfast itself, for another job.
    pub fn was_born(&self, pid: i32) -> bool {
        self.births.as_ref().is_some_and(|births| births.have(pid)) && !procfs::executes_own(pid)
    }

    /// Notes these, and what is below them.
    pub fn see(&mut self, pids: &[i32]) {
        let mut left = pids.to_vec();
        while let Some(pid) = left.pop() {
            let Some(start) = procfs::start_time(pid) else { continue };
            if self.seen.insert(pid, start) != Some(start) {
                left.extend(children::children(pid).unwrap_or_default());
            }
        }
    }

    /// Whether this one was seen. An id may be another process's by now.
    pub fn has(&self, pid: i32) -> bool {
        self.seen.get(&pid).is_some_and(|seen| procfs::start_time(pid) == Some(*seen))
    }

    /// Forgets those that are gone.
    pub fn forget_gone(&mut self) {
        self.seen.retain(|&pid, seen| procfs::start_time(pid) == Some(*seen));
    }
}

/// Whether the caller itself traces a process that was not asked for: the memory of one that may have ended.
fn is_frozen_copy(pid: i32) -> bool {
    Status::read(pid, pid).is_ok_and(|status| status.tracer().is_some_and(refuse::is_own_thread))
}

/// What the environments of a job's processes name.
#[derive(Debug, Default)]
pub struct Marks {
    /// Paths of sockets.
    sockets: BTreeSet<Vec<u8>>,
    /// See [`ENV_KEY`].
    key: Option<Vec<u8>>,
}

/// How long a process is waited for that executes a program just now.
const EXECUTING: Duration = Duration::from_millis(20);
/// Length of a key.
const KEY_LEN: usize = 32;

impl Marks {
    /// Of a job with these processes. `socket`: of its agent; `key`: may be empty.
    pub fn of(pids: &[i32], socket: &Path, key: &[u8]) -> Marks {
        let mut marks = Marks::default();
        marks.sockets.insert(socket.as_os_str().as_bytes().to_vec());
        marks.key = Some(key.to_vec()).filter(|key| key.len() == KEY_LEN);
        // A member that has become another user may name another job's agent.
        for &pid in pids.iter().filter(|pid| has_own_ids(**pid).unwrap_or(false)) {
            let Ok(Environment::Is(text)) = environment::of(pid) else { continue };
            marks.sockets.extend(named_in(&text).map(<[u8]>::to_vec));
        }
        marks
    }

    /// Whether an environment has one of them, and the key, if the job has one.
    pub fn are_in(&self, environment: &[u8]) -> bool {
        let has_key = |key: &Vec<u8>| named_first(environment, [ENV_MEMBER_KEY, ENV_KEY]) == Some(key);
        named_in(environment).is_some_and(|path| self.sockets.contains(path))
            && self.key.as_ref().is_none_or(has_key)
    }

    /// Whether an environment names a job at all: a program may have written over it, or been given another one.
    pub fn name_a_job(environment: &[u8]) -> bool {
        named_in(environment).is_some()
    }

    /// Whether this is one of the sockets.
    pub fn have_socket(&self, path: &[u8]) -> bool {
        self.sockets.contains(path)
    }

    /// Whether only who has been let into the job can have written an environment.
    pub fn prove(&self, environment: &[u8]) -> bool {
        self.have_key() && self.are_in(environment)
    }

    /// Whether that can be.
    pub fn have_key(&self) -> bool {
        self.key.is_some()
    }
}

/// What is known of a job of root's when its last process has ended: it finds those that went on as another user.
#[derive(Debug, Default)]
pub struct Kinship {
    marks: Marks,
    /// The pid namespace: a copy of the job has the same environment, in another one.
    namespace: Option<Vec<u8>>,
}

impl Kinship {
    /// Of a job whose key is known before any of its processes was heard: a launcher may have ended by then.
    /// `socket`: of its agent, which is in the same pid namespace.
    pub fn of_key(key: &[u8], socket: &Path) -> Kinship {
        let marks = Marks::of(&[], socket, key);
        Kinship { marks, namespace: pid_namespace(std::process::id().cast_signed()) }
    }

    /// Learns the rest from a process of the job. `socket`: of its agent.
    pub fn learn(&mut self, pid: i32, socket: &Path, key: &[u8]) {
        let begun = Instant::now();
        while matches!(environment::of(pid), Ok(Environment::Executing)) && begun.elapsed() < EXECUTING {
            thread::sleep(EXECUTING / 20);
        }
        let mut marks = Marks::of(&[pid], socket, key);
        if marks.have_key() {
            // Some programs write over their environment.
            marks.sockets.append(&mut self.marks.sockets);
            *self = Kinship { marks, namespace: pid_namespace(pid) };
        }
    }

    /// All processes of the machine, with ids other than the agent's, that have the job's key, or are among `born`:
    /// below one of the job, as the kernel has told.
    pub fn find(&self, born: &[i32]) -> Vec<i32> {
        let is_proven = |pid: i32| {
            self.marks.have_key()
                && matches!(environment::of(pid), Ok(Environment::Is(text)) if self.marks.prove(&text))
        };
        let is_of_it = |pid: &i32| {
            has_own_ids(*pid).is_ok_and(|own| !own)
                && (born.contains(pid) && !procfs::executes_own(*pid) || is_proven(*pid))
                && !is_frozen_copy(*pid)
                && pid_namespace(*pid) == self.namespace
        };
        let all = if self.marks.have_key() { procfs::processes().unwrap_or_default() } else { born.to_vec() };
        all.into_iter().filter(is_of_it).collect()
    }
}

/// The socket that an environment names.
fn named_in(environment: &[u8]) -> Option<&[u8]> {
    named_first(environment, [ENV_MEMBER_SOCKET, ENV_SOCKET])
}

/// The value of the first one that is there.
fn named_first<'a>(environment: &'a [u8], names: [&str; 2]) -> Option<&'a [u8]> {
    names.into_iter().find_map(|name| value_in(environment, name))
}

fn value_in<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut entries = environment.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Whether libholdfast in what has this environment registers with another agent than that at `socket`.
pub fn leads_elsewhere(environment: &[u8], socket: &Path) -> bool {
    named_in(environment).is_some_and(|path| path != socket.as_os_str().as_bytes())
}

/// Whether a process that registers to the agent at `socket` is of its job, which may have a `key`. `known`: the job's
/// processes; without any, everybody is.
///
/// A copy of the job that runs beside it has the same environment. But its ancestors are not of the job, and
/// `holdfast restart` is among them, which has no such mark; or they are in a pid namespace of their own. Where no
/// ancestor is of the job, it and those between it and what is above the job must have the agent's own ids.
pub fn is_of_job(pid: i32, known: &[i32], socket: &Path, key: &[u8]) -> bool {
    if known.is_empty() || known.contains(&pid) {
        return true;
    }
    /// How often one between it and the job may end while that is looked at.
    const LOOKS: usize = 20;
    (0..LOOKS).find_map(|_| is_below_or_beside(pid, known, (socket, key))).unwrap_or(false)
}

/// The same for one that is not known. `None`: a process above it has ended meanwhile, and it has another parent now.
fn is_below_or_beside(pid: i32, known: &[i32], agent: (&Path, &[u8])) -> Option<bool> {
    let mut line = Vec::new();
    for one in ancestors(pid) {
        // Mostly the first.
        if known.contains(&one) {
            return Some(true);
        }
        line.push(one);
    }
    // An orphan, or below one that has not registered (yet).
    let above = known.iter().map(|&one| ancestors(one).collect::<Vec<i32>>()).find(|all| !all.is_empty());
    let Some(above) = above else { return Some(true) };
    let Ok(true) = has_own_ids(pid) else { return Some(false) };
    let strangers: Vec<i32> = line.into_iter().take_while(|one| !above.contains(one)).collect();
    for stranger in &strangers {
        match has_own_ids(*stranger) {
            Ok(true) => {}
            Ok(false) => return Some(false),
            Err(_) => return None,
        }
    }
    let is_together = || known.iter().any(|&one| are_together(pid, one));
    Some(may_all_be(&strangers, known, agent) && is_together())
}

/// Whether no environment of `strangers` says that it is not of the job.
fn may_all_be(strangers: &[i32], known: &[i32], (socket, key): (&Path, &[u8])) -> bool {
    if strangers.is_empty() {
        return true; // a job may have thousands of processes whose marks would be read
    }
    let marks = Marks::of(known, socket, key);
    let is_other =
        |pid: &i32| matches!(environment::of(*pid), Ok(Environment::Is(text)) if !marks.are_in(&text));
    !strangers.iter().any(is_other)
}

/// Whether two processes are in the same pid namespace, as far as that can be seen.
pub fn are_together(one: i32, other: i32) -> bool {
    pid_namespace(one).zip(pid_namespace(other)).is_none_or(|(one, other)| one == other)
}

fn pid_namespace(pid: i32) -> Option<Vec<u8>> {
    procfs::link(&format!("/proc/{pid}/ns/pid")).ok()
}

/// Parent, its parent, and so on.
pub fn ancestors(pid: i32) -> impl Iterator<Item = i32> {
    std::iter::successors(parent(pid), |&pid| parent(pid))
}

/// `None`: it has none here, or is gone.
pub fn parent(pid: i32) -> Option<i32> {
    let parent = procfs::stat_fields(pid, pid).ok()?.get(1)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    const SOCKET: &str = "/run/job/agent.sock";

    /// A shell that starts others inside each other, with or without the mark; returns their ids, from the outermost.
    fn nested(marked: &[bool]) -> (Child, Vec<i32>) {
        let mut script = "echo $$; read -r line".to_owned();
        for marked in marked.iter().skip(1).rev() {
            let socket = if *marked { SOCKET } else { "" };
            let quoted = script.replace('\'', "'\\''");
            script = format!("echo $$; {ENV_SOCKET}={socket} sh -c '{quoted}'; true");
        }
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if marked[0] {
            command.env(ENV_SOCKET, SOCKET);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pids = lines.take(marked.len()).map(|line| line.unwrap().parse().unwrap()).collect();
        (child, pids)
    }

    fn end((mut child, _): (Child, Vec<i32>)) {
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn what_descends_from_the_job_is_of_it_and_a_copy_is_not() {
        let socket = Path::new(SOCKET);
        let (job, copy, unmarked) = (nested(&[true; 3]), nested(&[false, true, true]), nested(&[false; 3]));
        let known = [job.1[0]];
        let is = |pid: i32| is_of_job(pid, &known, socket, &[]);
        assert!(is(job.1[0]) && is(job.1[1]) && is(job.1[2]));
        // The first of them is as `holdfast restart` would be.
        assert!(!is(copy.1[1]) && !is(copy.1[2]) && !is(unmarked.1[1]));
        assert!(
            is_of_job(copy.1[2], &[copy.1[1]], socket, &[])
                && is_of_job(unmarked.1[2], &unmarked.1[..1], socket, &[])
        );
        // A child of a process above the job: an orphan, for all that can be known.
        assert!(is(copy.1[0]));
        assert!(is_of_job(copy.1[2], &[], socket, &[]) && is_of_job(copy.1[2], &[i32::MAX], socket, &[]));
        assert!(are_together(job.1[0], copy.1[2]) && are_together(job.1[0], i32::MAX));
        [job, copy, unmarked].into_iter().for_each(end);
    }

    #[test]
    fn only_own_ids_or_descent_make_a_mark_count() {
        let own = std::process::id().cast_signed();
        assert!(has_own_ids(own).unwrap() && has_own_ids(i32::MAX).is_err());
        if unix_socket::effective_user() == 0 {
            use std::os::unix::process::CommandExt;
            let mut other =
                Command::new("sleep").arg("20").uid(2102).env(ENV_SOCKET, SOCKET).spawn().unwrap();
            assert!(!has_own_ids(other.id().cast_signed()).unwrap());
            other.kill().unwrap();
            other.wait().unwrap();
        }
        let job = nested(&[true; 3]);
        let mut seen = Descendants::default();
        seen.see(&job.1[1..2]);
        // With what is below it.
        assert!(!seen.has(job.1[0]) && seen.has(job.1[1]) && seen.has(job.1[2]));
        seen.seen.insert(own, 0);
        assert!(!seen.has(own), "another process had this id");
        seen.forget_gone();
        assert_eq!(
            seen.seen.keys().copied().collect::<BTreeSet<i32>>(),
            job.1[1..].iter().copied().collect()
        );
        end(job);
    }

    #[test]
    fn a_key_proves_what_a_socket_does_not() {
        let (socket, key) = (Path::new(SOCKET), "0123456789abcdef".repeat(2));
        let copy = "/run/copy/agent.sock";
        let mut job =
            Command::new("sleep").arg("20").env(ENV_SOCKET, copy).env(ENV_KEY, "f".repeat(32)).spawn();
        let pids = [job.as_ref().unwrap().id().cast_signed()];
        let shows = |pid: i32| matches!(environment::of(pid), Ok(Environment::Is(text)) if !text.is_empty());
        while !pids.into_iter().all(shows) {
            thread::yield_now();
        }
        let proven = |marks: &Marks, socket: &str, key: &str| {
            marks.prove(format!("A=1\0{ENV_SOCKET}={socket}\0{ENV_KEY}={key}\0").as_bytes())
        };
        let marks = Marks::of(&pids, socket, key.as_bytes());
        assert!(marks.have_key() && proven(&marks, SOCKET, &key) && proven(&marks, copy, &key));
        assert!(!proven(&marks, SOCKET, &"f".repeat(32)), "a process of the job may have written that");
        assert!(!proven(&marks, SOCKET, &key.replace('f', "e")) && !proven(&marks, SOCKET, ""));
        assert!(!proven(&marks, "/run/other/agent.sock", &key));
        // With other ids than the agent's they say nothing, and without the key of a job that has one.
        assert!(!marks.are_in(format!("{ENV_SOCKET}={SOCKET}\0").as_bytes()));
        assert!(!Marks::of(&pids, socket, b"0123").have_key(), "a word that is too short is no key");
        let mut kinship = Kinship::default();
        assert_eq!(kinship.find(&[]), [0; 0]);
        kinship.learn(pids[0], socket, key.as_bytes());
        assert!(kinship.marks.have_key() && kinship.namespace == pid_namespace(pids[0]));
        kinship.learn(i32::MAX, socket, key.as_bytes());
        assert!(proven(&kinship.marks, copy, &key), "what is known is not forgotten");
        let job = job.as_mut().unwrap();
        job.kill().unwrap();
        job.wait().unwrap();
    }

    /// What a member that is another user has in its environment is that user's word.
    #[test]
    fn a_job_does_not_learn_marks_from_who_is_another_user() {
        use std::os::unix::process::CommandExt;
        if unix_socket::effective_user() != 0 {
            return;
        }
        let mut member = Command::new("sleep").arg("20").uid(2102).env(ENV_SOCKET, SOCKET).spawn().unwrap();
        let pid = member.id().cast_signed();
        while !matches!(environment::of(pid), Ok(Environment::Is(text)) if !text.is_empty()) {
            thread::yield_now();
        }
        let marks = Marks::of(&[pid], Path::new("/run/own/agent.sock"), &[]);
        assert!(!marks.are_in(format!("{ENV_SOCKET}={SOCKET}\0").as_bytes()));
        member.kill().unwrap();
        member.wait().unwrap();
    }

    #[test]
    fn a_job_has_the_marks_of_its_processes_and_its_own() {
        let (other, named) =
            (Path::new("/run/copy/agent.sock"), |path: &str| format!("A=1\0{ENV_SOCKET}={path}\0B=2\0"));
        let job = nested(&[true, true]);
        let marks = Marks::of(&job.1, other, &[]);
        assert!(
            marks.are_in(named(SOCKET).as_bytes()) && marks.are_in(named("/run/copy/agent.sock").as_bytes())
        );
        assert!(
            !marks.are_in(named("/run/job/agent.soc").as_bytes())
                && !marks.are_in(b"")
                && !marks.are_in(b"A=1\0")
        );
        assert!(!Marks::of(&[], other, &[]).are_in(named(SOCKET).as_bytes()));
        assert!(!marks.have_key() && !marks.prove(named(SOCKET).as_bytes()));
        let of_launcher = format!("{ENV_SOCKET}={SOCKET}\0{ENV_MEMBER_SOCKET}={}\0", other.display());
        assert!(!leads_elsewhere(of_launcher.as_bytes(), other));
        assert!(leads_elsewhere(of_launcher.as_bytes(), Path::new(SOCKET)));
        assert!(leads_elsewhere(named(SOCKET).as_bytes(), other) && !leads_elsewhere(b"A=1\0", other));
        assert!(!leads_elsewhere(named(SOCKET).as_bytes(), Path::new(SOCKET)));
        end(job);
    }
}
