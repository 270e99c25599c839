//! What a lower tier no longer keeps goes: manifests first, then `job-N` and segments of which no manifest of that tier
//! is left.
//!
//! Called by the cascade when a tier has all that it wants. Invariants: the newest version stays; a segment goes only
//! when every manifest that could name it was read; segments newer than the newest version are left alone: a copy that
//! is under way, or will be tried again, uses them.

use super::copy::CopyError;
use super::inventory::{Place, recipe_name};
use super::plan::SegmentIds;
use crate::fault;
use crate::format::manifest::SegmentEntry;
use crate::names;
use crate::policy::{Retention, Version};
use crate::tier::TierError;
use holdfast_image::Epoch;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The segment tables of a tier's versions, as far as they were read. None: damaged.
pub(crate) type SegmentTables = BTreeMap<u64, Option<Vec<SegmentEntry>>>;

/// Removes what the rules no longer keep, and what crashes left; with `coming`, a version for which there is no room,
/// what they would no longer keep if that were there, but for the newest. Returns the newest version that was removed.
pub(crate) fn apply(
    place: &Place<'_>,
    rules: &Retention,
    tables: &mut SegmentTables,
    coming: Option<(u64, Vec<SegmentEntry>)>,
) -> Result<Option<u64>, CopyError> {
    let there = place.inventory().map_err(CopyError::Target)?;
    tables.retain(|number, _| there.versions.contains(number));
    for &number in &there.versions {
        if let Entry::Vacant(entry) = tables.entry(number) {
            entry.insert(match place.segments(Epoch(number)) {
                Ok(table) => Some(table),
                Err(TierError::Damaged { .. } | TierError::Short { .. }) => None,
                Err(error) => return Err(CopyError::Target(error)),
            });
        }
    }
    let mut ids = SegmentIds::default();
    let mut versions: Vec<Version> =
        tables.iter().map(|(&number, table)| version(number, table.as_deref(), &mut ids)).collect();
    if let Some((number, table)) = &coming {
        if let Some(newest) = versions.last_mut() {
            newest.wanted_below = true;
        }
        versions.push(Version { wanted_below: true, ..version(*number, Some(table), &mut ids) });
        versions.sort_by_key(|version| version.number);
    }
    let removed = rules.removes(&versions);
    for &number in &removed {
        remove(place, &names::manifest_name(Epoch(number)), "remove-manifest")?;
        tables.remove(&number);
    }
    let Some(&newest) = there.versions.last() else { return Ok(None) };
    for &number in there.recipes.range(..newest).filter(|number| !tables.contains_key(number)) {
        remove(place, &recipe_name(Epoch(number)), "remove-recipe")?;
    }
    // One that cannot be read may need any segment of its own and earlier epochs.
    let unknown = tables.iter().rev().find(|(_, table)| table.is_none()).map_or(0, |(&number, _)| number);
    let coming = coming.iter().flat_map(|(_, table)| table);
    let named: BTreeSet<(u64, u32)> =
        tables.values().flatten().flatten().chain(coming).map(name_of).collect();
    for &(epoch, number) in there.segments.keys() {
        if epoch <= newest && epoch > unknown && !named.contains(&(epoch, number)) {
            remove(place, &names::segment_name(Epoch(epoch), number), "remove-segment")?;
        }
    }
    Ok(removed.last().copied())
}

fn name_of(entry: &SegmentEntry) -> (u64, u32) {
    (entry.epoch.0, entry.number)
}

fn remove(place: &Place<'_>, file: &str, point: &'static str) -> Result<(), CopyError> {
    let name = place.name(file).map_err(CopyError::Target)?;
    place.tier.remove(&name).map_err(CopyError::Target)?;
    fault::point(point);
    Ok(())
}

fn version(number: u64, table: Option<&[SegmentEntry]>, ids: &mut SegmentIds) -> Version {
    Version { number, segments: ids.of(table.unwrap_or_default()), wanted_below: false }
}
