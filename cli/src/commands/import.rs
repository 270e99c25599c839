//! `holdfast import`: an image that was exported becomes a job of this store.
//!
//! Everything in the file is checked before it is believed; the job has no image before all of it was there. Names of
//! files are made here; that of the job is the exported one or `--name`. The job is a new one: tiers are those of this
//! host's configuration. `-` is standard input.

use crate::args::ImportArgs;
use crate::earlier::Earlier;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::wait_for_lock;
use crate::names::check_record;
use crate::report;
use crate::same_run;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_tiers::hygiene::{Archive, ArchiveError};
use holdfast_tiers::stack::JobTiers;
use holdfast_tiers::{Job, JobLock, Record, Store, StoreError, parse_rank};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Where an image is from.
#[derive(Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the job.
    pub job: String,
    /// How it was started.
    pub settings: Recipe,
}

impl Origin {
    /// For a file.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn encode(mut self) -> Result<Vec<u8>, Failure> {
        // They are this host's.
        self.settings.id.clear();
        self.settings.settings.tiers = JobTiers::default();
        serde_json::to_vec(&self).map_err(|error| Failure::new(Exit::Internal, format!("encoding: {error}")))
    }
}

/// The exit code and message of a failed export or import; `what`: the file.
pub fn of_archive(what: &str, error: ArchiveError) -> Failure {
    match error {
        ArchiveError::File(error) => Failure::system(format_args!("reading {what}"), &error),
        ArchiveError::Bad { .. } => Failure::new(Exit::BadImage, format!("{what}: {error}")),
        // With the words of a store: which path is full.
        ArchiveError::Tier(error) => StoreError::from(error).into(),
    }
}

/// Makes a job of a file.
///
/// # Errors
/// It is no such file or is damaged; the job has images; the store cannot be written.
pub fn run(args: &ImportArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    if args.file == Path::new("-") {
        return import(&store, args, "standard input", &mut io::stdin().lock());
    }
    let name = args.file.display().to_string();
    let file = File::open(&args.file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(Exit::NotFound, format!("there is no file {name}")),
        _ => Failure::system(format_args!("opening {name}"), &error),
    })?;
    import(&store, args, &name, &mut BufReader::with_capacity(1 << 20, file))
}

fn import(store: &Store, args: &ImportArgs, file: &str, input: &mut dyn Read) -> Result<(), Failure> {
    let record = |record: &Record| check_record(record);
    let archive = Archive::open(input, &record).map_err(|error| of_archive(file, error))?;
    let origin: Origin = serde_json::from_slice(archive.origin())
        .map_err(|error| Failure::new(Exit::BadImage, format!("{file}: settings of the job: {error}")))?;
    let name = args.name.as_ref().unwrap_or(&origin.job);
    let (epoch, bytes) = (archive.epoch(), archive.bytes());
    let (job, lock) = locked(store, name)?;
    job.clean(&lock)?;
    // Only with the lock held: another import of this name may have ended a moment ago.
    let is_new = has_nothing(&job)?;
    if let Err(failure) = into_job(store, &job, archive, origin.settings, file) {
        if is_new {
            // What was made just now; the failure is what counts.
            let _ = fs::remove_dir_all(job.dir());
        }
        return Err(failure);
    }
    drop(lock);
    let (done, then) = match parse_rank(name) {
        Some((set, rank)) => (format!("of rank {rank} was imported into set {set}"), String::new()),
        None => (format!("was imported as job {name}"), format!("; `holdfast restart {name}` restarts it")),
    };
    report::note(&format!("image {epoch} {done}, {}{then}", report::size(bytes)));
    Ok(())
}

/// The job with its lock. An import beside this one removes the folder when it fails: then it is made again.
fn locked(store: &Store, name: &str) -> Result<(Job, JobLock), Failure> {
    loop {
        let job = store.create_job(name)?;
        wait_for_lock::wait(&job, &Patience::default())?;
        match job.lock() {
            Ok(lock) if lock.is_in_place() => return Ok((job, lock)),
            // Another one was faster; the next turn waits for it.
            Ok(_) | Err(StoreError::Locked { .. }) => {}
            Err(_) if is_gone(&job) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_gone(job: &Job) -> bool {
    fs::symlink_metadata(job.dir()).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Whether the folder has nothing but its lock: no other job is in it.
fn has_nothing(job: &Job) -> Result<bool, Failure> {
    let failed = |error| Failure::system(format_args!("listing {}", job.dir().display()), &error);
    for entry in fs::read_dir(job.dir()).map_err(failed)? {
        if entry.map_err(failed)?.file_name() != "lock" {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The job's lock is held.
fn into_job(
    store: &Store,
    job: &Job,
    archive: Archive<'_>,
    mut recipe: Recipe,
    file: &str,
) -> Result<(), Failure> {
    if !job.images()?.is_empty() {
        let name = job.name();
        let text =
            format!("job {name} has images of its own; give the imported one another name with --name");
        return Err(Failure::new(Exit::Refused, text));
    }
    let before = job.has_recipe()?.then(|| job.recipe()).transpose()?;
    recipe.settings.tiers = tiers::chosen(&[], false, store)?;
    recipe.id = tiers::id_for(&recipe.settings, String::new())?;
    recipe.unnamed = false;
    recipe.earlier = Earlier::default();
    recipe.write(job)?;
    let bar = report::progress(&format!("importing image {}", archive.epoch()), archive.bytes());
    let done = archive.unpack(job.folder(), &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    if let (Err(_), Some(before)) = (&done, &before) {
        // A job without images keeps how it was started; the failure is what counts.
        let _ = job.write_recipe(before);
    }
    done.map_err(|error| of_archive(file, error))?;
    // It may be of an earlier run than the last of the job that it was exported from.
    let image = crate::names::open_image(job, None)?;
    let of_its_run = same_run::recipe_of(recipe.clone(), &image.info(), image.command());
    if of_its_run != recipe { of_its_run.write(job) } else { Ok(()) }
}
