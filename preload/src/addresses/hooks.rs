//! The C functions that have addresses of the internet.
//!
//! Runs in: the host program, any thread, also in signal handlers and before constructors.
//! Each export is one look at [`TABLE`] and a jump to the next definition; with tables, to a frame of this file, which
//! makes the call with translated copies. What may wait in a call that tells an address does so in a frame always:
//! there may be tables when the call returns, after a restart. The frame is assembly with unwinding tables, as in
//! `guard/hooks.rs`: pthread_cancel(3) unwinds through it. `recvfrom`, `recvmsg` and `__recvfrom_chk` are exports of
//! engine `slots`, which come here on their way ([`within`]).
//! Invariants: arguments, results and `errno` are those of the real function.
//!
//! # Safety
//! The exports pass registers and the two first stack words on as they are, but for what [`calls::before`] replaces.
#![allow(unsafe_code)]

use super::calls::{self, Frame, Rule};
use super::table::TABLE;
use crate::host;
use core::arch::naked_asm;
use core::ffi::{CStr, c_long};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

/// A function.
struct Hook {
    name: &'static [u8],
    call: c_long,
    rule: Rule,
    /// Where `guard/hooks.rs` comes here.
    stub: *const (),
}
// SAFETY: pointers to functions, never written.
unsafe impl Sync for Hook {}

/// Of a call that may be under way at a checkpoint, and tell an address after a restart, `$name` is where that goes: it
/// is in a frame always, if that is not null.
macro_rules! stub {
    ($index:literal, none) => {
        naked_asm!(
            "cmp qword ptr [rip + {table}], 0",
            "jne 3f",
            "mov r11, [rip + {target} + 8 * {index}]",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2: mov r11d, {index}",
            "jmp {first}",
            "3: mov r11d, {index}",
            "jmp {frame}",
            table = sym TABLE, target = sym TARGET, index = const $index,
            first = sym first_call, frame = sym frame,
        )
    };
    ($index:literal, $name:ident) => {
        naked_asm!(
            concat!("test ", stringify!($name), ", ", stringify!($name)),
            "jnz 3f",
            "mov r11, [rip + {target} + 8 * {index}]",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2: mov r11d, {index}",
            "jmp {first}",
            "3: mov r11d, {index}",
            "jmp {frame}",
            target = sym TARGET, index = const $index, first = sym first_call, frame = sym frame,
        )
    };
}

macro_rules! hooks {
    (
        $($index:literal $name:ident $call:ident $waits:ident $rule:expr;)*
        inner $($inner:literal $of:ident $number:ident $told:ident $how:expr;)*
    ) => {
        $(
            /// The C function of this name, see the head of the file.
            ///
            /// # Safety
            /// As for the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                stub!($index, $waits)
            }
        )*
        mod inner {
            use super::{TARGET, first_call, frame, naked_asm};
            $(
                #[unsafe(naked)]
                pub unsafe extern "C" fn $of() {
                    stub!($inner, $told)
                }
            )*
        }
        /// All of them.
        static HOOKS: [Hook; [$($index,)* $($inner),*].len()] = [
            $(Hook {
                name: concat!(stringify!($name), "\0").as_bytes(),
                call: libc::$call,
                rule: $rule,
                stub: $name as *const (),
            },)*
            $(Hook {
                name: concat!(stringify!($of), "\0").as_bytes(),
                call: libc::$number,
                rule: $how,
                stub: inner::$of as *const (),
            },)*
        ];
    };
}

hooks! {
    0 connect SYS_connect none Rule::Given(1, 2);
    1 bind SYS_bind none Rule::Given(1, 2);
    2 getsockname SYS_getsockname none Rule::Told(1, 2);
    3 getpeername SYS_getpeername none Rule::Told(1, 2);
    4 accept SYS_accept rsi Rule::Told(1, 2);
    5 accept4 SYS_accept4 rsi Rule::Told(1, 2);
    6 sendto SYS_sendto none Rule::Given(4, 5);
    7 sendmsg SYS_sendmsg none Rule::Sent;
    8 sendmmsg SYS_sendmmsg none Rule::SentMany;
    9 recvmmsg SYS_recvmmsg rsi Rule::ReceivedMany;
    inner
    10 recvfrom SYS_recvfrom r8 Rule::Told(4, 5);
    11 recvmsg SYS_recvmsg rsi Rule::Received;
    12 __recvfrom_chk SYS_recvfrom r9 Rule::Told(5, 6);
}

/// Where each goes without tables, and what a frame calls; 0: not known yet.
static TARGET: [AtomicUsize; HOOKS.len()] = [const { AtomicUsize::new(0) }; HOOKS.len()];

/// What to call if the C library has no such function.
extern "C" fn missing() -> isize {
    host::set_errno(libc::ENOSYS);
    -1
}

/// The address of what does the call itself.
extern "C" fn settle(index: usize) -> usize {
    let Some(place) = TARGET.get(index) else { return missing as *const () as usize };
    let known = place.load(Acquire);
    if known != 0 {
        return known;
    }
    let name = HOOKS.get(index).and_then(|hook| CStr::from_bytes_with_nul(hook.name).ok());
    let next = name.map_or(0, |name| host::keep_errno(|| host::next_definition(name)).addr());
    let next = if next == 0 { missing as *const () as usize } else { next };
    place.store(next, Release);
    next
}

/// Where an export of another file goes that has addresses: here, and from here on to `target`.
pub fn within(name: &[u8], target: usize) -> usize {
    let Some(index) = HOOKS.iter().position(|hook| hook.name == name) else { return target };
    if let (Some(place), Some(hook)) = (TARGET.get(index), HOOKS.get(index)) {
        place.store(target, Release);
        return hook.stub.addr();
    }
    target
}

/// What a call of `syscall(2)` has, if there are tables.
#[cfg(not(test))]
pub fn rule_of(number: c_long) -> Option<Rule> {
    if TABLE.is_empty() {
        return None;
    }
    HOOKS.iter().find(|hook| hook.call == number).map(|hook| hook.rule)
}

/// The first call of an export: finds out where it goes, with all arguments kept.
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
        "mov rdi, r11",
        "call {settle}",
        "mov r11, rax",
        "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "jmp r11",
        ".cfi_endproc",
        settle = sym settle,
    )
}

/// The frame around a real function: r11 is its number. A [`Frame`] lies at the stack pointer.
#[unsafe(naked)]
unsafe extern "C" fn frame() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, {len}",
        "mov rax, [rbp + 16]", "mov [rsp], rax",
        "mov rax, [rbp + 24]", "mov [rsp + 8], rax",
        "mov [rsp + 16], rdi", "mov [rsp + 24], rsi", "mov [rsp + 32], rdx",
        "mov [rsp + 40], rcx", "mov [rsp + 48], r8", "mov [rsp + 56], r9",
        "mov [rsp + 72], r11",
        "mov rdi, rsp",
        "call {before}",
        "mov r11, rax",
        "mov rdi, [rsp + 16]", "mov rsi, [rsp + 24]", "mov rdx, [rsp + 32]",
        "mov rcx, [rsp + 40]", "mov r8, [rsp + 48]", "mov r9, [rsp + 56]",
        "call r11",
        "mov [rsp + 64], rax",
        "mov rdi, rsp",
        "call {after}",
        "mov rax, [rsp + 64]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        len = const Frame::LEN, before = sym before, after = sym after,
    )
}

/// Gets a call ready; the function to call.
unsafe extern "C" fn before(frame: *mut Frame) -> usize {
    // SAFETY: the frame's own memory, all of it integers.
    let frame = unsafe { &mut *frame };
    let (index, real) = (frame.index, settle(frame.index));
    let Some(hook) = HOOKS.get(index) else { return real };
    if calls::before(frame, hook.rule) { calls::send_many as *const () as usize } else { real }
}

unsafe extern "C" fn after(frame: *const Frame) {
    // SAFETY: as above.
    let frame = unsafe { &*frame };
    if let Some(hook) = HOOKS.get(frame.index) {
        calls::after(frame, hook.rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_one_of_the_c_library_and_listed_once() {
        for (index, hook) in HOOKS.iter().enumerate() {
            let name = CStr::from_bytes_with_nul(hook.name).unwrap();
            assert!(HOOKS.iter().skip(index + 1).all(|other| other.name != hook.name), "{name:?}");
            assert!(!host::global_definition(name).is_null(), "{name:?}");
        }
    }
}
