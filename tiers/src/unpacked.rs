//! Segments as their readers see them: one that is packed ([`crate::format::packed`]) is unpacked on the way.
//!
//! Called by whatever opens a segment, on any tier. Invariants: what comes out has matched the checksum of its stripe,
//! but for stripes that are stored as they are: frames have checksums of their own; memory is a few stripes.
//! Fails by: [`TierError::Damaged`], which names the blob and the stripe.

use crate::codec::{Codec, decode};
use crate::format::packed::{STRIPE, Stripe, TAIL, TRAILER_LEN, Trailer, stripe_len};
use crate::format::{FormatError, HEADER_LEN};
use crate::piece_cache::PieceCache;
use crate::tier::{Blob, BlobName, Entry, Tier, TierError};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Unpacked stripes of all blobs, by serial of the blob and number: a frame may lie in two, and neighbours are read one
/// after the other, or by several threads at once. So many, of 1 MiB, however many segments an image has.
static STRIPES: PieceCache<(u64, u64)> = PieceCache::new(16);

thread_local! {
    /// A stripe as it is stored.
    static STORED: RefCell<Vec<u8>> = RefCell::default();
}

/// A packed segment.
struct Unpacked {
    blob: Box<dyn Blob>,
    /// For messages.
    object: String,
    serial: u64,
    len: u64,
    /// With where each begins.
    stripes: Vec<(u64, Stripe)>,
    /// Where the tail begins.
    tail: u64,
}

/// Bytes at the end of a blob that are read at once: trailer and table of a segment of 1 GiB.
const END: u64 = 16 << 10;

/// Opens a segment that has, or should have, `len` bytes. What is returned may have another length.
///
/// # Errors
/// Of the tier; it is packed, and damaged.
pub(crate) fn open(tier: &dyn Tier, name: &BlobName, len: u64) -> Result<Box<dyn Blob>, TierError> {
    let blob = tier.open(name)?;
    if blob.len() == len || blob.len() < TAIL + TRAILER_LEN {
        return Ok(blob);
    }
    let object = || format!("{}/{name}", tier.info().name.trim_end_matches('/'));
    let damaged = |error: FormatError| {
        let (offset, what) = error.place();
        TierError::Damaged { object: object(), offset, what }
    };
    let mut end = vec![0; usize::try_from(blob.len().min(END)).unwrap_or(0)];
    blob.read_at(blob.len() - end.len() as u64, &mut end)?;
    let Some((before, trailer)) = end.split_last_chunk::<HEADER_LEN>() else { return Ok(blob) };
    let Some(trailer) = Trailer::decode(trailer, blob.len()).map_err(damaged)? else { return Ok(blob) };
    let (at, table_len) = trailer.table();
    let table = match before.len().checked_sub(table_len) {
        Some(from) => before[from..].to_vec(),
        None => {
            let mut table = vec![0; table_len];
            blob.read_at(at, &mut table)?;
            table
        }
    };
    let (stripes, tail) = trailer.stripes(&table).map_err(damaged)?;
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    Ok(Box::new(Unpacked { blob, object: object(), serial, len: trailer.segment_len, stripes, tail }))
}

/// How long segments in a listing are without packing. Each is looked at once.
#[derive(Default)]
pub(crate) struct PlainLengths(BTreeMap<BlobName, Result<u64, String>>);

impl PlainLengths {
    /// The length of one that should have `len` bytes; or why it cannot be told.
    ///
    /// # Errors
    /// The tier cannot be asked.
    pub(crate) fn of(
        &mut self,
        tier: &dyn Tier,
        entry: &Entry,
        len: u64,
    ) -> Result<Result<u64, String>, TierError> {
        if entry.len == len {
            return Ok(Ok(len));
        }
        if let Some(known) = self.0.get(&entry.name) {
            return Ok(known.clone());
        }
        let found = match open(tier, &entry.name, len) {
            Ok(blob) => Ok(blob.len()),
            Err(error @ (TierError::Unavailable { .. } | TierError::Settings { .. })) => return Err(error),
            Err(error) => Err(error.to_string()),
        };
        Ok(self.0.entry(entry.name.clone()).or_insert(found).clone())
    }
}

impl Unpacked {
    /// Fills `raw`, which is as long as the stripe.
    fn stripe(&self, number: usize, stored: &mut Vec<u8>, raw: &mut [u8]) -> Result<(), TierError> {
        let (offset, stripe) = self.stripes[number];
        stored.resize(stripe.stored_len as usize, 0);
        self.blob.read_at(offset, stored)?;
        let what = match xxh3_64(stored) == stripe.checksum {
            true => decode(stripe.codec, stored, raw),
            false => Err(format!("a stripe of {} bytes does not match its checksum", stripe.stored_len)),
        };
        what.map_err(|what| TierError::Damaged { object: self.object.clone(), offset, what })
    }

    /// Fills `out` from byte `from` of a stripe on.
    fn part(&self, number: u64, from: u64, out: &mut [u8]) -> Result<(), TierError> {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let (offset, stripe) = self.stripes[at];
        if stripe.codec == Codec::Raw {
            return self.blob.read_at(offset + from, out);
        }
        STORED.with_borrow_mut(|stored| {
            let len = usize::try_from(stripe_len(self.len, number)).unwrap_or(0);
            // Who copies a segment asks for each stripe once, and for all of it.
            if out.len() == len {
                return self.stripe(at, stored, out);
            }
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            STRIPES.with(
                (self.serial, number),
                |stripe| {
                    stripe.resize(len, 0);
                    self.stripe(at, stored, stripe)
                },
                |stripe| out.copy_from_slice(&stripe[from..from + out.len()]),
            )
        })
    }
}

impl Blob for Unpacked {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(TierError::Short { object: self.object.clone(), len: self.len });
        }
        let (mut at, mut rest) = (offset, buffer);
        let tail = self.len - TAIL;
        while !rest.is_empty() {
            if at >= tail {
                return self.blob.read_at(self.tail + (at - tail), rest);
            }
            let (number, from) = (at / STRIPE, at % STRIPE);
            let here = stripe_len(self.len, number) - from;
            let here = usize::try_from(here).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            self.part(number, from, now)?;
            at += here as u64;
            rest = later;
        }
        Ok(())
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        None
    }
}
