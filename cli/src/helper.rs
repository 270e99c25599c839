//! A process of the binary beside ours: an agent, a keeper, a caller of the CUDA driver, a page server.
//!
//! Used by what starts one. It gets nothing of ours but its log, a socket to us and the descriptors that it is given.

use crate::entries::c_string;
use crate::exit::Failure;
use holdfast_sys::fd;
use holdfast_sys::spawn::Start;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A process of the binary that does something for ours.
#[derive(Debug)]
pub struct Helper<'a> {
    /// What it is, in messages.
    pub what: &'static str,
    /// What follows `holdfast` in its command line.
    pub words: Vec<&'a OsStr>,
    /// Its environment.
    pub environment: Vec<CString>,
    /// Its standard output and its standard error; standard input is empty.
    pub log: OwnedFd,
    /// Its descriptors from 4 on: 3 is its end of a socket to us.
    pub descriptors: Vec<OwnedFd>,
    /// Signals that are at their default in it even if they are ignored here, besides SIGPIPE and SIGCHLD.
    pub at_default: &'static [i32],
}

impl Helper<'_> {
    /// Starts it: its process, and our end of the socket. That is closed by its death: we keep no copy of the other.
    ///
    /// # Errors
    /// Of what it needs, or of execve.
    pub fn start(self) -> Result<(i32, OwnedFd), Failure> {
        let what = self.what;
        let (ours, theirs) = fd::socketpair(libc::SOCK_SEQPACKET)
            .map_err(|error| Failure::system(format_args!("socketpair for {what}"), &error))?;
        let again = self.log.try_clone().map_err(|error| Failure::system("duplicating the log", &error))?;
        let words = [OsStr::new("holdfast")].into_iter().chain(self.words);
        let start = Start {
            path: c_string(binary()?.as_os_str())?,
            arguments: words.map(c_string).collect::<Result<_, _>>()?,
            environment: self.environment,
            mask: 0,
            ignored: [libc::SIGPIPE, libc::SIGCHLD]
                .iter()
                .chain(self.at_default)
                .map(|signal| (*signal, false))
                .collect(),
            closed: Vec::new(),
            descriptors: [null()?, self.log, again, theirs].into_iter().chain(self.descriptors).collect(),
            detached: true,
            session: false,
        };
        let pid = start.spawn();
        let pid = pid.map_err(|error| Failure::system(format_args!("starting {what}"), &error))?;
        Ok((pid, ours))
    }
}

/// What the kernel says of an executable that has no name any more (proc(5)).
const DELETED: &[u8] = b" (deleted)";

/// Our own executable, for us to execute: by its name, or by /proc where an upgrade has given that to another file.
///
/// # Errors
/// /proc has it not.
pub fn binary() -> Result<PathBuf, Failure> {
    let path = link()?;
    Ok(if is_own(&path) { path } else { OWN.into() })
}

/// The name under which others find it: another host, a launcher, a later time. What is there may be another version.
///
/// # Errors
/// /proc has it not.
pub fn named_binary() -> Result<PathBuf, Failure> {
    let path = link()?;
    Ok(if is_own(&path) { path } else { without_mark(path) })
}

const OWN: &str = "/proc/self/exe";

fn link() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::system("finding the binary holdfast", &error))
}

fn is_own(path: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    id(path).is_some_and(|there| id(Path::new(OWN)) == Some(there))
}

fn without_mark(path: PathBuf) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    match bytes.strip_suffix(DELETED) {
        Some(name) => OsStr::from_bytes(name).into(),
        None => path,
    }
}

/// `/dev/null`.
///
/// # Errors
/// It cannot be opened.
pub fn null() -> Result<OwnedFd, Failure> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from).map_err(|error| Failure::system("opening /dev/null", &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn our_own_executable_is_found_under_its_name() {
        let own = std::env::current_exe().unwrap();
        assert_eq!((binary().unwrap(), named_binary().unwrap()), (own.clone(), own));
        assert!(!is_own(Path::new("/bin/sh")) && !is_own(Path::new("/nonexistent")));
        assert_eq!(without_mark("/a/b (deleted)".into()), Path::new("/a/b"));
        assert_eq!(without_mark("/a/b".into()), Path::new("/a/b"));
    }
}
