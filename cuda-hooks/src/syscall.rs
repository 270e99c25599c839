//! Raw system calls of what lives inside the program, without the C library and without `errno`: the one home of their
//! inline assembly, of this crate and of preload (besides its `syscall` export).
//!
//! Runs in: the host program, any thread, also in signal handlers and in a child between fork and exec. Invariants:
//! changes no `errno`, never allocates, is no cancellation point.
//!
//! # Safety
//! A system call may do anything to memory: [`raw`] says what its caller promises. `errno` is the calling thread's word
//! of the C library.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::c_int;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Makes system call `number` with all six arguments and returns the raw result (-4095 to -1: an error).
///
/// # Safety
/// Whatever the call does to the memory of the process must be sound at this place.
#[inline(always)]
pub unsafe fn raw(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call convention (man syscall(2)): rcx and r11 are clobbered, all others kept; what the
    // call does to memory is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// clone(2) of a thread: it runs `body` on the stack below `top`, and ends. The result is the kernel's, in the calling
/// thread.
///
/// # Safety
/// `flags` make a thread of this process; the stack below `top`, a multiple of 16, is its own; the kernel may write the
/// word at `id` until it has ended.
pub unsafe fn clone_thread(flags: usize, top: usize, id: usize, body: extern "C" fn()) -> isize {
    let result: isize;
    // SAFETY: the convention of `raw`. The new thread begins behind the call with rax 0 and the given stack, which is
    // aligned as for a call; it ends here. `body` is in a register that the kernel keeps.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r12",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags, in("rsi") top, in("rdx") id, in("r10") id, in("r8") 0_usize, in("r12") body,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

/// CLOCK_MONOTONIC, milliseconds.
pub fn monotonic_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [libc::CLOCK_MONOTONIC as usize, (&raw mut now).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes one timespec.
    unsafe { raw(libc::SYS_clock_gettime, args) };
    now.tv_sec.wrapping_mul(1000).wrapping_add(now.tv_nsec / 1_000_000)
}

/// Sleeps for `ns` nanoseconds, or until a signal comes.
pub fn nap(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: the kernel reads one timespec.
    unsafe { raw(libc::SYS_nanosleep, [(&raw const time).addr(), 0, 0, 0, 0, 0]) };
}

/// close(2). Errors are of no use to anybody here.
pub fn close(fd: c_int) {
    // SAFETY: only the table of open files changes; every caller closes a number that it opened.
    unsafe { raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Runs `work` and puts `errno` back to what it was.
#[inline(always)]
pub fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: returns the address of the calling thread's errno, valid as long as the thread.
    let errno = unsafe { __errno_location() };
    // SAFETY: as above; only this thread writes it meanwhile.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}
