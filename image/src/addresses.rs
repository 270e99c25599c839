//! The sockets of a job at other addresses, for a restart on another host.
//!
//! Called by the front and by the agent, each with its own copy of the record. Pure. An address of IPv4 is the same in
//! either family. Addresses of sockets in network namespaces that programs have made are never changed: those have none
//! but their own.

use crate::bytes::Blob;
use crate::record::{Description, Object, ProcessRecord, SocketRecord, SocketState, internet_address};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Sockets of the internet that a restart makes in the network of the job.
fn sockets(record: &mut ProcessRecord) -> impl Iterator<Item = &mut SocketRecord> {
    record.files.descriptions.iter_mut().filter_map(|description| match &mut description.object {
        Object::Socket(socket) if socket.network.is_none() && is_made_there(socket) => Some(&mut **socket),
        _ => None,
    })
}

fn is_made_there(socket: &SocketRecord) -> bool {
    !matches!(socket.state, SocketState::Lost | SocketState::Over { .. })
}

fn peer(state: &mut SocketState) -> Option<&mut Blob> {
    match state {
        SocketState::Directed { peer, .. }
        | SocketState::Pending { peer }
        | SocketState::Connected { peer, .. }
        | SocketState::Member { peer, .. } => Some(peer),
        _ => None,
    }
}

/// The address in a struct sockaddr, if it is one of a host.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    internet_address(bytes).map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_unspecified())
}

/// The addresses at which sockets of a job are.
pub fn used(record: &ProcessRecord) -> BTreeSet<IpAddr> {
    used_by(&record.files.descriptions)
}

/// The same of a table of files.
pub fn used_by(descriptions: &[Description]) -> BTreeSet<IpAddr> {
    let of = |object: &Object| match object {
        Object::Socket(socket) if socket.network.is_none() && is_made_there(socket) => {
            address(&socket.local.0)
        }
        _ => None,
    };
    descriptions.iter().filter_map(|description| of(&description.object)).collect()
}

/// What is to be known of a job with sockets at such addresses and a process without libholdfast, which would translate
/// others for it. `pid`, `name`: of the process.
pub fn of_one_without_library(pid: i32, name: &str, used: &BTreeSet<IpAddr>) -> Option<String> {
    used.iter().any(|ip| !ip.is_loopback()).then(|| {
        format!(
            "process {pid} ({name}) runs without libholdfast, and the program has sockets: it can be restarted only on \
             hosts with the same addresses"
        )
    })
}

/// Has all sockets of a job at other addresses, and connected to others. Returns which of them it found.
pub fn move_sockets(record: &mut ProcessRecord, step: &BTreeMap<IpAddr, IpAddr>) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let mut set = |bytes: &mut Blob| {
        let Some(old) = address(&bytes.0) else { return };
        if step.get(&old).is_some_and(|new| *new != old && replace(&mut bytes.0, *new)) {
            found.insert(old);
        }
    };
    for socket in sockets(record) {
        set(&mut socket.local);
        peer(&mut socket.state).into_iter().for_each(&mut set);
    }
    found
}

/// Puts another address into a struct sockaddr (see [`internet_address`]).
fn replace(bytes: &mut [u8], new: IpAddr) -> bool {
    let is_four = bytes.first_chunk().is_some_and(|family| u16::from_ne_bytes(*family) == 2);
    match (is_four, new) {
        (true, IpAddr::V4(four)) => bytes.get_mut(4..8).map(|place| place.copy_from_slice(&four.octets())),
        (true, IpAddr::V6(_)) => None,
        (false, new) => {
            let six = match new {
                IpAddr::V4(four) => four.to_ipv6_mapped(),
                IpAddr::V6(six) => six,
            };
            bytes.get_mut(8..24).map(|place| place.copy_from_slice(&six.octets()))
        }
    }
    .is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn name(text: &str) -> Vec<u8> {
        match ip(text) {
            IpAddr::V4(four) => [&2_u16.to_ne_bytes()[..], &[0, 80], &four.octets(), &[0; 8]].concat(),
            IpAddr::V6(six) => {
                [&10_u16.to_ne_bytes()[..], &[0, 80], &[0; 4], &six.octets(), &[0; 4]].concat()
            }
        }
    }

    fn record(sockets: Vec<SocketRecord>) -> ProcessRecord {
        let mut record = testing::empty_record();
        let description = |socket| Description {
            flags: 2,
            object: Object::Socket(Box::new(socket)),
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        };
        record.files.descriptions = sockets.into_iter().map(description).collect();
        record
    }

    #[test]
    fn sockets_move_with_their_peers_and_those_of_other_networks_stay() {
        let at = |local: &str| testing::socket(u32::from(name(local)[0]), name(local));
        let with = |local: &str, state| SocketRecord { state, ..at(local) };
        let directed = SocketState::Directed { peer: Blob(name("10.0.0.2")), number: None };
        let mut record = record(vec![
            with("10.0.0.1", SocketState::Listening { backlog: 1 }),
            with("::ffff:10.0.0.1", directed),
            with("10.0.0.3", SocketState::Lost),
            SocketRecord { network: Some(0), ..at("10.0.0.1") },
            at("0.0.0.0"),
            testing::socket(1, b"\x01\0/run/x".to_vec()),
            at("fd00::1"),
        ]);
        assert_eq!(used(&record), BTreeSet::from([ip("10.0.0.1"), ip("fd00::1")]));
        let step = [
            ("10.0.0.1", "10.0.0.7"),
            ("10.0.0.2", "10.0.0.8"),
            ("fd00::1", "fd00::9"),
            ("10.0.0.3", "10.0.0.4"),
        ];
        let step = step.iter().map(|(old, new)| (ip(old), ip(new))).collect();
        let found = move_sockets(&mut record, &step);
        assert_eq!(found, BTreeSet::from([ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")]));
        let now = record.files.descriptions.iter().map(|one| match &one.object {
            Object::Socket(socket) => socket.address(),
            _ => String::new(),
        });
        let now: Vec<_> = now.collect();
        let expected = [
            "10.0.0.7:80",
            "[::ffff:10.0.0.7]:80",
            "10.0.0.3:80",
            "10.0.0.1:80",
            "0.0.0.0:80",
            "/run/x",
            "[fd00::9]:80",
        ];
        assert_eq!(now, expected);
        let Object::Socket(socket) = &record.files.descriptions[1].object else { unreachable!() };
        assert!(matches!(&socket.state, SocketState::Directed { peer, .. } if peer.0 == name("10.0.0.8")));
    }
}
