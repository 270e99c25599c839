//! Multicast groups that a datagram socket has joined. The kernel lists the groups of interfaces, not of sockets, but
//! a socket says of each whether it is a member (MCAST_MSFILTER: net/ipv4/igmp.c, ip_mc_gsfget; net/ipv6/mcast.c,
//! ip6_mc_msfget).
//!
//! Inside the stop. What is found is a list of options, which a restart sets in this order. Interfaces are known by
//! number.

use super::found::Group;
use crate::net_tables;
use holdfast_image::bytes::Blob;
use holdfast_image::record::SocketOption;
use holdfast_sys::socket;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

/// include/uapi/linux/in.h.
const MCAST_JOIN_GROUP: i32 = 42;
const MCAST_MSFILTER: i32 = 48;
const MCAST_EXCLUDE: u32 = 0;
/// struct group_filter: interface, struct sockaddr_storage, mode, number of sources; then sources.
const ADDRESS: usize = 8;
const ADDRESS_LEN: usize = 128;
const MODE: usize = ADDRESS + ADDRESS_LEN;
const COUNT: usize = MODE + 4;
const HEAD: usize = COUNT + 4;
/// Sources that are kept of a filter.
const SOURCES: usize = 64;

/// The options that make a socket a member of its groups again. One of IPv6 may have joined groups of IPv4 too. `all`:
/// of its network namespace.
pub(super) fn joined(all: &[Group], taken: &OwnedFd, domain: i32) -> Vec<SocketOption> {
    let may = |group: &&Group| domain == libc::AF_INET6 || group.1.is_ipv4();
    all.iter().filter(may).flat_map(|group| membership(taken, *group)).collect()
}

/// All of a network namespace, of which /proc tells in this folder.
///
/// # Errors
/// Names the table that cannot be read.
pub(super) fn of_network(folder: &str) -> Result<Vec<Group>, String> {
    let mut all = of_ipv4(&net_tables::read(folder, "igmp")?);
    all.extend(of_ipv6(&net_tables::read(folder, "igmp6")?));
    Ok(all)
}

/// Whether it is a member, and of which sources it hears.
fn membership(taken: &OwnedFd, (interface, address): Group) -> Vec<SocketOption> {
    let level = if address.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let mut filter = vec![0_u8; HEAD + SOURCES * ADDRESS_LEN];
    filter[..4].copy_from_slice(&interface.to_ne_bytes());
    filter[ADDRESS..MODE].copy_from_slice(&socket_address(address));
    filter[COUNT..HEAD].copy_from_slice(&(SOURCES as u32).to_ne_bytes());
    if socket::option_of(taken.as_fd(), level, MCAST_MSFILTER, &mut filter).is_err() {
        return Vec::new();
    }
    let word = |at: usize| u32::from_ne_bytes([filter[at], filter[at + 1], filter[at + 2], filter[at + 3]]);
    let (mode, count) = (word(MODE), word(COUNT) as usize);
    let option = |name: i32, value: &[u8]| SocketOption { level, name, value: Blob(value.to_vec()) };
    let mut options = vec![option(MCAST_JOIN_GROUP, &filter[..MODE])];
    if mode != MCAST_EXCLUDE || count > 0 {
        options.push(option(MCAST_MSFILTER, &filter[..HEAD + count.min(SOURCES) * ADDRESS_LEN]));
    }
    options
}

/// struct sockaddr_storage.
fn socket_address(address: IpAddr) -> [u8; ADDRESS_LEN] {
    let mut bytes = [0; ADDRESS_LEN];
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    bytes[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
    match address {
        IpAddr::V4(address) => bytes[4..8].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes[8..24].copy_from_slice(&address.octets()),
    }
    bytes
}

/// `/proc/net/igmp`: a line for each interface, then its groups, each as it is in memory (net/ipv4/igmp.c,
/// igmp_mc_seq_show).
fn of_ipv4(text: &str) -> Vec<Group> {
    let (mut all, mut interface) = (Vec::new(), 0);
    for line in text.lines().skip(1) {
        let Some(word) = line.split_whitespace().next() else { continue };
        if !line.starts_with('\t') {
            interface = word.parse().unwrap_or(0);
        } else if let Ok(group) = u32::from_str_radix(word, 16) {
            all.push((interface, IpAddr::V4(Ipv4Addr::from(group.to_ne_bytes()))));
        }
    }
    all
}

/// `/proc/net/igmp6`: interface, its name, group.
fn of_ipv6(text: &str) -> Vec<Group> {
    let group = |line: &str| {
        let mut words = line.split_whitespace();
        let interface = words.next()?.parse().ok()?;
        let group = u128::from_str_radix(words.nth(1)?, 16).ok()?;
        Some((interface, IpAddr::V6(Ipv6Addr::from(group))))
    };
    text.lines().filter_map(group).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn lists_of_groups_are_understood() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     1      V3\n\
                    \t\t\t\t010000E0     1 0:00000000\t\t0\n4\teth0      :     2      V3\n\
                    \t\t\t\tFB0000E0     1 0:0\t\t0\n";
        let v4 = |a, d| IpAddr::V4(Ipv4Addr::new(a, 0, 0, d));
        assert_eq!(of_ipv4(text), [(1, v4(224, 1)), (4, v4(224, 251))]);
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\nnonsense\n";
        assert_eq!(of_ipv6(text), [(1, "ff02::1".parse::<IpAddr>().unwrap())]);
    }

    #[test]
    fn a_member_is_told_from_others_and_made_again() {
        let loopback = 1_u32;
        let member = UdpSocket::bind("0.0.0.0:0").unwrap();
        let (one, other) = (Ipv4Addr::new(239, 7, 7, 7), Ipv4Addr::new(239, 7, 7, 8));
        if member.join_multicast_v4(&one, &Ipv4Addr::LOCALHOST).is_err() {
            return; // no multicast here
        }
        let member = OwnedFd::from(member);
        let options = membership(&member, (loopback, one.into()));
        assert_eq!(options.len(), 1, "no filter of sources");
        assert!(membership(&member, (loopback, other.into())).is_empty());
        let of_all = |socket: &OwnedFd| -> Vec<SocketOption> {
            of_network("/proc/self/net")
                .unwrap()
                .into_iter()
                .flat_map(|group| membership(socket, group))
                .collect()
        };
        assert!(of_all(&member).contains(&options[0]));
        let again = OwnedFd::from(UdpSocket::bind("0.0.0.0:0").unwrap());
        assert!(of_all(&again).is_empty());
        let SocketOption { level, name, value } = &options[0];
        socket::set_option(again.as_fd(), *level, *name, &value.0).unwrap();
        assert_eq!(membership(&again, (loopback, one.into())), options);
    }
}
