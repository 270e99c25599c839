//! Names of System V semaphores and queues: nobody can see who uses one, so the agent whose program does holds a name
//! for it, that of a unix socket without a file (unix(7)), as long as it lives. Copies of a job then leave it alone.
//!
//! Used by `cut` (what the program uses) and by `rebuild::ipc` (what a restart takes). How it fails: somebody else
//! has the name.

use crate::capture::ipc;
use holdfast_image::record::IpcObject;
use holdfast_sys::procfs;
use holdfast_sys::sysv_sem_msg::IpcKind;
use std::collections::HashMap;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The names that an agent holds, or has not got.
#[derive(Debug, Default)]
pub struct Names(HashMap<(IpcKind, i32), Option<UnixDatagram>>);

impl Names {
    /// Holds those of objects as well as may be.
    pub fn hold(&mut self, objects: &[IpcObject]) {
        for object in objects {
            let (kind, id) = (ipc::kind_of(object), object.id);
            self.0.entry((kind, id)).or_insert_with(|| take(kind, id).unwrap_or(None));
        }
    }
}

/// Takes the name of an object; `None`: somebody has it.
///
/// # Errors
/// The kernel has no room for sockets.
pub fn take(kind: IpcKind, id: i32) -> io::Result<Option<UnixDatagram>> {
    let namespace = procfs::link("/proc/self/ns/ipc").unwrap_or_default();
    let name = format!("holdfast/{}/{kind}/{id}", String::from_utf8_lossy(&namespace));
    match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
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
            IpcObject { id, key: 0, mode: 0, content }
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
