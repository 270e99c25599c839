//! Calls that unmap, replace or protect memory: guarded pages are saved or waited for first.
//!
//! Runs in: the host program, any thread, also in signal handlers; the allocator of this library comes here too.
//! Invariants: without engine `slots` each is the plain system call, as in the C library. With it, no epoch begins
//! between the look at the table and the call.
//! Fails by: nothing of its own; results and `errno` are the kernel's.
//!
//! # Safety
//! The exports have the C signatures and make the call that the program asked for.
#![allow(unsafe_code)]

use super::fault;
use super::layout;
use crate::{host, sys};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::GuardArea;

/// Runs `call`, which takes the content of a range away (`gone`: the range itself).
#[inline]
pub fn around<T>(start: usize, len: usize, gone: bool, call: impl FnOnce() -> T) -> T {
    match layout::current() {
        Some(area) if area.word(GuardArea::LAST).load(Relaxed) != 0 => {
            fault::change(area, start, len, gone, call)
        }
        _ => call(),
    }
}

/// `munmap(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn munmap(start: *mut c_void, len: usize) -> c_int {
    let args = [start as usize, len, 0, 0, 0, 0];
    // SAFETY: the program's own call.
    host::from_kernel(around(start as usize, len, true, || unsafe { sys::raw(libc::SYS_munmap, args) }))
        as c_int
}

/// `mprotect(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(start: *mut c_void, len: usize, prot: c_int) -> c_int {
    let args = [start as usize, len, prot as usize, 0, 0, 0];
    // SAFETY: the program's own call.
    host::from_kernel(around(start as usize, len, true, || unsafe { sys::raw(libc::SYS_mprotect, args) }))
        as c_int
}

/// `mmap(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    start: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let args = [start as usize, len, prot as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the program's own call.
    let call = || unsafe { sys::raw(libc::SYS_mmap, args) };
    let replaces = flags & libc::MAP_FIXED != 0;
    host::from_kernel(if replaces { around(start as usize, len, true, call) } else { call() }) as *mut c_void
}

/// `mmap64`: the same.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    start: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(start, len, prot, flags, fd, offset) }
}
