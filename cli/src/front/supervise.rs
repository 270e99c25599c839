//! Waiting for the program: signals passed on, triggers served, its status returned.
//!
//! Signals are blocked and read as messages, so that none is lost between two calls and none interrupts one. A
//! signal from the terminal has reached the program already, which is in the same foreground
//! group; only what was sent to `holdfast` alone is passed on.

use super::foreground::Foreground;
use super::launch::Launched;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::front_link::Tell;
use crate::inherited_fds::{self, InheritedFd};
use crate::last_run::{BY_USERS, How, LastRun, OBEYS_WITHIN, ToldBy};
use crate::settings::{Settings, signal_name};
use crate::{report, same_run};
use holdfast_abi::environment::ON_STOP_FAILED;
use holdfast_image::Epoch;
use holdfast_image::control::{Reply, Request, Wishes};
use holdfast_sys::signals::{self, Arrived, SignalMessages};
use holdfast_sys::{poll, spawn};
use holdfast_tiers::Job;
use holdfast_tiers::stack::TiersRecord;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// The signals that the front takes; all but SIGCHLD are passed on.
fn taken() -> u64 {
    let named = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGCONT,
        libc::SIGURG,
        libc::SIGXCPU,
        libc::SIGPWR,
        libc::SIGCHLD,
    ];
    named.into_iter().chain(34..=64).map(signals::bit).fold(0, |mask, bit| mask | bit)
}

/// The state in which the program is to start, and the signals as messages for us.
#[derive(Debug)]
pub struct StartState {
    /// Mask as `holdfast` got it.
    pub mask: u64,
    /// Dispositions that `holdfast` (or the runtime of Rust) changes: whether they were ignored.
    pub ignored: Vec<(i32, bool)>,
    /// Descriptors above 2 that the program is to get.
    pub inherited_fds: Vec<InheritedFd>,
    /// Given back at the end.
    _foreground: Foreground,
    messages: SignalMessages,
    /// What arrived before there was a program.
    early: RefCell<VecDeque<Arrived>>,
    /// One of [`ENDS`] that arrived before there was one.
    end: Cell<Option<i32>>,
}

/// Signals that end a command that has no program yet.
const ENDS: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

impl StartState {
    /// Blocks the signals and remembers how things were. Called once, before anything is started.
    ///
    /// # Errors
    /// EMFILE.
    pub fn take() -> Result<StartState, Failure> {
        let inherited_fds = inherited_fds::all()?;
        let ignored = vec![
            (libc::SIGPIPE, signals::at_start().pipe_ignored),
            (libc::SIGCHLD, signals::is_ignored(libc::SIGCHLD)),
        ];
        let mask = signals::block(taken());
        // An ignored SIGCHLD would have the kernel throw the status of our children away (waitpid(2), NOTES).
        signals::set_ignored(libc::SIGCHLD, false);
        let messages = SignalMessages::new(taken()).map_err(|error| Failure::system("signalfd", &error))?;
        let (early, end) = (RefCell::default(), Cell::default());
        let foreground = Foreground::look();
        Ok(StartState { mask, ignored, inherited_fds, _foreground: foreground, messages, early, end })
    }
    /// The next signal that arrived.
    pub fn next(&self) -> Option<Arrived> {
        let early = self.early.borrow_mut().pop_front();
        early.or_else(|| self.messages.next())
    }
    /// Signals that end this command while it has no program: not those that its parent has it ignore.
    pub fn ends() -> u64 {
        let ends = ENDS.into_iter().filter(|signal| !signals::is_ignored(*signal));
        ends.map(signals::bit).fold(0, |mask, bit| mask | bit)
    }
    /// The first of [`StartState::ends`] that has arrived so far. What else has is kept for the program.
    pub fn told_to_end(&self) -> Option<i32> {
        while let Some(arrived) = self.messages.next() {
            if signals::bit(arrived.signal) & StartState::ends() == 0 {
                self.early.borrow_mut().push_back(arrived);
            } else if self.end.get().is_none() {
                self.end.set(Some(arrived.signal));
            }
        }
        self.end.get()
    }
}

impl AsFd for StartState {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.messages.as_fd()
    }
}

/// The program, however it came into being.
pub trait Program {
    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended.
    fn signal(&self, signal: i32) -> io::Result<()>;
    /// Sends it a signal with a value (`sigqueue(3)`).
    ///
    /// # Errors
    /// It has ended.
    fn queue(&self, signal: i32, value: u64) -> io::Result<()>;
    /// Becomes readable at its end, where SIGCHLD does not tell of it.
    fn watch(&self) -> Option<BorrowedFd<'_>>;
    /// Its status if it has ended.
    ///
    /// # Errors
    /// It is no child of ours any more.
    fn ended(&mut self) -> io::Result<Option<ExitStatus>>;
}

/// A program that was started by fork and exec.
#[derive(Debug)]
pub struct Child(pub i32);

impl Program for Child {
    fn signal(&self, signal: i32) -> io::Result<()> {
        holdfast_sys::ptrace::kill(self.0, signal)
    }
    fn queue(&self, signal: i32, value: u64) -> io::Result<()> {
        holdfast_sys::ptrace::queue(self.0, signal, value)
    }
    fn watch(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        spawn::wait(self.0, false)
    }
}

struct Front<'a> {
    program: &'a mut dyn Program,
    agent: Launched,
    link_open: bool,
    /// It has been told that the link is closed.
    lost_told: bool,
    job: &'a Job,
    settings: Settings,
    run: LastRun,
    /// The last signal with which its user may want to end the program, and when.
    told: Option<(i32, Instant)>,
    /// What was lost while it may be ending by that.
    lost: Option<String>,
    /// A request for checkpoint and stop that is not answered yet, and the signal that asked for it.
    stopping: Option<(Agent, i32)>,
    /// The agent has committed this image and ends the program.
    stopped: Option<Epoch>,
    /// The program cannot be protected any more, and is being ended for that (`--strict`).
    unprotected: Option<Unprotected>,
}

/// How a program is ended that cannot be protected any more.
#[derive(Clone, Copy)]
enum Unprotected {
    /// By SIGTERM, which it may take so long to obey.
    Until(Instant),
    /// By SIGKILL.
    Killed,
}

/// How long a program that cannot be protected any more may take to end by SIGTERM.
const LEAVE: Duration = Duration::from_secs(10);
/// How long the end of a command may take because the tiers are told of it.
const TELL_TIERS: Duration = Duration::from_secs(5);

/// Waits for the end of the program and returns how it ended; [`Exit::Stopped`] if the agent ended it.
///
/// # Errors
/// The program cannot be waited for.
pub fn supervise(
    program: &mut dyn Program,
    state: &StartState,
    agent: Launched,
    (job, settings): (&Job, &Settings),
    run: LastRun,
) -> Result<Ending, Failure> {
    inherited_fds::close_own(&state.inherited_fds);
    let mut front = Front {
        program,
        agent,
        link_open: true,
        lost_told: false,
        job,
        settings: settings.clone(),
        run,
        told: None,
        lost: None,
        stopping: None,
        stopped: None,
        unprotected: None,
    };
    loop {
        while let Some(arrived) = state.next() {
            front.signal(arrived);
        }
        // Asked every time, not only at SIGCHLD: one SIGCHLD may stand for several children.
        let status =
            front.program.ended().map_err(|error| Failure::system("waiting for the program", &error))?;
        if let Some(status) = status {
            return Ok(front.ending(status, state));
        }
        front.tell_of_lost_agent();
        let timeout = front.time_to_leave();
        let mut fds = vec![state.as_fd()];
        fds.extend(front.program.watch());
        if front.link_open {
            fds.push(front.agent.link.as_fd());
        }
        if let Some((agent, _)) = &front.stopping {
            fds.push(agent.as_fd());
        }
        poll::readable(&fds, timeout).map_err(|error| Failure::system("waiting for the program", &error))?;
        front.hear();
        front.check_stop();
    }
}

/// How `run` or `restart` ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// As the program did.
    Program(ExitStatus),
    /// By checkpoint and stop.
    Stopped,
    /// By `--strict`: it could not be protected any more.
    Unprotected,
}

impl Ending {
    /// Ends this process in the same way: the same code, or by the same signal.
    pub fn exit(self) -> u8 {
        match self {
            Ending::Stopped => Exit::Stopped as u8,
            Ending::Unprotected => Exit::Internal as u8,
            Ending::Program(status) => {
                if let Some(signal) = status.signal() {
                    signals::die_by(signal);
                    return u8::try_from(128 + signal).unwrap_or(u8::MAX);
                }
                status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(Exit::Internal as u8)
            }
        }
    }
}

impl Front<'_> {
    fn signal(&mut self, arrived: Arrived) {
        let signal = arrived.signal;
        let hangup = signal == libc::SIGHUP && arrived.is_by_kernel();
        // A signal that asks for an image says nothing of the end.
        let asks = [self.settings.stop_signal, self.settings.signal].contains(&Some(signal));
        if !asks && (hangup || [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&signal)) {
            self.told = Some((signal, Instant::now()));
        }
        if signal == libc::SIGCHLD {
            // The agent is a child too: no zombie of it is left. The program is asked for in the loop.
            let _ = spawn::wait(self.agent.pid, false);
        } else if self.settings.stop_signal == Some(signal) {
            self.request_stop(signal);
        } else if self.settings.signal == Some(signal) {
            self.request_checkpoint();
        } else if !arrived.is_by_kernel() {
            // It may just have ended.
            let _ = self.program.signal(signal);
        }
    }

    fn request_checkpoint(&self) {
        let sent = Agent::connect(self.job).and_then(|agent| {
            agent.send(&Request::Checkpoint { stop: false, wait: false, wishes: Wishes::default() })
        });
        if let Err(failure) = sent {
            report::warn(&format!("checkpoint: {failure}"));
        }
    }

    fn request_stop(&mut self, signal: i32) {
        if self.stopping.is_some() {
            return;
        }
        let asked = Agent::connect(self.job).and_then(|agent| {
            agent.send(&Request::Checkpoint { stop: true, wait: true, wishes: Wishes::default() })?;
            Ok(agent)
        });
        match asked {
            Ok(agent) => self.stopping = Some((agent, signal)),
            Err(failure) => self.stop_failed(signal, &failure),
        }
    }

    fn stop_failed(&mut self, signal: i32, failure: &Failure) {
        self.hear();
        if self.stopped.is_some() {
            // Another had asked for the same, and the agent has ended the program, or is about to.
            return;
        }
        report::warn(&format!(
            "checkpoint failed: {failure}; {} is passed on to the program",
            signal_name(signal)
        ));
        // Its handler is not to ask for the same once more.
        let _ = self.program.queue(signal, ON_STOP_FAILED);
    }

    fn check_stop(&mut self) {
        let Some((agent, signal)) = &self.stopping else { return };
        let signal = *signal;
        let reply = match agent.receive(Some(Duration::ZERO)) {
            Ok(None) => return,
            Ok(Some(reply)) => crate::client::accepted(self.job, reply),
            Err(failure) => Err(failure),
        };
        self.stopping = None;
        match reply {
            // The image is committed: the program is gone, or about to be.
            Ok(Reply::Checkpointed { .. }) => {}
            Ok(other) => {
                self.stop_failed(signal, &Failure::new(Exit::Internal, format!("unexpected {other:?}")))
            }
            Err(failure) => self.stop_failed(signal, &failure),
        }
    }

    fn hear(&mut self) {
        while self.link_open {
            match self.agent.link.next(false) {
                Ok(Some(Tell::Stopping { epoch })) => self.stopped = Some(epoch),
                Ok(Some(Tell::Warning { text })) => report::warn(&text),
                Ok(Some(Tell::Settings { signal, stop_signal })) => {
                    (self.settings.signal, self.settings.stop_signal) = (signal, stop_signal);
                }
                Ok(Some(Tell::Committed { figures })) => report::detail(&figures),
                Ok(Some(Tell::Unprotected)) => {
                    self.end_unprotected("the program cannot be protected any more, and is ended (--strict)");
                }
                Ok(Some(Tell::GangLost { why })) if self.settings.supervised => self.end_lost(&why),
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => self.link_open = false,
            }
        }
    }

    /// The image that the program was ended for may be on this host alone, and the host may go when we end. Until the
    /// agent ends, which has a bound of its own, or a signal arrives, or the time is over.
    fn wait_for_tiers(&mut self, state: &StartState, end: Option<Instant>) {
        const MOMENT: Duration = Duration::from_secs(1);
        let name = self.job.name();
        let mut timeout = Some(MOMENT);
        while self.link_open {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let ready = poll::readable(&[self.agent.link.as_fd(), state.as_fd()], left.or(timeout));
            match ready.as_deref() {
                Ok([false, false]) if left.is_some() => return,
                Ok([false, false]) => {
                    report::note(&format!(
                        "waiting for the tiers of job {name}; Ctrl-C leaves the rest to `holdfast sync {name}`"
                    ));
                    timeout = None;
                }
                Ok([_, true]) => {
                    while let Some(arrived) = state.next() {
                        if BY_USERS.contains(&arrived.signal) {
                            return;
                        }
                    }
                }
                Ok(_) => {}
                Err(_) => return,
            }
            self.hear();
        }
    }

    /// `--strict`: the user would rather have no program than one whose work may be lost.
    fn end_unprotected(&mut self, why: &str) {
        if self.unprotected.is_some() || self.stopped.is_some() {
            return;
        }
        report::warn(why);
        self.unprotected = Some(Unprotected::Until(Instant::now() + LEAVE));
        let _ = self.program.signal(libc::SIGTERM);
    }

    /// `--restart-on-failure`: it is ended, to go on from its newest image. Without one it runs on.
    fn end_lost(&mut self, why: &str) {
        if self.unprotected.is_some() || self.stopped.is_some() {
            return;
        }
        if let Some(left) = self.time_to_obey() {
            // All that belongs to it may be ending, its agent, too.
            if self.lost.replace(why.to_owned()).is_none() {
                report::warn(&format!(
                    "{why}; the program may be ending, and has {} s for that",
                    left.as_secs() + 1
                ));
            }
            return;
        }
        let newest = same_run::newest(self.job, self.settings.gang.as_ref());
        if newest.is_ok_and(|newest| newest.is_some()) {
            self.run.lost = true;
            let why = format!("{why}; the program is ended, to be restarted (--restart-on-failure)");
            return self.end_unprotected(&why);
        }
        // In doubt it runs on.
        let what = format!("{why}; there is no image to go on from");
        if self.settings.strict {
            self.end_unprotected(&format!("{what}: the program is ended (--strict)"));
        } else {
            report::warn(&format!("{what}: the program runs on, without checkpoints"));
        }
    }

    /// How long the program may yet take until its end is not that of the last signal of its user.
    fn time_to_obey(&self) -> Option<Duration> {
        let (_, at) = self.told?;
        OBEYS_WITHIN.checked_sub(at.elapsed()).filter(|left| !left.is_zero())
    }

    /// How long nothing may be done, if something is to be done.
    fn time_to_leave(&mut self) -> Option<Duration> {
        if self.time_to_obey().is_none()
            && let Some(why) = self.lost.take()
        {
            self.end_lost(&why);
        }
        let Some(Unprotected::Until(end)) = self.unprotected else {
            return self.lost.as_ref().and_then(|_| self.time_to_obey());
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.unprotected = Some(Unprotected::Killed);
            let _ = self.program.signal(libc::SIGKILL);
            return None;
        }
        Some(left)
    }

    /// Once, while the program runs on.
    fn tell_of_lost_agent(&mut self) {
        if self.link_open || self.lost_told || self.stopped.is_some() {
            return;
        }
        self.lost_told = true;
        let (name, log) = (self.job.name(), crate::log::path(self.job));
        let (what, see) = (format!("the agent of job {name} has ended"), format!("see {}", log.display()));
        if self.settings.supervised {
            self.end_lost(&format!("{what} ({see})"));
        } else if self.settings.strict {
            self.end_unprotected(&format!("{what}; {see}: the program is ended (--strict)"));
        } else {
            report::warn(&format!("{what}: the program runs on, without checkpoints; {see}"));
        }
    }

    /// What the agent has yet to copy, as it has written that down: nothing is waited for.
    fn tell_of_waiting(&self) {
        let name = self.job.name();
        for tier in TiersRecord::read(self.job).tiers.iter().filter(|tier| !tier.waiting.is_empty()) {
            let why = tier.error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
            let what = match tier.waiting.as_slice() {
                [image] => format!("image {image} of job {name} is"),
                more => format!("{} images of job {name} are", more.len()),
            };
            let then = match tier.others.is_empty() {
                true if self.link_open => {
                    format!("; its agent goes on for a while, and `holdfast sync {name}` does the rest")
                }
                true => format!("; `holdfast sync {name}` copies it"),
                false => String::new(),
            };
            report::note(&format!("{what} not on tier {} yet{why}{then}", tier.tier));
        }
    }

    /// Not into a file: a restart cuts off what came into the program's own after the image.
    fn tell_of_end(&self, epoch: Epoch) {
        let is_file = std::fs::metadata("/proc/self/fd/2").is_ok_and(|about| about.is_file());
        if !is_file {
            let name = self.job.name();
            report::note(&format!(
                "image {epoch} of job {name} is safe, and its program was ended; `holdfast restart {name}` goes on"
            ));
        }
    }

    fn ending(mut self, status: ExitStatus, state: &StartState) -> Ending {
        self.hear();
        let stopped = self.stopped.filter(|_| status.signal() == Some(libc::SIGKILL));
        // Before the agent hears of it: it looks at how the program has ended.
        let how = match (stopped, &self.unprotected) {
            (Some(epoch), _) => How::Checkpointed(epoch),
            // Whatever it makes of the signal, it has not come to its end.
            (None, Some(_)) => How::Signal(libc::SIGTERM),
            (None, None) => How::of(status),
        };
        let before = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.run.told_by = self.told.map(|(signal, at)| ToldBy { signal, before_ms: before(at) });
        self.run.end(self.job, how);
        if stopped.is_none() && LastRun::read(self.job).is_some_and(|run| run.stop_failed) {
            let name = self.job.name();
            report::warn(&format!(
                "the image that was to end job {name} failed, and its program has ended by itself; `holdfast logs \
                 {name}` says why, `holdfast restart {name}` goes on from the image before"
            ));
        }
        if !status.success() {
            self.agent.link.tell(&Tell::Over);
        }
        if self.settings.tiers.move_down() {
            if self.stopped.is_some() {
                self.wait_for_tiers(state, None);
            } else if status.success()
                && TiersRecord::read(self.job).lower().any(|tier| !tier.versions.is_empty())
            {
                // That the run has come to its end is to be on the tier before the host may go, too.
                self.wait_for_tiers(state, Some(Instant::now() + TELL_TIERS));
            }
            self.tell_of_waiting();
        }
        // Where the agent was killed, too, nothing else would.
        self.job.remove_dead_socket();
        match stopped {
            Some(epoch) => {
                self.tell_of_end(epoch);
                Ending::Stopped
            }
            None if self.unprotected.is_some() => Ending::Unprotected,
            None => Ending::Program(status),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_the_program_is_ours() {
        assert_eq!(Ending::Program(ExitStatus::from_raw(7 << 8)).exit(), 7);
        assert_eq!(Ending::Stopped.exit(), 75);
        assert_eq!(Ending::Unprotected.exit(), 70);
    }

    #[test]
    fn job_control_and_faults_are_not_taken() {
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGSEGV, libc::SIGWINCH, 32, 33] {
            assert_eq!(taken() & signals::bit(signal), 0, "{signal}");
        }
        assert_ne!(taken() & signals::bit(64), 0);
    }
}
