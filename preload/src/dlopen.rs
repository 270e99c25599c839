//! `dlopen` without RTLD_DEEPBIND, as long as jemalloc serves.
//!
//! Called by: the program and its libraries, any thread. Why: a library that is loaded with that flag finds the C
//! library's `malloc` and `free` before ours (PHP loads its extensions so), and the first block that goes from it to
//! others, or back, ends the program. It would not find our other functions either. Without the flag it uses what the
//! rest of the program uses, as on systems that do not have it. Invariant: the C library sees the caller's return
//! address, by which it knows the caller's search path and namespace (glibc, dlfcn/dlopen.c, RETURN_ADDRESS): so
//! there is no frame of ours.
//!
//! # Safety
//! The export has the C function's signature and keeps all arguments but for the flag; where it leads was found by
//! the loader under that name.
#![allow(unsafe_code)]

use crate::{host, malloc};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// In case that the C library has no `dlopen`.
extern "C" fn nothing() -> *mut c_void {
    null_mut()
}

/// Takes the flag away, if it must go; returns the address of the C library's function.
extern "C" fn route(flags: &mut u64) -> *mut c_void {
    let deeply = u64::from(libc::RTLD_DEEPBIND.cast_unsigned());
    if malloc::is_own() {
        *flags &= !deeply;
    } else if *flags & deeply != 0 {
        holdfast_cuda_hooks::area::past_the_gate();
    }
    let mut real = REAL.load(Relaxed);
    if real.is_null() {
        real = host::next_definition(c"dlopen");
        if real.is_null() {
            real = nothing as *mut c_void;
        }
        REAL.store(real, Relaxed);
    }
    real
}

/// `dlopen(3)`, see the head of the file.
///
/// # Safety
/// As for the C function.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rsp",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {route}",
        "mov r11, rax",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp r11",
        ".cfi_endproc",
        route = sym route,
    )
}
