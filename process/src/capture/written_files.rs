//! Which files a job saves, and what of them: chosen inside the stop, before anything of them is read
//! ([`super::contents`]).
//!
//! By default those that the programs change in place: open for reading and writing, mapped for writing, or open for
//! writing before their end. What is only appended to is cut back at a restart, and is right then. With them the files
//! that belong to them by their names: a database's journals ([`COMPANIONS`]), which tell those who open it what is in
//! it; one that was not there is noted, because one that is left by what a restart undoes would be played back into
//! what the restart puts back. Small files that are only read, or only grow, are saved too: a restart uses them only if
//! they are gone then. What shared mappings cover is saved with the pages (`super::maps`). How it fails: by
//! [`Unsaved`].

use super::maps::{Kind, Mapped};
use super::open_file::{self, OpenFile, Place};
use super::watchers::Watchers;
use holdfast_image::bytes::Name;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{Description, FileTable, Object, UnsavedFile};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_image::{Addr, PAGE_SIZE};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What sqlite appends to the name of a database for the files beside it (sqlite.org/tempfiles.html): a rollback
/// journal, the write-ahead log, and that log's index.
pub const COMPANIONS: [&str; 3] = ["-journal", "-wal", "-shm"];

/// Most bytes of a file that is saved for the case that it is gone at the restart, and of all of them, and how many:
/// they are read in the stop.
const SMALL: u64 = 256 << 10;
const SMALL_TOGETHER: u64 = 4 << 20;
const SMALL_COUNT: usize = 64;

/// Device and inode.
pub type Key = (u64, u64);

/// Which files are saved, and up to how many bytes all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saving {
    /// Those that are changed in place. What is too much is told.
    InPlace(u64),
    /// All that are open for writing. What is too much is refused.
    All(u64),
}

impl Saving {
    /// Most bytes.
    pub fn limit(self) -> u64 {
        match self {
            Saving::InPlace(limit) | Saving::All(limit) => limit,
        }
    }
}

/// Why nothing was saved.
#[derive(Debug)]
pub enum Unsaved {
    /// Files that are too large or cannot be read, with the places of their processes.
    Refused(Vec<(usize, Refusal)>),
    /// A process, or the file, is gone.
    Failed(io::Error),
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its pid.
    pub pid: i32,
    /// Any thread of it.
    pub tid: i32,
    /// Its mappings.
    pub mapped: &'a [Mapped],
}

/// A file that is written, or belongs to one.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its path.
    pub path: Name,
    /// Which it is.
    pub key: Key,
    /// Place of a process that has it open, and its number there; of a companion that of the other file.
    holder: usize,
    fd: i32,
    /// How it is open there.
    flags: i32,
    /// All that write it append to it.
    appends: bool,
    /// Some of those that write it may change what is in it.
    in_place: bool,
    /// See [`holdfast_image::record::FileContent::only_if_gone`].
    pub only_if_gone: bool,
    /// No process has it open ([`super::closed_files`]).
    pub is_closed: bool,
}

/// A file as it is now.
pub struct Sight {
    /// It.
    pub file: OpenFile,
    /// Where there are data: first byte, first byte after them.
    pub data: Vec<(u64, u64)>,
    /// What shared mappings cover of it, by offset.
    pub covered: PageSet,
    /// A process maps it for writing, which may change no time of it.
    pub is_mapped: bool,
    /// See [`holdfast_image::record::FileContent::absent`].
    pub absent: Vec<Name>,
}

/// What is to be saved, and what is not.
#[derive(Default)]
pub struct Survey {
    /// In the order of descriptions.
    pub files: Vec<(Written, Sight)>,
    /// With [`Saving::InPlace`] only.
    pub unsaved: Vec<UnsavedFile>,
}

/// Shared mappings for writing: what they cover of each file, by inode and name as the maps file has them, and the
/// inodes of all of them.
struct Mappings {
    covered: HashMap<(u64, Vec<u8>), PageSet>,
    inodes: BTreeSet<u64>,
}

/// What else is to be known of the job's files.
#[derive(Clone, Copy)]
struct Around<'a> {
    mappings: &'a Mappings,
    watchers: &'a Watchers,
}

/// All files that are to be saved.
///
/// # Errors
/// See [`Unsaved`].
pub fn survey(saving: Saving, tables: &[FileTable], processes: &[Process<'_>]) -> Result<Survey, Unsaved> {
    let mappings = Mappings::of(processes);
    let mut choice = Choice { saving, left: saving.limit(), survey: Survey::default(), refusals: Vec::new() };
    let descriptions = tables.first().map_or(&[][..], |first| &first.descriptions);
    let (holders, watchers) = (holders(tables), Watchers::of(descriptions));
    let around = Around { mappings: &mappings, watchers: &watchers };
    for written in all_written(descriptions, &holders, &mappings.inodes) {
        if matches!(saving, Saving::InPlace(_)) && !written.in_place {
            continue;
        }
        let Some(process) = processes.get(written.holder) else { continue };
        let sight = Sight::of(process, &written, around);
        choice.add(written, sight)?;
    }
    choice.add_companions(around)?;
    choice.add_small((descriptions, &holders), processes, around);
    if choice.refusals.is_empty() { Ok(choice.survey) } else { Err(Unsaved::Refused(choice.refusals)) }
}

/// A survey under way.
struct Choice {
    saving: Saving,
    left: u64,
    survey: Survey,
    refusals: Vec<(usize, Refusal)>,
}

impl Choice {
    fn add(&mut self, written: Written, sight: io::Result<Sight>) -> Result<(), Unsaved> {
        match sight {
            Ok(sight) if sight.len() <= self.left => {
                self.left -= sight.len();
                self.survey.files.push((written, sight));
            }
            Ok(sight) => self.leave(&written, sight.len(), None),
            // It ends, or, of a program that runs, the file was just closed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {
                return Err(Unsaved::Failed(error));
            }
            Err(error) => self.leave(&written, 0, Some(&error)),
        }
        Ok(())
    }

    /// What is too large, or cannot be read.
    fn leave(&mut self, written: &Written, bytes: u64, error: Option<&io::Error>) {
        match self.saving {
            Saving::InPlace(_) => {
                let reason = error.map(ToString::to_string);
                self.survey.unsaved.push(UnsavedFile { path: written.path.clone(), bytes, reason });
            }
            // Cut back to its length such a file is what it was.
            Saving::All(_) if written.appends && error.is_none() => {}
            Saving::All(limit) => {
                let reason = error.map_or_else(|| too_much(limit), unreadable);
                self.refusals.push(written.refuse(reason));
            }
        }
    }

    /// Small files that are only read, or only grow: at a restart they may be gone. What cannot be read, or is too
    /// much, is left out.
    fn add_small(
        &mut self,
        (descriptions, holders): (&[Description], &Holders),
        processes: &[Process<'_>],
        around: Around<'_>,
    ) {
        let saved = self.survey.files.iter().map(|(written, _)| written.key);
        let unsaved = self.survey.unsaved.iter().map(|unsaved| &unsaved.path);
        let (mut known, unsaved): (BTreeSet<Key>, BTreeSet<&Name>) = (saved.collect(), unsaved.collect());
        let (mut left, mut found) = (SMALL_TOGETHER.min(self.left), Vec::new());
        let readers = readers(descriptions);
        for (number, description) in (0..).zip(descriptions) {
            let Object::Regular { path, size, device, inode, deleted_content: None, .. } =
                &description.object
            else {
                continue;
            };
            let (key, is_path) = ((*device, *inode), description.flags & libc::O_PATH.cast_unsigned() != 0);
            if *size > SMALL.min(left) || is_path || is_of_kernel(path) || unsaved.contains(path) {
                continue;
            }
            if found.len() >= SMALL_COUNT || !known.insert(key) {
                continue;
            }
            let own = (number, description.flags.cast_signed());
            let (number, flags) = readers.get(&key).copied().unwrap_or(own);
            let Some(&(holder, fd)) = holders.get(&number) else { continue };
            let Some(process) = processes.get(holder) else { continue };
            let (path, appends) = (path.clone(), false);
            let small = Written {
                path,
                key,
                holder,
                fd,
                flags,
                appends,
                in_place: false,
                only_if_gone: true,
                is_closed: false,
            };
            // What is mapped for writing is made anew with its pages.
            if let Ok(sight) = Sight::of(process, &small, around)
                && !sight.is_mapped
                && sight.len() <= left.min(SMALL)
            {
                left -= sight.len();
                found.push((small, sight));
            }
        }
        self.survey.files.append(&mut found);
    }

    /// The files beside those that are saved.
    fn add_companions(&mut self, around: Around<'_>) -> Result<(), Unsaved> {
        let mut known: BTreeSet<Key> = self.survey.files.iter().map(|(written, _)| written.key).collect();
        for place in 0..self.survey.files.len() {
            let main = self.survey.files[place].0.clone();
            if COMPANIONS.iter().any(|suffix| main.path.0.ends_with(suffix.as_bytes())) {
                continue;
            }
            let mut absent = Vec::new();
            for suffix in COMPANIONS {
                let path = Name([&main.path.0[..], suffix.as_bytes()].concat());
                let left_out = self.survey.unsaved.iter().any(|unsaved| unsaved.path == path);
                match fs::symlink_metadata(path.as_path()) {
                    Ok(found) if found.is_file() && !left_out && known.insert((found.dev(), found.ino())) => {
                        let key = (found.dev(), found.ino());
                        let beside = Written { path, key, appends: false, ..main.clone() };
                        match Sight::beside(&beside, around) {
                            // Just now.
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                                absent.push(suffix.into())
                            }
                            sight => self.add(beside, sight)?,
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => absent.push(suffix.into()),
                    _ => {}
                }
            }
            self.survey.files[place].1.absent = absent;
        }
        Ok(())
    }
}

impl Written {
    /// A regular file that no process has open.
    ///
    /// # Errors
    /// As open.
    pub fn closed(path: &Path, watchers: &Watchers) -> io::Result<(Written, Sight)> {
        let path = Name::from(path);
        let mut written = Written {
            path,
            key: (0, 0),
            holder: 0,
            fd: -1,
            appends: false,
            in_place: false,
            only_if_gone: false,
            flags: 0,
            is_closed: true,
        };
        let nothing = Mappings { covered: HashMap::new(), inodes: BTreeSet::new() };
        let sight = Sight::beside(&written, Around { mappings: &nothing, watchers })?;
        let metadata = &sight.file.metadata;
        written.key = (metadata.dev(), metadata.ino());
        if metadata.is_file() { Ok((written, sight)) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// A refusal because of it.
    pub fn refuse(&self, reason: String) -> (usize, Refusal) {
        let subject = Subject::Descriptor { fd: self.fd, name: self.path.to_string() };
        (self.holder, Refusal { subject, reason })
    }
}

impl Mappings {
    fn of(processes: &[Process<'_>]) -> Mappings {
        let (mut covered, mut inodes) = (HashMap::<_, PageSet>::new(), BTreeSet::new());
        for mapping in
            processes.iter().flat_map(|process| shared(process.mapped)).map(|mapped| &mapped.mapping)
        {
            inodes.insert(mapping.inode);
            let own = covered.entry((mapping.inode, mapping.name.clone())).or_default();
            let end = mapping.offset + (mapping.end - mapping.start);
            *own = own.union(&PageSet::from(vec![PageRun::between(Addr(mapping.offset), Addr(end))]));
        }
        Mappings { covered, inodes }
    }
}

impl Sight {
    fn of(process: &Process<'_>, written: &Written, around: Around<'_>) -> io::Result<Sight> {
        let (fd, flags, name) = (written.fd, written.flags, written.path.as_path());
        let place = Place { pid: process.pid, tid: process.tid, fd, flags, name };
        Sight::new(OpenFile::of(place, around.watchers)?, written, around.mappings)
    }

    fn beside(written: &Written, around: Around<'_>) -> io::Result<Sight> {
        let file = OpenFile::beside(written.path.as_path(), around.watchers)?;
        Sight::new(file, written, around.mappings)
    }

    fn new(file: OpenFile, written: &Written, mappings: &Mappings) -> io::Result<Sight> {
        let (size, inode) = (file.metadata.len(), file.metadata.ino());
        let end = Addr(size.next_multiple_of(PAGE_SIZE));
        let whole = PageSet::from(vec![PageRun::between(Addr(0), end)]);
        let covered = mappings.covered.get(&(inode, written.path.0.clone()));
        let covered = covered.map_or_else(PageSet::new, |covered| covered.intersection(&whole));
        let data = file.data(Some(&covered))?;
        let is_mapped = mappings.inodes.contains(&inode);
        Ok(Sight { file, data, covered, is_mapped, absent: Vec::new() })
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.data.iter().map(|(from, to)| to - from).sum()
    }
}

/// Of what cannot be read.
pub fn unreadable(error: &io::Error) -> String {
    format!(
        "--save-files has to save it, and it cannot be read: {error}; make it readable, or run \
        without --save-files"
    )
}

fn too_much(limit: u64) -> String {
    format!(
        "--save-files has to save it, and goes no further than {limit} bytes for all files: give a larger limit"
    )
}

/// What is mapped for writing, of files with names. The same that is saved with the pages.
fn shared(all: &[Mapped]) -> impl Iterator<Item = &Mapped> {
    all.iter().filter(|mapped| mapped.kind == Kind::SharedFile && mapped.mapping.prot & 2 != 0)
}

/// The first place of a process that has each description, and its number there.
type Holders = BTreeMap<u32, (usize, i32)>;

fn holders(tables: &[FileTable]) -> Holders {
    let mut holders = BTreeMap::new();
    for (place, table) in tables.iter().enumerate() {
        for descriptor in &table.descriptors {
            holders.entry(descriptor.description).or_insert((place, descriptor.fd));
        }
    }
    holders
}

/// Each file that has a name and is open for writing, once, in the order of descriptions. `mapped`: inodes of what is
/// mapped for writing.
fn all_written(descriptions: &[Description], holders: &Holders, mapped: &BTreeSet<u64>) -> Vec<Written> {
    let (mut all, mut places): (Vec<Written>, HashMap<Key, usize>) = (Vec::new(), HashMap::new());
    let readers = readers(descriptions);
    for (number, description) in (0..).zip(descriptions) {
        let Object::Regular { path, position, size, device, inode, deleted_content: None, .. } =
            &description.object
        else {
            continue;
        };
        let (flags, key) = (description.flags.cast_signed(), (*device, *inode));
        if !writes(flags) || is_of_kernel(path) {
            continue;
        }
        let appends = flags & libc::O_APPEND != 0;
        let in_place = changes_in_place(flags, *position, *size) || mapped.contains(inode);
        match places.get(&key).and_then(|&place| all.get_mut(place)) {
            Some(known) => {
                known.appends &= appends;
                known.in_place |= in_place;
            }
            None => {
                // One that may be read through, if there is any.
                let (number, flags) = readers.get(&key).copied().unwrap_or((number, flags));
                if let Some(&(holder, fd)) = holders.get(&number) {
                    places.insert(key, all.len());
                    let path = path.clone();
                    all.push(Written {
                        path,
                        key,
                        holder,
                        fd,
                        flags,
                        appends,
                        in_place,
                        only_if_gone: false,
                        is_closed: false,
                    });
                }
            }
        }
    }
    all
}

/// The first description of each file that may be read through, and its flags.
fn readers(descriptions: &[Description]) -> HashMap<Key, (u32, i32)> {
    let mut readers = HashMap::new();
    for (number, description) in (0..).zip(descriptions) {
        let flags = description.flags.cast_signed();
        if let Object::Regular { device, inode, .. } = &description.object
            && open_file::may_read(flags)
        {
            readers.entry((*device, *inode)).or_insert((number, flags));
        }
    }
    readers
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0
}

/// Whether who has a file open like this may change what is in it, rather than let it grow.
pub fn changes_in_place(flags: i32, position: u64, size: u64) -> bool {
    let reads = flags & libc::O_ACCMODE == libc::O_RDWR;
    writes(flags) && flags & libc::O_APPEND == 0 && (reads || position < size)
}

/// What is written there is a request.
pub fn is_of_kernel(path: &Name) -> bool {
    [&b"/proc/"[..], b"/sys/"].iter().any(|folder| path.0.starts_with(folder))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::Folder;
    use holdfast_image::record::Descriptor;
    use holdfast_image::testing::regular;
    use holdfast_sys::attributes;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_only_grows_is_not_changed_in_place() {
        let (read_write, write, append) = (libc::O_RDWR, libc::O_WRONLY, libc::O_APPEND);
        for (flags, position, is) in [
            (read_write, 9, true),
            (read_write | append, 0, false),
            (read_write | libc::O_PATH, 0, false),
            (write, 8, true),
            (write, 9, false),
            (write | append, 0, false),
            (libc::O_RDONLY, 0, false),
        ] {
            assert_eq!(changes_in_place(flags, position, 9), is, "{flags:o} at {position}");
        }
        assert!(
            is_of_kernel(&Name::from("/proc/self/oom_score_adj")) && !is_of_kernel(&Name::from("/process"))
        );
    }

    /// A file of ours that is open, and the table of this process that has it.
    fn table(path: &std::path::Path, file: &File) -> FileTable {
        let metadata = file.metadata().unwrap();
        let object = regular(path, &metadata, metadata.len());
        let flags = libc::O_RDWR.cast_unsigned();
        let descriptions =
            vec![Description { flags, object, locks: Vec::new(), owner: None, streams: 0, within: None }];
        let descriptors = vec![Descriptor { fd: file.as_raw_fd(), cloexec: false, description: 0 }];
        FileTable { descriptors, descriptions, ..FileTable::default() }
    }

    #[test]
    fn journals_go_with_their_database() {
        let folder = Folder::new("journals");
        let path = folder.0.join("db");
        fs::write(&path, b"data").unwrap();
        fs::write(folder.0.join("db-journal"), b"journal").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let pid = attributes::own_pid();
        let process = Process { pid, tid: pid, mapped: &[] };
        let survey = |limit| {
            let found = survey(Saving::InPlace(limit), &[table(&path, &file)], &[process]).unwrap();
            let files = found.files.iter().map(|(written, sight)| {
                (written.path.as_path().file_name().unwrap().to_owned(), sight.len(), sight.absent.clone())
            });
            (files.collect::<Vec<_>>(), found.unsaved.len())
        };
        let absent = vec![Name::from("-wal"), Name::from("-shm")];
        let database = ("db".into(), 4, absent);
        assert_eq!(survey(11), (vec![database.clone(), ("db-journal".into(), 7, Vec::new())], 0));
        assert_eq!(survey(10), (vec![database], 1), "it is told, and not taken for absent");
        assert_eq!(survey(3), (Vec::new(), 1));
    }
}
