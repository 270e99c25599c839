//! `holdfast watch`: follows a running job until it ends.

use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_image::control::{JobStatus, TierStatus};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use std::thread;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(500);

/// Follows a job: one line that changes on a terminal, one line per change elsewhere.
///
/// # Errors
/// The job is not running.
pub fn run(name: &str, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    let agent = Agent::connect(&job)?;
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
        bar.set_style(style);
    }
    let terminal = std::io::stderr().is_terminal();
    let (mut last, mut said) = (String::new(), None);
    // The end of the agent is the end of the job.
    while let Ok(status) = agent.status() {
        if json {
            if said.as_ref() != Some(&status) {
                print_json(&status)?;
                said = Some(status);
            }
            thread::sleep(POLL);
            continue;
        }
        let line = line(&status);
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

fn print_json(status: &JobStatus) -> Result<(), Failure> {
    let encoded = serde_json::to_value(status);
    let mut fields =
        encoded.map_err(|error| Failure::new(Exit::Internal, format!("encoding JSON: {error}")))?;
    fields["time"] = report::utc_now().into();
    report::print_json_line("status", fields)
}

fn line(status: &JobStatus) -> String {
    let pid = status.pid.map_or_else(|| "no program yet".to_owned(), |pid| format!("pid {pid}"));
    let newest = status.newest.map_or_else(|| "no image".to_owned(), |epoch| format!("newest image {epoch}"));
    let mut line = format!("{}: {pid}, {newest}", status.job);
    if let Some(now) = &status.under_way {
        line.push_str(&format!(", {}", report::under_way(now)));
    }
    for tier in &status.tiers {
        line.push_str(&tier_text(tier));
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
