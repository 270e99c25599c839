//! Sockets with addresses: listeners, datagram sockets, connections with both ends in the program.
//!
//! Runs in the new process ([`super::child`]). Connections come first, each through a listener of its own at the
//! address of the end that was accepted; those listeners are gone before the program's own are made. A socket that
//! died with the program may keep its port for a minute (TIME_WAIT): a connection is made from the other end then,
//! and what does not go either way is tried, in turns, for [`PATIENCE`], or for as long as only dead connections
//! are in the way. How it fails: an error names the address; the file of a dead unix socket was removed then,
//! nothing else changed.

use super::accepted::accept_from;
use super::networks::Networks;
use super::socket_buffers::fill;
use super::unsettled::{self, Unsettled};
use super::{datagrams, socket_files};
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{self, Opener};
use crate::rebuild::socket_addresses::{
    PATIENCE, PAUSE, any_port, bind_patiently, bind_when_connected, is_taken, not_bound, patience,
};
use crate::rebuild::socket_setup::{canonical_address, made_by, set_options};
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Description, FileTable, Object, SocketRecord, SocketState};
use holdfast_sys::{fd, socket};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// How many may wait at a listener that is there for a moment: more than strangers fill meanwhile.
const BACKLOG: i32 = 128;

/// Connections between two ends of the program, by number: the ends in the order of the table.
#[derive(Debug, Default)]
pub struct Connections(HashMap<u64, [OwnedFd; 2]>);

/// One end, as the table has it.
#[derive(Clone, Copy)]
struct End<'a> {
    socket: &'a SocketRecord,
    number: u64,
    peer: &'a [u8],
    /// No process has the other.
    ended: bool,
    /// Who binds it.
    opener: &'a Opener,
    /// Where it is made.
    networks: &'a Networks,
}

/// A port, and the network namespace in which it is one.
type Port = (Option<u64>, [u8; 2]);
/// An address, likewise.
type Address = (Option<u64>, Vec<u8>);

/// `opener`: of the process that has a description.
fn ends<'a>(
    table: &'a FileTable,
    opener: &impl Fn(usize) -> Option<&'a Opener>,
    networks: &'a Networks,
) -> impl Iterator<Item = End<'a>> {
    table.descriptions.iter().enumerate().filter_map(|(index, description)| match &description.object {
        Object::Socket(socket) => match &socket.state {
            SocketState::Connected { connection, peer, ended, .. } => Some(End {
                socket,
                number: *connection,
                peer: &peer.0,
                ended: *ended,
                opener: opener(index)?,
                networks,
            }),
            _ => None,
        },
        _ => None,
    })
}

impl Connections {
    /// Makes all of a table. `opener`: of the process that has a description.
    ///
    /// # Errors
    /// Names an address that cannot be used.
    pub fn make<'a>(
        table: &'a FileTable,
        opener: impl Fn(usize) -> Option<&'a Opener>,
        networks: &'a Networks,
    ) -> Result<Connections, RebuildError> {
        let mut first: HashMap<u64, End<'_>> = HashMap::new();
        let mut listeners = HashMap::new();
        let mut made = HashMap::new();
        let served = served(table);
        for end in ends(table, &opener, networks) {
            if end.ended {
                // The other end is closed when what waits at this one is in it.
                let other = SocketRecord {
                    local: Blob(end.peer.to_vec()),
                    options: Vec::new(),
                    ..end.socket.clone()
                };
                let local = end.socket.local.0.clone();
                let other = End { socket: &other, peer: &local, ..end };
                made.insert(end.number, connect(end, other, &served, &mut listeners)?);
            } else if let Some(other) = first.remove(&end.number) {
                made.insert(end.number, connect(other, end, &served, &mut listeners)?);
            } else {
                first.insert(end.number, end);
            }
        }
        ends(table, &opener, networks).for_each(|end| socket_files::remove(end.socket, end.opener));
        match first.into_values().next() {
            Some(end) => {
                Err(RebuildError::Image(format!("a connection of {} has one end", end.socket.address())))
            }
            None => Ok(Connections(made)),
        }
    }

    /// The ends of one; the first is that which comes first in the table.
    pub fn get(&self, number: u64) -> Option<&[OwnedFd; 2]> {
        self.0.get(&number)
    }
}

/// Ports that the program listens at.
fn served(table: &FileTable) -> HashSet<Port> {
    let listener = |description: &Description| match &description.object {
        Object::Socket(socket) if matches!(socket.state, SocketState::Listening { .. }) => {
            Some((socket.network, port(socket)?))
        }
        _ => None,
    };
    table.descriptions.iter().filter_map(listener).collect()
}

/// The port of an internet socket, as it is in its address.
fn port(record: &SocketRecord) -> Option<[u8; 2]> {
    let known = record.domain.cast_signed() != libc::AF_UNIX;
    record
        .local
        .0
        .get(2..4)
        .filter(|_| known)
        .and_then(|port| port.try_into().ok())
        .filter(|port| *port != [0, 0])
}

/// Connects two ends. Which of them was accepted shows in the port of a listener, and in unix sockets, where the other
/// mostly has no name.
fn connect(
    one: End<'_>,
    two: End<'_>,
    served: &HashSet<Port>,
    listeners: &mut HashMap<Address, OwnedFd>,
) -> Result<[OwnedFd; 2], RebuildError> {
    let serves =
        |end: &End<'_>| port(end.socket).is_some_and(|port| served.contains(&(end.socket.network, port)));
    let accepted_first = has_address(one.socket) && (serves(&one) || !serves(&two));
    let (accepted, connecting) = if accepted_first { (one, two) } else { (two, one) };
    let (server, client) = join(accepted, connecting, listeners)?;
    for (made, end) in [(&server, accepted), (&client, connecting)] {
        set_options(made, &end.socket.options);
        // The listener that it was accepted from gets the same address later; and in TIME_WAIT it would keep the
        // next restart from listening where it connected from. Every cut leaves connections with it
        // (`free_after_death` in capture).
        if end.socket.domain.cast_signed() != libc::AF_UNIX {
            let one = 1_i32.to_ne_bytes();
            let _ = socket::set_option(made.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &one);
        }
    }
    Ok(if accepted_first { [server, client] } else { [client, server] })
}

/// Makes a connection through a listener at the address of the end that was accepted, which comes first; from
/// there, if the other end cannot have its address yet.
fn join(
    accepted: End<'_>,
    connecting: End<'_>,
    listeners: &mut HashMap<Address, OwnedFd>,
) -> Result<(OwnedFd, OwnedFd), RebuildError> {
    let failed = || RebuildError::io(format!("connecting {} with itself", accepted.socket.address()));
    let address = (accepted.socket.network, accepted.socket.local.0.clone());
    listen_at(accepted, connecting, listeners)?;
    let client = match without_binding(connecting.socket) {
        Some(client) => client,
        None => bound(connecting.socket, (connecting.opener, connecting.networks), false)?,
    };
    let begun = Instant::now();
    loop {
        let connect = || {
            let _acting = connecting.opener.act_on_way(&accepted.socket.local.0)?;
            socket::connect(client.as_fd(), connecting.peer)
        };
        match made_by(accepted.socket.peer_ids, connect) {
            Ok(()) => break,
            Err(error) if !is_taken(&error) => return Err(failed()(error)),
            Err(error) => {
                let Some(port) = port(connecting.socket) else { return Err(failed()(error)) };
                // There may be no listener where a connection comes from.
                listeners.remove(&address);
                if let Ok(ends) = backwards(accepted, connecting) {
                    return Ok(ends);
                }
                // Either way may be open in a second, and the other one not for a minute.
                if begun.elapsed() > patience(Some(&port)) {
                    return Err(failed()(error));
                }
                listen_at(accepted, connecting, listeners)?;
                std::thread::sleep(PAUSE);
            }
        }
    }
    any_port(&client);
    let listener = listeners.get(&address).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
    let _acting = paths::act_as_maker(accepted.socket.made_by).map_err(failed())?;
    let within = (accepted.networks, accepted.socket.network);
    let server = listener.and_then(|listener| accept_from(listener, &client, within)).map_err(failed())?;
    Ok((server, client))
}

/// Has a listener at the address of an end, made by whom the other one is told.
fn listen_at(
    end: End<'_>,
    other: End<'_>,
    listeners: &mut HashMap<Address, OwnedFd>,
) -> Result<(), RebuildError> {
    let address = (end.socket.network, end.socket.local.0.clone());
    if let Entry::Vacant(entry) = listeners.entry(address) {
        let listener = bound(end.socket, (end.opener, end.networks), false)?;
        made_by(other.socket.peer_ids, || socket::listen(listener.as_fd(), BACKLOG))
            .map_err(|error| not_bound(end.socket, error))?;
        entry.insert(listener);
    }
    Ok(())
}

/// Connects two ends of TCP from the one that was accepted to the one that connected. That a connection of the old
/// program is in TIME_WAIT at its first end keeps no process from connecting to that end, if there is a listener
/// (net/ipv4/tcp_minisocks.c, tcp_timewait_state_process, TCP_TW_SYN). Returns them in this order.
fn backwards(accepted: End<'_>, connecting: End<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let at = |record: &SocketRecord| {
        let made = unbound(record, accepted.networks)?;
        socket::set_option(made.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1_i32.to_ne_bytes())?;
        socket::bind(made.as_fd(), &record.local.0)?;
        Ok::<OwnedFd, io::Error>(made)
    };
    let listener = at(connecting.socket)?;
    socket::listen(listener.as_fd(), BACKLOG)?;
    let server = at(accepted.socket)?;
    socket::connect(server.as_fd(), accepted.peer)?;
    let client = accept_from(&listener, &server, (accepted.networks, connecting.socket.network))?;
    Ok((server, client))
}

/// A socket that will have its port when it is connected, where the kernel can do that; in a network namespace that was
/// made for it nothing waits.
fn without_binding(record: &SocketRecord) -> Option<OwnedFd> {
    if record.network.is_some() {
        return None;
    }
    let made = unbound(record, &Networks::default()).ok()?;
    bind_when_connected(&made, &record.local.0).then_some(made)
}

/// Everything but an end of a connection.
///
/// # Errors
/// Names the address.
pub fn make(
    record: &SocketRecord,
    (opener, networks): (&Opener, &Networks),
    unsettled: &mut Unsettled,
) -> Result<OwnedFd, RebuildError> {
    let failed = |what: &str| RebuildError::io(format!("{what} {}", record.address()));
    match &record.state {
        SocketState::Lost => lost(record, networks).map_err(failed("making a lost connection of")),
        SocketState::Over { data } => {
            over(record, data, networks).map_err(failed("making a connection that both ends have shut of"))
        }
        SocketState::Connected { .. } | SocketState::Member { .. } => {
            Err(RebuildError::Image("a connection out of place".into()))
        }
        state => {
            let made = bound(record, (opener, networks), unsettled.shares_port(record))?;
            if canonical_address(record).is_some() {
                unsettled.note(&made, record).map_err(failed("making a socket for"))?;
                return Ok(made);
            }
            if let SocketState::Listening { backlog } = state {
                unsettled::listen(&made, record, *backlog)?;
            }
            let file = socket_files::hold(record, opener).map_err(failed("holding the file of"))?;
            unsettled.held.extend(record.number.zip(file));
            unsettled.renamings.extend(socket_files::settle(record, opener)?);
            Ok(made)
        }
    }
}

/// A socket of its kind with its options.
fn unbound(record: &SocketRecord, networks: &Networks) -> io::Result<OwnedFd> {
    let number = |value: u32| value.cast_signed();
    let _acting = paths::act_as_maker(record.made_by)?;
    let kind = (number(record.domain), number(record.socket_type), number(record.protocol));
    let made = networks.socket(record.network, kind)?;
    set_options(&made, &record.options);
    if let Some(filter) = record.filter.as_ref().filter(|_| record.domain.cast_signed() == libc::AF_PACKET) {
        // It gets packets as soon as it is bound.
        socket::set_filter(made.as_fd(), &filter.0)?;
    }
    Ok(made)
}

/// A socket at its address, if it had one. `shared`: another one of the program gets the same port, by SO_REUSEPORT.
fn bound(
    record: &SocketRecord,
    (opener, networks): (&Opener, &Networks),
    shared: bool,
) -> Result<OwnedFd, RebuildError> {
    let failed = |what: &str| RebuildError::io(format!("{what} {}", record.address()));
    let made = unbound(record, networks).map_err(failed("making a socket for"))?;
    let domain = record.domain.cast_signed();
    if domain == libc::AF_NETLINK {
        datagrams::bind_netlink(&made, record).map_err(failed("binding a"))?;
        return Ok(made);
    }
    if !has_address(record) {
        return Ok(made);
    }
    let address = &record.local.0;
    if domain == libc::AF_UNIX {
        let Some(path) = record.path() else {
            bind_patiently(&made, address).map_err(|error| not_bound(record, error))?;
            return Ok(made);
        };
        socket_files::bind(&made, path, record, opener)?;
        return Ok(made);
    }
    // The port may be in TIME_WAIT, or shared by a listener and what it has accepted. The program's own choice follows.
    let set = |name: i32| fd::set_socket_option(made.as_fd(), name, 1);
    set(libc::SO_REUSEADDR).map_err(failed("preparing the address of"))?;
    if shared {
        set(libc::SO_REUSEPORT).map_err(failed("preparing the address of"))?;
    }
    bind_patiently(&made, address).map(|()| made).map_err(|error| not_bound(record, error))
}

fn has_address(record: &SocketRecord) -> bool {
    match record.domain.cast_signed() {
        libc::AF_UNIX => record.local.0.len() > 2,
        // Protocol, device.
        libc::AF_PACKET => record.local.0.get(2..8).is_some_and(|bound| bound != [0; 6]),
        // ForkTree, port.
        _ => record.local.0.get(2..4).is_some_and(|port| port != [0, 0]),
    }
}

/// A connection whose other end has gone: reading says ECONNRESET, once, as it would have.
fn lost(record: &SocketRecord, networks: &Networks) -> io::Result<OwnedFd> {
    /// struct linger: on, no time: closing resets.
    const RESET: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];
    let (made, other) = apart(record, networks)?;
    socket::set_option(other.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &RESET)?;
    drop(other);
    set_options(&made, &record.options);
    Ok(made)
}

/// A connection that both ends have shut: what waits can be read, then comes the end.
fn over(record: &SocketRecord, data: &[Blob], networks: &Networks) -> io::Result<OwnedFd> {
    let (made, other) = apart(record, networks)?;
    set_options(&made, &record.options);
    data.iter().try_for_each(|piece| fill((&other, &made), &piece.0, None, &[]))?;
    // It is closed first: nothing of it is left that another socket would have to wait for.
    drop(other);
    socket::shut_writing(made.as_fd())?;
    Ok(made)
}

/// Two ends of a TCP connection at ports of the kernel's choice; the first is of the family of the record.
fn apart(record: &SocketRecord, networks: &Networks) -> io::Result<(OwnedFd, OwnedFd)> {
    let new = |domain| networks.socket(record.network, (domain, libc::SOCK_STREAM, 0));
    let listener = new(libc::AF_INET)?;
    let four = [&2_u16.to_ne_bytes()[..], &[0, 0], &[127, 0, 0, 1], &[0; 8]].concat();
    socket::bind(listener.as_fd(), &four)?;
    socket::listen(listener.as_fd(), BACKLOG)?;
    let address = socket::local_address(listener.as_fd())?;
    let domain = record.domain.cast_signed();
    let made = new(domain)?;
    let address = if domain == libc::AF_INET6 {
        let prefix = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        [&10_u16.to_ne_bytes()[..], &address[2..4], &[0; 4], &prefix, &address[4..8], &[0; 4]].concat()
    } else {
        address
    };
    socket::connect(made.as_fd(), &address)?;
    let other = accept_from(&listener, &made, (networks, record.network))?;
    Ok((made, other))
}

/// Where a socket is to be connected once all sockets are there: the address, and the number of the socket there.
pub fn leads_to(record: &SocketRecord) -> Option<(&[u8], Option<u64>)> {
    match &record.state {
        SocketState::Pending { peer } => Some((&peer.0, None)),
        SocketState::Directed { peer, number } => Some((&peer.0, *number)),
        _ => None,
    }
}

/// Connects to a listener of the program, which accepts it when it runs, or to where datagrams go. Like all
/// connections that a restart makes it has SO_REUSEADDR from then on: the next restart would wait for its port
/// otherwise.
///
/// # Errors
/// As `connect(2)`.
pub fn connect_later(end: &OwnedFd, peer: &[u8]) -> io::Result<()> {
    if fd::socket_option(end.as_fd(), libc::SO_PROTOCOL).is_ok_and(|protocol| protocol == libc::IPPROTO_TCP) {
        let one = 1_i32.to_ne_bytes();
        let _ = socket::set_option(end.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &one);
    }
    let begun = Instant::now();
    loop {
        match socket::connect(end.as_fd(), peer) {
            // Its flags are the program's already: a connection that is not there at once is on its way.
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => return Ok(()),
            Err(error) if is_taken(&error) && begun.elapsed() <= PATIENCE => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::socket_addresses::DEATH;
    use crate::rebuild::testing::record;
    use holdfast_image::record::SocketOption;
    use holdfast_image::testing;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    fn end_of(stream: &impl AsFd) -> SocketRecord {
        let connected = SocketState::Connected {
            connection: 1,
            peer: Blob(socket::peer_address(stream.as_fd()).unwrap()),
            data: Vec::new(),
            senders: Vec::new(),
            passed: Vec::new(),
            shut: false,
            ended: false,
            marks: Vec::new(),
        };
        SocketRecord {
            protocol: libc::IPPROTO_TCP.cast_unsigned(),
            state: connected,
            ..testing::socket(libc::AF_INET.cast_unsigned(), socket::local_address(stream.as_fd()).unwrap())
        }
    }

    /// `first` and the other end are closed in this order: it is in TIME_WAIT afterwards.
    fn close(first: impl AsFd, other: impl AsFd) {
        socket::shut_writing(first.as_fd()).unwrap();
        socket::receive_from(other.as_fd(), &mut [0; 8], 0).unwrap();
        socket::shut_writing(other.as_fd()).unwrap();
        socket::receive_from(first.as_fd(), &mut [0; 8], 0).unwrap();
    }

    /// A connection as after a cut, client first, whose listener is gone; and its record: the client had no
    /// SO_REUSEADDR. Both ends have an address that no other process uses: the kernel gives ports away by address, and
    /// one that another program has meanwhile is waited for.
    fn connection() -> ([OwnedFd; 2], FileTable) {
        let [.., high, middle, low] = std::process::id().to_be_bytes();
        let listener = TcpListener::bind(SocketAddr::from(([127, high | 128, middle, low], 0))).unwrap();
        let server_address = socket::local_address(listener.as_fd()).unwrap();
        let mut any_port = server_address.clone();
        any_port[2..4].fill(0);
        let client = socket::new(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        socket::bind(client.as_fd(), &any_port).unwrap();
        socket::connect(client.as_fd(), &server_address).unwrap();
        let server = OwnedFd::from(listener.accept().unwrap().0);
        let mut records = [end_of(&client), end_of(&server)];
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        for ((stream, record), value) in [&client, &server].into_iter().zip(&mut records).zip([0_i32, 1]) {
            record.options.push(SocketOption { level, name, value: Blob(value.to_ne_bytes().to_vec()) });
            socket::set_option(stream.as_fd(), level, name, &1_i32.to_ne_bytes()).unwrap();
        }
        let descriptions = records.map(|record| Description {
            flags: 2,
            object: Object::Socket(Box::new(record)),
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        });
        let table = FileTable { descriptions: descriptions.to_vec(), ..FileTable::default() };
        ([client, server], table)
    }

    /// Whichever end of the old connections is in TIME_WAIT, and however fast one program follows another, though none
    /// was in an image but the first.
    #[test]
    fn connections_come_back_while_the_old_ones_are_in_time_wait() {
        let (opener, networks) = (Opener::of(&record(Vec::new())), Networks::default());
        for pattern in 0..8 {
            let (mut both, table) = connection();
            for client_first in [1, 2, 4].map(|bit| pattern & bit != 0) {
                let [client, server] = both;
                if client_first {
                    close(client, server);
                } else {
                    close(server, client);
                }
                let begun = Instant::now();
                let made = Connections::make(&table, |_| Some(&opener), &networks).unwrap();
                assert!(begun.elapsed() < DEATH / 3, "{pattern}: {:?}", begun.elapsed());
                for (end, made) in ends(&table, &|_| Some(&opener), &networks).zip(made.get(1).unwrap()) {
                    assert_eq!(socket::local_address(made.as_fd()).unwrap(), end.socket.local.0);
                    assert_eq!(socket::peer_address(made.as_fd()).unwrap(), end.peer);
                }
                let [one, other] = made.get(1).unwrap();
                fd::send(one.as_fd(), b"data", 0).unwrap();
                let mut buffer = [0; 8];
                assert_eq!(socket::receive_from(other.as_fd(), &mut buffer, 0).unwrap().len, 4);
                both = made.get(1).unwrap().each_ref().map(|end| end.try_clone().unwrap());
            }
        }
    }

    #[test]
    fn a_connection_that_was_not_accepted_is_restored_restart_after_restart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client: OwnedFd = TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        let peer = Blob(socket::peer_address(client.as_fd()).unwrap());
        let record = SocketRecord {
            state: SocketState::Pending { peer: peer.clone() },
            options: vec![SocketOption { level, name, value: Blob(0_i32.to_ne_bytes().to_vec()) }],
            ..end_of(&client)
        };
        let opener = Opener::of(&crate::rebuild::testing::record(Vec::new()));
        // As the cut sets it.
        socket::set_option(client.as_fd(), level, name, &1_i32.to_ne_bytes()).unwrap();
        for _ in 0..3 {
            close(client, listener.accept().unwrap().0);
            let begun = Instant::now();
            client = make(&record, (&opener, &Networks::default()), &mut Unsettled::default()).unwrap();
            connect_later(&client, &peer.0).unwrap();
            assert!(begun.elapsed() < DEATH / 3, "{:?}", begun.elapsed());
        }
    }

    #[test]
    fn a_port_in_time_wait_is_taken_and_can_be_listened_at() {
        let (opener, networks) = (Opener::of(&record(Vec::new())), Networks::default());
        let ([client, server], table) = connection();
        close(client, server);
        let all: Vec<End<'_>> = ends(&table, &|_| Some(&opener), &networks).collect();
        let again = without_binding(all[0].socket).unwrap();
        let error = socket::connect(again.as_fd(), all[0].peer).unwrap_err();
        assert!(is_taken(&error), "the client's port is in TIME_WAIT: {error}");
        drop(backwards(all[1], all[0]).unwrap());
    }
}
