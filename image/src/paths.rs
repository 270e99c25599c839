//! Files that are at other paths at the restart than at the checkpoint, or that may be another user's.
//!
//! Used by the front and by the agent, each on its own copy of the process record (`restart --map OLD=NEW`,
//! `--accept-replaced PATH`).
//! Invariants: pure; a path is changed by one pair at most, the one with the longest old path.

use crate::bytes::Name;
use crate::record::{NamelessKind, Object, ProcessRecord};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An old path, and where everything at and below it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Absolute.
    pub old: PathBuf,
    /// Absolute.
    pub new: PathBuf,
}

impl Moved {
    /// Reads `OLD=NEW`.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &OsStr) -> Result<Moved, String> {
        let bytes = text.as_bytes();
        let equals =
            bytes.iter().position(|&byte| byte == b'=').ok_or("write OLD=NEW, two absolute paths")?;
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let (old, new) = (path(&bytes[..equals]), path(&bytes[equals + 1..]));
        if !old.is_absolute() || !new.is_absolute() {
            return Err("write OLD=NEW, two absolute paths".into());
        }
        Ok(Moved { old, new })
    }
    /// The same text again.
    pub fn to_argument(&self) -> OsString {
        let mut text = self.old.as_os_str().to_owned();
        text.push("=");
        text.push(&self.new);
        text
    }
}

fn apply(moved: &[Moved], name: &mut Name) {
    let path = name.as_path();
    let fitting = moved.iter().filter_map(|pair| Some((pair, path.strip_prefix(&pair.old).ok()?)));
    let Some((pair, rest)) = fitting.max_by_key(|(pair, _)| pair.old.as_os_str().len()) else { return };
    let now = if rest == Path::new("") { pair.new.clone() } else { pair.new.join(rest) };
    *name = Name::from(now.as_path());
}

/// Changes all paths of a record that a restart opens. Names of unix sockets stay: the program and its peers know them.
pub fn move_files(record: &mut ProcessRecord, moved: &[Moved]) {
    for other in &mut record.others {
        move_files(other, moved);
    }
    apply(moved, &mut record.exe.path);
    apply(moved, &mut record.cwd);
    if let Some(root) = &mut record.root {
        apply(moved, &mut root.path);
    }
    for file in &mut record.files.mapped {
        apply(moved, &mut file.path);
    }
    for file in record.files.nameless.iter_mut().filter(|file| file.kind == NamelessKind::Deleted) {
        apply(moved, &mut file.name);
    }
    for folder in &mut record.files.folders {
        apply(moved, &mut folder.path);
    }
    for content in &mut record.files.contents {
        apply(moved, &mut content.path);
    }
    for description in &mut record.files.descriptions {
        match &mut description.object {
            Object::Regular { path, .. }
            | Object::Directory { path, .. }
            | Object::Device { path }
            | Object::Link { path, .. }
            | Object::RemovedFolder { path, .. } => apply(moved, path),
            Object::Pipe { path: Some(path), .. } => apply(moved, path),
            Object::Inotify { watches } => watches.iter_mut().for_each(|watch| apply(moved, &mut watch.path)),
            _ => {}
        }
    }
}

/// Forgets whose the files at these paths were: whatever is there now is taken. Returns the paths that no file of the
/// program has.
pub fn accept_replaced<'a>(record: &mut ProcessRecord, accepted: &'a [PathBuf]) -> Vec<&'a Path> {
    let mut used = vec![false; accepted.len()];
    accept(record, accepted, &mut used);
    let unused = accepted.iter().zip(used).filter(|(_, used)| !used);
    unused.map(|(path, _)| path.as_path()).collect()
}

fn accept(record: &mut ProcessRecord, accepted: &[PathBuf], used: &mut [bool]) {
    let mut is_accepted = |path: &Path| {
        let found = accepted.iter().position(|other| other == path);
        found.and_then(|at| used.get_mut(at)).map(|used| *used = true).is_some()
    };
    for (path, inode) in [(&record.cwd, &mut record.cwd_inode), (&record.exe.path, &mut record.exe.inode)] {
        if is_accepted(path.as_path()) {
            *inode = None;
        }
    }
    if let Some(root) = record.root.as_mut().filter(|root| is_accepted(root.path.as_path())) {
        root.inode = None;
    }
    for file in record.files.mapped.iter_mut().filter(|file| is_accepted(file.path.as_path())) {
        file.inode = None;
    }
    for description in &mut record.files.descriptions {
        match &mut description.object {
            Object::Regular { path, now, owner, .. } => {
                let now = now.as_ref().map_or(path.as_path(), Name::as_path);
                if is_accepted(path.as_path()) || is_accepted(now) {
                    *owner = None;
                }
            }
            Object::Directory { path, inode, .. }
            | Object::Pipe { path: Some(path), inode, .. }
            | Object::Link { path, inode }
                if is_accepted(path.as_path()) =>
            {
                *inode = None;
            }
            Object::Socket(socket) if socket.path().is_some_and(&mut is_accepted) => socket.owner = None,
            _ => {}
        }
    }
    for content in record.files.contents.iter_mut().filter(|content| is_accepted(content.path.as_path())) {
        content.owner = None;
    }
    for other in &mut record.others {
        accept(other, accepted, used);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::record::{Inode, Ownership};

    #[test]
    fn what_is_accepted_is_nobodys() {
        let mut record = crate::testing::empty_record();
        let owner = Some(Ownership { user: 1, group: 1 });
        record.cwd_inode = Some(Inode::regular((1, 2), None, 0, owner));
        record.exe.inode = record.cwd_inode;
        record.others.push(record.clone());
        let accepted = ["/", "/none"].map(PathBuf::from);
        assert_eq!(accept_replaced(&mut record, &accepted), [Path::new("/none")]);
        let forgotten = |record: &ProcessRecord| (record.cwd_inode.is_none(), record.exe.inode.is_none());
        assert_eq!((forgotten(&record), forgotten(&record.others[0])), ((true, false), (true, false)));
    }

    fn moved(pairs: &[&str]) -> Vec<Moved> {
        pairs.iter().map(|pair| Moved::parse(OsStr::new(pair)).unwrap()).collect()
    }

    fn now(pairs: &[&str], path: &str) -> String {
        let mut name = Name::from(Path::new(path));
        apply(&moved(pairs), &mut name);
        name.to_string()
    }

    #[test]
    fn whole_components_only_and_the_longest_wins() {
        let pairs = ["/scratch=/new", "/scratch/job/in=/data", "/a/b/=/c"];
        assert_eq!(now(&pairs, "/scratch/job/out"), "/new/job/out");
        assert_eq!(now(&pairs, "/scratch/job/in/x"), "/data/x");
        assert_eq!(now(&pairs, "/scratch"), "/new");
        assert_eq!(now(&pairs, "/scratchy/x"), "/scratchy/x");
        assert_eq!(now(&pairs, "/a/b"), "/c");
        assert_eq!(now(&["/=/root"], "/x/y"), "/root/x/y");
        assert_eq!(now(&["/a=/b", "/b=/c"], "/a/x"), "/b/x", "once");
    }

    #[test]
    fn pairs_are_absolute() {
        for wrong in ["", "/a", "a=/b", "/a=b", "=/b", "/a="] {
            assert!(Moved::parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
        let pair = &moved(&["/a=/b=c"])[0];
        assert_eq!((pair.new.as_path(), pair.to_argument()), (Path::new("/b=c"), "/a=/b=c".into()));
    }
}
