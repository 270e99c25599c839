//! One segment against its own headers and the frame tables that name it; and a good one made of several bad copies.
//!
//! Called by `verify` and by `repair`. Memory: one frame per thread, and the tables. Invariants: what is damaged is a
//! [`Problem`], so that the next byte is looked at as well; an error is a tier that does not answer. Padding has no
//! meaning and is not looked at.

use crate::codec::decode;
use crate::format::FormatError;
use crate::format::manifest::SegmentEntry;
use crate::format::segment::{
    BLOCK_LEN, Block, Codec, Frame, SegmentHeader, first_block, follows, same_layout,
};
use crate::tier::{Blob, BlobWriter, TierError};
use crate::workers;
use holdfast_image::Epoch;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Frames that a thread takes at once.
const FRAMES_AT_ONCE: usize = 16;
/// More problems of one segment are not told one by one.
pub(super) const MOST_PROBLEMS: usize = 20;

/// What is wrong at one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    pub(super) offset: u64,
    pub(super) what: String,
    /// The frame whose data it is; `None`: the segment as a whole, or its headers.
    pub(super) frame: Option<Frame>,
}

impl Problem {
    pub(super) fn new(offset: u64, what: impl Into<String>) -> Problem {
        Problem { offset, what: what.into(), frame: None }
    }

    pub(super) fn of_format(error: FormatError) -> Problem {
        let (offset, what) = error.place();
        Problem::new(offset, what)
    }
}

/// What a failed call tells of a blob; an error: it tells of the tier.
pub(super) fn of_tier(error: TierError, offset: u64) -> Result<Problem, TierError> {
    match error {
        TierError::Unavailable { .. } | TierError::Settings { .. } => Err(error),
        TierError::NotFound { .. } => Ok(Problem::new(0, "it is missing, and an image needs it")),
        TierError::Short { len, .. } => Ok(Problem::new(len, "it ends here")),
        TierError::Damaged { offset, what, .. } => Ok(Problem::new(offset, what)),
        TierError::Denied { why, .. } => Ok(Problem::new(0, format!("it cannot be read: {why}"))),
        TierError::Io { source, .. } => Ok(Problem::new(offset, format!("it cannot be read: {source}"))),
        TierError::Exists { .. } | TierError::Full { .. } => Err(error),
    }
}

/// The same frame whatever manifest it is from.
pub(super) fn plain(frame: &Frame) -> Frame {
    Frame { segment: 0, ..*frame }
}

/// What a segment says of itself: for one that no manifest names. `epoch` and `number` are those of its name.
pub(super) fn own_entry(
    blob: &dyn Blob,
    epoch: Epoch,
    number: u32,
) -> Result<Result<SegmentEntry, Problem>, TierError> {
    let len = blob.len();
    let mut problem = Problem::new(0, format!("no segment has {len} bytes"));
    for version in [crate::format::VERSION, 1] {
        let Some(base) = first_block(version, len) else { continue };
        let mut block = [0; BLOCK_LEN];
        if let Err(error) = blob.read_at(base, &mut block) {
            return of_tier(error, base).map(Err);
        }
        match Block::decode(&block, base, len) {
            Ok(Block { segment, .. }) if same_layout(segment.version, version) => {
                let SegmentHeader { image_id, version, .. } = segment;
                return Ok(Ok(SegmentEntry { epoch, number, len, image_id, version }));
            }
            Ok(_) => {}
            Err(error) => problem = Problem::of_format(error),
        }
    }
    Ok(Err(problem))
}

/// Keeps the first error that tells nothing of the bytes: elsewhere it is a [`Problem`] like others.
struct Seen<'a>(&'a dyn Blob, Mutex<Option<TierError>>);

impl Blob for Seen<'_> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        self.0.read_at(offset, buffer).inspect_err(|error| {
            if !error.is_damage() {
                self.1.lock().get_or_insert_with(|| error.again());
            }
        })
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        self.0.mapping()
    }
}

/// Whether a segment is as it was written, by what it says of itself.
///
/// # Errors
/// It cannot be read: that says nothing of it.
pub(crate) fn is_intact(blob: &dyn Blob, epoch: Epoch, number: u32) -> Result<bool, TierError> {
    let seen = Seen(blob, Mutex::new(None));
    let is_intact = own_problems(&seen, epoch, number, &|_| ())?.is_empty();
    match seen.1.into_inner() {
        Some(error) => Err(error),
        None => Ok(is_intact),
    }
}

/// What is wrong with a segment, by what it says of itself.
///
/// # Errors
/// As [`check`].
pub(super) fn own_problems(
    blob: &dyn Blob,
    epoch: Epoch,
    number: u32,
    passed: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Problem>, TierError> {
    match own_entry(blob, epoch, number)? {
        Ok(entry) => check(blob, &entry, &[], passed),
        Err(problem) => Ok(vec![problem]),
    }
}

/// A block that was read, and its bytes.
type Read = (Block, [u8; BLOCK_LEN]);

/// The block at `base` from the first copy that has it intact; else what is wrong with the first copy.
fn block_at(
    copies: &[&dyn Blob],
    base: u64,
    entry: &SegmentEntry,
    before: Option<u64>,
) -> Result<Result<Read, Problem>, TierError> {
    let mut first = None;
    for copy in copies {
        let mut bytes = [0; BLOCK_LEN];
        let problem = match copy.read_at(base, &mut bytes) {
            Err(error) => of_tier(error, base)?,
            Ok(()) => match Block::decode(&bytes, base, entry.len) {
                Err(error) => Problem::of_format(error),
                Ok(block) => match misplaced(&block.segment, entry, before) {
                    None => return Ok(Ok((block, bytes))),
                    Some(what) => Problem::new(base, what),
                },
            },
        };
        first.get_or_insert(problem);
    }
    Ok(Err(first.unwrap_or_else(|| Problem::new(base, "there is no copy"))))
}

/// Why a block is not the one that should be here.
fn misplaced(found: &SegmentHeader, entry: &SegmentEntry, before: Option<u64>) -> Option<String> {
    if found.image_id != entry.image_id || found.epoch != entry.epoch {
        return Some("it belongs to another image".into());
    }
    if found.number != entry.number || !same_layout(found.version, entry.version) {
        return Some(format!("this is segment {} of version {}", found.number, found.version));
    }
    (!follows(found.version, before, found.block))
        .then(|| format!("this is block {}, which does not belong here", found.block))
}

/// All blocks of headers, each from the first copy that has it intact, until one that none has: that is the problem.
fn blocks(
    copies: &[&dyn Blob],
    entry: &SegmentEntry,
    mut each: impl FnMut(u64, Block, &[u8; BLOCK_LEN]),
) -> Result<Option<Problem>, TierError> {
    let Some(mut base) = first_block(entry.version, entry.len) else {
        return Ok(Some(Problem::new(0, format!("no segment has {} bytes", entry.len))));
    };
    let mut before = None;
    loop {
        let (block, bytes) = match block_at(copies, base, entry, before)? {
            Ok(read) => read,
            Err(problem) => return Ok(Some(problem)),
        };
        let next = block.next;
        before = Some(block.segment.block);
        each(base, block, &bytes);
        match next {
            Some(next) => base = next,
            None => return Ok(None),
        }
    }
}

/// Looks at all bytes of a segment that mean something: the blocks of headers, the frames that they describe, and those
/// of `table` (of the manifests that name it, ascending). `passed` is told of bytes, from any thread.
pub(super) fn check(
    blob: &dyn Blob,
    entry: &SegmentEntry,
    table: &[Frame],
    passed: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Problem>, TierError> {
    if blob.len() != entry.len {
        let what = format!("it has {} bytes, not {}", blob.len(), entry.len);
        return Ok(vec![Problem::new(blob.len().min(entry.len), what)]);
    }
    let mut headers = BTreeSet::new();
    let order =
        |frame: &Frame| (frame.offset, frame.stored_len, frame.checksum, frame.pages, frame.codec as u32);
    let mut all = table.to_vec();
    let broken = blocks(&[blob], entry, |_, block, _| {
        for header in block.frames {
            headers.insert(order(&plain(&header.frame)));
            all.push(plain(&header.frame));
        }
    })?;
    let mut problems = Vec::new();
    match broken {
        Some(broken) => problems.push(broken),
        None => {
            let unknown = table.iter().find(|frame| !headers.contains(&order(frame)));
            problems.extend(unknown.map(|frame| {
                Problem::new(frame.offset, "the frame has no header in its segment, or a different one")
            }));
        }
    }
    drop(headers);
    all.sort_unstable_by_key(order);
    all.dedup();
    problems.extend(check_data(blob, &all, passed)?);
    problems.sort_by_key(|problem| problem.offset);
    Ok(problems)
}

/// Reads frames on all processors.
fn check_data(
    blob: &dyn Blob,
    frames: &[Frame],
    passed: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Problem>, TierError> {
    let (next, failed, problems) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(Vec::new()));
    let work = |_| {
        let mut buffers = (Vec::new(), Vec::new());
        while !failed.load(Ordering::Relaxed) {
            let from = next.fetch_add(FRAMES_AT_ONCE, Ordering::Relaxed);
            let Some(rest) = frames.get(from..).filter(|rest| !rest.is_empty()) else { break };
            for frame in rest.iter().take(FRAMES_AT_ONCE) {
                let found = read_frame(blob, frame, &mut buffers)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                passed(frame.stored_len);
                if let Some(what) = found {
                    let problem = Problem { offset: frame.offset, what, frame: Some(*frame) };
                    problems.lock().push(problem);
                }
            }
        }
        Ok(())
    };
    let threads = workers::count(frames.len().div_ceil(FRAMES_AT_ONCE), blob.mapping().is_none());
    workers::run("verify", 0..threads, work)?;
    Ok(problems.into_inner())
}

/// Reads and unpacks a frame; what is wrong with it. Its stored bytes are in the first buffer.
fn read_frame(
    blob: &dyn Blob,
    frame: &Frame,
    (stored, pages): &mut (Vec<u8>, Vec<u8>),
) -> Result<Option<String>, TierError> {
    stored.resize(usize::try_from(frame.stored_len).unwrap_or(0), 0);
    if let Err(error) = blob.read_at(frame.offset, stored) {
        return of_tier(error, frame.offset).map(|problem| Some(problem.what));
    }
    if xxh3_64(stored) != frame.checksum {
        return Ok(Some(format!("{} bytes from here on do not match their checksum", frame.stored_len)));
    }
    if frame.codec == Codec::Raw {
        return Ok(None);
    }
    pages.resize(frame.raw_len(), 0);
    Ok(decode(frame.codec, stored, pages).err())
}

/// A part of a segment that means something.
enum Part {
    Block(Box<[u8; BLOCK_LEN]>),
    Frame(Frame),
}

/// Writes the segment anew, each block and each frame from the first copy that has it intact; bytes without a meaning
/// become zero. Frames that no manifest needs (they are not in `table`) may be damaged everywhere. The problem: what
/// no copy has.
pub(super) fn compose(
    copies: &[&dyn Blob],
    entry: &SegmentEntry,
    table: &[Frame],
    into: &mut dyn BlobWriter,
    passed: &dyn Fn(u64),
) -> Result<Option<Problem>, TierError> {
    let copies: Vec<&dyn Blob> = copies.iter().copied().filter(|copy| copy.len() == entry.len).collect();
    let mut parts: Vec<(u64, Part)> = Vec::new();
    let broken = blocks(&copies, entry, |base, block, bytes| {
        parts.push((base, Part::Block(Box::new(*bytes))));
        parts.extend(
            block.frames.iter().map(|header| (header.frame.offset, Part::Frame(plain(&header.frame)))),
        );
    })?;
    if broken.is_some() {
        return Ok(broken);
    }
    parts.sort_by_key(|(offset, _)| *offset);
    let needed = |frame: &Frame| {
        let at = table.partition_point(|known| known.offset < frame.offset);
        table.get(at) == Some(frame)
    };
    let mut at = 0;
    let mut buffers = (Vec::new(), Vec::new());
    for (offset, part) in &parts {
        pad(into, &mut at, *offset)?;
        match part {
            Part::Block(bytes) => into.append(&bytes[..])?,
            Part::Frame(frame) => {
                let mut what = None;
                for copy in &copies {
                    what = read_frame(*copy, frame, &mut buffers)?;
                    if what.is_none() {
                        break;
                    }
                }
                match what {
                    Some(what) if needed(frame) => {
                        return Ok(Some(Problem { offset: frame.offset, what, frame: Some(*frame) }));
                    }
                    Some(_) => buffers.0.fill(0),
                    None => {}
                }
                into.append(&buffers.0)?;
            }
        }
        let len = match part {
            Part::Block(_) => BLOCK_LEN as u64,
            Part::Frame(frame) => frame.stored_len,
        };
        at += len;
        passed(len);
    }
    pad(into, &mut at, entry.len)?;
    Ok(None)
}

/// Zeros up to `until`.
fn pad(into: &mut dyn BlobWriter, at: &mut u64, until: u64) -> Result<(), TierError> {
    const ZEROS: [u8; BLOCK_LEN] = [0; BLOCK_LEN];
    while *at < until {
        let now = (until - *at).min(BLOCK_LEN as u64);
        into.append(&ZEROS[..usize::try_from(now).unwrap_or(0)])?;
        *at += now;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Cannot be read.
    struct Unread(fn() -> TierError);

    impl Blob for Unread {
        fn len(&self) -> u64 {
            1 << 20
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), TierError> {
            Err((self.0)())
        }
        fn mapping(&self) -> Option<(&File, u64)> {
            None
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_damaged() {
        let denied = || TierError::Denied { object: "x".into(), why: "y".into() };
        assert!(is_intact(&Unread(denied), Epoch(1), 0).is_err());
        let stale = || TierError::Io {
            object: "x".into(),
            call: "read",
            source: std::io::Error::from_raw_os_error(libc::ESTALE),
        };
        assert!(is_intact(&Unread(stale), Epoch(1), 0).is_err());
        let short = || TierError::Short { object: "x".into(), len: 7 };
        assert!(!is_intact(&Unread(short), Epoch(1), 0).unwrap());
    }
}
