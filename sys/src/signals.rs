//! Signals of the calling process: masks, dispositions, signals as messages, and the way out by a signal.
//!
//! Masks are words of 64 bits, bit `n - 1` for signal `n`, as the kernel has them.
//!
//! By hand: `nix` has sets of signals that have a name, which real-time ones do not, and changes masks by way of libc,
//! which keeps two signals to itself.
//!
//! # Safety
//! The raw rt_sig* calls get pointers to locals of the kernel's layout (8 bytes of mask; struct sigaction of
//! arch/x86/include/uapi/asm/signal.h). [`record_start`] runs before `main`, from `.init_array`: it makes system calls
//! and stores into atomics, nothing else.
#![allow(unsafe_code)]

use crate::{attributes, fd, objects, ptrace};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static WAS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// What the runtime of Rust changes before `main`, as it was before: a program that is started from here must get it
/// as it was meant by the one that started us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtStart {
    /// SIGPIPE was ignored (std ignores it always).
    pub pipe_ignored: bool,
    /// Standard input, output, error were closed (std opens `/dev/null` there).
    pub closed: [bool; 3],
}

/// The state in which the process was started.
pub fn at_start() -> AtStart {
    // Referring to the entry keeps its section in the link.
    let _ = RECORD_START;
    AtStart {
        pipe_ignored: PIPE_WAS_IGNORED.load(Ordering::Relaxed),
        closed: [0, 1, 2].map(|fd: usize| WAS_CLOSED[fd].load(Ordering::Relaxed)),
    }
}

extern "C" fn record_start() {
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    for (number, closed) in (0..).zip(&WAS_CLOSED) {
        closed.store(fd::fcntl_of_number(number, libc::F_GETFD, 0).is_err(), Ordering::Relaxed);
    }
}

// SAFETY: .init_array holds pointers to functions that the loader calls before main (System V gABI, "Initialization
// and Termination Functions"); `record_start` keeps to what this file's head promises.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_START: extern "C" fn() = record_start;

/// The bit of a signal in a mask.
pub fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1).ok().and_then(|shift| 1_u64.checked_shl(shift)).unwrap_or(0)
}

fn change_mask(how: i32, mask: u64) -> u64 {
    let mut old = 0_u64;
    // SAFETY: both masks are 8 bytes, as said by the last argument; a valid `how` cannot fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut old, size_of::<u64>());
    }
    old
}

/// Blocks the signals of `mask` for this thread; returns the mask before.
pub fn block(mask: u64) -> u64 {
    change_mask(libc::SIG_BLOCK, mask)
}

/// Sets the mask of this thread.
pub fn set_mask(mask: u64) {
    change_mask(libc::SIG_SETMASK, mask);
}

/// Whether the signal is ignored.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = [0_u64; 4];
    // SAFETY: the kernel's struct sigaction is 32 bytes; only read out.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, std::ptr::null::<u64>(), action.as_mut_ptr(), 8)
    };
    result == 0 && action[0] == libc::SIG_IGN as u64
}

/// Has the signal ignored, or does what the kernel does by default. Async-signal-safe.
pub fn set_ignored(signal: i32, ignored: bool) {
    let action = [if ignored { libc::SIG_IGN } else { libc::SIG_DFL } as u64, 0, 0, 0];
    // SAFETY: no handler is installed, so no restorer is needed; 32 bytes are read.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), std::ptr::null_mut::<u64>(), 8);
    }
}

/// One signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// `si_code`: SI_USER (0) and below from another process, SI_KERNEL (0x80) from the terminal, CLD_* of SIGCHLD.
    pub code: i32,
    /// The sender, or the child.
    pub pid: i32,
}

impl Arrived {
    /// Whether the kernel itself has sent it: the terminal, to all of the foreground group.
    pub fn is_by_kernel(&self) -> bool {
        /// Of asm-generic/siginfo.h.
        const SI_KERNEL: i32 = 0x80;
        self.code == SI_KERNEL
    }
}

/// signalfd(2): blocked signals as messages.
#[derive(Debug)]
pub struct SignalMessages(OwnedFd);

impl SignalMessages {
    /// For the signals of `mask`, which the caller has blocked.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(mask: u64) -> io::Result<SignalMessages> {
        objects::new_signalfd(mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).map(SignalMessages)
    }
    /// The next one, if there is one.
    pub fn next(&self) -> Option<Arrived> {
        // struct signalfd_siginfo (signalfd(2)): signal, errno, code and sender, four bytes each, are its first fields.
        let mut info = [0; 128];
        let got = nix::unistd::read(&self.0, &mut info).ok()?;
        let word = |at: usize| info[at..at + 4].try_into().map_or(0, i32::from_ne_bytes);
        (got == info.len()).then(|| Arrived { signal: word(0), code: word(8), pid: word(12) })
    }
}

impl AsFd for SignalMessages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Ends this process as if `signal` had killed it, without a core file of its own. Returns only if it cannot be
/// (a signal that does not kill).
pub fn die_by(signal: i32) {
    attributes::close_to_others();
    set_ignored(signal, false);
    change_mask(libc::SIG_UNBLOCK, bit(signal));
    let _ = ptrace::kill(attributes::own_pid(), signal);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bits_of_valid_signals_only() {
        assert_eq!(bit(1), 1);
        assert_eq!(bit(64), 1 << 63);
        assert_eq!(bit(0), 0);
        assert_eq!(bit(65), 0);
        assert_eq!(bit(-3), 0);
    }

    #[test]
    fn a_blocked_signal_arrives_as_a_message() {
        let old = block(bit(libc::SIGUSR1));
        let messages = SignalMessages::new(bit(libc::SIGUSR1)).unwrap();
        assert_eq!(messages.next(), None);
        ptrace::tgkill(attributes::own_pid(), crate::clock::own_thread(), libc::SIGUSR1).unwrap();
        let arrived = messages.next().unwrap();
        assert_eq!((arrived.signal, arrived.code), (libc::SIGUSR1, libc::SI_TKILL));
        set_mask(old);
    }

    #[test]
    fn std_ignores_sigpipe_and_the_start_is_remembered() {
        assert!(is_ignored(libc::SIGPIPE));
        assert_eq!(at_start().closed, [false; 3]);
    }
}
