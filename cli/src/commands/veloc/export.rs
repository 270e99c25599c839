//! `holdfast export --veloc`: a version of a set of objects becomes the files that VELOC would have written.
//!
//! Reads images of the store, and of the tiers below it where those of the store are damaged; no lock, no server: what
//! a server has in memory alone is not seen. Each file has its name when it is durable; where one cannot be made, those
//! that were made go.

use super::{FILE, of_set};
use crate::args::ExportArgs;
use crate::commands::export::to_file;
use crate::exit::{Exit, Failure};
use crate::names::open_store;
use crate::report;
use crate::serve::ranks::{Rank, Stored, read_object};
use holdfast_image::objects::StoredObject;
use holdfast_objects::veloc_file::{self, FileName};
use holdfast_tiers::{Image, Store};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// What the store has of a set.
struct Found {
    ranks: BTreeMap<u32, Rank>,
    /// By version and run, by rank.
    versions: BTreeMap<(u64, u64), BTreeMap<u32, Stored>>,
    /// What cannot be read.
    broken: Vec<String>,
}

/// Exports a version, or the newest one.
///
/// # Errors
/// There is no such version that all ranks have; VELOC cannot have it; a file is there already or cannot be written.
pub fn run(args: &ExportArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = open_store(root)?;
    let (set, folder) = (&args.image.job, &args.file);
    let wanted = args.image.epoch.map(|epoch| epoch.0);
    let mut found = found(&store, set)?;
    let parts = whole(&mut found, set, wanted)?;
    let mut files = Vec::new();
    for (rank, stored) in &parts {
        let name = file_name(set, *rank, stored)?;
        files.push((folder.join(name.to_string()), rank, stored, regions(stored)?));
    }
    fs::create_dir_all(folder)
        .map_err(|error| Failure::system(format_args!("making {}", folder.display()), &error))?;
    let mut made: Vec<PathBuf> = Vec::new();
    let mut bytes = 0;
    for (path, rank, stored, regions) in files {
        let Some(opened) = found.ranks.get(rank) else { continue };
        let image = opened.image(stored.epoch)?;
        let done = to_file(&path, |file| write(&image, regions.as_deref(), stored, file));
        bytes += done.inspect_err(|_| {
            // The error is what counts.
            made.iter().for_each(|path| drop(fs::remove_file(path)));
        })?;
        made.push(path);
    }
    let version = parts.first_key_value().map_or(0, |(_, stored)| stored.record.version);
    report::note(&format!(
        "version {version} of {set} was exported, {} in {} {}",
        report::size(bytes),
        made.len(),
        if made.len() == 1 { "file" } else { "files" }
    ));
    Ok(())
}

fn found(store: &Store, set: &str) -> Result<Found, Failure> {
    let ranks = if store.sets()?.iter().any(|known| known == set) { store.ranks(set)? } else { Vec::new() };
    if ranks.is_empty() {
        let what = format!(
            "there is no set of objects {set} in {}; `holdfast list` has all",
            store.root().display()
        );
        return Err(Failure::new(Exit::NotFound, what));
    }
    let mut all = Found { ranks: BTreeMap::new(), versions: BTreeMap::new(), broken: Vec::new() };
    for rank in ranks {
        let (opened, stored, broken) = Rank::open(store, set, rank)?;
        all.broken.extend(broken);
        all.ranks.insert(rank, opened);
        for stored in stored {
            let key = (stored.record.version, stored.record.run);
            all.versions.entry(key).or_default().insert(rank, stored);
        }
    }
    Ok(all)
}

/// The parts of the newest version that all ranks have.
fn whole(found: &mut Found, set: &str, wanted: Option<u64>) -> Result<BTreeMap<u32, Stored>, Failure> {
    let mut most = None;
    for ((version, _), parts) in std::mem::take(&mut found.versions).into_iter().rev() {
        if wanted.is_some_and(|wanted| wanted != version) {
            continue;
        }
        let ranks = parts.values().map(|stored| stored.record.ranks).max().unwrap_or(0);
        if (0..ranks).all(|rank| parts.contains_key(&rank)) {
            found.broken.iter().for_each(|why| report::warn(why));
            return Ok(parts);
        }
        most = most.max(Some((parts.len(), ranks)));
    }
    let which = wanted.map_or_else(|| "a version".to_owned(), |version| format!("version {version}"));
    let mut lines = vec![match most {
        Some((parts, ranks)) => format!("{set}: the store has {which} of {parts} of {ranks} ranks alone"),
        None => format!("the store has not {which} of {set}"),
    }];
    let exit = if found.broken.is_empty() { Exit::NotFound } else { Exit::BadImage };
    lines.append(&mut found.broken);
    Err(Failure::new(exit, lines.join("\n")))
}

/// The name of the file of a rank.
fn file_name(set: &str, rank: u32, stored: &Stored) -> Result<FileName, Failure> {
    let Stored { record, .. } = stored;
    let is_possible = i32::try_from(record.version).is_ok();
    let named = of_set(set, rank, record.ranks).filter(|_| is_possible);
    named.map(|(name, rank)| FileName { name, rank, version: record.version }).ok_or_else(|| {
        let what = format!(
            "VELOC cannot have version {} of {set}: its names have letters, digits, '_' and '.', its versions end \
             at {}",
            record.version,
            i32::MAX
        );
        Failure::new(Exit::Refused, what)
    })
}

/// The ids of the objects, ascending; `None`: it is a file of the program's own.
fn regions(stored: &Stored) -> Result<Option<Vec<(i32, &StoredObject)>>, Failure> {
    let record = &stored.record;
    if let [object] = record.objects.as_slice()
        && object.key.starts_with(FILE)
    {
        return Ok(None);
    }
    let id = |object: &StoredObject| object.key.parse().ok().filter(|id: &i32| id.to_string() == object.key);
    let mut regions = Vec::new();
    for object in &record.objects {
        let id = id(object).ok_or_else(|| {
            let (key, version) = (&object.key, record.version);
            let what = format!(
                "version {version} has the object \"{key}\": VELOC's files have regions with numbers, or one file alone"
            );
            Failure::new(Exit::Refused, what)
        })?;
        regions.push((id, object));
    }
    regions.sort_unstable_by_key(|(id, _)| *id);
    Ok(Some(regions))
}

fn write(
    image: &Image,
    regions: Option<&[(i32, &StoredObject)]>,
    stored: &Stored,
    file: &File,
) -> Result<u64, Failure> {
    let head =
        regions.map(|regions| regions.iter().map(|(id, object)| (*id, object.bytes)).collect::<Vec<_>>());
    let head = head.map_or_else(Vec::new, |rows| veloc_file::head(&rows));
    let objects: Vec<&StoredObject> = match regions {
        Some(regions) => regions.iter().map(|(_, object)| *object).collect(),
        None => stored.record.objects.iter().collect(),
    };
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let failed = |error: std::io::Error| Failure::system("writing a file", &error);
    out.write_all(&head).map_err(failed)?;
    let mut bytes = head.len() as u64;
    for object in objects {
        let mut broken = None;
        let read = read_object(image, object, |at, piece| {
            let len = usize::try_from(object.bytes - at).map_or(piece.len(), |rest| rest.min(piece.len()));
            out.write_all(&piece[..len]).map_err(|error| {
                let text = error.to_string();
                broken = Some(error);
                text
            })
        });
        if let Some(error) = broken {
            return Err(failed(error));
        }
        read.map_err(|why| Failure::new(Exit::BadImage, why))?;
        bytes += object.bytes;
    }
    out.flush().map_err(failed)?;
    Ok(bytes)
}
