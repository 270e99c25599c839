//! What a process is besides its memory and files: session, limits, priority, capabilities, mounts, and the way out of
//! it by exec or exit. Used by a restart to make the new process what the old one was.
//!
//! By hand: limits, which `nix` has for the caller alone; setpriority(2), sched_setscheduler(2), PR_SET_PTRACER,
//! capabilities and _exit(2), which it lacks; waiting, because a child that a real-time signal has killed is an error
//! to it (EINVAL).
//!
//! # Safety
//! Numbers and locals of the right type; nothing is kept by the kernel after a call.
#![allow(unsafe_code)]

use crate::{check, fs_ids};
use nix::fcntl::AtFlags;
use nix::mount::MsFlags;
use nix::sys::stat::Mode;
use nix::unistd::{self, Pid};
use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

/// Sets the file mode creation mask; returns the one before.
pub fn umask(mask: u32) -> u32 {
    nix::sys::stat::umask(Mode::from_bits_retain(mask)).bits()
}

/// `setsid(2)`.
///
/// # Errors
/// EPERM: the caller leads a process group.
pub fn new_session() -> io::Result<()> {
    unistd::setsid()?;
    Ok(())
}

/// Makes the caller the leader of a process group of its own.
///
/// # Errors
/// EPERM: the caller leads a session.
pub fn own_group() -> io::Result<()> {
    join_group(0)
}

/// Makes the caller a member of a process group of its session.
///
/// # Errors
/// EPERM, ESRCH: there is no such group in its session; EPERM: the caller leads a session.
pub fn join_group(group: i32) -> io::Result<()> {
    Ok(unistd::setpgid(Pid::from_raw(0), Pid::from_raw(group))?)
}

/// Processes below the caller that lose their parent become its children (PR_SET_CHILD_SUBREAPER).
pub fn adopt_orphans() {
    // Cannot fail.
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// Soft and hard limit of a process (0: the caller), `prlimit(2)`.
///
/// # Errors
/// EINVAL, EPERM, ESRCH.
pub fn limit(pid: i32, resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit64.
    check(i64::from(unsafe { libc::prlimit64(pid, resource, std::ptr::null(), &raw mut limit) }))?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Sets soft and hard limit of a process (0: the caller).
///
/// # Errors
/// EPERM: raising the hard limit, or not ours; EINVAL; ESRCH.
pub fn set_limit(pid: i32, resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the call reads one rlimit64.
    let result = unsafe { libc::prlimit64(pid, resource, &raw const limit, std::ptr::null_mut()) };
    check(i64::from(result)).map(|_| ())
}

/// As many descriptors as the hard limit of this process has. Where that fails, those that there were.
pub fn allow_descriptors() {
    let _ = limit(0, libc::RLIMIT_NOFILE).and_then(|(_, hard)| set_limit(0, libc::RLIMIT_NOFILE, hard, hard));
}

/// Sets the nice value of one thread.
///
/// # Errors
/// EACCES: a lower value needs privilege; ESRCH.
pub fn set_nice(tid: i32, nice: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), nice) };
    check(i64::from(result)).map(|_| ())
}

/// Sets scheduling policy and static priority of one thread.
///
/// # Errors
/// EPERM: a real-time policy needs privilege; EINVAL; ESRCH.
pub fn set_scheduler(tid: i32, policy: u32, priority: u32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority.cast_signed() };
    // SAFETY: the call reads one sched_param.
    let result = unsafe { libc::sched_setscheduler(tid, policy.cast_signed(), &raw const parameter) };
    check(i64::from(result)).map(|_| ())
}

/// Lets any process of the same user trace the caller, where Yama asks for that (EINVAL without Yama is no error).
pub fn allow_tracing() {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
}

/// The caller leaves no core file.
pub fn leave_no_core() {
    let _ = set_limit(0, libc::RLIMIT_CORE, 0, 0);
}

/// Where memory is short, the kernel ends this process before all others (oom_score_adj in proc_pid_oom_score_adj(5),
/// which may be raised by everybody).
///
/// # Errors
/// It is gone, or another user's.
pub fn end_first(pid: i32) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000")
}

/// Closes the caller to other processes of its user: they may not trace it, nor read its memory and what it holds
/// through /proc, and it leaves no core file. Nor may it look at itself through /proc, whose files are root's then.
pub fn close_to_others() {
    leave_no_core();
    let _ = nix::sys::prctl::set_dumpable(false);
}

/// Whether other processes of its user may look into the caller (PR_GET_DUMPABLE).
pub fn is_dumpable() -> bool {
    nix::sys::prctl::get_dumpable().unwrap_or(false)
}

/// Gives all capabilities up.
///
/// # Errors
/// None is known.
pub fn drop_capabilities() -> io::Result<()> {
    fs_ids::set_sets(&[0; 6])
}

/// Keeps one capability over an exec by an ordinary user: inheritable and ambient (capabilities(7)).
///
/// # Errors
/// EPERM: the caller does not have it.
pub fn keep_capability(bit: u32) -> io::Result<()> {
    let mut sets = fs_ids::sets()?;
    let inheritable = if bit < 32 { 2 } else { 5 };
    sets[inheritable] |= 1 << (bit % 32);
    fs_ids::set_sets(&sets)?;
    // SAFETY: numbers only.
    let result = unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, libc::c_ulong::from(bit), 0, 0)
    };
    check(i64::from(result)).map(|_| ())
}

/// Keeps mounts made here from being seen outside; those made outside are still seen here.
///
/// # Errors
/// EPERM.
pub fn slave_mounts() -> io::Result<()> {
    mount(c"none", c"/", MsFlags::MS_REC | MsFlags::MS_SLAVE)
}

/// Mounts a /proc that shows the caller's pid namespace.
///
/// # Errors
/// EPERM: parts of the /proc that is there are hidden, as containers do.
pub fn mount_proc() -> io::Result<()> {
    mount(c"proc", c"/proc", MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC)
}

/// A source of the same name as its type.
fn mount(kind: &CStr, target: &CStr, flags: MsFlags) -> io::Result<()> {
    Ok(nix::mount::mount(Some(kind), target, Some(kind), flags, None::<&CStr>)?)
}

/// Effective group of the caller.
pub fn effective_group() -> u32 {
    unistd::getegid().as_raw()
}

/// The calling process's group.
pub fn own_process_group() -> i32 {
    unistd::getpgrp().as_raw()
}

/// Process id of the caller, in its own namespace.
pub fn own_pid() -> i32 {
    unistd::getpid().as_raw()
}

/// Executes the file behind a descriptor, with `name` as only argument and an empty environment.
/// Returns only if it fails.
pub fn execute(file: BorrowedFd<'_>, name: &CStr) -> io::Error {
    let Err(error) = unistd::execveat(file, c"", &[name], &[] as &[&CStr], AtFlags::AT_EMPTY_PATH);
    error.into()
}

/// Ends the process without running anything of it (`_exit(2)`).
pub fn exit_now(status: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}

/// Waits for any child: its id and its status as in wait(2).
///
/// # Errors
/// ECHILD: there is none left.
pub fn wait_any() -> io::Result<(i32, i32)> {
    wait_for(-1, libc::__WALL)
}

/// The same, if one has ended: id and status.
///
/// # Errors
/// ECHILD: there is none.
pub fn wait_any_ended() -> io::Result<Option<(i32, i32)>> {
    wait_for(-1, libc::WNOHANG | libc::__WALL).map(|ended| Some(ended).filter(|(pid, _)| *pid != 0))
}

/// waitpid(2), begun anew where a signal interrupts it: id and status; id 0 with WNOHANG: none has ended.
pub(crate) fn wait_for(pid: i32, flags: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: writes one int.
        match check(i64::from(unsafe { libc::waitpid(pid, &raw mut status, flags) })) {
            Ok(pid) => return Ok((i32::try_from(pid).unwrap_or(0), status)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a child has ended, and leaves it to be waited for.
///
/// # Errors
/// ECHILD: there is no such child.
pub fn wait_for_end(pid: i32) -> io::Result<()> {
    let flags = libc::WEXITED | libc::WNOWAIT | libc::__WALL;
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: there is room for the siginfo_t that the call writes, and that is not looked at.
        let result = unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), info.as_mut_ptr(), flags) };
        match check(i64::from(result)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|_| ()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_set() {
        let (soft, hard) = limit(0, libc::RLIMIT_CORE).unwrap();
        set_limit(0, libc::RLIMIT_CORE, 0, hard).unwrap();
        assert_eq!(limit(own_pid(), libc::RLIMIT_CORE).unwrap(), (0, hard));
        set_limit(0, libc::RLIMIT_CORE, soft, hard).unwrap();
    }
}
