//! Any sequence of puts, snapshots, removals, deaths of the writer and readers that stand still or follow: a reader
//! sees each version that it holds as it was put.

use crate::folder::{Folder, options};
use holdfast_streams::Error;
use holdfast_streams::layout::{Kind, PAGE};
use holdfast_streams::place::Place;
use holdfast_streams::reader::Reader;
use holdfast_streams::writer::{Changed, Options, Source, Writer};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 3] = ["a", "b", "temperature"];

#[derive(Clone, Debug)]
enum Step {
    /// Which object, how long, which pages are written, put by comparison.
    Put(usize, usize, u8, bool),
    PutAll(u8),
    Remove(usize),
    Die,
    Follow,
    Newest,
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize, 0..4_usize, any::<u8>(), any::<bool>()).prop_map(|(k, n, p, c)| Step::Put(k, n, p, c)),
        3 => any::<u8>().prop_map(Step::PutAll),
        1 => (0..3_usize).prop_map(Step::Remove),
        1 => Just(Step::Die),
        3 => Just(Step::Follow),
        1 => Just(Step::Newest),
        1 => Just(Step::Close),
    ]
}

type Contents = BTreeMap<String, Vec<u8>>;

fn check_reader(reader: &mut Reader, versions: &BTreeMap<u64, Contents>) {
    let expected = &versions[&reader.version()];
    let keys: Vec<&String> = expected.keys().collect();
    let objects = reader.objects();
    assert_eq!(objects.keys().collect::<Vec<_>>(), keys, "version {}", reader.version());
    for (key, bytes) in expected {
        assert!(reader.read(key).unwrap() == *bytes, "{key} of version {}", reader.version());
        assert_eq!(reader.address(key).unwrap().1, bytes.len() as u64);
    }
}

/// Each object changes in some pages; what the program keeps of the log is nothing but its own memory.
fn run(steps: Vec<Step>) {
    let folder = Folder::new();
    let mut writer = Writer::open(&folder.place(), options()).unwrap();
    let mut reader: Option<Reader> = None;
    let mut memory = Contents::new();
    let mut versions: BTreeMap<u64, Contents> = BTreeMap::new();
    // From the next version on, also if a put of it fails before.
    let mut removed = BTreeSet::new();
    let mut counter = 0_u8;
    for step in steps {
        let mut puts: Option<(Kind, Vec<String>, bool)> = None;
        match step {
            Step::Put(key, pages, pattern, compared) => {
                let key = KEYS[key];
                let len = pages * PAGE as usize + usize::from(pattern) % 100;
                let bytes = memory.entry(key.to_owned()).or_default();
                if counter.is_multiple_of(5) {
                    bytes.resize(len, 7);
                }
                counter = counter.wrapping_add(1);
                for (page, bytes) in bytes.chunks_mut(PAGE as usize).enumerate() {
                    if pattern >> (page % 8) & 1 == 1 {
                        bytes.fill(counter);
                    }
                }
                puts = Some((Kind::Put, vec![key.to_owned()], compared));
            }
            Step::PutAll(pattern) => {
                let is_in = |index: usize| pattern >> index & 1 == 1;
                let keys = KEYS.iter().enumerate().filter(|(index, _)| is_in(*index)).map(|(_, key)| *key);
                let keys: Vec<String> =
                    keys.filter(|key| memory.contains_key(*key)).map(str::to_owned).collect();
                puts = Some((Kind::All, keys, true));
            }
            Step::Remove(key) => {
                writer.remove(KEYS[key]);
                memory.remove(KEYS[key]);
                removed.insert(KEYS[key]);
                puts = Some((Kind::Put, Vec::new(), true));
            }
            Step::Die => {
                drop(writer);
                removed.clear();
                writer = Writer::open(&folder.place(), options()).unwrap();
                assert_eq!(writer.version(), versions.keys().last().copied().unwrap_or(0));
            }
            Step::Close => reader = None,
            Step::Follow | Step::Newest => {
                let reader = match &mut reader {
                    Some(reader) => reader,
                    None => reader.insert(Reader::open(&folder.place(), "test").unwrap()),
                };
                let before = reader.version();
                match step {
                    Step::Follow if reader.step().unwrap().is_some() => {
                        assert!(before == 0 || reader.version() == before + 1, "none is left out");
                        check_reader(reader, &versions);
                    }
                    Step::Newest if !versions.is_empty() => {
                        assert_eq!(reader.seek(0).unwrap(), *versions.keys().last().unwrap());
                        check_reader(reader, &versions);
                    }
                    _ => {}
                }
            }
        }
        if let Some((kind, keys, compared)) = puts {
            let changed = if compared { Changed::Unknown } else { Changed::All };
            let sources: Vec<Source<'_>> = keys
                .iter()
                .map(|key| Source { key, bytes: &memory[key], changed: changed.clone() })
                .collect();
            let before = writer.version();
            match writer.put(kind, &sources) {
                Ok(version) => {
                    assert_eq!(version, before + 1);
                    let mut contents = match kind {
                        Kind::All => Contents::new(),
                        _ => versions.get(&before).cloned().unwrap_or_default(),
                    };
                    contents.retain(|key, _| !removed.contains(key.as_str()));
                    removed.clear();
                    contents.extend(keys.iter().map(|key| (key.clone(), memory[key].clone())));
                    versions.insert(version, contents);
                }
                Err(Error::Held { .. }) => assert!(reader.is_some(), "by whom?"),
                Err(error) => panic!("{error}"),
            }
        }
        // The newest is always there, and whatever the reader holds.
        if let Some(reader) = reader.as_mut().filter(|reader| reader.version() > 0) {
            check_reader(reader, &versions);
        }
        if let Some((newest, _)) = versions.last_key_value() {
            let mut other = Reader::open(&folder.place(), "newest").unwrap();
            assert_eq!(other.seek(0).unwrap(), *newest);
            check_reader(&mut other, &versions);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn readers_see_what_was_put(steps in proptest::collection::vec(step(), 1..120)) {
        run(steps);
    }
}

#[test]
fn logs_that_are_none_are_left_alone() {
    let folder = Folder::new();
    let place = folder.place();
    assert!(matches!(Reader::open(&place, ""), Err(Error::NoStream { .. })));
    drop(Writer::open(&place, options()).unwrap());
    assert!(matches!(Reader::open(&place, "").unwrap().seek(3), Err(Error::NoVersion { .. })));
    for bytes in [&b"not a log"[..], &[0; 9000][..]] {
        std::fs::write(place.path(), bytes).unwrap();
        for error in [Writer::open(&place, options()).err(), Reader::open(&place, "").err()] {
            assert!(matches!(error, Some(Error::NotALog { .. })), "{error:?}");
        }
        assert_eq!(std::fs::read(place.path()).unwrap(), bytes);
    }
    let small = Options { capacity: 100, ..options() };
    let other = Place::parse("sim/1", folder.path()).unwrap();
    assert!(matches!(Writer::open(&other, small), Err(Error::Argument(_))));
    let mut writer = Writer::open(&other, options()).unwrap();
    let large = vec![0; 60 * PAGE as usize];
    let put = writer.put(Kind::Put, &[Source { key: "a", bytes: &large, changed: Changed::All }]);
    assert!(matches!(put, Err(Error::TooSmall { .. })), "{put:?}");
}

#[test]
fn a_full_log_that_keeps_all_is_an_error_and_damage_is_found() {
    let folder = Folder::new();
    let place = folder.place();
    let mut writer = Writer::open(&place, Options { keep: true, ..options() }).unwrap();
    let memory = vec![1; 4 * PAGE as usize];
    let full = loop {
        let done = writer.put(Kind::Put, &[Source { key: "a", bytes: &memory, changed: Changed::All }]);
        if let Err(error) = done {
            break error;
        }
    };
    assert!(matches!(full, Error::Full { .. }), "{full}");
    let mut reader = Reader::open(&place, "").unwrap();
    assert_eq!(reader.versions().unwrap().len() as u64, writer.version());
    reader.seek(1).unwrap();
    assert!(reader.read("a").is_ok());
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(place.path()).unwrap();
    file.write_all_at(&[9], 8192 + 300).unwrap();
    assert!(matches!(reader.read("a"), Err(Error::Damaged { version: 1 })));
    drop(writer);
    // A word of the second record that does not fit is the end of the log.
    let second = 8192 + reader.step().unwrap().unwrap().bytes;
    file.write_all_at(&[0; 8], second).unwrap();
    let mut again = Reader::open(&place, "").unwrap();
    assert_eq!(again.versions().unwrap().len(), 1);
}
