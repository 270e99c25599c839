//! `holdfast verify`: reads every byte of images, on any tier, and compares it with its checksums; `--repair` puts back
//! what another tier has intact.
//!
//! Verifying needs no lock: images never change. What is repaired is found and repaired with the job's lock held.

use super::gang_list;
use super::places::{self, Above, JobPlace, Places};
use crate::args::VerifyArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::names::{ImageName, check_record};
use crate::report;
use holdfast_image::Epoch;
use holdfast_tiers::hygiene::{
    Finding, Mended, Verified, VerifiedSet, Verify, finish_repairs, repair, verify,
};
use holdfast_tiers::stack::Place;
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, MemoryFirst, Store, TierFolder};
use serde::Serialize;
use std::path::Path;

/// What is wrong, and where.
#[derive(Clone, Debug, Serialize)]
struct Damage {
    object: String,
    offset: u64,
    what: String,
}

impl Damage {
    fn of(finding: &Finding) -> Damage {
        Damage { object: finding.object.clone(), offset: finding.offset, what: finding.what.clone() }
    }

    fn text(&self) -> String {
        format!("{}: at byte {}: {}", self.object, self.offset, self.what)
    }
}

/// One image on one tier; without a number: what no image there needs.
#[derive(Clone, Debug, Serialize)]
struct Verdict {
    job: String,
    tier: String,
    epoch: Option<Epoch>,
    good: bool,
    bytes: u64,
    error: Option<String>,
    damage: Vec<Damage>,
}

/// What was put back, or could not be.
#[derive(Clone, Debug, Serialize)]
struct Repaired {
    job: String,
    tier: String,
    object: String,
    images: Vec<u64>,
    lost: Option<String>,
}

/// What a job has for other members of its gang.
#[derive(Clone, Debug, Serialize)]
struct Set {
    job: String,
    number: u64,
    gang_image: Option<u64>,
    good: bool,
    bytes: u64,
    error: Option<String>,
}

/// What was found of jobs.
#[derive(Default)]
struct Report {
    verdicts: Vec<Verdict>,
    repaired: Vec<Repaired>,
    sets: Vec<Set>,
    /// Of the first tier, or job, that could not be looked at.
    unseen: Option<Exit>,
}

impl Report {
    fn join(&mut self, other: Report) {
        self.verdicts.extend(other.verdicts);
        self.repaired.extend(other.repaired);
        self.sets.extend(other.sets);
        self.unseen = self.unseen.or(other.unseen);
    }

    fn has_images(&self) -> bool {
        self.verdicts.iter().any(|verdict| verdict.epoch.is_some())
    }

    /// # Errors
    /// An image is damaged, or not all was looked at.
    fn outcome(&self, args: &VerifyArgs) -> Result<(), Failure> {
        let images = || self.verdicts.iter().filter(|verdict| verdict.epoch.is_some());
        let bad = images().filter(|verdict| !verdict.good).count();
        let lost = self.sets.iter().filter(|set| !set.good).count();
        match (bad, self.unseen, &args.image) {
            (0, None, _) if lost > 0 => {
                let what = "parity of other members of the gang is damaged: a host that is lost may not be rebuilt of \
                            it; the images that follow are protected anew";
                Err(Failure::new(Exit::BadImage, format!("{lost} of {} sets: {what}", self.sets.len())))
            }
            (0, None, _) => Ok(()),
            (0, Some(exit), Some(_)) => Err(Failure::new(exit, "some tiers did not answer")),
            (0, Some(exit), None) => Err(Failure::new(exit, "some jobs or tiers could not be verified")),
            (bad, _, image) => {
                let job = image.as_ref().map(|image| format!(" {}", image.job)).unwrap_or_default();
                let hint = if args.repair {
                    "use an older image".to_owned()
                } else {
                    format!("`holdfast verify{job} --repair` repairs them from intact copies on other tiers")
                };
                let count = images().count();
                Err(Failure::new(Exit::BadImage, format!("{bad} of {count} images are damaged; {hint}")))
            }
        }
    }
}

/// Verifies one image, all images of a job, or of all jobs of the store, on the tiers that are named.
///
/// # Errors
/// One of them is damaged, there is none, or a job or a tier cannot be looked at.
pub fn run(args: &VerifyArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    let report = match &args.image {
        Some(image) => look_at_one(args, &store, image)?,
        None => look_at_jobs(args, &store)?,
    };
    if args.json {
        let Report { repaired, verdicts, sets, .. } = &report;
        let fields = serde_json::json!({ "repaired": repaired, "images": verdicts, "sets": sets });
        report::print_json("verify", fields)?;
    }
    report.outcome(args)
}

fn look_at_one(args: &VerifyArgs, store: &Store, image: &ImageName) -> Result<Report, Failure> {
    let found = look_at_job(args, store, image, "")?;
    if !found.has_images() && found.unseen.is_none() {
        let what = image.epoch.map_or_else(|| "image".to_owned(), |epoch| format!("image {epoch}"));
        return Err(Failure::new(Exit::NotFound, format!("job {} has no {what} there", image.job)));
    }
    tell(args, &found)?;
    Ok(found)
}

/// One after the other. A job that cannot be looked at is told, and the others are.
fn look_at_jobs(args: &VerifyArgs, store: &Store) -> Result<Report, Failure> {
    let mut all = Report::default();
    let jobs = store.jobs()?;
    for (index, job) in jobs.iter().enumerate() {
        let image = ImageName { job: job.clone(), epoch: None };
        let label = format!("{job} ({} of {}): ", index + 1, jobs.len());
        let found = match look_at_job(args, store, &image, &label) {
            Ok(found) => found,
            // It was deleted meanwhile.
            Err(failure) if failure.exit == Exit::NotFound && !has(store, job)? => continue,
            Err(failure) => {
                report::warn(&format!("job {job}: {failure}"));
                Report { unseen: Some(failure.exit), ..Report::default() }
            }
        };
        tell(args, &found)?;
        all.join(found);
    }
    Ok(all)
}

fn has(store: &Store, job: &str) -> Result<bool, Failure> {
    Ok(store.jobs()?.iter().any(|one| one == job))
}

/// `label`: begins what is said of the progress.
fn look_at_job(args: &VerifyArgs, store: &Store, image: &ImageName, label: &str) -> Result<Report, Failure> {
    let name = &image.job;
    let job = crate::names::open_job(store, name);
    let tiers = places::of_job(store, job.as_ref().ok())?;
    let specs = places::chosen(&args.which, &tiers, job.as_ref().ok());
    let is_below = specs.iter().any(|spec| matches!(spec.place, Place::At(_)));
    let job = match job {
        Err(failure) if failure.exit != Exit::NotFound || !is_below => return Err(failure),
        job => job.ok(),
    };
    // What is repaired is what is found with the lock held.
    let to_repair = job.as_ref().filter(|_| args.repair);
    let lock = to_repair.map(|job| wait_for_lock::take(job, &Patience::default())).transpose();
    let (lock, mut unseen) = match lock {
        Err(failure) if args.image.is_none() => {
            report::warn(&format!("job {name} is not repaired: {failure}"));
            (None, Some(failure.exit))
        }
        lock => (lock?, None),
    };
    let may_repair = args.repair && unseen.is_none();
    let places = places::of(name, job.as_ref(), &specs, Above::Apart);
    unseen = unseen.or(places.tell());
    let memory = job.as_ref().and_then(Job::memory);
    let mut look_at_all = || look_at_all(&places, memory, (image.epoch, label), &mut unseen);
    let mut found = look_at_all();
    let mut repaired = Vec::new();
    if may_repair {
        let all = places::all(&tiers, job.as_ref());
        let all = places::of(name, job.as_ref(), &all, Above::Apart);
        repaired = mend(name, &found, &all.found)?;
        if !repaired.is_empty() {
            found = look_at_all();
        }
    }
    drop(lock);
    let verdicts = found.iter().flat_map(|(place, found)| verdicts(name, place, found)).collect();
    let mut sets: Vec<Set> =
        found.iter().flat_map(|(_, found)| &found.sets).map(|set| set_of(name, set)).collect();
    if let Some(job) =
        job.filter(|_| image.epoch.is_none() && found.iter().any(|(place, _)| place.spec.is_store()))
    {
        match gang_list::lost_sets(store, &job) {
            Ok(lost) => add_lost(name, &mut sets, lost),
            Err(failure) => {
                report::warn(&format!("whether images of the gang of job {name} are protected: {failure}"));
                unseen.get_or_insert(failure.exit);
            }
        }
    }
    Ok(Report { verdicts, repaired, sets, unseen })
}

/// Sets that were whole at all members, and of which something is gone.
fn add_lost(name: &str, sets: &mut Vec<Set>, lost: Vec<(u64, u64, String)>) {
    for (number, image, why) in lost {
        if sets.iter().any(|set| set.number == number && !set.good) {
            continue;
        }
        let (job, gang_image, error) = (name.to_owned(), Some(image), Some(why));
        sets.retain(|set| set.number != number);
        sets.push(Set { job, number, gang_image, good: false, bytes: 0, error });
    }
}

/// Verifies every place; one that cannot be asked is told.
fn look_at_all<'a>(
    places: &'a Places,
    memory: Option<&MemoryFirst>,
    what: (Option<Epoch>, &str),
    unseen: &mut Option<Exit>,
) -> Vec<(&'a JobPlace, Verified)> {
    let mut all = Vec::new();
    for place in &places.found {
        let looked = match memory.filter(|_| place.spec.is_memory()) {
            Some(memory) => look_at_memory(place, memory, what),
            None => look(place, what),
        };
        match looked {
            Ok(found) => all.push((place, found)),
            Err(error) => {
                report::warn(&format!("tier {}: {error}", place.name()));
                unseen.get_or_insert(crate::exit::of_tier(&error));
            }
        }
    }
    all
}

fn look(place: &JobPlace, (epoch, label): (Option<Epoch>, &str)) -> Result<Verified, TierError> {
    let bar = report::progress(&format!("{label}verifying {}", place.name()), 0);
    let options = Verify {
        epoch,
        record: &check_record,
        total: &|bytes| bar.set_length(bytes),
        passed: &|bytes| bar.inc(bytes),
    };
    let found = match verify(&place.folder, &options) {
        Err(TierError::NotFound { .. }) => Ok(Verified::default()),
        found => found,
    };
    bar.finish_and_clear();
    found
}

/// What the folder of the store has beside is verified there.
fn look_at_memory(
    place: &JobPlace,
    memory: &MemoryFirst,
    (epoch, label): (Option<Epoch>, &str),
) -> Result<Verified, TierError> {
    let mut all = Verified::default();
    for version in
        memory.versions()?.into_iter().filter(|version| epoch.is_none_or(|epoch| epoch == *version))
    {
        all.join(look(place, (Some(version), label))?);
    }
    Ok(all)
}

/// Puts back what is damaged in these places, from all others.
fn mend(job: &str, found: &[(&JobPlace, Verified)], all: &[JobPlace]) -> Result<Vec<Repaired>, Failure> {
    let mut repaired = Vec::new();
    for (place, found) in found {
        finish_repairs(&place.folder)?;
        if found.damaged().is_empty() {
            continue;
        }
        let others: Vec<TierFolder> =
            all.iter().filter(|other| !other.is_same(place)).map(|other| other.folder.clone()).collect();
        let bar = report::progress(&format!("repairing {}", place.name()), 0);
        let done = repair(&place.folder, &others, found, &check_record, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let row = |Mended { object, versions, lost }| Repaired {
            job: job.to_owned(),
            tier: place.name(),
            object,
            images: versions.into_iter().collect(),
            lost,
        };
        repaired.extend(done?.into_iter().map(row));
    }
    Ok(repaired)
}

/// One for each image, and one for what no image needs, if there is such.
fn verdicts(job: &str, place: &JobPlace, found: &Verified) -> Vec<Verdict> {
    let verdict = |epoch: Option<u64>, bytes: u64, damage: Vec<Damage>| Verdict {
        job: job.to_owned(),
        tier: place.name(),
        epoch: epoch.map(Epoch),
        good: damage.is_empty(),
        bytes,
        error: damage.first().map(Damage::text),
        damage,
    };
    let image = |(&epoch, &bytes)| verdict(Some(epoch), bytes, found.of(epoch).map(Damage::of).collect());
    let mut all: Vec<Verdict> = found.versions.iter().map(image).collect();
    let of_none: Vec<Damage> =
        found.findings.iter().filter(|finding| finding.versions.is_empty()).map(Damage::of).collect();
    if !of_none.is_empty() || !found.unneeded.is_empty() {
        all.push(verdict(None, found.unneeded.iter().map(|(_, bytes)| bytes).sum(), of_none));
    }
    all
}

fn set_of(job: &str, set: &VerifiedSet) -> Set {
    Set {
        job: job.to_owned(),
        number: set.number,
        gang_image: set.image,
        good: set.problem.is_none(),
        bytes: set.bytes,
        error: set.problem.clone(),
    }
}

/// As text at once; JSON is one object, of all.
fn tell(args: &VerifyArgs, found: &Report) -> Result<(), Failure> {
    if args.json {
        return Ok(());
    }
    let mended: String = found.repaired.iter().map(repaired_line).collect();
    let lines: String = found.verdicts.iter().map(line).collect();
    let sets: String = found.sets.iter().map(set_line).collect();
    report::print(&(mended + &lines + &sets))
}

fn repaired_line(repaired: &Repaired) -> String {
    let Repaired { object, images, lost, .. } = repaired;
    let images: Vec<String> = images.iter().map(u64::to_string).collect();
    match lost {
        None => format!("{object}: put back\n"),
        Some(why) => format!("{object}: lost: {why}; damaged by it: image {}\n", images.join(", ")),
    }
}

fn set_line(set: &Set) -> String {
    let image = set.gang_image.map_or_else(|| "an image".to_owned(), |image| format!("image {image}"));
    let what = format!("{}: parity of other members, {image} of the gang", set.job);
    match &set.error {
        None => format!("{what}: good, {} verified\n", report::size(set.bytes)),
        Some(why) => format!("{what}: damaged: {why}\n"),
    }
}

fn line(verdict: &Verdict) -> String {
    let Verdict { job, tier, epoch, bytes, damage, .. } = verdict;
    let on = if Place::is_store(tier) { String::new() } else { format!(" on {tier}") };
    let size = report::size(*bytes);
    let damage: String = damage.iter().map(|damage| format!("{}\n", damage.text())).collect();
    match epoch {
        Some(epoch) if damage.is_empty() => format!("{job}@{epoch}{on}: good, {size} verified\n"),
        Some(epoch) => damage.lines().map(|line| format!("{job}@{epoch}{on}: damaged: {line}\n")).collect(),
        None => {
            let harmless = damage.lines().map(|line| format!("{job}{on}: no image needs it: {line}\n"));
            format!("{job}{on}: {size} that no image needs; `holdfast prune {job}` removes it\n")
                + &harmless.collect::<String>()
        }
    }
}
