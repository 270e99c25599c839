//! A version on its way from the store to memory, which several threads may read.
//!
//! The thread "up" reads ahead, at a low priority: beside a busy program it gets little of a processor. A client that
//! waits for what is being read ahead would wait for that, so its own thread reads along: the pieces that no thread
//! has begun, then those that another one has and does not finish. Invariants: what is read twice is written twice
//! with the same bytes, which were checked; a buffer into which a late thread may still write is not used again; who
//! sees that all is there, or that it failed, ends it, once.

use super::Server;
use super::buffers::Buffer;
use super::ranks::{self, PIECE, Source, table_of};
use super::state::{MEMORY, STORE, State, is_of};
use crate::names::objects_of;
use holdfast_image::Epoch;
use holdfast_image::objects::ObjectRecord;
use holdfast_objects::buffer::{Layout, State as BufferState};
use holdfast_tiers::Image;
use holdfast_tiers::policy::{Place, SegmentId, Transfer};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

/// How long a client waits for a piece that another thread is reading: some times what a piece takes.
const PATIENCE: Duration = Duration::from_millis(5);

/// See the head of the file.
pub struct Fetch {
    transfer: Transfer,
    source: Source,
    epoch: Epoch,
    buffer: Buffer,
    opened: OnceLock<Opened>,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// An image that is read.
struct Opened {
    image: Image,
    record: ObjectRecord,
    layout: Layout,
    /// Number of an object, and where in it each piece begins.
    pieces: Vec<(usize, u64)>,
}

#[derive(Default)]
struct Progress {
    /// Those before this one were begun.
    begun: usize,
    /// Those that are there.
    filled: BTreeSet<usize>,
    /// A piece may still be written by a thread that was not waited for.
    is_late: bool,
    failed: Option<String>,
}

impl Fetch {
    /// Reads pieces that no thread has begun; `waited`: also those that another thread does not finish. Whether it is
    /// over: all is there, or it has failed.
    fn work(&self, waited: bool) -> bool {
        let opened = match self.open() {
            Ok(opened) => opened,
            Err(why) => return self.fail(why),
        };
        let mut bytes = Vec::new();
        while let Some(piece) = self.next(opened, waited) {
            if let Err(why) = opened.read(piece, &self.buffer, &mut bytes) {
                return self.fail(why);
            }
            self.progress.lock().filled.insert(piece);
            self.changed.notify_all();
        }
        let progress = self.progress.lock();
        progress.failed.is_some() || progress.filled.len() == opened.pieces.len()
    }

    fn fail(&self, why: String) -> bool {
        self.progress.lock().failed.get_or_insert(why);
        self.changed.notify_all();
        true
    }

    /// The image. Two threads may open it at once: neither waits for the other.
    fn open(&self) -> Result<&Opened, String> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Opened::new(&self.source, self.epoch)?;
        Ok(self.opened.get_or_init(|| opened))
    }

    /// The piece that is to be read now.
    fn next(&self, opened: &Opened, waited: bool) -> Option<usize> {
        let all = opened.pieces.len();
        let mut progress = self.progress.lock();
        loop {
            if progress.failed.is_some() || progress.filled.len() == all {
                return None;
            }
            if progress.begun < all {
                progress.begun += 1;
                return Some(progress.begun - 1);
            }
            if !waited {
                return None;
            }
            let is_first = |piece: &usize| !progress.filled.contains(piece);
            let slow = (0..all).find(is_first)?;
            if self.changed.wait_for(&mut progress, PATIENCE).timed_out() && !progress.filled.contains(&slow)
            {
                progress.is_late = true;
                return Some(slow);
            }
        }
    }

    /// What has come of it.
    fn outcome(&self) -> Result<(), String> {
        if let Some(why) = self.progress.lock().failed.clone() {
            return Err(why);
        }
        let layout = &self.open()?.layout;
        self.buffer.write_head(layout, BufferState::Stored).map_err(|error| error.to_string())
    }
}

/// As the thread that reads ahead does, step by step.
#[cfg(test)]
impl Fetch {
    pub fn begin_piece(&self) -> Option<usize> {
        self.next(self.open().ok()?, false)
    }

    pub fn read(&self, piece: usize, bytes: &mut Vec<u8>) -> Result<(), String> {
        self.open()?.read(piece, &self.buffer, bytes)
    }

    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Opened {
    fn new((job, below): &Source, epoch: Epoch) -> Result<Opened, String> {
        let image = job.open_image_from(epoch, below).map_err(|error| error.to_string())?;
        let record = objects_of(&image).map_err(|error| error.to_string())?;
        let layout = Layout::of(&table_of(&record))?;
        let pieces = record.objects.iter().enumerate().flat_map(|(number, object)| {
            let all = object.run().map_or(0, |run| run.pages.bytes());
            (0..all).step_by(PIECE).map(move |at| (number, at))
        });
        let pieces = pieces.collect();
        Ok(Opened { image, record, layout, pieces })
    }

    fn read(&self, piece: usize, to: &Buffer, bytes: &mut Vec<u8>) -> Result<(), String> {
        let (number, at) = self.pieces[piece];
        ranks::read_piece(&self.image, &self.record.objects[number], at, bytes)?;
        let place = self.layout.places[number] + at;
        to.file.write_all_at(bytes, place).map_err(|error| format!("filling a buffer: {error}"))
    }
}

/// Fills a buffer from an image.
///
/// # Errors
/// The image is damaged, on all tiers; the buffer cannot be written.
pub fn read(source: &Source, epoch: Epoch, to: &Buffer) -> Result<(), String> {
    let opened = Opened::new(source, epoch)?;
    let mut bytes = Vec::new();
    (0..opened.pieces.len()).try_for_each(|piece| opened.read(piece, to, &mut bytes))?;
    to.write_head(&opened.layout, BufferState::Stored).map_err(|error| error.to_string())
}

/// Whether the policy wants it from the store in memory.
pub fn is_up(transfer: &Transfer) -> bool {
    is_of(transfer, Place::Tier(STORE), Place::Tier(MEMORY))
}

/// A copy into memory that a client waits for.
pub enum CopyUp {
    ToBegin(Transfer),
    UnderWay(Arc<Fetch>),
}

impl State {
    /// The copy into memory of a segment, if one is to be made or is being made.
    pub fn copy_up_of(&mut self, segment: SegmentId) -> Option<CopyUp> {
        if let Some(fetch) = self.fetching.get(&segment) {
            return Some(CopyUp::UnderWay(Arc::clone(fetch)));
        }
        let begun = self.take_due(|_, transfer| transfer.segment == segment && is_up(transfer));
        begun.map(CopyUp::ToBegin)
    }
}

impl Server {
    /// Copies from the store to memory.
    pub(super) fn fetch(&self, transfer: Transfer) {
        match self.begin_fetch(transfer) {
            Ok(fetch) => self.work_on(&fetch, false),
            Err(why) => self.report(transfer, Err(why)),
        }
    }

    /// Copies what the caller waits for into memory, or helps with that.
    pub(super) fn help(&self, copy: &CopyUp) {
        match copy {
            CopyUp::UnderWay(fetch) => self.work_on(fetch, true),
            CopyUp::ToBegin(transfer) => self.fetch(*transfer),
        }
    }

    pub(super) fn begin_fetch(&self, transfer: Transfer) -> Result<Arc<Fetch>, String> {
        let mut state = self.state.lock();
        let segment = transfer.segment;
        let Some(bytes) = state.held.get(&segment).map(|held| held.bytes) else {
            return Err("it was given up".into());
        };
        let (source, epoch) = state.place_of(segment).ok_or("the store has it no longer")?;
        let buffer = state.buffers.take(bytes, &BTreeSet::new());
        let buffer = buffer.map_err(|error| format!("making a buffer: {error}"))?;
        let (opened, progress, changed) = (OnceLock::new(), Mutex::default(), Condvar::new());
        let fetch = Arc::new(Fetch { transfer, source, epoch, buffer, opened, progress, changed });
        state.fetching.insert(segment, Arc::clone(&fetch));
        Ok(fetch)
    }

    fn work_on(&self, fetch: &Arc<Fetch>, waited: bool) {
        let segment = fetch.transfer.segment;
        if !fetch.work(waited) {
            return;
        }
        let ours = self.state.lock().fetching.extract_if(.., |_, other| Arc::ptr_eq(other, fetch)).next();
        if ours.is_none() {
            // Another thread has ended it.
            return;
        }
        let mut done = fetch.outcome();
        let mut state = self.state.lock();
        let buffer = fetch.buffer.clone();
        if fetch.progress.lock().is_late {
            state.buffers.use_once(buffer.number);
        }
        match (&done, state.held.get_mut(&segment)) {
            (Ok(()), Some(held)) => held.buffer = Some(buffer),
            (_, held) => {
                if held.is_none() {
                    done = done.and(Err("it was given up".into()));
                }
                state.buffers.give_up(buffer);
            }
        }
        drop(state);
        self.report(fetch.transfer, done);
    }
}
