//! An image opened for restart or verification: manifest decoded and checked, segments open.
//!
//! Called by `restart`, `show` and `verify`. The manifest and each segment come from the fastest tier that has them
//! intact. Invariants: all numbers of the manifest have been checked against each other and against the length of the
//! segments; every segment says that it belongs to this image; the segments stay open, so that the image stays readable
//! even if it is removed meanwhile.
//! See `read` for the pages.

use crate::StoreError;
use crate::codec::Codec;
use crate::format::manifest::{Figures, Identity, MAX_LEN, Place, Record, SegmentEntry};
use crate::format::segment::Frame;
use crate::hashes::Hashes;
use crate::image_info::{ImageInfo, open_manifest};
use crate::names;
use crate::segment_file::{Detour, SegmentFile};
use crate::served_pages::ServedPages;
use crate::shared_pages::SharedPages;
use crate::tables::Tables;
use crate::tier::{TierError, read_whole};
use crate::tier_folder::TierFolder;
use crate::workers;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::pages::{Extent, ExtentSource};
use holdfast_image::{Epoch, PAGE_SIZE};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An image whose manifest is intact.
pub struct Image {
    record: Record,
    /// Path or address of the manifest, and where the record lies in it, for messages.
    manifest: (PathBuf, u64),
    figures: Figures,
    history: Vec<u8>,
    info: ImageInfo,
    pub(crate) tables: Arc<Tables>,
    pub(crate) extents: Vec<Extent>,
    /// Manifests that were of no use.
    failed: Vec<String>,
    /// See [`Image::share`].
    pub(crate) shared: Option<Arc<SharedPages>>,
    /// See [`Image::serve`].
    pub(crate) served: Option<Arc<ServedPages>>,
    /// Hashes of its pages, if this process has stored it ([`Image::know`]).
    pub(crate) known: Option<Hashes>,
}

/// What one codec has made of frames of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramesOf {
    /// The codec.
    pub codec: Codec,
    /// How many.
    pub frames: u64,
    /// Bytes of their pages.
    pub bytes: u64,
    /// Bytes of their data.
    pub stored: u64,
}

impl Image {
    /// Opens an image for restart: manifest and index are checked, and that its segments are there, each in one of
    /// `folders` at least. Those are the job's folders on the tiers that may have it, fastest first.
    ///
    /// # Errors
    /// There is no such image, or it is intact nowhere.
    pub fn open(folders: &[TierFolder], epoch: Epoch) -> Result<Image, StoreError> {
        let mut failed = Vec::new();
        // What has the number on a slower tier may be another host's image.
        let mut which = None;
        for folder in folders {
            match Image::open_by(folder, folders, epoch, &mut which) {
                Ok(image) => {
                    let failed = failed.iter().map(StoreError::short).collect();
                    return Ok(Image { failed, ..image });
                }
                // The tier has never had it: that tells nothing where another one has.
                Err(StoreError::NoImage { .. }) if folders.len() > 1 => {}
                Err(error) => failed.push(error),
            }
        }
        match folders.first() {
            Some(folder) if failed.is_empty() => Err(StoreError::NoImage { path: folder.shown(), epoch }),
            _ => Err(StoreError::nowhere(failed, &names::manifest_name(epoch))),
        }
    }

    /// Opens it by the manifest in one folder. `which`: the image that it is, as soon as a header tells.
    fn open_by(
        folder: &TierFolder,
        folders: &[TierFolder],
        epoch: Epoch,
        which: &mut Option<Identity>,
    ) -> Result<Image, StoreError> {
        let name = names::manifest_name(epoch);
        let blob = match folder.open(&name) {
            Err(TierError::NotFound { .. }) => {
                return Err(StoreError::NoImage { path: folder.shown(), epoch });
            }
            blob => blob?,
        };
        let bytes = read_whole(&*blob, MAX_LEN, || folder.object(&name))?;
        if let Ok(found) = Identity::of(&bytes)
            && *which.get_or_insert(found) != found
        {
            return Err(StoreError::Foreign { path: folder.address(&name) });
        }
        let is_far = blob.mapping().is_none();
        Image::decode(folder.address(&name), &folders[0], (epoch, &bytes), (folders, is_far))
    }

    /// What a manifest tells: an image whose pages cannot be read, but all else. `job`: the job's folder.
    ///
    /// # Errors
    /// It is damaged, or that of another image.
    pub fn of_manifest(job: &TierFolder, epoch: Epoch, manifest: &[u8]) -> Result<Image, StoreError> {
        Image::decode(job.address(&names::manifest_name(epoch)), job, (epoch, manifest), (&[], false))
    }

    /// `path`: of the manifest, for messages. `folders`: where segments are looked for; in none, they are not opened.
    /// `is_far`: the manifest was read from a server.
    fn decode(
        path: PathBuf,
        first: &TierFolder,
        (epoch, bytes): (Epoch, &[u8]),
        (folders, is_far): (&[TierFolder], bool),
    ) -> Result<Image, StoreError> {
        let manifest = open_manifest(&path, epoch, bytes)?;
        let damaged = StoreError::format(&path);
        let figures = manifest.figures().map_err(&damaged)?;
        let record = manifest.record().map_err(&damaged)?;
        let history = manifest.history().map_err(&damaged)?;
        let entries = manifest.segments().map_err(&damaged)?;
        let frames = manifest.frames(&entries).map_err(&damaged)?;
        let index = manifest.index(&frames).map_err(&damaged)?;
        let info = ImageInfo::new(epoch, &figures, bytes.len() as u64, &entries);
        let open = match folders {
            [] => entries.iter().map(|entry| Arc::new(SegmentFile::nowhere(entry))).collect(),
            folders => open_all(folders, &entries, is_far)?,
        };
        let tables = Arc::new(Tables::new(first, epoch, entries, open, frames, index));
        let extents = extents(&tables, None);
        let manifest = (path, manifest.record_offset());
        Ok(Image {
            record,
            manifest,
            figures,
            history,
            info,
            tables,
            extents,
            failed: Vec::new(),
            shared: None,
            served: None,
            known: None,
        })
    }

    /// Its number.
    pub fn epoch(&self) -> Epoch {
        self.tables.epoch
    }
    /// What the caller of the store has kept besides the pages: the record given at the commit.
    pub fn record(&self) -> &Record {
        &self.record
    }
    /// What is said of a record that its kind does not allow.
    pub fn bad_record(&self, what: impl Into<String>) -> StoreError {
        StoreError::corrupt(&self.manifest.0, self.manifest.1, what)
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
    /// Whether it holds protected regions only.
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
    /// Has all its pages mapped from a file that a page server serves, which has each at its address. Before anything
    /// else is asked of the pages; instead of [`Image::share`].
    pub fn serve(&mut self) {
        let served = ServedPages::new(Arc::clone(&self.tables));
        self.extents = served.extents(self.tables.shared_pages_number());
        self.served = Some(Arc::new(served));
    }
    /// Whether all its segments are on the tier that was asked first, and intact as far as they were read: an increment
    /// there may build on it.
    pub fn is_on_first_tier(&self) -> bool {
        self.tables.segments.iter().all(|segment| segment.is_in_first_folder())
    }
    /// What was damaged on one tier, and read from another: one line each.
    pub fn detours(&self) -> Vec<String> {
        const MOST: usize = 8;
        let mut lines: Vec<String> =
            self.failed.iter().map(|why| format!("{why}; another tier has it")).collect();
        let (mut missing, mut more) = (BTreeMap::<PathBuf, usize>::new(), 0);
        for Detour { why, is_missing, count, read_from } in
            self.tables.segments.iter().flat_map(|segment| segment.detours())
        {
            if is_missing {
                // What a lower tier alone has is not damaged.
                let folder = read_from.parent().map(PathBuf::from).unwrap_or_default();
                *missing.entry(folder).or_default() += 1;
            } else if lines.len() >= MOST {
                more += 1;
            } else {
                let so_often = if count > 1 { format!(" ({count} times)") } else { String::new() };
                lines.push(format!("{why}{so_often}: read from {} instead", read_from.display()));
            }
        }
        lines.extend(
            (more > 0)
                .then(|| format!("{more} more segments are damaged on one tier, and were read elsewhere")),
        );
        let line = |(folder, count): (PathBuf, usize)| {
            format!("{count} segments were read from {}", folder.display())
        };
        lines.extend(missing.into_iter().map(line));
        lines
    }
    /// The job's folder on the tier that was asked first.
    pub fn folder(&self) -> &TierFolder {
        &self.tables.folder
    }
    /// How its frames are stored, those of earlier images included; by codec.
    pub fn frames_by_codec(&self) -> Vec<FramesOf> {
        let of = |codec: Codec| {
            let own = self.tables.frames.iter().filter(|frame| frame.codec == codec);
            own.fold(FramesOf { codec, frames: 0, bytes: 0, stored: 0 }, |sum, frame| FramesOf {
                codec,
                frames: sum.frames + 1,
                bytes: sum.bytes.saturating_add(frame.raw_len() as u64),
                stored: sum.stored.saturating_add(frame.stored_len),
            })
        };
        Codec::ALL.into_iter().map(of).filter(|of| of.frames > 0).collect()
    }
    /// Its path or address.
    pub fn dir(&self) -> PathBuf {
        self.tables.folder.shown()
    }
}

/// Opens all segments; those of a server several at a time, for each takes some of its answers.
fn open_all(
    folders: &[TierFolder],
    entries: &[SegmentEntry],
    is_far: bool,
) -> Result<Vec<Arc<SegmentFile>>, StoreError> {
    if !is_far {
        return entries.iter().map(|entry| SegmentFile::open(folders, entry).map(Arc::new)).collect();
    }
    let (next, open) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = |_| {
        while let Some((number, entry)) = entries.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
        {
            let segment = SegmentFile::open(folders, entry)
                .inspect_err(|_| next.store(entries.len(), Ordering::Relaxed))?;
            open.lock().insert(number, Arc::new(segment));
        }
        Ok::<(), StoreError>(())
    };
    workers::run("open", 0..workers::count(entries.len(), true), work)?;
    Ok(open.into_inner().into_values().collect())
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
                    None => tables.mapped_at(frame).map(|offset| (frame.segment, offset)),
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
