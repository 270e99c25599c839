//! `holdfast prune`: deletes images of a job that is not running, from the store and from its tiers.
//!
//! First the plan is made over all tiers (`holdfast_tiers::policy::prune`), then printed, then done. Invariants: with
//! the job's lock held; an image that can be restarted is left somewhere unless `--all` or `--anyway` was said; a tier
//! that cannot be asked loses nothing, and what it has counts for nothing.

use super::places::{self, JobPlace};
use crate::args::PruneArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::report;
use holdfast_image::Epoch;
use holdfast_tiers::hygiene::{self, Survey};
use holdfast_tiers::policy::{PrunePlan, Retention, TierHolds, Why, Wish, prune};
use holdfast_tiers::stack::{TierSpec, TiersRecord, wanted};
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, JobLock};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One line of the plan.
#[derive(Debug, Serialize)]
struct Line {
    tier: String,
    image: u64,
    frees: u64,
}

/// An image that stays though it was named, or though the rules do not keep it.
#[derive(Debug, Serialize)]
struct Stays {
    tier: String,
    image: u64,
    why: &'static str,
}

/// What crashes left.
#[derive(Debug, Serialize)]
struct Leftover {
    tier: String,
    file: String,
    frees: u64,
}

/// All of it.
#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    removals: Vec<Line>,
    stays: Vec<Stays>,
    leftovers: Vec<Leftover>,
    freed: u64,
}

/// A tier that was looked at.
struct Seen<'a> {
    place: &'a JobPlace,
    survey: Survey,
    holds: TierHolds,
    leftovers: Vec<(String, u64)>,
}

/// Deletes what the rules do not keep, what was named, or all.
///
/// # Errors
/// The job is running; what was named is not there, or must stay; files cannot be deleted.
pub fn run(args: &PruneArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    let (name, named) = named(args)?;
    let job = crate::names::open_job(&store, &name)?;
    wait_for_lock::wait(&job, &Patience::default())?;
    let lock = job.lock()?;
    let all = places::specs(&store, Some(&job))?;
    let chosen = if args.asks() || args.which.is_given() {
        places::chosen(&args.which, &store, Some(&job))?
    } else {
        all.clone()
    };
    // What other tiers have counts, too, for what may go.
    let others = all.iter().filter(|spec| !chosen.iter().any(|known| known.address == spec.address));
    let specs: Vec<TierSpec> = chosen.iter().chain(others).cloned().collect();
    let places = places::of(&name, Some(&job), &specs);
    let unreachable = places.tell();
    let mut seen = Vec::new();
    for place in &places.found {
        let survey = hygiene::survey(&place.folder)?;
        let is_chosen = chosen.iter().any(|spec| spec.address == place.spec.address);
        let wish = if is_chosen { wish(args, &named, &place.spec) } else { Wish::Nothing };
        let holds = TierHolds { wish, versions: survey.versions.clone(), waiting: BTreeSet::new() };
        seen.push(Seen { place, survey, holds, leftovers: Vec::new() });
    }
    look_below(&job, &all, &mut seen);
    let plan = plan(args, &named, &seen)?;
    let mut report = report_of(args, &plan, &seen);
    if !args.json {
        report::print(&text(&report))?;
    }
    if !args.dry_run {
        report.freed = act(&job, &lock, &plan, &seen)?;
    }
    finish(args, &job, &report)?;
    match unreachable {
        Some(exit) if args.which.is_given() => Err(Failure::new(exit, "not all tiers could be asked")),
        _ => Ok(()),
    }
}

/// The job, and the images that are named.
fn named(args: &PruneArgs) -> Result<(String, BTreeSet<u64>), Failure> {
    let name = args.images.first().map(|image| image.job.clone()).unwrap_or_default();
    let numbers: BTreeSet<u64> = args.images.iter().filter_map(|image| Some(image.epoch?.0)).collect();
    let one_job = args.images.iter().all(|image| image.job == name);
    if !one_job || (args.images.len() > 1 && numbers.len() != args.images.len()) {
        let text = "give one job, or images of one job: JOB, or JOB@3 JOB@4";
        return Err(Failure::new(Exit::Usage, text));
    }
    if !numbers.is_empty() && args.has_rules() {
        return Err(Failure::new(Exit::Usage, "name images, or give rules (--keep, --every, --max, --all)"));
    }
    Ok((name, numbers))
}

fn wish(args: &PruneArgs, named: &BTreeSet<u64>, spec: &TierSpec) -> Wish {
    if args.all {
        Wish::All
    } else if !named.is_empty() {
        Wish::Versions(named.clone())
    } else if args.has_rules() {
        Wish::Rules(Retention { keep: args.keep, every: args.every, max_bytes: args.max })
    } else {
        Wish::Rules(spec.rules)
    }
}

/// What lower tiers are to get from the store, and what crashes left on each.
fn look_below(job: &Job, all: &[TierSpec], seen: &mut [Seen<'_>]) {
    let record = TiersRecord::read(job);
    let Some(here) = seen.iter().find(|seen| seen.place.spec.is_local()).map(|seen| seen.survey.numbers())
    else {
        return;
    };
    let mut waiting: BTreeSet<u64> = BTreeSet::new();
    for spec in all.iter().filter(|spec| !spec.is_local()) {
        // Of one that cannot be asked, what is known counts.
        let there = match seen.iter().find(|seen| seen.place.spec.address == spec.address) {
            Some(seen) => seen.survey.numbers(),
            None => record
                .of(&spec.address)
                .map(|tier| tier.versions.iter().copied().collect())
                .unwrap_or_default(),
        };
        waiting.extend(wanted(&spec.rules, &here, &there, None));
    }
    let mut coming = BTreeSet::new();
    for seen in seen.iter().filter(|seen| seen.place.spec.is_local()) {
        let tables = waiting.iter().filter_map(|&number| seen.survey.table(number)).flatten();
        coming.extend(tables.map(|entry| (entry.epoch.0, entry.number)));
    }
    for seen in seen.iter_mut() {
        let is_all = seen.holds.wish == Wish::All;
        if seen.place.spec.is_local() {
            seen.holds.waiting.clone_from(&waiting);
        } else if seen.holds.wish != Wish::Nothing {
            seen.leftovers = if is_all { seen.survey.loose() } else { seen.survey.leftovers(&coming) };
        }
    }
}

fn plan(args: &PruneArgs, named: &BTreeSet<u64>, seen: &[Seen<'_>]) -> Result<PrunePlan, Failure> {
    let has = |number: u64| {
        let chosen = seen.iter().filter(|seen| seen.holds.wish != Wish::Nothing);
        chosen.flat_map(|seen| &seen.holds.versions).any(|held| held.number == number)
    };
    if let Some(number) = named.iter().find(|number| !has(**number)) {
        return Err(Failure::new(Exit::NotFound, format!("there is no image {number} there")));
    }
    let holds: Vec<TierHolds> = seen.iter().map(|seen| seen.holds.clone()).collect();
    let plan = prune(&holds, args.anyway);
    if named.is_empty() || plan.stays.is_empty() {
        return Ok(plan);
    }
    let line = |&(tier, number, why): &(usize, u64, Why)| {
        format!("image {number} on {} stays: {}", seen[tier].place.name(), reason(why))
    };
    let lines: Vec<String> = plan.stays.iter().map(line).collect();
    Err(Failure::new(
        Exit::Refused,
        format!("{}\n--anyway deletes it; nothing was deleted", lines.join("\n")),
    ))
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Waits => "a tier has yet to get it",
        Why::Last => "no other image can be restarted",
    }
}

fn report_of(args: &PruneArgs, plan: &PrunePlan, seen: &[Seen<'_>]) -> Report {
    let name = |tier: usize| seen[tier].place.name().to_owned();
    let removals = plan.removals.iter();
    let removals: Vec<Line> =
        removals.map(|r| Line { tier: name(r.tier), image: r.version, frees: r.frees }).collect();
    let stays = plan.stays.iter();
    let stays =
        stays.map(|&(tier, image, why)| Stays { tier: name(tier), image, why: reason(why) }).collect();
    let leftover = |(seen, (file, frees)): (&Seen<'_>, &(String, u64))| Leftover {
        tier: seen.place.name().to_owned(),
        file: file.clone(),
        frees: *frees,
    };
    let leftovers = seen.iter().flat_map(|seen| seen.leftovers.iter().map(move |left| (seen, left)));
    let leftovers: Vec<Leftover> = leftovers.map(leftover).collect();
    let freed = removals.iter().map(|line| line.frees).chain(leftovers.iter().map(|line| line.frees)).sum();
    Report { dry_run: args.dry_run, removals, stays, leftovers, freed }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let would = if report.dry_run { "would delete" } else { "deleting" };
    for Line { tier, image, frees } in &report.removals {
        let on = if tier == places::LOCAL { String::new() } else { format!(" from {tier}") };
        text.push_str(&format!("{would} image {image}{on} ({})\n", report::size(*frees)));
    }
    for Leftover { tier, file, frees } in &report.leftovers {
        text.push_str(&format!(
            "{would} {file} from {tier}, which no image needs ({})\n",
            report::size(*frees)
        ));
    }
    for Stays { tier, image, why } in &report.stays {
        text.push_str(&format!("image {image} on {tier} stays: {why}\n"));
    }
    text
}

/// Lower tiers first: what is in the store is what they could get again.
fn act(job: &Job, lock: &JobLock, plan: &PrunePlan, seen: &[Seen<'_>]) -> Result<u64, Failure> {
    let mut freed = 0;
    let mut record = TiersRecord::read(job);
    for (index, seen) in seen.iter().enumerate().rev() {
        let numbers: BTreeSet<u64> =
            plan.removals.iter().filter(|removal| removal.tier == index).map(|r| r.version).collect();
        if seen.place.spec.is_local() {
            for &number in &numbers {
                freed += job.remove_image(lock, Epoch(number))?;
            }
            freed += job.clean(lock)?.bytes;
        } else if seen.holds.wish != Wish::Nothing {
            freed += on_tier(seen, &numbers)?;
            if let Some(known) = record.tiers.iter_mut().find(|tier| tier.tier == seen.place.name()) {
                known.versions.retain(|number| !numbers.contains(number));
            }
        }
    }
    // Advice only.
    let _ = record.write(job);
    Ok(freed)
}

fn on_tier(seen: &Seen<'_>, numbers: &BTreeSet<u64>) -> Result<u64, TierError> {
    let folder = &seen.place.folder;
    let freed = hygiene::remove(folder, &seen.survey, numbers, &seen.leftovers)?;
    hygiene::finish_repairs(folder)?;
    // The job's lock is ours: no agent of this host writes there. What other hosts write the tier knows.
    Ok(freed + folder.tier().clean(folder.folder())?)
}

fn finish(args: &PruneArgs, job: &Job, report: &Report) -> Result<(), Failure> {
    let store = args.which.tier.is_empty() || args.which.tier.iter().any(TierSpec::is_local);
    let last = if args.all && store && !args.dry_run { remove_job(job) } else { String::new() };
    if args.json {
        return report::print_json("prune", report);
    }
    let would = if args.dry_run { "would free" } else { "freed" };
    report::print(&format!("{last}{would} {} in all\n", report::size(report.freed)))
}

/// Removes the folder of a job without images. File tails that a restart cut off belong to the user: they stay.
fn remove_job(job: &Job) -> String {
    if let Err(error) = job.discard_memory() {
        return format!("memory of job {} stays: {error}\n", job.name());
    }
    let saved = job.saved_dir();
    if fs::read_dir(&saved).is_ok_and(|mut entries| entries.next().is_some()) {
        return format!("kept {}: parts of your files that restarts cut off\n", saved.display());
    }
    match fs::remove_dir_all(job.dir()) {
        Ok(()) => format!("deleted job {}\n", job.name()),
        Err(error) => format!("{} stays: {error}\n", job.dir().display()),
    }
}
