//! What a place has of a job: versions with the segments that they name, segments, recipes; and what of that is not
//! needed.
//!
//! Made anew for each decision that removes something, with the job's lock held; what is known of a version is kept,
//! for versions never change. Called by [`crate::Job`] for the first tier, whose listings and cascade ask that, and by
//! [`crate::hygiene`] for any; rules of lower tiers have [`Needed`] alone. Invariants: a place that cannot be listed
//! is an error, never an empty one; a manifest that is damaged ([`Table::Damaged`]) is not one that cannot be looked at
//! ([`Table::Unseen`]): that may be as good as any; a segment counts as garbage only if no version can name it: one
//! whose table is not known may name all of its own and earlier epochs; and if no set of a gang's redundancy has it
//! ([`crate::redundancy`]): other members need it then.

use crate::format::manifest::{Identity, SegmentEntry};
use crate::image_info::{ImageInfo, why_missing};
use crate::names::{self, FileName, SetBlob};
use crate::redundancy;
use crate::stack::inventory::{damaged, open_manifest};
use crate::tier::{Entry, TierError};
use crate::tier_folder::TierFolder;
use crate::unpacked::PlainLengths;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Name of a segment: epoch and number.
pub(crate) type SegmentKey = (u64, u32);

/// What a manifest says.
#[derive(Debug)]
pub(crate) enum Table {
    Known {
        /// The segments that it names.
        segments: Vec<SegmentEntry>,
        /// The image, if all segments are there.
        info: ImageInfo,
        /// Which one it is.
        identity: Identity,
    },
    /// It is damaged, or that of another version.
    Damaged(TierError),
    /// It is there and cannot be read now.
    Unseen(TierError),
}

/// A version that is there: its manifest is.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) manifest: Entry,
    pub(crate) table: Table,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    pub(crate) versions: BTreeMap<u64, Version>,
    pub(crate) segments: BTreeMap<SegmentKey, Entry>,
    /// `job-N`.
    pub(crate) recipes: BTreeMap<u64, Entry>,
    /// `end-N`.
    pub(crate) ends: BTreeMap<u64, Entry>,
    /// `group-N`, and the segments that others need of it; none: it is damaged, or cannot be looked at now.
    groups: BTreeMap<u64, (Entry, Option<Vec<SegmentKey>>)>,
}

impl Catalog {
    /// Lists a place, and reads all manifests.
    ///
    /// # Errors
    /// The place cannot be listed.
    pub(crate) fn of(folder: &TierFolder) -> Result<Catalog, TierError> {
        let mut catalog = Catalog::default();
        catalog.renew(folder)?;
        Ok(catalog)
    }

    /// Knows of the same place what `other` knows of versions, to be renewed.
    pub(crate) fn like(other: &Catalog) -> Catalog {
        let known = |(&number, version): (&u64, &Version)| {
            let Table::Known { segments, info, identity } = &version.table else { return None };
            let table = Table::Known { segments: segments.clone(), info: info.clone(), identity: *identity };
            Some((number, Version { manifest: version.manifest.clone(), table }))
        };
        Catalog { versions: other.versions.iter().filter_map(known).collect(), ..Catalog::default() }
    }

    /// Lists the same place again. Manifests that are as they were are not read again.
    ///
    /// # Errors
    /// As [`Catalog::of`]: then it is as it was.
    pub(crate) fn renew(&mut self, folder: &TierFolder) -> Result<(), TierError> {
        let mut catalog = Catalog::default();
        for entry in folder.tier().list(folder.folder())?.blobs {
            match names::parse_name(entry.name.file()) {
                Some(FileName::Manifest(epoch)) => {
                    let is_same = |version: &Version| {
                        version.manifest == entry && matches!(version.table, Table::Known { .. })
                    };
                    let version = match self.versions.remove(&epoch.0).filter(is_same) {
                        Some(version) => Some(version),
                        None => read(folder, epoch).map(|table| Version { manifest: entry, table }),
                    };
                    catalog.versions.extend(version.map(|version| (epoch.0, version)));
                }
                Some(FileName::Segment(epoch, number)) => {
                    catalog.segments.insert((epoch.0, number), entry);
                }
                None => {
                    let file = entry.name.file();
                    if let Some((SetBlob::Group, number)) = names::of_set(file) {
                        let known = self.groups.remove(&number);
                        let known = known.filter(|(known, named)| *known == entry && named.is_some());
                        let named = match known {
                            Some((_, named)) => named,
                            None => match redundancy::read_group(folder, number) {
                                // Removed meanwhile.
                                Err(TierError::NotFound { .. }) => continue,
                                // It may name anything up to it, as a damaged one.
                                Err(_) | Ok(Err(_)) => None,
                                Ok(Ok(file)) => Some(redundancy::covered(&file).into_iter().collect()),
                            },
                        };
                        catalog.groups.insert(number, (entry, named));
                        continue;
                    }
                    match (names::recipe_of(file), names::end_of(file)) {
                        (Some(number), _) => drop(catalog.recipes.insert(number, entry)),
                        (None, Some(number)) => drop(catalog.ends.insert(number, entry)),
                        (None, None) => {}
                    }
                }
            }
        }
        *self = catalog;
        Ok(())
    }

    /// The segments of a version, if that is known.
    pub(crate) fn table(&self, number: u64) -> Option<&[SegmentEntry]> {
        match &self.versions.get(&number)?.table {
            Table::Known { segments, .. } => Some(segments),
            Table::Damaged(_) | Table::Unseen(_) => None,
        }
    }

    /// Which image a version is, if that is known.
    pub(crate) fn identity(&self, number: u64) -> Option<Identity> {
        match &self.versions.get(&number)?.table {
            Table::Known { identity, .. } => Some(*identity),
            Table::Damaged(_) | Table::Unseen(_) => None,
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

    /// The versions as images, ascending, and what is wrong with those whose manifest or segments cannot be used.
    pub(crate) fn images(&self, folder: &TierFolder) -> Vec<ImageInfo> {
        let mut lengths = PlainLengths::default();
        let image = |(&number, version): (&u64, &Version)| match &version.table {
            Table::Known { segments, info, .. } => {
                let broken = segments.iter().find_map(|entry| {
                    let found = self.segments.get(&entry.key());
                    why_missing(folder, entry, |len| match found {
                        Some(found) => lengths.of(&**folder.tier(), found, len),
                        None => Err(TierError::NotFound { object: String::new() }),
                    })
                });
                ImageInfo { complete: broken.is_none(), broken, ..info.clone() }
            }
            Table::Damaged(error) | Table::Unseen(error) => {
                let own = self.segments.iter().filter(|((epoch, _), _)| *epoch == number);
                let bytes = own.fold(version.manifest.len, |sum, (_, entry)| sum.saturating_add(entry.len));
                ImageInfo::broken(Epoch(number), &version.manifest, bytes, error.again().into())
            }
        };
        self.versions.iter().map(image).collect()
    }

    /// Why a version cannot be looked at, if there is such a one.
    pub(crate) fn unseen(&self) -> Option<&TierError> {
        self.versions.values().find_map(|version| match &version.table {
            Table::Unseen(error) => Some(error),
            Table::Known { .. } | Table::Damaged(_) => None,
        })
    }

    /// The segments that no version can name.
    pub(crate) fn garbage(&self) -> impl Iterator<Item = (SegmentKey, &Entry)> {
        let mut needed = Needed::by(self.versions.keys().map(|number| (*number, self.table(*number))));
        self.add_sets(&mut needed);
        self.segments.iter().map(|(key, entry)| (*key, entry)).filter(move |(key, _)| !needed.may_be(*key))
    }

    /// Which segments sets need.
    pub(crate) fn needed_by_sets(&self) -> Needed {
        let mut needed = Needed::default();
        self.add_sets(&mut needed);
        needed
    }

    fn add_sets(&self, needed: &mut Needed) {
        for (number, (_, named)) in &self.groups {
            match named {
                Some(named) => needed.named.extend(named),
                None => needed.reach = needed.reach.max(*number),
            }
        }
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

    /// Those that are `named`, and all that a version up to `reach` may name.
    pub(crate) fn of(named: BTreeSet<SegmentKey>, reach: u64) -> Needed {
        Needed { named, reach }
    }

    /// Whether a segment must stay.
    pub(crate) fn may_be(&self, key: SegmentKey) -> bool {
        key.0 <= self.reach || self.named.contains(&key)
    }
}

/// Which image a version is; none: it is not there, or damaged.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn identity(folder: &TierFolder, epoch: Epoch) -> Result<Option<Identity>, TierError> {
    match read(folder, epoch) {
        Some(Table::Known { identity, .. }) => Ok(Some(identity)),
        Some(Table::Unseen(error)) => Err(error),
        Some(Table::Damaged(_)) | None => Ok(None),
    }
}

/// What the manifest of a version says. `None`: it is not there, or was removed meanwhile.
pub(crate) fn read(folder: &TierFolder, epoch: Epoch) -> Option<Table> {
    let read = || {
        let bytes = folder.manifest(epoch)?;
        let object = folder.object(&names::manifest_name(epoch));
        let manifest = open_manifest(&object, epoch, &bytes)?;
        let segments = manifest.segments().map_err(|error| damaged(&object, error))?;
        let figures = manifest.figures().map_err(|error| damaged(&object, error))?;
        let info = ImageInfo::new(epoch, &figures, bytes.len() as u64, &segments);
        let identity = Identity::of(&bytes).map_err(|error| damaged(&object, error))?;
        Ok::<_, TierError>(Table::Known { segments, info, identity })
    };
    match read() {
        Ok(known) => Some(known),
        Err(TierError::NotFound { .. }) => None,
        Err(error @ (TierError::Damaged { .. } | TierError::Short { .. })) => Some(Table::Damaged(error)),
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
        let catalog = Catalog::of(&place(model.clone())).unwrap();
        assert_eq!(garbage(&catalog), [(1, 0), (3, 0)]);
        assert_eq!(catalog.recipes.keys().collect::<Vec<_>>(), [&3]);
        publish(&model, &["manifest-000002"]);
        let catalog = Catalog::of(&place(model)).unwrap();
        assert!(matches!(catalog.versions[&2].table, Table::Damaged(_)) && catalog.unseen().is_none());
        assert_eq!(garbage(&catalog), [(3, 0)]);
        assert_eq!((catalog.readable().count(), catalog.unreadable().collect::<Vec<_>>()), (0, vec![2]));
    }

    #[test]
    fn what_cannot_be_looked_at_is_neither_damaged_nor_absent() {
        let model = Model::new("model");
        publish(&model, &["segment-000001-000", "manifest-000001"]);
        let denied = |object| TierError::Denied { object, why: "not now".into() };
        let faults = Faults::once(1, Fault::Fail(denied));
        let catalog = Catalog::of(&place(Faulty::new(Box::new(model.clone()), faults))).unwrap();
        assert!(matches!(catalog.versions[&1].table, Table::Unseen(TierError::Denied { .. })));
        assert!(catalog.unseen().is_some() && garbage(&catalog).is_empty());
        // A set that cannot be looked at may name anything: nothing goes, and the place can be used.
        publish(&model, &["group-000001"]);
        model.remove(&BlobName::new("manifest-000001").unwrap()).unwrap();
        let faults = Faults::once(1, Fault::Fail(denied));
        let mut catalog = Catalog::of(&place(Faulty::new(Box::new(model.clone()), faults))).unwrap();
        assert!(garbage(&catalog).is_empty());
        catalog.renew(&place(model.clone())).unwrap();
        assert!(garbage(&catalog).is_empty(), "it is damaged");
        let faults = Faults::once(0, Fault::Fail(denied));
        assert!(Catalog::of(&place(Faulty::new(Box::new(model), faults))).is_err(), "no empty place");
    }
}
