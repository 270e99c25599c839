//! SIGSEGV as the program sees it: its action and its place in signal masks, while the handler of `fault.rs` stays in
//! force and SIGSEGV is never blocked.
//!
//! Runs in: the host program, any thread, also in signal handlers. [`deliver`] runs in the handler of SIGSEGV. Where
//! the program blocks SIGSEGV, SIGSTKFLT is blocked in its place, which no kernel on x86 sends (man signal(7)): so
//! whatever saves and restores masks (siglongjmp, returning from handlers, new threads) keeps what the program means.
//! Invariants: with the kernel no thread blocks SIGSEGV by a call that goes through here, and no handler of another
//! signal does while it runs. What the program asks back is what it has set. Differences that remain: a handler
//! without SA_ONSTACK runs on the alternate stack if there is one; a mask read from a ucontext_t has the other
//! signal; sigwait(3) and signalfd(2) see no SIGSEGV.
//!
//! # Safety
//! The functions have the C signatures of those that they stand in for; what the kernel gave the handler is given on.
#![allow(unsafe_code)]

use super::{hooks, thread};
use crate::sys;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// SIGSEGV in a mask.
const SEGV: u64 = 1 << (libc::SIGSEGV - 1);
/// What is there in its place: SIGSTKFLT.
const PROXY: u64 = 1 << (libc::SIGSTKFLT - 1);

/// A mask for the kernel.
const fn to_kernel(mask: u64) -> u64 {
    if mask & SEGV != 0 { mask & !SEGV | PROXY } else { mask & !PROXY }
}

/// A mask for the program. Such with most signals were made by sigfillset(3): they had both.
const fn to_known(mask: u64) -> u64 {
    match mask & PROXY != 0 {
        true if mask.count_ones() > 32 => mask | SEGV,
        true => mask & !PROXY | SEGV,
        false => mask,
    }
}

/// The program's action for SIGSEGV.
struct Action {
    lock: AtomicBool,
    value: UnsafeCell<MaybeUninit<libc::sigaction>>,
}
// SAFETY: the value is only touched by who holds the lock.
unsafe impl Sync for Action {}

static ACTION: Action =
    Action { lock: AtomicBool::new(false), value: UnsafeCell::new(MaybeUninit::zeroed()) };

/// Changes or reads the action. All signals are blocked: a handler on the same thread would wait for ever.
fn with_action<T>(work: impl FnOnce(&mut libc::sigaction) -> T) -> T {
    let mask = sys::set_signal_mask(u64::MAX);
    while ACTION.lock.compare_exchange(false, true, Acquire, Relaxed).is_err() {
        sys::nap(1000);
    }
    // SAFETY: under the lock; zeroed is a valid struct sigaction (SIG_DFL).
    let result = work(unsafe { (*ACTION.value.get()).assume_init_mut() });
    ACTION.lock.store(false, Release);
    sys::set_signal_mask(mask);
    result
}

/// Applies `by` to a signal set. Its first word holds all 64 signals of the kernel.
///
/// # Safety
/// Readable and writable.
unsafe fn translate(set: *mut libc::sigset_t, by: fn(u64) -> u64) {
    let word: *mut u64 = set.cast();
    // SAFETY: the caller's promise; a sigset_t has 1024 bits and their alignment.
    unsafe { word.write(by(word.read())) };
}

/// Takes over what was in force when the handler was installed.
pub fn adopt(before: &libc::sigaction) {
    with_action(|action| *action = *before);
    let mask = sys::set_signal_mask(u64::MAX);
    sys::set_signal_mask(to_kernel(mask));
}

/// `sigaction(2)`.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if signal == libc::SIGSEGV {
        // SAFETY: the caller's promise: null or readable.
        let wanted = unsafe { new.as_ref() }.copied();
        let before =
            with_action(|action| wanted.map_or(*action, |wanted| core::mem::replace(action, wanted)));
        // SAFETY: null or writable.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = before;
        }
        return 0;
    }
    // SAFETY: null or readable.
    let mut wanted = unsafe { new.as_ref() }.copied();
    if let Some(wanted) = &mut wanted {
        // SAFETY: a set of this function.
        unsafe { translate(&raw mut wanted.sa_mask, to_kernel) };
    }
    let given = wanted.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's call, with a copy of its structure.
    let result = unsafe { hooks::kept_sigaction(signal, given, old) };
    if result == 0 && !old.is_null() {
        // SAFETY: the kernel wrote it.
        unsafe { translate(&raw mut (*old).sa_mask, to_known) };
    }
    result
}

/// `signal(2)`, as glibc's: SA_RESTART, the signal itself blocked.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the caller's promise; the function is of this library.
    unsafe { signal_by(sigaction, number, handler) }
}

/// The same by a `sigaction` of this library.
///
/// # Safety
/// As for the C function.
pub unsafe fn signal_by(
    sigaction: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
    number: c_int,
    handler: libc::sighandler_t,
) -> libc::sighandler_t {
    // SAFETY: struct sigaction is plain data, all zero is valid.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: a set of this function.
    unsafe { libc::sigaddset(&raw mut new.sa_mask, number) };
    // SAFETY: the caller's handler.
    match unsafe { sigaction(number, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// `sigprocmask` and `pthread_sigmask`, by the one or the other of the C library.
///
/// # Safety
/// As for the C functions.
unsafe fn change_mask(
    real: hooks::MaskCall,
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: null or readable.
    let mut copy = unsafe { set.as_ref() }.copied();
    if let Some(copy) = &mut copy {
        // SAFETY: a set of this function.
        unsafe { translate(ptr::from_mut(copy), to_kernel) };
    }
    let given = copy.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's call, with a copy of its set.
    let result = unsafe { real(how, given, old) };
    if result == 0 && !old.is_null() {
        // SAFETY: the call wrote it.
        unsafe { translate(old, to_known) };
    }
    if result == 0 && copy.is_some() && how != libc::SIG_BLOCK {
        resend();
    }
    result
}

/// A SIGSEGV that was sent while the program blocked it comes now.
#[inline]
fn resend() {
    let own = thread::own();
    if own.pending().load(Relaxed) != 0 {
        own.pending().store(0, Relaxed);
        // If it is still blocked it becomes pending again.
        sys::raise(libc::SIGSEGV);
    }
}

/// `sigprocmask(2)`.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change_mask(hooks::real_sigprocmask(), how, set, old) }
}

/// `pthread_sigmask(3)`.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { change_mask(hooks::real_pthread_sigmask(), how, set, old) }
}

/// Ends the program the way the kernel would: by the same fault, or the same signal, with the default action.
fn die(fault: bool) {
    sys::default_action(libc::SIGSEGV);
    if !fault {
        // Blocked while the handler runs; takes effect when it returns.
        sys::raise(libc::SIGSEGV);
    }
}

/// Does with a SIGSEGV what the program wants done.
///
/// # Safety
/// The arguments of a handler with SA_SIGINFO.
pub unsafe fn deliver(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the caller's promise. A positive code is the kernel's (man sigaction(2)).
    let fault = unsafe { (*info).si_code } > 0;
    let context_at: *mut libc::ucontext_t = context.cast();
    // SAFETY: the caller's promise; the first word of the set.
    let interrupted: u64 = unsafe { (&raw const (*context_at).uc_sigmask).cast::<u64>().read() };
    let blocked = interrupted & PROXY != 0;
    if !fault && blocked {
        thread::own().pending().store(1, Relaxed);
        return;
    }
    let action = with_action(|action| *action);
    match action.sa_sigaction {
        libc::SIG_IGN if !fault => return,
        // A fault can be neither ignored nor blocked (kernel/signal.c, force_sig_info_to_task).
        libc::SIG_DFL | libc::SIG_IGN => return die(fault),
        _ if blocked => return die(fault),
        _ => {}
    }
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        with_action(|action| action.sa_sigaction = libc::SIG_DFL);
    }
    // SAFETY: the first word of the set.
    let mut mask = interrupted | to_kernel(unsafe { (&raw const action.sa_mask).cast::<u64>().read() });
    if action.sa_flags & libc::SA_NODEFER == 0 {
        mask |= PROXY;
    }
    sys::set_signal_mask(mask);
    // SAFETY: the program's handler, with the signature that its flags tell, and the kernel's own arguments. errno is
    // the handler's to keep, as without us.
    unsafe {
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                core::mem::transmute(action.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = core::mem::transmute(action.sa_sigaction);
            handler(signal);
        }
    }
}

/// A copy of `set` for the kernel, in a place of this thread's; for calls that wait with another mask.
///
/// # Safety
/// Null or readable.
pub unsafe fn mask_for_call(set: *const u64) -> *const u64 {
    let room = thread::own().mask();
    if !set.is_null()
        && let Some(place) = room.first()
    {
        // SAFETY: the caller's promise; the kernel looks at 64 signals.
        place.store(to_kernel(unsafe { set.read() }), Relaxed);
        return room.as_ptr().cast();
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_come_back_as_they_were_set() {
        for mask in [0, SEGV, SEGV | 1, 1 << 5, u64::MAX, !(SEGV | PROXY)] {
            let kernel = to_kernel(mask);
            assert_eq!(kernel & SEGV, 0);
            assert_eq!(to_known(kernel), mask, "{mask:#x}");
        }
    }
}
