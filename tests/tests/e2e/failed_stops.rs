//! A stop in which something fails keeps nothing: no thread in an injected call, no process on the way to a frozen
//! copy, no tracer, no memory. The program goes on, and the next checkpoint is good.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, Results, reference};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use std::fs;

const JOB: &str = "f";

fn failing_points() -> Vec<String> {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let ended = bed.say(&["__faults", "--failing"]).expect("holdfast __faults");
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stdout.split_whitespace().map(str::to_owned).collect()
}

/// Each step that can fail, at its first pass and a later one.
#[test]
fn nothing_is_kept_by_a_stop_in_which_a_step_fails() {
    let points = failing_points();
    assert!(points.len() > 5, "{points:?}");
    for (n, point) in points.iter().enumerate() {
        // Without libholdfast a process is adopted; several processes have a copy each.
        let adopted = point.starts_with("foothold");
        let app = match (adopted, n % 2) {
            _ if point == "clone-done" => App::program("tree_memory", &["anonymous", "30"]),
            (true, _) => App::program("plain-static", &["60", "50"]),
            (false, 0) => App::program("heap", &["30"]),
            (false, _) => App::program("tree_memory", &["anonymous", "30"]),
        };
        let passes: &[u32] = match point.as_str() {
            "foothold" | "inject" => &[1, 3],
            "clone-done" => &[1, 2],
            _ => &[1],
        };
        for pass in passes {
            let user = if n % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
            if let Err(error) = fails_once(user, &format!("{point}:{pass}!"), &app) {
                panic!("{point}:{pass} as {user:?}: {error:#}");
            }
        }
    }
}

fn fails_once(user: User, fault: &str, app: &App) -> Result<()> {
    let expected = reference(app)?;
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let mut command = bed.staying_command(JOB, &["--engine", "fork"], &app.words())?;
    let mut front = command.env("HOLDFAST_FAULT", fault).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a program")?;
    bed.until("the first line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    let failed = bed.say(&["checkpoint", JOB])?;
    let read_log = || fs::read(bed.job(JOB).join("agent.log")).context("the agent's log");
    let log = String::from_utf8_lossy(&read_log()?).into_owned();
    ensure!(log.contains("failed at the fault point"), "it is never passed: {}{log}", failed.stderr);
    // Of a frozen copy nothing is left either: it would have a tracer, and the program's folder.
    let traced =
        || processes::of(bed.dir()).into_iter().find(|pid| tracers(*pid).iter().any(|tracer| *tracer != 0));
    bed.until("no tracer", PATIENCE, || traced().is_none()).with_context(|| log.clone())?;
    ensure!(!is_alone(pid) || !waits_for_child(pid), "an injected wait is left: {log}");
    // At the second pass, or when it is tried again, it succeeds.
    bed.say(&["checkpoint", JOB])?.success().with_context(|| {
        let log = read_log().unwrap_or_default();
        format!("the next checkpoint of {pid}: {}{}", String::from_utf8_lossy(&log), bed.text("err"))
    })?;
    bed.say(&["verify", JOB])?.success()?;
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE + expected.took * 4).context("the end of the program")?);
    Results::read(app, &bed, code)?.check(&expected.results)?;
    bed.check_clean(JOB)
}

/// Who traces the threads of a process.
fn tracers(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
        })
        .collect()
}

/// Whether a process has no children.
fn is_alone(pid: i32) -> bool {
    processes::children(pid).is_empty()
}

/// Whether its main thread is in wait4(2).
fn waits_for_child(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("61 "))
}
