//! A connection to the server of a store, which is started where none listens.
//!
//! Several clients may start one at once: a server that does not get the lock of the store ends with 0, and all find
//! the one that got it. Invariant: the server is no child of this process, has none of its descriptors, and is of this
//! user. Fails by [`Error::NoServer`] within [`PATIENCE`].

use super::error::{Error, system};
use crate::wire;
use holdfast_sys::{clone, poll, spawn, unix_socket};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// So long a server may take until it listens: it may have much to recover, on a machine with much to do.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// How often one is started. One that ends at once has found the lock taken: by a server that another client has
/// started and that does not listen yet, or by one that is ending or was killed, and still has it.
const TRIES: u32 = 8;
/// After the end of the first one so long is waited for another server; twice as long after each further one.
const OTHERS: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(2);

/// What `holdfast run` sets for the processes of a job (`abi/src/environment.rs`).
const OF_JOB: [&str; 5] =
    ["LD_PRELOAD", "HOLDFAST_SOCKET", "HOLDFAST_KEY", "HOLDFAST_MEMBER_SOCKET", "HOLDFAST_MEMBER_KEY"];

/// Where the binary is, if not said: what the environment variable says, beside this library, in PATH.
pub const BINARY_VARIABLE: &str = "HOLDFAST_BIN";

/// The store that is used where none is said, as by all commands of `holdfast` (`tiers/src/store.rs`).
pub fn default_store() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = |name: &str| variable(name).filter(|path| path.is_absolute());
    let state = || folder("XDG_STATE_HOME").or_else(|| folder("HOME").map(|home| home.join(".local/state")));
    let store = variable("HOLDFAST_STORE").or_else(|| state().map(|state| state.join("holdfast")));
    store.unwrap_or_else(|| format!("/var/tmp/holdfast-{}", unix_socket::effective_user()).into())
}

/// A connection to the server of `store`.
pub(super) fn connect(store: &Path, binary: Option<&Path>) -> Result<OwnedFd, Error> {
    let socket = wire::socket(store);
    if let Some(connection) = try_connect(&socket)? {
        return Ok(connection);
    }
    let binary = find(binary).ok_or_else(|| Error::NoServer {
        socket: socket.clone(),
        why: format!(
            "the program `holdfast` was not found: set ${BINARY_VARIABLE} to its path, or put it into PATH"
        ),
    })?;
    let end = Instant::now() + PATIENCE;
    let mut grace = OTHERS;
    for _ in 0..TRIES {
        let started = start(&binary, store).map_err(|why| Error::NoServer {
            socket: socket.clone(),
            why: format!("{} could not be started ({why}): set ${BINARY_VARIABLE}", binary.display()),
        })?;
        if let Some(connection) = wait(&socket, started, grace, end)? {
            return Ok(connection);
        }
        if Instant::now() >= end {
            break;
        }
        grace *= 2;
    }
    let what = if Instant::now() < end { "ends at once" } else { "does not answer" };
    let (binary, store) = (binary.display(), store.display());
    let why =
        format!("the one that was started {what}: `{binary} serve --store {store}` in a terminal says why");
    Err(Error::NoServer { socket, why })
}

/// Waits for a server: until `end` while the one that was started runs, and for `grace` after its end. `None`: there is
/// none.
fn wait(
    socket: &Path,
    started: Option<OwnedFd>,
    grace: Duration,
    end: Instant,
) -> Result<Option<OwnedFd>, Error> {
    // One that has no id any more has ended already.
    let (mut running, mut end) = match started {
        Some(process) => (Some(process), end),
        None => (None, end.min(Instant::now() + grace)),
    };
    loop {
        if let Some(connection) = try_connect(socket)? {
            return Ok(Some(connection));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        match &running {
            Some(process) => {
                if poll::readable_within(process.as_fd(), PAUSE).map_err(system("poll"))? {
                    (running, end) = (None, end.min(Instant::now() + grace));
                }
            }
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// A connection, if a server of this user listens.
fn try_connect(socket: &Path) -> Result<Option<OwnedFd>, Error> {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    let connection = match unix_socket::connect_within(socket, PATIENCE) {
        Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => return Ok(None),
        other => other.map_err(|why| Error::NoServer {
            socket: socket.to_owned(),
            why: format!(
                "connect: {why}: the folder must be readable for you, and on a file system of this machine"
            ),
        })?,
    };
    let uid = unix_socket::peer(connection.as_fd()).map_err(system("getsockopt(SO_PEERCRED)"))?.uid;
    if uid != unix_socket::effective_user() {
        return Err(Error::Foreign { socket: socket.to_owned(), uid });
    }
    Ok(Some(connection))
}

/// Starts a server; a descriptor that is readable when it has ended, `None` if it has already.
fn start(binary: &Path, store: &Path) -> io::Result<Option<OwnedFd>> {
    let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    let text = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::from);
    // What is preloaded into the program is not for the server, which is no process of its job either.
    let kept = std::env::vars_os().filter(|(name, _)| !OF_JOB.iter().any(|of_job| name == of_job));
    let joined = |(name, value): (OsString, OsString)| {
        let mut pair = name;
        pair.push("=");
        pair.push(value);
        text(&pair)
    };
    let store = std::path::absolute(store)?;
    let arguments = [OsStr::new("holdfast"), OsStr::new("serve"), OsStr::new("--store"), store.as_os_str()];
    let pid = spawn::Start {
        path: text(binary.as_os_str())?,
        arguments: arguments.into_iter().map(text).collect::<io::Result<_>>()?,
        environment: kept.map(joined).collect::<io::Result<_>>()?,
        descriptors: vec![null()?, null()?, null()?],
        detached: true,
        ..spawn::Start::default()
    }
    .spawn_orphan()?;
    Ok(clone::pidfd_open(pid).ok())
}

fn find(said: Option<&Path>) -> Option<PathBuf> {
    if let Some(said) = said {
        return Some(said.to_owned());
    }
    if let Some(variable) = std::env::var_os(BINARY_VARIABLE).filter(|value| !value.is_empty()) {
        return Some(variable.into());
    }
    let library = own_file();
    let folder = library.as_deref().and_then(Path::parent);
    let beside = folder
        .into_iter()
        .flat_map(|folder| ["", "../bin", "../../bin"].map(|way| folder.join(way).join("holdfast")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("holdfast")).collect::<Vec<_>>();
    beside.chain(in_path).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The file that this code was loaded from: the library in a program, or a program itself.
fn own_file() -> Option<PathBuf> {
    let address = own_file as *const () as u64;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let mut lines = maps.split(|byte| *byte == b'\n');
    lines.find_map(|line| {
        let text = String::from_utf8_lossy(line);
        let (start, end) = text.split_whitespace().next()?.split_once('-')?;
        let bound = |number: &str| u64::from_str_radix(number, 16).ok();
        if !(bound(start)?..bound(end)?).contains(&address) {
            return None;
        }
        let path = line.iter().position(|byte| *byte == b'/')?;
        let path = PathBuf::from(OsStr::from_bytes(&line[path..]));
        // A file that was replaced since has another name there.
        path.exists().then_some(path)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_this_code_is_found() {
        let own = own_file().unwrap();
        assert_eq!(own.canonicalize().unwrap(), std::env::current_exe().unwrap().canonicalize().unwrap());
        assert_eq!(find(Some(Path::new("/said"))).unwrap(), Path::new("/said"));
    }

    /// As when a server that was killed has the lock for a moment more.
    #[test]
    fn a_server_that_finds_the_lock_taken_is_started_again() {
        let folder = std::env::temp_dir().join(format!("holdfast-started-{}", std::process::id()));
        std::fs::create_dir_all(wire::folder(&folder)).unwrap();
        let (binary, count) = (folder.join("holdfast"), folder.join("count"));
        std::fs::write(&binary, format!("#!/bin/sh\necho x >> {}\n", count.display())).unwrap();
        std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = wire::socket(&folder);
        let listener = std::thread::spawn(move || {
            while std::fs::read(&count).map_or(0, |text| text.len()) < 4 {
                std::thread::sleep(PAUSE);
            }
            unix_socket::listen(&socket).unwrap()
        });
        connect(&folder, Some(&binary)).unwrap();
        drop(listener.join().unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_binary_that_is_not_there_is_an_error_that_names_it() {
        let folder = std::env::temp_dir().join(format!("holdfast-start-{}", std::process::id()));
        let error = connect(&folder, Some(Path::new("/does/not/exist"))).unwrap_err().to_string();
        assert!(error.contains("/does/not/exist") && error.contains(BINARY_VARIABLE), "{error}");
    }
}
