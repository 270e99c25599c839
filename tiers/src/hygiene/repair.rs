//! What is damaged or missing on one tier is put back from the others.
//!
//! Called by `holdfast verify --repair` with the job's lock held. Each blob is made anew beside the damaged one
//! (`mended-NAME`), of the blocks and frames that any tier has intact, and read back; then the damaged one goes, the
//! new one gets the name by the tier's own rules, and what was beside it goes. A crash in between leaves the whole new
//! one under one name at least: [`finish_repairs`] does the rest, at the next start of the job's agent or the next
//! repair.
//! Invariants: nothing intact is ever removed before another intact copy is on the same tier; other tiers are only
//! read.

use super::segment::{self, Problem};
use super::verify::{AllWanted, Finding, Tables, Verified, Verify, Wanted, bad_recipe, decode, verify};
use crate::fault;
use crate::format::manifest::{MAX_LEN, Record, SegmentEntry};
use crate::format::segment::Frame;
use crate::names::{self, FileName};
use crate::tier::{Blob, TierError};
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Beginning of the names of what is put beside a damaged blob.
pub(crate) const MENDED: &str = "mended-";

/// What became of one damaged blob.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mended {
    /// Its path or address.
    pub object: String,
    /// Versions that needed it.
    pub versions: BTreeSet<u64>,
    /// Why it could not be put back; none: it was.
    pub lost: Option<String>,
}

/// Puts back what `found` says is damaged or missing at `target`, from `others` and from what is left of it.
/// `passed` is told of bytes that were written.
///
/// # Errors
/// The target cannot be written. A tier of `others` that cannot be asked counts as one that has nothing.
pub fn repair(
    target: &TierFolder,
    others: &[TierFolder],
    found: &Verified,
    record: &dyn Fn(&Record) -> Result<(), String>,
    passed: &dyn Fn(u64),
) -> Result<Vec<Mended>, TierError> {
    let mut repair =
        Repair { target, others, record, passed, wanted: AllWanted::default(), done: Vec::new() };
    repair.manifests(found)?;
    // Only now is it known what all versions need, those included whose manifest was damaged.
    for number in target.inventory()?.versions {
        let bytes = match target.manifest(Epoch(number)) {
            Ok(bytes) => bytes,
            // It is among what is lost.
            Err(error) => {
                segment::of_tier(error, 0)?;
                continue;
            }
        };
        if let Ok(tables) = decode(&bytes, Epoch(number), record) {
            repair.wanted.add(number, &tables);
        }
    }
    let mut files: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let note = |files: &mut BTreeMap<String, BTreeSet<u64>>, finding: &Finding| {
        if !finding.versions.is_empty() {
            files.entry(finding.file.clone()).or_default().extend(finding.versions.iter().copied());
        }
    };
    found.findings.iter().for_each(|finding| note(&mut files, finding));
    let newly: Vec<u64> =
        repair.done.iter().filter(|m| m.lost.is_none()).flat_map(|m| m.versions.clone()).collect();
    for number in newly {
        let options = Verify { epoch: Some(Epoch(number)), record, total: &|_| (), passed: &|_| () };
        verify(target, &options)?.findings.iter().for_each(|finding| note(&mut files, finding));
    }
    for (file, versions) in files {
        match names::parse_name(&file) {
            Some(FileName::Segment(epoch, number)) => repair.segment(&file, (epoch.0, number), versions)?,
            Some(FileName::Manifest(_)) => {}
            None => repair.recipe(&file, versions)?,
        }
    }
    Ok(repair.done)
}

struct Repair<'a> {
    target: &'a TierFolder,
    others: &'a [TierFolder],
    record: &'a dyn Fn(&Record) -> Result<(), String>,
    passed: &'a dyn Fn(u64),
    /// What the versions of the target need.
    wanted: AllWanted,
    done: Vec<Mended>,
}

impl Repair<'_> {
    fn ended(&mut self, file: &str, versions: BTreeSet<u64>, lost: Option<String>) {
        self.done.push(Mended { object: self.target.object(file), versions, lost });
    }

    fn manifests(&mut self, found: &Verified) -> Result<(), TierError> {
        for finding in &found.findings {
            let Some(FileName::Manifest(epoch)) = names::parse_name(&finding.file) else { continue };
            let lost = match self.good_manifest(epoch)? {
                Ok(bytes) => {
                    self.replace(&finding.file, &bytes)?;
                    None
                }
                Err(why) => Some(why),
            };
            self.ended(&finding.file, BTreeSet::from([epoch.0]), lost);
        }
        Ok(())
    }

    /// A manifest that another tier has intact, and that is of the same image as what the target has of it.
    fn good_manifest(&self, epoch: Epoch) -> Result<Result<Vec<u8>, String>, TierError> {
        let here = self.image_here(epoch)?;
        let mut why = "no tier has it intact".to_owned();
        for place in self.others {
            let Ok(bytes) = place.manifest(epoch) else { continue };
            let Ok(Tables { image_id, .. }) = decode(&bytes, epoch, self.record) else { continue };
            if here.is_none_or(|here| here == image_id) {
                return Ok(Ok(bytes));
            }
            why = format!("tier {} has image {epoch} of another run of the job", place.tier().info().name);
        }
        Ok(Err(why))
    }

    /// Of which image the segments are that the target has of this epoch.
    fn image_here(&self, epoch: Epoch) -> Result<Option<[u8; 16]>, TierError> {
        for &(of, number) in self.target.inventory()?.segments.keys().filter(|(of, _)| *of == epoch.0) {
            match self.target.open(&names::segment_name(Epoch(of), number)) {
                Ok(blob) => {
                    if let Ok(entry) = segment::own_entry(&*blob, epoch, number)? {
                        return Ok(Some(entry.image_id));
                    }
                }
                Err(error) => drop(segment::of_tier(error, 0)?),
            }
        }
        Ok(None)
    }

    fn recipe(&mut self, file: &str, versions: BTreeSet<u64>) -> Result<(), TierError> {
        let Some(number) = names::recipe_of(file) else { return Ok(()) };
        let good = self.others.iter().filter_map(|place| place.recipe(Epoch(number)).ok());
        let good = good.into_iter().find(|bytes| bad_recipe(bytes).is_none());
        let lost = match &good {
            Some(bytes) => self.replace(file, bytes).map(|()| None)?,
            None => Some("no tier has it intact".to_owned()),
        };
        self.ended(file, versions, lost);
        Ok(())
    }

    /// A small blob in the place of a damaged one.
    fn replace(&self, file: &str, bytes: &[u8]) -> Result<(), TierError> {
        let beside = format!("{MENDED}{file}");
        self.target.tier().remove(&self.target.blob(&beside)?)?;
        self.target.tier().publish(&self.target.blob(&beside)?, bytes)?;
        fault::point("repair-mended");
        self.target.tier().remove(&self.target.blob(file)?)?;
        fault::point("repair-removed");
        self.target.tier().publish(&self.target.blob(file)?, bytes)?;
        fault::point("repair-named");
        self.target.tier().remove(&self.target.blob(&beside)?)
    }

    fn segment(&mut self, file: &str, key: (u64, u32), versions: BTreeSet<u64>) -> Result<(), TierError> {
        let wanted = self.wanted.0.remove(&key).unwrap_or_default();
        let lost = match wanted.as_slice() {
            [wanted] => self.mend(file, wanted)?.map(|problem| {
                let Problem { offset, what, .. } = problem;
                format!("no tier has it intact: at byte {offset}: {what}")
            }),
            [] => Some("the manifest that names it is lost".to_owned()),
            _ => Some("manifests of several runs of the job name it".to_owned()),
        };
        self.ended(file, versions, lost);
        Ok(())
    }

    /// A segment of what all copies have intact. The problem: what none has.
    fn mend(&self, file: &str, wanted: &Wanted) -> Result<Option<Problem>, TierError> {
        let Wanted { entry, frames, .. } = wanted;
        let others = self.others.iter().filter_map(|place| place.open(file).ok());
        let copies: Vec<Box<dyn Blob>> = others.chain(self.target.open(file).ok()).collect();
        if copies.is_empty() {
            return Ok(Some(Problem::new(0, "it is missing")));
        }
        let beside = format!("{MENDED}{file}");
        self.target.tier().remove(&self.target.blob(&beside)?)?;
        if let Some(lost) = write(self.target, &beside, &copies, entry, frames, self.passed)? {
            return Ok(Some(lost));
        }
        fault::point("repair-mended");
        drop(copies);
        let mended = self.target.open(&beside)?;
        // What no version needs may be damaged as before.
        let wrong = segment::check(&*mended, entry, frames, &|_| ())?;
        let needed = |problem: &Problem| problem.frame.is_none_or(|frame| frames.contains(&frame));
        if let Some(wrong) = wrong.into_iter().find(needed) {
            self.target.tier().remove(&self.target.blob(&beside)?)?;
            return Ok(Some(wrong));
        }
        give_name(self.target, &beside, file, entry, frames)?;
        Ok(None)
    }
}

/// Writes a segment of the best of all copies under a name that is free.
fn write(
    place: &TierFolder,
    file: &str,
    copies: &[Box<dyn Blob>],
    entry: &SegmentEntry,
    frames: &[Frame],
    passed: &dyn Fn(u64),
) -> Result<Option<Problem>, TierError> {
    let copies: Vec<&dyn Blob> = copies.iter().map(|copy| &**copy).collect();
    let mut writer = place.tier().create(&place.blob(file)?, Some(entry.len))?;
    let lost = segment::compose(&copies, entry, frames, &mut *writer, passed)?;
    if lost.is_none() {
        writer.finish()?;
    }
    Ok(lost)
}

/// The intact segment `beside` takes the place of the damaged `file`.
fn give_name(
    place: &TierFolder,
    beside: &str,
    file: &str,
    entry: &SegmentEntry,
    frames: &[Frame],
) -> Result<(), TierError> {
    place.tier().remove(&place.blob(file)?)?;
    fault::point("repair-removed");
    let mended = place.open(beside)?;
    if let Some(Problem { offset, what, .. }) = write(place, file, &[mended], entry, frames, &|_| ())? {
        return Err(TierError::Damaged { object: place.object(beside), offset, what });
    }
    fault::point("repair-named");
    place.tier().remove(&place.blob(beside)?)
}

/// Ends the repairs that a crash has cut short: of what was put beside a blob and is whole, that gets its place, if it
/// is not whole there. The job's lock is held.
///
/// # Errors
/// Of the tier.
pub fn finish_repairs(place: &TierFolder) -> Result<(), TierError> {
    for blob in place.tier().list(place.folder())?.blobs {
        let beside = blob.name.file();
        let Some(file) = beside.strip_prefix(MENDED) else { continue };
        match names::parse_name(file) {
            Some(FileName::Segment(epoch, number)) => finish_segment(place, beside, file, epoch, number)?,
            Some(FileName::Manifest(_)) | None => finish_small(place, beside, file)?,
        }
    }
    Ok(())
}

fn finish_segment(
    place: &TierFolder,
    beside: &str,
    file: &str,
    epoch: Epoch,
    number: u32,
) -> Result<(), TierError> {
    let mended = place.open(beside)?;
    let is_whole = |blob: &dyn Blob, entry: &SegmentEntry| {
        Ok::<_, TierError>(segment::check(blob, entry, &[], &|_| ())?.is_empty())
    };
    if let Ok(entry) = segment::own_entry(&*mended, epoch, number)? {
        let is_better = match place.open(file) {
            // It was removed when the new one had been checked.
            Err(TierError::NotFound { .. }) => true,
            // It is packed, and cannot be unpacked.
            Err(TierError::Damaged { .. }) => is_whole(&*mended, &entry)?,
            there => !is_whole(&*there?, &entry)? && is_whole(&*mended, &entry)?,
        };
        if is_better {
            return give_name(place, beside, file, &entry, &[]);
        }
    }
    place.tier().remove(&place.blob(beside)?)
}

/// A manifest or `job-N`: one that is there may be the damaged one.
fn finish_small(place: &TierFolder, beside: &str, file: &str) -> Result<(), TierError> {
    let is_good = |file: &str, read_as: &str| {
        let bytes = place.whole(file, MAX_LEN)?;
        let good = match names::parse_name(read_as) {
            Some(FileName::Manifest(epoch)) => decode(&bytes, epoch, &|_| Ok(())).is_ok(),
            _ => names::recipe_of(read_as).is_some() && bad_recipe(&bytes).is_none(),
        };
        Ok::<_, TierError>(Some(bytes).filter(|_| good))
    };
    let there = match is_good(file, file) {
        Err(TierError::NotFound { .. }) => None,
        there => there?,
    };
    if let (None, Some(bytes)) = (there, is_good(beside, file)?) {
        place.tier().remove(&place.blob(file)?)?;
        place.tier().publish(&place.blob(file)?, &bytes)?;
    }
    place.tier().remove(&place.blob(beside)?)
}
