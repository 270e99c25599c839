//! What ties a process to a job when nothing else does: `HOLDFAST_SOCKET` in its environment, which names the job's
//! agent.
//!
//! Used by `orphans` and `adopt`, and by the agent for processes that register. The environment is in the memory of
//! the program, and a restart changes nothing there: in a job that was restarted under another name, or from a store
//! that was moved, it names an agent that is no more, or one that has another job by now. What such processes execute
//! speaks to that one. What must hold: marks alone do not tell a job from its copy; the ancestors do, or the pid
//! namespace. And everybody can write a mark: it counts only in a process with the agent's own ids ([`has_own_ids`]),
//! or in one that was seen as a descendant ([`Descendants`]).

use holdfast_abi::environment::ENV_SOCKET;
use holdfast_sys::environment::{self, Environment};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::{children, unix_socket};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether all ids of a process (real, effective, saved, of the file system) are the agent's user. A mark in the
/// environment of any other process says nothing: its user may have written it.
///
/// # Errors
/// It is gone.
pub fn has_own_ids(pid: i32) -> io::Result<bool> {
    let status = Status::read(pid, pid)?;
    let ids = status.get("Uid").unwrap_or_default().split_whitespace().map(str::parse::<u32>);
    let own = unix_socket::effective_user();
    let mut count = 0;
    let all_are = ids.inspect(|_| count += 1).all(|id| id == Ok(own));
    Ok(all_are && count == 4)
}

/// Processes that were seen below one of the job, each with when it began: the kernel alone says who descends from
/// whom.
#[derive(Clone, Debug, Default)]
pub struct Descendants(BTreeMap<i32, String>);

impl Descendants {
    /// Notes these, and what is below them.
    pub fn see(&mut self, pids: &[i32]) {
        let mut left = pids.to_vec();
        while let Some(pid) = left.pop() {
            let Some(start) = start(pid) else { continue };
            if self.0.insert(pid, start.clone()) != Some(start) {
                left.extend(children::children(pid).unwrap_or_default());
            }
        }
    }

    /// Whether this one was seen. An id may be another process's by now.
    pub fn has(&self, pid: i32) -> bool {
        self.0.get(&pid).is_some_and(|seen| start(pid).as_ref() == Some(seen))
    }

    /// Forgets those that are gone.
    pub fn forget_gone(&mut self) {
        self.0.retain(|&pid, seen| start(pid).as_ref() == Some(&*seen));
    }
}

/// When a process began, in ticks since boot (field 22 of proc_pid_stat(5)).
fn start(pid: i32) -> Option<String> {
    procfs::stat_fields(pid, pid).ok()?.get(22 - 3).cloned()
}

/// Paths of sockets that the environments of a job's processes name.
#[derive(Debug, Default)]
pub struct Marks(BTreeSet<Vec<u8>>);

impl Marks {
    /// Of a job with these processes. `socket`: of its agent.
    pub fn of(pids: &[i32], socket: &Path) -> Marks {
        let named = pids.iter().filter_map(|&pid| match environment::of(pid) {
            Ok(Environment::Is(text)) => named_in(&text).map(<[u8]>::to_vec),
            _ => None,
        });
        Marks(named.chain([socket.as_os_str().as_bytes().to_vec()]).collect())
    }

    /// Whether an environment has one of them.
    pub fn are_in(&self, environment: &[u8]) -> bool {
        named_in(environment).is_some_and(|path| self.0.contains(path))
    }
}

/// The socket that an environment names.
fn named_in(environment: &[u8]) -> Option<&[u8]> {
    let mut entries = environment.split(|&byte| byte == 0);
    entries.find_map(|entry| entry.strip_prefix(ENV_SOCKET.as_bytes())?.strip_prefix(b"="))
}

/// Whether libholdfast in what has this environment speaks to another agent than that at `socket`.
pub fn leads_elsewhere(environment: &[u8], socket: &Path) -> bool {
    named_in(environment).is_some_and(|path| path != socket.as_os_str().as_bytes())
}

/// Whether a process that registers to the agent at `socket` is of its job. `known`: the job's processes; without
/// any, everybody is.
///
/// A copy of the job that runs beside it has the same environment. But its ancestors are not of the job, and
/// `holdfast restart` is among them, which has no such mark; or they are in a pid namespace of their own. Where no
/// ancestor is of the job, it and those between it and what is above the job must have the agent's own ids.
pub fn is_of_job(pid: i32, known: &[i32], socket: &Path) -> bool {
    if known.is_empty() || known.contains(&pid) {
        return true;
    }
    let mut line = Vec::new();
    for one in ancestors(pid) {
        // Mostly the first.
        if known.contains(&one) {
            return true;
        }
        line.push(one);
    }
    // An orphan, or below one that has not registered (yet).
    let above = known.iter().map(|&one| ancestors(one).collect::<Vec<i32>>()).find(|all| !all.is_empty());
    let Some(above) = above else { return true };
    let strangers: Vec<i32> = line.into_iter().take_while(|one| !above.contains(one)).collect();
    let is_own = |pid: i32| has_own_ids(pid).unwrap_or(false);
    is_own(pid)
        && strangers.iter().all(|&pid| is_own(pid))
        && may_all_be(&strangers, known, socket)
        && known.iter().any(|&one| are_together(pid, one))
}

/// Whether no environment of `strangers` says that it is not of the job.
fn may_all_be(strangers: &[i32], known: &[i32], socket: &Path) -> bool {
    if strangers.is_empty() {
        return true; // a job may have thousands of processes whose marks would be read
    }
    let marks = Marks::of(known, socket);
    let is_other =
        |pid: &i32| matches!(environment::of(*pid), Ok(Environment::Is(text)) if !marks.are_in(&text));
    !strangers.iter().any(is_other)
}

/// Whether two processes are in the same pid namespace, as far as that can be seen.
pub fn are_together(one: i32, other: i32) -> bool {
    let namespace = |pid: i32| procfs::link(&format!("/proc/{pid}/ns/pid")).ok();
    namespace(one).zip(namespace(other)).is_none_or(|(one, other)| one == other)
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
    fn whoever_descends_from_the_job_is_of_it_and_a_copy_is_not() {
        let socket = Path::new(SOCKET);
        let (job, copy, unmarked) = (nested(&[true; 3]), nested(&[false, true, true]), nested(&[false; 3]));
        let known = [job.1[0]];
        let is = |pid: i32| is_of_job(pid, &known, socket);
        assert!(is(job.1[0]) && is(job.1[1]) && is(job.1[2]));
        // The first of them is as `holdfast restart` would be.
        assert!(!is(copy.1[1]) && !is(copy.1[2]) && !is(unmarked.1[1]));
        assert!(
            is_of_job(copy.1[2], &[copy.1[1]], socket) && is_of_job(unmarked.1[2], &unmarked.1[..1], socket)
        );
        // A child of whoever is above the job: an orphan, for all that can be known.
        assert!(is(copy.1[0]));
        assert!(is_of_job(copy.1[2], &[], socket) && is_of_job(copy.1[2], &[i32::MAX], socket));
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
        seen.0.insert(own, "0".into());
        assert!(!seen.has(own), "another process had this id");
        seen.forget_gone();
        assert_eq!(seen.0.keys().copied().collect::<BTreeSet<i32>>(), job.1[1..].iter().copied().collect());
        end(job);
    }

    #[test]
    fn a_job_has_the_marks_of_its_processes_and_its_own() {
        let (other, named) =
            (Path::new("/run/copy/agent.sock"), |path: &str| format!("A=1\0{ENV_SOCKET}={path}\0B=2\0"));
        let job = nested(&[true, true]);
        let marks = Marks::of(&job.1, other);
        assert!(
            marks.are_in(named(SOCKET).as_bytes()) && marks.are_in(named("/run/copy/agent.sock").as_bytes())
        );
        assert!(
            !marks.are_in(named("/run/job/agent.soc").as_bytes())
                && !marks.are_in(b"")
                && !marks.are_in(b"A=1\0")
        );
        assert!(!Marks::of(&[], other).are_in(named(SOCKET).as_bytes()));
        assert!(leads_elsewhere(named(SOCKET).as_bytes(), other) && !leads_elsewhere(b"A=1\0", other));
        assert!(!leads_elsewhere(named(SOCKET).as_bytes(), Path::new(SOCKET)));
        end(job);
    }
}
