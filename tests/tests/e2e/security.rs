//! What another user's processes can do to a job: nothing. As root, for they must become those users.
//!
//! `docs/security.md` has the rules. Everybody can write `HOLDFAST_SOCKET` into an environment; only ids, descent and
//! the job's key make a member.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user_by_root, shell_code, wait};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const JOB: &str = "j";
/// A user that has nothing to do with the jobs.
const OTHER: u32 = 2102;

/// A process of the other user whose environment names the job's socket: a child of what is above the job, as an
/// orphan of the job would be. It ends with the test.
struct Stranger(Child);

impl Stranger {
    fn start(bed: &Bed, program: &str, arguments: &[&str]) -> Result<Stranger> {
        let mut command = Command::new(program);
        command.args(arguments).uid(OTHER).gid(OTHER).current_dir("/").process_group(0);
        command.env("HOLDFAST_SOCKET", bed.job(JOB).join("agent.sock"));
        // As long as a key is.
        command.env("HOLDFAST_KEY", "0123456789abcdef".repeat(2));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        let stranger = Stranger(child);
        let name = program.rsplit('/').next().unwrap_or_default();
        // One that has ended has executed before.
        let executed =
            || !processes::runs(stranger.pid()) || processes::command_line(stranger.pid()).contains(name);
        bed.until("a stranger", PATIENCE, executed)?;
        Ok(stranger)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // With its group: what it has forked.
        let group = format!("-{}", self.pid());
        let _ = Command::new("kill").args(["-s", "KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.0.wait();
    }
}

fn start(bed: &Bed) -> Result<(Child, i32)> {
    let mut front = bed.run_command(JOB, &[], &["/bin/sleep", "300"])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    Ok((front, pid))
}

/// How many processes the newest image has.
fn in_image(bed: &Bed) -> Result<usize> {
    let shown = bed.say(&["show", JOB])?.success()?.stdout;
    let table = shown.split("\nprocesses\n").nth(1).map_or(1, |table| {
        let lines = table.lines().take_while(|line| !line.is_empty());
        lines.filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).count()
    });
    Ok(table)
}

#[test]
fn a_stranger_with_the_mark_is_no_member() {
    each_user_by_root(|bed| {
        let (mut front, _) = start(bed)?;
        let stranger = Stranger::start(bed, "/bin/sleep", &["300"])?;
        for _ in 0..2 {
            bed.say(&["checkpoint", JOB])?.success()?;
            ensure!(in_image(bed)? == 1, "{}", bed.say(&["show", JOB])?.stdout);
        }
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE)?;
        ensure!(processes::runs(stranger.pid()), "--stop has ended it");
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        ensure!(in_image(bed)? == 1 && processes::runs(stranger.pid()));
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE)?;
        drop(stranger);
        bed.check_clean(JOB)
    });
}

/// What a process of root's job has started as that user, and left to itself before any checkpoint: it cannot have
/// registered.
#[test]
fn an_orphan_of_the_job_that_is_another_user_is_a_member() {
    let line = format!(
        "setpriv --reuid={OTHER} --regid={OTHER} --clear-groups /bin/sh -c '/bin/sleep 300 & exit 0'; touch left; \
         exec /bin/sleep 300"
    );
    each_user_by_root(|bed| {
        if bed.user() != User::Root {
            return Ok(());
        }
        let mut front = bed.run_command(JOB, &[], &["/bin/sh", "-c", &line])?.spawn()?;
        bed.until("an orphan", PATIENCE, || bed.work().join("left").exists())?;
        let _stranger = Stranger::start(bed, "/bin/sleep", &["300"])?;
        for _ in 0..2 {
            bed.say(&["checkpoint", JOB])?.success()?;
            ensure!(in_image(bed)? == 2, "{}", bed.say(&["show", JOB])?.stdout);
        }
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE)?;
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        // What is answered is the commit: the program is about to be ended.
        wait(&mut front, PATIENCE)?;
        ensure!(in_image(bed)? == 2 && !processes::runs(pid));
        Ok(())
    });
}

/// The same, of whom its environment says nothing: the kernel has told of its birth.
#[test]
fn an_orphan_that_is_another_user_without_an_environment_is_a_member() -> Result<()> {
    let line = format!(
        "env -i setpriv --reuid={OTHER} --regid={OTHER} --clear-groups /bin/sh -c '/bin/sleep 300 & exit 0'; \
         touch left; exec /bin/sleep 300"
    );
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    let mut front = bed.run_command(JOB, &[], &["/bin/sh", "-c", &line])?.spawn()?;
    bed.until("an orphan", PATIENCE, || bed.work().join("left").exists())?;
    let log = std::fs::read_to_string(bed.job(JOB).join("agent.log"))?;
    if log.contains("does not tell of forks") {
        println!("not run: the kernel does not tell of forks");
        holdfast_tests::processes::kill_all(bed.dir());
        wait(&mut front, PATIENCE)?;
        return Ok(());
    }
    let stranger = Stranger::start(&bed, "/bin/sleep", &["300"])?;
    for _ in 0..2 {
        bed.say(&["checkpoint", JOB])?.success()?;
        ensure!(in_image(&bed)? == 2, "{}", bed.say(&["show", JOB])?.stdout);
    }
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    ensure!(in_image(&bed)? == 2 && processes::runs(stranger.pid()));
    drop(stranger);
    bed.check_clean(JOB)
}

/// A process of a job of root's that has become another user writes into its environment what that of another job has:
/// that does not make the other job's processes its own.
#[test]
fn a_member_that_is_another_user_brings_nobody_else_into_its_job() -> Result<()> {
    const VICTIM: &str = "victim";
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    let become_other = format!("setpriv --reuid={OTHER} --regid={OTHER} --clear-groups");
    // One is left to whoever is above both jobs.
    let line =
        format!("{become_other} /bin/sh -c '/bin/sleep 301 & exit 0'; touch left; exec /bin/sleep 300");
    let mut victim = bed.run_command(VICTIM, &[], &["/bin/sh", "-c", &line])?.spawn()?;
    bed.wait_live(VICTIM, &mut victim)?.with_context(|| bed.text("err"))?;
    bed.until("an orphan", PATIENCE, || bed.work().join("left").exists())?;
    let orphan =
        processes::of(bed.dir()).into_iter().find(|pid| processes::command_line(*pid).ends_with("301"));
    let orphan = orphan.context("the orphan")?;
    let own_of = |pid: i32| -> Result<Vec<String>> {
        let all = std::fs::read(format!("/proc/{pid}/environ"))?;
        let all = String::from_utf8_lossy(&all).into_owned();
        let is_mark =
            |entry: &&str| ["HOLDFAST_SOCKET=", "HOLDFAST_KEY="].iter().any(|mark| entry.starts_with(mark));
        Ok(all.split('\0').filter(is_mark).map(str::to_owned).collect())
    };
    bed.until("its marks", PATIENCE, || own_of(orphan).is_ok_and(|marks| marks.len() == 2))
        .with_context(|| format!("{:?}", own_of(orphan)))?;
    let marks = own_of(orphan)?;
    // As that user it could read them itself.
    let line =
        format!("{become_other} env {} /bin/sleep 302 & touch begun; exec /bin/sleep 300", marks.join(" "));
    let mut front = bed.run_command(JOB, &[], &["/bin/sh", "-c", &line])?.spawn()?;
    bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    let is_there =
        || processes::of(bed.dir()).iter().any(|pid| processes::command_line(*pid) == "/bin/sleep 302");
    bed.until("a member with other marks", PATIENCE, is_there)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    ensure!(in_image(&bed)? == 2, "{}", bed.say(&["show", JOB])?.stdout);
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    ensure!(processes::runs(orphan), "--stop has ended a process of another job");
    bed.say(&["checkpoint", "--stop", VICTIM])?.success()?;
    wait(&mut victim, PATIENCE)?;
    ensure!(!processes::runs(orphan), "it was of its own job");
    bed.check_clean(JOB)
}

/// One that cannot be checkpointed at all: it holds a socket with a peer outside.
#[test]
fn a_stranger_that_holds_a_socket_keeps_nobody_from_a_checkpoint() {
    let program = "import socket, time\na = socket.create_server(('127.0.0.1', 0))\n\
                   b = socket.create_connection(a.getsockname())\nc = a.accept()\n\
                   time.sleep(300)";
    each_user_by_root(|bed| {
        let (mut front, _) = start(bed)?;
        let _stranger = Stranger::start(bed, PYTHON, &["-c", program])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        ensure!(in_image(bed)? == 1);
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE).map(drop)
    });
}

/// Orphans that come and go as fast as can be, and some that stay a moment.
#[test]
fn a_storm_of_strangers_fails_no_checkpoint() {
    let program = "import os, time\nn = 0\nwhile True:\n  n += 1\n  child = os.fork()\n  if child == 0:\n    \
                   if os.fork() == 0 and n % 8 == 0: time.sleep(0.02)\n    os._exit(0)\n  os.waitpid(child, 0)";
    each_user_by_root(|bed| {
        let (mut front, _) = start(bed)?;
        let stranger = Stranger::start(bed, PYTHON, &["-c", program])?;
        for _ in 0..5 {
            bed.say(&["checkpoint", JOB])?.success()?;
            ensure!(in_image(bed)? == 1, "{}", bed.say(&["show", JOB])?.stdout);
        }
        ensure!(processes::runs(stranger.pid()), "the storm is over");
        drop(stranger);
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE).map(drop)
    });
}

/// Neither the folder lets it in, nor, where that was opened, the agent.
#[test]
fn a_stranger_gets_no_word_from_an_agent() {
    let program = "import os, socket, sys\ns = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\ntry:\n  \
                   s.connect(os.environ['HOLDFAST_SOCKET'])\n  \
                   s.settimeout(20)\n  s.send(b'{\"request\":\"status\"}')\n  sys.exit(2 if s.recv(4096) else 1)\n\
                   except PermissionError: sys.exit(3)\n\
                   except (BrokenPipeError, ConnectionResetError): sys.exit(1)";
    each_user_by_root(|bed| {
        let (mut front, _) = start(bed)?;
        let ask = || -> Result<i32> {
            let mut stranger = Stranger::start(bed, PYTHON, &["-c", program])?;
            Ok(shell_code(wait(&mut stranger.0, PATIENCE)?))
        };
        ensure!(ask()? == 3, "the folder let it in");
        let socket = bed.job(JOB).join("agent.sock");
        for (path, mode) in [(bed.store(), 0o755), (bed.job(JOB), 0o755), (socket, 0o666)] {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        }
        ensure!(ask()? == 1, "the agent has answered");
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE).map(drop)
    });
}

/// An agent holds what its program holds: it leaves no core.
#[test]
fn an_agent_leaves_no_core() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let (mut front, _) = start(&bed)?;
    let agent = bed.agent_pid(JOB)?.context("an agent")?;
    let limits = std::fs::read_to_string(format!("/proc/{agent}/limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("a limit")?;
    ensure!(core.split_whitespace().nth(4) == Some("0"), "{core}");
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    bed.check_clean(JOB)
}

/// Idle, or waiting for as many checkpoints.
#[test]
fn a_program_that_takes_all_connections_leaves_some_for_the_commands() -> Result<()> {
    for said in ["", "{\"request\":\"checkpoint\",\"stop\":false,\"wait\":true}"] {
        let bed = Bed::new(User::Ordinary).context("a bed")?;
        let program = format!(
            "import os, socket, time\nall = []\nfor i in range(300):\n  s = socket.socket(socket.AF_UNIX, \
             socket.SOCK_SEQPACKET)\n  s.settimeout(1)\n  try:\n    s.connect(os.environ['HOLDFAST_SOCKET'])\n    \
             if i and {said:?}: s.send({said:?}.encode())\n  except OSError: pass\n  all.append(s)\n\
             open('full', 'w').close()\ntime.sleep(300)"
        );
        let mut front = bed.run_command(JOB, &[], &[PYTHON, "-c", &program])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        bed.until("all connections", PATIENCE, || bed.work().join("full").exists())?;
        ensure!(bed.pid(JOB)? == Some(pid), "the agent is silent");
        // The agent has answered. A restart gives its sockets no other end.
        bed.say(&["checkpoint", JOB])?.success()?;
        holdfast_tests::restart_chain::kill_program(pid, &mut front)?;
        bed.check_clean(JOB)?;
    }
    Ok(())
}

#[test]
fn a_name_that_looks_like_an_option_is_refused_and_an_older_one_works() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let refused = bed.say(&["run", "--name=-rf", "--", "/bin/true"])?;
    ensure!(refused.code() == 64 && refused.stderr.contains("-rf"), "{}: {}", refused.code(), refused.stderr);
    let (mut front, _) = start(&bed)?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    std::fs::rename(bed.job(JOB), bed.job("-rf"))?;
    let mut command = bed.holdfast(&["restart", "--", "-rf"]);
    let mut front = command.stderr(bed.create("restart.err")?).spawn()?;
    let pid = bed.wait_live("-rf", &mut front)?.with_context(|| bed.text("restart.err"))?;
    holdfast_tests::restart_chain::kill_program(pid, &mut front)?;
    bed.check_clean("-rf")
}

/// A path that no socket address holds is used all the same, up to what libholdfast keeps.
#[test]
fn a_path_of_a_socket_may_be_long_but_not_too_long() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let long = |bytes: usize| bed.store().join("s".repeat(200)).join("t".repeat(bytes));
    let at = |store: &std::path::Path, words: &[&str]| {
        let mut command = bed.holdfast(words);
        command.env("HOLDFAST_STORE", store);
        command
    };
    let store = long(100);
    let mut front = at(&store, &["run", "--name", JOB, "--", "/bin/sleep", "300"]).spawn()?;
    bed.until("a registration", PATIENCE, || {
        let said = bed.output(at(&store, &["checkpoint", JOB]), PATIENCE);
        said.is_ok_and(|said| said.status.success())
    })?;
    bed.output(at(&store, &["checkpoint", "--stop", JOB]), PATIENCE)?.success()?;
    wait(&mut front, PATIENCE)?;
    for name in [&["--name", JOB][..], &[]] {
        let words = [&["run"], name, &["--", "/bin/true"]].concat();
        let refused = bed.output(at(&long(200).join("u".repeat(100)), &words), PATIENCE)?;
        ensure!(refused.code() == 64 && refused.stderr.contains("--store"), "{}", refused.stderr);
    }
    bed.check_clean(JOB)
}

#[test]
fn a_log_is_bounded() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let (mut front, _) = start(&bed)?;
    let (log, old) = (bed.job(JOB).join("agent.log"), bed.job(JOB).join("agent.log.old"));
    std::fs::File::options().append(true).open(&log)?.set_len(17 << 20)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    let text = std::fs::read_to_string(&log)?;
    ensure!(text.len() < 1 << 20 && text.contains("image 2 committed"), "{text}");
    ensure!(std::fs::metadata(&old)?.len() >= 17 << 20);
    bed.check_clean(JOB)
}

/// The new process opens a file that somebody has a lease on, for which the kernel has it wait (45 s by default,
/// fcntl(2)).
#[test]
fn a_restart_that_waits_for_a_file_ends_at_sigterm() {
    let program = "import fcntl, os, signal, sys, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n\
                   f = os.open(sys.argv[1], os.O_RDWR)\nfcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                   open(sys.argv[1] + '.leased', 'w').close()\ntime.sleep(300)";
    each_user_by_root(|bed| {
        let data = bed.work().join("data");
        drop(bed.create("data")?);
        let words = ["/bin/sh", "-c", "exec sleep 300 3>>data"];
        let mut front = bed.run_command(JOB, &[], &words)?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        let is_open = || std::fs::read_link(format!("/proc/{pid}/fd/3")).is_ok_and(|file| file == data);
        bed.until("an open file", PATIENCE, is_open)?;
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut front, PATIENCE)?;
        let mut command = bed.command(std::path::Path::new(PYTHON));
        let mut holder = command.args(["-c", program, &data.to_string_lossy()]).spawn()?;
        bed.until("a lease", PATIENCE, || bed.work().join("data.leased").exists())?;
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let waits = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/stack"))
                .is_ok_and(|stack| stack.contains("break_lease"))
        };
        bed.until("a new process that waits", PATIENCE, || processes::of(bed.dir()).iter().any(waits))?;
        processes::signal(front.id().cast_signed(), "TERM");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("restart.err");
        ensure!(code == 143 && said.contains("SIGTERM came before"), "status {code}: {said}");
        holder.kill()?;
        holder.wait()?;
        bed.check_clean(JOB)
    });
}
