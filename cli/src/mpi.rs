//! `mpirun … holdfast run … -- app`: a rank by itself would be a job whose connections lead outside. On one host the
//! first rank becomes `holdfast run … -- mpirun … app`, with the command line, environment, folder and processors of
//! the launcher, and the others wait for its end.
//!
//! Called by `commands::run` before it does anything. What must hold: all ranks are here, and the launcher's command
//! line ends with ours (no second program, no script in between); where it does not, a note says what to do instead.
//! How it fails: an error of each rank that fails, upon which launchers end the others; nothing was started.

use crate::exit::{Exit, Failure};
use crate::helper::binary;
use crate::report;
use holdfast_sys::procfs::Status;
use holdfast_sys::{clock, clone, objects, poll, procfs, unix_socket};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long ranks may take to start.
const LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// Ancestors that may lie between a rank and its launcher: those of Open MPI have none, those of MPICH one; then
/// there is `time`.
const ANCESTORS: u32 = 6;
/// Number, count, and count on this host of ranks: of Open MPI, and of MPICH and its relatives.
const VARIABLES: [[&str; 3]; 2] = [
    ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"],
];

/// What a rank is told of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rank {
    number: u32,
    count: u32,
    is_on_one_host: bool,
}

/// Who started the ranks.
struct Launcher {
    pid: i32,
    /// Its command line without that of ours.
    words: Vec<OsString>,
    environment: Vec<OsString>,
}

/// Does what a rank has to do. `command`: how many words of our command line are the program's. Returns `true` when
/// another rank has run the job to its end, and `false` if this process is no rank or has to go on by itself.
///
/// # Errors
/// The ranks do not find each other, or the first cannot become the job.
pub fn gather(command: usize) -> Result<bool, Failure> {
    let Some(rank) = rank(|name| std::env::var(name).ok()) else { return Ok(false) };
    let own: Vec<OsString> = std::env::args_os().collect();
    let Some(launcher) = launcher(&own).filter(|_| rank.is_on_one_host) else {
        if rank.count > 1 {
            report::note(&format!(
                "this is one of {} ranks of an MPI job, and would be a job of its own; checkpoint all of them \
                 together: holdfast run -- mpirun …",
                rank.count
            ));
        }
        return Ok(false);
    };
    let name = meeting_point(launcher.pid)?;
    if rank.number == 0 {
        wait_for_others(&name, rank.count)?;
        return Err(become_job(&launcher, &own, command));
    }
    wait_for_first(&name)?;
    Ok(true)
}

fn rank(variable: impl Fn(&str) -> Option<String>) -> Option<Rank> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    VARIABLES.iter().find_map(|[rank, count, here]| {
        let count = number(count)?;
        Some(Rank { number: number(rank)?, count, is_on_one_host: number(here) == Some(count) })
    })
}

/// The nearest ancestor that is no rank itself and whose command line ends with `own`.
fn launcher(own: &[OsString]) -> Option<Launcher> {
    let mut pid = i32::try_from(std::os::unix::process::parent_id()).ok()?;
    for _ in 0..ANCESTORS {
        let words = strings(&format!("/proc/{pid}/cmdline"))?;
        let environment = strings(&format!("/proc/{pid}/environ")).unwrap_or_default();
        let names =
            |rank: &str| environment.iter().filter_map(|entry| variable(entry)).any(|(name, _)| name == rank);
        let is_rank = VARIABLES.iter().any(|[rank, ..]| names(rank));
        if let Some(words) = before(&words, own).filter(|_| !is_rank) {
            return Some(Launcher { pid, words, environment });
        }
        pid = i32::try_from(Status::read(pid, pid).ok()?.number("PPid")?).ok()?;
    }
    None
}

/// What `line` has before `own`, with which it ends; `None` too if there are several programs (`:`).
fn before(line: &[OsString], own: &[OsString]) -> Option<Vec<OsString>> {
    let (first, rest) = own.split_first()?;
    let (before, end) = line.split_at_checked(line.len().checked_sub(own.len())?)?;
    let (other, end) = end.split_first()?;
    let is_same = Path::new(other).file_name() == Path::new(first).file_name() && end == rest;
    (is_same && !before.is_empty() && !before.iter().any(|word| word == ":")).then(|| before.to_vec())
}

/// Strings of a file of proc(5) that end with a zero each.
fn strings(path: &str) -> Option<Vec<OsString>> {
    let bytes = fs::read(path).ok()?;
    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    Some(text.split(|&c| c == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Where the ranks of a launcher meet: a unix socket without a file, because a host may have no folder that all of
/// them can write.
fn meeting_point(launcher: i32) -> Result<SocketAddr, Failure> {
    let named = || {
        let begun = procfs::stat_fields(launcher, launcher)?.into_iter().nth(19).unwrap_or_default();
        let user = unix_socket::effective_user();
        SocketAddr::from_abstract_name(format!("holdfast/ranks/{user}/{launcher}/{begun}"))
    };
    named().map_err(|error| Failure::system("looking at the launcher of the ranks", &error))
}

fn wait_for_others(name: &SocketAddr, count: u32) -> Result<(), Failure> {
    let system = |error| Failure::system("waiting for the other ranks", &error);
    // Everybody may take such a name; who has it is not believed.
    let listener = UnixListener::bind_addr(name).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::new(
            Exit::Refused,
            "another process has taken the name by which the ranks find each other: use holdfast run -- mpirun …",
        ),
        _ => system(error),
    })?;
    let end = Instant::now() + LIMIT;
    let mut ready = 1;
    while ready < count {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::new(
                Exit::Refused,
                format!(
                    "{ready} of {count} ranks came within {} s: use holdfast run -- mpirun …",
                    LIMIT.as_secs()
                ),
            ));
        }
        if poll::readable(&[listener.as_fd()], Some(left)).map_err(system)? != [true] {
            continue;
        }
        let (mut other, _) = listener.accept().map_err(system)?;
        other.set_read_timeout(Some(LIMIT)).map_err(system)?;
        let is_ours = unix_socket::peer(other.as_fd()).map_err(system)?.uid == unix_socket::effective_user();
        if is_ours && other.read_exact(&mut [0]).is_ok() {
            ready += 1;
        }
    }
    Ok(())
}

/// Waits until the first rank, which becomes the job, has ended; how, it tells the launcher itself.
fn wait_for_first(name: &SocketAddr) -> Result<(), Failure> {
    let system = |error| Failure::system("waiting for the first rank", &error);
    let end = Instant::now() + LIMIT;
    let mut first = loop {
        match UnixStream::connect_addr(name) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {
                sleep(PAUSE)
            }
            result => break result.map_err(system)?,
        }
    };
    let peer = unix_socket::peer(first.as_fd()).map_err(system)?;
    if peer.uid != unix_socket::effective_user() {
        return Err(Failure::new(Exit::Permission, format!("the first rank belongs to uid {}", peer.uid)));
    }
    let process = clone::pidfd_open(peer.pid).map_err(system)?;
    first.write_all(&[0]).map_err(system)?;
    drop(first);
    while poll::readable(&[process.as_fd()], None).map_err(system)? != [true] {}
    Ok(())
}

/// Executes what the user would have written instead. Returns only if that fails.
fn become_job(launcher: &Launcher, own: &[OsString], command: usize) -> Failure {
    let pid = launcher.pid;
    let system = |error| Failure::system("becoming a job of all ranks", &error);
    let line = job_line(launcher, own, command);
    let shown: Vec<_> = line.iter().map(|word| word.to_string_lossy()).collect();
    report::note(&format!("all ranks are one job: {}", shown.join(" ")));
    let (binary, folder) = match (binary(), fs::read_link(format!("/proc/{pid}/cwd"))) {
        (Ok(binary), Ok(folder)) => (binary, folder),
        (Err(failure), _) => return failure,
        (_, Err(error)) => return system(error),
    };
    // Launchers bind each rank to processors of its own.
    let _ = clock::affinity(pid).and_then(|mask| clock::set_affinity(0, &mask));
    let mut job = Command::new(binary);
    job.arg0(&line[0]).args(&line[1..]).current_dir(folder).env_clear();
    job.envs(launcher.environment.iter().filter_map(|entry| variable(entry)));
    // What the launcher was told to set (mpirun -x HOLDFAST_STORE=…).
    job.envs(std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"HOLDFAST_")));
    // Sockets of the launcher (PMI_FD), which would lead out of the job.
    if let Err(error) = objects::close_range(3, u32::MAX) {
        return system(error);
    }
    system(job.exec())
}

fn variable(entry: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = entry.as_bytes();
    let at = bytes.iter().position(|&c| c == b'=')?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

/// `holdfast run OPTIONS -- LAUNCHER… PROGRAM…`.
fn job_line(launcher: &Launcher, own: &[OsString], command: usize) -> Vec<OsString> {
    let (options, program) = own.split_at(own.len().saturating_sub(command));
    let mut line = options.to_vec();
    if line.last().is_none_or(|word| word != "--") {
        line.push("--".into());
    }
    line.extend(launcher.words.iter().chain(program).cloned());
    line
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn ranks_of_both_kinds_are_known() {
        let of = |set: &[(&str, &str)]| {
            rank(|name| set.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned()))
        };
        let open = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        assert_eq!(of(&open), Some(Rank { number: 3, count: 4, is_on_one_host: false }));
        let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(of(&mpich), Some(Rank { number: 0, count: 2, is_on_one_host: true }));
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "many")]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_command_line_of_the_launcher_ends_with_ours() {
        let own = words("/usr/bin/holdfast run --name j -- app 1");
        let found = |line: &str| before(&words(line), &own);
        assert_eq!(found("mpirun -np 2 holdfast run --name j -- app 1"), Some(words("mpirun -np 2")));
        assert_eq!(found("mpirun -np 2 holdfast run --name j -- app 2"), None);
        assert_eq!(found("mpirun -np 2 other run --name j -- app 1"), None);
        assert_eq!(found("holdfast run --name j -- app 1"), None);
        assert_eq!(found("mpirun -np 1 b : -np 2 holdfast run --name j -- app 1"), None, "two programs");
        assert_eq!(found(""), None);
    }

    #[test]
    fn the_launcher_goes_before_the_program() {
        let launcher = Launcher { pid: 1, words: words("mpirun -np 2"), environment: Vec::new() };
        let line = |own: &str, command| job_line(&launcher, &words(own), command);
        assert_eq!(
            line("holdfast run --name j -- app 1", 2),
            words("holdfast run --name j -- mpirun -np 2 app 1")
        );
        assert_eq!(line("holdfast run app -x", 2), words("holdfast run -- mpirun -np 2 app -x"));
    }
}
