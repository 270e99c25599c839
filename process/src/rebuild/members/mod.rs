//! TCP connections to other members of the gang, made anew by the agents of both.
//!
//! Called by `agent::rebuild_job`, before there are new processes: these get the sockets over their link to the agent
//! ([`super::handshake`]). All members do the same at the same time: they say which ends they have
//! ([`Phase::Facts`]); of each connection one end listens at its old address and the other one binds to its own
//! ([`Phase::Listening`]) and connects. Who has really come says so by the number that both images have ([`exchange`]),
//! and each end gets back from the other what waited in it. A connection is taken from its listener in the order of
//! these numbers, which is the same for all: none waits for one that waits for it.
//! How it fails: an error names the connection and the member. Nothing of the host is changed; what was made is closed.

mod exchange;
mod meeting;

use self::exchange::{Number, Role};
use self::meeting::{End, Ends, Plan};
use crate::gang::{self, Gang, Phase};
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths;
use crate::rebuild::socket_addresses::{
    DEATH, PAUSE, any_port, bind_patiently, bind_when_connected, is_taken, not_bound,
};
use crate::rebuild::socket_setup::set_options;
use holdfast_image::record::{ProcessRecord, SocketRecord};
use holdfast_sys::{fd, socket};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the others may take: as long as an address may be in TIME_WAIT, and more.
const TOGETHER: Duration = Duration::from_secs(120);
/// How long a connection is tried, when its listener is there.
const CONNECTING: Duration = Duration::from_secs(30);
/// How many may wait at a listener that is there for a moment.
const BACKLOG: i32 = 128;

/// Connections by their numbers.
pub type Made = BTreeMap<Number, OwnedFd>;

/// Makes those of a job. `go_on`: see [`super::RebuildOptions::go_on`].
///
/// # Errors
/// The job is a member of a gang, and restarted alone; a connection cannot be made.
pub fn make(
    record: &ProcessRecord,
    gang: Option<&dyn Gang>,
    go_on: &dyn Fn() -> Result<(), RebuildError>,
) -> Result<Made, RebuildError> {
    let ends = meeting::ends(record)?;
    let Some(gang) = gang else {
        return match ends.first() {
            None => Ok(Made::new()),
            Some(end) => Err(RebuildError::Refused(format!(
                "{end}: this is the image of one member of a gang, which all members restart together (holdfast \
                 restart --gang)"
            ))),
        };
    };
    let until = Instant::now() + TOGETHER;
    let plans = meeting::plan(gang, record, ends, until)?;
    let mut prepared = Prepared::of(&plans)?;
    gang::meet(gang, Phase::Listening, &[], until)?;
    let mut made = Made::new();
    for plan in &plans {
        go_on()?;
        let failed = |source: io::Error| RebuildError::Io { what: plan.end.to_string(), source };
        let connection = if plan.listens {
            prepared.accept(plan, go_on)?
        } else {
            let client = prepared.clients.remove(&plan.end.number).ok_or_else(|| failed(lost()))?;
            connect(&client, plan, go_on)?;
            let who = (Role::Connected, plan.end.number);
            exchange::exchange(&client, who, &plan.end.data, &mut || go_on().is_ok()).map_err(failed)?;
            client
        };
        finish(&connection, &plan.end).map_err(failed)?;
        made.insert(plan.end.number, connection);
    }
    Ok(made)
}

/// All members have done what can fail: from here on the programs run.
///
/// # Errors
/// A member has failed.
pub fn meet_connected(gang: &dyn Gang) -> Result<(), RebuildError> {
    gang::meet(gang, Phase::Connected, &[], Instant::now() + TOGETHER)?;
    Ok(())
}

fn lost() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}

/// Sockets at the addresses of the ends.
struct Prepared {
    /// Those that will connect.
    clients: HashMap<Number, OwnedFd>,
    /// Those that listen, by the address.
    listeners: HashMap<SocketAddr, OwnedFd>,
    /// Taken from a listener before their turn.
    early: HashMap<Ends, Vec<OwnedFd>>,
}

impl Prepared {
    /// An address from which one end connects and at which another one listens is bound twice: those that connect come
    /// first, for nothing can be bound where another socket listens already (net/ipv4/inet_connection_sock.c,
    /// inet_csk_bind_conflict).
    fn of(plans: &[Plan<'_>]) -> Result<Prepared, RebuildError> {
        let (mut clients, mut listeners) = (HashMap::new(), HashMap::new());
        for Plan { end, .. } in plans.iter().filter(|plan| !plan.listens) {
            clients.insert(end.number, client(end.record)?);
        }
        for Plan { end, .. } in plans.iter().filter(|plan| plan.listens) {
            if listeners.contains_key(&end.ends.0) {
                continue;
            }
            let made = at_its_address(end.record).map_err(|error| not_bound(end.record, error))?;
            let listening = socket::listen(made.as_fd(), BACKLOG)
                .and_then(|()| fd::fcntl(made.as_fd(), libc::F_SETFL, libc::O_NONBLOCK.into()));
            listening.map_err(|error| not_bound(end.record, error))?;
            listeners.insert(end.ends.0, made);
        }
        Ok(Prepared { clients, listeners, early: HashMap::new() })
    }

    /// The connection of a plan from its listener, with what waited in it.
    fn accept(
        &mut self,
        plan: &Plan<'_>,
        go_on: &dyn Fn() -> Result<(), RebuildError>,
    ) -> Result<OwnedFd, RebuildError> {
        let (end, begun) = (&plan.end, Instant::now());
        let failed = |source: io::Error| RebuildError::Io { what: end.to_string(), source };
        let mut last = io::ErrorKind::TimedOut.into();
        while begun.elapsed() < CONNECTING {
            go_on()?;
            let listener = self.listeners.get(&end.ends.0).ok_or_else(|| failed(lost()))?;
            let waits = self.early.get_mut(&end.ends).and_then(Vec::pop);
            let taken = match waits.map_or_else(|| socket::accept(listener.as_fd()), Ok) {
                Ok(taken) => taken,
                Err(error) if has_gone(&error) => {
                    std::thread::sleep(PAUSE / 10);
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let Some(peer) = peer_of(&taken) else { continue };
            if peer != end.ends.1 {
                // Another one of this listener's, or a stranger, of which nothing is known yet.
                self.early.entry((end.ends.0, peer)).or_default().push(taken);
                continue;
            }
            set_options(&taken, &end.record.options);
            let who = (Role::Accepted, end.number);
            match exchange::exchange(&taken, who, &end.data, &mut || go_on().is_ok()) {
                Ok(()) => return Ok(taken),
                // A stranger, from the same address.
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }
}

/// Whether no connection waits at a listener, or not any more.
fn has_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    [WouldBlock, Interrupted, ConnectionAborted].contains(&error.kind())
}

fn peer_of(taken: &OwnedFd) -> Option<SocketAddr> {
    let address = holdfast_image::record::internet_address(&socket::peer_address(taken.as_fd()).ok()?)?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// A socket of its kind with its options, and with the one that lets the next restart have its address.
fn unbound(record: &SocketRecord) -> io::Result<OwnedFd> {
    let number = |value: u32| value.cast_signed();
    let _acting = paths::act_as_maker(record.made_by)?;
    let made = socket::new(number(record.domain), number(record.socket_type), number(record.protocol))?;
    set_options(&made, &record.options);
    fd::set_socket_option(made.as_fd(), libc::SO_REUSEADDR, 1)?;
    Ok(made)
}

fn at_its_address(record: &SocketRecord) -> io::Result<OwnedFd> {
    let made = unbound(record)?;
    bind_patiently(&made, &record.local.0)?;
    Ok(made)
}

/// One that will connect from its address.
fn client(record: &SocketRecord) -> Result<OwnedFd, RebuildError> {
    let made = unbound(record).map_err(|error| not_bound(record, error))?;
    match socket::bind(made.as_fd(), &record.local.0) {
        Ok(()) => return Ok(made),
        Err(error) if !is_taken(&error) => return Err(not_bound(record, error)),
        Err(_) => {}
    }
    let again = unbound(record).map_err(|error| not_bound(record, error))?;
    if bind_when_connected(&again, &record.local.0) {
        return Ok(again);
    }
    bind_patiently(&made, &record.local.0).map_err(|error| not_bound(record, error))?;
    Ok(made)
}

/// Connects to the listener of the other member, which is there.
fn connect(
    client: &OwnedFd,
    plan: &Plan<'_>,
    go_on: &dyn Fn() -> Result<(), RebuildError>,
) -> Result<(), RebuildError> {
    let failed = |source: io::Error| RebuildError::Io { what: plan.end.to_string(), source };
    let begun = Instant::now();
    fd::fcntl(client.as_fd(), libc::F_SETFL, libc::O_NONBLOCK.into()).map_err(failed)?;
    loop {
        go_on()?;
        match socket::connect(client.as_fd(), plan.end.peer) {
            Ok(()) => break,
            Err(error) => match error.raw_os_error() {
                Some(libc::EISCONN) => break,
                Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR) if begun.elapsed() < CONNECTING => {}
                // What is left of the old connection ends after a minute at most.
                Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL) if begun.elapsed() < DEATH => {}
                _ => return Err(failed(error)),
            },
        }
        std::thread::sleep(PAUSE / 10);
    }
    any_port(client);
    Ok(())
}

/// What comes last: the options that it has from its listener, and its end.
fn finish(connection: &OwnedFd, end: &End<'_>) -> io::Result<()> {
    set_options(connection, &end.record.options);
    fd::set_socket_option(connection.as_fd(), libc::SO_REUSEADDR, 1)?;
    if end.shut { socket::shut_writing(connection.as_fd()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
