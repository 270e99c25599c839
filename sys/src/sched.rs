//! Scheduling of other tasks, and of the calling thread.
//!
//! By hand: `nix` has neither sched_getattr(2) nor ioprio_get(2).
//!
//! # Safety
//! The calls take numbers and write into locals of the right type.
#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;

/// Scheduling of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Scheduling {
    /// Nice value.
    pub nice: i32,
    /// SCHED_*, with SCHED_RESET_ON_FORK.
    pub policy: u32,
    /// Static priority of real-time policies.
    pub priority: u32,
    /// Of policy [`DEADLINE`]: runtime, deadline and period, nanoseconds, and its flags.
    pub deadline: Option<([u64; 3], u64)>,
    /// Length of its turns, nanoseconds, where that is not as a new thread has it here (Linux 6.12).
    pub turn_ns: Option<u64>,
}

/// struct sched_attr of the first version (include/uapi/linux/sched/types.h, SCHED_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Policies that share the processors by turns: SCHED_OTHER, SCHED_BATCH.
const FAIR: [u32; 2] = [libc::SCHED_OTHER.cast_unsigned(), libc::SCHED_BATCH.cast_unsigned()];
/// Policy SCHED_DEADLINE (include/uapi/linux/sched.h).
pub const DEADLINE: u32 = 6;
/// Policies whose nice value sched_getattr(2) does not tell (kernel/sched/syscalls.c, get_params).
const WITHOUT_NICE: [u32; 3] = [libc::SCHED_FIFO.cast_unsigned(), libc::SCHED_RR.cast_unsigned(), DEADLINE];

/// Scheduling of a thread; defaults where it cannot be read.
pub fn scheduling_of(tid: i32) -> Scheduling {
    /// SCHED_FLAG_RESET_ON_FORK (include/uapi/linux/sched.h).
    const RESET: u64 = 1;
    let Some(attributes) = attributes_of(tid) else { return Scheduling::default() };
    let Attributes { policy, flags, nice, priority, runtime, deadline, period, .. } = attributes;
    Scheduling {
        nice: if WITHOUT_NICE.contains(&policy) { nice_of(tid) } else { nice },
        policy: if flags & RESET == 0 { policy } else { policy | libc::SCHED_RESET_ON_FORK.cast_unsigned() },
        priority,
        deadline: (policy == DEADLINE).then_some(([runtime, deadline, period], flags)),
        turn_ns: Some(runtime).filter(|turn| FAIR.contains(&policy) && *turn != usual_turn_ns()),
    }
}

/// Length of the turns of a thread that has asked for nothing; 0: the kernel does not tell (before Linux 6.12).
fn usual_turn_ns() -> u64 {
    static USUAL: OnceLock<u64> = OnceLock::new();
    *USUAL.get_or_init(|| {
        // A thread passes its own on to those that it makes, and this process asks for short ones only in threads that
        // do nothing else.
        let own = attributes_of(std::process::id().cast_signed());
        own.filter(|own| FAIR.contains(&own.policy)).map_or(0, |own| own.runtime)
    })
}

fn attributes_of(tid: i32) -> Option<Attributes> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the call writes at most `size` bytes into `attributes`.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

/// Sets the length of a thread's turns, of policy SCHED_OTHER or SCHED_BATCH; nothing else of it changes. Any user may
/// (kernel/sched/syscalls.c, `__setparam_fair`).
///
/// # Errors
/// ESRCH; EINVAL: it has another policy.
pub fn set_turn_ns(tid: i32, turn_ns: u64) -> io::Result<()> {
    let mut attributes = attributes_of(tid).ok_or_else(io::Error::last_os_error)?;
    if !FAIR.contains(&attributes.policy) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    attributes.runtime = turn_ns;
    // SAFETY: the call reads `size` bytes of `attributes`.
    crate::check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) }).map(|_| ())
}

fn nice_of(tid: i32) -> i32 {
    // SAFETY: numbers only. The raw getpriority returns 20 - nice (getpriority(2)).
    let nice = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, tid) };
    if nice > 0 { 20 - i32::try_from(nice).unwrap_or(20) } else { 0 }
}

/// `IOPRIO_WHO_PROCESS` (include/uapi/linux/ioprio.h): one thread.
const ONE_THREAD: i32 = 1;

/// Priority of a thread's input and output, class and level as in `ioprio_get(2)`; `None` where it cannot be read.
pub fn io_priority_of(tid: i32) -> Option<u32> {
    // SAFETY: numbers only.
    u32::try_from(unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, tid) }).ok()
}

/// Sets it.
///
/// # Errors
/// EPERM: the real-time class needs privilege; ESRCH.
pub fn set_io_priority(tid: i32, priority: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    crate::check(unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, tid, priority) }).map(|_| ())
}

/// Gives a thread policy [`DEADLINE`].
///
/// # Errors
/// EPERM: it needs CAP_SYS_NICE, and all processors; EBUSY: there is no time left for it.
pub fn set_deadline(tid: i32, times_ns: [u64; 3], flags: u64) -> io::Result<()> {
    let [runtime, deadline, period] = times_ns;
    let size = u32::try_from(size_of::<Attributes>()).unwrap_or(0);
    let attributes =
        Attributes { size, policy: DEADLINE, flags, runtime, deadline, period, ..Attributes::default() };
    // SAFETY: the call reads `size` bytes of `attributes`.
    crate::check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) }).map(|_| ())
}

/// Asks for short turns for the calling thread, which sleeps most of the time: the scheduler lets it run sooner when
/// others keep the processors busy. Any user may (Linux 6.12: kernel/sched/syscalls.c, `__setparam_fair`); older
/// kernels take no notice, and a failure costs only time.
pub fn short_turns() {
    /// Shortest that the kernel grants, nanoseconds.
    const TURN_NS: u64 = 100_000;
    usual_turn_ns();
    let _ = set_turn_ns(0, TURN_NS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_of_input_and_output_is_read_and_set() {
        let tid = crate::clock::own_thread();
        let best_effort = 2 << 13; // the class, with level 0 to 7
        for priority in [best_effort | 6, best_effort | 4] {
            assert!(set_io_priority(tid, priority).is_ok());
            assert_eq!(io_priority_of(tid), Some(priority));
        }
        assert!(set_io_priority(tid, 7 << 13).is_err(), "no such class");
    }

    #[test]
    fn short_turns_change_nothing_else() {
        let tid = crate::clock::own_thread();
        let before = scheduling_of(tid);
        short_turns();
        let after = scheduling_of(tid);
        assert_eq!(Scheduling { turn_ns: before.turn_ns, ..after }, before);
        if usual_turn_ns() != 0 {
            assert_eq!((before.turn_ns, after.turn_ns), (None, Some(100_000)));
        }
    }
}
