//! `holdfast cat --image`: variables of a program that knows nothing of it, from its images, beside it; each is of one
//! instant, and what an image does not have is refused by name.

use crate::json::agrees;
use anyhow::{Context, Result, ensure};
use holdfast_tests::own::{build, shell};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::process::Child;

const JOB: &str = "j";
const CELLS: usize = 8192;

fn line(bed: &Bed, line: &str) -> Result<String> {
    Ok(bed.output(shell(bed, line), PATIENCE)?.success()?.stdout)
}

/// Numbers of a region.
fn numbers(bed: &Bed, region: &str, kind: &str) -> Result<Vec<f64>> {
    let bytes = if kind == "d4" { 4 } else { 8 };
    let cat = format!("$HOLDFAST_BIN cat --image {region} > bytes; od -An -v -t {kind} -w{bytes} bytes");
    let text = line(bed, &cat)?;
    text.split_whitespace().map(|word| word.parse().with_context(|| word.to_owned())).collect()
}

/// The number at the front, if the rest is as at an instant: the newest number in a part at the front, and the one
/// before behind.
fn at_an_instant(all: &[f64], between: f64) -> Result<f64> {
    ensure!(all.len() == CELLS, "{} numbers", all.len());
    let newest = all.first().copied().context("a number")?;
    let rest: Vec<f64> = all.iter().copied().skip_while(|number| *number == newest).collect();
    ensure!(rest.iter().all(|number| *number == newest - between), "{newest}, then {:?}", rest.first());
    Ok(newest)
}

/// It runs, with an image after its first steps.
fn start(bed: &Bed, options: &[&str]) -> Result<(Child, i32)> {
    build(bed, "cc -std=gnu11", "grid.c", "m")?;
    let mut front = bed.run_command(JOB, options, &["./grid"])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("some steps", PATIENCE, || bed.text("out").lines().count() > 5)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    Ok((front, pid))
}

#[test]
fn variables_of_a_running_program_are_read_from_its_images() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        let grid = at_an_instant(&numbers(bed, "j grid", "f8")?, 1.0)?;
        ensure!(grid > 4.0, "{grid}");
        // What a pointer points to, and the step, are of the same instant: each is written a moment after the other.
        let field = at_an_instant(&numbers(bed, &format!("j@1 '*field+{}'", CELLS * 8), "f8")?, 2.0)?;
        let step = *numbers(bed, "j@1 step", "d8")?.first().context("a number")?;
        ensure!((field / 2.0 - grid).abs() <= 1.0 && (step - grid).abs() <= 1.0, "{grid} {field} {step}");
        // Of the file alone; written nowhere.
        ensure!(numbers(bed, "j primes", "d4")? == [2.0, 3.0, 5.0, 7.0, 11.0, 13.0]);
        let table = numbers(bed, "j table", "d4")?;
        ensure!(table.len() == 4096 && table[..3] == [17.0, 4.0, 0.0], "{:?}", &table[..3]);
        ensure!(line(bed, "$HOLDFAST_BIN cat --image j zeros | tr -d '\\0' | wc -c")?.trim() == "0");
        ensure!(line(bed, "$HOLDFAST_BIN cat --image j zeros | wc -c")?.trim() == "100000");
        let listed = line(bed, "$HOLDFAST_BIN cat --image j")?;
        ensure!(["grid", "field", "primes", "table"].iter().all(|name| listed.contains(name)), "{listed}");
        let json = agrees(&line(bed, "$HOLDFAST_BIN cat --image j@1 --json")?, "memory")?;
        ensure!(json["process"] == pid && json["image"] == 1, "{json}");
        let of_grid =
            json["symbols"].as_array().and_then(|all| all.iter().find(|one| one["symbol"] == "grid"));
        ensure!(of_grid.is_some_and(|one| one["bytes"] == CELLS * 8), "{json}");
        // The next image has later numbers; the one before keeps its own.
        let steps = bed.text("out").lines().count();
        bed.until("more steps", PATIENCE, || bed.text("out").lines().count() > steps + 5)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        ensure!(at_an_instant(&numbers(bed, "j grid", "f8")?, 1.0)? > grid);
        ensure!(at_an_instant(&numbers(bed, "j@1 grid", "f8")?, 1.0)? == grid);
        kill_program(pid, &mut front)?;
        // And after a restart, of memory that came from an image.
        let steps = bed.text("out").lines().count();
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("more steps", PATIENCE, || bed.text("out").lines().count() > steps + 5)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        ensure!(at_an_instant(&numbers(bed, "j grid", "f8")?, 1.0)? > grid);
        ensure!(numbers(bed, "j primes", "d4")?.len() == 6);
        kill_program(pid, &mut front)
    });
}

#[test]
fn what_an_image_does_not_have_is_refused_by_name() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        for (words, code, says) in [
            ("j nothing", 66, "has no variable nothing"),
            ("j@9 grid", 66, "image 9"),
            ("none grid", 66, "no job"),
            ("--process 1 j grid", 66, "has no process 1"),
            ("j 0x10+16", 66, "nothing mapped at 0x0"),
            ("j '*shared+16'", 69, "shared memory"),
            ("j '*grid+16'", 69, "a pointer has 8"),
            ("j '*field'", 64, "is no region"),
            ("j 0xffffffffffffff00+4K", 64, "more than can be read"),
            ("j '*field+900T'", 64, "more than can be read"),
            ("j@x grid", 64, "is not the number of an image"),
            ("--streams . j grid", 64, "cannot be used with"),
        ] {
            let ended = bed.output(shell(bed, &format!("$HOLDFAST_BIN cat --image {words}")), PATIENCE)?;
            ensure!(
                ended.code() == code && ended.stderr.contains(says),
                "{words}: {} {}",
                ended.code(),
                ended.stderr
            );
            ensure!(ended.stdout.is_empty(), "{words} prints something");
        }
        // Another build has other addresses; one without names has none.
        kill_program(pid, &mut front)?;
        line(bed, "cp grid kept && strip -o stripped grid && cp stripped grid")?;
        let ended = bed.output(shell(bed, "$HOLDFAST_BIN cat --image j grid"), PATIENCE)?;
        ensure!(ended.code() == 69 && ended.stderr.contains("has changed since"), "{}", ended.stderr);
        fs::remove_file(bed.work().join("grid"))?;
        let ended = bed.output(shell(bed, "$HOLDFAST_BIN cat --image j grid"), PATIENCE)?;
        ensure!(ended.code() == 66 && ended.stderr.contains("is not there"), "{}", ended.stderr);
        let mut front = bed.run_command("s", &[], &["./stripped"])?.spawn()?;
        let pid = bed.wait_live("s", &mut front)?.context("a pid")?;
        bed.say(&["checkpoint", "s"])?.success()?;
        let ended = bed.output(shell(bed, "$HOLDFAST_BIN cat --image s grid"), PATIENCE)?;
        ensure!(ended.code() == 66 && ended.stderr.contains("strip(1)"), "{}", ended.stderr);
        kill_program(pid, &mut front)
    });
}

#[test]
fn a_consumer_follows_an_array_of_a_program_that_knows_nothing_of_it() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--keep", "2"])?;
        let follow = "$HOLDFAST_BIN cat --image --follow j@1 step | od -An -v -t d8 -w8 > steps";
        let mut consumer = shell(bed, follow).spawn()?;
        for image in 2..6 {
            let steps = bed.text("out").lines().count();
            bed.until("more steps", PATIENCE, || bed.text("out").lines().count() > steps + 2)?;
            bed.say(&["checkpoint", JOB])?.success()?;
            ensure!(bed.images(JOB).contains(&image), "{:?}", bed.images(JOB));
        }
        let newest = *numbers(bed, "j step", "d8")?.first().context("a number")?;
        kill_program(pid, &mut front)?;
        // It ends with the job, and has seen the newest, and each at most once.
        ensure!(wait(&mut consumer, PATIENCE)?.success());
        let seen: Vec<f64> =
            bed.text("steps").split_whitespace().filter_map(|word| word.parse().ok()).collect();
        ensure!(
            seen.last() == Some(&newest) && seen.is_sorted_by(|one, next| one < next),
            "{seen:?}, {newest}"
        );
        Ok(())
    });
}
