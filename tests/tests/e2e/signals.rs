//! A signal to everybody: batch systems, systemd and containers send theirs to all processes that they find, in any
//! order. Under `--on TERM=checkpoint-stop` each order gives an image and 75, and the program goes on from it; failures
//! of checkpoints that nobody waits for are told.

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
    let options = ["--every", "1s", "--max-space", "1"];
    let mut front = bed.run_command("j", &options, &words)?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
    bed.until("a word", PATIENCE, || bed.text("err").contains("checkpoint failed: "))?;
    let list = bed.say(&["list"])?.success()?.stdout;
    ensure!(list.contains("NOTE") && list.contains("the last checkpoint failed: "), "{list}");
    let log = || fs::read_to_string(bed.job("j").join("agent.log")).unwrap_or_default();
    bed.until("another failure", PATIENCE, || log().matches("checkpoint failed").count() > 1)?;
    kill_program(pid, &mut front)?;
    ensure!(bed.text("err").matches("checkpoint failed: ").count() == 1, "{}", bed.text("err"));
    bed.check_clean("j")
}
