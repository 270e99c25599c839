//! The folders that things of a program were in: they are made anew at a restart when they are gone (an emptied
//! TMPDIR, a reboot).
//!
//! Part of the files part of the process record. Invariants: plain data; [`Needs`] is pure, and the same at the
//! checkpoint, which notes what those folders were, and at the restart.

use crate::record::{Backing, Description, FileContent, Object, ProcessRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What a folder is needed for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// For a moment: the file of a socket is made there, and removed again, as it was.
    Passing,
    /// What was in it is in it again.
    Lasting,
}

/// Which process needs a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The one with this place in the job.
    Process(usize),
    /// The one that has this description.
    Description(usize),
}

/// What lies in folders.
#[derive(Clone, Debug)]
pub struct Needs<'a> {
    /// The working folders of all processes, the first one first; `None`: removed.
    pub cwds: Vec<Option<&'a Path>>,
    /// Files that are mapped shared for writing, each with the place of the process.
    pub shared: Vec<(usize, &'a Path)>,
    /// What is open.
    pub descriptions: &'a [Description],
    /// Files that are saved.
    pub contents: &'a [FileContent],
}

impl Needs<'_> {
    /// Of all processes of a record.
    pub fn of(record: &ProcessRecord) -> Needs<'_> {
        let cwd = |process: &'_ ProcessRecord| process.cwd_deleted.is_none();
        let shared = record.processes().enumerate().flat_map(|(place, process)| {
            process.regions.iter().filter_map(move |region| match region.backing {
                Backing::SharedFile { file, writable: true, .. } => {
                    let file = process.files.mapped.get(file as usize)?;
                    (!file.is_only_inside()).then_some((place, file.path.as_path()))
                }
                _ => None,
            })
        });
        let cwds = record.processes().map(|process| cwd(process).then(|| process.cwd.as_path()));
        Needs {
            cwds: cwds.collect(),
            shared: shared.collect(),
            descriptions: &record.files.descriptions,
            contents: &record.files.contents,
        }
    }

    /// All folders that a restart needs and can make anew.
    pub fn folders(&self) -> BTreeMap<PathBuf, Need> {
        let mut all = BTreeMap::new();
        for (folder, need, _) in self.each() {
            let known = all.entry(folder).or_insert(need);
            *known = need.max(*known);
        }
        all
    }

    /// The same, once for each that needs one.
    pub fn each(&self) -> Vec<(PathBuf, Need, By)> {
        let saved: BTreeSet<(u64, u64)> = self.contents.iter().map(|one| (one.device, one.inode)).collect();
        let mut all = Vec::new();
        let mut add = |folder: Option<&Path>, need: Need, by: By| {
            all.extend(
                folder.filter(|folder| folder.is_absolute()).map(|folder| (folder.to_owned(), need, by)),
            );
        };
        let cwds = self.cwds.iter().enumerate();
        cwds.for_each(|(place, cwd)| add(*cwd, Need::Lasting, By::Process(place)));
        self.shared.iter().for_each(|(place, file)| add(file.parent(), Need::Lasting, By::Process(*place)));
        for content in self.contents {
            // One that no process has open is of the first.
            let open = self.descriptions.iter().position(|one| one.object.is_saved_as(content));
            let by = open.map_or(By::Process(0), By::Description);
            add(content.path.as_path().parent(), Need::Lasting, by);
        }
        for (index, description) in self.descriptions.iter().enumerate() {
            let writes = description.flags & O_ACCMODE != 0;
            // What is appended to goes on in an empty file.
            let appends = description.flags & (O_ACCMODE | O_APPEND) == O_WRONLY | O_APPEND;
            let by = By::Description(index);
            match &description.object {
                Object::Directory { path, .. } => add(Some(path.as_path()), Need::Lasting, by),
                Object::Pipe { path: Some(path), deleted: false, .. } => {
                    add(path.as_path().parent(), Need::Lasting, by);
                }
                Object::Regular { path, size, device, inode, deleted_content: None, .. }
                    if writes && (*size == 0 || appends) || saved.contains(&(*device, *inode)) =>
                {
                    add(path.as_path().parent(), Need::Lasting, by);
                }
                Object::Socket(socket) => {
                    let need = if socket.deleted { Need::Passing } else { Need::Lasting };
                    let cwd = self.cwds.first().copied().flatten();
                    // Joined with nothing a relative path stays relative: it is left out.
                    let path = socket.path().map(|path| cwd.unwrap_or(Path::new("")).join(path));
                    add(path.as_deref().and_then(Path::parent), need, by);
                }
                _ => {}
            }
        }
        all
    }
}

/// fcntl.h.
const O_ACCMODE: u32 = 3;
const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bytes::Name;
    use crate::record::SocketRecord;
    use crate::testing;

    #[test]
    fn what_lies_in_a_folder_says_for_how_long_it_is_needed() {
        let mut record = testing::empty_record();
        record.cwd = Name::from(Path::new("/home/u"));
        let socket = |path: &[u8], deleted| {
            let socket = testing::socket(1, [&[1, 0], path, &[0]].concat());
            Object::Socket(Box::new(SocketRecord { deleted, ..socket }))
        };
        let folder = Object::Directory { path: Name::from(Path::new("/data")), position: 0, inode: None };
        let objects = [socket(b"/run/a/x", true), socket(b"sd/x", true), socket(b"/tmp/b/x", false), folder];
        let description = |object| Description {
            flags: 2,
            object,
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        };
        record.files.descriptions = objects.map(description).to_vec();
        let found: Vec<(PathBuf, Need)> = Needs::of(&record).folders().into_iter().collect();
        let (passing, lasting) = (Need::Passing, Need::Lasting);
        let expected = [
            ("/data", lasting),
            ("/home/u", lasting),
            ("/home/u/sd", passing),
            ("/run/a", passing),
            ("/tmp/b", lasting),
        ];
        assert_eq!(found, expected.map(|(path, need)| (PathBuf::from(path), need)));
        record.files.descriptions.push(description(socket(b"/run/a/y", false)));
        assert_eq!(Needs::of(&record).folders().get(Path::new("/run/a")), Some(&lasting));
    }
}
