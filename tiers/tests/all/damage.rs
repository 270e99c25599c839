//! Damaged and foreign files: an error that names the file and the offset, or exactly the original data. Never a
//! panic, never a wrong byte.

use crate::common::{MemorySource, Model, TempDir, commit_record, options, read_all, record, record_of};
use holdfast_image::Epoch;
use holdfast_image::pages::{Inherited, PageProvider};
use holdfast_tiers::{Job, Store, StoreError, format};
use std::fs;
use std::path::{Path, PathBuf};

/// An image with raw and compressed frames, zero runs and two segments.
fn make_image(store: &Path, name: &str, epoch: Epoch, salt: u64) -> (Job, Model) {
    let job = Store::open(store).unwrap().create_job(name).unwrap();
    let lock = job.lock().unwrap();
    let source = MemorySource::two_segments(1000 + salt, salt);
    let mut writer = job.begin(&lock, epoch, None).unwrap();
    writer.write_pages(&source, &Inherited::default(), &options(2), &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    (job, source.pages)
}

/// Opens, verifies and reads everything, as a restart would.
fn read_image(job: &Job, epoch: Epoch) -> Result<Model, String> {
    let image = job.open_image(epoch).map_err(|error| error.to_string())?;
    assert_eq!(record_of(&image), record(4242));
    read_all(&image).map_err(|error| error.to_string())
}

fn image_files(job: &Job) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(job.dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("lock"))
        .collect();
    files.sort();
    files
}

fn assert_names_file_and_offset(error: &str, file: &Path) {
    assert!(error.contains(file.to_str().unwrap()), "{error} does not name {}", file.display());
    assert!(error.contains("at byte "), "{error} does not say where");
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let dir = TempDir::new();
    let (job, model) = make_image(&dir.store(), "job", Epoch(1), 0);
    assert!(read_image(&job, Epoch(1)).unwrap() == model);
    let files = image_files(&job);
    let originals: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut found, mut verified) = (0, 0);
    for round in 0..1500 {
        let file = random(files.len() as u64) as usize;
        // Every third flip hits the last block of a file, where the headers are.
        let len = originals[file].len() as u64;
        let from = if round % 3 == 0 { len.saturating_sub(4096) } else { 0 };
        let bit = from * 8 + random((len - from) * 8);
        let mut bytes = originals[file].clone();
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        fs::write(&files[file], &bytes).unwrap();
        match read_image(&job, Epoch(1)) {
            Ok(read) => {
                assert!(read == model, "bit {bit} of {}", files[file].display());
                verified += usize::from(job.open_image(Epoch(1)).unwrap().verify(&|_| ()).is_err());
            }
            Err(error) => {
                assert_names_file_and_offset(&error, &files[file]);
                found += 1;
            }
        }
        fs::write(&files[file], &originals[file]).unwrap();
    }
    assert!(found > 1000, "only {found} flips were found");
    assert!(
        verified > 10,
        "`verify` must find flips in frame headers, which a restart does not need: {verified}"
    );
    assert!(read_image(&job, Epoch(1)).unwrap() == model);
}

#[test]
fn every_truncation_is_found() {
    let dir = TempDir::new();
    let (job, _) = make_image(&dir.store(), "job", Epoch(1), 0);
    for file in image_files(&job) {
        let original = fs::read(&file).unwrap();
        let step = if original.len() < 16384 { 1 } else { 509 };
        for len in (0..original.len()).step_by(step) {
            fs::write(&file, &original[..len]).unwrap();
            assert_names_file_and_offset(&read_image(&job, Epoch(1)).unwrap_err(), &file);
        }
        let longer = [&original[..], &[0]].concat();
        fs::write(&file, &longer).unwrap();
        assert_names_file_and_offset(&read_image(&job, Epoch(1)).unwrap_err(), &file);
        fs::write(&file, &original).unwrap();
    }
}

/// The same end, where a segment says what it is, in a file of another length.
fn with_len(content: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.saturating_sub(content.len())];
    bytes.extend_from_slice(&content[content.len().saturating_sub(len)..]);
    bytes
}

#[test]
fn files_of_others_are_refused() {
    let dir = TempDir::new();
    let (job, model) = make_image(&dir.store(), "job", Epoch(1), 0);
    let (other, _) = make_image(&dir.store(), "other", Epoch(1), 1);
    let (manifest, segment) = (job.dir().join("manifest-000001"), job.dir().join("segment-000001-000"));
    let (own_manifest, own_segment) = (fs::read(&manifest).unwrap(), fs::read(&segment).unwrap());

    // With its own length, which is looked at first.
    let foreign = fs::read(other.dir().join("segment-000001-000")).unwrap();
    fs::write(&segment, with_len(&foreign, own_segment.len())).unwrap();
    assert!(matches!(job.open_image(Epoch(1)), Err(StoreError::Foreign { path }) if path == segment));
    fs::write(&segment, &own_segment).unwrap();

    // A segment with the content of its neighbour.
    let neighbour = job.dir().join("segment-000001-001");
    let own_neighbour = fs::read(&neighbour).unwrap();
    for (at, content) in [(&segment, &own_neighbour), (&neighbour, &own_segment)] {
        let original = fs::read(at).unwrap();
        fs::write(at, with_len(content, original.len())).unwrap();
        let error = read_image(&job, Epoch(1)).unwrap_err();
        assert_names_file_and_offset(&error, at);
        assert!(error.contains("this is segment") && error.contains("not segment"), "{error}");
        fs::write(at, &original).unwrap();
    }

    fs::copy(&manifest, job.dir().join("manifest-000002")).unwrap();
    let error = read_image(&job, Epoch(2)).unwrap_err();
    assert!(error.contains("manifest-000002: at byte 32: this is the manifest of image 1"), "{error}");

    for foreign in [&b"#!/bin/sh\nexit 0\n"[..], b"", b"\x7fELF", &own_segment] {
        fs::write(&manifest, foreign).unwrap();
        assert_names_file_and_offset(&read_image(&job, Epoch(1)).unwrap_err(), &manifest);
    }
    let mut newer = own_manifest.clone();
    newer[8] = 9;
    fs::write(&manifest, &newer).unwrap();
    assert!(matches!(
        job.open_image(Epoch(1)),
        Err(StoreError::Version { found: 9, supported: format::VERSION, .. })
    ));

    fs::remove_file(&manifest).unwrap();
    std::os::unix::fs::symlink(other.dir().join("manifest-000001"), &manifest).unwrap();
    assert!(job.open_image(Epoch(1)).is_err(), "links are not followed");
    fs::remove_file(&manifest).unwrap();
    assert!(matches!(job.open_image(Epoch(1)), Err(StoreError::NoImage { .. })));
    fs::create_dir(&manifest).unwrap();
    assert!(job.open_image(Epoch(1)).is_err());
    fs::remove_dir(&manifest).unwrap();
    fs::write(&manifest, &own_manifest).unwrap();
    assert!(read_image(&job, Epoch(1)).unwrap() == model);
}

/// The checksum of a hostile file is right: only the checks of the numbers stand between it and the restart.
#[test]
fn numbers_that_lie_are_found_behind_a_right_checksum() {
    use xxhash_rust::xxh3::xxh3_64;
    let dir = TempDir::new();
    let (job, model) = make_image(&dir.store(), "job", Epoch(1), 0);
    let manifest = job.dir().join("manifest-000001");
    let original = fs::read(&manifest).unwrap();
    let tables = original.windows(4).position(|tag| tag == b"SEGM").unwrap();
    let mut harmless = 0;
    for at in (tables..original.len() - 8).step_by(4) {
        for value in [0_u64, 1, 4095, 4096, 1 << 20, 1 << 31, 1 << 47, u64::MAX - 4095, u64::MAX] {
            let mut bytes = original.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let sum = xxh3_64(&bytes[64..]);
            bytes[24..32].copy_from_slice(&sum.to_le_bytes());
            let sum = xxh3_64(&bytes[..56]);
            bytes[56..64].copy_from_slice(&sum.to_le_bytes());
            fs::write(&manifest, &bytes).unwrap();
            // What a right checksum makes true cannot be told from a lie; what matters is that nothing panics,
            // allocates beyond the files or reads outside of them.
            match job.open_image(Epoch(1)) {
                Ok(image) if image.extents().iter().map(|e| e.run.pages.0).sum::<u64>() < 10_000 => {
                    harmless += usize::from(read_all(&image).is_ok_and(|read| read == model));
                    let _ = image.verify(&|_| ());
                }
                Ok(_) => {}
                Err(error) => assert!(error.to_string().contains(job.dir().to_str().unwrap()), "{error}"),
            }
        }
    }
    assert!(harmless > 0, "a value that was there before is no lie");
}
