//! What a folder of VELOC has: which checkpoints, and whether their files are whole.
//!
//! Used by `import --veloc`. Every file is looked at before anything is made of one. What is damaged, and what is
//! missing, is named for each version: those versions are not taken, the others are.

use super::{FILE, set_of};
use crate::exit::{Exit, Failure};
use holdfast_objects::buffer::Object;
use holdfast_objects::veloc_file::{self, COUNT, FileName};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes that a sum is made of at once.
const PIECE: usize = 1 << 20;

/// How the files are to be understood.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Each id is a set of its own.
    pub single: bool,
    /// They are the program's own.
    pub file_mode: bool,
    /// Where their checksums are.
    pub checksums: Option<PathBuf>,
}

/// The checkpoints of one name: by version, by rank.
pub type Versions = BTreeMap<u64, BTreeMap<u32, PathBuf>>;

/// What a folder has.
#[derive(Debug, Default)]
pub struct Folder {
    /// By name of the set.
    pub sets: BTreeMap<String, Versions>,
}

/// Lists a folder.
///
/// # Errors
/// It cannot be listed; it has files of no rank's, which VELOC makes of several ranks' together.
pub fn list(path: &Path, reading: &Reading) -> Result<Folder, Failure> {
    let failed = |error: &std::io::Error| Failure::system(format_args!("listing {}", path.display()), error);
    let mut folder = Folder::default();
    let entries = fs::read_dir(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::new(Exit::NotFound, format!("there is no folder {}", path.display()))
        }
        _ => failed(&error),
    })?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(&error))?;
        let Ok(file) = entry.file_name().into_string() else { continue };
        if file.contains("-agg-") {
            let why = format!(
                "{} has the files of all ranks in one: run the program once more with `aggregated = false`",
                entry.path().display()
            );
            return Err(Failure::new(Exit::Refused, why));
        }
        let Some(FileName { name, version, rank }) = FileName::parse(&file) else { continue };
        let (set, rank) = if reading.single { (set_of(&name, rank), 0) } else { (name, rank) };
        let versions = folder.sets.entry(set).or_default();
        versions.entry(version).or_default().insert(rank, entry.path());
    }
    Ok(folder)
}

/// How many ranks there are: one more than the highest that any version has.
pub fn ranks(versions: &Versions) -> u32 {
    let highest = versions.values().filter_map(|files| files.keys().next_back()).max();
    highest.map_or(0, |rank| rank.saturating_add(1))
}

/// The versions that can be taken, and what is wrong with each of the others.
pub fn whole(versions: &Versions, reading: &Reading) -> (BTreeSet<u64>, Vec<String>) {
    let ranks = ranks(versions);
    let (mut good, mut wrong) = (BTreeSet::new(), Vec::new());
    for (version, files) in versions {
        let mut found: Vec<String> = missing_rank(*version, files, ranks).into_iter().collect();
        found.extend(files.values().filter_map(|path| check(path, reading).err()));
        if found.is_empty() {
            good.insert(*version);
        }
        wrong.extend(found);
    }
    (good, wrong)
}

/// What is wrong if not all ranks are there. A name may tell of any rank: they are counted, not listed.
fn missing_rank(version: u64, files: &BTreeMap<u32, PathBuf>, ranks: u32) -> Option<String> {
    let (first, _) =
        (0..ranks).zip(files.keys().map(Some).chain([None])).find(|(rank, there)| *there != Some(rank))?;
    let others = match u64::from(ranks) - files.len() as u64 {
        1 => String::new(),
        count => format!(" and of {} more", count - 1),
    };
    Some(format!("version {version} has no file of rank {first}{others}: it was not imported"))
}

/// A file, and where its objects are in it.
#[derive(Debug)]
pub struct Source {
    /// Open for reading.
    pub file: File,
    /// Its regions.
    pub objects: Vec<Object>,
    /// Where each begins.
    pub places: Vec<u64>,
    /// Its length, bytes.
    pub len: u64,
}

/// Opens a file and reads its head.
///
/// # Errors
/// It cannot be read, or is damaged: the path and why.
pub fn open(path: &Path, reading: &Reading) -> Result<Source, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let (file, len) = regular(path)?;
    if reading.file_mode {
        let object = Object { key: FILE.into(), bytes: len, element: 1 };
        return Ok(Source { file, objects: vec![object], places: vec![0], len });
    }
    let damaged =
        |why: String| failed(&format_args!("{why}: it is damaged, or no file of VELOC's memory mode"));
    let mut count = [0; COUNT];
    if len < COUNT as u64 {
        return Err(damaged(format!("it has {len} bytes, less than a head has")));
    }
    file.read_exact_at(&mut count, 0).map_err(|error| failed(&error))?;
    let mut head = vec![0; veloc_file::head_len(count, len).map_err(damaged)?];
    file.read_exact_at(&mut head, 0).map_err(|error| failed(&error))?;
    let regions = veloc_file::regions(&head, len).map_err(damaged)?;
    let objects =
        regions.iter().map(|region| Object { key: region.id.to_string(), bytes: region.bytes, element: 1 });
    let places = regions.iter().map(|region| region.at).collect();
    Ok(Source { objects: objects.collect(), places, file, len })
}

/// Opens a file for reading; and its length, bytes.
fn regular(path: &Path) -> Result<(File, u64), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    // A FIFO would be waited for.
    let file =
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|e| failed(&e))?;
    let metadata = file.metadata().map_err(|error| failed(&error))?;
    if !metadata.is_file() {
        return Err(failed(&"it is no regular file"));
    }
    Ok((file, metadata.len()))
}

/// A file and its checksum, if there is one.
fn check(path: &Path, reading: &Reading) -> Result<(), String> {
    let source = open(path, reading)?;
    let Some(folder) = &reading.checksums else { return Ok(()) };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".chksum");
    let sum = folder.join(name);
    let mut expected = Vec::new();
    // One byte more than it may have.
    let most = ring::digest::SHA256_OUTPUT_LEN as u64 + 1;
    let read = regular(&sum)?.0.take(most).read_to_end(&mut expected);
    read.map_err(|error| format!("{}: {error}", sum.display()))?;
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    let (mut file, mut piece) = (&source.file, vec![0; PIECE]);
    loop {
        match file.read(&mut piece).map_err(|error| format!("{}: {error}", path.display()))? {
            0 => break,
            len => digest.update(&piece[..len]),
        }
    }
    if digest.finish().as_ref() == expected {
        return Ok(());
    }
    Err(format!("{}: it is damaged: its checksum is not that of {}", path.display(), sum.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    struct Made(PathBuf);

    impl Made {
        fn new(test: &str) -> Made {
            let path = std::env::temp_dir().join(format!("holdfast-veloc-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Made(path)
        }

        fn file(&self, name: &str, data: &[u8]) -> PathBuf {
            let mut bytes = veloc_file::head(&[(1, data.len() as u64)]);
            bytes.extend(data);
            fs::write(self.0.join(name), bytes).unwrap();
            self.0.join(name)
        }

        fn whole(&self, reading: &Reading) -> (Vec<u64>, String) {
            let folder = list(&self.0, reading).unwrap();
            let (good, wrong) = whole(&folder.sets["heat"], reading);
            (good.into_iter().collect(), wrong.join("\n"))
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn versions_that_not_all_ranks_have_or_that_are_cut_are_named() {
        let made = Made::new("whole");
        for version in [10, 20, 30] {
            made.file(&format!("heat-0-{version}.dat"), b"zero");
            made.file(&format!("heat-1-{version}.dat"), b"one");
        }
        made.file("wave-0-7.dat", b"");
        fs::write(made.0.join("notes.txt"), "no checkpoint").unwrap();
        let reading = Reading::default();
        let none = list(&made.0.join("none"), &reading).unwrap_err();
        assert!(none.exit == Exit::NotFound && none.message.starts_with("there is no folder"), "{none}");
        assert_eq!(made.whole(&reading), (vec![10, 20, 30], String::new()));
        fs::remove_file(made.0.join("heat-0-20.dat")).unwrap();
        File::options().write(true).open(made.0.join("heat-1-30.dat")).unwrap().set_len(21).unwrap();
        let (good, wrong) = made.whole(&reading);
        assert_eq!(good, [10]);
        assert!(wrong.contains("version 20 has no file of rank 0"), "{wrong}");
        assert!(wrong.contains("heat-1-30.dat: region 1 has 3 bytes"), "{wrong}");
        // Nothing is as large as a name may say.
        made.file("heat-4294967294-50.dat", b"far");
        let (good, wrong) = made.whole(&reading);
        assert!(
            good.is_empty() && wrong.contains("version 10 has no file of rank 2 and of 4294967292 more"),
            "{wrong}"
        );
        assert!(wrong.contains("version 50 has no file of rank 0 and of 4294967293 more"), "{wrong}");
        fs::remove_file(made.0.join("heat-4294967294-50.dat")).unwrap();
        let single = list(&made.0, &Reading { single: true, ..Reading::default() }).unwrap();
        let sets: Vec<(&String, u32)> =
            single.sets.iter().map(|(set, versions)| (set, ranks(versions))).collect();
        assert_eq!(sets, [(&"heat-0".into(), 1), (&"heat-1".into(), 1), (&"wave-0".into(), 1)]);
        fs::write(made.0.join("heat-agg-40.dat"), "").unwrap();
        assert!(list(&made.0, &reading).unwrap_err().message.contains("aggregated"));
    }

    /// By the sum that VELOC would have written, of `printf abc` for example.
    #[test]
    fn a_bit_that_flipped_is_found_by_the_checksum() {
        let made = Made::new("sums");
        let path = made.0.join("heat-0-1.dat");
        fs::write(&path, "abc").unwrap();
        let sum = [
            0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
            0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
        ];
        fs::write(made.0.join("heat-0-1.dat.chksum"), sum).unwrap();
        let reading = Reading { file_mode: true, checksums: Some(made.0.clone()), ..Reading::default() };
        assert_eq!(made.whole(&reading), (vec![1], String::new()));
        fs::write(&path, "abb").unwrap();
        let (good, wrong) = made.whole(&reading);
        assert!(good.is_empty() && wrong.contains("its checksum is not that of"), "{wrong}");
        fs::remove_file(made.0.join("heat-0-1.dat.chksum")).unwrap();
        assert!(made.whole(&reading).0.is_empty(), "a sum that is missing is no sum that fits");
    }
}
