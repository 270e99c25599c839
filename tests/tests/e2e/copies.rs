//! Copies of one image, each a job of its own, at the same time.

use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_all;
use holdfast_tests::sandbox::{Bed, PATIENCE, STAY, User, each_user, each_user_in_turn, wait};
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// An image of a job, as soon as it has a program.
fn checkpoint(bed: &Bed, job: &str) -> Result<()> {
    bed.until("a program", PATIENCE, || bed.pid(job).is_ok_and(|pid| pid.is_some()))?;
    let mut last = String::new();
    let taken = bed.until("an image", PATIENCE, || {
        bed.say(&["checkpoint", job]).is_ok_and(|ended| {
            last = ended.stderr.clone();
            ended.status.success()
        })
    });
    taken.with_context(|| format!("{job}: {last}"))
}

/// With a pipe for its output.
fn piped(bed: &Bed, arguments: &[&str]) -> Result<Child> {
    Ok(bed.holdfast(arguments).stdout(Stdio::piped()).spawn()?)
}

/// The same; it does not end before it may.
fn staying(bed: &Bed, arguments: &[&str]) -> Result<Child> {
    Ok(bed.holdfast(arguments).env(STAY, bed.stay_file()).stdout(Stdio::piped()).spawn()?)
}

/// A program that goes on from an image ends well, and says the rest of `whole`.
fn goes_on(child: Child, name: &str, whole: &[u8]) -> Result<()> {
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{name}: {:?}: {text}", output.status);
    ensure!(!text.is_empty() && whole.ends_with(&output.stdout), "{name}: another output: {text}");
    Ok(())
}

/// One image, four programs at the same time, each a job that goes on by itself.
#[test]
fn copies_at_the_same_time() {
    each_user(|bed| {
        let heap = bed.kit().program("heap").to_string_lossy().into_owned();
        let whole = piped(bed, &["run", "--name", "plain", "--", &heap, "40"])?.wait_with_output()?.stdout;
        let first = piped(bed, &["run", "--name", "j", "--", &heap, "40"])?;
        checkpoint(bed, "j")?;
        let names = ["one", "two", "three"];
        let copies: Vec<Child> = names
            .iter()
            .map(|name| piped(bed, &["restart", "--name", name, "j"]))
            .collect::<Result<_, _>>()?;
        checkpoint(bed, "one")?;
        for (child, name) in [first].into_iter().chain(copies).zip(["j", "one", "two", "three"]) {
            goes_on(child, name, &whole)?;
        }
        ensure!(bed.images("one") == [1, 2] && bed.images("two") == [1], "{:?}", bed.images("one"));
        // The copies do without the job that they come from.
        bed.say(&["prune", "--all", "j"])?.success()?;
        goes_on(piped(bed, &["restart", "two"])?, "two again", &whole)?;
        let refused = bed.say(&["restart", "--name", "two", "one"])?;
        ensure!(refused.code() == 69 && refused.stderr.contains("another name"), "{}", refused.stderr);
        names.iter().try_for_each(|name| bed.check_clean(name))
    });
}

/// Reads one line of a program's output, and no more.
fn first_line(child: &mut Child) -> Result<()> {
    let output = child.stdout.as_mut().context("no pipe")?;
    let mut byte = [0];
    while byte != *b"\n" {
        output.read_exact(&mut byte)?;
    }
    Ok(())
}

/// Segments of System V that were removed are made anew for each copy; one that was not is the job's as long as it
/// runs.
#[test]
fn copies_with_segments() {
    each_user(|bed| {
        let program = bed.kit().program("tree_segments").to_string_lossy().into_owned();
        let mut first = staying(bed, &["run", "--name", "j", "--", &program, "removed", "5"])?;
        first_line(&mut first)?; // by then it is removed
        checkpoint(bed, "j")?;
        let names = ["one", "two"];
        let copies: Vec<Child> = names
            .iter()
            .map(|name| piped(bed, &["restart", "--name", name, "j"]))
            .collect::<Result<_, _>>()?;
        checkpoint(bed, "one")?;
        checkpoint(bed, "two")?;
        bed.may_end()?;
        for (child, name) in [first].into_iter().chain(copies).zip(["j", "one", "two"]) {
            let output = child.wait_with_output()?;
            let passed = output.status.success() && output.stdout.ends_with(b"PASS\n");
            ensure!(passed, "{name}: {:?}: {}", output.status, String::from_utf8_lossy(&output.stdout));
        }
        fs::remove_file(bed.stay_file())?;
        let mut kept = staying(bed, &["run", "--name", "kept", "--", &program, "kept", "5"])?;
        first_line(&mut kept)?;
        checkpoint(bed, "kept")?;
        let refused = bed.say(&["restart", "--name", "copy", "kept"])?;
        let told = refused.stderr.contains("is attached by another program");
        ensure!(refused.code() == 69 && told, "{}: {}", refused.code(), refused.stderr);
        bed.may_end()?;
        ensure!(kept.wait_with_output()?.status.success(), "what is refused changes nothing");
        ["j", "one", "two", "kept"].iter().try_for_each(|name| bed.check_clean(name))
    });
}

/// A copy of a running job does not touch its semaphores.
#[test]
fn copies_with_semaphores() {
    each_user(|bed| {
        let program = bed.kit().program("ipc").to_string_lossy().into_owned();
        let piped = |arguments: &[&str]| {
            let mut command = bed.holdfast(arguments);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
        };
        let mut first = piped(&["run", "--name", "j", "--", &program, "semaphores", "45"])?;
        first_line(&mut first)?;
        bed.say(&["checkpoint", "j"])?.success()?;
        sleep(Duration::from_millis(150));
        let copy = piped(&["restart", "--name", "copy", "j"])?.wait_with_output()?;
        let said = String::from_utf8_lossy(&copy.stderr);
        ensure!(copy.status.success() && said.contains("semaphore set"), "{:?}: {said}", copy.status);
        for output in [copy, first.wait_with_output()?] {
            let text = String::from_utf8_lossy(&output.stdout);
            ensure!(output.status.success() && text.ends_with("PASS\n"), "{:?}: {text}", output.status);
        }
        bed.check_clean("j")
    });
}

/// What the programs of a copy execute has the environment of the job that it comes from, and would speak to its
/// agent. Here all of them make orphans all the time, that job is still running, and none of the three may lose one,
/// or take in another's.
fn that_make_orphans(program: &str, turn: User) {
    each_user_in_turn(turn, |bed| {
        let program = bed.kit().program(program).to_string_lossy().into_owned();
        let whole =
            piped(bed, &["run", "--name", "plain", "--", &program, "200", "25"])?.wait_with_output()?.stdout;
        let mut first = staying(bed, &["run", "--name", "j", "--", &program, "200", "25"])?;
        first_line(&mut first)?;
        checkpoint(bed, "j")?;
        let names = ["one", "two"];
        let copies: Vec<Child> = names
            .iter()
            .map(|name| piped(bed, &["restart", "--name", name, "j"]))
            .collect::<Result<_, _>>()?;
        for name in ["one", "two", "j", "two", "one"] {
            checkpoint(bed, name)?;
        }
        let pid = bed.pid("j")?.context("j has ended")?;
        kill_all(bed, pid, &mut first)?;
        for mut copy in copies {
            wait(&mut copy, PATIENCE)?;
        }
        bed.may_end()?;
        let again: Vec<Child> = ["j", "one", "two"]
            .iter()
            .map(|name| piped(bed, &["restart", name]))
            .collect::<Result<_, _>>()?;
        for (child, name) in again.into_iter().zip(["j", "one", "two"]) {
            goes_on(child, name, &whole)?;
            bed.check_clean(name)?;
        }
        Ok(())
    });
}

#[test]
fn that_make_orphans_with_the_library() {
    that_make_orphans("tree_daemons", User::Root);
}

#[test]
fn that_make_orphans_without_the_library() {
    that_make_orphans("tree_daemons-static", User::Ordinary);
}

/// The environment of the programs names a socket in a folder that is no more: what they execute finds no agent.
#[test]
fn from_a_store_that_was_moved() {
    each_user_in_turn(User::Ordinary, |bed| {
        let program = bed.kit().program("tree_daemons").to_string_lossy().into_owned();
        let whole =
            piped(bed, &["run", "--name", "plain", "--", &program, "150", "25"])?.wait_with_output()?.stdout;
        let mut first = staying(bed, &["run", "--name", "j", "--", &program, "150", "25"])?;
        first_line(&mut first)?;
        checkpoint(bed, "j")?;
        let pid = bed.pid("j")?.context("j has ended")?;
        kill_all(bed, pid, &mut first)?;
        let moved = bed.dir().join("moved");
        fs::rename(bed.store(), &moved)?;
        let elsewhere = moved.to_string_lossy().into_owned();
        let again = piped(bed, &["restart", "--store", &elsewhere, "j"])?;
        for _ in 0..3 {
            bed.until("an image", PATIENCE, || {
                let ended = bed.say(&["checkpoint", "--store", &elsewhere, "j"]);
                ended.is_ok_and(|ended| ended.status.success())
            })?;
        }
        bed.may_end()?;
        goes_on(again, "j", &whole)?;
        goes_on(piped(bed, &["restart", "--store", &elsewhere, "j"])?, "j again", &whole)?;
        fs::rename(&moved, bed.store())?;
        bed.check_clean("j")
    });
}
