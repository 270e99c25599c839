//! Gangs whose hosts have stores of their own, with a small folder that they share (`--gang-folder`): they agree on the
//! image before a restart; what one host cannot see is neither missing nor broken, and nothing that is needed goes.

use super::own_stores::{Fleet, GANG};
use super::plain_job::fails;
use anyhow::ensure;
use holdfast_tests::sandbox::{PATIENCE, User, each_user, each_user_in_turn};
use std::fs;

#[test]
fn each_host_has_its_members_images_and_all_restart_the_same() {
    each_user(|bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&["--keep", "2"])?;
        fleet.checkpoint()?;
        fleet.checkpoint()?;
        ensure!(fleet.folder().join("sim/gang-000002").exists(), "the folder that they share has it");
        ensure!(!fleet.job(0).with_file_name("sim.1").exists(), "a store has its own host's member");
        for (host, other) in [(0, 1), (1, 0)] {
            let images = fleet.images(host)?;
            ensure!(images.len() == 2 && images.iter().all(|one| one["broken"].is_null()), "{images:?}");
            ensure!(images[1]["not_here"] == serde_json::json!([other]), "{images:?}");
            let text = fleet.say(host, &["list", GANG])?.success()?.stdout;
            ensure!(text.contains(&format!("not on this host: member {other}")), "{text}");
        }
        // What the newest needs stays, at both.
        let needed = format!("sim.1@{}", fleet.epoch(2, 1)?);
        fails(&fleet.say(1, &["prune", &needed])?, 69, "the newest image of its gang needs it")?;
        fails(&fleet.say(0, &["rm", GANG])?, 69, "is running")?;
        fleet.kill(&mut fronts)?;
        fails(&fleet.say(1, &["prune", "--anyway", &needed])?, 69, "the newest image of its gang needs it")?;
        fails(&fleet.say(1, &["rm", "sim.1"])?, 69, "job sim.1 is a member of gang sim")?;
        // Where the folder is was written down.
        fleet.restart_to_the_end(GANG, &[])?;
        fleet.say(0, &["prune", "--all", "--saved", GANG])?.success()?;
        ensure!(!fleet.folder().join(GANG).exists() && !fleet.job(0).exists(), "the gang is deleted");
        fails(&fleet.say(1, &["list", GANG])?, 66, "`holdfast rm sim` deletes what this host has of it")?;
        fails(&fleet.say(1, &["prune", "--anyway", &needed])?, 66, "is not there any more")?;
        fleet.say(1, &["prune", "--all", "--saved", GANG])?.success()?;
        ensure!(!fleet.job(1).exists() && !fleet.store(1).join(".gangs/sim").exists(), "here as well");
        Ok(())
    });
}

/// The newest image is damaged at one member, or its host has nothing: an older one is agreed on, or none.
#[test]
fn an_image_that_one_host_lacks_is_restarted_by_none() {
    each_user_in_turn(User::Ordinary, |bed| {
        let fleet = Fleet::new(bed, 2)?;
        let mut fronts = fleet.start(&[])?;
        fleet.checkpoint()?;
        fleet.checkpoint()?;
        fleet.kill(&mut fronts)?;
        let manifest = fleet.job(1).join(format!("manifest-{:06}", fleet.epoch(2, 1)?));
        let good = fs::read(&manifest)?;
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&manifest, bad)?;
        let said = fleet.restart_fails("sim@2", &[])?;
        ensure!(said.matches("image 2 of gang sim is not whole: member 1 on ").count() == 2, "{said}");
        ensure!(fleet.images(0)?[1]["broken"].is_null(), "the other host cannot know");
        ensure!(!fleet.images(1)?[1]["broken"].is_null(), "its own host does");
        fs::remove_file(&manifest)?;
        fleet.restart_fails("sim@2", &[])?;
        let stranger = fleet.restart(0, "sim", &["--gang-wait", "1s"])?;
        fails(&bed.output(stranger, PATIENCE)?, 69, "member 1 of gang sim did not come within 1 s")?;
        fleet.restart_to_the_end(GANG, &[])?;
        ensure!(bed.text("err0").contains("image 2 of gang sim is not whole"), "{}", fleet.said());
        // A host that has lost all is named; nothing is left of the try.
        fleet.wipe(1)?;
        let folder = fleet.folder().display().to_string();
        let said = fleet.restart_fails(GANG, &["--gang-folder", &folder])?;
        ensure!(said.contains("member 1 on ") && said.contains("whole on all hosts"), "{said}");
        ensure!(!fleet.job(1).exists(), "a job without anything");
        Ok(())
    });
}
