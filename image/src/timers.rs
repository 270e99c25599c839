//! Timers of processes, and what is left of timed waits. Part of the process record; plain data.

use serde::{Deserialize, Serialize};

/// A relative timeout that must end when it would have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TimedWait {
    /// Number of the slot (`process::slots`) through which the thread continues.
    pub slot: u32,
    /// What was left at the cut, nanoseconds.
    pub remaining_ns: u64,
}

/// `struct itimerval`, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// Period; 0: one-shot.
    pub interval_us: u64,
    /// Time left; 0: not armed.
    pub value_us: u64,
}

/// A timer of `timer_create(2)`, from `/proc/PID/timers` and `timer_gettime(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its id; the same again at restart.
    pub id: i32,
    /// Clock.
    pub clock: i32,
    /// SIGEV_SIGNAL, SIGEV_NONE or SIGEV_THREAD_ID.
    pub notify: i32,
    /// Signal.
    pub signal: i32,
    /// sigev_value.
    pub value: u64,
    /// Thread that gets the signal, for SIGEV_THREAD_ID.
    pub tid: i32,
    /// Period, nanoseconds.
    pub interval_ns: u64,
    /// Time left, nanoseconds; 0: not armed.
    pub value_ns: u64,
}
