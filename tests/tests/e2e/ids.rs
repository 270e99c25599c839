//! The ids that new processes get after a restart: none that the program may still remember; and groups of a user.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::own_ids::{is_inner, with_own_ids};
use holdfast_tests::restart_chain::kill_all;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// The same command with another group.
fn in_group(command: &Command, group: u32) -> Command {
    let mut other = Command::new(command.get_program());
    let arguments = command.get_args().map(|word| {
        if word == "--clear-groups" { format!("--groups=1000,{group}").into() } else { word.to_owned() }
    });
    other.args(arguments).current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    other
}

/// Where it cannot be mapped in a user namespace, what is open to it stays open, and a note says what does not go.
#[test]
fn another_group_of_a_user_is_kept_or_said() -> Result<()> {
    const GROUP: u32 = 2102;
    if !am_root() {
        println!("not run: only root gives a user another group");
        return Ok(());
    }
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let folder = bed.work().join("project");
    fs::create_dir(&folder)?;
    chown(&folder, Some(0), Some(GROUP))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o770))?;
    // The file that is removed below is never open: it may not be part of the image.
    let program = format!(
        "import os, time\nn = 0\nwhile True:\n  n += 1\n  f = os.open(f'project/{{n}}', os.O_CREAT | os.O_WRONLY)\n  \
         os.close(f)\n  try: os.chown(f'project/{{n}}', -1, {GROUP}); r = 'given'\n  \
         except OSError as e: r = 'refused'\n  \
         try: os.symlink(f'{{r}} {{n}}', 'said')\n  except FileExistsError: pass\n  time.sleep(0.02)"
    );
    let said = || fs::read_link(bed.work().join("said")).unwrap_or_default().display().to_string();
    let command = bed.holdfast(&["run", "--name", JOB, "--", PYTHON, "-c", &program]);
    let mut front = in_group(&command, GROUP).stderr(bed.create("err")?).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    bed.until("a file", PATIENCE, || said().starts_with("given")).with_context(|| bed.text("err"))?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_all(&bed, pid, &mut front)?;
    fs::remove_file(bed.work().join("said"))?;
    let command = bed.holdfast(&["restart", JOB]);
    let mut front = in_group(&command, GROUP).stderr(bed.create("restart.err")?).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    bed.until("another file", PATIENCE, || !said().is_empty())?;
    // The note may come later than the program's first lines.
    let is_told = || bed.text("restart.err").contains(&format!("keeps the groups {GROUP}"));
    bed.until("the group, or a note", PATIENCE, || said().starts_with("given") || is_told())?;
    let (result, told) = (said(), bed.text("restart.err"));
    ensure!(result.starts_with("given") != is_told(), "{result}: {told}");
    kill_all(&bed, pid, &mut front)?;
    bed.check_clean(JOB)
}
