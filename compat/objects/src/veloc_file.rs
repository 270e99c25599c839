//! The files that VELOC itself writes, `NAME-RANK-VERSION.dat`, read and written: for users who come or go.
//!
//! ```text
//! count, u64      then for each region: id, i32; bytes, u64      then all of their bytes
//! ```
//! In the order and alignment of the machine, here little-endian and packed; ids ascend, for VELOC finds the bytes of a
//! region by that. There is neither a mark nor a checksum: a file is taken for one if its length is exactly what its
//! head says. Pure: no file is opened here. Used by `holdfast import --veloc` and `export --veloc`.

/// Bytes of the count, and of the row of a region.
pub const COUNT: usize = 8;
const ROW: usize = 12;

/// A region of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its id.
    pub id: i32,
    /// Where it begins in the file.
    pub at: u64,
    /// Its length, bytes.
    pub bytes: u64,
}

/// Length of the head of a file of `len` bytes, by its count.
///
/// # Errors
/// The file is shorter than that.
pub fn head_len(count: [u8; COUNT], len: u64) -> Result<usize, String> {
    let count = u64::from_le_bytes(count);
    let head = count.checked_mul(ROW as u64).and_then(|rows| rows.checked_add(COUNT as u64));
    let head = head.filter(|head| *head <= len).and_then(|head| usize::try_from(head).ok());
    head.ok_or_else(|| format!("it says that it has {count} regions, more than {len} bytes can have"))
}

/// The regions of a file of `len` bytes, by its head.
///
/// # Errors
/// It is no such file, or is damaged.
pub fn regions(head: &[u8], len: u64) -> Result<Vec<Region>, String> {
    let mut found: Vec<Region> = Vec::with_capacity(head.len() / ROW);
    let mut at = head.len() as u64;
    for row in head.get(COUNT..).unwrap_or_default().chunks_exact(ROW) {
        let word = |from: usize| row[from..from + 4].try_into().map_or(0, u32::from_le_bytes);
        let (id, bytes) = (word(0).cast_signed(), u64::from(word(4)) | u64::from(word(8)) << 32);
        let end = at.checked_add(bytes).filter(|end| *end <= len);
        let end = end.ok_or_else(|| {
            format!("region {id} has {bytes} bytes, and the file ends after {}", len.saturating_sub(at))
        })?;
        if found.last().is_some_and(|last| last.id >= id) {
            return Err(format!("the ids of its regions do not ascend ({id})"));
        }
        found.push(Region { id, at, bytes });
        at = end;
    }
    match len - at.min(len) {
        0 => Ok(found),
        rest => Err(format!("{rest} bytes are behind its last region")),
    }
}

/// The head that VELOC would have written for regions of these ids, which ascend, and lengths.
pub fn head(regions: &[(i32, u64)]) -> Vec<u8> {
    let mut head = Vec::with_capacity(COUNT + regions.len() * ROW);
    head.extend((regions.len() as u64).to_le_bytes());
    for (id, bytes) in regions {
        head.extend(id.to_le_bytes());
        head.extend(bytes.to_le_bytes());
    }
    head
}

/// What the name of a file says.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FileName {
    /// The checkpoints.
    pub name: String,
    /// Their version.
    pub version: u64,
    /// The rank, or the id of a process that is none.
    pub rank: u32,
}

impl FileName {
    /// Takes a name apart; `None`: it is not that of such a file.
    pub fn parse(text: &str) -> Option<FileName> {
        let mut parts = text.strip_suffix(".dat")?.split('-');
        let (name, rank, version) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || !is_name(name) {
            return None;
        }
        let version: i32 = number(version)?;
        Some(FileName { name: name.to_owned(), rank: number(rank)?, version: version.try_into().ok()? })
    }
}

impl std::fmt::Display for FileName {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}-{}.dat", self.name, self.rank, self.version)
    }
}

/// A number as VELOC writes it.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|number: &T| number.to_string() == text)
}

/// Whether checkpoints can be called so.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_');
    !name.is_empty() && name.bytes().all(allowed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Three regions (ids -2, 0 and 1) as VELOC's client writes them: nothing, a step, and five bytes.
    const GOLDEN: &[u8] = &[
        3, 0, 0, 0, 0, 0, 0, 0, //
        0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, //
        1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, //
        42, 0, 0, 0, b'b', b'y', b't', b'e', b's',
    ];

    fn read(file: &[u8]) -> Result<Vec<Region>, String> {
        let count = file.first_chunk().ok_or("short")?;
        let head = head_len(*count, file.len() as u64)?;
        regions(&file[..head], file.len() as u64)
    }

    #[test]
    fn a_file_is_taken_apart_and_written_as_it_was() {
        let found = read(GOLDEN).unwrap();
        let region = |id, at, bytes| Region { id, at, bytes };
        assert_eq!(found, [region(-2, 44, 0), region(0, 44, 4), region(1, 48, 5)]);
        let rows: Vec<(i32, u64)> = found.iter().map(|region| (region.id, region.bytes)).collect();
        assert_eq!(head(&rows), GOLDEN[..44]);
        assert_eq!(read(&head(&[])).unwrap(), []);
    }

    #[test]
    fn what_is_cut_or_longer_or_lies_about_its_length_is_refused() {
        for len in 0..GOLDEN.len() {
            assert!(read(&GOLDEN[..len]).is_err(), "{len} bytes");
        }
        assert!(read(&[GOLDEN, b"x"].concat()).is_err());
        // Any flipped bit of count and lengths, and of an id where that no longer ascends.
        let lengths = (0..8 * 8).chain([12, 24, 36].into_iter().flat_map(|at| at * 8..(at + 8) * 8));
        for bit in lengths.chain([11 * 8 + 7]) {
            let mut file = GOLDEN.to_owned();
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&file).is_err(), "bit {bit}");
        }
        for bytes in [u64::MAX, u64::MAX - 31] {
            let mut file = GOLDEN.to_owned();
            file[24..32].copy_from_slice(&bytes.to_le_bytes());
            assert!(read(&file).is_err());
        }
    }

    #[test]
    fn names_are_taken_apart() {
        let name = FileName { name: "heat.2_b".into(), rank: 3, version: 40 };
        assert_eq!(FileName::parse(&name.to_string()), Some(name));
        for other in
            ["heat-3.dat", "heat-3-40", "heat-ec-4.dat", "heat-1-2-3.dat", "heat-03-4.dat", "-1-2.dat"]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
        assert_eq!(FileName::parse("heat-3-3000000000.dat"), None, "VELOC's versions are ints");
    }
}
