//! Launchers: programs that start a server, and end. Who is the program then, and what comes back of the server.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::kill_job;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, shell_code, wait};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

const JOB: &str = "j";
const OUT: &str = "server.out";
const SETPRIV: [&str; 4] = ["/usr/bin/setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"];

fn lines(kind: &str) -> String {
    let lines: String = (0..8).map(|n| format!("{:05} {kind} round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

/// Launcher, checkpoint of the server and its worker, the end of both, restart. `words`: before and behind those of the
/// launcher.
fn through_a_restart(bed: &Bed, kind: &str, words: [&[&str]; 2]) -> Result<()> {
    let app = App::program("tree_launcher", &[kind, OUT]);
    let words = [words[0], &app.words(), words[1]].concat();
    let mut front = bed.staying_command(JOB, &[], &words)?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out") == "server started\n", "status {code}: {}", bed.text("err"));
    // At once: the agent may not have heard of the launcher's end.
    bed.say(&["checkpoint", JOB])?.success()?;
    bed.until("lines of the server", PATIENCE, || bed.text(OUT).contains("round 3"))?;
    let mut server = bed.pid(JOB)?.context("no program is listed")?;
    for restarts in 0..if full() { 2 } else { 1 } {
        let workers = processes::children(server);
        ensure!(workers.len() == 1, "the program {server} has the children {workers:?}");
        bed.say(&["checkpoint", JOB])?.success()?;
        let both = [server, workers[0]];
        processes::kill(&both);
        bed.until("the end of both", PATIENCE, || !both.into_iter().any(processes::runs))?;
        if restarts > 0 {
            wait(&mut front, PATIENCE)?;
        }
        front = bed.restart_command(JOB, &[])?.spawn()?;
        server = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    }
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text(OUT) == lines(kind), "status {code}: {}", bed.text(OUT));
    bed.check_clean(JOB)
}

#[test]
fn a_server_and_its_worker() {
    each_user(|bed| through_a_restart(bed, "plain", [&[]; 2]));
}

#[test]
fn a_worker_with_a_group_of_its_own() {
    each_user(|bed| through_a_restart(bed, "group", [&[]; 2]));
}

#[test]
fn a_worker_with_a_session_of_its_own() {
    each_user(|bed| through_a_restart(bed, "session", [&[]; 2]));
}

/// Nothing of it but the launcher has told the agent that it is there.
#[test]
fn a_launcher_that_root_has_started_becomes_somebody_else() -> Result<()> {
    as_root(|bed| through_a_restart(bed, "session", [&[], &["1000"]]))
}

/// Not even that, for it is another program by then.
#[test]
fn a_launcher_is_executed_as_somebody_else() -> Result<()> {
    as_root(|bed| through_a_restart(bed, "plain", [&SETPRIV, &[]]))
}

/// In a bed with a file for the server.
fn as_root(test: impl Fn(&Bed) -> Result<()>) -> Result<()> {
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    bed.create(OUT)?.set_permissions(Permissions::from_mode(0o666))?;
    test(&bed)
}

/// Restarted three times, it has all that it was told, and is shut down in order: it does not miss one of its children.
/// `before`: what makes it another user's, for its server refuses to run as root.
fn postgres(user: User, before: &[&str]) -> Result<()> {
    if !full() || !Path::new("/usr/lib/postgresql").exists() {
        println!("not run: HOLDFAST_TEST_FULL=1; scripts/install-deps.sh trees");
        return Ok(());
    }
    let Some(bed) = Bed::lasting(user, 5 * PATIENCE) else { return Ok(()) };
    if user == User::Root {
        chown(bed.work(), Some(1000), Some(1000))?;
    }
    let script = bed.kit().app("bank.sh");
    let script = script.to_string_lossy();
    let words = |turn: &'static str| [before, &["/bin/bash", &script, turn]].concat();
    let ask = |turn: &'static str, line: &str| -> Result<String> {
        let words = words(turn);
        let mut command = bed.command(Path::new(words[0]));
        command.args(&words[1..]).arg(line);
        Ok(bed.output(command, PATIENCE)?.success()?.stdout)
    };
    ask("prepare", "")?;
    let mut front = bed.run_command(JOB, &[], &words("start"))?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0, "pg_ctl start: status {code}: {}", bed.text("err"));
    ask("sql", "create table told (number int)")?;
    let mut random = Random::new();
    for round in 1..=3 {
        ask("sql", &format!("insert into told values ({round})"))?;
        sleep(random.time(Duration::ZERO, Duration::from_millis(300)));
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_job(&bed, &mut front)?;
        front = bed.restart_command(JOB, &[])?.spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        let told = ask("sql", "select count(*), sum(number) from told")?;
        ensure!(told.trim() == format!("{round}|{}", round * (round + 1) / 2), "{told}");
    }
    if user == User::Root {
        ask("stop", "")?;
    } else {
        // As `pg_ctl stop` does, which knows the server by its id in the namespace of the restart.
        processes::signal(bed.pid(JOB)?.context("no program is listed")?, "INT");
    }
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let (log, state) = (bed.text("postgres.err"), ask("state", "")?);
    ensure!(code == 0 && log.contains("database system is shut down"), "status {code}: {log}");
    ensure!(!log.contains("was not properly shut down") && !log.contains("PANIC"), "{log}");
    ensure!(state.contains("shut down\n") && !state.contains("in production"), "{state}");
    bed.check_clean(JOB)
}

#[test]
fn postgres_by_pg_ctl() -> Result<()> {
    postgres(User::Ordinary, &[])
}

#[test]
fn postgres_by_pg_ctl_that_root_has_started() -> Result<()> {
    postgres(User::Root, &SETPRIV)
}
