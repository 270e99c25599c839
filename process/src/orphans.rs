//! Processes of the job that have lost their parent before the agent heard of them.
//!
//! Used by `group`, on the tracer thread. Children of a process that ends go to a reaper above the job (kernel/exit.c,
//! `find_new_reaper`); one that has not spoken by then is tied to the job by nothing but its environment.
//! What must hold: [`Orphans::look`] comes before the stop, so that inside it only what is new must be looked at.

use crate::age;
use holdfast_image::control::ENV_SOCKET;
use holdfast_sys::procfs::{self, Status};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// While a process executes a program it shows no environment for a moment; one that is older has none.
const EXECUTING: Duration = Duration::from_secs(2);

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Orphans {
    /// `HOLDFAST_SOCKET=PATH`
    mark: Vec<u8>,
    /// Processes above the job.
    reapers: BTreeSet<i32>,
    /// Their children that are not of the job.
    others: HashSet<i32>,
}

impl Orphans {
    /// Looks at the processes above those of the job. `socket`: of the job's agent.
    pub fn look(pids: &[i32], socket: &Path) -> Orphans {
        let mark = [ENV_SOCKET.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat();
        let mut reapers = BTreeSet::new();
        for &pid in pids {
            let mut above = parent(pid);
            // A parent of the job is on the list itself.
            while let Some(next) = above.filter(|above| !pids.contains(above) && reapers.insert(*above)) {
                above = parent(next);
            }
        }
        let mut orphans = Orphans { mark, reapers, others: HashSet::new() };
        orphans.others = orphans.children().filter(|child| !orphans.is_ours(*child)).collect();
        orphans
    }

    /// Those that are none of `pids`.
    pub fn besides(&self, pids: &[i32]) -> Vec<i32> {
        let fresh = self.children().filter(|child| !pids.contains(child) && !self.others.contains(child));
        fresh.filter(|child| self.is_ours(*child)).collect()
    }

    fn children(&self) -> impl Iterator<Item = i32> {
        self.reapers.iter().flat_map(|&pid| procfs::children(pid).unwrap_or_default())
    }

    /// Whether the environment of a process says so: nothing else ties it to the job.
    pub fn is_marked(&self, pid: i32) -> bool {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| self.names(&environment))
    }

    fn names(&self, environment: &[u8]) -> bool {
        !self.mark.is_empty() && environment.split(|&byte| byte == 0).any(|entry| entry == self.mark)
    }

    /// Also one that shows no environment just now.
    fn is_ours(&self, pid: i32) -> bool {
        if pid.cast_unsigned() == std::process::id() {
            return false;
        }
        // What must not be read belongs to somebody else, or is set-user-id.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        if environment.is_empty() {
            let lives = || Status::read(pid, pid).is_ok_and(|status| !status.has_ended());
            return age::of(pid).is_some_and(|age| age < EXECUTING) && lives();
        }
        self.names(&environment)
    }
}

fn parent(pid: i32) -> Option<i32> {
    let parent = procfs::stat_fields(pid, pid).ok()?.get(1)?.parse().ok()?;
    (parent > 0).then_some(parent)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_of_a_reaper_is_known_by_its_environment() {
        let own = std::process::id().cast_signed();
        let socket = Path::new("/run/job/agent.sock");
        let start = |socket: &str| Command::new("sleep").arg("20").env(ENV_SOCKET, socket).spawn().unwrap();
        let (mut program, mut stranger) = (start("/run/job/agent.sock"), start("/run/other/agent.sock"));
        let known = [program.id().cast_signed()];
        let shows = |pid: i32| fs::read(format!("/proc/{pid}/environ")).is_ok_and(|text| !text.is_empty());
        while !shows(stranger.id().cast_signed()) || !shows(known[0]) {
            std::thread::yield_now();
        }
        let orphans = Orphans::look(&known, socket);
        assert!(orphans.reapers.contains(&own) && orphans.reapers.contains(&1), "{orphans:?}");
        assert!(orphans.others.contains(&stranger.id().cast_signed()));
        // A child of another test counts until it has executed its program.
        let seen = || orphans.besides(&known).iter().filter(|pid| parent(**pid) == Some(own)).count();
        let (begun, mut count) = (std::time::Instant::now(), seen());
        while count > 0 && begun.elapsed() < Duration::from_secs(5) {
            count = seen();
        }
        assert_eq!(count, 0);
        let mut orphan = start("/run/job/agent.sock");
        let pid = orphan.id().cast_signed();
        assert!(orphans.besides(&known).contains(&pid));
        while !shows(pid) {
            std::thread::yield_now();
        }
        assert!(orphans.is_marked(pid) && !orphans.is_marked(own) && !Orphans::default().is_marked(pid));
        for child in [&mut program, &mut stranger, &mut orphan] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!orphans.besides(&known).contains(&pid));
    }
}
