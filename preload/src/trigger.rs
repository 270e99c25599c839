//! Checkpoint by signal: `run --signal N` and `run --on N=checkpoint-stop`.
//!
//! Runs in: [`install`] in the constructor; the handlers at any instruction of the program, so they make raw system
//! calls only, and are done within the patience of `agent.rs`.
//! Invariants: a signal that is not at its default action (ignored by who started the program) is left alone. A
//! program that sets its own action for `HOLDFAST_SIGNAL` later takes over. For `HOLDFAST_ON_STOP` it does not: the
//! image comes first. What the program sets (also the default action, as shells do when they start) is kept here and
//! told to it when it asks; a handler is called when the checkpoint fails or there is no agent; what it ignores it
//! does not get. The handler of `HOLDFAST_ON_STOP` has mask and flags of the program's own. `errno` is kept.
//! Fails by: `HOLDFAST_SIGNAL` without an agent does nothing. `HOLDFAST_ON_STOP` without an agent does what the program
//! does at the signal, by default: a terminated program must not become immortal because its agent died. An action that
//! is set past `sigaction` and `signal` (sigset(3), the system call itself) takes over.
//!
//! # Safety
//! Installs handlers with sigaction(2); they are `extern "C"` functions of this library, which is never unloaded. The
//! program's own handler is jumped to with the three arguments that the kernel gave ours; one that was set without
//! SA_SIGINFO looks at the first alone.
#![allow(unsafe_code)]

use crate::guard::{hooks, signals};
use crate::{agent, host, ids, sys};
use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicUsize};
use holdfast_abi::environment::{ENV_ON_STOP, ENV_SIGNAL, ON_STOP_FAILED};

/// The signal whose action is replaced for good; 0: none.
static KEPT: AtomicI32 = AtomicI32::new(0);
/// The process that [`THEIRS`] is of: the child of a vfork(2) has another action for the signal, but this memory.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// What the program does at the signal: address of its handler, with the flags below; 0: the default action.
static THEIRS: AtomicUsize = AtomicUsize::new(0);

/// Flags in the bits that no address of a program has: the handler was set with SA_SIGINFO, and with SA_RESETHAND.
const THREE_ARGUMENTS: usize = 1 << 62;
const ONCE: usize = 1 << 61;
const ADDRESS: usize = (1 << 47) - 1;

/// Installs a handler for each of the two variables that names a signal.
pub fn install() {
    install_for(ENV_SIGNAL, on_signal as *const ());
    if let Some(number) = install_for(ENV_ON_STOP, on_stop as *const ()) {
        OWNER.store(own_id(), Relaxed);
        KEPT.store(number, Relaxed);
        hooks::keep_actions(sigaction, signal);
    }
}

/// In the child of a fork, whose memory is its own.
pub fn forked() {
    if KEPT.load(Relaxed) != 0 {
        OWNER.store(own_id(), Relaxed);
    }
}

/// As the program knows it: the same after a restart.
fn own_id() -> c_int {
    ids::to_known(sys::process_id())
}

/// The signal, if the handler is in force. It is one for three arguments, which one for a single one may be called with
/// as well (System V ABI, 3.2.3: they are in registers).
fn install_for(variable: &str, handler: *const ()) -> Option<c_int> {
    let signal = host::variable(variable).and_then(signal_number)?;
    // SAFETY: struct sigaction is plain data; all zero is SIG_DFL without flags.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: with a null new action it only writes the present one.
    let known = unsafe { hooks::real_sigaction(signal, ptr::null(), &raw mut action) } == 0;
    if !known || action.sa_sigaction != libc::SIG_DFL {
        return None;
    }
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
    // SAFETY: a handler of this file.
    let installed = unsafe { hooks::real_sigaction(signal, &raw const action, ptr::null_mut()) } == 0;
    installed.then_some(signal)
}

/// Whether an action is our handler that is kept.
fn is_kept(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_stop as *const () as libc::sighandler_t
}

/// What the program wants done, as it is kept in [`THEIRS`], and the action for the kernel.
fn replaced(wanted: &libc::sigaction) -> (usize, libc::sigaction) {
    let mut ours = *wanted;
    let handler = wanted.sa_sigaction;
    // One that no program can have is the kernel's business.
    if handler == libc::SIG_IGN || handler & !ADDRESS != 0 {
        return (0, ours);
    }
    ours.sa_sigaction = on_stop as *const () as libc::sighandler_t;
    if handler == libc::SIG_DFL {
        ours.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        return (0, ours);
    }
    let has = |flag: c_int| wanted.sa_flags & flag != 0;
    let mut theirs = handler;
    theirs |= if has(libc::SA_SIGINFO) { THREE_ARGUMENTS } else { 0 };
    theirs |= if has(libc::SA_RESETHAND) { ONCE } else { 0 };
    ours.sa_flags = wanted.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    (theirs, ours)
}

/// An action of the kernel as the program has set it. `theirs`: as in [`THEIRS`].
fn as_known(action: &mut libc::sigaction, theirs: usize) {
    if !is_kept(action) {
        return;
    }
    if theirs == 0 {
        // SAFETY: struct sigaction is plain data; all zero is SIG_DFL without flags.
        *action = unsafe { core::mem::zeroed() };
        return;
    }
    action.sa_sigaction = theirs & ADDRESS;
    if theirs & THREE_ARGUMENTS == 0 {
        action.sa_flags &= !libc::SA_SIGINFO;
    }
    if theirs & ONCE != 0 {
        action.sa_flags |= libc::SA_RESETHAND;
    }
}

/// `sigaction(2)` of the program, once a handler is kept.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if signal == 0 || signal != KEPT.load(Relaxed) {
        // SAFETY: the caller's promise.
        return unsafe { hooks::real_sigaction(signal, new, old) };
    }
    // SAFETY: null or readable.
    let wanted = unsafe { new.as_ref() }.map(replaced);
    let mut before = THEIRS.load(Acquire);
    let result = match wanted {
        Some((theirs, ours)) if own_id() == OWNER.load(Relaxed) => {
            // First: from the next signal on it may be called.
            before = THEIRS.swap(theirs, AcqRel);
            // SAFETY: the caller's call, with a handler of this file.
            let result = unsafe { hooks::real_sigaction(signal, &raw const ours, old) };
            if result != 0 {
                THEIRS.store(before, Release);
            }
            result
        }
        // In the child of a vfork(2), which is about to execute something: what it sets is for it alone, and the
        // default action is what the executed program gets anyway.
        Some((0, ours)) if is_kept(&ours) => {
            // SAFETY: the caller's call.
            unsafe { hooks::real_sigaction(signal, ptr::null(), old) }
        }
        // SAFETY: the caller's call.
        _ => unsafe { hooks::real_sigaction(signal, new, old) },
    };
    // SAFETY: null or writable.
    if let Some(old) = unsafe { old.as_mut() }
        && result == 0
    {
        as_known(old, before);
    }
    result
}

/// `signal(2)` of the program, likewise; as glibc's: SA_RESTART, the signal itself blocked.
///
/// # Safety
/// As for the C function.
pub unsafe extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    if number == 0 || number != KEPT.load(Relaxed) {
        // SAFETY: the caller's promise.
        return unsafe { hooks::real_signal(number, handler) };
    }
    // SAFETY: the caller's promise; the function is of this library.
    unsafe { signals::signal_by(sigaction, number, handler) }
}

/// A signal number that can have a handler; 32 and 33 are the C library's own.
fn signal_number(text: &CStr) -> Option<c_int> {
    let digits = text.to_bytes();
    if digits.is_empty() || digits.len() > 2 {
        return None;
    }
    let mut number: c_int = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + c_int::from(digit - b'0');
    }
    let can_be_handled = !matches!(number, libc::SIGKILL | libc::SIGSTOP | 32 | 33);
    ((1..=64).contains(&number) && can_be_handled).then_some(number)
}

extern "C" fn on_signal(_: c_int) {
    host::keep_errno(|| {
        // Without an agent there is nothing to ask.
        let _ = agent::request_checkpoint();
    });
}

/// Whether the signal says that the checkpoint has failed that it was to make.
///
/// # Safety
/// Null, or what the kernel gave a handler.
unsafe fn has_failed(info: *mut libc::siginfo_t) -> bool {
    // SAFETY: the caller's promise.
    let Some(info) = (unsafe { info.as_ref() }) else { return false };
    // SAFETY: one that was queued has a value (sigaction(2)).
    info.si_code == libc::SI_QUEUE && unsafe { info.si_value() }.sival_ptr.addr() as u64 == ON_STOP_FAILED
}

/// The handler of the stop signal. The program's own is jumped to, with what the kernel gave and nothing of ours on the
/// stack: it may leave by siglongjmp(3), an exception or pthread_exit(3), which unwind to the frame of the signal.
///
/// # Safety
/// Called by the kernel, with SA_SIGINFO.
#[unsafe(naked)]
unsafe extern "C" fn on_stop(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {next}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2: ret",
        ".cfi_endproc",
        next = sym next,
    )
}

/// Asks for the checkpoint. Returns the program's own handler if that is to be called, else 0.
///
/// # Safety
/// `info` as of [`has_failed`].
unsafe extern "C" fn next(signal: c_int, info: *mut libc::siginfo_t) -> usize {
    host::keep_errno(|| {
        // SAFETY: the caller's promise.
        let failed = unsafe { has_failed(info) };
        if !failed && agent::request_stop(signal).is_ok() {
            return 0;
        }
        let theirs = THEIRS.load(Acquire);
        if theirs & ONCE != 0 {
            // What they have set meanwhile stays.
            let _ = THEIRS.compare_exchange(theirs, 0, AcqRel, Relaxed);
        }
        // A checkpoint that has failed ends no program.
        if theirs == 0 && !failed {
            sys::default_action(signal);
            // Blocked while the handler runs; takes effect when it returns.
            sys::raise(signal);
        }
        theirs & ADDRESS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_can_have_a_handler_are_taken() {
        assert_eq!(signal_number(c"10"), Some(10));
        assert_eq!(signal_number(c"64"), Some(64));
        for text in [c"", c"0", c"9", c"19", c"32", c"33", c"65", c"100", c"-1", c"TERM", c"1 "] {
            assert_eq!(signal_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_the_program_has_set_is_what_it_is_told() {
        // SAFETY: struct sigaction is plain data; all zero is SIG_DFL without flags.
        let none: libc::sigaction = unsafe { core::mem::zeroed() };
        for flags in
            [0, libc::SA_RESTART, libc::SA_SIGINFO | libc::SA_ONSTACK, libc::SA_RESETHAND | libc::SA_NODEFER]
        {
            let mut wanted = none;
            (wanted.sa_sigaction, wanted.sa_flags) = (0x1234_5678_9abc, flags);
            let (theirs, mut action) = replaced(&wanted);
            assert!(is_kept(&action) && action.sa_flags & libc::SA_SIGINFO != 0);
            assert_eq!(action.sa_flags & libc::SA_RESETHAND, 0, "ours stays");
            as_known(&mut action, theirs);
            assert_eq!((action.sa_sigaction, action.sa_flags), (wanted.sa_sigaction, flags));
        }
        let (theirs, mut action) = replaced(&none);
        assert!(theirs == 0 && is_kept(&action));
        as_known(&mut action, theirs);
        assert_eq!((action.sa_sigaction, action.sa_flags), (libc::SIG_DFL, 0));
        let mut ignored = none;
        ignored.sa_sigaction = libc::SIG_IGN;
        let (theirs, mut action) = replaced(&ignored);
        as_known(&mut action, theirs);
        assert_eq!((theirs, action.sa_sigaction), (0, libc::SIG_IGN));
    }
}
