//! `holdfast fetch --manifest`: tells the front which image of the tiers a job goes on from, and which tiers say
//! nothing.
//!
//! Run by the front ([`crate::front::locate`]) alone, as a process of its own: this one has threads. Nothing is copied.
//! What is found is told, and what could not be found out as well: the front decides what that means. Invariants: the
//! job's folder is made, or changed, only for an image that is told; tiers are waited for [`PATIENCE`].

use super::copies;
use super::fetch;
use super::sources::{self, Answer, Source};
use crate::args::FetchArgs;
use crate::exit::{Exit, Failure};
use crate::front::locate::{Other, Silent, Told};
use crate::same_run;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_tiers::stack::{JobTiers, TierSpec, TiersRecord, others};
use holdfast_tiers::{Image, Job, Store};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How long a tier may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks, and tells.
///
/// # Errors
/// The store cannot be read. What tiers fail at is told.
pub fn run(args: &FetchArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = &crate::names::open_store(root)?;
    let here = copies::here(store, &args.image.job)?;
    let recipe = here.as_ref().and_then(|(_, recipe)| recipe.as_ref());
    let tiers = &args.copy.tiers(recipe, store)?;
    let id = recipe.map(|recipe| recipe.id.as_str()).filter(|id| !id.is_empty());
    let record = here.as_ref().map(|(job, _)| TiersRecord::read(job)).unwrap_or_default();
    let answers = sources::ask(tiers.lower(), (&args.image.job, id), &record, Some(PATIENCE));
    let mut told = Told::default();
    for spec in tiers.lower().iter().filter(|spec| tiers::lacks_its_folder(spec)) {
        let why = "the folder is not there; make it if the job is new, or mount its file system";
        told.silent.extend(
            is_new(&answers, spec)
                .then(|| Silent { is_new: true, ..silent(&spec.name(), &record, why, Exit::Usage) }),
        );
    }
    for answer in &answers {
        if let Err(error) = &answer.found {
            told.silent.push(silent(
                &answer.spec.name(),
                &record,
                &error.to_string(),
                crate::exit::of_tier(error),
            ));
        }
    }
    let wanted = match args.image.epoch {
        Some(epoch) => vec![epoch],
        None => sources::newer(&answers, args.newer_than.map(Epoch)),
    };
    let mut manifest = Vec::new();
    for epoch in wanted {
        let sources = sources::of(&answers, Some(epoch));
        if let Some(found) = take(&sources, (args, store, tiers), recipe, (&mut told, &record)) {
            manifest = found;
            break;
        }
    }
    if let (Some((job, _)), Some(own)) = (&here, args.newer_than) {
        told.others = others_of(job, &answers, own);
    }
    tell(&told, &manifest)
}

/// Whether it was opened all the same: nothing is known to have been there.
fn is_new(answers: &[Answer], spec: &TierSpec) -> bool {
    answers.iter().any(|answer| answer.spec.place == spec.place && answer.found.is_ok())
}

fn silent(tier: &str, record: &TiersRecord, why: &str, exit: Exit) -> Silent {
    let known = record.of(tier).and_then(|tier| tier.versions.last().copied());
    Silent { tier: tier.to_owned(), why: why.to_owned(), exit, known, is_new: false }
}

/// The manifest from the first tier that gives it, if the image is of the run that is asked for.
fn take(
    sources: &[Source],
    (args, store, tiers): (&FetchArgs, &Store, &JobTiers),
    recipe: Option<&Recipe>,
    (told, record): (&mut Told, &TiersRecord),
) -> Option<Vec<u8>> {
    for source in sources {
        let (folder, epoch) = (&source.found.folder, source.found.epoch);
        let taken = || {
            let manifest = folder.manifest(epoch)?;
            let image = Image::of_manifest(folder, epoch, &manifest)?;
            if args.image.epoch.is_none()
                && !recipe.is_none_or(|recipe| same_run::is_of(&image.info(), recipe))
            {
                return Ok(None);
            }
            let job = store.create_job(&args.image.job)?;
            let _lock = fetch::prepare(&job, source, (args, tiers))?;
            fetch::remember(&job, sources)?;
            Ok::<_, Failure>(Some(manifest))
        };
        match taken() {
            Ok(Some(manifest)) => {
                // What cannot be listed now was listed a moment ago; a run that goes on is not one that is lost.
                told.is_over = folder.inventory().is_ok_and(|there| there.is_over());
                told.image = Some((epoch, source.spec.name()));
                return Some(manifest);
            }
            Ok(None) => {
                told.of_another_run.get_or_insert((epoch, source.spec.name()));
                return None;
            }
            Err(failure) => {
                let why = format!("image {epoch}: {failure}");
                told.silent.push(silent(&source.spec.name(), record, &why, failure.exit));
            }
        }
    }
    None
}

/// Tiers whose image of this number is another host's.
fn others_of(job: &Job, answers: &[Answer], own: u64) -> Vec<Other> {
    let mut found = Vec::new();
    for Answer { spec, found: there } in answers {
        let there = there.iter().flatten().find(|there| there.epoch.0 == own);
        let others = there.and_then(|there| others(job, &there.folder, [own], tiers::host_of).ok());
        let others = others.into_iter().flat_map(std::collections::BTreeMap::into_values);
        found.extend(others.map(|image| Other { tier: spec.name(), image }));
    }
    found
}

fn tell(told: &Told, manifest: &[u8]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::system("telling the front the image", &error);
    let head = serde_json::to_vec(told).map_err(|error| failed(error.into()))?;
    let mut out = std::io::stdout().lock();
    out.write_all(&(head.len() as u64).to_le_bytes())
        .and_then(|()| out.write_all(&head))
        .and_then(|()| out.write_all(manifest))
        .and_then(|()| out.flush())
        .map_err(failed)
}
