//! A signal to everybody: batch systems, systemd and containers send theirs to all processes that they find, in any
//! order. Under `--on TERM=checkpoint-stop` each order gives an image and 75, and the program goes on from it. Failures
//! of checkpoints that nobody waits for, and the death of the agent, are told; `--strict` ends the program then.

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::{kill_all, kill_program};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, shell_code, wait};
use std::fs;

/// Two processes, of which the child ends after its parent.
const PROGRAM: &str = "import os, time
ours, theirs = os.pipe()
if os.fork() == 0:
    os.close(theirs)
    os.read(ours, 1)
    os._exit(0)
for number in range(100000):
    os.write(1, b'line %d\\n' % number)
    time.sleep(0.02)
";

/// All orders of four.
fn orders() -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for _ in 0..4 {
        let longer = |order: Vec<usize>| {
            let next = (0..4).filter(|one| !order.contains(one)).collect::<Vec<usize>>();
            next.into_iter().map(move |one| order.iter().copied().chain([one]).collect())
        };
        all = all.into_iter().flat_map(longer).collect();
    }
    all
}

/// `in_shell`: as a part of a script, of which the shell sets the signal to its default action.
fn one(bed: &Bed, order: &[usize], in_shell: bool) -> Result<()> {
    let options = ["--on", "TERM=checkpoint-stop"];
    let direct = ["/usr/bin/python3", "-c", PROGRAM];
    let script = ["/bin/sh", "-c", "/usr/bin/python3 -c \"$0\"; echo over", PROGRAM];
    let words = if in_shell { &script[..] } else { &direct };
    let mut front = bed.run_command("j", &options, words)?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
    bed.until("a line", PATIENCE, || bed.text("out").contains("line 2"))?;
    let agent = bed.agent_pid("j")?.context("an agent")?;
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let child = children.split_whitespace().next().and_then(|child| child.parse().ok()).context("a child")?;
    // What a hangup, or Ctrl-C at a whole session, sends to the agent is not for it.
    ["HUP", "INT"].iter().for_each(|signal| processes::signal(agent, signal));
    let all = [front.id().cast_signed(), agent, pid, child];
    order.iter().for_each(|at| processes::signal(all[*at], "TERM"));
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("err");
    ensure!(code == 75 && !bed.images("j").is_empty(), "status {code}: {said}");
    ensure!(said.is_empty(), "{said}");
    bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
    let lines = bed.text("out").lines().count();
    let mut front = bed.restart_command("j", &[])?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("restart.err"))?;
    bed.until("more lines", PATIENCE, || bed.text("out").lines().count() > lines + 5)
        .with_context(|| bed.text("restart.err"))?;
    ensure!(bed.text("restart.err").contains("goes on from image 1, "), "{}", bed.text("restart.err"));
    kill_all(bed, pid, &mut front)?;
    bed.check_clean("j")
}

#[test]
fn every_order_of_a_signal_to_everybody_gives_an_image() {
    for (at, order) in orders().iter().enumerate() {
        for (turn, user) in [User::Root, User::Ordinary].into_iter().enumerate() {
            // The short form: each of the four first, and each second to another.
            if !full() && (at % 5 != 0 || (at / 5) % 2 != turn) {
                continue;
            }
            let Some(bed) = Bed::new(user) else { continue };
            one(&bed, order, at % 2 == turn)
                .with_context(|| format!("as {user:?}, order {order:?}"))
                .unwrap();
        }
    }
}

/// The folder of the job cannot be written any more: the first failure is told, the same one not again.
#[test]
fn a_checkpoint_of_the_interval_that_fails_is_told() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let program = bed.kit().program("plain");
    let words = [program.to_str().context("a path")?, "3000", "20"];
    let options = ["--every", "1s", "--max-space", "1K"];
    let mut front = bed.run_command("j", &options, &words)?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
    bed.until("a word", PATIENCE, || bed.text("err").contains("checkpoint failed: "))?;
    let list = bed.say(&["list"])?.success()?.stdout;
    ensure!(list.contains("NOTE") && list.contains("the last checkpoint failed: "), "{list}");
    let log = || fs::read_to_string(bed.job("j").join("agent.log")).unwrap_or_default();
    bed.until("another failure", PATIENCE, || log().matches("checkpoint failed").count() > 1)?;
    kill_program(pid, &mut front)?;
    let told = bed.text("err");
    let once = ["checkpoint failed: ", "the program runs on"].map(|words| told.matches(words).count());
    ensure!(once == [1, 1], "{told}");
    bed.check_clean("j")
}

/// A program with a handler of its own: the image comes first; without one, the handler is called.
#[test]
fn a_handler_of_the_program_is_called_when_there_is_no_image() {
    const HANDLER: &str = "import os, signal, time
def handle(*_):
    os.write(1, b'handled\\n')
    os._exit(5)
signal.signal(signal.SIGTERM, handle)
os.write(1, b'ready\\n')
while True: time.sleep(0.02)
";
    let one = |user: User, options: &[&str], agent_dies: bool, to_front: bool, expected: i32| -> Result<()> {
        let Some(bed) = Bed::new(user) else { return Ok(()) };
        let options = [&["--on", "TERM=checkpoint-stop"], options].concat();
        let words = ["/usr/bin/python3", "-c", HANDLER];
        let mut front = bed.run_command("j", &options, &words)?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
        bed.until("a handler", PATIENCE, || bed.text("out") == "ready\n")?;
        if agent_dies {
            processes::signal(bed.agent_pid("j")?.context("an agent")?, "KILL");
            bed.until("its end", PATIENCE, || bed.text("err").contains("the agent of job j has ended"))?;
        }
        processes::signal(if to_front { front.id().cast_signed() } else { pid }, "TERM");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let out = bed.text("out");
        ensure!(
            code == expected && out.contains("handled") == (expected == 5),
            "{code}: {out}{}",
            bed.text("err")
        );
        bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        // Whatever status the handler gives, it is not that of a program that has done its work.
        let note = "its last image failed (`holdfast logs` says why), and its program has ended by itself";
        let has_failed = expected == 5 && !agent_dies;
        let (told, listed) = (bed.text("err"), bed.say(&["list"])?.success()?.stdout);
        let listed = listed.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_told = told.contains("the image that was to end job j failed");
        ensure!(is_told == has_failed && listed.contains(note) == has_failed, "{told}{listed}");
        Ok(())
    };
    one(User::Ordinary, &[], false, false, 75).context("an image").unwrap();
    one(User::Root, &["--max-space", "1K"], false, false, 5).context("no room").unwrap();
    one(User::Ordinary, &["--max-space", "1K"], false, true, 5).context("no room, to the front").unwrap();
    one(User::Root, &[], true, false, 5).context("no agent").unwrap();
}

/// The front is told to end while the agent makes the processes anew: it ends as the program would have, and the image
/// is as it was.
#[test]
fn a_signal_before_the_program_runs_again_ends_the_restart_as_it_would_have_ended_the_program() {
    let ends = |user: User, options: &[&str], expected: i32| -> Result<()> {
        let Some(bed) = Bed::new(user) else { return Ok(()) };
        let bed = &bed;
        let mut front = bed.run_command("j", options, &["/bin/sleep", "300"])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        let lock = || fs::read_to_string(bed.job("j").join("lock")).unwrap_or_default();
        let (before, socket) = (lock(), bed.job("j").join("agent.sock"));
        kill_program(pid, &mut front)?;
        bed.until("the end of the agent", PATIENCE, || !socket.exists())?;
        let mut front = bed.restart_command("j", &[])?.env("HOLDFAST_FAULT", "seed-born+2500").spawn()?;
        bed.until("the next agent", PATIENCE, || socket.exists() && lock() != before)?;
        processes::signal(front.id().cast_signed(), "TERM");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("restart.err");
        let word = "SIGTERM came before the program of job j ran; image 1 is as it was";
        ensure!(code == expected && said.contains(word), "status {code}: {said}");
        bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("restart.err"))?;
        kill_all(bed, pid, &mut front)?;
        bed.check_clean("j")
    };
    ends(User::Ordinary, &["--on", "TERM=checkpoint-stop"], 75).context("with --on").unwrap();
    ends(User::Root, &[], 143).context("without --on").unwrap();
}

/// `run` says it at once, and ends as the program does; with `--strict` it ends the program.
#[test]
fn the_death_of_the_agent_is_told() {
    let dies = |user: User, strict: bool| -> Result<()> {
        let Some(bed) = Bed::new(user) else { return Ok(()) };
        let script = "until [ -e over ]; do sleep 0.02; done; exit 7";
        let options = if strict { &["--strict"][..] } else { &[] };
        let mut front = bed.run_command("j", options, &["/bin/sh", "-c", script])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
        processes::signal(bed.agent_pid("j")?.context("an agent")?, "KILL");
        bed.until("a word", PATIENCE, || bed.text("err").contains("the agent of job j has ended"))?;
        if !strict {
            ensure!(processes::runs(pid) && bed.text("err").contains("the program runs on"));
            bed.create("over")?;
        }
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == if strict { 70 } else { 7 }, "status {code}: {}", bed.text("err"));
        ensure!(bed.text("err").contains("(--strict)") == strict, "{}", bed.text("err"));
        bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())
    };
    for (user, strict) in [(User::Root, false), (User::Ordinary, true)] {
        dies(user, strict).with_context(|| format!("as {user:?}, strict: {strict}")).unwrap();
    }
}

/// Ctrl-C ends the command that waits, not the checkpoint; what is under way is shown as it is.
#[test]
fn a_checkpoint_goes_on_without_who_waits_for_it() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let program = "import os, time; kept = os.urandom(1 << 20); time.sleep(300)";
    let words = ["/usr/bin/python3", "-c", program];
    let mut front = bed.run_command("j", &["--rate", "800K"], &words)?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
    let mut command = bed.holdfast(&["checkpoint", "j"]);
    let mut waiting = command.stderr(bed.create("said")?).spawn()?;
    let under_way = || -> Result<Option<(u64, u64)>> {
        let list: serde_json::Value = serde_json::from_str(&bed.say(&["list", "--json"])?.success()?.stdout)?;
        let now = &list["jobs"][0]["under_way"];
        let bytes = |name: &str| now[name].as_u64().unwrap_or(0);
        let (done, total) = (bytes("done_bytes"), bytes("total_bytes"));
        ensure!(done <= total, "{now}");
        Ok((now["image"] == 1).then_some((done, total)))
    };
    let mut seen = Ok(None);
    bed.until("bytes of a checkpoint", PATIENCE, || {
        seen = under_way();
        !matches!(seen, Ok(None | Some((_, 0))))
    })?;
    seen?;
    processes::signal(waiting.id().cast_signed(), "INT");
    let code = shell_code(wait(&mut waiting, PATIENCE)?);
    let said = bed.text("said");
    ensure!(code == 130 && said.contains("the checkpoint of job j goes on"), "status {code}: {said}");
    bed.until("the image", PATIENCE, || bed.images("j") == [1])?;
    ensure!(under_way()?.is_none_or(|(done, total)| done <= total));
    kill_program(pid, &mut front)?;
    bed.check_clean("j")
}
