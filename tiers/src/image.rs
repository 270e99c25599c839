//! An image opened for restart or verification: manifest decoded and checked, segments open.
//!
//! Called by `restart`, `show` and `verify`. Invariants: all numbers of the manifest have been checked against each
//! other and against the length of the files; every segment says that it belongs to this image; the segments stay
//! open, so that the image stays readable even if it is removed meanwhile.
//! See `read` for the pages.

use crate::StoreError;
use crate::files;
use crate::format::manifest::{Figures, MAX_LEN, Place};
use crate::format::segment::{Codec, Frame};
use crate::image_info::{ImageInfo, open_manifest};
use crate::shared_pages::SharedPages;
use crate::tables::{Tables, open_segment};
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::pages::{Extent, ExtentSource};
use holdfast_image::record::ProcessRecord;
use holdfast_image::{Epoch, PAGE_SIZE};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An image whose manifest is intact.
pub struct Image {
    record: ProcessRecord,
    figures: Figures,
    history: Vec<u8>,
    info: ImageInfo,
    pub(crate) tables: Arc<Tables>,
    pub(crate) extents: Vec<Extent>,
    /// See [`Image::share`].
    pub(crate) shared: Option<Arc<SharedPages>>,
}

impl Image {
    pub(crate) fn open(dir: &Path, epoch: Epoch) -> Result<Image, StoreError> {
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
        let history = manifest.history().map_err(&damaged)?;
        let entries = manifest.segments().map_err(&damaged)?;
        let frames = manifest.frames(&entries).map_err(&damaged)?;
        let index = manifest.index(&frames).map_err(&damaged)?;
        let info = ImageInfo::new(epoch, &figures, bytes.len() as u64, &entries);
        let open: Result<Vec<_>, _> =
            entries.iter().map(|entry| open_segment(dir, entry).map(Arc::new)).collect();
        let tables = Arc::new(Tables::new(dir, epoch, entries, open?, frames, index));
        let extents = extents(&tables, None);
        Ok(Image { record, figures, history, info, tables, extents, shared: None })
    }

    /// Its number.
    pub fn epoch(&self) -> Epoch {
        self.tables.epoch
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
    /// What the pager knows of the checkpoint.
    pub fn epoch_figures(&self) -> &EpochFigures {
        &self.figures.epoch
    }
    /// What the pager wants to remember: the bytes given at the commit.
    pub fn history(&self) -> &[u8] {
        &self.history
    }
    /// The same as its entry of [`crate::Job::images`].
    pub fn info(&self) -> ImageInfo {
        self.info.clone()
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
    /// Has what several address spaces have in common mapped by all of them. Before anything else is asked of the
    /// pages. `raw`: what is not compressed too; else that is mapped from the segments.
    pub fn share(&mut self, raw: bool) {
        let tables = &self.tables;
        let shared = SharedPages::of(&tables.index, &tables.frames, &tables.entries, raw);
        if shared.len() > 0 {
            self.extents = extents(tables, Some(&shared));
            self.shared = Some(Arc::new(shared));
        }
    }
    /// Folder of the job.
    pub fn dir(&self) -> &Path {
        &self.tables.dir
    }
}

/// The page index as extents; neighbours in the program that are neighbours in one file as well become one.
fn extents(tables: &Tables, shared: Option<&SharedPages>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::with_capacity(tables.index.len());
    let place = |frame: &Frame| shared?.place(&tables.entries, frame);
    for entry in &tables.index {
        let source = match entry.place {
            Place::Frame { frame, page } => {
                let frame = &tables.frames[frame as usize];
                let found = match place(frame) {
                    Some(offset) => Some((tables.shared_pages_number(), offset)),
                    None => (frame.codec == Codec::Raw).then_some((frame.segment, frame.offset)),
                };
                let page = u64::from(page) * PAGE_SIZE;
                found.map_or(ExtentSource::Stored, |(segment, offset)| ExtentSource::Mappable {
                    segment,
                    offset: offset + page,
                })
            }
            Place::Zero => ExtentSource::Zero,
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
