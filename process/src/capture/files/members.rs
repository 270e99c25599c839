//! TCP connections to other members of the gang: which they are, and that all that was sent has come.
//!
//! Called inside the stop by `capture_job`, before the tables are read, and by `internet` for each socket. Members say
//! which ends they have ([`Phase::Stopped`]); what mirrors an end of this one is its other end. As none of the programs
//! runs, what each end has sent is final: each receiver waits for it by itself ([`connection::drain`]), and when all
//! have done so ([`Phase::Drained`]) both ends come to the same answer, whole or not. An address that means another
//! place on each host counts on one host alone.
//! How it fails: [`GangError`], or an obstacle of the socket, which passes.

use super::found::{Known, Members};
use super::in_flight::waiting;
use super::internet::{CAUGHT_UP, ON_ITS_WAY, TCP};
use super::sockets::{canonical, peer_of};
use super::urgent::Waiting;
use super::{FileReader, Look, Obstacle};
use crate::connection::{self, Local, Remote, Sender, is_shut};
use crate::gang::{self, Gang, GangError, Lines, Phase};
use holdfast_image::bytes::Blob;
use holdfast_image::record::SocketState;
use holdfast_sys::socket::{self, TcpInfo, tcp_state};
use holdfast_sys::{local_addresses, tcp_buffers};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

const MARKED: &str = "a TCP connection with another member of the gang in which a byte waits that was sent out of band \
                      (MSG_OOB); try again when it was received";
const SEVERAL: &str = "a TCP connection whose other end two members of the gang seem to have; try again";

/// SYN_SENT, SYN_RECV (include/net/tcp_states.h).
const UNDER_WAY: [u8; 2] = [2, 3];

/// Where this end may be closed, and the other one has been.
const STILL_OPEN: [u8; 2] = [tcp_state::ESTABLISHED, tcp_state::CLOSE_WAIT];

/// An end whose other end this member has not.
struct End {
    inode: u64,
    socket: OwnedFd,
    ends: Ends,
    info: TcpInfo,
}

/// Own address, address of the other end.
type Ends = (SocketAddr, SocketAddr);

/// What a member says when it is stopped.
#[derive(Default)]
struct Said {
    network: String,
    ends: Vec<(Ends, TcpInfo)>,
    listening: Vec<SocketAddr>,
    /// Of its network. Empty: not known.
    addresses: Vec<IpAddr>,
}

/// An end of this member and what is known of the other one.
struct Pair<'a> {
    own: &'a End,
    member: u32,
    /// What the other end will have sent, its end counting as one byte.
    total: u64,
    /// Memory that the own queue takes before anything moves.
    queued: usize,
}

/// An end when all have come.
struct Settled {
    /// What it has received, the end counting as one byte.
    received: u64,
    /// Bytes that wait to be read there.
    waiting: usize,
    connection: [u8; 16],
}

impl FileReader<'_> {
    /// Finds out which connections lead to other members, and has all come that was sent through them. All members
    /// do this at the same time.
    ///
    /// # Errors
    /// As [`Gang::meet`].
    pub fn meet(&mut self, gang: &dyn Gang, until: Instant) -> Result<(), GangError> {
        let network =
            self.holders.first().map_or_else(String::new, |first| gang::network_of(&first.tid.to_string()));
        let table = |name: &str| {
            let first = self.holders.first()?.tid;
            fs::read_to_string(format!("/proc/{first}/net/{name}")).ok()
        };
        let addresses = addresses_of(table);
        let listening = at_each_address(self.listening(), &addresses);
        let own = Said { network, ends: Vec::new(), listening, addresses };
        let ends = self.leading_out();
        self.members = meet(gang, &ends, own, until)?;
        Ok(())
    }

    /// One that no member has said to have is not one that is just being made to another member.
    pub(super) fn settled_in_gang(
        &self,
        (taken, inode): (&OwnedFd, u64),
        info: &TcpInfo,
    ) -> Result<(), Obstacle> {
        if self.members.is_gang && UNDER_WAY.contains(&info.state) {
            return Err(Obstacle::Passing(ON_ITS_WAY.into()));
        }
        let Some(there) = peer_of(taken).ok().and_then(|peer| canonical(&peer.0)) else { return Ok(()) };
        match self.members.listening.iter().find(|(_, at)| listens_at(at, &there)) {
            None => match self.members.addresses.get(&there.ip()) {
                // A process there may have closed it, and what it has sent is to be read here yet.
                Some(member)
                    if STILL_OPEN.contains(&info.state)
                        && !self.outside.lose_connections
                        && !self.is_held_by_others(inode) =>
                {
                    Err(Obstacle::Passing(format!(
                        "a TCP connection to {there} on the host of member {member} of the gang, whose other end was \
                         closed, or leads outside the job; try again, or --outside close"
                    )))
                }
                _ => Ok(()),
            },
            Some((member, _)) => Err(Obstacle::Passing(if info.state == tcp_state::CLOSE_WAIT {
                format!(
                    "a TCP connection to {there} of member {member} of the gang, whose other end was closed; try again \
                     when this one is, too"
                )
            } else {
                format!(
                    "a TCP connection to member {member} of the gang that was not accepted yet; try again"
                )
            })),
        }
    }

    /// Whether an address is one where another member listens. On this host a restart could not make a connection from
    /// there: no socket can be bound where another one listens.
    pub(super) fn is_of_a_listener(&self, there: &SocketAddr) -> bool {
        self.members.listening.iter().any(|(_, at)| listens_at(at, there))
    }

    /// Where a connection leads to is known when all members are stopped.
    pub(super) fn may_lead_to_members(&self) -> bool {
        self.look == Look::Running && self.outside.in_gang
    }

    /// Whether other members have a part in this cut.
    pub(super) fn is_in_gang(&self) -> bool {
        self.members.is_gang
    }

    /// The ends of all TCP connections of this member.
    pub(super) fn known_ends(&self) -> HashSet<Ends> {
        self.streams().values().map(|stream| (stream.local, stream.peer)).collect()
    }

    /// Ends whose other end this member has not.
    fn leading_out(&self) -> Vec<End> {
        let all = self.internet_streams();
        let own: HashSet<_> = all.values().map(|stream| stream.ends()).collect();
        // In a network of the program's own there are addresses of its own, too.
        let leads_out =
            |stream: &&super::Stream| stream.network.0.is_none() && !own.contains(&stream.ends_there());
        let end = |stream: &super::Stream| {
            let (inode, ends, info) = (stream.inode, (stream.local, stream.peer), stream.info);
            Some(End { inode, socket: self.end(inode)?, ends, info })
        };
        all.values().filter(leads_out).filter_map(end).collect()
    }

    /// Where this member listens.
    fn listening(&self) -> Vec<SocketAddr> {
        let sockets = self.found.iter().filter(|found| found.is_socket());
        let at = |taken: OwnedFd| {
            let listens = socket::tcp_info(taken.as_fd()).ok()?.state == tcp_state::LISTEN;
            let is_of_job = self.net(&taken).ok()?.place.is_none();
            canonical(&socket::local_address(taken.as_fd()).ok()?).filter(|_| listens && is_of_job)
        };
        sockets.filter_map(|found| at(self.take(found).ok()?)).collect()
    }

    /// The state of an end whose other end another member has.
    pub(super) fn of_member(
        &self,
        taken: &OwnedFd,
        known: &Known,
        info: &TcpInfo,
    ) -> Result<SocketState, Obstacle> {
        use tcp_state::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2};
        if let Some(why) = &known.why {
            return Err(Obstacle::Passing(why.clone()));
        }
        // The other states pass as soon as all has arrived.
        if ![ESTABLISHED, CLOSE_WAIT, FIN_WAIT1, FIN_WAIT2].contains(&info.state) {
            return Err(Obstacle::Passing(ON_ITS_WAY.into()));
        }
        self.free_after_death(taken);
        let Waiting { data, marks, .. } = self.data(taken, TCP)?;
        if !marks.is_empty() {
            return Err(Obstacle::Passing(MARKED.into()));
        }
        let (peer, shut) = (peer_of(taken)?, is_shut(info.state));
        let connection = Blob(known.connection.to_vec());
        Ok(SocketState::Member { connection, member: known.member, peer, data, shut })
    }
}

/// Whether who listens at `at` has connections to `there`. All of 127.0.0.0/8 are local, and no table says which of
/// them are used: any counts.
fn listens_at(at: &SocketAddr, there: &SocketAddr) -> bool {
    let is_there = at.ip() == there.ip()
        || at.ip().is_unspecified()
        || at.ip().is_loopback() && there.ip().is_loopback();
    at.port() == there.port() && is_there
}

/// The addresses of a network. `table` reads one of /proc/PID/net.
fn addresses_of(table: impl Fn(&str) -> Option<String>) -> Vec<IpAddr> {
    match (table("fib_trie"), table("if_inet6")) {
        // A host without version 6 has no table of it.
        (Some(trie), six) => local_addresses::of_tables(&trie, &six.unwrap_or_default()),
        (None, _) => Vec::new(),
    }
}

/// Who listens at all addresses does so at each of the host's, `own`, and a connection to the same port of a host
/// outside of the gang is none to it. Where they are not known, any address counts.
fn at_each_address(listening: Vec<SocketAddr>, own: &[IpAddr]) -> Vec<SocketAddr> {
    if own.is_empty() || !listening.iter().any(|at| at.ip().is_unspecified()) {
        return listening;
    }
    let each = |at: SocketAddr| {
        let is_any = at.ip().is_unspecified();
        // A socket of version 6 takes connections of version 4, too, unless it was told not to.
        let fits = move |ip: &&IpAddr| is_any && (at.is_ipv6() || ip.is_ipv4());
        let some = own.iter().filter(fits).map(move |ip| SocketAddr::new(*ip, at.port()));
        some.chain((!is_any).then_some(at))
    };
    let each: HashSet<SocketAddr> = listening.into_iter().flat_map(each).collect();
    each.into_iter().collect()
}

/// See [`FileReader::meet`].
fn meet(gang: &dyn Gang, ends: &[End], own: Said, until: Instant) -> Result<Members, GangError> {
    let mut lines = vec![vec!["network".to_owned(), own.network.clone()]];
    lines.extend(ends.iter().map(|end| line(end.ends, &end.info)));
    lines.extend(own.listening.iter().map(|at| vec!["listens".to_owned(), at.to_string()]));
    lines.extend(own.addresses.iter().map(|at| vec!["address".to_owned(), at.to_string()]));
    let said = gang::meet(gang, Phase::Stopped, &lines, until)?;
    let said: Vec<Said> = said.into_iter().enumerate().map(parse).collect::<Result<_, _>>()?;
    let mut members = Members { is_gang: true, ..Members::default() };
    let others = || (0..).zip(&said).filter(|(member, _)| *member != gang.member());
    for (member, theirs) in others() {
        let counts = |at: &&SocketAddr| theirs.network == own.network || !gang::is_of_one_host(at);
        members.listening.extend(theirs.listening.iter().filter(counts).map(|at| (member, *at)));
        // One of several hosts, as that of a bridge to its containers, means this one here.
        let is_there = |at: &&IpAddr| {
            theirs.network == own.network
                || !gang::is_of_one_host(&SocketAddr::new(**at, 0)) && !own.addresses.contains(at)
        };
        members.addresses.extend(theirs.addresses.iter().filter(is_there).map(|at| (*at, member)));
    }
    let mut mirrored: HashMap<Ends, Vec<(u32, TcpInfo)>> = HashMap::new();
    for (member, theirs) in others() {
        for ((local, peer), info) in &theirs.ends {
            let is_of_one_host = gang::is_of_one_host(local) || gang::is_of_one_host(peer);
            if theirs.network == own.network || !is_of_one_host {
                members.addresses.insert(local.ip(), member);
                mirrored.entry((*peer, *local)).or_default().push((member, *info));
            }
        }
    }
    let mut pairs = Vec::new();
    for end in ends {
        match mirrored.get(&end.ends).map(Vec::as_slice) {
            None | Some([]) => {}
            Some(&[(member, info)]) => {
                let total = connection::total(&info);
                let queued = Local::of_program(&end.socket).queued();
                pairs.push(Pair { own: end, member, total, queued });
            }
            Some([(member, _), ..]) => {
                let known = Known { member: *member, connection: [0; 16], why: Some(SEVERAL.into()) };
                members.known.insert(end.inode, known);
            }
        }
    }
    drain(&pairs, until);
    settle(gang, &pairs, &mut members, until)?;
    Ok(members)
}

/// Has all come that was sent to the ends of this member, and what these hold back go.
fn drain(pairs: &[Pair<'_>], until: Instant) {
    pairs.iter().for_each(|pair| Local::of_program(&pair.own.socket).push());
    // The others are still to be told of it.
    let half = Instant::now() + until.saturating_duration_since(Instant::now()) / 2;
    for pair in pairs {
        let to = Local::of_program(&pair.own.socket);
        if !matches!(connection::drain(&Remote(pair.total), &to, Some(half)), Ok(0)) {
            // The checkpoint fails: the others need not wait.
            break;
        }
    }
}

/// Both ends of each connection are looked at together.
fn settle(
    gang: &dyn Gang,
    pairs: &[Pair<'_>],
    members: &mut Members,
    until: Instant,
) -> Result<(), GangError> {
    let mut own = Vec::with_capacity(pairs.len());
    for pair in pairs {
        own.push(settled(&pair.own.socket).map_err(|error| GangError {
            member: Some(gang.member()),
            host: String::new(),
            reason: format!("TCP connection {} -> {}: {error}", pair.own.ends.0, pair.own.ends.1),
        })?);
    }
    let lines = pairs.iter().zip(&own).map(|(pair, settled)| {
        let (local, peer) = pair.own.ends;
        let (received, waiting) = (settled.received.to_string(), settled.waiting.to_string());
        vec![local.to_string(), peer.to_string(), received, waiting, hex(settled.connection)]
    });
    let said = gang::meet(gang, Phase::Drained, &lines.collect::<Vec<_>>(), until)?;
    let mut theirs = HashMap::new();
    for (member, lines) in said.into_iter().enumerate() {
        for (ends, settled) in parse_settled(member, &lines)? {
            theirs.insert((u32::try_from(member).unwrap_or(u32::MAX), ends), settled);
        }
    }
    for (pair, own) in pairs.iter().zip(&own) {
        let (local, peer) = pair.own.ends;
        let Some(other) = theirs.get(&(pair.member, (peer, local))) else {
            let known = Known { member: pair.member, connection: [0; 16], why: Some(ON_ITS_WAY.into()) };
            members.known.insert(pair.own.inode, known);
            continue;
        };
        let left = [
            connection::total(&pair.own.info).saturating_sub(other.received),
            pair.total.saturating_sub(own.received),
        ];
        if left[0] == 0 {
            let from = Local::of_program(&pair.own.socket);
            from.lend(pair.queued);
            if other.waiting < CAUGHT_UP {
                tcp_buffers::give_back(&pair.own.socket);
            }
        }
        let connection = if local < peer { own.connection } else { other.connection };
        let why = left.into_iter().max().filter(|left| *left > 0).map(|left| obstacle(pair.member, left));
        members.known.insert(pair.own.inode, Known { member: pair.member, connection, why });
    }
    Ok(())
}

/// Why a connection is not whole.
fn obstacle(member: u32, left: u64) -> String {
    format!(
        "a TCP connection with member {member} of the gang whose reader is slow: {left} bytes wait at their sender, \
         for which the reader has no room, or are on their way: try again when it has caught up, or raise the third \
         number of net.ipv4.tcp_rmem"
    )
}

/// An end as it is now.
fn settled(end: &OwnedFd) -> io::Result<Settled> {
    let mut connection = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut connection)?;
    let received = socket::tcp_info(end.as_fd())?.received;
    Ok(Settled { received, waiting: waiting(end).unwrap_or(usize::MAX), connection })
}

/// What is said of an end.
fn line((local, peer): Ends, info: &TcpInfo) -> Vec<String> {
    let numbers = [u64::from(info.state), info.sent, u64::from(info.not_sent), info.received];
    let mut words = vec!["end".to_owned(), local.to_string(), peer.to_string()];
    words.extend(numbers.map(|number| number.to_string()));
    words
}

/// The other way.
fn end(words: &[String]) -> Option<(Ends, TcpInfo)> {
    let [kind, local, peer, state, sent, not_sent, received] = words else { return None };
    let info = TcpInfo {
        state: state.parse().ok()?,
        // So much that sums of them are numbers.
        sent: sent.parse().ok().filter(|sent| *sent < u64::MAX / 2)?,
        not_sent: not_sent.parse().ok()?,
        received: received.parse().ok()?,
        ..TcpInfo::default()
    };
    (kind == "end").then_some(((local.parse().ok()?, peer.parse().ok()?), info))
}

fn parse((member, lines): (usize, Lines)) -> Result<Said, GangError> {
    let mut said = Said::default();
    for words in &lines {
        match words.as_slice() {
            [kind, network] if kind == "network" => network.clone_into(&mut said.network),
            [kind, at] if kind == "listens" => {
                said.listening.push(at.parse().map_err(|_| gang::not_understood(member))?);
            }
            [kind, at] if kind == "address" => {
                said.addresses.push(at.parse().map_err(|_| gang::not_understood(member))?);
            }
            words => said.ends.push(end(words).ok_or_else(|| gang::not_understood(member))?),
        }
    }
    Ok(said)
}

fn parse_settled(member: usize, lines: &Lines) -> Result<Vec<(Ends, Settled)>, GangError> {
    let one = |words: &Vec<String>| {
        let [local, peer, received, waiting, connection] = words.as_slice() else { return None };
        let connection = u128::from_str_radix(connection, 16).ok()?.to_be_bytes();
        let ends = (local.parse().ok()?, peer.parse().ok()?);
        Some((ends, Settled { received: received.parse().ok()?, waiting: waiting.parse().ok()?, connection }))
    };
    lines.iter().map(|words| one(words).ok_or_else(|| gang::not_understood(member))).collect()
}

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
