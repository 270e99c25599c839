//! Options of sockets: which the record has. The others are in the list of what is lost (`image::known_losses`).
//!
//! Called by `sockets`, on duplicates of the program's descriptors, inside the stop. What must hold: each can be set
//! again as it was read, in the order in which they are here.

use holdfast_image::bytes::Blob;
use holdfast_image::record::SocketOption;
use holdfast_sys::{fd, socket};
use std::os::fd::{AsFd, OwnedFd};

/// Of every socket (asm-generic/socket.h): reuse of addresses and ports, keep-alive, broadcast, urgent data in line,
/// priority, linger, credentials, least bytes to read, time-outs, device; no routing, no check sums, security labels,
/// mark, dropped packets, wireless status, where a look begins, check sums of frames, errors first, busy polling, pace,
/// zero copies, rehashing, received marks and priorities, pidfds, bytes left, descriptors.
const SOCKET: [i32; 32] = [
    2, 15, 9, 6, 10, 12, 13, 16, 18, 20, 21, 25, 5, 11, 34, 36, 40, 41, 42, 43, 45, 46, 47, 60, 69, 70, 74,
    75, 76, 82, 83, 84,
];
/// Time stamps, old and new: one that is not set takes away another one that is (net/core/sock.c,
/// __sock_set_timestamps), so those alone count that are.
const TIME_STAMPS: [i32; 6] = [29, 35, 63, 64, 37, 65];
/// Of TCP (tcp(7)): no delay, cork, keep-alive times and count, syn count, linger, deferred accept, congestion control,
/// user time-out, fast open, low mark of unsent data, saved SYN, bytes left, delay.
const TCP: [i32; 16] = [1, 3, 4, 5, 6, 7, 8, 9, 13, 18, 23, 25, 27, 34, 36, 37];
/// Of UDP (udp(7)): no check sums of IPv6, segments.
const UDP: [i32; 4] = [101, 102, 103, 104];
/// Of UDP-Lite (udplite(7)): how much of a packet is covered, sent and received.
const UDP_LITE: [i32; 2] = [10, 11];
/// Of raw sockets (raw(7)): with headers, a filter of ICMP, where check sums are.
const RAW: [(i32, i32); 6] = [
    (libc::IPPROTO_IP, 3),
    (libc::SOL_RAW, 1),
    (libc::IPPROTO_IPV6, 36),
    (libc::IPPROTO_IPV6, 7),
    (libc::SOL_RAW, 7),
    (libc::IPPROTO_ICMPV6, 1),
];
/// Of IPv4 (ip(7)): type of service, options, time to live, packet information, path discovery, errors, what is
/// received with a packet, free binding, transparency, least time to live, fragments, check sums, multicast, interface,
/// ports.
const IP: [i32; 25] =
    [1, 4, 2, 6, 7, 8, 10, 11, 12, 13, 15, 18, 19, 20, 21, 22, 23, 25, 26, 32, 33, 34, 49, 50, 51];
/// Those that a socket of IPv6 has for its packets of IPv4.
const IP_OF_IPV6: [i32; 7] = [1, 2, 10, 15, 19, 21, 51];
/// Of IPv6 (ipv6(7)): this family only, hops, multicast, path discovery, errors, flow labels, what is received with a
/// packet, traffic class, fragments, choice of addresses, least hops, transparency, interface, free binding.
const IPV6: [i32; 27] = [
    26, 16, 17, 18, 19, 23, 25, 29, 31, 33, 49, 51, 53, 56, 58, 60, 62, 66, 67, 70, 72, 73, 74, 75, 76, 77,
    78,
];
/// SO_BUF_LOCK (Linux 5.14): which buffer sizes were set by the program; 1: for sending, 2: for receiving.
const SO_BUF_LOCK: i32 = 72;

/// All options that can be read; what cannot is not there for this kind.
pub(super) fn options(taken: &OwnedFd, domain: i32, protocol: i32) -> Vec<SocketOption> {
    let mut found = Vec::new();
    let mut ask = |level: i32, names: &[i32], also_unset: bool| {
        for &name in names {
            if let Ok(value) = socket::option(taken.as_fd(), level, name)
                && !value.is_empty()
                && (also_unset || value.iter().any(|&byte| byte != 0))
            {
                found.push(SocketOption { level, name, value: Blob(value) });
            }
        }
    };
    ask(libc::SOL_SOCKET, &SOCKET, true);
    ask(libc::SOL_SOCKET, &TIME_STAMPS, false);
    match domain {
        libc::AF_INET => ask(libc::IPPROTO_IP, &IP, true),
        libc::AF_INET6 => {
            ask(libc::IPPROTO_IPV6, &IPV6, true);
            ask(libc::IPPROTO_IP, &IP_OF_IPV6, true);
        }
        _ => {}
    }
    match protocol {
        libc::IPPROTO_TCP => ask(libc::IPPROTO_TCP, &TCP, true),
        libc::IPPROTO_UDP => ask(libc::IPPROTO_UDP, &UDP, true),
        libc::IPPROTO_UDPLITE => ask(libc::IPPROTO_UDPLITE, &UDP_LITE, true),
        _ => {}
    }
    if fd::socket_option(taken.as_fd(), libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_RAW) {
        RAW.iter().for_each(|&(level, name)| ask(level, &[name], true));
    }
    // What the program has not set the kernel adapts by itself.
    let locked = fd::socket_option(taken.as_fd(), SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if locked & bit != 0
            && let Ok(doubled) = fd::socket_option(taken.as_fd(), name)
        {
            let value = Blob((doubled / 2).to_ne_bytes().to_vec());
            found.push(SocketOption { level: libc::SOL_SOCKET, name, value });
        }
    }
    found
}
