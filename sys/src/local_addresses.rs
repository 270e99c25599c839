//! The addresses of a network namespace, as two tables of /proc/PID/net tell of them. No process may ask another
//! namespace than its own (getifaddrs(3)); the tables are those of any process.
//!
//! Called for what a restart could not give a namespace, for where others may reach this host, and for ports that the
//! kernel gives. How it fails: what is not understood is left out.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All of them, those of version 4 first, some perhaps twice. `trie`: the text of fib_trie; an address is behind "|--",
/// and the next line says that it is local (net/ipv4/fib_trie.c, fib_trie_seq_show). `six`: that of if_inet6; 32 digits
/// at the beginning of each line (net/ipv6/addrconf.c, if6_seq_show).
pub fn of_tables(trie: &str, six: &str) -> Vec<IpAddr> {
    let mut last = None;
    let four = trie.lines().filter_map(|line| {
        if let Some((_, address)) = line.split_once("|--") {
            last = address.trim().parse::<Ipv4Addr>().ok();
        }
        last.filter(|_| line.trim() == "/32 host LOCAL").map(IpAddr::V4)
    });
    let six = six
        .lines()
        .filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok())
        .map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)));
    four.chain(six).collect()
}

/// The first and the last port that the kernel gives to sockets by itself (ip(7), `ip_local_port_range`).
pub fn ports_of_connections() -> Option<(u32, u32)> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut range = range.split_whitespace().map(str::parse::<u32>);
    Some((range.next()?.ok()?, range.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let leaf = |address: &str, is: &str| format!("     |-- {address}\n        {is}\n");
        let trie = [
            leaf("0.0.0.0", "/0 universe UNICAST"),
            leaf("10.1.2.3", "/32 host LOCAL"),
            leaf("10.1.2.255", "/32 link BROADCAST"),
            leaf("127.0.0.0", "/8 host LOCAL"),
            leaf("127.0.0.1", "/32 host LOCAL"),
        ];
        let trie = format!("Main:\n  +-- 0.0.0.0/0 3 0 5\n{}", trie.concat());
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n\
                   fe80000000000000021122fffe334455 02 40 20 80     eth0\nx\n";
        let found: Vec<String> = of_tables(&trie, six).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["10.1.2.3", "127.0.0.1", "::1", "fe80::211:22ff:fe33:4455"]);
    }
}
