//! Images of every released version of the format stay readable.
//!
//! `golden/vN/` holds one job. Files of an old version are never written again; a new version adds a folder, made by
//! `cargo test -p holdfast-tiers --test golden -- --ignored`.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::{MemorySource, TempDir, commit_record, options, read_all, record};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_tiers::{Store, format};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn folder(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

/// What every golden image holds: raw frames, compressed frames, zero pages, two segments.
fn source() -> MemorySource {
    MemorySource::two_segments(0x400, 3)
}

#[test]
fn images_of_all_versions_are_read() {
    for version in 1..=format::VERSION {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
        let mut count = 0;
        for entry in fs::read_dir(folder(version)).unwrap() {
            let entry = entry.unwrap();
            let copy = job.dir().join(entry.file_name());
            fs::copy(entry.path(), &copy).unwrap();
            // A checkout has the modes of the umask.
            fs::set_permissions(&copy, Permissions::from_mode(0o600)).unwrap();
            count += 1;
        }
        assert!(count >= 3, "manifest and two segments of version {version}");
        let image = job.open_image(Epoch(1)).unwrap();
        image.verify(&|_| ()).unwrap();
        assert!(read_all(&image).unwrap() == source().pages);
        assert_eq!(image.record(), &record(4242));
        assert_eq!(image.stop().total_ns, 7_000_000);
        assert_eq!(image.engine(), "fork");
        assert_eq!(image.command(), commit_record().command);
        assert!(job.images().unwrap()[0].complete);
    }
}

#[test]
#[ignore = "writes the golden image of the current version, once, when the version is new"]
fn write_golden() {
    let folder = folder(format::VERSION);
    assert!(!folder.exists(), "{} exists: released bytes do not change", folder.display());
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
    let lock = job.lock().unwrap();
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    writer.write_pages(&source(), &Inherited::default(), &options(2), &|_| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(job.dir()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lock" {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
}
