//! The thread that answers requests about its process. Started by `cuInit`; ends with the process.
//!
//! Invariants: between two requests it has no descriptor, and waits in one system call without a time; it is a thread
//! like any other to whatever takes an image of the process.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use super::message::{Reply, Request};
use super::process;
use crate::system;

/// Its name, by which it is found. (Threads of the real driver are seen under this name.)
pub const THREAD: &str = "cuda-EvtHandlr";

/// Starts it, and returns when it can be found.
pub fn start() -> io::Result<()> {
    let (ready, is_ready) = std::sync::mpsc::channel();
    system::spawn(THREAD, move || {
        // a new thread has its name by now
        let _ = ready.send(());
        loop {
            // a request that breaks off is the asking process's affair
            let _ = answer(system::wait_for_token());
        }
    })?;
    is_ready.recv().map_err(io::Error::other)
}

/// Where the process that has sent a token listens.
pub fn name_of(token: u64) -> String {
    format!("holdfast-stand-in-{token:016x}")
}

fn answer(token: u64) -> io::Result<()> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name_of(token))?)?;
    let peer = system::peer_user(&stream)?;
    if peer != system::user() && peer != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let request = Request::receive(&mut stream)?;
    let (result, state) = process::handle(&request);
    Reply { code: result.err().map_or(0, |code| code.0), state: state as u32 }.send(&mut stream)
}
