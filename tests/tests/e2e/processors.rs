//! Another processor than that of the image, as far as one processor can show it: a restart is told that this one has
//! what x86-64-v2 has (HOLDFAST_FAULT=lesser-processor). A program that was told to keep to that runs on; others are
//! refused by name.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON, Results, reference};
use holdfast_tests::restart_chain::{kill_program, turns};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User};

const JOB: &str = "j";
const KEEPING: &[&str] = &["--cpu-baseline", "x86-64-v2"];
const REFUSED: i32 = 69;

/// An image of a running program, which is killed then.
fn image(bed: &Bed, app: &App, options: &[&str]) -> Result<()> {
    app.prepare(bed)?;
    let mut front = bed.staying_command(JOB, options, &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    // Some lines: what it does at last it does in the first round, not at its beginning.
    bed.until("some lines", PATIENCE, || bed.text("out").lines().count() > 3)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)?;
    bed.may_end()
}

fn restart(bed: &Bed) -> Result<Ended> {
    let mut command = bed.holdfast(&["restart", "--stdio=keep", JOB]);
    command.env("HOLDFAST_FAULT", "lesser-processor");
    bed.output(command, PATIENCE)
}

/// Whether this processor has more than the one that restarts are told of.
fn has_more() -> bool {
    let more = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" avx2 "));
    if !more {
        println!("not run: this processor has no AVX2");
    }
    more
}

fn with_bed(user: User, test: impl FnOnce(&Bed) -> Result<()>) {
    if let Some(bed) = Bed::new(user).filter(|_| has_more()) {
        test(&bed).unwrap_or_else(|error| panic!("{error:#}"));
    }
}

#[test]
fn a_program_that_chose_its_code_freely_is_refused() {
    with_bed(User::Ordinary, |bed| {
        image(bed, &App::program("plain", &["30", "10"]), &[])?;
        let ended = restart(bed)?;
        let named = ["avx2", "--cpu-baseline"].iter().all(|word| ended.stderr.contains(word));
        ensure!(ended.code() == REFUSED && named, "status {}: {}", ended.code(), ended.stderr);
        let ended = bed.say(&["restart", "--stdio=keep", JOB])?.success()?;
        ensure!(bed.text("out").ends_with("PASS\n"), "here it runs: {}", ended.stderr);
        Ok(())
    });
}

fn runs_on(app: &App, user: User) {
    with_bed(user, |bed| {
        image(bed, app, KEEPING)?;
        let shown = bed.say(&["show", JOB])?.success()?.stdout;
        ensure!(shown.contains("baseline   x86-64-v2"), "{shown}");
        let ended = restart(bed)?;
        ensure!(ended.code() == 0, "status {}: {}", ended.code(), ended.stderr);
        ensure!(ended.stderr.contains("keep to x86-64-v2"), "nothing was said: {}", ended.stderr);
        Results::read(app, bed, 0)?.check(&reference(app)?.results)?;
        bed.check_clean(JOB)
    });
}

#[test]
fn a_program_that_keeps_to_a_level_runs_on() {
    runs_on(&App::program("plain", &["30", "10"]), User::Root);
}

/// Integers only: other instructions may round otherwise.
#[test]
fn so_does_python() {
    runs_on(&App::real("python3", &[PYTHON, "@loop.py", &turns(170)]), User::Ordinary);
}

/// The C library says what it would choose by (ld.so(8)), and numpy what it has chosen.
#[test]
fn libraries_are_told() {
    with_bed(User::Ordinary, |bed| {
        let said = |options: &[&str], words: &[&str]| {
            let ended = bed.output(bed.run_command("told", options, words)?, PATIENCE)?;
            anyhow::Ok(ended.success()?.stdout)
        };
        let ld = ["/bin/bash", "-c", "exec /lib64/ld-linux-x86-64.so.2 --help"];
        let takes = |text: &str, level: &str| {
            text.lines().any(|line| line.contains(level) && line.contains("supported"))
        };
        let text = said(&[], &ld)?;
        ensure!(takes(&text, "x86-64-v3"), "{text}");
        let text = said(KEEPING, &ld)?;
        ensure!(takes(&text, "x86-64-v2") && !takes(&text, "x86-64-v3"), "{text}");
        // What its code is chosen by.
        let line = "import numpy.core._multiarray_umath as m\n\
                    print([n for n in ('AVX', 'AVX2', 'FMA3', 'AVX512F', 'AVX512_SKX') if m.__cpu_features__[n]])";
        let text = said(KEEPING, &[PYTHON, "-c", line])?;
        ensure!(text == "[]\n", "numpy would use {text}");
        Ok(())
    });
}

#[test]
fn registers_that_were_used_all_the_same_are_noticed() {
    with_bed(User::Root, |bed| {
        image(bed, &App::program("registers", &[]), KEEPING)?;
        let ended = restart(bed)?;
        let named = ended.stderr.contains("has used registers that this processor lacks");
        ensure!(ended.code() == REFUSED && named, "status {}: {}", ended.code(), ended.stderr);
        Ok(())
    });
}

/// A signal frame holds registers as the processor of the image keeps them.
#[test]
fn a_thread_in_a_signal_handler_is_refused() {
    with_bed(User::Ordinary, |bed| {
        image(bed, &App::program("handling", &["inside"]), KEEPING)?;
        let ended = restart(bed)?;
        let named = ended.stderr.contains("was in a signal handler");
        ensure!(ended.code() == REFUSED && named, "status {}: {}", ended.code(), ended.stderr);
        Ok(())
    });
}
