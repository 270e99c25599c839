//! A file of `holdfast export` of any bytes: it becomes a whole version, or nothing.
#![no_main]

use holdfast_image::Epoch;
use holdfast_tiers::TierFolder;
use holdfast_tiers::format::HEADER_LEN;
use holdfast_tiers::format::archive::{ArchiveHeader, Part, PartKind};
use holdfast_tiers::format::manifest::Manifest;
use holdfast_tiers::hygiene::Archive;
use holdfast_lab::Model;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

fn unpack(mut file: &[u8]) {
    let Some(folder) = TierFolder::new(Arc::new(Model::new("model")), "job") else { return };
    let Ok(archive) = Archive::open(&mut file, &|_| Ok(())) else { return };
    let epoch = archive.epoch();
    let done = archive.unpack(&folder, &|_| ());
    let Ok(there) = folder.inventory() else { return };
    match done {
        Ok(()) => assert!(there.versions.contains(&epoch.0)),
        Err(_) => assert!(there.versions.is_empty() && there.segments.is_empty()),
    }
}

/// A part with right checksums.
fn part(file: &mut Vec<u8>, kind: PartKind, epoch: Epoch, number: u32, data: &[u8]) {
    file.extend(Part { kind, epoch, number, len: data.len() as u64 }.encode());
    file.extend_from_slice(data);
    file.extend_from_slice(&xxh3_64(data).to_le_bytes());
}

/// Right headers around a manifest and segments of any bytes.
fn with_headers(data: &[u8]) -> Option<Vec<u8>> {
    let (len, data) = data.split_first_chunk::<2>()?;
    let (manifest, mut rest) = data.split_at_checked(u16::from_le_bytes(*len).into())?;
    let opened = Manifest::open(manifest).ok()?;
    let mut file = ArchiveHeader { epoch: opened.epoch, image_id: opened.image_id }.encode();
    part(&mut file, PartKind::Origin, opened.epoch, 0, b"{}");
    part(&mut file, PartKind::Manifest, opened.epoch, 0, manifest);
    for segment in opened.segments().ok()? {
        let (bytes, later) = rest.split_at(rest.len().min(usize::try_from(segment.len).ok()?));
        part(&mut file, PartKind::Segment, segment.epoch, segment.number, bytes);
        rest = later;
    }
    let end = Part { kind: PartKind::End, epoch: opened.epoch, number: 0, len: 0 }.encode();
    debug_assert_eq!(end.len(), HEADER_LEN);
    file.extend(end);
    Some(file)
}

fuzz_target!(|data: &[u8]| {
    unpack(data);
    if let Some(file) = with_headers(data) {
        unpack(&file);
    }
});
