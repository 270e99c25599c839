//! Appends frames to one segment file by large sequential writes.
//!
//! Used by one pipeline worker at a time, so that there is no lock. Data is copied into a staging buffer of 4 MiB that
//! is written as a whole with O_DIRECT where the file system has it: the flush must not push the program's own files
//! out of the page cache, nor wait for the writeback of others.
//! Invariants: everything that was appended lies in the staging buffer or in the file; a block of headers has its
//! place in the file before the frames that it describes, and is written when it is full or the segment ends.
//! Fails by: an error that names the file; the image must then be given up.

use crate::StoreError;
use crate::buffer::AlignedBuffer;
use crate::fault;
use crate::files;
use crate::format::segment::{BLOCK_LEN, Codec, FRAMES_PER_BLOCK, Frame, FrameHeader, SegmentHeader};
use holdfast_image::{Addr, PAGE_SIZE};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Length of the staging buffer, bytes.
const STAGING_LEN: usize = 4 << 20;

/// A segment file that is being written.
pub(crate) struct SegmentWriter {
    file: File,
    path: PathBuf,
    /// Whether `file` is open with O_DIRECT.
    direct: bool,
    header: SegmentHeader,
    staging: AlignedBuffer,
    /// Bytes in the staging buffer.
    staged: usize,
    /// Bytes in the file; the staging buffer goes there.
    written: u64,
    /// The block of headers that is being filled, and its place.
    block: AlignedBuffer,
    block_at: u64,
    slots: usize,
    frames: Vec<Frame>,
}

impl SegmentWriter {
    /// Makes the file, which must not exist.
    pub(crate) fn create(
        dir: &Path,
        header: SegmentHeader,
        needed: u64,
    ) -> Result<SegmentWriter, StoreError> {
        let path = dir.join(files::segment_name(header.epoch, header.number));
        let failed = StoreError::write("create", &path, needed);
        let mut direct = true;
        let file = match files::create_new(&path, libc::O_DIRECT) {
            // open(2): a file system without O_DIRECT answers EINVAL, and some have made the file by then.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                direct = false;
                files::remove(&path)?;
                files::create_new(&path, 0).map_err(failed)?
            }
            other => other.map_err(failed)?,
        };
        let mut writer = SegmentWriter {
            file,
            path,
            direct,
            header,
            staging: AlignedBuffer::new(STAGING_LEN),
            staged: 0,
            written: 0,
            block: AlignedBuffer::new(BLOCK_LEN),
            block_at: 0,
            slots: 0,
            frames: Vec::new(),
        };
        writer.begin_block(needed)?;
        fault::point("segment-created");
        Ok(writer)
    }

    pub(crate) fn header(&self) -> &SegmentHeader {
        &self.header
    }
    /// Frames appended so far, in order; their `segment` is the number in the file's name.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }
    /// Length that the file has or will have, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.staged as u64
    }
    /// Length that the file will have when it is finished, bytes.
    pub(crate) fn final_len(&self) -> u64 {
        self.len().next_multiple_of(PAGE_SIZE)
    }

    /// Appends the data of a frame, and returns the frame's number within this segment. `needed` is the number of
    /// bytes still to be stored, for the message of a full disk.
    pub(crate) fn append(
        &mut self,
        first: Addr,
        pages: u64,
        codec: Codec,
        data: &[u8],
        needed: u64,
    ) -> Result<u32, StoreError> {
        let Ok(number) = u32::try_from(self.frames.len()) else {
            return Err(StoreError::misuse(&self.path, "too many frames"));
        };
        if self.slots == FRAMES_PER_BLOCK {
            self.finish_block(needed)?;
            self.begin_block(needed)?;
        }
        if codec == Codec::Raw {
            self.pad_to_page(needed)?;
        }
        let frame = Frame {
            segment: self.header.number,
            codec,
            offset: self.len(),
            stored_len: data.len() as u64,
            pages,
            checksum: xxh3_64(data),
        };
        self.put(data, needed)?;
        let slot = FrameHeader { first, frame }.encode();
        self.slots += 1;
        let at = self.slots * slot.len();
        self.block[at..at + slot.len()].copy_from_slice(&slot);
        self.frames.push(frame);
        if number == 0 {
            fault::point("segment-half");
        }
        Ok(number)
    }

    /// Writes what is staged and makes the file durable.
    pub(crate) fn finish(&mut self) -> Result<(), StoreError> {
        // A buffered file may meet the full disk only now, with anything up to its whole length.
        let needed = self.len() + BLOCK_LEN as u64;
        self.pad_to_page(needed)?;
        self.flush(needed)?;
        self.finish_block(needed)?;
        self.file.sync_all().map_err(StoreError::write("sync", &self.path, needed))
    }

    fn begin_block(&mut self, needed: u64) -> Result<(), StoreError> {
        self.pad_to_page(needed)?;
        self.header.block = (self.frames.len() / FRAMES_PER_BLOCK) as u64;
        self.block_at = self.len();
        self.slots = 0;
        self.block.fill(0);
        let slot = self.header.encode();
        self.block[..slot.len()].copy_from_slice(&slot);
        self.put(&[0; BLOCK_LEN], needed)
    }

    /// Puts the headers into their place: into the staging buffer if that still holds it, else into the file.
    fn finish_block(&mut self, needed: u64) -> Result<(), StoreError> {
        if let Some(at) = self.block_at.checked_sub(self.written).and_then(|at| usize::try_from(at).ok())
            && at < self.staged
        {
            self.staging[at..at + BLOCK_LEN].copy_from_slice(&self.block);
            return Ok(());
        }
        write_at(&mut self.file, &mut self.direct, &self.path, &self.block, self.block_at)
            .map_err(StoreError::write("write", &self.path, needed))
    }

    fn pad_to_page(&mut self, needed: u64) -> Result<(), StoreError> {
        let page = PAGE_SIZE as usize;
        let missing = self.staged.next_multiple_of(page) - self.staged;
        self.put(&[0; PAGE_SIZE as usize][..missing], needed)
    }

    fn put(&mut self, mut data: &[u8], needed: u64) -> Result<(), StoreError> {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(STAGING_LEN - self.staged));
            self.staging[self.staged..self.staged + now.len()].copy_from_slice(now);
            self.staged += now.len();
            data = later;
            if self.staged == STAGING_LEN {
                self.flush(needed)?;
            }
        }
        Ok(())
    }

    /// Writes the staging buffer, which holds whole pages.
    fn flush(&mut self, needed: u64) -> Result<(), StoreError> {
        let data = &self.staging[..self.staged];
        write_at(&mut self.file, &mut self.direct, &self.path, data, self.written)
            .map_err(StoreError::write("write", &self.path, needed))?;
        self.written += self.staged as u64;
        self.staged = 0;
        Ok(())
    }
}

/// Writes all of `data`; goes over to buffered writes for good if the file system refuses direct ones only now.
fn write_at(file: &mut File, direct: &mut bool, path: &Path, data: &[u8], offset: u64) -> io::Result<()> {
    match file.write_all_at(data, offset) {
        Err(error) if *direct && error.raw_os_error() == Some(libc::EINVAL) => {
            *file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
            *direct = false;
            file.write_all_at(data, offset)
        }
        other => other,
    }
}
