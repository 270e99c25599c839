//! The copy on the host of what blocks hold, and the digests of its chunks.
//!
//! Runs in: the service thread. The copy is private memory of the program, hence part of every image by itself; it
//! stays between checkpoints, so that only chunks that have changed are copied. A chunk's slot is its offset in the
//! copy, in chunks. Invariants: the digest of a slot is that of what the copy has there, or [`Digest::NONE`]; what no
//! block has any more is neither in the copy nor among the digests. While content is away the copy cannot be written.
//! Fails by: [`CudaData::FAULT_SYSTEM`] with the kernel's error.
//!
//! # Safety
//! The mappings are this module's own; their addresses and lengths are in [`CudaData`], and only it changes them.
#![allow(unsafe_code)]

use super::calls::{Failed, Outcome, host};
use crate::platform;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use holdfast_abi::CudaData;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, Keys, digest, is_zero};

/// Lengths of the copy are multiples of it: most programs get by with the first.
const STEP: u64 = 1 << 30;
/// Blocks are multiples of it, and what none has any more is looked for in such pieces.
pub const GRANULE: u64 = 2 << 20;

/// Parts that are worth huge pages: each may become a mapping of its own.
const LONG: u64 = 4 << 20;

/// See the head of the file.
#[derive(Clone, Copy)]
pub struct HostCopy(pub &'static CudaData);

fn system(error: i32) -> Failed {
    Failed::with(CudaData::FAULT_SYSTEM | u64::from(error.unsigned_abs()))
}

impl HostCopy {
    /// Makes the copy at least so long, and writable.
    pub fn ready(self, len: u64) -> Outcome {
        let data = self.0;
        let (old, wanted) = (data.copy_len.load(Relaxed), len.next_multiple_of(STEP));
        // One by one: the first may succeed where the second does not.
        if self.table_len() < table_bytes(wanted) {
            let digests = grow(&data.digests, self.table_len(), table_bytes(wanted))?;
            data.digests.store(digests, Release);
            data.digest_slots.store(wanted / CHUNK, Release);
        }
        if old < wanted {
            let copy = grow(&data.copy, old, wanted)?;
            data.copy.store(copy, Release);
            data.copy_len.store(wanted, Release);
        }
        self.protect(true)
    }

    /// Whether the copy can be written. Only the service thread does; a stray write of the program's is to fault
    /// as it would anywhere.
    pub fn protect(self, writable: bool) -> Outcome {
        let (start, len) = (self.0.copy.load(Relaxed), self.0.copy_len.load(Relaxed));
        // SAFETY: the copy's own mapping.
        match unsafe { platform::protect(start as usize, len as usize, writable) } {
            0 => Ok(()),
            error => Err(system(error)),
        }
    }

    /// Its length.
    pub fn len(self) -> u64 {
        self.0.copy_len.load(Relaxed)
    }

    /// That of the digests, bytes.
    fn table_len(self) -> u64 {
        self.0.digest_slots.load(Relaxed) * Digest::BYTES
    }

    /// Where the content from an offset on is; `None`: so many bytes are not there.
    pub fn at(self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        (end <= self.len()).then(|| host(self.0.copy.load(Relaxed) + offset))
    }

    /// The chunk of a slot.
    pub fn chunk(self, slot: u64) -> Option<&'static [u8]> {
        let at = self.at(slot.checked_mul(CHUNK)?, CHUNK)?;
        // SAFETY: within the mapping, which is readable; the service thread alone writes to it, and not meanwhile.
        Some(unsafe { core::slice::from_raw_parts(at, CHUNK as usize) })
    }

    fn words(self, slot: u64) -> Option<&'static [AtomicU64; 2]> {
        let within = slot < self.0.digest_slots.load(Relaxed);
        // SAFETY: within the mapping of digests, of plain words.
        within.then(|| unsafe { &*host(self.0.digests.load(Relaxed) + slot * Digest::BYTES).cast() })
    }

    /// The digest of a slot.
    pub fn digest(self, slot: u64) -> Digest {
        let mut bytes = [0; 16];
        if let Some(words) = self.words(slot) {
            let (whole, _) = bytes.as_chunks_mut::<8>();
            whole.iter_mut().zip(words).for_each(|(to, word)| *to = word.load(Relaxed).to_le_bytes());
        }
        Digest::from_bytes(bytes)
    }

    /// Changes it.
    pub fn set(self, slot: u64, digest: Digest) {
        if let Some(words) = self.words(slot) {
            let bytes = digest.to_bytes();
            let (whole, _) = bytes.as_chunks::<8>();
            words.iter().zip(whole).for_each(|(word, bytes)| word.store(u64::from_le_bytes(*bytes), Relaxed));
        }
    }

    /// Changes those of so many chunks from an offset on.
    pub fn set_all(self, offset: u64, bytes: u64, mut digest: impl FnMut(u64) -> Digest) {
        (0..bytes / CHUNK).for_each(|nth| self.set(offset / CHUNK + nth, digest(nth)));
    }

    /// Content that is zero has no memory.
    pub fn clear(self, offset: u64, bytes: u64) {
        if let Some(at) = self.at(offset, bytes) {
            // SAFETY: private anonymous memory of the copy, whole pages.
            unsafe { platform::clear(at.addr(), bytes as usize) };
        }
    }

    /// This part is going to be written as a whole: where it is long it gets huge pages, which the kernel makes many
    /// times faster than small ones. No more memory than the part has.
    pub fn prefer_huge(self, offset: u64, bytes: u64) {
        let Some(at) = self.at(offset, bytes).filter(|_| bytes >= LONG) else { return };
        let start = (at.addr() as u64).next_multiple_of(GRANULE);
        let end = (at.addr() as u64 + bytes) / GRANULE * GRANULE;
        if start < end {
            platform::prefer_huge(start as usize, (end - start) as usize);
        }
    }

    /// Forgets what no block has. `has`: the offset and length of each that there is.
    pub fn keep_only(self, mut blocks: impl FnMut(&mut dyn FnMut(u64, u64))) -> Outcome {
        let granules = self.len() / GRANULE;
        let marks = platform::reserve(granules as usize);
        if marks.is_null() {
            return Err(system(libc::ENOMEM));
        }
        // SAFETY: a reservation of this length, of bytes, until the end of this function.
        let kept = unsafe { core::slice::from_raw_parts_mut(marks, granules as usize) };
        blocks(&mut |offset, bytes| {
            let (first, end) = (offset / GRANULE, offset.saturating_add(bytes).div_ceil(GRANULE));
            kept.iter_mut().skip(first as usize).take((end - first) as usize).for_each(|mark| *mark = 1);
        });
        for (granule, _) in (0..).zip(kept.iter()).filter(|(_, mark)| **mark == 0) {
            let mut slots = granule * (GRANULE / CHUNK)..(granule + 1) * (GRANULE / CHUNK);
            if slots.any(|slot| self.digest(slot) != Digest::NONE) {
                self.clear(granule * GRANULE, GRANULE);
                self.set_all(granule * GRANULE, GRANULE, |_| Digest::NONE);
            }
        }
        // SAFETY: the reservation of above, whose slice is not used any more.
        unsafe { platform::unmap(marks.addr(), granules as usize) };
        Ok(())
    }

    /// The key of the digests; chosen at the first call.
    pub fn keys(self) -> Keys {
        let words = &self.0.key;
        if words.iter().all(|word| word.load(Relaxed) == 0) {
            words.iter().for_each(|word| word.store(platform::random(), Relaxed));
        }
        let [low, high] = words;
        let [low, high] = platform::loaded([low, high]);
        Keys::new((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    /// What the processor says of the chunk of a slot: its digest, and whether it is zero.
    pub fn look(self, keys: &Keys, slot: u64) -> Option<(Digest, bool)> {
        self.chunk(slot).map(|chunk| (digest(keys, chunk), is_zero(chunk)))
    }

    /// In a child made by fork.
    pub fn forget(self) {
        for (start, len) in [(&self.0.copy, self.len()), (&self.0.digests, self.table_len())] {
            let start = start.load(Relaxed) as usize;
            if start != 0 {
                // SAFETY: a mapping of this module's, which nothing in the child needs.
                unsafe { platform::unmap(start, len as usize) };
            }
        }
    }
}

fn table_bytes(copy: u64) -> u64 {
    copy / CHUNK * Digest::BYTES
}

/// Makes a mapping longer, or makes it: its address.
fn grow(place: &AtomicU64, old: u64, new: u64) -> Outcome<u64> {
    let start = match place.load(Relaxed) {
        0 => platform::reserve(new as usize),
        // SAFETY: a mapping of this module's; who has its address reads it again.
        start => unsafe { platform::grow(start as usize, old as usize, new as usize) },
    };
    if start.is_null() { Err(system(libc::ENOMEM)) } else { Ok(start.expose_provenance() as u64) }
}
