//! Images of a tier that have the number of an image of the first tier and are not that image: the job goes on from
//! this tier on another host too, and both hosts give the same numbers.
//!
//! Used by the cascade's threads and by `fetch`. Which image a manifest is, its header tells. Invariants: an image that
//! was copied from here is never asked for again, one that was found there once; what cannot be looked at is an error,
//! neither the same nor another.

use super::inventory::{Inventory, Stamp, damaged};
use crate::Job;
use crate::catalog;
use crate::format::manifest::{Identity, MAX_LEN, Manifest, Record};
use crate::format::{FormatError, HEADER_LEN};
use crate::names;
use crate::tier::{TierError, read_whole};
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The host that an image was made on, by its record.
pub type HostOf = fn(&Record) -> Option<String>;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherImage {
    /// Its number, and that of an image of the first tier.
    pub image: u64,
    /// CLOCK_REALTIME of its commit, nanoseconds; 0: not known.
    pub created_ns: u64,
    /// The host that it was made on, as far as it says that.
    pub host: Option<String>,
    /// Why it cannot be told which image it is, if so: its manifest is damaged.
    pub damage: Option<String>,
}

impl fmt::Display for OtherImage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.damage, &self.host) {
            (Some(damage), _) => write!(out, "image {} there is damaged: {damage}", self.image),
            (None, Some(host)) => {
                write!(out, "image {} there is another one: made by another run on host {host}", self.image)
            }
            (None, None) => write!(out, "image {} there is another one: made by another run", self.image),
        }
    }
}

impl OtherImage {
    /// What can be done about it.
    pub fn remedy(&self) -> &'static str {
        match self.damage {
            Some(_) => "`holdfast verify --all-tiers --repair` puts it back",
            None => "restart one of the two with --name, or give it another tier",
        }
    }
}

/// What the manifests of one tier were found to be.
#[derive(Default)]
pub(crate) struct Identities {
    /// None: the first tier's own. The stamp is not known of what was just written.
    known: BTreeMap<u64, (Option<Stamp>, Option<OtherImage>)>,
}

impl Identities {
    /// This version was copied there by us.
    pub(crate) fn is_ours(&mut self, number: u64) {
        self.known.insert(number, (None, None));
    }

    /// The versions there that are others than those of these numbers here. What another host has removed meanwhile is
    /// taken out of what is there.
    ///
    /// # Errors
    /// Of the tier: then what was found out so far is known.
    pub(crate) fn others(
        &mut self,
        to: &TierFolder,
        there: &mut Inventory,
        ours: &dyn Fn(u64) -> Option<Identity>,
        host_of: HostOf,
    ) -> Result<BTreeMap<u64, OtherImage>, TierError> {
        self.known.retain(|number, _| there.versions.contains(number));
        let mut others = BTreeMap::new();
        for number in there.versions.clone() {
            let Some(own) = ours(number) else { continue };
            let stamp = there.stamps.get(&number).copied();
            let other = match self.known.get_mut(&number) {
                Some((known, other)) if known.is_none() || stamp.is_none() || *known == stamp => {
                    *known = known.or(stamp);
                    other.clone()
                }
                _ => match look(to, number, own, host_of) {
                    Err(TierError::NotFound { .. }) => {
                        there.versions.remove(&number);
                        continue;
                    }
                    looked => {
                        let other = looked?;
                        self.known.insert(number, (stamp, other.clone()));
                        other
                    }
                },
            };
            others.extend(other.map(|other| (number, other)));
        }
        Ok(others)
    }
}

/// Those among these versions there that are others than the first tier's of these numbers.
///
/// # Errors
/// Of one of the two.
pub fn others(
    job: &Job,
    there: &TierFolder,
    numbers: impl IntoIterator<Item = u64>,
    host_of: HostOf,
) -> Result<BTreeMap<u64, OtherImage>, TierError> {
    let mut others = BTreeMap::new();
    for number in numbers {
        let Some(own) = catalog::identity(job.folder(), Epoch(number))? else { continue };
        match look(there, number, own, host_of) {
            Err(TierError::NotFound { .. }) => {}
            looked => others.extend(looked?.map(|other| (number, other))),
        }
    }
    Ok(others)
}

/// Whether a version there is this one; else what it is.
///
/// # Errors
/// Of the tier; [`TierError::NotFound`]: it is not there.
pub(crate) fn look(
    to: &TierFolder,
    number: u64,
    own: Identity,
    host_of: HostOf,
) -> Result<Option<OtherImage>, TierError> {
    let file = names::manifest_name(Epoch(number));
    let object = to.object(&file);
    let is_damaged = |error: &TierError| matches!(error, TierError::Damaged { .. } | TierError::Short { .. });
    let other = |damage: Option<String>| OtherImage { image: number, damage, ..OtherImage::default() };
    let blob = to.open(&file)?;
    let mut header = [0; HEADER_LEN];
    match blob.read_at(0, &mut header) {
        Err(error) if is_damaged(&error) => return Ok(Some(other(Some(error.to_string())))),
        read => read?,
    }
    match Identity::of(&header) {
        Ok(found) if found == own => return Ok(None),
        Err(error @ FormatError::Bad { .. }) => {
            return Ok(Some(other(Some(damaged(&object, error).to_string()))));
        }
        // A newer Holdfast has made it.
        Ok(_) | Err(FormatError::Version { .. }) => {}
    }
    let read = || {
        let bytes = read_whole(&*blob, MAX_LEN, || object.clone())?;
        let bad = |error| damaged(&object, error);
        let manifest = Manifest::open(&bytes).map_err(bad)?;
        let created_ns = manifest.figures().map_err(bad)?.created_ns;
        Ok(OtherImage { created_ns, host: host_of(&manifest.record().map_err(bad)?), ..other(None) })
    };
    match read() {
        // It is not ours, whatever is wrong with it.
        Err(error) if is_damaged(&error) => Ok(Some(other(None))),
        read => read.map(Some),
    }
}
