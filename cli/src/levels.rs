//! Levels to plan with, as a user writes them: `NAME,cost=30s,restart=60s,mtbf=3d`.
//!
//! Read from the command line by `holdfast plan`; put together with what was measured ([`Draft`]). Pure. A number that
//! is missing and cannot be guessed is an error that names level and number.

use crate::settings::parse_seconds;
use holdfast_tiers::policy::planner::Level;
use std::str::FromStr;

/// What is known of a level; times in seconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LevelSpec {
    /// How it is called: with `--from` a tier, as listings name it.
    pub name: String,
    /// See [`Level`].
    pub cost: Option<f64>,
    /// See [`Level`].
    pub flush: Option<f64>,
    /// See [`Level`].
    pub slowdown: Option<f64>,
    /// See [`Level`].
    pub restart: Option<f64>,
    /// Mean time between failures that it survives and the level below does not.
    pub mtbf: Option<f64>,
}

impl LevelSpec {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let time = || parse_seconds(value).map_err(|why| format!("{key}={value}: {why}"));
        let twice = match key {
            "cost" => self.cost.replace(time()?),
            "flush" => self.flush.replace(time()?),
            "restart" => self.restart.replace(time()?),
            "mtbf" => self.mtbf.replace(mean(&format!("{key}={value}"), value)?),
            "slow" => self.slowdown.replace(part(value)?),
            _ => {
                return Err(format!(
                    "{key:?} is nothing of a level; write cost=TIME, flush=TIME, slow=PERCENT, restart=TIME or \
                     mtbf=TIME"
                ));
            }
        };
        if twice.is_some() { Err(format!("{key}= is there twice")) } else { Ok(()) }
    }

    /// With what the other one says in its place.
    fn with(self, other: &LevelSpec) -> LevelSpec {
        LevelSpec {
            name: self.name,
            cost: other.cost.or(self.cost),
            flush: other.flush.or(self.flush),
            slowdown: other.slowdown.or(self.slowdown),
            restart: other.restart.or(self.restart),
            mtbf: other.mtbf.or(self.mtbf),
        }
    }
}

/// A mean time between failures: none at all is not said by 0.
fn mean(what: &str, value: &str) -> Result<f64, String> {
    match parse_seconds(value).map_err(|why| format!("{what}: {why}"))? {
        time if time > 0.0 => Ok(time),
        _ => Err(format!("{what}: failures without a time between them leave none for the program")),
    }
}

fn part(value: &str) -> Result<f64, String> {
    let number = value.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    number
        .filter(|number| (0.0..=1000.0).contains(number))
        .map(|number| number / 100.0)
        .ok_or_else(|| format!("slow={value}: write per cent, from 0% to 1000%"))
}

impl FromStr for LevelSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<LevelSpec, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().trim().to_owned();
        let is_key =
            ["cost=", "flush=", "slow=", "restart=", "mtbf="].iter().any(|key| name.starts_with(key));
        if name.is_empty() || is_key || name.chars().any(char::is_control) {
            return Err(format!(
                "{text:?}: a level begins with its name, for example local,cost=30s,mtbf=3d"
            ));
        }
        let mut spec = LevelSpec { name, ..LevelSpec::default() };
        for one in parts {
            let (key, value) = one.split_once('=').unwrap_or((one, ""));
            spec.set(key.trim(), value.trim()).map_err(|why| format!("{text:?}: {why}"))?;
        }
        Ok(spec)
    }
}

/// `[NAME=]TIME`: addresses of tiers have a `=` in them, times have none.
#[derive(Clone, PartialEq, Debug)]
pub struct MtbfSpec {
    /// The level; none: the only one.
    pub name: Option<String>,
    /// Seconds.
    pub mtbf: f64,
}

impl FromStr for MtbfSpec {
    type Err = String;
    fn from_str(text: &str) -> Result<MtbfSpec, String> {
        let (name, time) = match text.rsplit_once('=') {
            Some((name, time)) => (Some(name.to_owned()), time),
            None => (None, text),
        };
        if name.as_deref() == Some("") {
            return Err(format!("{text:?}: the name of a level is missing before the ="));
        }
        Ok(MtbfSpec { name, mtbf: mean(text, time)? })
    }
}

/// A level that is being put together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Draft {
    /// What is known.
    pub spec: LevelSpec,
    /// What of it was measured, by its key.
    pub measured: Vec<&'static str>,
    /// See [`Level::each`].
    pub each: bool,
    /// One image in so many is one of this level as the job is run now, if it is.
    pub one_in: u64,
}

/// Puts what a user says over what was measured.
///
/// # Errors
/// A level is given twice.
pub fn put(drafts: &mut Vec<Draft>, given: &[LevelSpec]) -> Result<(), String> {
    for (at, spec) in given.iter().enumerate() {
        if given[..at].iter().any(|earlier| earlier.name == spec.name) {
            return Err(format!("level {} is given twice", spec.name));
        }
        match drafts.iter_mut().find(|draft| draft.spec.name == spec.name) {
            Some(draft) => {
                let said = [
                    ("cost", spec.cost),
                    ("flush", spec.flush),
                    ("slow", spec.slowdown),
                    ("restart", spec.restart),
                    ("mtbf", spec.mtbf),
                ];
                draft.measured.retain(|key| !said.iter().any(|(said, value)| said == key && value.is_some()));
                draft.spec = draft.spec.clone().with(spec);
            }
            None => drafts.push(Draft { spec: spec.clone(), one_in: 1, ..Draft::default() }),
        }
    }
    Ok(())
}

/// Sets a mean time between failures.
///
/// # Errors
/// There is no such level, or it is not said which one.
pub fn set_mtbf(drafts: &mut [Draft], given: &MtbfSpec) -> Result<(), String> {
    let names: Vec<String> = drafts.iter().map(|draft| draft.spec.name.clone()).collect();
    let at = match &given.name {
        Some(name) => names.iter().position(|one| one == name),
        None if drafts.len() == 1 => Some(0),
        None => None,
    };
    let example = || names.last().map_or_else(|| "NAME".to_owned(), Clone::clone);
    match (at.and_then(|at| drafts.get_mut(at)), &given.name) {
        (Some(draft), _) => draft.spec.mtbf = Some(given.mtbf),
        (None, Some(name)) => {
            return Err(format!("no level {name:?}; the levels are: {}", names.join(", ")));
        }
        (None, None) => {
            return Err(format!(
                "which failures? The levels are {}: write a time for each, as in --mtbf {}=TIME",
                names.join(", "),
                example()
            ));
        }
    }
    Ok(())
}

/// How many checkpoints each level has between two of the one above, as the job is run now. Numbers that are no
/// multiples of those below are no schedule of the model: rounded down, then.
pub fn between(drafts: &[Draft]) -> Vec<u32> {
    let one_in = |draft: &Draft| u32::try_from(draft.one_in).unwrap_or(u32::MAX).max(1);
    drafts.windows(2).map(|two| (one_in(&two[1]) / one_in(&two[0])).max(1) - 1).collect()
}

/// The levels in the words of the planner.
///
/// # Errors
/// A number is missing, by its level.
pub fn finished(drafts: &[Draft]) -> Result<Vec<Level>, String> {
    let mut below: Option<f64> = None;
    let mut levels = Vec::new();
    for Draft { spec, each, .. } in drafts {
        let cost = spec.cost.or(below).ok_or_else(|| {
            format!("level {}: cost= is missing: how long does the program wait for a checkpoint?", spec.name)
        })?;
        below = Some(cost);
        let flush = spec.flush.unwrap_or(0.0);
        let restart = spec.restart.unwrap_or(cost + flush);
        let rate = spec.mtbf.map_or(0.0, |mtbf| 1.0 / mtbf);
        levels.push(Level {
            cost,
            restart,
            flush,
            slowdown: spec.slowdown.unwrap_or(0.0),
            rate,
            each: *each,
        });
    }
    Ok(levels)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_written_on_one_line() {
        let spec: LevelSpec = "s3://b/p,flush=1h30m,slow=5%,restart=10m,mtbf=30d".parse().unwrap();
        assert_eq!((spec.name.as_str(), spec.cost, spec.flush), ("s3://b/p", None, Some(5400.0)));
        assert_eq!((spec.slowdown, spec.restart, spec.mtbf), (Some(0.05), Some(600.0), Some(2_592_000.0)));
        let first: LevelSpec = "dir=/nvme,cost=250ms".parse().unwrap();
        assert_eq!((first.name.as_str(), first.cost), ("dir=/nvme", Some(0.25)));
        let mut drafts = Vec::new();
        put(&mut drafts, &[first, spec]).unwrap();
        let levels = finished(&drafts).unwrap();
        // The cost of the level below, and a restart that reads what was written.
        assert_eq!((levels[1].cost, levels[0].restart, levels[0].rate), (0.25, 0.25, 0.0));
        assert!((levels[1].rate * 2_592_000.0 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_level_is_said() {
        for text in [
            "",
            ",cost=1s",
            "cost=1s",
            "a,cost",
            "a,cost=",
            "a,cost=-1s",
            "a,cost=1e400s",
            "a,cost=NaN",
            "a,cost=1s,cost=2s",
            "a,price=3s",
            "a,slow=5",
            "a,slow=-5%",
            "a,slow=1001%",
            "a,mtbf=0",
            "a,mtbf=0s",
            "a\u{1b}[2J,cost=1s",
        ] {
            assert!(text.parse::<LevelSpec>().is_err(), "{text}");
        }
        for text in ["", "=3d", "a=", "a=0", "0", "a=x"] {
            assert!(text.parse::<MtbfSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn failures_go_to_their_level() {
        let specs: Vec<LevelSpec> =
            ["a,cost=1s", "dir=/b"].iter().map(|text| text.parse().unwrap()).collect();
        let mut drafts = Vec::new();
        put(&mut drafts, &specs).unwrap();
        set_mtbf(&mut drafts, &"dir=/b=3d".parse().unwrap()).unwrap();
        assert_eq!(drafts[1].spec.mtbf, Some(259_200.0));
        assert!(set_mtbf(&mut drafts, &"3d".parse().unwrap()).unwrap_err().contains("--mtbf dir=/b=TIME"));
        assert!(set_mtbf(&mut drafts, &"c=3d".parse().unwrap()).unwrap_err().contains("a, dir=/b"));
        assert!(
            put(&mut drafts, &[specs[0].clone(), specs[0].clone()]).unwrap_err().contains("a is given twice")
        );
        let none = [Draft { spec: specs[1].clone(), ..Draft::default() }];
        assert!(finished(&none).unwrap_err().contains("level dir=/b: cost= is missing"));
    }

    #[test]
    fn what_is_said_counts_before_what_was_measured() {
        let spec =
            LevelSpec { name: "local".into(), cost: Some(0.5), restart: Some(9.0), ..LevelSpec::default() };
        let mut drafts = vec![Draft { spec, measured: vec!["cost", "restart"], ..Draft::default() }];
        put(&mut drafts, &["local,restart=5m".parse().unwrap(), "s3://b,flush=1m".parse().unwrap()]).unwrap();
        assert_eq!((drafts[0].spec.cost, drafts[0].spec.restart), (Some(0.5), Some(300.0)));
        assert_eq!((drafts[0].measured.as_slice(), drafts.len()), (["cost"].as_slice(), 2));
    }
}
