//! The agent's cascade: started with it, woken by each commit, told of in its status, waited for at its end.
//!
//! Used by the agent's start and its loop. Invariants: nothing here waits for a tier; what a tier does or fails to do
//! is never a failure of the job.

use crate::exit::Failure;
use crate::link::{Link, Tell};
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_image::control::{CopyStatus, TierStatus};
use holdfast_sys::{attributes, sched};
use holdfast_tiers::Job;
use holdfast_tiers::stack::{Activity, Cascade, CascadeOptions, TierState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an agent without a program goes on copying.
pub const LINGER: Duration = Duration::from_secs(300);
/// `IOPRIO_CLASS_BE` with the lowest level, 7, as `IOPRIO_PRIO_VALUE` makes it (include/uapi/linux/ioprio.h). Not
/// `IOPRIO_CLASS_IDLE`: on a disk that is never idle mq-deadline lets each request of that class wait for ten seconds
/// (block/mq-deadline.c, `prio_aging_expire`), and images would reach no tier.
const IO_LOW: u32 = 2 << 13 | 7;
/// Not the lowest: beside a program that keeps all processors busy that is one hundredth of one.
const NICE: i32 = 10;

/// The program comes first: the processor and the disk are for it.
fn low_priority() {
    // 0 is the calling thread (setpriority(2), NOTES; ioprio_set(2)). Without it the copies are only less polite.
    let _ = attributes::set_nice(0, NICE);
    let _ = sched::set_io_priority(0, IO_LOW);
}

/// Starts the cascade of a job that has tiers. `link` is told of the first failure of each.
///
/// # Errors
/// No thread can be made.
pub fn start(job: &Job, recipe: &Recipe, link: Option<Link>) -> Result<Option<Cascade>, Failure> {
    if recipe.settings.tiers.is_empty() || recipe.id.is_empty() {
        return Ok(None);
    }
    let name = job.name().to_owned();
    let options = CascadeOptions {
        job: job.clone(),
        folder: tiers::folder(job.name(), &recipe.id),
        tiers: tiers::lower(&recipe.settings.tiers),
        open: Arc::new(tiers::open),
        on_thread: low_priority,
        on_failure: Box::new(move |state: &TierState, is_first| {
            let error = state.error.as_deref().unwrap_or("unknown error");
            let tier = &state.spec.address;
            let text = format!("warning: tier {tier}: {error}; images wait for it, and it is tried again");
            tracing::warn!("{text}");
            if let Some(link) = link.as_ref().filter(|_| is_first) {
                link.tell(&Tell::Warning {
                    text: format!("{text} (`holdfast list {name}` shows how it is)"),
                });
            }
        }),
    };
    Cascade::start(options).map(Some).map_err(|error| Failure::system("starting the cascade", &error))
}

/// What `status` says of tiers.
pub fn status(cascade: Option<&Cascade>) -> Vec<TierStatus> {
    let tier = |state: TierState| TierStatus {
        tier: state.spec.address.clone(),
        newest: state.versions.last().map(|&epoch| Epoch(epoch)),
        waiting: state.waiting.len() as u64,
        copying: match state.activity {
            Activity::Copying { epoch, done, total } => Some(CopyStatus { epoch: Epoch(epoch), done, total }),
            _ => None,
        },
        error: state.error,
        again_ms: match state.activity {
            Activity::Failed { again } => {
                let left = again.saturating_duration_since(Instant::now());
                Some(u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
            }
            _ => None,
        },
    };
    cascade.map(|cascade| cascade.states().into_iter().map(tier).collect()).unwrap_or_default()
}

/// Whether an agent without a program since then has something to finish.
pub fn lingers(cascade: Option<&Cascade>, since: Instant) -> bool {
    cascade.is_some_and(|cascade| since.elapsed() < LINGER && cascade.is_busy())
}

/// A line for each tier that has not got all that it is to get.
pub fn left_over(job: &str, cascade: Option<&Cascade>) -> Vec<String> {
    let line = |state: TierState| {
        let first = state.waiting.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let why = state.error.map(|error| format!(": {error}")).unwrap_or_default();
        let tier = &state.spec.address;
        (!first.is_empty()).then(|| {
            format!("warning: image {first} of job {job} is not on tier {tier} yet{why}; `holdfast sync {job}` goes on")
        })
    };
    cascade.map(|cascade| cascade.states().into_iter().filter_map(line).collect()).unwrap_or_default()
}
