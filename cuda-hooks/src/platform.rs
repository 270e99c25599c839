//! What the hooks ask of the kernel, of the processor and of preload.
//!
//! Runs in: the host program, any thread, also in signal handlers; raw system calls without `errno`. `model.rs` has the
//! same names for the gate.
//!
//! # Safety
//! System calls that get memory of our own; three functions of preload, found by the linker under hidden names, which
//! take plain numbers.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::AtomicU32;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Makes a system call.
///
/// # Safety
/// What the call does to memory must be sound.
unsafe fn call(number: i64, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 convention (man syscall(2)); the rest is the caller's promise.
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

/// Waits while `word` is `value`, until it is woken, a signal comes, or `ns` nanoseconds have passed. For one process.
pub fn wait(word: &AtomicU32, value: u32, ns: i64) {
    let limit = libc::timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let args = [word.as_ptr().addr(), operation as usize, value as usize, (&raw const limit).addr(), 0, 0];
    // SAFETY: the kernel reads the word and one timespec (man futex(2)).
    unsafe { call(libc::SYS_futex, args) };
}

/// Wakes all that wait at `word`.
pub fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: changes no memory.
    unsafe { call(libc::SYS_futex, [word.as_ptr().addr(), operation as usize, i32::MAX as usize, 0, 0, 0]) };
}

/// Sleeps for `ns` nanoseconds, or until a signal comes.
pub fn nap(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: the kernel reads one timespec.
    unsafe { call(libc::SYS_nanosleep, [(&raw const time).addr(), 0, 0, 0, 0, 0]) };
}

/// CLOCK_MONOTONIC, milliseconds.
pub fn monotonic_ms() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [libc::CLOCK_MONOTONIC as usize, (&raw mut now).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes one timespec.
    unsafe { call(libc::SYS_clock_gettime, args) };
    now.tv_sec.wrapping_mul(1000).wrapping_add(now.tv_nsec / 1_000_000)
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> u64 {
    // SAFETY: takes nothing.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u64 }
}

/// New memory, zeroed, that costs nothing until it is touched; null where the kernel has none.
pub fn reserve(len: usize) -> *mut u8 {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED no mapping that exists is touched.
    let result = unsafe { call(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) };
    if (-4095..0).contains(&result) {
        ptr::null_mut()
    } else {
        ptr::with_exposed_provenance_mut(result as usize)
    }
}

/// Makes memory of [`reserve`] zero again.
///
/// # Safety
/// `start` and `len` are those of a reservation, whose content nothing needs any more.
pub unsafe fn clear(start: usize, len: usize) {
    // SAFETY: private anonymous memory reads as zero afterwards (man madvise(2), MADV_DONTNEED); the caller's promise.
    unsafe { call(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
}

/// Runs `work` and puts `errno` back to what it was.
pub fn keep_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the address of the calling thread's errno, valid as long as the thread.
    let errno = unsafe { __errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

/// The stack pointer.
#[inline(always)]
pub fn stack_pointer() -> u64 {
    let stack: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// The address of a function of preload's (`preload/src/cuda.rs`), or 0: the tests of this crate have none.
macro_rules! of_preload {
    ($symbol:literal) => {{
        let address: usize;
        // SAFETY: loads a word of the library's own table of addresses; 0 where the linker found nothing.
        unsafe {
            asm!(
                concat!(".weak ", $symbol),
                concat!("mov {}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                out(reg) address,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        address
    }};
}

/// Whether an agent answers at this process's socket.
pub fn agent_is_there() -> bool {
    let address = of_preload!("holdfast_cuda_agent_is_there");
    // SAFETY: not null, hence preload's function, which has this signature.
    address != 0 && unsafe { core::mem::transmute::<usize, extern "C" fn() -> bool>(address)() }
}

/// Who is to own device memory, as the environment has it: an owner of `CudaData`; 0: it does not say. Without preload
/// the driver.
pub fn wished_owner() -> u64 {
    let address = of_preload!("holdfast_cuda_owner");
    if address == 0 {
        return holdfast_abi::CudaData::BY_DRIVER;
    }
    // SAFETY: as above.
    unsafe { core::mem::transmute::<usize, extern "C" fn() -> u64>(address)() }
}

/// Tells the agent, by the page of shared variables, where the area is.
pub fn announce(area: u64) {
    let address = of_preload!("holdfast_cuda_announce");
    if address != 0 {
        // SAFETY: as above.
        unsafe { core::mem::transmute::<usize, extern "C" fn(u64)>(address)(area) };
    }
}

/// For the model, whose sequentially consistent operations are weaker than those of the language.
#[inline(always)]
pub fn order_of_seqcst() {}
