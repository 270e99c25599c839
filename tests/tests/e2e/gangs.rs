//! Gangs: two members on one host, checkpointed and restarted as one. Agents that die at each point of a round leave
//! a whole image of the gang or none; who does not belong to it is refused by name; nothing that it needs is deleted.

use super::json::agrees;
use super::plain_job::{as_user, fails, none_is_left, program, right_output};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, STAY, User, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command};

const GANG: &str = "sim";

fn job(member: usize) -> String {
    format!("{GANG}.{member}")
}

/// `holdfast run` of a member; its program stays.
fn run(bed: &Bed, place: &str, options: &[&str]) -> Result<Command> {
    let member = place.split('/').next().unwrap_or_default();
    let mut command = bed.holdfast(&["run", "--name", GANG, "--gang", place, "--gang-listen", "127.0.0.1:0"]);
    command.args(options).arg("--").args(program().words()).env(STAY, bed.stay_file());
    command.stdout(bed.create(&format!("out{member}"))?).stderr(bed.create(&format!("err{member}"))?);
    Ok(command)
}

fn restart(bed: &Bed, image: &str, place: &str) -> Result<Command> {
    let member = place.split('/').next().unwrap_or_default();
    let mut command = bed.holdfast(&["restart", image, "--gang", place]);
    command.stderr(bed.create(&format!("err{member}"))?);
    Ok(command)
}

/// Waits until both run; their pids.
fn live(bed: &Bed, fronts: &mut [Child]) -> Result<Vec<i32>> {
    let mut pids = Vec::new();
    for (member, front) in fronts.iter_mut().enumerate() {
        let pid = bed.wait_live(&job(member), front)?;
        pids.push(pid.with_context(|| bed.text(&format!("err{member}")))?);
        bed.until("the first line", PATIENCE, || !bed.text(&format!("out{member}")).is_empty())?;
    }
    Ok(pids)
}

/// A running gang; member `faulty` has this in its environment.
fn start_with_fault(bed: &Bed, options: &[&str], faulty: usize, fault: &str) -> Result<Vec<Child>> {
    let _ = fs::remove_file(bed.stay_file());
    let mut fronts = Vec::new();
    for (member, place) in ["0/2", "1/2"].into_iter().enumerate() {
        let mut command = run(bed, place, options)?;
        if member == faulty {
            command.env("HOLDFAST_FAULT", fault);
        }
        fronts.push(command.spawn()?);
    }
    live(bed, &mut fronts)?;
    Ok(fronts)
}

fn start(bed: &Bed, options: &[&str]) -> Result<Vec<Child>> {
    start_with_fault(bed, options, usize::MAX, "")
}

/// Fronts, agents and programs are killed.
fn kill_all(bed: &Bed, fronts: &mut [Child]) -> Result<()> {
    processes::kill_all(bed.dir());
    for front in fronts {
        front.wait()?;
    }
    none_is_left(bed)
}

/// Both are restarted, and come to their right ends.
fn restart_to_the_end(bed: &Bed, image: &str) -> Result<()> {
    bed.may_end()?;
    let mut fronts = Vec::new();
    for place in ["0/2", "1/2"] {
        fronts.push(restart(bed, image, place)?.spawn()?);
    }
    end_right(bed, &mut fronts)
}

fn end_right(bed: &Bed, fronts: &mut [Child]) -> Result<()> {
    for (member, front) in fronts.iter_mut().enumerate() {
        let code = shell_code(wait(front, PATIENCE)?);
        let (out, err) = (bed.text(&format!("out{member}")), bed.text(&format!("err{member}")));
        ensure!(code == 0, "member {member}: status {code}: {err}");
        ensure!(out == right_output(), "member {member}: {out}");
    }
    Ok(())
}

/// Images of the gang, as `holdfast list` has them.
fn images(bed: &Bed) -> Result<Vec<Value>> {
    let text = bed.say(&["list", GANG, "--json"])?.success()?.stdout;
    Ok(agrees(&text, "gang")?["images"].as_array().cloned().unwrap_or_default())
}

fn whole(bed: &Bed) -> Result<Vec<u64>> {
    let all = images(bed)?;
    let whole = all.iter().filter(|image| image["broken"].is_null());
    Ok(whole.filter_map(|image| image["image"].as_u64()).collect())
}

/// The number of a member's image in one of the gang: rounds that were tried again may have taken some.
fn epoch_of(bed: &Bed, image: u64, member: usize) -> Result<u64> {
    let all = images(bed)?;
    let found = all.iter().find(|one| one["image"] == image).context("the image")?;
    found["members"][member]["epoch"].as_u64().context("a number")
}

fn checkpoint(bed: &Bed) -> Result<Ended> {
    bed.say(&["checkpoint", GANG])
}

/// A member with an interval of its own would ask for images that its leader has not planned.
#[test]
fn the_interval_is_planned_by_the_leader_alone() {
    each_user(|bed| {
        let mut fronts = start(bed, &["--every", "auto", "--mtbf", "12h"])?;
        let log = |member| fs::read_to_string(bed.job(&job(member)).join("agent.log"));
        let is_planned = |log: String| log.contains("from now on: ");
        checkpoint(bed)?.success()?;
        bed.until("the plan", PATIENCE, || log(0).is_ok_and(is_planned))?;
        checkpoint(bed)?.success()?;
        ensure!(!is_planned(log(1)?), "a member has an interval of its own");
        kill_all(bed, &mut fronts)
    });
}

#[test]
fn two_members_are_checkpointed_and_restarted_as_one() {
    each_user(|bed| {
        let mut fronts = start(bed, &[])?;
        let said = checkpoint(bed)?.success()?.stdout;
        ensure!(said.starts_with("image 1 of gang sim: 2 members"), "{said}");
        // A member knows whose it is.
        let text = bed.say(&["checkpoint", "sim.1", "--json"])?.success()?.stdout;
        let second = agrees(&text, "gang_checkpoint")?;
        ensure!(second["image"] == 2 && second["members"][1]["member"] == 1, "{second}");
        let listed = bed.say(&["list", GANG])?.success()?.stdout;
        ensure!(listed.contains("sim.0@1 sim.1@1"), "{listed}");
        kill_all(bed, &mut fronts)?;
        // Once more from there, and an image of that.
        let mut fronts = Vec::new();
        for place in ["1/2", "0/2"] {
            fronts.insert(0, restart(bed, "sim@1", place)?.spawn()?);
        }
        live(bed, &mut fronts)?;
        checkpoint(bed)?.success()?;
        ensure!(whole(bed)? == [1, 2, 3], "{:?}", images(bed)?);
        let stopped = bed.say(&["stop", GANG])?.success()?.stdout;
        ensure!(stopped.starts_with("image 4 of gang sim"), "{stopped}");
        for front in &mut fronts {
            let code = shell_code(wait(front, PATIENCE)?);
            ensure!(code == 75, "status {code}");
        }
        none_is_left(bed)?;
        restart_to_the_end(bed, GANG)?;
        (0..2).try_for_each(|member| bed.check_clean(&job(member)))?;
        ensure!(!bed.store().join(".gangs/sim/leader.json").exists(), "the leader has left");
        Ok(())
    });
}

#[test]
fn the_leader_has_the_interval_and_a_member_asks_it() {
    as_user(|bed| {
        let mut fronts = start(bed, &["--every", "1s", "--on", "TERM=checkpoint-stop"])?;
        bed.until("two images of the gang", PATIENCE, || whole(bed).is_ok_and(|all| all.len() > 1))?;
        // The other member's front is told to end: all are, with one image.
        processes::signal(fronts[1].id() as i32, "TERM");
        for front in &mut fronts {
            let code = shell_code(wait(front, PATIENCE)?);
            ensure!(code == 75, "status {code}: {} {}", bed.text("err0"), bed.text("err1"));
        }
        restart_to_the_end(bed, GANG)
    });
}

/// The agent of a member dies at a point of the second checkpoint. The programs run on; what is left is `expected`
/// images of the gang, all whole, of which both members go on.
fn agent_dies(user: User, faulty: usize, fault: &str, expected: u64) -> Result<()> {
    let Some(bed) = &Bed::new(user) else { return Ok(()) };
    let mut fronts = start_with_fault(bed, &["--keep", "1"], faulty, fault)?;
    let pids = live(bed, &mut fronts)?;
    checkpoint(bed)?.success()?;
    let agent = bed.agent_pid(&job(faulty))?.context("an agent")?;
    let second = checkpoint(bed)?;
    bed.until("its death", PATIENCE, || processes::state(agent).is_none_or(|state| state == 'Z'))?;
    ensure!(second.code() == 0 || faulty == 0 || expected == 1, "{}", second.stderr);
    ensure!(second.code() != 0 || expected == 2, "{}", second.stdout);
    ensure!(pids.iter().all(|pid| processes::runs(*pid)), "the programs run on");
    let third = checkpoint(bed)?;
    let words = if faulty == 0 { "its leader cannot be reached" } else { "member 1 on " };
    ensure!(third.code() != 0 && third.stderr.contains(words), "{}", third.stderr);
    if faulty == 0 && expected == 2 {
        // Another one may make the image when it has lost the leader.
        bed.until("the image", PATIENCE, || whole(bed).is_ok_and(|there| there.last() == Some(&2)))?;
    }
    let there = whole(bed)?;
    ensure!(there.last() == Some(&expected), "{:?}", images(bed)?);
    kill_all(bed, &mut fronts)?;
    restart_to_the_end(bed, GANG)
}

#[test]
fn an_image_of_a_gang_is_there_for_all_or_for_none() {
    let cases = [
        (1, "stopped:2", 1),
        (1, "gang-prepared:2", 1),
        (1, "manifest-temp:2", 1),
        (1, "gang-committed:2", 1),
        (1, "gang-known:2", 2),
        (0, "stopped:2", 1),
        (0, "gang-prepared:2", 1),
        // The other member makes the image of the gang.
        (0, "gang-committed:2", 2),
        (0, "gang-all-committed:2", 2),
        // The gang's own file is the second of each checkpoint.
        (0, "manifest-temp:4", 2),
        (0, "manifest-renamed:4", 2),
        (0, "gang-named:2", 2),
        (0, "gang-known:2", 2),
    ];
    for (turn, (faulty, fault, expected)) in cases.into_iter().enumerate() {
        let user = if turn % 2 == 0 { User::Ordinary } else { User::Root };
        if let Err(error) = agent_dies(user, faulty, fault, expected) {
            panic!("member {faulty} at {fault}: {error:#}");
        }
    }
}

/// The leader's program may run on: so the others do, though the image is there.
#[test]
fn a_program_that_was_to_be_ended_runs_on_when_the_leader_is_lost() {
    as_user(|bed| {
        let mut fronts = start_with_fault(bed, &[], 0, "gang-committed")?;
        let pids = live(bed, &mut fronts)?;
        let agent = bed.agent_pid(&job(1))?.context("an agent")?;
        let ended = bed.say(&["checkpoint", GANG, "--stop"])?;
        ensure!(ended.code() != 0, "{}", ended.stdout);
        bed.until("the image", PATIENCE, || whole(bed).is_ok_and(|there| there == [1]))?;
        // What it says then is the last of the round.
        let said = "checkpoint failed: member 0 on ";
        let log = bed.job(&job(1)).join("agent.log");
        let has_said = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(said));
        bed.until("its words", PATIENCE, has_said)?;
        ensure!(processes::runs(agent) && pids.iter().all(|pid| processes::runs(*pid)), "they run on");
        kill_all(bed, &mut fronts)?;
        restart_to_the_end(bed, GANG)
    });
}

/// An agent dies in a restart before the programs run: none of them does, and the next restart is right.
#[test]
fn a_restart_is_one_of_all_members_or_of_none() {
    as_user(|bed| {
        let mut fronts = start(bed, &[])?;
        checkpoint(bed)?.success()?;
        kill_all(bed, &mut fronts)?;
        for (faulty, fault) in
            [(0, "gang-gathered"), (1, "gang-gathered"), (0, "seed-memory"), (1, "seed-let-go")]
        {
            let mut fronts = Vec::new();
            for (member, place) in ["0/2", "1/2"].into_iter().enumerate() {
                let mut command = restart(bed, GANG, place)?;
                command.args(["--gang-wait", "5s"]);
                if member == faulty {
                    command.env("HOLDFAST_FAULT", fault);
                }
                fronts.push(command.spawn()?);
            }
            for (member, front) in fronts.iter_mut().enumerate() {
                let code = shell_code(wait(front, PATIENCE)?);
                let err = bed.text(&format!("err{member}"));
                ensure!(code != 0 && !err.is_empty(), "{fault}: member {member}: status {code}: {err}");
            }
            none_is_left(bed)?;
        }
        restart_to_the_end(bed, GANG)
    });
}

/// A member that does not get to run, beside those that do.
fn other(bed: &Bed, place: &str, options: &[&str]) -> Command {
    let mut command = bed.holdfast(&["run", "--name", GANG, "--gang", place]);
    command.args(options).args(["--", "/bin/true"]);
    command
}

/// A command that fails at once, and starts nothing.
fn refused(bed: &Bed, mut command: Command, code: i32, words: &str) -> Result<()> {
    let ended = bed.output(
        {
            command.env_remove(STAY);
            command
        },
        PATIENCE,
    )?;
    fails(&ended, code, words)
}

#[test]
fn who_does_not_belong_to_it_is_refused_by_name() {
    as_user(|bed| {
        let alone = other(bed, "0/2", &["--gang-wait", "1s"]);
        refused(bed, alone, 69, "member 1 of gang sim did not come within 1 s")?;
        let led = other(bed, "1/2", &["--gang-wait", "1s"]);
        refused(bed, led, 69, "member 0, the leader of gang sim, was not found within 1 s")?;
        none_is_left(bed)?;
        let mut fronts = start(bed, &[])?;
        refused(bed, other(bed, "1/3", &[]), 69, "job sim.1 is running already")?;
        refused(bed, other(bed, "0/2", &[]), 69, "job sim.0 is running already")?;
        let third = other(bed, "2/3", &["--gang-wait", "60s"]);
        refused(bed, third, 69, "it thinks that there are 3 members; gang sim has 2")?;
        // What another one has put in its place has another key.
        let path = bed.store().join(".gangs/sim/leader.json");
        let right = fs::read_to_string(&path)?;
        let mut leader: Value = serde_json::from_str(&right)?;
        leader["key"] = Value::String("00".repeat(32));
        fs::write(&path, leader.to_string())?;
        fails(&checkpoint(bed)?, 66, "does not have the key of the gang")?;
        leader["key"] = Value::String("no key".into());
        fs::write(&path, leader.to_string())?;
        fails(&checkpoint(bed)?, 66, "is damaged")?;
        fs::write(&path, "{")?;
        fails(&checkpoint(bed)?, 66, "leader.json")?;
        fs::write(&path, right)?;
        checkpoint(bed)?.success()?;
        fails(&bed.say(&["rollback", "sim.1"])?, 69, "job sim.1 is a member of a gang")?;
        fails(&bed.say(&["kill", GANG])?, 69, "sim is a gang, whose members are jobs")?;
        let plain = bed.run_command(GANG, &[], &["/bin/true"])?;
        ensure!(bed.output(plain, PATIENCE)?.code() == 69, "a job of its name");
        kill_all(bed, &mut fronts)?;
        fails(&bed.say(&["restart", GANG])?, 69, "sim is a gang")?;
        fails(&bed.say(&["restart", "sim.1"])?, 69, "job sim.1 is a member of gang sim")?;
        refused(bed, restart(bed, GANG, "0/3")?, 69, "image 1 of gang sim has 2 members, not 3")?;
        refused(bed, restart(bed, "sim@7", "0/2")?, 66, "gang sim has no image 7; it has 1")?;
        // Both restart, but another image.
        checkpoint_of_another_number(bed)?;
        restart_to_the_end(bed, GANG)
    });
}

/// The members name two images: none is restarted.
fn checkpoint_of_another_number(bed: &Bed) -> Result<()> {
    let mut fronts = Vec::new();
    for place in ["0/2", "1/2"] {
        fronts.push(restart(bed, GANG, place)?.spawn()?);
    }
    live(bed, &mut fronts)?;
    checkpoint(bed)?.success()?;
    kill_all(bed, &mut fronts)?;
    let mut leader = restart(bed, "sim@1", "0/2")?;
    let mut leader = leader.args(["--gang-wait", "5s"]).spawn()?;
    let other = restart(bed, "sim@2", "1/2")?;
    refused(bed, other, 69, "it restarts image 2, member 0 restarts image 1")?;
    ensure!(shell_code(wait(&mut leader, PATIENCE)?) == 69, "{}", bed.text("err0"));
    none_is_left(bed)
}

#[test]
fn what_a_gang_needs_is_not_deleted() {
    as_user(|bed| {
        let mut fronts = start(bed, &["--keep", "1"])?;
        for _ in 0..3 {
            checkpoint(bed)?.success()?;
        }
        ensure!(bed.images("sim.0").len() == 1 && bed.images("sim.1").len() == 1, "--keep 1");
        bed.until("the images that are gone", PATIENCE, || images(bed).is_ok_and(|all| all.len() == 1))?;
        let needed = format!("sim.1@{}", epoch_of(bed, 3, 1)?);
        fails(&bed.say(&["prune", &needed])?, 69, "the newest image of its gang needs it")?;
        fails(&bed.say(&["rm", GANG])?, 69, "is running")?;
        kill_all(bed, &mut fronts)?;
        fails(&bed.say(&["prune", "--anyway", &needed])?, 69, "the newest image of its gang needs it")?;
        fails(&bed.say(&["rm", "sim.1"])?, 69, "job sim.1 is a member of gang sim")?;
        bed.say(&["prune", "--keep", "1", GANG])?.success()?;
        ensure!(whole(bed)? == [3], "{:?}", images(bed)?);
        restart_to_the_end(bed, GANG)?;
        bed.say(&["rm", "--dry-run", GANG])?.success()?;
        ensure!(whole(bed)? == [3], "a dry run deletes nothing");
        // What restarts have kept of the user's files would keep the jobs.
        bed.say(&["prune", "--all", "--saved", GANG])?.success()?;
        let left = bed.say(&["list"])?.success()?.stdout;
        ensure!(left.starts_with("no jobs in") && !bed.store().join(".gangs/sim").exists(), "{left}");
        Ok(())
    });
}

/// An image of a member that is damaged, or gone: the gang goes on from the one before if that is asked for.
#[test]
fn an_image_that_is_not_whole_is_not_restarted() {
    as_user(|bed| {
        let mut fronts = start(bed, &[])?;
        checkpoint(bed)?.success()?;
        checkpoint(bed)?.success()?;
        kill_all(bed, &mut fronts)?;
        let epoch = epoch_of(bed, 2, 1)?;
        let manifest = bed.job("sim.1").join(format!("manifest-{epoch:06}"));
        let good = fs::read(&manifest)?;
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&manifest, bad)?;
        let words = "is not the one that was made for the gang";
        refused(bed, restart(bed, "sim@2", "0/2")?, 65, words)?;
        fs::remove_file(&manifest)?;
        refused(
            bed,
            restart(bed, "sim@2", "0/2")?,
            65,
            &format!("image {epoch} of member 1, job sim.1, cannot be used"),
        )?;
        ensure!(whole(bed)? == [1], "{:?}", images(bed)?);
        restart_to_the_end(bed, GANG)?;
        let said = bed.text("err0");
        ensure!(said.contains("image 2 of gang sim is not whole"), "{said}");
        Ok(())
    });
}
