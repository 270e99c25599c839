//! A tier that is no faster than the user wants it: bytes per second in each direction, and a delay before each call.
//!
//! A stand-in for slow tiers in tests and measurements.
//! Invariants: all threads together keep to one rate in each direction; what the tier below takes itself is part of
//! that time, not added to it: a writer is at most [`AHEAD`] before its time, and not at all when it has finished; time
//! is that of a [`Clock`], so that a test need not wait. Nothing can be mapped: mapped bytes would pass the layer by.

use holdfast_tiers::ByteClock;
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Listing, Tier, TierError, TierInfo};
use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// So far may a writer be before the time that its bytes have, as a device with a cache of its own.
const AHEAD: Duration = Duration::from_millis(20);

/// Where a [`Throttled`] tier has its time from.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Instant;
    /// Returns when `time` has passed.
    fn sleep(&self, time: Duration);
}

/// The time of the system.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

/// What a tier may do in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes that are written per second; none: as many as it can.
    pub write: Option<u64>,
    /// Bytes that are read per second; none: as many as it can.
    pub read: Option<u64>,
    /// Every call takes so much longer.
    pub delay: Duration,
}

/// See the head of the file.
pub struct Throttled {
    below: Box<dyn Tier>,
    info: TierInfo,
    link: Arc<Link>,
}

/// What the blobs of a tier share.
struct Link {
    write: Direction,
    read: Direction,
    delay: Duration,
    clock: Arc<dyn Clock>,
}

struct Direction {
    pace: ByteClock,
    rate: Option<u64>,
}

impl Link {
    /// Until when so many bytes have their time.
    fn due(&self, direction: &Direction, bytes: usize) -> Instant {
        let now = self.clock.now();
        let rate = direction.rate.filter(|_| bytes > 0);
        rate.map_or(now, |rate| direction.pace.reserve(now, bytes as u64, rate))
    }

    /// Waits until then, and for the time of a call.
    fn wait(&self, due: Instant) {
        let wait = due.saturating_duration_since(self.clock.now()).saturating_add(self.delay);
        if !wait.is_zero() {
            self.clock.sleep(wait);
        }
    }

    /// A call that moves so many bytes.
    fn pass<T>(&self, direction: &Direction, bytes: usize, call: impl FnOnce() -> T) -> T {
        let due = self.due(direction, bytes);
        let done = call();
        self.wait(due);
        done
    }

    fn write<T>(&self, bytes: usize, call: impl FnOnce() -> T) -> T {
        self.pass(&self.write, bytes, call)
    }

    fn read<T>(&self, bytes: usize, call: impl FnOnce() -> T) -> T {
        self.pass(&self.read, bytes, call)
    }
}

impl Throttled {
    /// `below`, no faster than `limits`.
    pub fn new(below: Box<dyn Tier>, limits: Limits, clock: Arc<dyn Clock>) -> Throttled {
        let mut info = below.info().clone();
        info.mappable = false;
        info.bandwidth = match (info.bandwidth, limits.write) {
            (Some(own), Some(limit)) => Some(own.min(limit)),
            (own, limit) => own.or(limit),
        };
        let direction = |rate| Direction { pace: ByteClock::default(), rate };
        let (write, read) = (direction(limits.write), direction(limits.read));
        let link = Arc::new(Link { write, read, delay: limits.delay, clock });
        Throttled { below, info, link }
    }
}

impl Tier for Throttled {
    fn info(&self) -> &TierInfo {
        &self.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.link.read(0, || self.below.list(folder))
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        let below = self.link.read(0, || self.below.open(name))?;
        Ok(Box::new(SlowBlob { below, link: Arc::clone(&self.link) }))
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let below = self.link.write(0, || self.below.create(name, expected))?;
        Ok(Box::new(SlowWriter { below, link: Arc::clone(&self.link), due: None }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.link.write(bytes.len(), || self.below.publish(name, bytes))
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.link.write(0, || self.below.remove(name))
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.link.write(0, || self.below.clean(folder))
    }
}

struct SlowBlob {
    below: Box<dyn Blob>,
    link: Arc<Link>,
}

impl Blob for SlowBlob {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        self.link.read(buffer.len(), || self.below.read_at(offset, buffer))
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        None
    }
}

struct SlowWriter {
    below: Box<dyn BlobWriter>,
    link: Arc<Link>,
    /// Until when all that was appended has its time.
    due: Option<Instant>,
}

impl BlobWriter for SlowWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let due = self.link.due(&self.link.write, bytes.len());
        self.due = Some(due);
        let done = self.below.append(bytes);
        self.link.wait(due.checked_sub(AHEAD).unwrap_or(due));
        done
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        let done = self.below.finish();
        self.link.wait(self.due.unwrap_or_else(|| self.link.clock.now()));
        done
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Model;
    use parking_lot::Mutex;

    /// Time that passes only where a thread sleeps.
    struct Virtual {
        start: Instant,
        passed: Mutex<Duration>,
    }

    impl Clock for Virtual {
        fn now(&self) -> Instant {
            self.start + *self.passed.lock()
        }

        fn sleep(&self, time: Duration) {
            *self.passed.lock() += time;
        }
    }

    #[test]
    fn bytes_and_calls_have_their_time_in_each_direction() {
        let clock = Arc::new(Virtual { start: Instant::now(), passed: Mutex::default() });
        let limits = Limits { write: Some(1 << 20), read: Some(4 << 20), delay: Duration::from_millis(10) };
        let tier =
            Throttled::new(Box::new(Model::new("model")), limits, Arc::clone(&clock) as Arc<dyn Clock>);
        assert_eq!(tier.info().bandwidth, Some(1 << 20));
        let (name, other) = (BlobName::new("a/b").unwrap(), BlobName::new("a/c").unwrap());
        let mut writer = tier.create(&name, None).unwrap();
        for _ in 0..4 {
            writer.append(&[7; 1 << 20]).unwrap();
        }
        writer.finish().unwrap();
        tier.publish(&other, &[1; 1 << 20]).unwrap();
        // Five MiB and seven calls; what a burst may catch up is at most a quarter of a second.
        let written = *clock.passed.lock();
        assert!(
            written >= Duration::from_millis(4750) && written <= Duration::from_millis(5080),
            "{written:?}"
        );

        let mut buffer = vec![0; 4 << 20];
        tier.open(&name).unwrap().read_at(0, &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 7));
        let read = *clock.passed.lock() - written;
        assert!(read >= Duration::from_millis(930) && read <= Duration::from_millis(1030), "{read:?}");
    }

    #[test]
    fn without_limits_nothing_waits() {
        let clock = Arc::new(Virtual { start: Instant::now(), passed: Mutex::default() });
        let limits = Limits::default();
        let tier =
            Throttled::new(Box::new(Model::new("model")), limits, Arc::clone(&clock) as Arc<dyn Clock>);
        tier.publish(&BlobName::new("x").unwrap(), &[0; 1 << 20]).unwrap();
        assert_eq!(tier.list("").unwrap().blobs.len(), 1);
        assert!(clock.passed.lock().is_zero());
    }
}
