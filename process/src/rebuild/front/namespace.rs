//! The same ids for an ordinary user: a user, pid and mount namespace of the program's own.
//!
//! The helper is process 1 there: it mounts a /proc that fits, makes the new process with its old id, reaps what is
//! orphaned, tells the front how the program ended, and ends when no process is left. It outlives the front: a program
//! whose `holdfast restart` was killed goes on. It holds no descriptor of the program, so that closed pipes are closed.
//!
//! Root needs no user namespace; nor does anybody lose rights inside one over what is his (user_namespaces(7)).

use super::attempt::{Attempt, Parts};
use super::ids::Ids;
use super::{id_maps, last_pid};
use crate::rebuild::error::RebuildError;
use crate::rebuild::handshake::{self, Message};
use holdfast_sys::{attributes, clone, fd, objects, signals, unix_socket};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

const OWN_PIDS: i32 = libc::CLONE_NEWPID | libc::CLONE_NEWNS;

/// Makes the namespaces, the helper and, through it, the new process.
///
/// # Errors
/// Of pipes; whatever forbids namespaces is [`Attempt::Refused`].
pub(crate) fn enter(parts: Parts<'_>, process: OwnedFd) -> Result<Attempt, RebuildError> {
    let pipe = || fd::pipe(0).map_err(RebuildError::io("making a pipe"));
    let (mapped, map) = pipe()?;
    let (status, told) = pipe()?;
    let user = unix_socket::effective_user();
    let mut new_user = false;
    let mut made = Err(io::Error::from_raw_os_error(libc::EPERM));
    if user == 0 {
        made = clone::fork_with(flags(OWN_PIDS), 0);
    }
    if made.is_err() {
        new_user = true;
        made = clone::fork_with(flags(OWN_PIDS | libc::CLONE_NEWUSER), 0);
    }
    match made {
        Ok(0) => {
            drop((map, status));
            Helper { parts, process, mapped, told, new_user }.run()
        }
        Ok(helper) => {
            drop((mapped, told, process));
            let mapped = if new_user { id_maps::map(helper) } else { Ok(Vec::new()) };
            let left = match mapped {
                Ok(left) => left,
                Err(error) => {
                    drop(map); // the helper ends
                    let _ = holdfast_sys::spawn::wait(helper, true);
                    return Ok(Attempt::Refused(format!("a user namespace cannot be set up: {error}")));
                }
            };
            File::from(map)
                .write_all(b"m")
                .map_err(RebuildError::io("telling the helper of the namespace"))?;
            Ok(Attempt::Begun { child: helper, status: Some(status), note: id_maps::note(&left) })
        }
        Err(error) => Ok(Attempt::Refused(format!(
            "a user and pid namespace cannot be made ({error}; see user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
        ))),
    }
}

fn flags(flags: i32) -> u64 {
    u64::from(flags.cast_unsigned())
}

struct Helper<'a> {
    parts: Parts<'a>,
    process: OwnedFd,
    mapped: OwnedFd,
    told: OwnedFd,
    new_user: bool,
}

impl Helper<'_> {
    fn run(self) -> ! {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.live()));
        drop(outcome);
        attributes::exit_now(127)
    }

    fn live(self) {
        // What the terminal sends to the group of the front is for the program, not for its helper. (Process 1 of a
        // namespace does not die of signals at their default from inside.)
        for signal in 1..=64 {
            signals::set_ignored(signal, false);
        }
        signals::block(u64::MAX);
        let Helper { parts, process, mapped, told, new_user } = self;
        if File::from(mapped).read_exact(&mut [0]).is_err() {
            return; // the front could not map our ids, and says so
        }
        if let Err(error) = attributes::slave_mounts().and_then(|()| attributes::mount_proc()) {
            let why = format!("/proc cannot be mounted in a pid namespace ({error}), as in most containers");
            return handshake::send(&process, &Message::Refused(why));
        }
        let pid = parts.record.pid;
        last_pid::in_own_namespace(parts.record);
        match clone::fork_with(0, pid) {
            Ok(0) => {
                drop(told);
                parts.become_new_process(process, Ids::Namespace, new_user)
            }
            Ok(child) => {
                drop((parts, process));
                reap_all(child, told);
            }
            Err(error) => {
                let why = format!("id {pid} cannot be chosen in a pid namespace: {error}");
                handshake::send(&process, &Message::Refused(why));
            }
        }
    }
}

/// Reaps everything until no process is left; tells the program's status when it ends.
fn reap_all(program: i32, told: OwnedFd) {
    // It needs none to wait; and what lives here may look into it, as into any process of his, unless Landlock
    // forbids that (`capture::landlock`).
    let _ = attributes::drop_capabilities();
    let keep = told.as_raw_fd().cast_unsigned();
    let _ = std::env::set_current_dir("/");
    if keep > 0 {
        let _ = objects::close_range(0, keep - 1);
    }
    let _ = objects::close_range(keep + 1, u32::MAX);
    let mut told = Some(File::from(told));
    while let Ok((pid, status)) = attributes::wait_any() {
        if pid == program
            && let Some(mut pipe) = told.take()
        {
            // A front that is gone does not ask.
            let _ = pipe.write_all(&status.to_ne_bytes());
        }
    }
}
