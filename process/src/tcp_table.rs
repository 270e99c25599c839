//! The TCP sockets of a network namespace, as /proc/net/tcp and tcp6 tell of them: of any process, and of none.
//!
//! Called by `capture` and [`crate::rebuild`]. Fails by: words that name the table that cannot be read.

use crate::connection::is_shut;
use crate::net_tables;
use std::net::{IpAddr, SocketAddr};

/// A line: its ends as this one sees them, its state, bytes that were not acknowledged, its inode.
pub struct Line {
    /// Its own address and that of the other end; one of IPv4 is the same in either family.
    pub ends: (SocketAddr, SocketAddr),
    /// See [`holdfast_sys::socket::tcp_state`].
    pub state: u8,
    /// Bytes that were sent and not acknowledged, or not sent.
    pub queued: u64,
    /// 0: no process has it, or not yet.
    pub inode: u64,
}

impl Line {
    /// No process has it, and it still sends. What a listener has not given out yet has no process either, but has not
    /// sent its last.
    pub fn is_closing(&self) -> bool {
        self.inode == 0 && is_shut(self.state)
    }
}

/// All TCP sockets of a network namespace, of which /proc tells in this folder.
///
/// # Errors
/// Names the table that cannot be read.
pub fn table(folder: &str) -> Result<Vec<Line>, String> {
    let mut all = Vec::new();
    for table in ["tcp", "tcp6"] {
        all.extend(net_tables::read(folder, table)?.lines().skip(1).filter_map(line));
    }
    Ok(all)
}

fn line(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    Some(Line {
        ends: (address(words.get(1)?)?, address(words.get(2)?)?),
        state: u8::from_str_radix(words.get(3)?, 16).ok()?,
        queued: u64::from_str_radix(words.get(4)?.split(':').next()?, 16).ok()?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// Words of hexadecimal digits in the byte order of the host (net/ipv4/tcp_ipv4.c, get_tcp4_sock).
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<[u8; 4]>> = (0..host.len() / 8)
        .map(|word| u32::from_str_radix(host.get(word * 8..word * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let ip = match words?.as_slice() {
        [four] => IpAddr::from(*four),
        [a, b, c, d] => IpAddr::from(<[u8; 16]>::try_from([*a, *b, *c, *d].concat()).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let text = "   3: 0100007F:1F90 0100007F:C001 08 00000007:00000005 00:00000000 00000000     0        0 77 1 0";
        let found = line(text).unwrap();
        let ends = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:49153".parse().unwrap());
        assert_eq!((found.ends, found.state, found.queued, found.inode), (ends, 8, 7, 77));
        assert!(line("  sl  local_address rem_address   st tx_queue").is_none());
        let six = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(address(six), Some(ends.0));
        assert_eq!(address("zz"), None);
    }
}
