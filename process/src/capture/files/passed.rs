//! Descriptors in flight: those in messages that wait in unix sockets (SCM_RIGHTS of unix(7)), as copies of this
//! process.
//!
//! Filled by `find_passed`; used by all who ask of a descriptor where it leads. Invariant: a copy is this process's,
//! and has the socket of a process in which it waits, or in which the socket waits that has it.

use super::found::Found;
use super::in_flight::Seen;
use super::obstacle::Obstacle;
use crate::inject::copied_files::Copies;
use holdfast_image::record::{Description, Object, Passed as PassedWith, SocketState};
use holdfast_sys::attributes;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors in messages.
#[derive(Default)]
pub(super) struct Passed {
    copies: Copies,
    /// In which socket each waits.
    carriers: HashMap<i32, Carrier>,
    /// What waits in those sockets, by inode.
    pub(super) seen: HashMap<u64, Vec<Seen>>,
}

/// A socket of a process.
#[derive(Clone)]
pub(super) struct Carrier {
    pub(super) holder: usize,
    pub(super) fd: i32,
    pub(super) target: Vec<u8>,
}

impl Passed {
    pub(super) fn copies(&self) -> &Copies {
        &self.copies
    }

    pub(super) fn add(&mut self, copy: OwnedFd, carrier: Carrier) {
        self.carriers.insert(copy.as_raw_fd(), carrier);
        self.copies.insert(copy.as_raw_fd(), copy);
    }

    pub(super) fn take(&self, number: i32) -> Result<OwnedFd, Obstacle> {
        let copy = self.copies.get(&number).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF));
        copy.and_then(OwnedFd::try_clone).map_err(|error| Obstacle::of("cannot be looked into: ", &error))
    }

    /// The process that has it, or the socket in which it waits.
    pub(super) fn holder_of(&self, found: &Found) -> usize {
        self.carrier_of(found).map_or(found.holder, |carrier| carrier.holder)
    }

    /// In which socket it waits; `None`: it does not.
    pub(super) fn carrier_of(&self, found: &Found) -> Option<&Carrier> {
        self.carriers.get(&found.fd).filter(|_| self.copies.contains_key(&found.fd) && found.is_passed)
    }
}

/// This process, and a thread of it.
pub(super) fn own() -> (i32, i32) {
    (attributes::own_pid(), attributes::own_pid())
}

/// Has messages tell the descriptions of what comes with them, in place of our own numbers, which `known` has.
pub(super) fn settle(descriptions: &mut [Description], known: &HashMap<i32, u32>) {
    let settle = |number: &mut u32| {
        let known = i32::try_from(*number).ok().and_then(|number| known.get(&number));
        // One that is not known is refused, and all is.
        *number = known.copied().unwrap_or(u32::MAX);
    };
    for description in descriptions {
        match &mut description.object {
            Object::SocketPair { passed, .. } => {
                passed.iter_mut().flat_map(|one| &mut one.files).for_each(settle)
            }
            Object::Socket(socket) => {
                socket.messages.iter_mut().flat_map(|one| &mut one.passed).for_each(settle);
                if let SocketState::Connected { passed, .. } = &mut socket.state {
                    passed.iter_mut().flat_map(|one| &mut one.files).for_each(settle);
                }
            }
            _ => {}
        }
    }
}

/// What comes with pieces and messages, by our own numbers.
pub(super) fn with_each(seen: &[Seen]) -> Vec<PassedWith> {
    let with = |(message, seen): (u32, &Seen)| {
        let files = seen.passed.iter().map(|number| number.cast_unsigned()).collect();
        (!seen.passed.is_empty()).then_some(PassedWith { message, files })
    };
    (0..).zip(seen).filter_map(with).collect()
}
