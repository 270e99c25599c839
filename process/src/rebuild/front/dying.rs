//! What is left of the program for a moment after it was killed: processes that are still giving back their memory,
//! and with them ids, sockets, ports, locks and files that the new program needs.
//!
//! Called by `holdfast restart`, on the host: the new processes may be in a pid namespace, where the old ones are not
//! seen. What counts is a process that is dying (see [`procfs::existence`]) and that has an id of the program, or a
//! socket at one of its addresses, or has one of its files open for writing or locked, or may still change one of its
//! System V objects ([`system_v_users`]). One that lives is not waited for: it would not go; nor is one that is dying
//! and has nothing of that, of whatever job it is: it may stay for ever. Invariant: nothing is changed. How it fails:
//! what cannot be read counts as not there; the restart itself finds what is in the way then.

use super::ids::wanted_ids;
use super::system_v_users::SystemV;
use holdfast_image::record::{Object, ProcessRecord, SocketRecord, internet_address};
use holdfast_sys::procfs::{self, DescriptorFolder, Existence};
use holdfast_sys::{attributes, sock_diag, unix_socket};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process, for messages.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NamedProcess {
    /// Its id.
    pub pid: i32,
    /// Its name.
    pub name: String,
}

impl NamedProcess {
    /// With the name that it has.
    pub fn of(pid: i32) -> NamedProcess {
        NamedProcess { pid, name: procfs::name(pid) }
    }
}

impl fmt::Display for NamedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// Processes that are dying and still have something that the program needs. Those that began after the caller are
/// of a restart that has failed, not of the program.
pub fn of_program(record: &ProcessRecord) -> Vec<NamedProcess> {
    let own = procfs::start_time(attributes::own_pid());
    older(record, |pid| procfs::start_time(pid) < own)
}

fn older(record: &ProcessRecord, is_older: impl Fn(i32) -> bool) -> Vec<NamedProcess> {
    let is_dying = |pid: &i32| procfs::existence(*pid) == Existence::Dying && is_older(*pid);
    let dying: Vec<i32> = procfs::processes().unwrap_or_default().into_iter().filter(is_dying).collect();
    if dying.is_empty() {
        return Vec::new();
    }
    let ids = wanted_ids(record).unwrap_or_default();
    let (sockets, open, objects) = (sockets(record), open_files(record), SystemV::of(record));
    let has_some = |pid: i32| {
        has_any(pid, |folder, fd, target| {
            is_one_of(target, &sockets)
                || folder.identity(fd).is_ok_and(|identity| open.contains(&identity)) && holds(folder, fd)
        })
    };
    // Ids of the host are only for those who may choose them.
    let has_id = |pid: i32| ids.contains(&pid) && (unix_socket::effective_user() == 0 || is_ours(pid));
    let counts =
        |pid: &i32| has_id(*pid) || is_ours(*pid) && objects.may_be_changed_by(*pid) || has_some(*pid);
    dying.into_iter().filter(counts).map(NamedProcess::of).collect()
}

/// Which of the program's addresses living processes have, as far as that can be seen, one line each.
pub fn holders(record: &ProcessRecord) -> Vec<String> {
    let sockets = sockets(record);
    if sockets.is_empty() {
        return Vec::new();
    }
    let mut lines = BTreeSet::new();
    for pid in procfs::processes().unwrap_or_default() {
        has_any(pid, |_, _, target| {
            if let Some(address) = inode_of(target).and_then(|inode| sockets.get(&inode)) {
                lines.insert(format!("{address}: {} has it", NamedProcess::of(pid)));
            }
            false
        });
    }
    lines.into_iter().collect()
}

fn is_ours(pid: i32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok_and(|now| now.uid() == unix_socket::effective_user())
}

/// Whether a file is open for writing, or locked, by this descriptor: who may only read it changes nothing.
fn holds(folder: &DescriptorFolder, fd: i32) -> bool {
    let mode = |flags: u32| flags & libc::O_ACCMODE.cast_unsigned();
    folder.info(fd).is_some_and(|info| {
        mode(info.flags) != libc::O_RDONLY.cast_unsigned()
            || info.text.lines().any(|line| line.starts_with("lock:"))
    })
}

/// Whether a process has a descriptor that is asked for, by its folder, its number and what it is called.
fn has_any(pid: i32, mut asked: impl FnMut(&DescriptorFolder, i32, &[u8]) -> bool) -> bool {
    for tid in procfs::tasks(pid).unwrap_or_default() {
        let (Ok(all), Ok(folder)) = (procfs::descriptors(pid, tid), DescriptorFolder::open(pid, tid)) else {
            continue;
        };
        for fd in all {
            if folder.target(fd).is_ok_and(|target| asked(&folder, fd, &target)) {
                return true;
            }
        }
        // One that has not ended has the descriptors of all.
        if procfs::stat_fields(pid, tid).is_ok_and(|fields| fields.first().is_some_and(|state| state != "Z"))
        {
            break;
        }
    }
    false
}

fn inode_of(target: &[u8]) -> Option<u64> {
    let number = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

fn is_one_of(target: &[u8], sockets: &BTreeMap<u64, String>) -> bool {
    inode_of(target).is_some_and(|inode| sockets.contains_key(&inode))
}

/// Device and inode of the files that the program had open.
fn open_files(record: &ProcessRecord) -> BTreeSet<(u64, u64)> {
    let of = |object: &Object| match object {
        Object::Regular { device, inode, .. } => Some((*device, *inode)),
        _ => None,
    };
    record.files.descriptions.iter().filter_map(|description| of(&description.object)).collect()
}

/// The sockets that there are at the program's addresses, by inode.
fn sockets(record: &ProcessRecord) -> BTreeMap<u64, String> {
    let (mut ports, mut names) = (BTreeMap::new(), BTreeMap::new());
    for description in &record.files.descriptions {
        let Object::Socket(socket) = &description.object else { continue };
        if socket.network.is_some() && socket.path().is_none() {
            continue; // where no other has its address
        }
        if let Some(address) = internet_address(&socket.local.0).filter(|address| address.port() != 0) {
            ports.insert(address.port(), socket.address());
        } else if let Some(name) = shown_name(socket) {
            names.insert(name, socket.address());
        }
    }
    let mut found = BTreeMap::new();
    let tables: &[&str] = if ports.is_empty() { &[] } else { &["tcp", "tcp6", "udp", "udp6"] };
    for table in tables {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        found.extend(
            text.lines()
                .filter_map(internet_socket)
                .filter_map(|(port, inode)| Some((inode, ports.get(&port)?.clone()))),
        );
    }
    if !names.is_empty() {
        // The same file may have been bound by another path.
        let files: BTreeMap<u32, &String> =
            names.iter().filter_map(|(name, address)| Some((lower_inode(record, name)?, address))).collect();
        let all = sock_diag::unix_sockets().unwrap_or_default();
        let with_file =
            all.into_iter().filter_map(|(inode, socket)| Some((inode, *files.get(&socket.file?)?)));
        found.extend(with_file.map(|(inode, address)| (inode, address.clone())));
        // Names need not be text.
        let text = fs::read("/proc/net/unix").unwrap_or_default();
        found.extend(
            text.split(|&byte| byte == b'\n')
                .filter_map(unix_socket)
                .filter_map(|(name, inode)| Some((inode, names.get(name)?.clone()))),
        );
    }
    found
}

/// The lower half of the inode of the file with this name, as the kernel tells it of sockets.
fn lower_inode(record: &ProcessRecord, name: &[u8]) -> Option<u32> {
    let path = record.cwd.as_path().join(Path::new(OsStr::from_bytes(name)));
    let inode = fs::symlink_metadata(path).ok()?.ino();
    u32::try_from(inode & u64::from(u32::MAX)).ok()
}

/// The port and the inode of a line of /proc/net/tcp or udp; of one that no process has any more none
/// (proc_net_tcp(5)).
fn internet_socket(line: &str) -> Option<(u16, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.rsplit_once(':')?;
    let inode = words.get(9)?.parse().ok().filter(|inode| *inode != 0)?;
    Some((u16::from_str_radix(port, 16).ok()?, inode))
}

/// The name and the inode of a line of /proc/net/unix (unix(7)): number, references, protocol, flags, type, state,
/// inode, name.
fn unix_socket(line: &[u8]) -> Option<(&[u8], u64)> {
    let mut rest = line;
    let mut inode = None;
    for _ in 0..7 {
        rest = rest.trim_ascii_start();
        let end = rest.iter().position(u8::is_ascii_whitespace)?;
        inode = std::str::from_utf8(&rest[..end]).ok();
        rest = &rest[end..];
    }
    Some((rest.get(1..)?, inode?.parse().ok()?))
}

/// The name of a unix socket as /proc/net/unix shows it: zeros of an abstract one as `@` (net/unix/af_unix.c,
/// `unix_seq_show`).
fn shown_name(socket: &SocketRecord) -> Option<Vec<u8>> {
    if socket.domain != libc::AF_UNIX.cast_unsigned() {
        return None;
    }
    if let Some(path) = socket.path() {
        return Some(path.as_os_str().as_bytes().to_vec());
    }
    let name = socket.local.0.get(2..).filter(|name| !name.is_empty())?;
    Some(name.iter().map(|&byte| if byte == 0 { b'@' } else { byte }).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing;
    use holdfast_image::record::Description;
    use holdfast_image::testing::{regular, socket};
    use std::net::TcpListener;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixDatagram;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1 0 100";
        assert_eq!(internet_socket(line), Some((8080, 4711)));
        assert_eq!(internet_socket(&line.replace("4711", "0")), None);
        assert_eq!(internet_socket("  sl  local_address rem_address"), None);
        let line = b"0000000000000000: 00000002 00000000 00010000 0001 01  4711 /run/a b";
        assert_eq!(unix_socket(line), Some((&b"/run/a b"[..], 4711)));
        assert_eq!(unix_socket(b"0000000000000000: 00000002 00000000 00010000 0001 01  4711"), None);
        assert_eq!((inode_of(b"socket:[77]"), inode_of(b"pipe:[77]")), (Some(77), None));
    }

    /// A record of a socket with this address.
    fn record(domain: i32, local: Vec<u8>) -> ProcessRecord {
        let object = Object::Socket(Box::new(socket(domain.cast_unsigned(), local)));
        let mut record = testing::record(Vec::new());
        record.files.descriptions =
            vec![Description { flags: 2, object, locks: Vec::new(), owner: None, streams: 0, within: None }];
        record
    }

    #[test]
    fn who_has_an_address_is_named() {
        let own = format!("process {}", std::process::id());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holdfast_sys::socket::local_address(listener.as_fd()).unwrap();
        let found = holders(&record(libc::AF_INET, address.clone()));
        let begin = listener.local_addr().unwrap().to_string();
        assert!(found.iter().any(|one| one.starts_with(&begin) && one.contains(&own)), "{found:?}");
        drop(listener);
        // Children that other tests fork have it, too, until they execute a program.
        let until = Instant::now() + Duration::from_secs(60);
        while !holders(&record(libc::AF_INET, address.clone())).is_empty() {
            assert!(Instant::now() < until, "it is held for ever");
            thread::sleep(Duration::from_millis(1));
        }
        let path = std::env::temp_dir().join(format!("held-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        let address = holdfast_sys::socket::local_address(socket.as_fd()).unwrap();
        assert_eq!(holders(&record(libc::AF_UNIX, address)).len(), 1);
        fs::remove_file(path).unwrap();
    }

    /// The files of the program tell, whatever id the process has; not those that it may only read.
    #[test]
    fn a_process_that_is_dying_with_a_file_counts_until_it_is_gone() {
        let path = std::env::temp_dir().join(format!("dying-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        let mut record = testing::record(Vec::new());
        let regular = regular(&path, &file.metadata().unwrap(), 0);
        record.files.descriptions.push(Description {
            flags: 2,
            object: regular,
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        });
        let of = |fd: i32| {
            let own = std::process::id().cast_signed();
            holds(&DescriptorFolder::open(own, own).unwrap(), fd)
        };
        let read = fs::File::open(&path).unwrap();
        assert!(of(file.as_raw_fd()) && !of(read.as_raw_fd()));
        read.lock_shared().unwrap();
        assert!(of(read.as_raw_fd()));
        drop(read);
        let mut child = std::process::Command::new("sleep").arg("20").stdin(file).spawn().unwrap();
        let pid = child.id().cast_signed();
        let is_seen = || older(&record, |_| true).iter().any(|process| process.pid == pid);
        assert!(!is_seen(), "it lives");
        child.kill().unwrap();
        while is_seen() {}
        assert_eq!(procfs::existence(pid), Existence::Ended);
        child.wait().unwrap();
        fs::remove_file(path).unwrap();
    }
}
