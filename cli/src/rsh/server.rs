//! `holdfast __rsh-server`: the program of a member that was added to an open gang. It listens at a TCP port of its
//! host for `holdfast rsh`, and runs what that asks for.
//!
//! Started by the agent of the leader, through ssh and `holdfast run --gang N/open`; in the image of its member. What
//! must hold: who does not prove the key, which its agent has told it, gets nothing; what it has a checkpoint can have.
//! It ends when it is told to (SIGTERM) and no command is waited for any more. How it fails: an error before it serves;
//! a command that fails ends alone.

use super::client::ask;
use super::session;
use crate::exit::{Exit, Failure};
use crate::gang::key::Key;
use crate::listening::{self, Turn};
use holdfast_image::control::{Reply, Request};
use holdfast_sys::poll::{self, Bell};
use holdfast_sys::signals::{self, SignalMessages};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Commands at a time, and connections that have not proved the key yet: more are closed at once.
const MOST: usize = 4096;
const MOST_STRANGERS: usize = 256;

/// What the threads share.
struct Server {
    /// What both sides prove.
    key: Key,
    strangers: Arc<AtomicUsize>,
    sessions: Arc<AtomicUsize>,
    bell: Bell,
}

/// Serves until it is told to end.
///
/// # Errors
/// It cannot listen, or its agent does not know it.
pub fn run() -> Result<(), Failure> {
    let system = |what: &'static str| move |error: std::io::Error| Failure::system(what, &error);
    signals::block(signals::bit(libc::SIGTERM));
    let told = SignalMessages::new(signals::bit(libc::SIGTERM)).map_err(system("signalfd"))?;
    let listener = listening::anywhere().map_err(system("listening for holdfast rsh"))?;
    listener.set_nonblocking(true).map_err(system("listening for holdfast rsh"))?;
    let port = listener.local_addr().map_err(system("asking for the port"))?.port();
    let server = Arc::new(Server {
        key: key(port)?,
        strangers: Arc::default(),
        sessions: Arc::default(),
        bell: Bell::new().map_err(system("eventfd"))?,
    });
    let mut is_ending = false;
    while !is_ending || server.sessions.load(Ordering::Acquire) > 0 {
        let fds = [told.as_fd(), server.bell.as_fd(), listener.as_fd()];
        poll::readable(&fds, None).map_err(system("waiting for holdfast rsh"))?;
        server.bell.hush();
        while told.next().is_some() {
            is_ending = true;
        }
        accept(&server, &listener);
    }
    Ok(())
}

/// The agent is told of the server, and tells it the key.
fn key(port: u16) -> Result<Key, Failure> {
    let refused = |why: String| Failure::new(Exit::Refused, format!("the server of holdfast rsh: {why}"));
    match ask(&Request::Serves { port }).map_err(refused)? {
        Reply::Key { key } => Key::read(&key.0).ok_or_else(|| refused("the key is damaged".into())),
        Reply::Error { message } => Err(refused(message)),
        other => Err(refused(format!("unexpected answer of the agent: {other:?}"))),
    }
}

fn accept(server: &Arc<Server>, listener: &TcpListener) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) => {
                // EMFILE, ENOMEM, one that has gone: passes.
                thread::sleep(Duration::from_millis(20));
                return;
            }
        };
        let Some(stranger) = Turn::take(&server.strangers, MOST_STRANGERS) else { continue };
        let of_thread = Arc::clone(server);
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name("rsh".into()).spawn(move || of_thread.serve(stream, stranger));
    }
}

impl Server {
    /// One connection, up to its end. Only who has proved the key keeps the server from ending.
    fn serve(&self, stream: TcpStream, stranger: Turn) {
        let Some((wire, command)) = session::meet(&self.key, stream) else { return };
        let Some(turn) = Turn::take(&self.sessions, MOST) else { return };
        drop(stranger);
        session::serve(&wire, &command);
        drop(turn);
        self.bell.ring();
    }
}
