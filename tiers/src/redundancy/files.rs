//! A set's files in a job's folder, beside those of its images.
//!
//! ```text
//! head-000004    job.json and manifest of image 4: the first part of its stream
//! group-000004   what the set consists of: from now on no file of its stream goes
//! parity-000004  parity of the other members' streams: with it the set is whole
//! ```
//! Called by agents and rebuilds, with the job's lock where something changes. Invariants: a file is there as a whole
//! or not at all; a stream that was opened is as long as it is said to be. Fails by: an error that names the file.

use super::folder::{Parity, SetState, sets_in};
use super::group_file::{GroupFile, SetFile, StripeSums, encode_sums};
use crate::format::manifest::{MAX_LEN, SegmentEntry};
use crate::names;
use crate::stack::inventory::{damaged, open_manifest};
use crate::tier::{Blob, BlobWriter, TierError};
use crate::{Job, JobLock, StoreError};
use holdfast_image::Epoch;

/// Beginning of a head.
const HEAD: &[u8; 16] = b"holdfast head 1\n";
/// With the lengths of its two parts.
const HEAD_LEN: usize = HEAD.len() + 16;

/// The sets that a job has, ascending.
///
/// # Errors
/// The folder cannot be listed, or a group file cannot be looked at.
pub fn sets(job: &Job) -> Result<Vec<SetState>, StoreError> {
    Ok(sets_in(job.folder())?)
}

/// A segment by epoch and number, and as a file of a stream.
pub type Segment = ((u64, u32), SetFile);

/// The segments that an image needs, as files of a stream.
///
/// # Errors
/// Its manifest cannot be read.
pub fn segments_of(job: &Job, epoch: Epoch) -> Result<Vec<Segment>, StoreError> {
    let bytes = job.folder().manifest(epoch)?;
    let object = job.folder().object(&names::manifest_name(epoch));
    let manifest = open_manifest(&object, epoch, &bytes)?;
    let segments = manifest.segments().map_err(|error| damaged(&object, error))?;
    let file = |entry: &SegmentEntry| SetFile {
        name: names::segment_name(entry.epoch, entry.number),
        len: entry.len,
    };
    Ok(segments.iter().map(|entry| (entry.key(), file(entry))).collect())
}

/// `job.json` and the manifest of an image, as they are in a head.
struct Head {
    recipe: serde_json::Value,
    manifest: Vec<u8>,
}

/// Writes the head of an image, if it is not there.
///
/// # Errors
/// The image's manifest or `job.json` cannot be read, or the head cannot be written.
pub fn put_head(job: &Job, lock: &JobLock, epoch: Epoch) -> Result<SetFile, StoreError> {
    job.check_lock(lock)?;
    let name = names::head_name(epoch.0);
    match job.folder().open(&name) {
        Ok(blob) => return Ok(SetFile { name, len: blob.len() }),
        Err(TierError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let recipe = format!("{:#}\n", job.recipe()?).into_bytes();
    let manifest = job.folder().manifest(epoch)?;
    let len = |part: &[u8]| (part.len() as u64).to_le_bytes();
    let bytes = [&HEAD[..], &len(&recipe), &len(&manifest), &recipe, &manifest].concat();
    let mut writer = job.folder().create(&name)?;
    writer.append(&bytes)?;
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
fn read_head(job: &Job, number: u64) -> Result<Head, StoreError> {
    let name = names::head_name(number);
    let bytes = job.folder().whole(&name, MAX_LEN + crate::files::MAX_RECIPE_LEN + HEAD_LEN as u64)?;
    let head = || {
        let rest = bytes.strip_prefix(HEAD)?;
        let (lens, rest) = rest.split_at_checked(16)?;
        let len = |at: usize| usize::try_from(u64::from_le_bytes(lens[at..at + 8].try_into().ok()?)).ok();
        let (recipe, manifest) = rest.split_at_checked(len(0)?)?;
        (manifest.len() == len(8)?).then_some(())?;
        Some(Head { recipe: serde_json::from_slice(recipe).ok()?, manifest: manifest.to_vec() })
    };
    head().ok_or_else(|| StoreError::corrupt(&job.folder().address(&name), 0, "this is no head of an image"))
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

/// Begins a set: no file of its stream goes any more.
///
/// # Errors
/// There is one of this number; nothing can be written.
pub fn put_group(job: &Job, lock: &JobLock, file: &GroupFile) -> Result<(), StoreError> {
    job.check_lock(lock)?;
    let number = file.own().map_or(0, |own| own.epoch);
    job.folder().publish(&names::group_name(number), &file.encode())
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

/// Writes the files of a stream again that are not there, as its bytes come, in order.
pub struct StreamWriter<'a> {
    job: &'a Job,
    files: std::slice::Iter<'a, SetFile>,
    /// The file that is being written, and what it lacks; none: it is there.
    now: Option<(Option<Box<dyn BlobWriter>>, u64)>,
    /// What was written.
    names: Vec<String>,
    written: u64,
}

impl<'a> StreamWriter<'a> {
    /// Of these files.
    ///
    /// # Errors
    /// The lock is not the job's.
    pub fn new(job: &'a Job, lock: &JobLock, files: &'a [SetFile]) -> Result<StreamWriter<'a>, StoreError> {
        job.check_lock(lock)?;
        Ok(StreamWriter { job, files: files.iter(), now: None, names: Vec::new(), written: 0 })
    }

    /// The next bytes; those beyond the end of the stream are nothing.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        loop {
            if self.now.as_ref().is_none_or(|(_, left)| *left == 0) {
                if let Some((Some(writer), _)) = self.now.take() {
                    self.written += writer.finish()?;
                }
                let Some(file) = self.files.next() else { return Ok(()) };
                let writer = self.begin(file)?;
                if writer.is_some() {
                    self.names.push(file.name.clone());
                }
                self.now = Some((writer, file.len));
                continue;
            }
            let Some((writer, left)) = &mut self.now else { return Ok(()) };
            let len = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            if len == 0 {
                return Ok(());
            }
            if let Some(writer) = writer {
                writer.append(&bytes[..len])?;
            }
            *left -= len as u64;
            bytes = &bytes[len..];
        }
    }

    /// None: it is there.
    fn begin(&self, file: &SetFile) -> Result<Option<Box<dyn BlobWriter>>, StoreError> {
        match self.job.folder().open(&file.name) {
            Ok(blob) if blob.len() == file.len => return Ok(None),
            // It is damaged: no image can use it.
            Ok(_) | Err(TierError::Damaged { .. } | TierError::Short { .. }) => {
                self.job.folder().remove(&file.name)?
            }
            Err(TierError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Some(self.job.folder().create(&file.name)?))
    }

    /// What has come was not right: nothing of it stays.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn abandon(mut self) -> Result<(), StoreError> {
        self.now = None;
        self.names.iter().try_for_each(|name| self.job.folder().remove(name))
    }

    /// All bytes have come: how many were written.
    ///
    /// # Errors
    /// Some are missing, or the last file cannot be finished.
    pub fn finish(mut self) -> Result<u64, StoreError> {
        self.append(&[])?;
        if self.now.is_some() || self.files.next().is_some() {
            return Err(StoreError::misuse(self.job.dir(), "a part of a stream is missing"));
        }
        Ok(self.written)
    }
}

/// Puts an image back of its head, when its segments are there; `job.json` too, if there is none.
///
/// # Errors
/// The head is damaged, or nothing can be written.
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
        // It is not the gang's.
        Ok(_) => job.folder().remove(&name)?,
        Err(TierError::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    job.folder().publish(&name, &head.manifest)
}
