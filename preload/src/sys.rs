//! Raw system calls of the library, without the C library and without `errno`.
//!
//! Runs in: the host program, any thread, also in signal handlers and in a child between fork and exec. Invariants:
//! never touches `errno`, never allocates, is no cancellation point. The instruction itself is in
//! `cuda-hooks/src/syscall.rs`, for both. Fails by: `Err(number)` with the positive error number of the kernel.
//!
//! # Safety
//! A system call may do anything to memory. The functions here that take plain numbers and references are safe: the
//! kernel writes only into what is borrowed mutably. The others are `unsafe` and say what must hold.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::size_of;

// The precompiled core library names the unwinder's personality routine in its tables. Nothing unwinds here, but
// without optimisation the linker keeps the name, and the loader would refuse the library for want of it.
#[cfg(panic = "abort")]
core::arch::global_asm!(
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality: ud2"
);

// With unwinding, std would be linked into the program. `cargo check` and the lints do not come as far as to the
// assembler.
#[cfg(all(panic = "unwind", not(test)))]
core::arch::global_asm!(
    ".error \"libholdfast.so needs -C panic=abort, which cargo cannot set for one crate: make build\""
);

pub use holdfast_cuda_hooks::syscall::{close, monotonic_ms, nap, raw};

/// Result of a system call; the error is the positive error number.
pub type Sys<T> = Result<T, c_int>;

/// [`raw`] with the error split off.
///
/// # Safety
/// As [`raw`].
#[inline(always)]
unsafe fn checked(number: i64, args: [usize; 6]) -> Sys<usize> {
    // SAFETY: the caller's promise.
    let result = unsafe { raw(number, args) };
    if result < 0 { Err(-result as c_int) } else { Ok(result as usize) }
}

/// Stops the program by an illegal instruction. For code that cannot be reached.
pub fn trap() -> ! {
    // SAFETY: ud2 touches nothing and does not return.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// Moves `fd` to the lowest free number not below `floor`; where that is beyond the limit it stays where it is.
pub fn move_up(fd: c_int, floor: c_int) -> c_int {
    let args = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, floor as usize, 0, 0, 0];
    // SAFETY: only the table of open files changes.
    match unsafe { checked(libc::SYS_fcntl, args) } {
        Ok(moved) => {
            close(fd);
            moved as c_int
        }
        Err(_) => fd,
    }
}

/// dup2(2).
pub fn dup2(from: c_int, to: c_int) -> Sys<()> {
    // SAFETY: only the table of open files changes; called in a child of our own.
    unsafe { checked(libc::SYS_dup2, [from as usize, to as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Closes every descriptor from `first` on. For a child about to exec.
pub fn close_from(first: c_int) {
    // SAFETY: only the table of open files of our own child changes.
    let _ = unsafe { checked(libc::SYS_close_range, [first as usize, u32::MAX as usize, 0, 0, 0, 0]) };
}

/// pipe2(2) with O_CLOEXEC: read end, write end.
pub fn pipe() -> Sys<[c_int; 2]> {
    let mut ends = [-1; 2];
    let args = [(&raw mut ends) as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes two ints into `ends`.
    unsafe { checked(libc::SYS_pipe2, args) }.map(|_| ends)
}

/// openat(2) relative to the working directory, O_CLOEXEC added.
pub fn open(path: &CStr, flags: c_int) -> Sys<c_int> {
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (flags | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: the path is NUL-terminated and only read.
    unsafe { checked(libc::SYS_openat, args) }.map(|fd| fd as c_int)
}

/// Size of an open regular file, bytes, by lseek to its end and back.
pub fn file_size(fd: c_int) -> Sys<u64> {
    let seek = |whence: c_int| [fd as usize, 0, whence as usize, 0, 0, 0];
    // SAFETY: only the offset of a descriptor of our own changes.
    let size = unsafe { checked(libc::SYS_lseek, seek(libc::SEEK_END)) }?;
    // SAFETY: as above.
    unsafe { checked(libc::SYS_lseek, seek(libc::SEEK_SET)) }?;
    Ok(size as u64)
}

/// Back to the beginning of an open file.
pub fn rewind(fd: c_int) -> Sys<()> {
    // SAFETY: only the offset of a descriptor of our own changes.
    unsafe { checked(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_SET as usize, 0, 0, 0]) }.map(drop)
}

/// ioctl(2) with a pointer.
///
/// # Safety
/// `argument` must be what `request` reads and writes.
pub unsafe fn ioctl(fd: c_int, request: usize, argument: *mut c_void) -> Sys<()> {
    // SAFETY: the caller's promise.
    unsafe { checked(libc::SYS_ioctl, [fd as usize, request, argument as usize, 0, 0, 0]) }.map(drop)
}

/// read(2); 0 at the end.
pub fn read(fd: c_int, buffer: &mut [u8]) -> Sys<usize> {
    let args = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    unsafe { checked(libc::SYS_read, args) }
}

/// read(2) into memory of the caller of the C API.
///
/// # Safety
/// `len` bytes from `buffer` on must be writable and unused by others during the call.
pub unsafe fn read_to(fd: c_int, buffer: *mut u8, len: usize) -> Sys<usize> {
    // SAFETY: the caller's promise.
    unsafe { checked(libc::SYS_read, [fd as usize, buffer as usize, len, 0, 0, 0]) }
}

/// write(2) to a descriptor that may well be closed; the outcome does not matter.
pub fn write_note(fd: c_int, text: &[u8]) {
    let args = [fd as usize, text.as_ptr() as usize, text.len(), 0, 0, 0];
    // SAFETY: the kernel reads `text`.
    let _ = unsafe { checked(libc::SYS_write, args) };
}

/// Waits until `fd` is readable or hung up, at most `timeout_ms`. An interruption counts as not readable.
pub fn readable(fd: c_int, timeout_ms: c_int) -> bool {
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let args = [(&raw mut entry) as usize, 1, timeout_ms as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes one pollfd.
    unsafe { checked(libc::SYS_poll, args) }.is_ok_and(|ready| ready > 0)
}

/// A unix SOCK_SEQPACKET socket.
pub fn socket() -> Sys<c_int> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: only the table of open files changes.
    unsafe { checked(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }
        .map(|fd| fd as c_int)
}

/// connect(2).
pub fn connect(fd: c_int, address: &libc::sockaddr_un) -> Sys<()> {
    let args = [fd as usize, core::ptr::from_ref(address) as usize, size_of::<libc::sockaddr_un>(), 0, 0, 0];
    // SAFETY: the kernel reads one sockaddr_un.
    unsafe { checked(libc::SYS_connect, args) }.map(drop)
}

/// Bounds connect and send on `fd` (SO_SNDTIMEO; a unix connect honours it, net/unix/af_unix.c, unix_stream_connect).
pub fn bound_sending(fd: c_int, timeout_ms: i64) -> Sys<()> {
    bound(fd, libc::SO_SNDTIMEO, timeout_ms)
}

/// SO_RCVTIMEO: how long a receive may wait.
pub fn bound_receiving(fd: c_int, timeout_ms: i64) -> Sys<()> {
    bound(fd, libc::SO_RCVTIMEO, timeout_ms)
}

/// Sets an option of a socket that is a time.
fn bound(fd: c_int, option: c_int, timeout_ms: i64) -> Sys<()> {
    let limit = libc::timeval { tv_sec: timeout_ms / 1000, tv_usec: timeout_ms % 1000 * 1000 };
    let args = [
        fd as usize,
        libc::SOL_SOCKET as usize,
        option as usize,
        (&raw const limit) as usize,
        size_of::<libc::timeval>(),
        0,
    ];
    // SAFETY: the kernel reads one timeval.
    unsafe { checked(libc::SYS_setsockopt, args) }.map(drop)
}

/// SO_PEERCRED: who listens at the other end.
pub fn peer(fd: c_int) -> Sys<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as u32;
    let args = [
        fd as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_PEERCRED as usize,
        (&raw mut who) as usize,
        (&raw mut len) as usize,
        0,
    ];
    // SAFETY: the kernel writes at most `len` bytes into `who`, and the length.
    unsafe { checked(libc::SYS_getsockopt, args) }.map(|_| who)
}

/// Room for one control message with one descriptor, aligned as `cmsghdr` needs it.
#[repr(C, align(8))]
struct Ancillary {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

/// Sends one message, with `passed` as SCM_RIGHTS if given. Does not raise SIGPIPE.
pub fn send(fd: c_int, text: &[u8], passed: Option<c_int>) -> Sys<()> {
    let piece = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
    let ancillary = Ancillary {
        header: libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<c_int>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        fd: passed.unwrap_or(-1),
        padding: 0,
    };
    // SAFETY: msghdr is plain data; all zero is valid (no name, no pieces, no control message).
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = (&raw const piece).cast_mut();
    message.msg_iovlen = 1;
    if passed.is_some() {
        message.msg_control = (&raw const ancillary).cast_mut().cast();
        message.msg_controllen = size_of::<Ancillary>();
    }
    let args = [fd as usize, (&raw const message) as usize, libc::MSG_NOSIGNAL as usize, 0, 0, 0];
    // SAFETY: sendmsg only reads: the header, one iovec over `text`, one control message; all outlive the call.
    unsafe { checked(libc::SYS_sendmsg, args) }.map(drop)
}

/// Receives one message, cut to the buffer; 0 when the other end is gone.
pub fn receive(fd: c_int, buffer: &mut [u8]) -> Sys<usize> {
    let args = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    unsafe { checked(libc::SYS_recvfrom, args) }
}

/// The same with the descriptor that comes along, if one does: there is room for one, and the kernel closes others.
pub fn receive_with(fd: c_int, buffer: &mut [u8]) -> Sys<(usize, Option<c_int>)> {
    let piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let header = libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 };
    let mut ancillary = Ancillary { header, fd: -1, padding: 0 };
    // SAFETY: msghdr is plain data; all zero is valid (no name, no pieces, no control message).
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = (&raw const piece).cast_mut();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut ancillary).cast();
    // Without the padding: with it there would be room for two.
    message.msg_controllen = size_of::<libc::cmsghdr>() + size_of::<c_int>();
    let args = [fd as usize, (&raw mut message) as usize, libc::MSG_CMSG_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`, and one control message; all outlive the
    // call.
    let len = unsafe { checked(libc::SYS_recvmsg, args) }?;
    let came = message.msg_controllen >= size_of::<libc::cmsghdr>() + size_of::<c_int>();
    let is_right = came && ancillary.header.cmsg_type == libc::SCM_RIGHTS;
    Ok((len, (is_right && ancillary.fd >= 0).then_some(ancillary.fd)))
}

/// A new private anonymous mapping, at a place that the kernel chooses.
pub fn map(len: usize, prot: c_int, flags: c_int) -> Sys<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: without MAP_FIXED no mapping that exists is touched.
    unsafe { checked(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) }
        .map(|start| start as *mut u8)
}

/// munmap(2).
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(start: *mut u8, len: usize) -> Sys<()> {
    // SAFETY: the caller's promise.
    unsafe { checked(libc::SYS_munmap, [start as usize, len, 0, 0, 0, 0]) }.map(drop)
}

/// Names an anonymous mapping (`[anon:holdfast]` in the maps file), where the kernel can; also keeps it from being
/// merged with its neighbours.
pub fn name_mapping(start: *mut u8, len: usize, name: &CStr) {
    let args = [
        libc::PR_SET_VMA as usize,
        libc::PR_SET_VMA_ANON_NAME as usize,
        start as usize,
        len,
        name.as_ptr() as usize,
        0,
    ];
    // SAFETY: reads the name; changes nothing that a program can notice but the maps file.
    let _ = unsafe { checked(libc::SYS_prctl, args) };
}

/// MADV_WIPEONFORK: children made by fork find the range zeroed. Whether that was possible (Linux 4.14 on).
pub fn wipe_on_fork(start: *mut u8, len: usize) -> bool {
    let args = [start as usize, len, libc::MADV_WIPEONFORK as usize, 0, 0, 0];
    // SAFETY: changes nothing for this process.
    unsafe { checked(libc::SYS_madvise, args) }.is_ok()
}

/// Makes a range readable and writable.
///
/// # Safety
/// The range must be memory whose protection is up to the caller.
pub unsafe fn open_memory(start: usize, len: usize) -> Sys<()> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the caller's promise.
    unsafe { checked(libc::SYS_mprotect, [start, len, prot, 0, 0, 0]) }.map(drop)
}

/// Copies memory of this process; false where nothing is mapped (process_vm_readv(2) fails, where a load would fault).
pub fn peek(address: usize, into: &mut [usize; 2]) -> bool {
    let mut bytes = [0; size_of::<[usize; 2]>()];
    let done = peek_bytes(address, &mut bytes).is_ok();
    for (word, bytes) in into.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = usize::from_ne_bytes(*bytes);
    }
    done
}

/// The same of any length. EFAULT: nothing is mapped there, or not all of it.
pub fn peek_bytes(address: usize, into: &mut [u8]) -> Sys<()> {
    let len = into.len();
    let (local, remote) = ([into.as_mut_ptr() as usize, len], [address, len]);
    let args = [process_id() as usize, (&raw const local) as usize, 1, (&raw const remote) as usize, 1, 0];
    // SAFETY: the kernel reads two iovecs and writes at most `len` bytes to `into`.
    match unsafe { checked(libc::SYS_process_vm_readv, args) } {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(libc::EFAULT),
        Err(error) => Err(error),
    }
}

/// Whether the four bytes at `address` (rounded down) may be written just now; they are not changed.
///
/// FUTEX_WAKE_OP adds 0 to the word by an atomic instruction of the kernel, which fails with EFAULT where the mapping
/// forbids it (kernel/futex/waitwake.c, futex_atomic_op_inuser). It may wake a thread that waits there, which futex(2)
/// allows to happen at any time.
pub fn is_writable(address: usize) -> bool {
    const WAKE_OP_PRIVATE: usize = 5 | 128;
    /// FUTEX_OP_ADD of 0; wake if the word was -2048.
    const ADD_NOTHING: usize = 1 << 28 | 0x800;
    let own: u32 = 0;
    let args = [(&raw const own) as usize, WAKE_OP_PRIVATE, 0, 0, address & !3, ADD_NOTHING];
    // SAFETY: changes no byte; no thread waits at `own`.
    unsafe { checked(libc::SYS_futex, args) }.is_ok()
}

/// Lets process `pid` trace this one under Yama (PR_SET_PTRACER, Documentation/admin-guide/LSM/Yama.rst).
pub fn allow_tracer(pid: i32) {
    let args = [libc::PR_SET_PTRACER as usize, pid as usize, 0, 0, 0, 0];
    // SAFETY: takes no pointers. EINVAL without Yama.
    let _ = unsafe { checked(libc::SYS_prctl, args) };
}

/// A userfaultfd for faults from user mode only: allowed to every user (mm/userfaultfd.c, userfaultfd_allowed).
pub fn userfaultfd() -> Sys<c_int> {
    const UFFD_USER_MODE_ONLY: c_int = 1;
    let flags = UFFD_USER_MODE_ONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: without a registered range a userfaultfd has no effect.
    unsafe { checked(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// Effective uid.
pub fn effective_uid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { raw(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { raw(libc::SYS_gettid, [0; 6]) as i32 }
}

/// The kernel's id of this process.
pub fn process_id() -> i32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { raw(libc::SYS_getpid, [0; 6]) as i32 }
}

/// setsid(2): the kernel's id of the new session.
pub fn setsid() -> Sys<i32> {
    // SAFETY: takes no pointers.
    unsafe { checked(libc::SYS_setsid, [0; 6]) }.map(|id| id as i32)
}

/// Sends `signal` to the calling thread.
pub fn raise(signal: c_int) {
    let args = [process_id() as usize, thread_id() as usize, signal as usize, 0, 0, 0];
    // SAFETY: takes no pointers.
    let _ = unsafe { checked(libc::SYS_tgkill, args) };
}

/// A child with a copy of the memory, without fork handlers; its end raises no signal here. 0 in the child.
///
/// # Safety
/// The child may only make raw system calls and must end by [`execute`] or [`exit`].
pub unsafe fn fork_quietly() -> Sys<i32> {
    // SAFETY: without CLONE_VM and with stack 0 the child goes on with a copy of this stack (man clone(2)); exit signal
    // 0. The rest is the caller's promise.
    unsafe { checked(libc::SYS_clone, [0; 6]) }.map(|pid| pid as i32)
}

/// What /proc/self/status says of the caller, as far as there is room for it.
pub fn own_status(room: &mut [u8]) -> Option<&[u8]> {
    let file = open(c"/proc/self/status", libc::O_RDONLY).ok()?;
    let len = read(file, room).unwrap_or(0);
    close(file);
    room.get(..len)
}

/// Reaps a child made by [`fork_quietly`]; waits for its end. Its status, unless another has reaped it.
pub fn reap(pid: i32) -> Option<c_int> {
    loop {
        let mut status: c_int = 0;
        let at = (&raw mut status).expose_provenance();
        let args = [pid as usize, at, libc::__WALL as usize, 0, 0, 0];
        // SAFETY: the kernel writes a number.
        match unsafe { checked(libc::SYS_wait4, args) } {
            Err(libc::EINTR) => {}
            result => return result.is_ok().then_some(status),
        }
    }
}

/// execve(2); returns only the error number.
///
/// # Safety
/// `argv` and `envp` must be null-terminated arrays of NUL-terminated strings.
pub unsafe fn execute(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise; on success this image is gone.
    let result = unsafe { checked(libc::SYS_execve, [path as usize, argv as usize, envp as usize, 0, 0, 0]) };
    result.err().unwrap_or(0)
}

/// Ends a child of our own at once.
pub fn exit(status: c_int) -> ! {
    // SAFETY: ends the process; nothing is left to be unsound.
    unsafe { raw(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    trap()
}

/// Sets the signal mask of the calling thread; the mask before.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut before: u64 = 0;
    let args = [libc::SIG_SETMASK as usize, (&raw const mask) as usize, (&raw mut before) as usize, 8, 0, 0];
    // SAFETY: the kernel reads eight bytes and writes eight.
    let _ = unsafe { checked(libc::SYS_rt_sigprocmask, args) };
    before
}

/// Sets `signal` to its default action.
///
/// Async-signal-safe. The kernel's structure is handler, flags, restorer, mask (arch/x86/include/uapi/asm/signal.h);
/// all zero is SIG_DFL.
pub fn default_action(signal: c_int) {
    let action = [0u64; 4];
    let args = [signal as usize, (&raw const action) as usize, 0, 8, 0, 0];
    // SAFETY: the kernel reads 32 bytes.
    let _ = unsafe { checked(libc::SYS_rt_sigaction, args) };
}

/// sigaltstack(2) exactly as the program asked for it.
///
/// # Safety
/// As for the C function.
pub unsafe fn sigaltstack(new: *const c_void, old: *mut c_void) -> Sys<()> {
    // SAFETY: the caller's promise.
    unsafe { checked(libc::SYS_sigaltstack, [new as usize, old as usize, 0, 0, 0, 0]) }.map(drop)
}
