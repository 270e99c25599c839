//! What is in file systems that are mounted nowhere but in a mount namespace of a program's own.
//!
//! Called by [`super::View`]; inside the stop for the content ([`Walk::new`]'s `read`). All of it goes into the image,
//! as far as that is little. What other mounts lie on is there again, empty. Fails by: words for a refusal.

use super::parts::{REMEDY, within};
use crate::capture::identity::{mtime_ns, owner_of};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::mounts::{TmpfsEntry, TmpfsKind};
use holdfast_image::record::{ContentPiece, Ownership};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// More files are not recorded.
const COUNT: usize = 20_000;
/// Content of all together up to this size goes into the image, as of files without a name.
const LIMIT: u64 = 64 << 20;
/// Of a file that is mounted and has no name.
const FILE: u64 = 1 << 20;
const PAGE: usize = 4096;

/// One look at all of them.
pub struct Walk<'a> {
    /// The root of the namespace.
    folder: &'a Path,
    /// Where mounts lie.
    points: HashSet<PathBuf>,
    read: bool,
    bytes: u64,
    count: usize,
}

impl<'a> Walk<'a> {
    /// A new one. `read`: with what is in the files.
    pub fn new(folder: &'a Path, points: impl Iterator<Item = &'a PathBuf>, read: bool) -> Walk<'a> {
        Walk { folder, points: points.cloned().collect(), read, bytes: 0, count: 0 }
    }

    /// All that is in one, which is mounted there.
    ///
    /// # Errors
    /// It is too much, or cannot be read.
    pub fn all(&mut self, point: &Path) -> Result<Vec<TmpfsEntry>, String> {
        let (mut all, mut names): (Vec<TmpfsEntry>, _) = (Vec::new(), HashMap::new());
        let mut open = vec![PathBuf::new()];
        while let Some(path) = open.pop() {
            let place = if path == Path::new("") { point.to_owned() } else { point.join(&path) };
            match self.entry(&place, &path, &mut names, all.len()) {
                Ok(entry) => {
                    let is_covered = path != Path::new("") && self.points.contains(&place);
                    let is_open = matches!(entry.kind, TmpfsKind::Folder) && !is_covered;
                    // What is seen of it is what is mounted there.
                    all.push(match all.first().filter(|_| is_covered) {
                        Some(root) => {
                            TmpfsEntry { mode: 0o755, owner: root.owner, mtime_ns: root.mtime_ns, ..entry }
                        }
                        None => entry,
                    });
                    if is_open {
                        open.extend(self.names(&place)?.into_iter().map(|name| path.join(name)));
                    }
                }
                // Before the stop they come and go.
                Err(Failed::Unread(error)) if !self.read && error.kind() == io::ErrorKind::NotFound => {}
                Err(Failed::Unread(error)) => return Err(unread(&place, &error)),
                Err(Failed::Refused(why)) => return Err(why),
            }
        }
        Ok(all)
    }

    fn names(&self, place: &Path) -> Result<Vec<PathBuf>, String> {
        let names = fs::read_dir(within(self.folder, place)).and_then(|all| {
            all.map(|one| one.map(|one| PathBuf::from(one.file_name()))).collect::<io::Result<Vec<_>>>()
        });
        match names {
            Ok(mut names) => {
                // The last is taken first.
                names.sort_by(|one, other| other.cmp(one));
                Ok(names)
            }
            Err(error) if !self.read && error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(unread(place, &error)),
        }
    }

    fn entry(
        &mut self,
        place: &Path,
        path: &Path,
        names: &mut HashMap<u64, u32>,
        number: usize,
    ) -> Result<TmpfsEntry, Failed> {
        let at = within(self.folder, place);
        let found = fs::symlink_metadata(&at)?;
        self.count += 1;
        if self.count > COUNT {
            return Err(Failed::Refused(format!(
                "there are more than {COUNT} files in its mount namespace alone: {REMEDY}"
            )));
        }
        let is_covered = path != Path::new("") && self.points.contains(place);
        let known = names.get(&found.ino()).copied().filter(|_| found.nlink() > 1 && !found.is_dir());
        let kind = match known {
            _ if is_covered && found.is_dir() => TmpfsKind::Folder,
            _ if is_covered => TmpfsKind::File { size: 0, content: Vec::new() },
            Some(of) => TmpfsKind::Same { of },
            None => self.kind(&at, place, &found)?,
        };
        if found.nlink() > 1 && !found.is_dir() && !is_covered {
            names.entry(found.ino()).or_insert(u32::try_from(number).unwrap_or(u32::MAX));
        }
        Ok(TmpfsEntry {
            path: Name::from(path),
            mode: found.mode() & 0o7777,
            owner: owner_of(&found),
            mtime_ns: mtime_ns(&found),
            kind,
        })
    }

    fn kind(&mut self, at: &Path, place: &Path, found: &Metadata) -> Result<TmpfsKind, Failed> {
        let kind = found.file_type();
        if kind.is_dir() {
            return Ok(TmpfsKind::Folder);
        }
        if kind.is_symlink() {
            return Ok(TmpfsKind::Link { to: Name::from(fs::read_link(at)?.as_path()) });
        }
        if kind.is_fifo() {
            return Ok(TmpfsKind::Fifo);
        }
        if !kind.is_file() {
            let what = if kind.is_socket() { "a socket" } else { "a device" };
            return Err(Failed::Refused(format!(
                "{what} at {}, in its mount namespace alone, is not supported: {REMEDY}",
                place.display()
            )));
        }
        self.bytes += found.len();
        if self.bytes > LIMIT {
            return Err(Failed::Refused(format!(
                "there are more than {} MiB in files that are in its mount namespace alone ({}): remove some, or \
                 {REMEDY}",
                LIMIT >> 20,
                place.display()
            )));
        }
        let content = if self.read { pieces(&read(at, found.len())?) } else { Vec::new() };
        Ok(TmpfsKind::File { size: found.len(), content })
    }

    /// A file that has no name but is mounted there.
    ///
    /// # Errors
    /// It is too large, or cannot be read.
    pub fn file(&self, point: &Path) -> Result<(Blob, u32, Ownership), String> {
        let at = within(self.folder, point);
        let found = fs::symlink_metadata(&at).map_err(|error| unread(point, &error))?;
        if !found.is_file() || found.len() > FILE {
            return Err(format!(
                "its mount namespace has a mount at {} of what has no name any more: {REMEDY}",
                point.display()
            ));
        }
        let content = if self.read { read(&at, found.len()) } else { Ok(Vec::new()) };
        let content = content.map_err(|error| unread(point, &error))?;
        Ok((Blob(content), found.mode() & 0o7777, owner_of(&found)))
    }

    /// A file system of pseudo-terminals that has one could not be made again.
    ///
    /// # Errors
    /// It has one.
    pub fn no_terminals(&self, point: &Path) -> Result<(), String> {
        match self.names(point)?.iter().find(|name| name.as_os_str() != "ptmx") {
            Some(name) => Err(format!(
                "a terminal at {}, in its mount namespace alone, is not supported: {REMEDY}",
                point.join(name).display()
            )),
            None => Ok(()),
        }
    }
}

/// Why there is no entry.
enum Failed {
    Unread(io::Error),
    Refused(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Unread(error)
    }
}

fn unread(place: &Path, error: &io::Error) -> String {
    format!("{}, in its mount namespace alone, cannot be read: {error}", place.display())
}

/// Not longer than it was: it may be a file that grows.
fn read(at: &Path, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(at)?
        .take(len)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is not zero, by pages.
fn pieces(bytes: &[u8]) -> Vec<ContentPiece> {
    let mut all: Vec<ContentPiece> = Vec::new();
    let mut end = 0;
    for (place, page) in bytes.chunks(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let offset = (place * PAGE) as u64;
        match all.last_mut().filter(|_| end == offset) {
            Some(piece) => piece.data.0.extend_from_slice(page),
            None => all.push(ContentPiece { offset, data: Blob(page.to_vec()) }),
        }
        end = offset + page.len() as u64;
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::Folder;
    use std::os::unix::fs::symlink;

    #[test]
    fn all_that_is_there_is_found_and_what_is_mounted_on_is_empty() {
        let folder = Folder::new("walk");
        let base = folder.0.join("mnt");
        fs::create_dir_all(base.join("a/b")).unwrap();
        fs::create_dir_all(base.join("point/more")).unwrap();
        let mut bytes = vec![0; 3 * PAGE + 5];
        (bytes[PAGE], bytes[3 * PAGE + 4]) = (1, 2);
        fs::write(base.join("a/file"), &bytes).unwrap();
        fs::hard_link(base.join("a/file"), base.join("again")).unwrap();
        symlink("a/file", base.join("link")).unwrap();
        let points = [PathBuf::from("/mnt"), PathBuf::from("/mnt/point")];
        let all = Walk::new(&folder.0, points.iter(), true).all(Path::new("/mnt")).unwrap();
        let kinds: Vec<(String, &TmpfsKind)> =
            all.iter().map(|entry| (entry.path.to_string(), &entry.kind)).collect();
        let names: Vec<&str> = kinds.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["", "a", "a/b", "a/file", "again", "link", "point"]);
        assert_eq!((kinds[4].1, kinds[6].1), (&TmpfsKind::Same { of: 3 }, &TmpfsKind::Folder));
        assert_eq!(kinds[5].1, &TmpfsKind::Link { to: Name::from("a/file") });
        let TmpfsKind::File { size, content } = kinds[3].1 else { unreachable!() };
        let parts: Vec<(u64, usize)> =
            content.iter().map(|piece| (piece.offset, piece.data.0.len())).collect();
        assert_eq!((*size, parts), (bytes.len() as u64, vec![(PAGE as u64, PAGE), (3 * PAGE as u64, 5)]));
    }
}
