//! `holdfast verify`: reads every byte of images, on any tier, and compares it with its checksums; `--repair` puts back
//! what another tier has intact.
//!
//! Verifying needs no lock: images never change. What is repaired is repaired with the job's lock held.

use super::places::{self, Above, JobPlace, Places};
use crate::args::VerifyArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::report;
use holdfast_image::Epoch;
use holdfast_image::record::ProcessRecord;
use holdfast_tiers::hygiene::{Finding, Mended, Verified, Verify, finish_repairs, repair, verify};
use holdfast_tiers::stack::Place;
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, MemoryFirst, Record, TierFolder};
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
    tier: String,
    object: String,
    images: Vec<u64>,
    lost: Option<String>,
}

/// Verifies one image or all images of a job, on the tiers that are named.
///
/// # Errors
/// One of them is damaged, there is none, or a tier cannot be asked.
pub fn run(args: &VerifyArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let (name, store) = (&args.image, crate::names::open_store(root)?);
    let job = crate::names::open_job(&store, &name.job);
    let tiers = places::of_job(&store, job.as_ref().ok())?;
    let specs = places::chosen(&args.which, &tiers, job.as_ref().ok());
    let job = match job {
        Err(failure) if !specs.iter().any(|spec| matches!(spec.place, Place::At(_))) => return Err(failure),
        job => job.ok(),
    };
    let places = places::of(&name.job, job.as_ref(), &specs, Above::Apart);
    let mut unreachable = places.tell();
    let look_at_all = |unreachable: &mut Option<Exit>| {
        look_at_all(&places, job.as_ref().and_then(Job::memory), name.epoch, unreachable)
    };
    let mut found = look_at_all(&mut unreachable);
    let mut repaired = Vec::new();
    if args.repair {
        let lock = match &job {
            Some(job) => {
                wait_for_lock::wait(job, &Patience::default())?;
                Some(job.lock()?)
            }
            None => None,
        };
        let all = places::all(&tiers, job.as_ref());
        let all = places::of(&name.job, job.as_ref(), &all, Above::Apart);
        repaired = mend(&found, &all.found)?;
        if !repaired.is_empty() {
            found = look_at_all(&mut unreachable);
        }
        drop(lock);
    }
    if found.iter().all(|(_, found)| found.versions.is_empty()) && unreachable.is_none() {
        let what = name.epoch.map_or_else(|| "image".to_owned(), |epoch| format!("image {epoch}"));
        return Err(Failure::new(Exit::NotFound, format!("job {} has no {what} there", name.job)));
    }
    let verdicts: Vec<Verdict> = found.iter().flat_map(|(place, found)| verdicts(place, found)).collect();
    tell(args, &verdicts, &repaired)?;
    let images = || verdicts.iter().filter(|verdict| verdict.epoch.is_some());
    let bad = images().filter(|verdict| !verdict.good).count();
    match (bad, unreachable) {
        (0, None) => Ok(()),
        (0, Some(exit)) => Err(Failure::new(exit, "some tiers did not answer")),
        (bad, _) => {
            let hint = if args.repair {
                "use an older image".to_owned()
            } else {
                let job = &name.job;
                format!("`holdfast verify {job} --repair` repairs them from intact copies on other tiers")
            };
            let count = images().count();
            Err(Failure::new(Exit::BadImage, format!("{bad} of {count} images are damaged; {hint}")))
        }
    }
}

/// Verifies every place; one that cannot be asked is told.
fn look_at_all<'a>(
    places: &'a Places,
    memory: Option<&MemoryFirst>,
    epoch: Option<Epoch>,
    unreachable: &mut Option<Exit>,
) -> Vec<(&'a JobPlace, Verified)> {
    let mut all = Vec::new();
    for place in &places.found {
        let looked = match memory.filter(|_| place.spec.is_memory()) {
            Some(memory) => look_at_memory(place, memory, epoch),
            None => look(place, epoch),
        };
        match looked {
            Ok(found) => all.push((place, found)),
            Err(error) => {
                report::warn(&format!("tier {}: {error}", place.name()));
                unreachable.get_or_insert(crate::exit::of_tier(&error));
            }
        }
    }
    all
}

fn look(place: &JobPlace, epoch: Option<Epoch>) -> Result<Verified, TierError> {
    let bar = report::progress(&format!("verifying {}", place.name()), 0);
    let options = Verify {
        epoch,
        record: &record_is_good,
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
    epoch: Option<Epoch>,
) -> Result<Verified, TierError> {
    let mut all = Verified::default();
    for version in
        memory.versions()?.into_iter().filter(|version| epoch.is_none_or(|epoch| epoch == *version))
    {
        all.join(look(place, Some(version))?);
    }
    Ok(all)
}

/// The store does not know what is in a record.
fn record_is_good(record: &Record) -> Result<(), String> {
    ProcessRecord::decode(record.kind, &record.bytes).map(drop)
}

/// Puts back what is damaged in these places, from all others.
fn mend(found: &[(&JobPlace, Verified)], all: &[JobPlace]) -> Result<Vec<Repaired>, Failure> {
    let mut repaired = Vec::new();
    for (place, found) in found {
        finish_repairs(&place.folder)?;
        if found.damaged().is_empty() {
            continue;
        }
        let others: Vec<TierFolder> =
            all.iter().filter(|other| !other.is_same(place)).map(|other| other.folder.clone()).collect();
        let bar = report::progress(&format!("repairing {}", place.name()), 0);
        let done = repair(&place.folder, &others, found, &record_is_good, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let row = |Mended { object, versions, lost }| Repaired {
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
fn verdicts(place: &JobPlace, found: &Verified) -> Vec<Verdict> {
    let verdict = |epoch: Option<u64>, bytes: u64, damage: Vec<Damage>| Verdict {
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

fn tell(args: &VerifyArgs, verdicts: &[Verdict], repaired: &[Repaired]) -> Result<(), Failure> {
    if args.json {
        let fields = serde_json::json!({ "repaired": repaired, "images": verdicts });
        return report::print_json("verify", fields);
    }
    let mended: String = repaired.iter().map(repaired_line).collect();
    let lines: String = verdicts.iter().map(|verdict| line(&args.image.job, verdict)).collect();
    report::print(&(mended + &lines))
}

fn repaired_line(repaired: &Repaired) -> String {
    let Repaired { object, images, lost, .. } = repaired;
    let images: Vec<String> = images.iter().map(u64::to_string).collect();
    match lost {
        None => format!("{object}: put back\n"),
        Some(why) => format!("{object}: lost: {why}; damaged by it: image {}\n", images.join(", ")),
    }
}

fn line(job: &str, verdict: &Verdict) -> String {
    let Verdict { tier, epoch, bytes, damage, .. } = verdict;
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
