//! What all sockets of a restart need: as whom one is made, its options, and its address in one form.
//!
//! Runs in the new process and in the agent.

use holdfast_image::record::{Ownership, SocketOption, SocketRecord, internet_address};
use holdfast_sys::{fs_ids, socket, unix_socket};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Calls `act` as these ids, where they are given: the other end of a connection is told them. All that an ordinary
/// user makes is that user's.
///
/// # Errors
/// Of `act`; EINVAL: root has no such id here.
pub fn made_by<T>(ids: Option<Ownership>, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let Some(Ownership { user, group }) = ids.filter(|_| unix_socket::effective_user() == 0) else {
        return act();
    };
    fs_ids::with_effective(user, group, &mut act)?
}

/// Best effort: another kernel may not have an option, or have lower limits.
pub fn set_options(made: &OwnedFd, options: &[SocketOption]) {
    for option in options {
        let _ = socket::set_option(made.as_fd(), option.level, option.name, &option.value.0);
    }
}

/// The address of an internet socket; one of IPv4 is the same in either family.
pub fn canonical_address(record: &SocketRecord) -> Option<SocketAddr> {
    let address = internet_address(&record.local.0)?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
