//! Files that the program writes and closes again: what was written after the image is named by a restart, and with
//! `run --rollback-files` it is put back.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, shell_code, wait};
use std::fs;
use std::process::Command;

const JOB: &str = "j";

/// Appends a line to results and writes its state, turn by turn; waits for `go1` after turn 5 and for `go2` after
/// turn 10. A state that is not its own is told.
const PROGRAM: &str = "
import os, time
os.makedirs('deep/er', exist_ok=True)
open('input', 'w').close()
def wait(ready, go):
    open(ready, 'w').close()
    while not os.path.exists(go): time.sleep(0.02)
for turn in range(16):
    if turn and open('state').read() != str(turn - 1): print('state is', open('state').read(), flush=True)
    with open('deep/er/results', 'a') as results: results.write('%d\\n' % turn)
    with open('state', 'w') as state: state.write(str(turn))
    if turn == 5: wait('ready1', 'go1')
    if turn == 10: wait('ready2', 'go2')
print('PASS', flush=True)
";

/// Up to a kill after turn 10, with an image of turn 5, and from there to the end; what the restart says.
fn run(bed: &Bed, options: &[&str]) -> Result<String> {
    let until = |name: &str| bed.until(name, PATIENCE, || bed.work().join(name).exists());
    // What lies below one's home may be anything.
    let at_home = |command: &mut Command| command.env("HOME", bed.dir()).spawn();
    let mut front = at_home(&mut bed.run_command(JOB, options, &[PYTHON, "-c", PROGRAM])?)?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    until("ready1")?;
    bed.say(&["checkpoint", JOB])?.success()?;
    bed.create("go1")?;
    until("ready2")?;
    kill_program(pid, &mut front)?;
    ensure!(bed.text("deep/er/results") == lines(0, 11), "{}", bed.text("deep/er/results"));
    bed.create("go2")?;
    let mut front = at_home(&mut bed.restart_command(JOB, &[])?)?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("restart.err");
    ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {said}");
    Ok(said)
}

fn lines(from: u32, to: u32) -> String {
    (from..to).map(|turn| format!("{turn}\n")).collect()
}

#[test]
fn what_was_written_after_the_image_is_named() {
    each_user(|bed| {
        let said = run(bed, &[])?;
        let note = said.lines().find(|line| line.contains("written after image 1 and left as they are: "));
        let note = note.with_context(|| said.clone())?;
        for name in ["state", "deep/er/results", "ready2"] {
            ensure!(note.contains(&format!(" {name}")), "{name} is not named: {said}");
        }
        // Older, open, or the restart's own.
        for name in ["input", "ready1", "out", "err"] {
            let is_named = note.split([' ', ',', ';']).any(|word| word == name);
            ensure!(!is_named, "{name} is named: {said}");
        }
        ensure!(
            bed.text("deep/er/results") == lines(0, 11) + &lines(6, 16),
            "{}",
            bed.text("deep/er/results")
        );
        ensure!(bed.text("out") == "state is 10\nPASS\n", "{}", bed.text("out"));
        bed.check_clean(JOB)
    });
}

#[test]
fn what_was_written_after_the_image_is_put_back_if_that_was_asked_for() {
    each_user(|bed| {
        let said = run(bed, &["--rollback-files"])?;
        ensure!(bed.text("deep/er/results") == lines(0, 16), "{}{said}", bed.text("deep/er/results"));
        ensure!(bed.text("out") == "PASS\n", "{}{said}", bed.text("out"));
        ensure!(said.contains("ready2") && !said.contains(": state"), "{said}");
        let saved = fs::read_dir(bed.job(JOB).join("saved"))?.flatten();
        let texts: Vec<String> = saved.filter_map(|one| fs::read_to_string(one.path()).ok()).collect();
        // Only what grew is kept of the one, all of the other.
        ensure!([lines(6, 11), "10".to_owned()].iter().all(|text| texts.contains(text)), "{texts:?}{said}");
        let neither = bed.say(&["run", "--rollback-files", "--save-files=none", "--", "true"])?;
        ensure!(
            neither.code() == 64 || neither.stderr.contains("--save-files=none saves none"),
            "{}",
            neither.stderr
        );
        bed.check_clean(JOB)
    });
}
