//! What restarts have kept of the user's files, in `saved/` of a job's folder: what they cut off, and what they found
//! in the place of files that they put back.
//!
//! Counted and shown by `list` and `show`, bounded by the agent after each restart, deleted by `prune --saved`.
//! Invariants: what the last restart has kept stays, whatever the bound; so does what another restart of an image may
//! need (`renamed-*`), until the job goes. Fails by: what cannot be looked at is as if it were not there.

use crate::report::size;
use holdfast_tiers::Job;
use serde::Serialize;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Most that is kept of a job: bytes.
pub const MOST: u64 = 1 << 30;
/// Beginning of the names of files that an image may need (`holdfast_process::rebuild::renamed`).
const NEEDED: &str = "renamed-";

/// One file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// When it was kept.
    pub kept: SystemTime,
    /// Another restart may need it.
    pub needed: bool,
}

/// How much there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sum {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Sum {
    /// Of some files.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a SavedFile>) -> Sum {
        files.into_iter().fold(Sum::default(), |sum, file| Sum {
            files: sum.files + 1,
            bytes: sum.bytes.saturating_add(file.bytes),
        })
    }

    /// In words; nothing if there is nothing.
    pub fn text(self) -> Option<String> {
        match self.files {
            0 => None,
            1 => Some(format!("1 file, {}", size(self.bytes))),
            files => Some(format!("{files} files, {}", size(self.bytes))),
        }
    }
}

/// All that a job has, the oldest first.
pub fn all(job: &Job) -> Vec<SavedFile> {
    let entries = fs::read_dir(job.saved_dir()).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some(SavedFile {
            path: entry.path(),
            bytes: about.len(),
            kept: about.modified().ok()?,
            needed: entry.file_name().to_string_lossy().starts_with(NEEDED),
        })
    };
    let mut files: Vec<SavedFile> = entries.filter_map(file).collect();
    files.sort_by(|one, other| (one.kept, &one.path).cmp(&(other.kept, &other.path)));
    files
}

/// What goes so that no more than `most` bytes are left: the oldest, and nothing that was kept since `newest`.
pub fn beyond(files: &[SavedFile], most: u64, newest: SystemTime) -> Vec<SavedFile> {
    let mut left = Sum::of(files).bytes;
    let mut going = Vec::new();
    for file in files.iter().filter(|file| !file.needed && file.kept < newest) {
        if left <= most {
            break;
        }
        left -= file.bytes.min(left);
        going.push(file.clone());
    }
    going
}

/// What was kept longer ago than this.
pub fn older_than(files: Vec<SavedFile>, age: Duration) -> Vec<SavedFile> {
    let Some(border) = SystemTime::now().checked_sub(age) else { return Vec::new() };
    files.into_iter().filter(|file| file.kept < border).collect()
}

/// Deletes files. Returns the bytes that this made free.
///
/// # Errors
/// As unlink(2); those before it are gone.
pub fn delete(files: &[SavedFile]) -> io::Result<u64> {
    let mut freed = 0;
    for file in files {
        match fs::remove_file(&file.path) {
            Ok(()) => freed += file.bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(freed)
}

/// Keeps the job within [`MOST`]; what is said of that. `begun`: when the restart began that has kept the newest.
pub fn bound(job: &Job, begun: SystemTime) -> Option<String> {
    let going = beyond(&all(job), MOST, begun);
    let sum = Sum::of(&going);
    let what = sum.text()?;
    let folder = job.saved_dir().display().to_string();
    Some(match delete(&going) {
        Ok(_) => format!("{folder} had more than {}: the oldest files were deleted ({what})", size(MOST)),
        Err(error) => {
            format!("{folder} has more than {}, and the oldest cannot be deleted: {error}", size(MOST))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: u64, age_s: u64) -> SavedFile {
        let kept = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age_s);
        SavedFile { path: name.into(), bytes, kept, needed: name.starts_with(NEEDED) }
    }

    #[test]
    fn the_oldest_go_and_what_is_needed_stays() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let files = [file("a", 10, 50), file("renamed-1-2", 10, 40), file("b", 10, 30), file("c", 10, 0)];
        let gone = |most| beyond(&files, most, now).iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert!(gone(40).is_empty());
        assert_eq!(gone(39), [PathBuf::from("a")]);
        assert_eq!(gone(20), [PathBuf::from("a"), PathBuf::from("b")]);
        // What the last restart has kept stays, and what others need.
        assert_eq!(gone(0), [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(Sum::of(&files), Sum { files: 4, bytes: 40 });
        assert_eq!(Sum::of(&files).text().as_deref(), Some("4 files, 40 B"));
        assert_eq!(Sum::default().text(), None);
        assert_eq!(older_than(files.to_vec(), Duration::ZERO).len(), 4);
        assert!(older_than(files.to_vec(), Duration::MAX).is_empty());
    }
}
