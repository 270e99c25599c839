//! A manifest of any bytes: decoded or refused, and what is decoded holds together.
#![no_main]

use holdfast_image::record::ProcessRecord;
use holdfast_tiers::format::VERSION;
use holdfast_tiers::format::manifest::{Manifest, Place};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// A right header of this version of the format in front of any body.
fn with_header(version: u32, body: &[u8]) -> Vec<u8> {
    let mut file = b"HOLDFAST".to_vec();
    file.extend_from_slice(&version.to_le_bytes());
    file.extend_from_slice(&1_u32.to_le_bytes());
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&xxh3_64(body).to_le_bytes());
    file.extend_from_slice(&1_u64.to_le_bytes());
    file.extend_from_slice(&[0; 16]);
    let sum = xxh3_64(&file);
    file.extend_from_slice(&sum.to_le_bytes());
    file.extend_from_slice(body);
    file
}

fn decode(file: &[u8]) {
    let Ok(manifest) = Manifest::open(file) else { return };
    let _ = manifest.figures();
    if let Ok(record) = manifest.record() {
        let _ = ProcessRecord::decode(record.kind, &record.bytes);
    }
    let _ = manifest.history();
    let Ok(segments) = manifest.segments() else { return };
    let Ok(frames) = manifest.frames(&segments) else { return };
    for frame in &frames {
        assert!(frame.end() <= segments[frame.segment as usize].len && frame.raw_len() <= 1 << 20);
    }
    let Ok(index) = manifest.index(&frames) else { return };
    for pair in index.windows(2) {
        assert!(pair[0].run.end() <= pair[1].run.start);
    }
    for entry in index {
        if let Place::Frame { frame, page } = entry.place {
            assert!(u64::from(page) + entry.run.pages.0 <= frames[frame as usize].pages);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    decode(data);
    for version in 1..=VERSION {
        decode(&with_header(version, data));
    }
});
