//! Addresses that are others since a restart: decided by the agent, and written down for programs that are executed
//! later, beside its socket.
//!
//! Called at the agent's start and at a restart, before there are new processes. What must hold: the file is of this
//! restart, or not there. Fails by: an error; nothing of the program has run.

use crate::exit::Failure;
use crate::file_system;
use holdfast_abi::AddressTable;
use holdfast_image::record::ProcessRecord;
use holdfast_process::Gang;
use holdfast_process::rebuild::addresses::{self, Addresses, Pair};
use holdfast_tiers::Job;
use std::fs;
use std::io;
use std::path::PathBuf;

fn path(job: &Job) -> PathBuf {
    job.socket_path().with_file_name(AddressTable::FILE)
}

/// A program that is started afresh knows none.
///
/// # Errors
/// What is written down of a run before cannot be removed.
pub fn forget(job: &Job) -> Result<(), Failure> {
    let path = path(job);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::system(format_args!("removing {}", path.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Decides, moves the sockets of the record, and writes the file.
///
/// # Errors
/// As [`addresses::decide`]; the file cannot be written.
pub fn decide(
    job: &Job,
    record: &mut ProcessRecord,
    asked: &[Pair],
    gang: Option<&dyn Gang>,
) -> Result<Addresses, Failure> {
    let decided = addresses::decide(record, asked, gang).map_err(|error| Failure::from(&error))?;
    let path = path(job);
    if decided.moved.is_empty() {
        forget(job)?;
    } else {
        file_system::write_own(&path, &addresses::file(&decided.moved))
            .map_err(|error| Failure::system(format_args!("writing {}", path.display()), &error))?;
    }
    Ok(decided)
}
