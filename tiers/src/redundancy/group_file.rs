//! What a set consists of: the blob `group-000004` of each member of its group, JSON after a line with a checksum; and
//! the end of `parity-000004`, which says what parity and data were when it was made.
//!
//! Made by a member before its parity: from then on no file of its stream goes. Read by rebuilds on any host, and by
//! whatever decides what goes. Invariants: names are those of heads and segments alone; lengths fit the group. Fails
//! by: words that say what is wrong.

use super::Layout;
use crate::names::{self, FileName};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// What this version writes and reads.
const FORMAT: u32 = 1;
/// Before the checksum of all that follows.
const HEAD: &str = "holdfast group ";
/// Longer ones are not ours: bytes.
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupFile {
    /// Of this description.
    pub format: u32,
    /// Name of the gang.
    pub gang: String,
    /// Number of the image of the gang.
    pub image: u64,
    /// SHA-256 of the image of the gang, in hexadecimal digits: tells the set from others of this number.
    pub set: String,
    /// How many of the group may be lost.
    pub losses: usize,
    /// Whose file this is, in the group.
    pub own: usize,
    /// The members of the group, in order.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupMember {
    /// Its number in the gang.
    pub member: u32,
    /// The host that it was on.
    pub host: String,
    /// The number of its image.
    pub epoch: u64,
    /// What its stream consists of: its head, then segments.
    pub files: Vec<SetFile>,
    /// Sets before this one that have the rest of what its image needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

/// A blob of a stream, as it is when it is not packed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetFile {
    /// Its name.
    pub name: String,
    /// Its length, bytes.
    pub len: u64,
}

/// XXH3-128 of a chunk, as its pieces come.
#[derive(Clone, Default)]
pub struct ChunkSum(Xxh3);

impl ChunkSum {
    /// The next piece.
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// In hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// XXH3-128 of the chunks of a stripe, in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StripeSums {
    /// Of the parity that this member has.
    pub parity: String,
    /// Of the data, in order.
    pub data: Vec<String>,
}

impl GroupMember {
    /// Length of its stream, bytes.
    pub fn len(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len))
    }

    /// Whether its stream has nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments of its stream.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, u32)> {
        self.files.iter().filter_map(|file| match names::parse_name(&file.name) {
            Some(FileName::Segment(epoch, number)) => Some((epoch.0, number)),
            _ => None,
        })
    }
}

impl GroupFile {
    /// A new one.
    pub fn new(
        (gang, image, set): (&str, u64, &str),
        losses: usize,
        own: usize,
        members: Vec<GroupMember>,
    ) -> GroupFile {
        let (gang, set) = (gang.to_owned(), set.to_owned());
        GroupFile { format: FORMAT, gang, image, set, losses, own, members }
    }

    /// How its streams are stripes.
    pub fn layout(&self) -> Option<Layout> {
        let lens: Vec<u64> = self.members.iter().map(GroupMember::len).collect();
        Layout::new(&lens, self.losses)
    }

    /// The member whose file it is.
    pub fn own(&self) -> Option<&GroupMember> {
        self.members.get(self.own)
    }

    /// The bytes of its blob.
    pub fn encode(&self) -> Vec<u8> {
        // Plain data with names as keys: always encoded.
        let text = serde_json::to_vec(self).unwrap_or_default();
        [format!("{HEAD}{:032x}\n", xxh3_128(&text)).as_bytes(), &text, b"\n"].concat()
    }

    /// Reads it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8]) -> Result<GroupFile, String> {
        let line = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no line")?;
        let sum = std::str::from_utf8(&bytes[..line]).ok().and_then(|line| line.strip_prefix(HEAD));
        let text = bytes[line + 1..].strip_suffix(b"\n").unwrap_or_default();
        if sum != Some(format!("{:032x}", xxh3_128(text)).as_str()) {
            return Err("its checksum does not fit".into());
        }
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if version.format != FORMAT {
            return Err(format!("format {}, and this version of Holdfast reads {FORMAT}", version.format));
        }
        let file: GroupFile = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        file.check()?;
        Ok(file)
    }

    /// Whether it can be computed with.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.layout().ok_or("its group is no group")?;
        self.own().ok_or("it is that of no member of its group")?;
        for member in &self.members {
            let head = names::head_name(member.epoch);
            let is_ours = |(at, file): (usize, &SetFile)| match at {
                0 => file.name == head,
                _ => matches!(names::parse_name(&file.name), Some(FileName::Segment(..))),
            };
            if member.files.is_empty() || !member.files.iter().enumerate().all(is_ours) {
                return Err(format!("what it has of member {} is no stream", member.member));
            }
        }
        Ok(())
    }
}

/// Magic number of the end of parity, after the length of the sums.
const TAIL: &[u8; 8] = b"HFPARITY";
/// Bytes of both.
pub(super) const TAIL_LEN: u64 = 16;

/// What follows parity: of each part of it, what it and its stripe were.
pub fn encode_sums(sums: &[StripeSums]) -> Vec<u8> {
    let text = serde_json::to_vec(sums).unwrap_or_default();
    let len = (text.len() as u64).to_le_bytes();
    [text.as_slice(), &len, TAIL].concat()
}

/// The length of the sums, by the last [`TAIL_LEN`] bytes of parity of so many bytes.
pub(super) fn sums_len(tail: &[u8], parity: u64, whole: u64) -> Option<u64> {
    let (len, magic) = tail.split_at_checked(8)?;
    let len = u64::from_le_bytes(len.try_into().ok()?);
    let fits = parity.checked_add(len)?.checked_add(TAIL_LEN)? == whole && len <= MOST_BYTES;
    (magic == TAIL && fits).then_some(len)
}

/// Reads them.
///
/// # Errors
/// They are not those of such a group.
pub fn decode_sums(text: &[u8], layout: &Layout) -> Result<Vec<StripeSums>, String> {
    let sums: Vec<StripeSums> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let fits = |sums: &StripeSums| sums.data.len() == layout.data();
    if sums.len() != layout.parity_parts().len() || !sums.iter().all(fits) {
        return Err("its sums do not fit its group".into());
    }
    Ok(sums)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file() -> GroupFile {
        let member = |member: u32| GroupMember {
            member,
            host: "a".into(),
            epoch: 4,
            files: vec![
                SetFile { name: "head-000004".into(), len: 10 },
                SetFile { name: "segment-000004-000".into(), len: 4096 },
            ],
            needs: Vec::new(),
        };
        GroupFile::new(("sim", 3, "ab"), 1, 1, (0..3).map(member).collect())
    }

    #[test]
    fn a_set_is_read_as_it_was_written_and_damage_is_noticed() {
        let bytes = file().encode();
        assert_eq!(GroupFile::decode(&bytes).unwrap(), file());
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(GroupFile::decode(&bad).is_err(), "byte {at}");
            assert!(GroupFile::decode(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn what_makes_no_sense_is_no_set() {
        type Change = fn(&mut GroupFile);
        let wrong: [(&str, Change); 6] = [
            ("format 2", |file| file.format = 2),
            ("is no group", |file| file.losses = 3),
            ("of no member", |file| file.own = 3),
            ("no stream", |file| file.members[0].files[0].name = "../x".into()),
            ("no stream", |file| file.members[0].files[1].name = "manifest-000004".into()),
            ("no group", |file| file.members[0].files[1].len = u64::MAX),
        ];
        for (words, change) in wrong {
            let mut file = file();
            change(&mut file);
            let why = GroupFile::decode(&file.encode()).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn sums_are_those_of_the_group() {
        let layout = file().layout().unwrap();
        let sums = vec![StripeSums { parity: "0".into(), data: vec!["1".into(), "2".into()] }];
        let bytes = encode_sums(&sums);
        let (text, tail) = bytes.split_at(bytes.len() - 16);
        let whole = layout.parity_len() + bytes.len() as u64;
        assert_eq!(sums_len(tail, layout.parity_len(), whole), Some(text.len() as u64));
        assert_eq!(sums_len(tail, layout.parity_len(), whole + 1), None);
        assert_eq!(sums_len(&tail[1..], layout.parity_len(), whole), None);
        assert_eq!(decode_sums(text, &layout).unwrap(), sums);
        assert!(decode_sums(b"[]", &layout).is_err() && decode_sums(b"{", &layout).is_err());
    }
}
