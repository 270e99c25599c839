//! Namespaces that programs of the job have made (unshare(2), clone(2)), as far as /proc tells: which they are, whose,
//! and what of them no restart could make again.
//!
//! Called by `refuse` before the stop and by `check`, and inside the stop by [`super::made_namespaces`], which asks the
//! process for the rest. Fails by: words for a refusal. A process that has ended is in none.

use super::pid_namespaces;
use crate::namespaces::{MADE_ANEW, Namespaces, PID_NAME};
use holdfast_image::namespaces::{IdMaps, IdRange, inside};
use holdfast_sys::procfs::Status;
use holdfast_sys::{local_addresses, namespaces, unix_socket};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

/// One that is not the job's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Other {
    /// Its kind, as in [`MADE_ANEW`].
    pub kind: &'static str,
    /// Its inode, by which the kernel names it.
    pub inode: u64,
    /// That of the user namespace that it belongs to; `None`: the job's.
    pub owner: Option<u64>,
    /// Of a user namespace that is not right below the job's: what it is below. A restart makes it without that, which
    /// none of the job may be in then (`ch-run` makes one in another).
    pub below: Option<u64>,
}

/// Those of a process. `own`: all of it, `job`: those of the job.
///
/// # Errors
/// A restart could not make them again.
pub fn others(pid: i32, own: &Namespaces, job: &Namespaces) -> Result<Vec<Other>, String> {
    pid_namespaces::of(pid, own, job)?;
    let differing = own.differing(job);
    let user = if differing.contains(&"user") { own.inode("user") } else { None };
    let job_user = job.inode("user");
    // Of a user namespace in which none of the job is (`list` sees to that), as `bwrap --dev` has one: who is below has
    // no rights over what belongs to it, nor over what belongs to the job's.
    let between = match user.map(|_| owner(pid, "user")).transpose() {
        Ok(Some(None)) => return Ok(Vec::new()), // it has ended
        Ok(above) => above.flatten().filter(|above| job_user != Some(*above)),
        Err(error) => return Err(format!("its user namespace: {error}")),
    };
    let mut found = Vec::new();
    let made = MADE_ANEW.into_iter().filter(|kind| *kind != PID_NAME);
    for kind in made.filter(|kind| differing.contains(kind)) {
        let Some(inode) = own.inode(kind) else { continue };
        let Some(above) = owner(pid, kind).map_err(|error| format!("its {kind} namespace: {error}"))? else {
            return Ok(Vec::new()); // it has ended
        };
        if kind == "user" {
            found.push(Other { kind, inode, owner: None, below: between });
            continue;
        }
        // System V objects are made, and a cgroup namespace is gone into, when a process has no right to it any more.
        let is_between = !["ipc", "cgroup"].contains(&kind) && between == Some(above);
        let owner = Some(above).filter(|above| job_user != Some(*above) && !is_between);
        if owner.is_some() && owner != user {
            return Err(format!(
                "its {kind} namespace belongs to a user namespace that is neither its own nor its job's, which is not \
                 supported: start `holdfast run` inside"
            ));
        }
        found.push(Other { kind, inode, owner, below: None });
    }
    let has = |kind: &str| found.iter().any(|one| one.kind == kind);
    if has("network") {
        network(pid)?;
    }
    if has("user") {
        ids(pid)?;
    }
    Ok(found)
}

/// What /proc has of a process; `None`: it has ended. No other error says that there is nothing.
///
/// # Errors
/// All others.
pub fn unless_ended<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The inode of the user namespace that owns one of a process, or is above it; `None`: the process has ended.
fn owner(pid: i32, kind: &str) -> io::Result<Option<u64>> {
    let name = match kind {
        "network" => "net",
        "mount" => "mnt",
        kind => kind,
    };
    let Some(opened) = unless_ended(File::open(format!("/proc/{pid}/ns/{name}")))? else { return Ok(None) };
    let owner = match kind {
        "user" => namespaces::above(opened.as_fd()),
        _ => namespaces::owner(opened.as_fd()),
    };
    Ok(Some(File::from(owner?).metadata()?.ino()))
}

/// A network namespace must have nothing but a loopback device, with nothing but its own addresses.
fn network(pid: i32) -> Result<(), String> {
    let devices = unless_ended(fs::read_to_string(format!("/proc/{pid}/net/dev")));
    let devices = devices.map_err(|error| format!("the devices of its network namespace: {error}"))?;
    let devices = devices.unwrap_or_default();
    // Two lines of headings (net/core/net-procfs.c).
    let names = devices.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
    if let Some(name) = names.into_iter().find(|name| name != "lo") {
        return Err(format!(
            "its network namespace has the device {name}, which no restart can make: start `holdfast run` inside"
        ));
    }
    // Without IPv6 there is no second table.
    let text = |table: &str| match unless_ended(fs::read_to_string(format!("/proc/{pid}/net/{table}"))) {
        Ok(text) => Ok(text.unwrap_or_default()),
        Err(error) => Err(format!("the addresses of its network namespace: {error}")),
    };
    match more_address(&text("fib_trie")?, &text("if_inet6")?) {
        Some(address) => Err(format!(
            "its network namespace has the address {address}, which no restart gives it: use one of 127.0.0.0/8, or \
             start `holdfast run` inside"
        )),
        None => Ok(()),
    }
}

/// An address that a loopback device has not of itself.
fn more_address(trie: &str, six: &str) -> Option<IpAddr> {
    local_addresses::of_tables(trie, six).into_iter().find(|address| !address.is_loopback())
}

/// Whether the loopback device of a process's network namespace is up: its address is local then.
///
/// # Errors
/// It cannot be read.
pub fn is_up(pid: i32) -> io::Result<bool> {
    Ok(fs::read_to_string(format!("/proc/{pid}/net/fib_trie"))?.contains("127.0.0.1"))
}

/// The ids of a process must be those of who restarts, or be known in its user namespace.
fn ids(pid: i32) -> Result<(), String> {
    let failed = |error: io::Error| format!("the ids of its user namespace: {error}");
    let Some(maps) = unless_ended(id_maps(pid)).map_err(failed)? else { return Ok(()) };
    let Some(status) = unless_ended(Status::read(pid, pid)).map_err(failed)? else { return Ok(()) };
    let all = |key: &str| -> Vec<u32> {
        status.get(key).unwrap_or_default().split_whitespace().filter_map(|id| id.parse().ok()).collect()
    };
    let own = unix_socket::effective_user();
    match all("Uid").into_iter().find(|id| *id != own && inside(&maps.users, *id).is_none()) {
        Some(id) => Err(format!(
            "its user namespace does not know its own user id {id}, which is not supported: start `holdfast run` inside"
        )),
        None => Ok(()),
    }
}

/// The maps of a process's user namespace.
///
/// # Errors
/// They cannot be read: ESRCH, the process has ended, perhaps.
pub fn id_maps(pid: i32) -> io::Result<IdMaps> {
    let ranges = |name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{name}"))?;
        ranges(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{name} says {text:?}")))
    };
    let setgroups = fs::read_to_string(format!("/proc/{pid}/setgroups"))?.trim() == "allow";
    Ok(IdMaps { users: ranges("uid_map")?, groups: ranges("gid_map")?, setgroups })
}

fn ranges(text: &str) -> Option<Vec<IdRange>> {
    let range = |line: &str| {
        let numbers: Option<Vec<u32>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let [inside, outside, count] = numbers?[..] else { return None };
        Some(IdRange { inside, outside, count })
    };
    text.lines().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_nonsense_is_no_map() {
        let of = |inside, outside, count| IdRange { inside, outside, count };
        let text = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(ranges(text), Some(vec![of(0, 1000, 1), of(1, 100_000, 65536)]));
        assert_eq!((ranges(""), ranges("0 1"), ranges("0 a 1")), (Some(Vec::new()), None, None));
        let own = std::process::id().cast_signed();
        assert!(id_maps(own).is_ok_and(|maps| !maps.users.is_empty()));
        assert!(id_maps(-1).is_err());
    }

    #[test]
    fn addresses_that_a_loopback_device_has_not_of_itself_are_found() {
        let own = "Local:\n  +-- 0.0.0.0/0 2 0 2\n     +-- 127.0.0.0/8 2 0 2\n    |-- 127.0.0.0\n    /8 host LOCAL\n\
                      |-- 127.0.0.1\n    /32 host LOCAL\n    |-- 127.255.255.255\n    /32 link BROADCAST\n";
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(more_address(own, six), None);
        let more = format!("{own}     |-- 10.1.2.3\n        /32 host LOCAL\n");
        assert_eq!(more_address(&more, six), "10.1.2.3".parse().ok());
        let six = format!("{six}fd000000000000000000000000000001 01 40 00 80       lo\n");
        assert_eq!(more_address(own, &six), "fd00::1".parse().ok());
    }

    #[test]
    fn only_what_has_ended_has_nothing() {
        let of = |error| {
            unless_ended::<()>(Err(io::Error::from_raw_os_error(error))).map_err(|e| e.raw_os_error())
        };
        assert_eq!((of(libc::ENOENT), of(libc::ESRCH)), (Ok(None), Ok(None)));
        assert_eq!((of(libc::EACCES), of(libc::EMFILE)), (Err(Some(libc::EACCES)), Err(Some(libc::EMFILE))));
    }

    #[test]
    fn a_process_of_the_job_has_no_others() {
        let own = std::process::id().cast_signed();
        assert_eq!(others(own, &Namespaces::own(), &Namespaces::own()), Ok(Vec::new()));
    }
}
