//! What the folders were that things of the programs are in, and those above them: so they are made anew at a restart
//! when they are gone.
//!
//! Called by `capture_job` inside the stop: a look at each. One that is not there is left out: if a restart needs it,
//! it is made for a moment only.

use super::maps::Kind;
use crate::job::stopped_process::StoppedProcess;
use crate::stop::stages::Observed;
use holdfast_image::bytes::Name;
use holdfast_image::folders::Needs;
use holdfast_image::record::FolderRecord;
use holdfast_image::record::{FileContent, FileTable};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Of all processes. `files`: those of the first; `contents`: what is saved.
pub fn of(
    all: &[StoppedProcess<Observed>],
    files: &FileTable,
    contents: &[FileContent],
) -> Vec<FolderRecord> {
    let cwds = all.iter().map(|one| &one.stage.surroundings.cwd);
    let mapped = all.iter().enumerate();
    let mapped =
        mapped.flat_map(|(place, one)| one.stage.seen.mapped.iter().map(move |mapped| (place, mapped)));
    let shared = mapped.filter(|(_, mapped)| mapped.kind == Kind::SharedFile && mapped.mapping.prot & 2 != 0);
    let needs = Needs {
        cwds: cwds.map(|cwd| cwd.deleted.is_none().then(|| cwd.path.as_path())).collect(),
        shared: shared
            .map(|(place, mapped)| (place, Path::new(OsStr::from_bytes(&mapped.mapping.name))))
            .collect(),
        descriptions: &files.descriptions,
        contents,
    };
    let needed = needs.folders();
    let parts: BTreeSet<&Path> = needed.keys().flat_map(|folder| folder.ancestors()).collect();
    let root = Path::new("/");
    parts.into_iter().filter(|folder| *folder != root).filter_map(look).collect()
}

fn look(folder: &Path) -> Option<FolderRecord> {
    // A link is the program's own way there: it is not noted.
    let found = fs::symlink_metadata(folder).ok().filter(fs::Metadata::is_dir)?;
    let (mode, user, group) = (found.mode() & 0o7777, found.uid(), found.gid());
    Some(FolderRecord { path: Name::from(folder), mode, user, group })
}
