//! Who the children of processes are, as /proc/PID/task/TID/children says it (needs CONFIG_PROC_CHILDREN).
//!
//! Called by `process` to find all processes of a job. That file "does not work properly if children of the target task
//! exit while the file is being read" (proc(5)): the kernel goes on from the child that it has shown last, and if that
//! one is gone by then, from as many as it has shown before, and leaves one out for each that is gone (fs/proc/array.c,
//! `get_children_pid`). New ones come last. What must hold: where a child that is left out would be lost,
//! [`all_children`] is asked.

use crate::procfs;
use crate::proctext::ProcFolder;
use std::io;
use std::time::{Duration, Instant};

/// Living and zombie children of all threads of a process. Right if no child of it ends meanwhile, or if it does not
/// matter that one is left out then.
///
/// # Errors
/// Process gone. Threads that end meanwhile are skipped.
pub fn children(pid: i32) -> io::Result<Vec<i32>> {
    Ok(numbers(lists(pid)?))
}

/// Living and zombie children of some processes; those that are gone have none. None is left out that was there before
/// the call, not even one that went meanwhile from one of these processes to another, whose child it was not.
///
/// # Errors
/// TimedOut: they came and went all the time, so long.
pub fn all_children(pids: &[i32], limit: Duration) -> io::Result<Vec<i32>> {
    let look = || -> Vec<_> { pids.iter().map(|&pid| lists(pid).unwrap_or_default()).collect() };
    settled(look, limit).map(|lists| lists.into_iter().flat_map(numbers).collect())
}

/// What two looks, one after the other, have both seen. The kernel leaves a child out only where one before it goes
/// that the same look has shown: then the next shows that one no more.
fn settled<T: PartialEq>(mut look: impl FnMut() -> T, limit: Duration) -> io::Result<T> {
    let begun = Instant::now();
    let mut before = look();
    loop {
        let now = look();
        if now == before {
            return Ok(now);
        }
        if begun.elapsed() > limit {
            return Err(io::ErrorKind::TimedOut.into());
        }
        before = now;
    }
}

/// Each thread with its list.
fn lists(pid: i32) -> io::Result<Vec<(i32, String)>> {
    let folder = ProcFolder::open(format!("/proc/{pid}/task"))?;
    let list = |tid: i32| Some((tid, folder.list_text(&format!("{tid}/children")).ok()?));
    Ok(procfs::tasks(pid)?.into_iter().filter_map(list).collect())
}

fn numbers(lists: Vec<(i32, String)>) -> Vec<i32> {
    let words = |(_, list): (i32, String)| -> Vec<i32> {
        list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    lists.into_iter().flat_map(words).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    #[test]
    fn what_two_looks_have_seen_counts() {
        let mut seen = [vec![1, 2, 3], vec![2], vec![2, 3], vec![2, 3], vec![]].into_iter();
        assert_eq!(settled(|| seen.next(), Duration::from_secs(60)).unwrap(), Some(vec![2, 3]));
        let mut count = 0;
        let changing = || {
            count += 1;
            count
        };
        assert_eq!(settled(changing, Duration::from_millis(5)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(settled(|| 1, Duration::ZERO).unwrap(), 1);
    }

    /// Its first children end one after the other while the last ones stay.
    #[test]
    fn none_is_left_out_beside_those_that_end() {
        let script = "import os, signal, sys\n\
                      def child():\n    pid = os.fork()\n    if pid: return pid\n    signal.pause()\n\
                      ending = [child() for _ in range(300)]\n\
                      print(*[child() for _ in range(5)], flush=True)\n\
                      for pid in ending: os.kill(pid, 9), os.waitpid(pid, 0)\n\
                      sys.stdin.read()\n\
                      os.killpg(0, 9)";
        let mut parent = Command::new("python3");
        parent.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut parent = parent.spawn().unwrap();
        let pid = parent.id().cast_signed();
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let stay: Vec<i32> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        assert_eq!(stay.len(), 5);
        let mut last = Vec::new();
        let begun = Instant::now();
        while last != stay && begun.elapsed() < Duration::from_secs(20) {
            if let Ok(all) = all_children(&[pid], Duration::from_millis(20)) {
                assert!(stay.iter().all(|child| all.contains(child)), "{stay:?}: {all:?}");
                last = all;
            }
        }
        assert_eq!(last, stay);
        drop(parent.stdin.take());
        parent.wait().unwrap();
        assert!(children(pid).is_err() && all_children(&[pid], Duration::ZERO).unwrap().is_empty());
    }
}
