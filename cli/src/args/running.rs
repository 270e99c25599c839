//! Commands at a running job: `checkpoint`, `stop`, `rollback`, `kill`.

use crate::completion::jobs;
use crate::names::{ImageName, parse_image};
use crate::settings::{Changes, parse_any_signal};
use clap::Args;

/// `holdfast checkpoint`.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// Return when the image is committed (the default)
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Return as soon as the program runs again
    #[arg(long)]
    pub no_wait: bool,
    /// End the program once the image is committed
    #[arg(long)]
    pub stop: bool,
    /// This time only.
    #[command(flatten)]
    pub changes: Changes,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// This time only.
    #[command(flatten)]
    pub changes: Changes,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl StopArgs {
    /// It is a checkpoint that ends the program.
    pub fn checkpoint(&self) -> CheckpointArgs {
        let (job, changes) = (self.job.clone(), self.changes);
        CheckpointArgs { job, wait: true, no_wait: false, stop: true, changes, json: self.json }
    }
}

/// `holdfast rollback`.
#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// JOB (the newest image of its run) or JOB@N
    #[arg(value_name = "JOB[@N]", value_parser = parse_image, add = jobs())]
    pub image: ImageName,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `holdfast kill`.
#[derive(Debug, Args)]
pub struct KillArgs {
    /// Name of the job, or pid of its program
    #[arg(value_name = "JOB|PID", add = jobs())]
    pub job: String,
    /// The signal
    #[arg(short, long, value_name = "SIG", default_value = "TERM", value_parser = parse_any_signal)]
    pub signal: i32,
}
