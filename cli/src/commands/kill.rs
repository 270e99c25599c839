//! `holdfast kill`: sends a signal to the program of a running job, by the name of the job.
//!
//! Without an image: `holdfast stop` takes one first. Fails by: there is no such job, or it does not run.

use crate::args::KillArgs;
use crate::client::{Agent, find_job};
use crate::exit::{Exit, Failure};
use crate::pidfile;
use crate::report;
use crate::settings::signal_name;
use holdfast_sys::ptrace;
use std::path::Path;

/// Sends the signal.
///
/// # Errors
/// See the head of the file.
pub fn run(args: &KillArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = find_job(&store, &args.job)?;
    let by_agent = Agent::connect(&job).and_then(|agent| agent.status()).ok().and_then(|status| status.pid);
    // One whose agent was killed runs on.
    let Some(pid) = by_agent.or_else(|| pidfile::program(&job)) else {
        let message = format!("job {} is not running", job.name());
        return Err(Failure::new(Exit::NotFound, message));
    };
    let name = signal_name(args.signal);
    ptrace::kill(pid, args.signal)
        .map_err(|error| Failure::system(format_args!("sending {name} to process {pid}"), &error))?;
    report::result(&format!("job {}: {name} was sent to its program, process {pid}\n", job.name()))
}
