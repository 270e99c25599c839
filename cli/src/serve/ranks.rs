//! What the store has of one rank of a set of objects: a job without a program, whose images are versions.
//!
//! Used by the server's threads, each with the rank's lock, and by `import --veloc` and `export --veloc`. Invariants:
//! only a version that is whole in a buffer, or in a file, becomes an image; an object keeps its address space from
//! version to version, so that an image stores what has changed.

use crate::cascade;
use crate::exit::{Exit, Failure};
use crate::job_lock;
use crate::names::objects_of;
use crate::settings::{Recipe, Settings};
use crate::tiers;
use holdfast_image::address_space::split;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::objects::{BASE, ObjectRecord, StoredObject};
use holdfast_image::pages::{Inherited, PageError, PageRun, PageSource, TakeList};
use holdfast_image::{Addr, Epoch, PageCount};
use holdfast_objects::buffer::{Layout, Object, PAGE, Table};
use holdfast_sys::clock;
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::policy::WorthPacking;
use holdfast_tiers::stack::{Cascade, JobTiers, TierSpec};
use holdfast_tiers::{
    CommitRecord, Image, ImageGroup, Job, JobLock, Lineage, PipelineOptions, Record, Share, Store,
    StoreError, TierFolder, rank_name,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that are read from an image at once.
pub const PIECE: usize = 1 << 20;

/// A job, and where its images are besides the store.
pub type Source = (Job, Vec<TierFolder>);

/// A version that the store has.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its image.
    pub epoch: Epoch,
    /// What is in it.
    pub record: ObjectRecord,
}

/// A version that has just become an image.
pub struct Committed {
    /// What the store has.
    pub stored: Stored,
    /// What came of its pages.
    pub figures: FlushFigures,
    /// No codec was tried.
    pub is_raw: bool,
}

/// A version that is to become an image.
pub struct Version<'a> {
    /// Its buffer, or a file that is as one.
    pub file: &'a File,
    /// What is in it.
    pub content: (&'a Table, &'a Layout),
    /// When it was put.
    pub put_at: Instant,
    /// How it is packed; `None`: as the rank's settings say.
    pub packed: Option<Compression>,
}

/// See the head of the file.
pub struct Rank {
    job: Job,
    /// Where its images are, besides the store.
    below: Vec<TierFolder>,
    /// Taken when the first version is written.
    lock: Option<JobLock>,
    lineage: Option<Arc<Lineage>>,
    /// The last image that was written here: its number is not used again when it is removed, for a lower tier may have
    /// it.
    last: Epoch,
    /// The address space of each object that was ever there.
    spaces: BTreeMap<String, u32>,
    recipe: Recipe,
    cascade: Option<Cascade>,
    /// Whether it was worth its time to pack its versions.
    worth: WorthPacking,
    /// At which rate the store may be written, and what that was last.
    share: Option<Arc<Share>>,
    rate: Option<u64>,
}

impl Rank {
    /// Opens a rank, and says what the store has of it, the oldest first, and what of that cannot be read.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn open(store: &Store, set: &str, rank: u32) -> Result<(Rank, Vec<Stored>, Vec<String>), Failure> {
        let job = store.create_job(&rank_name(set, rank))?;
        let recipe = if job.has_recipe()? { Recipe::read(&job)? } else { Recipe::default() };
        let below = tiers::folders(job.name(), &recipe);
        let mut rank = Rank {
            job,
            below,
            lock: None,
            lineage: None,
            last: Epoch(0),
            spaces: BTreeMap::new(),
            recipe,
            cascade: None,
            worth: WorthPacking::default(),
            share: None,
            rate: None,
        };
        let (found, broken) = rank.versions()?;
        Ok((rank, found, broken))
    }

    /// What the store has of it, the oldest first, and what of that cannot be read.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn versions(&mut self) -> Result<(Vec<Stored>, Vec<String>), Failure> {
        let (mut found, mut broken) = (Vec::new(), Vec::new());
        for info in self.job.images()? {
            match self.image(info.epoch).and_then(|image| objects_of(&image)) {
                Ok(record) => found.push(Stored { epoch: info.epoch, record }),
                Err(error) => broken.push(format!("{}@{}: {error}", self.job.name(), info.epoch)),
            }
        }
        for object in found.iter().flat_map(|stored| &stored.record.objects) {
            self.spaces.insert(object.key.clone(), object.space);
        }
        Ok((found, broken))
    }

    /// Prepares it to be written: with its lock, and lower tiers if it has any. `given`: those of its client, which
    /// count where the rank has none yet.
    ///
    /// # Errors
    /// Another server has it, or the store fails.
    pub fn begin(&mut self, store: &Store, ranks: u32, given: &[String]) -> Result<(), Failure> {
        if self.lock.is_some() {
            return Ok(());
        }
        let lock = job_lock::take(&self.job)?;
        self.job.clean(&lock)?;
        let has_none = self.recipe.settings.tiers.lower().is_empty();
        if self.recipe.command.is_empty() || has_none && !given.is_empty() {
            let specs: Result<Vec<TierSpec>, String> = given.iter().map(|tier| tier.parse()).collect();
            let specs = specs.map_err(|why| Failure::new(Exit::Usage, why))?;
            let chosen = tiers::chosen(&specs, false, store)?;
            let settings = Settings { tiers: without_memory(&chosen), ..Settings::default() };
            let id = tiers::id_for(&settings, String::new())?;
            let words = ["objects".to_owned(), self.job.name().to_owned(), format!("of {ranks} ranks")];
            let command = words.into_iter().map(|word| Name::from(word.as_str())).collect();
            self.recipe = Recipe { command, settings, id, ..Recipe::default() };
            self.recipe.write(&self.job)?;
            self.below = tiers::folders(self.job.name(), &self.recipe);
        }
        self.lock = Some(lock);
        self.cascade = cascade::start(&self.job, &self.recipe, None, None)?;
        Ok(())
    }

    /// It is written no faster than those want who write into the same store.
    pub fn share(&mut self, share: &Arc<Share>) {
        self.share = Some(Arc::clone(share));
    }

    /// The job, for what needs no lock.
    pub fn job(&self) -> Source {
        (self.job.clone(), self.below.clone())
    }

    /// An image of it.
    ///
    /// # Errors
    /// It is not there, or damaged on all tiers.
    pub fn image(&self, epoch: Epoch) -> Result<Image, StoreError> {
        self.job.open_image_from(epoch, &self.below)
    }

    /// Makes an image of a version that lies in a buffer, and returns when it is durable in the store. `put_at`: when
    /// it was put.
    ///
    /// # Errors
    /// Of the store: there is no new image.
    pub fn commit(
        &mut self,
        file: &File,
        content: (&Table, &Layout),
        put_at: Instant,
    ) -> Result<Stored, Failure> {
        let stored = self.store_by(&Version { file, content, put_at, packed: None }, None)?.stored;
        self.cascade.iter().for_each(Cascade::wake);
        Ok(stored)
    }

    /// The same of several, which become durable together, and what came of each: of the first ones, if one of them
    /// fails; of none, if they cannot be made durable.
    pub fn commit_all(&mut self, versions: &[Version<'_>]) -> (Vec<Committed>, Result<(), Failure>) {
        let group = if versions.len() > 1 { self.job.group() } else { Ok(None) };
        let group = match group {
            Ok(group) => group,
            Err(error) => return (Vec::new(), Err(error.into())),
        };
        let (before, mut made, mut done) = (self.lineage.clone(), Vec::new(), Ok(()));
        for version in versions {
            match self.store_by(version, group.as_ref()) {
                Ok(one) => made.push(one),
                Err(failure) => {
                    done = Err(failure);
                    break;
                }
            }
        }
        if let Some(Err(error)) = group.map(ImageGroup::end) {
            self.lineage = before;
            return (Vec::new(), Err(error.into()));
        }
        self.cascade.iter().for_each(Cascade::wake);
        (made, done)
    }

    /// Stores a version in the way that is asked for, or as the rank's settings say. If those leave it to us: as it was
    /// worth its time before.
    fn store_by(&mut self, version: &Version<'_>, group: Option<&ImageGroup>) -> Result<Committed, Failure> {
        let wanted = version.packed.unwrap_or(self.recipe.settings.compress);
        if wanted != Compression::Auto {
            return self.store(version, wanted, group);
        }
        let packs = self.worth.packs();
        let way = if packs { wanted } else { Compression::By(Codec::Raw) };
        let processor = || clock::now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let (begun, used) = (Instant::now(), processor());
        let made = self.store(version, way, group)?;
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let changed = made.figures.pages_stored * PAGE;
        self.worth.stored(packs, changed, took, processor().saturating_sub(used));
        Ok(made)
    }

    fn store(
        &mut self,
        version: &Version<'_>,
        compression: Compression,
        group: Option<&ImageGroup>,
    ) -> Result<Committed, Failure> {
        let &Version { file, content: (table, layout), put_at, .. } = version;
        let Some(lock) = &self.lock else {
            return Err(Failure::new(Exit::Internal, format!("{} is not open for writing", self.job.name())));
        };
        let record = record(&mut self.spaces, table);
        let epoch = self.job.next_epoch()?.max(Epoch(self.last.0 + 1));
        let parent = self.lineage.clone().filter(|parent| parent.may_be_parent());
        let mut writer = match group {
            Some(group) => self.job.begin_in(group, lock, epoch, parent)?,
            None => self.job.begin(lock, epoch, parent)?,
        };
        let source = BufferSource::new(file, &record, layout);
        self.share.iter().for_each(|share| writer.share_rate(share));
        let options = PipelineOptions { workers: 1, compression, rate: self.rate(), part_pages: None };
        writer.write_pages(&source, &Inherited::default(), &options, &|_, _| ())?;
        let mut figures = *writer.figures();
        let bytes = record.encode().map_err(|what| Failure::new(Exit::Internal, what))?;
        let (info, lineage) = writer.commit(CommitRecord {
            record: Record { kind: ObjectRecord::KIND, bytes },
            stop: StopBreakdown::default(),
            resumed_at: put_at,
            engine: "objects".into(),
            command: self.recipe.command.clone(),
            run_ns: 0,
            protected_only: false,
            epoch: EpochFigures::default(),
            unsaved: Vec::new(),
            history: Vec::new(),
        })?;
        (self.lineage, self.last) = (Some(lineage), epoch);
        figures.bytes_stored = info.bytes;
        let is_raw = compression == Compression::By(Codec::Raw);
        Ok(Committed { stored: Stored { epoch, record }, figures, is_raw })
    }

    /// Most bytes a second that go to the store, if any of those who write into it has a bound.
    fn rate(&mut self) -> Option<u64> {
        let rate = self.share.as_ref().and_then(|share| share.rate());
        if let Some(bytes) = rate.filter(|_| rate != self.rate) {
            let size = crate::report::size(bytes);
            tracing::info!("{}: at most {size} in a second, as a job of this store has it", self.job.name());
        }
        self.rate = rate;
        self.recipe.settings.rate.into_iter().chain(rate).min()
    }

    /// Versions go from the store.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(&mut self, epochs: &BTreeSet<Epoch>) -> Result<(), StoreError> {
        let Some(lock) = &self.lock else { return Ok(()) };
        // Segments go with the last image that names them.
        self.lineage = self.lineage.take().filter(|lineage| !epochs.contains(&lineage.epoch()));
        self.job.remove_images(lock, epochs).map(drop)
    }

    /// Whether a lower tier is being written.
    pub fn is_busy(&self) -> bool {
        self.cascade.as_ref().is_some_and(Cascade::is_busy)
    }
}

fn without_memory(tiers: &JobTiers) -> JobTiers {
    let all = std::iter::once(tiers.store()).chain(tiers.lower()).cloned().collect::<Vec<_>>();
    JobTiers::of(&all).unwrap_or_default()
}

/// The table of a version as a buffer has it.
pub fn table_of(record: &ObjectRecord) -> Table {
    let objects = record.objects.iter().map(|object| Object {
        key: object.key.clone(),
        bytes: object.bytes,
        element: object.element,
    });
    Table {
        set: record.set.clone(),
        rank: record.rank,
        ranks: record.ranks,
        version: record.version,
        run: record.run,
        objects: objects.collect(),
    }
}

fn record(spaces: &mut BTreeMap<String, u32>, table: &Table) -> ObjectRecord {
    let mut next = spaces.values().max().map_or(0, |last| last + 1);
    let objects = table.objects.iter().map(|object| {
        let space = *spaces.entry(object.key.clone()).or_insert_with(|| {
            next += 1;
            next - 1
        });
        StoredObject { key: object.key.clone(), bytes: object.bytes, element: object.element, space }
    });
    let objects = objects.collect();
    ObjectRecord {
        set: table.set.clone(),
        rank: table.rank,
        ranks: table.ranks,
        version: table.version,
        run: table.run,
        objects,
    }
}

/// Reads an object from an image, piece by piece: `take` gets where each begins, and whole pages.
///
/// # Errors
/// The image is damaged, on all tiers; those of `take`.
pub fn read_object(
    image: &Image,
    object: &StoredObject,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let all = object.run().map_or(0, |run| run.pages.bytes());
    let mut piece = Vec::new();
    (0..all).step_by(PIECE).try_for_each(|at| {
        read_piece(image, object, at, &mut piece)?;
        take(at, &piece)
    })
}

/// Reads the piece of an object that begins here: whole pages.
///
/// # Errors
/// The image is damaged, on all tiers.
pub fn read_piece(image: &Image, object: &StoredObject, at: u64, into: &mut Vec<u8>) -> Result<(), String> {
    let Some(run) = object.run() else { return Ok(()) };
    let rest = usize::try_from(run.pages.bytes().saturating_sub(at));
    into.resize(rest.map_or(PIECE, |rest| rest.min(PIECE)), 0);
    image.read_or_zero(Addr(run.start.0 + at), into).map_err(|error| error.to_string())
}

/// The pages of a version in a buffer. What lies behind the end of an object counts as zero.
struct BufferSource<'a> {
    file: &'a File,
    /// By space: where its object begins in the buffer, and its length.
    places: BTreeMap<u32, (u64, u64)>,
    runs: TakeList,
}

impl<'a> BufferSource<'a> {
    fn new(file: &'a File, record: &ObjectRecord, layout: &Layout) -> BufferSource<'a> {
        let places = record.objects.iter().zip(&layout.places);
        let places = places.map(|(object, place)| (object.space, (*place, object.bytes))).collect();
        let mut runs: Vec<PageRun> = record.objects.iter().filter_map(StoredObject::run).collect();
        runs.sort_unstable_by_key(|run| run.start);
        BufferSource { file, places, runs: TakeList::new(runs) }
    }
}

impl PageSource for BufferSource<'_> {
    fn pages(&self) -> PageCount {
        self.runs.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.runs.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        let (space, own) = split(start);
        let at = own.0 - BASE.0;
        let Some((place, bytes)) = self.places.get(&space) else {
            return Err(PageError::Misuse(format!("no object has the address {start}")));
        };
        debug_assert!(at.is_multiple_of(PAGE));
        let len =
            usize::try_from(bytes.saturating_sub(at)).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let (here, behind) = buffer.split_at_mut(len);
        self.file.read_exact_at(here, place + at)?;
        behind.fill(0);
        Ok(true)
    }
    fn release(&self, _run: PageRun) {}
    fn is_urgent(&self) -> bool {
        false
    }
    fn has_several(&self) -> bool {
        false
    }
}
