//! Sockets in the process record: where each was, with whom it was connected, and what waited in it.
//!
//! Part of [`crate::record`]. Invariants: plain data; addresses are those of the kernel, byte by byte.

use crate::bytes::{Blob, Name};
use crate::inode::Ownership;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Address families (include/linux/socket.h).
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const AF_PACKET: u32 = 17;

/// A socket with an address, or one that is not connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketRecord {
    /// AF_UNIX, AF_INET, AF_INET6, AF_NETLINK or AF_PACKET.
    pub domain: u32,
    /// SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, or SOCK_RAW.
    pub socket_type: u32,
    /// SO_PROTOCOL.
    pub protocol: u32,
    /// Bytes of its struct sockaddr; of a socket without address: its family alone, or zeros.
    pub local: Blob,
    /// What it is doing.
    pub state: SocketState,
    /// Options that can be set, as `getsockopt(2)` gives them.
    pub options: Vec<SocketOption>,
    /// Permission bits of the file of a unix socket with a path.
    pub mode: u32,
    /// Whose that file was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// That file was deleted, or another one has its name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// What that file is called now, in the same folder, if it has got another name since it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<Name>,
    /// What waits to be read in a unix datagram socket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Datagram>,
    /// What was shut down, where the other end of a connection does not show it: 1 reading, 2 writing.
    #[serde(default, skip_serializing_if = "is_open")]
    pub shut: u8,
    /// The program of a classic filter (SO_ATTACH_FILTER), as SO_GET_FILTER gives it: struct sock_filter, 8 bytes each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Blob>,
    /// Of a unix datagram socket whose name is gone: its number, by which others are connected to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Of a unix socket, SO_PEERCRED, if that is not who has started the job: of the other end of a connection, or of
    /// who listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_ids: Option<Ownership>,
    /// Who has made it, if that is not who has started the job: whose it is to rules of the network, and who may share
    /// its port (SO_REUSEPORT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Ownership>,
    /// The network namespace that it is of, if that is not the job's, by its place in `ProcessRecord::made_namespaces`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<u64>,
}

fn is_open(shut: &u8) -> bool {
    *shut == 0
}

/// A message, and where it came from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Datagram {
    /// Bytes of the struct sockaddr of the sender; none: it has no name.
    pub from: Blob,
    /// What it sent.
    pub data: Blob,
    /// Who is told to have sent it, where the socket is told (SO_PASSCRED).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Sender>,
    /// The file of the socket that has sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<SenderFile>,
    /// Descriptors that came with it (SCM_RIGHTS), by their descriptions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<u32>,
}

/// Descriptors that came with a message, or with the first byte of a piece of a stream (SCM_RIGHTS of unix(7)).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Passed {
    /// Which of the messages or pieces that wait.
    pub message: u32,
    /// Their descriptions: indices into `FileTable::descriptions`.
    pub files: Vec<u32>,
}

/// The file of a socket whose name a message has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SenderFile {
    /// Its permission bits.
    pub mode: u32,
    /// Whose it is.
    pub owner: Option<Ownership>,
}

/// Who has sent a message: struct ucred of unix(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Its id, as the processes know it; 0: it had none here.
    pub pid: i32,
    /// User id; 65534 of a message that says nothing of its sender.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// The path in a struct sockaddr_un, if it has one.
pub fn unix_path(bytes: &[u8]) -> Option<&Path> {
    let name = bytes.get(2..)?;
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    (len > 0).then(|| Path::new(OsStr::from_bytes(&name[..len])))
}

/// The address in a struct sockaddr_in or sockaddr_in6.
pub fn internet_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*rest.first_chunk()?);
    match u32::from(u16::from_ne_bytes(*family)) {
        AF_INET => Some((Ipv4Addr::from(*rest.get(2..)?.first_chunk::<4>()?), port).into()),
        // The flow label comes first.
        AF_INET6 => Some((Ipv6Addr::from(*rest.get(6..)?.first_chunk::<16>()?), port).into()),
        _ => None,
    }
}

/// What a socket is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SocketState {
    /// Nothing: not connected, maybe bound.
    Idle,
    /// It waits for connections.
    Listening {
        /// How many may wait.
        backlog: u32,
    },
    /// A datagram socket with a default destination.
    Directed {
        /// Bytes of its struct sockaddr.
        peer: Blob,
        /// A socket of the program whose name is gone: [`SocketRecord::number`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// A connection to a listener in the process that was not accepted, and through which nothing went.
    Pending {
        /// Bytes of the struct sockaddr of the listener, as this end sees it.
        peer: Blob,
    },
    /// A stream both of whose ends are in the process.
    Connected {
        /// Same number: same connection.
        connection: u64,
        /// Bytes of the struct sockaddr of the other end, as this one sees it.
        peer: Blob,
        /// What waits to be read at this end: pieces of a stream, or messages.
        data: Vec<Blob>,
        /// Who is told to have sent each of them, where this end is told (SO_PASSCRED).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        senders: Vec<Sender>,
        /// Descriptors that came with some of it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        passed: Vec<Passed>,
        /// This end has sent its last.
        shut: bool,
        /// No process has the other end any more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ended: bool,
        /// Of a stream: where bytes were sent out of band in what waits.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        marks: Vec<UrgentMark>,
    },
    /// A TCP connection whose other end another member of the gang has. All that was sent through it waits to be read.
    Member {
        /// 16 random bytes, which both images have.
        connection: Blob,
        /// The other member.
        member: u32,
        /// Bytes of the struct sockaddr of the other end, as this one sees it.
        peer: Blob,
        /// What waits to be read at this end.
        data: Vec<Blob>,
        /// This end has sent its last.
        shut: bool,
    },
    /// A connection that was lost: to a peer outside, by the choice of the user (`--outside close`).
    Lost,
    /// A TCP connection that both ends have shut for writing: after what waits to be read comes the end.
    Over {
        /// What waits to be read.
        data: Vec<Blob>,
    },
}

/// Where a byte was sent out of band in a stream (MSG_OOB of send(2)), by ascending place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UrgentMark {
    /// How many bytes of those that wait lie before it.
    pub at: u64,
    /// It is the next one of those that wait. Otherwise it was received, and the mark alone is left.
    pub waits: bool,
}

/// An option of a socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketOption {
    /// SOL_SOCKET, IPPROTO_TCP ...
    pub level: i32,
    /// SO_REUSEADDR ...
    pub name: i32,
    /// As the kernel gives and takes it.
    pub value: Blob,
}

impl Sender {
    /// Whether the message says nothing of its sender: it was sent when neither end wanted to be told.
    pub fn is_none(&self) -> bool {
        /// What the kernel shows for no id (/proc/sys/kernel/overflowuid).
        const OVERFLOW_ID: u32 = 65534;
        self.pid == 0 && self.user == OVERFLOW_ID
    }
}

impl SocketRecord {
    /// The path of a unix socket that has one.
    pub fn path(&self) -> Option<&Path> {
        unix_path(&self.local.0).filter(|_| self.domain == AF_UNIX)
    }
    /// The address as people write it.
    pub fn address(&self) -> String {
        if self.domain == AF_UNIX {
            return match (self.path(), self.local.0.get(3..)) {
                (Some(path), _) => path.display().to_string(),
                (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)),
                (None, None) => "unix socket without a name".into(),
            };
        }
        if self.domain == AF_NETLINK {
            return "netlink socket".into();
        }
        if self.domain == AF_PACKET {
            return "packet socket".into();
        }
        let address = internet_address(&self.local.0);
        address.map_or_else(|| "socket without an address".into(), |address| address.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(domain: u32, address: &[&[u8]]) -> SocketRecord {
        crate::testing::socket(domain, address.concat())
    }

    #[test]
    fn addresses_read_as_people_write_them() {
        let unix = |name: &[u8]| at(AF_UNIX, &[&[1, 0], name]);
        assert_eq!(unix(b"/run/x\0").address(), "/run/x");
        assert_eq!(unix(b"relative").path(), Some(Path::new("relative")));
        assert_eq!(unix(b"\0hidden").address(), "@hidden");
        assert_eq!((unix(b"").path(), unix(b"\0hidden").path()), (None, None));
        let port = 8080_u16.to_be_bytes();
        assert_eq!(at(AF_INET, &[&[2, 0], &port, &[127, 0, 0, 1], &[0; 8]]).address(), "127.0.0.1:8080");
        let six = at(AF_INET6, &[&[10, 0], &port, &[0; 4], &[0; 15], &[1], &[0; 4]]);
        assert_eq!((six.address().as_str(), six.path()), ("[::1]:8080", None));
        assert_eq!(at(AF_INET6, &[&[10]]).address(), "socket without an address");
    }
}
