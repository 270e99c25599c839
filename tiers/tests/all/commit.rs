//! The commit: what a crash, a full disk or a failing source leaves behind, and who may touch it.

use crate::common::{Content, MemorySource, TempDir, commit_record, options, read_all, run};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_tiers::{FAULT_POINTS, ImageInfo, Job, PipelineOptions, Store, StoreError};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, ExitStatus};

const OPTIONS: PipelineOptions = options(2);

fn small_source() -> MemorySource {
    MemorySource::new(vec![run(1000, 300), run(2000, 5)], |n| {
        if n % 3 == 0 { Content::Text } else { Content::Noise }
    })
}

fn open_job(store: &Path) -> Job {
    Store::open(store).unwrap().create_job("job").unwrap()
}

fn checkpoint(job: &Job, source: &MemorySource) -> Result<ImageInfo, StoreError> {
    let lock = job.lock().unwrap();
    job.clean(&lock).unwrap();
    let mut writer = job.begin(&lock, job.next_epoch().unwrap(), None).unwrap();
    writer.write_pages(source, &Inherited::default(), &OPTIONS, &|_, _| ())?;
    writer.commit(commit_record()).map(|(info, _)| info)
}

fn names(job: &Job) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(job.dir()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs the test `child` of this binary in a process of its own, after some shell commands.
fn in_child(setup: &str, store: &Path, action: &str) -> ExitStatus {
    Command::new("sh")
        .args(["-c", &format!("{setup}\nexec \"$0\" --exact commit::child --ignored --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env("TEST_STORE", store)
        .env("TEST_ACTION", action)
        .status()
        .unwrap()
}

/// Not a test by itself: the part that runs in a process of its own.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let Some(store) = std::env::var_os("TEST_STORE") else { return };
    let job = open_job(Path::new(&store));
    match std::env::var("TEST_ACTION").unwrap().as_str() {
        "full" => {
            checkpoint(&job, &MemorySource::new(vec![run(1000, 20)], |_| Content::Noise)).unwrap();
            // 12 MiB do not fit; the first image must stay, the space must be free again.
            let big = MemorySource::new(vec![run(5000, 3072)], |_| Content::Noise);
            match checkpoint(&job, &big) {
                Err(StoreError::Full { path, needed }) => {
                    assert!(path.to_str().unwrap().contains("segment-000002-"), "{}", path.display());
                    assert!(needed > 0 && needed <= 13 << 20, "{needed}");
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(names(&job), ["lock", "manifest-000001", "segment-000001-000"]);
            read_all(&job.open_image(Epoch(1)).unwrap()).unwrap();
            checkpoint(&job, &MemorySource::new(vec![run(1000, 20)], |_| Content::Noise)).unwrap();
        }
        "commit" => {
            checkpoint(&job, &small_source()).unwrap();
        }
        point => {
            let _ = point; // read again in the hook, which cannot capture
            holdfast_tiers::set_fault_hook(|name| {
                if std::env::var("TEST_ACTION").unwrap() == name {
                    std::process::exit(77); // no destructor runs
                }
            });
            checkpoint(&job, &small_source()).unwrap();
        }
    }
}

#[test]
fn a_crash_at_any_step_leaves_the_images_before() {
    for point in FAULT_POINTS {
        let dir = TempDir::new();
        let job = open_job(&dir.store());
        let source = small_source();
        checkpoint(&job, &source).unwrap();
        let before = names(&job);
        assert_eq!(in_child("", &dir.store(), point).code(), Some(77), "{point} was not passed");
        assert!(!job.is_live());
        assert_ne!(names(&job), before, "{point} leaves something");

        let images = job.images().unwrap();
        let done = *point == "manifest-renamed";
        assert_eq!(images.len(), if done { 2 } else { 1 }, "{point}");
        assert!(images.iter().all(|image| image.complete && image.broken.is_none()));
        for image in &images {
            assert!(read_all(&job.open_image(image.epoch).unwrap()).unwrap() == source.pages);
        }
        // A number that nobody has seen is free.
        let seen = !["segment-created", "segment-half"].contains(point);
        assert_eq!(job.next_epoch().unwrap(), Epoch(if seen { 3 } else { 2 }), "{point}");
        let report = job.clean(&job.lock().unwrap()).unwrap();
        assert_eq!(report.removed.is_empty(), done || !seen, "{point}");
        // Before the staging buffer is full, the segment is there but empty.
        let written = ["segment-synced", "manifest-temp"].contains(point);
        assert_eq!(report.bytes > 0, written, "{point}: {report:?}");
        if !done {
            assert_eq!(names(&job), before, "{point}");
        }
        checkpoint(&job, &source).unwrap();
    }
}

#[test]
fn a_full_disk_fails_the_checkpoint_only() {
    // A file size limit of 4 MiB stands for the disk: EFBIG instead of ENOSPC, from the same call (setrlimit(2)).
    let dir = TempDir::new();
    assert!(in_child("trap '' XFSZ; ulimit -f 8192", &dir.store(), "full").success());
    // And a real one where an own mount namespace is allowed.
    let dir = TempDir::new();
    let works = Command::new("unshare").args(["-rm", "true"]).status().is_ok_and(|status| status.success());
    if works {
        let setup = "test -n \"$INSIDE\" || INSIDE=1 exec unshare -rm sh -c 'mount -t tmpfs -o size=6m tmpfs \"$1\" && \
                     TEST_STORE=\"$1/store\" exec \"$0\" --exact commit::child --ignored --nocapture' \"$0\" \
                     \"$(dirname \"$TEST_STORE\")\"";
        assert!(in_child(setup, &dir.store(), "full").success());
    } else {
        println!("no mount namespace here: ENOSPC itself was not tried");
    }
}

#[test]
fn a_failing_source_leaves_nothing() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    let lock = job.lock().unwrap();
    let mut source = MemorySource::new(vec![run(1000, 20_000)], |_| Content::Noise);
    source.fails_at = Some(17_000);
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    let error = writer.write_pages(&source, &Inherited::default(), &OPTIONS, &|_, _| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Source { .. }), "{error}");
    assert!(names(&job).len() > 1);
    assert!(matches!(writer.commit(commit_record()), Err(StoreError::Misuse { .. })), "pages are missing");
    assert_eq!(names(&job), ["lock"]);
}

#[test]
fn overlapping_runs_are_not_committed() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    let lock = job.lock().unwrap();
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    let source = MemorySource::new(vec![run(100, 10), run(109, 2)], |_| Content::Text);
    let error = writer.write_pages(&source, &Inherited::default(), &OPTIONS, &|_, _| ()).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
    assert!(matches!(writer.commit(commit_record()), Err(StoreError::Misuse { .. })));
    assert_eq!(names(&job), ["lock"]);
}

#[test]
fn an_image_without_pages_is_an_image() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    let info = checkpoint(&job, &MemorySource::new(Vec::new(), |_| Content::Zero)).unwrap();
    assert_eq!(job.images().unwrap(), [info]);
    assert!(read_all(&job.open_image(Epoch(1)).unwrap()).unwrap().is_empty());
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for umask in ["000", "777"] {
        let dir = TempDir::new();
        assert!(in_child(&format!("umask {umask}"), &dir.store(), "commit").success());
        let job = Store::open(&dir.store()).unwrap().job("job").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&dir.store()), 0o700);
        assert_eq!(mode(job.dir()), 0o700);
        for name in names(&job) {
            assert_eq!(mode(&job.dir().join(&name)), 0o600, "{name}");
        }
    }
}

#[test]
fn folders_that_others_may_change_are_refused() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    fs::set_permissions(job.dir(), fs::Permissions::from_mode(0o770)).unwrap();
    let store = Store::open(&dir.store()).unwrap();
    assert!(matches!(store.job("job"), Err(StoreError::Permissions { .. })));
    fs::set_permissions(dir.store(), fs::Permissions::from_mode(0o702)).unwrap();
    let error = Store::open(&dir.store()).unwrap_err();
    assert!(error.to_string().contains("mode 0702"), "{error}");
    assert!(matches!(Store::open(Path::new("/etc/passwd")), Err(StoreError::Permissions { .. })));
    for name in ["", ".", "..", ".x", "a/b", "a b", "ä", &"x".repeat(101)] {
        assert!(matches!(store.job(name), Err(StoreError::BadName { .. })), "{name}");
        assert!(matches!(store.create_job(name), Err(StoreError::BadName { .. })), "{name}");
    }
    assert!(matches!(store.job("none"), Err(StoreError::NotAJob { .. })));
    // What cannot be looked at is not one that is not there (ELOOP stands for EIO and ESTALE).
    std::os::unix::fs::symlink("loop", store.root().join("loop")).unwrap();
    assert!(matches!(store.job("loop"), Err(StoreError::Io { .. })));
    fs::remove_file(store.root().join("loop")).unwrap();
}

#[test]
fn only_one_has_the_lock() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    assert!(!job.is_live());
    let lock = job.lock().unwrap();
    assert!(job.is_live() && job.is_live());
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(job.lock(), Err(StoreError::Locked { pid, .. }) if pid == own));
    let other = Store::open(&dir.store()).unwrap().create_job("other").unwrap();
    assert!(matches!(other.begin(&lock, Epoch(1), None), Err(StoreError::Misuse { .. })));
    drop(lock);
    assert!(!job.is_live());
    job.lock().unwrap();
}

#[test]
fn a_job_that_was_made_anew_belongs_to_nobody_before() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    let old = job.lock().unwrap();
    assert!(old.is_in_place());
    fs::remove_dir_all(dir.store()).unwrap();
    assert!(!old.is_in_place());
    assert!(matches!(job.begin(&old, Epoch(1), None), Err(StoreError::Replaced { .. })));
    let again = open_job(&dir.store());
    let new = again.lock().unwrap();
    assert!(new.is_in_place() && !old.is_in_place());
    assert!(matches!(again.begin(&old, Epoch(1), None), Err(StoreError::Replaced { .. })));
    again.begin(&new, Epoch(1), None).unwrap();
}

#[test]
fn clean_removes_what_is_dead_and_nothing_else() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    for _ in 0..2 {
        checkpoint(&job, &small_source()).unwrap();
    }
    job.write_recipe(&serde_json::json!({"command": ["./sim"]})).unwrap();
    let lock = job.lock().unwrap();
    // Image 1 cannot be read: its segments may still be of use.
    let manifest = job.dir().join("manifest-000001");
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[100] ^= 1;
    fs::write(&manifest, &bytes).unwrap();
    // Somebody who holds no lock may still be about to give it its name.
    let temp = job.dir().join(".tmp-job.json");
    fs::write(&temp, "half").unwrap();
    assert!(!job.clean(&lock).unwrap().removed.contains(&temp));
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(61);
    fs::File::options().write(true).open(&temp).unwrap().set_modified(long_ago).unwrap();
    fs::write(job.dir().join("segment-000002-777"), "orphan").unwrap();
    fs::write(job.dir().join("agent.log"), "lines").unwrap();
    drop(UnixListener::bind(job.socket_path()).unwrap());
    // Image 3 is being written.
    let mut writer = job.begin(&lock, Epoch(3), None).unwrap();
    writer.write_pages(&small_source(), &Inherited::default(), &OPTIONS, &|_, _| ()).unwrap();
    let keep: Vec<String> = names(&job)
        .into_iter()
        .filter(|name| ![".tmp-job.json", "segment-000002-777", "agent.sock"].contains(&name.as_str()))
        .collect();
    let report = job.clean(&lock).unwrap();
    assert_eq!(report.unreadable, [Epoch(1)]);
    assert_eq!(report.removed.len(), 3, "{report:?}");
    assert_eq!(names(&job), keep);

    let live = UnixListener::bind(job.socket_path()).unwrap();
    assert!(job.clean(&lock).unwrap().removed.is_empty(), "an agent listens");
    drop(live);
    let images = job.images().unwrap();
    assert!(images[0].broken.as_ref().unwrap().contains("manifest-000001: at byte 64"), "{images:?}");
    assert!(images[0].bytes > 300 << 10 && images[1].broken.is_none());
    assert_eq!(job.recipe().unwrap()["command"][0], "./sim");

    // The image that was removed under the writer's feet stays readable by those who have it open.
    let open = job.open_image(Epoch(2)).unwrap();
    let bytes = images[1].bytes;
    assert_eq!(job.remove_image(&lock, Epoch(2)).unwrap(), bytes);
    assert!(read_all(&open).unwrap() == small_source().pages);
    assert!(matches!(job.remove_image(&lock, Epoch(2)), Err(StoreError::NoImage { .. })));
    writer.commit(commit_record()).unwrap();
    assert_eq!(job.images().unwrap().len(), 2);
}

#[test]
fn a_missing_segment_is_seen_in_the_list() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    checkpoint(&job, &small_source()).unwrap();
    fs::remove_file(job.dir().join("segment-000001-000")).unwrap();
    let images = job.images().unwrap();
    assert!(
        !images[0].complete && images[0].broken.as_ref().unwrap().contains("segment-000001-000"),
        "{images:?}"
    );
    assert!(job.open_image(Epoch(1)).is_err());
}

#[test]
fn an_image_is_given_to_a_job_without_one() {
    let dir = TempDir::new();
    let job = open_job(&dir.store());
    for _ in 0..2 {
        checkpoint(&job, &small_source()).unwrap();
    }
    let other = Store::open(job.dir().parent().unwrap()).unwrap().create_job("other").unwrap();
    let lock = other.lock().unwrap();
    assert!(matches!(job.clone_image(Epoch(7), &other, &lock), Err(StoreError::NoImage { .. })));
    assert!(matches!(
        job.clone_image(Epoch(2), &other, &job.lock().unwrap()),
        Err(StoreError::Misuse { .. })
    ));
    // Left by an attempt that did not end.
    fs::write(other.dir().join("segment-000002-000"), "half").unwrap();
    job.clone_image(Epoch(2), &other, &lock).unwrap();
    job.remove_image(&job.lock().unwrap(), Epoch(2)).unwrap();
    let given = other.open_image(Epoch(2)).unwrap();
    given.verify(&|_| ()).unwrap();
    assert!(read_all(&given).unwrap() == small_source().pages);
    assert!(matches!(job.clone_image(Epoch(1), &other, &lock), Err(StoreError::Misuse { .. })), "it has one");
    assert_eq!(other.next_epoch().unwrap(), Epoch(3));
}

#[test]
fn what_an_old_image_says_is_read_once_and_several_go_in_one_pass() {
    let dir = TempDir::new();
    let job = open_job(&dir.0);
    for _ in 0..3 {
        checkpoint(&job, &small_source()).unwrap();
    }
    let all = job.images().unwrap();
    // Changed so that nothing shows it: only who reads it again notices.
    let path = job.dir().join("manifest-000001");
    let (time, good) = (fs::metadata(&path).unwrap().modified().unwrap(), fs::read(&path).unwrap());
    let mut bad = good.clone();
    bad[64] ^= 1;
    let write = |bytes: &[u8], time| {
        fs::write(&path, bytes).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    write(&bad, time);
    assert_eq!(job.images().unwrap(), all);
    assert!(open_job(&dir.0).images().unwrap()[0].broken.is_some());
    write(&bad, time + std::time::Duration::from_secs(1));
    assert!(job.images().unwrap()[0].broken.is_some(), "what was changed is read again");
    write(&good, time);
    assert_eq!((job.image(Epoch(2)).unwrap().as_ref(), job.image(Epoch(4)).unwrap()), (Some(&all[1]), None));
    let lock = job.lock().unwrap();
    let freed = job.remove_images(&lock, &[1, 2, 9].map(Epoch).into()).unwrap();
    assert_eq!((freed, job.images().unwrap()), (all[0].bytes + all[1].bytes, all[2..].to_vec()));
}

#[test]
fn a_store_that_cannot_be_made_says_how_to_name_another() {
    let dir = TempDir::new();
    let file = dir.0.join("file");
    fs::write(&file, "").unwrap();
    let root = file.join("jobs");
    let error = Store::open(&root).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, StoreError::NoStore { .. }), "{text}");
    assert!(text.starts_with(&root.display().to_string()) && text.contains("--store"), "{text}");
}
