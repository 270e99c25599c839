//! Scheduling of other tasks.
//!
//! # Safety
//! The calls take numbers and write into locals of the right type.
#![allow(unsafe_code)]

/// Scheduling of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scheduling {
    /// Nice value.
    pub nice: i32,
    /// SCHED_*.
    pub policy: u32,
    /// Static priority of real-time policies.
    pub priority: u32,
}

/// Scheduling of a thread; defaults where it cannot be read.
pub fn scheduling_of(tid: i32) -> Scheduling {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: numbers, and one int written into `param`. The raw getpriority returns 20 - nice (getpriority(2)).
    let (nice, policy) = unsafe {
        libc::sched_getparam(tid, &raw mut param);
        (libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid), libc::sched_getscheduler(tid))
    };
    Scheduling {
        nice: if nice > 0 { 20 - i32::try_from(nice).unwrap_or(20) } else { 0 },
        policy: u32::try_from(policy).unwrap_or(0),
        priority: u32::try_from(param.sched_priority).unwrap_or(0),
    }
}
