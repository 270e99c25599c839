//! The tables of an image with its segments open: what a restart and the next image need to find and read pages.
//!
//! Made when an image is opened ([`crate::Image`]) and when one is committed ([`crate::Lineage`]).
//! Invariants: all numbers have been checked against each other and against the length of the files; every segment
//! says that it is the one that the table names; segments stay open, so that pages stay readable when the files are
//! removed; no byte is handed out before the whole frame it lies in has matched its checksum once.
//! Fails by: an error that names the segment file and the offset of the frame.

use crate::StoreError;
use crate::codec::decompress;
use crate::files;
use crate::format::HEADER_LEN;
use crate::format::manifest::{IndexRun, SegmentEntry};
use crate::format::segment::{Codec, Frame, MAX_FRAME_BYTES, SegmentHeader};
use crate::image_info::wrong_len;
use holdfast_image::{Epoch, PAGE_SIZE};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// See the head of the file.
pub(crate) struct Tables {
    /// Folder of the job.
    pub(crate) dir: PathBuf,
    pub(crate) epoch: Epoch,
    /// Distinguishes the tables of this process in the threads' caches.
    serial: u64,
    pub(crate) entries: Vec<SegmentEntry>,
    pub(crate) files: Vec<Arc<SegmentFile>>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) frames: Vec<Frame>,
    /// Frames whose data has matched its checksum once.
    checked: Vec<AtomicBool>,
    pub(crate) index: Vec<IndexRun>,
}

/// Unpacked frames that a thread keeps: neighbours in the program often lie in frames of different segments.
const KEPT_FRAMES: usize = 16;

/// One open segment.
pub(crate) struct SegmentFile {
    pub(crate) file: File,
    pub(crate) len: u64,
    /// What its first block says.
    pub(crate) header: SegmentHeader,
}

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Unpacked frames with the serial of their tables and their number, the last one used at the end.
    kept: Vec<(u64, u32, Vec<u8>)>,
    pub(crate) pages: Vec<u8>,
    pub(crate) stored: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Tables {
    /// Joins tables that fit each other. `files` are those of `entries`, open.
    pub(crate) fn new(
        dir: &Path,
        epoch: Epoch,
        entries: Vec<SegmentEntry>,
        files: Vec<Arc<SegmentFile>>,
        frames: Vec<Frame>,
        index: Vec<IndexRun>,
    ) -> Tables {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let paths = entries.iter().map(|entry| segment_path(dir, entry)).collect();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let checked = frames.iter().map(|_| AtomicBool::new(false)).collect();
        Tables { dir: dir.to_owned(), epoch, serial, entries, files, paths, frames, checked, index }
    }

    /// The number after those of the segments: that of shared pages ([`crate::shared_pages`]).
    pub(crate) fn shared_pages_number(&self) -> u32 {
        u32::try_from(self.paths.len()).unwrap_or(u32::MAX)
    }

    fn read_at(&self, frame: &Frame, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let (segment, path) = (&self.files[frame.segment as usize], &self.paths[frame.segment as usize]);
        match segment.file.read_exact_at(out, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(StoreError::corrupt(path, offset, "the file has become shorter"))
            }
            other => other.map_err(StoreError::io("read", path)),
        }
    }

    /// Whether the data of a frame has matched its checksum once.
    pub(crate) fn is_checked(&self, number: usize) -> bool {
        self.checked[number].load(Ordering::Relaxed)
    }

    /// Reads the stored data of a frame and checks it.
    pub(crate) fn read_stored(&self, number: usize, stored: &mut [u8]) -> Result<(), StoreError> {
        let frame = &self.frames[number];
        self.read_at(frame, frame.offset, stored)?;
        if xxh3_64(stored) == frame.checksum {
            self.checked[number].store(true, Ordering::Relaxed);
            Ok(())
        } else {
            let what = format!("{} bytes from here on do not match their checksum", frame.stored_len);
            Err(StoreError::corrupt(&self.paths[frame.segment as usize], frame.offset, what))
        }
    }

    /// Fills `pages` with all pages of a frame.
    pub(crate) fn unpack(
        &self,
        number: usize,
        pages: &mut [u8],
        stored: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let frame = &self.frames[number];
        if frame.codec == Codec::Raw {
            return self.read_stored(number, pages);
        }
        let len = usize::try_from(frame.stored_len).unwrap_or(MAX_FRAME_BYTES).min(MAX_FRAME_BYTES);
        if stored.len() < len {
            stored.resize(len, 0);
        }
        self.read_stored(number, &mut stored[..len])?;
        decompress(&stored[..len], pages)
            .map_err(|what| StoreError::corrupt(&self.paths[frame.segment as usize], frame.offset, what))
    }

    /// Copies pages of a frame from page `page` on. A frame is read and checked as a whole when the first of its pages
    /// is asked for; after that, single pages of an uncompressed one are read by themselves, and each thread keeps the
    /// compressed ones that it used last.
    pub(crate) fn read_frame(&self, number: u32, page: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let (at, frame) = (number as usize, &self.frames[number as usize]);
        let from = page * PAGE_SIZE;
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { kept, pages, stored } = scratch;
            if out.len() == frame.raw_len() {
                return self.unpack(at, out, stored);
            }
            if frame.codec == Codec::Raw && self.is_checked(at) {
                return self.read_at(frame, frame.offset + from, out);
            }
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            if frame.codec == Codec::Raw {
                pages.resize(frame.raw_len(), 0);
                self.read_stored(at, pages)?;
                out.copy_from_slice(&pages[from..from + out.len()]);
                return Ok(());
            }
            let found = kept.iter().position(|(serial, kept, _)| (*serial, *kept) == (self.serial, number));
            let holds = match found {
                Some(position) => kept.remove(position),
                None => {
                    let spare = if kept.len() == KEPT_FRAMES { Some(kept.remove(0).2) } else { None };
                    let mut unpacked = spare.unwrap_or_default();
                    unpacked.resize(frame.raw_len(), 0);
                    self.unpack(at, &mut unpacked, stored)?;
                    (self.serial, number, unpacked)
                }
            };
            out.copy_from_slice(&holds.2[from..from + out.len()]);
            kept.push(holds);
            Ok(())
        })
    }
}

/// Where the file of an entry is.
pub(crate) fn segment_path(dir: &Path, entry: &SegmentEntry) -> PathBuf {
    dir.join(files::segment_name(entry.epoch, entry.number))
}

/// Opens a segment and checks its length and that it is the one that the entry names.
pub(crate) fn open_segment(dir: &Path, entry: &SegmentEntry) -> Result<SegmentFile, StoreError> {
    let path = &segment_path(dir, entry);
    let (file, found) = files::open_checked(path).map_err(|error| match error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            StoreError::corrupt(path, 0, "the file is missing, and the image needs it")
        }
        other => other,
    })?;
    if found != entry.len {
        return Err(wrong_len(path, found, entry.len));
    }
    let mut header = [0; HEADER_LEN];
    file.read_exact_at(&mut header, 0).map_err(StoreError::io("read", path))?;
    let header = SegmentHeader::decode(&header, 0).map_err(StoreError::format(path))?;
    let expected =
        SegmentHeader { epoch: entry.epoch, image_id: entry.image_id, number: entry.number, block: 0 };
    check_identity(path, 0, &header, &expected)?;
    Ok(SegmentFile { file, len: entry.len, header })
}

/// Compares slot 0 of a block with what it must say.
pub(crate) fn check_identity(
    path: &Path,
    base: u64,
    found: &SegmentHeader,
    expected: &SegmentHeader,
) -> Result<(), StoreError> {
    if found.image_id != expected.image_id || found.epoch != expected.epoch {
        return Err(StoreError::Foreign { path: path.to_owned() });
    }
    if found.number != expected.number || found.block != expected.block {
        let what = format!(
            "this is block {} of segment {}, not block {} of segment {}",
            found.block, found.number, expected.block, expected.number
        );
        return Err(StoreError::corrupt(path, base, what));
    }
    Ok(())
}
