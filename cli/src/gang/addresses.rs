//! The addresses of this host at which other hosts may reach it.
//!
//! Called by a leader that was not told where to listen. Fails by: fewer addresses.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All of them, those of the loopback device last.
pub fn own() -> Vec<IpAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let four = of_trie(&read("/proc/net/fib_trie")).into_iter().map(IpAddr::V4);
    let six = of_table(&read("/proc/net/if_inet6")).into_iter().map(IpAddr::V6);
    let mut all: Vec<IpAddr> = four.chain(six).collect();
    all.sort_by_key(|address| address.is_loopback());
    if all.is_empty() {
        all.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    all
}

/// Local addresses of the routing table, as the kernel prints it (net/ipv4/fib_trie.c, fib_trie_seq_show): the address
/// of a leaf, and in the line below what it is.
fn of_trie(text: &str) -> BTreeSet<Ipv4Addr> {
    let (mut found, mut leaf): (BTreeSet<Ipv4Addr>, Option<Ipv4Addr>) = (BTreeSet::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf);
        }
    }
    found
}

/// Addresses of version 6 (net/ipv6/addrconf.c, if6_seq_show): 32 digits at the beginning of a line. Those of a link
/// mean something only with its device.
fn of_table(text: &str) -> BTreeSet<Ipv6Addr> {
    let digits = text.lines().filter_map(|line| line.split_whitespace().next());
    let address = |digits: &str| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from_bits);
    digits.filter_map(address).filter(|address| !address.is_unicast_link_local()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let leaf = |address: &str, is: &str| format!("     |-- {address}\n        {is}\n");
        let text = [
            leaf("0.0.0.0", "/0 universe UNICAST"),
            leaf("10.1.2.3", "/32 host LOCAL"),
            leaf("10.1.2.255", "/32 link BROADCAST"),
            leaf("127.0.0.1", "/32 host LOCAL"),
            leaf("10.1.2.3", "/32 host LOCAL"),
        ];
        let text = format!("Main:\n  +-- 0.0.0.0/0 3 0 5\n{}", text.concat());
        let found: Vec<Ipv4Addr> = of_trie(&text).into_iter().collect();
        assert_eq!(found, [Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::LOCALHOST]);
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe80000000000000021122fffe334455 02 40 20 80     eth0\n\
                    20010db8000000000000000000000007 02 40 00 80     eth0\nx\n";
        let found: Vec<Ipv6Addr> = of_table(text).into_iter().collect();
        assert_eq!(found, [Ipv6Addr::LOCALHOST, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7)]);
    }
}
