//! `holdfast import --veloc`: what VELOC has written becomes versions of sets of objects.
//!
//! Invariants: all files are looked at before one is taken; all versions of an import are of one run of their set, so
//! that they are never mixed with others; a version counts when the store has it of all ranks, the oldest first. No
//! server is needed, and one that has the set is waited for. Exit code 65: something could not be taken, what could
//! was.

use super::folder::{self, Folder, Reading, Versions};
use crate::args::ImportArgs;
use crate::exit::{Exit, Failure};
use crate::names::open_store;
use crate::report;
use crate::serve::ranks::Rank;
use holdfast_objects::buffer::{Layout, Table, check_name};
use holdfast_objects::wire::MAX_RANKS;
use holdfast_tiers::{Job, Store};
use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a server that ends is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// Imports a folder.
///
/// # Errors
/// There is nothing to be imported; something of it is missing or damaged; the store has these versions already, or
/// cannot be written.
pub fn run(args: &ImportArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = open_store(root)?;
    let reading =
        Reading { single: args.single, file_mode: args.file_mode, checksums: args.checksums.clone() };
    let folder = folder::list(&args.file, &reading)?;
    let mut wrong = Vec::new();
    for (set, versions) in chosen(folder, args)? {
        check_name(&set).map_err(|why| Failure::new(Exit::Usage, why))?;
        let (good, named) = folder::whole(&versions, &reading);
        named.iter().for_each(|why| wrong.push(format!("{set}: {why}")));
        if !good.is_empty() {
            Import::begin(&store, &set, &versions, &good)?.all(&versions, &good, &reading)?;
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::new(Exit::BadImage, wrong.join("\n"))) }
}

/// What is imported, by the name that it gets.
fn chosen(folder: Folder, args: &ImportArgs) -> Result<Vec<(String, Versions)>, Failure> {
    let mut sets = folder.sets;
    let there: Vec<String> = sets.keys().cloned().collect();
    if there.is_empty() {
        let why = format!("{} has no checkpoints of VELOC (NAME-RANK-VERSION.dat)", args.file.display());
        return Err(Failure::new(Exit::NotFound, why));
    }
    let Some(name) = &args.name else { return Ok(sets.into_iter().collect()) };
    match (sets.remove(name), sets.pop_first()) {
        (Some(versions), _) | (None, Some((_, versions))) if there.contains(name) || there.len() == 1 => {
            Ok(vec![(name.clone(), versions)])
        }
        _ => {
            let (folder, there) = (args.file.display(), there.join(", "));
            Err(Failure::new(Exit::NotFound, format!("{folder} has no checkpoints {name}, but {there}")))
        }
    }
}

/// A set that is being imported.
struct Import {
    set: String,
    ranks: Vec<Rank>,
    run: u64,
}

impl Import {
    /// Locks all ranks of it.
    fn begin(store: &Store, set: &str, versions: &Versions, good: &BTreeSet<u64>) -> Result<Import, Failure> {
        let count = folder::ranks(versions);
        if count > MAX_RANKS {
            return Err(Failure::new(
                Exit::Refused,
                format!("{set}: {count} ranks; {MAX_RANKS} are possible"),
            ));
        }
        let (mut ranks, mut newest) = (Vec::new(), 0);
        let end = Instant::now() + PATIENCE;
        for number in 0..count {
            // With the lock held once more: what the store has is then what it has.
            let (mut rank, _, _) = Rank::open(store, set, number)?;
            wait_until_free(&rank.job().0, end)?;
            rank.begin(store, count, &[])?;
            let (found, broken) = rank.versions()?;
            broken.iter().for_each(|why| report::warn(why));
            for stored in found {
                let record = stored.record;
                if good.contains(&record.version) || record.ranks != count {
                    let what = format!(
                        "the store has version {} of {set} already, of {} ranks: --name gives the imported one \
                         another name; `holdfast rm {}` deletes what is there of that rank",
                        record.version,
                        record.ranks,
                        rank.job().0.name()
                    );
                    return Err(Failure::new(Exit::Refused, what));
                }
                newest = newest.max(record.run);
            }
            ranks.push(rank);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(newest.saturating_add(1));
        Ok(Import { set: set.to_owned(), ranks, run })
    }

    /// Takes all files of these versions.
    fn all(mut self, versions: &Versions, good: &BTreeSet<u64>, reading: &Reading) -> Result<(), Failure> {
        let mut bytes = 0;
        let bar = report::progress(&format!("importing {}", self.set), 0);
        for (version, files) in versions.iter().filter(|(version, _)| good.contains(version)) {
            for (rank, path) in files {
                // It may have been replaced since it was looked at.
                let source = folder::open(path, reading).map_err(|why| Failure::new(Exit::BadImage, why))?;
                let len = source.len;
                self.take(*version, *rank, source)?;
                bytes += len;
                bar.inc(len);
            }
        }
        bar.finish_and_clear();
        let (first, last) = (good.first().unwrap_or(&0), good.last().unwrap_or(&0));
        let count = self.ranks.len();
        report::note(&format!(
            "versions {first} to {last} ({} of them) of {}, of {count} {}, were imported, {}",
            good.len(),
            self.set,
            if count == 1 { "rank" } else { "ranks" },
            report::size(bytes)
        ));
        Ok(())
    }

    fn take(&mut self, version: u64, rank: u32, source: folder::Source) -> Result<(), Failure> {
        let ranks = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let (set, run) = (self.set.clone(), self.run);
        let table = Table { set, rank, ranks, version, run, objects: source.objects };
        let layout = Layout::of(&table).map_err(|why| Failure::new(Exit::Refused, why))?;
        // Where the objects are in the file.
        let layout = Layout { places: source.places, data: 0, len: source.len, ..layout };
        let at = usize::try_from(rank).unwrap_or(usize::MAX);
        let Some(own) = self.ranks.get_mut(at) else { return Ok(()) };
        own.commit(&source.file, (&table, &layout), Instant::now()).map(drop)
    }
}

/// The server of a program that has ended needs some seconds.
fn wait_until_free(job: &Job, end: Instant) -> Result<(), Failure> {
    let mut is_told = false;
    while job.is_live() {
        let name = job.name();
        if Instant::now() >= end {
            let what = format!("{name} is open: a program uses the set; import it when that has ended");
            return Err(Failure::new(Exit::Refused, what));
        }
        if !std::mem::replace(&mut is_told, true) {
            report::note(&format!("waiting for the server that has {name}"));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
