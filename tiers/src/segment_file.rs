//! One open segment: the copies of it on all tiers that may have one, fastest first.
//!
//! Made when an image is opened or committed, shared by all later images that need it. Copies below the first that is
//! good are opened when they are needed.
//! Invariants: a copy counts only if it has the length that the manifest names and says, in the block that is read
//! first, that it is this segment; what comes out of [`SegmentFile::read`] has passed the caller's check; copies stay
//! open, so that pages stay readable when the blobs are removed, and can be mapped without a path.
//! Fails by: the error of the copy, if there is one; else one that names all of them.

use crate::StoreError;
use crate::format::HEADER_LEN;
use crate::format::manifest::SegmentEntry;
use crate::format::segment::{SegmentHeader, data_of, first_block};
use crate::image_info::wrong_len;
use crate::names::segment_name;
use crate::tier::{Blob, TierError};
use crate::tier_folder::TierFolder;
use crate::unpacked;
use holdfast_image::pages::{MappableSegment, MappedFrom};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the head of the file.
pub(crate) struct SegmentFile {
    pub(crate) entry: SegmentEntry,
    copies: Vec<Copy>,
    /// The copy that is asked first: those before it could not be read.
    first: AtomicUsize,
    /// The copy that can be mapped, if one can.
    mapped: Option<usize>,
    /// What was read from another copy because these could not be.
    detours: Mutex<BTreeMap<usize, Detour>>,
}

/// What a copy has not intact, and where it was read instead.
#[derive(Clone, Debug)]
pub(crate) struct Detour {
    /// What is wrong with it: the first that was found.
    pub(crate) why: String,
    /// It is not there at all.
    pub(crate) is_missing: bool,
    /// How often that was so.
    pub(crate) count: u64,
    /// Path or address of the copy that was read instead.
    pub(crate) read_from: PathBuf,
}

struct Copy {
    folder: TierFolder,
    /// Path or address, for messages.
    address: PathBuf,
    /// Once it was opened. What could not be is tried again when no other copy is good.
    blob: OnceLock<Box<dyn Blob>>,
}

impl Copy {
    fn new(folder: &TierFolder, entry: &SegmentEntry) -> Copy {
        let address = folder.address(&segment_name(entry.epoch, entry.number));
        Copy { folder: folder.clone(), address, blob: OnceLock::new() }
    }

    /// The blob, if it is the one that the entry names.
    fn get(&self, entry: &SegmentEntry) -> Result<&dyn Blob, StoreError> {
        if let Some(blob) = self.blob.get() {
            return Ok(&**blob);
        }
        let opened = open(&self.folder, &self.address, entry)?;
        // Another thread may have been faster.
        Ok(&**self.blob.get_or_init(|| opened))
    }
}

/// Opens a blob and checks its length and that it is the one that the entry names.
fn open(folder: &TierFolder, address: &Path, entry: &SegmentEntry) -> Result<Box<dyn Blob>, StoreError> {
    let name = folder.blob(&segment_name(entry.epoch, entry.number))?;
    let blob = unpacked::open(&**folder.tier(), &name, entry.len).map_err(|error| match error {
        TierError::NotFound { .. } => StoreError::Missing { path: address.to_owned() },
        other => other.into(),
    })?;
    if blob.len() != entry.len {
        return Err(wrong_len(address, blob.len(), entry.len));
    }
    let Some(base) = first_block(entry.version, entry.len) else {
        return Err(StoreError::corrupt(address, 0, format!("no segment has {} bytes", entry.len)));
    };
    let mut header = [0; HEADER_LEN];
    blob.read_at(base, &mut header)?;
    let header = SegmentHeader::decode(&header, base).map_err(StoreError::format(address))?;
    check_identity(address, base, &header, entry)?;
    Ok(blob)
}

/// Compares slot 0 of a block with the segment that it must belong to.
pub(crate) fn check_identity(
    address: &Path,
    base: u64,
    found: &SegmentHeader,
    entry: &SegmentEntry,
) -> Result<(), StoreError> {
    if found.image_id != entry.image_id || found.epoch != entry.epoch {
        return Err(StoreError::Foreign { path: address.to_owned() });
    }
    if found.number != entry.number || data_of(found.version, entry.len) != data_of(entry.version, entry.len)
    {
        let what = format!(
            "this is segment {} of format version {}, not segment {} of version {}",
            found.number, found.version, entry.number, entry.version
        );
        return Err(StoreError::corrupt(address, base, what));
    }
    Ok(())
}

impl SegmentFile {
    /// One of which there is no copy.
    pub(crate) fn nowhere(entry: &SegmentEntry) -> SegmentFile {
        let (first, detours) = (AtomicUsize::new(0), Mutex::default());
        SegmentFile { entry: *entry, first, copies: Vec::new(), mapped: None, detours }
    }

    /// Opens the fastest copy that is good.
    pub(crate) fn open(folders: &[TierFolder], entry: &SegmentEntry) -> Result<SegmentFile, StoreError> {
        let copies: Vec<Copy> = folders.iter().map(|folder| Copy::new(folder, entry)).collect();
        let mut failed = Vec::new();
        for (at, copy) in copies.iter().enumerate() {
            match copy.get(entry) {
                Ok(blob) => {
                    let mapped = blob.mapping().map(|_| at);
                    let detours = Mutex::default();
                    let segment = SegmentFile { entry: *entry, first: at.into(), copies, mapped, detours };
                    segment.note(&failed.into_iter().enumerate().collect::<Vec<_>>(), at);
                    return Ok(segment);
                }
                Err(error) => failed.push(error),
            }
        }
        Err(StoreError::nowhere(failed, &segment_name(entry.epoch, entry.number)))
    }

    /// Its name.
    pub(crate) fn name(&self) -> MappedFrom {
        MappedFrom::Segment { version: self.entry.epoch, number: self.entry.number }
    }

    /// The copy that can be mapped.
    pub(crate) fn mapped(&self) -> Option<usize> {
        self.mapped
    }

    /// The file of that, and where the segment begins in it.
    pub(crate) fn mappable(&self) -> Option<MappableSegment<'_>> {
        let (file, begin) = self.copies.get(self.mapped?)?.get(&self.entry).ok()?.mapping()?;
        Some(MappableSegment { from: self.name(), file, begin, len: self.entry.len })
    }

    /// What was read elsewhere than where it was looked for first, by copy.
    pub(crate) fn detours(&self) -> Vec<Detour> {
        self.detours.lock().values().cloned().collect()
    }

    /// Notes which copies were of no use before this one was read.
    fn note(&self, failed: &[(usize, StoreError)], read: usize) {
        for (at, error) in failed {
            let detour = || Detour {
                why: error.short(),
                is_missing: matches!(error, StoreError::Missing { .. }),
                count: 0,
                read_from: self.copies[read].address.clone(),
            };
            self.detours.lock().entry(*at).or_insert_with(detour).count += 1;
        }
    }

    /// Path or address of the copy that is asked first, for messages.
    pub(crate) fn address(&self) -> &Path {
        let first = self.copies.get(self.first.load(Ordering::Relaxed));
        first.map_or(Path::new(""), |copy| &copy.address)
    }

    /// Fills `out` from `offset` on, from the fastest copy whose bytes pass the check; returns which that is.
    pub(crate) fn read(
        &self,
        offset: u64,
        out: &mut [u8],
        check: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<usize, StoreError> {
        let (count, first) = (self.copies.len(), self.first.load(Ordering::Relaxed));
        let mut failed = Vec::new();
        for at in (first..count).chain(0..first.min(count)) {
            match self.read_copy(at, offset, out) {
                Ok(()) => match check(out) {
                    Ok(()) => {
                        self.note(&failed, at);
                        return Ok(at);
                    }
                    Err(what) => {
                        failed.push((at, StoreError::corrupt(&self.copies[at].address, offset, what)));
                    }
                },
                Err(error) => {
                    // Not asked first again: a tier that does not answer costs time at each frame.
                    let next = (at + 1) % count.max(1);
                    let _ = self.first.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
                    failed.push((at, error));
                }
            }
        }
        let failed = failed.into_iter().map(|(_, error)| error).collect();
        Err(StoreError::nowhere(failed, &segment_name(self.entry.epoch, self.entry.number)))
    }

    /// Fills `out` from this copy alone.
    pub(crate) fn read_copy(&self, at: usize, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let copy = &self.copies[at];
        copy.get(&self.entry)?.read_at(offset, out).map_err(|error| match error {
            TierError::Short { .. } => {
                StoreError::corrupt(&copy.address, offset, "the file has become shorter")
            }
            other => other.into(),
        })
    }

    /// Whether there is a copy in the folder that was asked first, and nothing of it had to be read elsewhere.
    pub(crate) fn is_in_first_folder(&self) -> bool {
        let is_open = self.copies.first().is_some_and(|copy| copy.blob.get().is_some());
        is_open && !self.detours.lock().contains_key(&0)
    }
}
