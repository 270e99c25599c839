//! What can be said before a restart is tried: does this host fit, is every file still there.
//!
//! Called by the front and by `holdfast doctor`-like listings. Pure looking; nothing is changed. Each line names the
//! object and what to do.

use super::file_role::Role;
use super::gone_files::GoneFiles;
use super::job::Job;
use super::new_process::socket_files;
use super::paths::Opener;
use super::proc_self;
use super::processor;
use super::renamed;
use super::shared_files::{SharedFiles, shown};
use super::vdso::ForeignVdso;
use crate::capture::identity;
use holdfast_image::bytes::Name;
use holdfast_image::record::{
    Backing, Description, FileContent, FileIdentity, FileTable, Object, ProcessRecord, Region,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What to do about something that is not where it was.
const REMEDY: &str = "put it back, or give its new path (restart --map OLD=NEW)";

/// What differs between the recorded host and this one, and files that changed: one line each. Empty: a restart may be
/// tried.
pub fn preflight(record: &ProcessRecord) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(record.check().err());
    lines.extend(processor::obstacles(record));
    lines.extend(ForeignVdso::of(&record.host).into_iter().flat_map(|other| other.obstacles(record)));
    let (job, openers) = (Job::new(record), record.processes().map(Opener::of).collect::<Vec<_>>());
    let shared = SharedFiles::of(record);
    let mut gone = GoneFiles::default();
    for (process, opener) in record.processes().zip(&openers) {
        own(process, opener, (&record.files.contents, &shared), &mut gone, &mut lines);
    }
    let holder = |index: usize| job.holder(index).map_or(0, |(place, _)| place);
    for (index, description) in job.descriptions().iter().enumerate() {
        let Object::Socket(socket) = &description.object else { continue };
        let cwd = job.member(holder(index)).map_or(record, |member| member.own).cwd.as_path();
        lines.extend(socket_files::other_owner(socket, cwd));
    }
    for (index, description) in job.descriptions().iter().enumerate() {
        // It is not this process's.
        if proc_self::of_self(&description.object).is_some() {
            continue;
        }
        let obstacle = match record.files.content_of(&description.object) {
            Some(content) => without_folder(content),
            None if is_shared(&description.object, &shared) => None,
            None if only_read(description).is_some_and(|path| gone.takes(path)) => continue,
            None => missing(&record.files, &description.object, description.flags),
        };
        let not_own = || openers.get(holder(index)).and_then(|opener| not_own(description, opener));
        lines.extend(obstacle.or_else(not_own));
    }
    lines.extend(gone.lines());
    // What several processes have is said once.
    let mut said = BTreeSet::new();
    lines.retain(|line| said.insert(line.clone()));
    lines
}

/// What one process needs besides open files. `contents`, `shared`: what is put back.
fn own(
    record: &ProcessRecord,
    opener: &Opener,
    (contents, shared): (&[FileContent], &SharedFiles<'_>),
    gone: &mut GoneFiles,
    lines: &mut Vec<String>,
) {
    // Which file, and of those that are only mapped shared for reading how much of it; nothing of what the image has.
    let mut mapped: BTreeMap<u32, Option<u64>> = BTreeMap::new();
    for region in &record.regions {
        match region.backing {
            Backing::PrivateFile { file, .. } => drop(mapped.insert(file, None)),
            Backing::SharedFile { file, .. } if !region.is_written() => {
                let Some((about, part)) = shown(record, region) else { continue };
                let end = if shared.has(about, part) { 0 } else { part.end().0 };
                if let Some(known) = mapped.entry(file).or_insert(Some(0)) {
                    *known = end.max(*known);
                }
            }
            _ => {}
        }
    }
    let executable = record.files.mapped.iter().any(|file| file.path == record.exe.path);
    let other = |file: &FileIdentity| opener.obstacle(&file.path, file.inode.as_ref(), 0);
    let or_other = |file, why: Option<String>| why.or_else(|| other(file).map(|error| error.to_string()));
    let obstacle = |file| or_other(file, changed(file));
    for (file, end) in mapped {
        let Some(file) = record.files.mapped.get(file as usize).filter(|file| !file.is_only_inside()) else {
            continue;
        };
        if contents.iter().all(|content| content.path != file.path) {
            lines.extend(match end {
                // Made anew, or put back.
                Some(0) => or_other(file, None),
                _ if gone.takes(&file.path) => None,
                Some(end) if file.build_id.is_none() => or_other(file, shorter(file, end)),
                _ => obstacle(file),
            });
        }
    }
    // One that is in the image may have been rebuilt: its file is executed, and what was mapped of it is restored.
    if !executable && !record.exe.is_only_inside() && !gone.takes(&record.exe.path) {
        lines.extend(other(&record.exe).map(|error| error.to_string()));
    }
    if let Some(root) = &record.root {
        match opener.find(&root.path, root.inode.as_ref()) {
            Ok(Some(_)) => {}
            Ok(None) => {
                lines.push(format!("{}: the root directory of the program is gone; {REMEDY}", root.path))
            }
            Err(error) => lines.push(error.to_string()),
        }
    }
    lines.extend(shared_of_others(record, opener));
    if record.cwd_deleted.is_some() {
        return;
    }
    if !may_be_made(record.cwd.as_path()) {
        lines.push(format!("{}: the working folder of the program is gone; {REMEDY}", record.cwd));
    } else if let Err(error) = opener.find(&record.cwd, record.cwd_inode.as_ref()) {
        lines.push(error.to_string());
    }
}

/// Whether a data file that is mapped shared for reading, up to `end`, has lost something of that. What it has become
/// otherwise is what the program would see by now.
fn shorter(file: &FileIdentity, end: u64) -> Option<String> {
    let path = &file.path;
    let now = match fs::metadata(path.as_path()) {
        // Another file has nothing to do with it.
        Ok(now) if file.inode.is_some_and(|was| !was.is(&identity::inode_of(&now))) => return changed(file),
        Ok(now) => now.len(),
        Err(error) => return Some(format!("{path}: the program maps this file: {error}; {REMEDY}")),
    };
    let needed = file.size.min(end);
    (now < needed).then(|| {
        format!("{path}: the program maps {needed} bytes of this file, and it has {now} now; {REMEDY}")
    })
}

/// Files that it shares for writing and that are another user's now.
fn shared_of_others(record: &ProcessRecord, opener: &Opener) -> Vec<String> {
    let file = |region: &Region| match region.backing {
        Backing::SharedFile { file, writable: true, .. } => {
            record.files.mapped.get(file as usize).filter(|file| !file.is_only_inside())
        }
        _ => None,
    };
    let found = record.regions.iter().filter_map(file);
    let found = found.filter_map(|file| opener.find(&file.path, file.inode.as_ref()).err());
    found.map(|error| error.to_string()).collect()
}

/// Why what has the name of an open file is not the program's.
fn not_own(description: &Description, opener: &Opener) -> Option<String> {
    let object = &description.object;
    let path = match object {
        Object::Regular { now: Some(now), path, .. } if !renamed::is_kept(path, now) => now,
        Object::Regular { path, deleted_content: None, .. }
        | Object::Directory { path, .. }
        | Object::Pipe { path: Some(path), deleted: false, .. } => path,
        _ => return None,
    };
    opener.obstacle(path, object.inode().as_ref(), description.flags).map(|error| error.to_string())
}

/// A file that the program only reads.
fn only_read(description: &Description) -> Option<&Name> {
    match &description.object {
        Object::Regular { path, now: None, deleted_content: None, .. }
            if description.flags & libc::O_ACCMODE.cast_unsigned() == 0 =>
        {
            Some(path)
        }
        _ => None,
    }
}

/// Whether the file at a path is the mapped one, wherever that was: the same build of it.
pub fn is_same_build(file: &FileIdentity, path: &Path) -> bool {
    file.build_id.is_some()
        && changed(&FileIdentity { path: Name::from(path), inode: None, ..file.clone() }).is_none()
}

/// Whether a mapped file is another one now. An equal build-id says that it is the same program, whenever it was
/// installed.
pub fn changed(file: &FileIdentity) -> Option<String> {
    let path = file.path.as_path();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => {
            return Some(format!("{}: the program maps this file: {error}; {REMEDY}", file.path));
        }
    };
    let what = if file.build_id.is_some() {
        if identity::build_id(path) == file.build_id && metadata.len() == file.size {
            return None;
        }
        "was rebuilt"
    } else if metadata.len() != file.size {
        "changed its length"
    } else if identity::mtime_ns(&metadata) != file.mtime_ns {
        "was written to"
    } else {
        return None;
    };
    Some(format!(
        "{}: the program maps this file, and it {what} since the checkpoint; put the old one back, or make images with \
         run --self-contained",
        file.path
    ))
}

/// Whether a folder is there, or can be made anew, as far as can be seen.
fn may_be_made(folder: &Path) -> bool {
    let there = folder.ancestors().find(|part| part.symlink_metadata().is_ok());
    there.is_some_and(|there| there.is_dir() && (there == folder || holdfast_sys::fd::may_make_in(there)))
}

/// Whether a file that was saved has no place to be put back to.
fn without_folder(content: &FileContent) -> Option<String> {
    let path = content.path.as_path();
    let there = path.exists() || path.parent().is_some_and(may_be_made);
    (!there).then(|| format!("{}: the folder of this file is gone; {REMEDY}", content.path))
}

/// Whether an open file comes with the pages of mappings.
fn is_shared(object: &Object, shared: &SharedFiles<'_>) -> bool {
    let Object::Regular { path, size, now: None, deleted_content: None, .. } = object else { return false };
    shared.has_whole(path, *size)
}

/// Whether the program only appends to a file, which is made anew where it is gone.
fn may_begin_anew(table: &FileTable, object: &Object, path: &Name) -> bool {
    Role::of(table, object) == Role::Appended && path.as_path().parent().is_some_and(may_be_made)
}

/// Whether an open file is gone, or has lost what the program would write behind.
fn missing(table: &FileTable, object: &Object, flags: u32) -> Option<String> {
    let writes = flags & libc::O_ACCMODE.cast_unsigned() != 0;
    match object {
        Object::Regular { path, size, now: Some(other), .. } => {
            let now = fs::metadata(other.as_path()).map_or(0, |now| now.size());
            (writes && now < *size).then(|| {
                format!(
                    "{path}: the program writes it; it is called {other} now, and has {now} bytes but had \
                     {size} at the checkpoint",
                )
            })
        }
        Object::Regular { path, size, deleted_content: None, .. } => match fs::metadata(path.as_path()) {
            Ok(now) if now.is_file() && Role::of(table, object) == Role::Appended => None,
            Err(error) if error.kind() == ErrorKind::NotFound && may_begin_anew(table, object, path) => None,
            Ok(now) if writes && now.is_file() && now.size() < *size => Some(format!(
                "{path}: the program writes it, and it has {} bytes now but had {size} at the checkpoint; put the \
                 missing bytes back, or lengthen it if they do not matter (truncate -s {size})",
                now.size()
            )),
            Ok(_) => None,
            Err(_) if writes && *size == 0 => None,
            Err(error) if writes => Some(format!(
                "{path}: the program writes it: {error}; {REMEDY}; if what was in it does not matter, make one of its \
                 length (truncate -s {size})"
            )),
            Err(error) => Some(format!("{path}: the program had it open: {error}; {REMEDY}")),
        },
        Object::Link { path, .. } if fs::symlink_metadata(path.as_path()).is_err() => {
            Some(format!("{path}: the program had this symbolic link open, and it is gone; {REMEDY}"))
        }
        Object::Directory { path, .. } if !may_be_made(path.as_path()) => {
            Some(format!("{path}: the program had this folder open, and it is gone; {REMEDY}"))
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::inject::area::own_vdso;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::bytes::Blob;
    use holdfast_sys::attributes;
    use std::path::Path;

    #[test]
    fn a_changed_file_is_named_and_an_equal_build_is_none() {
        let path = Path::new("/bin/sh");
        let metadata = fs::metadata(path).unwrap();
        let file = FileIdentity {
            path: Name::from(path),
            size: metadata.len(),
            mtime_ns: 1,
            build_id: identity::build_id(path),
            mode: 0o755,
            inode: None,
            inside: None,
        };
        assert_eq!(changed(&file), None, "the build-id counts, not the time");
        let without = FileIdentity { build_id: None, ..file.clone() };
        assert!(
            changed(&without).is_some_and(|line| line.contains("/bin/sh") && line.contains("was written to"))
        );
        let other = FileIdentity { build_id: Some(Blob(vec![1])), ..file.clone() };
        assert!(changed(&other).is_some_and(|line| line.contains("was rebuilt")));
        let gone = FileIdentity { path: Name::from("/no/such/file"), ..file };
        assert!(changed(&gone).is_some_and(|line| line.contains("/no/such/file")));
    }

    #[test]
    fn a_data_file_that_is_mapped_shared_may_grow_but_not_shrink() {
        let path = std::env::temp_dir().join(format!("holdfast-grown-{}", std::process::id()));
        let file = FileIdentity {
            path: Name::from(path.as_path()),
            size: 6000,
            mtime_ns: 1,
            build_id: None,
            mode: 0o644,
            inode: None,
            inside: None,
        };
        let line = |len: usize, end: u64| {
            fs::write(&path, vec![1; len]).unwrap();
            shorter(&file, end)
        };
        assert_eq!((line(6000, 8192), line(9000, 8192), line(4096, 4096)), (None, None, None));
        let short = line(5999, 8192).unwrap();
        assert!(short.contains("6000 bytes") && short.contains("5999 now"), "{short}");
        fs::remove_file(&path).unwrap();
        assert!(shorter(&file, 1).is_some());
    }

    #[test]
    fn another_kernel_is_an_obstacle_only_without_its_vdso() {
        let mut record = record(Vec::new());
        record.host = crate::capture::state::host(attributes::own_pid(), &own_vdso().unwrap()).unwrap();
        assert!(ForeignVdso::of(&record.host).is_none());
        record.host.vdso_hash ^= 1;
        record.host.kernel_release = "2.6.32".into();
        let obstacles = |record: &ProcessRecord| ForeignVdso::of(&record.host).unwrap().obstacles(record);
        assert_eq!(obstacles(&record), [""; 0]);
        record.regions.push(region(0x7000_0000, 2, 5, Backing::Kernel { name: "vdso".into() }));
        assert_eq!(obstacles(&record), [""; 0]);
        record.host.vdso = Blob::default();
        let found = obstacles(&record);
        assert!(found.len() == 1 && found[0].contains("does not have"), "{found:?}");
    }
}
