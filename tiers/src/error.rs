//! What can go wrong in the store.
//!
//! Policy: every error names the object (file and, where there is one, the offset), the cause, and what the user can
//! do. An error while writing leaves the previous images untouched; an error while reading changes nothing.

use crate::format::FormatError;
use crate::tier::TierError;
use holdfast_image::pages::{PageError, PageRun};
use holdfast_image::{Addr, Epoch};
use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong in the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A system call on a file failed.
    #[error("{call} {path}: {source}; check the file system and its permissions", path = path.display())]
    Io {
        /// The call, as a verb ("open", "write", "rename" …).
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// Its errno.
        source: io::Error,
    },
    /// There is no store yet, and none can be made.
    #[error(
        "{path}: the store cannot be made: {source}; name a folder that you may write to, \
         with --store or HOLDFAST_STORE",
        path = path.display()
    )]
    NoStore {
        /// Where it would be.
        path: PathBuf,
        /// The errno of mkdir(2).
        source: io::Error,
    },
    /// No space, quota or file size left.
    #[error(
        "{path}: no space left (or a quota or `ulimit -f` is reached){}; free space or use another --store",
        missing(*needed), path = path.display()
    )]
    Full {
        /// The file that could not grow.
        path: PathBuf,
        /// Bytes of pages that were still to be stored: an upper bound.
        needed: u64,
    },
    /// The store has no such job.
    #[error("no job {name:?} in {store}; `holdfast list` shows its jobs, --store names another store",
        store = store.display())]
    NotAJob {
        /// The name.
        name: String,
        /// Folder of the store.
        store: PathBuf,
    },
    /// The job has no such image.
    #[error("{path}: the job has no image {epoch}; `holdfast list` shows its images", path = path.display())]
    NoImage {
        /// Folder of the job.
        path: PathBuf,
        /// The number asked for.
        epoch: Epoch,
    },
    /// A live agent holds the job.
    #[error("{path}: the job is in use by a live agent{}; end it, or use another job name", agent(*pid),
        path = path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Pid that the agent wrote into it; 0 if it could not be read.
        pid: i32,
    },
    /// The folder is not the one that was locked.
    #[error(
        "{path}: the job was removed, or another was made in its place, while its agent runs; \
         nothing is stored there any more",
        path = path.display()
    )]
    Replaced {
        /// Folder of the job.
        path: PathBuf,
    },
    /// A file that has the name of one of an image, but belongs to another image or job.
    #[error("{path}: at byte 0: the file belongs to another image; put the right file back or use an older image",
        path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A file that an image needs is not there.
    #[error("{path}: the file is missing, and the image needs it; use an older image or a copy of this one",
        path = path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Bytes that are not those that were written.
    #[error("{path}: at byte {offset}: {what}; the file is damaged: use an older image or a copy of this one",
        path = path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What should be there.
        what: String,
    },
    /// Written in another version of the format.
    #[error(
        "{path}: at byte 8: format version {found}, this holdfast reads versions up to {supported}; use the holdfast \
         that wrote it",
        path = path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version that can be read.
        supported: u32,
    },
    /// A folder or file that another user could change under us.
    #[error("{path}: {why}; images can hold secrets and are trusted at restart: use a folder of your own, mode 0700",
        path = path.display())]
    Permissions {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Not usable as the name of a job.
    #[error("{name:?} is not a job name: 1 to 100 letters, digits, '.', '_' or '-', not beginning with '.'")]
    BadName {
        /// The name.
        name: String,
    },
    /// A page that was not written since the parent, or since the pre-copy, is in neither.
    #[error(
        "{path}: {pages} pages at {start} are said to be unchanged, but no image has them; the next checkpoint has to \
         store all memory (earlier images are intact)",
        path = path.display()
    )]
    Lost {
        /// Folder of the job.
        path: PathBuf,
        /// The first such page.
        start: Addr,
        /// How many there are in a row.
        pages: u64,
    },
    /// The source of the pages failed in the middle of the flush.
    #[error("reading {bytes} bytes of the program's memory at {start}: {source}; take the checkpoint again")]
    Source {
        /// First byte that was asked for.
        start: Addr,
        /// How many bytes.
        bytes: u64,
        /// Its errno.
        source: io::Error,
    },
    /// No tier has it intact.
    #[error("{what}: no tier has it intact: {}", reasons.join("; "))]
    Nowhere {
        /// Name of the blob.
        what: String,
        /// What each tier said, fastest first.
        reasons: Vec<String>,
    },
    /// A tier refuses or cannot be reached.
    #[error(transparent)]
    Tier(TierError),
    /// The caller broke a rule of this crate; the image is not written.
    #[error("{path}: {what}; this is a defect of holdfast: please report it", path = path.display())]
    Misuse {
        /// The folder or file.
        path: PathBuf,
        /// The rule.
        what: String,
    },
}

fn missing(bytes: u64) -> String {
    if bytes > 0 { format!(", {bytes} bytes are missing at most") } else { String::new() }
}

fn agent(pid: i32) -> String {
    if pid > 0 { format!(" (pid {pid})") } else { String::new() }
}

impl StoreError {
    /// For `map_err` after a call on `path`.
    pub(crate) fn io(call: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
        let path = path.to_owned();
        move |source| StoreError::Io { call, path: path.clone(), source }
    }
    /// For `map_err` after a call that may find the disk full; `needed` bytes were still to come.
    pub(crate) fn write(
        call: &'static str,
        path: &Path,
        needed: u64,
    ) -> impl Fn(io::Error) -> StoreError + use<> {
        let path = path.to_owned();
        move |source| match source.raw_os_error() {
            // EFBIG: the file size limit of the agent (setrlimit(2), RLIMIT_FSIZE) or of the file system.
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
                StoreError::Full { path: path.clone(), needed }
            }
            _ => StoreError::Io { call, path: path.clone(), source },
        }
    }
    /// For `map_err` after decoding bytes of `path`.
    pub(crate) fn format(path: &Path) -> impl Fn(FormatError) -> StoreError + use<> {
        let path = path.to_owned();
        move |error| match error {
            FormatError::Version { found } => {
                StoreError::Version { path: path.clone(), found, supported: crate::format::VERSION }
            }
            FormatError::Bad { offset, what } => StoreError::Corrupt { path: path.clone(), offset, what },
        }
    }
    /// The source of `run` failed. One that reads the store names the file itself.
    pub(crate) fn of_source(run: PageRun, error: PageError) -> StoreError {
        let source = match error {
            PageError::File { call, path, source } => return StoreError::Io { call, path, source },
            PageError::Damaged { path, offset, what } => return StoreError::Corrupt { path, offset, what },
            PageError::System(source) => source,
            PageError::Misuse(what) => io::Error::new(io::ErrorKind::InvalidInput, what),
        };
        StoreError::Source { start: run.start, bytes: run.pages.bytes(), source }
    }
    /// None of the copies of `what` is good: the error of the one that there is, or one that has them all.
    pub(crate) fn nowhere(mut failed: Vec<StoreError>, what: &str) -> StoreError {
        if failed.len() == 1 {
            return failed.remove(0);
        }
        let reasons = failed.iter().map(StoreError::to_string).collect();
        StoreError::Nowhere { what: what.to_owned(), reasons }
    }
    /// The same without what the user can do.
    pub(crate) fn short(&self) -> String {
        match self {
            StoreError::Corrupt { path, offset, what } => {
                format!("{}: at byte {offset}: {what}", path.display())
            }
            StoreError::Missing { path } => format!("{}: the file is missing", path.display()),
            other => other.to_string(),
        }
    }
    /// Says how many bytes were still to come when a tier was full.
    pub(crate) fn needing(self, bytes: u64) -> StoreError {
        match self {
            StoreError::Full { path, .. } => StoreError::Full { path, needed: bytes },
            other => other,
        }
    }
    pub(crate) fn corrupt(path: &Path, offset: u64, what: impl Into<String>) -> StoreError {
        StoreError::Corrupt { path: path.to_owned(), offset, what: what.into() }
    }
    pub(crate) fn misuse(path: &Path, what: impl Into<String>) -> StoreError {
        StoreError::Misuse { path: path.to_owned(), what: what.into() }
    }
}

impl From<TierError> for StoreError {
    fn from(error: TierError) -> StoreError {
        match error {
            TierError::Full { object } => StoreError::Full { path: object.into(), needed: 0 },
            TierError::Io { call, object, source } => StoreError::Io { call, path: object.into(), source },
            TierError::Damaged { object, offset, what } => {
                StoreError::Corrupt { path: object.into(), offset, what }
            }
            TierError::Short { object, len } => {
                StoreError::Corrupt { path: object.into(), offset: len, what: "the file ends here".into() }
            }
            other => StoreError::Tier(other),
        }
    }
}

impl From<StoreError> for PageError {
    /// Of reading an image that is open.
    fn from(error: StoreError) -> PageError {
        match error {
            StoreError::Io { call, path, source } => PageError::File { call, path, source },
            StoreError::Corrupt { path, offset, what } => PageError::Damaged { path, offset, what },
            StoreError::Missing { path } => {
                PageError::Damaged { path, offset: 0, what: "the file is missing".into() }
            }
            StoreError::Nowhere { what, reasons } => {
                let reasons = format!("no tier has it intact: {}", reasons.join("; "));
                PageError::Damaged { path: what.into(), offset: 0, what: reasons }
            }
            // All others were met when the image was opened.
            other => PageError::Misuse(other.to_string()),
        }
    }
}
