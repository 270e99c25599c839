//! When the log is full: what stays, for whom, and what does not.

use crate::folder::{CAPACITY, Folder, options, whole};
use holdfast_streams::Error;
use holdfast_streams::layout::{CURSORS, HEAD_AT, Kind, LINE, PAGE, RECORD_HEAD, cursor_at};
use holdfast_streams::reader::Reader;
use holdfast_streams::writer::{Changed, Options, Source, Writer};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

#[test]
fn a_slow_reader_keeps_its_versions_and_the_writer_says_who_it_is() {
    let folder = Folder::new();
    let mut writer = Writer::open(&folder.place(), options()).unwrap();
    let memory = vec![1; 4 * PAGE as usize];
    let source = || whole("a", &memory);
    assert_eq!(writer.put(Kind::All, &source()).unwrap(), 1);
    let mut reader = Reader::open(&folder.place(), "analysis").unwrap();
    assert_eq!(reader.step().unwrap().unwrap().number, 1);
    let full = loop {
        match writer.put(Kind::All, &source()) {
            Ok(version) => assert!(version < 100),
            Err(error) => break error,
        }
    };
    let Error::Held { reader: name, version: 1 } = &full else { panic!("{full}") };
    assert!(name.contains("analysis") && name.contains(&std::process::id().to_string()), "{name}");
    let newest = writer.version();
    assert!(newest >= 10, "{newest} versions fit");
    let mut other = Reader::open(&folder.place(), "list").unwrap();
    let holders = other.holders().unwrap();
    assert!(holders.len() == 1 && holders[0].version == 1 && holders[0].name == "analysis", "{holders:?}");
    drop(other);
    for expected in 2..=newest {
        assert_eq!(reader.step().unwrap().unwrap().number, expected);
    }
    assert_eq!(writer.put(Kind::All, &source()).unwrap(), newest + 1);
}

/// Puts versions, each followed by a reader that is at the newest one at once; says which pages are put.
fn keep_up(versions: u64, put: impl Fn(&mut Writer, u64) -> Vec<(&'static str, Vec<u8>)>) {
    let folder = Folder::new();
    let mut writer = Writer::open(&folder.place(), options()).unwrap();
    let mut objects = BTreeMap::new();
    let mut reader: Option<Reader> = None;
    for version in 1..=versions {
        objects.extend(put(&mut writer, version));
        assert_eq!(writer.version(), version);
        let reader = reader.get_or_insert_with(|| Reader::open(&folder.place(), "analysis").unwrap());
        while reader.step().unwrap().is_some() {}
        assert_eq!(reader.version(), version);
        for (key, bytes) in &objects {
            assert!(reader.read(key).unwrap() == *bytes, "{key} at {version}");
        }
    }
}

#[test]
fn a_reader_that_keeps_up_does_not_stop_the_writer() {
    let field = |version: u64| vec![version as u8; 2 * PAGE as usize];
    let put = |writer: &mut Writer, key: &'static str, bytes: Vec<u8>| {
        writer.put(Kind::Put, &whole(key, &bytes)).unwrap();
        vec![(key, bytes)]
    };
    // Put once, and read with each version.
    keep_up(200, |writer, version| match version {
        1 => put(writer, "mesh", vec![1; 3 * PAGE as usize]),
        _ => put(writer, "field", field(version)),
    });
    // Small and large records in turns.
    keep_up(400, |writer, version| match version {
        1 => put(writer, "mesh", vec![1; 3 * PAGE as usize]),
        _ if version.is_multiple_of(2) => put(writer, "step", vec![version as u8; 8]),
        _ => put(writer, "field", field(version)),
    });
    // Pages of one that is never put as a whole again.
    keep_up(400, |writer, version| {
        let mut bytes = vec![1; 6 * PAGE as usize];
        bytes[..8].fill(version as u8);
        let changed = if version == 1 { Changed::All } else { Changed::Unknown };
        writer.put(Kind::All, &[Source { key: "field", bytes: &bytes, changed }]).unwrap();
        vec![("field", bytes)]
    });
}

#[test]
fn a_reader_keeps_its_versions_when_the_writer_was_killed_as_it_moved_the_head() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    let memory = |version: u64| vec![version as u8; 3 * PAGE as usize];
    for version in 1..=12 {
        writer.put(Kind::All, &whole("a", &memory(version))).unwrap();
    }
    // Ten versions behind.
    let mut reader = Reader::open(&place, "analysis").unwrap();
    reader.seek(2).unwrap();
    let lens: Vec<u64> = reader.versions().unwrap().iter().map(|version| version.bytes).collect();
    reader.seek(2).unwrap();
    drop(writer);
    // It has let five versions go, and was killed before it saw that one of them is needed.
    let file = File::options().write(true).open(place.path()).unwrap();
    let head: u64 = lens[..5].iter().sum();
    file.write_all_at(&head.to_le_bytes(), HEAD_AT).unwrap();
    let mut writer = Writer::open(&place, options()).unwrap();
    let full = loop {
        match writer.put(Kind::All, &whole("a", &memory(writer.version() + 1))) {
            Ok(version) => assert!(version < 100, "nothing holds version 2"),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::Held { version: 2, .. }), "{full}");
    for version in 2..=writer.version() {
        assert!(reader.version() == version && reader.read("a").unwrap() == memory(version), "{version}");
        reader.step().unwrap();
    }
    writer.put(Kind::All, &whole("a", &memory(0))).unwrap();
}

#[test]
fn a_cursor_before_the_head_that_was_overtaken_moves_nothing() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    let memory = vec![3; 3 * PAGE as usize];
    for _ in 0..40 {
        writer.put(Kind::All, &whole("a", &memory)).unwrap();
    }
    drop(writer);
    // A reader that has read the head long ago, and has not looked again.
    let reader = Reader::open(&place, "late").unwrap();
    let file = File::options().read(true).write(true).open(place.path()).unwrap();
    file.write_all_at(&1_u64.to_le_bytes(), cursor_at(0)).unwrap();
    let mut before = [0; 8];
    file.read_exact_at(&mut before, HEAD_AT).unwrap();
    let writer = Writer::open(&place, options()).unwrap();
    let mut after = [0; 8];
    file.read_exact_at(&mut after, HEAD_AT).unwrap();
    assert!(writer.version() == 40 && before == after && before != [0; 8]);
    drop(reader);
}

#[test]
fn one_that_has_died_holds_nothing() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, options()).unwrap();
    let memory = vec![3; 4 * PAGE as usize];
    writer.put(Kind::All, &whole("a", &memory)).unwrap();
    // Cursors at the first version, of readers that have no lock any more.
    let file = File::options().write(true).open(place.path()).unwrap();
    for slot in 0..CURSORS {
        file.write_all_at(&1_u64.to_le_bytes(), cursor_at(slot)).unwrap();
    }
    for version in 2..100 {
        assert_eq!(writer.put(Kind::All, &whole("a", &memory)).unwrap(), version);
    }
    drop(writer);
    assert_eq!(Writer::open(&place, options()).unwrap().version(), 99);
    assert!(Reader::open(&place, "new").unwrap().holders().unwrap().is_empty());
}

/// Bytes of a record of one object, as docs/streams.md says.
fn record(key: &str, bytes: usize) -> u64 {
    let head = (RECORD_HEAD + 40 + key.len()) as u64;
    head.next_multiple_of(LINE) + (bytes as u64).next_multiple_of(LINE)
}

#[test]
fn a_log_that_keeps_all_is_full_when_the_next_record_does_not_fit() {
    for pages in 1..8 {
        let folder = Folder::new();
        let place = folder.place();
        let mut writer = Writer::open(&place, Options { keep: true, ..options() }).unwrap();
        let (mesh, field) = (vec![1; 9 * PAGE as usize + 3], vec![2; pages * PAGE as usize]);
        writer.put(Kind::Put, &whole("mesh", &mesh)).unwrap();
        let room = (CAPACITY - record("mesh", mesh.len())) / record("field", field.len());
        let full = loop {
            if let Err(error) = writer.put(Kind::Put, &whole("field", &field)) {
                break error;
            }
        };
        assert!(matches!(full, Error::Full { capacity: CAPACITY, .. }), "{full}");
        assert_eq!(writer.version(), 1 + room, "{pages} pages");
    }
}

#[test]
fn a_record_as_large_as_the_log_fits_into_one_that_keeps_all() {
    let folder = Folder::new();
    let mut writer = Writer::open(&folder.place(), Options { keep: true, ..options() }).unwrap();
    let large = vec![5; CAPACITY as usize - 128];
    let more = vec![5; CAPACITY as usize - 127];
    let refused = writer.put(Kind::Put, &whole("a", &more));
    assert!(matches!(refused, Err(Error::TooSmall { .. })), "{refused:?}");
    writer.put(Kind::Put, &whole("a", &large)).unwrap();
    assert!(matches!(writer.put(Kind::Put, &whole("a", &[1])), Err(Error::Full { .. })));
    let mut reader = Reader::open(&folder.place(), "").unwrap();
    reader.seek(1).unwrap();
    assert!(reader.read("a").unwrap() == large);
}

#[test]
fn any_time_may_be_waited() {
    let folder = Folder::new();
    let wait = Duration::from_secs(u64::MAX);
    let mut writer = Writer::open(&folder.place(), Options { wait, ..options() }).unwrap();
    let memory = vec![3; 4 * PAGE as usize];
    for version in 1..20 {
        assert_eq!(writer.put(Kind::All, &whole("a", &memory)).unwrap(), version);
    }
}
