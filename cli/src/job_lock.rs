//! The lock of the agent's job, which `holdfast list` holds for a moment.

use crate::exit::Failure;
use holdfast_tiers::{Job, JobLock, StoreError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a lock that is held is tried again, and how often.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Locks a job. `holdfast list` holds the lock of every job for a moment, so a lock that is held is tried for a while.
///
/// # Errors
/// Another agent holds it, or it cannot be taken.
pub fn take(job: &Job) -> Result<JobLock, Failure> {
    let begun = Instant::now();
    loop {
        match job.lock() {
            Err(StoreError::Locked { .. }) if begun.elapsed() < PATIENCE => thread::sleep(PAUSE),
            result => return Ok(result?),
        }
    }
}
