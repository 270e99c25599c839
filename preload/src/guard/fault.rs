//! The handler of SIGSEGV: opens guarded pages, and hands every other fault on to the program.
//!
//! Runs in: any thread, at any instruction of the program; raw system calls only, no heap, `errno` untouched. All
//! signals are blocked meanwhile.
//! Invariants: a fault is ours only if it was a write that a mapping forbade, at an address of the table, or one that
//! meanwhile may be written (the guard was lifted between fault and handler): then the instruction is run again.
//! Everything else is the program's, see [`super::signals`].
//!
//! # Safety
//! The kernel calls the handler with a siginfo_t and a ucontext_t that live until it returns.
#![allow(unsafe_code)]

use super::layout::{self, Area};
use super::table::{self, Found, Inside};
use super::{hooks, signals};
use crate::sys;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::GuardArea;

/// si_code of a fault on a mapping that forbids the access (asm-generic/siginfo.h).
const SEGV_ACCERR: c_int = 2;
/// Number of the page fault exception, and its error bit "write" (Intel SDM, volume 3, 4.7 and 6.15).
const PAGE_FAULT: i64 = 14;
const WRITE: i64 = 2;

/// Installs the handler; what was there before becomes the program's. Whether that worked.
pub fn install() -> bool {
    // SAFETY: struct sigaction is plain data, all zero is valid.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    action.sa_sigaction = address();
    // Without SA_ONSTACK a program that overflows its stack could not be told so on its alternate stack.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the set is this function's.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the handler has the signature for SA_SIGINFO.
    let installed = unsafe { hooks::real_sigaction(libc::SIGSEGV, &raw const action, &raw mut before) } == 0;
    if installed {
        signals::adopt(&before);
    }
    installed
}

/// Address of the handler.
pub fn address() -> usize {
    on_fault as *const () as usize
}

/// Address of a write that a mapping forbade.
///
/// # Safety
/// The arguments of a handler with SA_SIGINFO.
unsafe fn forbidden_write(info: *const libc::siginfo_t, context: *const libc::ucontext_t) -> Option<usize> {
    // SAFETY: the caller's promise.
    let (info, registers) = unsafe { (&*info, &(*context).uc_mcontext.gregs) };
    let register = |index: c_int| registers.get(index as usize).copied().unwrap_or(0);
    let write = register(libc::REG_TRAPNO) == PAGE_FAULT && register(libc::REG_ERR) & WRITE != 0;
    // SAFETY: si_addr is valid for every SIGSEGV of the kernel, which SEGV_ACCERR says it is.
    (info.si_code == SEGV_ACCERR && write).then(|| unsafe { info.si_addr() }.addr())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's arguments.
    let address = unsafe { forbidden_write(info, context.cast_const().cast()) };
    if let (Some(area), Some(address)) = (layout::current(), address)
        && open(area, address)
    {
        return;
    }
    // SAFETY: the kernel's arguments.
    unsafe { signals::deliver(signal, info, context) };
}

/// Whether the write may be tried again.
fn open(area: Area, address: usize) -> bool {
    if area.word(GuardArea::LAST).load(Relaxed) == 0 {
        return false;
    }
    let inside = Inside::enter(area);
    let found = if table::is_armed(area) { table::resolve(area, address, false) } else { Found::Elsewhere };
    drop(inside);
    found == Found::Opened || sys::is_writable(address)
}

/// Opens what a system call is about to write to.
pub fn open_range(start: usize, len: usize) {
    if let Some(area) = layout::current()
        && is_in_force(area)
    {
        change(area, start, len, false, || ());
    }
}

/// Whether anything is guarded, or is by mistake in a forked child.
pub fn is_in_force(area: Area) -> bool {
    area.word(GuardArea::ARMED).load(Relaxed) != 0 || area.word(GuardArea::RANGES).load(Relaxed) != 0
}

/// Opens a range, and runs `work` before the agent can guard it again. `gone`: the work takes the range away.
pub fn change<T>(area: Area, start: usize, len: usize, gone: bool, work: impl FnOnce() -> T) -> T {
    let mask = sys::set_signal_mask(u64::MAX);
    let inside = Inside::enter(area);
    if table::is_armed(area) {
        table::prepare(area, start, len, gone);
    }
    let result = work();
    drop(inside);
    sys::set_signal_mask(mask);
    result
}
