//! What there is at a version, and where in the log: all records before, one after the other.
//!
//! Called by writer and reader, which [apply](Objects::apply) records in their order. Pure but for
//! [`Object::compose`] and [`Object::read`], which copy from the mapping. Invariant: an object's first link has all of
//! it.

use crate::layout::{self, Entry, FileHead, Kind, PAGE, Part, RecordHead};
use holdfast_sys::mapped_buffer::MappedBuffer;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::io;
use xxhash_rust::xxh3::xxh3_64;

/// Some of an object, in one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Position of the record.
    pub record: u64,
    /// Position of its data.
    pub data: u64,
    /// Their checksum, xxh3.
    pub sum: u64,
    /// Which of it.
    pub part: Part,
}

/// An object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its bytes.
    pub size: u64,
    /// Where it is: all of it first, then what has changed.
    pub links: Vec<Link>,
}

impl Object {
    /// The oldest record that it needs.
    pub fn oldest(&self) -> u64 {
        self.links.first().map_or(0, |link| link.record)
    }

    /// The newest record that has some of it.
    pub fn newest(&self) -> u64 {
        self.links.last().map_or(0, |link| link.record)
    }

    /// Where it is in one piece, if it is: a position.
    pub fn whole_at(&self) -> Option<u64> {
        match self.links.as_slice() {
            [only] if only.part == Part::Whole => Some(only.data),
            _ => None,
        }
    }

    /// Bytes of data in one of its links.
    pub fn data_len(&self, link: &Link) -> u64 {
        link.part.bytes(self.size)
    }

    /// Bytes of data in all of them.
    pub fn stored(&self) -> u64 {
        self.links.iter().map(|link| self.data_len(link)).sum()
    }

    /// What is to be copied, link by link from `skipped` on: where in the object, from which position, how much.
    fn pieces(&self, skipped: usize) -> impl Iterator<Item = (u64, u64, u64)> {
        self.links.iter().skip(skipped).flat_map(|link| {
            let mut data = link.data;
            let ranges = link.part.ranges(self.size);
            ranges.into_iter().map(move |(from, to)| {
                let at = data;
                data += to - from;
                (from, at, to - from)
            })
        })
    }

    /// Its bytes, into `into`, in which the first `skipped` links are already.
    ///
    /// # Errors
    /// EINVAL: the log does not hold what was found there.
    pub fn compose(
        &self,
        map: &MappedBuffer,
        file: &FileHead,
        skipped: usize,
        into: &mut [u8],
    ) -> io::Result<()> {
        for (from, position, len) in self.pieces(skipped) {
            let piece = slice(into, from, len)?;
            map.read(file.place(position), piece)?;
        }
        Ok(())
    }

    /// Its bytes, checked. `None`: those of one link have another checksum.
    ///
    /// # Errors
    /// EINVAL: the log does not hold what was found there.
    pub fn read(&self, map: &MappedBuffer, file: &FileHead) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; usize::try_from(self.size).unwrap_or(0)];
        let mut data = Vec::new();
        for link in &self.links {
            data.resize(usize::try_from(self.data_len(link)).unwrap_or(0), 0);
            map.read(file.place(link.data), &mut data)?;
            if xxh3_64(&data) != link.sum {
                return Ok(None);
            }
            spread(&data, &link.part.ranges(self.size), &mut bytes)?;
        }
        Ok(Some(bytes))
    }

    /// The position of the newest content of each of its pages.
    pub fn pages(&self) -> Vec<u64> {
        let mut pages = vec![0; usize::try_from(self.size.div_ceil(PAGE)).unwrap_or(0)];
        for (from, position, len) in self.pieces(0) {
            let first = usize::try_from(from / PAGE).unwrap_or(0);
            let count = usize::try_from(len.div_ceil(PAGE)).unwrap_or(0);
            for (page, place) in
                pages.iter_mut().skip(first).take(count).zip((position..).step_by(PAGE as usize))
            {
                *page = place;
            }
        }
        pages
    }
}

/// Copies the data of a link to where they belong in an object.
///
/// # Errors
/// EINVAL: there are too few, or they do not belong there.
fn spread(data: &[u8], ranges: &[(u64, u64)], into: &mut [u8]) -> io::Result<()> {
    let mut rest = data;
    for (from, to) in ranges {
        let place = slice(into, *from, to - from)?;
        let (piece, later) = rest.split_at_checked(place.len()).ok_or(nix::errno::Errno::EINVAL)?;
        place.copy_from_slice(piece);
        rest = later;
    }
    Ok(())
}

fn slice(bytes: &mut [u8], from: u64, len: u64) -> io::Result<&mut [u8]> {
    let range = usize::try_from(from).ok().zip(usize::try_from(from + len).ok());
    range
        .and_then(|(from, to)| bytes.get_mut(from..to))
        .ok_or_else(|| io::Error::from(nix::errno::Errno::EINVAL))
}

/// Bytes of a record that has all of one object, at most.
pub fn alone(key: &str, size: u64) -> u64 {
    let table = (layout::RECORD_HEAD + layout::ENTRY + key.len()) as u64;
    layout::lines(table).saturating_add(layout::lines(size))
}

/// All objects at a version.
#[derive(Clone, Default, Debug)]
pub struct Objects {
    /// Those that there are.
    live: BTreeMap<String, Object>,
    /// How many need which record as their oldest one.
    ages: BTreeMap<u64, usize>,
    /// Bytes of a record for each of them.
    alone: u64,
    /// Those that are no more, but were since the first record.
    gone: BTreeSet<String>,
    /// Those of which pages have come, but not all before.
    broken: BTreeSet<String>,
    /// Number of the version.
    version: u64,
    /// Versions before this one had what is not there any more.
    whole_from: u64,
}

impl Objects {
    /// Number of the newest version; 0: none.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The oldest version of which all is there; `None`: not even the newest.
    pub fn whole_from(&self) -> Option<u64> {
        self.broken.is_empty().then_some(self.whole_from)
    }

    /// An object.
    pub fn get(&self, key: &str) -> Option<&Object> {
        self.live.get(key)
    }

    /// All of them.
    pub fn all(&self) -> &BTreeMap<String, Object> {
        &self.live
    }

    /// The oldest record that any of them needs.
    pub fn oldest(&self) -> Option<u64> {
        self.ages.first_key_value().map(|(oldest, _)| *oldest)
    }

    /// Those that need a record before a position, the oldest first.
    pub fn older_than(&self, position: u64) -> Vec<String> {
        let mut older: Vec<(u64, &String)> =
            self.live.iter().map(|(key, object)| (object.oldest(), key)).collect();
        older.retain(|(oldest, _)| *oldest < position);
        older.sort_unstable();
        older.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// Bytes that the log needs for a record of each of them, alone.
    pub fn alone(&self) -> u64 {
        self.alone
    }

    fn insert(&mut self, key: String, object: Object) {
        *self.ages.entry(object.oldest()).or_default() += 1;
        self.alone += alone(&key, object.size);
        match self.live.entry(key) {
            btree_map::Entry::Vacant(place) => drop(place.insert(object)),
            btree_map::Entry::Occupied(mut place) => {
                let old = place.insert(object);
                self.alone -= alone(place.key(), old.size);
                self.forget_age(old.oldest());
            }
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some(old) = self.live.remove(key) {
            self.alone -= alone(key, old.size);
            self.forget_age(old.oldest());
        }
    }

    fn forget_age(&mut self, oldest: u64) {
        if let btree_map::Entry::Occupied(mut count) = self.ages.entry(oldest) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The next record.
    pub fn apply(&mut self, head: &RecordHead, entries: Vec<Entry>) {
        if head.kind == Kind::Pad {
            return;
        }
        self.version = head.version;
        for entry in entries {
            self.apply_entry(head, entry);
        }
    }

    fn apply_entry(&mut self, head: &RecordHead, entry: Entry) {
        let Entry { key, size, data, base, sum, part } = entry;
        if base != 0 && !self.live.contains_key(&key) && !self.gone.contains(&key) {
            // It was there before the first record.
            self.whole_from = head.version;
        }
        let link = |part| Link { record: head.position, data: head.position + data, sum, part };
        match part {
            Part::Gone => {
                self.remove(&key);
                self.broken.remove(&key);
                self.gone.insert(key);
            }
            Part::Whole => {
                self.gone.remove(&key);
                if self.broken.remove(&key) {
                    self.whole_from = head.version;
                }
                self.insert(key, Object { size, links: vec![link(Part::Whole)] });
            }
            part @ Part::Pages(_) => match self.live.get_mut(&key) {
                Some(object) if object.size == size && object.newest() + 1 == base => {
                    object.links.push(link(part));
                }
                _ => {
                    self.remove(&key);
                    self.broken.insert(key);
                }
            },
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::layout::Run;

    fn record(position: u64, version: u64, kind: Kind) -> RecordHead {
        RecordHead { position, len: 64, version, table_len: 0, kind, time_ns: 0, entries: 0 }
    }

    fn entry(key: &str, base: u64, part: Part) -> Entry {
        Entry { key: key.into(), size: 3 * PAGE, data: 64, base, sum: 0, part }
    }

    #[test]
    fn pages_follow_a_whole_and_what_came_before_the_first_record_makes_versions_partial() {
        let mut objects = Objects::default();
        objects.apply(&record(0, 4, Kind::Put), vec![entry("new", 0, Part::Whole)]);
        assert_eq!(objects.whole_from(), Some(0));
        objects.apply(&record(64, 5, Kind::Carry), vec![entry("old", 7, Part::Whole)]);
        assert_eq!(objects.whole_from(), Some(5), "at 4 it was there, and is not found");
        let pages = Part::Pages(vec![Run { first: 1, pages: 1 }]);
        objects.apply(&record(128, 6, Kind::Put), vec![entry("new", 1, pages.clone())]);
        let new = objects.get("new").unwrap();
        assert_eq!((new.oldest(), new.newest(), new.whole_at()), (0, 128, None));
        assert_eq!(new.pages(), [64, 128 + 64, 64 + 2 * PAGE]);
        assert_eq!(objects.oldest(), Some(0));
        objects.apply(&record(192, 7, Kind::Put), vec![entry("cut", 9, pages)]);
        assert_eq!(objects.whole_from(), None, "pages of what is not there");
        objects.apply(&record(256, 8, Kind::Put), vec![entry("cut", 193, Part::Whole)]);
        assert_eq!(objects.whole_from(), Some(8));
        objects.apply(&record(320, 9, Kind::Put), vec![entry("cut", 257, Part::Gone)]);
        assert!(objects.get("cut").is_none() && objects.version() == 9);
        objects.apply(&record(384, 10, Kind::Put), vec![entry("cut", 0, Part::Whole)]);
        assert_eq!(objects.whole_from(), Some(8));
    }
}
