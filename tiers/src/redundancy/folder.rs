//! What a folder has of sets: which there are, what they keep from going, whether their parity is what it was.
//!
//! Called by whatever removes or verifies something in a folder; knows no job. Invariants: a group file that cannot be
//! looked at is an error, never one that is not there. Fails by: an error that names the file.

use super::group_file::{ChunkSum, GroupFile, MOST_BYTES, StripeSums, TAIL_LEN, decode_sums, sums_len};
use crate::StoreError;
use crate::names::{self, SetBlob};
use crate::tier::{Blob, Entry, TierError};
use crate::tier_folder::TierFolder;
use std::collections::BTreeSet;
use std::fmt;

/// Bytes read at once.
const PIECE: u64 = 1 << 20;

/// A set that is there.
#[derive(Debug)]
pub struct SetState {
    /// The number in its names: that of the member's image.
    pub number: u64,
    /// What it consists of; or why that is not known.
    pub file: Result<GroupFile, SetProblem>,
    /// Bytes of the parity, if it is there.
    pub parity: Option<u64>,
}

/// Why a set cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SetProblem {
    /// Something of it is damaged, or gone.
    Damaged(String),
    /// It cannot be looked at: it may be as good as any.
    Unseen(String),
}

impl fmt::Display for SetProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (SetProblem::Damaged(why) | SetProblem::Unseen(why)) = self;
        f.write_str(why)
    }
}

impl From<TierError> for SetProblem {
    fn from(error: TierError) -> SetProblem {
        match error {
            TierError::Damaged { .. } | TierError::Short { .. } | TierError::NotFound { .. } => {
                SetProblem::Damaged(error.to_string())
            }
            _ => SetProblem::Unseen(error.to_string()),
        }
    }
}

/// The sets that a folder has, ascending.
pub(crate) fn sets_in(folder: &TierFolder) -> Result<Vec<SetState>, TierError> {
    let (blobs, mut found) = (of_sets(folder)?, Vec::new());
    for number in blobs.iter().filter(|(blob, ..)| *blob == SetBlob::Group).map(|(_, number, _)| *number) {
        let file = match read_group(folder, number) {
            // Removed meanwhile.
            Err(TierError::NotFound { .. }) => continue,
            Err(error) => Err(error.into()),
            Ok(file) => file.map_err(SetProblem::Damaged),
        };
        let parity = blobs.iter().find(|(blob, of, _)| (*blob, *of) == (SetBlob::Parity, number));
        found.push(SetState { number, file, parity: parity.map(|(.., entry)| entry.len) });
    }
    found.sort_by_key(|set| set.number);
    Ok(found)
}

/// A group file; inner: it is damaged.
///
/// # Errors
/// It cannot be looked at.
pub(crate) fn read_group(folder: &TierFolder, number: u64) -> Result<Result<GroupFile, String>, TierError> {
    let name = names::group_name(number);
    let bytes = match folder.whole(&name, MOST_BYTES) {
        Err(error @ (TierError::Damaged { .. } | TierError::Short { .. })) => {
            return Ok(Err(error.to_string()));
        }
        bytes => bytes?,
    };
    let own = |file: &GroupFile| file.own().is_some_and(|own| own.epoch == number);
    let read = GroupFile::decode(&bytes)
        .and_then(|file| if own(&file) { Ok(file) } else { Err("it has another number".into()) });
    Ok(read.map_err(|why| format!("{}: {why}", folder.object(&name))))
}

/// The segments of the member's own stream in a set.
pub fn covered(file: &GroupFile) -> BTreeSet<(u64, u32)> {
    file.own().into_iter().flat_map(|own| own.segments()).collect()
}

/// The parity of a set, opened, with what it and its stripes were.
pub struct Parity {
    blob: Box<dyn Blob>,
    /// Of each part.
    pub sums: Vec<StripeSums>,
    len: u64,
}

impl Parity {
    /// Opens it.
    pub(super) fn open_in(folder: &TierFolder, file: &GroupFile) -> Result<Parity, TierError> {
        let name = names::parity_name(file.own().map_or(0, |own| own.epoch));
        let blob = folder.open(&name)?;
        let bad = |what: String| TierError::Damaged { object: folder.object(&name), offset: 0, what };
        let layout = file.layout().ok_or_else(|| bad("its group is no group".into()))?;
        let (len, mut tail) = (layout.parity_len(), [0; TAIL_LEN as usize]);
        let at = blob.len().checked_sub(TAIL_LEN).ok_or_else(|| bad("it is too short".into()))?;
        blob.read_at(at, &mut tail)?;
        let sums = sums_len(&tail, len, blob.len())
            .ok_or_else(|| bad("its length does not fit its group".into()))?;
        let mut text = vec![0; usize::try_from(sums).unwrap_or(0)];
        blob.read_at(len, &mut text)?;
        let sums = decode_sums(&text, &layout).map_err(bad)?;
        Ok(Parity { blob, sums, len })
    }

    /// Its bytes from `offset` on.
    ///
    /// # Errors
    /// It ends before that; of the tier.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return Err(TierError::Short { object: "parity".into(), len: self.len }.into());
        }
        Ok(self.blob.read_at(offset, buffer)?)
    }
}

/// Why a set is not all there, as far as lengths tell: the member's stream, and the parity of the others'.
pub(crate) fn lacks_of(folder: &TierFolder, set: &SetState) -> Result<(), SetProblem> {
    let file = set.file.as_ref().map_err(Clone::clone)?;
    for blob in file.own().into_iter().flat_map(|own| &own.files) {
        let len = folder.open(&blob.name)?.len();
        if len != blob.len {
            let what = format!("it has {len} bytes, not {}", blob.len);
            let object = folder.object(&blob.name);
            return Err(TierError::Damaged { object, offset: len.min(blob.len), what }.into());
        }
    }
    Parity::open_in(folder, file)?;
    Ok(())
}

/// What is wrong with the parity of a set, by its sums, if anything is.
///
/// # Errors
/// It cannot be read.
pub(crate) fn check_set(
    folder: &TierFolder,
    set: &SetState,
    passed: &(dyn Fn(u64) + Sync),
) -> Result<Option<String>, TierError> {
    let file = match &set.file {
        Ok(file) => file,
        Err(why) => return Ok(Some(why.to_string())),
    };
    let name = names::parity_name(set.number);
    let parity = match Parity::open_in(folder, file) {
        Err(error @ (TierError::Damaged { .. } | TierError::Short { .. } | TierError::NotFound { .. })) => {
            return Ok(Some(error.to_string()));
        }
        parity => parity?,
    };
    let chunk = file.layout().map_or(0, |layout| layout.chunk());
    let mut piece = vec![0; usize::try_from(PIECE.min(chunk)).unwrap_or(0)];
    for (part, sums) in parity.sums.iter().enumerate() {
        let (begin, mut at, mut sum) = (part as u64 * chunk, 0, ChunkSum::default());
        while at < chunk {
            let now = usize::try_from((chunk - at).min(PIECE)).unwrap_or(0);
            parity.blob.read_at(begin + at, &mut piece[..now])?;
            sum.update(&piece[..now]);
            passed(now as u64);
            at += now as u64;
        }
        if sum.text() != sums.parity {
            let object = folder.object(&name);
            return Ok(Some(format!("{object}: bytes from {begin} on do not match their checksum")));
        }
    }
    Ok(None)
}

/// What is of no whole set: what a crash has left. No set may be under way.
pub(crate) fn left_over(folder: &TierFolder) -> Result<Vec<Entry>, TierError> {
    let found = of_sets(folder)?;
    let has = |wanted: SetBlob, number: u64| has(&found, wanted, number);
    let is_left = |number: u64| !has(SetBlob::Group, number) || !has(SetBlob::Parity, number);
    Ok(found.iter().filter(|(_, number, _)| is_left(*number)).map(|(.., entry)| entry.clone()).collect())
}

/// Removes that. Returns the bytes.
pub(crate) fn clean(folder: &TierFolder) -> Result<u64, TierError> {
    remove_all(folder, left_over(folder)?)
}

/// Removes heads and parity without a group, but for those of this number. Returns the bytes.
pub(super) fn clean_loose(folder: &TierFolder, but: Option<u64>) -> Result<u64, TierError> {
    let found = of_sets(folder)?;
    let is_loose = |number: u64| but != Some(number) && !has(&found, SetBlob::Group, number);
    let loose = found.iter().filter(|(_, number, _)| is_loose(*number)).map(|(.., entry)| entry.clone());
    remove_all(folder, loose.collect())
}

/// The blobs of sets that a folder has.
fn of_sets(folder: &TierFolder) -> Result<Vec<(SetBlob, u64, Entry)>, TierError> {
    let blobs = folder.tier().list(folder.folder())?.blobs;
    let of = |entry: Entry| names::of_set(entry.name.file()).map(|(blob, number)| (blob, number, entry));
    Ok(blobs.into_iter().filter_map(of).collect())
}

fn has(found: &[(SetBlob, u64, Entry)], wanted: SetBlob, number: u64) -> bool {
    found.iter().any(|(blob, of, _)| (*blob, *of) == (wanted, number))
}

fn remove_all(folder: &TierFolder, entries: Vec<Entry>) -> Result<u64, TierError> {
    let mut bytes = 0;
    for entry in entries {
        folder.tier().remove(&entry.name)?;
        bytes += entry.len;
    }
    Ok(bytes)
}
