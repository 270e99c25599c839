//! `holdfast rollback` beside all else: no image, one of another run, a damaged one, one that only a tier has; beside
//! checkpoints, other rollbacks and an interval; a job that is stopped; an agent that dies or fails at each point of
//! it. Whatever happens, the program ends with the right output, or an image of it does.

use crate::plain_job::{
    JOB, fails, none_is_left, restarts, right_output, start, start_with_fault, until_tier,
};
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user, each_user_in_turn, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::process::Child;

const OTHER: &str = "j@1";

fn lines(bed: &Bed) -> usize {
    bed.text("out").lines().count()
}

/// Takes an image and lets the program go on for some lines.
fn image_and_more(bed: &Bed) -> Result<()> {
    bed.say(&["checkpoint", JOB])?.success()?;
    let wanted = (lines(bed) + 3).min(30);
    bed.until("more lines", PATIENCE, || lines(bed) >= wanted)
}

fn ends_right(bed: &Bed, front: &mut Child) -> Result<()> {
    bed.may_end()?;
    let code = shell_code(wait(front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(code == 0 && out == right_output(), "status {code}: {out}{}", bed.text("err"));
    none_is_left(bed)
}

/// It is refused, and the program comes to its end with the right output.
fn runs_on(bed: &Bed, front: &mut Child, refused: &Ended, code: i32, words: &str) -> Result<()> {
    fails(refused, code, words)?;
    ends_right(bed, front)
}

#[test]
fn without_an_image_or_a_program_there_is_nothing_to_go_back_to() {
    each_user_in_turn(User::Ordinary, |bed| {
        let (mut front, pid) = start(bed, &[])?;
        fails(&bed.say(&["rollback", JOB])?, 66, "has no image of this run yet")?;
        fails(&bed.say(&["rollback", "j@7"])?, 66, "7")?;
        let told = bed.say(&["rollback", JOB, "--json"])?;
        let told: Value = serde_json::from_str(&told.stdout)?;
        ensure!(told["kind"] == "error", "{told}");
        image_and_more(bed)?;
        kill_program(pid, &mut front)?;
        none_is_left(bed)?;
        fails(&bed.say(&["rollback", JOB])?, 66, "holdfast restart j")?;
        // Another run of the job, which has the image of the first.
        let (mut front, _) = start(bed, &[])?;
        runs_on(bed, &mut front, &bed.say(&["rollback", OTHER])?, 69, "earlier run")
    });
}

#[test]
fn what_comes_after_a_rollback_is_right() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        for _ in 0..3 {
            image_and_more(bed)?;
            let ended = bed.say(&["rollback", JOB, "--json"])?.success()?;
            let told: Value = serde_json::from_str(&ended.stdout)?;
            let number = |name: &str| told[name].as_u64().unwrap_or(0);
            ensure!(told["kind"] == "rollback" && number("stop_ns") > 0, "{told}");
            ensure!(number("compared_bytes") < number("image_bytes") / 2, "all of it was read: {told}");
            ensure!(number("written_bytes") <= number("compared_bytes"), "{told}");
        }
        // To an older image, and the next one is taken from there.
        bed.say(&["rollback", OTHER])?.success()?;
        image_and_more(bed)?;
        ensure!(bed.pid(JOB)? == Some(pid), "it is the same process");
        kill_program(pid, &mut front)?;
        none_is_left(bed)?;
        bed.may_end()?;
        restarts(bed, JOB, &[])
    });
}

#[test]
fn a_damaged_image_is_refused_before_anything_is_changed() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[])?;
        image_and_more(bed)?;
        for entry in fs::read_dir(bed.job(JOB))? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")) {
                let mut bytes = fs::read(&path)?;
                bytes.iter_mut().skip(4096).step_by(64).for_each(|byte| *byte ^= 0x55);
                fs::write(&path, bytes)?;
            }
        }
        runs_on(bed, &mut front, &bed.say(&["rollback", JOB])?, 65, "segment-")
    });
}

#[test]
fn an_image_that_only_a_tier_has_is_read_there() {
    each_user_in_turn(User::Root, |bed| {
        let tier = format!("dir={}", bed.work().join("tier").display());
        let (mut front, _) = start(bed, &["--tier", &tier])?;
        image_and_more(bed)?;
        image_and_more(bed)?;
        until_tier(bed, "both images on the tier", |tier| tier["versions"] == serde_json::json!([1, 2]))?;
        bed.say(&["prune", OTHER])?.success()?;
        ensure!(bed.images(JOB) == [2], "{:?}", bed.images(JOB));
        bed.say(&["rollback", OTHER])?.success()?;
        ends_right(bed, &mut front)
    });
}

#[test]
fn it_waits_for_a_checkpoint_and_for_another_rollback() {
    each_user_in_turn(User::Ordinary, |bed| {
        let (mut front, _) = start(bed, &["--rate", "2m"])?;
        image_and_more(bed)?;
        let words: [&[&str]; 5] = [
            &["checkpoint", "--no-wait", JOB],
            &["rollback", JOB],
            &["checkpoint", JOB],
            &["rollback", OTHER],
            &["rollback", JOB],
        ];
        let all =
            words.iter().map(|words| Ok(bed.holdfast(words).spawn()?)).collect::<Result<Vec<Child>>>()?;
        for (mut one, words) in all.into_iter().zip(words) {
            ensure!(wait(&mut one, PATIENCE)?.success(), "{words:?}");
        }
        ends_right(bed, &mut front)
    });
}

#[test]
fn beside_an_interval_the_job_goes_on() {
    each_user_in_turn(User::Root, |bed| {
        let (mut front, _) = start(bed, &["--every", "1s", "--keep", "3"])?;
        for _ in 0..4 {
            let newest = bed.images(JOB).last().copied().unwrap_or(0);
            bed.until("an image", PATIENCE, || bed.images(JOB).last().is_some_and(|image| *image > newest))?;
            bed.say(&["rollback", JOB])?.success()?;
        }
        ends_right(bed, &mut front)
    });
}

#[test]
fn a_job_that_is_stopped_stays_so() {
    each_user_in_turn(User::Ordinary, |bed| {
        let (mut front, pid) = start(bed, &[])?;
        image_and_more(bed)?;
        processes::signal(pid, "STOP");
        bed.until("the stop", PATIENCE, || processes::state(pid) == Some('T'))?;
        bed.say(&["rollback", JOB])?.success()?;
        bed.until("the stop again", PATIENCE, || processes::state(pid) == Some('T'))?;
        processes::signal(pid, "CONT");
        ends_right(bed, &mut front)
    });
}

/// After the agent's death the program runs on, or has ended with it; the image restarts in any case.
fn agent_dies(bed: &Bed, point: &str, goes_on: bool) -> Result<()> {
    let (mut front, pid) = start_with_fault(bed, &[], point)?;
    image_and_more(bed)?;
    let agent = bed.agent_pid(JOB)?.context("an agent")?;
    let ended = bed.say(&["rollback", JOB])?;
    ensure!(ended.code() == 70, "status {}: {}", ended.code(), ended.stderr);
    bed.until("the agent's death", PATIENCE, || processes::state(agent).is_none_or(|state| state == 'Z'))?;
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == if goes_on { 0 } else { 137 }, "status {code}: {}", bed.text("out"));
    ensure!(!goes_on || bed.text("out") == right_output(), "{}", bed.text("out"));
    ensure!(processes::state(pid).is_none_or(|state| state == 'Z'), "{pid} lives");
    none_is_left(bed)?;
    restarts(bed, OTHER, &[])
}

#[test]
fn the_agent_dies_before_the_first_change() {
    each_user(|bed| agent_dies(bed, "rollback-ready", true));
}

#[test]
fn the_agent_dies_half_way() {
    each_user(|bed| agent_dies(bed, "rollback-changed", false));
}

#[test]
fn the_agent_dies_when_it_is_done() {
    each_user_in_turn(User::Root, |bed| agent_dies(bed, "rollback-done", true));
}

#[test]
fn what_fails_half_way_ends_the_job_and_says_what_to_restart() {
    each_user(|bed| {
        let (mut front, _) = start_with_fault(bed, &[], "rollback-changed!")?;
        image_and_more(bed)?;
        fails(&bed.say(&["rollback", JOB])?, 70, "`holdfast restart j@1` goes on from that image")?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 137, "{}", bed.text("err"));
        ensure!(bed.text("err").contains("holdfast restart j@1"), "{}", bed.text("err"));
        none_is_left(bed)?;
        bed.may_end()?;
        restarts(bed, OTHER, &[])
    });
}

#[test]
fn what_has_changed_too_much_is_named_and_runs_on() {
    each_user_in_turn(User::Root, |bed| {
        let script = "import os, sys, threading\nprint('ready', flush=True)\nsys.stdin.readline()\n\
                      threading.Thread(target=threading.Event().wait, daemon=True).start()\n\
                      kept = open('/etc/passwd')\nos.chdir('/')\nprint('changed', flush=True)\nsys.stdin.readline()\n";
        let app = App::real("python", &["/usr/bin/python3", "-c", script]);
        let mut command = bed.run_command(JOB, &[], &app.words())?;
        let mut front = command.stdin(std::process::Stdio::piped()).spawn()?;
        let mut input = front.stdin.take().context("a pipe")?;
        bed.until("a line", PATIENCE, || bed.text("out") == "ready\n")?;
        bed.say(&["checkpoint", JOB])?.success()?;
        std::io::Write::write_all(&mut input, b"go\n")?;
        bed.until("another line", PATIENCE, || bed.text("out").contains("changed"))?;
        let refused = bed.say(&["rollback", JOB])?;
        fails(&refused, 69, "it was made since image 1")?;
        let said = &refused.stderr;
        ensure!(said.contains("thread ") && said.contains("holdfast restart j"), "{said}");
        drop(input);
        ensure!(wait(&mut front, PATIENCE)?.success(), "{}", bed.text("err"));
        Ok(())
    });
}

#[test]
fn after_a_restart_its_own_images_are_those_to_go_back_to() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        image_and_more(bed)?;
        kill_program(pid, &mut front)?;
        none_is_left(bed)?;
        for options in [&["--lazy"][..], &["--eager"]] {
            let mut front = bed.restart_command(JOB, options)?.spawn()?;
            let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
            fails(&bed.say(&["rollback", OTHER])?, 69, "before the program was restarted")?;
            image_and_more(bed)?;
            bed.say(&["rollback", JOB])?.success()?;
            image_and_more(bed)?;
            bed.say(&["rollback", JOB])?.success()?;
            kill_program(pid, &mut front)?;
            none_is_left(bed)?;
        }
        bed.may_end()?;
        restarts(bed, JOB, &[])
    });
}

/// Much memory, of which little is written between the images.
#[test]
fn memory_of_any_size_goes_back() {
    each_user_in_turn(User::Ordinary, |bed| {
        let app = App::program("toucher", &["160", "40", "20", "24"]);
        let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
        bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("a line", PATIENCE, || lines(bed) > 0)?;
        for round in 0..4 {
            bed.say(&["checkpoint", JOB])?.success()?;
            let wanted = (lines(bed) + 8).min(40);
            bed.until("more lines", PATIENCE, || lines(bed) >= wanted)?;
            // More than is kept in memory, when it goes to the first.
            let image = if round == 3 { "j@1" } else { JOB };
            bed.say(&["rollback", image])?.success()?;
        }
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success(), "{}", bed.text("out"));
        let expected = holdfast_tests::apps::reference(&app)?;
        holdfast_tests::apps::Results::read(&app, bed, 0)?.check(&expected.results)
    });
}
