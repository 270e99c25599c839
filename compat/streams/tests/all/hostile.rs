//! Logs in which any bytes were changed, or that were cut, before or while they are open: no panic, no SIGBUS, and what
//! is read is what was put.

use crate::folder::{CAPACITY, Folder, options};
use holdfast_streams::Error;
use holdfast_streams::layout::{Kind, PAGE, RING_AT};
use holdfast_streams::place::Place;
use holdfast_streams::reader::Reader;
use holdfast_streams::writer::{Changed, Options, Source, Writer};
use proptest::prelude::*;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The byte of a page in a version: all in the first, and every third page since.
fn byte(page: usize, version: u64) -> u8 {
    let last =
        (1..=version).rev().find(|version| *version == 1 || (*version + page as u64).is_multiple_of(3));
    (last.unwrap_or(0) * 31 + page as u64) as u8
}

fn contents(version: u64) -> Vec<u8> {
    (0..4).flat_map(|page| vec![byte(page, version); PAGE as usize]).chain([version as u8; 77]).collect()
}

fn put(writer: &mut Writer, version: u64) -> Result<u64, Error> {
    put_as(writer, version, &Changed::Unknown)
}

fn put_as(writer: &mut Writer, version: u64, changed: &Changed) -> Result<u64, Error> {
    let (field, step) = (contents(version), version.to_le_bytes());
    let source = |key, bytes| Source { key, bytes, changed: changed.clone() };
    writer.put(Kind::All, &[source("field", &field[..]), source("step", &step[..])])
}

/// Reads all that there is. Errors are right; other bytes are not.
fn read_all(place: &Place) {
    let Ok(mut reader) = Reader::open(place, "test") else { return };
    let _ = reader.holders();
    let _ = reader.versions();
    while let Ok(Some(version)) = reader.step() {
        for (key, bytes) in reader.objects() {
            let read = reader.read(&key);
            if let Ok(read) = read {
                let expected = match key.as_str() {
                    "field" => contents(version.number),
                    _ => version.number.to_le_bytes().to_vec(),
                };
                assert!(read == expected && bytes == read.len() as u64, "{key} of {version:?}");
            }
            let _ = reader.address(&key);
        }
    }
    let _ = reader.seek(0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn what_is_read_of_a_damaged_log_is_what_was_put(
        versions in 1..40_u64,
        changes in proptest::collection::vec((0..8192 + CAPACITY, any::<u64>(), 1..9_usize), 1..6),
        in_heads in any::<bool>(),
        cut in proptest::option::of(0..8192 + CAPACITY),
    ) {
        let folder = Folder::new();
        let place = folder.place();
        let mut writer = Writer::open(&place, options()).unwrap();
        (1..=versions).for_each(|version| assert_eq!(put(&mut writer, version).unwrap(), version));
        drop(writer);
        let file = File::options().write(true).open(place.path()).unwrap();
        for (at, bytes, count) in changes {
            // The head of the file with its cursors, or anywhere.
            let at = if in_heads { 40 + at % 8192 } else { at };
            file.write_all_at(&bytes.to_le_bytes()[..count.min(8)], at).unwrap();
        }
        file.set_len(8192 + CAPACITY).unwrap();
        read_all(&place);
        if let Ok(mut writer) = Writer::open(&place, options()) {
            let next = writer.version() + 1;
            // As a program does that was started again: what it has is new.
            if put_as(&mut writer, next, &Changed::All).is_ok() {
                let mut reader = Reader::open(&place, "newest").unwrap();
                reader.seek(0).unwrap();
                assert!(reader.read("field").unwrap() == contents(next));
            }
        }
        if let Some(cut) = cut {
            file.set_len(cut).unwrap();
            for error in [Writer::open(&place, options()).err(), Reader::open(&place, "").err()] {
                assert!(matches!(error, Some(Error::NotALog { .. })), "{error:?}");
            }
        }
    }
}

#[test]
fn a_log_that_is_cut_under_its_writer_and_reader_is_an_error_of_both() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    put(&mut writer, 1).unwrap();
    let mut reader = Reader::open(&place, "test").unwrap();
    reader.seek(1).unwrap();
    let file = File::options().write(true).open(place.path()).unwrap();
    file.set_len(100).unwrap();
    let is_named = |error: Error| error.to_string().contains("it has 100 bytes, and should have");
    assert!(is_named(put(&mut writer, 2).unwrap_err()));
    assert!(is_named(reader.step().unwrap_err()) && is_named(reader.read("field").unwrap_err()));
    assert!(is_named(reader.address("step").unwrap_err()) && is_named(reader.versions().unwrap_err()));
    drop((writer, reader));
}

#[test]
fn a_log_that_is_cut_in_a_put_is_an_error_of_this_put_and_of_all_later_ones() {
    let folder = Folder::new();
    let place = folder.place();
    let options = Options { wait: Duration::from_secs(600), ..options() };
    let mut writer = Writer::open(&place, options).unwrap();
    put(&mut writer, 1).unwrap();
    let mut reader = Reader::open(&place, "slow").unwrap();
    reader.seek(1).unwrap();
    let begun = Arc::new(AtomicU64::new(1));
    let told = Arc::clone(&begun);
    let putting = std::thread::spawn(move || {
        for version in 2.. {
            told.store(version, Ordering::SeqCst);
            if let Err(error) = put(&mut writer, version) {
                return (error, put(&mut writer, version).unwrap_err());
            }
        }
        unreachable!();
    });
    // It waits for the reader, in a put.
    let (mut since, mut at) = (Instant::now(), 1);
    while at == 1 || since.elapsed() < Duration::from_millis(100) {
        std::thread::sleep(Duration::from_millis(1));
        let now = begun.load(Ordering::SeqCst);
        if now != at {
            (since, at) = (Instant::now(), now);
        }
    }
    File::options().write(true).open(place.path()).unwrap().set_len(100).unwrap();
    let (error, later) = putting.join().unwrap();
    for error in [error, later] {
        assert!(matches!(&error, Error::NotALog { why, .. } if why.contains("it was cut")), "{error}");
    }
    assert!(std::fs::metadata(place.path()).unwrap().len() == 100, "it is not made longer again");
}

#[test]
fn a_log_that_was_cut_and_is_as_long_again_is_found_by_the_next_put() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    (1..=3).for_each(|version| assert_eq!(put(&mut writer, version).unwrap(), version));
    let file = File::options().write(true).open(place.path()).unwrap();
    file.set_len(100).unwrap();
    file.set_len(RING_AT + CAPACITY).unwrap();
    for _ in 0..2 {
        let error = put(&mut writer, 4).unwrap_err();
        assert!(matches!(error, Error::NotALog { .. }), "{error}");
    }
}

#[test]
fn a_log_that_others_may_write_to_is_refused() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    put(&mut writer, 1).unwrap();
    drop(writer);
    for (mode, is_taken) in [(0o620, false), (0o602, false), (0o644, true), (0o600, true)] {
        std::fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
        let opened = [Writer::open(&place, options()).err(), Reader::open(&place, "").err()];
        for error in opened {
            let is_refused = matches!(&error, Some(Error::Argument(why)) if why.contains("chmod 600"));
            assert!(is_refused != is_taken && is_taken == error.is_none(), "{mode:o}: {error:?}");
        }
    }
}

#[test]
fn what_a_record_lost_is_damage_and_a_word_that_does_not_fit_is_the_end() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    for version in 1..=3 {
        put(&mut writer, version).unwrap();
    }
    let mut reader = Reader::open(&place, "test").unwrap();
    let lens: Vec<u64> = reader.versions().unwrap().iter().map(|version| version.bytes).collect();
    let file = File::options().read(true).write(true).open(place.path()).unwrap();
    // The data of the second record are torn: as a host that went down may have left them, its word before its data.
    let second = 8192 + lens[0];
    file.write_all_at(&vec![0; lens[1] as usize - 512], second + 512).unwrap();
    reader.seek(2).unwrap();
    assert!(matches!(reader.read("field"), Err(Error::Damaged { version: 2 })));
    reader.seek(1).unwrap();
    assert!(reader.read("field").unwrap() == contents(1));
    drop(writer);
    // The word of another position is none.
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 8192).unwrap();
    file.write_all_at(&word, second).unwrap();
    let mut writer = Writer::open(&place, options()).unwrap();
    assert_eq!(writer.version(), 1, "the newest that is whole");
    assert_eq!(put(&mut writer, 2).unwrap(), 2);
    reader.seek(0).unwrap();
    assert!(reader.version() == 2 && reader.read("field").unwrap() == contents(2));
}

#[test]
fn a_log_whose_first_record_is_damaged_is_no_new_one() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    (1..=2).for_each(|version| assert_eq!(put(&mut writer, version).unwrap(), version));
    drop(writer);
    // The version that its head says.
    let file = File::options().write(true).open(place.path()).unwrap();
    file.write_all_at(&[7], RING_AT + 24).unwrap();
    let ring = || std::fs::read(place.path()).unwrap().split_off(RING_AT as usize);
    let before = ring();
    for error in [Writer::open(&place, options()).err(), Reader::open(&place, "").err()] {
        assert!(matches!(error, Some(Error::NotALog { .. })), "{error:?}");
    }
    assert!(ring() == before);
}

#[test]
fn what_is_damaged_is_not_carried_as_if_it_were_right() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    let (old, field) = (vec![3; PAGE as usize], contents(1));
    let source = |key, bytes| [Source { key, bytes, changed: Changed::All }];
    writer.put(Kind::Put, &source("old", &old[..])).unwrap();
    // Somewhere in its data, which are behind the head and the table.
    let file = File::options().write(true).open(place.path()).unwrap();
    file.write_all_at(&[9], RING_AT + PAGE / 2).unwrap();
    let error = loop {
        match writer.put(Kind::Put, &source("field", &field[..])) {
            Ok(version) => assert!(version < 100, "it was carried"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NotALog { .. }), "{error}");
    let mut reader = Reader::open(&place, "test").unwrap();
    reader.seek(0).unwrap();
    assert!(matches!(reader.read("old"), Err(Error::Damaged { .. })));
}
