//! The memory tier: memory that is used again, bounds, several threads.
//!
//! Makes no process: a child that is being made has copies of all descriptors for a moment, and a file that is open
//! elsewhere is not used again.

use crate::common::conformance::conforms;
use crate::common::memory::{Folder, MIB, bytes, name, put, read};
use crate::common::{Content, MemorySource, commit_record, options, read_all, run};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_tiers::Store;
use holdfast_tiers::tier::{Survives, Tier, TierError};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn memory_conforms_also_when_its_memory_is_used_again() {
    let folder = Folder::new();
    let tier = folder.open(24 * MIB);
    assert_eq!(tier.info().survives, Survives::Program);
    conforms(&tier);
    conforms(&tier);
    conforms(&folder.open(24 * MIB));
}

#[test]
fn the_memory_of_a_removed_blob_is_the_next_ones_whatever_their_lengths() {
    let folder = Folder::new();
    let tier = folder.open(16 * MIB);
    let lens = [700_000, 700_000, 300_000, 1_500_001, 5, 0, 1_500_001, 262_144];
    for (number, len) in lens.into_iter().enumerate() {
        for (expected, salt) in [(None, 1), (Some(len as u64), 2), (Some(10 * MIB), 3), (Some(1), 4)] {
            let to = format!("job/blob-{number}-{salt}");
            let data = bytes(len, number as u64 * 10 + salt);
            assert_eq!(put(&tier, &to, &data, expected).unwrap(), len as u64);
            assert!(read(&*tier.open(&name(&to)).unwrap()) == data);
            assert_eq!(std::fs::metadata(folder.0.join(&to)).unwrap().len(), len as u64);
            assert_eq!(std::fs::metadata(folder.0.join(&to)).unwrap().mode() & 0o7777, 0o600);
            tier.remove(&name(&to)).unwrap();
        }
    }
    put(&tier, "job/first", &bytes(1 << 20, 1), None).unwrap();
    let inode = folder.inode("job/first");
    tier.clean("job").unwrap();
    tier.remove(&name("job/first")).unwrap();
    assert_eq!((folder.files("job"), tier.list("job").unwrap().blobs.len()), (1, 0));
    put(&tier, "other/second", &bytes(1 << 20, 2), None).unwrap();
    assert_eq!(folder.inode("other/second"), inode, "the same memory");
    drop(tier);
    assert_eq!(folder.files("job"), 0, "the end of the agent gives the memory back");
    folder.open(16 * MIB).remove(&name("other/second")).unwrap();
    assert_eq!(folder.files("other"), 0, "a command that writes nothing keeps nothing");
}

#[test]
fn it_is_full_at_its_bound_and_not_before_with_what_others_have_counted() {
    let folder = Folder::new();
    let other = folder.open(8 * MIB);
    let piece = bytes(MIB as usize, 1);
    put(&other, "b/other", &[&piece[..], &piece[..]].concat(), None).unwrap();
    let tier = folder.open(8 * MIB);
    for number in 0..6 {
        put(&tier, &format!("a/blob-{number}"), &piece, None).unwrap();
    }
    for result in [put(&tier, "a/more", &piece, None), put(&tier, "a/more", &piece, Some(MIB))] {
        assert!(matches!(result, Err(TierError::Full { .. })), "{result:?}");
    }
    assert!(matches!(tier.publish(&name("a/m"), &piece), Err(TierError::Full { .. })));
    assert!(matches!(tier.prepare("a", MIB), Err(TierError::Full { .. })));
    assert_eq!(folder.files("a"), 6, "nothing is left of what did not fit");
    // Where there was no room, nothing is kept until something is published.
    tier.remove(&name("a/blob-0")).unwrap();
    assert_eq!(folder.files("a"), 5);
    tier.publish(&name("a/small"), b"small").unwrap();
    // Spares make way for others.
    for number in 1..5 {
        tier.remove(&name(&format!("a/blob-{number}"))).unwrap();
    }
    assert_eq!(folder.files("a"), 6);
    tier.publish(&name("a/m"), &[&piece[..], &piece[..], &piece[..], &piece[..]].concat()).unwrap();
    assert_eq!(folder.files("a"), 3);
    other.remove(&name("b/other")).unwrap();
    drop(other);
    put(&tier, "a/more", &[&piece[..], &piece[..]].concat(), Some(2 * MIB)).unwrap();
}

#[test]
fn prepared_memory_is_taken_and_what_another_process_removed_is_not() {
    let folder = Folder::new();
    let tier = folder.open(16 * MIB);
    tier.prepare("job", 2 * MIB).unwrap();
    assert_eq!(folder.files("job"), 1);
    put(&tier, "job/blob", &bytes(2 << 20, 1), Some(2 * MIB)).unwrap();
    assert_eq!(folder.files("job"), 1);
    tier.remove(&name("job/blob")).unwrap();
    for file in std::fs::read_dir(folder.0.join("job")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    put(&tier, "job/blob", &bytes(2 << 20, 2), Some(2 * MIB)).unwrap();
    assert!(read(&*tier.open(&name("job/blob")).unwrap()) == bytes(2 << 20, 2));
}

#[test]
fn writers_readers_and_removers_meet_no_others_bytes() {
    let folder = Folder::new();
    let tier = folder.open(24 * MIB);
    let done = AtomicBool::new(false);
    let len = |round: u64| 262_144 + (round * 77_777 % 300_000) as usize;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !done.load(Ordering::Relaxed) {
                        for entry in tier.list("job").unwrap().blobs {
                            let Ok(blob) = tier.open(&entry.name) else { continue };
                            let number: u64 = entry.name.file().parse().unwrap();
                            assert!(read(&*blob) == bytes(len(number), number), "{}", entry.name);
                            seen += 1;
                        }
                    }
                    seen
                })
            })
            .collect();
        let writers: Vec<_> = (0..3)
            .map(|own| {
                let tier = &tier;
                scope.spawn(move || {
                    for round in 0..60 {
                        let number = own * 1000 + round;
                        let data = bytes(len(number), number);
                        put(
                            tier,
                            &format!("job/{number}"),
                            &data,
                            (round % 2 == 0).then_some(data.len() as u64),
                        )
                        .unwrap();
                        if round >= 3 {
                            tier.remove(&name(&format!("job/{}", number - 3))).unwrap();
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        let seen: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(results.iter().all(Result::is_ok) && seen > 0);
    });
    assert_eq!(tier.list("job").unwrap().blobs.len(), 9);
}

/// The store of a job in memory: what an image that is removed took is what the next ones are written into.
#[test]
fn a_job_in_memory_writes_its_images_into_the_memory_of_older_ones() {
    let folder = Folder::new();
    let job = Store::open(&folder.0).unwrap().create_job("job").unwrap();
    let lock = job.lock().unwrap();
    let mut inodes = BTreeSet::new();
    for epoch in 1..=8 {
        let content =
            |page: u64| if (page + epoch).is_multiple_of(3) { Content::Text } else { Content::Noise };
        let source = MemorySource::new(vec![run(1000, 300), run(5000, 1)], content);
        let mut writer = job.begin(&lock, Epoch(epoch), None).unwrap();
        writer.write_pages(&source, &Inherited::default(), &options(1), &|_, _| ()).unwrap();
        writer.commit(commit_record()).unwrap();
        if epoch > 2 {
            job.remove_image(&lock, Epoch(epoch - 2)).unwrap();
        }
        inodes.insert(folder.inode(&format!("job/segment-{epoch:06}-000")));
        let image = job.open_image(Epoch(epoch)).unwrap();
        image.verify(&|_| ()).unwrap();
        assert!(read_all(&image).unwrap() == source.pages, "{epoch}");
    }
    assert!((3..=5).contains(&inodes.len()), "{inodes:?}");
    let images = job.images().unwrap();
    assert!(images.len() == 2 && images.iter().all(|image| image.complete));
}
