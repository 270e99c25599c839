//! What a lower tier no longer keeps goes: manifests first, then `job-N` and segments of which no manifest of that tier
//! is left.
//!
//! Called by the cascade when a tier has all that it wants. Invariants: the newest version stays; a segment goes only
//! when every manifest that could name it was read; segments newer than the newest version are left alone: a copy that
//! is under way, or will be tried again, uses them.

use super::copy::CopyError;
use super::inventory::{Inventory, recipe_name};
use super::plan::SegmentIds;
use crate::fault;
use crate::format::manifest::SegmentEntry;
use crate::names;
use crate::policy::{Retention, Version};
use crate::tier::TierError;
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The segment tables of a tier's versions, as far as they were read. None: damaged.
pub(crate) type SegmentTables = BTreeMap<u64, Option<Vec<SegmentEntry>>>;

/// Removes what the rules no longer keep, and what crashes left; with `coming`, a version for which there is no room,
/// what they would no longer keep if that were there, but for the newest. `there`: what the folder has; what goes is
/// taken out. `pinned` stays. Returns the newest version that was removed.
pub(crate) fn apply(
    folder: &TierFolder,
    there: &mut Inventory,
    (rules, pinned): (&Retention, Option<u64>),
    tables: &mut SegmentTables,
    coming: Option<(u64, Vec<SegmentEntry>)>,
) -> Result<Option<u64>, CopyError> {
    tables.retain(|number, _| there.versions.contains(number));
    for &number in &there.versions {
        if let Entry::Vacant(entry) = tables.entry(number) {
            entry.insert(match folder.segments(Epoch(number)) {
                Ok(table) => Some(table),
                Err(TierError::Damaged { .. } | TierError::Short { .. }) => None,
                Err(error) => return Err(CopyError::Target(error)),
            });
        }
    }
    let mut ids = SegmentIds::default();
    let mut versions: Vec<Version> =
        tables.iter().map(|(&number, table)| version(number, table.as_deref(), &mut ids)).collect();
    for version in versions.iter_mut().filter(|version| Some(version.number) == pinned) {
        version.wanted_below = true;
    }
    if let Some((number, table)) = &coming {
        if let Some(newest) = versions.last_mut() {
            newest.wanted_below = true;
        }
        versions.push(Version { wanted_below: true, ..version(*number, Some(table), &mut ids) });
        versions.sort_by_key(|version| version.number);
    }
    let removed = rules.removes(&versions);
    let newest = there.versions.last().copied();
    for &number in &removed {
        remove(folder, &names::manifest_name(Epoch(number)), "remove-manifest")?;
        there.versions.remove(&number);
        tables.remove(&number);
    }
    let Some(newest) = newest else { return Ok(None) };
    let recipes: Vec<u64> = there.recipes.range(..newest).copied().collect();
    for number in recipes.into_iter().filter(|number| !tables.contains_key(number)) {
        remove(folder, &recipe_name(Epoch(number)), "remove-recipe")?;
        there.recipes.remove(&number);
    }
    // One that cannot be read may need any segment of its own and earlier epochs.
    let unknown = tables.iter().rev().find(|(_, table)| table.is_none()).map_or(0, |(&number, _)| number);
    let coming = coming.iter().flat_map(|(_, table)| table);
    let named: BTreeSet<(u64, u32)> =
        tables.values().flatten().flatten().chain(coming).map(SegmentEntry::key).collect();
    let is_garbage = |name: &(u64, u32)| name.0 <= newest && name.0 > unknown && !named.contains(name);
    let garbage: Vec<(u64, u32)> = there.segments.keys().copied().filter(is_garbage).collect();
    for (epoch, number) in garbage {
        remove(folder, &names::segment_name(Epoch(epoch), number), "remove-segment")?;
        there.segments.remove(&(epoch, number));
    }
    Ok(removed.last().copied())
}

fn remove(folder: &TierFolder, file: &str, point: &'static str) -> Result<(), CopyError> {
    let name = folder.blob(file).map_err(CopyError::Target)?;
    folder.tier().remove(&name).map_err(CopyError::Target)?;
    fault::point(point);
    Ok(())
}

fn version(number: u64, table: Option<&[SegmentEntry]>, ids: &mut SegmentIds) -> Version {
    Version { number, segments: ids.of(table.unwrap_or_default()), wanted_below: false }
}
