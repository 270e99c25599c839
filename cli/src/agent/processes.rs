//! Which processes belong to the job, and which of them is *the* program.
//!
//! Runs in: the agent's loop. The first process that says hello is the program; others are remembered with their
//! areas. When the program ends, the one of them that spoke last takes its place: that is how a daemonising program
//! is followed into its child.

use holdfast_image::record::InjectArea;
use holdfast_process::{Target, Tracking};
use holdfast_sys::{clone, procfs};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most processes that are remembered: a program that forks without end must not fill the agent's memory.
const MOST: usize = 256;

#[derive(Debug)]
struct Known {
    pid: i32,
    pidfd: OwnedFd,
    area: InjectArea,
    /// Ends, and with it the tracking, when the process has ended and no checkpoint uses it any more.
    tracking: Arc<Tracking>,
}

/// The processes that said hello and live.
#[derive(Debug, Default)]
pub struct Processes {
    /// The program first, the others in the order in which they spoke last.
    known: Vec<Known>,
}

/// What became of the program when a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was another process.
    Other,
    /// This one is the program now.
    Succeeded(i32),
    /// Nobody is left.
    Alone,
}

impl Processes {
    /// A process said hello from `area`, and brought a userfaultfd with it. A repeated hello (after exec, or after fork
    /// in the child) replaces its area, and its tracking if its address space is new; otherwise the descriptor is
    /// closed, because memory belongs to the one that it was registered with first.
    ///
    /// # Errors
    /// The process is gone, or there are too many.
    pub fn hello(
        &mut self,
        pid: i32,
        area: InjectArea,
        new_memory: bool,
        userfault: Option<OwnedFd>,
    ) -> io::Result<()> {
        if let Some(at) = self.known.iter().position(|known| known.pid == pid && is_alive(&known.pidfd)) {
            self.known[at].area = area;
            if new_memory {
                self.known[at].tracking = Arc::new(Tracking::new(userfault));
            }
            if at > 0 {
                let known = self.known.remove(at);
                self.known.push(known);
            }
            return Ok(());
        }
        self.add(pid, area, Arc::new(Tracking::new(userfault)))
    }
    /// A process that was rebuilt, with its tracking.
    ///
    /// # Errors
    /// As [`Processes::hello`].
    pub fn add(&mut self, pid: i32, area: InjectArea, tracking: Arc<Tracking>) -> io::Result<()> {
        self.known.retain(|known| known.pid != pid);
        if self.known.len() >= MOST {
            return Err(io::Error::other(format!("{MOST} processes are known already")));
        }
        let pidfd = clone::pidfd_open(pid)?;
        self.known.push(Known { pid, pidfd, area, tracking });
        Ok(())
    }
    /// The program.
    pub fn program(&self) -> Option<Target> {
        let Known { pid, area, tracking, .. } = self.known.first()?;
        Some(Target { pid: *pid, area: *area, tracking: Arc::clone(tracking) })
    }
    /// Pid of the program.
    pub fn program_pid(&self) -> Option<i32> {
        self.known.first().map(|known| known.pid)
    }
    /// What to wait on: readable when the process has ended.
    pub fn descriptors(&self) -> impl Iterator<Item = (i32, BorrowedFd<'_>)> {
        self.known.iter().map(|known| (known.pid, known.pidfd.as_fd()))
    }
    /// A process has ended.
    pub fn ended(&mut self, pid: i32) -> Ended {
        let was_program = self.known.first().is_some_and(|known| known.pid == pid);
        self.known.retain(|known| known.pid != pid);
        match self.known.len() {
            0 => Ended::Alone,
            last if was_program => {
                self.known.swap(0, last - 1);
                Ended::Succeeded(self.known[0].pid)
            }
            _ => Ended::Other,
        }
    }
}

fn is_alive(pidfd: &OwnedFd) -> bool {
    holdfast_sys::poll::readable(&[pidfd.as_fd()], Some(std::time::Duration::ZERO))
        .is_ok_and(|ready| !ready[0])
}

/// One line for each child of the program: process trees cannot be checkpointed yet.
pub fn children(pid: i32) -> Vec<String> {
    let Ok(children) = procfs::children(pid) else { return Vec::new() };
    children
        .into_iter()
        .map(|child| {
            let name = fs::read(format!("/proc/{child}/comm")).unwrap_or_default();
            let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
            let ended = procfs::stat_fields(child, child)
                .is_ok_and(|fields| fields.first().is_some_and(|s| s == "Z"));
            if ended {
                format!(
                    "process {child} ({name}): a child that ended and was not waited for: not supported yet"
                )
            } else {
                format!("process {child} ({name}): child processes are not supported yet")
            }
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::Addr;
    use std::process::Command;

    fn area(code: u64) -> InjectArea {
        InjectArea { code: Addr(code), ..InjectArea::default() }
    }

    #[test]
    fn the_first_is_the_program_and_the_last_succeeds_it() {
        let mut children: Vec<_> = (0..3).map(|_| Command::new("sleep").arg("20").spawn().unwrap()).collect();
        let pids: Vec<i32> = children.iter().map(|child| child.id().cast_signed()).collect();
        let mut processes = Processes::default();
        for &pid in &pids {
            processes.hello(pid, area(1), true, None).unwrap();
        }
        processes.hello(pids[0], area(2), true, None).unwrap();
        let program = |processes: &Processes| processes.program().map(|program| (program.pid, program.area));
        assert_eq!(program(&processes), Some((pids[0], area(2))));
        processes.hello(pids[1], area(3), true, None).unwrap();
        assert_eq!(processes.ended(pids[0]), Ended::Succeeded(pids[1]));
        assert_eq!(processes.ended(pids[2]), Ended::Other);
        assert_eq!(program(&processes), Some((pids[1], area(3))));
        let tracking = processes.program().unwrap().tracking;
        processes.hello(pids[1], area(3), false, None).unwrap();
        assert!(Arc::ptr_eq(&processes.program().unwrap().tracking, &tracking));
        processes.hello(pids[1], area(3), true, None).unwrap();
        assert!(!Arc::ptr_eq(&processes.program().unwrap().tracking, &tracking));
        assert_eq!(processes.ended(pids[1]), Ended::Alone);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(processes.hello(pids[0], area(1), true, None).is_err());
    }

    #[test]
    fn children_are_named_dead_or_alive() {
        let mut child = Command::new("sleep").arg("20").spawn().unwrap();
        let line = |pid: u32| {
            let start = format!("process {pid} (");
            children(std::process::id().cast_signed()).into_iter().find(|line| line.starts_with(&start))
        };
        assert!(line(child.id()).unwrap().contains("child processes are not supported yet"));
        child.kill().unwrap();
        while line(child.id()).is_some_and(|line| !line.contains("not waited for")) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(line(child.id()), None);
    }
}
