//! Names of System V semaphores and queues, and of segments of shared memory: the kernel does not tell who uses one
//! that is not attached, so the agent whose program does holds a name for it, that of a unix socket without a file
//! (unix(7)), as long as it lives. Copies of a job then leave it alone.
//!
//! Used by `cut` (what the program uses) and by `rebuild::ipc` and `rebuild::sysv_shm` (what a restart takes). What
//! must hold: everybody may give a socket any such name, so one counts only if this user has made the socket
//! (sock_diag), and each has a part of its own that cannot be guessed: none can be taken before it is wanted. How it
//! fails: another agent has a name.

use crate::capture::ipc;
use holdfast_image::record::{FileTable, IpcObject, SysvShmRecord};
use holdfast_sys::sysv_sem_msg::IpcKind;
use holdfast_sys::{procfs, sock_diag, unix_socket};
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What a segment of shared memory is called in them.
const SEGMENT: &str = "shared memory";

/// The names that an agent holds, or has not got.
#[derive(Debug, Default)]
pub struct Names(HashMap<(IpcKind, i32), Option<UnixDatagram>>, HashMap<i32, Option<UnixDatagram>>);

impl Names {
    /// Holds those of objects as well as may be.
    pub fn hold(&mut self, objects: &[IpcObject]) {
        for object in objects {
            let (kind, id) = (ipc::kind_of(object), object.id);
            self.0
                .entry((kind, id))
                .or_insert_with(|| hold(&common(&kind, id)).ok().map(|(_, socket)| socket));
        }
    }

    /// Holds those of the segments of a job: the kernel tells who has one attached, but not whose it is meanwhile.
    pub fn hold_segments(&mut self, files: &FileTable) {
        for id in files.segments.iter().map(SysvShmRecord::kernel_id) {
            self.1.entry(id).or_insert_with(|| hold(&common(&SEGMENT, id)).ok().map(|(_, socket)| socket));
        }
    }
}

/// What the names of an object begin with.
fn common(kind: &dyn Display, id: i32) -> String {
    let namespace = procfs::link("/proc/self/ns/ipc").unwrap_or_default();
    format!("holdfast/{}/{kind}/{id}/", String::from_utf8_lossy(&namespace))
}

/// Holds one of them.
fn hold(common: &str) -> io::Result<(String, UnixDatagram)> {
    let mut own_part = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut own_part)?;
    let name = format!("{common}{:016x}", u64::from_ne_bytes(own_part));
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    Ok((name, socket))
}

/// Takes an object; `None`: another agent of this user has it. Of two that take it at once perhaps none gets it.
///
/// # Errors
/// The kernel has no room for sockets, or does not tell whose they are.
pub fn take(kind: IpcKind, id: i32) -> io::Result<Option<UnixDatagram>> {
    take_called(&kind, id)
}

/// The same of a segment of shared memory.
///
/// # Errors
/// As [`take`].
pub fn take_segment(id: i32) -> io::Result<Option<UnixDatagram>> {
    take_called(&SEGMENT, id)
}

fn take_called(kind: &dyn Display, id: i32) -> io::Result<Option<UnixDatagram>> {
    let (common, user) = (common(kind, id), unix_socket::effective_user());
    // First ours: who comes later sees it.
    let (own, socket) = hold(&common)?;
    let is_anothers = |held: &sock_diag::AbstractName| {
        held.user == user && held.name.starts_with(common.as_bytes()) && held.name != own.as_bytes()
    };
    let is_free = !sock_diag::abstract_names()?.iter().any(is_anothers);
    Ok(is_free.then_some(socket))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::record::IpcContent;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn one_holds_a_name_until_it_ends() {
        let object = |id| {
            let content = IpcContent::Semaphores(Vec::new());
            IpcObject { id, key: 0, mode: 0, owner: None, creator: None, content }
        };
        let id = i32::MAX - 17;
        let mut names = Names::default();
        names.hold(&[object(id), object(id)]);
        assert!(
            take(IpcKind::Semaphores, id).unwrap().is_none()
                && take(IpcKind::Messages, id).unwrap().is_some()
        );
        drop(names);
        // A process that another test has just made has copies of all descriptors until it executes something.
        let end = Instant::now() + Duration::from_secs(10);
        while take(IpcKind::Semaphores, id).unwrap().is_none() {
            assert!(Instant::now() < end, "the name is still taken");
            thread::yield_now();
        }
    }
}
