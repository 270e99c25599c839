//! The ids and capabilities by which a thread opens files, or makes connections, as long as it works for another user.
//!
//! Root's threads only. By hand: setfsuid(2), setfsgid(2), setresuid(2), setresgid(2) and setgroups(2) of one thread
//! (those of the C library and of `nix` change all threads), capget(2) and capset(2). A change of these ids takes away
//! what PR_SET_DUMPABLE and PR_SET_PDEATHSIG have set (kernel/cred.c, commit_creds): both are set again. How it fails:
//! an error, with all as it was; what cannot be undone ends the process, which would go on as another user.
//!
//! # Safety
//! Numbers and locals of the right type; nothing is kept by the kernel after a call.
#![allow(unsafe_code)]

use crate::check;
use std::io;
use std::marker::PhantomData;

const VERSION_3: u32 = 0x2008_0522;
/// The capabilities that are about files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD
/// and MAC_OVERRIDE (include/linux/capability.h, CAP_FS_SET), and those that open much of the rest: SYS_RAWIO,
/// SYS_PTRACE (files of /proc), SYS_ADMIN, SYSLOG, PERFMON.
const OF_FILES: u64 = 1 << 0
    | 1 << 1
    | 1 << 2
    | 1 << 3
    | 1 << 4
    | 1 << 9
    | 1 << 17
    | 1 << 19
    | 1 << 21
    | 1 << 27
    | 1 << 32
    | 1 << 34
    | 1 << 38;

/// Who opens files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsIds {
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, as bits.
    pub capabilities: u64,
}

/// While it lives, the thread opens files as another user. Not for another thread to drop.
#[derive(Debug)]
pub struct ActingAs {
    before: FsIds,
    dumpable: i32,
    death_signal: i32,
    thread: PhantomData<*const ()>,
}

/// The sets of the calling thread as capget(2) has them: effective, permitted, inheritable; low words, then high words.
pub(crate) fn sets() -> io::Result<[u32; 6]> {
    let header = [VERSION_3, 0_u32];
    let mut data = [0_u32; 6];
    // SAFETY: version 3 reads 8 bytes of header and writes 24 bytes of data (linux/capability.h).
    check(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) })?;
    Ok(data)
}

fn effective(sets: &[u32; 6]) -> u64 {
    u64::from(sets[0]) | u64::from(sets[3]) << 32
}

/// Sets the effective ones, as far as they are permitted.
fn set_effective(wanted: u64) -> io::Result<()> {
    let mut data = sets()?;
    let permitted = u64::from(data[1]) | u64::from(data[4]) << 32;
    let wanted = wanted & permitted;
    (data[0], data[3]) = ((wanted & 0xFFFF_FFFF) as u32, (wanted >> 32) as u32);
    set_sets(&data)
}

/// Sets them all (capset(2)).
pub(crate) fn set_sets(data: &[u32; 6]) -> io::Result<()> {
    let header = [VERSION_3, 0_u32];
    // SAFETY: version 3 reads 8 bytes of header and 24 bytes of data.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) }).map(|_| ())
}

/// Sets one of the two ids; the calls tell no error, but the id before (setfsuid(2)).
fn set_id(call: libc::c_long, id: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    let now = unsafe {
        libc::syscall(call, id);
        libc::syscall(call, u32::MAX)
    };
    if now == i64::from(id) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// The supplementary groups of the caller.
///
/// # Errors
/// As getgroups(2).
pub fn groups() -> io::Result<Vec<u32>> {
    let groups = nix::unistd::getgroups()?;
    Ok(groups.into_iter().map(nix::unistd::Gid::as_raw).collect())
}

/// All but capabilities that are not about files.
fn become_user(ids: &FsIds) -> io::Result<()> {
    // SAFETY: the kernel reads as many ids as there are.
    check(unsafe { libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()) })?;
    set_id(libc::SYS_setfsgid, ids.group)?;
    set_id(libc::SYS_setfsuid, ids.user)
}

fn option(get: libc::c_int) -> i32 {
    let mut value = 0_i32;
    // SAFETY: PR_GET_PDEATHSIG writes one int, PR_GET_DUMPABLE nothing.
    let told = unsafe { libc::prctl(get, &raw mut value) };
    if get == libc::PR_GET_DUMPABLE { told } else { value }
}

/// What the calling thread opens files by.
fn current() -> io::Result<FsIds> {
    // SAFETY: numbers only; an id that cannot be is not set, and the present one is told.
    let id = |call| unsafe { libc::syscall(call, u32::MAX) };
    let now = |call| u32::try_from(id(call)).map_err(io::Error::other);
    Ok(FsIds {
        user: now(libc::SYS_setfsuid)?,
        group: now(libc::SYS_setfsgid)?,
        groups: groups()?,
        capabilities: effective(&sets()?),
    })
}

/// Sets again what a change of ids has taken away: dumpable, and the signal at the end of the parent.
fn give_back((dumpable, death_signal): (i32, i32)) {
    if option(libc::PR_GET_DUMPABLE) != dumpable {
        let _ = nix::sys::prctl::set_dumpable(dumpable == 1);
    }
    if death_signal != 0 {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, death_signal) };
    }
}

/// The thread opens files as `ids` says until the answer is dropped.
///
/// # Errors
/// EPERM: it is not root's.
pub fn act_as(ids: &FsIds) -> io::Result<ActingAs> {
    let before = current()?;
    let own = before.capabilities;
    let (dumpable, death_signal) = (option(libc::PR_GET_DUMPABLE), option(libc::PR_GET_PDEATHSIG));
    let acting = ActingAs { before, dumpable, death_signal, thread: PhantomData };
    become_user(ids)?;
    set_effective(own & !OF_FILES | ids.capabilities & OF_FILES)?;
    Ok(acting)
}

impl Drop for ActingAs {
    fn drop(&mut self) {
        // The capabilities first: CAP_SETUID and CAP_SETGID were never given up, all others are permitted still.
        let undone = set_effective(self.before.capabilities)
            .and_then(|()| become_user(&self.before))
            .and_then(|()| set_effective(self.before.capabilities));
        if undone.is_err() {
            std::process::abort();
        }
        give_back((self.dumpable, self.death_signal));
    }
}

/// Calls `act` with other effective ids, and all capabilities and ids for files that the thread has: for calls of which
/// the kernel notes who made them, as connect(2) and listen(2) do for SO_PEERCRED.
///
/// # Errors
/// EPERM: it is not root's; EINVAL: the user namespace does not have such an id. Nothing was called.
pub fn with_effective<T>(user: u32, group: u32, act: impl FnOnce() -> T) -> io::Result<T> {
    // SAFETY: no arguments.
    let before = unsafe { (libc::geteuid(), libc::getegid()) };
    if before == (user, group) {
        return Ok(act());
    }
    // It has all ids for files and capabilities when it is dropped; nothing of that is changed meanwhile.
    let own = current()?;
    let options = (option(libc::PR_GET_DUMPABLE), option(libc::PR_GET_PDEATHSIG));
    let result = set_effective_ids(user, group, &own).map(|()| act());
    // CAP_SETUID is permitted still, for the real id is root's (capabilities(7)).
    if set_effective_ids(before.0, before.1, &own).is_err() {
        std::process::abort();
    }
    give_back(options);
    result
}

/// Sets them, then what goes with them: the ids for files, and the effective capabilities.
fn set_effective_ids(user: u32, group: u32, own: &FsIds) -> io::Result<()> {
    const AS_IT_IS: u32 = u32::MAX;
    let set = |call, id: u32| {
        // SAFETY: numbers only.
        check(unsafe { libc::syscall(call, AS_IT_IS, id, AS_IT_IS) }).map(|_| ())
    };
    let done = set_effective(own.capabilities)
        .and_then(|()| set(libc::SYS_setresgid, group))
        .and_then(|()| set(libc::SYS_setresuid, user));
    set_effective(own.capabilities)?;
    set_id(libc::SYS_setfsgid, own.group)?;
    set_id(libc::SYS_setfsuid, own.user)?;
    set_effective(own.capabilities)?;
    done
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::unix_socket::effective_user;
    use std::fs::{self, File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn files_are_the_other_users_as_long_as_it_lasts() {
        if effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let folder = std::env::temp_dir().join(format!("fs-ids-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let (secret, made) = (folder.join("secret"), folder.join("made"));
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
        let (sets_before, dumpable) = (sets().unwrap(), option(libc::PR_GET_DUMPABLE));
        let ids = FsIds { user: 2102, group: 2103, groups: vec![2104], capabilities: 0 };
        {
            let _acting = act_as(&ids).unwrap();
            assert!(File::open(&secret).is_err());
            fs::write(&made, "x").unwrap();
        }
        let metadata = fs::metadata(&made).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (2102, 2103));
        assert!(File::open(&secret).is_ok());
        assert_eq!((sets().unwrap(), option(libc::PR_GET_DUMPABLE)), (sets_before, dumpable));
        // A server of another user that may read everything.
        let acting = act_as(&FsIds { capabilities: 1 << 1, ..ids }).unwrap();
        assert!(File::open(&secret).is_ok());
        drop(acting);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_connected_by_another_user_says_so() {
        if effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let before = (sets().unwrap(), option(libc::PR_GET_DUMPABLE), current().unwrap());
        let (one, _other) = with_effective(2102, 2103, || {
            assert!(File::open("/etc/shadow").is_ok(), "it has its capabilities");
            std::os::unix::net::UnixStream::pair().unwrap()
        })
        .unwrap();
        let ids = crate::socket::option(one.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED).unwrap();
        assert_eq!(ids[4..], [&2102_u32.to_ne_bytes()[..], &2103_u32.to_ne_bytes()].concat());
        assert_eq!(effective_user(), 0);
        assert_eq!((sets().unwrap(), option(libc::PR_GET_DUMPABLE), current().unwrap()), before);
    }
}
