//! Checkpoint by signal: `run --signal N` and `run --on N=checkpoint-stop`.
//!
//! Runs in: [`install`] in the constructor; the handlers at any instruction of the program, so they make raw system
//! calls only, and are done within the patience of `agent.rs`.
//! Invariants: a signal that is not at its default action (ignored by whoever started the program) is left alone, and a
//! program that sets its own action later takes over. One that only sets the default action, as shells do when they
//! start, keeps the handler of `HOLDFAST_ON_STOP` and is told that it has what it set: the signal must not end it
//! before its image is safe. `errno` is kept.
//! Fails by: `HOLDFAST_SIGNAL` without an agent does nothing. `HOLDFAST_ON_STOP` without an agent does what the signal
//! does by default: a terminated program must not become immortal because its agent died.
//!
//! # Safety
//! Installs handlers with sigaction(2); they are `extern "C"` functions of this library, which is never unloaded.
#![allow(unsafe_code)]

use crate::guard::{hooks, signals};
use crate::{agent, host, sys};
use core::ffi::{CStr, c_int};
use core::ptr;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::environment::{ENV_ON_STOP, ENV_SIGNAL};

/// The signal whose default action is replaced for good; 0: none.
static KEPT: AtomicI32 = AtomicI32::new(0);

/// Installs a handler for each of the two variables that names a signal.
pub fn install() {
    install_for(ENV_SIGNAL, on_signal);
    if let Some(number) = install_for(ENV_ON_STOP, on_stop) {
        KEPT.store(number, Relaxed);
        hooks::keep_actions(sigaction, signal);
    }
}

/// The signal, if the handler is in force.
fn install_for(variable: &str, handler: extern "C" fn(c_int)) -> Option<c_int> {
    let signal = host::variable(variable).and_then(signal_number)?;
    // SAFETY: struct sigaction is plain data; all zero is SIG_DFL without flags.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: with a null new action it only writes the present one.
    let known = unsafe { hooks::real_sigaction(signal, ptr::null(), &raw mut action) } == 0;
    if !known || action.sa_sigaction != libc::SIG_DFL {
        return None;
    }
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler has the signature for actions without SA_SIGINFO.
    let installed = unsafe { hooks::real_sigaction(signal, &raw const action, ptr::null_mut()) } == 0;
    installed.then_some(signal)
}

/// Whether an action is our handler that is kept.
fn is_kept(action: &libc::sigaction) -> bool {
    action.sa_sigaction == on_stop as *const () as libc::sighandler_t
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
    // SAFETY: struct sigaction is plain data; all zero is SIG_DFL without flags.
    let (none, mut before): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    // SAFETY: null or readable.
    let resets = unsafe { new.as_ref() }.is_some_and(|new| new.sa_sigaction == libc::SIG_DFL);
    // SAFETY: with a null new action it only writes the present one.
    let known = unsafe { hooks::real_sigaction(signal, ptr::null(), &raw mut before) } == 0;
    let kept = known && is_kept(&before);
    let given = if resets && kept { ptr::null() } else { new };
    // SAFETY: the caller's call.
    let result = unsafe { hooks::real_sigaction(signal, given, old) };
    // SAFETY: null or writable.
    if let Some(old) = unsafe { old.as_mut() }
        && result == 0
        && is_kept(old)
    {
        *old = none;
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
        let _ = agent::request_checkpoint(false);
    });
}

extern "C" fn on_stop(signal: c_int) {
    host::keep_errno(|| {
        if agent::request_checkpoint(true).is_err() {
            sys::default_action(signal);
            // Blocked while the handler runs; takes effect when it returns.
            sys::raise(signal);
        }
    });
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
}
