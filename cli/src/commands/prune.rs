//! `holdfast prune`: deletes images, from the store and from the job's tiers, and what restarts have kept.
//!
//! First the plan is made over all tiers (`holdfast_tiers::policy::prune`), then printed, then done, job by job.
//! Invariants: with the job's lock held, or by the agent that has it, which deletes nothing but images of the store; an
//! image that can be restarted is left somewhere unless `--all` or `--anyway` was said; a tier that cannot be asked
//! loses nothing, and what it has counts for nothing; a dry run says what the real one makes free.

use super::gang;
use super::places::{self, Above, JobPlace, Places};
use super::prune_report::{Gone, Leftover, Line, Report, Stays};
use crate::args::PruneArgs;
use crate::client::{Agent, accepted};
use crate::exit::{Exit, Failure, of_tier};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::gang::folder::{GANG_NEEDS, IS_PROTECTED};
use crate::job_lock;
use crate::last_run::LastRun;
use crate::settings::Recipe;
use crate::{report, saved};
use holdfast_image::Epoch;
use holdfast_image::control::{Reply, Request};
use holdfast_sys::clock;
use holdfast_tiers::hygiene::{self, Survey};
use holdfast_tiers::policy::{Pinned, PrunePlan, Retention, TierHolds, Why, Wish, newest_of_days, prune};
use holdfast_tiers::stack::{LocalRules, Place, TierSpec, TiersRecord, wanted};
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Image, Job, JobLock, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A tier that was looked at.
struct Seen<'a> {
    place: &'a JobPlace,
    survey: Survey,
    holds: TierHolds,
    leftovers: Vec<(String, u64)>,
}

/// What is asked of one job.
struct Wanted<'a> {
    args: &'a PruneArgs,
    job: &'a Job,
    /// Images that are named.
    named: BTreeSet<u64>,
    /// None: its agent has it.
    lock: Option<JobLock>,
}

/// Deletes what the rules do not keep, what was named, or all.
///
/// # Errors
/// What was named is not there, or must stay; files cannot be deleted. Of several jobs the others are done all the
/// same.
pub fn run(args: &PruneArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    if args.which.tier.iter().any(TierSpec::is_memory) {
        let text = "images leave memory by themselves when the store has them; --tier local deletes images from both";
        return Err(Failure::new(Exit::Usage, text));
    }
    let store = crate::names::open_store(root)?;
    let mut jobs = jobs(args)?;
    let gangs = gang::spread(&store, &mut jobs)?;
    if loses_all(args) && !args.dry_run {
        gang::remove_folders(&store, &gangs)?;
    }
    let several = jobs.len() > 1;
    let mut whole = Report { dry_run: args.dry_run, ..Report::default() };
    let mut failed = None;
    for (name, named) in jobs {
        match of_job(args, &store, (&name, named), (several, &gangs)) {
            Ok((report, unreachable)) => {
                whole.add(report);
                failed = failed.or(unreachable);
            }
            Err(failure) if several => {
                report::warn(&format!("job {name}: {failure}"));
                failed.get_or_insert(Failure { message: "not all jobs were pruned".into(), ..failure });
            }
            Err(failure) => return Err(failure),
        }
    }
    whole.finish(args.json)?;
    failed.map_or(Ok(()), Err)
}

/// One job; what there is to be said of tiers that could not be asked.
fn of_job(
    args: &PruneArgs,
    store: &Store,
    (name, named): (&str, BTreeSet<u64>),
    (several, gangs): (bool, &BTreeSet<String>),
) -> Result<(Report, Option<Failure>), Failure> {
    let job = &crate::names::open_job(store, name)?;
    let needed = gang::needed_of(store, job, loses_all(args), gangs)?;
    let protected = needed.protected.map(|number| (number, Why::Protected));
    let needed: BTreeMap<u64, Why> =
        protected.into_iter().chain(needed.newest.map(|number| (number, Why::Gang))).collect();
    let lock = lock(args, job)?;
    let wanted = Wanted { args, job, named, lock };
    let tiers = places::of_job(store, Some(job))?;
    let all = tiers.all().cloned().collect::<Vec<_>>();
    let chosen = match (wanted.lock.is_some(), args.asks() || args.which.is_given()) {
        // Of the tiers of a running job its agent sees to the rules.
        (false, _) => vec![tiers.store().clone()],
        (true, true) => places::chosen(&args.which, &tiers, Some(job)),
        (true, false) => all.clone(),
    };
    // What other tiers have counts, too, for what may go.
    let others = all.iter().filter(|spec| !chosen.iter().any(|known| known.place == spec.place));
    let specs: Vec<TierSpec> = chosen.iter().chain(others).cloned().collect();
    let Places { found, mut failed } = places::of(name, Some(job), &specs, Above::Together);
    let is_chosen = |spec: &TierSpec| chosen.iter().any(|other| other.place == spec.place);
    let mut seen = Vec::new();
    for place in &found {
        let survey = match hygiene::survey(&place.folder) {
            Err(error) if !place.spec.is_store() => {
                failed.push((place.spec.clone(), error));
                continue;
            }
            survey => survey?,
        };
        let wish = if is_chosen(&place.spec) { wish(&wanted, place, &survey)? } else { Wish::Nothing };
        let (versions, waiting, others) = (survey.versions.clone(), BTreeSet::new(), BTreeSet::new());
        let needed = if place.spec.is_store() { needed.clone() } else { BTreeMap::new() };
        let holds = TierHolds { wish, versions, waiting, others, needed };
        seen.push(Seen { place, survey, holds, leftovers: Vec::new() });
    }
    // Those that nothing was asked of are told, and fail nothing.
    let unreachable = failed.iter().find(|(spec, _)| is_chosen(spec)).map(|(_, error)| of_tier(error));
    Places { found: Vec::new(), failed }.tell();
    look_below(&wanted, tiers.lower(), &mut seen)?;
    let plan = plan(&wanted, &seen)?;
    let mut report = report_of(&wanted, &plan, &seen)?;
    if !args.json {
        report::result(&report.text(several))?;
    }
    report.freed = if args.dry_run { report.sum() } else { act(&wanted, &plan, &seen, &report)? };
    let failed = unreachable.filter(|_| args.which.is_given());
    Ok((report, failed.map(|exit| Failure::new(exit, "some tiers did not answer"))))
}

/// The job's lock; none: it runs, and its agent does what can be done.
fn lock(args: &PruneArgs, job: &Job) -> Result<Option<JobLock>, Failure> {
    let runs =
        || Agent::connect(job).and_then(|agent| agent.status()).is_ok_and(|status| status.pid.is_some());
    let is_locked = matches!(job.lock(), Err(StoreError::Locked { .. }));
    if !is_locked || args.all || !runs() {
        return wait_for_lock::take(job, &Patience::default()).map(Some);
    }
    if args.which.all_tiers || args.which.tier.iter().any(|tier| !tier.is_store()) {
        let text = format!(
            "job {} is running: its agent sees to the rules of its tiers; images of the store can be deleted, without \
             --tier and --all-tiers",
            job.name()
        );
        return Err(Failure::new(Exit::Refused, text));
    }
    Ok(None)
}

/// The jobs, with the images that are named of each.
fn jobs(args: &PruneArgs) -> Result<BTreeMap<String, BTreeSet<u64>>, Failure> {
    let mut jobs: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut whole = BTreeSet::new();
    for image in &args.images {
        let numbers = jobs.entry(image.job.clone()).or_default();
        match image.epoch {
            Some(epoch) => drop(numbers.insert(epoch.0)),
            None => drop(whole.insert(image.job.clone())),
        }
    }
    let names_images = jobs.values().any(|numbers| !numbers.is_empty());
    if names_images && !whole.is_empty() {
        return Err(Failure::new(Exit::Usage, "give jobs, or images of jobs: JOB JOB, or JOB@3 JOB@4"));
    }
    if names_images && args.has_rules() {
        let text = "name images, or give rules (--keep, --every, --max, --older-than, --all)";
        return Err(Failure::new(Exit::Usage, text));
    }
    Ok(jobs)
}

fn wish(wanted: &Wanted<'_>, place: &JobPlace, survey: &Survey) -> Result<Wish, Failure> {
    let args = wanted.args;
    if args.all {
        return Ok(Wish::All);
    }
    if !wanted.named.is_empty() {
        return Ok(Wish::Versions(wanted.named.clone()));
    }
    if args.saved && !args.has_image_rules() {
        return Ok(Wish::Nothing);
    }
    let rules = Retention { keep: args.keep, every: args.every, max_bytes: args.max };
    if !args.has_image_rules() {
        return by_own_rules(wanted.job, place, survey);
    }
    if args.older_than.is_none() && args.keep_daily.is_none() {
        return Ok(Wish::Rules(rules));
    }
    // Of all but the newest, where nothing else is said.
    let is_plain = rules == Retention::default();
    let rules = if is_plain { Retention { keep: Some(1), ..rules } } else { rules };
    let dates = dates(wanted.job, place, survey)?;
    let now = clock::realtime_ns();
    let border =
        args.older_than.map(|age| now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
    let of_days = args.keep_daily.map_or_else(BTreeSet::new, |days| newest_of_days(&dates, days));
    let may_go = |(number, created): (&u64, &u64)| {
        border.is_none_or(|border| *created < border) && !of_days.contains(number)
    };
    Ok(Wish::Of(dates.iter().filter(|(n, c)| may_go((n, c))).map(|(number, _)| *number).collect(), rules))
}

/// What the agent of the job would delete: by the rules of the tier, in the store by those of the job; and not what
/// runs before have left that did not come to their ends, until one has.
fn by_own_rules(job: &Job, place: &JobPlace, survey: &Survey) -> Result<Wish, Failure> {
    let recipe = if job.has_recipe()? { Recipe::read(job)? } else { Recipe::default() };
    let is_over = LastRun::read(job).is_some_and(|run| run.is_done());
    let pinned = Pinned { run_before: recipe.earlier.kept().filter(|_| !is_over), ..Pinned::default() };
    let mut stays: BTreeSet<u64> =
        survey.numbers().into_iter().filter(|number| pinned.has(*number)).collect();
    let mut rules = place.spec.rules;
    if place.spec.is_store() {
        let LocalRules { keep, max_bytes } = recipe.settings.store_rules();
        rules = Retention { keep, max_bytes, ..rules };
        if let Some(days) = recipe.settings.keep_daily {
            stays.extend(newest_of_days(&dates(job, place, survey)?, days));
        }
    }
    let all = survey.versions.iter().map(|held| held.number);
    Ok(Wish::Of(all.filter(|number| !stays.contains(number)).collect(), rules))
}

/// When images were made. One that cannot be read has no date.
fn dates(job: &Job, place: &JobPlace, survey: &Survey) -> Result<BTreeMap<u64, u64>, Failure> {
    let here: BTreeMap<u64, u64> =
        job.images()?.iter().map(|image| (image.epoch.0, image.created_ns)).collect();
    let created = |number: u64| match here.get(&number) {
        Some(created) => Some(*created),
        None => {
            let manifest = place.folder.manifest(Epoch(number)).ok()?;
            let image = Image::of_manifest(&place.folder, Epoch(number), &manifest).ok()?;
            Some(image.info().created_ns)
        }
    };
    Ok(survey.numbers().into_iter().filter_map(|number| Some((number, created(number)?))).collect())
}

/// What lower tiers are to get from the store, and what crashes left on each.
fn look_below(wanted_of: &Wanted<'_>, lower: &[TierSpec], seen: &mut [Seen<'_>]) -> Result<(), Failure> {
    let job = wanted_of.job;
    let record = TiersRecord::read(job);
    let Some(store) = seen.iter().position(|seen| seen.place.spec.is_store()) else { return Ok(()) };
    let here = seen[store].survey.numbers();
    for index in (0..seen.len()).filter(|index| *index != store) {
        seen[index].holds.others = seen[index].survey.others(&seen[store].survey);
    }
    let mut waiting: BTreeSet<u64> = BTreeSet::new();
    for spec in lower {
        // Of one that cannot be asked, what is known counts.
        let there = match seen.iter().find(|seen| seen.place.spec.place == spec.place) {
            Some(seen) => seen.survey.numbers().difference(&seen.holds.others).copied().collect(),
            None => record
                .of(&spec.name())
                .map(|tier| tier.versions.iter().copied().collect())
                .unwrap_or_default(),
        };
        waiting.extend(wanted(&spec.rules, &here, &there, None));
    }
    let mut coming = BTreeSet::new();
    for seen in seen.iter().filter(|seen| seen.place.spec.is_store()) {
        let tables = waiting.iter().filter_map(|&number| seen.survey.table(number)).flatten();
        coming.extend(tables.map(|entry| (entry.epoch.0, entry.number)));
    }
    for seen in seen.iter_mut() {
        let is_all = seen.holds.wish == Wish::All;
        if seen.place.spec.is_store() {
            seen.holds.waiting.clone_from(&waiting);
            if let Some(lock) = &wanted_of.lock {
                seen.leftovers = job.leftovers(lock)?;
            }
        } else if seen.holds.wish != Wish::Nothing {
            seen.leftovers = if is_all { seen.survey.loose() } else { seen.survey.leftovers(&coming) };
        }
    }
    Ok(())
}

fn plan(wanted: &Wanted<'_>, seen: &[Seen<'_>]) -> Result<PrunePlan, Failure> {
    let named = &wanted.named;
    let has = |number: u64| {
        let chosen = seen.iter().filter(|seen| seen.holds.wish != Wish::Nothing);
        chosen.flat_map(|seen| &seen.holds.versions).any(|held| held.number == number)
    };
    if let Some(number) = named.iter().find(|number| !has(**number)) {
        let name = wanted.job.name();
        return Err(Failure::new(Exit::NotFound, format!("job {name} has no image {number} there")));
    }
    let holds: Vec<TierHolds> = seen.iter().map(|seen| seen.holds.clone()).collect();
    let plan = prune(&holds, wanted.args.anyway);
    if named.is_empty() || plan.stays.is_empty() {
        return Ok(plan);
    }
    let line = |&(tier, number, why): &(usize, u64, Why)| {
        format!("image {number} on {} stays: {}", seen[tier].place.name(), reason(why))
    };
    let lines: Vec<String> = plan.stays.iter().map(line).collect();
    let is_needed = plan.stays.iter().any(|(.., why)| *why == Why::Gang);
    let anyway = if is_needed { "" } else { "--anyway deletes it; " };
    Err(Failure::new(Exit::Refused, format!("{}\n{anyway}nothing was deleted", lines.join("\n"))))
}

fn reason(why: Why) -> &'static str {
    match why {
        Why::Waits => "a tier has yet to get it",
        Why::Last => "no other image can be restarted",
        Why::Gang => GANG_NEEDS,
        Why::Protected => IS_PROTECTED,
    }
}

fn report_of(wanted: &Wanted<'_>, plan: &PrunePlan, seen: &[Seen<'_>]) -> Result<Report, Failure> {
    let (args, job) = (wanted.args, wanted.job);
    let owner = || job.name().to_owned();
    let name = |tier: usize| seen[tier].place.name();
    let removals = plan.removals.iter();
    let removals =
        removals.map(|r| Line { job: owner(), tier: name(r.tier), image: r.version, frees: r.frees });
    let stays = plan.stays.iter();
    let stays = stays.map(|&(tier, image, why)| Stays {
        job: owner(),
        tier: name(tier),
        image,
        why: reason(why).to_owned(),
    });
    let leftover = |(seen, (file, frees)): (&Seen<'_>, &(String, u64))| Leftover {
        job: owner(),
        tier: seen.place.name(),
        file: file.clone(),
        frees: *frees,
    };
    let leftovers = seen.iter().flat_map(|seen| seen.leftovers.iter().map(move |left| (seen, left)));
    let mut report = Report {
        dry_run: args.dry_run,
        removals: removals.collect(),
        stays: stays.collect(),
        leftovers: leftovers.map(leftover).collect(),
        ..Report::default()
    };
    let local = |file: &Path, frees: u64| Leftover {
        job: owner(),
        tier: Place::Store.to_string(),
        file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        frees,
    };
    report.saved = saved_files(args, job).iter().map(|file| local(&file.path, file.bytes)).collect();
    if goes(args, job) {
        // What is left of it when its images are gone.
        let listed: BTreeSet<&str> = report.leftovers.iter().map(|line| line.file.as_str()).collect();
        let files = own_files(job).into_iter().filter(|(file, _)| !listed.contains(file.as_str()));
        let frees = files.map(|(_, bytes)| bytes).sum();
        report.jobs.push(Gone { job: owner(), frees });
    }
    Ok(report)
}

/// Whether the job's folder goes. File tails that a restart cut off belong to the user: with them it stays.
fn goes(args: &PruneArgs, job: &Job) -> bool {
    let is_empty = || fs::read_dir(job.saved_dir()).map_or(true, |mut entries| entries.next().is_none());
    loses_all(args) && (args.saved || is_empty())
}

/// Whether all images of the store go.
fn loses_all(args: &PruneArgs) -> bool {
    args.all && (args.which.tier.is_empty() || args.which.tier.iter().any(TierSpec::is_store))
}

/// Files of the job's folder that are of no image, but for those that are written here.
fn own_files(job: &Job) -> Vec<(String, u64)> {
    let entries = fs::read_dir(job.dir()).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        let about = entry.metadata().ok().filter(|about| !about.is_dir())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let of_image = ["manifest-", "segment-", ".part-"].iter().any(|with| name.starts_with(with));
        let is_ours = ["lock", "tiers.json"].contains(&name.as_str());
        (!of_image && !is_ours).then_some((name, about.len()))
    };
    entries.filter_map(file).collect()
}

/// What of `saved/` goes. What another restart may need goes with the job.
fn saved_files(args: &PruneArgs, job: &Job) -> Vec<saved::SavedFile> {
    if !args.saved {
        return Vec::new();
    }
    let files = saved::all(job);
    if args.all {
        return files;
    }
    let files = files.into_iter().filter(|file| !file.needed).collect();
    match args.older_than {
        Some(age) => saved::older_than(files, age),
        None => files,
    }
}

/// Lower tiers first: what is in the store is what they could get again.
fn act(wanted: &Wanted<'_>, plan: &PrunePlan, seen: &[Seen<'_>], report: &Report) -> Result<u64, Failure> {
    let job = wanted.job;
    let mut freed = saved::delete(&saved_files(wanted.args, job)).map_err(|error| {
        Failure::system(format_args!("deleting from {}", job.saved_dir().display()), &error)
    })?;
    let mut record = TiersRecord::read(job);
    for (index, seen) in seen.iter().enumerate().rev() {
        let numbers: BTreeSet<u64> =
            plan.removals.iter().filter(|removal| removal.tier == index).map(|r| r.version).collect();
        if seen.place.spec.is_store() {
            freed += in_store(wanted, &numbers)?;
            // No host can get them from there any more.
            let waiting = record.tiers.iter_mut().map(|tier| &mut tier.waiting);
            waiting.for_each(|waiting| waiting.retain(|number| !numbers.contains(number)));
        } else if seen.holds.wish != Wish::Nothing {
            freed += on_tier(seen, &numbers)?;
        }
        if let Some(known) = record.tiers.iter_mut().find(|tier| tier.tier == seen.place.name()) {
            known.versions.retain(|number| !numbers.contains(number));
            known.others.retain(|other| !numbers.contains(&other.image));
        }
    }
    if wanted.lock.is_some() && !record.tiers.is_empty() {
        // Advice only.
        let _ = record.write(job);
    }
    if loses_all(wanted.args) {
        job.discard_memory()
            .map_err(|error| Failure::system(format_args!("memory of job {}", job.name()), &error))?;
    }
    if report.jobs.is_empty() {
        if wanted.args.all && job.saved_dir().exists() && !wanted.args.saved {
            let kept = format!(
                "kept {}: parts of your files that restarts cut off; --saved deletes them\n",
                job.saved_dir().display()
            );
            if !wanted.args.json {
                report::result(&kept)?;
            }
        }
        return Ok(freed);
    }
    let left: u64 = own_files(job).iter().map(|(_, bytes)| bytes).sum();
    fs::remove_dir_all(job.dir())
        .map_err(|error| Failure::system(format_args!("deleting {}", job.dir().display()), &error))?;
    Ok(freed + left)
}

/// Images of the store, by the job's agent if it has one.
fn in_store(wanted: &Wanted<'_>, numbers: &BTreeSet<u64>) -> Result<u64, Failure> {
    let (job, images) = (wanted.job, || numbers.iter().map(|&number| Epoch(number)));
    if let Some(lock) = &wanted.lock {
        let freed = job.remove_images(lock, &images().collect())?;
        return Ok(freed + job.clean(lock)?.bytes);
    }
    if numbers.is_empty() {
        return Ok(0);
    }
    let (freed, stays) = job_lock::alone_or_by_agent(
        job,
        |lock| Ok((job.remove_images(lock, &images().collect())?, Vec::new())),
        |agent| match accepted(job, agent.ask(&Request::Remove { images: images().collect() })?)? {
            Reply::Removed { freed, stays } => Ok((freed, stays)),
            other => Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}"))),
        },
    )?;
    for (epoch, why) in &stays {
        report::warn(&format!("image {epoch} of job {} stays: {why}", job.name()));
    }
    match stays.is_empty() || wanted.named.is_empty() {
        true => Ok(freed),
        false => Err(Failure::new(Exit::Refused, "not all images were deleted")),
    }
}

fn on_tier(seen: &Seen<'_>, numbers: &BTreeSet<u64>) -> Result<u64, TierError> {
    let folder = &seen.place.folder;
    let freed = hygiene::remove(folder, &seen.survey, numbers, &seen.leftovers)?;
    hygiene::finish_repairs(folder)?;
    // The job's lock is ours: no agent of this host writes there. What other hosts write the tier knows.
    Ok(freed + folder.tier().clean(folder.folder())?)
}
