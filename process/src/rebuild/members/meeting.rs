//! Which ends the members have, and which end of a connection listens.
//!
//! Called by [`super::make`]. Both members of a connection come to the same answer: an end of which something is left
//! on its host cannot connect (it is in TIME_WAIT, say), but it can be connected to; else the end at whose port its
//! program listens; else that of the lower address.

use super::exchange::Number;
use crate::gang::{self, Gang, GangError, Lines, Phase};
use crate::rebuild::error::RebuildError;
use crate::rebuild::socket_setup::canonical_address;
use crate::tcp_table;
use holdfast_image::record::{
    Description, Object, ProcessRecord, SocketRecord, SocketState, internet_address,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

/// Own address, and that of the other end; one of IPv4 is the same in either family.
pub type Ends = (SocketAddr, SocketAddr);

/// An end of this member.
pub struct End<'a> {
    pub record: &'a SocketRecord,
    /// What both images call the connection.
    pub number: Number,
    /// The other member.
    pub member: u32,
    pub ends: Ends,
    /// The address of the other end, as this one sees it.
    pub peer: &'a [u8],
    /// What waits to be read at this end.
    pub data: Vec<u8>,
    /// It has sent its last.
    pub shut: bool,
}

impl fmt::Display for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP connection {} -> {} with member {} of the gang", self.ends.0, self.ends.1, self.member)
    }
}

/// How it is made.
pub struct Plan<'a> {
    pub end: End<'a>,
    /// It listens, and the other one connects.
    pub listens: bool,
}

/// What a member says of an end.
struct Said {
    ends: Ends,
    /// To whom it leads.
    member: u32,
    /// Something of the old connection is left on its host.
    is_left: bool,
    /// Its program listens at its port.
    serves: bool,
}

/// Those of a job, in the order of their numbers.
pub fn ends(record: &ProcessRecord) -> Result<Vec<End<'_>>, RebuildError> {
    let mut all = BTreeMap::new();
    for description in &record.files.descriptions {
        let Object::Socket(socket) = &description.object else { continue };
        let SocketState::Member { connection, member, peer, data, shut } = &socket.state else { continue };
        let wrong = || RebuildError::Image(format!("a connection of {} has no addresses", socket.address()));
        let there = internet_address(&peer.0).ok_or_else(wrong)?;
        let there = SocketAddr::new(there.ip().to_canonical(), there.port());
        let number: Number = connection.0.as_slice().try_into().map_err(|_| wrong())?;
        let end = End {
            record: socket,
            number,
            member: *member,
            ends: (canonical_address(socket).ok_or_else(wrong)?, there),
            peer: &peer.0,
            data: data.iter().flat_map(|piece| piece.0.iter().copied()).collect(),
            shut: *shut,
        };
        if socket.network.is_some() || all.insert(number, end).is_some() {
            return Err(RebuildError::Image(format!("a connection of {} is there twice", socket.address())));
        }
    }
    Ok(all.into_values().collect())
}

/// Says which ends there are, and finds out what the others have.
pub fn plan<'a>(
    gang: &dyn Gang,
    record: &ProcessRecord,
    ends: Vec<End<'a>>,
    until: Instant,
) -> Result<Vec<Plan<'a>>, RebuildError> {
    let network = gang::network_of("self");
    let left = left_behind(&ends).map_err(RebuildError::Refused)?;
    let served = served(record);
    let own = |end: &End<'_>| {
        let (local, peer) = end.ends;
        let flag = |is: bool| u8::from(is).to_string();
        let (is_left, serves) = (flag(left.contains(&end.ends)), flag(served.contains(&local.port())));
        let number = format!("{:032x}", u128::from_be_bytes(end.number));
        let (local, peer, member) = (local.to_string(), peer.to_string(), end.member.to_string());
        vec![number, local, peer, member, is_left, serves]
    };
    let mut lines = vec![vec![network.clone()]];
    lines.extend(ends.iter().map(own));
    let said = gang::meet(gang, Phase::Facts, &lines, until)?;
    let said = said.into_iter().enumerate().map(|(member, lines)| parse(member, &lines));
    let said = said.collect::<Result<Vec<_>, GangError>>()?;
    let own = said.get(gang.member() as usize).map(|(_, own)| own);
    let plan = |end: End<'a>| {
        let other = said.get(end.member as usize).filter(|_| end.member != gang.member());
        let (its_network, other) = match other {
            Some((network, all)) => (Some(network), all.get(&end.number)),
            None => (None, None),
        };
        let (local, peer) = end.ends;
        let mirrors = |other: &&Said| other.ends == (peer, local) && other.member == gang.member();
        let (Some(other), Some(own)) = (other.filter(mirrors), own.and_then(|own| own.get(&end.number)))
        else {
            return Err(RebuildError::Refused(format!(
                "{end}: the image of that member does not have its other end: they are not of one checkpoint"
            )));
        };
        let is_of_one_host = gang::is_of_one_host(&local) || gang::is_of_one_host(&peer);
        if is_of_one_host && its_network != Some(&network) {
            return Err(RebuildError::Refused(format!(
                "{end}: both members have to be restarted on one host, for the address means another place on each"
            )));
        }
        let listens = match (own.is_left, other.is_left, own.serves, other.serves) {
            (true, false, ..) => true,
            (false, true, ..) => false,
            (_, _, true, false) => true,
            (_, _, false, true) => false,
            _ => local < peer,
        };
        Ok(Plan { end, listens })
    };
    ends.into_iter().map(plan).collect()
}

/// Ends of which something is left on this host: no new one can connect as long as it is.
fn left_behind(ends: &[End<'_>]) -> Result<HashSet<Ends>, String> {
    let own: HashSet<Ends> = ends.iter().map(|end| end.ends).collect();
    let all = if own.is_empty() { Vec::new() } else { tcp_table::table("/proc/self/net")? };
    Ok(all.into_iter().map(|line| line.ends).filter(|ends| own.contains(ends)).collect())
}

/// Ports at which a job listens.
fn served(record: &ProcessRecord) -> HashSet<u16> {
    let port = |description: &Description| match &description.object {
        Object::Socket(socket) if matches!(socket.state, SocketState::Listening { .. }) => {
            canonical_address(socket).map(|address| address.port())
        }
        _ => None,
    };
    record.files.descriptions.iter().filter_map(port).collect()
}

/// The network of a member, and what it has said of each end.
fn parse(member: usize, lines: &Lines) -> Result<(String, HashMap<Number, Said>), GangError> {
    let wrong = || gang::not_understood(member);
    let Some(([network], lines)) = lines
        .split_first()
        .and_then(|(first, rest)| Some((<&[String; 1]>::try_from(first.as_slice()).ok()?, rest)))
    else {
        return Err(wrong());
    };
    let one = |words: &Vec<String>| {
        let [number, local, peer, member, is_left, serves] = words.as_slice() else { return None };
        let number = u128::from_str_radix(number, 16).ok()?.to_be_bytes();
        let ends = (local.parse().ok()?, peer.parse().ok()?);
        let flag = |word: &str| ["0", "1"].contains(&word).then_some(word == "1");
        let said =
            Said { ends, member: member.parse().ok()?, is_left: flag(is_left)?, serves: flag(serves)? };
        Some((number, said))
    };
    let mut all = HashMap::new();
    for words in lines {
        let (number, said) = one(words).ok_or_else(wrong)?;
        if all.insert(number, said).is_some() {
            return Err(wrong());
        }
    }
    Ok((network.clone(), all))
}
