//! ptrace(2), typed. All calls for one tracee must come from the thread that seized it (kernel/ptrace.c,
//! `ptrace_check_attach` compares `child->ptrace_entry`'s tracer with `current`).
//!
//! # Safety
//! Each request hands the kernel either numbers or a pointer to a local of the size that the request writes, as
//! documented in ptrace(2); none keeps the pointer after the call.
#![allow(unsafe_code)]

use std::io;

/// The 27 words of struct user_regs_struct (sys/user.h), by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)] // The names are those of the processor manual.
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

impl Registers {
    /// The words in the order of struct user_regs_struct.
    pub fn to_words(self) -> [u64; 27] {
        // SAFETY: repr(C) of 27 u64 without padding has the layout of the array.
        unsafe { std::mem::transmute::<Registers, [u64; 27]>(self) }
    }
    /// The inverse of [`Registers::to_words`].
    pub fn from_words(words: [u64; 27]) -> Registers {
        // SAFETY: as above; every bit pattern is a valid u64.
        unsafe { std::mem::transmute::<[u64; 27], Registers>(words) }
    }
}

/// What `waitpid` said of a tracee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Nothing yet (WNOHANG).
    Nothing,
    /// PTRACE_EVENT_STOP by PTRACE_INTERRUPT, or a new tracee; also the re-stop after a group stop ended.
    Interrupted,
    /// Group stop (job control); the stopping signal.
    GroupStop(i32),
    /// About to deliver this signal.
    Signal(i32),
    /// Syscall-entry or -exit stop.
    Syscall,
    /// PTRACE_EVENT_* other than stop (clone, exec …).
    Event(i32),
    /// Gone: its status as in wait(2).
    Exited(i32),
}

fn request(request: libc::c_uint, tid: i32, addr: u64, data: u64) -> io::Result<i64> {
    // SAFETY: see the head of the file; callers below pass pointers only to locals that live through the call.
    let result = unsafe { libc::ptrace(request, tid, addr as *mut libc::c_void, data as *mut libc::c_void) };
    crate::check(result)
}

/// Attaches without stopping; options are PTRACE_O_*.
///
/// # Errors
/// EPERM: another process traces it, not ours, or it is exiting; ESRCH: gone.
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, u64::from(options.cast_unsigned())).map(|_| ())
}

/// Asks a seized thread to stop.
///
/// # Errors
/// ESRCH: gone.
pub fn interrupt(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(|_| ())
}

/// Lets a thread that is in a group stop stay in it without being trapped: it reports again when that ends, or at
/// once when it has ended meanwhile.
///
/// # Errors
/// EIO: not in an event stop; ESRCH: gone.
pub fn listen(tid: i32) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0).map(|_| ())
}

/// Lets a stopped thread run on, traced; `signal` is delivered (0: none).
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn cont(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, u64::from(signal.cast_unsigned())).map(|_| ())
}

/// The same as [`cont`], until its next system call begins or ends: [`Wait::Syscall`].
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn cont_to_call(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, u64::from(signal.cast_unsigned())).map(|_| ())
}

/// Lets a stopped thread go for good; `signal` is delivered (0: none).
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, u64::from(signal.cast_unsigned())).map(|_| ())
}

/// Replaces PTRACE_O_* options.
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn set_options(tid: i32, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, u64::from(options.cast_unsigned())).map(|_| ())
}

/// PTRACE_GETEVENTMSG: the tid of the new task at a clone event.
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn event_message(tid: i32) -> io::Result<u64> {
    let mut message = 0_u64;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message) as u64)?;
    Ok(message)
}

const NT_PRSTATUS: u64 = 1;
const NT_X86_XSTATE: u64 = 0x202;

/// Reads the general registers.
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn registers(tid: i32) -> io::Result<Registers> {
    let mut regs = Registers::default();
    let mut vector = libc::iovec { iov_base: (&raw mut regs).cast(), iov_len: size_of::<Registers>() };
    request(libc::PTRACE_GETREGSET, tid, NT_PRSTATUS, (&raw mut vector) as u64)?;
    Ok(regs)
}

/// Sets the general registers.
///
/// # Errors
/// ESRCH: not stopped, or gone; EIO: values that user code may not have.
pub fn set_registers(tid: i32, regs: &Registers) -> io::Result<()> {
    let mut copy = *regs;
    let mut vector = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: size_of::<Registers>() };
    request(libc::PTRACE_SETREGSET, tid, NT_PRSTATUS, (&raw mut vector) as u64).map(|_| ())
}

/// Reads the extended state into `buffer`; returns its length.
///
/// # Errors
/// ESRCH: not stopped, or gone; ENODEV: no XSAVE.
pub fn xstate(tid: i32, buffer: &mut [u8]) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    request(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, (&raw mut vector) as u64)?;
    Ok(vector.iov_len)
}

/// Sets the extended state (standard format).
///
/// # Errors
/// EINVAL: a feature that the task has no room for (AMX without permission, arch/x86/kernel/fpu/regset.c).
pub fn set_xstate(tid: i32, state: &[u8]) -> io::Result<()> {
    let mut vector = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    request(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, (&raw mut vector) as u64).map(|_| ())
}

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_PEEKSIGINFO: libc::c_uint = 0x4209;
const PTRACE_PEEKSIGINFO_SHARED: u32 = 1;
const PTRACE_GETSIGINFO: libc::c_uint = 0x4202;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Blocked signals (the saved mask where a call has put a temporary one in force).
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    request(PTRACE_GETSIGMASK, tid, 8, (&raw mut mask) as u64)?;
    Ok(mask)
}

/// Sets the blocked signals.
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    let mut copy = mask;
    request(PTRACE_SETSIGMASK, tid, 8, (&raw mut copy) as u64).map(|_| ())
}

/// The siginfo of the signal that the tracee is about to receive: first words (signo, errno, code, pad, pid, uid …).
///
/// # Errors
/// EINVAL: not at a signal stop.
pub fn signal_info(tid: i32) -> io::Result<[u8; 128]> {
    let mut info = [0_u8; 128];
    request(PTRACE_GETSIGINFO, tid, 0, (&raw mut info) as u64)?;
    Ok(info)
}

/// All signals pending for the thread (`shared` false) or the process (`shared` true), oldest first.
///
/// # Errors
/// ESRCH: not stopped, or gone.
pub fn pending_signals(tid: i32, shared: bool) -> io::Result<Vec<[u8; 128]>> {
    #[repr(C)]
    struct Args {
        offset: u64,
        flags: u32,
        count: i32,
    }
    const BATCH: i32 = 8;
    let mut all = Vec::new();
    loop {
        let mut infos = [[0_u8; 128]; BATCH as usize];
        let flags = if shared { PTRACE_PEEKSIGINFO_SHARED } else { 0 };
        let mut args = Args { offset: all.len() as u64, flags, count: BATCH };
        let count = request(PTRACE_PEEKSIGINFO, tid, (&raw mut args) as u64, (&raw mut infos) as u64)?;
        let count = usize::try_from(count).unwrap_or(0).min(infos.len());
        all.extend_from_slice(&infos[..count]);
        if count < infos.len() {
            return Ok(all);
        }
    }
}

/// Restartable-sequence registration: address, length, signature. `None`: not registered.
///
/// # Errors
/// EIO: kernel before 5.13.
pub fn rseq(tid: i32) -> io::Result<Option<(u64, u32, u32)>> {
    #[repr(C)]
    #[derive(Default)]
    struct Config {
        pointer: u64,
        size: u32,
        signature: u32,
        flags: u32,
        pad: u32,
    }
    let mut config = Config::default();
    let size = size_of::<Config>() as u64;
    request(PTRACE_GET_RSEQ_CONFIGURATION, tid, size, (&raw mut config) as u64)?;
    Ok((config.pointer != 0).then_some((config.pointer, config.size, config.signature)))
}

/// Whether syscall user dispatch is on (Documentation/admin-guide/syscall-user-dispatch.rst).
///
/// # Errors
/// ESRCH: not stopped, or gone; EIO: kernel before 6.4.
pub fn user_dispatch(tid: i32) -> io::Result<bool> {
    let mut config = [0_u64; 4];
    request(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, 32, (&raw mut config) as u64)?;
    Ok(config[0] != 0)
}

const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_SECCOMP_GET_METADATA: libc::c_uint = 0x420d;
/// Option: the tracee's seccomp filters and strict mode are not in force (include/uapi/linux/ptrace.h). Goes with the
/// tracer. For who has CAP_SYS_ADMIN and is under no filter (kernel/ptrace.c, check_ptrace_options).
pub const SUSPEND_SECCOMP: i32 = 1 << 21;

/// The program of a seccomp filter of a thread, counted from the oldest; `None`: it has not so many.
///
/// # Errors
/// EACCES: we lack CAP_SYS_ADMIN, or are under a filter; EMEDIUMTYPE: the kernel has not kept it.
pub fn filter(tid: i32, number: u64) -> io::Result<Option<Vec<[u8; 8]>>> {
    let len = match request(PTRACE_SECCOMP_GET_FILTER, tid, number, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        len => usize::try_from(len?).unwrap_or(0),
    };
    let mut program = vec![[0_u8; 8]; len];
    // The filters of a stopped thread stay, but for another thread that has it take over its own (kernel/seccomp.c,
    // seccomp_sync_threads): the caller has stopped them all.
    request(PTRACE_SECCOMP_GET_FILTER, tid, number, program.as_mut_ptr().expose_provenance() as u64)?;
    Ok(Some(program))
}

/// Flags of such a filter that the kernel tells: SECCOMP_FILTER_FLAG_LOG.
///
/// # Errors
/// As [`filter`].
pub fn filter_flags(tid: i32, number: u64) -> io::Result<u64> {
    let mut metadata = [number, 0_u64];
    request(PTRACE_SECCOMP_GET_METADATA, tid, 16, (&raw mut metadata) as u64)?;
    Ok(metadata[1])
}

/// Head and length of the robust futex list (get_robust_list(2)).
///
/// # Errors
/// ESRCH, EPERM.
pub fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let (mut head, mut len) = (0_u64, 0_u64);
    // SAFETY: the call writes one pointer and one size into the two locals.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut len) };
    crate::check(result)?;
    Ok((head, len))
}

/// One step of waiting for one thread. Without `block` returns [`Wait::Nothing`] when there is no news.
///
/// # Errors
/// ECHILD: not our tracee (any more).
pub fn wait(tid: i32, block: bool) -> io::Result<Wait> {
    let mut status = 0_i32;
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    // SAFETY: the call writes one int into `status`.
    let result = unsafe { libc::waitpid(tid, &raw mut status, flags) };
    if crate::check(i64::from(result))? == 0 {
        return Ok(Wait::Nothing);
    }
    if !libc::WIFSTOPPED(status) {
        return Ok(Wait::Exited(status));
    }
    let signal = libc::WSTOPSIG(status);
    Ok(match status >> 16 {
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Wait::Interrupted,
        libc::PTRACE_EVENT_STOP => Wait::GroupStop(signal),
        0 if signal == libc::SIGTRAP | 0x80 => Wait::Syscall,
        0 => Wait::Signal(signal),
        event => Wait::Event(event),
    })
}

/// `kill(2)`.
///
/// # Errors
/// ESRCH, EPERM.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    crate::check(i64::from(unsafe { libc::kill(pid, signal) })).map(|_| ())
}

/// What comes with a signal that has a value.
pub(crate) fn queued(signal: i32, value: u64) -> libc::siginfo_t {
    // SAFETY: siginfo_t is plain data; all zero is valid.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    let words: *mut u64 = (&raw mut info).cast();
    // SAFETY: 128 bytes: signal, errno, code, then sender, user, value, from byte 16 on (include/uapi/asm-generic/
    // siginfo.h, member _rt); sender and user may be 0.
    unsafe { words.add(3).write(value) };
    info
}

/// `sigqueue(3)`: a signal with a value.
///
/// # Errors
/// ESRCH, EPERM; EAGAIN: too many are pending.
pub fn queue(pid: i32, signal: i32, value: u64) -> io::Result<()> {
    let info = queued(signal, value);
    // SAFETY: the kernel reads `info` (rt_sigqueueinfo(2)).
    crate::check(unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, pid, signal, &raw const info) })
        .map(|_| ())
}

/// `tgkill(2)`.
///
/// # Errors
/// ESRCH, EPERM.
pub fn tgkill(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    crate::check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(|_| ())
}
