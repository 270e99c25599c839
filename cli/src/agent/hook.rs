//! `--exec-after`: a command of the user's after each image.
//!
//! Started by the agent's loop when an image is committed, in the folder of the job's start, with the image's number,
//! path and state in its environment; its output is in the agent's log. Invariants: one at a time, and the job never
//! waits for it: images that are committed while it runs are told by one more command, for the newest. At the end of
//! the agent it runs on. Fails by: a line in the log.

use super::context::JobContext;
use crate::exit::Failure;
use crate::user_command;
use holdfast_image::Epoch;
use std::process::Child;

/// What it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Number of the image.
    pub epoch: Epoch,
    /// The program was ended after it.
    pub stopped: bool,
}

/// The command that runs, and the image that is to be told when it has ended.
#[derive(Debug, Default)]
pub struct Hook {
    running: Option<Child>,
    next: Option<Committed>,
}

impl Hook {
    /// An image was committed.
    pub fn committed(&mut self, context: &JobContext, image: Committed) {
        self.next = Some(image);
        self.look(context);
    }

    /// Whether it is to be looked at again soon.
    pub fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Starts what waits, if nothing runs any more.
    pub fn look(&mut self, context: &JobContext) {
        if let Some(child) = &mut self.running {
            match child.try_wait() {
                Ok(None) => return,
                Ok(Some(status)) if status.success() => {}
                Ok(Some(status)) => tracing::warn!("--exec-after: {status}"),
                Err(error) => tracing::warn!("--exec-after: waiting for it: {error}"),
            }
            self.running = None;
        }
        self.start(context);
    }

    /// Starts what waits, whatever runs: the agent ends.
    pub fn leave(&mut self, context: &JobContext) {
        self.start(context);
    }

    fn start(&mut self, context: &JobContext) {
        let settings = context.settings();
        let (Some(image), Some(command)) = (self.next.take(), &settings.exec_after) else { return };
        match start(context, command, image) {
            Ok(child) => self.running = Some(child),
            Err(failure) => tracing::warn!("--exec-after for image {}: {failure}", image.epoch),
        }
    }
}

fn start(context: &JobContext, command: &str, image: Committed) -> Result<Child, Failure> {
    let job = &context.job;
    // Standard output and error are the log.
    user_command::of_job(command, job, context.cwd.as_path())?
        .env("HOLDFAST_IMAGE", image.epoch.to_string())
        .env("HOLDFAST_IMAGE_PATH", job.manifest_path(image.epoch))
        .env("HOLDFAST_STATE", if image.stopped { "stopped" } else { "running" })
        .spawn()
        .map_err(|error| Failure::system("starting /bin/sh", &error))
}
