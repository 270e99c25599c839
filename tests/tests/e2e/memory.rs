//! Memory that a control group limits: the program is the last to die of it, and a checkpoint that has no room is
//! refused before the stop. As root, who may make such a group; the bed's user is an ordinary one.

use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, wait};
use holdfast_tests::{full, processes};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const JOB: &str = "j";

/// A control group of this test; its processes end with it.
struct Group {
    folder: PathBuf,
    /// The file with its limit.
    limit: &'static str,
}

impl Group {
    /// `None`: none can be made here.
    fn new(bed: &Bed) -> Option<Group> {
        let name = format!("holdfast-test-{}", bed.dir().file_name()?.to_string_lossy());
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let first = groups.lines().find_map(|line| line.split_once(":memory:"));
        let group = match first {
            Some((_, path)) => Group {
                folder: Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(name),
                limit: "memory.limit_in_bytes",
            },
            None => {
                let root = Path::new("/sys/fs/cgroup");
                let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
                Group { folder: root.join(name), limit: "memory.max" }
            }
        };
        fs::create_dir(&group.folder).ok()?;
        group.limit_to(1 << 40).ok().map(|()| group)
    }

    fn limit_to(&self, bytes: u64) -> Result<()> {
        fs::write(self.folder.join(self.limit), bytes.to_string()).context("limiting the group")
    }

    /// What is in use and no file's.
    fn used(&self) -> Result<u64> {
        let first = self.limit == "memory.limit_in_bytes";
        let (usage, prefix) =
            if first { ("memory.usage_in_bytes", "total_") } else { ("memory.current", "") };
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).context("a file of the group");
        let stat = read("memory.stat")?;
        let of_files = |line: &str| {
            let (name, value) = line.strip_prefix(prefix)?.split_once(' ')?;
            ["inactive_file", "active_file"].contains(&name).then(|| value.parse::<u64>().unwrap_or(0))
        };
        Ok(read(usage)?.trim().parse::<u64>()?.saturating_sub(stat.lines().filter_map(of_files).sum()))
    }

    fn add(&self, pid: i32) -> Result<()> {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).context("a process for the group")
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..500 {
            processes::kill(&self.pids());
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A program that touches `mib` of heap and writes `dirty` of them anew all the time, alone with its agent in the
/// group. It begins when all of them are there: what was touched before would be counted elsewhere.
fn start(bed: &Bed, group: &Group, options: &[&str], mib: u64, dirty: u64) -> Result<(Child, i32)> {
    let app = App::program("toucher", &[&mib.to_string(), "1000000", "20", &dirty.to_string()]);
    let script = "until [ -e go ]; do sleep 0.02; done; exec \"$@\"";
    let words = [&["/bin/sh", "-c", script, "sh"][..], &app.words()].concat();
    let mut front = bed.run_command(JOB, options, &words)?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    let agent = bed.agent_pid(JOB)?.context("an agent")?;
    let score = fs::read_to_string(format!("/proc/{agent}/oom_score_adj"))?;
    ensure!(score.trim() == "1000", "the agent is not the first to die: {score}");
    for one in [front.id().cast_signed(), agent, pid] {
        group.add(one)?;
    }
    bed.create("go")?;
    bed.until("its first line", PATIENCE, || bed.text("out").contains("counter 1"))?;
    Ok((front, pid))
}

fn lines(bed: &Bed) -> usize {
    bed.text("out").lines().count()
}

fn group(bed: &Bed) -> Option<Group> {
    let group = am_root().then(|| Group::new(bed)).flatten();
    if group.is_none() {
        println!("not run: no control group can be made here");
    }
    group
}

/// In four thirds of its size (and what agent and front have of their own).
#[test]
fn a_program_in_a_tight_control_group_outlives_its_checkpoints() -> Result<()> {
    let (mib, limit, count) = if full() { (300, 400, 20) } else { (120, 180, 2) };
    outlives(&[], mib, limit, count)
}

/// What images take of memory counts for the group: it is what is left beside the program and the copies, and what
/// does not fit goes to the store.
#[test]
fn images_in_memory_take_nothing_that_the_program_needs() -> Result<()> {
    let (mib, limit, count) = if full() { (300, 450, 20) } else { (120, 200, 2) };
    outlives(&["--tier", "memory,keep=1"], mib, limit, count)
}

fn outlives(options: &[&str], mib: u64, limit: u64, count: usize) -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let Some(group) = group(&bed) else { return Ok(()) };
    group.limit_to(limit << 20)?;
    let (mut front, pid) = start(&bed, &group, options, mib, mib / 3)?;
    let mut images = 0;
    for number in 1..=count {
        let before = lines(&bed);
        let said = bed.say(&["checkpoint", JOB])?;
        if said.code() == 0 {
            images += 1;
        } else {
            let named = said.stderr.contains("memory");
            ensure!(named, "checkpoint {number}: status {}: {}", said.code(), said.stderr);
        }
        bed.until("its next line", PATIENCE, || lines(&bed) > before || !processes::runs(pid))?;
        ensure!(processes::runs(pid), "checkpoint {number} has killed the program; {images} images");
        if bed.agent_pid(JOB)?.is_none() {
            println!("the agent has died of memory in checkpoint {number}");
            break;
        }
    }
    bed.until("all images in the store", PATIENCE, || bed.images(JOB).len() >= images)?;
    for image in bed.images(JOB) {
        bed.say(&["verify", &format!("{JOB}@{image}")])?.success()?;
    }
    ensure!(bed.images(JOB).len() == images, "{images} were taken, there are {:?}", bed.images(JOB));
    holdfast_tests::restart_chain::kill_program(pid, &mut front)?;
    bed.check_clean(JOB)?;
    bed.say(&["prune", JOB, "--all"])?.success().map(drop)
}

#[test]
fn a_checkpoint_without_room_is_refused_before_the_stop() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let Some(group) = group(&bed) else { return Ok(()) };
    group.limit_to(1 << 30)?;
    let (mut front, _) = start(&bed, &group, &[], 32, 1)?;
    // The program's size changes no more.
    group.limit_to(group.used()? + (12 << 20))?;
    let said = bed.say(&["checkpoint", JOB])?;
    let expected = format!("its control group {} may have", group.folder.display());
    ensure!(said.code() == 69 && said.stderr.contains(&expected), "status {}: {}", said.code(), said.stderr);
    let checked = bed.say(&["check", JOB])?;
    ensure!(
        checked.code() == 69 && checked.stdout.contains(&expected),
        "{}: {}",
        checked.code(),
        checked.stdout
    );
    group.limit_to(1 << 30)?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    if wait(&mut front, PATIENCE)?.code() != Some(75) {
        bail!("it was not stopped: {}", bed.text("err"));
    }
    bed.check_clean(JOB)
}
