//! The ids that new processes get after a restart: none that the program may still remember.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::own_ids::{is_inner, with_own_ids};
use holdfast_tests::restart_chain::kill_all;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, shell_code, wait};
use std::fs;

const JOB: &str = "j";

/// A shell keeps what its jobs ended with, by their ids. It is restarted between the end of each and the question.
fn jobs_are_remembered(user: User) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let app = App::real("bash", &["/bin/bash", "@remembered.sh"]);
    let mut front = bed.run_command(JOB, &[], &app.words())?.spawn()?;
    for turn in 1..=3 {
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        let name = format!("job{turn}");
        bed.until("a job", PATIENCE, || !bed.text(&name).is_empty())?;
        let id: i32 = bed.text(&name).trim().parse()?;
        let is_known = || fs::exists(format!("/proc/{id}")).unwrap_or(true);
        // Its namespace has other ids than ours from the first restart on.
        bed.until("the job's end", PATIENCE, || user == User::Ordinary && turn > 1 || !is_known())?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_all(&bed, pid, &mut front)?;
        if user == User::Root {
            // As on a host that has been started anew.
            fs::write("/proc/sys/kernel/ns_last_pid", (id - 30).max(1).to_string())?;
        }
        bed.create(&format!("go{turn}"))?;
        front = bed.restart_command(JOB, &[])?.spawn()?;
    }
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(code == 0 && out == "1 27\n2 27\n3 27\nPASS\n", "status {code}: {out}{}", bed.text("err"));
    bed.check_clean(JOB)
}

#[test]
fn a_shell_remembers_its_jobs_whoever_restarts_it() {
    let name = "ids::a_shell_remembers_its_jobs_whoever_restarts_it";
    if let Err(error) = with_own_ids(name, || jobs_are_remembered(User::Root)) {
        panic!("as root: {error:#}");
    }
    if !is_inner()
        && let Err(error) = jobs_are_remembered(User::Ordinary)
    {
        panic!("as an ordinary user: {error:#}");
    }
}
