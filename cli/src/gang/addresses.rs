//! The addresses of this host at which other hosts may reach it, and in which order those of another one are tried.
//!
//! Called by who listens, a leader and each member that others read from, and by who connects to them. Fails by: fewer
//! addresses.

use holdfast_sys::local_addresses;
use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The addresses that others are told of who listens there.
pub fn reached_at(at: SocketAddr) -> Vec<String> {
    let all = if at.ip().is_unspecified() { own() } else { vec![at.ip()] };
    let fits = |address: &IpAddr| at.is_ipv6() || address.is_ipv4();
    all.into_iter().filter(fits).map(|ip| SocketAddr::new(ip, at.port()).to_string()).collect()
}

/// Those that were said, in the order in which they are tried; `is_here`: by a process of this host. At the loopback
/// address of this host no other host answers.
pub fn in_order(said: &[String], is_here: bool) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = said.iter().filter_map(|one| one.parse().ok()).collect();
    all.sort_by_key(|address| address.ip().is_loopback() != is_here);
    all
}

/// All of them, those of the loopback device last.
fn own() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    of_tables(&read("/proc/net/fib_trie"), &read("/proc/net/if_inet6"))
}

/// Each once. Those of a link mean something only with its device.
fn of_tables(trie: &str, six: &str) -> Vec<IpAddr> {
    let is_of_link = |address: &IpAddr| matches!(address, IpAddr::V6(six) if six.is_unicast_link_local());
    let found = local_addresses::of_tables(trie, six).into_iter();
    let each: BTreeSet<IpAddr> = found.filter(|address| !is_of_link(address)).collect();
    let mut all: Vec<IpAddr> = each.into_iter().collect();
    all.sort_by_key(|address| address.is_loopback());
    if all.is_empty() {
        all.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_tried_first_on_its_host_alone() {
        let said = ["10.0.0.1:7", "x", "127.0.0.1:7"].map(str::to_owned);
        let texts = |is_here| in_order(&said, is_here).iter().map(SocketAddr::to_string).collect::<Vec<_>>();
        assert_eq!(texts(true), ["127.0.0.1:7", "10.0.0.1:7"]);
        assert_eq!(texts(false), ["10.0.0.1:7", "127.0.0.1:7"]);
    }

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let leaf = |address: &str, is: &str| format!("     |-- {address}\n        {is}\n");
        let trie = [
            leaf("0.0.0.0", "/0 universe UNICAST"),
            leaf("127.0.0.1", "/32 host LOCAL"),
            leaf("10.1.2.3", "/32 host LOCAL"),
            leaf("10.1.2.255", "/32 link BROADCAST"),
            leaf("10.1.2.3", "/32 host LOCAL"),
        ];
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n\
                   fe80000000000000021122fffe334455 02 40 20 80     eth0\n\
                   20010db8000000000000000000000007 02 40 00 80     eth0\nx\n";
        let expected: [IpAddr; 4] =
            ["10.1.2.3", "2001:db8::7", "127.0.0.1", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(of_tables(&format!("Main:\n  +-- 0.0.0.0/0 3 0 5\n{}", trie.concat()), six), expected);
        assert_eq!(of_tables("", ""), [IpAddr::V4(Ipv4Addr::LOCALHOST)]);
    }
}
