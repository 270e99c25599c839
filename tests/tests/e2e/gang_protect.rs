//! Redundancy between the hosts of a gang (`--protect`): what a host has lost is rebuilt of what others have; more than
//! that is refused by name; what is damaged is noticed; who dies while parity is made costs the protection alone.

use super::own_stores::{Fleet, GANG};
use super::plain_job::{fails, right_output};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{
    Bed, PATIENCE, User, am_root, each_user_by_root, each_user_in_turn, shell_code, wait,
};
use serde_json::Value;
use std::fs;

/// Waits until an image of the gang is known to be protected.
fn until_protected(fleet: &Fleet<'_>, image: u64) -> Result<()> {
    let file = fleet.folder().join(format!("{GANG}/protected-{image:06}"));
    fleet.bed.until("the protection", PATIENCE, || file.exists()).with_context(|| logs(fleet))
}

fn logs(fleet: &Fleet<'_>) -> String {
    let log = |member| fs::read_to_string(fleet.job(member).join("agent.log")).unwrap_or_default();
    (0..fleet.members).map(log).collect::<Vec<_>>().join("\n--\n")
}

/// Checkpoints until there are so many images, each protected.
fn protected_images(fleet: &Fleet<'_>, count: u64) -> Result<()> {
    for image in 1..=count {
        fleet.checkpoint()?;
        until_protected(fleet, image)?;
    }
    Ok(())
}

/// The files of sets in a member's job.
fn set_files(fleet: &Fleet<'_>, member: usize) -> Vec<String> {
    let all = fs::read_dir(fleet.job(member)).into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_of_set = |name: &String| ["head-", "group-", "parity-"].iter().any(|kind| name.starts_with(kind));
    let mut found: Vec<String> = names.filter(is_of_set).collect();
    found.sort();
    found
}

/// The gang runs with this protection, these hosts lose all, and all go on from the newest image.
fn survives(bed: &Bed, members: usize, protect: &str, lost: &[usize]) -> Result<()> {
    let fleet = Fleet::new(bed, members)?;
    let mut fronts = fleet.start(&["--protect", protect])?;
    // The second is an increment: what it needs is in two sets.
    protected_images(&fleet, 2)?;
    fleet.kill(&mut fronts)?;
    lost.iter().try_for_each(|host| fleet.wipe(*host))?;
    let folder = fleet.folder().display().to_string();
    fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
    for host in lost {
        let said = bed.text(&format!("err{host}"));
        ensure!(said.contains("were rebuilt of what other hosts have"), "{}", fleet.said());
        // Its parity as well: it stands for others again.
        let verified = fleet.say(*host, &["verify", &format!("{GANG}.{host}")])?.success()?.stdout;
        ensure!(verified.contains("parity of other members, image 2 of the gang: good"), "{verified}");
    }
    Ok(())
}

#[test]
fn a_host_that_has_lost_all_is_rebuilt_of_the_others() {
    each_user_by_root(|bed| survives(bed, 4, "xor=4", &[2]));
}

#[test]
fn the_leaders_host_is_rebuilt_of_its_partner() {
    each_user_by_root(|bed| survives(bed, 2, "partner", &[0]));
}

#[test]
fn two_hosts_of_four_are_rebuilt_where_two_may_be_lost() {
    each_user_by_root(|bed| survives(bed, 4, "rs=2+2", &[1, 3]));
}

/// One more than is covered; and then one that is, for nothing was changed.
#[test]
fn more_than_is_covered_is_refused_by_name() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 4)?;
        let mut fronts = fleet.start(&["--protect", "xor=4"])?;
        protected_images(&fleet, 1)?;
        fleet.kill(&mut fronts)?;
        let kept = fleet.store(1).with_file_name("kept1");
        fs::rename(fleet.store(1), &kept)?;
        fleet.remake(1)?;
        fleet.wipe(2)?;
        let folder = fleet.folder().display().to_string();
        let said = fleet.restart_fails(GANG, &["--gang-folder", &folder])?;
        let words = "members 1, 2 of its group (members 0, 1, 2, 3) are lost";
        ensure!(said.contains("member 1 on host1") && said.contains(words), "{said}");
        ensure!(!fleet.job(1).exists() && !fleet.job(2).exists(), "nothing is left of the try");
        fs::remove_dir_all(fleet.store(1))?;
        fs::rename(kept, fleet.store(1))?;
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])
    });
}

/// What is damaged is noticed: by `verify`, and by a rebuild, which does without it where it can.
#[test]
fn parity_that_is_damaged_is_not_used() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 3)?;
        let mut fronts = fleet.start(&["--protect", "xor=3"])?;
        protected_images(&fleet, 1)?;
        fleet.kill(&mut fronts)?;
        let parity = fleet.job(1).join(&set_files(&fleet, 1)[2]);
        let good = fs::read(&parity)?;
        let mut bad = good.clone();
        bad[good.len() / 3] ^= 1;
        fs::write(&parity, bad)?;
        let verified = fleet.say(1, &["verify", "sim.1"])?;
        fails(&verified, 65, "parity of other members of the gang is damaged")?;
        ensure!(verified.stdout.contains("do not match their checksum"), "{}", verified.stdout);
        let json: Value = serde_json::from_str(&fleet.say(1, &["verify", "sim.1", "--json"])?.stdout)?;
        ensure!(json["sets"][0]["good"] == false && json["images"][0]["good"] == true, "{json}");
        fleet.wipe(2)?;
        let folder = fleet.folder().display().to_string();
        let said = fleet.restart_fails(GANG, &["--gang-folder", &folder])?;
        ensure!(said.contains("member 1 on host1: what it has of its parity is not what it was"), "{said}");
        ensure!(!fleet.job(2).exists(), "what was not right stays nowhere");
        fs::write(&parity, good)?;
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])
    });
}

/// What was protected and is not any more is said; a restart makes it anew of what the others have.
#[test]
fn what_is_gone_of_a_protection_is_said_and_made_anew() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 3)?;
        let mut fronts = fleet.start(&["--protect", "xor=3"])?;
        protected_images(&fleet, 1)?;
        fleet.kill(&mut fronts)?;
        let image = format!("sim.1@{}", fleet.epoch(1, 1)?);
        let show = |image: &str| anyhow::Ok(fleet.say(1, &["show", image])?.success()?.stdout);
        ensure!(show(&image)?.contains("image 1 of gang sim; protected: xor=3"), "{}", show(&image)?);
        let files = set_files(&fleet, 1);
        for (file, words) in [(&files[2], "it is not there"), (&files[0], "its checksum does not fit")] {
            let path = fleet.job(1).join(file);
            // Its owner stays who it was.
            let away = path.with_extension("away");
            if words.contains("checksum") {
                fs::write(&path, b"holdfast group 0\n{}\n")?;
            } else {
                fs::rename(&path, &away)?;
            }
            let row = fleet.images(1)?.remove(0);
            let why = row["unprotected"].as_str().unwrap_or_default();
            ensure!(row["protected"].is_null() && why.contains(file) && why.contains(words), "{row}");
            ensure!(fleet.images(0)?[0]["protected"] == "xor=3", "the other hosts cannot know");
            let text = fleet.say(1, &["list", GANG])?.success()?.stdout;
            ensure!(text.contains("not protected any more: member 1: "), "{text}");
            ensure!(show(&image)?.contains("not protected any more"), "{}", show(&image)?);
            fails(
                &fleet.say(1, &["verify", "sim.1"])?,
                65,
                "parity of other members of the gang is damaged",
            )?;
            if words.contains("checksum") {
                fs::rename(&path, &away)?;
                let verified = fleet.say(1, &["verify", "sim.1"])?;
                ensure!(verified.stdout.contains("job sim.1 has nothing of its set"), "{}", verified.stdout);
            }
            fs::rename(&away, &path)?;
        }
        let folder = fleet.folder().display().to_string();
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
        let said = "what member 1 on host1 keeps of other members' images was damaged, and is made anew";
        ensure!(fleet.said().contains(said), "{}", fleet.said());
        ensure!(fleet.images(1)?[0]["protected"] == "xor=3", "{:?}", fleet.images(1)?);
        fleet.say(1, &["verify", "sim.1"])?.success()?;
        Ok(())
    });
}

/// A file of a set is damaged while all run: the next image is not protected, the one after that is, with all.
#[test]
fn a_protection_that_is_damaged_is_made_anew_by_the_images_that_follow() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "partner", "--keep", "1"])?;
        protected_images(&fleet, 1)?;
        fs::remove_file(fleet.job(1).join(&set_files(&fleet, 1)[2]))?;
        fleet.checkpoint()?;
        fleet.checkpoint()?;
        until_protected(&fleet, 3)?;
        let said = bed.text("err0");
        ensure!(said.contains("image 2 of gang sim is not protected"), "{said}");
        ensure!(said.contains("member 1 on host1: ") && said.contains("parity-"), "{said}");
        fleet.kill(&mut fronts)?;
        fleet.wipe(0)?;
        let folder = fleet.folder().display().to_string();
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])
    });
}

/// Its number comes no more: it would hold what it names, and what it may name, for ever.
#[test]
fn a_damaged_set_goes_when_all_that_is_needed_is_there() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "partner", "--keep", "1"])?;
        protected_images(&fleet, 1)?;
        let damaged = fleet.job(1).join(&set_files(&fleet, 1)[0]);
        fs::write(&damaged, b"holdfast group 0\n{}\n")?;
        fleet.checkpoint()?;
        ensure!(damaged.exists(), "what others need of it is not known");
        fleet.checkpoint()?;
        until_protected(&fleet, 3)?;
        ensure!(damaged.exists(), "the first image was needed until then");
        for image in 4..8 {
            fleet.checkpoint()?;
            until_protected(&fleet, image)?;
        }
        ensure!(!damaged.exists(), "{:?}", set_files(&fleet, 1));
        fleet.kill(&mut fronts)?;
        fleet.wipe(0)?;
        fleet.restart_to_the_end(GANG, &["--gang-folder", &fleet.folder().display().to_string()])
    });
}

/// A file that has its length may be damaged all the same: what a member lacks of a set is made of what is right.
#[test]
fn a_stream_that_has_its_length_is_not_taken_for_right() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 3)?;
        let mut fronts = fleet.start(&["--protect", "xor=3"])?;
        protected_images(&fleet, 1)?;
        fleet.kill(&mut fronts)?;
        let segment = fleet.job(1).join(format!("segment-{:06}-000", fleet.epoch(1, 1)?));
        let good = fs::read(&segment)?;
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&segment, bad)?;
        fs::remove_file(fleet.job(1).join(&set_files(&fleet, 1)[2]))?;
        let folder = fleet.folder().display().to_string();
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
        ensure!(fs::read(&segment)? == good, "it is as it was");
        fleet.say(1, &["verify", "sim.1"])?.success()?;
        // Where it is right, the parity alone is made.
        fs::remove_file(fleet.job(1).join(&set_files(&fleet, 1)[2]))?;
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
        fleet.say(1, &["verify", "sim.1"])?.success()?;
        Ok(())
    });
}

/// Who rebuilds is killed at each step: there is no set and no image that is not right, and the next one does it all.
#[test]
fn who_dies_while_a_stream_is_rebuilt_leaves_nothing_wrong() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "partner"])?;
        protected_images(&fleet, 1)?;
        fleet.kill(&mut fronts)?;
        let folder = fleet.folder().display().to_string();
        let options = ["--gang-folder", folder.as_str(), "--gang-wait", "20s"];
        for fault in ["guard-file", "guard-file:2", "guard-right", "guard-rebuilt"] {
            fleet.wipe(1)?;
            let mut fronts = vec![fleet.restart(0, GANG, &options)?.spawn()?];
            let mut killed = fleet.restart(1, GANG, &options)?;
            fronts.push(killed.env("HOLDFAST_FAULT", fault).spawn()?);
            for front in &mut fronts {
                ensure!(shell_code(wait(front, PATIENCE)?) != 0, "{fault}: {}", fleet.said());
            }
            ensure!(bed.text("err1").contains("killed at the fault point"), "{fault}: {}", fleet.said());
            let files = set_files(&fleet, 1);
            ensure!(!files.iter().any(|file| file.starts_with("group-")), "{fault}: {files:?}");
            let manifests = fs::read_dir(fleet.job(1))?.flatten();
            let is_image = |name: &str| name.starts_with("manifest-");
            let mut names = manifests.map(|entry| entry.file_name().to_string_lossy().into_owned());
            ensure!(!names.any(|name| is_image(&name)), "{fault}");
            let mut fronts = fleet.restart_all(GANG, &options)?;
            fleet.kill(&mut fronts)?;
            fleet.say(1, &["verify", "sim.1"])?.success()?;
        }
        fleet.restart_to_the_end(GANG, &options)
    });
}

/// An image of another run has the number of one that is gone: it is not replaced.
#[test]
fn an_image_of_another_run_is_not_replaced() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "partner"])?;
        protected_images(&fleet, 2)?;
        let (first, second) = (fleet.epoch(1, 1)?, fleet.epoch(2, 1)?);
        fleet.kill(&mut fronts)?;
        fleet.wipe(1)?;
        let folder = fleet.folder().display().to_string();
        let mut fronts = fleet.restart_all("sim@1", &["--gang-folder", &folder])?;
        // It does not know of the second image any more, and gives its number to another one.
        for entry in fs::read_dir(fleet.job(1))?.flatten() {
            if entry.file_name().to_string_lossy().contains(&format!("-{second:06}")) {
                fs::remove_file(entry.path())?;
            }
        }
        fleet.checkpoint()?;
        ensure!(fleet.epoch(3, 1)? == second && first < second, "the number is given anew");
        fleet.kill(&mut fronts)?;
        let manifest = fleet.job(1).join(format!("manifest-{second:06}"));
        let before = fs::read(&manifest)?;
        let said = fleet.restart_fails("sim@2", &["--gang-folder", &folder])?;
        ensure!(said.contains("it is not replaced: `holdfast prune sim.1@"), "{said}");
        ensure!(fs::read(&manifest)? == before, "it was replaced");
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])
    });
}

/// Images that come while parity is made leave nothing that nothing needs.
#[test]
fn images_that_are_not_protected_leave_no_heads() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let options = ["--protect", "partner"];
        let mut fronts = fleet.start_with_fault(&options, 1, "guard-encoded+2000")?;
        for _ in 0..3 {
            fleet.checkpoint()?;
        }
        for member in 0..2 {
            let is_needed = || {
                let files = set_files(&fleet, member);
                let count = |kind: &str| files.iter().filter(|file| file.starts_with(kind)).count();
                count("head-") == count("group-")
            };
            // A member may be at its last image a little longer.
            let waited = bed.until("heads of sets alone", PATIENCE, is_needed);
            waited.with_context(|| format!("{:?}", set_files(&fleet, member)))?;
        }
        fleet.kill(&mut fronts)
    });
}

/// Older sets go when nothing needs them, and what they need does not go before.
#[test]
fn sets_go_with_the_images_that_need_them() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "partner", "--keep", "1"])?;
        protected_images(&fleet, 3)?;
        let images = fleet.images(0)?;
        ensure!(images.last().is_some_and(|image| image["protected"] == "partner"), "{images:?}");
        for member in 0..2 {
            let (files, images) = (set_files(&fleet, member), fs::read_dir(fleet.job(member))?.count());
            ensure!(files.len() % 3 == 0 && files.len() >= 3, "{files:?} of {images}");
            let newest = format!("group-{:06}", fleet.epoch(3, member)?);
            ensure!(files.contains(&newest), "{files:?}");
        }
        // Its only image is deleted with all that it has for others.
        fleet.kill(&mut fronts)?;
        fleet.wipe(1)?;
        let folder = fleet.folder().display().to_string();
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
        fleet.say(0, &["prune", "--all", "--saved", GANG])?.success()?;
        ensure!(!fleet.job(0).exists(), "{:?}", set_files(&fleet, 0));
        Ok(())
    });
}

/// An agent dies while it makes its parity: the image is there, unprotected; all go on from it.
#[test]
fn who_dies_while_parity_is_made_costs_the_protection_alone() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    for (turn, (faulty, fault)) in
        [(1, "guard-group"), (0, "guard-group"), (1, "guard-encoded"), (0, "guard-encoded")]
            .into_iter()
            .enumerate()
    {
        let user = if turn % 2 == 0 { User::Ordinary } else { User::Root };
        let Some(bed) = &Bed::new(user) else { return };
        dies(bed, faulty, fault).unwrap_or_else(|error| panic!("member {faulty} at {fault}: {error:#}"));
    }
}

fn dies(bed: &Bed, faulty: usize, fault: &str) -> Result<()> {
    let fleet = Fleet::new(bed, 2)?;
    // The first image stays: it is the newest that is protected.
    let options = ["--protect", "partner", "--keep", "1"];
    let mut fronts = fleet.start_with_fault(&options, faulty, &format!("{fault}:2"))?;
    protected_images(&fleet, 1)?;
    let agent = fleet.agent(faulty)?;
    // Its answer may be lost with the agent.
    fleet.say(fleet.on[1], &["checkpoint", GANG])?;
    bed.until("its death", PATIENCE, || processes::state(agent).is_none_or(|state| state == 'Z'))?;
    fleet.kill(&mut fronts)?;
    let images = fleet.images(0)?;
    ensure!(images.len() == 2 && images[1]["protected"].is_null(), "{images:?}");
    ensure!(images[0]["protected"] == "partner", "{images:?}");
    // The first image is still rebuilt.
    let other = 1 - faulty;
    fleet.wipe(other)?;
    let folder = fleet.folder().display().to_string();
    let said = fleet.restart_fails("sim@2", &["--gang-folder", &folder])?;
    ensure!(said.contains("image 2 of gang sim is not whole"), "{said}");
    fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])
}

/// What is written down of a protection is damaged: its set stays until a newer one is whole.
#[test]
fn a_set_whose_record_is_damaged_is_not_given_up() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let options = ["--protect", "partner", "--keep", "1"];
        let mut fronts = fleet.start_with_fault(&options, 1, "guard-group:2")?;
        protected_images(&fleet, 1)?;
        fs::write(fleet.folder().join(GANG).join("protected-000001"), b"x")?;
        let agent = fleet.agent(1)?;
        fleet.say(fleet.on[0], &["checkpoint", GANG])?;
        bed.until("its death", PATIENCE, || processes::state(agent).is_none_or(|state| state == 'Z'))?;
        fleet.kill(&mut fronts)?;
        let files = set_files(&fleet, 0);
        ensure!(files.iter().any(|file| file == "group-000001"), "it went too early: {files:?}");
        fleet.wipe(1)?;
        fleet.restart_to_the_end(GANG, &["--gang-folder", &fleet.folder().display().to_string()])
    });
}

/// The image that ends the programs is protected as well, before the agents leave.
#[test]
fn the_last_image_is_protected_before_the_agents_end() {
    if !am_root() {
        return println!("not run: this test needs root");
    }
    each_user_in_turn(User::Root, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--protect", "xor=2"])?;
        fleet.say(0, &["stop", GANG])?.success()?;
        for front in &mut fronts {
            ensure!(shell_code(wait(front, PATIENCE)?) == 75, "{}", fleet.said());
        }
        until_protected(&fleet, 1)?;
        bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        fleet.wipe(1)?;
        let folder = fleet.folder().display().to_string();
        fleet.restart_to_the_end(GANG, &["--gang-folder", &folder])?;
        ensure!(bed.text("out1") == right_output(), "{}", bed.text("out1"));
        Ok(())
    });
}

/// Members that are on one host cannot be a group: nothing is started.
#[test]
fn members_of_one_host_do_not_protect_each_other() {
    each_user_in_turn(User::Ordinary, |bed| {
        let mut fleet = Fleet::new(bed, 2)?;
        fleet.on = vec![0, 0];
        let mut fronts = vec![fleet.run(0, &["--protect", "partner"])?.spawn()?];
        fronts.push(fleet.run(1, &["--protect", "partner"])?.spawn()?);
        for front in &mut fronts {
            ensure!(shell_code(wait(front, PATIENCE)?) == 69, "{}", fleet.said());
        }
        ensure!(
            fleet.said().contains("--protect partner needs groups of at least 2 members"),
            "{}",
            fleet.said()
        );
        let alone =
            bed.holdfast(&["run", "--name", GANG, "--gang", "0/2", "--protect", "xor=2", "--", "/bin/true"]);
        fails(&bed.output(alone, PATIENCE)?, 64, "give --gang-folder as well")
    });
}
