//! `holdfast restart --all-lost`: goes on with every job whose end was not seen, for the time after a reboot.
//!
//! Each is restarted by a `holdfast restart` of its own, which this process waits for: a service manager that ends it
//! ends them (`packaging/holdfast-restart.service`). Streams that were files go on in them. Fails by: a job that could
//! not be restarted, or did not come to its end; the others are not disturbed.

use crate::exit::{Exit, Failure};
use crate::helper::binary;
use crate::last_run::LastRun;
use crate::pidfile;
use crate::report;
use crate::same_run;
use crate::settings::Recipe;
use holdfast_tiers::{Job, Store, StoreError};
use std::path::Path;
use std::process::{Child, Command};

/// Restarts them, and waits for their ends.
///
/// # Errors
/// See the head of the file.
pub fn run(root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let program = binary()?;
    let (mut started, mut bad) = (Vec::new(), 0);
    for name in store.jobs()? {
        let begun = match store.job(&name).map_err(Failure::from).and_then(|job| is_lost(&job)) {
            Ok(false) => continue,
            Ok(true) => start(&program, &store, &name)
                .map_err(|error| Failure::system("starting its restart", &error)),
            Err(failure) => Err(failure),
        };
        match begun {
            Ok(child) => started.push((name, child)),
            Err(failure) => {
                report::warn(&format!("job {name}: {failure}"));
                bad += 1;
            }
        }
    }
    let all = started.len() + bad;
    if all == 0 {
        report::note("no job is lost");
    }
    for (name, mut child) in started {
        match child.wait() {
            // 75: an image was taken, and the program ended.
            Ok(status) if matches!(status.code(), Some(0 | 75)) => {}
            Ok(status) => {
                report::warn(&format!("job {name}: {status}"));
                bad += 1;
            }
            Err(error) => return Err(Failure::system("waiting for a restart", &error)),
        }
    }
    if bad == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::Internal, format!("{bad} of {all} jobs did not come to their end")))
}

/// Whether its program was killed with all that could have seen that, and there is an image to go on from. A job that
/// runs is not; one that cannot be looked at is an error.
fn is_lost(job: &Job) -> Result<bool, Failure> {
    let _lock = match job.lock() {
        Err(StoreError::Locked { .. }) => return Ok(false),
        lock => lock?,
    };
    let was_seen = LastRun::read(job).is_none_or(|run| run.ended.is_some());
    if was_seen || pidfile::program(job).is_some() {
        return Ok(false);
    }
    let recipe = Recipe::read(job)?;
    if let Some(place) = &recipe.settings.gang {
        return Err(super::gang::needs_place(place));
    }
    Ok(same_run::newest(job, None)?.is_some())
}

fn start(program: &Path, store: &Store, name: &str) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command.arg("--store").arg(store.root()).args(["restart", "--stdio", "keep", name]);
    command.spawn()
}
