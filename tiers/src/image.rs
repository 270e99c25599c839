//! An image opened for restart or verification: manifest decoded and checked, segments open.
//!
//! Called by `restart`, `show` and `verify`. Invariants: all numbers of the manifest have been checked against each
//! other and against the length of the files; every segment says that it belongs to this image; the segments stay
//! open, so that the image stays readable even if it is removed meanwhile.
//! See `read` for the pages.

use crate::StoreError;
use crate::files;
use crate::format::HEADER_LEN;
use crate::format::manifest::{Figures, IndexRun, MAX_LEN, Place};
use crate::format::segment::{Codec, Frame, SegmentHeader};
use crate::info::{ImageInfo, open_manifest, wrong_len};
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{FlushFigures, StopBreakdown};
use holdfast_image::pages::{Extent, ExtentSource};
use holdfast_image::record::ProcessRecord;
use holdfast_image::{Epoch, PAGE_SIZE};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// An image whose manifest is intact.
pub struct Image {
    dir: PathBuf,
    epoch: Epoch,
    record: ProcessRecord,
    figures: Figures,
    bytes: u64,
    /// Distinguishes the images of this process in the threads' caches.
    pub(crate) serial: u64,
    pub(crate) files: Vec<SegmentFile>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) index: Vec<IndexRun>,
    pub(crate) extents: Vec<Extent>,
}

/// One open segment.
pub(crate) struct SegmentFile {
    pub(crate) file: File,
    pub(crate) len: u64,
    /// What its first block says.
    pub(crate) header: SegmentHeader,
}

impl Image {
    pub(crate) fn open(dir: &Path, epoch: Epoch) -> Result<Image, StoreError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let path = dir.join(files::manifest_name(epoch));
        let bytes = match files::read_checked(&path, MAX_LEN) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::NoImage { path: dir.into(), epoch });
            }
            other => other?,
        };
        let manifest = open_manifest(&path, epoch, &bytes)?;
        let damaged = StoreError::format(&path);
        let figures = manifest.figures().map_err(&damaged)?;
        let record = manifest.record().map_err(&damaged)?;
        let segments = manifest.segments().map_err(&damaged)?;
        let frames = manifest.frames(&segments).map_err(&damaged)?;
        let index = manifest.index(&frames).map_err(&damaged)?;
        if figures.parent.is_some() || index.iter().any(|entry| entry.place == Place::Parent) {
            return Err(StoreError::NeedsParent { path, parent: figures.parent.unwrap_or_default() });
        }
        let (mut open, mut paths) = (Vec::new(), Vec::new());
        for entry in &segments {
            let path = dir.join(files::segment_name(entry.epoch, entry.number));
            let expected = SegmentHeader {
                epoch: entry.epoch,
                image_id: entry.image_id,
                number: entry.number,
                block: 0,
            };
            open.push(open_segment(&path, entry.len, &expected)?);
            paths.push(path);
        }
        let extents = extents(&index, &frames);
        Ok(Image {
            dir: dir.to_owned(),
            epoch,
            record,
            figures,
            bytes: segments.iter().fold(bytes.len() as u64, |sum, s| sum.saturating_add(s.len)),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            files: open,
            paths,
            frames,
            index,
            extents,
        })
    }

    /// Its number.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
    /// Everything but the pages.
    pub fn record(&self) -> &ProcessRecord {
        &self.record
    }
    /// Where the stop time went.
    pub fn stop(&self) -> &StopBreakdown {
        &self.figures.stop
    }
    /// What the flush did.
    pub fn figures(&self) -> &FlushFigures {
        &self.figures.flush
    }
    /// The same as its entry of [`crate::Job::images`].
    pub fn info(&self) -> ImageInfo {
        ImageInfo::new(self.epoch, &self.figures, self.bytes)
    }
    /// Engine that made the cut.
    pub fn engine(&self) -> &str {
        &self.figures.engine
    }
    /// Command line of the program.
    pub fn command(&self) -> &[Name] {
        &self.figures.command
    }
    /// Whether it holds protected regions only, and cannot be restarted as a process.
    pub fn protected_only(&self) -> bool {
        self.figures.protected_only
    }
    /// Folder of the job.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Opens a segment and checks its length and that it is the expected one.
fn open_segment(path: &Path, len: u64, expected: &SegmentHeader) -> Result<SegmentFile, StoreError> {
    let (file, found) = files::open_checked(path)?;
    if found != len {
        return Err(wrong_len(path, found, len));
    }
    let mut header = [0; HEADER_LEN];
    file.read_exact_at(&mut header, 0).map_err(StoreError::io("read", path))?;
    let header = SegmentHeader::decode(&header, 0).map_err(StoreError::format(path))?;
    check_identity(path, 0, &header, expected)?;
    Ok(SegmentFile { file, len, header })
}

/// Compares slot 0 of a block with what it must say.
pub(crate) fn check_identity(
    path: &Path,
    base: u64,
    found: &SegmentHeader,
    expected: &SegmentHeader,
) -> Result<(), StoreError> {
    if found.image_id != expected.image_id || found.epoch != expected.epoch {
        return Err(StoreError::Foreign { path: path.to_owned() });
    }
    if found.number != expected.number || found.block != expected.block {
        let what = format!(
            "this is block {} of segment {}, not block {} of segment {}",
            found.block, found.number, expected.block, expected.number
        );
        return Err(StoreError::corrupt(path, base, what));
    }
    Ok(())
}

/// The page index as extents; neighbours in the program that are neighbours in one file as well become one.
fn extents(index: &[IndexRun], frames: &[Frame]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(index.len());
    for entry in index {
        let source = match entry.place {
            Place::Frame { frame, page } => match frames[frame as usize] {
                Frame { codec: Codec::Raw, segment, offset, .. } => {
                    ExtentSource::Mappable { segment, offset: offset + u64::from(page) * PAGE_SIZE }
                }
                Frame { codec: Codec::Lz4, .. } => ExtentSource::Stored,
            },
            Place::Zero | Place::Parent => ExtentSource::Zero,
        };
        match extents.last_mut() {
            Some(last) if last.run.end() == entry.run.start && continues(last, source) => {
                last.run.pages.0 += entry.run.pages.0;
            }
            _ => extents.push(Extent { run: entry.run, source }),
        }
    }
    extents
}

fn continues(last: &Extent, next: ExtentSource) -> bool {
    match (last.source, next) {
        (
            ExtentSource::Mappable { segment: a, offset },
            ExtentSource::Mappable { segment: b, offset: next },
        ) => a == b && offset + last.run.pages.bytes() == next,
        (last, next) => last == next,
    }
}
