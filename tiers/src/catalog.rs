//! What a place has of a job: versions with the segments that they name, segments, recipes; and what of that is not
//! needed.
//!
//! Made anew for each decision that removes something, with the job's lock held. Called by [`crate::Job`] for the first
//! tier and by [`crate::hygiene`] for any; the cascade has [`Needed`] alone. Invariants: a place that cannot be listed
//! is an error, never an empty one; a manifest that is damaged ([`Table::Damaged`]) is not one that cannot be looked at
//! ([`Table::Unseen`]): that may be as good as any; a segment counts as garbage only if no version can name it: one
//! whose table is not known may name all of its own and earlier epochs.

use crate::format::manifest::SegmentEntry;
use crate::names::{self, FileName};
use crate::tier::{Entry, TierError};
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Name of a segment: epoch and number.
pub(crate) type SegmentKey = (u64, u32);

/// The segments that a version names.
pub(crate) enum Table {
    Known(Vec<SegmentEntry>),
    /// Its manifest is damaged, or that of another version.
    Damaged,
    /// Its manifest is there and cannot be read now.
    Unseen(TierError),
}

/// A version that is there: its manifest is.
pub(crate) struct Version {
    pub(crate) manifest: Entry,
    pub(crate) table: Table,
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) versions: BTreeMap<u64, Version>,
    pub(crate) segments: BTreeMap<SegmentKey, Entry>,
    /// `job-N`.
    pub(crate) recipes: BTreeMap<u64, Entry>,
}

impl Catalog {
    /// Lists a place, and reads all manifests. `known`: segment tables that need not be read again: versions never
    /// change.
    ///
    /// # Errors
    /// The place cannot be listed.
    pub(crate) fn of(folder: &TierFolder, known: Option<&Catalog>) -> Result<Catalog, TierError> {
        let mut catalog = Catalog::default();
        for entry in folder.tier().list(folder.folder())?.blobs {
            match names::parse_name(entry.name.file()) {
                Some(FileName::Manifest(epoch)) => {
                    let table = known.and_then(|known| known.table(epoch.0));
                    let table =
                        table.map_or_else(|| read(folder, epoch), |table| Some(Table::Known(table.into())));
                    let version = table.map(|table| Version { manifest: entry, table });
                    catalog.versions.extend(version.map(|version| (epoch.0, version)));
                }
                Some(FileName::Segment(epoch, number)) => {
                    catalog.segments.insert((epoch.0, number), entry);
                }
                None => {
                    let number = names::recipe_of(entry.name.file());
                    catalog.recipes.extend(number.map(|number| (number, entry)));
                }
            }
        }
        Ok(catalog)
    }

    /// The segments of a version, if that is known.
    pub(crate) fn table(&self, number: u64) -> Option<&[SegmentEntry]> {
        match &self.versions.get(&number)?.table {
            Table::Known(table) => Some(table),
            Table::Damaged | Table::Unseen(_) => None,
        }
    }

    /// Numbers of the versions whose segments are known.
    pub(crate) fn readable(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied().filter(|number| self.table(*number).is_some())
    }

    /// Numbers of the others.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = u64> {
        self.versions.keys().copied().filter(|number| self.table(*number).is_none())
    }

    /// Why a version cannot be looked at, if there is such a one.
    pub(crate) fn unseen(&self) -> Option<&TierError> {
        self.versions.values().find_map(|version| match &version.table {
            Table::Unseen(error) => Some(error),
            Table::Known(_) | Table::Damaged => None,
        })
    }

    /// The segments that no version can name.
    pub(crate) fn garbage(&self) -> impl Iterator<Item = (SegmentKey, &Entry)> {
        let needed = Needed::by(self.versions.keys().map(|number| (*number, self.table(*number))));
        self.segments.iter().map(|(key, entry)| (*key, entry)).filter(move |(key, _)| !needed.may_be(*key))
    }
}

/// Which segments versions may need: the one rule of what is no garbage.
#[derive(Default)]
pub(crate) struct Needed {
    named: BTreeSet<SegmentKey>,
    /// The greatest number of a version whose table is not known.
    reach: u64,
}

impl Needed {
    /// By these versions, and their tables as far as they are known.
    pub(crate) fn by<'a>(versions: impl IntoIterator<Item = (u64, Option<&'a [SegmentEntry]>)>) -> Needed {
        let mut needed = Needed::default();
        for (number, table) in versions {
            match table {
                Some(table) => needed.named.extend(table.iter().map(SegmentEntry::key)),
                None => needed.reach = needed.reach.max(number),
            }
        }
        needed
    }

    /// Whether a segment must stay.
    pub(crate) fn may_be(&self, key: SegmentKey) -> bool {
        key.0 <= self.reach || self.named.contains(&key)
    }
}

/// `None`: it was removed meanwhile.
fn read(folder: &TierFolder, epoch: Epoch) -> Option<Table> {
    match folder.segments(epoch) {
        Ok(table) => Some(Table::Known(table)),
        Err(TierError::NotFound { .. }) => None,
        Err(TierError::Damaged { .. } | TierError::Short { .. }) => Some(Table::Damaged),
        Err(error) => Some(Table::Unseen(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{Fault, Faults, Faulty, Model};
    use crate::tier::{BlobName, Tier};
    use std::sync::Arc;

    fn place(tier: impl Tier + 'static) -> TierFolder {
        TierFolder::of(Arc::new(tier), "").unwrap()
    }

    fn publish(tier: &Model, names: &[&str]) {
        for name in names {
            tier.publish(&BlobName::new(name).unwrap(), b"no manifest").unwrap();
        }
    }

    fn garbage(catalog: &Catalog) -> Vec<SegmentKey> {
        catalog.garbage().map(|(key, _)| key).collect()
    }

    #[test]
    fn what_a_damaged_version_may_name_is_no_garbage() {
        let model = Model::new("model");
        publish(&model, &["segment-000001-000", "segment-000003-000", "job-000003", "other"]);
        let catalog = Catalog::of(&place(model.clone()), None).unwrap();
        assert_eq!(garbage(&catalog), [(1, 0), (3, 0)]);
        assert_eq!(catalog.recipes.keys().collect::<Vec<_>>(), [&3]);
        publish(&model, &["manifest-000002"]);
        let catalog = Catalog::of(&place(model), None).unwrap();
        assert!(matches!(catalog.versions[&2].table, Table::Damaged) && catalog.unseen().is_none());
        assert_eq!(garbage(&catalog), [(3, 0)]);
        assert_eq!((catalog.readable().count(), catalog.unreadable().collect::<Vec<_>>()), (0, vec![2]));
    }

    #[test]
    fn what_cannot_be_looked_at_is_neither_damaged_nor_absent() {
        let model = Model::new("model");
        publish(&model, &["segment-000001-000", "manifest-000001"]);
        let denied = |object| TierError::Denied { object, why: "not now".into() };
        let faults = Faults::once(1, Fault::Fail(denied));
        let catalog = Catalog::of(&place(Faulty::new(Box::new(model.clone()), faults)), None).unwrap();
        assert!(matches!(catalog.versions[&1].table, Table::Unseen(TierError::Denied { .. })));
        assert!(catalog.unseen().is_some() && garbage(&catalog).is_empty());
        let faults = Faults::once(0, Fault::Fail(denied));
        assert!(Catalog::of(&place(Faulty::new(Box::new(model), faults)), None).is_err(), "no empty place");
    }
}
