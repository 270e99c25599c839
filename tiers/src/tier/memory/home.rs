//! Where the memory of a job lies, and whose it is.
//!
//! ```text
//! STORE/JOB/memory -> BASE/holdfast-1000/JOB-DEV-INODE      its links: job -> STORE/JOB, store -> DEV-INODE of STORE
//! ```
//! Called by [`super::first`]. All jobs of a user, of every store and every mount namespace, have their memory below
//! one folder, so that what is left of jobs that are no more can be found there and removed.
//! Invariants: memory goes only when no agent has it open ([`LIVE`] is locked by the agent that writes it), and when
//! the very folder of its store was looked at, and no job there has a link to it. A store that is not there (it is not
//! mounted, it was moved, another mount namespace has it) is never a store without the job.
//! Fails by: an error of what could not be made; memory that cannot be looked at stays.

use crate::lock;
use crate::tier::{TierError, posix};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The link in a job's folder, and those that lead back.
const LINK: &str = "memory";
const BACK: &str = "job";
const STORE: &str = "store";
/// Locked as long as an agent writes there. No name of a blob begins with a dot.
const LIVE: &str = ".live";
/// A folder in memory without the link back is being made, if it is not older.
const MAKING: Duration = Duration::from_secs(60);
/// So many folders may be asked for one that no other job has.
const NAMES: u32 = 16;

/// The memory of a job that is written.
pub(super) struct Home {
    pub(super) root: PathBuf,
    /// Holds the lock. None: another process of this job has it.
    _live: Option<File>,
}

/// A link that leads somewhere from the root on; none there, or something else: `None`.
fn read_link(path: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read_link(path) {
        Ok(to) => Ok(Some(to)),
        // EINVAL: this is no link. ENOTDIR: the folder above is a file.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn leads_to(dir: &Path, root: &Path) -> io::Result<bool> {
    Ok(read_link(&dir.join(LINK))?.as_deref() == Some(root))
}

/// By what a folder is known, whatever its path is in this mount namespace.
fn identity(path: &Path) -> io::Result<String> {
    fs::metadata(path).map(|meta| format!("{:x}-{:x}", meta.dev(), meta.ino()))
}

/// Makes a link, in the place of one that is there.
fn link(to: &Path, at: &Path) -> io::Result<()> {
    match symlink(to, at) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if !fs::symlink_metadata(at)?.is_symlink() {
                return Err(error);
            }
            fs::remove_file(at)?;
            symlink(to, at)
        }
        other => other,
    }
}

/// Where the memory of the job in this folder is: each of two links leads to the other.
pub(super) fn of_job(dir: &Path) -> Option<PathBuf> {
    let root = read_link(&dir.join(LINK)).ok().flatten().filter(|root| root.is_absolute())?;
    // The folder above it is open to all.
    posix::check_folder(root.parent()?, false).ok()?;
    posix::check_folder(&root, false).ok()?;
    let back = read_link(&root.join(BACK)).ok().flatten().filter(|back| back.is_absolute())?;
    (identity(&back).ok()? == identity(dir).ok()?).then_some(root)
}

/// Makes the memory of a job below `base`, or takes what it has there already. What jobs left that are no more goes.
pub(super) fn make(base: &Path, dir: &Path, name: &str) -> Result<Home, TierError> {
    let own = identity(dir).map_err(TierError::io("look at", posix::shown(dir)))?;
    let store = dir.parent().unwrap_or(dir);
    let store = identity(store).map_err(TierError::io("look at", posix::shown(store)))?;
    let top = base.join(format!("holdfast-{}", lock::euid()));
    posix::make_root(&top, false)?;
    remove_stale(&top);
    // Two folders of one name are told apart by the inode, which stays when the store is moved.
    let number = |number| if number == 0 { String::new() } else { format!("-{number}") };
    let mut names = (0..NAMES).map(|at| top.join(format!("{name}-{own}{}", number(at))));
    let is_free = |root: &PathBuf| {
        // What has another's link back may be of a store that is not there now.
        matches!(read_link(&root.join(BACK)), Ok(None)) || leads_to(dir, root).unwrap_or(false)
    };
    let root = names.find(is_free).ok_or_else(|| TierError::Settings {
        object: posix::shown(&top),
        why: format!("the memory of {name} there is of jobs in a store that cannot be seen now; remove it"),
    })?;
    let failed = || TierError::io("link", posix::shown(&root));
    // Again, if another agent has found the folder before it had the link, and removed it as one that is left over.
    loop {
        link(&root, &dir.join(LINK)).map_err(TierError::io("link", posix::shown(dir)))?;
        posix::make_folder(&root, false)?;
        let live = live(&root, true).map_err(failed())?;
        link(Path::new(&store), &root.join(STORE)).map_err(failed())?;
        link(dir, &root.join(BACK)).map_err(failed())?;
        let is_there = |live: &File| {
            let here = fs::metadata(root.join(LIVE)).and_then(|here| Ok((here, live.metadata()?)));
            here.is_ok_and(|(here, live)| (here.dev(), here.ino()) == (live.dev(), live.ino()))
        };
        match live {
            Some(file) if !is_there(&file) => {}
            live => return Ok(Home { root, _live: live }),
        }
    }
}

/// Takes the lock of a folder in memory; `None`: another one has it.
fn live(root: &Path, make: bool) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    let options = options.read(true).write(true).create(make).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(root.join(LIVE))?;
    Ok(lock::try_lock(&file)?.then_some(file))
}

/// Removes the memory of jobs that are no more. What cannot be looked at stays.
fn remove_stale(top: &Path) {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let root = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) || !is_stale(&root).unwrap_or(false) {
            continue;
        }
        // From here on no agent begins to write there, and who has begun meanwhile has made the link.
        let locked = match live(&root, false) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(None) => continue,
            other => other,
        };
        if locked.is_ok() && is_stale(&root).unwrap_or(false) {
            let _ = fs::remove_dir_all(&root);
        }
    }
}

/// Whether this is the memory of a job that is no more.
fn is_stale(root: &Path) -> io::Result<bool> {
    let Some(dir) = read_link(&root.join(BACK))? else {
        let made = fs::symlink_metadata(root)?.modified()?;
        return Ok(made.elapsed().is_ok_and(|age| age > MAKING));
    };
    // As long as the folder that it was made for has that link, it is in use.
    if leads_to(&dir, root)? {
        return Ok(false);
    }
    let (Some(store), Some(known)) = (dir.parent(), read_link(&root.join(STORE))?) else { return Ok(false) };
    if Path::new(&identity(store)?) != known {
        return Ok(false);
    }
    // The job may have got another name.
    for entry in fs::read_dir(store)? {
        if leads_to(&entry?.path(), root)? {
            return Ok(false);
        }
    }
    Ok(true)
}
