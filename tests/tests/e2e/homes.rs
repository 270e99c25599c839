//! Holdfast in the home folder of another user (`sudo -E`, `su` without `-`): what is there decides nothing, and
//! nothing is made there. As root, for the tests must make files of other users; for both users' jobs.

use anyhow::{Result, ensure};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user_by_root};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

const JOB: &str = "j";
/// A user that has nothing to do with the jobs.
const OTHER: u32 = 2102;

/// A home folder of this user with a configuration that names a tier.
fn home(bed: &Bed, name: &str, owner: u32) -> Result<PathBuf> {
    let home = bed.dir().join(name);
    let folder = home.join(".config/holdfast");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("config.toml"), format!("[tiers.t]\naddress = \"dir={}\"\n", tier(bed).display()))?;
    for path in [&home, &home.join(".config"), &folder, &folder.join("config.toml")] {
        chown(path, Some(owner), Some(owner))?;
        fs::set_permissions(path, Permissions::from_mode(if path.is_dir() { 0o755 } else { 0o644 }))?;
    }
    Ok(home)
}

fn tier(bed: &Bed) -> PathBuf {
    bed.work().join("tier")
}

/// Runs a program there, as a job of that name.
fn run(bed: &Bed, home: &Path, job: &str, file: Option<&Path>) -> Result<Ended> {
    let mut command = bed.holdfast(&["run", "--name", job, "--every", "1h", "--", "/bin/true"]);
    command.env("HOME", home);
    if let Some(file) = file {
        command.env("HOLDFAST_CONFIG", file);
    }
    bed.output(command, PATIENCE)
}

fn has_tier(bed: &Bed, job: &str) -> bool {
    fs::read_to_string(bed.job(job).join("job.json")).is_ok_and(|text| text.contains("dir="))
}

#[test]
fn a_configuration_of_another_user_is_not_used() {
    each_user_by_root(|bed| {
        let home = home(bed, "home", OTHER)?;
        let file = home.join(".config/holdfast/config.toml");
        let owner = fs::metadata(bed.work())?.uid();
        let said = run(bed, &home, "read", None)?.success()?.stderr;
        let words = ["is not used", "belongs to uid 2102", "HOLDFAST_CONFIG"];
        ensure!(words.iter().all(|word| said.contains(word)) && !has_tier(bed, "read"), "{said}");
        ensure!(said.matches("is not used").count() == 1, "{said}");
        // Nor does it matter where it cannot be read: no command fails for that.
        fs::set_permissions(&home, Permissions::from_mode(0o700))?;
        let said = run(bed, &home, "closed", None)?.success()?.stderr;
        ensure!(said.contains("is not used") && !has_tier(bed, "closed"), "{said}");
        fs::set_permissions(&home, Permissions::from_mode(0o755))?;
        // The file alone is another's.
        for path in [&home, &home.join(".config"), &home.join(".config/holdfast")] {
            chown(path, Some(owner), None)?;
        }
        let said = run(bed, &home, "file", None)?.success()?.stderr;
        ensure!(said.contains("config.toml belongs to uid 2102") && !has_tier(bed, "file"), "{said}");
        // One that is named is used; so is root's.
        run(bed, &home, "named", Some(&file))?.success()?;
        ensure!(has_tier(bed, "named"));
        chown(&file, Some(0), Some(0))?;
        let said = run(bed, &home, "root", None)?.success()?.stderr;
        ensure!(has_tier(bed, "root") && said.is_empty(), "{said}");
        let absent = run(bed, &home, "absent", Some(&bed.dir().join("none")))?;
        ensure!(absent.code() != 0 && absent.stderr.contains("none"), "{}", absent.stderr);
        Ok(())
    });
}

#[test]
fn a_configuration_that_others_may_write_to_is_refused() {
    each_user_by_root(|bed| {
        let owner = fs::metadata(bed.work())?.uid();
        let home = home(bed, "home", owner)?;
        let (folder, file) = (home.join(".config"), home.join(".config/holdfast/config.toml"));
        for (path, mode, usual) in [(&file, 0o664, 0o644), (&folder, 0o777, 0o755)] {
            fs::set_permissions(path, Permissions::from_mode(mode))?;
            let refused = run(bed, &home, JOB, None)?;
            let is_named = refused.stderr.contains(&format!("chmod go-w {}", path.display()));
            ensure!(refused.code() == 77 && is_named, "status {}: {}", refused.code(), refused.stderr);
            fs::set_permissions(path, Permissions::from_mode(usual))?;
        }
        // What nobody else can reach nobody else can change.
        fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
        fs::set_permissions(&file, Permissions::from_mode(0o664))?;
        run(bed, &home, JOB, None)?.success()?;
        ensure!(has_tier(bed, JOB));
        // In the store.
        let file = bed.store().join("config.toml");
        fs::write(&file, "compress = \"none\"\n")?;
        chown(&file, Some(OTHER), None)?;
        let refused = run(bed, &bed.work(), "store", None)?;
        ensure!(refused.code() == 77 && refused.stderr.contains("uid 2102"), "{}", refused.stderr);
        Ok(())
    });
}

/// Folders of root's there would keep that user from his own.
#[test]
fn root_makes_no_store_in_the_home_folder_of_another_user() {
    each_user_by_root(|bed| {
        if bed.user() != User::Root {
            return Ok(());
        }
        for (variable, name) in [("HOME", "home"), ("XDG_STATE_HOME", "state")] {
            let home = home(bed, name, OTHER)?;
            let mut command = bed.holdfast(&["run", "--", "/bin/true"]);
            command.env_remove("HOLDFAST_STORE").env(variable, &home);
            let refused = bed.output(command, PATIENCE)?;
            let words = [&*home.to_string_lossy(), "uid 2102", "--store"];
            let is_named = words.iter().all(|word| refused.stderr.contains(word));
            ensure!(refused.code() == 77 && is_named, "status {}: {}", refused.code(), refused.stderr);
            ensure!(!home.join(".local").exists() && !home.join("holdfast").exists());
            // One that was named is used where it is root's.
            let mut command = bed.holdfast(&["run", "--no-tiers", "--store"]);
            command.arg(home.join("store")).args(["--", "/bin/true"]).env(variable, bed.work());
            bed.output(command, PATIENCE)?.success()?;
        }
        Ok(())
    });
}
