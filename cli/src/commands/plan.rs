//! `holdfast plan`: which level is to be checkpointed how often, what that gives, and what each level is worth.
//!
//! What is computed is in `tiers/src/policy/planner/`; the levels are those of the command line, or of a job as they
//! were measured (`measured`). Reads only. Fails by: a number is missing or none, by its name; there is no such job, or
//! it has no image; the program would not get on by any schedule.

use crate::args::PlanArgs;
use crate::exit::{Exit, Failure};
use crate::levels::{self, Draft, MtbfSpec};
use crate::measured;
use crate::planned;
use crate::report::{self, short_time};
use crate::settings::Recipe;
use holdfast_tiers::policy::planner::{
    Bounds, Found, Level, Outcome, PlanError, Schedule, best, daly, outcome, overtaken, young,
};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest file of rates that is read, bytes.
const MOST: u64 = 64 << 10;

/// All that is told.
#[derive(Debug, Serialize)]
struct Told {
    levels: Vec<Row>,
    /// The program computes so long between two checkpoints.
    interval_ms: u64,
    #[serde(flatten)]
    parts: Parts,
    /// By formulas for one level.
    young_ms: Option<u64>,
    daly_ms: Option<u64>,
    work_ms: Option<u64>,
    run_ms: Option<u64>,
    /// What comes of another interval.
    every: Option<Every>,
}

#[derive(Debug, Serialize)]
struct Row {
    level: String,
    one_in: u32,
    every_ms: u64,
    cost_ms: u64,
    flush_ms: u64,
    slow_ppm: u64,
    restart_ms: u64,
    mtbf_ms: Option<u64>,
    measured: Vec<&'static str>,
    overtaken_ppm: u64,
    without_ppm: Option<u64>,
    with_next_ppm: Option<u64>,
    #[serde(skip)]
    level_seconds: (f64, Level),
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Parts {
    efficiency_ppm: u64,
    checkpoints_ppm: u64,
    restarts_ppm: u64,
    redone_ppm: u64,
}

#[derive(Debug, Serialize)]
struct Every {
    every_ms: u64,
    one_in: Vec<u32>,
    /// None: the program would not get on.
    efficiency_ppm: Option<u64>,
}

impl From<Outcome> for Parts {
    fn from(found: Outcome) -> Parts {
        Parts {
            efficiency_ppm: ppm(found.efficiency),
            checkpoints_ppm: ppm(found.checkpoints),
            restarts_ppm: ppm(found.restarts),
            redone_ppm: ppm(found.redone),
        }
    }
}

fn ppm(part: f64) -> u64 {
    (part * 1e6).round() as u64
}

fn ms(seconds: f64) -> u64 {
    (seconds * 1e3).round() as u64
}

/// Plans.
///
/// # Errors
/// See the head of the file.
pub fn run(args: &PlanArgs, root: Option<&Path>) -> Result<(), Failure> {
    let wrong = |why: String| Failure::new(Exit::Usage, why);
    let (mut drafts, every_s) = match &args.from {
        Some(name) => of_job(name, root)?,
        None => (Vec::new(), None),
    };
    levels::put(&mut drafts, &args.level).map_err(wrong)?;
    for rate in args.rates.iter().map(|path| rates(path)).collect::<Result<Vec<_>, _>>()?.iter().flatten() {
        levels::set_mtbf(&mut drafts, rate).map_err(wrong)?;
    }
    for mtbf in &args.mtbf {
        levels::set_mtbf(&mut drafts, mtbf).map_err(wrong)?;
    }
    if drafts.is_empty() {
        return Err(wrong("no level is given: write --level NAME,cost=TIME,mtbf=TIME, or --from JOB".into()));
    }
    unmeasured(&drafts)?;
    let finished = levels::finished(&drafts).map_err(wrong)?;
    let told = told(&drafts, &finished, args, args.every.map(|every| every.as_secs()).or(every_s))?;
    if args.json { report::print_json("plan", told) } else { report::print(&text(&told)) }
}

fn of_job(name: &str, root: Option<&Path>) -> Result<(Vec<Draft>, Option<u64>), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    crate::names::refuse_objects(name)?;
    let settings = Recipe::read(&job)?.settings;
    let mut drafts = measured::drafts(&job, &settings)?;
    planned::put_rates(&mut drafts, &settings);
    Ok((drafts, settings.every_s))
}

/// A lower tier of a job that nothing was copied to yet.
fn unmeasured(drafts: &[Draft]) -> Result<(), Failure> {
    // The first has a cost, by which it is known that it was measured.
    let is_measured = drafts.first().is_some_and(|first| first.measured.contains(&"cost"));
    let open = drafts.iter().skip(1).find(|draft| is_measured && draft.spec.flush.is_none());
    open.map_or(Ok(()), |draft| {
        let name = &draft.spec.name;
        let what = format!(
            "level {name}: how long a copy takes is not known, for none was measured; write --level \
             {name},flush=TIME,restart=TIME"
        );
        Err(Failure::new(Exit::Usage, what))
    })
}

/// `NAME = "TIME"`, line by line.
fn rates(path: &Path) -> Result<Vec<MtbfSpec>, Failure> {
    let failed = |error| Failure::system(format_args!("reading {}", path.display()), &error);
    let wrong = |why: String| Failure::new(Exit::Usage, format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MOST {
        return Err(wrong(format!(
            "it has more than {}; it should have a line for each level",
            report::size(MOST)
        )));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is no text".into()))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
    let spec = |(name, value): (String, toml::Value)| {
        let time =
            value.as_str().ok_or_else(|| wrong(format!("{name}: write a time in quotes, as in \"3d\"")))?;
        let spec: MtbfSpec = time.parse().map_err(|why| wrong(format!("{name}: {why}")))?;
        Ok(MtbfSpec { name: Some(name), ..spec })
    };
    table.into_iter().map(spec).collect()
}

fn of_plan(error: &PlanError) -> Failure {
    let exit = if *error == PlanError::Hopeless { Exit::Refused } else { Exit::Usage };
    Failure::new(exit, error.to_string())
}

/// `run` takes whole seconds.
fn bounds() -> Bounds {
    Bounds { least_interval: 1.0, ..Bounds::default() }
}

fn told(drafts: &[Draft], levels: &[Level], args: &PlanArgs, every_s: Option<u64>) -> Result<Told, Failure> {
    let found = best(levels, &bounds()).map_err(|error| of_plan(&error))?;
    let rows = drafts.iter().enumerate().map(|(at, draft)| row(at, draft, levels, &found));
    let one = Some(levels).filter(|levels| levels.len() == 1).and_then(<[Level]>::first);
    Ok(Told {
        levels: rows.collect(),
        interval_ms: ms(found.schedule.interval),
        parts: found.outcome.into(),
        young_ms: one.map(|level| ms(young(level.cost, level.rate))),
        daly_ms: one.map(|level| ms(daly(level.cost, level.rate))),
        work_ms: args.work.map(ms),
        run_ms: args.work.map(|work| ms(work / found.outcome.efficiency)),
        every: every_s.map(|seconds| at_interval(drafts, levels, args, seconds as f64, &found)),
    })
}

/// What comes of an interval: with the counts of the job as it is run, or those of the plan.
fn at_interval(drafts: &[Draft], given: &[Level], args: &PlanArgs, every: f64, plan: &Found) -> Every {
    let between = if args.from.is_some() { levels::between(drafts) } else { plan.schedule.between.clone() };
    let cost = given.first().map_or(0.0, |level| level.cost);
    let schedule = Schedule { interval: (every - cost).max(1e-3), between };
    let found = outcome(given, &schedule).ok();
    let one_in = schedule.periods().unwrap_or_default();
    Every { every_ms: ms(every), one_in, efficiency_ppm: found.map(|found| ppm(found.efficiency)) }
}

fn row(at: usize, draft: &Draft, levels: &[Level], found: &Found) -> Row {
    let level = levels[at];
    let one_in = found.schedule.periods().and_then(|periods| periods.get(at).copied()).unwrap_or(1);
    let every = (found.schedule.interval + levels[0].cost) * f64::from(one_in);
    let efficiency =
        |levels: Vec<Level>| best(&levels, &bounds()).ok().map(|found| ppm(found.outcome.efficiency));
    let has_next = at + 1 < levels.len();
    Row {
        level: draft.spec.name.clone(),
        one_in,
        every_ms: ms(every),
        cost_ms: ms(level.cost),
        flush_ms: ms(level.flush),
        slow_ppm: ppm(level.slowdown),
        restart_ms: ms(level.restart),
        mtbf_ms: (level.rate > 0.0).then(|| ms(1.0 / level.rate)),
        measured: draft.measured.clone(),
        overtaken_ppm: overtaken(levels, at).map_or(0, ppm),
        without_ppm: has_next.then(|| without(levels, at)).and_then(efficiency),
        with_next_ppm: has_next.then(|| with_next(levels, at)).and_then(efficiency),
        level_seconds: (every, level),
    }
}

/// The levels without this one: the one above survives its failures, too.
fn without(levels: &[Level], at: usize) -> Vec<Level> {
    let mut others = levels.to_vec();
    let gone = others.remove(at);
    if let Some(above) = others.get_mut(at) {
        above.rate += gone.rate;
        above.each &= gone.each;
    }
    others
}

/// The levels if this one survived what the one above does: then that has nothing left.
fn with_next(levels: &[Level], at: usize) -> Vec<Level> {
    let mut others = levels.to_vec();
    let gone = others.remove(at + 1);
    others[at].rate += gone.rate;
    others
}

/// Seconds for people.
fn time(seconds: f64) -> String {
    match seconds {
        short if short < 60.0 => short_time((seconds * 1e9) as u64),
        long if long < 172_800.0 => report::interval(long.round() as u64),
        days => format!("{:.1}d", days / 86400.0),
    }
}

fn percent(ppm: u64) -> String {
    format!("{:.2} %", ppm as f64 / 1e4)
}

fn text(told: &Told) -> String {
    const HEAD: [&str; 9] =
        ["LEVEL", "EVERY", "ONE IN", "STOP", "FLUSH", "RESTART", "MTBF", "OVERTAKEN", "WITHOUT IT"];
    let cells = |row: &Row| {
        let (every, level) = row.level_seconds;
        let mean = row.mtbf_ms.map_or_else(|| "-".to_owned(), |_| time(1.0 / level.rate));
        vec![
            row.level.clone(),
            time(every),
            row.one_in.to_string(),
            time(level.cost),
            if level.flush > 0.0 { time(level.flush) } else { "-".to_owned() },
            time(level.restart),
            mean,
            percent(row.overtaken_ppm),
            row.without_ppm.map_or_else(|| "-".to_owned(), percent),
        ]
    };
    let rows: Vec<Vec<String>> = told.levels.iter().map(cells).collect();
    let mut text = report::table(&HEAD, &rows, &[1, 2, 3, 4, 5, 6, 7, 8]);
    let Parts { efficiency_ppm, checkpoints_ppm, restarts_ppm, redone_ppm } = told.parts;
    text.push_str(&format!(
        "\nThe program has {} of the time: {} go into checkpoints, {} into restarts, {} are done again.\n",
        percent(efficiency_ppm),
        percent(checkpoints_ppm),
        percent(restarts_ppm),
        percent(redone_ppm)
    ));
    text.push_str(&notes(told));
    text
}

fn notes(told: &Told) -> String {
    let seconds = |ms: u64| time(ms as f64 / 1e3);
    let efficiency = told.parts.efficiency_ppm;
    let mut text = String::new();
    if let (Some(work), Some(run)) = (told.work_ms, told.run_ms) {
        text.push_str(&format!("{} of work take {}.\n", seconds(work), seconds(run)));
    }
    if let Some(every) = &told.every {
        let found = every.efficiency_ppm.map_or_else(|| "it would not get on".to_owned(), percent);
        text.push_str(&format!("With --every {}: {found}.\n", seconds(every.every_ms)));
    }
    if let (Some(young), Some(daly)) = (told.young_ms, told.daly_ms) {
        text.push_str(&format!(
            "It computes {} between two checkpoints (by Young's formula {}, by Daly's {}).\n",
            seconds(told.interval_ms),
            seconds(young),
            seconds(daly)
        ));
    }
    for two in told.levels.windows(2) {
        let Some(with_next) = two[0].with_next_ppm else { continue };
        let more = percent(with_next.saturating_sub(efficiency));
        text.push_str(&format!(
            "One more level between {} and {}, as cheap as {}, would bring {more} at most.\n",
            two[0].level, two[1].level, two[0].level
        ));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn planned(specs: &[&str], args: &PlanArgs) -> Result<Told, Failure> {
        let specs: Vec<_> = specs.iter().map(|text| text.parse().unwrap()).collect();
        let mut drafts = Vec::new();
        levels::put(&mut drafts, &specs).unwrap();
        let finished = levels::finished(&drafts).unwrap();
        told(&drafts, &finished, args, args.every.map(|every| every.as_secs()))
    }

    #[test]
    fn one_level_is_told_with_its_formulas() {
        let args = PlanArgs {
            work: Some(86400.0),
            every: Some(std::time::Duration::from_secs(60)),
            ..PlanArgs::default()
        };
        let told = planned(&["local,cost=30s,restart=60s,mtbf=10000s"], &args).unwrap();
        // Young: the root of 600000 s^2.
        assert_eq!(told.young_ms, Some(774_597));
        assert!(told.interval_ms.abs_diff(told.daly_ms.unwrap()) < 5000, "{told:?}");
        let every = told.every.as_ref().and_then(|every| every.efficiency_ppm).unwrap();
        assert!(every < told.parts.efficiency_ppm, "{told:?}");
        let run_ms = 86400e3 / (told.parts.efficiency_ppm as f64 / 1e6);
        assert!(told.run_ms.unwrap().abs_diff(run_ms as u64) < 200, "{told:?}");
        let text = text(&told);
        assert!(text.contains("(by Young's formula 12m55s, by Daly's 12m35s)"), "{text}");
        assert!(text.contains("With --every 1m: "), "{text}");
    }

    #[test]
    fn what_a_level_is_worth_is_told() {
        let all = ["local,cost=2s,mtbf=6h", "dir=/pfs,cost=300s,restart=600s,mtbf=30d"];
        let told = planned(&all, &PlanArgs::default()).unwrap();
        let (local, pfs) = (&told.levels[0], &told.levels[1]);
        let alone =
            planned(&["dir=/pfs,cost=300s,restart=600s,mtbf=21421.49s"], &PlanArgs::default()).unwrap();
        assert!(local.without_ppm.unwrap().abs_diff(alone.parts.efficiency_ppm) < 5, "{told:?}");
        assert!(local.without_ppm.unwrap() < told.parts.efficiency_ppm && pfs.without_ppm.is_none());
        assert!(local.with_next_ppm.unwrap() > told.parts.efficiency_ppm && pfs.one_in > 10, "{told:?}");
        let text = text(&told);
        assert!(
            text.contains("One more level between local and dir=/pfs, as cheap as local, would bring "),
            "{text}"
        );
    }

    #[test]
    fn no_plan_has_its_reason() {
        let failure = planned(&["local,cost=1h,mtbf=60s"], &PlanArgs::default()).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        let failure = planned(&["local,cost=1s"], &PlanArgs::default()).unwrap_err();
        assert!(
            failure.exit == Exit::Usage && failure.message.contains("no failures are given"),
            "{failure}"
        );
    }

    #[test]
    fn times_are_for_people() {
        let shown = [0.02, 12.5, 750.0, 7500.0, 259_200.0].map(time);
        assert_eq!(shown, ["20.00 ms", "12.50 s", "12m30s", "2h5m", "3.0d"]);
    }
}
