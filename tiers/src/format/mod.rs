//! The bytes of an image: manifest files and segment files, versions 1 to 3. See `docs/format.md`.
//!
//! Pure functions between bytes and values; no file is opened here. Called by the writer, by [`crate::Image`] and by
//! the fuzz targets.
//! Invariants: every field is little-endian by name; every offset, length and count is checked against the bytes that
//! are really there before anything is computed with it; magic, version and length stand raw at the front, so that any
//! reader can say which version it has met.
//! Fails by: [`FormatError`], which says at which byte of the file; never by a panic.

pub mod archive;
pub mod manifest;
pub mod packed;
mod section;
pub mod segment;

use xxhash_rust::xxh3::xxh3_64;

/// First bytes of every file of an image.
pub const MAGIC: [u8; 8] = *b"HOLDFAST";
/// The version that is written, and the newest that is read.
pub const VERSION: u32 = 3;
/// Length of the fixed header of both kinds of file, bytes.
pub const HEADER_LEN: usize = 64;
/// Where the header's own checksum lies: after everything that it covers.
const HEADER_SUM: usize = HEADER_LEN - 8;

/// What is wrong with bytes that should be part of an image.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// The file says that it was written in another version of the format.
    #[error("format version {found}")]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The bytes are not those that were written.
    #[error("at byte {offset}: {what}")]
    Bad {
        /// Offset in the file.
        offset: u64,
        /// What should be there.
        what: String,
    },
}

impl FormatError {
    /// Where it is, and what is wrong there.
    pub(crate) fn place(self) -> (u64, String) {
        match self {
            FormatError::Bad { offset, what } => (offset, what),
            // The version is behind the magic bytes.
            FormatError::Version { found } => {
                (8, format!("format version {found} is newer than this holdfast"))
            }
        }
    }
}

/// Shorthand for [`FormatError::Bad`].
pub(crate) fn bad(offset: u64, what: impl Into<String>) -> FormatError {
    FormatError::Bad { offset, what: what.into() }
}

/// The kind of file, as written behind the version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// `manifest-EEEEEE`
    Manifest = 1,
    /// `segment-EEEEEE-NNN`
    Segment = 2,
    /// A version as one file.
    Archive = 3,
}

/// Reads little-endian fields from bytes that begin at `base` in their file.
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    base: u64,
    at: usize,
    /// Bytes of the file for each byte here: 0 for data that was compressed.
    step: u64,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], base: u64) -> Fields<'a> {
        Fields { bytes, base, at: 0, step: 1 }
    }
    /// Bytes that were decompressed from what lies at `base`.
    pub(crate) fn unpacked(bytes: &'a [u8], base: u64) -> Fields<'a> {
        Fields { bytes, base, at: 0, step: 0 }
    }
    /// Offset of the next field in the file; of decompressed data that of the whole.
    pub(crate) fn offset(&self) -> u64 {
        self.base.saturating_add((self.at as u64).saturating_mul(self.step))
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }
    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(bad(self.offset(), format!("{len} bytes should follow, the file ends before")));
        };
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N)?);
        Ok(value)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }
    /// A reserved field: refused when not zero, so that a later version may give it a meaning.
    pub(crate) fn reserved_u32(&mut self) -> Result<(), FormatError> {
        let offset = self.offset();
        if self.u32()? == 0 { Ok(()) } else { Err(bad(offset, "a reserved field is not zero")) }
    }
}

/// Writes magic, version and kind; the rest of the header follows.
fn begin_header(kind: Kind) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_LEN);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&(kind as u32).to_le_bytes());
    header
}

/// Ends a header or a frame header with the checksum of what it holds so far.
fn seal_header(header: &mut Vec<u8>) {
    let sum = xxh3_64(header);
    header.extend_from_slice(&sum.to_le_bytes());
}

/// Checks magic, version, header checksum and kind, in this order, and gives the version and the fields after them.
///
/// The version comes before the checksum: a later version may place the checksum elsewhere.
fn open_header(bytes: &[u8], base: u64, kind: Kind) -> Result<(u32, Fields<'_>), FormatError> {
    let Some(header) = bytes.get(..HEADER_LEN) else {
        return Err(bad(
            base + bytes.len() as u64,
            format!("the header has {HEADER_LEN} bytes, the file ends before"),
        ));
    };
    let mut fields = Fields::new(&header[..HEADER_SUM], base);
    if fields.array::<8>()? != MAGIC {
        return Err(bad(base, "this does not begin as a file of Holdfast does"));
    }
    let found = fields.u32()?;
    if !(1..=VERSION).contains(&found) {
        return Err(FormatError::Version { found });
    }
    check_sum(header, base)?;
    let at = fields.offset();
    if fields.u32()? != kind as u32 {
        return Err(bad(at, "this is another kind of file (manifest, segment or exported image)"));
    }
    Ok((found, fields))
}

/// Checks the checksum at the end of a 64-byte header.
fn check_sum(header: &[u8], base: u64) -> Result<(), FormatError> {
    let mut sum = Fields::new(&header[HEADER_SUM..], base + HEADER_SUM as u64);
    let at = sum.offset();
    if sum.u64()? == xxh3_64(&header[..HEADER_SUM]) {
        Ok(())
    } else {
        Err(bad(at, "the header does not match its checksum"))
    }
}
