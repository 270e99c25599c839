//! Folders in memory for tests, and blobs in them.

use holdfast_tiers::tier::{Blob, BlobName, MemoryTier, Tier, TierError};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub const MIB: u64 = 1 << 20;

/// A folder in memory that is removed at the end of the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new("/dev/shm").join(format!("holdfast-test-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    pub fn open(&self, max: u64) -> MemoryTier {
        MemoryTier::open(&self.0, max).unwrap()
    }

    /// The inode of a blob, and the number of all files.
    pub fn inode(&self, blob: &str) -> u64 {
        fs::metadata(self.0.join(blob)).unwrap().ino()
    }

    pub fn files(&self, folder: &str) -> usize {
        fs::read_dir(self.0.join(folder)).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

/// Bytes that no other salt has.
pub fn bytes(len: usize, salt: u64) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(len).collect()
}

pub fn put(tier: &dyn Tier, to: &str, data: &[u8], expected: Option<u64>) -> Result<u64, TierError> {
    let mut writer = tier.create(&name(to), expected)?;
    for piece in data.chunks(300_000) {
        writer.append(piece)?;
    }
    writer.finish()
}

pub fn read(blob: &dyn Blob) -> Vec<u8> {
    let mut data = vec![0; usize::try_from(blob.len()).unwrap()];
    blob.read_at(0, &mut data).unwrap();
    data
}
