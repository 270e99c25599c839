//! The address of a socket, and how long it is waited for: what has ended may keep it for a minute (TIME_WAIT).
//!
//! Runs in the new process, and in the agent for connections to other members of a gang ([`super::members`]). How it
//! fails: an error names the
//! address and who may have it; nothing is changed.

use crate::rebuild::error::RebuildError;
use holdfast_image::record::SocketRecord;
use holdfast_sys::{local_addresses, socket};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// include/uapi/linux/in.h, since Linux 6.3.
const IP_LOCAL_PORT_RANGE: i32 = 51;
/// How long a port is waited for.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Longer than TIME_WAIT (include/net/tcp.h, TCP_TIMEWAIT_LEN).
pub const DEATH: Duration = Duration::from_secs(65);
pub const PAUSE: Duration = Duration::from_millis(20);

/// Why a socket cannot have its address, or listen there.
pub fn not_bound(record: &SocketRecord, error: io::Error) -> RebuildError {
    let name = record.address();
    match error.kind() {
        io::ErrorKind::AddrInUse => RebuildError::InUse(format!(
            "{name}: another program has this address: end that program, or wait for its end"
        )),
        _ if record.path().is_some() => {
            RebuildError::Refused(format!("{name}: the socket of the program cannot be made here: {error}"))
        }
        io::ErrorKind::AddrNotAvailable => RebuildError::Refused(format!(
            "{name}: this host does not have the address (ip address add gives it one)"
        )),
        io::ErrorKind::PermissionDenied => RebuildError::Refused(format!(
            "{name}: a socket cannot be bound to it ({error}): ports below \
             net.ipv4.ip_unprivileged_port_start are for the privileged"
        )),
        _ => RebuildError::io(format!("binding a socket to {name}"))(error),
    }
}

/// Binds a socket whose address may be in TIME_WAIT: when that is over. (Force, as TCP_REPAIR gives it to root,
/// does not help a listener: listen(2) looks again whether the address is in use.)
pub fn bind_patiently(made: &OwnedFd, address: &[u8]) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        let result = socket::bind(made.as_fd(), address);
        let in_use = result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EADDRINUSE));
        // An abstract name is free as soon as no message holds its socket any more.
        let port = address.get(2..4).filter(|_| !is_unix(address));
        if !in_use || begun.elapsed() > patience(port) {
            return result;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Has a socket get its port when it is connected. A port that a connection of the old program had may be in TIME_WAIT
/// for a minute, in which no socket can be bound to it without a listener there; it can be connected from again after a
/// second (net/ipv4/tcp_ipv4.c, tcp_twsk_unique; on the loopback device, by default). `false`: the kernel is older than
/// 6.3, or does not give out such ports by itself.
pub fn bind_when_connected(made: &OwnedFd, address: &[u8]) -> bool {
    /// See ip(7).
    const IP_BIND_ADDRESS_NO_PORT: i32 = 24;
    let bind = || {
        let port = u32::from(u16::from_be_bytes(address.get(2..4)?.try_into().ok()?));
        let (low, high) = local_addresses::ports_of_connections()?;
        if !(low..=high).contains(&port) {
            return None;
        }
        let set = |name: i32, value: u32| {
            socket::set_option(made.as_fd(), libc::IPPROTO_IP, name, &value.to_ne_bytes()).ok()
        };
        set(IP_BIND_ADDRESS_NO_PORT, 1)?;
        set(IP_LOCAL_PORT_RANGE, port << 16 | port)?;
        let mut address = address.to_vec();
        address.get_mut(2..4)?.fill(0);
        socket::bind(made.as_fd(), &address).ok()
    };
    bind().is_some()
}

/// Should the program ever connect it anew. Kernels that do not know the option have not been asked for it.
pub fn any_port(connected: &OwnedFd) {
    let _ = socket::set_option(connected.as_fd(), libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, &[0; 4]);
}

fn is_unix(address: &[u8]) -> bool {
    address.first_chunk().is_some_and(|family| i32::from(u16::from_ne_bytes(*family)) == libc::AF_UNIX)
}

/// How long a port is tried for: longer if no living process has it.
pub fn patience(port: Option<&[u8]>) -> Duration {
    if port.is_some_and(only_waits) { DEATH } else { PATIENCE }
}

/// Whether all that has a TCP port is in TIME_WAIT. `port`: as in an address.
fn only_waits(port: &[u8]) -> bool {
    const TIME_WAIT: &str = "06";
    let wanted = format!(":{:02X}{:02X}", port[0], port[1]);
    let lives = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&wanted)) && state != Some(TIME_WAIT)
    };
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/net/{table}")));
    tables.iter().all(|text| text.as_ref().is_ok_and(|text| !text.lines().any(lives)))
}

/// Whether the address is in use.
pub fn is_taken(error: &io::Error) -> bool {
    [Some(libc::EADDRINUSE), Some(libc::EADDRNOTAVAIL)].contains(&error.raw_os_error())
}
