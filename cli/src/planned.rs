//! The interval of a job with `--every auto`: planned by what its images have cost and how often failures come.
//!
//! Used by `run`, which puts the rates into the settings, and by the agent after each image. Which image goes to which
//! tier is as the tiers' rules say: only the interval is planned. Fails by: the job has no image; no plan is possible.

use crate::exit::{Exit, Failure};
use crate::levels::{self, Draft, LevelSpec, MtbfSpec};
use crate::measured;
use crate::settings::{Every, Planned, Settings};
use holdfast_tiers::Job;
use holdfast_tiers::policy::planner::{Bounds, best_interval};

/// What `run` was told of failures.
///
/// # Errors
/// It is too little, or of tiers that the job does not have.
pub fn of_options(
    every: Option<Every>,
    mtbf: &[MtbfSpec],
    settings: &Settings,
) -> Result<Option<Planned>, Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, why);
    match (every, mtbf) {
        (Some(Every::Auto), []) => {
            return Err(wrong(
                "--every auto: how often do failures come? Give the mean time between them: --mtbf TIME"
                    .into(),
            ));
        }
        (Some(Every::Auto), _) => {}
        (_, []) => return Ok(None),
        _ => return Err(wrong("--mtbf is for --every auto: a time that is given is not planned".into())),
    }
    let named = |name: String| Draft { spec: LevelSpec { name, ..LevelSpec::default() }, ..Draft::default() };
    let mut drafts: Vec<Draft> = settings.tiers.all().map(|tier| named(tier.name())).collect();
    for one in mtbf {
        levels::set_mtbf(&mut drafts, one).map_err(|why| wrong(format!("--mtbf: {why}")))?;
    }
    let mtbf = drafts.into_iter().filter_map(|draft| Some((draft.spec.name, draft.spec.mtbf?)));
    Ok(Some(Planned { mtbf_ms: mtbf.map(|(name, mtbf)| (name, (mtbf * 1e3).ceil() as u64)).collect() }))
}

/// Puts the rates of the settings into the levels of the job.
pub fn put_rates(drafts: &mut [Draft], settings: &Settings) {
    let Some(planned) = &settings.planned else { return };
    for draft in drafts {
        draft.spec.mtbf = planned.mtbf_ms.get(&draft.spec.name).map(|ms| (*ms).max(1) as f64 / 1e3);
    }
}

/// From one checkpoint to the next, seconds.
///
/// # Errors
/// See the head of the file.
pub fn interval(job: &Job, settings: &Settings) -> Result<u64, Failure> {
    let mut drafts = measured::drafts(job, settings)?;
    put_rates(&mut drafts, settings);
    seconds(drafts).map_err(|why| Failure::new(Exit::Refused, why))
}

fn seconds(drafts: Vec<Draft>) -> Result<u64, String> {
    let drafts = known(drafts);
    let levels = levels::finished(&drafts)?;
    let bounds = Bounds { least_interval: 0.5, ..Bounds::default() };
    let found =
        best_interval(&levels, &levels::between(&drafts), &bounds).map_err(|error| error.to_string())?;
    let cost = levels.first().map_or(0.0, |level| level.cost);
    Ok(((found.schedule.interval + cost).round() as u64).max(1))
}

/// Without the levels that nothing was copied to yet: what they survive the one below is taken to survive.
fn known(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut known: Vec<Draft> = Vec::new();
    for draft in drafts {
        match known.last_mut() {
            Some(below) if draft.spec.flush.is_none() => {
                let rate = |mtbf: Option<f64>| mtbf.map_or(0.0, |mtbf| 1.0 / mtbf);
                let rate = rate(below.spec.mtbf) + rate(draft.spec.mtbf);
                below.spec.mtbf = (rate > 0.0).then(|| 1.0 / rate);
            }
            _ => known.push(draft),
        }
    }
    known
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_tiers::stack::{JobTiers, TierSpec};

    fn draft(text: &str, one_in: u64) -> Draft {
        Draft { spec: text.parse().unwrap(), one_in, ..Draft::default() }
    }

    #[test]
    fn the_interval_follows_costs_and_failures() {
        let seconds = |text: &str| seconds(vec![draft(text, 1)]).unwrap();
        // Young: the root of twice cost times mean time, and the stop itself.
        let (dear, cheap) = (seconds("local,cost=8s,mtbf=10000s"), seconds("local,cost=2s,mtbf=10000s"));
        assert!((395..=406).contains(&dear) && (198..=203).contains(&cheap), "{dear} {cheap}");
        assert!((1980..=2003).contains(&seconds("local,cost=2s,mtbf=1000000s")));
        assert_eq!(seconds("local,cost=1ms,mtbf=1s"), 1, "no shorter than `run` takes it");
    }

    #[test]
    fn a_tier_that_has_nothing_yet_is_left_out_with_its_failures_kept() {
        let all = vec![draft("local,cost=2s,mtbf=20000s", 1), draft("dir=/pfs,mtbf=20000s", 2)];
        let alone = seconds(vec![draft("local,cost=2s,mtbf=10000s", 1)]).unwrap();
        assert_eq!(seconds(all.clone()).unwrap(), alone);
        let mut measured = all;
        measured[1].spec.flush = Some(600.0);
        // The tier gets each second image, which takes 600 s.
        assert!(seconds(measured).unwrap() >= 300);
    }

    #[test]
    fn options_are_of_the_tiers_that_there_are() {
        let specs: Vec<TierSpec> = vec!["dir=/pfs".parse().unwrap()];
        let settings = Settings { tiers: JobTiers::of(&specs).unwrap(), ..Settings::default() };
        let of = |every: &str, mtbf: &[&str], settings: &Settings| {
            let mtbf: Vec<MtbfSpec> = mtbf.iter().map(|text| text.parse().unwrap()).collect();
            of_options(Some(every.parse().unwrap()), &mtbf, settings).map_err(|failure| failure.message)
        };
        let planned = of("auto", &["local=1h", "dir=/pfs=2d"], &settings).unwrap().unwrap();
        assert_eq!(planned.mtbf_ms["dir=/pfs"], 172_800_000);
        assert_eq!(of("auto", &["1h"], &Settings::default()).unwrap().unwrap().mtbf_ms["local"], 3_600_000);
        assert!(of("auto", &["1h"], &settings).unwrap_err().contains("local, dir=/pfs"));
        assert!(of("auto", &["memory=1h"], &settings).unwrap_err().contains("no level"));
        assert!(of("auto", &[], &settings).unwrap_err().contains("--mtbf TIME"));
        assert!(of("10m", &["1h"], &settings).unwrap_err().contains("--every auto"));
        assert_eq!(of("10m", &[], &settings), Ok(None));
    }
}
