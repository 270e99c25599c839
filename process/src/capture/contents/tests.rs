//! Tests of the module above.
#![allow(clippy::unwrap_used)]

use super::super::open_file::Place;
use super::super::watchers::Watchers;
use super::*;
use holdfast_image::record::{Description, Descriptor, Object};
use holdfast_image::testing::regular;
use holdfast_sys::attributes;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file of ours, open for writing, and the table of a process that has it.
struct Bed {
    file: File,
    table: FileTable,
}

impl Bed {
    fn new(name: &str, flags: i32) -> Bed {
        let path = std::env::temp_dir().join(format!("contents-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        let object = regular(&path, &file.metadata().unwrap(), 0);
        let flags = flags.cast_unsigned();
        let description =
            Description { flags, object, locks: Vec::new(), owner: None, streams: 0, within: None };
        let descriptor = Descriptor { fd: file.as_raw_fd(), cloexec: false, description: 0 };
        let (descriptors, descriptions) = (vec![descriptor], vec![description]);
        Bed { file, table: FileTable { descriptors, descriptions, ..FileTable::default() } }
    }

    fn open(&self) -> OpenFile {
        let (pid, fd) = (attributes::own_pid(), self.file.as_raw_fd());
        let place = Place { pid, tid: pid, fd, flags: libc::O_RDWR, name: Path::new("") };
        OpenFile::of(place, &Watchers::default()).unwrap()
    }

    fn key(&self) -> Key {
        let metadata = self.file.metadata().unwrap();
        (metadata.dev(), metadata.ino())
    }

    fn take(&self, contents: &Contents) -> Result<Taken, Unsaved> {
        let pid = attributes::own_pid();
        let process = Process { pid, tid: pid, mapped: &[] };
        contents.take(std::slice::from_ref(&self.table), &[process])
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let Object::Regular { path, .. } = &self.table.descriptions[0].object else { return };
        let _ = std::fs::remove_file(path.as_path());
    }
}

fn counts(taken: &Taken) -> (u64, u64) {
    (taken.dirty.pages().0, taken.unchanged.pages().0)
}

/// As if the times of all files had been the same for long when they were read.
fn settle(contents: &Contents) {
    contents.state().known.values_mut().for_each(|known| known.settled = true);
}

#[test]
fn what_is_known_to_be_stored_is_not_read_again() {
    let (bed, contents) = (Bed::new("known", libc::O_RDWR), Contents::new(Saving::InPlace(1 << 20)));
    // Small ones are read with their holes.
    let end = 300 * PAGE_SIZE;
    bed.file.write_all_at(b"end", end).unwrap();
    let taken = bed.take(&contents).unwrap();
    assert_eq!((counts(&taken), taken.files[0].size), ((1, 0), end + 3), "holes are not read");
    let first = taken.files[0].start;
    settle(&contents);
    assert_eq!(counts(&bed.take(&contents).unwrap()), (1, 0), "that image was not committed");
    contents.committed();
    assert_eq!(counts(&bed.take(&contents).unwrap()), (1, 0), "its times were too young");
    settle(&contents);
    contents.committed();
    assert_eq!(counts(&bed.take(&contents).unwrap()), (0, 1));
    contents.committed();
    bed.file.write_all_at(b"x", 0).unwrap();
    let taken = bed.take(&contents).unwrap();
    assert_eq!((counts(&taken), taken.files[0].start), ((2, 0), first), "it keeps its place");
    contents.committed();
    contents.doubt();
    assert_eq!(counts(&bed.take(&contents).unwrap()), (2, 0));
}

#[test]
fn too_much_is_refused_or_told_unless_it_is_only_appended_to() {
    let append = libc::O_WRONLY | libc::O_APPEND;
    for (flags, saving, refused, told) in [
        (libc::O_RDWR, Saving::All(4999), 1, 0),
        (append, Saving::All(4999), 0, 0),
        (libc::O_RDWR, Saving::InPlace(4999), 0, 1),
        (append, Saving::InPlace(4999), 0, 0),
    ] {
        let bed = Bed::new("large", flags);
        bed.file.write_all_at(&[1; 5000], 0).unwrap();
        match bed.take(&Contents::new(saving)) {
            Err(Unsaved::Refused(refusals)) => {
                assert!(refusals.len() == refused && refusals[0].1.reason.contains("4999"), "{refusals:?}");
            }
            other => {
                let taken = other.unwrap();
                let unsaved: Vec<u64> = taken.unsaved.iter().map(|file| file.bytes).collect();
                assert!(refused == 0 && taken.files.is_empty() && unsaved == vec![5000; told], "{unsaved:?}");
            }
        }
        assert_eq!(counts(&bed.take(&Contents::new(Saving::All(5000))).unwrap()), (2, 0));
    }
}

#[test]
fn what_is_only_read_is_saved_for_the_case_that_it_is_gone_if_it_is_small() {
    for saving in [Saving::InPlace(1 << 20), Saving::All(1 << 20)] {
        let contents = Contents::new(saving);
        let taken = Bed::new("read", libc::O_RDONLY).take(&contents).unwrap();
        assert!(taken.files.len() == 1 && taken.files[0].only_if_gone);
        let large = Bed::new("long", libc::O_RDONLY);
        large.file.write_all_at(&[1; (256 << 10) + 1], 0).unwrap();
        assert!(large.take(&contents).unwrap().files.is_empty());
        assert!(Bed::new("path", libc::O_RDWR | libc::O_PATH).take(&contents).unwrap().files.is_empty());
    }
}

#[test]
fn what_was_read_before_the_stop_is_taken_if_it_has_not_changed() {
    let (bed, contents) = (Bed::new("ahead", libc::O_RDWR), Contents::new(Saving::InPlace(1 << 20)));
    bed.file.write_all_at(b"before", PAGE_SIZE).unwrap();
    let pid = attributes::own_pid();
    let ahead = |settled: bool| {
        let (mut state, size) = (contents.state(), bed.file.metadata().unwrap().len());
        let key = bed.key();
        let known = state.place(key, &HashMap::new(), size).unwrap();
        let file = bed.open();
        let known = known.seen(stamp(&file.metadata), &file);
        let mut saved = SavedPages::default();
        let data = [(PAGE_SIZE, size)];
        let known = known.read(&mut saved, &file, size, &data).unwrap();
        let mut ahead = Ahead { saved, files: HashMap::new(), pids: vec![pid] };
        state.keep(&mut ahead, key, Known { settled, ..known });
        state.ahead = Some(ahead);
    };
    let pieces = |taken: &Taken| taken.saved.pieces();
    ahead(true);
    let taken = bed.take(&contents).unwrap();
    assert_eq!((counts(&taken), pieces(&taken)), ((1, 0), 1));
    // It was written meanwhile: another page, and what was read is not kept beside it.
    ahead(true);
    std::thread::sleep(Duration::from_millis(20));
    bed.file.write_all_at(b"after", 0).unwrap();
    let taken = bed.take(&contents).unwrap();
    assert_eq!((counts(&taken), pieces(&taken)), ((2, 0), 1), "both pages are one piece");
    // One that was not read, and comes first, gets another place.
    let other = Bed::new("other", libc::O_RDWR);
    other.file.write_all_at(b"other", 0).unwrap();
    contents.doubt();
    ahead(true);
    let mut table = other.table.clone();
    table.descriptions.extend(bed.table.descriptions.clone());
    table.descriptors.push(Descriptor { description: 1, ..bed.table.descriptors[0] });
    let taken = contents.take(&[table], &[Process { pid, tid: pid, mapped: &[] }]).unwrap();
    assert_ne!(taken.files[0].start, taken.files[1].start);
    assert_eq!(counts(&taken), (2, 0));
    // A process that was not there then may have it mapped.
    ahead(true);
    contents.state().ahead.as_mut().unwrap().pids = vec![pid + 1];
    assert_eq!(pieces(&bed.take(&contents).unwrap()), 1);
    contents.read_ahead(&[pid]);
    assert!(!contents.state().ahead.as_ref().unwrap().files.contains_key(&bed.key()), "its times are young");
    assert_eq!(counts(&bed.take(&contents).unwrap()), (2, 0));
}

#[test]
fn places_are_taken_once_and_given_away_again() {
    let mut state = State::default();
    let key = |number: u64| (number, number);
    let mut now = HashMap::new();
    let mut place = |state: &State, number: u64, size| {
        let known = state.place(key(number), &now, size)?;
        now.insert(key(number), known.clone());
        io::Result::Ok((known.start.0, known.room))
    };
    assert_eq!(place(&state, 1, 7).unwrap(), (0, LEAST_ROOM));
    assert_eq!(place(&state, 2, 3 * LEAST_ROOM).unwrap(), (LEAST_ROOM, 6 * LEAST_ROOM));
    assert_eq!(place(&state, 3, 0).unwrap(), (7 * LEAST_ROOM, LEAST_ROOM));
    assert!(place(&state, 4, SPACE_LEN / 2).is_err());
    state.known = now;
    assert_eq!(state.place(key(1), &HashMap::new(), LEAST_ROOM).unwrap().start.0, 0);
    assert_eq!(state.place(key(1), &HashMap::new(), LEAST_ROOM + 1).unwrap().start.0, 8 * LEAST_ROOM);
    state.known.remove(&key(2));
    assert_eq!(state.place(key(5), &HashMap::new(), 9).unwrap().start.0, LEAST_ROOM);
}
