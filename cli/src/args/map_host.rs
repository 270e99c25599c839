//! `--map-host OLD=NEW`: an address that a host had, or a name that still leads to it, and what it is now.

use holdfast_process::rebuild::addresses::Pair;
use std::net::{IpAddr, ToSocketAddrs};

/// One option; of two names there may be a pair for each family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedHost(pub Vec<Pair>);

/// Reads `OLD=NEW`.
///
/// # Errors
/// A name leads nowhere; the two have no family in common.
pub fn map_host(text: &str) -> Result<MovedHost, String> {
    let (old, new) = text.split_once('=').ok_or("write OLD=NEW, two addresses or names of hosts")?;
    let (old, new) = (look_up(old)?, look_up(new)?);
    let first = |all: &[IpAddr], is_four| all.iter().find(|ip| ip.is_ipv4() == is_four).copied();
    let pair = |is_four| first(&old, is_four).zip(first(&new, is_four));
    let pairs: Vec<Pair> = [true, false].into_iter().filter_map(pair).collect();
    if pairs.is_empty() {
        return Err("one is an address of IPv4, the other one of IPv6".into());
    }
    if let Some((old, new)) = pairs.iter().find(|(old, new)| !may_be(old) || !may_be(new)) {
        return Err(format!("{old}={new}: neither may be an address of all hosts, or of many"));
    }
    Ok(MovedHost(pairs))
}

/// The same of addresses alone.
///
/// # Errors
/// They are none.
pub fn addresses(text: &str) -> Result<Pair, String> {
    let pair = text.split_once('=').and_then(|(old, new)| Some((old.parse().ok()?, new.parse().ok()?)));
    pair.ok_or_else(|| "write OLD=NEW, two addresses".into())
}

fn may_be(ip: &IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}

fn look_up(name: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(ip) = name.parse::<IpAddr>() {
        return Ok(vec![ip.to_canonical()]);
    }
    if name.is_empty() {
        return Err("write OLD=NEW, two addresses or names of hosts".into());
    }
    let found = (name, 0).to_socket_addrs().map_err(|error| format!("{name}: {error}"))?;
    Ok(found.map(|address| address.ip().to_canonical()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn two_addresses_of_one_family() {
        let pair = |old: &str, new: &str| (old.parse().unwrap(), new.parse().unwrap());
        assert_eq!(map_host("10.0.0.1=10.0.0.2").unwrap().0, [pair("10.0.0.1", "10.0.0.2")]);
        assert_eq!(map_host("::ffff:10.0.0.1=10.0.0.2").unwrap().0, [pair("10.0.0.1", "10.0.0.2")]);
        assert_eq!(map_host("fd00::1=fd00::2").unwrap().0, [pair("fd00::1", "fd00::2")]);
        assert_eq!(map_host("localhost=10.0.0.2").unwrap().0, [pair("127.0.0.1", "10.0.0.2")]);
        for wrong in
            ["", "10.0.0.1", "=10.0.0.1", "10.0.0.1=fd00::1", "0.0.0.0=10.0.0.1", "10.0.0.1=224.0.0.1"]
        {
            map_host(wrong).unwrap_err();
        }
        assert_eq!(addresses("10.0.0.1=10.0.0.2").unwrap(), pair("10.0.0.1", "10.0.0.2"));
        addresses("localhost=10.0.0.2").unwrap_err();
    }
}
