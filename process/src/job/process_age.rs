//! How long a process has been there, and how much of that it could have run.
//!
//! Used by `adopt`, `group` and `orphans`, and by the checkpoint thread, to tell who will not speak from who has not spoken
//! yet; by `cut`, to tell who is young. What must hold: a process that gets no processor is not counted older for it,
//! however busy the machine is.

use crate::refuse;
use holdfast_image::refusal::Refusal;
use holdfast_sys::{clock, procfs};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Nobody waits any more for a process that is older and has not spoken: the library cannot be loaded where it lives, perhaps.
const SILENT: Duration = Duration::from_secs(5);

/// How long ago a process began; `None`: it is gone.
fn since_birth(pid: i32) -> Option<Duration> {
    /// Ticks of proc_pid_stat(5) per second (USER_HZ), and the place of field 22, counted from the third.
    const TICKS: u64 = 100;
    const START: usize = 19;
    let start = procfs::stat_fields(pid, pid).ok()?.get(START)?.parse::<u64>().ok()?;
    let begun = Duration::from_millis(start.saturating_mul(1000 / TICKS));
    Some(Duration::from_nanos(clock::now_ns(libc::CLOCK_BOOTTIME)).saturating_sub(begun))
}

/// How long a process has lived, less what its main thread has waited for a processor; `None`: it is gone.
pub fn of(pid: i32) -> Option<Duration> {
    Some(since_birth(pid)?.saturating_sub(waited(pid)))
}

/// Whether it will not speak any more, if it has not yet; what is gone is not silent.
pub fn is_silent(pid: i32) -> bool {
    of(pid).is_some_and(|age| age > SILENT)
}

/// Zero where the kernel does not count it.
fn waited(pid: i32) -> Duration {
    Duration::from_nanos(procfs::queued_ns(pid).unwrap_or(0))
}

/// What a checkpoint waits for, from its first try on.
#[derive(Debug)]
pub struct Awaited {
    begun: Instant,
    /// When each process was met, and how long it had waited for a processor by then.
    met: BTreeMap<i32, (Instant, Duration)>,
}

impl Awaited {
    /// Nothing yet.
    pub fn new(begun: Instant) -> Awaited {
        Awaited { begun, met: BTreeMap::new() }
    }

    /// Whether something that a try has met has had that long: a process since it was met first, all else since the first try.
    pub fn has_had(&mut self, long: Duration, met: &[Refusal]) -> bool {
        let pids = refuse::processes(met);
        let other = (pids.len() < met.len()).then(|| self.begun.elapsed());
        let had = pids.into_iter().map(|pid| {
            let waited = waited(pid);
            let (since, before) = *self.met.entry(pid).or_insert_with(|| (Instant::now(), waited));
            since.elapsed().saturating_sub(waited.saturating_sub(before))
        });
        // Each of them is noted, whatever another has had.
        had.chain(other).max().is_some_and(|had| had >= long)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::refusal::Subject;
    use std::process::{Child, Command};
    use std::thread;

    /// A program that computes, in a class of its own, on that processor.
    fn busy(class: &str, processor: &str) -> Child {
        let words = [class, "0", "taskset", "-c", processor, "sh", "-c", "while :; do :; done"];
        Command::new("chrt").args(words).spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn who_has_no_processor_does_not_grow_older() {
        let mask = clock::affinity(0).unwrap()[0];
        let processor = mask.trailing_zeros().to_string();
        let (first, second) = (busy("--other", &processor), busy("--idle", &processor));
        let pid = second.id().cast_signed();
        let (mut awaited, met) = (Awaited::new(Instant::now()), [refuse::stranger(pid)]);
        awaited.has_had(Duration::ZERO, &met);
        let begun = Instant::now();
        // What it waits just now counts when it is over.
        let starves = |awaited: &mut Awaited| {
            let (whole, had) = (since_birth(pid).unwrap(), of(pid).unwrap());
            let half = begun.elapsed() / 2;
            whole > Duration::from_millis(500) && had < whole / 2 && !awaited.has_had(half, &met)
        };
        while !starves(&mut awaited) {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(5));
        }
        end(first);
        end(second);
    }

    #[test]
    fn who_sleeps_grows_older() {
        let child = Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut awaited = Awaited::new(Instant::now());
        let met = [refuse::stranger(pid)];
        assert!(!awaited.has_had(Duration::from_millis(100), &met));
        thread::sleep(Duration::from_millis(150));
        assert!(awaited.has_had(Duration::from_millis(30), &met));
        assert!(of(pid).unwrap() >= Duration::from_millis(30));
        end(child);
        assert!(of(pid).is_none());
        let other = Refusal { subject: Subject::Thread { tid: pid }, reason: "it is there".into() };
        assert!(awaited.has_had(Duration::from_millis(150), std::slice::from_ref(&other)));
        assert!(!Awaited::new(Instant::now()).has_had(Duration::from_secs(60), &[other]));
    }
}
