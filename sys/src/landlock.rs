//! Landlock (landlock(7)): rule sets, and how many layers a thread is in.
//!
//! By hand: the C library has no functions for it.
//!
//! # Safety
//! The kernel reads structures that live through the call.
#![allow(unsafe_code)]

use crate::{attributes, check, clone, spawn};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

const RULE_PATH_BENEATH: i32 = 1;
const RULE_NET_PORT: i32 = 2;
/// Most layers (security/landlock/limits.h, LANDLOCK_MAX_NUM_LAYERS).
const LAYERS: i32 = 16;
const MAKE_SYM: u64 = 1 << 12;

/// A rule set.
#[derive(Debug)]
pub struct Ruleset(OwnedFd);

impl Ruleset {
    /// That handles this access to files and ports (`LANDLOCK_ACCESS_FS_*`, `LANDLOCK_ACCESS_NET_*`).
    ///
    /// # Errors
    /// EOPNOTSUPP: Landlock is off; EINVAL, E2BIG: the kernel does not know one.
    pub fn new(files: u64, network: u64) -> io::Result<Ruleset> {
        let attributes = [files, network];
        // A kernel before 6.7 knows the first alone.
        let size = if network == 0 { 8 } else { size_of_val(&attributes) };
        // SAFETY: so many bytes of two words.
        let made = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, attributes.as_ptr(), size, 0) };
        crate::fd::owned(made).map(Ruleset)
    }

    /// Allows access to a file, or to all below a folder.
    ///
    /// # Errors
    /// EINVAL: it is not handled, or not of such files.
    pub fn allow_path(&self, access: u64, path: BorrowedFd<'_>) -> io::Result<()> {
        let mut rule = [0_u8; 12]; // struct landlock_path_beneath_attr, packed
        rule[..8].copy_from_slice(&access.to_ne_bytes());
        rule[8..].copy_from_slice(&path.as_raw_fd().to_ne_bytes());
        self.add(RULE_PATH_BENEATH, rule.as_ptr())
    }

    /// Allows access to a port of TCP.
    ///
    /// # Errors
    /// EINVAL: it is not handled.
    pub fn allow_port(&self, access: u64, port: u64) -> io::Result<()> {
        self.add(RULE_NET_PORT, [access, port].as_ptr().cast()) // struct landlock_net_port_attr
    }

    fn add(&self, kind: i32, rule: *const u8) -> io::Result<()> {
        // SAFETY: the callers' attributes are of this kind.
        check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, self.0.as_raw_fd(), kind, rule, 0) })
            .map(drop)
    }
}

impl AsFd for Ruleset {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How many layers this process is in: those of its host. It is tried once, in a child, which goes into more up to the
/// kernel's limit. The caller must be the only thread of its process, or the child makes system calls alone.
pub fn layers() -> u64 {
    static KNOWN: OnceLock<u64> = OnceLock::new();
    *KNOWN.get_or_init(|| count().unwrap_or(0))
}

fn count() -> io::Result<u64> {
    let ruleset = Ruleset::new(MAKE_SYM, 0)?;
    let child = clone::fork_with(0, 0)?;
    if child == 0 {
        // SAFETY: numbers alone.
        let add =
            || unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.0.as_raw_fd(), 0) } == 0;
        // SAFETY: numbers alone.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        attributes::exit_now((0..LAYERS).take_while(|_| add()).count() as i32);
    }
    let added = spawn::wait(child, true)?.and_then(|status| status.code()).unwrap_or(LAYERS);
    Ok(u64::try_from(LAYERS - added).unwrap_or(0))
}
