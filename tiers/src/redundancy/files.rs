//! A set's files in a job's folder, beside those of its images.
//!
//! ```text
//! head-000004    job.json and manifest of image 4: the first part of its stream
//! group-000004   what the set consists of: from now on no file of its stream goes
//! parity-000004  parity of the other members' streams: with it the set is whole
//! ```
//! Called by agents and rebuilds, with the job's lock where something changes. Invariants: a file is there as a whole
//! or not at all; a stream that was opened is as long as it is said to be. Fails by: an error that names the file.

use super::folder::{Parity, SetProblem, SetState, clean_loose, lacks_of, read_group, sets_in};
use super::group_file::{GroupFile, SetFile, StripeSums, encode_sums};
use super::head;
use crate::format::manifest::SegmentEntry;
use crate::names;
use crate::stack::inventory::open_manifest;
use crate::tier::{Blob, BlobWriter, TierError};
use crate::{Job, JobLock, StoreError};
use holdfast_image::Epoch;
use std::collections::BTreeMap;

/// The sets that a job has, ascending.
///
/// # Errors
/// The folder cannot be listed, or a group file cannot be looked at.
pub fn sets(job: &Job) -> Result<Vec<SetState>, StoreError> {
    Ok(sets_in(job.folder())?)
}

/// Why a set is not all there, as far as lengths tell.
///
/// # Errors
/// See [`SetProblem`].
pub fn lacks(job: &Job, set: &SetState) -> Result<(), SetProblem> {
    lacks_of(job.folder(), set)
}

/// A segment by epoch and number, and as a file of a stream.
pub type Segment = ((u64, u32), SetFile);

/// The segments that each image of the job needs, as files of a stream, by its number; none: its manifest cannot be
/// read.
///
/// # Errors
/// The folder cannot be listed.
pub fn tables(job: &Job) -> Result<BTreeMap<u64, Option<Vec<Segment>>>, StoreError> {
    let catalog = job.catalog()?;
    let file = |entry: &SegmentEntry| {
        let name = names::segment_name(entry.epoch, entry.number);
        (entry.key(), SetFile { name, len: entry.len })
    };
    let table = |number: &u64| {
        let table = catalog.table(*number).map(|table| table.iter().map(file).collect());
        (*number, table)
    };
    Ok(catalog.versions.keys().map(table).collect())
}

/// Heads and parity that are of no set go, but for those of this number. Returns the bytes.
///
/// # Errors
/// Of the tier.
pub fn clean_heads(job: &Job, lock: &JobLock, but: Option<u64>) -> Result<u64, StoreError> {
    job.check_lock(lock)?;
    Ok(clean_loose(job.folder(), but)?)
}

/// Writes the head of an image, if it is not there.
///
/// # Errors
/// `job.json` cannot be read, or the head cannot be written.
pub fn put_head(job: &Job, lock: &JobLock, epoch: Epoch, manifest: &[u8]) -> Result<SetFile, StoreError> {
    job.check_lock(lock)?;
    let name = names::head_name(epoch.0);
    match job.folder().open(&name) {
        Ok(blob) => return Ok(SetFile { name, len: blob.len() }),
        Err(TierError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let recipe = format!("{:#}\n", job.recipe()?).into_bytes();
    let mut writer = job.folder().create(&name)?;
    writer.append(&head::encode(&recipe, manifest))?;
    let len = writer.finish()?;
    Ok(SetFile { name, len })
}

/// The manifest that a head has.
///
/// # Errors
/// It is not there, or damaged.
pub fn head_manifest(job: &Job, number: u64) -> Result<Vec<u8>, StoreError> {
    Ok(read_head(job, number)?.manifest)
}

/// Reads the head of an image.
fn read_head(job: &Job, number: u64) -> Result<head::Head, StoreError> {
    let path = job.folder().address(&names::head_name(number));
    head::read(job.folder(), number)?
        .ok_or_else(|| StoreError::corrupt(&path, 0, "this is no head of an image"))
}

/// A member's stream, opened.
pub struct MemberStream {
    /// With the offsets at which they begin.
    blobs: Vec<(u64, Box<dyn Blob>)>,
    len: u64,
}

impl MemberStream {
    /// Opens all files of it.
    ///
    /// # Errors
    /// One is not there, or not as long as it has to be.
    pub fn open(job: &Job, files: &[SetFile]) -> Result<MemberStream, StoreError> {
        let (mut blobs, mut len) = (Vec::new(), 0_u64);
        for file in files {
            let blob = job.folder().open(&file.name)?;
            if blob.len() != file.len {
                return Err(
                    TierError::Short { object: job.folder().object(&file.name), len: blob.len() }.into()
                );
            }
            blobs.push((len, blob));
            len = len.saturating_add(file.len);
        }
        Ok(MemberStream { blobs, len })
    }

    /// Its bytes from `offset` on; zeros beyond its end.
    ///
    /// # Errors
    /// Of the tier.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        buffer.fill(0);
        let end = offset.saturating_add(buffer.len() as u64).min(self.len);
        for (begin, blob) in &self.blobs {
            let (from, to) = (offset.max(*begin), end.min(begin.saturating_add(blob.len())));
            if from < to {
                let at = |place: u64| usize::try_from(place - offset).unwrap_or(usize::MAX);
                blob.read_at(from - begin, &mut buffer[at(from)..at(to)])?;
            }
        }
        Ok(())
    }
}

/// What a job has under the number of a set.
pub enum Number {
    /// Nothing.
    Free,
    /// This set.
    Own,
    /// A damaged group file.
    Damaged,
}

/// Whether a set may be put there.
///
/// # Errors
/// There is another one of its number, which stays; it cannot be looked at.
pub fn number_of(job: &Job, file: &GroupFile) -> Result<Number, StoreError> {
    let number = file.own().map_or(0, |own| own.epoch);
    match read_group(job.folder(), number) {
        Err(TierError::NotFound { .. }) => Ok(Number::Free),
        Ok(Ok(there)) if there.set == file.set => Ok(Number::Own),
        Ok(Ok(_)) => Err(StoreError::Foreign { path: job.folder().address(&names::group_name(number)) }),
        Ok(Err(_)) => Ok(Number::Damaged),
        Err(error) => Err(error.into()),
    }
}

/// Begins a set: no file of its stream goes any more. It takes the place of a damaged group file.
///
/// # Errors
/// As [`number_of`]; nothing can be written.
pub fn put_group(job: &Job, lock: &JobLock, file: &GroupFile) -> Result<(), StoreError> {
    job.check_lock(lock)?;
    let name = names::group_name(file.own().map_or(0, |own| own.epoch));
    match number_of(job, file)? {
        Number::Own => return Ok(()),
        Number::Damaged => job.folder().remove(&name)?,
        Number::Free => {}
    }
    job.folder().publish(&name, &file.encode())
}

/// Parity that is being written.
pub struct ParityWriter(Box<dyn BlobWriter>);

/// Begins the parity of a set, in the place of what is there of it.
///
/// # Errors
/// Nothing can be written.
pub fn begin_parity(job: &Job, lock: &JobLock, number: u64) -> Result<ParityWriter, StoreError> {
    job.check_lock(lock)?;
    job.folder().remove(&names::parity_name(number))?;
    Ok(ParityWriter(job.folder().create(&names::parity_name(number))?))
}

impl ParityWriter {
    /// Appends bytes.
    ///
    /// # Errors
    /// Of the tier.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        Ok(self.0.append(bytes)?)
    }

    /// All is there: the set is whole.
    ///
    /// # Errors
    /// Of the tier: it is not.
    pub fn finish(mut self, sums: &[StripeSums]) -> Result<(), StoreError> {
        self.0.append(&encode_sums(sums))?;
        self.0.finish()?;
        Ok(())
    }
}

/// The parity of a set.
///
/// # Errors
/// It is not there, or its end is damaged.
pub fn open_parity(job: &Job, file: &GroupFile) -> Result<Parity, StoreError> {
    Ok(Parity::open_in(job.folder(), file)?)
}

/// A set goes: it is none any more, then its bytes go.
///
/// # Errors
/// Of the tier; what is left is removed by the next `clean`.
pub fn remove_set(job: &Job, lock: &JobLock, number: u64) -> Result<(), StoreError> {
    job.check_lock(lock)?;
    for name in [names::group_name(number), names::parity_name(number), names::head_name(number)] {
        job.folder().remove(&name)?;
    }
    Ok(())
}

/// Puts an image back of its head, when its segments are there; `job.json` too, if there is none. One that is there
/// and is another one stays.
///
/// # Errors
/// The head is damaged, another image has the number, or nothing can be written.
pub fn put_image(job: &Job, lock: &JobLock, epoch: Epoch) -> Result<(), StoreError> {
    job.check_lock(lock)?;
    let head = read_head(job, epoch.0)?;
    let object = job.folder().object(&names::head_name(epoch.0));
    open_manifest(&object, epoch, &head.manifest)?;
    if !job.has_recipe()? {
        job.write_recipe(&head.recipe)?;
    }
    let name = names::manifest_name(epoch);
    match job.folder().manifest(epoch) {
        Ok(there) if there == head.manifest => return Ok(()),
        Ok(there) if open_manifest(&object, epoch, &there).is_ok() => {
            return Err(StoreError::Foreign { path: job.folder().address(&name) });
        }
        // It is damaged.
        Ok(_) | Err(TierError::Damaged { .. } | TierError::Short { .. }) => job.folder().remove(&name)?,
        Err(TierError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    job.folder().publish(&name, &head.manifest)
}
