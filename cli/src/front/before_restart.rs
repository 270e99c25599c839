//! `--exec-on-restart`: a command of the user's before the program goes on.
//!
//! Run by `restart` when the image and this host fit, and nothing of the program is there yet: so its failure costs
//! nothing, and what it prepares is there for the program. Invariants: once for an image, however often that is tried.
//! Fails by: a command that fails or cannot be started: there is no restart; a signal that ends this command ends that
//! one, too.

use super::supervise::StartState;
use crate::args::OnRestart;
use crate::exit::{Exit, Failure, FailureKind};
use crate::settings::Recipe;
use crate::user_command;
use holdfast_image::Epoch;
use holdfast_sys::{poll, ptrace};
use holdfast_tiers::Job;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

/// How long the command may take to end by SIGTERM, before it is ended by SIGKILL.
const LEAVE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// What the user wants of a restart beside the program.
#[derive(Debug)]
pub struct BeforeRestart<'a> {
    wanted: &'a OnRestart,
    /// It was run for this image.
    done: Cell<Option<Epoch>>,
}

impl<'a> BeforeRestart<'a> {
    /// Nothing is done yet.
    pub fn new(wanted: &'a OnRestart) -> BeforeRestart<'a> {
        BeforeRestart { wanted, done: Cell::default() }
    }

    /// Runs the command, if there is one, and waits for its end.
    ///
    /// # Errors
    /// It failed, or a signal came that ends this command.
    pub fn run(&self, job: &Job, epoch: Epoch, state: &StartState) -> Result<(), Failure> {
        let Some(command) = &self.wanted.exec_on_restart else { return Ok(()) };
        if self.done.replace(Some(epoch)) == Some(epoch) {
            return Ok(());
        }
        let recipe = Recipe::read(job)?;
        let mut child = user_command::of_job(command, job, recipe.cwd.as_path())?
            .env("HOLDFAST_IMAGE", epoch.to_string())
            .env("HOLDFAST_IMAGE_PATH", job.manifest_path(epoch))
            .env("HOLDFAST_STATE", "restarting")
            .spawn()
            .map_err(|error| Failure::system("--exec-on-restart: starting /bin/sh", &error))?;
        let failed = |error| Failure::system("--exec-on-restart: waiting for the command", &error);
        let mut end = None;
        loop {
            // Signals of its end come as messages, too: each is looked for before the next wait.
            let told = state.told_to_end().is_some();
            if let Some(status) = child.try_wait().map_err(failed)? {
                return if told { Err(interrupted()) } else { of_status(status, job) };
            }
            let group = i32::try_from(child.id()).unwrap_or(i32::MAX);
            let left = end.map(|end: Instant| end.saturating_duration_since(Instant::now()));
            if told && end.is_none() {
                let _ = ptrace::kill(-group, libc::SIGTERM);
                end = Some(Instant::now() + LEAVE);
            } else if left.is_some_and(|left| left.is_zero()) {
                let _ = ptrace::kill(-group, libc::SIGKILL);
            }
            let patience = end.map(|end| end.saturating_duration_since(Instant::now()).max(LOOK));
            poll::readable(&[state.as_fd()], patience).map_err(failed)?;
        }
    }
}

fn interrupted() -> Failure {
    let text = "a signal came while the command of --exec-on-restart ran: both were ended";
    Failure { kind: FailureKind::Interrupted, ..Failure::new(Exit::Refused, text) }
}

fn of_status(status: ExitStatus, job: &Job) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let name = job.name();
    let text = format!("the command of --exec-on-restart failed ({status}): job {name} was not restarted");
    Err(Failure::new(Exit::Refused, text))
}
