//! Regular files: put back to the length that they had, what is cut off being kept ([`super::saved_files`]).
//!
//! The rule: no byte is ever lost. A file that the program had open for writing and that has grown since is cut
//! back, after its end was copied to the store and synchronised; one that has shrunk is an error, because the
//! program would write behind a hole, unless it can only append. One that was renamed since
//! ([`crate::rebuild::renamed`]) is read where it is, or copied to where the program had it. The new process has
//! opened all and changed nothing ([`crate::rebuild::new_process::regular`]); [`put_back`] runs when all else has
//! succeeded, so that a restart that fails leaves the files as they are.

use super::saved_files::{self, keep_tail};
use super::taken_files::TakenFiles;
use crate::capture::identity;
use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::{Role, may_write, refuse_shrunk};
use crate::rebuild::paths::{self, Opener, Verdict};
use crate::rebuild::renamed::is_kept;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileTable, Object, ProcessRecord};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

/// Puts all files that the program writes back to the length that they had. One line per file that was cut.
///
/// # Errors
/// Names the file; those before it are put back, and their ends kept.
pub fn put_back(
    table: &FileTable,
    files: &TakenFiles<'_>,
    saved_dir: &Path,
) -> Result<Vec<String>, RebuildError> {
    let mut notes = Vec::new();
    let (mut copied, mut said) = (BTreeSet::new(), BTreeSet::new());
    for (index, description) in table.descriptions.iter().enumerate() {
        if let Object::Regular { path, size, now: other, deleted_content: None, .. } = &description.object
            && table.content_of(&description.object).is_none()
            && may_write(description.flags)
            && description.flags & libc::O_PATH.cast_unsigned() == 0
        {
            let file = files.take(index, path)?;
            let now = file
                .metadata()
                .map_err(|error| RebuildError::file(path, format!("asking for its length: {error}")))?;
            if let Some(other) = other {
                if copied.insert(path) {
                    refuse_taken(table, path, &now)?;
                    let source = files.source(index, path, other)?;
                    let opener = files.opener_of(index);
                    notes.push(copy_back(path, (&source, other), (&file, *size), (saved_dir, &opener))?);
                    saved_files::keep(&description.object, &source, saved_dir);
                }
                continue;
            }
            let is_first = said.insert(path);
            notes.extend(note_overwritten(description, &now).filter(|_| is_first));
            let now = now.len();
            if now < *size && Role::of(table, &description.object) == Role::Appended {
                if is_first {
                    notes.push(begin_anew(&file, path, (*size, now), saved_dir)?);
                }
                continue;
            }
            refuse_shrunk(path, *size, now)?;
            if now > *size {
                notes.push(put_back_length(&file, path, (*size, now), saved_dir)?);
            }
        }
    }
    Ok(notes)
}

/// Puts files back that no process has any more: a stream that goes elsewhere now. One that is another file by now, or
/// that may not be written, is left as it is. One line per file that was cut, or that could not be.
pub fn put_back_left(left: &[Description], record: &ProcessRecord, saved_dir: &Path) -> Vec<String> {
    let mut notes = Vec::new();
    let opener = Opener::of(record);
    // What is in the image of one was put back with the others.
    for description in left.iter().filter(|one| record.files.content_of(&one.object).is_none()) {
        let Object::Regular { path, size, now: None, .. } = &description.object else { continue };
        let Ok(Some(found)) = opener.find(path, description.object.inode().as_ref()) else { continue };
        let writing = libc::O_WRONLY.cast_unsigned();
        let (Verdict::Same, Ok(file)) = (found.verdict, opener.open_found(&found, writing)) else { continue };
        let file = File::from(file);
        let now = file.metadata().map_or(0, |now| now.len());
        if now > *size {
            let cut = put_back_length(&file, path, (*size, now), saved_dir);
            notes.push(cut.unwrap_or_else(|error| format!("left as it is: {error}")));
        }
    }
    notes
}

/// Of a file to which the program only appends, and which has been rotated or removed: what the program had appended is
/// not in it any more, and what is in it came after the checkpoint. The program goes on in an empty file.
fn begin_anew(
    file: &File,
    path: &Name,
    (size, now): (u64, u64),
    saved_dir: &Path,
) -> Result<String, RebuildError> {
    let failed = |error: io::Error| {
        RebuildError::file(path, format!("it cannot be emptied, as the program begins it anew: {error}"))
    };
    let mut note = format!(
        "{path}: the {size} bytes that the program had appended to it are there no more (rotated or removed); it \
         goes on in an empty file"
    );
    if now > 0 {
        let kept = keep_tail(file, path, 0, saved_dir).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        note.push_str(&format!("; what was there is kept in {}", kept.display()));
    }
    Ok(note)
}

/// Of a file that may have been written over in place since the checkpoint, which cutting it back does not undo.
/// One whose offset was at its end is taken for one that grows.
fn note_overwritten(description: &Description, now: &fs::Metadata) -> Option<String> {
    let Object::Regular { path, position, size, mtime_ns, .. } = &description.object else { return None };
    let grows = description.flags & libc::O_APPEND.cast_unsigned() != 0 || position == size;
    (!grows && identity::mtime_ns(now) != *mtime_ns).then(|| {
        format!(
            "{path}: it was written since the checkpoint; what was written over stays so (`holdfast run \
             --save-files=SIZE` saves \
             what is in larger files)"
        )
    })
}

/// A place that another file of the program has now: one of them would be lost.
fn refuse_taken(table: &FileTable, path: &Name, now: &fs::Metadata) -> Result<(), RebuildError> {
    let is_there = |object: &Object| match object {
        Object::Regular { device, inode, .. } => (now.dev(), now.ino()) == (*device, *inode),
        _ => false,
    };
    if table.descriptions.iter().any(|description| is_there(&description.object)) {
        let what = "another open file of the program has its name now; rename both as they were";
        return Err(RebuildError::file(path, what));
    }
    Ok(())
}

/// Makes of the file at `path`, which is another one, what was there: the first bytes of `source`, which is called
/// `other` now.
fn copy_back(
    path: &Name,
    (source, other): (&File, &Name),
    (file, size): (&File, u64),
    (saved_dir, opener): (&Path, &Opener),
) -> Result<String, RebuildError> {
    let failed = |error: io::Error| {
        let what = format!("it cannot be made anew from {other}, its name now: {error}");
        RebuildError::file(path, what)
    };
    let now = source.metadata().map_err(failed)?;
    refuse_shrunk(path, size, now.len())?;
    let became = if is_kept(path, other) { "removed".to_owned() } else { format!("renamed to {other}") };
    let mut note = format!("{path} was {became}; created again with its first {size} bytes");
    if file.metadata().map_err(failed)?.len() > 0 {
        let kept = keep_tail(file, path, 0, saved_dir).map_err(failed)?;
        note.push_str(&format!("; what was there is kept in {}", kept.display()));
    }
    // The program's own may append.
    let writing = paths::reopen(file.as_fd(), libc::O_WRONLY.cast_unsigned()).map_err(failed)?;
    let mut file = File::from(writing);
    file.set_len(0).map_err(failed)?;
    let copied = io::copy(&mut source.take(size), &mut file).map_err(failed)?;
    if copied != size {
        return Err(failed(io::Error::other(format!("only {copied} of {size} bytes can be read"))));
    }
    // Whose it is only root can say; for others it is their own.
    if opener.ids().is_none() {
        let _ = fchown(&file, Some(now.uid()), Some(now.gid()));
    }
    let owner = file.metadata().map_err(failed)?;
    let mode = opener.mode_of(now.permissions().mode(), owner.uid(), owner.gid());
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok(note)
}

/// Cuts a file that has grown: `size` bytes stay of those that it has `now`.
///
/// # Errors
/// What would be cut off cannot be kept.
pub fn put_back_length(
    file: &File,
    path: &Name,
    (size, now): (u64, u64),
    saved_dir: &Path,
) -> Result<String, RebuildError> {
    let kept = keep_tail(file, path, size, saved_dir).map_err(|error| {
        RebuildError::file(
            path,
            format!(
                "it has grown from {size} to {now} bytes since the checkpoint, and what would be cut off \
                 cannot be kept \
                 in {}: {error}; make it readable, or cut it yourself (truncate -s {size})",
                saved_dir.display()
            ),
        )
    })?;
    file.set_len(size).map_err(|error| {
        RebuildError::file(path, format!("it cannot be truncated from {now} to {size} bytes: {error}"))
    })?;
    Ok(format!(
        "{path}: truncated to its length at the checkpoint ({size} bytes); the {} bytes written since are saved in {}",
        now.saturating_sub(size),
        kept.display()
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::capture::identity::born_ns;
    use crate::rebuild::job::Job;
    use crate::rebuild::new_process::regular;
    use crate::rebuild::renamed;
    use crate::rebuild::testing::{Folder, record};
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    fn object(path: &Path, size: u64, position: u64) -> Object {
        let metadata = fs::metadata(path).ok();
        Object::Regular {
            path: Name::from(path),
            position,
            size,
            device: metadata.as_ref().map_or(0, MetadataExt::dev),
            inode: metadata.as_ref().map_or(0, MetadataExt::ino),
            mtime_ns: 0,
            born_ns: metadata.as_ref().and_then(born_ns),
            now: None,
            mode: metadata.as_ref().map_or(0o640, |metadata| metadata.mode() & 0o7777),
            owner: metadata.as_ref().map(identity::owner_of),
            deleted_content: None,
        }
    }

    /// With the files where they are, as if processes had them open.
    fn put_back(table: &FileTable, saved: &Path) -> Result<Vec<String>, RebuildError> {
        let mut record = record(Vec::new());
        record.files = table.clone();
        let path = |index: usize| match &table.descriptions[index].object {
            Object::Regular { path, .. } => path.as_path().to_owned(),
            _ => PathBuf::new(),
        };
        let take = |index| File::options().append(true).open(path(index));
        super::put_back(table, &TakenFiles::new(&Job::new(&record), &take), saved)
    }

    fn open(
        object: &Object,
        flags: u32,
        role: Role,
        notes: &mut Vec<String>,
    ) -> Result<OwnedFd, RebuildError> {
        regular::open(object, flags, role, &Opener::of(&record(Vec::new())), notes)
    }

    const WRITING: u32 = (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND).cast_unsigned();

    #[test]
    fn a_file_that_grew_is_cut_and_its_end_kept() {
        let folder = Folder::new("grew");
        let (path, saved) = (folder.0.join("out.log"), folder.0.join("saved"));
        fs::write(&path, b"before|after").unwrap();
        let object = object(&path, 7, 3);
        let fd = open(&object, WRITING, Role::Written, &mut Vec::new()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before|after", "opening changes nothing");
        let description =
            Description { flags: WRITING, object, locks: Vec::new(), owner: None, streams: 0, within: None };
        let table =
            FileTable { descriptions: vec![description.clone(), description], ..FileTable::default() };
        let notes = put_back(&table, &saved).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before|");
        let tails: Vec<PathBuf> = fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(tails.len(), 1);
        assert_eq!(fs::read(&tails[0]).unwrap(), b"after");
        assert_eq!(fs::metadata(&tails[0]).unwrap().mode() & 0o777, 0o600);
        assert!(notes.len() == 1 && notes[0].contains("(7 bytes); the 5 bytes written since"), "{notes:?}");
        File::from(fd).write_all(b"X").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before|X", "O_APPEND was kept");
    }

    #[test]
    fn a_file_that_shrank_is_refused_when_written_and_noted_when_read() {
        let folder = Folder::new("shrank");
        let path = folder.0.join("data");
        fs::write(&path, b"12345").unwrap();
        let mut notes = Vec::new();
        let error = open(&object(&path, 9, 9), WRITING, Role::Written, &mut notes).unwrap_err().to_string();
        assert!(error.contains("data") && error.contains("truncate -s 9"), "{error}");
        assert!(notes.is_empty());
        open(&object(&path, 9, 9), 0, Role::Read, &mut notes).unwrap();
        assert_eq!(notes.len(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"12345");
    }

    #[test]
    fn a_replaced_file_is_noted_and_a_missing_one_refused() {
        let folder = Folder::new("replaced");
        let path = folder.0.join("data");
        fs::write(&path, b"12345").unwrap();
        let old = object(&path, 5, 2);
        fs::write(folder.0.join("new"), b"54321").unwrap();
        fs::rename(folder.0.join("new"), &path).unwrap();
        let mut notes = Vec::new();
        let mut file = File::from(open(&old, 0, Role::Read, &mut notes).unwrap());
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), notes.len()), ("321", 1));
        fs::remove_file(&path).unwrap();
        assert!(open(&old, 0, Role::Read, &mut notes).is_err());
        assert!(open(&old, WRITING, Role::Written, &mut notes).is_err());
        // One that was empty can be made anew.
        let mut empty = object(&path, 0, 0);
        if let Object::Regular { mode, .. } = &mut empty {
            *mode = 0o666; // no usual mask leaves that
        }
        open(&empty, WRITING, Role::Written, &mut notes).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o7777), (0, 0o666));
    }

    /// A record of descriptions that write, after the look for files that were renamed.
    fn found(objects: &[&Object], saved: &Path) -> ProcessRecord {
        let description = |object: &&Object| Description {
            flags: WRITING,
            object: (*object).clone(),
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        };
        let mut record = record(Vec::new());
        record.files.descriptions = objects.iter().map(description).collect();
        renamed::find(&mut record, saved);
        record
    }

    #[test]
    fn a_file_that_was_renamed_is_read_there_and_written_where_it_was() {
        let folder = Folder::new("renamed");
        let (path, now, saved) = (folder.0.join("part"), folder.0.join("whole"), folder.0.join("saved"));
        fs::write(&path, b"before|after").unwrap();
        let old = object(&path, 7, 7);
        fs::rename(&path, &now).unwrap();
        let record = found(&[&old, &old], &saved);
        let object = &record.files.descriptions[0].object;
        let mut notes = Vec::new();
        let mut rest = String::new();
        File::from(open(object, 0, Role::Read, &mut notes).unwrap()).read_to_string(&mut rest).unwrap();
        assert_eq!((rest.as_str(), notes.len(), path.exists()), ("after", 1, false));
        // Another one has its name already; at last it is replaced by its copy, and what was kept is taken.
        for other in [None, Some("another one")] {
            let _ = fs::remove_file(&path);
            other.iter().for_each(|text| fs::write(&path, text).unwrap());
            let mut writer = File::from(open(object, WRITING, Role::Written, &mut Vec::new()).unwrap());
            let notes = put_back(&record.files, &saved).unwrap();
            let said = "/whole; created again with its first 7 bytes";
            assert!(notes.len() == 1 && notes[0].contains(said), "{notes:?}");
            assert_eq!(notes[0].contains("what was there is kept"), other.is_some(), "{notes:?}");
            writer.write_all(b"X").unwrap();
            // Who reads what is written reads the same file.
            let mut text = String::new();
            let mut reader = File::from(open(object, 0, Role::Written, &mut Vec::new()).unwrap());
            reader.read_to_string(&mut text).unwrap();
            assert_eq!((fs::read(&path).unwrap(), text.as_str()), (b"before|X".to_vec(), "X"));
            assert_eq!(fs::metadata(&path).unwrap().mode(), fs::metadata(&now).unwrap().mode());
            assert_eq!(fs::read(&now).unwrap(), b"before|after");
        }
        fs::rename(&path, &now).unwrap();
        let again = found(&[&old], &saved);
        open(&again.files.descriptions[0].object, WRITING, Role::Written, &mut Vec::new()).unwrap();
        put_back(&again.files, &saved).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before|");
        let mut kept: Vec<Vec<u8>> =
            fs::read_dir(&saved).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        kept.sort();
        assert_eq!(kept, [b"another one".to_vec(), b"before|after".to_vec()]);
    }

    #[test]
    fn files_that_have_changed_places_are_refused() {
        let folder = Folder::new("places");
        let (first, second, third) = (folder.0.join("a"), folder.0.join("b"), folder.0.join("c"));
        let saved = folder.0.join("saved");
        fs::write(&first, b"first").unwrap();
        fs::write(&second, b"second").unwrap();
        let (one, other) = (object(&first, 5, 5), object(&second, 6, 6));
        fs::rename(&first, &third).unwrap();
        fs::rename(&second, &first).unwrap();
        let error = put_back(&found(&[&one, &other], &saved).files, &saved).unwrap_err().to_string();
        assert!(error.contains("rename both"), "{error}");
        assert_eq!(
            (fs::read(&first).unwrap(), fs::read(&third).unwrap()),
            (b"second".to_vec(), b"first".to_vec())
        );
    }
}
