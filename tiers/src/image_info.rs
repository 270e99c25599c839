//! What `list` says about an image without decoding its tables.

use crate::StoreError;
use crate::format::manifest::{Figures, Manifest, SegmentEntry};
use crate::names;
use crate::tier::{Entry, TierError};
use crate::tier_folder::TierFolder;
use holdfast_image::record::UnsavedFile;
use holdfast_image::{Epoch, PAGE_SIZE};
use serde::Serialize;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// One committed image, as listed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ImageInfo {
    /// Its number.
    pub epoch: Epoch,
    /// CLOCK_REALTIME of the commit, nanoseconds; of a broken manifest the time of its file.
    pub created_ns: u64,
    /// The run that it is of: its start, nanoseconds of CLOCK_REALTIME; 0 where that is not known.
    pub run_ns: u64,
    /// Bytes that it added to the disk: its manifest and the segments that were written for it.
    pub bytes: u64,
    /// Bytes that its restart needs: its manifest and all segments that it names, those of earlier images included.
    pub total_bytes: u64,
    /// Bytes of the program's memory that it holds, zero pages included.
    pub program_bytes: u64,
    /// Stop time, nanoseconds.
    pub stop_ns: u64,
    /// The image that it is an increment on.
    pub parent: Option<Epoch>,
    /// Files that the program may have changed in place, and that are not in it.
    pub unsaved: Vec<UnsavedFile>,
    /// Why it cannot be used, if so.
    pub broken: Option<String>,
    /// All files that it needs are there, with their length.
    pub complete: bool,
}

impl ImageInfo {
    pub(crate) fn new(
        epoch: Epoch,
        figures: &Figures,
        manifest_len: u64,
        segments: &[SegmentEntry],
    ) -> ImageInfo {
        let sum = |own: bool| {
            let wanted = segments.iter().filter(|segment| !own || segment.epoch == epoch);
            wanted.fold(manifest_len, |sum, segment| sum.saturating_add(segment.len))
        };
        // Version 1 has whole images only: every page was read.
        let pages = figures.program_pages.unwrap_or(figures.flush.pages_read);
        ImageInfo {
            epoch,
            created_ns: figures.created_ns,
            run_ns: figures.run_ns,
            bytes: sum(true),
            total_bytes: sum(false),
            program_bytes: pages.saturating_mul(PAGE_SIZE),
            stop_ns: figures.stop.total_ns,
            parent: figures.parent,
            unsaved: figures.unsaved.clone(),
            broken: None,
            complete: true,
        }
    }

    pub(crate) fn broken(epoch: Epoch, manifest: &Entry, bytes: u64, error: StoreError) -> ImageInfo {
        let created = manifest.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        ImageInfo {
            epoch,
            created_ns: created.and_then(|c| u64::try_from(c.as_nanos()).ok()).unwrap_or(0),
            run_ns: 0,
            bytes,
            total_bytes: bytes,
            program_bytes: 0,
            stop_ns: 0,
            parent: None,
            unsaved: Vec::new(),
            broken: Some(error.to_string()),
            complete: false,
        }
    }
}

/// Checks a manifest's header and body checksum, and that it is the one that its name says.
pub(crate) fn open_manifest<'a>(
    path: &Path,
    epoch: Epoch,
    bytes: &'a [u8],
) -> Result<Manifest<'a>, StoreError> {
    let manifest = Manifest::open(bytes).map_err(StoreError::format(path))?;
    if manifest.epoch != epoch {
        return Err(StoreError::corrupt(
            path,
            32,
            format!("this is the manifest of image {}", manifest.epoch),
        ));
    }
    Ok(manifest)
}

/// Why a segment is not there, as far as its length tells; `len_of`: the length of what should have one, or why that
/// cannot be told.
pub(crate) fn why_missing(
    folder: &TierFolder,
    segment: &SegmentEntry,
    len_of: impl FnOnce(u64) -> Result<Result<u64, String>, TierError>,
) -> Option<String> {
    let path = folder.address(&names::segment_name(segment.epoch, segment.number));
    match len_of(segment.len) {
        Ok(Ok(len)) if len == segment.len => None,
        Ok(Ok(len)) => Some(wrong_len(&path, len, segment.len).to_string()),
        Ok(Err(why)) => Some(why),
        Err(TierError::NotFound { .. }) => Some(StoreError::Missing { path }.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

pub(crate) fn wrong_len(path: &Path, found: u64, expected: u64) -> StoreError {
    StoreError::corrupt(
        path,
        found.min(expected),
        format!("the file has {found} bytes, {expected} were written"),
    )
}
