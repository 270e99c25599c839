//! Addresses of hosts in the process record: those that the host of a job had, and what the program calls some of them
//! since a restart elsewhere.
//!
//! Part of [`crate::record`]. Plain data.

use holdfast_abi::AddressTable;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What a restart on another host has to know of the one before.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostAddresses {
    /// Tells the host, and the network on it, from others.
    pub network: String,
    /// Its addresses, without those of its loopback device and of links.
    pub own: Vec<IpAddr>,
    /// Addresses that the program knows and that are others since a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedAddress>,
}

/// An address that the program knows, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct MovedAddress {
    /// The program's.
    pub known: IpAddr,
    /// The kernel's.
    pub present: IpAddr,
}

impl HostAddresses {
    /// Whether nothing is known.
    pub fn is_none(&self) -> bool {
        *self == HostAddresses::default()
    }

    /// # Errors
    /// More addresses than the program can be told, or of two families.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_right = |pair: &MovedAddress| pair.known.is_ipv4() == pair.present.is_ipv4();
        if self.moved.len() > AddressTable::MAX || !self.moved.iter().all(is_right) {
            return Err("its addresses that have changed make no sense".into());
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        let ip = |text: &str| text.parse().unwrap();
        let pair = |known: &str, present: &str| MovedAddress { known: ip(known), present: ip(present) };
        let of = |moved| HostAddresses { moved, ..HostAddresses::default() };
        assert!(of(vec![pair("10.0.0.1", "10.0.0.2")]).check().is_ok());
        assert!(of(vec![pair("10.0.0.1", "fd00::1")]).check().is_err());
        assert!(of(vec![pair("10.0.0.1", "10.0.0.2"); AddressTable::MAX + 1]).check().is_err());
    }
}
