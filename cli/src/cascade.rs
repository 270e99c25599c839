//! The cascade of a job: started with its agent, woken by each commit, told of in its status, waited for at its end.
//!
//! Used by the agent and by `sync`, for what a dead agent has left. Invariants: nothing here waits for a tier; what a
//! tier does or fails to do is never a failure of the job.

use crate::exit::Failure;
use crate::front_link::{Link, Tell};
use crate::last_run::LastRun;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_image::control::{CopyStatus, TierStatus};
use holdfast_sys::cgroup::{self, Room};
use holdfast_sys::{attributes, sched};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::policy::{Pinned, Retention};
use holdfast_tiers::stack::{
    Activity, Cascade, CascadeOptions, OtherImage, TierSpec, TierState, TiersRecord,
};
use holdfast_tiers::{Job, MemoryFirst};
use std::sync::Arc;
use std::thread;
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
pub fn low_priority() {
    // 0 is the calling thread (setpriority(2), NOTES; ioprio_set(2)). Without it the copies are only less polite.
    let _ = attributes::set_nice(0, NICE);
    let _ = sched::set_io_priority(0, IO_LOW);
}

/// Starts the cascade of a job that has tiers. `restarted_from`: an image that stays.
/// `link` is told of the first failure of each.
///
/// # Errors
/// No thread can be made.
pub fn start(
    job: &Job,
    recipe: &Recipe,
    restarted_from: Option<u64>,
    link: Option<Link>,
) -> Result<Option<Cascade>, Failure> {
    // What is in memory has to be in the store, too, before the host goes.
    let of_job = &recipe.settings.tiers;
    let lower = if recipe.id.is_empty() { &[] } else { of_job.lower() };
    if job.memory().is_none() && (of_job.is_empty() || recipe.id.is_empty()) {
        return Ok(None);
    }
    let rules = Retention { keep: recipe.settings.store_rules().keep, ..Retention::default() };
    let home = job.memory().map(|_| TierSpec { rules, ..of_job.store().clone() });
    let in_memory = of_job.memory().and_then(|spec| spec.rules.keep);
    if let Some(memory) = job.memory() {
        watch_memory(memory.clone())?;
    }
    let name = job.name().to_owned();
    let (link, of_record, of_end) = (Arc::new(link), job.clone(), job.clone());
    let (of_others, link_of_others) = (name.clone(), Arc::clone(&link));
    let options = CascadeOptions {
        job: job.clone(),
        folder: tiers::folder(job.name(), &recipe.id),
        tiers: home.into_iter().chain(lower.iter().cloned()).collect(),
        keep_in_memory: in_memory.and_then(|keep| usize::try_from(keep).ok()).unwrap_or(1),
        pinned: Pinned { restarted_from, run_before: recipe.earlier.kept() },
        open: Arc::new(move |spec: &TierSpec| tiers::open_of_job(spec, &TiersRecord::read(&of_record))),
        pack: recipe.settings.compress != Compression::By(Codec::Raw),
        on_thread: low_priority,
        on_failure: Box::new(move |state: &TierState, is_first| {
            let tier = state.spec.name();
            if let Some(why) = &state.read_only {
                let text = format!("tier {tier} is read-only: {why}; no image goes there");
                tracing::info!("{text}");
                link.iter().for_each(|link| link.tell(&Tell::Warning { text: text.clone() }));
                return;
            }
            let error = state.error.as_deref().unwrap_or("unknown error");
            let text = format!("warning: tier {tier}: {error}; images wait, and Holdfast tries again");
            tracing::warn!("{text}");
            if let Some(link) = link.iter().next().filter(|_| is_first) {
                link.tell(&Tell::Warning {
                    text: format!("{text} (`holdfast list {name}` shows its state)"),
                });
            }
        }),
        on_other: Box::new(move |spec: &TierSpec, other: &OtherImage| {
            let (tier, remedy) = (spec.name(), other.remedy());
            let text = format!(
                "warning: tier {tier}: {other}; image {} of job {of_others} stays in the store; {remedy} (`holdfast \
                 list {of_others}` shows what else waits)",
                other.image
            );
            tracing::warn!("{text}");
            link_of_others.iter().for_each(|link| link.tell(&Tell::Warning { text: text.clone() }));
        }),
        host_of: tiers::host_of,
        is_over: Box::new(move || LastRun::read(&of_end).is_some_and(|run| run.is_done())),
    };
    Cascade::start(options).map(Some).map_err(|error| Failure::system("starting the cascade", &error))
}

/// What the program needs is worth more than a restart that is fast: when little is left of its control group, or of
/// the host, all that the store has leaves memory.
fn watch_memory(memory: MemoryFirst) -> Result<(), Failure> {
    const LOOK: Duration = Duration::from_millis(500);
    let watch = move || loop {
        thread::sleep(LOOK);
        if memory.used() > 0 && is_short(cgroup::tightest(std::process::id()).as_ref(), cgroup::of_host()) {
            // What cannot be removed now is tried again.
            let _ = memory.trim(0);
        }
    };
    let made = thread::Builder::new().name("memory".into()).spawn(watch);
    made.map(drop).map_err(|error| Failure::system("starting the thread that watches memory", &error))
}

/// Whether less than an eighth is left of what the group may have, or than a sixteenth of the host's.
fn is_short(group: Option<&Room>, host: Option<Room>) -> bool {
    group.is_some_and(|room| room.left() < room.limit / 8)
        || host.is_some_and(|room| room.left() < room.limit / 16)
}

/// What `status` says of tiers.
pub fn status(cascade: Option<&Cascade>) -> Vec<TierStatus> {
    let tier = |state: TierState| TierStatus {
        tier: state.spec.name(),
        newest: state.versions.last().map(|&epoch| Epoch(epoch)),
        waiting: state.waiting.len() as u64,
        copying: match state.activity {
            Activity::Copying { epoch, done, total } => Some(CopyStatus { epoch: Epoch(epoch), done, total }),
            _ => None,
        },
        error: state.error,
        read_only: state.read_only,
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
        let tier = state.spec.name();
        let then = match state.others.is_empty() {
            true => format!("; `holdfast sync {job}` copies it"),
            false => String::new(),
        };
        (!first.is_empty())
            .then(|| format!("warning: image {first} of job {job} is not on tier {tier} yet{why}{then}"))
    };
    cascade.map(|cascade| cascade.states().into_iter().filter_map(line).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_left_when_the_program_may_need_it() {
        let room = |left: u64| Room { group: "/".into(), limit: 1600, used: 1600 - left };
        assert!(!is_short(None, None));
        assert!(!is_short(Some(&room(200)), Some(room(100))));
        assert!(is_short(Some(&room(199)), Some(room(1600))));
        assert!(is_short(None, Some(room(99))));
    }
}
