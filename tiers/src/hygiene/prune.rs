//! What a job has on a tier, for the plan of `holdfast prune`; and its removal.
//!
//! Called with the job's lock held. Invariants: manifests go first, each durably; a segment goes when no manifest of
//! that folder names it any more, nor a version that is yet to come there; what another host may be writing (it is
//! younger than a day, and no version of ours named it) is left alone.

use crate::fault;
use crate::format::manifest::SegmentEntry;
use crate::names::{self, FileName};
use crate::policy::{Held, SegmentId};
use crate::stack::{recipe_name, recipe_of};
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
    /// The segment tables of those that can be read.
    tables: BTreeMap<u64, Vec<SegmentEntry>>,
    /// All segments, with what is told of them.
    segments: BTreeMap<(u64, u32), Entry>,
    recipes: BTreeMap<u64, Entry>,
    /// The greatest number of a version that cannot be read: it may need any segment up to its own.
    unknown: u64,
}

/// Names of segments by which the plan knows them, beside those of manifests.
fn part(index: usize) -> SegmentId {
    SegmentId(index as u64)
}

/// Looks at all manifests of a folder.
///
/// # Errors
/// Of the tier.
pub fn survey(folder: &TierFolder) -> Result<Survey, TierError> {
    let mut survey = Survey::default();
    let mut manifests: BTreeMap<u64, u64> = BTreeMap::new();
    for entry in folder.tier().list(folder.folder())?.blobs {
        match names::parse_name(entry.name.file()) {
            Some(FileName::Manifest(epoch)) => drop(manifests.insert(epoch.0, entry.len)),
            Some(FileName::Segment(epoch, number)) => drop(survey.segments.insert((epoch.0, number), entry)),
            None => {
                if let Some(number) = recipe_of(entry.name.file()) {
                    survey.recipes.insert(number, entry);
                }
            }
        }
    }
    let mut lengths = PlainLengths::default();
    let index: BTreeMap<(u64, u32), usize> = survey.segments.keys().copied().zip(1..).collect();
    for (&number, &len) in &manifests {
        let table = match folder.segments(Epoch(number)) {
            Ok(table) => Some(table),
            Err(error @ (TierError::Unavailable { .. } | TierError::Settings { .. })) => return Err(error),
            Err(_) => None,
        };
        let own = |name: &(u64, u32)| Some((part(*index.get(name)?), survey.segments.get(name)?.len));
        let mut parts: Vec<(SegmentId, u64)> = match &table {
            Some(table) => table.iter().filter_map(|entry| own(&entry.key())).collect(),
            None => survey.segments.keys().filter(|(epoch, _)| *epoch <= number).filter_map(own).collect(),
        };
        let recipe = survey.recipes.get(&number).map_or(0, |entry| entry.len);
        parts.push((SegmentId(u64::MAX - number), len + recipe));
        let mut whole = table.is_some();
        for entry in table.iter().flatten() {
            whole &= match survey.segments.get(&entry.key()) {
                Some(there) => lengths.of(&**folder.tier(), there, entry.len)? == Ok(entry.len),
                None => false,
            };
        }
        survey.versions.push(Held { number, parts, whole });
        match table {
            Some(table) => drop(survey.tables.insert(number, table)),
            None => survey.unknown = survey.unknown.max(number),
        }
    }
    Ok(survey)
}

impl Survey {
    /// Segments of a version, if its manifest can be read.
    pub fn table(&self, number: u64) -> Option<&[SegmentEntry]> {
        self.tables.get(&number).map(Vec::as_slice)
    }

    /// Numbers of the versions whose manifests can be read.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.tables.keys().copied().collect()
    }

    /// What no version needs, with the bytes: what crashes left. `coming`: segments of versions that the folder is to
    /// get.
    pub fn leftovers(&self, coming: &BTreeSet<(u64, u32)>) -> Vec<(String, u64)> {
        self.unneeded(
            |name, entry| name.0 > self.unknown && !coming.contains(name) && entry.is_abandoned(),
            Entry::is_abandoned,
        )
    }

    /// All that no version needs, however young: for a folder that is given up.
    pub fn loose(&self) -> Vec<(String, u64)> {
        self.unneeded(|_, _| true, |_| true)
    }

    /// Segments and `job-N` that no version needs and that may go.
    fn unneeded(
        &self,
        segment_goes: impl Fn(&(u64, u32), &Entry) -> bool,
        recipe_goes: impl Fn(&Entry) -> bool,
    ) -> Vec<(String, u64)> {
        let named: BTreeSet<(u64, u32)> = self.tables.values().flatten().map(SegmentEntry::key).collect();
        let loose =
            self.segments.iter().filter(|(name, entry)| !named.contains(name) && segment_goes(name, entry));
        let there = |number: &u64| self.versions.iter().any(|held| held.number == *number);
        let recipes = self.recipes.iter().filter(|(number, entry)| !there(number) && recipe_goes(entry));
        let entries = loose.map(|(_, entry)| entry).chain(recipes.map(|(_, entry)| entry));
        entries.map(|entry| (entry.name.file().to_owned(), entry.len)).collect()
    }
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
        if survey.recipes.contains_key(&number) {
            gone(folder, &recipe_name(Epoch(number)), "prune-recipe")?;
        }
    }
    // What was published meanwhile by another host of the same job counts too.
    let left: BTreeSet<u64> = folder.inventory()?.versions;
    let mut unknown = 0;
    let mut needed: BTreeSet<(u64, u32)> = BTreeSet::new();
    for number in left {
        match survey.table(number) {
            Some(table) => needed.extend(table.iter().map(SegmentEntry::key)),
            None => match folder.segments(Epoch(number)) {
                Ok(table) => needed.extend(table.iter().map(SegmentEntry::key)),
                Err(_) => unknown = number,
            },
        }
    }
    let tables = versions.iter().filter_map(|number| survey.table(*number));
    let mut going: BTreeSet<(u64, u32)> = tables.flatten().map(SegmentEntry::key).collect();
    // One that could not be read may have named all those that no other names.
    let lost = versions.iter().filter(|number| survey.table(**number).is_none()).max().copied().unwrap_or(0);
    going.extend(survey.segments.keys().filter(|(epoch, _)| *epoch <= lost));
    for name in going {
        let Some(entry) = survey.segments.get(&name).filter(|_| !needed.contains(&name) && name.0 > unknown)
        else {
            continue;
        };
        gone(folder, entry.name.file(), "prune-segment")?;
        freed += entry.len;
    }
    for (file, bytes) in leftovers {
        let is_needed = |name: (u64, u32)| needed.contains(&name) || name.0 <= unknown;
        if matches!(names::parse_name(file), Some(FileName::Segment(of, part)) if is_needed((of.0, part))) {
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
