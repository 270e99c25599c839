//! Stopping all threads of one or several processes, and letting them go.
//!
//! Called by the tracer thread only. What must hold afterwards, whatever fails: every thread that was seized is either
//! detached or in the list of stragglers, which the tracer thread detaches as soon as they stop (a thread inside vfork
//! or a long uninterruptible call cannot be detached before; docs/stop.md, D).

use crate::inject::remote_thread::pause;
use crate::refuse;
use crate::stop::syscall_restart::ERESTARTNOHAND;
use holdfast_image::refusal::Refusal;
use holdfast_sys::fault;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often threads that read the clock are let run a little.
const CLOCK_TRIES: u32 = 12;
/// So long; a function of the vdso takes some 30 ns. Longer after each time that none of them had a processor
/// meanwhile.
const CLOCK_PAUSE: Duration = Duration::from_micros(5);
/// How long in all.
const CLOCK_LIMIT: Duration = Duration::from_millis(20);
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;
/// Longest wait for a thread that has no processor.
const STARVED: Duration = Duration::from_millis(500);
/// Longest wait for a thread that looks whether its group stop is in force.
const AGAIN: Duration = Duration::from_millis(50);
/// So long a failed stop waits for a thread that was interrupted already, to repair its call.
const LATE: Duration = Duration::from_secs(2);
/// The same for one that is ready to run: it stops as soon as it has a processor.
const LATE_AND_STARVED: Duration = Duration::from_secs(30);

/// A process that is to be stopped.
#[derive(Clone, Debug)]
pub struct Whom {
    /// Its id.
    pub pid: i32,
    /// Where its threads should not stop, if they can help it: an image with one there needs the kernel that it was
    /// made under (`rebuild::vdso`).
    pub vdso: Range<u64>,
    /// Threads that run on.
    pub spared: Vec<i32>,
}

/// A thread in an event stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The signal of the group stop (job control) that it takes part in.
    pub stop_signal: Option<i32>,
    /// Its registers, if they were looked at already.
    pub regs: Option<Registers>,
}

/// All threads of a process, stopped.
#[derive(Debug, Default)]
pub struct Stopped {
    /// By thread id.
    pub threads: BTreeMap<i32, Held>,
}

/// Threads that could not be stopped in time: seized, interrupted, to be detached when they stop.
#[derive(Debug, Default)]
pub struct Stragglers(Vec<i32>);

impl Stragglers {
    /// Detaches those that have stopped meanwhile. Called by the tracer thread whenever it is idle.
    pub fn tend(&mut self) {
        self.0.retain(|&tid| match ptrace::wait(tid, false) {
            Ok(Wait::Nothing) => true,
            Ok(Wait::Signal(signal)) => ptrace::detach(tid, signal).is_err(),
            Ok(Wait::Exited(_)) | Err(_) => false,
            Ok(_) => ptrace::detach(tid, 0).is_err(),
        });
    }
    /// Adds threads that were killed while they were stopped: a tracer must take note of their end, or the program's
    /// parent never hears of its end (ptrace(2), "Death under ptrace").
    pub fn add(&mut self, tids: Vec<i32>) {
        for &tid in &tids {
            let _ = ptrace::interrupt(tid); // one that still runs (an injected call that never came back)
        }
        self.0.extend(tids);
        self.tend();
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A stop that did not come about.
#[derive(Debug)]
pub struct StopFailure {
    /// Why.
    pub why: Why,
    /// What was interrupted of each process, in the order in which they were given.
    pub interrupted: Vec<Interrupted>,
}

/// The threads of one process, after a stop that did not come about.
#[derive(Debug, Default)]
pub struct Interrupted {
    /// Those that did stop: their calls must be repaired before they are resumed.
    pub stopped: Stopped,
    /// Those that have not stopped yet: the same holds for them when they have.
    pub late: Vec<i32>,
}

/// Why a stop did not come about.
#[derive(Debug)]
pub enum Why {
    /// The process is gone; all of them, if there were several.
    Gone,
    /// Another process traces one, or it is not ours.
    Refused(Refusal),
    /// The deadline passed, or one of several ended; what was waited for.
    Late(String),
}

/// Threads of the processes that are being stopped, by process: `None` as long as one has not stopped.
type Seized = Vec<BTreeMap<i32, Option<Held>>>;

/// Seizes and interrupts every thread of some processes until the task lists are stable. With the threads: when the
/// first interrupt was. From then on the programs are stopped.
///
/// # Errors
/// After an error nothing is stopped but what [`StopFailure`] names.
pub fn stop(whom: &[Whom], limit: Duration) -> Result<(Vec<Stopped>, Instant), StopFailure> {
    let mut seized: Seized = vec![BTreeMap::new(); whom.len()];
    let mut begun: Option<Instant> = None;
    let result = stop_all(whom, limit, &mut seized, &mut begun);
    let stopped_of = |threads: &BTreeMap<i32, Option<Held>>| Stopped {
        threads: threads.iter().filter_map(|(&tid, held)| Some((tid, (*held)?))).collect(),
    };
    let stopped: Vec<Stopped> = seized.iter().map(stopped_of).collect();
    let result = result.and_then(|()| match stopped.iter().position(|one| one.threads.is_empty()) {
        None => Ok(()),
        Some(_) if stopped.iter().all(|one| one.threads.is_empty()) => Err(Why::Gone),
        Some(at) => Err(has_just_ended(whom[at].pid)),
    });
    let Err(why) = result else { return Ok((stopped, begun.unwrap_or_else(Instant::now))) };
    let late_of = |threads: &BTreeMap<i32, Option<Held>>| -> Vec<i32> {
        threads.iter().filter(|(_, held)| held.is_none()).map(|(&tid, _)| tid).collect()
    };
    let both = stopped.into_iter().zip(&seized);
    let interrupted: Vec<Interrupted> =
        both.map(|(stopped, threads)| Interrupted { stopped, late: late_of(threads) }).collect();
    for &tid in interrupted.iter().flat_map(|one| &one.late) {
        let _ = ptrace::interrupt(tid);
    }
    Err(StopFailure { why, interrupted })
}

/// Waits for threads that were late, while the others run on. The rest is left to `stragglers`.
pub fn await_late(pid: i32, late: &[i32], stragglers: &mut Stragglers) -> Stopped {
    let begun = Instant::now();
    let mut stopped = Stopped::default();
    for &tid in late {
        match wait_stopped(pid, tid, begun, LATE, LATE_AND_STARVED) {
            Ok(Some(held)) => drop(stopped.threads.insert(tid, held)),
            Ok(None) => {}
            Err(()) => stragglers.0.push(tid),
        }
    }
    stopped
}

fn has_just_ended(pid: i32) -> Why {
    Why::Late(format!("process {pid} has just ended"))
}

fn stop_all(
    whom: &[Whom],
    limit: Duration,
    seized: &mut Seized,
    begun: &mut Option<Instant>,
) -> Result<(), Why> {
    // Seizing does not stop: do it for all before the first interrupt.
    let mut fresh = seize_new(whom, seized)?;
    fault::point("seized");
    loop {
        let start = *begun.get_or_insert_with(Instant::now);
        halt(whom, &fresh, seized, start, limit)?;
        leave_vdso(whom, &fresh, seized, limit)?;
        // A thread that was running may have made new ones before it stopped.
        fresh = seize_new(whom, seized)?;
        if fresh.is_empty() {
            fault::point("stopped");
            return Ok(());
        }
    }
}

/// Interrupts these threads and waits until they stand. Each is named with the place of its process.
fn halt(
    whom: &[Whom],
    threads: &[(usize, i32)],
    seized: &mut Seized,
    start: Instant,
    limit: Duration,
) -> Result<(), Why> {
    for &(_, tid) in threads {
        let _ = ptrace::interrupt(tid); // gone threads are noticed by the wait
    }
    fault::point("interrupted");
    let mut late = None;
    for &(at, tid) in threads {
        let pid = whom[at].pid;
        match wait_stopped(pid, tid, start, limit, STARVED) {
            Ok(Some(held)) => {
                seized[at].insert(tid, Some(held));
            }
            Ok(None) => {
                seized[at].remove(&tid);
            }
            // The others stand already, mostly: their calls must be repaired before they go on.
            Err(()) => late = late.or_else(|| Some(describe(pid, tid, limit))),
        }
    }
    late.map_or(Ok(()), |what| Err(Why::Late(what)))
}

/// Lets threads that stand in the vdso run a little, until they stand elsewhere or it has taken too long. Not step by
/// step: a program whose tracer dies meanwhile would be left with the trap flag, and a signal that kills it.
fn leave_vdso(
    whom: &[Whom],
    fresh: &[(usize, i32)],
    seized: &mut Seized,
    limit: Duration,
) -> Result<(), Why> {
    let begun = Instant::now();
    let (mut tries, mut pause) = (0, CLOCK_PAUSE);
    let mut inside = fresh.to_vec();
    let mut before: BTreeMap<i32, [u64; 3]> = BTreeMap::new();
    while tries < CLOCK_TRIES && begun.elapsed() < CLOCK_LIMIT {
        let mut have_moved = false;
        inside.retain(|&(at, tid)| {
            let Some(Some(held @ Held { stop_signal: None, .. })) = seized[at].get_mut(&tid) else {
                return false;
            };
            let Ok(regs) = ptrace::registers(tid) else { return false };
            held.regs = Some(regs);
            // The time stamp counter was read into the last two.
            let now = [regs.rip, regs.rax, regs.rdx];
            have_moved |= before.insert(tid, now) != Some(now);
            whom[at].vdso.contains(&regs.rip)
        });
        if inside.is_empty() {
            break;
        }
        if have_moved {
            (tries, pause) = (tries + 1, CLOCK_PAUSE);
        } else {
            pause *= 4;
        }
        for &(at, tid) in &inside {
            seized[at].insert(tid, None);
            let _ = ptrace::cont(tid, 0);
        }
        std::thread::sleep(pause.min(CLOCK_LIMIT / 4));
        halt(whom, &inside, seized, Instant::now(), limit)?;
    }
    Ok(())
}

/// Seizes all threads that are not yet; returns them, with the place of their process.
fn seize_new(whom: &[Whom], seized: &mut Seized) -> Result<Vec<(usize, i32)>, Why> {
    let mut fresh = Vec::new();
    for (at, (Whom { pid, spared, .. }, seized)) in whom.iter().zip(seized).enumerate() {
        let pid = *pid;
        // All of them stand: as many as there are.
        if !seized.is_empty() && procfs::task_count(pid).is_ok_and(|count| count == seized.len()) {
            continue;
        }
        let gone = |_| if whom.len() == 1 { Why::Gone } else { has_just_ended(pid) };
        for tid in procfs::tasks(pid).map_err(gone)? {
            if seized.contains_key(&tid) || spared.contains(&tid) {
                continue;
            }
            match ptrace::seize(tid, OPTIONS).or_else(|error| seize_again(pid, tid, error)) {
                Ok(()) => {
                    seized.insert(tid, None);
                    fresh.push((at, tid));
                }
                // Exiting threads, and a zombie leader, cannot be seized: normal.
                Err(error) if is_ending(pid, tid) => {
                    tracing::debug!(tid, %error, "thread is ending");
                }
                Err(error) => return Err(refused(pid, tid, &error)),
            }
        }
    }
    Ok(fresh)
}

/// Once more, where its tracer has detached from it meanwhile.
fn seize_again(pid: i32, tid: i32, error: io::Error) -> io::Result<()> {
    match Status::read(pid, tid).ok().as_ref().and_then(Status::tracer) {
        None if error.raw_os_error() == Some(libc::EPERM) => ptrace::seize(tid, OPTIONS),
        _ => Err(error),
    }
}

/// A zombie, or on its way there (PF_EXITING, include/linux/sched.h): what it had may be gone already.
fn is_ending(pid: i32, tid: i32) -> bool {
    const PF_EXITING: u64 = 4;
    procfs::stat_fields(pid, tid).map_or(true, |fields| {
        let field = |number: usize| fields.get(number - 3).map_or("", String::as_str);
        field(3).starts_with(['Z', 'X']) || field(9).parse().is_ok_and(|flags: u64| flags & PF_EXITING != 0)
    })
}

/// Whether all threads are ending.
pub fn has_ended(pid: i32) -> bool {
    procfs::tasks(pid).map_or(true, |tids| tids.iter().all(|&tid| is_ending(pid, tid)))
}

/// Whether it has ended, or its threads are about to end one after the other because it was killed (SIGKILL is
/// pending for each: kernel/signal.c, complete_signal).
pub fn is_dying(pid: i32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let is_killed = |tid| Status::read(pid, tid).is_ok_and(|status| status.mask("SigPnd") & KILL != 0);
    has_ended(pid) || procfs::tasks(pid).is_ok_and(|tids| tids.into_iter().any(is_killed))
}

fn refused(pid: i32, tid: i32, error: &io::Error) -> Why {
    match Status::read(pid, tid).ok().as_ref().and_then(Status::tracer) {
        Some(tracer) if refuse::is_own_thread(tracer) => {
            Why::Late(format!("thread {tid} {} is still being resumed after the last stop", doing(pid, tid)))
        }
        Some(tracer) if refuse::is_part_of(tracer, pid) => {
            Why::Late(format!("thread {tid} is {}", refuse::inspected(tracer)))
        }
        Some(tracer) => Why::Refused(refuse::traced_thread(tid, tracer)),
        None => Why::Refused(refuse::untraceable(tid, error)),
    }
}

/// Waits until one thread is in an event stop. `Ok(None)`: it ended. `Err(())`: too late.
///
/// A thread that is ready to run and has no processor gets more time: what keeps it from stopping keeps it from running
/// too.
fn wait_stopped(
    pid: i32,
    tid: i32,
    start: Instant,
    limit: Duration,
    starved: Duration,
) -> Result<Option<Held>, ()> {
    let mut limit = limit;
    loop {
        match ptrace::wait(tid, false) {
            Ok(Wait::Nothing) if start.elapsed() > limit => {
                let state = procfs::stat_fields(pid, tid).ok().and_then(|fields| fields.into_iter().next());
                if state.is_none_or(|state| state != "R") || start.elapsed() > starved {
                    return Err(());
                }
                limit = start.elapsed() + Duration::from_millis(2);
            }
            Ok(Wait::Nothing) => pause(start),
            Ok(Wait::Interrupted) => return Ok(Some(Held { stop_signal: None, regs: None })),
            Ok(Wait::GroupStop(signal)) => return Ok(Some(Held { stop_signal: Some(signal), regs: None })),
            // A signal came first: let it be delivered; the event stop follows (docs/stop.md, D).
            Ok(Wait::Signal(signal)) => {
                let _ = ptrace::cont(tid, signal);
            }
            // An interrupt that came before such a stop is forgotten by it (kernel/signal.c, ptrace_stop: "any trap
            // clears pending STOP trap"): the end of a call comes before the look at what is pending.
            Ok(Wait::Syscall | Wait::Event(_)) => {
                let _ = ptrace::interrupt(tid);
                let _ = ptrace::cont(tid, 0);
            }
            Ok(Wait::Exited(_)) | Err(_) => return Ok(None),
        }
    }
}

/// Looks again at a thread that was in a group stop: the signal of the stop, if it is in force still. SIGCONT ends
/// it, and a tracer is not told while the thread is trapped; nor does the signal wait for the thread any more when
/// another one has come that stops (kernel/signal.c, prepare_signal). So the thread is let look for itself.
pub fn stop_signal_again(pid: i32, tid: i32) -> Option<i32> {
    ptrace::listen(tid).ok()?;
    again(pid, tid).and_then(|held| held.stop_signal)
}

/// Has a traced thread that runs, or that has just been let run, stand. `None`: it does not, or is gone.
pub fn again(pid: i32, tid: i32) -> Option<Held> {
    let _ = ptrace::interrupt(tid);
    wait_stopped(pid, tid, Instant::now(), AGAIN, STARVED).ok().flatten()
}

/// Whether a thread has waited in pause(2) when it was stopped: the kernel has it make the call anew.
pub fn pauses(regs: &Registers) -> bool {
    (regs.orig_rax.cast_signed(), regs.rax.cast_signed()) == (libc::SYS_pause, ERESTARTNOHAND)
}

/// Lets new threads that waited in pause(2) go as far as the beginning of the call, where they stand again. Before
/// any other is resumed: a signal that came while they are in user code, about to make the call, would be handled
/// there, and they would wait for another one for ever; after a restart one may well come at once, because what was
/// to happen meanwhile happens then. From the beginning of the call on any signal ends it. (Other calls that signals
/// end have something else to wait for, or a mask of their own, which holds the signal back.) Returns the signals
/// that came first, to be given to the threads when they are resumed. Not after a checkpoint's stop: on a busy
/// machine everybody would stand while such a thread waits for a processor.
pub fn enter_pauses(tids: &[i32], limit: Duration) -> BTreeMap<i32, i32> {
    for &tid in tids {
        let _ = ptrace::cont_to_call(tid, 0); // threads that are gone are noticed when they are resumed
    }
    let begun = Instant::now();
    let mut signals = BTreeMap::new();
    for &tid in tids {
        loop {
            match ptrace::wait(tid, false) {
                Ok(Wait::Nothing) if begun.elapsed() < limit => pause(begun),
                Ok(Wait::Signal(signal)) => {
                    signals.insert(tid, signal);
                    break;
                }
                _ => break,
            }
        }
    }
    signals
}

/// Names a thread that did not stop, and what it is doing.
fn describe(pid: i32, tid: i32, limit: Duration) -> String {
    format!("thread {tid} {} did not stop within {} ms", doing(pid, tid), limit.as_millis())
}

/// What a thread is doing: its name, state and the kernel function that it sleeps in.
pub fn doing(pid: i32, tid: i32) -> String {
    let text =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default();
    let state = procfs::stat_fields(pid, tid).ok().and_then(|fields| fields.into_iter().next());
    format!("({}, {} in {})", text("comm").trim(), state.unwrap_or_default(), text("wchan"))
}

impl Stopped {
    /// Lets all threads go: sleepers first, those in user code last, because each woken one may take the agent's
    /// processor (docs/stop.md, A.1). `computing`: threads to go last. Returns those that were killed meanwhile, for
    /// [`Stragglers::add`].
    pub fn detach_all(&self, computing: &[i32]) -> Vec<i32> {
        let mut killed = Vec::new();
        for &tid in self.threads.keys().filter(|tid| !computing.contains(tid)).chain(computing) {
            if let Err(error) = ptrace::detach(tid, 0) {
                tracing::debug!(tid, %error, "detach");
                killed.push(tid);
            }
        }
        killed
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_stop_that_has_ended_is_noticed_though_another_one_is_to_come() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        let patience = Duration::from_secs(5);
        ptrace::seize(pid, OPTIONS).unwrap();
        ptrace::kill(pid, libc::SIGSTOP).unwrap();
        let held = wait_stopped(pid, pid, Instant::now(), patience, patience).unwrap().unwrap();
        assert_eq!(held.stop_signal, Some(libc::SIGSTOP));
        for _ in 0..3 {
            assert_eq!(stop_signal_again(pid, pid), Some(libc::SIGSTOP));
        }
        ptrace::kill(pid, libc::SIGCONT).unwrap();
        ptrace::kill(pid, libc::SIGSTOP).unwrap();
        assert_eq!(stop_signal_again(pid, pid), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A perl that calls pause(2) again and again, and says how often it has come back.
    fn pausing() -> (std::process::Child, i32, impl FnMut() -> String) {
        use std::io::BufRead;
        let mut command = std::process::Command::new("perl");
        let script = r#"$| = 1; $SIG{USR1} = sub {}; for (1..9) { print "in\n"; sleep; print "out $_\n" }"#;
        let mut child = command.args(["-e", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let pid = child.id().cast_signed();
        (child, pid, move || lines.next().unwrap().unwrap())
    }

    /// Stops it in pause(2); it may still be on its way there.
    fn stop_in_pause(pid: i32) -> Registers {
        let patience = Duration::from_secs(5);
        for _ in 0..500 {
            ptrace::seize(pid, OPTIONS).unwrap();
            ptrace::interrupt(pid).unwrap();
            assert_eq!(
                wait_stopped(pid, pid, Instant::now(), patience, patience),
                Ok(Some(Held { stop_signal: None, regs: None }))
            );
            let regs = ptrace::registers(pid).unwrap();
            if pauses(&regs) {
                return regs;
            }
            ptrace::detach(pid, 0).unwrap();
            std::thread::sleep(Duration::from_millis(10));
        }
        unreachable!("it does not pause");
    }

    #[test]
    fn who_waits_in_pause_enters_it_before_anybody_can_send_a_signal() {
        let (mut child, pid, mut line) = pausing();
        let limit = Duration::from_secs(5);
        assert_eq!(line(), "in");
        let before = stop_in_pause(pid);
        assert_eq!(enter_pauses(&[pid], limit), BTreeMap::new());
        // At the beginning of the call: its number is there, and no result (arch/x86/entry/entry_64.S).
        let regs = ptrace::registers(pid).unwrap();
        assert_eq!((regs.rip, regs.orig_rax), (before.rip, before.orig_rax));
        assert_eq!(regs.rax.cast_signed(), -i64::from(libc::ENOSYS));
        ptrace::kill(pid, libc::SIGUSR1).unwrap();
        ptrace::detach(pid, 0).unwrap();
        assert_eq!((line(), line()), ("out 1".into(), "in".into()));
        // A signal that came before: it is given on.
        stop_in_pause(pid);
        ptrace::kill(pid, libc::SIGUSR1).unwrap();
        let signals = enter_pauses(&[pid], limit);
        assert_eq!(signals, BTreeMap::from([(pid, libc::SIGUSR1)]));
        ptrace::detach(pid, signals[&pid]).unwrap();
        assert_eq!((line(), line()), ("out 2".into(), "in".into()));
        // None is sent: it waits.
        stop_in_pause(pid);
        assert_eq!(enter_pauses(&[pid], limit), BTreeMap::new());
        ptrace::detach(pid, 0).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(procfs::current_call(pid, pid).unwrap().unwrap()[0].cast_signed(), libc::SYS_pause);
        ptrace::kill(pid, libc::SIGUSR1).unwrap();
        assert_eq!(line(), "out 3");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_killed_process_has_ended_before_anybody_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        assert!(!has_ended(pid));
        child.kill().unwrap();
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
    }
}
