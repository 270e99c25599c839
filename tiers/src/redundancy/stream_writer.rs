//! Writes files of a stream again, as its bytes come: those that are missing, and those that are not as they were.
//!
//! Called by rebuilds, with the job's lock. What takes the place of a damaged file is written beside it (`mended-NAME`,
//! as by `repair`), and gets the name when all bytes of the stream were right. Invariants: a file that is as it was is
//! not touched; a segment that is intact and another one stays, and the rebuild is refused. Fails by: an error that
//! names the file.

use super::group_file::SetFile;
use crate::hygiene::{MENDED, is_intact};
use crate::names::{self, FileName};
use crate::tier::{Blob, BlobWriter, TierError};
use crate::{Job, JobLock, StoreError, fault};

/// Bytes compared or copied at once.
const PIECE: usize = 1 << 20;

/// What is done with a file of the stream.
enum Target {
    /// It is there, and so far as it was.
    There(Box<dyn Blob>),
    /// It is written: its own name, and whether it is beside another one.
    Written(Box<dyn BlobWriter>, bool),
}

/// A file of the stream.
struct Current {
    name: String,
    target: Target,
    len: u64,
    /// Bytes that have come.
    at: u64,
}

/// See the head of the file.
pub struct StreamWriter<'a> {
    job: &'a Job,
    files: std::slice::Iter<'a, SetFile>,
    current: Option<Current>,
    /// Files that were missing and are there now.
    new: Vec<String>,
    /// Files that take the places of damaged ones.
    beside: Vec<String>,
    written: u64,
}

impl<'a> StreamWriter<'a> {
    /// Of these files.
    ///
    /// # Errors
    /// The lock is not the job's.
    pub fn new(job: &'a Job, lock: &JobLock, files: &'a [SetFile]) -> Result<StreamWriter<'a>, StoreError> {
        job.check_lock(lock)?;
        let (files, new, beside) = (files.iter(), Vec::new(), Vec::new());
        Ok(StreamWriter { job, files, current: None, new, beside, written: 0 })
    }

    /// The next bytes; those beyond the end of the stream are nothing.
    ///
    /// # Errors
    /// A file cannot be written, or an intact one is another one.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        loop {
            let Some(now) = self.current.take_if(|now| now.at < now.len && !bytes.is_empty()) else {
                if self.current.as_ref().is_some_and(|now| now.at < now.len) {
                    return Ok(());
                }
                self.close()?;
                let Some(file) = self.files.next() else { return Ok(()) };
                self.current = Some(self.begin(file)?);
                continue;
            };
            let len = usize::try_from(now.len - now.at).unwrap_or(usize::MAX).min(bytes.len()).min(PIECE);
            self.current = Some(self.pass(now, &bytes[..len])?);
            bytes = &bytes[len..];
        }
    }

    /// Looks at a file before its bytes come.
    fn begin(&self, file: &SetFile) -> Result<Current, StoreError> {
        let target = match self.job.folder().open(&file.name) {
            Ok(blob) if blob.len() == file.len => Target::There(blob),
            Ok(blob) => Target::Written(self.beside(&file.name, Some(&*blob), 0)?, true),
            Err(TierError::Damaged { .. } | TierError::Short { .. }) => {
                Target::Written(self.beside(&file.name, None, 0)?, true)
            }
            Err(TierError::NotFound { .. }) => Target::Written(self.job.folder().create(&file.name)?, false),
            Err(error) => return Err(error.into()),
        };
        Ok(Current { name: file.name.clone(), target, len: file.len, at: 0 })
    }

    /// The next bytes of a file.
    fn pass(&self, now: Current, bytes: &[u8]) -> Result<Current, StoreError> {
        let Current { name, target, len, at } = now;
        let target = match target {
            Target::There(blob) if is_there(&*blob, at, bytes)? => Target::There(blob),
            Target::There(blob) => {
                let mut writer = self.beside(&name, Some(&*blob), at)?;
                writer.append(bytes)?;
                Target::Written(writer, true)
            }
            Target::Written(mut writer, beside) => {
                writer.append(bytes)?;
                Target::Written(writer, beside)
            }
        };
        Ok(Current { name, target, len, at: at + bytes.len() as u64 })
    }

    /// What is to take the place of a damaged file, with its first bytes, which are right.
    fn beside(
        &self,
        name: &str,
        blob: Option<&dyn Blob>,
        right: u64,
    ) -> Result<Box<dyn BlobWriter>, StoreError> {
        let folder = self.job.folder();
        if let (Some(blob), Some(FileName::Segment(epoch, number))) = (blob, names::parse_name(name))
            && is_intact(blob, epoch, number)?
        {
            return Err(StoreError::Foreign { path: folder.address(name) });
        }
        let beside = format!("{MENDED}{name}");
        folder.remove(&beside)?;
        let mut writer = folder.create(&beside)?;
        blob.map_or(Ok(()), |blob| copy(blob, right, &mut *writer))?;
        Ok(writer)
    }

    /// All bytes of a file have come.
    fn close(&mut self) -> Result<(), StoreError> {
        if let Some(Current { name, target: Target::Written(writer, beside), .. }) = self.current.take() {
            self.written += writer.finish()?;
            fault::point("guard-file");
            if beside { self.beside.push(name) } else { self.new.push(name) }
        }
        Ok(())
    }

    /// What has come was not right: nothing of it stays.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn abandon(mut self) -> Result<(), StoreError> {
        self.current = None;
        let beside = self.beside.iter().map(|name| format!("{MENDED}{name}"));
        self.new.iter().cloned().chain(beside).try_for_each(|name| self.job.folder().remove(&name))
    }

    /// All bytes have come, and were right: how many were written.
    ///
    /// # Errors
    /// Some are missing, or a file cannot be written.
    pub fn finish(mut self) -> Result<u64, StoreError> {
        self.append(&[])?;
        if self.current.is_some() || self.files.next().is_some() {
            return Err(StoreError::misuse(self.job.dir(), "a part of a stream is missing"));
        }
        fault::point("guard-right");
        let folder = self.job.folder();
        for name in &self.beside {
            let beside = format!("{MENDED}{name}");
            folder.remove(name)?;
            fault::point("guard-removed");
            let mut writer = folder.create(name)?;
            let blob = folder.tier().open(&folder.blob(&beside)?)?;
            copy(&*blob, blob.len(), &mut *writer)?;
            writer.finish()?;
            fault::point("guard-named");
            folder.remove(&beside)?;
        }
        Ok(self.written)
    }
}

/// Whether a blob has these bytes there.
fn is_there(blob: &dyn Blob, at: u64, bytes: &[u8]) -> Result<bool, StoreError> {
    let mut there = vec![0; bytes.len()];
    match blob.read_at(at, &mut there) {
        Ok(()) => Ok(there == bytes),
        Err(error) if error.is_damage() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies the first `len` bytes.
fn copy(blob: &dyn Blob, len: u64, writer: &mut dyn BlobWriter) -> Result<(), StoreError> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let now = usize::try_from(len - at).unwrap_or(usize::MAX).min(PIECE);
        blob.read_at(at, &mut piece[..now])?;
        writer.append(&piece[..now])?;
        at += now as u64;
    }
    Ok(())
}
