//! Whether a frame is worth compressing by LZ4, and that.
//!
//! Called by the pipeline's workers, one [`Chooser`] each, and for the sections of a manifest. A frame stays
//! compressed only if it becomes at most 85 % of its size: below that the restart pays more for decompression, and
//! loses the mappable extent, than the disk gains. Data that does not compress comes in long stretches (random
//! doubles, compressed media), so after a few misses only a sample of the frame is tried first: 16 KiB of 1 MiB cost
//! 2 % of the work.

use holdfast_image::PAGE_SIZE;

/// Misses in a row after which samples are taken.
const PATIENCE: u32 = 3;
const PAGE: usize = PAGE_SIZE as usize;
/// Pages of a sample.
const SAMPLE_PAGES: usize = 4;

/// Largest compressed size that pays.
fn limit(raw: usize) -> usize {
    raw / 100 * 85
}

/// Decides frame by frame, by how the last ones went.
pub(crate) struct Chooser {
    enabled: bool,
    misses: u32,
    out: Vec<u8>,
    sample: Vec<u8>,
}

impl Chooser {
    pub(crate) fn new(enabled: bool) -> Chooser {
        Chooser { enabled, misses: 0, out: Vec::new(), sample: Vec::new() }
    }

    /// The frame's data compressed by LZ4, or `None` if it should be stored as it is.
    pub(crate) fn compress(&mut self, raw: &[u8]) -> Option<&[u8]> {
        if !self.enabled {
            return None;
        }
        if self.misses >= PATIENCE && !self.sample_pays(raw) {
            return None;
        }
        let len = compress_into(raw, &mut self.out)?;
        if len > limit(raw.len()) {
            self.misses = self.misses.saturating_add(1);
            return None;
        }
        self.misses = 0;
        Some(&self.out[..len])
    }

    /// Compresses four pages, spread over the frame.
    fn sample_pays(&mut self, raw: &[u8]) -> bool {
        if raw.len() <= 2 * SAMPLE_PAGES * PAGE {
            return true;
        }
        self.sample.clear();
        for part in 0..SAMPLE_PAGES {
            let at = raw.len() / SAMPLE_PAGES * part / PAGE * PAGE;
            self.sample.extend_from_slice(&raw[at..at + PAGE]);
        }
        compress_into(&self.sample, &mut self.out).is_some_and(|len| len <= limit(self.sample.len()))
    }
}

/// Length of the LZ4 block in `out`.
pub(crate) fn compress_into(raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let most = lz4_flex::block::get_maximum_output_size(raw.len());
    if out.len() < most {
        out.resize(most, 0);
    }
    lz4_flex::block::compress_into(raw, out).ok()
}

/// Unpacks an LZ4 block into exactly `raw`.
///
/// # Errors
/// Says what is wrong with the data; never panics on any data (the safe decoder is built in, see `Cargo.toml`).
pub(crate) fn decompress(stored: &[u8], raw: &mut [u8]) -> Result<(), String> {
    match lz4_flex::block::decompress_into(stored, raw) {
        Ok(len) if len == raw.len() => Ok(()),
        Ok(len) => Err(format!("the data became {len} bytes, not {}", raw.len())),
        Err(error) => Err(format!("the data cannot be decompressed: {error}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::tests::noise;
    use super::*;

    #[test]
    fn noise_is_left_and_text_is_compressed_again_after_noise() {
        let mut chooser = Chooser::new(true);
        let (noise, text) = (noise(1 << 20), b"all work and no play ".repeat(1 << 15));
        for _ in 0..10 {
            assert!(chooser.compress(&noise).is_none());
        }
        assert!(chooser.misses == PATIENCE, "only samples were tried at the end");
        let stored = chooser.compress(&text).unwrap().to_vec();
        assert!(stored.len() < text.len() / 10);
        let mut back = vec![0; text.len()];
        decompress(&stored, &mut back).unwrap();
        assert!(back == text);
        assert!(decompress(&stored, &mut back[1..]).is_err());
        assert!(decompress(&noise, &mut back).is_err());
        assert!(Chooser::new(false).compress(&text).is_none());
    }
}
