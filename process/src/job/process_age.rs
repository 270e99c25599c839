//! How long a process has been there, and how much of that it could have run.
//!
//! Used by `adopt`, `stopped_group` and `orphans`, and by the checkpoint thread, to tell who will not register from
//! who has not registered yet; by `cut`, to tell who is young. What must hold: a process that gets no processor is
//! not counted older for it, however busy the machine is.

use crate::refuse;
use holdfast_image::refusal::Refusal;
use holdfast_sys::{clock, procfs};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process is not waited for any more when it is older and has not registered: the library cannot be loaded where
/// it lives, perhaps.
const SILENT: Duration = Duration::from_secs(5);

/// When a process began, by the clock that counts from boot; `None`: it is gone.
fn birth(pid: i32) -> Option<Duration> {
    /// Ticks of proc_pid_stat(5) per second (USER_HZ), and the place of field 22, counted from the third.
    const TICKS: u64 = 100;
    const START: usize = 19;
    let start = procfs::stat_fields(pid, pid).ok()?.get(START)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(start.saturating_mul(1000 / TICKS)))
}

/// What a process born then has had by now, if it has waited that long for a processor.
fn age(birth: Duration, now: Duration, waited: Duration) -> Duration {
    now.saturating_sub(birth).saturating_sub(waited)
}

/// How long a process has lived, less what its main thread has waited for a processor; `None`: it is gone.
pub fn of(pid: i32) -> Option<Duration> {
    let birth = birth(pid)?;
    Some(age(birth, Duration::from_nanos(clock::now_ns(libc::CLOCK_BOOTTIME)), waited(pid)))
}

/// Whether it will not register any more, if it has not yet; what is gone is not silent.
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

    /// Whether something that a try has met has had that long: a process since it was met first, all else since the
    /// first try.
    pub fn has_had(&mut self, long: Duration, met: &[Refusal]) -> bool {
        self.has_had_by(Instant::now(), long, met, waited)
    }

    /// The same by that time, with how long each process has waited for a processor.
    fn has_had_by(
        &mut self,
        now: Instant,
        long: Duration,
        met: &[Refusal],
        waited: impl Fn(i32) -> Duration,
    ) -> bool {
        let pids = refuse::processes(met);
        let other = (pids.len() < met.len()).then(|| now.saturating_duration_since(self.begun));
        let had = pids.into_iter().map(|pid| {
            let waited = waited(pid);
            let (since, before) = *self.met.entry(pid).or_insert((now, waited));
            now.saturating_duration_since(since).saturating_sub(waited.saturating_sub(before))
        });
        // Each of them is noted, whatever another has had.
        had.chain(other).max().is_some_and(|had| had >= long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::refusal::Subject;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn time_without_a_processor_is_no_age() {
        assert_eq!(age(5 * SECOND, 9 * SECOND, SECOND), 3 * SECOND);
        // The counters are read one after the other, and the birth is rounded.
        assert_eq!(age(5 * SECOND, 9 * SECOND, 6 * SECOND), Duration::ZERO);
        assert_eq!(age(9 * SECOND, 5 * SECOND, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_process_is_awaited_from_when_it_was_met_less_what_it_waited_since() {
        let begun = Instant::now();
        let (mut awaited, met) = (Awaited::new(begun), [refuse::stranger(7)]);
        let mut had = |at: Duration, waited: Duration, long: Duration| {
            awaited.has_had_by(begun + at, long, &met, |_| waited)
        };
        // It had waited for 30 s before it was met, which is none of this.
        assert!(!had(10 * SECOND, 30 * SECOND, SECOND));
        assert!(had(14 * SECOND, 30 * SECOND, 4 * SECOND));
        assert!(had(14 * SECOND, 31 * SECOND, 3 * SECOND) && !had(14 * SECOND, 31 * SECOND, 4 * SECOND));
        assert!(!had(14 * SECOND, 40 * SECOND, SECOND));
    }

    #[test]
    fn all_else_is_awaited_from_the_first_try() {
        let begun = Instant::now();
        let mut awaited = Awaited::new(begun);
        let thread = Refusal { subject: Subject::Thread { tid: 7 }, reason: "it is there".into() };
        let both = [refuse::stranger(8), thread];
        let none = |_| Duration::ZERO;
        assert!(awaited.has_had_by(begun + 2 * SECOND, 2 * SECOND, &both[1..], none));
        assert!(!awaited.has_had_by(begun + 2 * SECOND, 3 * SECOND, &both, none));
        // The process was noted then, though the thread was older.
        assert!(awaited.has_had_by(begun + 4 * SECOND, 2 * SECOND, &both[..1], none));
        assert!(!awaited.has_had_by(begun + 4 * SECOND, 3 * SECOND, &both[..1], none));
        assert!(!awaited.has_had_by(begun + 4 * SECOND, Duration::ZERO, &[], none));
    }

    #[test]
    fn a_living_process_has_an_age_and_no_other_one_has() {
        assert!(of(std::process::id().cast_signed()).is_some());
        assert!(of(i32::MAX).is_none());
    }
}
