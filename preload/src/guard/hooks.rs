//! The C functions that engine `slots` wraps: calls that write to buffers of the program (the kernel would
//! answer EFAULT for a guarded page), calls that wait with another signal mask, and those of [`super::signals`].
//!
//! Runs in: the host program, any thread, also in signal handlers and before constructors.
//! Each export is one jump through a word of [`TARGET`]: to the next definition where the program was not started with
//! the engine, else to a frame of this file, which notes the buffer (the agent leaves pages out that a call under way
//! may write to), opens what is guarded already, makes the call and forgets the note. The frames are assembly with
//! unwinding tables: pthread_cancel(3) unwinds through them, which no frame of Rust would allow.
//! Invariants: arguments, results and `errno` are those of the real function. Without the engine nothing is looked at.
//! Fails by: not covering a call: system calls that bypass the C library, and functions that are not in [`HOOKS`].
//!
//! # Safety
//! The exports pass registers and the two first stack words on as they are; buffers are only opened, never touched.
#![allow(unsafe_code)]

use super::layout;
use super::{fault, signals, thread};
use crate::{addresses, host};
use core::arch::naked_asm;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};
use holdfast_abi::{GuardThread, PAGE};

/// Which argument is what.
#[derive(Clone, Copy)]
enum Rule {
    /// Another function takes the place of this one.
    Instead(*const ()),
    /// Argument `.0` points to as many bytes as argument `.1` says.
    Bytes(usize, usize),
    /// Argument `.0` points to `.2` bytes times argument `.1`.
    Items(usize, usize, usize),
    /// Argument `.0` points to the product of the arguments `.1` and `.2`.
    Product(usize, usize, usize),
    /// Argument `.0` points to `.1` bytes.
    Fixed(usize, usize),
    /// Argument `.0` points to as many struct iovec as argument `.1` says.
    Vectors(usize, usize),
    /// Argument `.0` points to a struct msghdr.
    Message(usize),
    /// Argument `.0` points to a signal mask; no buffer.
    Mask(usize),
    /// Items as `.0` to `.2`, and a mask in argument `.3`.
    ItemsAndMask(usize, usize, usize, usize),
}

/// A function.
struct Hook {
    name: &'static [u8],
    frame: *const (),
    rule: Rule,
}
// SAFETY: pointers to functions, never written.
unsafe impl Sync for Hook {}

macro_rules! hooks {
    ($($index:literal $name:ident $rule:expr;)*) => {
        $(
            /// The C function of this name, see the head of the file.
            ///
            /// # Safety
            /// As for the C function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    "mov r11, [rip + {target} + 8 * {index}]",
                    "test r11, r11",
                    "jz 2f",
                    "jmp r11",
                    "2: mov r11d, {index}",
                    "jmp {first}",
                    target = sym TARGET, index = const $index, first = sym first_call,
                )
            }
        )*
        mod frames {
            $(
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        "mov r11d, {index}", "jmp {frame}",
                        index = const $index, frame = sym super::frame,
                    )
                }
            )*
        }
        /// All of them.
        static HOOKS: [Hook; [$($index),*].len()] = [$(Hook {
            name: concat!(stringify!($name), "\0").as_bytes(),
            frame: frames::$name as *const (),
            rule: $rule,
        }),*];
    };
}

hooks! {
    0 sigaction Rule::Instead(signals::sigaction as *const ());
    1 signal Rule::Instead(signals::signal as *const ());
    2 sigprocmask Rule::Instead(signals::sigprocmask as *const ());
    3 pthread_sigmask Rule::Instead(signals::pthread_sigmask as *const ());
    4 read Rule::Bytes(1, 2);
    5 pread Rule::Bytes(1, 2);
    6 pread64 Rule::Bytes(1, 2);
    7 readv Rule::Vectors(1, 2);
    8 preadv Rule::Vectors(1, 2);
    9 preadv64 Rule::Vectors(1, 2);
    10 recv Rule::Bytes(1, 2);
    11 recvfrom Rule::Bytes(1, 2);
    12 recvmsg Rule::Message(1);
    13 getrandom Rule::Bytes(0, 1);
    14 fread Rule::Product(0, 1, 2);
    15 fread_unlocked Rule::Product(0, 1, 2);
    16 __read_chk Rule::Bytes(1, 2);
    17 __pread_chk Rule::Bytes(1, 2);
    18 __pread64_chk Rule::Bytes(1, 2);
    19 __recv_chk Rule::Bytes(1, 2);
    20 __recvfrom_chk Rule::Bytes(1, 2);
    21 __fread_chk Rule::Product(0, 2, 3);
    22 poll Rule::Items(0, 1, 8);
    23 epoll_wait Rule::Items(1, 2, 12);
    24 stat Rule::Fixed(1, 144);
    25 fstat Rule::Fixed(1, 144);
    26 lstat Rule::Fixed(1, 144);
    27 fstatat Rule::Fixed(2, 144);
    28 stat64 Rule::Fixed(1, 144);
    29 fstat64 Rule::Fixed(1, 144);
    30 lstat64 Rule::Fixed(1, 144);
    31 fstatat64 Rule::Fixed(2, 144);
    32 readlink Rule::Bytes(1, 2);
    33 readlinkat Rule::Bytes(2, 3);
    34 getcwd Rule::Bytes(0, 1);
    35 waitpid Rule::Fixed(1, 4);
    36 sigsuspend Rule::Mask(0);
    37 ppoll Rule::ItemsAndMask(0, 1, 8, 3);
    38 pselect Rule::Mask(5);
    39 epoll_pwait Rule::ItemsAndMask(1, 2, 12, 4);
}

/// Where each export jumps to; 0: not known yet.
static TARGET: [AtomicUsize; HOOKS.len()] = [const { AtomicUsize::new(0) }; HOOKS.len()];
/// The definition after ours; 0: not looked for yet.
static REAL: [AtomicUsize; HOOKS.len()] = [const { AtomicUsize::new(0) }; HOOKS.len()];
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// What is to be called for `sigaction` and `signal` in place of the real ones; 0: nothing.
static KEEPERS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// From now on the exports do their work.
pub fn activate() {
    ACTIVE.store(true, Release);
    for index in 0..HOOKS.len() {
        settle(index);
    }
}

/// `sigaction`, and what replaces it.
type ActionCall = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
/// `signal`, likewise.
type SignalCall = unsafe extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

/// From now on these functions stand in for `sigaction` and `signal`.
pub fn keep_actions(action: ActionCall, signal: SignalCall) {
    for (index, keeper) in [action as *const (), signal as *const ()].into_iter().enumerate() {
        if let Some(place) = KEEPERS.get(index) {
            place.store(keeper.addr(), Release);
        }
        settle(index);
    }
}

/// What replaces an export without the engine.
fn keeper(index: usize) -> Option<usize> {
    KEEPERS.get(index).map(|keeper| keeper.load(Acquire)).filter(|keeper| *keeper != 0)
}

/// `sigaction` of what replaces it, else of the C library.
///
/// # Safety
/// As for the C function.
pub unsafe fn kept_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let call = keeper(0).unwrap_or_else(|| real(0));
    // SAFETY: an `ActionCall` (`keep_actions`), or the function of the C library; see `real_sigaction`.
    let call = unsafe { core::mem::transmute::<usize, ActionCall>(call) };
    // SAFETY: the caller's promise.
    unsafe { call(signal, new, old) }
}

/// What to call if the C library has no such function.
extern "C" fn missing() -> isize {
    host::set_errno(libc::ENOSYS);
    -1
}

/// Address of the real function.
fn real(index: usize) -> usize {
    let Some(place) = REAL.get(index) else { return missing as *const () as usize };
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

/// Decides where an export jumps to.
extern "C" fn settle(index: usize) -> usize {
    let next = real(index);
    let (Some(hook), Some(place)) = (HOOKS.get(index), TARGET.get(index)) else { return next };
    let target = match hook.rule {
        _ if !ACTIVE.load(Acquire) => keeper(index).unwrap_or(next),
        Rule::Instead(other) => other.addr(),
        _ => hook.frame.addr(),
    };
    let target = addresses::within(hook.name, target);
    place.store(target, Release);
    target
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

/// The frame around a real function: r11 is its number.
#[unsafe(naked)]
unsafe extern "C" fn frame() {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        // Two words of arguments on the stack (__recvfrom_chk has one), then the six in registers.
        "sub rsp, 80",
        "mov rax, [rbp + 16]", "mov [rsp], rax",
        "mov rax, [rbp + 24]", "mov [rsp + 8], rax",
        "mov [rsp + 16], rdi", "mov [rsp + 24], rsi", "mov [rsp + 32], rdx",
        "mov [rsp + 40], rcx", "mov [rsp + 48], r8", "mov [rsp + 56], r9",
        "mov rdi, r11",
        "lea rsi, [rsp + 16]",
        "call {before}",
        "mov r11, rax",
        "mov rdi, [rsp + 16]", "mov rsi, [rsp + 24]", "mov rdx, [rsp + 32]",
        "mov rcx, [rsp + 40]", "mov r8, [rsp + 48]", "mov r9, [rsp + 56]",
        "call r11",
        "mov [rsp + 64], rax",
        "lea rdi, [rsp + 16]",
        "call {after}",
        "mov rax, [rsp + 64]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        before = sym before, after = sym after,
    )
}

/// Gets the buffers of a call ready; returns the function to call.
unsafe extern "C" fn before(index: usize, arguments: *mut [usize; 6]) -> usize {
    // SAFETY: the frame's own array.
    let arguments = unsafe { &mut *arguments };
    let stack = arguments.as_ptr().addr();
    let argument = |number: usize| arguments.get(number).copied().unwrap_or(0);
    let bytes = |place: usize, len: usize| note(GuardThread::BYTES, argument(place), len, stack);
    let mut mask = None;
    match HOOKS.get(index).map(|hook| hook.rule) {
        Some(Rule::Bytes(place, len)) => bytes(place, argument(len)),
        Some(Rule::Items(place, count, size)) => bytes(place, argument(count).saturating_mul(size)),
        Some(Rule::Product(place, size, count)) => {
            bytes(place, argument(count).saturating_mul(argument(size)));
        }
        Some(Rule::Fixed(place, len)) => bytes(place, len),
        Some(Rule::Vectors(place, count)) => {
            note(GuardThread::VECTORS, argument(place), argument(count), stack);
        }
        Some(Rule::Message(place)) => note(GuardThread::MESSAGE, argument(place), 1, stack),
        Some(Rule::Mask(place)) => mask = Some(place),
        Some(Rule::ItemsAndMask(place, count, size, set)) => {
            bytes(place, argument(count).saturating_mul(size));
            mask = Some(set);
        }
        Some(Rule::Instead(_)) | None => {}
    }
    if let Some(place) = mask.and_then(|place| arguments.get_mut(place)) {
        // SAFETY: the caller's promise about the C function: null or a readable set.
        *place = unsafe { signals::mask_for_call(core::ptr::with_exposed_provenance(*place)) }.addr();
    }
    real(index)
}

extern "C" fn after(stack: usize) {
    thread::own().pop(stack);
}

/// Notes a buffer, then opens it: a cut in between leaves it alone, a cut before is seen.
fn note(kind: u64, address: usize, len: usize, stack: usize) {
    thread::own().push(kind, address, len, stack);
    let Some(area) = layout::current() else { return };
    if address == 0 || !fault::is_in_force(area) {
        return;
    }
    match kind {
        GuardThread::VECTORS => open_vectors(address, len),
        GuardThread::MESSAGE => open_message(address),
        _ => fault::open_range(address, len),
    }
}

/// Whether the kernel could use a pointer; a wrong one is to be refused by it, not to fault here.
fn looks_right(address: usize, align: usize) -> bool {
    address >= PAGE && address.is_multiple_of(align) && address < 1 << 56
}

/// Opens the buffers of an array of struct iovec. The array is read as the kernel will: a wrong one is the program's
/// fault, but must stay an EFAULT.
fn open_vectors(address: usize, count: usize) {
    for index in 0..count.min(libc::UIO_MAXIOV as usize) {
        let Some((start, len)) = read_pair(address.wrapping_add(index * 16)) else { return };
        fault::open_range(start, len);
    }
}

/// Opens what recvmsg(2) writes: name, control data, lengths, buffers.
fn open_message(address: usize) {
    fault::open_range(address, size_of::<libc::msghdr>());
    let (Some((name, name_len)), Some((vectors, count)), Some((control, control_len))) =
        (read_pair(address), read_pair(address + 16), read_pair(address + 32))
    else {
        return;
    };
    fault::open_range(name, name_len & u32::MAX as usize);
    fault::open_range(control, control_len);
    open_vectors(vectors, count);
}

/// Two words of the program, by a call that fails where there are none.
fn read_pair(address: usize) -> Option<(usize, usize)> {
    let mut pair = [0_usize; 2];
    (looks_right(address, 8) && crate::sys::peek(address, &mut pair)).then_some((pair[0], pair[1]))
}

/// `sigaction` of the C library.
///
/// # Safety
/// As for the C function.
pub unsafe fn real_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: entry 0 is sigaction, or `missing`, which takes no arguments and returns -1 in the same register.
    let call = unsafe { core::mem::transmute::<usize, ActionCall>(real(0)) };
    // SAFETY: the caller's promise.
    unsafe { call(signal, new, old) }
}

/// `signal` of the C library.
///
/// # Safety
/// As for the C function.
pub unsafe fn real_signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: entry 1 is signal; see `real_sigaction`.
    let call = unsafe { core::mem::transmute::<usize, SignalCall>(real(1)) };
    // SAFETY: the caller's promise.
    unsafe { call(number, handler) }
}

/// A function that changes the signal mask.
pub type MaskCall = unsafe extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;

/// `sigprocmask` of the C library.
pub fn real_sigprocmask() -> MaskCall {
    // SAFETY: entry 2 has this signature; see `real_sigaction`.
    unsafe { core::mem::transmute::<usize, MaskCall>(real(2)) }
}

/// `pthread_sigmask` of the C library.
pub fn real_pthread_sigmask() -> MaskCall {
    // SAFETY: entry 3 has this signature; see `real_sigaction`.
    unsafe { core::mem::transmute::<usize, MaskCall>(real(3)) }
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
