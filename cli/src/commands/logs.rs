//! `holdfast logs`: what a job's agent has written down, which is what failed, and why.
//!
//! The log may be put aside while it is followed (`log.rs`): then what is left of it is printed, and the new one. Fails
//! by: there is no such job, or the log cannot be read.

use crate::exit::Failure;
use crate::{log, report};
use holdfast_tiers::Job;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(200);
/// Printed at a time: bytes.
const PIECE: u64 = 1 << 20;

/// Prints the log. `follow`: and what is added, until the job has ended.
///
/// # Errors
/// See the head of the file.
pub fn run(name: &str, follow: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    let path = log::path(&job);
    let failed = |error: &io::Error| Failure::system(format_args!("reading {}", path.display()), error);
    let mut file = match File::open(&path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(&error)),
    };
    loop {
        // Looked at first: what the agent writes last is read after its end.
        let goes_on = follow && is_live(&job);
        if let Some(open) = &mut file {
            print_rest(open).map_err(|error| failed(&error))?;
        }
        if !goes_on {
            return Ok(());
        }
        if let Ok(now) = File::open(&path)
            && !file.as_ref().is_some_and(|open| is_same(open, &now))
        {
            file = Some(now);
        } else {
            thread::sleep(POLL);
        }
    }
}

/// Whether its agent lives.
fn is_live(job: &Job) -> bool {
    job.lock().is_err() && job.is_live()
}

fn is_same(one: &File, other: &File) -> bool {
    let id = |file: &File| file.metadata().map(|data| (data.dev(), data.ino())).ok();
    id(one) == id(other)
}

fn print_rest(file: &mut File) -> io::Result<()> {
    loop {
        let mut piece = Vec::new();
        file.take(PIECE).read_to_end(&mut piece)?;
        if piece.is_empty() {
            return Ok(());
        }
        report::print(&String::from_utf8_lossy(&piece))
            .map_err(|failure| io::Error::other(failure.message))?;
    }
}
