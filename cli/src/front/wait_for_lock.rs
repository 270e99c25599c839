//! Waiting until a job is free: the agent of a program that has just ended needs a moment, or the time of a flush.

use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::pidfile;
use crate::report;
use holdfast_tiers::Job;
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(20);
/// How long an agent may take that has something to tell of a program: it may not have noticed its end yet.
const NOTICE: Duration = Duration::from_millis(500);
/// How long one may take that has neither a program nor a flush: a busy disk may hold up the last of what it writes.
const LEAVE: Duration = Duration::from_secs(10);

/// Waits until no agent serves the job.
///
/// # Errors
/// Its program runs.
pub fn wait(job: &Job) -> Result<(), Failure> {
    let mut told = false;
    // Since when it has been as it is: what the flush before took is not part of the time to leave.
    let (mut begun, mut before) = (Instant::now(), None);
    while job.is_live() {
        let status = Agent::connect(job).and_then(|agent| agent.status()).ok();
        let patience = match &status {
            Some(status) if status.pid.is_some() => NOTICE,
            Some(status) if status.flushing.is_some() => Duration::MAX,
            _ => LEAVE,
        };
        if before.replace(patience) != Some(patience) {
            begun = Instant::now();
        }
        let waited = begun.elapsed();
        if waited >= patience {
            let pid = status
                .and_then(|status| status.pid)
                .map_or_else(String::new, |pid| format!(" as process {pid}"));
            let message =
                format!("job {} is running already{pid}; end it first, or see `holdfast list`", job.name());
            return Err(Failure::new(Exit::Refused, message));
        }
        if patience == Duration::MAX && waited > Duration::from_secs(1) && !told {
            report::note(&format!("waiting for the last image of job {} to be written", job.name()));
            told = true;
        }
        thread::sleep(PAUSE);
    }
    match pidfile::program(job) {
        None => Ok(()),
        Some(pid) => Err(Failure::new(
            Exit::Refused,
            format!(
                "the program of job {} still runs as process {pid}, without an agent (which was killed): it cannot be \
                 checkpointed any more; end it before the job is started again",
                job.name()
            ),
        )),
    }
}
