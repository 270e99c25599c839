//! What every tier keeps, whatever it is made of: the tests of each kind of tier call [`conforms`].

use holdfast_tiers::tier::{Blob, BlobName, Tier, TierError};
use std::sync::Barrier;
use std::thread;

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

/// Bytes of which no two neighbouring pages are the same.
fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[1] ^ salt).collect()
}

fn write(tier: &dyn Tier, to: &BlobName, data: &[u8], piece: usize) -> Result<u64, TierError> {
    let mut writer = tier.create(to, Some(data.len() as u64))?;
    for part in data.chunks(piece.max(1)) {
        writer.append(part)?;
    }
    writer.finish()
}

fn read(blob: &dyn Blob) -> Result<Vec<u8>, TierError> {
    let mut data = vec![0xee; usize::try_from(blob.len()).unwrap()];
    blob.read_at(0, &mut data)?;
    Ok(data)
}

fn names(tier: &dyn Tier, folder: &str) -> Vec<String> {
    tier.list(folder).unwrap().blobs.iter().map(|entry| entry.name.to_string()).collect()
}

/// Checks a tier that is empty; leaves it empty. Writes about 30 MiB.
pub fn conforms(tier: &dyn Tier) {
    assert!(!tier.info().name.is_empty());
    comes_back(tier);
    is_made_once(tier);
    two_publish_at_once(tier);
    vanishes_when_dropped(tier);
    is_listed_by_folder(tier);
    is_removed_while_open(tier);
    several_write_at_once(tier);
    for folder in ["", "round", "once", "race", "list", "list/deep", "open", "many"] {
        tier.clean(folder).unwrap();
        assert!(names(tier, folder).is_empty(), "{folder}: {:?}", names(tier, folder));
    }
}

fn comes_back(tier: &dyn Tier) {
    for (number, (len, piece)) in [
        (0, 1),
        (1, 1),
        (4095, 100),
        (4096, 4096),
        (100_001, 4097),
        (9 << 20, 1 << 20),
        ((8 << 20) + 5, 3 << 20),
    ]
    .into_iter()
    .enumerate()
    {
        let to = name(&format!("round/blob-{number}"));
        let data = bytes(len, number as u8);
        assert_eq!(write(tier, &to, &data, piece).unwrap(), len as u64);
        let blob = tier.open(&to).unwrap();
        assert_eq!((blob.len(), blob.is_empty()), (len as u64, len == 0));
        assert!(read(&*blob).unwrap() == data, "{len} bytes");
        for (at, part) in [(0, len), (len / 3, len / 3), (len.saturating_sub(7), len.min(7)), (len, 0)] {
            let mut out = vec![0xee; part];
            blob.read_at(at as u64, &mut out).unwrap();
            assert!(out == data[at..at + part], "{part} bytes at {at} of {len}");
        }
        for (at, part) in [(len as u64, 1), (0, len + 1), (u64::MAX - 1, 1), (u64::MAX, 2)] {
            assert!(blob.read_at(at, &mut vec![0; part]).is_err(), "{part} bytes at {at} of {len}");
        }
        if let Some((file, offset)) = blob.mapping() {
            assert!(tier.info().mappable && offset.is_multiple_of(4096));
            let mut out = vec![0xee; len];
            std::os::unix::fs::FileExt::read_exact_at(file, &mut out, offset).unwrap();
            assert!(out == data);
        }
        tier.remove(&to).unwrap();
        assert!(matches!(tier.open(&to), Err(TierError::NotFound { .. })));
        tier.remove(&to).unwrap();
    }
    let published = bytes(70_000, 9);
    tier.publish(&name("round/published"), &published).unwrap();
    assert!(read(&*tier.open(&name("round/published")).unwrap()).unwrap() == published);
    tier.remove(&name("round/published")).unwrap();
}

fn is_made_once(tier: &dyn Tier) {
    let to = name("once/blob");
    write(tier, &to, b"first", 5).unwrap();
    assert!(matches!(write(tier, &to, b"second", 6), Err(TierError::Exists { .. })));
    assert!(matches!(tier.publish(&to, b"third"), Err(TierError::Exists { .. })));
    assert_eq!(read(&*tier.open(&to).unwrap()).unwrap(), b"first");
    assert_eq!(names(tier, "once"), ["once/blob"]);
    tier.remove(&to).unwrap();
    tier.publish(&to, b"again").unwrap();
    assert!(matches!(tier.publish(&to, b"again"), Err(TierError::Exists { .. })));
    assert!(matches!(write(tier, &to, b"second", 6), Err(TierError::Exists { .. })));
    assert_eq!(read(&*tier.open(&to).unwrap()).unwrap(), b"again");
    tier.remove(&to).unwrap();
}

fn two_publish_at_once(tier: &dyn Tier) {
    if tier.info().single_writer.is_some() {
        return;
    }
    for round in 0..8 {
        let (to, barrier) = (name(&format!("race/blob-{round}")), Barrier::new(3));
        let publish = |own: u8| {
            barrier.wait();
            tier.publish(&to, &bytes(5000, own)).map(|()| own)
        };
        let results: Vec<_> = thread::scope(|scope| {
            let publish = &publish;
            let threads: Vec<_> = (0..3).map(|own| scope.spawn(move || publish(own))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let done: Vec<u8> = results.iter().filter_map(|result| result.as_ref().ok().copied()).collect();
        assert_eq!(done.len(), 1, "{results:?}");
        assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(TierError::Exists { .. }))));
        assert!(read(&*tier.open(&to).unwrap()).unwrap() == bytes(5000, done[0]));
        tier.remove(&to).unwrap();
    }
}

fn vanishes_when_dropped(tier: &dyn Tier) {
    let to = name("once/half");
    let mut writer = tier.create(&to, None).unwrap();
    writer.append(&bytes(5 << 20, 1)).unwrap();
    assert!(matches!(tier.open(&to), Err(TierError::NotFound { .. })), "not finished");
    assert!(names(tier, "once").is_empty());
    drop(writer);
    assert!(matches!(tier.open(&to), Err(TierError::NotFound { .. })));
    assert_eq!(tier.clean("once").unwrap(), 0, "nothing is left");
    // A name is taken by who finishes first.
    let (mut first, mut second) = (tier.create(&to, None).unwrap(), tier.create(&to, None).unwrap());
    first.append(b"first").unwrap();
    second.append(b"second").unwrap();
    second.finish().unwrap();
    assert!(matches!(first.finish(), Err(TierError::Exists { .. })));
    assert_eq!(read(&*tier.open(&to).unwrap()).unwrap(), b"second");
    tier.remove(&to).unwrap();
}

fn is_listed_by_folder(tier: &dyn Tier) {
    let listing = tier.list("nothing/here").unwrap();
    assert!(listing.blobs.is_empty() && listing.folders.is_empty());
    for (at, len) in [("list/b", 3), ("list/a", 1), ("list/deep/c", 2), ("top", 7), ("list.x", 1)] {
        tier.publish(&name(at), &bytes(len, 0)).unwrap();
    }
    let listing = tier.list("list").unwrap();
    let found: Vec<_> = listing.blobs.iter().map(|entry| (entry.name.as_str(), entry.len)).collect();
    assert_eq!(found, [("list/a", 1), ("list/b", 3)]);
    assert_eq!(listing.folders, ["deep"]);
    assert_eq!(names(tier, "list/deep"), ["list/deep/c"]);
    let top = tier.list("").unwrap();
    assert_eq!(names(tier, ""), ["list.x", "top"]);
    assert!(top.folders.contains(&"list".to_owned()) && top.folders.is_sorted());
    for hostile in ["..", "list/..", "/", "/etc", "list/../list", "list//deep"] {
        assert!(tier.list(hostile).is_ok_and(|listing| listing.blobs.is_empty()), "{hostile}");
    }
    for at in ["list/b", "list/a", "list/deep/c", "top", "list.x"] {
        tier.remove(&name(at)).unwrap();
    }
}

fn is_removed_while_open(tier: &dyn Tier) {
    let (to, data) = (name("open/blob"), bytes(300_000, 4));
    write(tier, &to, &data, 1000).unwrap();
    let blob = tier.open(&to).unwrap();
    tier.remove(&to).unwrap();
    // A tier that cannot keep it says that it is gone, and gives no other bytes.
    match read(&*blob) {
        Ok(read) => assert!(read == data),
        Err(error) => assert!(matches!(error, TierError::NotFound { .. }), "{error}"),
    }
    assert!(names(tier, "open").is_empty());
}

fn several_write_at_once(tier: &dyn Tier) {
    thread::scope(|scope| {
        for own in 0..4_u8 {
            scope.spawn(move || {
                let (to, data) = (name(&format!("many/blob-{own}")), bytes(1 << 20, own));
                write(tier, &to, &data, 70_000).unwrap();
                assert!(read(&*tier.open(&to).unwrap()).unwrap() == data);
            });
        }
    });
    assert_eq!(names(tier, "many").len(), 4);
    for own in 0..4 {
        tier.remove(&name(&format!("many/blob-{own}"))).unwrap();
    }
}
