//! Sections of a manifest: tag, codec, length, data. Long ones are compressed.
//!
//! Called by [`super::manifest`]. A fragmented page index has an entry for each page; its entries differ in few bytes,
//! which lie together when the table is stored column by column.
//! Invariant: a section never makes the reader allocate more than 255 times its length in the file, the most that LZ4
//! can yield.

use super::{Fields, FormatError, bad};
use crate::codec;
use std::borrow::Cow;

/// Bytes below which a section is stored as it is.
const SHORT: usize = 4096;
/// Most bytes that one byte of an LZ4 block can stand for (lz4_Block_format.md: a length byte counts up to 255).
const MOST_PER_BYTE: u64 = 255;

/// How the data of a section is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum Packing {
    /// As it is.
    Raw = 0,
    /// Its length (8 bytes), then one LZ4 block.
    Lz4 = 1,
    /// As `Lz4`, of a table stored column by column: first byte of all entries, second byte of all entries ...
    Columns = 2,
}

/// A section whose place in the file has been checked, but not its data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    /// Offset of the data in the file.
    pub(super) base: u64,
    packing: Packing,
    raw_len: usize,
    stored: &'a [u8],
}

impl<'a> Section<'a> {
    pub(super) const EMPTY: Section<'static> =
        Section { base: 0, packing: Packing::Raw, raw_len: 0, stored: &[] };

    /// Takes the next section, which must have this tag. `packed`: whether this version has compressed sections.
    pub(super) fn take(
        fields: &mut Fields<'a>,
        tag: [u8; 4],
        packed: bool,
    ) -> Result<Section<'a>, FormatError> {
        let at = fields.offset();
        if fields.array::<4>()? != tag {
            return Err(bad(at, format!("the section {} should be here", tag.escape_ascii())));
        }
        let packing_at = fields.offset();
        let packing = match fields.u32()? {
            0 => Packing::Raw,
            1 if packed => Packing::Lz4,
            2 if packed => Packing::Columns,
            other => return Err(bad(packing_at, format!("unknown codec {other} of a section"))),
        };
        let len = fields.u64()?;
        let base = fields.offset();
        let Ok(len) = usize::try_from(len) else {
            return Err(bad(at, format!("a section of {len} bytes")));
        };
        let mut stored = fields.take(len)?;
        fields.take(len.next_multiple_of(8) - len)?;
        let mut raw_len = len;
        if packing != Packing::Raw {
            let mut inner = Fields::new(stored, base);
            let claimed = inner.u64()?;
            stored = inner.take(len - 8)?;
            if claimed > (stored.len() as u64).saturating_mul(MOST_PER_BYTE) {
                return Err(bad(base, format!("{} bytes cannot become {claimed}", stored.len())));
            }
            raw_len = usize::try_from(claimed).unwrap_or(usize::MAX);
        }
        Ok(Section { base, packing, raw_len, stored })
    }

    /// The data; that of a table has entries of `entry_len` bytes.
    pub(super) fn data(&self, entry_len: usize) -> Result<Cow<'a, [u8]>, FormatError> {
        if !self.raw_len.is_multiple_of(entry_len) {
            return Err(bad(
                self.base,
                format!("a table of {} bytes with entries of {entry_len}", self.raw_len),
            ));
        }
        if self.packing == Packing::Raw {
            return Ok(Cow::Borrowed(self.stored));
        }
        let mut raw = vec![0; self.raw_len];
        codec::decompress(self.stored, &mut raw).map_err(|what| bad(self.base, what))?;
        if self.packing == Packing::Columns {
            raw = transpose(&raw, raw.len() / entry_len);
        }
        Ok(Cow::Owned(raw))
    }

    /// Fields of the decoded data. Those of a compressed section have no offsets of their own in the file.
    pub(super) fn fields<'d>(&self, data: &'d [u8]) -> Fields<'d> {
        match self.packing {
            Packing::Raw => Fields::new(data, self.base),
            Packing::Lz4 | Packing::Columns => Fields::unpacked(data, self.base),
        }
    }
}

/// Appends a section; `entry_len` is 1 unless the data is a table. Compressed if `may_pack` and that makes it shorter.
pub(super) fn push(body: &mut Vec<u8>, tag: [u8; 4], data: &[u8], entry_len: usize, may_pack: bool) {
    let packed = (may_pack && data.len() >= SHORT)
        .then(|| {
            let mut out = Vec::new();
            let len = match entry_len {
                1 => codec::compress_into(data, &mut out),
                _ => codec::compress_into(&transpose(data, entry_len), &mut out),
            }?;
            out.truncate(len);
            Some(out)
        })
        .flatten()
        .filter(|out| out.len() + 8 < data.len());
    let (packing, len) = match &packed {
        None => (Packing::Raw, data.len()),
        Some(out) if entry_len == 1 => (Packing::Lz4, out.len() + 8),
        Some(out) => (Packing::Columns, out.len() + 8),
    };
    body.extend_from_slice(&tag);
    body.extend_from_slice(&(packing as u32).to_le_bytes());
    body.extend_from_slice(&(len as u64).to_le_bytes());
    match &packed {
        None => body.extend_from_slice(data),
        Some(out) => {
            body.extend_from_slice(&(data.len() as u64).to_le_bytes());
            body.extend_from_slice(out);
        }
    }
    body.resize(body.len().next_multiple_of(8), 0);
}

/// Reads `data` as rows of `width` bytes and returns its columns, one after the other. With the number of rows as
/// width it goes back.
fn transpose(data: &[u8], width: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    for column in 0..width {
        out.extend(data.iter().skip(column).step_by(width.max(1)));
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TAG: [u8; 4] = *b"TEST";

    fn packed(data: &[u8], entry_len: usize) -> Vec<u8> {
        let mut body = Vec::new();
        push(&mut body, TAG, data, entry_len, true);
        body
    }

    fn unpacked(body: &[u8], entry_len: usize) -> Result<Vec<u8>, FormatError> {
        let mut fields = Fields::new(body, 64);
        Section::take(&mut fields, TAG, true)?.data(entry_len).map(Cow::into_owned)
    }

    #[test]
    fn sections_come_back_and_a_fragmented_index_becomes_small() {
        let entries: Vec<u8> = (0_u64..20_000)
            .flat_map(|n| [n * 8192 + (1 << 46), 1, n % 256, n / 256])
            .flat_map(u64::to_le_bytes)
            .collect();
        for (data, entry_len, most) in [
            (&entries[..], 32, entries.len() / 8),
            (&entries[..], 1, entries.len()),
            (&entries[..3200], 32, 3200 + 16),
            (&[], 40, 16),
        ] {
            let body = packed(data, entry_len);
            assert!(body.len() <= most && body.len().is_multiple_of(8), "{} bytes", body.len());
            assert_eq!(unpacked(&body, entry_len).unwrap(), data);
        }
        assert!(unpacked(&packed(&entries, 32), 48).is_err());
    }

    #[test]
    fn hostile_lengths_and_codecs_are_refused() {
        let body = packed(&vec![7; 100_000], 1);
        for (at, value) in
            [(16, u64::MAX), (16, 1 << 40), (16, 99_999), (16, 0), (8, 7), (8, u64::MAX), (4, 3)]
        {
            let mut bad = body.clone();
            let len = if at == 4 { 4 } else { 8 };
            bad[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            let error = unpacked(&bad, 1).unwrap_err();
            assert!(matches!(error, FormatError::Bad { offset, .. } if offset <= 64 + body.len() as u64));
        }
        let mut fields = Fields::new(&body, 64);
        assert!(Section::take(&mut fields, TAG, false).is_err(), "version 1 has no compressed sections");
    }
}
