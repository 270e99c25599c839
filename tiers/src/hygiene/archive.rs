//! One version as one file: all that it needs, in the order in which it is read.
//!
//! ```text
//! header | origin | manifest | segment ... | end        (docs/format.md, "A version as one file")
//! ```
//! Written and read in one pass, so that both work through a pipe. Called by `holdfast export` and `import`.
//! Invariants: every segment is compared with its frames and blocks of headers as it passes, in both directions; no
//! name in the file is believed: names are made from numbers that were checked; no memory is taken for a length that
//! the file only claims; the version exists at the target when all of it was there and was good.
//! Fails by: an error that says at which byte of the file.

use super::segment::Problem;
use super::verify::{Tables, decode};
use crate::fault;
use crate::files::MAX_RECIPE_LEN;
use crate::format::archive::{ArchiveHeader, Part, PartKind};
use crate::format::manifest::{MAX_LEN, Record, SegmentEntry};
use crate::format::segment::Frame;
use crate::format::{FormatError, HEADER_LEN};
use crate::names;
use crate::read_ahead::read_ahead;
use crate::stack::SegmentCheck;
use crate::tier::{BlobName, TierError};
use crate::tier_folder::TierFolder;
use holdfast_image::Epoch;
use std::io::{self, Read, Write};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Largest piece that is read and written at once.
const PIECE: u64 = 1 << 20;

/// Why a version did not become a file, or a file no version.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file, or the pipe, cannot be read or written.
    #[error("{0}")]
    File(#[from] io::Error),
    /// It is not what was exported.
    #[error("at byte {offset}: {what}; export the image again, or use another copy")]
    Bad {
        /// Where in the file.
        offset: u64,
        /// What should be there.
        what: String,
    },
    /// The version cannot be read, or not be written.
    #[error(transparent)]
    Tier(#[from] TierError),
}

impl From<FormatError> for ArchiveError {
    fn from(error: FormatError) -> ArchiveError {
        let (offset, what) = error.place();
        ArchiveError::Bad { offset, what }
    }
}

fn wrong(offset: u64, what: impl Into<String>) -> ArchiveError {
    ArchiveError::Bad { offset, what: what.into() }
}

/// Writes a version that `from` has. `origin`: JSON for who imports it. `passed` is told of bytes that were written;
/// returns how many there are in all.
///
/// # Errors
/// The version is not there or is damaged, or the output cannot be written.
pub fn export(
    from: &TierFolder,
    epoch: Epoch,
    origin: &[u8],
    out: &mut dyn Write,
    (total, passed): (&dyn Fn(u64), &dyn Fn(u64)),
) -> Result<u64, ArchiveError> {
    let manifest = from.manifest(epoch)?;
    let object = from.object(&names::manifest_name(epoch));
    let tables = decode(&manifest, epoch, &|_| Ok(())).map_err(|problem| damaged(object, problem))?;
    total(tables.segments.iter().map(|entry| entry.len).sum());
    out.write_all(&ArchiveHeader { epoch, image_id: tables.image_id }.encode())?;
    let mut written = HEADER_LEN as u64;
    for (kind, bytes) in [(PartKind::Origin, origin), (PartKind::Manifest, &manifest[..])] {
        let part = Part { kind, epoch, number: 0, len: bytes.len() as u64 };
        out.write_all(&part.encode())?;
        out.write_all(bytes)?;
        out.write_all(&xxh3_64(bytes).to_le_bytes())?;
        written += HEADER_LEN as u64 + part.len + 8;
    }
    for (index, entry) in tables.segments.iter().enumerate() {
        let frames: Vec<Frame> = tables.frames_of(index).collect();
        export_segment(from, entry, &frames, out, passed)?;
        written += HEADER_LEN as u64 + entry.len + 8;
    }
    out.write_all(&Part { kind: PartKind::End, epoch, number: 0, len: 0 }.encode())?;
    out.flush()?;
    Ok(written + HEADER_LEN as u64)
}

fn damaged(object: String, Problem { offset, what, .. }: Problem) -> ArchiveError {
    TierError::Damaged { object, offset, what }.into()
}

fn export_segment(
    from: &TierFolder,
    entry: &SegmentEntry,
    frames: &[Frame],
    out: &mut dyn Write,
    passed: &dyn Fn(u64),
) -> Result<(), ArchiveError> {
    let file = names::segment_name(entry.epoch, entry.number);
    let (blob, object) = (from.open(&file)?, from.object(&file));
    if blob.len() != entry.len {
        return Err(TierError::Short { object, len: blob.len() }.into());
    }
    let part = Part { kind: PartKind::Segment, epoch: entry.epoch, number: entry.number, len: entry.len };
    out.write_all(&part.encode())?;
    let damaged = |(offset, what)| TierError::Damaged { object: object.clone(), offset, what };
    let (mut check, mut sum) = (SegmentCheck::new(entry, frames), Xxh3::new());
    let mut written = Ok(());
    read_ahead(&*blob, entry.len, PIECE, |piece| {
        check.feed(piece).map_err(damaged)?;
        sum.update(piece);
        written = out.write_all(piece);
        passed(piece.len() as u64);
        Ok(written.is_ok())
    })?;
    written?;
    check.finish().map_err(damaged)?;
    Ok(out.write_all(&sum.digest().to_le_bytes())?)
}

/// A file that is being read: header, origin and manifest were.
pub struct Archive<'a> {
    input: &'a mut dyn Read,
    at: u64,
    epoch: Epoch,
    origin: Vec<u8>,
    manifest: Vec<u8>,
    tables: Tables,
}

impl<'a> Archive<'a> {
    /// Reads as far as the segments. `record`: looks at what the store does not know.
    ///
    /// # Errors
    /// It is no such file, or is damaged.
    pub fn open(
        input: &'a mut dyn Read,
        record: &dyn Fn(&Record) -> Result<(), String>,
    ) -> Result<Archive<'a>, ArchiveError> {
        let tables = Tables { image_id: [0; 16], manifest_len: 0, segments: Vec::new(), frames: Vec::new() };
        let (origin, manifest) = (Vec::new(), Vec::new());
        let mut archive = Archive { input, at: 0, epoch: Epoch(0), origin, manifest, tables };
        let mut header = [0; HEADER_LEN];
        archive.fill(&mut header)?;
        let ArchiveHeader { epoch, image_id } = ArchiveHeader::decode(&header)?;
        archive.epoch = epoch;
        archive.origin = archive.small(PartKind::Origin, MAX_RECIPE_LEN)?;
        archive.manifest = archive.small(PartKind::Manifest, MAX_LEN)?;
        let before = archive.at - 8 - archive.manifest.len() as u64;
        let inside = |Problem { offset, what, .. }| wrong(before + offset, what);
        archive.tables = decode(&archive.manifest, archive.epoch, record).map_err(inside)?;
        if archive.epoch.0 == 0 || archive.tables.image_id != image_id {
            return Err(wrong(16, "the manifest is not that of the image in the header"));
        }
        Ok(archive)
    }

    /// Number of the version.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What was given at the export.
    pub fn origin(&self) -> &[u8] {
        &self.origin
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.tables.segments.iter().fold(0, |sum, entry| sum.saturating_add(entry.len))
    }

    /// Reads the segments into a folder that has nothing of their names, and publishes the version there. What was
    /// written before a failure is removed again, as far as that can be done.
    ///
    /// # Errors
    /// The file is damaged or ends early, or the folder cannot be written; there is no version then.
    pub fn unpack(mut self, to: &TierFolder, passed: &dyn Fn(u64)) -> Result<(), ArchiveError> {
        let mut made: Vec<BlobName> = Vec::new();
        let unpacked = self.unpack_segments(to, &mut made, passed);
        let result = unpacked.and_then(|()| self.publish(to, &mut made));
        if result.is_err() {
            for name in made {
                // The error is what counts; the next start of the job's agent removes what is left.
                let _ = to.tier().remove(&name);
            }
        }
        result
    }

    fn unpack_segments(
        &mut self,
        to: &TierFolder,
        made: &mut Vec<BlobName>,
        passed: &dyn Fn(u64),
    ) -> Result<(), ArchiveError> {
        for index in 0..self.tables.segments.len() {
            let entry = self.tables.segments[index];
            let frames: Vec<Frame> = self.tables.frames_of(index).collect();
            self.unpack_segment((&entry, &frames), to, made, passed)?;
            fault::point("import-segment");
        }
        self.part(PartKind::End, |part| part.len == 0)?;
        if self.input.read(&mut [0])? != 0 {
            return Err(wrong(self.at, "there is more behind the end"));
        }
        Ok(())
    }

    /// The commit. After a failure there is no manifest; where that cannot be seen to, the segments in `made` stay.
    fn publish(&self, to: &TierFolder, made: &mut Vec<BlobName>) -> Result<(), ArchiveError> {
        let name = to.blob(&names::manifest_name(self.epoch))?;
        if let Err(error) = to.tier().publish(&name, &self.manifest) {
            // It may be there for all that (fsync(2) failed, an answer was lost), unless it is another one's.
            if !matches!(error, TierError::Exists { .. }) && to.tier().remove(&name).is_err() {
                made.clear();
            }
            return Err(error.into());
        }
        fault::point("import-manifest");
        Ok(())
    }

    fn unpack_segment(
        &mut self,
        (entry, frames): (&SegmentEntry, &[Frame]),
        to: &TierFolder,
        made: &mut Vec<BlobName>,
        passed: &dyn Fn(u64),
    ) -> Result<(), ArchiveError> {
        let is_next =
            |part: &Part| (part.epoch, part.number, part.len) == (entry.epoch, entry.number, entry.len);
        self.part(PartKind::Segment, is_next)?;
        let name = to.blob(&names::segment_name(entry.epoch, entry.number))?;
        // Not told how long it will be: that is what the file claims.
        let mut writer = to.tier().create(&name, None)?;
        let (mut check, mut sum, mut left) = (SegmentCheck::new(entry, frames), Xxh3::new(), entry.len);
        let begin = self.at;
        let inside = |(offset, what): (u64, String)| wrong(begin.saturating_add(offset), what);
        let mut buffer = vec![0; usize::try_from(left.min(PIECE)).unwrap_or(0)];
        while left > 0 {
            let piece = &mut buffer[..usize::try_from(left.min(PIECE)).unwrap_or(0)];
            self.fill(piece)?;
            check.feed(piece).map_err(inside)?;
            sum.update(piece);
            writer.append(piece)?;
            left -= piece.len() as u64;
            passed(piece.len() as u64);
        }
        check.finish().map_err(inside)?;
        self.check_sum(sum.digest())?;
        let finished = writer.finish();
        // After an error it may be there all the same, unless it is another one's.
        if !matches!(finished, Err(TierError::Exists { .. })) {
            made.push(name);
        }
        finished?;
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ArchiveError> {
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => wrong(self.at, "the file ends too early"),
            _ => error.into(),
        })?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    /// The header of the next part, which must be this one.
    fn part(&mut self, kind: PartKind, is_right: impl Fn(&Part) -> bool) -> Result<Part, ArchiveError> {
        let (mut bytes, base) = ([0; HEADER_LEN], self.at);
        self.fill(&mut bytes)?;
        let part = Part::decode(&bytes, base)?;
        if part.kind != kind || !is_right(&part) {
            let (found, bytes) = (part.kind, part.len);
            return Err(wrong(
                base,
                format!("a part {found:?} of {bytes} bytes is here instead of {kind:?}"),
            ));
        }
        Ok(part)
    }

    fn small(&mut self, kind: PartKind, most: u64) -> Result<Vec<u8>, ArchiveError> {
        let part = self.part(kind, |part| part.len <= most)?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < part.len {
            let from = bytes.len();
            bytes.resize(from + usize::try_from((part.len - from as u64).min(PIECE)).unwrap_or(0), 0);
            self.fill(&mut bytes[from..])?;
        }
        self.check_sum(xxh3_64(&bytes))?;
        Ok(bytes)
    }

    fn check_sum(&mut self, sum: u64) -> Result<(), ArchiveError> {
        let (mut bytes, base) = ([0; 8], self.at);
        self.fill(&mut bytes)?;
        if u64::from_le_bytes(bytes) == sum {
            return Ok(());
        }
        Err(wrong(base, "the bytes before this do not match their checksum"))
    }
}
