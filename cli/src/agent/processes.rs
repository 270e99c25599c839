//! Which processes belong to the job, and which of them is *the* program.
//!
//! Kept by the agent's loop, asked by the checkpoint thread. The first process that registers is the program; others
//! are remembered with their areas. When the program ends, its oldest child takes its place: that is how a daemonising
//! program is followed into its child, and a launcher into its server. What must hold: the program is no child of
//! another process of the job, for a restart makes the program first.

use holdfast_image::address_space;
use holdfast_image::record::InjectArea;
use holdfast_process::{Births, Members, Target, Tracking, ancestors};
use holdfast_sys::{clone, procfs};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Most processes that are remembered: a program that forks without end must not fill the agent's memory.
const MOST: usize = 8192;

#[derive(Debug)]
struct Known {
    pid: i32,
    /// The process of the job that made it, or the nearest one above that lives; 0: none, or one that had ended
    /// before this one was heard.
    parent: i32,
    /// When it was made, in ticks since boot; of two made in the same tick the first on the list is the elder.
    born: u64,
    pidfd: Arc<OwnedFd>,
    area: InjectArea,
    /// Number of its address space, once it was in a cut.
    space: Option<u32>,
    /// Ends, and with it the tracking, when the process has ended and no checkpoint uses it any more.
    tracking: Arc<Tracking>,
}

/// The processes that registered and live.
#[derive(Debug, Default)]
pub struct Processes {
    /// The program first, the others in the order in which they were heard.
    known: Vec<Known>,
    /// The front is to tell who the program is ([`Processes::expect`]); until then there is none, whichever process
    /// registers.
    pub awaited: bool,
    /// Is told of each.
    births: Option<Arc<Births>>,
}

/// What became of the program when a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was another process.
    Other,
    /// This one is the program now.
    Succeeded(i32),
    /// None is left.
    Alone,
}

impl Processes {
    /// None yet. `births`: is told of each.
    pub fn told_to(births: Option<Arc<Births>>) -> Processes {
        Processes { births, ..Processes::default() }
    }
    /// A process registers with its `area` and a userfaultfd. A repeated registration (after exec, or after fork
    /// in the child) replaces its area, and its tracking if its address space is new; otherwise the descriptor is
    /// closed, because memory belongs to the one that it was registered with first.
    ///
    /// # Errors
    /// The process is gone, or there are too many.
    pub fn register(
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
            return Ok(());
        }
        self.add(pid, None, area, Arc::new(Tracking::new(userfault)))
    }
    /// The program, which will not register: the agent has to make itself room in it. A child of it may have
    /// registered before this was heard.
    ///
    /// # Errors
    /// As [`Processes::register`].
    pub fn expect(&mut self, pid: i32) -> io::Result<()> {
        if !self.known.iter().any(|known| known.pid == pid) {
            self.add(pid, None, InjectArea::default(), Arc::new(Tracking::new(None)))?;
        }
        self.awaited = false;
        self.put_first(pid);
        Ok(())
    }
    fn put_first(&mut self, pid: i32) {
        self.known.sort_by_key(|known| known.pid != pid);
        self.known.first_mut().into_iter().for_each(|program| program.parent = 0);
    }
    /// A process that was rebuilt, with its address space and tracking.
    ///
    /// # Errors
    /// As [`Processes::register`].
    pub fn add(
        &mut self,
        pid: i32,
        space: Option<u32>,
        area: InjectArea,
        tracking: Arc<Tracking>,
    ) -> io::Result<()> {
        self.known.retain(|known| known.pid != pid);
        if self.known.len() >= MOST {
            return Err(io::Error::other(format!("{MOST} processes are registered already")));
        }
        let pidfd = Arc::new(clone::pidfd_open(pid)?);
        let parent = ancestors(pid).find(|above| self.has(*above)).unwrap_or(0);
        if let Some(births) = &self.births {
            births.member(pid);
        }
        self.known.push(Known { pid, parent, born: born(pid), pidfd, area, space, tracking });
        if parent == 0 {
            self.begin_with_the_topmost();
        }
        Ok(())
    }
    /// Processes that were found when none was left: the oldest is the program.
    pub fn follow(&mut self, mut pids: Vec<i32>) {
        pids.sort_by_key(|pid| born(*pid));
        for pid in pids {
            // One that has ended meanwhile is none.
            let _ = self.add(pid, None, InjectArea::default(), Arc::new(Tracking::new(None)));
        }
    }
    /// The program may have lost its place to a process above it that was heard later: a server without libholdfast
    /// whose worker has it.
    fn begin_with_the_topmost(&mut self) {
        let Some(program) = self.known.first() else { return };
        if let Some(above) = ancestors(program.pid).filter(|above| self.has(*above)).last() {
            self.put_first(above);
        }
    }
    /// All that live, the program first. Each has an address space of its own from now on: the first number that is
    /// free. (A number may have been another process's before; the tracking of a new one calls all of it written.)
    pub fn members(&mut self) -> Option<Members> {
        self.program_pid()?;
        let mut taken: BTreeSet<u32> = self.known.iter().filter_map(|known| known.space).collect();
        let mut free = 0..address_space::DEVICES;
        for known in self.known.iter_mut().filter(|known| known.space.is_none()) {
            known.space = free.find(|space| taken.insert(*space));
        }
        // A zombie is the parent's: what waits to be heard of its end must not be in a cut.
        let target = |(at, known): (usize, &Known)| {
            let Known { pid, area, tracking, .. } = known;
            (at == 0 || is_alive(&known.pidfd)).then_some(Target {
                pid: *pid,
                space: known.space?,
                area: *area,
                tracking: Arc::clone(tracking),
            })
        };
        let mut all = self.known.iter().enumerate().map(target);
        let program = all.next()??;
        Some(Members::new(program, all.flatten().collect()))
    }
    /// Pid of the program.
    pub fn program_pid(&self) -> Option<i32> {
        self.known.first().filter(|_| !self.awaited).map(|known| known.pid)
    }
    /// All of them, the program first.
    pub fn pids(&self) -> Vec<i32> {
        self.known.iter().map(|known| known.pid).collect()
    }
    /// Whether it is one of them.
    pub fn has(&self, pid: i32) -> bool {
        self.known.iter().any(|known| known.pid == pid)
    }
    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
    /// What to wait on: readable when the process has ended.
    pub fn descriptors(&self) -> Vec<(i32, Arc<OwnedFd>)> {
        self.known.iter().map(|known| (known.pid, Arc::clone(&known.pidfd))).collect()
    }
    /// Those that have ended and were not told of by [`Processes::ended`].
    pub fn ended_by_now(&self) -> Vec<i32> {
        self.known.iter().filter(|known| !is_alive(&known.pidfd)).map(|known| known.pid).collect()
    }
    /// A process has ended. Its children count as those of its parent from now on.
    pub fn ended(&mut self, pid: i32) -> Ended {
        let was_program = self.known.first().is_some_and(|known| known.pid == pid);
        let parent = self.known.iter().find(|known| known.pid == pid).map_or(0, |known| known.parent);
        self.known.retain(|known| known.pid != pid);
        // Without a child of its own: an orphan whose parent was not heard.
        let next = self.known.iter().min_by_key(|known| (known.parent != pid, known.parent != 0, known.born));
        let next = next.map(|known| known.pid);
        for known in self.known.iter_mut().filter(|known| known.parent == pid) {
            known.parent = parent;
        }
        match next {
            None => Ended::Alone,
            Some(_) if !was_program => Ended::Other,
            Some(next) => {
                self.put_first(next);
                self.begin_with_the_topmost();
                Ended::Succeeded(self.known[0].pid)
            }
        }
    }
}

/// When a process was made; one that is gone, last of all.
fn born(pid: i32) -> u64 {
    procfs::start_time(pid).unwrap_or(u64::MAX)
}

fn is_alive(pidfd: &OwnedFd) -> bool {
    holdfast_sys::poll::readable(&[pidfd.as_fd()], Some(std::time::Duration::ZERO))
        .is_ok_and(|ready| !ready[0])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::Addr;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    fn area(code: u64) -> InjectArea {
        InjectArea { code: Addr(code), ..InjectArea::default() }
    }

    fn sleepers() -> (Vec<Child>, Vec<i32>) {
        let children: Vec<_> = (0..3).map(|_| Command::new("sleep").arg("20").spawn().unwrap()).collect();
        let pids = children.iter().map(|child| child.id().cast_signed()).collect();
        (children, pids)
    }

    fn end(children: Vec<Child>) {
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_program_that_cannot_register_is_the_program_even_if_its_children_did_before() {
        let (children, pids) = sleepers();
        let mut processes = Processes { awaited: true, ..Processes::default() };
        processes.register(pids[1], area(1), true, None).unwrap();
        processes.register(pids[2], area(2), true, None).unwrap();
        assert!(processes.program_pid().is_none() && processes.members().is_none());
        for _ in 0..2 {
            processes.expect(pids[0]).unwrap();
            let members = processes.members().unwrap();
            let order: Vec<i32> = members.targets().iter().map(|target| target.pid).collect();
            assert_eq!(order, pids);
        }
        end(children);
        assert!(Processes::default().expect(pids[0]).is_err());
    }

    #[test]
    fn the_first_is_the_program_and_the_oldest_succeeds_it() {
        let (children, pids) = sleepers();
        let mut processes = Processes::default();
        for &pid in &pids {
            processes.register(pid, area(1), true, None).unwrap();
        }
        processes.register(pids[0], area(2), true, None).unwrap();
        let spaces = |processes: &mut Processes| -> Vec<(i32, u32)> {
            let members = processes.members().unwrap();
            members.targets().iter().map(|target| (target.pid, target.space)).collect()
        };
        assert_eq!(spaces(&mut processes), [(pids[0], 0), (pids[1], 1), (pids[2], 2)]);
        let program = |processes: &mut Processes| {
            processes.members().map(|members| (members.program().pid, members.program().area))
        };
        assert_eq!(program(&mut processes), Some((pids[0], area(2))));
        processes.register(pids[1], area(3), true, None).unwrap();
        assert_eq!(spaces(&mut processes), [(pids[0], 0), (pids[1], 1), (pids[2], 2)]);
        assert_eq!(processes.ended(pids[0]), Ended::Succeeded(pids[1]));
        assert_eq!(processes.ended(pids[2]), Ended::Other);
        assert_eq!(program(&mut processes), Some((pids[1], area(3))));
        assert_eq!(spaces(&mut processes), [(pids[1], 1)]);
        let tracking_of = |processes: &mut Processes| processes.members().unwrap().program().tracking.clone();
        let tracking = tracking_of(&mut processes);
        processes.register(pids[1], area(3), false, None).unwrap();
        assert!(Arc::ptr_eq(&tracking_of(&mut processes), &tracking));
        assert_eq!(processes.ended_by_now(), [0; 0]);
        processes.register(pids[1], area(3), true, None).unwrap();
        assert!(!Arc::ptr_eq(&tracking_of(&mut processes), &tracking));
        assert_eq!(processes.ended(pids[1]), Ended::Alone);
        end(children);
        assert!(processes.register(pids[0], area(1), true, None).is_err());
    }

    /// A shell, its children, and theirs.
    fn family(script: &str, count: usize) -> (Child, Vec<i32>) {
        let mut shell = Command::new("sh");
        let mut shell = shell.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines().take(count);
        let pids = lines.map(|line| line.unwrap().parse().unwrap()).collect();
        (shell, pids)
    }

    fn kill(pids: &[i32], mut shell: Child) {
        for pid in pids {
            Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status().unwrap();
        }
        shell.wait().unwrap();
    }

    #[test]
    fn a_launcher_is_succeeded_by_its_oldest_child_whichever_is_heard_last() {
        // The launcher, its first child (a helper that ends), that one's child (the server) and the server's worker.
        let server = "sleep 50 & echo $!; exec sleep 50";
        let script = format!("echo $$; (sh -c 'echo $$; {server}' & echo $!; exec sleep 50) & echo $!; wait");
        let (shell, all) = family(&script, 5);
        let (launcher, rest) = (all[0], &all[1..]);
        let parent_of = |pid: i32| ancestors(pid).next().unwrap();
        let helper = *rest.iter().find(|pid| parent_of(**pid) == launcher).unwrap();
        let server = *rest.iter().find(|pid| parent_of(**pid) == helper).unwrap();
        let worker = *rest.iter().find(|pid| parent_of(**pid) == server).unwrap();
        let heard = |order: &[i32]| {
            let mut processes = Processes::default();
            order.iter().for_each(|&pid| processes.register(pid, area(1), true, None).unwrap());
            processes
        };
        let order = [launcher, helper, server, worker];
        let mut processes = heard(&order);
        // As daemons say again who they are.
        processes.register(server, area(1), false, None).unwrap();
        assert_eq!(processes.ended(helper), Ended::Other);
        assert_eq!(processes.ended(launcher), Ended::Succeeded(server));
        assert_eq!(processes.ended(server), Ended::Succeeded(worker));
        assert_eq!(processes.ended(worker), Ended::Alone);
        let mut processes = heard(&order);
        assert_eq!(processes.ended(launcher), Ended::Succeeded(helper));
        assert_eq!(processes.ended(helper), Ended::Succeeded(server));
        assert_eq!(processes.ended(worker), Ended::Other);
        assert_eq!(processes.ended(server), Ended::Alone);
        // The server is heard last, and by nothing but a checkpoint.
        let mut processes = heard(&[worker]);
        assert_eq!(processes.program_pid(), Some(worker));
        processes.add(server, None, area(1), Arc::new(Tracking::new(None))).unwrap();
        assert_eq!(processes.pids(), [server, worker]);
        kill(&order, shell);
    }
}
