//! The lock of a job: who has it, or the agent that has it.
//!
//! `holdfast list` holds the lock of every job for a moment, and an agent that was killed until the kernel has closed
//! its files: neither is an agent that could be asked. Used by the agent, and by commands that do with the lock what a
//! live agent does.

use crate::client::Agent;
use crate::exit::{Exit, Failure};
use holdfast_tiers::{Job, JobLock, StoreError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a lock that is held is tried again, and how often.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same where no agent can have it any more, only commands that hold it for a moment, on a machine that is busy.
const PATIENCE_WITH_COMMANDS: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a job; a lock that is held is tried for a while.
///
/// # Errors
/// Another agent holds it, or it cannot be taken.
pub fn take(job: &Job) -> Result<JobLock, Failure> {
    take_within(job, PATIENCE)
}

/// Locks a job whose agent was waited for.
///
/// # Errors
/// As [`take`].
pub fn take_after_agent(job: &Job) -> Result<JobLock, Failure> {
    take_within(job, PATIENCE_WITH_COMMANDS)
}

fn take_within(job: &Job, patience: Duration) -> Result<JobLock, Failure> {
    let begun = Instant::now();
    loop {
        match job.lock() {
            Err(StoreError::Locked { .. }) if begun.elapsed() < patience => thread::sleep(PAUSE),
            result => return Ok(result?),
        }
    }
}

/// Who changes a job.
enum Holder {
    Us(JobLock),
    Agent(Agent),
}

fn take_or_connect(job: &Job) -> Result<Holder, Failure> {
    let begun = Instant::now();
    loop {
        match job.lock() {
            Ok(lock) => return Ok(Holder::Us(lock)),
            Err(StoreError::Locked { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match Agent::connect(job) {
            Err(failure) if failure.exit == Exit::NotFound && begun.elapsed() < PATIENCE_WITH_COMMANDS => {
                thread::sleep(PAUSE);
            }
            agent => return agent.map(Holder::Agent),
        }
    }
}

/// Does something `alone`, with the job's lock, or has its agent do it. An agent that ends before it has answered
/// leaves it to us.
///
/// # Errors
/// Those of the one that did it; the lock is held by a process that cannot be asked, and does not let it go.
pub fn alone_or_by_agent<T>(
    job: &Job,
    alone: impl FnOnce(&JobLock) -> Result<T, Failure>,
    ask: impl FnOnce(&Agent) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let failure = match take_or_connect(job)? {
        Holder::Us(lock) => return alone(&lock),
        Holder::Agent(agent) => match ask(&agent) {
            Err(failure) => failure,
            done => return done,
        },
    };
    match take_or_connect(job) {
        Ok(Holder::Us(lock)) => alone(&lock),
        _ => Err(failure),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use holdfast_tiers::Store;
    use std::sync::mpsc;

    /// As `holdfast list` does, and an agent that was killed and has not come to its end.
    #[test]
    fn who_holds_the_lock_for_a_moment_is_no_agent() {
        let folder = std::env::temp_dir().join(format!("holdfast-job-lock-{}", std::process::id()));
        let job = Store::open(&folder).unwrap().create_job("j").unwrap();
        let (held, is_held) = mpsc::channel();
        let other = job.clone();
        let holder = thread::spawn(move || {
            let lock = other.lock().unwrap();
            held.send(()).unwrap();
            thread::sleep(5 * PAUSE);
            drop(lock);
        });
        is_held.recv().unwrap();
        let done = alone_or_by_agent(&job, |_| Ok(1), |_| panic!("there is no agent"));
        assert_eq!(done.unwrap(), 1);
        holder.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
