//! Logs that were rotated, emptied or removed after the image, with their folders too: the program goes on, nothing is
//! lost, and what was lost already is said.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, shell_code, wait};
use std::fs::{self, File};
use std::path::Path;

const JOB: &str = "j";
/// More than an image keeps of a file that only grows.
const LARGE: usize = 300_000;

/// A program that has written so much to `log`, opened with these flags, and writes a line when `go` is there.
fn program(flags: &str) -> String {
    format!(
        "import os, time\nlog = os.open('log', {flags} | os.O_CREAT, 0o644)\nos.write(log, b'x' * {LARGE})\n\
         open('ready', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)\n\
         os.write(log, b'after\\n')\nprint('PASS', flush=True)"
    )
}

fn shell(bed: &Bed, line: &str) -> Result<()> {
    let mut command = bed.command(Path::new("/bin/sh"));
    command.args(["-ec", line]);
    bed.output(command, PATIENCE)?.success().map(drop)
}

/// Runs it until there is an image, and kills it.
fn checkpoint(bed: &Bed, job: &str, flags: &str) -> Result<()> {
    let code = program(flags);
    let mut front = bed.run_command(job, &["--save-files=none"], &[PYTHON, "-c", &code])?.spawn()?;
    let pid = bed.wait_live(job, &mut front)?.with_context(|| bed.text("err"))?;
    bed.until("a program that is ready", PATIENCE, || bed.work().join("ready").exists())?;
    bed.say(&["checkpoint", job])?.success()?;
    kill_program(pid, &mut front)
}

/// Restarts it, to its end; what the restart says.
fn restart(bed: &Bed, job: &str, code: i32) -> Result<String> {
    let mut front = bed.restart_command(job, &[])?.spawn()?;
    let found = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("restart.err");
    ensure!(found == code, "status {found}: {said}");
    Ok(said)
}

#[test]
fn what_only_appends_goes_on_in_an_empty_file() {
    each_user(|bed| {
        for (job, line, kept) in [
            ("removed", "rm log", None),
            ("compressed", "gzip log; rm log.gz", None),
            ("begun-anew", "rm log; echo later > log", Some("later\n")),
            ("emptied", "cp log log.1; echo later > log", Some("later\n")),
        ] {
            shell(bed, "rm -f log log.1 ready go")?;
            checkpoint(bed, job, "os.O_WRONLY | os.O_APPEND")?;
            shell(bed, &format!("{line}; touch go"))?;
            let said = restart(bed, job, 0).context(job)?;
            ensure!(
                bed.text("log") == "after\n" && bed.text("out").ends_with("PASS\n"),
                "{job}: {}",
                bed.text("log")
            );
            let lost =
                format!("/log: the {LARGE} bytes that the program had appended to it are there no more");
            ensure!(said.contains(&lost) && !said.contains("used all the same"), "{job}: {said}");
            let saved = fs::read_dir(bed.job(job).join("saved")).map(|all| all.flatten().collect::<Vec<_>>());
            let mut saved = saved.unwrap_or_default().into_iter();
            let found =
                saved.find_map(|one| one.file_name().to_str()?.contains("-log.tail").then(|| one.path()));
            let found = found.map(|path| fs::read_to_string(path).unwrap_or_default());
            ensure!(found.as_deref() == kept, "{job}: kept {found:?}: {said}");
        }
        // It is still there, under another name: all of it comes back.
        shell(bed, "rm -f log log.1 ready go")?;
        checkpoint(bed, "renamed", "os.O_WRONLY | os.O_APPEND")?;
        shell(bed, "mv log log.1; echo later > log; touch go")?;
        restart(bed, "renamed", 0)?;
        ensure!(bed.text("log") == "x".repeat(LARGE) + "after\n", "{} bytes", bed.text("log").len());
        Ok(())
    });
}

/// The offset counts: an empty file would get a hole.
#[test]
fn what_is_written_at_an_offset_is_refused_with_a_remedy() {
    each_user(|bed| {
        checkpoint(bed, JOB, "os.O_WRONLY")?;
        shell(bed, "rm log; touch go")?;
        let said = restart(bed, JOB, 69)?;
        let remedy = format!("truncate -s {LARGE}");
        ensure!(
            said.contains("/log: the program writes it: No such file") && said.contains(&remedy),
            "{said}"
        );
        shell(bed, &format!("{remedy} log"))?;
        restart(bed, JOB, 0)?;
        ensure!(bed.text("log") == "\0".repeat(LARGE) + "after\n", "{} bytes", bed.text("log").len());
        Ok(())
    });
}

/// The folder of the log is not needed where the output goes elsewhere.
#[test]
fn the_folder_of_a_log_that_is_not_used_may_be_gone() {
    each_user(|bed| {
        for (job, options) in [("redirected", &[][..]), ("here", &["--stdio", "here"])] {
            shell(bed, "rm -f ready go; mkdir logs")?;
            let code = format!("print('first', flush=True)\n{}", program("os.O_WRONLY | os.O_APPEND"));
            let mut command = bed.run_command(job, &[], &[PYTHON, "-c", &code])?;
            let mut front = command.stdout(bed.create("logs/out")?).spawn()?;
            let pid = bed.wait_live(job, &mut front)?.with_context(|| bed.text("err"))?;
            bed.until("a program that is ready", PATIENCE, || bed.work().join("ready").exists())?;
            bed.say(&["checkpoint", job])?.success()?;
            kill_program(pid, &mut front)?;
            shell(bed, "rm -r logs; touch go")?;
            let out: File = bed.create("elsewhere")?;
            let mut front = bed.restart_command(job, options)?.stdout(out).spawn()?;
            let status = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(status == 0, "{job}: status {status}: {}", bed.text("restart.err"));
            ensure!(bed.text("elsewhere") == "PASS\n", "{job}: {}", bed.text("elsewhere"));
            ensure!(
                !bed.work().join("logs").exists(),
                "{job}: the folder was made: {}",
                bed.text("restart.err")
            );
        }
        Ok(())
    });
}
