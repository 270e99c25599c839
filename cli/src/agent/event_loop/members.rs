//! The processes of the job as the loop sees them: who registers, who ends, who went on as another user.
//!
//! Part of the loop.

use super::super::processes::Ended;
use super::EventLoop;
use crate::inherited_fds::InheritedFd;
use crate::pidfile;
use holdfast_abi::registration::EVENT_SETSID;
use holdfast_image::record::InjectArea;
use holdfast_process::{Kinship, is_of_job};
use holdfast_sys::clone;
use std::os::fd::OwnedFd;
use std::time::Instant;

impl EventLoop {
    /// Who has ended by now, so that a checkpoint is not one of a launcher that has just ended.
    pub(super) fn notice_ends(&mut self) {
        let ended = self.processes().ended_by_now();
        ended.into_iter().for_each(|pid| self.process_ended(pid));
    }

    pub(super) fn process_ended(&mut self, pid: i32) {
        let ended = self.processes().ended(pid);
        match ended {
            Ended::Other => {}
            Ended::Succeeded(next) => {
                tracing::info!("process {pid} ended; {next} is the program now");
                self.remember_program();
            }
            Ended::Alone if self.follow_kin() => {}
            Ended::Alone => {
                tracing::info!("process {pid} ended, and no process is left");
                self.alone = Some((Instant::now(), self.grace));
            }
        }
    }

    /// Takes over those that went on as another user, and could not register. Whether there are any.
    pub(super) fn follow_kin(&mut self) -> bool {
        let born = self.tracer.births().map(|births| births.all()).unwrap_or_default();
        let found = self.kinship.find(&born);
        self.processes().follow(found);
        let Some(pid) = self.program_pid() else { return false };
        tracing::info!("process {pid} of another user is the program now");
        self.alone = None;
        self.remember_program();
        true
    }

    pub(super) fn register(
        &mut self,
        pid: i32,
        event: &str,
        version: &str,
        area: InjectArea,
        passed: Option<OwnedFd>,
    ) {
        if !area.is_valid() || pid <= 0 {
            tracing::warn!("process {pid} was rejected: its injection area is not valid");
            return;
        }
        self.rush.registered(Instant::now());
        // What a script has run is often gone before it is heard: its relatives cannot be looked up any more, and its
        // id may be another's by now.
        let registered = match clone::pidfd_open(pid) {
            Err(error) => Err(error),
            Ok(_) if !self.has(pid) => {
                tracing::info!("process {pid} was rejected ({event}): it is of another job");
                return;
            }
            // A session leader keeps its address space; at "load" and "fork" it is new.
            Ok(_) => self.processes().register(pid, area, event != EVENT_SETSID, passed),
        };
        match registered {
            Ok(()) => {
                self.alone = None;
                self.note_outliving();
                if self.program_pid() == Some(pid) {
                    tracing::info!("process {pid} registered ({event}), libholdfast {version}");
                    self.meet_program(pid);
                } else {
                    // A job may make thousands.
                    tracing::debug!("process {pid} registered ({event})");
                }
            }
            // As those are that end at once.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                tracing::debug!("process {pid} registered and has ended");
            }
            Err(error) => tracing::warn!("process {pid} ({event}) cannot be followed: {error}"),
        }
        if self.processes().is_empty() {
            self.alone = Some((Instant::now(), self.grace));
        }
    }

    /// The job's key is known now.
    pub fn know_key(&mut self) {
        self.kinship = Kinship::of_key(self.context.key(), &self.context.job.socket_path());
    }

    /// Whether a process that registers is of the job.
    pub(super) fn has(&self, pid: i32) -> bool {
        let known = self.processes().pids();
        is_of_job(pid, &known, &self.context.job.socket_path(), self.context.key())
    }

    fn meet_program(&mut self, pid: i32) {
        self.remember_program();
        if self.context.attached {
            self.own_end.attached(&self.context.job);
            self.context.complete_recipe(pid);
            // What is open so early was handed down to the program.
            self.inherited_fds.get_or_insert_with(|| InheritedFd::of_process(pid).unwrap_or_default());
        }
    }

    pub(super) fn remember_program(&mut self) {
        let Some(pid) = self.program_pid() else { return };
        self.kinship.learn(pid, &self.context.job.socket_path(), self.context.key());
        if let Err(error) = pidfile::remember(&self.context.job, pid) {
            tracing::warn!("recording the program: {error}");
        }
    }

    /// The front has ended, and the job has not.
    pub(super) fn note_outliving(&mut self) {
        if self.context.link.is_some() && !self.link_open && self.program_pid().is_some() {
            self.own_end.outlived(&self.context.job);
        }
    }
}
