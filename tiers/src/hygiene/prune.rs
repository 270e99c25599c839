//! What a job has on a tier, for the plan of `holdfast prune`; and its removal.
//!
//! Called with the job's lock held. Invariants: manifests go first, each durably; a segment goes when no manifest of
//! that folder names it any more, nor a version that is yet to come there; what another host may be writing (it is
//! younger than a day, and no version of ours named it) is left alone.

use crate::catalog::{Catalog, SegmentKey};
use crate::fault;
use crate::format::manifest::SegmentEntry;
use crate::names::{self, FileName};
use crate::policy::{Held, SegmentId};
use crate::tier::{Entry, TierError};
use crate::tier_folder::TierFolder;
use crate::unpacked::PlainLengths;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// What a folder has.
#[derive(Default)]
pub struct Survey {
    /// Its versions, for the plan.
    pub versions: Vec<Held>,
    catalog: Catalog,
}

/// Names of segments by which the plan knows them, beside those of manifests.
fn part(index: usize) -> SegmentId {
    SegmentId(index as u64)
}

/// Looks at all manifests of a folder.
///
/// # Errors
/// Of the tier; a manifest is there and cannot be looked at: what may go is not known, nor that its version may.
pub fn survey(folder: &TierFolder) -> Result<Survey, TierError> {
    let catalog = Catalog::of(folder)?;
    if let Some(error) = catalog.unseen() {
        return Err(error.again());
    }
    let mut lengths = PlainLengths::default();
    let index: BTreeMap<SegmentKey, usize> = catalog.segments.keys().copied().zip(1..).collect();
    // What sets of a gang's redundancy need does not become free with versions.
    let of_sets = catalog.needed_by_sets();
    let own = |name: &SegmentKey| {
        let entry = catalog.segments.get(name).filter(|_| !of_sets.may_be(*name))?;
        Some((part(*index.get(name)?), entry.len))
    };
    let mut versions = Vec::new();
    for (&number, version) in &catalog.versions {
        let table = catalog.table(number);
        let mut parts: Vec<(SegmentId, u64)> = match table {
            Some(table) => table.iter().filter_map(|entry| own(&entry.key())).collect(),
            None => catalog.segments.keys().filter(|(epoch, _)| *epoch <= number).filter_map(own).collect(),
        };
        let recipe = catalog.recipes.get(&number).map_or(0, |entry| entry.len);
        parts.push((SegmentId(u64::MAX - number), version.manifest.len + recipe));
        let mut whole = table.is_some();
        for entry in table.into_iter().flatten() {
            whole &= match catalog.segments.get(&entry.key()) {
                Some(there) => lengths.of(&**folder.tier(), there, entry.len)? == Ok(entry.len),
                None => false,
            };
        }
        versions.push(Held { number, parts, whole });
    }
    Ok(Survey { versions, catalog })
}

impl Survey {
    /// Segments of a version, if its manifest is not damaged.
    pub fn table(&self, number: u64) -> Option<&[SegmentEntry]> {
        self.catalog.table(number)
    }

    /// Numbers of the versions whose manifests are not damaged.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.catalog.readable().collect()
    }

    /// Numbers of versions that are others than the first tier's of these numbers.
    pub fn others(&self, first: &Survey) -> BTreeSet<u64> {
        let is_other = |number: &u64| match (self.catalog.identity(*number), first.catalog.identity(*number))
        {
            (Some(there), Some(here)) => there != here,
            _ => false,
        };
        self.numbers().into_iter().filter(is_other).collect()
    }

    /// What no version needs, with the bytes: what crashes left. `coming`: segments of versions that the folder is to
    /// get.
    pub fn leftovers(&self, coming: &BTreeSet<SegmentKey>) -> Vec<(String, u64)> {
        let segments = self.catalog.garbage();
        let segments = segments
            .filter(|(key, entry)| !coming.contains(key) && entry.is_abandoned())
            .map(|(_, entry)| entry);
        with_lengths(segments.chain(self.loose_recipes().filter(|entry| entry.is_abandoned())))
    }

    /// All that no version needs, however young: for a folder that is given up.
    pub fn loose(&self) -> Vec<(String, u64)> {
        with_lengths(self.catalog.garbage().map(|(_, entry)| entry).chain(self.loose_recipes()))
    }

    fn loose_recipes(&self) -> impl Iterator<Item = &Entry> {
        let is_loose = |(number, _): &(&u64, &Entry)| !self.catalog.versions.contains_key(number);
        self.catalog.recipes.iter().chain(&self.catalog.ends).filter(is_loose).map(|(_, entry)| entry)
    }
}

fn with_lengths<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<(String, u64)> {
    entries.map(|entry| (entry.name.file().to_owned(), entry.len)).collect()
}

/// Removes versions, with all that only they need, and these leftovers. Returns the bytes that became free.
///
/// # Errors
/// Of the tier; what was not removed is removed by the next call.
pub fn remove(
    folder: &TierFolder,
    survey: &Survey,
    versions: &BTreeSet<u64>,
    leftovers: &[(String, u64)],
) -> Result<u64, TierError> {
    let mut freed = 0;
    for &number in versions {
        gone(folder, &names::manifest_name(Epoch(number)), "prune-manifest")?;
        freed += survey.versions.iter().find(|held| held.number == number).map_or(0, own_bytes);
        if survey.catalog.recipes.contains_key(&number) {
            gone(folder, &names::recipe_name(Epoch(number)), "prune-recipe")?;
        }
        if survey.catalog.ends.contains_key(&number) {
            gone(folder, &names::end_name(Epoch(number)), "prune-leftover")?;
        }
    }
    // What was published meanwhile by another host of the same job counts too.
    let mut now = Catalog::like(&survey.catalog);
    now.renew(folder)?;
    let garbage: BTreeSet<SegmentKey> = now.garbage().map(|(key, _)| key).collect();
    let tables = versions.iter().filter_map(|number| survey.table(*number));
    let mut going: BTreeSet<SegmentKey> = tables.flatten().map(SegmentEntry::key).collect();
    // One that could not be read may have named all those that no other names.
    let lost = versions.iter().filter(|number| survey.table(**number).is_none()).max().copied().unwrap_or(0);
    going.extend(survey.catalog.segments.keys().filter(|(epoch, _)| *epoch <= lost));
    for key in going.intersection(&garbage) {
        let Some(entry) = now.segments.get(key) else { continue };
        gone(folder, entry.name.file(), "prune-segment")?;
        freed += entry.len;
    }
    for (file, bytes) in leftovers {
        if matches!(names::parse_name(file), Some(FileName::Segment(of, part)) if !garbage.contains(&(of.0, part)))
        {
            // A version needs it by now.
            continue;
        }
        gone(folder, file, "prune-leftover")?;
        freed += bytes;
    }
    Ok(freed)
}

fn own_bytes(held: &Held) -> u64 {
    held.parts.last().map_or(0, |(_, bytes)| *bytes)
}

fn gone(folder: &TierFolder, file: &str, point: &'static str) -> Result<(), TierError> {
    folder.tier().remove(&folder.blob(file)?)?;
    fault::point(point);
    Ok(())
}
