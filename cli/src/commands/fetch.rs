//! `holdfast fetch`: copies an image from a lower tier back into the store.
//!
//! Run by users; and by the front ([`crate::front::locate`]) in a process of its own, to be told an image that is not
//! whole in the store. Everything is checked on the way; a crash leaves no image that was not there before.

use crate::args::FetchArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::report;
use crate::settings::Recipe;
use crate::tiers::{self, Found};
use holdfast_sys::clock;
use holdfast_tiers::stack::{
    CopyError, JobTiers, Pace, TierRecord, TierSpec, TiersRecord, Way, copy_version,
};
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Image, Job, JobLock};
use indicatif::ProgressBar;
use std::io::Write;
use std::path::Path;

/// A tier that has a version that is wanted.
struct Source {
    spec: TierSpec,
    found: Found,
    /// All that it has of the job.
    versions: Vec<u64>,
}

/// Copies an image back.
///
/// # Errors
/// No tier has it, or none that can be reached has it intact.
pub fn run(args: &FetchArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    let old = store.job(&args.image.job).ok().and_then(|job| Recipe::read(&job).ok());
    let given = match &old {
        Some(old) if args.tier.is_empty() && !old.settings.tiers.is_empty() => old.settings.tiers.clone(),
        _ => tiers::chosen(&args.tier, false, &store)?,
    };
    let (sources, failed) = sources(given.lower(), args, old.as_ref());
    if sources.is_empty() {
        return match failed {
            Some(error) => Err(error.into()),
            None => Err(Failure::new(Exit::NotFound, nowhere(args, &given))),
        };
    }
    let job = store.create_job(&args.image.job)?;
    let mut result = Ok(());
    for source in &sources {
        result = prepare(&job, source, old.clone(), (args, &given))
            .and_then(|lock| if args.manifest { tell(source) } else { fetch(&job, source, lock) })
            .and_then(|()| remember(&job, &sources));
        match &result {
            Ok(()) => return Ok(()),
            Err(failure) => report::warn(&format!("tier {}: {failure}", source.spec.name())),
        }
    }
    result.map_err(|failure| Failure { message: "no tier gave the image back".into(), ..failure })
}

fn nowhere(args: &FetchArgs, tiers: &JobTiers) -> String {
    let (job, names) = (&args.image.job, tiers.lower().iter().map(TierSpec::name).collect::<Vec<_>>());
    match (args.image.epoch, names.as_slice()) {
        (_, []) => format!("job {job} has no tiers; name one with --tier"),
        (Some(epoch), names) => format!("no tier has image {epoch} of job {job} ({})", names.join(", ")),
        (None, names) => format!("no tier has an image of job {job} ({})", names.join(", ")),
    }
}

/// The tiers that have the image: the one that is asked for, or the newest that any has. The fastest first.
fn sources(specs: &[TierSpec], args: &FetchArgs, old: Option<&Recipe>) -> (Vec<Source>, Option<TierError>) {
    let (mut sources, mut failed) = (Vec::new(), None);
    let id = old.map(|old| old.id.as_str()).filter(|id| !id.is_empty());
    for spec in specs {
        match tiers::open(spec).and_then(|tier| tiers::versions(&tier, &args.image.job, id)) {
            Ok(found) => {
                let wanted = |found: &&Found| args.image.epoch.is_none_or(|epoch| epoch == found.epoch);
                if let Some(wanted) = found.iter().rev().find(wanted).cloned() {
                    let same = found.iter().filter(|other| other.id() == wanted.id());
                    let versions = same.map(|found| found.epoch.0).collect();
                    sources.push(Source { spec: spec.clone(), found: wanted, versions });
                }
            }
            Err(error) => {
                report::warn(&format!("tier {}: {error}", spec.name()));
                failed = Some(error);
            }
        }
    }
    // Versions of one number in two folders are of two jobs: those of the first are taken.
    let newest = sources.iter().map(|source| source.found.epoch).max();
    let of_newest = sources.iter().find(|source| Some(source.found.epoch) == newest);
    let id = of_newest.map(|source| source.found.id().to_owned());
    sources.retain(|s| Some(s.found.epoch) == newest && Some(s.found.id()) == id.as_deref());
    (sources, failed)
}

/// The job's folder as it has to be.
fn prepare(
    job: &Job,
    source: &Source,
    old: Option<Recipe>,
    (args, tiers): (&FetchArgs, &JobTiers),
) -> Result<JobLock, Failure> {
    wait_for_lock::wait(job, &Patience::default())?;
    let lock = job.lock()?;
    job.clean(&lock)?;
    let Source { spec, found: Found { folder, epoch, .. }, .. } = source;
    let is_new = old.is_none();
    let mut recipe = match old {
        Some(old) => old,
        None => serde_json::from_slice(&folder.recipe(*epoch)?).map_err(|error| {
            let what = format!("job-{:06} of tier {}: {error}", epoch.0, spec.name());
            Failure::new(Exit::BadImage, what)
        })?,
    };
    if is_new && !args.tier.is_empty() {
        recipe.settings.tiers.clone_from(tiers);
    }
    if is_new || args.manifest {
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

/// Tells the front the number of the image and its manifest.
fn tell(source: &Source) -> Result<(), Failure> {
    let Found { folder, epoch, .. } = &source.found;
    let manifest = folder.manifest(*epoch)?;
    Image::of_manifest(folder, *epoch, &manifest)?;
    let mut out = std::io::stdout().lock();
    out.write_all(&epoch.0.to_le_bytes())
        .and_then(|()| out.write_all(&manifest))
        .and_then(|()| out.flush())
        .map_err(|error| Failure::system("telling the front the image", &error))
}

fn fetch(job: &Job, source: &Source, lock: JobLock) -> Result<(), Failure> {
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
    let (name, tier) = (job.name(), source.spec.name());
    report::note(&format!(
        "image {epoch} of job {name} was fetched from {tier}, {}",
        report::size(copied.bytes)
    ));
    Ok(())
}

/// What the tiers have is known from now on: the next image gets a number that none has.
fn remember(job: &Job, sources: &[Source]) -> Result<(), Failure> {
    let mut record = TiersRecord::read(job);
    for source in sources {
        let tier = source.spec.name();
        record.tiers.retain(|known| known.tier != tier);
        record.tiers.push(TierRecord {
            tier,
            versions: source.versions.clone(),
            // Advice: an image that was on its way there has a number too.
            greatest: source.found.folder.inventory().map_or(0, |there| there.greatest()),
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
