//! Starting a process with exactly the signals, descriptors and environment that the caller says.
//!
//! `std::process::Command` empties the signal mask, sets SIGPIPE to its default and sorts the environment; a program
//! that runs under Holdfast must get all three as they were.
//!
//! By hand: the child of fork(2), in which the functions of `nix` that allocate are forbidden; pidfd_send_signal(2),
//! which it lacks.
//!
//! # Safety
//! Between `fork` and `execve` only async-signal-safe calls on data made before (signal-safety(7)).
#![allow(unsafe_code)]

use crate::{attributes, check, fd, objects, signals};
use nix::unistd;
use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// What is to be started, and how.
#[derive(Debug, Default)]
pub struct Start {
    /// Path of the executable.
    pub path: CString,
    /// Arguments, the name first.
    pub arguments: Vec<CString>,
    /// Environment, `NAME=value` each.
    pub environment: Vec<CString>,
    /// Signal mask.
    pub mask: u64,
    /// Signals and whether they are to be ignored or at their default; all others stay as they are here (exec
    /// sets caught ones to their default).
    pub ignored: Vec<(i32, bool)>,
    /// Descriptors to close.
    pub closed: Vec<RawFd>,
    /// If not empty: becomes descriptors 0, 1, 2 … and everything above is closed.
    pub descriptors: Vec<OwnedFd>,
    /// In a process group of its own, with `/` as working folder: what a terminal sends to its foreground is not for
    /// it. Not in a session of its own: the scheduler takes each session for one competitor (sched(7), autogroup), and
    /// a new one that mostly sleeps was seen to wait for seconds while a job of twenty processes kept the processors
    /// busy.
    pub detached: bool,
    /// In a session of its own: what is run for another host, as sshd does.
    pub session: bool,
}

/// What is started by this is in a session of its own: no terminal stops it (SIGTTOU), nor ends it.
pub fn in_own_session(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: setsid(2) is async-signal-safe, and touches no memory. In a child that was just made it does not fail.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

impl Start {
    /// Starts it as a child; returns its id once `execve` has succeeded.
    ///
    /// # Errors
    /// Of fork or execve; nothing is left running.
    pub fn spawn(&self) -> io::Result<i32> {
        let (result, low_report) = fd::pipe(0)?;
        // Copies above the targets, so that no dup2 can hit a descriptor that is still needed.
        let floor = i32::try_from(self.descriptors.len() + 3).unwrap_or(64);
        let report = raise(&low_report, floor)?;
        // Only one writing end may be left, or the end of file would never come.
        drop(low_report);
        let sources = self
            .descriptors
            .iter()
            .map(|source| raise(source, floor))
            .collect::<io::Result<Vec<OwnedFd>>>()?;
        let raw: Vec<RawFd> = sources.iter().map(AsRawFd::as_raw_fd).collect();
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: the child only runs `become_program`, which keeps to async-signal-safe calls and ends in exec or
        // _exit; all that it uses was made before.
        let pid = check(i64::from(unsafe { libc::fork() }))?;
        if pid == 0 {
            self.become_program(&raw, &arguments, &environment, report.as_raw_fd());
        }
        drop(report);
        let pid = i32::try_from(pid).unwrap_or(0);
        let mut errno = [0_u8; 4];
        if std::fs::File::from(result).read_exact(&mut errno).is_ok() {
            let _ = wait(pid, true);
            return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)));
        }
        Ok(pid)
    }

    /// Starts it as no child of the caller, to which neither SIGCHLD nor wait(2) tells of it: a program in which this
    /// is library code waits for its own children alone. Signals are at their defaults there. Returns its id once
    /// `execve` has succeeded.
    ///
    /// No fork(2): the page tables of a large program would be copied, and memory that a network adapter knows would be
    /// shared with the child for a moment, so that what the program writes then goes to other pages.
    ///
    /// # Errors
    /// Of clone or execve; nothing is left running.
    pub fn spawn_orphan(&self) -> io::Result<i32> {
        let (result, low_report) = fd::pipe(0)?;
        let floor = i32::try_from(self.descriptors.len() + 3).unwrap_or(64);
        let report = raise(&low_report, floor)?;
        drop(low_report);
        let sources = self
            .descriptors
            .iter()
            .map(|source| raise(source, floor))
            .collect::<io::Result<Vec<OwnedFd>>>()?;
        let mut stack = vec![0_u128; STACK];
        let mut orphan = Orphan {
            start: self,
            sources: sources.iter().map(AsRawFd::as_raw_fd).collect(),
            arguments: pointers(&self.arguments),
            environment: pointers(&self.environment),
            report: report.as_raw_fd(),
            stack: stack.as_mut_ptr_range().end.cast(),
            result: Ok(0),
        };
        let mut stack = vec![0_u128; STACK];
        let before = signals::block(u64::MAX);
        let argument = (&raw mut orphan).cast();
        // SAFETY: the new process shares this memory while this thread waits for its end, on a stack of its own, with
        // all signals blocked, and makes nothing but another process.
        let pid = check(i64::from(unsafe {
            libc::clone(between, stack.as_mut_ptr_range().end.cast(), VFORK, argument)
        }));
        signals::set_mask(before);
        // It has no signal at its end, so that only this asks for it.
        let _ = attributes::wait_for(i32::try_from(pid?).unwrap_or(0), libc::__WCLONE);
        drop(report);
        let pid = orphan.result.map_err(io::Error::from_raw_os_error)?;
        let mut errno = [0_u8; 4];
        if std::fs::File::from(result).read_exact(&mut errno).is_ok() {
            return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)));
        }
        Ok(pid)
    }

    fn become_program(
        &self,
        sources: &[RawFd],
        arguments: &[*const libc::c_char],
        environment: &[*const libc::c_char],
        report: RawFd,
    ) -> ! {
        for &(signal, ignored) in &self.ignored {
            signals::set_ignored(signal, ignored);
        }
        // SAFETY: async-signal-safe calls with numbers and with strings and arrays made before the fork; the arrays
        // end with null.
        unsafe {
            if self.session {
                libc::setsid();
            }
            if self.detached {
                libc::setpgid(0, 0);
                libc::chdir(c"/".as_ptr());
            }
            for &fd in &self.closed {
                libc::close(fd);
            }
            let mut target = 0;
            for &source in sources {
                libc::dup2(source, target);
                target += 1;
            }
            if target > 0 {
                // All others vanish at exec: the report must live until then.
                const CLOSE_RANGE_CLOEXEC: i32 = 4;
                libc::syscall(libc::SYS_close_range, target, u32::MAX, CLOSE_RANGE_CLOEXEC);
            }
            signals::set_mask(self.mask);
            libc::execve(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr());
            let errno = (*libc::__errno_location()).to_ne_bytes();
            libc::write(report, errno.as_ptr().cast(), errno.len());
            libc::_exit(127)
        }
    }
}

/// Words of the stack of a process that shares memory.
const STACK: usize = 4096;

/// The caller waits until the new process has ended or become another program; it shares memory and nothing else.
const VFORK: i32 = libc::CLONE_VM | libc::CLONE_VFORK;

/// What the processes between caller and orphan need, made before.
struct Orphan<'a> {
    start: &'a Start,
    sources: Vec<RawFd>,
    arguments: Vec<*const libc::c_char>,
    environment: Vec<*const libc::c_char>,
    report: RawFd,
    stack: *mut libc::c_void,
    /// Its id, or an errno.
    result: Result<i32, i32>,
}

/// The process between the caller and the orphan, which ends at once, so that the orphan has no parent.
extern "C" fn between(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn_orphan` waits meanwhile and does not touch it.
    let orphan = unsafe { &mut *argument.cast::<Orphan<'_>>() };
    // SAFETY: as there: this process waits until that one has become another program.
    let pid = unsafe { libc::clone(program, orphan.stack, VFORK | libc::SIGCHLD, argument) };
    // SAFETY: it is this thread's.
    orphan.result = if pid == -1 { Err(unsafe { *libc::__errno_location() }) } else { Ok(pid) };
    // SAFETY: no function that the program has registered for its end is called.
    unsafe { libc::_exit(0) }
}

/// Runs calls in a process of their own, which shares memory and descriptors with this one: they are all made, though
/// this one be killed meanwhile. Of a call that is made and undone again the second is not left out.
///
/// `calls`: system calls alone, which neither allocate nor panic.
///
/// # Errors
/// Of clone: none of them was made.
pub fn undying(mut calls: &mut dyn FnMut()) -> io::Result<()> {
    let mut stack = vec![0_u128; STACK];
    let before = signals::block(u64::MAX);
    let argument = (&raw mut calls).cast();
    // SAFETY: the new process shares this memory while this thread waits for its end, on a stack of its own, with all
    // signals blocked. Should this process be killed, the memory stays until that one has ended.
    let pid = check(i64::from(unsafe {
        libc::clone(alone, stack.as_mut_ptr_range().end.cast(), VFORK | libc::CLONE_FILES, argument)
    }));
    signals::set_mask(before);
    let _ = attributes::wait_for(i32::try_from(pid?).unwrap_or(0), libc::__WCLONE);
    Ok(())
}

extern "C" fn alone(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `undying` has them on its stack, and waits.
    unsafe { (*argument.cast::<&mut dyn FnMut()>())() };
    // SAFETY: no function that the program has registered for its end is called.
    unsafe { libc::_exit(0) }
}

extern "C" fn program(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: all others that know it wait.
    let orphan = unsafe { &*argument.cast::<Orphan<'_>>() };
    // Handlers are code of the caller, whose memory this is still.
    for signal in (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)) {
        signals::set_ignored(signal, false);
    }
    orphan.start.become_program(&orphan.sources, &orphan.arguments, &orphan.environment, orphan.report)
}

fn raise(source: &OwnedFd, floor: i32) -> io::Result<OwnedFd> {
    objects::duplicate_above(source.as_raw_fd(), floor)
}

/// waitpid(2) of a child; `None` if it has not ended (only with `block` false).
///
/// # Errors
/// ECHILD: not a child, or waited for already.
pub fn wait(pid: i32, block: bool) -> io::Result<Option<ExitStatus>> {
    let (ended, status) = attributes::wait_for(pid, if block { 0 } else { libc::WNOHANG })?;
    Ok((ended != 0).then(|| ExitStatus::from_raw(status)))
}

/// Waits so long at most for the end of a child whose status is not asked for.
pub fn wait_within(pid: i32, time: Duration) {
    let end = Instant::now() + time;
    while wait(pid, false).is_ok_and(|status| status.is_none()) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a signal through a pidfd: never to a process that took over the number.
///
/// # Errors
/// ESRCH: it has ended; EPERM.
pub fn signal_pidfd(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    // SAFETY: no siginfo is passed; numbers otherwise.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    })
    .map(|_| ())
}

/// The same for a signal with a value (`sigqueue(3)`).
///
/// # Errors
/// As [`signal_pidfd`].
pub fn queue_pidfd(pidfd: &OwnedFd, signal: i32, value: u64) -> io::Result<()> {
    let info = crate::ptrace::queued(signal, value);
    // SAFETY: the kernel reads `info` (pidfd_send_signal(2)).
    check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, &raw const info, 0)
    })
    .map(|_| ())
}

/// Makes the calling process one of its own: new session, `/` as working folder, `/dev/null` as standard input and
/// output, `log` as standard error.
///
/// # Errors
/// As open(2) and dup2(2). A process that leads its group keeps its session.
pub fn detach(log: &OwnedFd) -> io::Result<()> {
    let null: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/null")?.into();
    std::env::set_current_dir("/")?;
    // A process that leads its group stays in its session.
    let _ = unistd::setsid();
    unistd::dup2_stdin(&null)?;
    unistd::dup2_stdout(&null)?;
    unistd::dup2_stderr(log)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Start {
        Start {
            path: c"/bin/sh".into(),
            arguments: vec![c"sh".into(), c"-c".into(), CString::new(script).unwrap()],
            environment: vec![c"B=2".into(), c"A=1".into()],
            ..Start::default()
        }
    }

    #[test]
    fn status_and_errors_come_back() {
        let pid = shell("exit 7").spawn().unwrap();
        assert_eq!(wait(pid, true).unwrap().unwrap().code(), Some(7));
        let pid = shell("kill -9 $$").spawn().unwrap();
        assert_eq!(wait(pid, true).unwrap().unwrap().signal(), Some(9));
        let missing = Start { path: c"/does/not/exist".into(), ..shell("") };
        assert_eq!(missing.spawn().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn an_orphan_is_not_the_callers_child() {
        let (read, write) = fd::pipe(0).unwrap();
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let start = Start { descriptors: vec![null, write], detached: true, ..shell("echo $$ $PPID") };
        let pid = start.spawn_orphan().unwrap();
        drop(start);
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        let ids: Vec<i32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
        assert_eq!(ids[0], pid);
        assert_ne!(ids[1], std::process::id().cast_signed());
        assert_eq!(wait(pid, true).unwrap_err().raw_os_error(), Some(libc::ECHILD));
        let missing = Start { path: c"/does/not/exist".into(), ..shell("") };
        assert_eq!(missing.spawn_orphan().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn descriptors_are_what_was_asked_for() {
        let (read, write) = fd::pipe(0).unwrap();
        let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let start = Start { descriptors: vec![null, write], ..shell("cd /proc/self/fd; echo *") };
        let pid = start.spawn().unwrap();
        drop(start);
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        wait(pid, true).unwrap();
        // The shell opens the folder itself, as the lowest free number.
        assert!(["0 1\n", "0 1 2\n", "0 1 2 3\n"].contains(&text.as_str()), "{text}");
    }
}
