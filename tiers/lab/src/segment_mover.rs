//! Segments over tiers, moved as the policy says: the threads that obey [`Hierarchy::step`].
//!
//! Called by who puts segments and wants them back, one by one (`benches/hierarchy`); images move by
//! [`holdfast_tiers::stack::Cascade`].
//! Each link between two tiers has a thread for each direction. What goes from or to the caller's buffer is copied by
//! the caller's own thread, when the policy says that it is its turn: nothing is copied twice.
//! Invariants: the policy is asked under one lock, under which nothing is read or written; a copy to a tier begins
//! when all that was given up there before is removed, so that it has its room, and no removal meets a newer blob of
//! the same name; whatever arrives anywhere has the checksum that it had when it was written; a copy that fails leaves
//! nothing, is told to the policy, and is never taken for the segment. Memory: a buffer for each thread.

use holdfast_tiers::policy::{
    Action, Event, Hierarchy, Place, PolicyError, SegmentId, TierLimits, Ties, Transfer,
};
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Tier, TierError};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Largest piece that is read and written at once.
const PIECE: usize = 1 << 20;

/// A tier, and what the policy has to know of it. Its capacity is less than what it has: names and manifests are not
/// counted.
pub struct MoverTier {
    /// The tier.
    pub tier: Arc<dyn Tier>,
    /// Its limits.
    pub limits: TierLimits,
}

/// Why a segment was not written or not restored.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// No tier takes it, or none has it intact.
    #[error("{0}")]
    Tier(#[from] TierError),
    /// It was written before, is on no tier, or the policy has a defect.
    #[error("{0}; nothing was changed")]
    Policy(#[from] PolicyError),
    /// The buffer is not as long as the segment.
    #[error("segment {segment} has {bytes} bytes, the buffer {buffer}; give a buffer of the same length")]
    Length {
        /// The segment.
        segment: u64,
        /// Its length.
        bytes: u64,
        /// That of the buffer.
        buffer: u64,
    },
    /// [`SegmentMover::stop`] was called.
    #[error("the tiers are being closed")]
    Stopped,
}

/// See the head of the file.
pub struct SegmentMover {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    tiers: Vec<Arc<dyn Tier>>,
    folder: String,
    start: Instant,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// By tier: locked while what was given up there is removed.
    removing: Vec<Mutex<()>>,
}

/// What is known of a segment beside the policy.
#[derive(Clone, Copy)]
struct Known {
    bytes: u64,
    checksum: u64,
}

struct Inner {
    policy: Hierarchy,
    known: BTreeMap<SegmentId, Known>,
    /// Copies that are to begin.
    due: Vec<Transfer>,
    /// By tier: what is to be removed.
    given_up: Vec<Vec<SegmentId>>,
    /// For the callers that wait for them.
    lost: Vec<SegmentId>,
    wake: Option<Instant>,
    /// What went wrong last, by tier.
    trouble: Vec<Option<String>>,
    stopping: bool,
}

impl SegmentMover {
    /// Empty tiers, the fastest first; blobs are in `folder` of each, which has no other user.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(tiers: Vec<MoverTier>, folder: &str, ties: Ties) -> std::io::Result<SegmentMover> {
        let limits: Vec<TierLimits> = tiers.iter().map(|tier| tier.limits).collect();
        let count = tiers.len();
        let inner = Inner {
            policy: Hierarchy::new(&limits, ties),
            known: BTreeMap::new(),
            due: Vec::new(),
            given_up: vec![Vec::new(); count],
            lost: Vec::new(),
            wake: None,
            trouble: vec![None; count],
            stopping: false,
        };
        let shared = Arc::new(Shared {
            tiers: tiers.into_iter().map(|tier| tier.tier).collect(),
            folder: folder.to_owned(),
            start: Instant::now(),
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            removing: (0..count).map(|_| Mutex::default()).collect(),
        });
        let mut mover = SegmentMover { shared, threads: Vec::new() };
        for (link, is_down) in (1..count).flat_map(|link| [(link, true), (link, false)]) {
            let shared = Arc::clone(&mover.shared);
            let thread = thread::Builder::new().name(format!("mover-{link}"));
            mover.threads.push(thread.spawn(move || shared.serve(link, is_down))?);
        }
        Ok(mover)
    }

    /// Writes a segment, and returns when the fastest tier that takes it has it. `discardable`: see [`Event::Write`].
    ///
    /// # Errors
    /// It was written before, or no tier takes it.
    pub fn write(&self, segment: SegmentId, bytes: &[u8], discardable: bool) -> Result<(), MoveError> {
        let len = bytes.len() as u64;
        let known = Known { bytes: len, checksum: xxh3_64(bytes) };
        let shared = &self.shared;
        shared.step(Event::Write { segment, bytes: len, discardable }, |inner| {
            inner.known.insert(segment, known);
        })?;
        let mine = |transfer: &Transfer| transfer.segment == segment && transfer.from == Place::Application;
        let mut failed = None;
        while let Some(transfer) = shared.wait_for(segment, mine)? {
            match shared.report(transfer, shared.put(transfer, bytes))? {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or(PolicyError::Unknown(segment).into(), MoveError::Tier))
    }

    /// Fills the buffer with a segment, from the fastest tier that has it intact.
    ///
    /// # Errors
    /// It was never written, or discarded; no tier has it intact; the buffer has another length.
    pub fn restore(&self, segment: SegmentId, buffer: &mut [u8]) -> Result<(), MoveError> {
        let shared = &self.shared;
        let known = shared.known(segment)?;
        if buffer.len() as u64 != known.bytes {
            let (bytes, buffer) = (known.bytes, buffer.len() as u64);
            return Err(MoveError::Length { segment: segment.0, bytes, buffer });
        }
        shared.step(Event::Restore(segment), |_| ())?;
        let mine = |transfer: &Transfer| transfer.segment == segment && transfer.to == Place::Application;
        let mut failed = None;
        while let Some(transfer) = shared.wait_for(segment, mine)? {
            match shared.report(transfer, shared.get(transfer, known.checksum, buffer))? {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or(PolicyError::Unknown(segment).into(), MoveError::Tier))
    }

    /// It will be restored, after those that were hinted at before.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn hint(&self, segment: SegmentId) -> Result<(), MoveError> {
        Ok(self.shared.step(Event::Hint(segment), |_| ())?)
    }

    /// Prefetching may begin.
    ///
    /// # Errors
    /// A defect of the policy.
    pub fn start_prefetch(&self) -> Result<(), MoveError> {
        Ok(self.shared.step(Event::StartPrefetch, |_| ())?)
    }

    /// Waits until all segments are where they are to be in the end; `false`: they are not, after that time.
    pub fn wait_flushed(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut inner = self.shared.inner.lock();
        while !inner.policy.is_flushed() {
            if inner.stopping || Instant::now() >= until {
                return false;
            }
            inner = self.shared.pause(inner, Some(until));
        }
        true
    }

    /// What went wrong last on a tier, until something goes well there.
    pub fn trouble(&self, tier: usize) -> Option<String> {
        self.shared.inner.lock().trouble.get(tier).cloned().flatten()
    }

    /// Ends the threads, each when its copy has ended, and waits for them. What was not flushed is where it was.
    pub fn stop(mut self) {
        self.shared.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Ends the threads without waiting: one may be caught in a call on a dead server.
impl Drop for SegmentMover {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn end(&self) {
        self.inner.lock().stopping = true;
        self.changed.notify_all();
    }

    fn known(&self, segment: SegmentId) -> Result<Known, PolicyError> {
        self.inner.lock().known.get(&segment).copied().ok_or(PolicyError::Unknown(segment))
    }

    fn name(&self, segment: SegmentId) -> Result<BlobName, TierError> {
        BlobName::within(&self.folder, &format!("segment-{:016x}", segment.0)).ok_or_else(|| {
            let why = "no tier takes such a folder; give it another name".to_owned();
            TierError::Settings { object: self.folder.clone(), why }
        })
    }

    /// Tells the policy, and takes note of what it says. `also`: if it was no error, under the same lock.
    fn step(&self, event: Event, also: impl FnOnce(&mut Inner)) -> Result<(), PolicyError> {
        let mut inner = self.inner.lock();
        let actions = inner.policy.step(self.now(), event)?;
        also(&mut inner);
        let mut clear = Vec::new();
        for action in actions {
            match action {
                Action::Erase(segment, tier) => {
                    inner.given_up[tier].push(segment);
                    clear.push(tier);
                    if !inner.policy.knows(segment) {
                        inner.known.remove(&segment);
                    }
                }
                Action::Copy(transfer) => {
                    // Who makes it removes first.
                    clear.retain(|&tier| transfer.to != Place::Tier(tier));
                    inner.due.push(transfer);
                }
                Action::Wake(at) => {
                    let at = self.start + Duration::from_nanos(at);
                    inner.wake = Some(inner.wake.map_or(at, |wake| wake.min(at)));
                }
                Action::Lost(segment) => inner.lost.push(segment),
            }
        }
        drop(inner);
        self.changed.notify_all();
        clear.into_iter().for_each(|tier| self.remove_given_up(tier));
        Ok(())
    }

    /// Tells the policy how a copy ended, and gives that back.
    fn report(
        &self,
        transfer: Transfer,
        done: Result<(), TierError>,
    ) -> Result<Result<(), TierError>, PolicyError> {
        let (event, trouble) = match &done {
            Ok(()) => (Event::Copied(transfer), None),
            Err(error) => (Event::Failed(transfer), Some(error.to_string())),
        };
        self.step(event, |inner| inner.trouble[transfer.link()] = trouble)?;
        Ok(done)
    }

    /// Waits for a change, the time at which the policy wants to be asked again, or until then.
    fn pause<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Inner> {
        let first = [inner.wake, until].into_iter().flatten().min();
        match first {
            None => self.changed.wait(&mut inner),
            Some(first) => {
                self.changed.wait_until(&mut inner, first);
            }
        }
        if inner.wake.take_if(|wake| *wake <= Instant::now()).is_some() {
            drop(inner);
            // A tick is no error but by a defect, which the next caller meets as well.
            let _ = self.step(Event::Tick, |_| ());
            inner = self.inner.lock();
        }
        inner
    }

    /// Waits for a copy that the caller is to make; `None`: the segment is lost.
    fn wait_for(
        &self,
        segment: SegmentId,
        mine: impl Fn(&Transfer) -> bool,
    ) -> Result<Option<Transfer>, MoveError> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(index) = inner.due.iter().position(&mine) {
                return Ok(Some(inner.due.swap_remove(index)));
            }
            if let Some(index) = inner.lost.iter().position(|&lost| lost == segment) {
                inner.lost.swap_remove(index);
                return Ok(None);
            }
            if inner.stopping {
                return Err(MoveError::Stopped);
            }
            inner = self.pause(inner, None);
        }
    }

    /// The thread of one direction of a link.
    fn serve(&self, link: usize, is_down: bool) {
        let mut buffer = vec![0; PIECE];
        let mine = |transfer: &Transfer| {
            let application = [transfer.from, transfer.to].contains(&Place::Application);
            !application && (transfer.link(), transfer.is_down()) == (link, is_down)
        };
        loop {
            let transfer = {
                let mut inner = self.inner.lock();
                loop {
                    if inner.stopping {
                        return;
                    }
                    if let Some(index) = inner.due.iter().position(mine) {
                        break inner.due.swap_remove(index);
                    }
                    inner = self.pause(inner, None);
                }
            };
            // The policy is told what it asked for: an error is a defect, which the next caller meets.
            let _ = self.report(transfer, self.copy(transfer, &mut buffer));
        }
    }

    /// Removes what was given up on a tier. What cannot be removed now is tried again before the next copy there.
    fn remove_given_up(&self, tier: usize) {
        let _removing = self.removing[tier].lock();
        let list = std::mem::take(&mut self.inner.lock().given_up[tier]);
        for segment in list {
            if let Err(error) = self.name(segment).and_then(|name| self.tiers[tier].remove(&name)) {
                let mut inner = self.inner.lock();
                inner.given_up[tier].push(segment);
                inner.trouble[tier] = Some(error.to_string());
            }
        }
    }

    /// Begins a blob, in room that is free by now. An older one of this name is gone: what may be there still will be
    /// removed later, and must not take the new one with it.
    fn create(&self, tier: usize, segment: SegmentId, bytes: u64) -> Result<Box<dyn BlobWriter>, TierError> {
        self.remove_given_up(tier);
        let name = self.name(segment)?;
        if self.inner.lock().given_up[tier].contains(&segment) {
            return Err(TierError::Exists { object: self.object(tier, &name) });
        }
        self.tiers[tier].create(&name, Some(bytes))
    }

    /// From the caller's buffer.
    fn put(&self, transfer: Transfer, bytes: &[u8]) -> Result<(), TierError> {
        let Place::Tier(to) = transfer.to else { return Ok(()) };
        let mut writer = self.create(to, transfer.segment, bytes.len() as u64)?;
        bytes.chunks(PIECE).try_for_each(|piece| writer.append(piece))?;
        writer.finish().map(drop)
    }

    /// Into the caller's buffer.
    fn get(&self, transfer: Transfer, checksum: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let Place::Tier(from) = transfer.from else { return Ok(()) };
        let name = self.name(transfer.segment)?;
        let blob = self.open(from, &name, buffer.len() as u64)?;
        let mut at = 0;
        for piece in buffer.chunks_mut(PIECE) {
            blob.read_at(at, piece)?;
            at += piece.len() as u64;
        }
        self.check(from, &name, xxh3_64(buffer) == checksum)
    }

    /// From one tier to another.
    fn copy(&self, transfer: Transfer, buffer: &mut [u8]) -> Result<(), TierError> {
        let (Place::Tier(from), Place::Tier(to)) = (transfer.from, transfer.to) else { return Ok(()) };
        let name = self.name(transfer.segment)?;
        let known = self.inner.lock().known.get(&transfer.segment).copied();
        let known = known.ok_or_else(|| TierError::NotFound { object: self.object(from, &name) })?;
        let blob = self.open(from, &name, known.bytes)?;
        let mut writer = self.create(to, transfer.segment, known.bytes)?;
        let (mut at, mut hash) = (0, Xxh3::new());
        while at < known.bytes {
            let len = usize::try_from(known.bytes - at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
            let piece = &mut buffer[..len];
            blob.read_at(at, piece)?;
            hash.update(piece);
            writer.append(piece)?;
            at += len as u64;
        }
        self.check(from, &name, hash.digest() == known.checksum)?;
        writer.finish().map(drop)
    }

    fn open(&self, tier: usize, name: &BlobName, bytes: u64) -> Result<Box<dyn Blob>, TierError> {
        let blob = self.tiers[tier].open(name)?;
        let len = blob.len();
        if len < bytes {
            return Err(TierError::Short { object: self.object(tier, name), len });
        }
        self.check(tier, name, len == bytes)?;
        Ok(blob)
    }

    fn check(&self, tier: usize, name: &BlobName, is_right: bool) -> Result<(), TierError> {
        if is_right {
            return Ok(());
        }
        let what = "its bytes do not match the checksum that it was written with".to_owned();
        Err(TierError::Damaged { object: self.object(tier, name), offset: 0, what })
    }

    fn object(&self, tier: usize, name: &BlobName) -> String {
        format!("{}/{name}", self.tiers[tier].info().name.trim_end_matches('/'))
    }
}
