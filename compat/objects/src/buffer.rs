//! The layout of a buffer: a file in memory that holds one version of one rank.
//!
//! ```text
//! 0   magic "HFOBJECT"
//! 8   state, u32: see State          12  length of the table, u32
//! 16  checksum of the table, xxh3    24  where the data begins, u64 (a multiple of the page size)
//! 32  closed, u32: not 0 when a server has taken it from its client
//! 36  claimed, u32: not 0 when its client has begun to fill a buffer that it was given ahead
//! 40  age, u64: CLOCK_MONOTONIC when the version was put, ns
//! 64  the table, JSON: Table
//! ..  data: each object at a multiple of the page size, in the order of the table
//! ```
//! Numbers are little-endian. The server makes the file and reads it by pread(2): a client that cuts it short causes an
//! error there, no SIGBUS. The client maps it, writes table and data, and last the state. Invariants: a buffer whose
//! state is [`State::Put`] is a version, also after client and server have died; all else in it is as if it were
//! not there. A server that finds a buffer of one that has died sets `closed` and then looks at the state; the client
//! sets the state and then looks at `closed`. So at least one of both sees what the other has done: a client need not
//! know whether the server to which it sends its message still lives. By the same rule a server takes back what it has
//! given ahead: it sets `closed` and looks at `claimed`, the client sets `claimed` and looks at `closed`. Of two
//! buffers of one version the older one was put before.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Page size, bytes.
pub const PAGE: u64 = 4096;
/// Bytes before the table.
pub const HEAD: u64 = 64;
/// Longest table, bytes.
pub const MAX_TABLE: u64 = 16 << 20;
/// Where the state is.
pub const STATE_AT: u64 = 8;
/// Where it says whether it was taken from its client: what is before that in the head is the client's.
pub const CLOSED_AT: u64 = 32;
/// What it says there: a server has found it that is not the one that gave it; its server has taken it back.
pub const FOUND: u32 = 1;
/// See [`FOUND`].
pub const REVOKED: u32 = 2;
/// Where it says whether its client has begun to fill it.
pub const CLAIMED_AT: u64 = 36;
/// Where the age is.
pub const AGE_AT: u64 = 40;
/// Most objects of a version: each is an address space of an image.
pub const MAX_OBJECTS: usize = 1 << 16;
/// Longest object, bytes: what an address space of an image holds.
pub const MAX_OBJECT: u64 = 1 << 46;

const MAGIC: &[u8; 8] = b"HFOBJECT";

/// What a buffer has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Nothing that counts.
    Empty = 0,
    /// A version that was put.
    Put = 1,
    /// A version that the store has as well.
    Stored = 2,
}

impl State {
    fn of(number: u32) -> Option<State> {
        [State::Empty, State::Put, State::Stored].into_iter().find(|state| *state as u32 == number)
    }
}

/// One object of a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Object {
    /// Its name: unique in its version.
    pub key: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Bytes of one element, for codecs; 1 where that is not known.
    pub element: u64,
}

/// What a version consists of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Table {
    /// Its set.
    pub set: String,
    /// Its rank.
    pub rank: u32,
    /// Ranks of the set.
    pub ranks: u32,
    /// Its number.
    pub version: u64,
    /// The run of the set that it is of.
    pub run: u64,
    /// Its objects.
    pub objects: Vec<Object>,
}

/// Where things are in a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The table as it is written.
    pub table: Vec<u8>,
    /// Where the data begins.
    pub data: u64,
    /// Where each object begins.
    pub places: Vec<u64>,
    /// Bytes of the buffer.
    pub len: u64,
}

impl Layout {
    /// The layout of a version.
    ///
    /// # Errors
    /// What the table has is not possible.
    pub fn of(table: &Table) -> Result<Layout, String> {
        check(table)?;
        let bytes = serde_json::to_vec(table).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > MAX_TABLE {
            return Err(format!(
                "the names of all objects have {} bytes; {MAX_TABLE} are possible",
                bytes.len()
            ));
        }
        let data = rounded(HEAD + bytes.len() as u64);
        let (places, len) = places(data, &table.objects);
        Ok(Layout { table: bytes, data, places, len })
    }

    /// The layout of a version whose data begins at `data`, a multiple of the page size: for one that is copied before
    /// all of its objects are known. The table is filled up with spaces, which JSON has for nothing at its end.
    ///
    /// # Errors
    /// What the table has is not possible, or it does not fit.
    pub fn at(table: &Table, data: u64) -> Result<Layout, String> {
        let Layout { table: mut bytes, .. } = Layout::of(table)?;
        let room = data.saturating_sub(HEAD);
        if bytes.len() as u64 > room || room > MAX_TABLE || data != rounded(data) {
            return Err(format!("the table has {} bytes, and {room} are there for it", bytes.len()));
        }
        bytes.resize(usize::try_from(room).unwrap_or(0), b' ');
        let (places, len) = places(data, &table.objects);
        Ok(Layout { table: bytes, data, places, len })
    }

    /// The first [`HEAD`] bytes, with this state; not closed, without an age.
    pub fn head(&self, state: State) -> [u8; HEAD as usize] {
        let mut head = [0; HEAD as usize];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&(state as u32).to_le_bytes());
        head[12..16].copy_from_slice(&u32::try_from(self.table.len()).unwrap_or(u32::MAX).to_le_bytes());
        head[16..24].copy_from_slice(&xxh3_64(&self.table).to_le_bytes());
        head[24..32].copy_from_slice(&self.data.to_le_bytes());
        head
    }
}

/// What the head of a buffer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What it has.
    pub state: State,
    /// Length of the table.
    pub table: u64,
    /// Where the data begins.
    pub data: u64,
    /// When it was put: of two buffers the one with the greater number is the newer one.
    pub age: u64,
    checksum: u64,
}

impl Head {
    /// Takes the first bytes of a buffer apart.
    ///
    /// # Errors
    /// They are not those of a buffer.
    pub fn decode(bytes: &[u8; HEAD as usize]) -> Result<Head, String> {
        let number = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        let long = |at: usize| number(at) | number(at + 4) << 32;
        if bytes[..8] != *MAGIC {
            return Err("it has not the mark of a buffer of objects".into());
        }
        let state = u32::try_from(number(8)).ok().and_then(State::of);
        let state = state.ok_or("its state is none that a buffer can have")?;
        let (checksum, age) = (long(16), long(AGE_AT as usize));
        let head = Head { state, table: number(12), data: long(24), age, checksum };
        if head.table > MAX_TABLE || head.data != rounded(HEAD + head.table) {
            return Err("its table is longer than a table can be".into());
        }
        Ok(head)
    }

    /// The table, from its bytes, and where its objects are.
    ///
    /// # Errors
    /// They are damaged, or say what is not possible.
    pub fn table(&self, bytes: &[u8]) -> Result<(Table, Layout), String> {
        if bytes.len() as u64 != self.table || xxh3_64(bytes) != self.checksum {
            return Err("its table is damaged".into());
        }
        let table: Table = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        check(&table)?;
        let (places, len) = places(self.data, &table.objects);
        Ok((table, Layout { table: bytes.to_owned(), data: self.data, places, len }))
    }
}

/// The next multiple of the page size.
pub fn rounded(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

fn places(data: u64, objects: &[Object]) -> (Vec<u64>, u64) {
    let mut at = data;
    let places = objects.iter().map(|object| {
        let place = at;
        at += rounded(object.bytes);
        place
    });
    (places.collect(), at)
}

fn check(table: &Table) -> Result<(), String> {
    check_name(&table.set)?;
    if table.objects.len() > MAX_OBJECTS {
        return Err(format!("{} objects in one version; {MAX_OBJECTS} are possible", table.objects.len()));
    }
    let mut keys = std::collections::BTreeSet::new();
    for Object { key, bytes, element } in &table.objects {
        if key.is_empty() || key.len() > 255 {
            return Err(format!(
                "the object \"{key}\" has a name of {} bytes; 1 to 255 are possible",
                key.len()
            ));
        }
        if !keys.insert(key) {
            return Err(format!("the object \"{key}\" is in the version twice"));
        }
        if *bytes > MAX_OBJECT || *element == 0 {
            return Err(format!(
                "the object \"{key}\" has {bytes} bytes, {element} an element: not possible"
            ));
        }
    }
    Ok(())
}

/// Whether a set can be called so: it becomes the name of a folder.
///
/// # Errors
/// Why not.
pub fn check_name(set: &str) -> Result<(), String> {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    if (1..=100).contains(&set.len()) && !set.starts_with('.') && set.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "\"{set}\" cannot be the name of a set of objects: 1 to 100 letters, digits, '_', '-' and '.', not '.' first"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn table(objects: Vec<Object>) -> Table {
        Table { set: "heat".into(), rank: 1, ranks: 4, version: 7, run: 3, objects }
    }

    fn object(key: &str, bytes: u64) -> Object {
        Object { key: key.into(), bytes, element: 8 }
    }

    #[test]
    fn what_was_written_is_read_and_no_changed_bit_is() {
        let table = table(vec![object("a", 1), object("b", 4096), object("c", 0), object("d", 5000)]);
        let layout = Layout::of(&table).unwrap();
        assert_eq!(
            layout.places.iter().map(|at| at - layout.data).collect::<Vec<_>>(),
            [0, 4096, 8192, 8192]
        );
        assert_eq!(layout.len - layout.data, 16384);
        for state in [State::Empty, State::Put, State::Stored] {
            let head = Head::decode(&layout.head(state)).unwrap();
            assert_eq!(head.state, state);
            assert_eq!(head.table(&layout.table).unwrap(), (table.clone(), layout.clone()));
        }
        let bytes = [layout.head(State::Put).as_slice(), &layout.table].concat();
        for bit in
            (0..bytes.len() * 8).filter(|bit| !(8 * 8..12 * 8).contains(bit) && !(256..512).contains(bit))
        {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (head, rest) = bytes.split_first_chunk().unwrap();
            assert!(Head::decode(head).and_then(|head| head.table(rest)).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_table_that_is_filled_up_is_the_same_table() {
        let table = table(vec![object("a", 1), object("b", 5000)]);
        let layout = Layout::at(&table, 3 * PAGE).unwrap();
        assert_eq!((layout.data, layout.len), (3 * PAGE, 6 * PAGE));
        let head = Head::decode(&layout.head(State::Put)).unwrap();
        assert_eq!(head.table(&layout.table).unwrap(), (table.clone(), layout));
        assert!(Layout::at(&table, 0).is_err() && Layout::at(&table, PAGE + 1).is_err());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for objects in
            [vec![object("", 1)], vec![object("a", 1), object("a", 2)], vec![object("a", u64::MAX)]]
        {
            assert!(Layout::of(&table(objects)).is_err());
        }
        for set in ["", ".a", "a/b", "a b", &"x".repeat(101)] {
            assert!(check_name(set).is_err(), "{set}");
        }
    }
}
