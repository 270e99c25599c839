//! `holdfast export`: one image as one file, with all that it builds on.
//!
//! The file is new, 0600, and has its name when it is complete and durable: until then it is `.FILE.PID.part` beside
//! it, which goes when the export fails. `-` is standard output.

use super::places::{self, Above};
use crate::args::ExportArgs;
use crate::commands::import::{Origin, of_archive};
use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_tiers::hygiene::{ArchiveError, export};
use holdfast_tiers::stack::Place;
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, TierFolder};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Writes an image to a file.
///
/// # Errors
/// There is no such image, it is damaged, or the file is there or cannot be written.
pub fn run(args: &ExportArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let name = &args.image.job;
    let job = crate::names::open_job(&store, name);
    let tiers = places::of_job(&store, job.as_ref().ok())?;
    let specs = places::chosen(&args.which, &tiers, job.as_ref().ok());
    let job = match job {
        Err(failure) if !specs.iter().any(|spec| matches!(spec.place, Place::At(_))) => return Err(failure),
        job => job.ok(),
    };
    let places = places::of(name, job.as_ref(), &specs, Above::Apart);
    let unreachable = places.tell();
    let Some((folder, epoch)) = newest(places.found.iter().map(|place| &place.folder), args.image.epoch)?
    else {
        let what = args.image.epoch.map_or_else(|| "image".to_owned(), |epoch| format!("image {epoch}"));
        let exit = unreachable.unwrap_or(Exit::NotFound);
        return Err(Failure::new(exit, format!("job {name} has no {what} there")));
    };
    let origin = Origin { job: name.clone(), settings: recipe(job.as_ref(), folder, epoch)? }.encode()?;
    let bytes = if args.file == Path::new("-") {
        let out = io::stdout().lock();
        if out.is_terminal() {
            return Err(Failure::new(
                Exit::Usage,
                "an image cannot go to a terminal; give a file, or a pipe",
            ));
        }
        write(folder, epoch, &origin, out)?
    } else {
        to_file(&args.file, |file| write(folder, epoch, &origin, file))?
    };
    report::note(&format!("image {epoch} of job {name} was exported, {}", report::size(bytes)));
    Ok(())
}

/// The place that has the image, or the newest one.
fn newest<'a>(
    folders: impl Iterator<Item = &'a TierFolder>,
    epoch: Option<Epoch>,
) -> Result<Option<(&'a TierFolder, Epoch)>, TierError> {
    let mut best: Option<(&TierFolder, Epoch)> = None;
    for folder in folders {
        let there = folder.inventory()?.versions;
        let found = match epoch {
            Some(epoch) => there.contains(&epoch.0).then_some(epoch),
            None => there.last().map(|&number| Epoch(number)),
        };
        if let Some(found) = found.filter(|found| best.is_none_or(|(_, best)| *found > best)) {
            best = Some((folder, found));
        }
    }
    Ok(best)
}

/// How the job was started, as the store or the tier has it.
fn recipe(job: Option<&Job>, folder: &TierFolder, epoch: Epoch) -> Result<Recipe, Failure> {
    match job {
        Some(job) => Recipe::read(job),
        None => serde_json::from_slice(&folder.recipe(epoch)?).map_err(|error| {
            Failure::new(Exit::BadImage, format!("job-{:06} of {folder:?}: {error}", epoch.0))
        }),
    }
}

/// Makes a file that has its name when it is complete and durable; `write` says how many bytes it has.
///
/// # Errors
/// There is one already, or it cannot be written: there is none then. Those of `write`.
pub fn to_file(path: &Path, write: impl FnOnce(&File) -> Result<u64, Failure>) -> Result<u64, Failure> {
    let failed = |call: &str, error: &io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::new(
            Exit::CannotCreate,
            format!("{} is there already; name another file", path.display()),
        ),
        _ => Failure::system(format_args!("{call} {}", path.display()), error),
    };
    // Before it is written, for that may take long.
    if path.symlink_metadata().is_ok() {
        return Err(failed("creating", &io::ErrorKind::AlreadyExists.into()));
    }
    let part = unfinished(path);
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    let file = create().or_else(|error| match error.kind() {
        // Of a process that had this id, and was killed.
        io::ErrorKind::AlreadyExists => fs::remove_file(&part).and_then(|()| create()),
        _ => Err(error),
    });
    let file = file.map_err(|error| failed("creating", &error))?;
    let done = write(&file).and_then(|bytes| {
        file.sync_all().map_err(|error| failed("syncing", &error))?;
        name_it(&part, path).map_err(|error| failed("creating", &error))?;
        Ok(bytes)
    });
    if done.is_err() {
        // Half of it is no use. The error is what counts.
        let _ = remove_own(&part, &file);
    }
    done
}

/// What a file is called until it is complete.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

/// Gives a file its name, if nothing else has that by now.
fn name_it(part: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(part, path) {
        Ok(()) => fs::remove_file(part)?,
        // File systems without links (FAT, some of networks).
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::rename(part, path)?,
        Err(error) => return Err(error),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Removes the file, if it is still the one of this name.
fn remove_own(path: &Path, file: &File) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let (named, open) = (fs::symlink_metadata(path)?, file.metadata()?);
    if (named.dev(), named.ino()) == (open.dev(), open.ino()) { fs::remove_file(path) } else { Ok(()) }
}

fn write(folder: &TierFolder, epoch: Epoch, origin: &[u8], out: impl Write) -> Result<u64, Failure> {
    let bar = report::progress(&format!("exporting image {epoch}"), 0);
    let mut out = io::BufWriter::with_capacity(1 << 20, out);
    let pace: (&dyn Fn(u64), &dyn Fn(u64)) = (&|total| bar.set_length(total), &|bytes| bar.inc(bytes));
    let done = export(folder, epoch, origin, &mut out, pace);
    bar.finish_and_clear();
    done.map_err(|error| match error {
        ArchiveError::File(error) => Failure::system("writing the image", &error),
        other => of_archive("the image", other),
    })
}
