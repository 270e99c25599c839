//! The memory tier and other processes: readers that keep their bytes, death at any moment, folders that are refused.

use crate::common::memory::{Folder, MIB, bytes, name, put, read};
use holdfast_tiers::tier::{LocalTier, MemoryTier, Survives, Tier, TierError};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

#[test]
fn what_is_open_elsewhere_keeps_its_bytes() {
    let folder = Folder::new();
    let tier = folder.open(16 * MIB);
    let data = bytes(1 << 20, 1);
    put(&tier, "job/blob", &data, None).unwrap();
    let blob = tier.open(&name("job/blob")).unwrap();
    tier.remove(&name("job/blob")).unwrap();
    assert_eq!(folder.files("job"), 0, "it is removed, not kept");
    put(&tier, "job/next", &bytes(1 << 20, 2), None).unwrap();
    assert!(read(&*blob) == data);
    // In another process, by a tier of its own.
    let mut child =
        Command::new("tail").arg("-f").arg(folder.0.join("job/next")).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    tier.remove(&name("job/next")).unwrap();
    assert_eq!(folder.files("job"), 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_is_not_in_memory_or_not_the_users_is_refused() {
    let folder = Folder::new();
    drop(folder.open(MIB));
    std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o770)).unwrap();
    assert!(matches!(MemoryTier::open(&folder.0, MIB), Err(TierError::Denied { .. })));
    let disk = crate::common::TempDir::new();
    // A checkout may be in memory itself.
    let in_memory = is_in_memory(&disk.0);
    match MemoryTier::open(&disk.0.join("m"), MIB) {
        Err(TierError::Settings { object, why }) => {
            assert!(!in_memory && object.contains("/m") && why.contains("dir="));
        }
        other => assert!(in_memory || other.is_ok_and(|tier| tier.info().survives == Survives::Host)),
    }
    assert_eq!(std::fs::read_dir(disk.0.join("m")).unwrap().count(), 0);
}

fn is_in_memory(path: &Path) -> bool {
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output().unwrap().stdout;
    kind.starts_with(b"tmpfs") || kind.starts_with(b"ramfs")
}

/// Not a test by itself: writes and removes until it is killed.
#[test]
#[ignore = "run by another test"]
fn child() {
    let Some(root) = std::env::var_os("TEST_MEMORY") else { return };
    let tier = MemoryTier::open(Path::new(&root), 32 * MIB).unwrap();
    tier.clean("job").unwrap();
    let from = newest(&tier).map_or(0, |newest| newest + 1);
    for version in from.. {
        for part in 0..2 {
            let number = version * 2 + part;
            put(&tier, &format!("job/segment-{number}"), &bytes(segment_len(number), number), None).unwrap();
        }
        tier.publish(&name(&format!("job/manifest-{version:06}")), &version.to_le_bytes()).unwrap();
        if version >= 2 {
            tier.remove(&name(&format!("job/manifest-{:06}", version - 2))).unwrap();
            for part in 0..2 {
                tier.remove(&name(&format!("job/segment-{}", (version - 2) * 2 + part))).unwrap();
            }
        }
    }
}

fn segment_len(number: u64) -> usize {
    200_000 + (number * 31_337 % 400_000) as usize
}

fn newest(tier: &dyn Tier) -> Option<u64> {
    let blobs = tier.list("job").unwrap().blobs;
    blobs.iter().rev().find_map(|entry| entry.name.file().strip_prefix("manifest-")?.parse().ok())
}

#[test]
fn a_writer_may_be_killed_at_any_moment() {
    let folder = Folder::new();
    let tier = folder.open(32 * MIB);
    let mut before = 0;
    for round in 0..8_u32 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "memory_processes::child", "--ignored"])
            .env("TEST_MEMORY", &folder.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Three more versions, and some way into the next: by then memory is used again.
        while newest(&tier).unwrap_or(0) < before + 3 {
            assert_eq!(writer.try_wait().unwrap(), None);
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(u64::from(round) * 397 % 2000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        let version = newest(&tier).unwrap();
        assert!(version >= before + 3);
        for number in [version * 2, version * 2 + 1] {
            let blob = tier.open(&name(&format!("job/segment-{number}"))).unwrap();
            assert!(read(&*blob) == bytes(segment_len(number), number));
        }
        // What is listed is whole, whether a manifest names it or not.
        for entry in tier.list("job").unwrap().blobs {
            if let Some(number) = entry.name.file().strip_prefix("segment-") {
                let number = number.parse().unwrap();
                assert!(read(&*tier.open(&entry.name).unwrap()) == bytes(segment_len(number), number));
                if number / 2 + 2 < version || number / 2 > version {
                    tier.remove(&entry.name).unwrap();
                }
            }
        }
        tier.clean("job").unwrap();
        let listed = tier.list("job").unwrap().blobs.len();
        assert_eq!(folder.files("job"), listed, "nothing else is left");
        before = version;
    }
    // Another kind of tier in the same place understands all of it.
    assert_eq!(newest(&LocalTier::open(&folder.0).unwrap()), Some(before));
}

/// Not a test by itself: runs in a tmpfs of 8 MiB.
#[test]
#[ignore = "run by another test"]
fn child_in_8_mib() {
    let Some(root) = std::env::var_os("TEST_SMALL").map(std::path::PathBuf::from) else { return };
    let tier = MemoryTier::open(&root.join("tier"), u64::MAX).unwrap();
    assert_eq!(tier.info().capacity_bytes, Some(8 * MIB));
    put(&tier, "job/blob", &bytes(3 << 20, 1), None).unwrap();
    tier.remove(&name("job/blob")).unwrap();
    std::fs::write(root.join("other"), bytes(4 << 20, 2)).unwrap();
    // No spare is taken for it.
    put(&tier, "job/next", &bytes(2 << 20, 3), Some(1)).unwrap();
    assert!(read(&*tier.open(&name("job/next")).unwrap()) == bytes(2 << 20, 3));
    let full = put(&tier, "job/more", &bytes(3 << 20, 4), None);
    assert!(matches!(full, Err(TierError::Full { .. })), "{full:?}");
    assert_eq!(std::fs::read_dir(root.join("tier/job")).unwrap().count(), 1);
}

#[test]
fn spares_make_way_where_others_fill_the_tmpfs() {
    let works = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    if !works {
        println!("no mount namespace here: a full tmpfs was not tried");
        return;
    }
    let dir = crate::common::TempDir::new();
    let script =
        "mount -t tmpfs -o size=8m tmpfs \"$TEST_SMALL\" && exec \"$0\" --exact \"$TEST_NAME\" --ignored";
    let status = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("TEST_SMALL", &dir.0)
        .env("TEST_NAME", "memory_processes::child_in_8_mib")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
}
