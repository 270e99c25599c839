//! A tier in a map, no kinder than the door allows: for tests, below [`super::Faulty`].
//!
//! It has two states: what can be seen, and what would be there after the host has lost its power. A blob that is
//! finished is there for good when the next one is published in the same folder; until then a power cut may undo that,
//! of each by itself. What writers have left unfinished takes up space until it is cleaned away.
//! Invariant: the same calls and the same seed give the same states.

use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Entry, Listing, Survives, Tier, TierError, TierInfo};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

type Blobs = BTreeMap<BlobName, Stored>;

/// What may be wrong with a blob that is read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// It is not there.
    Missing,
    /// It ends there.
    Truncate(usize),
    /// It has no bytes.
    Zero,
    /// A bit of this byte (modulo its length) is another.
    Flip(usize),
    /// It has a byte more.
    Extend,
}

#[derive(Clone)]
struct Stored {
    bytes: Arc<Vec<u8>>,
    /// Its place in the order of all that was finished: the time, as far as this tier knows.
    order: u64,
}

#[derive(Clone, Default)]
struct State {
    visible: Blobs,
    durable: Blobs,
    /// What was finished since and may be gone after a power cut.
    undurable: Blobs,
    /// By number of the writer.
    unfinished: BTreeMap<u64, (BlobName, Vec<u8>)>,
    /// Counts writers and finished blobs.
    counter: u64,
}

impl State {
    fn used(&self) -> u64 {
        let finished = self.visible.values().map(|stored| stored.bytes.len());
        finished.chain(self.unfinished.values().map(|(_, bytes)| bytes.len())).map(|len| len as u64).sum()
    }

    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Makes durable what was finished in a folder.
    fn sync(&mut self, folder: &str) {
        let all = std::mem::take(&mut self.undurable);
        let (now, later) = all.into_iter().partition(|(name, _)| name.folder() == folder);
        self.undurable = later;
        let now: Blobs = now;
        self.durable.extend(now);
    }

    /// Puts another blob, or none, in the place of one, for good.
    fn replace(&mut self, name: &BlobName, stored: Option<Stored>) {
        for blobs in [&mut self.visible, &mut self.durable] {
            match &stored {
                Some(stored) => blobs.insert(name.clone(), stored.clone()),
                None => blobs.remove(name),
            };
        }
        self.undurable.remove(name);
    }
}

/// A number that looks random, of a seed and a count (splitmix64).
pub(super) fn mix(seed: u64, count: u64) -> u64 {
    let mut z = seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// See the head of the file. A clone is the same tier.
#[derive(Clone)]
pub struct Model {
    info: Arc<TierInfo>,
    state: Arc<Mutex<State>>,
}

impl Model {
    /// An empty tier of any size that outlives the host.
    pub fn new(name: &str) -> Model {
        Model::of(TierInfo {
            name: name.to_owned(),
            survives: Survives::Site,
            capacity_bytes: None,
            bandwidth: None,
            mappable: false,
            single_writer: None,
            read_only: None,
        })
    }

    /// An empty tier with these properties; it is full when it has `capacity_bytes`.
    pub fn of(info: TierInfo) -> Model {
        Model { info: Arc::new(TierInfo { mappable: false, ..info }), state: Arc::default() }
    }

    /// Bytes that it takes up, those of unfinished blobs included.
    pub fn used_bytes(&self) -> u64 {
        self.state.lock().used()
    }

    /// A tier of its own with what is there when the host has lost its power now. The seed decides what of that
    /// which was not durable is there. (A tier as it is when only its user has died is a clone.)
    pub fn after_power_cut(&self, seed: u64) -> Model {
        let old = self.state.lock().clone();
        let mut blobs = old.durable;
        for (count, (name, stored)) in (0..).zip(old.undurable) {
            if mix(seed, count) & 1 == 0 {
                blobs.insert(name, stored);
            }
        }
        let state = State {
            visible: blobs.clone(),
            durable: blobs,
            undurable: Blobs::new(),
            unfinished: old.unfinished,
            counter: old.counter,
        };
        Model { info: Arc::clone(&self.info), state: Arc::new(Mutex::new(state)) }
    }

    /// Damages a blob, if it is there.
    pub fn damage(&self, name: &BlobName, damage: Damage) {
        let mut state = self.state.lock();
        let Some(stored) = state.visible.get(name) else { return };
        let mut bytes = stored.bytes.to_vec();
        match damage {
            Damage::Missing => {}
            Damage::Truncate(len) => bytes.truncate(len),
            Damage::Zero => bytes.clear(),
            Damage::Extend => bytes.push(0),
            Damage::Flip(at) => {
                let len = bytes.len().max(1);
                bytes.iter_mut().skip(at % len).take(1).for_each(|byte| *byte ^= 1);
            }
        }
        let order = stored.order;
        let stored = (damage != Damage::Missing).then(|| Stored { bytes: Arc::new(bytes), order });
        state.replace(name, stored);
    }

    fn object(&self, name: &BlobName) -> String {
        format!("{}/{name}", self.info.name)
    }

    fn check_room(&self, state: &State, name: &BlobName, more: usize) -> Result<(), TierError> {
        match self.info.capacity_bytes {
            Some(capacity) if state.used() + more as u64 > capacity => {
                Err(TierError::Full { object: self.object(name) })
            }
            _ => Ok(()),
        }
    }

    fn check_free(&self, state: &State, name: &BlobName) -> Result<(), TierError> {
        if state.visible.contains_key(name) {
            return Err(TierError::Exists { object: self.object(name) });
        }
        Ok(())
    }
}

impl Tier for Model {
    fn info(&self) -> &TierInfo {
        &self.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        let state = self.state.lock();
        let mut blobs = Vec::new();
        let mut folders = BTreeSet::new();
        for (name, stored) in &state.visible {
            if name.folder() == folder {
                let modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(stored.order));
                blobs.push(Entry { name: name.clone(), len: stored.bytes.len() as u64, modified });
            } else if let Some(below) = below(name.folder(), folder) {
                folders.insert(below.to_owned());
            }
        }
        Ok(Listing { blobs, folders: folders.into_iter().collect() })
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        match self.state.lock().visible.get(name) {
            Some(stored) => {
                Ok(Box::new(ModelBlob { bytes: Arc::clone(&stored.bytes), object: self.object(name) }))
            }
            None => Err(TierError::NotFound { object: self.object(name) }),
        }
    }

    fn create(&self, name: &BlobName, _expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let mut state = self.state.lock();
        self.check_free(&state, name)?;
        let number = state.next();
        state.unfinished.insert(number, (name.clone(), Vec::new()));
        Ok(Box::new(ModelWriter { tier: self.clone(), name: name.clone(), number }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let mut state = self.state.lock();
        self.check_free(&state, name)?;
        self.check_room(&state, name, bytes.len())?;
        let stored = Stored { bytes: Arc::new(bytes.to_vec()), order: state.next() };
        state.visible.insert(name.clone(), stored.clone());
        state.durable.insert(name.clone(), stored);
        state.sync(name.folder());
        Ok(())
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        let mut state = self.state.lock();
        state.replace(name, None);
        Ok(())
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        let mut state = self.state.lock();
        let before = state.used();
        state.unfinished.retain(|_, (name, _)| name.folder() != folder);
        Ok(before - state.used())
    }
}

/// The name of the folder in `folder` on the way to `path`, if it is one.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = if folder.is_empty() { path } else { path.strip_prefix(folder)?.strip_prefix('/')? };
    rest.split('/').next().filter(|part| !part.is_empty())
}

struct ModelBlob {
    bytes: Arc<Vec<u8>>,
    object: String,
}

impl Blob for ModelBlob {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|from| self.bytes.get(from..from.checked_add(buffer.len())?))
            .ok_or_else(|| TierError::Short { object: self.object.clone(), len: self.len() })?;
        buffer.copy_from_slice(found);
        Ok(())
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        None
    }
}

struct ModelWriter {
    tier: Model,
    name: BlobName,
    number: u64,
}

impl ModelWriter {
    fn vanished(&self) -> TierError {
        TierError::NotFound { object: self.tier.object(&self.name) }
    }
}

impl BlobWriter for ModelWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let mut state = self.tier.state.lock();
        self.tier.check_room(&state, &self.name, bytes.len())?;
        let (_, unfinished) = state.unfinished.get_mut(&self.number).ok_or_else(|| self.vanished())?;
        unfinished.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        let mut state = self.tier.state.lock();
        let (name, bytes) = state.unfinished.remove(&self.number).ok_or_else(|| self.vanished())?;
        self.tier.check_free(&state, &name)?;
        let len = bytes.len() as u64;
        let stored = Stored { bytes: Arc::new(bytes), order: state.next() };
        state.visible.insert(name.clone(), stored.clone());
        state.undurable.insert(name, stored);
        Ok(len)
    }
}

impl Drop for ModelWriter {
    fn drop(&mut self) {
        self.tier.state.lock().unfinished.remove(&self.number);
    }
}
