//! `dlsym` and `dlvsym`, so that a program that asks for functions of the CUDA driver gets those of `cuda-hooks/`.
//!
//! Called by: the program and its libraries, any thread, also before our constructor (instrumenting runtimes look up
//! the functions that they intercept). Invariants: whatever does not begin with `cu` and a capital letter is passed on
//! by a jump, three comparisons later: the C library sees the caller's return address, by which it knows what
//! RTLD_NEXT and RTLD_DEFAULT mean (glibc, dlfcn/dlsym.c, RETURN_ADDRESS). So are the driver's names where
//! `holdfast_cuda_hooks::resolve` does not decide. Nothing of the C library is called on that way.
//! Fails by: what the C library returns.
//!
//! # Safety
//! The exports have the C functions' signatures, keep all arguments, and lead where the loader's tables say.
#![allow(unsafe_code)]

#[cfg(not(test))]
use holdfast_cuda_hooks::{address_of_dlsym, address_of_dlvsym, resolve};

/// An export: `$real` finds the C library's function; `$version` puts null in the place of the third argument, or
/// nothing. On entry the stack pointer is 8 off a multiple of 16 (System V ABI, AMD64, 3.2.2); the three arguments that
/// are kept make it even.
#[cfg(not(test))]
macro_rules! export {
    ($(#[$text:meta])* $name:ident, $real:path, $version:literal) => {
        $(#[$text])*
        ///
        /// # Safety
        /// As for the C function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                // A null name faults here, as it would there.
                "cmp byte ptr [rsi], 0x63",
                "jne 2f",
                "cmp byte ptr [rsi + 1], 0x75",
                "jne 2f",
                "movzx eax, byte ptr [rsi + 2]",
                "sub eax, 0x41",
                "cmp eax, 25",
                "ja 2f",
                $version,
                "mov rcx, [rsp + 24]",
                "call {look_up}",
                "test rdx, rdx",
                "jz 2f",
                "add rsp, 24",
                ".cfi_adjust_cfa_offset -24",
                "ret",
                ".cfi_adjust_cfa_offset 24",
                "2:",
                "call {real}",
                "mov r11, rax",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp r11",
                ".cfi_endproc",
                look_up = sym resolve::look_up,
                real = sym $real,
            )
        }
    };
}

#[cfg(not(test))]
export! {
    /// `dlsym(3)`, see the head of the file.
    dlsym, address_of_dlsym, "xor edx, edx"
}

#[cfg(not(test))]
export! {
    /// `dlvsym(3)`, see the head of the file.
    dlvsym, address_of_dlvsym, ""
}
