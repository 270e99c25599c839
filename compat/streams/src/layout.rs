//! The bytes of a log.
//!
//! ```text
//! 0     magic "HFSTREAM"      8  format, u32 = 1      16  capacity of the ring, u64, a multiple of the page size
//! 24    id of this log, u64   32  checksum of the bytes before, xxh3
//! 64    head: position of the oldest record, u64
//! 4096  64 cursors of 64 bytes: a position and 1, u64 (0: free); process, u64; name, 48 bytes
//! 8192  the ring
//! ```
//! A *position* only grows; it is in the ring at its remainder by the capacity. Records follow each other, each in one
//! piece; where one does not fit before the end of the ring, a record of kind `Pad` fills that.
//!
//! ```text
//! 0   commit word: xxh3 of all of the head that follows and of the table, by id and position
//! 8   position      16  length      24  version      32  bytes of the table, u32      36  kind, u32
//! 40  entries of the table, u32 48  time, ns since 1970
//! 64  the table      ..  the data of each entry, at a multiple of 64
//! ```
//! An entry: length of the key u16, kind u8 (0 all of the object, 1 some pages, 2 it is no more), 0 u8, runs u32; size
//! of the object u64; where its data are in the record u64; position, and 1, of the record before that has it u64 (0:
//! it is new); checksum of its data, xxh3 u64; the key; the runs: first page u32, pages u32. Numbers are little-endian.
//!
//! Pure. Invariant: a record that was there a round before has another position, so its word does not fit.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Page size, bytes.
pub const PAGE: u64 = 4096;
/// Records, and data in them, begin at multiples of this, bytes.
pub const LINE: u64 = 64;
/// Where the position of the oldest record is.
pub const HEAD_AT: u64 = 64;
/// How many readers there may be.
pub const CURSORS: u64 = 64;
/// Where the cursors are.
const CURSORS_AT: u64 = PAGE;
const CURSOR_LEN: u64 = 64;
/// Where the ring begins.
pub const RING_AT: u64 = 2 * PAGE;
/// Smallest and largest ring, bytes.
pub const CAPACITIES: (u64, u64) = (16 * PAGE, 1 << 44);
/// Longest key, bytes.
pub const MAX_KEY: usize = 255;
/// Most objects of a record.
pub const MAX_ENTRIES: u32 = 1 << 16;
/// Longest name of a reader, bytes.
pub const MAX_NAME: usize = 48;

const MAGIC: &[u8; 8] = b"HFSTREAM";
const FORMAT: u32 = 1;
/// Bytes of a file's header that are checked.
pub const FILE_HEAD: usize = 40;

/// Where a cursor is in the file; its process and its name follow.
pub fn cursor_at(slot: u64) -> u64 {
    CURSORS_AT + slot * CURSOR_LEN
}

/// The next multiple of [`LINE`]; the largest one for numbers that have none.
pub fn lines(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LINE).unwrap_or(u64::MAX - u64::MAX % LINE)
}

/// What the head of a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHead {
    /// Bytes of the ring.
    pub capacity: u64,
    /// Of this log alone.
    pub id: u64,
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

impl FileHead {
    /// As it is written.
    pub fn bytes(&self) -> [u8; FILE_HEAD] {
        let mut bytes = [0; FILE_HEAD];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.id.to_le_bytes());
        let sum = xxh3_64(&bytes[..32]);
        bytes[32..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads it back.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(bytes: &[u8]) -> Result<FileHead, String> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err("it does not begin as one".to_owned());
        }
        let format = word(bytes, 8).unwrap_or(0);
        if format != FORMAT {
            return Err(format!("format {format}; {FORMAT} is known"));
        }
        let sum = bytes.get(..32).map(xxh3_64);
        match (long(bytes, 16), long(bytes, 24), sum == long(bytes, 32)) {
            (Some(capacity), Some(id), true)
                if (CAPACITIES.0..=CAPACITIES.1).contains(&capacity) && capacity.is_multiple_of(PAGE) =>
            {
                Ok(FileHead { capacity, id })
            }
            _ => Err("its head is damaged".to_owned()),
        }
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        RING_AT + self.capacity
    }

    /// Where a position is in the file.
    pub fn place(&self, position: u64) -> u64 {
        RING_AT + position % self.capacity
    }

    /// Bytes from a position to the end of the ring.
    pub fn to_end(&self, position: u64) -> u64 {
        self.capacity - position % self.capacity
    }
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// A version: some objects; all others are as in the version before.
    Put = 1,
    /// A version: all objects that there are.
    All = 2,
    /// No version: objects as they are in the newest one, once more, so that older records may go.
    Carry = 3,
    /// Nothing, to the end of the ring.
    Pad = 4,
}

/// The head of a record, without its commit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// Where it is.
    pub position: u64,
    /// All of its bytes.
    pub len: u64,
    /// Number of its version.
    pub version: u64,
    /// Bytes of its table.
    pub table_len: u32,
    /// What it is.
    pub kind: Kind,
    /// When, ns since 1970.
    pub time_ns: u64,
    /// Entries of its table.
    pub entries: u32,
}

/// Bytes of the head of a record.
pub const RECORD_HEAD: usize = 64;

impl RecordHead {
    /// As it is written, with 0 for the commit word.
    pub fn bytes(&self) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        let numbers = [(8, self.position), (16, self.len), (24, self.version), (48, self.time_ns)];
        for (at, number) in numbers {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        for (at, number) in [(32, self.table_len), (36, self.kind as u32), (40, self.entries)] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Reads it back. `None`: what no writer has written there.
    pub fn parse(bytes: &[u8], at: u64, file: &FileHead) -> Option<RecordHead> {
        let kinds = [Kind::Put, Kind::All, Kind::Carry, Kind::Pad];
        let kind = word(bytes, 36)?;
        let head = RecordHead {
            position: long(bytes, 8)?,
            len: long(bytes, 16)?,
            version: long(bytes, 24)?,
            table_len: word(bytes, 32)?,
            kind: kinds.into_iter().find(|known| *known as u32 == kind)?,
            time_ns: long(bytes, 48)?,
            entries: word(bytes, 40)?,
        };
        let is_possible = head.position == at
            && head.len.is_multiple_of(LINE)
            && head.len >= RECORD_HEAD as u64
            && head.len <= file.to_end(at)
            && at.checked_add(head.len).is_some()
            && RECORD_HEAD as u64 + u64::from(head.table_len) <= head.len
            && head.entries <= MAX_ENTRIES;
        is_possible.then_some(head)
    }

    /// The word that commits it, never 0.
    pub fn commit(&self, file: &FileHead, table: &[u8]) -> u64 {
        let seed = file.id ^ self.position.rotate_left(17);
        (xxh3_64_with_seed(&self.bytes()[8..], seed) ^ xxh3_64_with_seed(table, seed)).max(1)
    }
}

/// Pages that follow each other in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first one.
    pub first: u32,
    /// How many, at least one.
    pub pages: u32,
}

impl Run {
    /// Its bytes in an object of `size` bytes, from where to where.
    pub fn bytes(&self, size: u64) -> (u64, u64) {
        let start = u64::from(self.first) * PAGE;
        (start.min(size), (start + u64::from(self.pages) * PAGE).min(size))
    }
}

/// What a record has of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it.
    Whole,
    /// These pages; the others are in the records before.
    Pages(Vec<Run>),
    /// It is no more.
    Gone,
}

impl Part {
    /// The bytes of an object of `size` bytes that are here, from where to where, in order.
    pub fn ranges(&self, size: u64) -> Vec<(u64, u64)> {
        match self {
            Part::Whole => vec![(0, size)],
            Part::Pages(runs) => runs.iter().map(|run| run.bytes(size)).collect(),
            Part::Gone => Vec::new(),
        }
    }

    /// How many these are.
    pub fn bytes(&self, size: u64) -> u64 {
        self.ranges(size).into_iter().map(|(from, to)| to - from).sum()
    }
}

/// Pages, given in order, as runs.
pub fn runs(pages: impl IntoIterator<Item = u32>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(last) if last.first + last.pages == page => last.pages += 1,
            _ => runs.push(Run { first: page, pages: 1 }),
        }
    }
    runs
}

/// An object in a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// Its bytes.
    pub size: u64,
    /// Where its data are, from the beginning of the record.
    pub data: u64,
    /// Position, and 1, of the record before that has it; 0: it is new.
    pub base: u64,
    /// Checksum of its data, xxh3.
    pub sum: u64,
    /// What is here.
    pub part: Part,
}

/// Bytes of an entry, without its key and its runs.
pub const ENTRY: usize = 40;

impl Entry {
    /// Bytes of its data in the record.
    pub fn data_len(&self) -> u64 {
        self.part.bytes(self.size)
    }

    /// Bytes of the entry itself.
    pub fn table_len(&self) -> u64 {
        let runs = if let Part::Pages(runs) = &self.part { runs.len() } else { 0 };
        (ENTRY + self.key.len() + 8 * runs) as u64
    }

    /// Appends it to a table.
    pub fn write(&self, table: &mut Vec<u8>) {
        let (kind, runs): (u8, &[Run]) = match &self.part {
            Part::Whole => (0, &[]),
            Part::Pages(runs) => (1, runs),
            Part::Gone => (2, &[]),
        };
        let key_len = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        table.extend(key_len.to_le_bytes());
        table.extend([kind, 0]);
        table.extend(u32::try_from(runs.len()).unwrap_or(u32::MAX).to_le_bytes());
        table.extend([self.size, self.data, self.base, self.sum].into_iter().flat_map(u64::to_le_bytes));
        table.extend(self.key.as_bytes());
        table.extend(runs.iter().flat_map(|run| [run.first, run.pages]).flat_map(u32::to_le_bytes));
    }
}

/// Reads a table back. `None`: what no writer has written.
pub fn parse_table(head: &RecordHead, table: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = table;
    for _ in 0..head.entries {
        let (fixed, behind) = rest.split_at_checked(ENTRY)?;
        let key_len = usize::from(u16::from_le_bytes([fixed[0], fixed[1]]));
        let (key, behind) = behind.split_at_checked(key_len)?;
        let runs_len = usize::try_from(word(fixed, 4)?).ok()?.checked_mul(8)?;
        let (runs, behind) = behind.split_at_checked(runs_len)?;
        let runs = runs.chunks_exact(8).map(|run| Some(Run { first: word(run, 0)?, pages: word(run, 4)? }));
        let part = match (fixed[2], runs_len) {
            (0, 0) => Part::Whole,
            (1, _) => Part::Pages(runs.collect::<Option<_>>()?),
            (2, 0) => Part::Gone,
            _ => return None,
        };
        let key = std::str::from_utf8(key).ok()?.to_owned();
        let numbers = [8, 16, 24, 32].map(|at| long(fixed, at));
        let [Some(size), Some(data), Some(base), Some(sum)] = numbers else { return None };
        let entry = Entry { key, size, data, base, sum, part };
        if !is_possible(head, &entry) {
            return None;
        }
        entries.push(entry);
        rest = behind;
    }
    rest.is_empty().then_some(entries)
}

fn is_possible(head: &RecordHead, entry: &Entry) -> bool {
    let ascends = |runs: &[Run]| {
        let pages = entry.size.div_ceil(PAGE);
        let mut end = 0;
        runs.iter().all(|run| {
            let first = u64::from(run.first);
            let fits = run.pages > 0 && first >= end && first + u64::from(run.pages) <= pages;
            end = first + u64::from(run.pages);
            fits
        })
    };
    let runs = match &entry.part {
        Part::Whole => entry.size <= head.len,
        Part::Pages(runs) => ascends(runs) && entry.base > 0,
        Part::Gone => true,
    };
    let runs = runs && entry.base <= head.position;
    let end = runs.then(|| entry.data.checked_add(entry.data_len())).flatten();
    !entry.key.is_empty() && entry.key.len() <= MAX_KEY && end.is_some_and(|end| end <= head.len)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: FileHead = FileHead { capacity: 1 << 20, id: 77 };

    fn entries() -> Vec<Entry> {
        let runs = vec![Run { first: 1, pages: 2 }, Run { first: 4, pages: 1 }];
        let pages = Entry {
            key: "u".into(),
            size: 4 * PAGE + 5,
            data: 320,
            base: 64,
            sum: 5,
            part: Part::Pages(runs),
        };
        let whole = Entry { key: "größe".into(), size: 100, data: 192, base: 0, sum: 6, part: Part::Whole };
        vec![whole, pages, Entry { key: "x".into(), size: 0, data: 0, base: 0, sum: 0, part: Part::Gone }]
    }

    fn record(entries: &[Entry]) -> (RecordHead, Vec<u8>) {
        let mut table = Vec::new();
        entries.iter().for_each(|entry| entry.write(&mut table));
        let head = RecordHead {
            position: 4096,
            len: 16384,
            version: 3,
            table_len: table.len() as u32,
            kind: Kind::Put,
            time_ns: 10,
            entries: entries.len() as u32,
        };
        (head, table)
    }

    #[test]
    fn what_is_written_is_read_and_the_word_is_of_its_position() {
        assert_eq!(FileHead::parse(&FILE.bytes()).unwrap(), FILE);
        let (head, table) = record(&entries());
        assert_eq!(entries()[1].data_len(), 2 * PAGE + 5);
        assert_eq!(entries().iter().map(Entry::table_len).sum::<u64>(), table.len() as u64);
        assert_eq!(RecordHead::parse(&head.bytes(), 4096, &FILE).unwrap(), head);
        assert_eq!(parse_table(&head, &table).unwrap(), entries());
        assert!(RecordHead::parse(&head.bytes(), 4160, &FILE).is_none(), "it is of another place");
        let later = RecordHead { position: head.position + FILE.capacity, ..head };
        let other = FileHead { id: 78, ..FILE };
        assert_ne!(head.commit(&FILE, &table), later.commit(&FILE, &table));
        assert_ne!(head.commit(&FILE, &table), head.commit(&other, &table));
        assert_ne!(head.commit(&FILE, &table), head.commit(&FILE, &table[1..]));
    }

    #[test]
    fn tables_that_reach_out_of_their_record_are_none() {
        for change in [
            |entry: &mut Entry| entry.size = u64::MAX,
            |entry: &mut Entry| entry.data = 16380,
            |entry: &mut Entry| entry.data = u64::MAX - 1,
            |entry: &mut Entry| entry.key.clear(),
        ] {
            let mut changed = entries();
            change(&mut changed[0]);
            let (head, table) = record(&changed);
            assert!(parse_table(&head, &table).is_none(), "{changed:?}");
        }
        let mut changed = entries();
        changed[1].part = Part::Pages(vec![Run { first: 4, pages: 2 }]);
        let (head, table) = record(&changed);
        assert!(parse_table(&head, &table).is_none(), "a page behind the end");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0u64..9) {
            let _ = FileHead::parse(&bytes);
            let _ = RecordHead::parse(&bytes, at * 64, &FILE);
            let (head, mut table) = record(&entries());
            let _ = parse_table(&head, &bytes);
            for (at, byte) in bytes.iter().enumerate() {
                if *byte < 8 && at < table.len() {
                    table[at] ^= *byte;
                }
            }
            if let Some(entries) = parse_table(&head, &table) {
                prop_assert!(entries.iter().all(|entry| entry.data + entry.data_len() <= head.len));
            }
        }
    }
}
