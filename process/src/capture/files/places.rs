//! Whether an open file or folder is at its path: by that alone a restart finds it.
//!
//! Called by [`super::FileReader::tables`] for each description, in `check` too. A file system may have been mounted
//! over it, or its folder closed to the program itself; then the restart would open another file, or none. One look
//! without opening: no watcher is told (inotify(7)). A standard stream that was given is looked for at the restart,
//! which can do without (docs/files.md).

use super::{FileReader, Found, Obstacle};
use crate::capture::written_files::is_of_kernel;
use holdfast_image::record::{Description, Object};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

impl FileReader<'_> {
    /// Refuses what a restart could not find.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn place(&self, found: &Found, description: &Description) -> Result<(), Obstacle> {
        let (path, device) = match &description.object {
            Object::Regular { path, device, deleted_content: None, .. } => (path, *device),
            Object::Directory { path, inode: Some(inode), .. }
            | Object::Link { path, inode: Some(inode) } => (path, inode.device),
            _ => return Ok(()),
        };
        if description.streams != 0 || is_of_kernel(path) {
            return Ok(());
        }
        let why = match fs::symlink_metadata(path.as_path()) {
            // With the number of another inode, too: some file systems in userspace give new ones all the time.
            Ok(now) if now.dev() == device => return Ok(()),
            Ok(_) => "its name leads to another file system".to_owned(),
            Err(error) => error.to_string(),
        };
        // It was renamed or closed just now: by another one than the programs, or they run.
        if self.has_moved(found).unwrap_or(true) {
            return Err(Obstacle::Closed(format!("it is not at its path ({why}): try again")));
        }
        Err(Obstacle::Refused(format!(
            "it is not found at its path, where a restart looks for it ({why}): unmount what was mounted over it, or \
             let its folder be searched"
        )))
    }

    fn has_moved(&self, found: &Found) -> io::Result<bool> {
        Ok(fs::read_link(self.link_path(found))?.as_os_str().as_encoded_bytes() != found.target)
    }
}
