//! Waiting until a job is free: the agent of a program that has just ended needs a moment, or the time of a flush.

use super::patience::Patience;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::job_lock;
use crate::pidfile;
use crate::report;
use holdfast_image::control::Request;
use holdfast_process::rebuild::NamedProcess;
use holdfast_sys::procfs::{self, Existence};
use holdfast_tiers::{Job, JobLock};
use std::thread;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(20);

/// Waits until no agent serves the job, and its program is gone. An agent that has neither a program nor a flush is
/// waited for like what is dying: a busy disk may hold up the last of what it writes.
///
/// # Errors
/// Its program runs, or does not come to its end.
pub fn wait(job: &Job, patience: &Patience) -> Result<(), Failure> {
    wait_for_agent(job, patience)?;
    let is_alive = |pid: i32| procfs::existence(pid) == Existence::Living;
    let dying = || pidfile::program(job).filter(|pid| !is_alive(*pid)).map(NamedProcess::of);
    patience.wait(|| dying().map(|process| format!("{process}, the program of job {}", job.name())))?;
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

/// Waits so, and locks the job.
///
/// # Errors
/// As [`wait`]; the lock cannot be taken.
pub fn take(job: &Job, patience: &Patience) -> Result<JobLock, Failure> {
    wait(job, patience)?;
    job_lock::take_after_agent(job)
}

fn wait_for_agent(job: &Job, limits: &Patience) -> Result<(), Failure> {
    let (mut told, mut asked) = (false, false);
    // Since when it has been as it is: what the flush before took is not part of the time to leave.
    let (mut begun, mut before) = (Instant::now(), None);
    while job.is_live() {
        let status = Agent::connect(job).and_then(|agent| agent.status()).ok();
        let patience = match &status {
            Some(status) if let Some(pid) = status.pid => {
                let is_dying = || procfs::existence(pid) == Existence::Dying;
                limits.wait(|| is_dying().then(|| NamedProcess::of(pid).to_string()))?;
                limits.notice()
            }
            Some(status) if status.flushing.is_some() => Duration::MAX,
            Some(status) if status.lingering && !asked => {
                // It copies to lower tiers, which the next agent does as well.
                asked = true;
                let _ = Agent::connect(job).and_then(|agent| agent.send(&Request::Quit));
                limits.left().max(limits.notice())
            }
            _ => limits.left().max(limits.notice()),
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
    Ok(())
}
