//! Death at any moment: of the agent at every fault point and at random moments, of the program, of both, and a disk
//! that fills up. The program goes on undamaged, the newest committed image restarts, nothing is left behind.

use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::apps::{App, Results, reference};
use holdfast_tests::full;
use holdfast_tests::own_ids::with_own_ids;
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, STAY, User, am_root, each_user, shell_code, wait};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

pub(crate) const JOB: &str = "j";

/// Runs `test`; a failure is reported with what it was about.
pub(crate) fn must(what: &str, result: Result<()>) {
    if let Err(error) = result {
        panic!("{what}: {error:#}");
    }
}

/// After the agent's death the program must end with the output of an undisturbed run, and nothing else be left.
pub(crate) fn goes_on_without_the_agent(bed: &Bed, app: &App, front: &mut Child) -> Result<()> {
    let expected = reference(app)?;
    bed.may_end()?;
    let code = shell_code(wait(front, PATIENCE + expected.took * 4).context("the end of the program")?);
    Results::read(app, bed, code)?.check(&expected.results)?;
    bed.check_clean(JOB)
}

/// Of the frozen copy nothing may be left two seconds after its agent's death; the program and `holdfast run` stay.
fn no_copy_is_left(bed: &Bed, stay: &[i32]) -> Result<()> {
    let others =
        || processes::of(bed.dir()).into_iter().filter(|pid| !stay.contains(pid)).collect::<Vec<_>>();
    bed.until("the end of the frozen copy", Duration::from_secs(2), || others().is_empty()).with_context(
        || {
            let lines: Vec<_> = others()
                .iter()
                .map(|p| format!("{p} ({:?}) {}", processes::state(*p), processes::command_line(*p)))
                .collect();
            format!("left running: {lines:?}")
        },
    )
}

/// The agent dies at one fault point of a checkpoint. `false`: the point was not passed that often.
fn agent_dies_at(user: User, engine: &str, fault: &str, app: &App) -> Result<bool> {
    for _ in 0..3 {
        if let Some(passed) = try_to_die_at(user, engine, fault, app)? {
            return Ok(passed);
        }
    }
    bail!("the program ended before its checkpoint, three times")
}

/// The same once. `None`: the program ended first.
fn try_to_die_at(user: User, engine: &str, fault: &str, app: &App) -> Result<Option<bool>> {
    let Some(bed) = Bed::new(user) else { return Ok(Some(false)) };
    let mut command = bed.staying_command(JOB, &["--engine", engine], &app.words())?;
    let mut front = command.env("HOLDFAST_FAULT", fault).spawn()?;
    let Some(pid) = bed.wait_live(JOB, &mut front)? else { return Ok(None) };
    let agent = bed.agent_pid(JOB)?.context("the agent's pid is not listed")?;
    bed.until("the first line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    let ended = bed.say(&["checkpoint", JOB])?;
    let gone = bed
        .until("death", Duration::from_millis(300), || processes::state(agent).is_none_or(|s| s == 'Z'))
        .is_ok();
    // An agent ends with its program, too.
    let died = gone && was_killed(&bed)?;
    if gone && !died && bed.images(JOB).is_empty() {
        return Ok(None);
    }
    if !died {
        ensure!(ended.status.success(), "the agent lives, but: {}", ended.stderr);
    }
    if died {
        // Only the commit itself may have come to its end: at its last point, or beside the release of the last
        // pages, which the tracer thread does on its own (tracer.rs) and which may come after a small program's
        // commit. The program may be held at the bound on copies, and resumed once more when all is stored.
        let committed = bed.images(JOB);
        let resumed_again = fault.starts_with("resume:") && fault != "resume:1";
        let may_have =
            resumed_again || ["manifest-renamed", "release"].iter().any(|point| fault.starts_with(point));
        ensure!(committed.is_empty() || may_have, "an image exists: {committed:?}");
        for epoch in committed {
            bed.say(&["verify", &format!("{JOB}@{epoch}")])?
                .success()
                .context("a listed image is not good")?;
        }
        no_copy_is_left(&bed, &[pid, front.id().cast_signed()])?;
        bed.until("a word about the agent", PATIENCE, || {
            bed.text("err").contains("runs on, without checkpoints")
        })?;
        let line = bed.text("out").len();
        bed.may_end()?;
        bed.until("new lines of the program", PATIENCE, || bed.text("out").len() > line || is_over(&bed))?;
    }
    goes_on_without_the_agent(&bed, app, &mut front)?;
    Ok(Some(died))
}

/// Whether the program has written its last line.
fn is_over(bed: &Bed) -> bool {
    ["PASS", "FAIL"].iter().any(|end| bed.text("out").contains(end))
}

/// Whether the agent met its fault point (fault.rs says so before it dies).
fn was_killed(bed: &Bed) -> Result<bool> {
    let log = fs::read(bed.job(JOB).join("agent.log")).context("the agent's log")?;
    Ok(String::from_utf8_lossy(&log).contains("killed at the fault point"))
}

/// Fault points of a checkpoint, each passed at least once.
#[test]
fn agent_dies_at_each_point_of_a_checkpoint() {
    let app = App::program("registers", &["3"]);
    let points = checkpoint_points();
    assert!(points.len() > 8, "{points:?}");
    for (n, point) in points.iter().enumerate() {
        let user = if n % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        match agent_dies_at(user, "fork", point, &app) {
            Ok(died) => assert!(died, "{point}: the agent lives; the point is never passed"),
            Err(error) => panic!("{point} as {user:?}: {error:#}"),
        }
        // What is stored before the stop, and copied in it: those that make no frozen copy pass fewer points. Every
        // other one as each user in the short form.
        if !full() && n % 4 > 1 {
            continue;
        }
        if let Err(error) = agent_dies_at(user, "auto", point, &app) {
            panic!("{point} as {user:?}, engine auto: {error:#}");
        }
    }
}

/// Every injected call in turn: the n-th one kills the agent, until there is no n-th one.
#[test]
fn agent_dies_at_each_injected_call() {
    let app = App::program("registers", &["3"]);
    for point in ["inject", "inject-done", "resume"] {
        let mut n = 1;
        loop {
            match agent_dies_at(User::Ordinary, "fork", &format!("{point}:{n}"), &app) {
                Ok(true) => n += 1,
                Ok(false) => break,
                Err(error) => panic!("{point}:{n}: {error:#}"),
            }
            if !full() && n > 12 {
                break;
            }
        }
        println!("{point}: {} passes", n - 1);
        assert!(n > 1, "{point} is never passed");
    }
}

/// In a program without libholdfast: each of the calls by which the agent makes room for itself.
#[test]
fn agent_dies_while_it_makes_room() {
    let sleeps = |call| App::program("waits-static", &[call, "4", "120"]);
    let apps = [
        App::program("registers-static", &["3"]),
        sleeps("nanosleep"),
        sleeps("poll"),
        sleeps("futex_timed"),
    ];
    for app in apps {
        let mut n = 1;
        loop {
            match agent_dies_at(User::Ordinary, "fork", &format!("foothold:{n}"), &app) {
                Ok(true) => n += 1,
                Ok(false) => break,
                Err(error) => panic!("{}, foothold:{n}: {error:#}", app.name),
            }
        }
        assert!(n > 6, "{n}");
    }
}

/// A program asleep, while the agent dies in the stop. The calls of the first list come through whenever it dies. Those
/// of the second are ended by the kernel itself with EINTR at any stop (epoll_wait(2), signal(7)), until the agent has
/// repaired them: so they come through from the first injected call on.
#[test]
fn agent_dies_while_the_program_sleeps() {
    let before_repair = ["seized", "interrupted", "stopped", "registers"];
    let points: Vec<String> = checkpoint_points()
        .into_iter()
        .filter(|point| !point.starts_with("segment") && !point.starts_with("manifest"))
        .collect();
    let calls = ["nanosleep", "poll", "futex_timed", "pipe_read", "select", "epoll_wait", "sigtimedwait"];
    for (place, call) in calls.into_iter().enumerate() {
        let repaired = ["epoll_wait", "sigtimedwait"].contains(&call);
        let app = App::program("waits", &[call, "4", "120"]);
        // In the short form every third point, others for the next call.
        let in_turn = points.iter().enumerate().filter(|(n, _)| full() || (n + place) % 3 == 0);
        let points = in_turn.map(|(_, point)| point);
        for point in points.filter(|p| !repaired || !before_repair.contains(&p.as_str())) {
            if let Err(error) = agent_dies_at(User::Ordinary, "fork", point, &app) {
                panic!("{call}, {point}: {error:#}");
            }
        }
    }
}

pub(crate) fn all_points() -> Vec<String> {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let ended = bed.say(&["__faults"]).expect("holdfast __faults");
    assert!(ended.status.success(), "{}", ended.stderr);
    ended.stdout.split_whitespace().map(str::to_owned).collect()
}

fn checkpoint_points() -> Vec<String> {
    let elsewhere = |point: &String| {
        [
            "seed-",
            "front-",
            "foothold",
            "cascade-",
            "remove-",
            "fetch-",
            "gang-",
            "guard-",
            "pages-",
            "cuda-",
            "rollback-",
        ]
        .iter()
        .any(|begin| point.starts_with(begin))
    };
    all_points().into_iter().filter(|point| !elsewhere(point)).collect()
}

/// The front of a job whose agent was killed removes its socket; if that was killed too, the next command does.
#[test]
fn the_socket_of_a_killed_agent_goes_with_whoever_sees_it_next() -> Result<()> {
    for kill_front in [false, true] {
        let bed = Bed::new(User::Ordinary).context("a bed")?;
        let mut front = bed.run_command(JOB, &[], &["/bin/sleep", "300"])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        let socket = bed.job(JOB).join("agent.sock");
        if kill_front {
            processes::signal(front.id().cast_signed(), "KILL");
            wait(&mut front, PATIENCE)?;
        }
        processes::signal(agent, "KILL");
        bed.until("the end of the agent", PATIENCE, || !processes::runs(agent))?;
        ensure!(socket.exists(), "a killed agent has removed its socket");
        processes::signal(pid, "KILL");
        if kill_front {
            ensure!(bed.say(&["checkpoint", JOB])?.code() == 66, "there is no agent");
        } else {
            wait(&mut front, PATIENCE)?;
        }
        ensure!(!socket.exists(), "left behind (front killed: {kill_front})");
        bed.until("the end of the program", PATIENCE, || !processes::runs(pid))?;
        bed.check_clean(JOB)?;
    }
    Ok(())
}

/// Processes that come and go: with them at first, then alone, the first one ends before anybody hears of its birth.
fn ends_before_the_front_hears(user: User) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let script = "echo begun; until [ -e over ]; do sleep 0.02; done; echo PASS; exit 7";
    let mut front = bed.run_command(JOB, &[], &["/bin/bash", "-c", script])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || !bed.text("out").is_empty())?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)?;
    bed.create("over")?;
    let mut front = bed.restart_command(JOB, &[])?.env("HOLDFAST_FAULT", "front-hears+4000").spawn()?;
    bed.until("the end of the output", PATIENCE, || bed.text("out").ends_with("PASS\n"))?;
    sleep(Duration::from_millis(300));
    ensure!(front.try_wait()?.is_none(), "the front was not late");
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 7, "status {code}: {}", bed.text("restart.err"));
    bed.check_clean(JOB)
}

#[test]
fn a_program_that_is_over_before_the_front_hears_of_it_has_its_status() {
    for user in [User::Ordinary, User::Root] {
        must(&format!("as {user:?}"), ends_before_the_front_hears(user));
    }
}

/// Gives an id that is free to somebody else.
fn take(id: i32) -> Result<Child> {
    for _ in 0..200 {
        // Whoever is made next gets the number after this one (pid_namespaces(7)), if nobody is quicker.
        fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string())?;
        let mut child = Command::new("sleep").arg("30").spawn()?;
        if child.id().cast_signed() == id {
            return Ok(child);
        }
        child.kill()?;
        child.wait()?;
    }
    bail!("id {id} cannot be had")
}

/// While a restart that has found all ids free is under way somebody else gets that of one of so many threads: it finds
/// another way. `which`: counted in the order of their ids, the main thread first.
fn id_is_taken_in_restart(threads: usize, which: usize) -> Result<()> {
    let app = App::program("pingpong", &["3000", &threads.to_string()]);
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))?
        .filter_map(|task| task.ok()?.file_name().into_string().ok());
    let ids: BTreeSet<i32> = tasks.filter_map(|task| task.parse().ok()).collect();
    ensure!(ids.len() == threads + 1, "the program has {} threads", ids.len());
    let thread = *ids.iter().nth(which).context("a thread")?;
    kill_program(pid, &mut front)?;
    let mut front = bed.restart_command(JOB, &[])?.env("HOLDFAST_FAULT", "seed-ready:1+1500").spawn()?;
    let process = format!("/proc/{pid}/status");
    bed.until("the new process", PATIENCE, || fs::exists(&process).unwrap_or(false))?;
    let mut other = take(thread)?;
    let result = goes_on_without_the_agent(&bed, &app, &mut front).with_context(|| bed.text("restart.err"));
    other.kill()?;
    other.wait()?;
    let log = fs::read_to_string(bed.job(JOB).join("agent.log"))?;
    ensure!(log.contains("has taken its id meanwhile"), "nobody has taken the id in time: {log}");
    result
}

#[test]
fn an_id_that_somebody_takes_during_a_restart_is_no_reason_to_fail() {
    let both = || {
        id_is_taken_in_restart(8, 8).context("the id of the last")?;
        // More than the calls of one table make.
        id_is_taken_in_restart(1100, 30).context("an early one of many")
    };
    let name = "crash::an_id_that_somebody_takes_during_a_restart_is_no_reason_to_fail";
    must("with ids of its own", with_own_ids(name, both));
}

/// Who is killed at a random moment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Agent,
    Program,
    Both,
}

/// One death at a random moment around checkpoints. What must hold then is in the head of this file.
fn one_death(victim: Victim, user: User, random: &mut Random) -> Result<()> {
    let app = App::program("toucher", &["24", "40", "20", "4"]);
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    let agent = bed.agent_pid(JOB)?.context("the agent's pid is not listed")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    let mut asking = bed.holdfast(&["checkpoint", JOB]).spawn()?;
    sleep(random.time(Duration::ZERO, Duration::from_millis(60)));
    if victim != Victim::Program {
        processes::signal(agent, "KILL");
    }
    if victim != Victim::Agent {
        processes::signal(pid, "KILL");
    }
    wait(&mut asking, PATIENCE).context("the checkpoint that was under way")?;
    if victim == Victim::Agent {
        goes_on_without_the_agent(&bed, &app, &mut front)
            .context("the program after the death of its agent")?;
    } else {
        wait(&mut front, PATIENCE).context("holdfast run after the death")?;
    }
    for epoch in bed.images(JOB) {
        bed.say(&["verify", &format!("{JOB}@{epoch}")])?.success().context("a listed image is not good")?;
    }
    ensure!(!bed.images(JOB).is_empty(), "the first image is gone");
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    goes_on_without_the_agent(&bed, &app, &mut front).context("the restart afterwards")
}

fn deaths(victim: Victim) {
    let count = if full() { 200 } else { 15 };
    let mut random = Random::new();
    for n in 0..count {
        let user = if n % 2 == 0 { User::Ordinary } else { User::Root };
        must(&format!("death {n} of {victim:?} as {user:?}"), one_death(victim, user, &mut random));
    }
}

#[test]
fn agent_killed_at_random_moments() {
    deaths(Victim::Agent);
}

#[test]
fn program_killed_at_random_moments() {
    deaths(Victim::Program);
}

#[test]
fn both_killed_at_random_moments() {
    deaths(Victim::Both);
}

/// The store is a file system of its own that fills up in the middle of a flush. The checkpoint fails and says why, the
/// program runs on, the image before is intact, the space is free again, and a checkpoint works once there is room.
#[test]
fn disk_full_during_the_flush() {
    if !am_root() {
        return println!("not run: this part needs root (it mounts a small file system)");
    }
    for user in [User::Root, User::Ordinary] {
        must(&format!("as {user:?}"), disk_full(user));
    }
}

/// Unmounts when dropped.
struct Mounted(std::path::PathBuf);
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn used_kib(bed: &Bed) -> Result<u64> {
    let df = std::process::Command::new("df").args(["--output=used", "-k"]).arg(bed.store()).output()?;
    String::from_utf8_lossy(&df.stdout).lines().nth(1).context("df")?.trim().parse().context("df")
}

/// A file system of its own for the store. None: mounting is not allowed here.
fn small_store(bed: &Bed, size: &str) -> Result<Option<Mounted>> {
    let owner = if bed.user() == User::Root { "" } else { ",uid=1000,gid=1000" };
    let status = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={size},mode=0700{owner}"), "tmpfs"])
        .arg(bed.store())
        .status()?;
    if !status.success() {
        println!("not run: mounting is not allowed here");
    }
    Ok(status.success().then(|| Mounted(bed.store())))
}

/// The job's folder has no room for a file when its program ends.
#[test]
fn a_full_disk_hides_no_end() {
    if !am_root() {
        return println!("not run: this part needs root (it mounts a small file system)");
    }
    each_user(|bed| {
        let Some(_mounted) = small_store(bed, "1m")? else { return Ok(()) };
        let waits = "until [ -e go ]; do sleep 0.02; done; exit 3";
        let mut front = bed.run_command(JOB, &[], &["/bin/sh", "-c", waits])?.spawn()?;
        bed.wait_live(JOB, &mut front)?.context("a pid")?;
        let mut filled = std::fs::File::create(bed.store().join("filled"))?;
        let error = loop {
            if let Err(error) = filled.write_all(&[1; 4096]) {
                break error;
            }
        };
        ensure!(error.kind() == std::io::ErrorKind::StorageFull, "{error}");
        bed.create("go")?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 3, "status {code}");
        let mut job = serde_json::Value::Null;
        // The agent hears of the end after the front, and ends after it.
        bed.until("the end of the job", PATIENCE, || {
            let list = bed.say(&["list", "--json"]).map(|ended| ended.stdout).unwrap_or_default();
            let list = serde_json::from_str::<serde_json::Value>(&list).unwrap_or_default();
            job = list["jobs"][0].clone();
            job["state"] != "ending" && job["state"] != "running"
        })?;
        ensure!(job["state"] == "failed" && job["status"] == 3, "{job}");
        Ok(())
    });
}

fn disk_full(user: User) -> Result<()> {
    // 96 MiB of heap that does not compress well, in a store of 150 MiB: the first image fits, the second does not
    let app = App::program("toucher", &["96", "60", "50", "90"]);
    let bed = Bed::new(user).context("a bed")?;
    let Some(_mounted) = small_store(&bed, "150m")? else { return Ok(()) };
    let mut front =
        bed.run_command(JOB, &["--engine", "fork", "--compress", "lz4"], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 2)?;
    bed.say(&["checkpoint", JOB])?.success().context("the first image")?;
    let used = used_kib(&bed)?;
    let lines = bed.text("out").lines().count();
    bed.until("memory that has changed", PATIENCE, || bed.text("out").lines().count() > lines + 2)?;
    let ended = bed.say(&["checkpoint", JOB])?;
    ensure!(ended.code() == 73, "status {} of the second checkpoint: {}", ended.code(), ended.stderr);
    ensure!(ended.stderr.contains("space"), "the reason is missing: {}", ended.stderr);
    bed.say(&["verify", &format!("{JOB}@1")])?.success().context("the image before")?;
    ensure!(bed.images(JOB) == [1], "images {:?}", bed.images(JOB));
    ensure!(
        used_kib(&bed)? <= used + 256,
        "space is not free again: {} KiB, before {used} KiB",
        used_kib(&bed)?
    );
    let line = bed.text("out").len();
    bed.until("new lines of the program", PATIENCE, || bed.text("out").len() > line)?;
    let grow =
        std::process::Command::new("mount").args(["-o", "remount,size=400m"]).arg(bed.store()).status()?;
    ensure!(grow.success(), "remount");
    bed.say(&["checkpoint", JOB])?.success().context("a checkpoint after there is room again")?;
    kill_program(pid, &mut front)?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    goes_on_without_the_agent(&bed, &app, &mut front)
}

/// A file size limit of the agent has the same effect as a full disk.
#[test]
fn file_size_limit_during_the_flush() -> Result<()> {
    let app = App::program("toucher", &["64", "40", "50", "4"]);
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let words = app.words();
    let holdfast = bed.kit().holdfast();
    let mut command = bed.command(std::path::Path::new("/bin/sh"));
    command
        .args(["-c", "ulimit -f 20000; exec \"$@\"", "sh"])
        .arg(holdfast)
        .args(["run", "--name", JOB, "--"])
        .args(words);
    command.env(STAY, bed.stay_file());
    let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
    bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 2)?;
    let ended = bed.say(&["checkpoint", JOB])?;
    if ended.status.success() {
        bail!("64 MiB were stored under a limit of 10 MiB: {:?}", bed.images(JOB));
    }
    let again = bed.say(&["checkpoint", JOB])?;
    for (said, code) in [(&ended.stderr, ended.code()), (&again.stderr, again.code())] {
        ensure!(code == 73 && said.contains("ulimit -f"), "status {code}: {said}");
    }
    ensure!(bed.images(JOB).is_empty(), "{:?}", bed.images(JOB));
    goes_on_without_the_agent(&bed, &app, &mut front)
}
