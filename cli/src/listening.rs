//! TCP ports at which others connect: a thread accepts, and each connection has one of its own.
//!
//! Used by the leader of a gang, by what members read of each other, by `serve --listen` and by the server of `holdfast
//! rsh`. Invariant: there are no more connections at a time than were said; one too many is closed at once. Fails by:
//! an error before it listens; later only connections fail.

use crate::exit::{Exit, Failure};
use holdfast_sys::local_addresses;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The pause after an error of accept(2) that passes: EMFILE, ENOMEM.
const PAUSE: Duration = Duration::from_millis(100);

/// At all addresses of this host, at a free port. That is none of those which the kernel gives to sockets, as long as
/// there are others: a program may get sockets back at these at its restart.
///
/// # Errors
/// It cannot.
pub fn anywhere() -> io::Result<TcpListener> {
    /// So many others are tried.
    const TRIES: u32 = 8;
    // A host without version 6 has the other one.
    let at = |port: u16| TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    (0..TRIES).find_map(|_| at(port_of_none()?).ok()).map_or_else(|| at(0), Ok)
}

/// A port below those that the kernel gives, any of them.
fn port_of_none() -> Option<u16> {
    /// Below it are those of well known servers.
    const LEAST: u16 = 10_000;
    let below = u16::try_from(local_addresses::ports_of_connections()?.0).ok()?.checked_sub(LEAST)?;
    let any = RandomState::new().build_hasher().finish().checked_rem(below.into())?;
    Some(LEAST + u16::try_from(any).ok()?)
}

/// Where an option says it.
///
/// # Errors
/// That is no address of this host, or the port is taken.
pub fn at(option: &str, text: &str) -> Result<TcpListener, Failure> {
    let addresses = text.to_socket_addrs().map(Iterator::collect::<Vec<SocketAddr>>);
    addresses.and_then(|all| TcpListener::bind(all.as_slice())).map_err(|error| {
        let what = format!("{option} {text}: {error}; write ADDRESS:PORT (port 0: a free one)");
        Failure::new(Exit::Usage, what)
    })
}

/// One of so many that may be there at a time; it is given back when this is dropped.
#[derive(Debug)]
pub struct Turn(Arc<AtomicUsize>);

impl Turn {
    /// One more, unless all are taken.
    pub fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Turn> {
        let next = |now: usize| (now < most).then_some(now + 1);
        let is_taken = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok();
        is_taken.then(|| Turn(Arc::clone(taken)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Accepts as long as the process lives; each connection is served by a thread of that name. No more than `most` have
/// their turn at a time: who serves may end it before the connection.
pub fn accept_all(
    listener: &TcpListener,
    (name, most): (&str, usize),
    serve: impl Fn(TcpStream, Turn) + Send + Sync + 'static,
) {
    let (serve, taken) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        let Some(turn) = Turn::take(&taken, most) else { continue };
        let serve = Arc::clone(&serve);
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name(name.to_owned()).spawn(move || serve(stream, turn));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc;

    #[test]
    fn no_more_are_served_than_have_their_turn() {
        let listener = at("--listen", "127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, served) = mpsc::channel();
        thread::spawn(move || {
            accept_all(&listener, ("test", 2), move |stream, turn| sender.send((stream, turn)).unwrap());
        });
        let connect = || TcpStream::connect(address).unwrap();
        let (_one, _two) = (connect(), connect());
        let first = served.recv().unwrap();
        let _second = served.recv().unwrap();
        assert_eq!(connect().read(&mut [0]).unwrap_or(0), 0, "one too many is closed");
        // Its connection goes on.
        let (_stream, turn) = first;
        drop(turn);
        let _three = connect();
        served.recv().unwrap();
    }

    #[test]
    fn what_is_no_address_is_said() {
        let why = at("--gang-listen", "x").unwrap_err();
        assert!(why.exit == Exit::Usage && why.message.starts_with("--gang-listen x: "), "{why}");
        assert!(at("--listen", "192.0.2.1:0").is_err());
        let (first, last) = local_addresses::ports_of_connections().unwrap();
        let given = first..=last;
        let port = || u32::from(anywhere().unwrap().local_addr().unwrap().port());
        assert!(first < 11_000 || (0..8).all(|_| !given.contains(&port())), "{given:?}");
    }
}
