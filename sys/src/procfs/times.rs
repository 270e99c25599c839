//! What the kernel tells of timers, processor time and page faults: `/proc/PID/timers`, `sched`, `stat`.

use super::{after_name, bad};
use crate::proctext;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;

/// One timer of `/proc/PID/timers`; the id of a thread is as the reader sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerFacts {
    /// Id.
    pub id: i32,
    /// Signal.
    pub signal: i32,
    /// sigev_value.
    pub value: u64,
    /// SIGEV_*.
    pub notify: i32,
    /// Thread or process that is told.
    pub target: i32,
    /// Clock.
    pub clock: i32,
}

/// POSIX timers of a process (fs/proc/base.c, show_timer). None where the kernel does not list them.
///
/// # Errors
/// A text that is not understood.
pub fn posix_timers(pid: i32) -> io::Result<Vec<TimerFacts>> {
    let text = proctext::list_text(format!("/proc/{pid}/timers")).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .chunks(4)
        .map(|four| parse_timer(four).ok_or_else(|| bad("timers", four.join("; ").as_bytes())))
        .collect()
}

fn parse_timer(lines: &[&str]) -> Option<TimerFacts> {
    let [id, signal, notify, clock] = lines else { return None };
    let (number, value) = signal.strip_prefix("signal: ")?.split_once('/')?;
    let (kind, target) = notify.strip_prefix("notify: ")?.split_once('/')?;
    let (whom, target) = target.split_once('.')?;
    let kind = match (kind, whom) {
        ("signal", "tid") => libc::SIGEV_THREAD_ID,
        ("signal", _) => libc::SIGEV_SIGNAL,
        ("none", _) => libc::SIGEV_NONE,
        _ => return None,
    };
    Some(TimerFacts {
        id: id.strip_prefix("ID: ")?.parse().ok()?,
        signal: number.parse().ok()?,
        value: u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()?,
        notify: kind,
        target: target.parse().ok()?,
        clock: clock.strip_prefix("ClockID: ")?.parse().ok()?,
    })
}

/// What the scheduler says of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedFacts {
    /// When it was last put on or taken off its processor, on that processor's scheduler clock, nanoseconds.
    pub exec_start_ns: u64,
    /// Times it gave the processor away by itself.
    pub voluntary_switches: u64,
}

/// `/proc/PID/task/TID/sched` (kernel/sched/debug.c). `None` where the kernel does not print it.
pub fn sched_facts(pid: i32, tid: i32) -> Option<SchedFacts> {
    parse_sched(&proctext::record_text(format!("/proc/{pid}/task/{tid}/sched")).ok()?)
}

/// The same of the calling thread.
pub fn own_sched_facts() -> Option<SchedFacts> {
    parse_sched(&proctext::record_text("/proc/thread-self/sched").ok()?)
}

fn parse_sched(text: &str) -> Option<SchedFacts> {
    let value = |key: &str| text.lines().find(|line| line.starts_with(key))?.rsplit([' ', ':']).next();
    let (milliseconds, fraction) = value("se.exec_start")?.split_once('.')?;
    let nanoseconds = format!("{fraction:0<6}");
    Some(SchedFacts {
        exec_start_ns: milliseconds.parse::<u64>().ok()? * 1_000_000
            + nanoseconds.get(..6)?.parse::<u64>().ok()?,
        voluntary_switches: value("nr_voluntary_switches")?.parse().ok()?,
    })
}

/// How long the main thread has waited for a processor since its start, ns; 0: this kernel does not count it
/// (Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat). What it waits just now counts when it is over.
///
/// # Errors
/// Process gone, or not understood.
pub fn queued_ns(pid: i32) -> io::Result<u64> {
    let text = proctext::record_text(format!("/proc/{pid}/schedstat"))?;
    let number = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    number.ok_or_else(|| bad("schedstat", text.as_bytes()))
}

/// Counts the minor page faults of a process, all its threads together, those that have ended too.
///
/// Field 10 of /proc/PID/stat; the kernel adds to it as each fault is done (mm/memory.c, mm_account_fault), so it is
/// never behind. Reading costs about 1 us, 3 us with 64 threads.
pub struct FaultCounter(fs::File);

fn minor_faults(text: &[u8]) -> Option<u64> {
    after_name(text)?.nth(7)?.parse().ok()
}

impl FaultCounter {
    /// Opens it.
    ///
    /// # Errors
    /// Process gone, no descriptor left.
    pub fn open(pid: i32) -> io::Result<FaultCounter> {
        fs::File::open(format!("/proc/{pid}/stat")).map(FaultCounter)
    }
    /// Faults since the process began.
    ///
    /// # Errors
    /// Process gone.
    pub fn read(&self) -> io::Result<u64> {
        let mut text = [0; 1024];
        let len = self.0.read_at(&mut text, 0)?;
        minor_faults(&text[..len]).ok_or_else(|| bad("stat", &text[..len]))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_understood() {
        let lines = ["ID: 3", "signal: 27/00007f0000000010", "notify: signal/tid.77", "ClockID: 1"];
        let facts = parse_timer(&lines).unwrap();
        assert_eq!((facts.id, facts.signal, facts.value, facts.target), (3, 27, 0x7f00_0000_0010, 77));
        assert_eq!((facts.notify, facts.clock), (libc::SIGEV_THREAD_ID, 1));
        assert!(parse_timer(&["ID: x", "", "", ""]).is_none() && parse_timer(&["ID: 1"]).is_none());
    }

    #[test]
    fn faults_are_counted_as_they_happen() {
        assert_eq!(minor_faults(b"7 (a) b (c)) R 1 2 3 4 5 6 77 8"), Some(77));
        assert_eq!(minor_faults(b"7 (a) R 1 2 3"), None);
        assert_eq!(minor_faults(b""), None);
        let counter = FaultCounter::open(std::process::id().cast_signed()).unwrap();
        let before = counter.read().unwrap();
        let pages = 64;
        // Fresh memory, beyond what the allocator keeps.
        let memory = vec![1_u8; pages << 16];
        std::hint::black_box(&memory);
        assert!(counter.read().unwrap() >= before + 2, "{before}");
    }
}
