//! What the hooks ask of the kernel, of the processor and of preload.
//!
//! Runs in: the host program, any thread, also in signal handlers; raw system calls without `errno`. `model.rs` has the
//! same names for the gate.
//!
//! # Safety
//! System calls that get memory of our own; three functions of preload, found by the linker under hidden names, which
//! take plain numbers.
#![allow(unsafe_code)]

use crate::syscall::raw as call;
use core::arch::asm;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use holdfast_abi::{KeeperAnswer, KeeperQuestion};

pub use crate::syscall::{close, keep_errno, monotonic_ms, nap};

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

/// CLOCK_MONOTONIC, nanoseconds.
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [libc::CLOCK_MONOTONIC as usize, (&raw mut now).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes one timespec.
    unsafe { call(libc::SYS_clock_gettime, args) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
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

/// Memory of [`reserve`] that is going to be used as a whole gets huge pages, where the kernel has them.
pub fn prefer_huge(start: usize, len: usize) {
    // SAFETY: advice changes no content (man madvise(2), MADV_HUGEPAGE).
    unsafe { call(libc::SYS_madvise, [start, len, libc::MADV_HUGEPAGE as usize, 0, 0, 0]) };
}

/// Processors that the calling thread may use; 1 if the kernel does not say.
pub fn processors() -> usize {
    let mut set = [0_u64; 128];
    // SAFETY: the kernel writes into the set, no more than its length (man sched_getaffinity(2)).
    let got = unsafe {
        call(libc::SYS_sched_getaffinity, [0, size_of_val(&set), set.as_mut_ptr().addr(), 0, 0, 0])
    };
    let known = usize::try_from(got).unwrap_or(0) / 8;
    let all: u32 = set.iter().take(known).map(|word| word.count_ones()).sum();
    (all as usize).max(1)
}

/// A thread of the kernel alone, which runs `body` on the stack below `top` and ends. Its id is in `id` until it has
/// ended. False: the kernel gives none.
///
/// # Safety
/// The stack is this thread's alone until `id` is 0 again; `body` uses no word of the thread's own (it has the calling
/// thread's), and never unwinds.
pub unsafe fn thread(top: usize, id: &'static AtomicU32, body: extern "C" fn()) -> bool {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    // SAFETY: the caller's promise; the kernel writes the id alone.
    unsafe { crate::syscall::clone_thread(flags as usize, top, id.as_ptr().addr(), body) > 0 }
}

/// Makes memory of [`reserve`] longer, wherever it is then; null where the kernel has none, and it is as it was.
///
/// # Safety
/// `start` and `len` are those of a reservation, and nothing refers to it but by the address that this returns.
pub unsafe fn grow(start: usize, len: usize, new: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the flag lets it move (man mremap(2)).
    let result = unsafe { call(libc::SYS_mremap, [start, len, new, libc::MREMAP_MAYMOVE as usize, 0, 0]) };
    if (-4095..0).contains(&result) {
        ptr::null_mut()
    } else {
        ptr::with_exposed_provenance_mut(result as usize)
    }
}

/// Whether memory of [`reserve`] can be written: 0, or the kernel's error.
///
/// # Safety
/// `start` and `len` are those of a reservation, which nothing writes to while it cannot be written.
pub unsafe fn protect(start: usize, len: usize, writable: bool) -> c_int {
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: the caller's promise.
    let result = unsafe { call(libc::SYS_mprotect, [start, len, prot as usize, 0, 0, 0]) };
    result.unsigned_abs() as c_int
}

/// Gives memory of [`reserve`] back.
///
/// # Safety
/// `start` and `len` are those of a reservation that nothing refers to any more.
pub unsafe fn unmap(start: usize, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) };
}

/// A random number. Where the kernel has none yet, one of chance.
pub fn random() -> u64 {
    let mut number = 0_u64;
    let args = [(&raw mut number).addr(), 8, libc::GRND_NONBLOCK as usize, 0, 0, 0];
    // SAFETY: the kernel writes eight bytes (man getrandom(2)).
    unsafe { call(libc::SYS_getrandom, args) };
    number ^ monotonic_ns() ^ thread_id() << 48
}

/// Waits for a signal of a set, which the thread has blocked: its number, or an error (man sigtimedwait(2)).
///
/// # Safety
/// `info` has room for one; `limit` is null or a time.
pub unsafe fn signal(set: &u64, info: *mut libc::siginfo_t, limit: *const libc::timespec) -> isize {
    let args = [ptr::from_ref(set).addr(), info.addr(), limit.addr(), size_of::<u64>(), 0, 0];
    // SAFETY: a set of the size that the kernel has; the rest is the caller's promise.
    unsafe { call(libc::SYS_rt_sigtimedwait, args) }
}

/// Sends a signal to this process as another has sent it.
///
/// # Safety
/// `info` is what came.
pub unsafe fn send_on(signal: c_int, info: &libc::siginfo_t) {
    // SAFETY: the kernel reads `info` (man rt_sigqueueinfo(2)); a process may send itself any.
    unsafe {
        let process = call(libc::SYS_getpid, [0; 6]);
        call(
            libc::SYS_rt_sigqueueinfo,
            [process as usize, signal as usize, ptr::from_ref(info).addr(), 0, 0, 0],
        );
    }
}

/// Names the calling thread.
pub fn name_thread(name: &core::ffi::CStr) {
    // SAFETY: the kernel reads sixteen bytes at most, up to the zero.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr().addr(), 0, 0, 0, 0]) };
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

/// Sizes of allocations that are not in images: the least and the most; 0 and 0: none.
pub fn skipped_sizes() -> (u64, u64) {
    let address = of_preload!("holdfast_cuda_skip");
    if address == 0 {
        return (0, 0);
    }
    // SAFETY: as above.
    let skip = unsafe { core::mem::transmute::<usize, extern "C" fn(u64) -> u64>(address) };
    (skip(0), skip(1))
}

/// Tells the agent, by the page of shared variables, where the area is.
pub fn announce(area: u64) {
    let address = of_preload!("holdfast_cuda_announce");
    if address != 0 {
        // SAFETY: as above.
        unsafe { core::mem::transmute::<usize, extern "C" fn(u64)>(address)(area) };
    }
}

/// Asks the keeper of the job's device memory; a descriptor may come with the answer. `None`: there is none, or it does
/// not answer.
pub fn ask_keeper(question: &KeeperQuestion) -> Option<(KeeperAnswer, Option<c_int>)> {
    type Ask = unsafe extern "C" fn(*const KeeperQuestion, *mut KeeperAnswer) -> c_int;
    let address = of_preload!("holdfast_cuda_ask_keeper");
    if address == 0 {
        return None;
    }
    let mut answer = KeeperAnswer { magic: 0, result: 0, name: 0, bytes: 0 };
    // SAFETY: not null, hence preload's function, which has this signature; both point to what outlives the call.
    let passed =
        unsafe { core::mem::transmute::<usize, Ask>(address)(ptr::from_ref(question), &raw mut answer) };
    (answer.magic == KeeperQuestion::MAGIC).then_some((answer, (passed >= 0).then_some(passed)))
}

/// What is in some words. A loop: mapping an array leaves a way to unwind in the library where it is not inlined.
pub fn loaded<const COUNT: usize>(words: [&AtomicU64; COUNT]) -> [u64; COUNT] {
    let mut values = [0; COUNT];
    for (value, word) in values.iter_mut().zip(words) {
        *value = word.load(Relaxed);
    }
    values
}

/// For the model, whose sequentially consistent operations are weaker than those of the language.
#[inline(always)]
pub fn order_of_seqcst() {}
