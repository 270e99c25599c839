//! `holdfast set`: changes how images of a job are made, from now on, also while it runs.
//!
//! Of a running job the agent does it, which has the job's lock. Fails by: there is no such job, nothing was given, or
//! `job.json` cannot be written; all is as before then.

use crate::args::SetArgs;
use crate::client::{Agent, accepted};
use crate::exit::{Exit, Failure};
use crate::job_lock;
use crate::new_settings::{NewSettings, told};
use crate::report;
use crate::settings::Recipe;
use holdfast_image::control::{Reply, Request};
use holdfast_tiers::Job;
use std::path::Path;

/// Changes them.
///
/// # Errors
/// See the head of the file.
pub fn run(args: &SetArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &args.job)?;
    if !args.new.is_none() {
        let alone = || {
            let old = Recipe::read(&job)?;
            Recipe { settings: args.new.apply(&old.settings), ..old }.write(&job)
        };
        job_lock::alone_or_by_agent(&job, |_| alone(), |agent| ask(&job, agent, &args.new))?;
    }
    report::result(&format!("job {}: {}\n", job.name(), told(&Recipe::read(&job)?.settings)))
}

fn ask(job: &Job, agent: &Agent, new: &NewSettings) -> Result<(), Failure> {
    match accepted(job, agent.ask(&Request::Set { wanted: new.wanted() })?)? {
        Reply::Ok => Ok(()),
        other => Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}"))),
    }
}
