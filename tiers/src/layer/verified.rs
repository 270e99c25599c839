//! A tier whose writes are read back before they count.
//!
//! Frames and manifests carry checksums that every reader looks at; this layer is for the moment before that: a copy
//! that was written badly is found while the one above still exists, not when a restart needs it. A published blob is
//! small and decides what a version is: it is always read back. Of other blobs either the length is looked at (what
//! short writes and quotas get wrong, at the price of one request), or every byte (what a tier of unknown quality
//! deserves, at the price of reading as much as was written).
//! Invariant: what was not read back as it was written is removed again, and the caller is told.

use crate::tier::{Blob, BlobName, BlobWriter, Listing, Tier, TierError, TierInfo};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read back at a time.
const CHUNK: usize = 1 << 20;

/// How much of a blob is read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// Its length.
    Length,
    /// Every byte.
    Bytes,
}

/// See the head of the file.
pub struct Verified {
    below: Arc<dyn Tier>,
    depth: Depth,
}

impl Verified {
    /// `below`, with what is written there read back.
    pub fn new(below: Box<dyn Tier>, depth: Depth) -> Verified {
        Verified { below: Arc::from(below), depth }
    }
}

/// What was written, or should have been.
struct Written {
    len: u64,
    sum: u64,
}

/// The address of a blob, for messages.
fn address(tier: &dyn Tier, name: &BlobName) -> String {
    format!("{}/{name}", tier.info().name)
}

/// Reads the whole blob, and compares.
fn compare_bytes(blob: &dyn Blob, wanted: &Written, object: String) -> Result<(), TierError> {
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; CHUNK.min(usize::try_from(wanted.len).unwrap_or(CHUNK))];
    let mut offset = 0;
    while offset < wanted.len {
        let len = buffer.len().min(usize::try_from(wanted.len - offset).unwrap_or(CHUNK));
        blob.read_at(offset, &mut buffer[..len])?;
        hasher.update(&buffer[..len]);
        offset += len as u64;
    }
    if hasher.digest() == wanted.sum {
        return Ok(());
    }
    Err(TierError::Damaged { object, offset: 0, what: "other bytes are read back than were written".into() })
}

fn compare(tier: &dyn Tier, name: &BlobName, wanted: &Written, depth: Depth) -> Result<(), TierError> {
    let blob = tier.open(name)?;
    let object = address(tier, name);
    match blob.len() {
        len if len < wanted.len => return Err(TierError::Short { object, len }),
        len if len > wanted.len => {
            let what = format!("{len} bytes are there, {} were written", wanted.len);
            return Err(TierError::Damaged { object, offset: wanted.len, what });
        }
        _ => {}
    }
    match depth {
        Depth::Length => Ok(()),
        Depth::Bytes => compare_bytes(blob.as_ref(), wanted, object),
    }
}

/// As [`compare`]; what is wrong is removed.
fn check(tier: &dyn Tier, name: &BlobName, wanted: &Written, depth: Depth) -> Result<(), TierError> {
    let result = compare(tier, name, wanted, depth);
    if matches!(result, Err(TierError::Short { .. } | TierError::Damaged { .. })) {
        // The first error is the one to report; a blob that stays is refused by its checksums when it is read.
        let _ = tier.remove(name);
    }
    result
}

impl Tier for Verified {
    fn info(&self) -> &TierInfo {
        self.below.info()
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.below.list(folder)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.below.open(name)
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        Ok(Box::new(VerifiedWriter {
            writer: self.below.create(name, expected)?,
            tier: Arc::clone(&self.below),
            name: name.clone(),
            depth: self.depth,
            len: 0,
            hasher: Xxh3::new(),
        }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.below.publish(name, bytes)?;
        let mut hasher = Xxh3::new();
        hasher.update(bytes);
        let wanted = Written { len: bytes.len() as u64, sum: hasher.digest() };
        check(self.below.as_ref(), name, &wanted, Depth::Bytes)
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.below.remove(name)
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.below.clean(folder)
    }
}

struct VerifiedWriter {
    writer: Box<dyn BlobWriter>,
    tier: Arc<dyn Tier>,
    name: BlobName,
    depth: Depth,
    len: u64,
    hasher: Xxh3,
}

impl BlobWriter for VerifiedWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.writer.append(bytes)?;
        self.len += bytes.len() as u64;
        if self.depth == Depth::Bytes {
            self.hasher.update(bytes);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        self.writer.finish()?;
        let wanted = Written { len: self.len, sum: self.hasher.digest() };
        check(self.tier.as_ref(), &self.name, &wanted, self.depth)?;
        Ok(self.len)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::layer::{Damage, Fault, Faults, Faulty, Model};

    fn put(tier: &dyn Tier, name: &BlobName, bytes: &[u8]) -> Result<u64, TierError> {
        let mut writer = tier.create(name, None)?;
        for piece in bytes.chunks(1000) {
            writer.append(piece)?;
        }
        writer.finish()
    }

    #[test]
    fn what_is_as_it_was_written_passes() {
        for depth in [Depth::Length, Depth::Bytes] {
            let tier = Verified::new(Box::new(Model::new("model")), depth);
            let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
            for (name, bytes) in [("a/x", &bytes[..]), ("a/empty", &[])] {
                assert_eq!(put(&tier, &BlobName::new(name).unwrap(), bytes).unwrap(), bytes.len() as u64);
            }
            tier.publish(&BlobName::new("a/m").unwrap(), &bytes[..100]).unwrap();
            assert_eq!(tier.list("a").unwrap().blobs.len(), 3);
        }
    }

    #[test]
    fn what_was_written_badly_is_told_and_removed() {
        let name = BlobName::new("a/x").unwrap();
        let cases = [
            (Damage::Truncate(10), Depth::Length, true),
            (Damage::Zero, Depth::Length, true),
            (Damage::Flip(4999), Depth::Bytes, false),
            (Damage::Extend, Depth::Length, false),
        ];
        for (damage, depth, short) in cases {
            let model = Model::new("model");
            // Damaged when it is opened for the first time: that is, before it is read back.
            let (at, victim) = (model.clone(), name.clone());
            let faults = Faults::new(move |operation| {
                if operation.call == crate::layer::Call::Open {
                    at.damage(&victim, damage);
                }
                None::<Fault>
            });
            let tier = Verified::new(Box::new(Faulty::new(Box::new(model.clone()), faults)), depth);
            let error = put(&tier, &name, &[5; 5000]).unwrap_err();
            assert_eq!(matches!(error, TierError::Short { .. }), short, "{damage:?}: {error}");
            assert_eq!(matches!(error, TierError::Damaged { .. }), !short, "{damage:?}: {error}");
            let error = tier.publish(&name, &[5; 5000]).unwrap_err();
            assert!(matches!(error, TierError::Short { .. } | TierError::Damaged { .. }), "{error}");
            assert_eq!(model.list("a").unwrap().blobs, []);
        }
    }
}
