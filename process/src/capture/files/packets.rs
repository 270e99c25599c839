//! Packet sockets (packet(7)): the device and the protocol that one is bound to, its options, and the groups of devices
//! that it has joined, of which the kernel tells by diag alone.
//!
//! Called by `sockets`, inside the stop or for a look at a running program. What it has not read is lost, as packets
//! may be on a network. Fails by: words for a refusal.

use super::networks::Net;
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Object, SocketOption};
use holdfast_sys::sock_diag::PacketSocket;
use holdfast_sys::socket;
use std::os::fd::{AsFd, OwnedFd};

const SOL_PACKET: i32 = 263;
/// include/uapi/linux/if_packet.h.
const ADD_MEMBERSHIP: i32 = 1;
const COPY_THRESH: i32 = 7;
/// Options that can be read: with auxiliary data, where a packet comes from, version of rings, room before a packet,
/// packets that cannot be sent are lost, headers of virtual machines, time stamps, offsets, past the queues, without
/// those that go out.
const OPTIONS: [i32; 10] = [8, 9, 10, 12, 14, 15, 17, 19, 20, 23];
/// struct sockaddr_ll, which the kernel tells as far as the device has an address.
const ADDRESS: usize = 20;
const UNTOLD: &str = "a packet socket, of which this kernel does not tell what it has joined (CONFIG_PACKET_DIAG): not \
                      supported";
const RING: &str = "a packet socket with a ring in memory (PACKET_RX_RING, PACKET_TX_RING), which no restart can map \
                    again: not supported; do without a ring";
const FANOUT: &str =
    "a packet socket that shares its packets with others (PACKET_FANOUT): not supported; do without";

/// Completes the record of one.
///
/// # Errors
/// Why it cannot be restored.
pub(super) fn complete(object: &mut Object, taken: &OwnedFd, inode: u64, net: &Net) -> Result<(), String> {
    let PacketSocket { has_ring, has_fanout, copy_thresh, joined } = net.packet(inode).ok_or(UNTOLD)?;
    if has_ring {
        return Err(RING.into());
    }
    if has_fanout {
        return Err(FANOUT.into());
    }
    let Object::Socket(made) = object else { return Ok(()) };
    let len = made.local.0.len().max(ADDRESS);
    made.local.0.resize(len, 0);
    // That is in the address.
    made.protocol = 0;
    let option = |name: i32, value: Vec<u8>| SocketOption { level: SOL_PACKET, name, value: Blob(value) };
    for name in OPTIONS {
        if let Ok(value) = socket::option(taken.as_fd(), SOL_PACKET, name) {
            made.options.push(option(name, value));
        }
    }
    made.options.push(option(COPY_THRESH, copy_thresh.to_ne_bytes().to_vec()));
    made.options.extend(joined.into_iter().map(|group| option(ADD_MEMBERSHIP, group)));
    Ok(())
}
