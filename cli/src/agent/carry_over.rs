//! What one checkpoint leaves for the next: the parent, the access history, the epoch that runs, the rate of flushes.
//!
//! Owned by the job context, used by the one checkpoint that runs. Invariant: `lineage` is that of the newest committed
//! image of this agent's program (or the one it was restarted from); an image that fails leaves it as it is.
//! Fails by: nothing. A history that cannot be read costs the order of the next flush, never a page.

use super::write_monitor::WriteMonitor;
use super::write_rate::WriteRate;
use holdfast_image::bytes::Name;
use holdfast_image::{Epoch, PAGE_SIZE};
use holdfast_pager::History;
use holdfast_tiers::{Image, Lineage};
use std::sync::Arc;
use std::time::Duration;

/// See the head of the file.
#[derive(Default)]
pub struct CarryOver {
    /// The parent of the next image.
    pub lineage: Option<Arc<Lineage>>,
    /// The number of the next image, as far as it is known without looking: no other process makes images of the job.
    pub next: Option<Epoch>,
    /// The epochs that have ended.
    pub history: History,
    /// The one that runs.
    pub monitor: Option<WriteMonitor>,
    /// How fast flushes were.
    pub flush_rate: FlushRate,
    /// For so many checkpoints a pre-copy is not trusted: one has stored too much in vain.
    pub wary: u32,
    /// How fast the program wrote.
    pub write_rate: WriteRate,
    /// Files that the last image does not have: said once.
    pub unsaved: Vec<Name>,
    /// It was said that images need hosts with the same addresses.
    pub told_of_addresses: bool,
    /// It was said that an image found no room in memory.
    pub told_passed_by: bool,
}

impl CarryOver {
    /// After a restart.
    pub fn of_image(image: &Image) -> CarryOver {
        let history = match image.history() {
            [] => History::new(),
            bytes => History::decode(bytes).unwrap_or_else(|error| {
                tracing::warn!("image {}: {error}; going on without it", image.epoch());
                History::new()
            }),
        };
        // What lies below is not fetched for it: the first image after such a restart is a whole one.
        let may_build_on = !image.protected_only() && image.is_on_first_tier();
        let lineage = may_build_on.then(|| Lineage::of_image(image));
        CarryOver { lineage, history, ..CarryOver::default() }
    }
}

/// How many bytes a flush reads in a second: the mean of the last ones, the newest counting one half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushRate(u64);

impl Default for FlushRate {
    /// Before the first flush: a middling disk.
    fn default() -> FlushRate {
        FlushRate(500_000_000)
    }
}

impl FlushRate {
    /// Flushes of less say nothing: bytes.
    const LEAST: u64 = 4 << 20;

    /// Takes a flush into account.
    pub fn learn(&mut self, pages: u64, took: Duration) {
        let bytes = pages.saturating_mul(PAGE_SIZE);
        let seconds = took.as_secs_f64();
        if bytes >= FlushRate::LEAST && seconds > 0.0 {
            self.0 = (self.0 / 2).saturating_add((bytes as f64 / seconds / 2.0) as u64).max(1);
        }
    }
    /// How long a flush of so many pages will take if no more than `bound` bytes may be written in a second.
    pub fn time_for(&self, pages: u64, bound: Option<u64>) -> Duration {
        let rate = bound.unwrap_or(u64::MAX).min(self.0).max(1);
        Duration::from_secs_f64(pages.saturating_mul(PAGE_SIZE) as f64 / rate as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_what_was_measured() {
        let mut rate = FlushRate::default();
        let pages = 100_000_000 / PAGE_SIZE;
        let second = Duration::from_secs(1);
        assert_eq!(rate.time_for(pages, Some(PAGE_SIZE * pages)), second);
        assert!(rate.time_for(pages, None) < second / 4);
        for _ in 0..20 {
            rate.learn(pages, second);
        }
        let (time, error) = (rate.time_for(pages, None), Duration::from_millis(5));
        assert!(time > second - error && time < second + error, "{time:?}");
        rate.learn(1, Duration::from_secs(100));
        rate.learn(pages, Duration::ZERO);
        assert_eq!(rate.time_for(pages, None), time);
        assert_eq!(rate.time_for(0, Some(0)), Duration::ZERO);
    }
}
