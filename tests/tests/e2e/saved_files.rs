//! Files that the program changes in place are in the image without an option: what becomes of them between checkpoint
//! and restart, and what is said of those that are too large.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::full;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, shell_code, wait};
use std::fs;

/// A journal that the killed program left, and that was not there at the checkpoint, would be played back into the
/// database that the restart has put back.
#[test]
fn a_journal_of_later_is_put_aside() {
    each_user(|bed| {
        let app = App::real("sqlite", &[PYTHON, "@interrupted.py"]);
        let mut front = bed.run_command("j", &[], &app.words())?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the database", PATIENCE, || bed.text("out").contains("ready"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        fs::write(bed.work().join("go"), "")?;
        bed.until("a transaction", PATIENCE, || bed.text("out").contains("inside 0 True"))?;
        let journal = bed.work().join("data.db-journal");
        let left = fs::read(&journal)?;
        kill_program(pid, &mut front)?;
        ensure!(journal.exists(), "it left no journal");
        fs::write(bed.work().join("end"), "")?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("restart.err");
        ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}{said}", bed.text("err"));
        ensure!(said.contains("data.db-journal: it was not there at the checkpoint"), "{said}");
        let kept = fs::read_dir(bed.job("j").join("saved"))?.flatten();
        let mut kept = kept.filter_map(|file| fs::read(file.path()).ok());
        ensure!(kept.any(|kept| !kept.is_empty() && kept == left), "the journal is not kept: {said}");
        bed.check_clean("j")
    });
}

/// What is more than 256 MiB is told, by everybody who speaks of the image, and nothing is refused.
#[test]
fn what_is_too_large_gives_a_warning() {
    const SCRIPT: &str = "exec 9<>data; head -c 314572800 /dev/zero >&9; echo begun; \
                          while [ ! -e enough ]; do sleep 0.05; done; echo PASS";
    // It writes 300 MiB.
    let users = if full() { &[User::Root, User::Ordinary][..] } else { &[User::Ordinary] };
    for &user in users {
        let Some(bed) = Bed::new(user) else { continue };
        let result = (|| -> Result<()> {
            let app = App::real("sh", &["/bin/sh", "-c", SCRIPT]);
            let mut front = bed.run_command("j", &[], &app.words())?.spawn()?;
            bed.wait_live("j", &mut front)?.context("a pid")?;
            bed.until("the file", PATIENCE, || bed.text("out").contains("begun"))?;
            let warned =
                |said: &str| said.contains("/data: the program changes it") && said.contains("300.0 MiB");
            for _ in 0..2 {
                let said = bed.say(&["checkpoint", "j"])?.success()?.stderr;
                ensure!(warned(&said), "checkpoint: {said}");
            }
            let run = bed.text("err");
            ensure!(warned(&run) && run.matches("/data").count() == 1, "run: {run}");
            let said = bed.say(&["show", "j"])?.success()?.stdout;
            ensure!(warned(&said), "show: {said}");
            for command in [&["list"][..], &["list", "j"]] {
                let said = bed.say(command)?.success()?.stdout;
                ensure!(said.contains("warning: a file is not saved"), "{command:?}: {said}");
            }
            fs::write(bed.work().join("enough"), "")?;
            let code = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(code == 0 && bed.text("out") == "begun\nPASS\n", "status {code}: {}", bed.text("out"));
            bed.check_clean("j")
        })();
        result.unwrap_or_else(|error| panic!("as {user:?}: {error:#}"));
    }
}
