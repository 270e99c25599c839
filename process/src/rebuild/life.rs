//! The new process from its birth to its exec: an ordinary program that gives itself what the old one had.
//!
//! Runs in a child of the single-threaded front (so all of std may be used), inside the namespaces where there are
//! any. Everything that can be said by ordinary calls is done here: session, folder, umask, all descriptors at their
//! numbers. Whatever goes wrong is told to the front in words, and the process ends.

use super::error::RebuildError;
use super::files;
use super::report::{self, GO, Handover, Message};
use holdfast_image::record::{Backing, ProcessRecord};
use holdfast_sys::{attributes, clock, credentials, fd, signals};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// CAP_CHECKPOINT_RESTORE (include/uapi/linux/capability.h).
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// What the process needs to know.
pub struct Life<'a> {
    /// What it shall become.
    pub record: &'a ProcessRecord,
    /// Leads to the agent.
    pub agent: OwnedFd,
    /// Leads to the front.
    pub report: OwnedFd,
    /// The ids of its threads can be chosen.
    pub ids_chosen: bool,
    /// It is in a user namespace of its own, and must keep one capability over the exec.
    pub own_user_namespace: bool,
}

impl Life<'_> {
    /// Does all of it; never returns. A panic ends the process like any other error: it must not unwind into a copy of
    /// the front.
    pub fn run(self) -> ! {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.live()));
        drop(outcome);
        attributes::exit_now(127)
    }

    fn live(self) {
        report::tell(&self.report, &Message::Born(0));
        let keeper = self.report.try_clone();
        if let (Err(error), Ok(report)) = (self.prepare_and_execute(), keeper) {
            report::tell(&report, &Message::Failed(error.to_string()));
        }
    }

    fn prepare_and_execute(self) -> Result<(), RebuildError> {
        for signal in 1..=64 {
            signals::set_ignored(signal, false);
        }
        signals::block(u64::MAX);
        attributes::allow_tracing();
        self.take_place()?;
        self.keep_clocks_forward();
        let executable = files::open_path(&self.record.exe.path, libc::O_PATH.cast_unsigned())?;
        attributes::umask(0o077);
        create_shared_files(self.record)?;
        let carried = files::Carried { agent: self.agent, report: self.report, executable };
        let carried = files::bring_back(self.record, carried)?;
        attributes::umask(self.record.umask);
        if self.own_user_namespace && holdfast_sys::local::effective_user() != 0 {
            attributes::keep_capability(CAP_CHECKPOINT_RESTORE)
                .map_err(RebuildError::io("keeping the right to choose thread ids"))?;
        }
        let handover = Handover {
            inner_pid: attributes::own_pid(),
            ids_chosen: self.ids_chosen,
            drop_capabilities: self.own_user_namespace,
        };
        credentials::send(carried.agent.as_fd(), &handover.to_bytes())
            .map_err(|_| RebuildError::Left("the agent"))?;
        let mut answer = [0_u8; 16];
        let len = fd::receive(carried.agent.as_fd(), &mut answer, 0).unwrap_or(0);
        if answer[..len] != *GO {
            return Err(RebuildError::Left("the agent"));
        }
        report::tell(&carried.report, &Message::Ready);
        let error = attributes::execute(carried.executable.as_fd(), c"holdfast-seed");
        Err(RebuildError::Io { what: format!("executing {}", self.record.exe.path), source: error })
    }

    /// After a reboot, or on another host, CLOCK_MONOTONIC may be behind what the program has seen: deadlines in its
    /// memory would be far away, differences negative. A time namespace moves it ahead.
    fn keep_clocks_forward(&self) {
        let (was, now) = (self.record.host.monotonic_ns, clock::monotonic_ns());
        if now >= was {
            return;
        }
        if let Err(error) = clock::move_ahead_at_exec(was - now) {
            let note = format!(
                "CLOCK_MONOTONIC goes back by {} s for the program (another boot or host), and it cannot be moved \
                 ahead: {error}",
                (was - now) / 1_000_000_000
            );
            report::tell(&self.report, &Message::Note(note));
        }
    }

    /// Session, process group, working folder.
    fn take_place(&self) -> Result<(), RebuildError> {
        let record = self.record;
        if record.sid == record.pid {
            attributes::new_session().map_err(RebuildError::io("making a session"))?;
        } else if record.pgid == record.pid && File::open("/dev/tty").is_err() {
            // Under a terminal the program stays in the group of the front: Ctrl-C is for both.
            attributes::own_group().map_err(RebuildError::io("making a process group"))?;
        }
        std::env::set_current_dir(record.cwd.as_path()).map_err(|error| {
            RebuildError::file(
                &record.cwd,
                format!("the working folder of the program cannot be entered ({error}); make it anew"),
            )
        })
    }
}

/// Files that the program wrote through shared mappings and that are gone (as a virtual machine's performance data is
/// after a kill) are made anew; their content comes with the pages. Those that are shorter than they were get their
/// length back.
fn create_shared_files(record: &ProcessRecord) -> Result<(), RebuildError> {
    for region in &record.regions {
        let Backing::SharedFile { file, writable: true, .. } = region.backing else { continue };
        let identity = &record.files.mapped[file as usize];
        let lengthen = || -> std::io::Result<()> {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(identity.path.as_path())?;
            if file.metadata()?.len() < identity.size { file.set_len(identity.size) } else { Ok(()) }
        };
        lengthen().map_err(|error| {
            RebuildError::file(
                &identity.path,
                format!("a file that the program shares cannot be made anew: {error}"),
            )
        })?;
    }
    Ok(())
}
