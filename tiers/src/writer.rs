//! Writes one image: segments while the program runs, then the manifest, whose final name is the commit.
//!
//! Called by the agent with the job's lock held.
//! Invariants: files of earlier images are never touched; the manifest gets its final name only when everything that
//! it names is durable; an image that is not committed leaves no file behind, unless the agent is killed, and then
//! [`crate::Job::clean`] removes what is left.

use crate::StoreError;
use crate::fault;
use crate::files::{self, FileName};
use crate::format::manifest::{Figures, IndexRun, MAX_LEN, Parts, Place, SegmentEntry};
use crate::format::segment::{Frame, SegmentHeader};
use crate::info::ImageInfo;
use crate::job::Writing;
use crate::pipeline::{self, Lane, PipelineOptions};
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{FlushFigures, StopBreakdown};
use holdfast_image::pages::PageSource;
use holdfast_image::record::ProcessRecord;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Most workers: segment numbers have three digits in their names.
const MAX_WORKERS: usize = 256;

/// What a manifest holds besides the pages.
#[derive(Clone, Debug)]
pub struct CommitRecord {
    /// Everything but the pages.
    pub record: ProcessRecord,
    /// Where the stop time went.
    pub stop: StopBreakdown,
    /// When the program ran again: the flush is measured from here to the commit.
    pub resumed_at: Instant,
    /// Engine that made the cut.
    pub engine: String,
    /// Command line of the program.
    pub command: Vec<Name>,
    /// The image holds protected regions only.
    pub protected_only: bool,
}

/// An image that is being written. Dropped without [`ImageWriter::commit`], its files are removed.
pub struct ImageWriter {
    dir: PathBuf,
    epoch: Epoch,
    image_id: [u8; 16],
    lanes: Vec<Lane>,
    /// Number of segment files made so far.
    segments: AtomicU32,
    /// `write_pages` has failed: pages are missing.
    failed: bool,
    committed: bool,
    _writing: Writing,
}

impl ImageWriter {
    pub(crate) fn new(dir: &Path, epoch: Epoch, writing: Writing) -> Result<ImageWriter, StoreError> {
        let mut image_id = [0; 16];
        let random = Path::new("/dev/urandom");
        File::open(random)
            .and_then(|mut file| file.read_exact(&mut image_id))
            .map_err(StoreError::io("read", random))?;
        Ok(ImageWriter {
            dir: dir.to_owned(),
            epoch,
            image_id,
            lanes: Vec::new(),
            segments: AtomicU32::new(0),
            failed: false,
            committed: false,
            _writing: writing,
        })
    }

    /// Number of the image.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Reads all runs of `source`, drops zero pages, compresses where it pays, stores the rest, and releases what is
    /// stored. May be called several times, with runs that do not overlap. `progress` gets the bytes read so far, in
    /// this call, from any worker.
    ///
    /// # Errors
    /// The source or a file failed: the image cannot be committed any more. Dropping it makes its space free.
    pub fn write_pages(
        &mut self,
        source: &dyn PageSource,
        options: &PipelineOptions,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), StoreError> {
        let workers = options.workers.clamp(1, MAX_WORKERS);
        if self.lanes.len() < workers {
            self.lanes.resize_with(workers, Lane::default);
        }
        let header = SegmentHeader { epoch: self.epoch, image_id: self.image_id, number: 0, block: 0 };
        let lanes = &mut self.lanes[..workers];
        let result =
            pipeline::run(&self.dir, header, &self.segments, lanes, source, options.compress, progress);
        self.failed |= result.is_err();
        result
    }

    /// Makes the segments durable, writes the manifest under a temporary name, makes it durable, and gives it its
    /// final name. When this returns, the image survives a power cut.
    ///
    /// # Errors
    /// The image does not exist; earlier ones are intact.
    pub fn commit(mut self, image: CommitRecord) -> Result<ImageInfo, StoreError> {
        if self.failed {
            return Err(StoreError::misuse(&self.dir, "an image whose flush failed was to be committed"));
        }
        // The tables are in the order of the segments, which is that in which the workers made them.
        self.lanes
            .sort_by_key(|lane| lane.segment.as_ref().map_or(u32::MAX, |segment| segment.header().number));
        for segment in self.lanes.iter_mut().filter_map(|lane| lane.segment.as_mut()) {
            segment.finish()?;
        }
        fault::point("segment-synced");
        let (segments, frames) = self.tables();
        let index = self.index(&segments)?;
        let mut figures = self.figures(&image);
        let segment_bytes = segments.iter().map(|s| s.len).sum::<u64>();
        let encode = |figures: &Figures| {
            let (epoch, image_id, record) = (self.epoch, self.image_id, &image.record);
            let (segments, frames, index) = (&segments[..], &frames[..], &index[..]);
            Parts { epoch, image_id, figures, record, segments, frames, index }
                .encode()
                .map_err(|error| StoreError::misuse(&self.dir, error.to_string()))
        };
        // The figures tell the length of all files, the manifest's own included: more digits can only make it longer,
        // so that this ends.
        let mut bytes = encode(&figures)?;
        while figures.flush.bytes_stored != segment_bytes + bytes.len() as u64 {
            figures.flush.bytes_stored = segment_bytes + bytes.len() as u64;
            bytes = encode(&figures)?;
        }
        if bytes.len() as u64 > MAX_LEN {
            return Err(StoreError::misuse(&self.dir, format!("a manifest of {} bytes", bytes.len())));
        }
        self.publish(&bytes)?;
        Ok(ImageInfo::new(self.epoch, &figures, segment_bytes + bytes.len() as u64))
    }

    fn publish(&mut self, manifest: &[u8]) -> Result<(), StoreError> {
        let name = files::manifest_name(self.epoch);
        let temp = files::write_temp(&self.dir, &name, manifest)?;
        // The names of the segments must be durable before the name that refers to them.
        files::sync_folder(&self.dir)?;
        fault::point("manifest-temp");
        files::rename(&self.dir, &temp, &name)?;
        self.committed = true;
        fault::point("manifest-renamed");
        Ok(())
    }

    /// Segment table, and frame table with `segment` as index into it.
    fn tables(&self) -> (Vec<SegmentEntry>, Vec<Frame>) {
        let (mut entries, mut frames) = (Vec::new(), Vec::new());
        for (number, segment) in (0_u32..).zip(self.lanes.iter().filter_map(|lane| lane.segment.as_ref())) {
            let header = segment.header();
            entries.push(SegmentEntry {
                epoch: header.epoch,
                number: header.number,
                len: segment.len(),
                image_id: header.image_id,
            });
            frames.extend(segment.frames().iter().map(|frame| Frame { segment: number, ..*frame }));
        }
        (entries, frames)
    }

    /// The page index of all lanes, by ascending address, with frame numbers of the whole image.
    fn index(&self, segments: &[SegmentEntry]) -> Result<Vec<IndexRun>, StoreError> {
        let mut index: Vec<IndexRun> =
            Vec::with_capacity(self.lanes.iter().map(|lane| lane.index.len()).sum());
        let mut base = 0_u32;
        for lane in &self.lanes {
            index.extend(lane.index.iter().map(|entry| match entry.place {
                Place::Frame { frame, page } => {
                    IndexRun { place: Place::Frame { frame: base + frame, page }, ..*entry }
                }
                Place::Zero | Place::Parent => *entry,
            }));
            let frames = lane.segment.as_ref().map_or(0, |segment| segment.frames().len());
            base =
                u32::try_from(frames).ok().and_then(|frames| base.checked_add(frames)).ok_or_else(|| {
                    StoreError::misuse(&self.dir, format!("too many frames in {} segments", segments.len()))
                })?;
        }
        index.sort_unstable_by_key(|entry| entry.run);
        if let Some([first, second]) = index.array_windows::<2>().find(|[a, b]| a.run.end() > b.run.start) {
            return Err(StoreError::misuse(
                &self.dir,
                format!(
                    "runs of pages overlap: {} pages at {} and {}",
                    first.run.pages.0, first.run.start, second.run.start
                ),
            ));
        }
        index.dedup_by(|next, last| {
            let joins =
                last.place == Place::Zero && next.place == Place::Zero && last.run.end() == next.run.start;
            if joins {
                last.run.pages.0 += next.run.pages.0;
            }
            joins
        });
        Ok(index)
    }

    fn figures(&self, image: &CommitRecord) -> Figures {
        let mut flush = FlushFigures::default();
        for lane in self.lanes.iter().map(|lane| &lane.figures) {
            flush.pages_read += lane.pages_read;
            flush.pages_zero += lane.pages_zero;
            flush.pages_stored += lane.pages_stored;
            flush.bytes_compressed_from += lane.bytes_compressed_from;
            flush.bytes_compressed_to += lane.bytes_compressed_to;
        }
        flush.flush_ns = u64::try_from(image.resumed_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Figures {
            created_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
            parent: None,
            engine: image.engine.clone(),
            command: image.command.clone(),
            protected_only: image.protected_only,
            stop: image.stop,
            flush,
        }
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Manifest first: if its rename happened but could not be made durable, nothing may name removed segments.
        // What cannot be removed now is removed by `clean`. All files of this number are ours: `begin` found none.
        let manifest = self.dir.join(files::manifest_name(self.epoch));
        if files::remove(&manifest).is_ok() {
            for (name, path) in files::list(&self.dir).unwrap_or_default() {
                if matches!(name, FileName::Segment(e, _) | FileName::TempManifest(e) if e == self.epoch) {
                    let _ = files::remove(&path);
                }
            }
        }
    }
}
