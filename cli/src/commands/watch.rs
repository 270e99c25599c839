//! `holdfast watch`: follows a running job until it ends.

use crate::client::Agent;
use crate::commands::restarts;
use crate::exit::{Exit, Failure};
use crate::last_run::{LastRun, Verdict};
use crate::report;
use crate::settings::Recipe;
use holdfast_image::control::{JobStatus, TierStatus};
use holdfast_tiers::Job;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(500);
/// So long a restart after a failure is waited for: its pauses, and then some.
const RESTART: Duration = Duration::from_secs(20);

/// Follows a job: one line that changes on a terminal, one line per change elsewhere.
///
/// # Errors
/// The job is not running.
pub fn run(name: &str, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    let mut agent = Agent::connect(&job)?;
    let mut is_supervised = followed(&job);
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let terminal = std::io::stderr().is_terminal();
    let (mut last, mut said) = (String::new(), None);
    loop {
        let Ok(status) = agent.status() else {
            // Else the end of the agent is the end of the job.
            let Some(next) = is_supervised.then(|| restarted(&job)).flatten() else { break };
            (agent, is_supervised) = (next, followed(&job));
            continue;
        };
        let restarts = restarts::of(&job).len();
        if json {
            let now = (status, restarts);
            if said.as_ref() != Some(&now) {
                print_json(&now.0, restarts)?;
                said = Some(now);
            }
            thread::sleep(POLL);
            continue;
        }
        let line = line(&status, restarts);
        if terminal {
            bar.set_message(line);
            bar.tick();
        } else if line != last {
            report::print(&format!("{line}\n"))?;
            last = line;
        }
        thread::sleep(POLL);
    }
    bar.finish_and_clear();
    if json {
        return Ok(());
    }
    let newest = job.images()?.iter().rev().find(|image| image.broken.is_none()).map(|image| image.epoch);
    report::print(&match newest {
        Some(epoch) => format!("job {} has ended; newest image {epoch}\n", job.name()),
        None => format!("job {} has ended without an image\n", job.name()),
    })
}

/// Whether a failure of this run is followed by a restart: a later one may be the last.
fn followed(job: &Job) -> bool {
    Recipe::read(job).is_ok_and(|recipe| recipe.settings.supervised)
}

/// The next agent of a job that is restarted after failures, if that comes soon.
fn restarted(job: &Job) -> Option<Agent> {
    let begun = Instant::now();
    while begun.elapsed() < RESTART {
        let verdict = LastRun::read(job).and_then(|last| last.verdict());
        if matches!(verdict, Some(Verdict::Well | Verdict::ByUser(_))) {
            return None;
        }
        if let Ok(agent) = Agent::connect(job) {
            return Some(agent);
        }
        thread::sleep(POLL);
    }
    None
}

fn print_json(status: &JobStatus, restarts: usize) -> Result<(), Failure> {
    let encoded = serde_json::to_value(status);
    let mut fields =
        encoded.map_err(|error| Failure::new(Exit::Internal, format!("encoding JSON: {error}")))?;
    fields["restarts"] = restarts.into();
    fields["time"] = report::utc_now().into();
    report::print_json_line("status", fields)
}

fn line(status: &JobStatus, restarts: usize) -> String {
    let pid = status.pid.map_or_else(|| "no program yet".to_owned(), |pid| format!("pid {pid}"));
    let newest = status.newest.map_or_else(|| "no image".to_owned(), |epoch| format!("newest image {epoch}"));
    let mut line = format!("{}: {pid}, {newest}", status.job);
    if let Some(now) = &status.under_way {
        line.push_str(&format!(", {}", report::under_way(now)));
    }
    for tier in &status.tiers {
        line.push_str(&tier_text(tier));
    }
    if restarts > 0 {
        line.push_str(&format!(", restarts after failures: {restarts}"));
    }
    if let Some(error) = &status.last_error {
        line.push_str(&format!(", last checkpoint failed: {error}"));
    }
    line
}

/// What a tier is doing; nothing where it has all that it is to get.
fn tier_text(status: &TierStatus) -> String {
    let TierStatus { tier, waiting, .. } = status;
    match (&status.copying, &status.error) {
        (Some(copy), _) => {
            let (done, total) = (report::size(copy.done), report::size(copy.total));
            format!(", copying image {} to {tier}: {done} of {total}", copy.epoch)
        }
        (None, Some(error)) => {
            let again = status.again_ms.map(|ms| format!(", tried again in {} s", ms.div_ceil(1000)));
            format!(", {waiting} images wait for {tier} ({error}{})", again.unwrap_or_default())
        }
        (None, None) if *waiting > 0 => format!(", {waiting} images wait for {tier}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::Epoch;
    use holdfast_image::control::CopyStatus;

    #[test]
    fn a_tier_tells_what_it_does_and_what_is_wrong() {
        let idle = TierStatus { tier: "dir=/pfs".into(), ..TierStatus::default() };
        assert_eq!(tier_text(&idle), "");
        let copy = CopyStatus { epoch: Epoch(3), done: 512, total: 1024 };
        let copying = TierStatus { copying: Some(copy), waiting: 1, ..idle.clone() };
        assert_eq!(tier_text(&copying), ", copying image 3 to dir=/pfs: 512 B of 1.0 KiB");
        let failed = TierStatus { error: Some("full".into()), again_ms: Some(1500), waiting: 2, ..idle };
        assert_eq!(tier_text(&failed), ", 2 images wait for dir=/pfs (full, tried again in 2 s)");
    }
}
