//! A tier of which one folder has no more than so many bytes: `--max-space`.
//!
//! Around the first tier of a job. What does not fit is asked room for; without room the writer gets
//! [`TierError::Full`], and what it has written vanishes, as ever. Invariants: blobs that are there and those that are
//! being written have at most `max` bytes together (what was there when the bound was set may be more: nothing is added
//! then); several writers ask for room one after the other; reading passes through.

use crate::tier::{Blob, BlobName, BlobWriter, Listing, Tier, TierError, TierInfo};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Removes something from the folder, if all that may go is worth so many bytes; `false`: nothing was removed.
pub type MakeRoom = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// See the head of the file.
pub struct Bounded {
    below: Arc<dyn Tier>,
    room: Arc<Room>,
}

struct Room {
    max: u64,
    used: Mutex<u64>,
    make: OnceLock<MakeRoom>,
    /// Held while room is made.
    making: Mutex<()>,
    refused: AtomicBool,
}

impl Room {
    fn try_take(&self, bytes: u64) -> bool {
        let mut used = self.used.lock();
        let fits = used.checked_add(bytes).is_some_and(|sum| sum <= self.max);
        *used += if fits { bytes } else { 0 };
        fits
    }

    fn take(&self, bytes: u64, name: &str) -> Result<(), TierError> {
        if self.try_take(bytes) {
            return Ok(());
        }
        let _making = self.making.lock();
        while !self.try_take(bytes) {
            let missing = self.used.lock().saturating_add(bytes).saturating_sub(self.max);
            if !self.make.get().is_some_and(|make| make(missing)) {
                self.refused.store(true, Ordering::Relaxed);
                return Err(TierError::Full { object: name.to_owned() });
            }
        }
        Ok(())
    }

    fn give(&self, bytes: u64) {
        let mut used = self.used.lock();
        *used = used.saturating_sub(bytes);
    }
}

impl Bounded {
    /// `below`, of which `folder`, the only one that is used, has at most `max` bytes.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn new(below: Arc<dyn Tier>, folder: &str, max: u64) -> Result<Bounded, TierError> {
        let used = below.list(folder)?.blobs.iter().map(|entry| entry.len).sum();
        let (make, making, refused) = (OnceLock::new(), Mutex::new(()), AtomicBool::new(false));
        Ok(Bounded { below, room: Arc::new(Room { max, used: Mutex::new(used), make, making, refused }) })
    }

    /// The bound.
    pub fn max(&self) -> u64 {
        self.room.max
    }

    /// Who is asked when something does not fit. The first one counts.
    pub fn on_full(&self, make: MakeRoom) {
        let _ = self.room.make.set(make);
    }

    /// Whether something did not fit since the last call.
    pub fn take_refused(&self) -> bool {
        self.room.refused.swap(false, Ordering::Relaxed)
    }

    fn object(&self, name: &BlobName) -> String {
        format!("{}/{name}", self.below.info().name)
    }
}

impl Tier for Bounded {
    fn info(&self) -> &TierInfo {
        self.below.info()
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.below.list(folder)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.below.open(name)
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let below = Some(self.below.create(name, expected)?);
        Ok(Box::new(Writer { below, room: Arc::clone(&self.room), taken: 0, object: self.object(name) }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let len = bytes.len() as u64;
        self.room.take(len, &self.object(name))?;
        self.below.publish(name, bytes).inspect_err(|_| self.room.give(len))
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        let len = self.below.open(name).map_or(0, |blob| blob.len());
        self.below.remove(name)?;
        self.room.give(len);
        Ok(())
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.below.clean(folder)
    }
}

struct Writer {
    /// Until it is finished.
    below: Option<Box<dyn BlobWriter>>,
    room: Arc<Room>,
    /// Bytes of it that count.
    taken: u64,
    object: String,
}

impl BlobWriter for Writer {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.room.take(bytes.len() as u64, &self.object)?;
        self.taken += bytes.len() as u64;
        self.below.as_mut().map_or(Ok(()), |below| below.append(bytes))
    }

    fn finish(mut self: Box<Self>) -> Result<u64, TierError> {
        let Some(below) = self.below.take() else { return Ok(0) };
        let len = below.finish()?;
        self.taken = 0;
        Ok(len)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.below = None;
        self.room.give(self.taken);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::Model;

    fn name(text: &str) -> BlobName {
        BlobName::new(text).unwrap()
    }

    #[test]
    fn nothing_goes_beyond_the_bound_and_what_goes_makes_room() {
        let below: Arc<dyn Tier> = Arc::new(Model::new("model"));
        below.publish(&name("job/old"), &[0; 40]).unwrap();
        let tier = Arc::new(Bounded::new(Arc::clone(&below), "job", 100).unwrap());
        tier.publish(&name("job/a"), &[0; 50]).unwrap();
        let mut writer = tier.create(&name("job/b"), None).unwrap();
        writer.append(&[0; 10]).unwrap();
        assert!(matches!(writer.append(&[0; 1]), Err(TierError::Full { .. })));
        assert!(tier.take_refused() && !tier.take_refused());
        drop(writer);
        assert!(matches!(tier.publish(&name("job/a"), &[0; 5]), Err(TierError::Exists { .. })));
        let mut writer = tier.create(&name("job/b"), None).unwrap();
        writer.append(&[0; 10]).unwrap();
        assert_eq!(writer.finish().unwrap(), 10);
        let weak = Arc::downgrade(&tier);
        tier.on_full(Box::new(move |_| {
            let tier = weak.upgrade().unwrap();
            let had = tier.open(&name("job/old")).is_ok();
            tier.remove(&name("job/old")).unwrap();
            had
        }));
        tier.publish(&name("job/c"), &[0; 40]).unwrap();
        assert!(matches!(tier.publish(&name("job/d"), &[0; 1]), Err(TierError::Full { .. })));
        assert_eq!(below.list("job").unwrap().blobs.len(), 3);
    }
}
