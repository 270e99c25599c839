//! System V objects beside other users and other processes: a restart gives nobody else what was in them, believes no
//! name that another user has taken, and waits only for processes that may still change them.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, each_user_by_root, shell_code, wait};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

const JOB: &str = "j";
/// A user that has nothing to do with the jobs.
const OTHER: u32 = 2102;
/// What all programs here begin with.
const LIBRARY: &str = "import ctypes, os, signal, socket, subprocess, sys, time\n\
                       l = ctypes.CDLL(None, use_errno=True)\n\
                       def done(n):\n  if n < 0: raise OSError(ctypes.get_errno(), 'System V')\n  return n\n";

/// A program with a queue and a set, both with a key of its own, or without one.
struct Job {
    front: Child,
    pid: i32,
    key: i32,
    queue: String,
    set: String,
}

impl Job {
    /// Runs it until it has them, with `own` in the queue. `number`: of the key, which no other test has; 0: none.
    fn start(bed: &Bed, number: i32) -> Result<Job> {
        let key = if number > 0 { number << 24 | std::process::id().cast_signed() } else { 0 };
        let program = format!(
            "{LIBRARY}q = done(l.msgget({key}, 0o1600))\ns = done(l.semget({key}, 2, 0o1600))\n\
             done(l.msgsnd(q, (ctypes.c_char * 11)(1, *[0] * 7, *b'own'), 3, 0))\n\
             open('ids', 'w').write(f'{{q}} {{s}}\\n')\nwhile True: time.sleep(0.01)"
        );
        let mut front = bed.run_command(JOB, &[], &[PYTHON, "-c", &program])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        bed.until("a queue and a set", PATIENCE, || bed.text("ids").ends_with('\n'))
            .with_context(|| bed.text("err"))?;
        let text = bed.text("ids");
        let (queue, set) = text.trim().split_once(' ').context("two ids")?;
        Ok(Job { front, pid, key, queue: queue.to_owned(), set: set.to_owned() })
    }

    fn remove(&self) -> Result<()> {
        let removed = Command::new("ipcrm").args(["-q", &self.queue, "-s", &self.set]).status()?;
        ensure!(removed.success(), "ipcrm: {removed}");
        Ok(())
    }
}

/// Runs a program as the other user to its end.
fn as_other(program: &str) -> Result<String> {
    let mut command = Command::new(PYTHON);
    command.args(["-c", &format!("{LIBRARY}{program}")]).uid(OTHER).gid(OTHER).current_dir("/");
    let said = command.stderr(Stdio::inherit()).output()?;
    ensure!(said.status.success(), "{}", said.status);
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn restart(bed: &Bed) -> Result<(i32, String)> {
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    match bed.wait_live(JOB, &mut front)? {
        Some(pid) => {
            kill_program(pid, &mut front)?;
            Ok((0, bed.text("restart.err")))
        }
        None => Ok((shell_code(wait(&mut front, PATIENCE)?), bed.text("restart.err"))),
    }
}

/// What was in the program's queue would be the other user's.
#[test]
fn what_another_user_has_made_under_the_programs_key_is_refused() {
    each_user_by_root(|bed| {
        let mut job = Job::start(bed, 0x4d)?;
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut job.front, PATIENCE)?;
        job.remove()?;
        let key = job.key;
        for (call, option, kind) in [
            (format!("l.msgget({key}, 0o1666)"), "-q", "message queue"),
            (format!("l.semget({key}, 2, 0o1666)"), "-s", "semaphore set"),
        ] {
            let id = as_other(&format!("print(done({call}))"))?;
            let (code, said) = restart(bed)?;
            let look = as_other(&format!(
                "print(l.msgrcv({id}, (ctypes.c_char * 99)(), 80, 0, 0o4000))" // IPC_NOWAIT
            ))?;
            ensure!(Command::new("ipcrm").args([option, &id]).status()?.success());
            let is_named =
                [&format!("{kind} {id}"), &format!("user {OTHER}"), &format!("ipcrm {option} {id}")]
                    .iter()
                    .all(|word| said.contains(word.as_str()));
            ensure!(code == 69 && is_named && look == "-1", "status {code}, received {look}: {said}");
        }
        let (code, said) = restart(bed)?;
        ensure!(code == 0, "status {code}: {said}");
        let left = bed.text("ids");
        ensure!(left.trim() == format!("{} {}", job.queue, job.set), "{left}");
        let _ = Command::new("ipcrm").args(["-Q", &key.to_string(), "-S", &key.to_string()]).status();
        bed.check_clean(JOB)
    });
}

/// Names of unix sockets without a file are everybody's: by them an agent tells copies of its job what it uses.
#[test]
fn a_name_that_another_user_has_taken_keeps_nobody_from_his_objects() {
    each_user_by_root(|bed| {
        let mut job = Job::start(bed, 0x4e)?;
        bed.say(&["checkpoint", "--stop", JOB])?.success()?;
        wait(&mut job.front, PATIENCE)?;
        let names = [("message queue", &job.queue), ("semaphore set", &job.set)];
        let namespace = std::fs::read_link("/proc/self/ns/ipc")?;
        let names: Vec<String> =
            names.iter().map(|(kind, id)| format!("holdfast/{}/{kind}/{id}", namespace.display())).collect();
        let program = format!(
            "import socket, time\nheld = []\nfor name in {names:?}:\n  for end in ['', '/', '/0123456789abcdef']:\n    \
             held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))\n    held[-1].bind('\\0' + name + end)\n\
             print('held', flush=True)\ntime.sleep(300)"
        );
        let mut holder = Command::new(PYTHON)
            .args(["-c", &program])
            .uid(OTHER)
            .gid(OTHER)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = [0; 4];
        let mut output = holder.stdout.take().context("its output")?;
        std::io::Read::read_exact(&mut output, &mut line)?;
        let restarted = restart(bed);
        ensure!(holder.try_wait()?.is_none(), "the names are free");
        holder.kill()?;
        holder.wait()?;
        let (code, said) = restarted?;
        job.remove()?;
        ensure!(code == 0 && !said.contains("is in use"), "status {code}: {said}");
        bed.check_clean(JOB)
    });
}

/// A process of the same user that was killed and cannot end: the first of a pid namespace in which a zombie is left.
#[test]
fn a_dying_process_that_has_nothing_of_the_job_is_not_waited_for() {
    each_user(|bed| {
        let blocker = format!(
            "{LIBRARY}own = [] if os.getuid() == 0 else ['-U']\n\
             u = subprocess.Popen(['unshare', '-pf'] + (own and ['-Ur']) + ['sleep', '300'])\n\
             def first():\n  text = open(f'/proc/{{u.pid}}/task/{{u.pid}}/children').read()\n  \
             return text and open(f'/proc/{{text.strip()}}/comm').read() == 'sleep\\n' and int(text)\n\
             while not first(): time.sleep(0.01)\ninit = first()\n\
             enter = ['nsenter', '-t', str(init), '-p'] + (own and ['-U', '--preserve-credentials'])\n\
             n = subprocess.Popen(enter + ['--', 'sleep', '301'])\n\
             def entered():\n  return open(f'/proc/{{n.pid}}/task/{{n.pid}}/children').read()\n\
             while not entered(): time.sleep(0.01)\n\
             os.kill(n.pid, signal.SIGSTOP)\n\
             while open(f'/proc/{{n.pid}}/stat').read().rsplit(') ')[1][0] != 'T': time.sleep(0.01)\n\
             os.kill(init, signal.SIGKILL)\n\
             open('blocked', 'w').write(f'{{init}}\\n')\n\
             while not os.path.exists('over'): time.sleep(0.01)\nos.kill(n.pid, signal.SIGCONT)\nn.wait()\nu.wait()"
        );
        let mut job = Job::start(bed, 0)?;
        let mut command = bed.command(std::path::Path::new(PYTHON));
        let mut blocker = command.args(["-c", &blocker]).stderr(bed.create("blocker.err")?).spawn()?;
        bed.until("a process that cannot end", PATIENCE, || bed.text("blocked").ends_with('\n'))
            .with_context(|| bed.text("blocker.err"))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_program(job.pid, &mut job.front)?;
        let init: i32 = bed.text("blocked").trim().parse()?;
        let (mut front, pid, said) = loop {
            let mut front = bed.restart_command(JOB, &["--wait", "0"])?.spawn()?;
            let pid = bed.wait_live(JOB, &mut front)?;
            let said = bed.text("restart.err");
            // What was of the job itself may be dying, too, for a moment.
            let is_of_job = said.contains("is still ending") && !said.contains(&format!("process {init} "));
            if pid.is_some() || !is_of_job {
                break (front, pid, said);
            }
        };
        ensure!(holdfast_tests::processes::runs(init), "it has ended");
        bed.create("over")?;
        wait(&mut blocker, PATIENCE)?;
        let pid = pid.with_context(|| said.clone())?;
        kill_program(pid, &mut front)?;
        job.remove()?;
        bed.check_clean(JOB)
    });
}
