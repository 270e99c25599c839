//! A file that has no name yet, and how it gets one.
//!
//! Called by the tier. The temporary name says which host writes, so that cleaning up on one host leaves alone what
//! another may be writing: locks across hosts there are none.
//! Invariant: the temporary file is removed however writing it ends, but for a crash; what that has left, [`clean`]
//! removes.

use super::opened::{Meta, Opened};
use crate::tier::TierError;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, PosixFadviseAdvice, RenameFlags, openat, posix_fadvise, renameat2};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::fs::File;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use xxhash_rust::xxh3::xxh3_64;

/// Beginning of every temporary name.
const TEMP: &str = ".tmp-";
/// What a host that cannot be asked has not written to for so long is not written to any more.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A file that is being written.
pub(super) struct Unfinished {
    folder: Opened,
    file: File,
    temp: String,
    name: String,
    /// Whether the temporary name is still there, as far as is known.
    named: bool,
}

impl Unfinished {
    /// Begins a file that will be called `name`. None: the folder has been removed meanwhile.
    pub(super) fn create(folder: Opened, name: &str) -> Result<Option<Unfinished>, TierError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        loop {
            let temp = temporary_name(name);
            let file = match openat(folder.fd(), temp.as_str(), flags, mode) {
                Ok(file) => File::from(file),
                Err(Errno::EEXIST) => continue,
                Err(Errno::ENOENT) => return Ok(None),
                Err(errno) => return Err(folder.failed("create", name)(errno)),
            };
            let unfinished = Unfinished { folder, file, temp, name: name.to_owned(), named: true };
            fchmod(&unfinished.file, mode).map_err(unfinished.folder.failed("change the mode of", name))?;
            return Ok(Some(unfinished));
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn object(&self) -> String {
        self.folder.object(&self.name)
    }

    /// Makes the file durable and gives it its name, durably, unless that is taken.
    pub(super) fn finish(mut self) -> Result<(), TierError> {
        self.file.sync_all().map_err(TierError::io("sync", self.object()))?;
        // The program needs its page cache more than we do. A hint: it may fail.
        let _ = posix_fadvise(&self.file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        self.give_name()?;
        self.remove_temporary_name();
        self.folder.sync()
    }

    fn give_name(&mut self) -> Result<(), TierError> {
        let (fd, temp, name) = (self.folder.fd(), self.temp.as_str(), self.name.as_str());
        match linkat(fd, temp, fd, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            // No hard links here: link(2), EPERM; FUSE without it: ENOSYS.
            Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EMLINK) => self.rename(),
            Err(errno) => self.failed_to_name("link", errno),
        }
    }

    fn rename(&mut self) -> Result<(), TierError> {
        let (fd, temp, name) = (self.folder.fd(), self.temp.as_str(), self.name.as_str());
        match renameat2(fd, temp, fd, name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => {
                self.named = false;
                Ok(())
            }
            // renameat2(2): EINVAL where the file system does not know the flag.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => Err(TierError::Settings {
                object: self.object(),
                why: "this file system can neither link a file nor rename one without replacing another, so that \
                      two agents could destroy each other's images; use another one, or the object store behind \
                      it by its own address (s3://, gs://, az://)"
                    .to_owned(),
            }),
            Err(errno) => self.failed_to_name("rename", errno),
        }
    }

    /// A client of NFS that has lost the server's answer asks again, and is told of its own success as a failure:
    /// what counts is which file has the name.
    fn failed_to_name(&self, call: &'static str, errno: Errno) -> Result<(), TierError> {
        let there = self.folder.look(&self.name).ok().flatten();
        let ours = Meta::of(&self.file).ok();
        if let (Some(there), Some(ours)) = (there, ours)
            && there.identity() == ours.identity()
        {
            return Ok(());
        }
        match errno {
            Errno::ENOENT => Err(TierError::Unavailable {
                object: self.object(),
                why: "another process has removed the unfinished file, or its folder".to_owned(),
            }),
            errno => Err(self.folder.failed(call, &self.name)(errno)),
        }
    }

    fn remove_temporary_name(&mut self) {
        if self.named {
            // If it stays, it is a second name of a file, which `clean` removes.
            let _ = unlinkat(self.folder.fd(), self.temp.as_str(), UnlinkatFlags::NoRemoveDir);
            self.named = false;
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.remove_temporary_name();
    }
}

/// Removes what crashed writers of this host have left in a folder, and those of other hosts a day ago. Returns the
/// bytes that became free.
pub(super) fn clean(folder: &Opened) -> Result<u64, TierError> {
    let own = format!("{TEMP}{}-", host());
    let mut freed = 0;
    for name in folder.names()?.iter().filter(|name| name.starts_with(TEMP)) {
        let Some(meta) = folder.look(name)? else { continue };
        if !meta.is_ours() || !meta.is_file() || !(name.starts_with(&own) || is_abandoned(&meta)) {
            continue;
        }
        folder.remove_own(name)?;
        freed += if meta.names() == 1 { meta.len() } else { 0 };
    }
    folder.sync()?;
    Ok(freed)
}

fn is_abandoned(meta: &Meta) -> bool {
    meta.modified()
        .and_then(|at| SystemTime::now().duration_since(at).ok())
        .is_some_and(|age| age >= ABANDONED)
}

fn temporary_name(name: &str) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{TEMP}{}-{now:x}-{}-{name}", host(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Eight digits for the name of this host.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{:08x}", xxh3_64(&name) & 0xffff_ffff)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    fn unfinished(test: &str, content: &[u8]) -> (std::path::PathBuf, Unfinished) {
        let root = std::env::temp_dir().join(format!("holdfast-unfinished-{}-{test}", std::process::id()));
        let folder = Opened::make(&root, "").unwrap().unwrap();
        let unfinished = Unfinished::create(folder, "blob").unwrap().unwrap();
        unfinished.file().write_all(content).unwrap();
        (root, unfinished)
    }

    #[test]
    fn without_links_a_file_is_renamed_and_replaces_nothing() {
        let (root, mut first) = unfinished("rename", b"first");
        let (_, mut second) = unfinished("rename", b"second");
        first.rename().unwrap();
        assert!(matches!(second.rename(), Err(TierError::Exists { .. })));
        drop((first, second));
        assert_eq!(std::fs::read(root.join("blob")).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 1, "a temporary file is left");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_name_that_was_given_though_the_answer_was_lost_is_no_error() {
        let (root, mut first) = unfinished("again", b"first");
        first.give_name().unwrap();
        first.give_name().unwrap();
        first.finish().unwrap();
        let (_, second) = unfinished("again", b"second");
        assert!(matches!(second.finish(), Err(TierError::Exists { .. })));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_another_has_cleaned_up_is_said() {
        let (root, first) = unfinished("cleaned", b"first");
        assert_eq!(clean(&Opened::walk(&root, "").unwrap().unwrap()).unwrap(), 5);
        assert!(matches!(first.finish(), Err(TierError::Unavailable { .. })));
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        std::fs::remove_dir_all(root).unwrap();
    }
}
