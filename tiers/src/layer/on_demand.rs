//! A tier that is opened when it is used first: a restart reads lower tiers only for what the first has not intact.
//!
//! Used by the agent at a restart. Invariant: a tier that could not be opened is not tried again for a while, so that
//! one that is down costs its patience once in that time, and one that works again is used: a program that was
//! restarted lazily reads from it for days. Fails by: what opening it failed with.

use crate::tier::{Blob, BlobName, BlobWriter, Listing, Survives, Tier, TierError, TierInfo};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// So long what could not be opened is not tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// Opens the tier.
type Open = Box<dyn Fn() -> Result<Box<dyn Tier>, TierError> + Send + Sync>;

/// See the head of the file.
pub struct OnDemand {
    info: TierInfo,
    open: Open,
    opened: OnceLock<Box<dyn Tier>>,
    /// When opening it failed last, and with what.
    failed: Mutex<Option<(Instant, TierError)>>,
    again: Duration,
}

impl OnDemand {
    /// A tier of this address, which `open` opens.
    pub fn new(
        address: &str,
        open: impl Fn() -> Result<Box<dyn Tier>, TierError> + Send + Sync + 'static,
    ) -> OnDemand {
        // As little as can be said of one that was not asked.
        let info = TierInfo {
            name: address.to_owned(),
            survives: Survives::Program,
            capacity_bytes: None,
            bandwidth: None,
            mappable: true,
            single_writer: None,
            read_only: None,
        };
        OnDemand {
            info,
            open: Box::new(open),
            opened: OnceLock::new(),
            failed: Mutex::default(),
            again: AGAIN,
        }
    }

    fn tier(&self) -> Result<&dyn Tier, TierError> {
        if let Some(tier) = self.opened.get() {
            return Ok(&**tier);
        }
        // One at a time: the others have its answer.
        let mut failed = self.failed.lock();
        if let Some(tier) = self.opened.get() {
            return Ok(&**tier);
        }
        match &*failed {
            Some((at, error)) if at.elapsed() < self.again => return Err(error.again()),
            _ => {}
        }
        match (self.open)() {
            Ok(tier) => Ok(&**self.opened.get_or_init(|| tier)),
            Err(error) => {
                *failed = Some((Instant::now(), error.again()));
                Err(error)
            }
        }
    }
}

impl Tier for OnDemand {
    fn info(&self) -> &TierInfo {
        &self.info
    }
    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.tier()?.list(folder)
    }
    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.tier()?.open(name)
    }
    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        self.tier()?.create(name, expected)
    }
    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.tier()?.publish(name, bytes)
    }
    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.tier()?.remove(name)
    }
    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.tier()?.clean(folder)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::Model;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn a_tier_is_opened_once_and_only_if_it_is_used() {
        let opened = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&opened);
        let tier = OnDemand::new("model", move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(Model::new("model")))
        });
        assert_eq!((tier.info().name.as_str(), opened.load(Ordering::Relaxed)), ("model", 0));
        tier.publish(&BlobName::new("a/b").unwrap(), b"x").unwrap();
        assert_eq!(tier.open(&BlobName::new("a/b").unwrap()).unwrap().len(), 1);
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        let count = Arc::clone(&opened);
        let down = OnDemand::new("s3://x", move || {
            count.fetch_add(1, Ordering::Relaxed);
            Err(TierError::Unavailable { object: "s3://x".into(), why: "no route".into() })
        });
        for _ in 0..2 {
            assert!(down.list("").unwrap_err().to_string().contains("no route"));
        }
        assert_eq!(opened.load(Ordering::Relaxed), 2, "one that is down is asked once");
    }

    #[test]
    fn a_tier_that_works_again_is_used() {
        let is_up = Arc::new(AtomicU32::new(0));
        let up = Arc::clone(&is_up);
        let mut tier = OnDemand::new("model", move || match up.load(Ordering::Relaxed) {
            0 => Err(TierError::Denied { object: "model".into(), why: "not yet".into() }),
            _ => Ok(Box::new(Model::new("model"))),
        });
        assert!(matches!(tier.list(""), Err(TierError::Denied { .. })), "as it was said");
        is_up.store(1, Ordering::Relaxed);
        assert!(tier.list("").is_err(), "it is not asked again at once");
        tier.again = Duration::ZERO;
        assert!(tier.list("").is_ok());
    }
}
