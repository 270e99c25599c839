//! Calls whose effect cannot be read from outside: counted, so that the agent asks threads again only when something
//! may have changed, or kept where even the thread cannot ask for it.
//!
//! Runs in: the host program, any thread, also in signal handlers.
//! Invariants: a count moves before the call and after it, so that a stop in between asks, and so does the next one.
//! Fails by: nothing of its own; the result is the kernel's.
//! Not hooked: calls by the C library itself, and system calls not made through it. What such a call sets is found in
//! the thread that the agent works in, which is asked every time, and may be an image old in the others.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for and pass arguments on as they are.
#![allow(unsafe_code)]

use crate::shared;
use crate::{filters, host, landlock, sys};
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use holdfast_abi::SharedPage;

/// Makes a call of [`by_number`]'s list; `None`: it is not in there.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let call = || unsafe { sys::raw(number, args) };
    // SAFETY: the caller's promise.
    if let Some(result) = unsafe { filters::by_number(number, args) } {
        return Some(result);
    }
    // SAFETY: the caller's promise.
    if let Some(result) = unsafe { landlock::by_number(number, args) } {
        return Some(result);
    }
    match number {
        libc::SYS_prctl if !is_remembered(args[0]) => Some(call()),
        libc::SYS_prctl | libc::SYS_set_mempolicy | libc::SYS_personality | libc::SYS_arch_prctl => {
            Some(counted(SharedPage::FACT_GENERATION, call))
        }
        libc::SYS_add_key | libc::SYS_request_key | libc::SYS_keyctl => {
            shared::word(SharedPage::KEYS).fetch_add(1, SeqCst);
            Some(counted(SharedPage::FACT_GENERATION, call))
        }
        libc::SYS_mbind => Some(counted(SharedPage::BOUND, call)),
        libc::SYS_mlockall => Some(locking(args[0], call)),
        libc::SYS_munlockall => Some(locking(0, call)),
        _ => None,
    }
}

/// Whether the agent remembers what a thread sets by this option of prctl(2).
const fn is_remembered(option: usize) -> bool {
    const PR_SET_SECUREBITS: c_int = 28;
    const PR_SET_SPECULATION_CTRL: c_int = 53;
    const PR_SET_IO_FLUSHER: c_int = 57; // all: include/uapi/linux/prctl.h
    matches!(
        option as c_int,
        libc::PR_SET_PDEATHSIG
            | libc::PR_SET_KEEPCAPS
            | libc::PR_SET_TIMERSLACK
            | libc::PR_SET_TSC
            | libc::PR_MCE_KILL
            | PR_SET_SPECULATION_CTRL
            | PR_SET_SECUREBITS
            | PR_SET_IO_FLUSHER
    )
}

fn counted(count: usize, call: impl FnOnce() -> isize) -> isize {
    shared::word(count).fetch_add(1, SeqCst);
    let result = call();
    shared::word(count).fetch_add(1, SeqCst);
    result
}

/// Keeps what holds for memory that is mapped later; MCL_CURRENT alone ends that (mm/mlock.c, apply_mlockall_flags).
fn locking(flags: usize, call: impl FnOnce() -> isize) -> isize {
    const FUTURE: usize = libc::MCL_FUTURE as usize;
    let kept = if flags & FUTURE == 0 { 0 } else { flags & (FUTURE | libc::MCL_ONFAULT as usize) };
    let result = call();
    if result == 0 {
        shared::word(SharedPage::LOCK_FUTURE).store(kept as u64, SeqCst);
    }
    result
}

/// In a child made by fork: locks and interval timers are not inherited (man mlockall(2), setitimer(2)).
pub fn forked() {
    shared::clear(shared::word(SharedPage::LOCK_FUTURE));
    if shared::word(SharedPage::NO_TIMERS).load(Relaxed) != 1 {
        shared::word(SharedPage::NO_TIMERS).store(1, Relaxed);
    }
}

/// `struct itimerval`.
type Timer = [u64; 4];

/// When the library is loaded: a program that was executed has the interval timers of the one before it.
pub fn start() {
    let is_set = |which: usize| {
        let mut timer: Timer = [0; 4];
        let args = [which, timer.as_mut_ptr().expose_provenance(), 0, 0, 0, 0];
        // SAFETY: the kernel writes a `struct itimerval`.
        let result = unsafe { sys::raw(libc::SYS_getitimer, args) };
        result != 0 || timer[2] != 0 || timer[3] != 0
    };
    if !(0..3).any(is_set) {
        shared::word(SharedPage::NO_TIMERS).store(1, Relaxed);
    }
}

/// Makes a call that may set an interval timer.
fn timing(call: impl FnOnce() -> isize) -> isize {
    shared::clear(shared::word(SharedPage::NO_TIMERS));
    call()
}

/// `setitimer(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setitimer(which: c_int, new: *const c_void, old: *mut c_void) -> c_int {
    let args = [which as usize, new.addr(), old.addr(), 0, 0, 0];
    // SAFETY: the caller's promise.
    host::from_kernel(timing(|| unsafe { sys::raw(libc::SYS_setitimer, args) })) as c_int
}

/// `alarm(2)`, which cannot fail.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn alarm(seconds: c_uint) -> c_uint {
    // SAFETY: takes a number.
    timing(|| unsafe { sys::raw(libc::SYS_alarm, [seconds as usize, 0, 0, 0, 0, 0]) }) as c_uint
}

/// `ualarm(3)`: in microseconds, by setitimer(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn ualarm(value: c_uint, interval: c_uint) -> c_uint {
    let parts = |micros: c_uint| [u64::from(micros / 1_000_000), u64::from(micros % 1_000_000)];
    let ([a, b], [c, d]) = (parts(interval), parts(value));
    let (new, mut old): (Timer, Timer) = ([a, b, c, d], [0; 4]);
    let args = [0, new.as_ptr().expose_provenance(), old.as_mut_ptr().expose_provenance(), 0, 0, 0];
    // SAFETY: both are a `struct itimerval`.
    let result = timing(|| unsafe { sys::raw(libc::SYS_setitimer, args) });
    if host::from_kernel(result) < 0 { c_uint::MAX } else { (old[2] * 1_000_000 + old[3]) as c_uint }
}

/// `personality(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn personality(persona: c_ulong) -> c_int {
    c_call(libc::SYS_personality, [persona as usize, 0, 0, 0, 0, 0])
}

/// A call by its name in C.
fn c_call(number: c_long, args: [usize; 6]) -> c_int {
    // SAFETY: the exports' callers promise what the call needs.
    let result = unsafe { by_number(number, args) }.unwrap_or(-(libc::ENOSYS as isize));
    host::from_kernel(result) as c_int
}

/// `prctl(2)`, which in C has any number of arguments: they come in registers all the same (System V ABI, 3.2.3).
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    c_call(libc::SYS_prctl, [option as usize, a as usize, b as usize, c as usize, d as usize, 0])
}

/// `mlockall(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    c_call(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0])
}

/// `munlockall(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn munlockall() -> c_int {
    c_call(libc::SYS_munlockall, [0; 6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_move_on_both_sides_of_the_call_and_locks_are_kept_when_it_worked() {
        let before = shared::word(SharedPage::FACT_GENERATION).load(SeqCst);
        let inside = counted(SharedPage::FACT_GENERATION, || {
            shared::word(SharedPage::FACT_GENERATION).load(SeqCst) as isize
        });
        assert_eq!(inside as u64, before + 1);
        assert_eq!(shared::word(SharedPage::FACT_GENERATION).load(SeqCst), before + 2);
        let kept = || shared::word(SharedPage::LOCK_FUTURE).load(SeqCst);
        let flags = |flags: c_int| flags as usize;
        locking(flags(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT), || 0);
        assert_eq!(kept(), 6);
        locking(flags(libc::MCL_FUTURE), || -12);
        assert_eq!(kept(), 6, "a call that failed changes nothing");
        locking(flags(libc::MCL_CURRENT), || 0);
        assert_eq!(kept(), 0);
        locking(flags(libc::MCL_FUTURE), || 0);
        forked();
        assert_eq!(kept(), 0);
    }
}
