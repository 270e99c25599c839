//! What a lower tier no longer keeps goes: manifests first, then `job-N` and segments of which no manifest of that tier
//! is left.
//!
//! Called by the cascade when a tier has all that it wants. Invariants: the newest version stays; a segment goes only
//! when every manifest that could name it was read, those included that another host has published meanwhile, and if a
//! version that was removed here has named it, or nothing was written to it for a day: else another host, which
//! continues the job too, may be about to publish a version that names it. Segments newer than the newest version are
//! left alone: a copy that is under way, or will be tried again, uses them.

use super::copy::CopyError;
use super::inventory::Inventory;
use super::plan::SegmentIds;
use crate::catalog::{self, Needed, SegmentKey, Table};
use crate::fault;
use crate::format::manifest::SegmentEntry;
use crate::names;
use crate::policy::{Pinned, Retention, Version};
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of the versions of a tier.
#[derive(Default)]
pub(crate) struct SegmentTables {
    /// Their segments, as far as they were read. None: damaged.
    known: BTreeMap<u64, Option<Vec<SegmentEntry>>>,
    /// Segments of versions that were removed here.
    given_up: BTreeSet<SegmentKey>,
    /// Versions that are known to be another host's.
    others: BTreeSet<u64>,
}

impl SegmentTables {
    /// The segments of a version, so that they need not be read from the tier.
    pub(crate) fn learn(&mut self, number: u64, table: Vec<SegmentEntry>) {
        self.known.entry(number).or_insert(Some(table));
    }

    /// These versions are another host's: what was known of those of their numbers is not true of them.
    pub(crate) fn are_others(&mut self, others: &BTreeSet<u64>) {
        self.known.retain(|number, _| !others.contains(number) || self.others.contains(number));
        self.others.clone_from(others);
    }

    /// Reads what is not known of the versions that are there.
    fn complete(&mut self, folder: &TierFolder, there: &Inventory) -> Result<(), CopyError> {
        self.known.retain(|number, _| there.versions.contains(number));
        for &number in &there.versions {
            if let Entry::Vacant(entry) = self.known.entry(number) {
                match catalog::read(folder, Epoch(number)) {
                    Some(Table::Known { segments, .. }) => drop(entry.insert(Some(segments))),
                    Some(Table::Damaged(_)) => drop(entry.insert(None)),
                    Some(Table::Unseen(error)) => return Err(CopyError::Target(error)),
                    // Another host has removed it.
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// The segments that may go. `coming`: of a version that is to come.
    fn garbage(&self, there: &Inventory, coming: &[SegmentEntry]) -> Vec<SegmentKey> {
        let Some(newest) = there.versions.last() else { return Vec::new() };
        let known = self.known.iter().map(|(&number, table)| (number, table.as_deref()));
        let needed = Needed::by(known.chain([(0, Some(coming))]));
        let goes = |key: &SegmentKey| {
            let is_ours = self.given_up.contains(key) || there.abandoned.contains(key);
            is_ours && key.0 <= *newest && !needed.may_be(*key)
        };
        there.segments.keys().copied().filter(goes).collect()
    }
}

/// Removes what the rules no longer keep, and what crashes left; with `coming`, a version for which there is no room,
/// what they would no longer keep if that were there, but for the newest. `there`: what the folder has; what goes is
/// taken out. `pinned` stays; what is another host's neither goes nor counts. Returns the newest version that was
/// removed.
pub(crate) fn apply(
    folder: &TierFolder,
    there: &mut Inventory,
    (rules, pinned, others): (&Retention, Pinned, &BTreeSet<u64>),
    tables: &mut SegmentTables,
    coming: Option<(u64, Vec<SegmentEntry>)>,
) -> Result<Option<u64>, CopyError> {
    tables.complete(folder, there)?;
    let removed = rules.removes(&versions(there, tables, (pinned, others), coming.as_ref()));
    let newest = there.versions.last().copied();
    for &number in &removed {
        remove(folder, &names::manifest_name(Epoch(number)), "remove-manifest")?;
        there.versions.remove(&number);
        let table = tables.known.remove(&number).flatten().unwrap_or_default();
        tables.given_up.extend(table.iter().map(SegmentEntry::key));
    }
    let Some(newest) = newest else { return Ok(None) };
    let recipes: Vec<u64> = there.recipes.range(..newest).copied().collect();
    for number in recipes.into_iter().filter(|number| !tables.known.contains_key(number)) {
        remove(folder, &names::recipe_name(Epoch(number)), "remove-recipe")?;
        there.recipes.remove(&number);
    }
    let coming: &[SegmentEntry] = coming.as_ref().map_or(&[], |(_, table)| table);
    if !tables.garbage(there, coming).is_empty() {
        *there = folder.inventory().map_err(CopyError::Target)?;
        tables.complete(folder, there)?;
    }
    for key in tables.garbage(there, coming) {
        remove(folder, &names::segment_name(Epoch(key.0), key.1), "remove-segment")?;
        there.segments.remove(&key);
        tables.given_up.remove(&key);
    }
    Ok(removed.last().copied())
}

/// The versions that are there, and the one that is to come, as the rules see them.
fn versions(
    there: &Inventory,
    tables: &SegmentTables,
    (pinned, others): (Pinned, &BTreeSet<u64>),
    coming: Option<&(u64, Vec<SegmentEntry>)>,
) -> Vec<Version> {
    let mut ids = SegmentIds::default();
    // Of a packed one what it takes here.
    let len = |entry: &SegmentEntry| there.segments.get(&entry.key()).copied().unwrap_or(entry.len);
    let mut version = |number: u64, table: Option<&[SegmentEntry]>| Version {
        number,
        segments: ids.of(table.unwrap_or_default(), len),
        wanted_below: pinned.has(number),
    };
    let own = tables.known.iter().filter(|(number, _)| !others.contains(number));
    let mut versions: Vec<Version> = own.map(|(&number, table)| version(number, table.as_deref())).collect();
    if let Some((number, table)) = coming {
        if let Some(newest) = versions.last_mut() {
            newest.wanted_below = true;
        }
        versions.push(Version { wanted_below: true, ..version(*number, Some(table)) });
        versions.sort_by_key(|version| version.number);
    }
    versions
}

fn remove(folder: &TierFolder, file: &str, point: &'static str) -> Result<(), CopyError> {
    let name = folder.blob(file).map_err(CopyError::Target)?;
    folder.tier().remove(&name).map_err(CopyError::Target)?;
    fault::point(point);
    Ok(())
}
