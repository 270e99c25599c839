//! Process and thread ids after a restart in which the kernel did not give the old ones back.
//!
//! Runs in: the host program, any thread, also in signal handlers. One list, [`RULES`], says which calls have ids
//! and where; the exports below and `syscall(2)` go through it. While [`SharedPage::VIRTUAL_IDS`] is 0 (always, but
//! after such a restart) each costs one load more than the plain call. Invariants: arguments are turned into the
//! kernel's ids, results into those that the program knows; an id that is not in the table is the same on both sides.
//! Not hooked, on purpose:
//! - `raise`, `abort`, `pthread_kill`, `pthread_sigqueue`, `pthread_setaffinity_np`, …: glibc takes the thread's id
//!   from its own descriptor, into which the agent writes the kernel's id at the restart.
//! - `wait*`, `fork`, `clone`: about children, and only one process is restarted.
//! - file locks, F_SETOWN, `/proc/PID`, SIGEV_THREAD_ID timers, ids in messages: have the kernel's ids.
//! - system calls not made through the C library.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::shared;
#[cfg(not(test))]
use crate::{addresses, advice, aio, attributes, io_uring, ipc, segments};
use crate::{host, sys};
use core::ffi::{c_int, c_long, c_void};
use holdfast_abi::{IdPair, SharedPage};

/// Where a system call has ids.
struct Rule {
    /// Its number.
    call: c_long,
    /// Bit n: argument n is an id (0: the caller itself; negative: a process group; both are kept).
    arguments: u8,
    /// The result is an id.
    result: bool,
}

const fn rule(call: c_long, arguments: u8, result: bool) -> Rule {
    Rule { call, arguments, result }
}

/// All calls that are translated.
static RULES: [Rule; 31] = [
    rule(libc::SYS_getpid, 0, true),
    rule(libc::SYS_gettid, 0, true),
    rule(libc::SYS_getppid, 0, true),
    rule(libc::SYS_getpgrp, 0, true),
    rule(libc::SYS_getpgid, 1, true),
    rule(libc::SYS_getsid, 1, true),
    rule(libc::SYS_setsid, 0, true),
    rule(libc::SYS_setpgid, 0b11, false),
    rule(libc::SYS_set_tid_address, 0, true),
    rule(libc::SYS_kill, 1, false),
    rule(libc::SYS_tkill, 1, false),
    rule(libc::SYS_tgkill, 0b11, false),
    rule(libc::SYS_rt_sigqueueinfo, 1, false),
    rule(libc::SYS_rt_tgsigqueueinfo, 0b11, false),
    rule(libc::SYS_sched_getaffinity, 1, false),
    rule(libc::SYS_sched_setaffinity, 1, false),
    rule(libc::SYS_sched_getscheduler, 1, false),
    rule(libc::SYS_sched_setscheduler, 1, false),
    rule(libc::SYS_sched_getparam, 1, false),
    rule(libc::SYS_sched_setparam, 1, false),
    rule(libc::SYS_sched_getattr, 1, false),
    rule(libc::SYS_sched_setattr, 1, false),
    rule(libc::SYS_sched_rr_get_interval, 1, false),
    rule(libc::SYS_getpriority, 0b10, false),
    rule(libc::SYS_setpriority, 0b10, false),
    rule(libc::SYS_ioprio_get, 0b10, false),
    rule(libc::SYS_ioprio_set, 0b10, false),
    rule(libc::SYS_prlimit64, 1, false),
    rule(libc::SYS_pidfd_open, 1, false),
    rule(libc::SYS_process_vm_readv, 1, false),
    rule(libc::SYS_process_vm_writev, 1, false),
];

/// The id on one side of the table that belongs to `id` on the other; `id` itself if there is none.
fn look_up(id: i32, matches: impl Fn(i32, i32) -> Option<i32>) -> i32 {
    let count = shared::from_agent(SharedPage::ID_COUNT).min(SharedPage::ID_MAX as u64) as usize;
    for index in 0..count {
        let pair = shared::from_agent(SharedPage::ID_TABLE + index * size_of::<IdPair>());
        if let Some(other) = matches(pair as i32, (pair >> 32) as i32) {
            return other;
        }
    }
    id
}

/// The id that the program knows for the kernel's `id`.
pub fn to_known(id: i32) -> i32 {
    if shared::from_agent(SharedPage::VIRTUAL_IDS) == 0 || id <= 0 {
        return id;
    }
    look_up(id, |known, kernel| (kernel == id).then_some(known))
}

/// The kernel's id for the one that the program knows; process groups are negative.
fn to_kernel(id: i32) -> i32 {
    match id {
        i32::MIN | -1 | 0 => id,
        group if group < 0 => -look_up(-group, |known, kernel| (known == -group).then_some(kernel)),
        id => look_up(id, |known, kernel| (known == id).then_some(kernel)),
    }
}

/// Makes a call for the program, translated where ids are virtual.
///
/// # Safety
/// As for the system call.
#[inline(always)]
unsafe fn call(number: c_long, args: [usize; 6]) -> isize {
    if shared::from_agent(SharedPage::VIRTUAL_IDS) == 0 {
        // SAFETY: the caller's promise.
        unsafe { sys::raw(number, args) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { translated(number, args) }
    }
}

/// # Safety
/// As for the system call.
#[cold]
unsafe fn translated(number: c_long, mut args: [usize; 6]) -> isize {
    let Some(rule) = RULES.iter().find(|rule| rule.call == number) else {
        // SAFETY: the caller's promise.
        return unsafe { sys::raw(number, args) };
    };
    // `who` of these four is an id of a process or group, unless the first argument says: of a user.
    let about_user = match number {
        libc::SYS_getpriority | libc::SYS_setpriority => args[0] == libc::PRIO_USER as usize,
        libc::SYS_ioprio_get | libc::SYS_ioprio_set => args[0] == 3,
        _ => false,
    };
    for (position, argument) in args.iter_mut().enumerate() {
        if rule.arguments & (1 << position) != 0 && !about_user {
            *argument = to_kernel(*argument as i32) as usize;
        }
    }
    // SAFETY: the caller's promise; ids are no pointers.
    let result = unsafe { sys::raw(number, args) };
    if rule.result && result > 0 { to_known(result as i32) as isize } else { result }
}

/// [`call`] with the result as C functions return it.
///
/// # Safety
/// As for the system call.
#[inline(always)]
unsafe fn c_call(number: c_long, args: [usize; 6]) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { call(number, args) };
    if result < 0 {
        host::set_errno(-result as c_int);
        return -1;
    }
    result as c_int
}

/// Exports that do nothing but the call of the same name: their arguments are plain numbers or pointers passed on.
macro_rules! plain {
    ($($(#[$text:meta])* $name:ident($($argument:ident: $kind:ty),*) = $number:ident;)*) => {$(
        $(#[$text])*
        ///
        /// # Safety
        /// As for the C function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let mut args = [0; 6];
            let given: [usize; plain!(@count $($argument)*)] = [$($argument as usize),*];
            for (place, value) in args.iter_mut().zip(given) {
                *place = value;
            }
            // SAFETY: the C function makes just this call with these arguments.
            unsafe { c_call(libc::$number, args) }
        }
    )*};
    (@count) => { 0 };
    (@count $first:ident $($rest:ident)*) => { 1 + plain!(@count $($rest)*) };
}

plain! {
    /// `getpid(2)`.
    getpid() = SYS_getpid;
    /// `gettid(2)`.
    gettid() = SYS_gettid;
    /// `getppid(2)`.
    getppid() = SYS_getppid;
    /// `getpgrp(2)`.
    getpgrp() = SYS_getpgrp;
    /// `getpgid(2)`.
    getpgid(pid: c_int) = SYS_getpgid;
    /// `getsid(2)`.
    getsid(pid: c_int) = SYS_getsid;
    /// `setpgid(2)`.
    setpgid(pid: c_int, group: c_int) = SYS_setpgid;
    /// `kill(2)`.
    kill(pid: c_int, signal: c_int) = SYS_kill;
    /// `tgkill(2)`.
    tgkill(group: c_int, thread: c_int, signal: c_int) = SYS_tgkill;
    /// `sched_setaffinity(2)`.
    sched_setaffinity(pid: c_int, len: usize, mask: *const c_void) = SYS_sched_setaffinity;
    /// `sched_getscheduler(2)`.
    sched_getscheduler(pid: c_int) = SYS_sched_getscheduler;
    /// `sched_setscheduler(2)`.
    sched_setscheduler(pid: c_int, policy: c_int, param: *const c_void) = SYS_sched_setscheduler;
    /// `sched_getparam(2)`.
    sched_getparam(pid: c_int, param: *mut c_void) = SYS_sched_getparam;
    /// `sched_setparam(2)`.
    sched_setparam(pid: c_int, param: *const c_void) = SYS_sched_setparam;
    /// `setpriority(2)`.
    setpriority(which: c_int, who: c_int, nice: c_int) = SYS_setpriority;
}

/// `getpriority(2)`: the kernel returns 20 minus the nice value (man getpriority(2), "C library/kernel differences").
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn getpriority(which: c_int, who: c_int) -> c_int {
    // SAFETY: takes no pointers.
    let result = unsafe { call(libc::SYS_getpriority, [which as usize, who as usize, 0, 0, 0, 0]) };
    if result < 0 {
        host::set_errno(-result as c_int);
        return -1;
    }
    20 - result as c_int
}

/// `sched_getaffinity(2)`: the kernel returns how much it wrote; the C function returns 0 and clears the rest.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sched_getaffinity(pid: c_int, len: usize, mask: *mut u8) -> c_int {
    let asked = len.min(c_int::MAX as usize);
    // SAFETY: the kernel writes at most `asked` bytes to the caller's mask.
    let result = unsafe { call(libc::SYS_sched_getaffinity, [pid as usize, asked, mask as usize, 0, 0, 0]) };
    if result < 0 {
        host::set_errno(-result as c_int);
        return -1;
    }
    let written = (result as usize).min(len);
    // SAFETY: the caller's mask has `len` bytes.
    unsafe { mask.add(written).write_bytes(0, len - written) };
    0
}

/// `sigqueue(3)`: the sender that the receiver sees is the id that the program knows.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn sigqueue(pid: c_int, signal: c_int, value: *mut c_void) -> c_int {
    // SI_QUEUE record of siginfo_t: signo, errno, code, pid, uid, value; 128 bytes in all (man sigaction(2)).
    const SI_QUEUE: u64 = (-1_i32) as u32 as u64;
    let mut info = [0_u64; 16];
    // SAFETY: takes nothing, cannot fail.
    let (sender, user) =
        unsafe { (call(libc::SYS_getpid, [0; 6]) as u32, sys::raw(libc::SYS_getuid, [0; 6]) as u32) };
    info[0] = u64::from(signal as u32);
    info[1] = SI_QUEUE;
    info[2] = u64::from(sender) | u64::from(user) << 32;
    info[3] = value as u64;
    let args = [pid as usize, signal as usize, (&raw const info) as usize, 0, 0, 0];
    // SAFETY: the kernel reads 128 bytes of `info`.
    unsafe { c_call(libc::SYS_rt_sigqueueinfo, args) }
}

/// `syscall(2)` with virtual ids, of processes or of shared memory, about memory after a lazy restart, or about
/// settings; the same arguments in the same places as [`syscall`].
#[cfg(not(test))]
unsafe extern "C" fn syscall_translated(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let args = [a, b, c, d, e, f];
    // SAFETY: the program's own call.
    let elsewhere = unsafe {
        advice::by_number(number, args)
            .or_else(|| attributes::by_number(number, args))
            .or_else(|| segments::by_number(number, args))
            .or_else(|| ipc::by_number(number, args))
            .or_else(|| aio::by_number(number, args))
            .or_else(|| io_uring::by_number(number))
            .or_else(|| addresses::by_number(number, args))
    };
    let result = match elsewhere {
        Some(result) => result,
        // SAFETY: the program's own call.
        None => unsafe { translated(number, args) },
    };
    host::from_kernel(result) as c_long
}

// shmget, shmat and shmctl are neighbours; so are semget, semop and semctl, msgget, msgsnd, msgrcv and
// msgctl, and add_key, request_key and keyctl; and the calls of Linux AIO; and those from connect to getpeername, most
// of which have addresses.
#[cfg(not(test))]
const _: () = assert!(
    libc::SYS_shmat == libc::SYS_shmget + 1
        && libc::SYS_shmctl == libc::SYS_shmget + 2
        && libc::SYS_semctl == libc::SYS_semget + 2
        && libc::SYS_msgctl == libc::SYS_msgget + 3
        && libc::SYS_io_destroy == libc::SYS_io_setup + 1
        && libc::SYS_io_submit == libc::SYS_io_setup + 3
        && libc::SYS_getpeername == libc::SYS_connect + 10
);

/// `syscall(2)`. Without a frame of its own, as in glibc: calls that return twice, or on another stack, must find
/// nothing but the return address there.
///
/// # Safety
/// As for the C function.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() -> c_long {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "cmp qword ptr [rip + {shared} + {flag}], 0",
        "jne 2f",
        "cmp rdi, {madvise}",
        "je 4f",
        "cmp rdi, {mremap}",
        "je 4f",
        "cmp rdi, {prctl}",
        "je 2f",
        "cmp rdi, {personality}",
        "je 2f",
        "cmp rdi, {arch_prctl}",
        "je 2f",
        "cmp rdi, {set_mempolicy}",
        "je 2f",
        "cmp rdi, {mbind}",
        "je 2f",
        "cmp rdi, {mlockall}",
        "je 2f",
        "cmp rdi, {munlockall}",
        "je 2f",
        // Three that follow each other (asm-generic/unistd.h).
        "lea rax, [rdi - {landlock}]",
        "cmp rax, 2",
        "jbe 2f",
        "cmp rdi, {io_uring}",
        "je 2f",
        "cmp rdi, {seccomp}",
        "je 2f",
        "cmp rdi, {remap}",
        "je 2f",
        "lea rax, [rdi - {aio}]",
        "cmp rax, 3",
        "jbe 2f",
        "lea rax, [rdi - {semget}]",
        "cmp rax, 2",
        "jbe 2f",
        "lea rax, [rdi - {msgget}]",
        "cmp rax, 3",
        "jbe 2f",
        "lea rax, [rdi - {add_key}]",
        "cmp rax, 2",
        "jbe 2f",
        "cmp rdi, {semtimedop}",
        "je 2f",
        "lea rax, [rdi - {connect}]",
        "cmp rax, 10",
        "jbe 6f",
        "cmp rdi, {accept4}",
        "je 6f",
        "cmp rdi, {sendmmsg}",
        "je 6f",
        "cmp rdi, {recvmmsg}",
        "je 6f",
        "lea rax, [rdi - {shmget}]",
        "cmp rax, 2",
        "jbe 2f",
        "5:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "2:",
        "jmp {translated}",
        "4:",
        "cmp qword ptr [rip + {shared} + {lazy}], 0",
        "jne 2b",
        "jmp 5b",
        "6:",
        "cmp qword ptr [rip + {addresses}], 0",
        "jne 2b",
        "jmp 5b",
        "3:",
        "neg eax",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "call {errno}@PLT",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        ".cfi_endproc",
        shared = sym shared::SHARED,
        flag = const SharedPage::VIRTUAL_IDS,
        lazy = const SharedPage::LAZY_COUNT,
        shmget = const libc::SYS_shmget,
        semget = const libc::SYS_semget,
        msgget = const libc::SYS_msgget,
        add_key = const libc::SYS_add_key,
        semtimedop = const libc::SYS_semtimedop,
        madvise = const libc::SYS_madvise,
        mremap = const libc::SYS_mremap,
        prctl = const libc::SYS_prctl,
        personality = const libc::SYS_personality,
        arch_prctl = const libc::SYS_arch_prctl,
        set_mempolicy = const libc::SYS_set_mempolicy,
        mbind = const libc::SYS_mbind,
        mlockall = const libc::SYS_mlockall,
        munlockall = const libc::SYS_munlockall,
        landlock = const libc::SYS_landlock_create_ruleset,
        io_uring = const libc::SYS_io_uring_setup,
        seccomp = const libc::SYS_seccomp,
        remap = const libc::SYS_remap_file_pages,
        aio = const libc::SYS_io_setup,
        connect = const libc::SYS_connect,
        accept4 = const libc::SYS_accept4,
        sendmmsg = const libc::SYS_sendmmsg,
        recvmmsg = const libc::SYS_recvmmsg,
        addresses = sym addresses::TABLE,
        translated = sym syscall_translated,
        errno = sym libc::__errno_location,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn ids_are_translated_both_ways_and_unknown_ones_stay() {
        let pair = |known: u32, kernel: u32| u64::from(known) | u64::from(kernel) << 32;
        shared::word(SharedPage::ID_TABLE).store(pair(100, 7100), Relaxed);
        shared::word(SharedPage::ID_TABLE + 8).store(pair(101, 100), Relaxed);
        shared::word(SharedPage::ID_COUNT).store(2, Relaxed);
        assert_eq!(to_known(7100), 7100, "off while the flag is 0");
        shared::word(SharedPage::VIRTUAL_IDS).store(1, Relaxed);
        assert_eq!([to_known(7100), to_known(100), to_known(5), to_known(0)], [100, 101, 5, 0]);
        assert_eq!([to_kernel(100), to_kernel(101), to_kernel(5)], [7100, 100, 5]);
        assert_eq!(
            [to_kernel(-100), to_kernel(-1), to_kernel(0), to_kernel(i32::MIN)],
            [-7100, -1, 0, i32::MIN]
        );
        shared::word(SharedPage::ID_COUNT).store(u64::MAX, Relaxed);
        assert_eq!(to_kernel(3), 3, "a count beyond the table is cut");
        shared::word(SharedPage::VIRTUAL_IDS).store(0, Relaxed);
        shared::word(SharedPage::ID_COUNT).store(0, Relaxed);
    }

    #[test]
    fn no_call_is_listed_twice() {
        for (index, rule) in RULES.iter().enumerate() {
            assert!(RULES.iter().skip(index + 1).all(|other| other.call != rule.call), "{}", rule.call);
        }
    }
}
