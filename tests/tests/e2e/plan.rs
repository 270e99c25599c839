//! `holdfast plan`: levels that are given, those of a job as its images and tiers have recorded them, and what is
//! wrong, by its name.

use crate::json::agrees;
use crate::plain_job::{self, JOB, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use serde_json::Value;
use std::fs;

fn plan(bed: &Bed, arguments: &[&str]) -> Result<Value> {
    let words: Vec<&str> = ["plan", "--json"].iter().chain(arguments).copied().collect();
    agrees(&bed.say(&words)?.success()?.stdout, "plan")
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("no number: {value}"))
}

#[test]
fn a_plan_of_given_levels_is_the_best_of_them() {
    each_user(given_levels);
}

fn given_levels(bed: &Bed) -> Result<()> {
    let one = ["--level", "local,cost=30s,restart=60s,mtbf=10000s"];
    let found = plan(bed, &[&one[..], &["--work", "1d"]].concat())?;
    // Daly's interval is good to a few seconds here: 754.7 s.
    let (interval, daly) = (number(&found["interval_ms"])?, number(&found["daly_ms"])?);
    ensure!(daly == 754_726 && interval.abs_diff(daly) < 3000, "{found}");
    let best = number(&found["efficiency_ppm"])?;
    ensure!(number(&found["run_ms"])? > 86_400_000 && best < 1_000_000, "{found}");
    for every in ["5m", "30m"] {
        let other = plan(bed, &[&one[..], &["--every", every]].concat())?;
        ensure!(number(&other["every"]["efficiency_ppm"])? < best, "{other}");
    }
    let far = "dir=/pfs,flush=10m,slow=5%,restart=15m,mtbf=30d";
    let two = plan(bed, &[&one[..], &["--level", far]].concat())?;
    let (local, far) = (&two["levels"][0], &two["levels"][1]);
    ensure!(number(&far["one_in"])? > 1 && local["one_in"] == 1 && two["young_ms"].is_null(), "{two}");
    ensure!(number(&local["without_ppm"])? < number(&two["efficiency_ppm"])?, "{two}");
    ensure!(far["without_ppm"].is_null() && number(&far["overtaken_ppm"])? > 0, "{two}");
    let text =
        bed.say(&["plan", "--level", "local,cost=30s,restart=60s,mtbf=10000s", "--work", "1d"])?.success()?;
    let row = text.stdout.lines().nth(1).unwrap_or_default().split_whitespace().take(2).collect::<Vec<_>>();
    ensure!(
        row == ["local", "13m5s"] && text.stdout.contains("(by Young's formula 12m55s, by Daly's 12m35s)"),
        "{}",
        text.stdout
    );
    Ok(())
}

#[test]
fn a_plan_from_a_job_has_its_measured_costs() {
    each_user(from_a_job);
}

fn from_a_job(bed: &Bed) -> Result<()> {
    let folder = format!("dir={}", bed.work().join("tier").display());
    let (mut front, _) = plain_job::start(bed, &["--every", "1h", "--tier", &format!("{folder},every=2")])?;
    let none = bed.say(&["plan", "--from", JOB, "--mtbf", "local=1h"])?;
    fails(&none, 66, "no image that could be measured; `holdfast checkpoint j`")?;
    for _ in 0..3 {
        bed.say(&["checkpoint", JOB])?.success()?;
    }
    bed.may_end()?;
    ensure!(wait(&mut front, PATIENCE)?.success());
    let stops = bed.images(JOB).into_iter().map(|image| {
        let shown = bed.show(&format!("{JOB}@{image}"))?;
        number(&shown["stop"]["total_ns"])
    });
    let mut stops = stops.collect::<Result<Vec<u64>>>()?;
    stops.sort_unstable();
    let far = format!("{folder},flush=30s,restart=2m,mtbf=30d");
    let found = plan(bed, &["--from", JOB, "--mtbf", "local=10m", "--level", &far])?;
    let (local, tier) = (&found["levels"][0], &found["levels"][1]);
    let median = stops.get(stops.len() / 2).context("a stop")? / 1_000_000;
    ensure!(
        local["level"] == "local" && number(&local["cost_ms"])?.abs_diff(median) <= 1,
        "{found} {stops:?}"
    );
    ensure!(local["measured"] == serde_json::json!(["cost", "flush", "slow"]), "{found}");
    ensure!(tier["level"] == folder.as_str() && tier["flush_ms"] == 30_000, "{found}");
    // As the job is run: every hour, each second image on the tier, while failures come every ten minutes.
    let now = &found["every"];
    ensure!(now["every_ms"] == 3_600_000 && now["one_in"] == serde_json::json!([1, 2]), "{found}");
    let best = number(&found["efficiency_ppm"])?;
    ensure!(now["efficiency_ppm"].as_u64().is_none_or(|now| now < best / 2), "{found}");
    Ok(())
}

#[test]
fn rates_come_from_a_file_too() {
    each_user(from_a_file);
}

fn from_a_file(bed: &Bed) -> Result<()> {
    let path = bed.work().join("rates");
    let file = path.to_str().context("UTF-8")?;
    let levels = ["--level", "a,cost=1s", "--level", "dir=/b,cost=60s", "--rates", file];
    fs::write(&path, "a = \"6h\"\n\"dir=/b\" = \"10d\"\n")?;
    let found = plan(bed, &levels)?;
    ensure!(
        found["levels"][0]["mtbf_ms"] == 21_600_000 && found["levels"][1]["mtbf_ms"] == 864_000_000,
        "{found}"
    );
    // The command line comes after it.
    let found = plan(bed, &[&levels[..], &["--mtbf", "a=1h"]].concat())?;
    ensure!(found["levels"][0]["mtbf_ms"] == 3_600_000, "{found}");
    for (text, words) in [
        ("a = 6", "write a time in quotes"),
        ("a = \"6 hours\"", "is not a time"),
        ("a = \"0\"", "leave none for the program"),
        ("c = \"6h\"", "no level \"c\"; the levels are: a, dir=/b"),
        ("a = \"6h\"\na = \"7h\"", file),
        ("a", file),
        (&"#".repeat(70_000), "it has more than 64.0 KiB"),
    ] {
        fs::write(&path, text)?;
        fails(&bed.say(&[&["plan"], &levels[..]].concat())?, 64, words)?;
    }
    fs::write(&path, b"a = \"\xff\"")?;
    fails(&bed.say(&[&["plan"], &levels[..]].concat())?, 64, "it is no text")?;
    fs::remove_file(&path)?;
    fails(&bed.say(&[&["plan"], &levels[..]].concat())?, 70, "reading ")
}

#[test]
fn an_automatic_interval_is_the_planned_one() {
    each_user(automatic);
}

/// The interval in the words of `holdfast set`: `an image every 7s, as planned`.
fn interval(bed: &Bed) -> Result<u64> {
    let told = bed.say(&["set", JOB])?.success()?.stdout;
    let text = told.split("every ").nth(1).and_then(|rest| rest.split(", as planned").next());
    let text = text.filter(|_| told.contains(", as planned")).with_context(|| told.clone())?;
    let mut seconds = 0;
    for part in text.split_inclusive(['h', 'm', 's']) {
        let (number, unit) = part.split_at(part.len() - 1);
        let unit = match unit {
            "h" => 3600,
            "m" => 60,
            _ => 1,
        };
        seconds += number.parse::<u64>().with_context(|| told.clone())? * unit;
    }
    Ok(seconds)
}

fn automatic(bed: &Bed) -> Result<()> {
    for (mean, other) in [("400d", "30m"), ("10d", "30m")] {
        let (mut front, _) = plain_job::start(bed, &["--every", "auto", "--mtbf", mean])?;
        ensure!(interval(bed)? == 60, "the first image comes after a minute");
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a planned interval", PATIENCE, || interval(bed).is_ok_and(|seconds| seconds != 60))?;
        let told = interval(bed)?;
        // As `holdfast plan` has it, with that interval and with the job's images: those of one run may differ much.
        let found = plan(bed, &["--from", JOB])?;
        let planned = number(&found["levels"][0]["every_ms"])?;
        ensure!(
            planned.abs_diff(told * 1000) <= 500 + planned / 100,
            "{told} s, planned {planned} ms: {found}"
        );
        let often = plan(bed, &["--from", JOB, "--mtbf", other])?;
        ensure!(number(&often["levels"][0]["every_ms"])? < planned / 4, "{often}");
        // A time that is given ends it.
        bed.say(&["set", JOB, "--every", "1h"])?.success()?;
        ensure!(interval(bed).is_err(), "{}", bed.say(&["set", JOB])?.stdout);
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.say(&["rm", JOB])?.success()?;
    }
    let command = |options: &[&str]| bed.say(&[&["run"], options, &["--", "true"]].concat());
    fails(&command(&["--every", "auto"])?, 64, "--mtbf TIME")?;
    fails(&command(&["--every", "10m", "--mtbf", "3d"])?, 64, "--mtbf is for --every auto")?;
    fails(
        &command(&["--every", "auto", "--mtbf", "memory=3d"])?,
        64,
        "no level \"memory\"; the levels are: local",
    )
}

#[test]
fn what_cannot_be_planned_has_its_reason() {
    each_user(refused);
}

fn refused(bed: &Bed) -> Result<()> {
    let rows: &[(&[&str], i32, &str)] = &[
        (&[], 64, "write --level NAME,cost=TIME,mtbf=TIME, or --from JOB"),
        (&["--level", "a,mtbf=3d"], 64, "level a: cost= is missing"),
        (&["--level", "a,cost=3s"], 64, "no failures are given"),
        (&["--level", "a,cost=x,mtbf=3d"], 64, "cost=x"),
        (&["--level", "a,cost=1s,mtbf=3d", "--level", "a,cost=1s"], 64, "level a is given twice"),
        (&["--level", "a,cost=1s", "--level", "b", "--mtbf", "3d"], 64, "--mtbf b=TIME"),
        (&["--level", "a,cost=2h,mtbf=1m"], 69, "failures come faster"),
        (&["--from", "absent", "--mtbf", "3d"], 66, "absent"),
    ];
    for (arguments, code, words) in rows {
        fails(&bed.say(&[&["plan"], *arguments].concat())?, *code, words)?;
    }
    let many: Vec<String> = (0..9).map(|number| format!("l{number},cost=1s,mtbf=1d")).collect();
    let many: Vec<&str> = many.iter().flat_map(|level| ["--level", level]).collect();
    fails(&bed.say(&[&["plan"], &many[..]].concat())?, 64, "at most 8 can be planned with")?;
    agrees(&bed.say(&["plan", "--json", "--level", "a,cost=3s"])?.stdout, "error").map(drop)
}
