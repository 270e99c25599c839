//! Files of sets: what they keep from going, what is written again, what is noticed.
#![allow(clippy::unwrap_used)]

use super::files::*;
use super::folder::{check_set, covered};
use super::group_file::encode_sums;
use super::{ChunkSum, GroupFile, GroupMember, SetFile, StreamWriter, StripeSums};
use crate::Store;
use crate::{Job, JobLock};
use holdfast_image::Epoch;
use std::fs;
use std::path::PathBuf;

/// A job in a store that goes at the end of the test.
struct Home(PathBuf, Job, JobLock);

impl Home {
    fn new(name: &str) -> Home {
        let root = std::env::temp_dir().join(format!("holdfast-sets-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let job = Store::open(&root).unwrap().create_job("sim.0").unwrap();
        let lock = job.lock().unwrap();
        Home(root, job, lock)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let mut writer = self.1.folder().create(name).unwrap();
        writer.append(bytes).unwrap();
        writer.finish().unwrap();
    }

    fn names(&self) -> Vec<String> {
        let blobs = self.1.folder().tier().list("").unwrap().blobs;
        let files = blobs.iter().map(|entry| entry.name.file().to_owned());
        files.filter(|file| file.contains("-0")).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files() -> Vec<SetFile> {
    let file = |name: &str, len| SetFile { name: name.into(), len };
    vec![file("head-000003", 5), file("segment-000002-000", 100), file("segment-000003-000", 0)]
}

fn group() -> GroupFile {
    let member =
        |member| GroupMember { member, host: "a".into(), epoch: 3, files: files(), needs: Vec::new() };
    GroupFile::new(("sim", 1, "ab"), 1, 0, (0..2).map(member).collect())
}

#[test]
fn what_a_set_names_goes_no_sooner_than_the_set() {
    let home = Home::new("pins");
    let (job, lock) = (&home.1, &home.2);
    for (name, len) in [("head-000003", 5), ("segment-000002-000", 100), ("segment-000001-000", 7)] {
        home.put(name, &vec![1; len]);
    }
    put_group(job, lock, &group()).unwrap();
    put_group(job, lock, &group()).unwrap();
    begin_parity(job, lock, 3).unwrap().finish(&[]).unwrap();
    assert_eq!(job.next_epoch().unwrap(), Epoch(4));
    job.clean(lock).unwrap();
    assert_eq!(home.names(), ["group-000003", "head-000003", "parity-000003", "segment-000002-000"]);
    assert_eq!(covered(sets(job).unwrap()[0].file.as_ref().unwrap()), [(2, 0), (3, 0)].into());
    // One that is damaged may name anything up to it.
    let path = job.dir().join("group-000003");
    let good = fs::read(&path).unwrap();
    fs::write(&path, b"x").unwrap();
    assert!(job.catalog().unwrap().garbage().next().is_none() && sets(job).unwrap()[0].file.is_err());
    fs::write(&path, good).unwrap();
    remove_set(job, lock, 3).unwrap();
    job.clean(lock).unwrap();
    assert!(home.names().is_empty());
    // A crash before the parity: there is no set.
    put_group(job, lock, &group()).unwrap();
    home.put("head-000003", b"12345");
    job.clean(lock).unwrap();
    assert!(home.names().is_empty());
}

#[test]
fn a_stream_is_written_as_it_was_read_and_what_is_there_stays() {
    let (from, to) = (Home::new("from"), Home::new("to"));
    let bytes: Vec<u8> = (0..105).collect();
    from.put("head-000003", &bytes[..5]);
    from.put("segment-000002-000", &bytes[5..]);
    assert!(MemberStream::open(&from.1, &files()).is_err(), "a file is missing");
    from.put("segment-000003-000", b"");
    let stream = MemberStream::open(&from.1, &files()).unwrap();
    let list = files();
    for abandon in [true, false] {
        let mut writer = StreamWriter::new(&to.1, &to.2, &list).unwrap();
        for offset in (0..128).step_by(16) {
            let mut piece = [9; 16];
            stream.read_at(offset, &mut piece).unwrap();
            writer.append(&piece).unwrap();
        }
        if abandon {
            writer.abandon().unwrap();
            assert!(to.names().is_empty());
        } else {
            assert_eq!(writer.finish().unwrap(), 105);
        }
    }
    let copy = MemberStream::open(&to.1, &files()).unwrap();
    let (mut there, mut here) = ([0; 120], [0; 120]);
    copy.read_at(0, &mut there).unwrap();
    stream.read_at(0, &mut here).unwrap();
    assert!(there == here && there[..105] == bytes && there[105..] == [0; 15]);
    let mut again = StreamWriter::new(&to.1, &to.2, &list).unwrap();
    again.append(&there).unwrap();
    assert_eq!(again.finish().unwrap(), 0);
    let mut short = StreamWriter::new(&to.1, &to.2, &list).unwrap();
    short.append(&there[..50]).unwrap();
    assert!(short.finish().is_err(), "a part is missing");
    fs::write(to.1.dir().join("segment-000002-000"), b"short").unwrap();
    let mut repaired = StreamWriter::new(&to.1, &to.2, &list).unwrap();
    repaired.append(&there).unwrap();
    assert_eq!(repaired.finish().unwrap(), 100);
}

#[test]
fn damaged_parity_is_noticed() {
    let home = Home::new("damage");
    let (job, lock, group) = (&home.1, &home.2, group());
    put_group(job, lock, &group).unwrap();
    let parity = vec![7; group.layout().unwrap().chunk() as usize];
    let mut sum = ChunkSum::default();
    sum.update(&parity);
    let sums = [StripeSums { parity: sum.text(), data: vec![sum.text()] }];
    let mut writer = begin_parity(job, lock, 3).unwrap();
    writer.append(&parity).unwrap();
    writer.finish(&sums).unwrap();
    let check = || check_set(job.folder(), &sets(job).unwrap()[0], &|_| ()).unwrap();
    assert_eq!(check(), None);
    let path = job.dir().join("parity-000003");
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len(), parity.len() + encode_sums(&sums).len());
    for at in [0, parity.len() - 1, parity.len() + 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(check().is_some(), "byte {at}");
    }
    fs::remove_file(&path).unwrap();
    assert!(check().is_some());
}
