//! Writes one image: segments while the program runs, then the manifest, whose publishing is the commit.
//!
//! Called by the agent with the job's lock held: [`ImageWriter::precopy`] any number of times before the stop,
//! [`ImageWriter::write_pages`] once after it, [`ImageWriter::commit`].
//! Invariants: files of earlier images and the parent's [`Lineage`] are never touched; a page that is said to be
//! unchanged has a place or the image fails; the manifest is published only when everything that it names is
//! durable; an image that is not committed leaves no file behind, unless the agent is killed, and then
//! [`crate::Job::clean`] removes what is left.

use crate::StoreError;
use crate::assemble::{Assembled, assemble};
use crate::codec::Choices;
use crate::compact::Moving;
use crate::dedup::Dedup;
use crate::fault;
use crate::format::manifest::{Figures, MAX_LEN, Parts, Place, Record};
use crate::hashes::Hashes;
use crate::image_info::{ImageInfo, why_missing};
use crate::lineage::Lineage;
use crate::link_meter::LinkMeter;
use crate::locations::{Located, overlap, overlay, pages_of, pick};
use crate::names;
use crate::pipeline::{self, Lane, Pass, PipelineOptions};
use crate::segment_file::SegmentFile;
use crate::segment_writer::{self, SegmentWriter};
use crate::share::Share;
use crate::tables::Tables;
use crate::throttle::Throttle;
use crate::tier::TierError;
use crate::tier_folder::TierFolder;
use crate::unpacked;
use crate::writing::Writing;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, PageError, PageRun, PageSource, SourceCodec, TakeList};
use holdfast_image::record::UnsavedFile;
use holdfast_image::{Addr, Epoch, PageCount};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Most workers: segment numbers have three digits in their names.
const MAX_WORKERS: usize = 256;
/// Pages for which another worker is worth its segment: 1 MiB.
const WORKER_PAGES: u64 = 256;

/// What a manifest holds besides the pages.
#[derive(Clone, Debug)]
pub struct CommitRecord {
    /// What the caller keeps besides the pages; the store does not look into it.
    pub record: Record,
    /// Where the stop time went.
    pub stop: StopBreakdown,
    /// When the program ran again: the flush is measured from here to the commit.
    pub resumed_at: Instant,
    /// Engine that made the cut.
    pub engine: String,
    /// Command line of the program.
    pub command: Vec<Name>,
    /// See [`Figures::run_ns`].
    pub run_ns: u64,
    /// The image holds protected regions only.
    pub protected_only: bool,
    /// What the pager knows of the checkpoint.
    pub epoch: EpochFigures,
    /// Files that the program may have changed in place, and that are not in the image.
    pub unsaved: Vec<UnsavedFile>,
    /// What the pager wants to remember; the store does not look into it.
    pub history: Vec<u8>,
}

/// An image that is being written. Dropped without [`ImageWriter::commit`], its files are removed.
pub struct ImageWriter {
    folder: TierFolder,
    epoch: Epoch,
    image_id: [u8; 16],
    parent: Option<Arc<Lineage>>,
    lanes: Vec<Lane>,
    /// Number of segment files made so far.
    segments: AtomicU32,
    throttle: Throttle,
    /// Which codecs were chosen, and how fast the tier is.
    choices: Choices,
    link: Arc<LinkMeter>,
    /// Made when several address spaces are to be stored.
    dedup: Option<Dedup>,
    /// What the pre-copy has stored, ascending.
    precopied: Vec<Located>,
    /// Where all pages of the image are, ascending: known after `write_pages`.
    located: Option<Vec<Located>>,
    /// Hashes of the pages read for this image, whatever became of them.
    hashes: Hashes,
    /// Pages were stored whose hashes are not known.
    unhashed: bool,
    figures: FlushFigures,
    /// A pass has failed: pages are missing.
    failed: bool,
    /// The manifest may be there, and not yet durable.
    published: bool,
    committed: bool,
    _writing: Writing,
}

/// What the workers of one pass have stored.
struct Stored {
    /// Ascending.
    located: Vec<Located>,
    hashes: Hashes,
    figures: FlushFigures,
}

impl ImageWriter {
    pub(crate) fn new(
        folder: &TierFolder,
        epoch: Epoch,
        parent: Option<Arc<Lineage>>,
        link: Arc<LinkMeter>,
        writing: Writing,
    ) -> Result<ImageWriter, StoreError> {
        let mut image_id = [0; 16];
        let random = Path::new("/dev/urandom");
        File::open(random)
            .and_then(|mut file| file.read_exact(&mut image_id))
            .map_err(StoreError::io("read", random))?;
        Ok(ImageWriter {
            folder: folder.clone(),
            epoch,
            image_id,
            parent,
            lanes: Vec::new(),
            segments: AtomicU32::new(0),
            throttle: Throttle::default(),
            choices: Choices::default(),
            link,
            dedup: None,
            precopied: Vec::new(),
            located: None,
            hashes: Hashes::default(),
            unhashed: false,
            figures: FlushFigures::default(),
            failed: false,
            published: false,
            committed: false,
            _writing: writing,
        })
    }

    /// The rate at which it is written is that of all who have a part of this.
    pub fn share_rate(&mut self, share: &Arc<Share>) {
        self.throttle.share = Some(Arc::clone(share));
    }

    /// Number of the image.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What of it was stored so far; bytes of files are counted at the commit.
    pub fn figures(&self) -> &FlushFigures {
        &self.figures
    }

    /// Stores pages of the running program before the stop, and releases them. Returns those that have a place in this
    /// image now, or need none; what the source could not read any more is left out. May be called several times: a
    /// page that is stored again replaces what was stored before. Whether it counts is decided by
    /// [`ImageWriter::write_pages`]. `progress` gets, from any worker, the bytes that are done with (stored, or not to
    /// be stored) and all bytes, both of this call.
    ///
    /// # Errors
    /// As [`ImageWriter::write_pages`].
    pub fn precopy(
        &mut self,
        source: &dyn PageSource,
        options: &PipelineOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<PageSet, StoreError> {
        let stored = self.pass(source, options, progress, false, true)?;
        self.figures.add_compressed(&stored.figures);
        self.hashes.overlay(stored.hashes);
        let pages = pages_of(&stored.located);
        self.precopied = overlay(&self.precopied, stored.located);
        Ok(pages)
    }

    /// Reads all runs of `source`, drops zero pages and those that are as in the parent, compresses where it pays,
    /// stores the rest, and releases what is stored. Then finds the place of every inherited page: for
    /// `inherited.unchanged` that of the pre-copy, else the parent's; for `inherited.mapped` the parent's if that is
    /// the place that is mapped, else the page is read as well (but not released: it was not taken from the source).
    /// To be called once, after the cut; pages that are not named are not in the image. `progress` as for
    /// [`ImageWriter::precopy`].
    ///
    /// # Errors
    /// The source or a file failed, or an inherited page is nowhere ([`StoreError::Lost`]): the image cannot be
    /// committed any more. Dropping it makes its space free.
    pub fn write_pages(
        &mut self,
        source: &dyn PageSource,
        inherited: &Inherited,
        options: &PipelineOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(), StoreError> {
        if self.located.is_some() {
            return Err(self.misuse("the pages of an image were to be written twice"));
        }
        let unchanged: PageSet = inherited.unchanged.iter().copied().collect();
        let (mapped, unmatched) = self.match_mapped(inherited, &unchanged);
        let source = WithMore { source, more: TakeList::new(unmatched.into_runs()) };
        let stored = self.pass(&source, options, progress, true, true)?;
        self.figures.add(&stored.figures);
        if self.unhashed {
            stored.located.iter().for_each(|entry| self.hashes.forget(entry.run));
        }
        self.hashes.overlay(stored.hashes);
        let result = self.locate(stored.located, &unchanged, mapped).and_then(|mut located| {
            self.compact(&mut located, options)?;
            self.located = Some(located);
            Ok(())
        });
        self.failed |= result.is_err();
        result
    }

    /// Stores the pages of a source by way of the lanes.
    fn pass(
        &mut self,
        source: &dyn PageSource,
        options: &PipelineOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
        must_read: bool,
        compare: bool,
    ) -> Result<Stored, StoreError> {
        // Each worker makes a segment: little is stored by few.
        let useful = usize::try_from(source.pages().0.div_ceil(WORKER_PAGES)).unwrap_or(MAX_WORKERS);
        let workers = options.workers.min(useful).clamp(1, MAX_WORKERS);
        if self.lanes.len() < workers {
            self.lanes.resize_with(workers, Lane::default);
        }
        if source.has_several() && self.dedup.is_none() {
            self.dedup = Some(Dedup::new(self.parent.as_deref()));
        }
        let pass = Pass {
            folder: &self.folder,
            header: segment_writer::header(self.epoch, self.image_id),
            segments: &self.segments,
            source,
            parent: self.parent.as_deref().filter(|_| compare),
            dedup: self.dedup.as_ref(),
            throttle: &self.throttle,
            choices: &self.choices,
            link: &self.link,
            options: *options,
            must_read,
            progress,
        };
        let result = pipeline::run(&pass, &mut self.lanes[..workers]);
        self.failed |= result.is_err();
        result?;
        let mut stored =
            Stored { located: Vec::new(), hashes: Hashes::default(), figures: FlushFigures::default() };
        for lane in &mut self.lanes {
            stored.located.append(&mut lane.index);
            stored.hashes.overlay(std::mem::take(&mut lane.hashes));
            stored.figures.add(&std::mem::take(&mut lane.figures));
            self.unhashed |= std::mem::take(&mut lane.unhashed);
        }
        stored.located.sort_unstable_by_key(|entry| entry.run);
        match overlap(&stored.located) {
            None => Ok(stored),
            Some((first, second)) => {
                self.failed = true;
                let (pages, start) = (first.pages.0, first.start);
                Err(self
                    .misuse(format!("runs of pages overlap: {pages} pages at {start} and {}", second.start)))
            }
        }
    }

    /// Mapped pages with their place in the parent, and those that are not what the parent has there.
    fn match_mapped(&self, inherited: &Inherited, unchanged: &PageSet) -> (Vec<Located>, PageSet) {
        let all: PageSet = inherited.mapped.iter().map(|mapping| mapping.run).collect();
        let all = all.difference(unchanged);
        let (mut found, mut others) = (Vec::new(), Vec::new());
        for mapping in &inherited.mapped {
            let run = mapping.run;
            let part = |own: &PageRun| PageRun::between(own.start.max(run.start), own.end().min(run.end()));
            let wanted: PageSet = all.touching(run).iter().map(part).collect();
            let rest = match &self.parent {
                Some(parent) => {
                    let offset = mapping.offset.wrapping_sub(run.start.0);
                    parent.match_mapping(mapping.from, offset, &wanted, &mut found)
                }
                None => wanted,
            };
            others.extend(rest.into_runs());
        }
        (found, PageSet::from(others))
    }

    /// Joins what was written with what is inherited. A page that was read at the cut is as it was read, whatever else
    /// is said about it.
    fn locate(
        &mut self,
        written: Vec<Located>,
        unchanged: &PageSet,
        mapped: Vec<Located>,
    ) -> Result<Vec<Located>, StoreError> {
        let read = pages_of(&written);
        let mut located = written;
        // Neighbours may be joined with what is there already: counted is by pages, not by entries.
        let pages = |list: &[Located]| list.iter().map(|entry| entry.run.pages.0).sum::<u64>();
        let before = pages(&located);
        let rest = pick(&self.precopied, |entry| *entry, &unchanged.difference(&read), &mut located);
        let precopied = pages(&located);
        self.figures.pages_precopied = precopied - before;
        let index = self.parent.as_ref().map_or(&[][..], |parent| &parent.tables.index[..]);
        let lost = pick(index, Located::in_parent, &rest, &mut located);
        if let Some(run) = lost.runs().first() {
            return Err(StoreError::Lost { path: self.folder.shown(), start: run.start, pages: run.pages.0 });
        }
        let left = pages_of(&mapped).difference(&read);
        pick(&mapped, |entry| *entry, &left, &mut located);
        self.figures.pages_parent = pages(&located) - precopied;
        // What a pre-copy read there is not what the image holds.
        for run in left.runs() {
            self.hashes.forget(*run);
        }
        located.sort_unstable_by_key(|entry| entry.run);
        self.precopied = Vec::new();
        Ok(located)
    }

    /// Copies the pages of segments that hold too little else.
    fn compact(&mut self, located: &mut Vec<Located>, options: &PipelineOptions) -> Result<(), StoreError> {
        let Some(parent) = self.parent.clone() else { return Ok(()) };
        let own = self.lanes.iter().filter(|lane| lane.segment.is_some()).count();
        let stored = self.figures.pages_stored + self.figures.pages_precopied;
        let Some(moving) = Moving::plan(&parent.tables, located, own, stored) else { return Ok(()) };
        let stored = self.pass(&moving, options, &|_, _| (), true, false)?;
        self.figures.pages_moved = stored.figures.pages_stored;
        self.figures.add_compressed(&stored.figures);
        self.hashes.overlay(stored.hashes);
        *located = overlay(located, stored.located);
        Ok(())
    }

    /// Makes the segments durable and publishes the manifest. When this returns, the image survives what its tier
    /// survives. The lineage is the parent for the next image.
    ///
    /// # Errors
    /// The image does not exist; earlier ones are intact.
    pub fn commit(mut self, image: CommitRecord) -> Result<(ImageInfo, Arc<Lineage>), StoreError> {
        if self.failed {
            return Err(self.misuse("an image whose flush failed was to be committed"));
        }
        let Some(located) = self.located.take() else {
            return Err(self.misuse("an image was to be committed before its pages were written"));
        };
        let made = self.finish_segments(&located)?;
        fault::point("segment-synced");
        self.check_inherited(&made)?;
        let (bytes, figures) = self.manifest(&image, &made)?;
        let lineage = self.lineage(made)?;
        self.publish(&bytes)?;
        let info = ImageInfo::new(self.epoch, &figures, bytes.len() as u64, &lineage.tables.entries);
        Ok((info, Arc::new(lineage)))
    }

    /// The tables of the image. Segments that it needs become durable, the others are removed.
    fn finish_segments(&mut self, located: &[Located]) -> Result<Assembled, StoreError> {
        let segments = self.lanes.iter().filter_map(|lane| lane.segment.as_ref());
        let own: BTreeMap<u32, &SegmentWriter> =
            segments.map(|segment| (segment.header().number, segment)).collect();
        let tables = self.parent.as_deref().map(|parent| &*parent.tables);
        let made = assemble(tables, &own, located).map_err(|what| self.misuse(what))?;
        let named = |number: u32| {
            made.entries.iter().any(|entry| entry.epoch == self.epoch && entry.number == number)
        };
        for segment in self.lanes.iter_mut().filter_map(|lane| lane.segment.as_mut()) {
            let number = segment.header().number;
            if named(number) { self.link.measure(0, || segment.finish())? } else { segment.abandon() }
        }
        Ok(made)
    }

    /// An increment is worth no more than the segments that it builds on.
    fn check_inherited(&self, made: &Assembled) -> Result<(), StoreError> {
        let inherited = &made.entries[..made.inherited.len()];
        let gone = inherited.iter().find_map(|entry| {
            let name = names::segment_name(entry.epoch, entry.number);
            let len_of = |len: u64| {
                let blob = unpacked::open(&**self.folder.tier(), &self.folder.blob(&name)?, len)?;
                Ok(Ok(blob.len()))
            };
            Some((entry, why_missing(&self.folder, entry, len_of)?))
        });
        gone.map_or(Ok(()), |(entry, why)| {
            let path = self.folder.address(&names::segment_name(entry.epoch, entry.number));
            Err(StoreError::corrupt(&path, 0, format!("a segment of the parent is gone: {why}")))
        })
    }

    /// The manifest's bytes, and the figures in it.
    fn manifest(&self, image: &CommitRecord, made: &Assembled) -> Result<(Vec<u8>, Figures), StoreError> {
        let failed = |error: serde_json::Error| self.misuse(error.to_string());
        let mut figures = self.final_figures(image, made);
        let own = made.entries.iter().filter(|entry| entry.epoch == self.epoch);
        let segment_bytes = own.map(|entry| entry.len).sum::<u64>();
        let parts = |figures: &Figures, rest: Option<&[u8]>| {
            let parts = Parts {
                epoch: self.epoch,
                image_id: self.image_id,
                figures,
                record: &image.record,
                history: &image.history,
                segments: &made.entries,
                frames: &made.frames,
                index: &made.index,
            };
            match rest {
                None => Ok(parts.encode_rest()),
                Some(rest) => parts.join(rest).map_err(failed),
            }
        };
        let rest = parts(&figures, None)?;
        let mut bytes = parts(&figures, Some(&rest))?;
        // The figures tell the length of all files, the manifest's own included: more digits can only make it longer,
        // so that this ends.
        while figures.flush.bytes_stored != segment_bytes + bytes.len() as u64 {
            figures.flush.bytes_stored = segment_bytes + bytes.len() as u64;
            bytes = parts(&figures, Some(&rest))?;
        }
        if bytes.len() as u64 > MAX_LEN {
            return Err(self.misuse(format!("a manifest of {} bytes", bytes.len())));
        }
        Ok((bytes, figures))
    }

    fn final_figures(&self, image: &CommitRecord, made: &Assembled) -> Figures {
        let mut flush = self.figures;
        flush.flush_ns = u64::try_from(image.resumed_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Figures {
            created_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
            parent: self.parent.as_ref().map(|parent| parent.epoch()),
            engine: image.engine.clone(),
            command: image.command.clone(),
            run_ns: image.run_ns,
            protected_only: image.protected_only,
            stop: image.stop,
            flush,
            epoch: image.epoch.clone(),
            unsaved: image.unsaved.clone(),
            program_pages: Some(made.index.iter().map(|entry| entry.run.pages.0).sum()),
        }
    }

    /// What the next image needs of this one. Before the commit: it may fail for want of descriptors.
    fn lineage(&mut self, made: Assembled) -> Result<Lineage, StoreError> {
        let mut open = Vec::with_capacity(made.entries.len());
        if let Some(parent) = &self.parent {
            open.extend(made.inherited.iter().map(|&at| Arc::clone(&parent.tables.segments[at])));
        }
        for entry in &made.entries[made.inherited.len()..] {
            open.push(Arc::new(SegmentFile::open(std::slice::from_ref(&self.folder), entry)?));
        }
        let mut hashes = self.parent.as_ref().map(|parent| parent.hashes.clone()).unwrap_or_default();
        if self.unhashed {
            // What the parent had there is no more.
            let own = |frame: u32| {
                let segment = made.frames[frame as usize].segment as usize;
                made.entries[segment].epoch == self.epoch
            };
            let stored = made
                .index
                .iter()
                .filter(|entry| matches!(entry.place, Place::Frame { frame, .. } if own(frame)));
            stored.for_each(|entry| hashes.forget(entry.run));
        }
        hashes.overlay(std::mem::take(&mut self.hashes));
        let framed = made.index.iter().filter(|entry| entry.place != Place::Zero);
        hashes.keep(framed.map(|entry| entry.run));
        let Assembled { entries, frames, index, .. } = made;
        let tables = Arc::new(Tables::new(&self.folder, self.epoch, entries, open, frames, index));
        let parent = self.parent.as_ref();
        let shared = parent.and_then(|parent| parent.shared.clone());
        let served = parent.and_then(|parent| parent.served.clone());
        Ok(Lineage { tables, hashes, shared, served })
    }

    fn publish(&mut self, manifest: &[u8]) -> Result<(), StoreError> {
        self.published = true;
        let result = self.folder.publish(&names::manifest_name(self.epoch), manifest);
        // The one that is there is another writer's.
        self.published = !matches!(result, Err(StoreError::Tier(TierError::Exists { .. })));
        result.map_err(|error| error.needing(manifest.len() as u64))?;
        self.committed = true;
        Ok(())
    }

    fn misuse(&self, what: impl Into<String>) -> StoreError {
        StoreError::misuse(&self.folder.shown(), what)
    }
}

/// A source, and pages to be read from it that it does not give out itself.
struct WithMore<'a> {
    source: &'a dyn PageSource,
    more: TakeList,
}

impl PageSource for WithMore<'_> {
    fn pages(&self) -> PageCount {
        PageCount(self.source.pages().0 + self.more.pages().0)
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        let before = into.len();
        self.source.take(most, into);
        if into.len() == before {
            self.more.take(most, into);
        }
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        self.source.read(start, buffer)
    }
    fn release(&self, run: PageRun) {
        // No copy of a page that was never written can be saved by letting it go.
        let ours = self.more.runs();
        let at = ours.partition_point(|own| own.end() <= run.start);
        if ours.get(at).is_none_or(|own| own.start > run.start) {
            self.source.release(run);
        }
    }
    fn make_way(&self, rest: &mut Vec<PageRun>) -> bool {
        self.source.make_way(rest)
    }
    fn is_urgent(&self) -> bool {
        self.source.is_urgent()
    }
    fn has_several(&self) -> bool {
        self.source.has_several()
    }
    fn packable(&self, runs: &mut Vec<PageRun>) -> Vec<PageRun> {
        self.source.packable(runs)
    }
    fn read_packed(
        &self,
        units: &[PageRun],
        codec: SourceCodec,
        into: &mut Vec<u8>,
    ) -> Result<Vec<usize>, PageError> {
        self.source.read_packed(units, codec, into)
    }
}

impl Drop for ImageWriter {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        // Manifest first: if it got its name but could not be made durable, nothing may name removed segments. What
        // cannot be removed now is removed by `clean`; unfinished segments vanish by themselves.
        if self.published && self.folder.remove(&names::manifest_name(self.epoch)).is_err() {
            return;
        }
        for segment in self.lanes.iter().filter_map(|lane| lane.segment.as_ref()) {
            if segment.is_named() {
                let _ = self.folder.remove(&names::segment_name(self.epoch, segment.header().number));
            }
        }
    }
}
