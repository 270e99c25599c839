//! LZ4 blocks, of frames and of sections of a manifest.

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
    use super::*;

    #[test]
    fn only_the_whole_length_is_unpacked() {
        let text = b"all work and no play ".repeat(1 << 15);
        let mut stored = Vec::new();
        let len = compress_into(&text, &mut stored).unwrap();
        assert!(len < text.len() / 10);
        let mut back = vec![0; text.len()];
        decompress(&stored[..len], &mut back).unwrap();
        assert!(back == text);
        assert!(decompress(&stored[..len], &mut back[1..]).is_err());
    }
}
