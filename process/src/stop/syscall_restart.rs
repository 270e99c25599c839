//! Interrupted calls: what a thread that was stopped inside a system call must be told so that it never notices.
//!
//! Pure: registers and facts in, registers and a slot out; `threads` does the system calls. The rules and the calls
//! were measured (docs/stop.md, A.2 and A.3); the kernel side is arch/x86/kernel/signal.c,
//! `arch_do_signal_or_restart`.
//!
//! * -ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND, -ERESTART_RESTARTBLOCK: the kernel goes on by itself. In an image
//!   the last one becomes -ERESTARTNOHAND with the rest of the timeout, for a new task has no restart block.
//! * -EINTR of the calls in [`eintr_is_ours`]: becomes -ERESTARTNOHAND; relative timeouts go on with the rest.
//! * a short count of a blocking transfer: the rest is transferred.

use crate::stop::continuation::Slot;
use holdfast_sys::ptrace::Registers;

/// errno values that only the kernel and a tracer see (include/linux/errno.h).
pub const ERESTARTSYS: i64 = -512;
/// Restart unless a handler ran.
pub const ERESTARTNOHAND: i64 = -514;
/// Restart through the restart block.
pub const ERESTART_RESTARTBLOCK: i64 = -516;

/// Where a call keeps its relative timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// Milliseconds in argument register n (0: rdi … 3: r10, 4: r8).
    Milliseconds(usize),
    /// Pointer to a timespec in argument register n.
    Timespec(usize),
}

/// The argument registers rdi, rsi, rdx, r10, r8.
pub fn args(regs: &Registers) -> [u64; 5] {
    [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8]
}

fn set_arg(regs: &mut Registers, index: usize, value: u64) {
    match index {
        0 => regs.rdi = value,
        1 => regs.rsi = value,
        2 => regs.rdx = value,
        3 => regs.r10 = value,
        _ => regs.r8 = value,
    }
}

/// The relative timeout of a call with these arguments, if it has a finite one that the kernel does not write back.
pub fn timeout_of(number: i64, args: &[u64; 5]) -> Option<Timeout> {
    const FUTEX_WAIT: u64 = 0;
    const FUTEX_COMMAND: u64 = 0x7f;
    const TIMER_ABSTIME: u64 = 1;
    let milliseconds = |index: usize| {
        // The argument is an int: only the low half counts.
        #[allow(clippy::cast_possible_truncation)]
        let value = args[index] as i32;
        (value > 0).then_some(Timeout::Milliseconds(index))
    };
    let timespec = |index: usize| (args[index] != 0).then_some(Timeout::Timespec(index));
    match number {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => milliseconds(3),
        libc::SYS_poll => milliseconds(2),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timespec(3),
        libc::SYS_rt_sigtimedwait => timespec(2),
        libc::SYS_io_getevents | 333 => timespec(4), // 333: io_pgetevents
        libc::SYS_nanosleep => timespec(0),
        libc::SYS_clock_nanosleep if args[1] & TIMER_ABSTIME == 0 => timespec(2),
        libc::SYS_futex if args[1] & FUTEX_COMMAND == FUTEX_WAIT => timespec(3),
        _ => None,
    }
}

/// Whether EINTR from this call, without a signal to account for it, is the work of our interrupt.
pub fn eintr_is_ours(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_io_getevents
            | 333
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
    )
}

/// A transfer that was cut short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// Index of the argument with the buffer (or the vector, or the msghdr).
    pub buffer: usize,
    /// Index of the argument with the length (or the number of buffers).
    pub length: usize,
    /// What kind of buffer.
    pub kind: Buffers,
    /// Index of the descriptor argument; `None`: not a descriptor call.
    pub descriptor: Option<usize>,
}

/// How the call names its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffers {
    /// Address and length.
    Plain,
    /// A vector of (address, length).
    Vector,
    /// struct msghdr.
    Message,
}

/// If this call may return a short count only because it was interrupted: how to continue it.
///
/// Reads of pipes, terminals and sockets return short by nature and are left alone.
pub fn transfer_of(number: i64, args: &[u64; 5]) -> Option<Short> {
    const MSG_DONTWAIT: u64 = 0x40;
    const MSG_WAITALL: u64 = 0x100;
    const GRND_NONBLOCK: u64 = 1;
    let plain = |descriptor| Some(Short { buffer: 1, length: 2, kind: Buffers::Plain, descriptor });
    match number {
        libc::SYS_write | libc::SYS_read => plain(Some(0)),
        libc::SYS_sendto if args[3] & MSG_DONTWAIT == 0 => plain(Some(0)),
        libc::SYS_recvfrom if args[3] & MSG_WAITALL != 0 && args[3] & MSG_DONTWAIT == 0 => plain(Some(0)),
        libc::SYS_writev => Some(Short { buffer: 1, length: 2, kind: Buffers::Vector, descriptor: Some(0) }),
        libc::SYS_sendmsg if args[2] & MSG_DONTWAIT == 0 => {
            Some(Short { buffer: 1, length: 2, kind: Buffers::Message, descriptor: Some(0) })
        }
        libc::SYS_getrandom if args[2] & GRND_NONBLOCK == 0 => {
            Some(Short { buffer: 0, length: 1, kind: Buffers::Plain, descriptor: None })
        }
        _ => None,
    }
}

/// The registers of a thread that goes on in slot `entry` with what is left of its timeout. `slot_timespec` is the
/// address of the slot's timespec.
pub fn continue_wait(
    regs: &Registers,
    timeout: Timeout,
    remaining_ns: u64,
    entry: u64,
    slot_timespec: u64,
) -> Registers {
    let mut out = *regs;
    out.rip = entry;
    out.rax = ERESTARTNOHAND.cast_unsigned();
    match timeout {
        // Rounded up: a wait may end late by the clock's grain, never early.
        Timeout::Milliseconds(index) => set_arg(&mut out, index, remaining_ns.div_ceil(1_000_000)),
        Timeout::Timespec(index) => set_arg(&mut out, index, slot_timespec),
    }
    out
}

/// The registers of a thread that transfers the rest in slot `entry`: `buffer` and `length` are the new arguments.
pub fn continue_transfer(regs: &Registers, short: Short, buffer: u64, length: u64, entry: u64) -> Registers {
    let mut out = *regs;
    out.rip = entry;
    out.rax = ERESTARTSYS.cast_unsigned();
    set_arg(&mut out, short.buffer, buffer);
    if short.kind != Buffers::Message {
        set_arg(&mut out, short.length, length);
    }
    out
}

/// The slot of a thread that makes its call for the first time outside any slot.
pub fn slot_for(regs: &Registers, tid: i32, done: u64, deadline_ns: u64) -> Slot {
    Slot { done, args: args(regs), rip: regs.rip, deadline_ns, tid, sp: regs.rsp, image_only: false }
}

/// The vector that is left of `vector` (address, length) after `done` bytes.
pub fn rest_of_vector(vector: &[(u64, u64)], mut done: u64) -> Vec<(u64, u64)> {
    let mut rest = Vec::with_capacity(vector.len());
    for &(address, length) in vector {
        let used = done.min(length);
        done -= used;
        if used < length {
            rest.push((address + used, length - used));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_found_where_the_call_keeps_them() {
        assert_eq!(timeout_of(libc::SYS_epoll_wait, &[3, 1, 1, 500, 0]), Some(Timeout::Milliseconds(3)));
        assert_eq!(timeout_of(libc::SYS_epoll_wait, &[3, 1, 1, u64::from(u32::MAX), 0]), None);
        assert_eq!(timeout_of(libc::SYS_futex, &[1, 128, 0, 77, 0]), Some(Timeout::Timespec(3)));
        assert_eq!(timeout_of(libc::SYS_futex, &[1, 128 | 9, 0, 77, 0]), None, "absolute");
        assert_eq!(timeout_of(libc::SYS_clock_nanosleep, &[1, 1, 77, 0, 0]), None, "absolute");
        assert_eq!(timeout_of(libc::SYS_read, &[1; 5]), None);
    }

    #[test]
    fn a_rest_of_a_vector_keeps_every_byte() {
        let vector = [(100, 10), (200, 0), (300, 5)];
        assert_eq!(rest_of_vector(&vector, 0), [(100, 10), (300, 5)]);
        assert_eq!(rest_of_vector(&vector, 10), [(300, 5)]);
        assert_eq!(rest_of_vector(&vector, 12), [(302, 3)]);
        assert_eq!(rest_of_vector(&vector, 15), []);
    }

    #[test]
    fn a_shortened_wait_never_ends_early() {
        let regs = Registers { r10: 1000, orig_rax: 232, ..Registers::default() };
        let out = continue_wait(&regs, Timeout::Milliseconds(3), 1_000_001, 0x2000, 0);
        assert_eq!((out.r10, out.rip, out.rax.cast_signed()), (2, 0x2000, -514));
    }
}
