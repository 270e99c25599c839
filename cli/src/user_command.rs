//! A command of the user's, run by a shell: `--exec-after`, `--exec-on-restart`.
//!
//! Used by the agent after an image and by the front before a restart. It starts in the folder of the job's start, if
//! that is there, with the caller's environment, and is told which job it is for. Fails by: an environment that cannot
//! be passed on.

use crate::entries::set_helper_environment;
use crate::exit::Failure;
use holdfast_tiers::Job;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// `command`, ready to be started, in a process group of its own.
///
/// # Errors
/// See the head of the file.
pub fn of_job(command: &str, job: &Job, cwd: &Path) -> Result<Command, Failure> {
    let mut run = Command::new("/bin/sh");
    run.arg("-c").arg(command);
    set_helper_environment(&mut run)?;
    run.env("HOLDFAST_STORE", job.dir().parent().unwrap_or(job.dir())).env("HOLDFAST_JOB", job.name());
    if cwd.is_dir() {
        run.current_dir(cwd);
    }
    run.stdin(Stdio::null()).process_group(0);
    Ok(run)
}
