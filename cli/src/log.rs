//! The agent's log, in the folder of the job.

use crate::exit::Failure;
use holdfast_tiers::Job;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Where it is.
pub fn path(job: &Job) -> PathBuf {
    job.dir().join("agent.log")
}

/// Opens the log of a job for appending.
///
/// # Errors
/// As open(2).
pub fn open(job: &Job) -> Result<OwnedFd, Failure> {
    let path = path(job);
    fs::File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map(OwnedFd::from)
        .map_err(|error| Failure::system(format_args!("opening {}", path.display()), &error))
}
