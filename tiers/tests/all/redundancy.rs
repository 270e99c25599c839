//! Files of a gang's redundancy beside real images: what a rebuild writes and what it leaves, what sets keep from
//! going, what is noticed.

use crate::common::{Content, MemorySource, Model, TempDir, commit_record, options, page_of};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_tiers::hygiene::{Verified, Verify, survey, verify};
use holdfast_tiers::redundancy::{
    ChunkSum, GroupFile, GroupMember, MemberStream, Number, SetFile, SetProblem, StreamWriter, StripeSums,
    begin_parity, clean_heads, lacks, number_of, put_group, put_head, put_image, remove_set, sets, tables,
};
use holdfast_tiers::{Job, JobLock, REBUILD_POINTS, Store, StoreError};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A job of a store of its own, with an image of 100 pages, of which `seed` says what is in them.
struct Host(TempDir, Job, JobLock);

impl Host {
    fn new(seed: u64) -> Host {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("sim.0").unwrap();
        job.write_recipe(&serde_json::json!({ "command": ["sim"] })).unwrap();
        let lock = job.lock().unwrap();
        let host = Host(dir, job, lock);
        host.image(1, seed);
        host
    }

    fn image(&self, epoch: u64, seed: u64) {
        let pages: Model =
            (1000..1100).map(|page| (page, page_of(Content::Noise, page + 1000 * seed))).collect();
        let dirty: BTreeSet<u64> = pages.keys().copied().collect();
        let mut writer = self.1.begin(&self.2, Epoch(epoch), None).unwrap();
        let inherited = Inherited { unchanged: Vec::new(), mapped: Vec::new() };
        writer
            .write_pages(&MemorySource::of_model(&pages, &dirty), &inherited, &options(1), &|_, _| ())
            .unwrap();
        writer.commit(commit_record()).unwrap();
    }

    /// The files of the image's stream, with its head.
    fn files(&self, epoch: u64) -> Vec<SetFile> {
        let manifest = self.1.folder().manifest(Epoch(epoch)).unwrap();
        let head = put_head(&self.1, &self.2, Epoch(epoch), &manifest).unwrap();
        let table = tables(&self.1).unwrap()[&epoch].clone().unwrap();
        [head].into_iter().chain(table.into_iter().map(|(_, file)| file)).collect()
    }

    fn bytes(&self, files: &[SetFile]) -> Vec<u8> {
        let mut bytes = vec![0; files.iter().map(|file| file.len as usize).sum()];
        MemberStream::open(&self.1, files).unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// A set of two members with the same stream.
    fn set(&self, epoch: u64, name: &str) -> GroupFile {
        let files = self.files(epoch);
        let member = |member| {
            let (host, files) = ("a".into(), files.clone());
            GroupMember { member, host, epoch, files, needs: Vec::new() }
        };
        GroupFile::new(("sim", epoch, name), 1, 0, (0..2).map(member).collect())
    }

    fn protect(&self, set: &GroupFile) {
        put_group(&self.1, &self.2, set).unwrap();
        let (parity, mut sum) = (vec![0; set.layout().unwrap().parity_len() as usize], ChunkSum::default());
        sum.update(&parity);
        let sums = [StripeSums { parity: sum.text(), data: vec![sum.text()] }];
        let mut writer = begin_parity(&self.1, &self.2, set.own().unwrap().epoch).unwrap();
        writer.append(&parity).unwrap();
        writer.finish(&sums).unwrap();
    }

    fn verified(&self) -> Verified {
        let options = Verify { epoch: None, record: &|_| Ok(()), total: &|_| (), passed: &|_| () };
        verify(self.1.folder(), &options).unwrap()
    }

    fn names(&self, begin: &str) -> Vec<String> {
        let all = fs::read_dir(self.0.store().join(self.1.name())).unwrap().flatten();
        let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with(begin)).collect();
        names.sort();
        names
    }
}

/// Writes a stream in pieces.
fn write(host: &Host, files: &[SetFile], bytes: &[u8]) -> Result<u64, StoreError> {
    let mut writer = StreamWriter::new(&host.1, &host.2, files)?;
    for piece in bytes.chunks(10_000) {
        if let Err(error) = writer.append(piece) {
            writer.abandon()?;
            return Err(error);
        }
    }
    writer.finish()
}

#[test]
fn a_segment_that_is_damaged_with_its_length_is_written_again_when_all_was_right() {
    let host = Host::new(1);
    let files = host.files(1);
    let bytes = host.bytes(&files);
    assert_eq!(write(&host, &files, &bytes).unwrap(), 0, "it is as it was");
    let segment = host.1.dir().join(&files[1].name);
    let good = fs::read(&segment).unwrap();
    for at in [0, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&segment, &bad).unwrap();
        let mut writer = StreamWriter::new(&host.1, &host.2, &files).unwrap();
        writer.append(&bytes).unwrap();
        writer.abandon().unwrap();
        assert!(fs::read(&segment).unwrap() == bad, "byte {at}: what was not finished changes nothing");
        write(&host, &files, &bytes).unwrap();
        assert!(fs::read(&segment).unwrap() == good, "byte {at}");
        assert!(host.names("mended-").is_empty() && host.names(".part-").is_empty());
    }
    // So is one that is cut, and one that is gone.
    fs::write(&segment, &good[..good.len() / 2]).unwrap();
    write(&host, &files, &bytes).unwrap();
    assert!(fs::read(&segment).unwrap() == good);
    fs::remove_file(&segment).unwrap();
    assert_eq!(write(&host, &files, &bytes).unwrap(), good.len() as u64);
    assert!(fs::read(&segment).unwrap() == good);
}

/// Another run has given the same numbers to other images, which are whole.
#[test]
fn what_is_there_and_whole_is_never_replaced() {
    let (from, to) = (Host::new(1), Host::new(2));
    let files = from.files(1);
    let bytes = from.bytes(&files);
    let before: Vec<Vec<u8>> = ["manifest-000001", &files[1].name]
        .iter()
        .map(|name| fs::read(to.1.dir().join(name)).unwrap())
        .collect();
    let error = write(&to, &files, &bytes).unwrap_err().to_string();
    assert!(error.contains("segment-000001-000") && error.contains("belongs to another image"), "{error}");
    fs::write(to.1.dir().join("head-000001"), fs::read(from.1.dir().join("head-000001")).unwrap()).unwrap();
    let error = put_image(&to.1, &to.2, Epoch(1)).unwrap_err().to_string();
    assert!(error.contains("manifest-000001") && error.contains("belongs to another image"), "{error}");
    let after = ["manifest-000001", &files[1].name].map(|name| fs::read(to.1.dir().join(name)).unwrap());
    assert!(before == after);
    // One that is damaged is.
    fs::write(to.1.dir().join("manifest-000001"), b"x").unwrap();
    put_image(&to.1, &to.2, Epoch(1)).unwrap();
    // Neither is a set.
    let (own, other) = (from.set(1, "own"), from.set(1, "other"));
    from.protect(&own);
    assert!(matches!(number_of(&from.1, &own), Ok(Number::Own)));
    assert!(put_group(&from.1, &from.2, &other).unwrap_err().to_string().contains("group-000001"));
    fs::write(from.1.dir().join("group-000001"), b"x").unwrap();
    assert!(matches!(number_of(&from.1, &own), Ok(Number::Damaged)));
    put_group(&from.1, &from.2, &own).unwrap();
    assert!(lacks(&from.1, &sets(&from.1).unwrap()[0]).is_ok(), "it is whole again");
}

/// Removing an image makes nothing free that a set needs, and that is known before.
#[test]
fn what_a_set_needs_does_not_count_as_the_images() {
    let host = Host::new(1);
    let bytes = |number: u64| {
        let survey = survey(host.1.folder()).unwrap();
        let held = survey.versions.into_iter().find(|held| held.number == number).unwrap();
        held.parts.iter().map(|(_, bytes)| bytes).sum::<u64>()
    };
    let before = bytes(1);
    let set = host.set(1, "own");
    host.protect(&set);
    let segments: u64 = set.own().unwrap().files[1..].iter().map(|file| file.len).sum();
    assert_eq!(before - bytes(1), segments);
    host.image(2, 2);
    assert_eq!(host.1.remove_image(&host.2, Epoch(1)).unwrap(), before - segments);
    assert_eq!(host.names("segment-000001").len(), 1);
    remove_set(&host.1, &host.2, 1).unwrap();
    assert!(host.1.clean(&host.2).unwrap().bytes >= segments);
}

/// It may need any segment up to its own number, as at a removal.
#[test]
fn what_a_damaged_set_may_need_is_not_unneeded() {
    let host = Host::new(1);
    host.protect(&host.set(1, "own"));
    host.image(2, 2);
    host.1.remove_image(&host.2, Epoch(1)).unwrap();
    assert!(host.verified().unneeded.is_empty());
    fs::write(host.1.dir().join("group-000001"), b"x").unwrap();
    let found = host.verified();
    assert!(found.unneeded.is_empty() && found.sets[0].problem.is_some(), "{:?}", found.unneeded);
}

/// Writes a stream to its death at a fault point.
fn write_in_child(dir: &Path, point: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "redundancy::write_to_the_end"]);
    command.env("TEST_DIR", dir).env("TEST_POINT", point).output().unwrap().status.code()
}

#[test]
#[ignore = "run by the test below, to be killed"]
fn write_to_the_end() {
    let dir = PathBuf::from(std::env::var("TEST_DIR").unwrap());
    holdfast_tiers::set_fault_hook(|name| {
        if std::env::var("TEST_POINT").unwrap() == name {
            std::process::exit(77);
        }
    });
    let job = Store::open(&dir).unwrap().job("sim.0").unwrap();
    let lock = job.lock().unwrap();
    let files: Vec<SetFile> = serde_json::from_slice(&fs::read(dir.join("files")).unwrap()).unwrap();
    let mut writer = StreamWriter::new(&job, &lock, &files).unwrap();
    fs::read(dir.join("bytes")).unwrap().chunks(10_000).for_each(|piece| writer.append(piece).unwrap());
    writer.finish().unwrap();
}

/// Whenever who writes it is killed, nothing has the name of a file that is not that file: what was damaged is that,
/// or away, or right; and the next one writes it right.
#[test]
fn a_stream_whose_writer_is_killed_is_never_half_right() {
    for point in REBUILD_POINTS {
        let Host(dir, job, lock) = Host::new(1);
        let host = Host(dir, job, lock);
        let (files, set) = (host.files(1), host.set(1, "own"));
        host.protect(&set);
        let bytes = host.bytes(&files);
        let (head, segment) = (host.1.dir().join("head-000001"), host.1.dir().join(&files[1].name));
        let (good_head, good) = (fs::read(&head).unwrap(), fs::read(&segment).unwrap());
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&segment, &bad).unwrap();
        fs::remove_file(&head).unwrap();
        let store = host.0.store();
        fs::write(store.join("files"), serde_json::to_vec(&files).unwrap()).unwrap();
        fs::write(store.join("bytes"), &bytes).unwrap();
        let Host(dir, job, lock) = host;
        drop(lock);
        assert_eq!(write_in_child(&store, point), Some(77), "{point}");
        let there = fs::read(&segment).ok();
        assert!(there.is_none_or(|there| there == bad || there == good), "{point}");
        assert!(fs::read(&head).is_ok_and(|there| there == good_head), "{point}");
        let lock = job.lock().unwrap();
        let host = Host(dir, job, lock);
        write(&host, &files, &bytes).unwrap();
        assert!(fs::read(&segment).unwrap() == good && host.bytes(&files) == bytes, "{point}");
        assert!(host.verified().sets[0].problem.is_none(), "{point}");
        host.1.clean(&host.2).unwrap();
        assert!(host.names("mended-").is_empty() && host.names(".part-").is_empty(), "{point}");
    }
}

#[test]
fn what_is_left_of_sets_is_told_before_it_goes() {
    let host = Host::new(1);
    let set = host.set(1, "own");
    host.image(2, 2);
    host.files(2);
    let left = host.1.leftovers(&host.2).unwrap();
    assert_eq!(
        left.iter().map(|(file, _)| file.as_str()).collect::<Vec<_>>(),
        ["head-000001", "head-000002"]
    );
    put_group(&host.1, &host.2, &set).unwrap();
    clean_heads(&host.1, &host.2, Some(2)).unwrap();
    assert_eq!(host.names("head-"), ["head-000001", "head-000002"]);
    clean_heads(&host.1, &host.2, None).unwrap();
    assert_eq!(host.names("head-"), ["head-000001"], "a set has it");
}

/// Whatever is gone or damaged of a set: that it is there no more is known by lengths, and by reading.
#[test]
fn what_a_set_lacks_is_noticed() {
    let host = Host::new(1);
    host.protect(&host.set(1, "own"));
    host.image(2, 2);
    // No image needs the stream any more.
    host.1.remove_image(&host.2, Epoch(1)).unwrap();
    assert!(host.verified().sets.iter().all(|set| set.problem.is_none()));
    for name in ["head-000001", "segment-000001-000", "parity-000001", "group-000001"] {
        let path = host.1.dir().join(name);
        let good = fs::read(&path).unwrap();
        let lacks = || match sets(&host.1).unwrap().first() {
            Some(set) => lacks(&host.1, set).err(),
            None => None,
        };
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        let why = lacks().unwrap();
        assert!(matches!(&why, SetProblem::Damaged(why) if why.contains(name)), "{why}");
        assert!(host.verified().sets[0].problem.as_ref().is_some_and(|why| why.contains(name)), "{name}");
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(host.verified().sets[0].problem.as_ref().is_some_and(|why| why.contains(name)), "{name}");
        fs::remove_file(&path).unwrap();
        assert_eq!(lacks().is_some(), name != "group-000001", "{name}");
        fs::write(&path, good).unwrap();
    }
}
