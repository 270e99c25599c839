//! The system calls that the driver makes: memory, files of memory, signals of its threads. Used by `memory`,
//! `checkpoint`, `stream`.
//!
//! # Safety
//! Mappings are made where the kernel finds room or where the driver itself has reserved it, and only those are
//! replaced or unmapped; nothing else knows their addresses but as device pointers, which are not for the host.
//! Structures that the kernel fills are plain data.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn map(address: u64, length: u64, access: i32, flags: i32, file: RawFd) -> io::Result<u64> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    // SAFETY: either the kernel chooses the place, or MAP_FIXED_NOREPLACE keeps what is there, or (MAP_FIXED, in
    // `reserve_over` and `map_file_over`) the place is one of the driver's, which the real one replaces, too.
    let at = unsafe { libc::mmap(address as *mut libc::c_void, length, access, flags, file, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Addresses that nothing can be read at; `near` is a wish. The alignment is a power of two, of pages at least.
pub fn reserve(length: u64, alignment: u64, near: u64) -> io::Result<u64> {
    if near != 0 && near.is_multiple_of(alignment) && reserve_at(near, length).is_ok() {
        return Ok(near);
    }
    let whole = length.checked_add(alignment).ok_or(io::ErrorKind::InvalidInput)?;
    let at = map(0, whole, libc::PROT_NONE, NOTHING, -1)?;
    let from = at.next_multiple_of(alignment);
    if from > at {
        unmap(at, from - at);
    }
    let (end, whole_end) = (from + length, at + whole);
    if whole_end > end {
        unmap(end, whole_end - end);
    }
    Ok(from)
}

/// The same at one place alone, where nothing is yet.
pub fn reserve_at(address: u64, length: u64) -> io::Result<()> {
    let at = map(address, length, libc::PROT_NONE, NOTHING | libc::MAP_FIXED_NOREPLACE, -1)?;
    if at == address {
        return Ok(());
    }
    unmap(at, length);
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Instead of a mapping of the driver's own, or over what the host has put where it was.
pub fn reserve_over(address: u64, length: u64) -> io::Result<()> {
    map(address, length, libc::PROT_NONE, NOTHING | libc::MAP_FIXED, -1).map(drop)
}

/// Ends a mapping of the driver's own.
pub fn unmap(address: u64, length: u64) {
    // SAFETY: the driver's own (file head). It cannot fail but by the number of mappings: then it stays.
    let _ = unsafe { libc::munmap(address as *mut libc::c_void, length as usize) };
}

/// Memory of the host that a device shares: pinned, not of any file.
pub fn map_pages(length: u64) -> io::Result<u64> {
    map(0, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
}

/// A whole file of memory.
pub fn map_file(file: &OwnedFd, length: u64) -> io::Result<u64> {
    map(0, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd())
}

/// The same at one place, whatever is there: over a reservation of the driver's, or, as the real one does it, over
/// anything that the host has put where the driver had left a place.
pub fn map_file_over(file: &OwnedFd, address: u64, length: u64) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    map(address, length, access, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd()).map(drop)
}

/// A file of memory.
pub fn memory_file(name: &CStr, length: u64) -> io::Result<OwnedFd> {
    // SAFETY: a call with a string that ends with a zero; the descriptor is new, and has no other owner.
    let file = unsafe {
        let fd = checked(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC).into())?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    // SAFETY: a descriptor and a number.
    checked(unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) }.into())?;
    Ok(file)
}

/// Length of a file.
pub fn length_of(file: &OwnedFd) -> io::Result<u64> {
    // SAFETY: plain data, which fstat fills.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a descriptor and the structure above.
    checked(unsafe { libc::fstat(file.as_raw_fd(), &raw mut status) }.into())?;
    u64::try_from(status.st_size).map_err(io::Error::other)
}

/// A copy of a descriptor that the program has.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a number; a descriptor that does not exist is an error.
    let copy = checked(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    // SAFETY: it is new.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// What the driver has besides its devices: a pipe and an eventfd (DMTCP, plugin/cuda: they have to be rebuilt).
pub fn plumbing() -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two numbers.
    checked(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }.into())?;
    // SAFETY: both are new.
    let (from, to) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: numbers; the descriptor is new.
    let event = unsafe {
        let fd = checked(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).into())?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    Ok((from, to, event))
}

/// Whether what goes in at one end comes out at the other.
pub fn connected(from: &OwnedFd, to: &OwnedFd, token: u64) -> bool {
    let sent = token.to_ne_bytes();
    let mut got = [0u8; 8];
    // SAFETY: eight bytes on both sides; the descriptors do not block.
    let moved = unsafe {
        libc::write(to.as_raw_fd(), sent.as_ptr().cast(), 8) == 8
            && libc::read(from.as_raw_fd(), got.as_mut_ptr().cast(), 8) == 8
    };
    moved && got == sent
}

/// The caller's process and thread, as the kernel numbers them.
pub fn ids() -> (i32, i32) {
    // SAFETY: no arguments.
    unsafe { (libc::syscall(libc::SYS_getpid) as i32, libc::syscall(libc::SYS_gettid) as i32) }
}

/// Gives back what is free in the heap, of the driver's and of the program's: "frees memory in all arenas and in all
/// chunks with whole free pages" (malloc_trim(3)). What kernels and copies have left there would be in an image.
pub fn trim_heap() {
    // SAFETY: what is in use is not touched.
    unsafe { libc::malloc_trim(0) };
}

/// Takes a lock of the C library's that threads of the program may have: which a real driver takes at a checkpoint is
/// not known.
pub fn take_a_lock() {
    extern "C" fn first(_: *mut libc::dl_phdr_info, _: usize, _: *mut libc::c_void) -> libc::c_int {
        1
    }
    // SAFETY: a function that looks at nothing.
    unsafe { libc::dl_iterate_phdr(Some(first), null_mut()) };
}

/// The caller's process as the C library says it: what is asked for a second time after a restart.
pub fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }
}

/// A thread of the driver: takes no signal of the program's.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: two sets of signals, filled before they are used.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        before
    };
    let made = std::thread::Builder::new().name(name.into()).stack_size(512 << 10).spawn(body);
    // SAFETY: the set of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    made.map(drop)
}

/// The signal by which a request is announced. It is blocked in all threads of the driver, and sent to one alone.
fn signal() -> i32 {
    libc::SIGRTMAX() - 3
}

/// `siginfo_t` of a queued signal (linux/uapi asm-generic/siginfo.h).
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    process: i32,
    user: u32,
    value: u64,
    rest: [u64; 12],
}

/// Sends a token to a thread that is in `wait_for_token`.
pub fn send_token(process: i32, thread: i32, token: u64) -> io::Result<()> {
    let info = Queued {
        signal: signal(),
        error: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        process: ids().0,
        user: user(),
        value: token,
        rest: [0; 12],
    };
    // SAFETY: the structure has the size of siginfo_t (asserted below).
    let call =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal(), &raw const info) };
    checked(call).map(drop)
}
const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// Waits for the next token. The caller's thread has the signal blocked (`spawn`).
pub fn wait_for_token() -> u64 {
    loop {
        // SAFETY: a set and a structure, filled by the calls.
        let (result, info) = unsafe {
            let (mut set, mut info): (libc::sigset_t, Queued) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal());
            (libc::sigwaitinfo(&raw const set, (&raw mut info).cast()), info)
        };
        if result == signal() && info.code == libc::SI_QUEUE {
            return info.value;
        }
    }
}

/// The effective user.
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

/// The user at the other end of a connection.
pub fn peer_user(socket: &impl AsRawFd) -> io::Result<u32> {
    // SAFETY: plain data of the length that is told.
    unsafe {
        let mut peer: libc::ucred = std::mem::zeroed();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let to = (&raw mut peer).cast();
        checked(libc::getsockopt(socket.as_raw_fd(), level, option, to, &raw mut length).into())?;
        Ok(peer.uid)
    }
}

/// Waits at most so long until a descriptor can be read.
pub fn readable(fd: RawFd, within: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one structure.
    let result = unsafe { libc::poll(&raw mut poll, 1, milliseconds) };
    match checked(result.into()) {
        Ok(n) => Ok(n > 0),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Has the child of every fork know what it is.
pub fn at_fork(child: extern "C" fn()) {
    // SAFETY: a function that stays: the library is never unloaded (build.rs).
    unsafe {
        libc::pthread_atfork(
            None,
            None,
            Some(std::mem::transmute::<extern "C" fn(), unsafe extern "C" fn()>(child)),
        )
    };
}

/// A random number of the kernel's; the clock's, should it have none.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: eight bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), 8, 0) };
    if got == 8 {
        return u64::from_ne_bytes(bytes);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}
