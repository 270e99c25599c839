//! The addresses of a host at which others may know it, as tables of /proc tell.
//!
//! Called when a record is made, and at a restart. Fails by: fewer addresses.

use holdfast_sys::local_addresses;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;

/// Longer tables are those of a router, whose own addresses are not all of interest: bytes.
const LONGEST: u64 = 8 << 20;

/// Those of the network of a process, by its name in /proc, in their order; without those of its loopback device, and
/// of links, which mean something only with a device.
pub fn of_process(process: &str) -> Vec<IpAddr> {
    let text = |table: &str| {
        let mut text = String::new();
        // Without IPv6 there is no second table.
        if let Ok(file) = File::open(format!("/proc/{process}/net/{table}")) {
            let _ = file.take(LONGEST).read_to_string(&mut text);
        }
        text
    };
    let found = local_addresses::of_tables(&text("fib_trie"), &text("if_inet6"));
    let each: BTreeSet<IpAddr> = found.into_iter().filter(is_known_elsewhere).collect();
    each.into_iter().collect()
}

/// Whether an address is neither of a loopback device nor of a link.
fn is_known_elsewhere(address: &IpAddr) -> bool {
    !address.is_loopback()
        && match address {
            IpAddr::V4(four) => !four.is_link_local(),
            IpAddr::V6(six) => !six.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_none_of_the_loopback_device() {
        assert!(of_process("self").iter().all(|address| !address.is_loopback()));
        assert!(of_process("no such process").is_empty());
    }
}
