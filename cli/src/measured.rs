//! What checkpoints of a job cost and what its restarts take, by what its images and its tiers have recorded: levels to
//! plan with.
//!
//! * The lowest level's `cost` is the median stop, its `slow` what writers were held of the median flush.
//! * `flush`: of the first place what its images took; of a lower tier that of the store, and the bytes that were added
//!   by the speed of its last copies.
//! * `restart`: the last one, where there was one; else what an image needs is read as fast as it was written. A lower
//!   tier's is that, and the image by the speed of the tier.
//!
//! Used by `holdfast plan --from` and by agents with `--every auto`. Fails by: the job has no image. What was never
//! measured is left open; the caller names it.

use crate::exit::{Exit, Failure};
use crate::last_restart::LastRestart;
use crate::levels::{Draft, LevelSpec};
use crate::settings::Settings;
use holdfast_tiers::Job;
use holdfast_tiers::stack::{Place, TierSpec, TiersRecord};

/// So many of the newest images are looked at.
const NEWEST: usize = 32;
/// Nanoseconds.
const SECOND: f64 = 1e9;

/// What the images tell, seconds and bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    stop: f64,
    flush: f64,
    slowdown: f64,
    /// Bytes that one image added, and those that a restart reads.
    added: f64,
    needed: f64,
    restart: Option<f64>,
}

/// The levels of a job, the lowest first, with nothing said of failures.
///
/// # Errors
/// It has no image that can be read, or the store cannot be read.
pub fn drafts(job: &Job, settings: &Settings) -> Result<Vec<Draft>, Failure> {
    let measured = measure(job)?;
    let record = TiersRecord::read(job);
    let first = settings.tiers.memory().unwrap_or(settings.tiers.store());
    let mut all = vec![first_level(first, &measured)];
    for spec in settings.tiers.all().filter(|spec| spec.place != first.place) {
        all.push(lower_level(spec, &measured, &record));
    }
    Ok(all)
}

fn first_level(first: &TierSpec, measured: &Measured) -> Draft {
    let spec = LevelSpec {
        name: first.name(),
        cost: Some(measured.stop),
        flush: Some(measured.flush),
        slowdown: Some(measured.slowdown),
        restart: Some(measured.restart.unwrap_or_else(|| measured.read(None))),
        mtbf: None,
    };
    let mut known = vec!["cost", "flush", "slow"];
    known.extend(measured.restart.map(|_| "restart"));
    Draft { spec, measured: known, each: false, one_in: 1 }
}

fn lower_level(tier: &TierSpec, measured: &Measured, record: &TiersRecord) -> Draft {
    let one_in = tier.rules.every.unwrap_or(1).max(1);
    let speed = record.of(&tier.name()).and_then(|known| known.speed).filter(|speed| *speed > 0);
    let speed = speed.map(|speed| speed.min(tier.rate.unwrap_or(u64::MAX)) as f64);
    // One in some takes what those between have added, too, but no more than a restart needs.
    let bytes = (measured.added * one_in as f64).min(measured.needed);
    let flush = speed.map(|speed| measured.flush + bytes / speed);
    let restart = speed.map(|speed| measured.read(Some(speed)));
    let spec = LevelSpec { name: tier.name(), flush, restart, ..LevelSpec::default() };
    let known = if flush.is_some() { vec!["flush"] } else { Vec::new() };
    // The store has each image that was in memory; a lower tier those that its rule names.
    Draft { spec, measured: known, each: tier.place == Place::Store, one_in }
}

impl Measured {
    /// How long a restart takes: as the last one, or as its bytes are read, after a copy from a tier of this speed.
    fn read(&self, speed: Option<f64>) -> f64 {
        let alike = if self.added > 0.0 { self.flush * self.needed / self.added } else { self.flush };
        let here = self.restart.unwrap_or(self.stop + alike);
        here + speed.map_or(0.0, |speed| self.needed / speed)
    }
}

/// The number in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn measure(job: &Job) -> Result<Measured, Failure> {
    let infos = job.images()?;
    let good = infos.iter().rev().filter(|info| info.broken.is_none()).take(NEWEST);
    let images: Vec<_> =
        good.filter_map(|info| Some((info, crate::names::open_image(job, Some(info.epoch)).ok()?))).collect();
    let Some((newest, _)) = images.first() else {
        let what = format!(
            "job {} has no image that could be measured; `holdfast checkpoint {}` takes one while it runs",
            job.name(),
            job.name()
        );
        return Err(Failure::new(Exit::NotFound, what));
    };
    let flush: Vec<f64> = images.iter().map(|(_, image)| image.figures().flush_ns as f64 / SECOND).collect();
    let held = images.iter().map(|(_, image)| image.epoch_figures().held_ns as f64 / SECOND);
    // Each writer is held for itself: more than all of the time means several.
    let slowed =
        held.zip(&flush).map(|(held, flush)| if *flush > 0.0 { (held / flush).min(1.0) } else { 0.0 });
    let slowdown = median(slowed.collect());
    Ok(Measured {
        stop: median(images.iter().map(|(info, _)| info.stop_ns as f64 / SECOND).collect()),
        slowdown,
        added: median(images.iter().map(|(info, _)| info.bytes as f64).collect()),
        needed: newest.total_bytes as f64,
        restart: LastRestart::read(job).map(|last| last.ns as f64 / SECOND),
        flush: median(flush),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::levels::finished;
    use holdfast_tiers::stack::TierRecord;

    fn known() -> (Measured, TiersRecord) {
        let measured =
            Measured { stop: 0.02, flush: 2.0, slowdown: 0.1, added: 1e9, needed: 3e9, restart: None };
        let tier = TierRecord { tier: "dir=/pfs".into(), speed: Some(100_000_000), ..TierRecord::default() };
        (measured, TiersRecord { tiers: vec![tier] })
    }

    #[test]
    fn a_lower_tier_takes_what_was_added_at_its_speed() {
        let (measured, record) = known();
        let tier = |text: &str| lower_level(&text.parse().unwrap(), &measured, &record);
        let each = tier("dir=/pfs");
        assert_eq!((each.spec.flush, each.one_in, each.each), (Some(12.0), 1, false));
        // Read as fast as it was written, 6 s and the stop, after a copy of 30 s.
        assert!((each.spec.restart.unwrap() - 36.02).abs() < 1e-9);
        assert_eq!(tier("dir=/pfs,every=2").spec.flush, Some(22.0));
        assert_eq!(tier("dir=/pfs,every=9").spec.flush, Some(32.0), "no more than a restart needs");
        assert_eq!(tier("dir=/pfs,rate=47M").spec.flush.map(|flush| flush > 20.0), Some(true));
        let unknown = tier("dir=/other");
        assert_eq!((unknown.spec.flush, unknown.measured.as_slice()), (None, [].as_slice()));
        assert!(tier("local").each, "what is in memory goes on to the store anyway");
    }

    #[test]
    fn the_last_restart_counts_where_there_was_one() {
        let (measured, record) = known();
        let measured = Measured { restart: Some(0.5), ..measured };
        let first = first_level(&"local".parse().unwrap(), &measured);
        let lower = lower_level(&"dir=/pfs".parse().unwrap(), &measured, &record);
        assert!(first.measured.contains(&"restart"));
        let levels = finished(&[first, lower]).unwrap();
        assert_eq!((levels[0].restart, levels[1].restart, levels[1].cost), (0.5, 30.5, 0.02));
    }
}
