//! Storms: one of the processes around a program dies at any moment, again and again. No process waits for what is
//! gone, least of all so that it cannot be killed or sync(2) does not return; the program goes on to its right end.
//!
//! A few rounds in the short form; in the long one 500 around page servers, 200 of agents. `HOLDFAST_STORM=N` has N of
//! each. A failing test prints its seed.

use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::apps::{App, Results, reference};
use holdfast_tests::full;
use holdfast_tests::object_server::{Mood, ObjectServer};
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, allow_fuse, am_root, shell_code, wait};
use std::fs;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const JOB: &str = "storm";
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;

/// How many rounds there are.
fn rounds(short: u64, long: u64) -> u64 {
    let asked = std::env::var("HOLDFAST_STORM").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full() { long } else { short })
}

/// Who dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Server,
    Prefetcher,
    Program,
    Front,
    Agent,
}

const VICTIMS: [Victim; 5] =
    [Victim::Server, Victim::Prefetcher, Victim::Program, Victim::Front, Victim::Agent];

/// Its process, if there is one by now.
fn find(bed: &Bed, victim: Victim, front: &Child) -> Option<i32> {
    let word = match victim {
        Victim::Server => " __pages ",
        Victim::Prefetcher => " __prefetch ",
        Victim::Agent => " __agent ",
        Victim::Program => "/untouched ",
        Victim::Front => return Some(front.id().cast_signed()),
    };
    let is_it = |pid: &i32| {
        let line = processes::command_line(*pid);
        line.contains(word) && !line.contains(" restart ")
    };
    processes::of(bed.dir()).into_iter().find(is_it)
}

/// Threads of the bed's processes that no signal reaches.
fn unkillable(bed: &Bed) -> Vec<String> {
    let mut found = Vec::new();
    for pid in processes::of(bed.dir()) {
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D')) {
                let stack = fs::read_to_string(task.path().join("stack")).unwrap_or_default();
                found.push(format!("{} {}\n{stack}", processes::command_line(pid), task.path().display()));
            }
        }
    }
    found
}

/// The way out for the machine, should a test find that it hangs: nobody can kill those who wait for a file system, but
/// its connection can be cut.
fn cut_connections() {
    let folder = "/sys/fs/fuse/connections";
    let _ = Command::new("mount").args(["-t", "fusectl", "none", folder]).status();
    for connection in fs::read_dir(folder).into_iter().flatten().flatten() {
        let waiting = fs::read_to_string(connection.path().join("waiting")).unwrap_or_default();
        if waiting.trim() != "0" {
            let _ = fs::write(connection.path().join("abort"), "1");
        }
    }
}

/// No process waits in such a way that it cannot be killed, the killed one has ended, and sync(2) returns.
fn nobody_hangs(bed: &Bed, killed: i32) -> Result<()> {
    let ended =
        bed.until("the end of waiting", PATIENCE, || !processes::runs(killed) && unkillable(bed).is_empty());
    if let Err(error) = ended {
        let who = unkillable(bed).join("\n");
        cut_connections();
        bail!("{error}; process {killed} runs: {}; {who}", processes::runs(killed));
    }
    let mut sync = Command::new("sync").spawn()?;
    let end = Instant::now() + PATIENCE;
    while sync.try_wait()?.is_none() {
        if Instant::now() > end {
            cut_connections();
            bail!("sync(2) does not return");
        }
        sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A job whose program waits for a file `go` with memory that is served, and is dead; `far`: its store is lost.
fn served_job(bed: &Bed, far: Option<&ObjectServer>) -> Result<()> {
    let app = App::program("untouched", &["48"]);
    let options: &[&str] = if far.is_some() { &["--tier", BUCKET] } else { &[] };
    let mut command = bed.run_command(JOB, options, &app.words())?;
    let mut front = command.envs(far.map(ObjectServer::environment).into_iter().flatten()).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("memory", PATIENCE, || bed.text("out").contains("ready"))?;
    bed.say(&["checkpoint", JOB])?.success()?;
    if let Some(server) = far {
        let mut sync = bed.holdfast(&["sync", JOB, "--wait"]);
        sync.envs(server.environment());
        bed.output(sync, PATIENCE)?.success()?;
    }
    kill_program(pid, &mut front)?;
    bed.until("the end of the agent", PATIENCE, || processes::of(bed.dir()).is_empty())
}

const BUCKET: &str = "s3://bucket/images";

/// One restart, in which one dies.
fn one_dies(bed: &Bed, far: Option<&ObjectServer>, victim: Victim, random: &mut Random) -> Result<()> {
    let mut options = vec!["--lazy"];
    if far.is_some() {
        fs::remove_dir_all(bed.job(JOB))?;
        options.extend(["--tier", BUCKET]);
    }
    let mut command = bed.restart_command(JOB, &options)?;
    command.envs(far.map(ObjectServer::environment).into_iter().flatten());
    bed.create("go")?;
    let mut front = command.spawn()?;
    let is_over = |front: &mut Child| !matches!(front.try_wait(), Ok(None));
    bed.until("a page server", PATIENCE, || {
        find(bed, Victim::Server, &front).is_some() || is_over(&mut front)
    })?;
    let most = if far.is_some() { 4000 } else { 600 };
    sleep(random.time(Duration::ZERO, Duration::from_millis(most)));
    let said = |what: &str| bed.text("restart.err").contains(what);
    // Before it dies: afterwards it may come to that.
    let ran = said("goes on from image");
    let killed = find(bed, victim, &front);
    if let Some(pid) = killed {
        processes::kill(&[pid]);
        if victim == Victim::Front {
            wait(&mut front, PATIENCE)?;
        }
        nobody_hangs(bed, pid)?;
    }
    let is_done = || bed.text("out").ends_with("PASS\n");
    if victim == Victim::Front && killed.is_some() {
        // Of a restart that had not come to an end nothing is left.
        bed.until("the end", PATIENCE, || is_done() || processes::of(bed.dir()).is_empty())?;
        ensure!(is_done() || !ran, "the program is gone");
    } else {
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let right = code == 0 && is_done();
        let is_as_it_must = match victim {
            _ if killed.is_none() => right,
            Victim::Server => right || code == 128 + SIGBUS,
            Victim::Prefetcher | Victim::Front => right,
            Victim::Program => right || code == 128 + SIGKILL || !ran,
            Victim::Agent => right || !ran,
        };
        ensure!(is_as_it_must, "status {code}, ran before: {ran}");
    }
    ensure!(!bed.text("out").contains("FAIL"), "wrong memory");
    bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
    let _ = fs::remove_file(bed.work().join("go"));
    Ok(())
}

fn storm_around_page_servers(user: User, far: bool, rounds: u64) -> Result<()> {
    let Some(bed) = Bed::lasting(user, Duration::from_secs(600 + 60 * rounds)) else { return Ok(()) };
    allow_fuse();
    let server = far.then(ObjectServer::start).transpose()?;
    served_job(&bed, server.as_ref())?;
    if let Some(server) = &server {
        server.set(Mood::Slow(256 << 10));
    }
    let mut random = Random::new();
    let first = random.below(VICTIMS.len() as u64);
    for round in 0..rounds {
        let victim = VICTIMS[((first + round) % VICTIMS.len() as u64) as usize];
        let told =
            || format!("round {round}, {victim:?} dies: {}{}", bed.text("restart.err"), bed.text("out"));
        one_dies(&bed, server.as_ref(), victim, &mut random).with_context(told)?;
    }
    bed.check_clean(JOB)
}

#[test]
fn nobody_waits_for_a_page_server_that_is_gone() {
    let rounds = rounds(5, 125);
    let all = [(User::Root, false), (User::Ordinary, true), (User::Root, true), (User::Ordinary, false)];
    // Two in the short form: each user, near and far.
    for (user, far) in all.into_iter().take(if full() || !am_root() { 4 } else { 2 }) {
        if let Err(error) = storm_around_page_servers(user, far, rounds) {
            panic!("as {user:?}, {}: {error:#}", if far { "from a slow tier" } else { "from the store" });
        }
    }
}

/// What an agent dies of: a program, how it runs, and whether it is restarted first.
struct Case {
    app: App,
    options: &'static [&'static str],
    restart: Option<&'static [&'static str]>,
}

fn cases() -> Vec<Case> {
    let case = |name, arguments: &[&str], options, restart| Case {
        app: App::program(name, arguments),
        options,
        restart,
    };
    // Eight threads that compute all the time.
    let computing = [if full() { "50" } else { "15" }];
    vec![
        case("registers", &computing, &["--every", "1s"], None),
        case("pingpong", &[], &["--every", "1s", "--engine", "fork"], None),
        case("tree_pairs", &["stream"], &["--every", "1s", "--engine", "copy"], None),
        case("heap", &[], &["--every", "1s", "--engine", "slots"], None),
        case("tree_mutex", &[], &["--every", "1s", "--engine", "fork", "--cow", "64K"], None),
        case("pingpong", &[], &["--every", "1s"], Some(&["--lazy"])),
        case("tree_pairs", &["stream"], &["--every", "1s"], Some(&["--lazy"])),
        case("heap", &[], &["--every", "1s"], Some(&["--lazy"])),
        case("registers", &computing, &["--every", "1s", "--engine", "slots"], Some(&["--eager"])),
    ]
}

/// Its agent dies at some moment: the program comes to its right end, and its front returns how.
fn an_agent_dies(user: User, case: &Case, mut random: Random) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let expected = reference(&case.app)?;
    let mut front = bed.staying_command(JOB, case.options, &case.app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    // The first one comes before a program has found out how fast the machine is.
    bed.until("two lines", PATIENCE, || bed.text("out").lines().count() > 1)?;
    let mut is_restart = false;
    if let Some(options) = case.restart {
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_program(pid, &mut front)?;
        bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        front = bed.restart_command(JOB, options)?.spawn()?;
        is_restart = true;
    }
    let agent = || {
        let is_it = |pid: &i32| processes::command_line(*pid).contains(" __agent ");
        processes::of(bed.dir()).into_iter().find(is_it)
    };
    bed.until("an agent", PATIENCE, || agent().is_some() || !matches!(front.try_wait(), Ok(None)))?;
    sleep(random.time(Duration::ZERO, Duration::from_millis(2600)));
    let ran = !is_restart || bed.text("restart.err").contains("goes on from image");
    let killed = agent();
    processes::kill(&killed.into_iter().collect::<Vec<i32>>());
    bed.may_end()?;
    let code = shell_code(
        wait(&mut front, PATIENCE + expected.took * 4)
            .with_context(|| tell(&bed, "the front waits for ever"))?,
    );
    if code != 0 && !ran {
        // The restart has failed with its agent: it can be made again.
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE + expected.took * 4)?);
        return Results::read(&case.app, &bed, code)?.check(&expected.results);
    }
    let results = Results::read(&case.app, &bed, code)?;
    results
        .check(&expected.results)
        .with_context(|| tell(&bed, &format!("status {code}, ran before: {ran}")))?;
    bed.check_clean(JOB)
}

/// What is left of it, for messages.
fn tell(bed: &Bed, what: &str) -> String {
    let mut lines = vec![what.to_owned()];
    for pid in processes::of(bed.dir()) {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let status = read("status");
        let of_status =
            |key: &str| status.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
        lines.push(format!(
            "{pid} {} {} {} {} {} {}",
            processes::command_line(pid),
            of_status("State"),
            of_status("SigQ"),
            of_status("SigBlk"),
            read("wchan"),
            read("syscall"),
        ));
    }
    lines.join("\n")
}

#[test]
fn a_program_outlives_its_agent_whenever_that_dies() {
    let rounds = rounds(9, 200);
    let (next, seed, cases) = (AtomicU64::new(0), Random::new().number(), cases());
    scope(|scope| {
        for _ in 0..if full() { 6 } else { 2 } {
            scope.spawn(|| {
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= rounds {
                        break;
                    }
                    let case = &cases[(round % cases.len() as u64) as usize];
                    let user = if (round / cases.len() as u64).is_multiple_of(2) || !am_root() {
                        User::Ordinary
                    } else {
                        User::Root
                    };
                    let random = Random::of(seed.wrapping_add(round));
                    if let Err(error) = an_agent_dies(user, case, random) {
                        next.store(rounds, Ordering::Relaxed);
                        panic!(
                            "round {round}, {} {:?} {:?} as {user:?}: {error:#}",
                            case.app.name, case.options, case.restart
                        );
                    }
                }
            });
        }
    });
}
