//! `holdfast fetch`: copies an image from a lower tier back into the store.
//!
//! Run by users, and by the front. Everything is checked on the way; a crash leaves no image that was not there before.

use super::copies::{self, Fetched, TierRow, no_tiers};
use super::sources::{self, Answer, Source};
use crate::args::FetchArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::report;
use crate::settings::Recipe;
use crate::tiers::{self, Found};
use holdfast_sys::clock;
use holdfast_tiers::stack::{
    CopyError, JobTiers, Pace, TierRecord, TierSpec, TiersRecord, Way, copy_version, others,
};
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, JobLock, Store};
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Before a tier that has failed is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// What the tiers were found to have.
#[derive(Default)]
struct Asked {
    /// Those that have the image that is wanted, the fastest first.
    sources: Vec<Source>,
    rows: Vec<TierRow>,
    /// The last that could not be asked.
    failed: Option<TierError>,
}

/// Copies an image back.
///
/// # Errors
/// No tier has it, or none that can be reached has it intact.
pub fn run(args: &FetchArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let (name, store) = (&args.image.job, crate::names::open_store(root)?);
    let here = copies::here(&store, name)?;
    let tiers = args.copy.tiers(here.as_ref().and_then(|(_, recipe)| recipe.as_ref()), &store)?;
    if tiers.lower().is_empty() {
        return Err(crate::names::open_job(&store, name).err().unwrap_or_else(|| no_tiers(name)));
    }
    let mut told = BTreeSet::new();
    loop {
        let here = copies::here(&store, name)?;
        let mut asked = ask(tiers.lower(), args, here.as_ref());
        let result = take(args, &store, &tiers, &mut asked);
        let failed = |row: &TierRow| Some(format!("tier {}: {}", row.tier, row.error.as_ref()?));
        for line in asked.rows.iter().filter_map(failed) {
            if told.insert(line.clone()) {
                report::warn(&line);
            }
        }
        match result {
            Err(failure) if args.copy.wait && may_pass(failure.exit) => thread::sleep(PAUSE),
            Ok(fetched) => return copies::tell(&args.copy, "fetch", (name, &asked.rows), fetched.as_ref()),
            Err(failure) => {
                if args.copy.json {
                    copies::tell(&args.copy, "fetch", (name, &asked.rows), None)?;
                }
                return Err(failure);
            }
        }
    }
}

/// Whether a tier that failed so may do what is asked of it later: it is not there, or does not answer.
fn may_pass(exit: Exit) -> bool {
    matches!(exit, Exit::Usage | Exit::Internal | Exit::Permission)
}

/// Takes the image from the first tier that gives it. Of the others the reasons are in their rows.
fn take(
    args: &FetchArgs,
    store: &Store,
    tiers: &JobTiers,
    asked: &mut Asked,
) -> Result<Option<Fetched>, Failure> {
    if asked.sources.is_empty() {
        return Err(match asked.failed.take() {
            Some(error) => error.into(),
            None => Failure::new(Exit::NotFound, nowhere(args, tiers)),
        });
    }
    let job = store.create_job(&args.image.job)?;
    let mut last = None;
    for source in &asked.sources {
        let taken = prepare(&job, source, (args, tiers))
            .and_then(|lock| fetch(&job, source, lock))
            .and_then(|fetched| remember(&job, &asked.sources).map(|()| fetched));
        match taken {
            Ok(fetched) => return Ok(fetched),
            Err(failure) => {
                let row = asked.rows.iter_mut().find(|row| row.tier == source.spec.name());
                row.into_iter().for_each(|row| row.error = Some(failure.to_string()));
                last = Some(failure);
            }
        }
    }
    let failure = last.unwrap_or_else(|| Failure::new(Exit::NotFound, nowhere(args, tiers)));
    Err(Failure { message: "no tier gave the image back".into(), ..failure })
}

fn nowhere(args: &FetchArgs, tiers: &JobTiers) -> String {
    let names: Vec<String> = tiers.lower().iter().map(TierSpec::name).collect();
    let what = args.image.epoch.map_or_else(|| "an image".to_owned(), |epoch| format!("image {epoch}"));
    format!("no tier has {what} of job {} ({})", args.image.job, names.join(", "))
}

/// Asks the tiers for the image: the one that is named, or the newest that any has.
fn ask(specs: &[TierSpec], args: &FetchArgs, here: Option<&(Job, Option<Recipe>)>) -> Asked {
    let old = here.and_then(|(_, recipe)| recipe.as_ref());
    let id = old.map(|old| old.id.as_str()).filter(|id| !id.is_empty());
    let record = here.map(|(job, _)| TiersRecord::read(job)).unwrap_or_default();
    let answers = sources::ask(specs, (&args.image.job, id), &record, None);
    let mut asked = Asked { sources: sources::of(&answers, args.image.epoch), ..Asked::default() };
    for Answer { spec, found } in answers {
        let (newest, error) = match found {
            Ok(found) => (found.last().map(|found| found.epoch), None),
            Err(error) => (None, Some(error)),
        };
        let said = error.as_ref().map(ToString::to_string);
        asked.rows.push(TierRow { tier: spec.name(), newest, error: said, ..TierRow::default() });
        asked.failed = error.or(asked.failed);
    }
    asked
}

/// The job's folder as it has to be.
pub(super) fn prepare(
    job: &Job,
    source: &Source,
    (args, tiers): (&FetchArgs, &JobTiers),
) -> Result<JobLock, Failure> {
    let lock = wait_for_lock::take(job, &Patience::default())?;
    job.clean(&lock)?;
    let Source { spec, found: Found { folder, epoch, .. }, .. } = source;
    if let Some((_, other)) = others(job, folder, [epoch.0], tiers::host_of)?.pop_first()
        && other.damage.is_none()
    {
        let (name, tier) = (job.name(), spec.name());
        let text = format!(
            "{other}, and not image {epoch} of job {name} in the store: nothing is fetched; use another store \
             (--store) for that of tier {tier}, or delete this one (`holdfast prune {name}@{epoch}`)"
        );
        return Err(Failure::new(Exit::Refused, text));
    }
    let is_new = !job.has_recipe()?;
    let mut recipe = match is_new {
        false => Recipe::read(job)?,
        true => serde_json::from_slice(&folder.recipe(*epoch)?).map_err(|error| {
            let what = format!("job-{:06} of tier {}: {error}", epoch.0, spec.name());
            Failure::new(Exit::BadImage, what)
        })?,
    };
    if !is_new && !recipe.id.is_empty() && recipe.id != source.found.id() {
        let message = format!("job {} became another one while its tiers were asked; try again", job.name());
        return Err(Failure::new(Exit::Refused, message));
    }
    if is_new && !args.copy.tier.is_empty() {
        recipe.settings.tiers.clone_from(tiers);
    }
    if is_new || args.manifest || recipe.settings.tiers.is_empty() {
        // It goes on there; and the agent has to find it.
        if is_new || recipe.id.is_empty() {
            recipe.id = source.found.id().to_owned();
        }
        if recipe.settings.tiers.at(&spec.place).is_none() {
            recipe.settings.tiers.clone_from(tiers);
        }
        recipe.write(job)?;
    }
    Ok(lock)
}

fn fetch(job: &Job, source: &Source, lock: JobLock) -> Result<Option<Fetched>, Failure> {
    let (from, epoch) = (&source.found.folder, source.found.epoch);
    let pace = Bar(report::progress(&format!("image {epoch} from {}", source.spec.name()), 0));
    let copied = copy_version(from, job.folder(), epoch, None, Way::Up, &pace);
    pace.0.finish_and_clear();
    let copied = copied.map_err(|error| match error {
        CopyError::Source(error) | CopyError::Target(error) => error.into(),
        CopyError::Foreign { .. } => Failure::new(Exit::Refused, error.to_string()),
        CopyError::Stopped => Failure::new(Exit::Internal, error.to_string()),
    })?;
    // A copy in memory may be what was damaged.
    job.memory().map_or(Ok(0), |memory| memory.trim(0))?;
    drop(lock);
    Ok(Some(Fetched { from: source.spec.name(), image: epoch, bytes: copied.bytes }))
}

/// What the tiers have is known from now on: the next image gets a number that none has.
pub(super) fn remember(job: &Job, sources: &[Source]) -> Result<(), Failure> {
    let mut record = TiersRecord::read(job);
    for source in sources {
        let (tier, there) = (source.spec.name(), &source.found.folder);
        let others = others(job, there, source.versions.iter().copied(), tiers::host_of)?;
        let speed = record.of(&tier).and_then(|known| known.speed);
        record.tiers.retain(|known| known.tier != tier);
        record.tiers.push(TierRecord {
            tier,
            versions: source.versions.iter().copied().filter(|number| !others.contains_key(number)).collect(),
            others: others.into_values().collect(),
            // Advice: an image that was on its way there has a number too.
            greatest: there.inventory().map_or(0, |there| there.greatest()),
            speed,
            known_ns: clock::realtime_ns(),
            ..TierRecord::default()
        });
    }
    let path = job.dir().display();
    record.write(job).map_err(|error| Failure::system(format_args!("writing tiers.json in {path}"), &error))
}

/// A progress bar.
struct Bar(ProgressBar);

impl Pace for Bar {
    fn begin(&self, total: u64) {
        self.0.set_length(total);
    }
    fn pass(&self, bytes: u64) -> bool {
        self.0.inc(bytes);
        true
    }
}
