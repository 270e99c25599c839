//! Manifest files: header, then six sections: figures, record, history, segment table, frame table, page index.
//!
//! A manifest is written once and read often: by `list` (header, figures, segments), by `restart` (everything).
//! [`Manifest::open`] checks header and body checksum; each part is decoded when it is asked for.
//! The figures are JSON, so that fields can be added; the record is the caller's, of a kind that only the caller knows;
//! the tables, which may have millions of entries, are binary.

use super::section::{self, Section};
use super::segment::{self, Codec, Frame};
use super::{Fields, FormatError, HEADER_LEN, Kind, VERSION, bad, begin_header, open_header, seal_header};
use holdfast_image::bytes::Name;
use holdfast_image::manifest::{EpochFigures, FlushFigures, StopBreakdown};
use holdfast_image::pages::PageRun;
use holdfast_image::record::UnsavedFile;
use holdfast_image::{Addr, Epoch, PageCount};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use xxhash_rust::xxh3::xxh3_64;

/// Longest manifest that is read: more could only come from a mistake, and it is read into memory.
pub const MAX_LEN: u64 = 4 << 30;
/// Bytes of an entry of the segment table.
const SEGMENT_ENTRY: usize = 40;
/// Bytes of an entry of the frame table.
const FRAME_ENTRY: usize = 40;
/// Bytes of an entry of the page index.
const INDEX_ENTRY: usize = 32;
/// Tags of the sections, in the order in which they stand in the file.
const SECTIONS: [[u8; 4]; 6] = [*b"FIGU", RECORD, HISTORY, *b"SEGM", *b"FRAM", *b"INDX"];
/// Tag of the record.
const RECORD: [u8; 4] = *b"RECO";
/// Tag of the record in versions 1 and 2, which has no kind there.
const OLD_RECORD: [u8; 4] = *b"PROC";
/// The kind of all records of versions 1 and 2.
const OLD_KIND: u32 = 1;
/// Bytes of a record that say its kind.
const KIND_LEN: usize = 8;
/// Tag of the section that version 1 does not have.
const HISTORY: [u8; 4] = *b"HIST";

/// What `list` and `show` say about an image, and where its memory came from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// CLOCK_REALTIME of the commit, nanoseconds.
    pub created_ns: u64,
    /// The image that this one is an increment on. The segment table says where the pages are.
    pub parent: Option<Epoch>,
    /// Engine that made the cut.
    pub engine: String,
    /// Command line of the program.
    pub command: Vec<Name>,
    /// The run that it is of: its start, as the caller's clock told it; 0 where that is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub run_ns: u64,
    /// The image holds protected regions only.
    pub protected_only: bool,
    /// Where the stop time went.
    pub stop: StopBreakdown,
    /// What the flush did.
    pub flush: FlushFigures,
    /// What the pager knows of the checkpoint.
    #[serde(default)]
    pub epoch: EpochFigures,
    /// Pages in the index. Absent in version 1: all that were read.
    #[serde(default)]
    pub program_pages: Option<u64>,
    /// Files that the program may have changed in place, and that are not in the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsaved: Vec<UnsavedFile>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One segment file that an image needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentEntry {
    /// Epoch in its name.
    pub epoch: Epoch,
    /// Number in its name.
    pub number: u32,
    /// Length of the file, bytes.
    pub len: u64,
    /// Random number of the image that it was written for.
    pub image_id: [u8; 16],
    /// Version of the format that it was written in.
    pub version: u32,
}

impl SegmentEntry {
    /// Epoch and number, which its name has.
    pub(crate) fn key(&self) -> (u64, u32) {
        (self.epoch.0, self.number)
    }
}

/// What the caller of the store keeps besides the pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// What it is: the caller's number.
    pub kind: u32,
    /// The caller's bytes.
    pub bytes: Vec<u8>,
}

/// Where the pages of a run are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// All zero bytes; not stored. (A page that no run names is absent: zero in anonymous memory, as in the file in a
    /// private mapping of a file.)
    Zero,
    /// In a frame.
    Frame {
        /// Index into the frame table.
        frame: u32,
        /// First page within the frame.
        page: u32,
    },
}

/// One entry of the page index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexRun {
    /// The pages.
    pub run: PageRun,
    /// Where they are.
    pub place: Place,
}

/// The parts of a manifest that is about to be written.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Number of the image.
    pub epoch: Epoch,
    /// Random number of the image.
    pub image_id: [u8; 16],
    /// Figures.
    pub figures: &'a Figures,
    /// The caller's record.
    pub record: &'a Record,
    /// What the pager wants to remember.
    pub history: &'a [u8],
    /// Segment table.
    pub segments: &'a [SegmentEntry],
    /// Frame table, ascending by segment and offset.
    pub frames: &'a [Frame],
    /// Page index, ascending by address.
    pub index: &'a [IndexRun],
}

fn encode_record(record: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(KIND_LEN + record.bytes.len());
    out.extend_from_slice(&record.kind.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&record.bytes);
    out
}

fn encode_segments(segments: &[SegmentEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(segments.len() * SEGMENT_ENTRY);
    for entry in segments {
        out.extend_from_slice(&entry.epoch.0.to_le_bytes());
        out.extend_from_slice(&entry.number.to_le_bytes());
        out.extend_from_slice(&entry.version.to_le_bytes());
        out.extend_from_slice(&entry.len.to_le_bytes());
        out.extend_from_slice(&entry.image_id);
    }
    out
}

fn encode_frames(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.len() * FRAME_ENTRY);
    for frame in frames {
        out.extend_from_slice(&frame.segment.to_le_bytes());
        out.extend_from_slice(&(frame.codec as u32).to_le_bytes());
        for value in [frame.offset, frame.stored_len, frame.pages, frame.checksum] {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
    out
}

fn encode_index(index: &[IndexRun]) -> Vec<u8> {
    let mut out = Vec::with_capacity(index.len() * INDEX_ENTRY);
    for entry in index {
        let (kind, page, frame) = match entry.place {
            Place::Zero => (0_u32, 0, 0),
            Place::Frame { frame, page } => (1, page, frame),
        };
        out.extend_from_slice(&entry.run.start.0.to_le_bytes());
        out.extend_from_slice(&entry.run.pages.0.to_le_bytes());
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&page.to_le_bytes());
        out.extend_from_slice(&u64::from(frame).to_le_bytes());
    }
    out
}

impl Parts<'_> {
    /// The whole file.
    ///
    /// # Errors
    /// The figures cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        self.join(&self.encode_rest())
    }

    /// All sections but the figures, which may depend on their length.
    pub(crate) fn encode_rest(&self) -> Vec<u8> {
        let data = [
            (encode_record(self.record), 1),
            (self.history.to_vec(), 1),
            (encode_segments(self.segments), SEGMENT_ENTRY),
            (encode_frames(self.frames), FRAME_ENTRY),
            (encode_index(self.index), INDEX_ENTRY),
        ];
        let mut rest = Vec::new();
        for (tag, (data, entry_len)) in SECTIONS.into_iter().skip(1).zip(&data) {
            section::push(&mut rest, tag, data, *entry_len, true);
        }
        rest
    }

    /// The whole file, with `rest` from [`Parts::encode_rest`].
    pub(crate) fn join(&self, rest: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let mut body = Vec::with_capacity(rest.len() + 4096);
        // Never compressed: its length may only grow with the numbers in it, see `ImageWriter::commit`.
        section::push(&mut body, SECTIONS[0], &serde_json::to_vec(self.figures)?, 1, false);
        body.extend_from_slice(rest);
        let mut file = begin_header(Kind::Manifest);
        file.extend_from_slice(&(body.len() as u64).to_le_bytes());
        file.extend_from_slice(&xxh3_64(&body).to_le_bytes());
        file.extend_from_slice(&self.epoch.0.to_le_bytes());
        file.extend_from_slice(&self.image_id);
        seal_header(&mut file);
        file.extend_from_slice(&body);
        Ok(file)
    }
}

/// A manifest whose header and body match their checksums. The parts are checked when they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Manifest<'a> {
    /// Number of the image.
    pub epoch: Epoch,
    /// Random number of the image.
    pub image_id: [u8; 16],
    version: u32,
    sections: [Section<'a>; 6],
}

/// Which image a manifest is: its header, with the number, a random number, and length and checksum of all the rest.
/// Two of one number are the same image only if this is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity([u8; HEADER_LEN]);

impl Identity {
    /// Of the beginning of a manifest.
    ///
    /// # Errors
    /// It is none, or its header is damaged.
    pub(crate) fn of(bytes: &[u8]) -> Result<Identity, FormatError> {
        open_header(bytes, 0, Kind::Manifest)?;
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(&bytes[..HEADER_LEN]);
        Ok(Identity(header))
    }
}

impl<'a> Manifest<'a> {
    /// Checks header, length, body checksum and the sequence of the sections.
    ///
    /// # Errors
    /// Not a manifest, another version, or damaged.
    pub fn open(bytes: &'a [u8]) -> Result<Manifest<'a>, FormatError> {
        let (version, mut fields) = open_header(bytes, 0, Kind::Manifest)?;
        let body_len = fields.u64()?;
        let body_sum = fields.u64()?;
        let epoch = Epoch(fields.u64()?);
        let image_id = fields.array()?;
        let body = &bytes[HEADER_LEN..];
        if body.len() as u64 != body_len {
            return Err(bad(
                bytes.len() as u64,
                format!("the file has {} bytes after the header, not {body_len}", body.len()),
            ));
        }
        if xxh3_64(body) != body_sum {
            return Err(bad(HEADER_LEN as u64, "the body does not match its checksum"));
        }
        let mut fields = Fields::new(body, HEADER_LEN as u64);
        let mut sections = [Section::EMPTY; 6];
        for (tag, section) in SECTIONS.into_iter().zip(&mut sections) {
            let tag = if version < 3 && tag == RECORD { OLD_RECORD } else { tag };
            if version > 1 || tag != HISTORY {
                *section = Section::take(&mut fields, tag, version > 1)?;
            }
        }
        if !fields.is_empty() {
            return Err(bad(fields.offset(), "bytes after the last section"));
        }
        Ok(Manifest { epoch, image_id, version, sections })
    }

    /// The figures.
    ///
    /// # Errors
    /// They cannot be decoded.
    pub fn figures(&self) -> Result<Figures, FormatError> {
        let data = self.sections[0].data(1)?;
        serde_json::from_slice(&data).map_err(|error| bad(self.sections[0].base, error.to_string()))
    }

    /// The caller's record.
    ///
    /// # Errors
    /// It cannot be decompressed, or is too short to have a kind.
    pub fn record(&self) -> Result<Record, FormatError> {
        let data = self.sections[1].data(1)?;
        if self.version < 3 {
            return Ok(Record { kind: OLD_KIND, bytes: data.into_owned() });
        }
        let mut fields = self.sections[1].fields(&data);
        let kind = fields.u32()?;
        fields.reserved_u32()?;
        Ok(Record { kind, bytes: data[KIND_LEN..].to_vec() })
    }

    /// Where in the file the record lies, for messages of who decodes it.
    pub fn record_offset(&self) -> u64 {
        self.sections[1].base
    }

    /// What the pager wanted to remember; empty in version 1.
    ///
    /// # Errors
    /// It cannot be decompressed.
    pub fn history(&self) -> Result<Vec<u8>, FormatError> {
        self.sections[2].data(1).map(Cow::into_owned)
    }

    /// The segment table.
    ///
    /// # Errors
    /// A segment is named twice, or a field cannot be true.
    pub fn segments(&self) -> Result<Vec<SegmentEntry>, FormatError> {
        let data = self.sections[3].data(SEGMENT_ENTRY)?;
        let (mut fields, count) = (self.sections[3].fields(&data), data.len() / SEGMENT_ENTRY);
        let mut segments: Vec<SegmentEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let at = fields.offset();
            let epoch = Epoch(fields.u64()?);
            let number = fields.u32()?;
            let version = match self.version {
                1 | 2 => fields.reserved_u32().map(|()| self.version)?,
                _ => fields.u32()?,
            };
            if !(1..=VERSION.min(self.version)).contains(&version) {
                return Err(bad(at, format!("a segment of format version {version}")));
            }
            let len = fields.u64()?;
            let image_id = fields.array()?;
            if segments.last().is_some_and(|last| (last.epoch, last.number) >= (epoch, number)) {
                return Err(bad(at, "segments are not in ascending order"));
            }
            segments.push(SegmentEntry { epoch, number, len, image_id, version });
        }
        Ok(segments)
    }

    /// The frame table; every frame fits into its segment.
    ///
    /// # Errors
    /// A frame refers to nothing, overlaps the one before, or a field cannot be true.
    pub fn frames(&self, segments: &[SegmentEntry]) -> Result<Vec<Frame>, FormatError> {
        let data = self.sections[4].data(FRAME_ENTRY)?;
        let (mut fields, count) = (self.sections[4].fields(&data), data.len() / FRAME_ENTRY);
        if u32::try_from(count).is_err() {
            return Err(bad(
                self.sections[4].base,
                format!("{count} frames are more than an index can name"),
            ));
        }
        let mut frames: Vec<Frame> = Vec::with_capacity(count);
        for _ in 0..count {
            let at = fields.offset();
            let segment = fields.u32()?;
            let codec =
                Codec::from_number(fields.u32()?).ok_or_else(|| bad(at, "unknown codec of a frame"))?;
            let offset = fields.u64()?;
            let stored_len = fields.u64()?;
            let pages = fields.u64()?;
            let checksum = fields.u64()?;
            let frame = Frame { segment, codec, offset, stored_len, pages, checksum };
            let Some(entry) = segments.get(segment as usize) else {
                return Err(bad(at, format!("a frame refers to segment {segment} of {}", segments.len())));
            };
            let room = segment::data_of(entry.version, entry.len);
            frame.check(entry.version, &room).map_err(|what| bad(at, what))?;
            if frames.last().is_some_and(|last| (last.segment, last.end()) > (segment, offset)) {
                return Err(bad(at, "frames overlap or are not in the order of their data"));
            }
            frames.push(frame);
        }
        Ok(frames)
    }

    /// The page index: ascending, without overlap, every run within its frame.
    ///
    /// # Errors
    /// A run overlaps the one before, refers to nothing, or a field cannot be true.
    pub fn index(&self, frames: &[Frame]) -> Result<Vec<IndexRun>, FormatError> {
        let data = self.sections[5].data(INDEX_ENTRY)?;
        let (mut fields, count) = (self.sections[5].fields(&data), data.len() / INDEX_ENTRY);
        let mut index = Vec::with_capacity(count);
        let mut floor = Addr(0);
        for _ in 0..count {
            let at = fields.offset();
            let run = PageRun { start: Addr(fields.u64()?), pages: PageCount(fields.u64()?) };
            let (kind, page, frame) = (fields.u32()?, fields.u32()?, fields.u64()?);
            if !run.is_valid() || run.start < floor {
                return Err(bad(at, format!("{} pages at {} are not a valid run", run.pages.0, run.start)));
            }
            floor = run.end();
            let place = match (kind, page, frame) {
                (0, 0, 0) => Place::Zero,
                (1, ..) => place_in_frame(run, frame, page, frames).map_err(|what| bad(at, what))?,
                _ => {
                    return Err(bad(
                        at,
                        format!("unknown kind {kind} of a run of pages, or fields it does not use"),
                    ));
                }
            };
            index.push(IndexRun { run, place });
        }
        Ok(index)
    }
}

fn place_in_frame(run: PageRun, frame: u64, page: u32, frames: &[Frame]) -> Result<Place, String> {
    let unknown = || format!("a run of pages refers to frame {frame} of {}", frames.len());
    let number = u32::try_from(frame).map_err(|_| unknown())?;
    let entry = frames.get(number as usize).ok_or_else(unknown)?;
    let end = run.pages.0.checked_add(u64::from(page));
    if end.is_none_or(|end| end > entry.pages) {
        return Err(format!("{} pages from page {page} on of a frame of {}", run.pages.0, entry.pages));
    }
    Ok(Place::Frame { frame: number, page })
}
