//! The files that VELOC itself writes, `NAME-RANK-VERSION.dat`, read and written: for users who come or go.
//!
//! ```text
//! count, u64      then for each region: id, i32; bytes, u64      then all of their bytes
//! ```
//! In the order and alignment of the machine, here little-endian and packed. There is neither a mark nor a checksum: a
//! file is taken for one if its length is exactly what its head says. Pure: no file is opened here.

/// Bytes of the count, and of the row of a region.
const COUNT: usize = 8;
const ROW: usize = 12;

/// Takes a file apart: ids and bytes of its regions, in their order.
///
/// # Errors
/// What is wrong with it.
pub fn regions(file: &[u8]) -> Result<Vec<(i32, &[u8])>, String> {
    let (count, rest) = file.split_first_chunk::<COUNT>().ok_or("it is shorter than its count")?;
    let count = usize::try_from(u64::from_le_bytes(*count)).ok();
    let head = count.and_then(|count| count.checked_mul(ROW)).filter(|len| *len <= rest.len());
    let (head, mut data) = rest.split_at(head.ok_or("it has more regions than it is long")?);
    let mut found: Vec<(i32, &[u8])> = Vec::with_capacity(head.len() / ROW);
    for row in head.chunks_exact(ROW) {
        let word = |from: usize| row[from..from + 4].try_into().map_or(0, u32::from_le_bytes);
        let (id, bytes) = (word(0).cast_signed(), u64::from(word(4)) | u64::from(word(8)) << 32);
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= data.len());
        let (region, behind) = data.split_at(bytes.ok_or(format!("region {id} is longer than the file"))?);
        if found.iter().any(|(known, _)| *known == id) {
            return Err(format!("region {id} is there twice"));
        }
        found.push((id, region));
        data = behind;
    }
    match data.len() {
        0 => Ok(found),
        rest => Err(format!("{rest} bytes are behind its last region")),
    }
}

/// What VELOC would have written.
pub fn file(regions: &[(i32, &[u8])]) -> Vec<u8> {
    let data: usize = regions.iter().map(|(_, bytes)| bytes.len()).sum();
    let mut file = Vec::with_capacity(COUNT + regions.len() * ROW + data);
    file.extend((regions.len() as u64).to_le_bytes());
    for (id, bytes) in regions {
        file.extend(id.to_le_bytes());
        file.extend((bytes.len() as u64).to_le_bytes());
    }
    regions.iter().for_each(|(_, bytes)| file.extend(*bytes));
    file
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Three regions (ids 0, 1 and -2) as VELOC's client writes them: a step, five bytes, and nothing.
    const GOLDEN: &[u8] = &[
        3, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, //
        1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, //
        0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, //
        42, 0, 0, 0, b'b', b'y', b't', b'e', b's',
    ];

    #[test]
    fn a_file_is_taken_apart_and_written_as_it_was() {
        let found = regions(GOLDEN).unwrap();
        assert_eq!(found, [(0, &[42, 0, 0, 0][..]), (1, b"bytes"), (-2, b"")]);
        assert_eq!(file(&found), GOLDEN);
        assert_eq!(regions(&file(&[])).unwrap(), []);
    }

    #[test]
    fn what_is_cut_or_longer_or_lies_about_its_length_is_refused() {
        for len in 0..GOLDEN.len() {
            assert!(regions(&GOLDEN[..len]).is_err(), "{len} bytes");
        }
        assert!(regions(&[GOLDEN, b"x"].concat()).is_err());
        for at in [7, 16, 19, 27] {
            let mut file = GOLDEN.to_owned();
            file[at] = 0xff;
            assert!(regions(&file).is_err(), "byte {at}");
        }
        let mut twice = GOLDEN.to_owned();
        twice[20] = 0;
        assert!(regions(&twice).unwrap_err().contains("twice"));
    }
}
