//! A folder as a tier: what it promises to two writers, two hosts and two users.

use crate::common::conformance::conforms;
use holdfast_tiers::tier::address::{self, Address};
use holdfast_tiers::tier::{BlobName, FolderTier, Survives, Tier, TierError};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Makes [`whole_life`] run: only a test that has made the surroundings starts it so.
const INNER: &str = "HOLDFAST_TEST_FOLDER";

struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Place {
        let path = std::env::temp_dir().join(format!("holdfast-folder-{}-{test}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn tier(&self) -> Box<dyn Tier> {
        open(&self.0.join("ckpt"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join("ckpt").join(name)
    }
}

fn open(path: &Path) -> Box<dyn Tier> {
    Box::new(FolderTier::open(path, format!("dir={}", path.display())).unwrap())
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(name: &str) -> BlobName {
    BlobName::new(name).unwrap()
}

fn write(tier: &dyn Tier, blob: &str, bytes: &[u8]) -> Result<u64, TierError> {
    let mut writer = tier.create(&name(blob), None)?;
    for piece in bytes.chunks(1000) {
        writer.append(piece)?;
    }
    writer.finish()
}

fn read(tier: &dyn Tier, blob: &str) -> Result<Vec<u8>, TierError> {
    let blob = tier.open(&name(blob))?;
    let mut bytes = vec![0; blob.len() as usize];
    blob.read_at(0, &mut bytes)?;
    Ok(bytes)
}

fn names(tier: &dyn Tier, folder: &str) -> (Vec<String>, Vec<String>) {
    let listing = tier.list(folder).unwrap();
    (listing.blobs.iter().map(|entry| entry.name.to_string()).collect(), listing.folders)
}

fn files(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

fn is_root() -> bool {
    File::open("/proc/self").unwrap().metadata().unwrap().uid() == 0
}

#[test]
fn it_keeps_what_every_tier_keeps() {
    let place = Place::new("conforms");
    conforms(&*place.tier());
    assert_eq!(files(&place.path("")), 0, "what is not removed with the last blob is the folder itself");
}

#[test]
fn what_is_written_is_listed_and_read_until_it_is_removed() {
    let place = Place::new("life");
    let tier = place.tier();
    assert_eq!(names(&*tier, ""), (vec![], vec![]));
    assert!(!place.path("").exists(), "made before anything is written");
    assert!(matches!(read(&*tier, "sim/a"), Err(TierError::NotFound { .. })));
    assert_eq!(write(&*tier, "sim/a", &[7; 5000]).unwrap(), 5000);
    tier.publish(&name("sim/m"), b"manifest").unwrap();
    assert_eq!(names(&*tier, ""), (vec![], vec!["sim".into()]));
    assert_eq!(names(&*tier, "sim"), (vec!["sim/a".into(), "sim/m".into()], vec![]));
    assert_eq!(read(&*tier, "sim/a").unwrap(), [7; 5000]);
    for again in [write(&*tier, "sim/a", b"x").map(drop), tier.publish(&name("sim/m"), b"manifest")] {
        assert!(matches!(again, Err(TierError::Exists { .. })), "{again:?}");
    }
    let blob = tier.open(&name("sim/a")).unwrap();
    let short = blob.read_at(4999, &mut [0; 2]);
    assert!(matches!(short, Err(TierError::Short { len: 5000, .. })), "{short:?}");
    tier.remove(&name("sim/a")).unwrap();
    let mut last = [0];
    blob.read_at(4999, &mut last).unwrap();
    assert_eq!(last, [7], "removed, and open");
    for _ in 0..2 {
        tier.remove(&name("sim/m")).unwrap();
        tier.remove(&name("other/m")).unwrap();
    }
    assert_eq!(files(&place.path("")), 0, "an empty folder is left");
    // What an address means is the local tier, where it is this user's disk: each reads what the other wrote.
    let local = address::open(&Address::Folder(place.path(""))).unwrap();
    assert!(tier.info().survives != Survives::Host || local.info().mappable);
    local.publish(&name("sim/m"), b"manifest").unwrap();
    assert_eq!(read(&*tier, "sim/m").unwrap(), b"manifest");
}

#[test]
fn of_many_who_publish_one_name_one_does() {
    let place = Place::new("race");
    for round in 0..20 {
        let blob = format!("sim/manifest-{round}");
        let won: Vec<bool> = std::thread::scope(|scope| {
            let publish = |writer: u8| {
                let (tier, blob) = (place.tier(), &blob);
                move || match tier.publish(&name(blob), &[writer; 300]) {
                    Ok(()) => true,
                    Err(TierError::Exists { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            };
            let threads: Vec<_> = (0..4).map(|writer| scope.spawn(publish(writer))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
        let winner = won.iter().position(|won| *won).unwrap() as u8;
        assert_eq!(read(&*place.tier(), &blob).unwrap(), [winner; 300]);
    }
    assert_eq!(files(&place.path("sim")), 20, "temporary files are left");
}

#[test]
fn folders_come_and_go_while_others_write() {
    let place = Place::new("come-and-go");
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let tier = place.tier();
            scope.spawn(move || {
                for round in 0..50 {
                    let blob = name(&format!("sim/{writer}-{round}"));
                    tier.publish(&blob, b"x").unwrap();
                    tier.remove(&blob).unwrap();
                }
            });
        }
    });
    assert_eq!(files(&place.path("")), 0);
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let place = Place::new("dropped");
    let tier = place.tier();
    let mut writer = tier.create(&name("sim/a"), Some(1 << 40)).unwrap();
    writer.append(&[1; 100]).unwrap();
    assert_eq!(names(&*tier, "sim"), (vec![], vec![]));
    drop(writer);
    assert_eq!(files(&place.path("sim")), 0);
}

#[test]
fn what_a_crash_has_left_is_removed_but_not_what_another_host_may_be_writing() {
    let place = Place::new("clean");
    let tier = place.tier();
    let mut writer = tier.create(&name("sim/a"), None).unwrap();
    writer.append(&[1; 100]).unwrap();
    // Never dropped: as if the agent had been killed.
    std::mem::forget(writer);
    tier.publish(&name("sim/m"), b"m").unwrap();
    for temp in [".tmp-00000000-1-1-fresh", ".tmp-00000000-1-1-old"] {
        fs::write(place.path("sim").join(temp), [0; 10]).unwrap();
        fs::set_permissions(place.path("sim").join(temp), Permissions::from_mode(0o600)).unwrap();
    }
    let old = File::options().write(true).open(place.path("sim/.tmp-00000000-1-1-old")).unwrap();
    old.set_modified(SystemTime::now() - Duration::from_secs(25 * 3600)).unwrap();
    assert_eq!(tier.clean("sim").unwrap(), 110);
    assert_eq!(tier.clean("sim").unwrap(), 0);
    assert_eq!(tier.clean("other").unwrap(), 0);
    assert_eq!(files(&place.path("sim")), 2);
    assert!(place.path("sim/.tmp-00000000-1-1-fresh").exists());
    assert_eq!(names(&*tier, "sim").0, ["sim/m"]);
}

#[test]
fn an_address_that_leads_to_no_folder_is_refused() {
    let place = Place::new("address");
    fs::write(place.0.join("file"), b"").unwrap();
    for path in [place.0.join("file"), place.0.join("a/b"), place.0.join("file/x/y")] {
        let opened = address::open(&Address::Folder(path.clone())).map(drop);
        assert!(opened.is_err(), "{}", path.display());
    }
}

#[test]
fn links_and_what_others_may_write_are_not_followed() {
    let place = Place::new("links");
    let tier = place.tier();
    tier.publish(&name("sim/m"), b"m").unwrap();
    symlink(place.path("sim"), place.path("link")).unwrap();
    symlink(place.path("sim/m"), place.path("sim/link")).unwrap();
    fs::create_dir(place.path("open")).unwrap();
    fs::set_permissions(place.path("open"), Permissions::from_mode(0o777)).unwrap();
    for blob in ["link/m", "sim/link", "open/m"] {
        let read = read(&*tier, blob);
        assert!(matches!(read, Err(TierError::Denied { .. })), "{blob}: {read:?}");
    }
    for blob in ["link/x", "open/x"] {
        let published = tier.publish(&name(blob), b"x");
        assert!(matches!(published, Err(TierError::Denied { .. })), "{blob}: {published:?}");
    }
    let over = tier.publish(&name("sim/link"), b"x");
    assert!(matches!(over, Err(TierError::Exists { .. })), "{over:?}");
    assert_eq!(names(&*tier, "sim").0, ["sim/m"]);
    assert_eq!(files(&place.path("sim")), 2);
}

#[test]
fn another_users_files_are_neither_shown_nor_touched() {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let place = Place::new("users");
    let tier = place.tier();
    for blob in ["ours/m", "theirs/m", "mixed/ours", "mixed/theirs", "top"] {
        tier.publish(&name(blob), b"m").unwrap();
    }
    for path in ["theirs", "theirs/m", "mixed/theirs", "top"] {
        chown(place.path(path), Some(12345), Some(12345)).unwrap();
    }
    fs::set_permissions(place.path(""), Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(names(&*tier, ""), (vec![], vec!["mixed".into(), "ours".into()]));
    assert_eq!(names(&*tier, "mixed").0, ["mixed/ours"]);
    let refused = |result: Result<(), TierError>| {
        assert!(matches!(result, Err(TierError::Denied { .. })), "{result:?}");
    };
    refused(tier.list("theirs").map(drop));
    refused(tier.clean("theirs").map(drop));
    refused(tier.publish(&name("theirs/x"), b"x"));
    for blob in ["theirs/m", "mixed/theirs", "top"] {
        refused(read(&*tier, blob).map(drop));
        refused(tier.remove(&name(blob)));
        assert!(place.path(blob).exists());
    }
    assert!(matches!(tier.publish(&name("top"), b"x"), Err(TierError::Exists { .. })));
}

/// Runs [`whole_life`] in a process of its own, after `shell`.
fn in_surroundings(command: &mut Command, shell: &str, place: &Place, what: &str) -> bool {
    command.args([
        "sh",
        "-c",
        &format!("{shell} && exec \"$0\" --exact tier_folder::whole_life --nocapture"),
    ]);
    command.arg(std::env::current_exe().unwrap()).env(INNER, what).env("PLACE", &place.0);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if text.contains("whole life: done") {
        return true;
    }
    assert!(!text.contains("whole life: begun"), "{text}");
    println!("SKIPPED: {text}");
    false
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for umask in ["0000", "0777"] {
        let place = Place::new(&format!("umask-{umask}"));
        assert!(in_surroundings(&mut Command::new("env"), &format!("umask {umask}"), &place, "modes"));
    }
}

#[test]
fn a_file_system_that_is_full_says_so_and_is_as_before() {
    let place = Place::new("full");
    let mount = "mount -t tmpfs -o size=256k none \"$PLACE\"";
    in_surroundings(
        Command::new("unshare").args(["--user", "--map-root-user", "--mount"]),
        mount,
        &place,
        "full",
    );
}

/// Not a test of its own: what two of the tests above run elsewhere.
#[test]
fn whole_life() {
    let Ok(what) = std::env::var(INNER) else { return };
    println!("whole life: begun");
    let root = PathBuf::from(std::env::var("PLACE").unwrap()).join("ckpt");
    let tier = open(&root);
    write(&*tier, "sim/a", &[1; 3000]).unwrap();
    tier.publish(&name("sim/m"), b"m").unwrap();
    if what == "full" {
        for result in
            [write(&*tier, "sim/b", &[1; 1 << 20]).map(drop), tier.publish(&name("sim/n"), &[1; 1 << 20])]
        {
            assert!(matches!(result, Err(TierError::Full { .. })), "{result:?}");
        }
        assert_eq!(names(&*tier, "sim").0, ["sim/a", "sim/m"]);
        tier.remove(&name("sim/a")).unwrap();
        write(&*tier, "sim/b", &[1; 3000]).unwrap();
        assert_eq!(files(&root.join("sim")), 2);
    }
    for (path, mode) in [("", 0o700), ("sim", 0o700), ("sim/m", 0o600)] {
        assert_eq!(fs::metadata(root.join(path)).unwrap().mode() & 0o7777, mode, "{path}");
    }
    println!("whole life: done");
}
