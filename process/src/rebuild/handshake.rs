//! What the new processes tell the front until their exec: one message each over a socket pair that all of them have.
//!
//! The socket is close-on-exec: the front sees its end at the last exec.

use super::error::{Peer, RebuildError};
use holdfast_sys::scm::{self, Received};
use holdfast_sys::{attributes, clone, fd};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest text of one message, bytes.
const MAX_TEXT: usize = 16 * 1024;
/// How long descriptors under way in sockets are waited for, and how often it is tried again.
const UNDER_WAY_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// One message.
#[derive(Debug)]
pub enum Message {
    /// A process exists, the first one first.
    Spawned {
        /// Its id as the reader sees it.
        pid: i32,
        /// What it has opened of itself: the program may run and end before the reader comes to read this, and its id
        /// may be another's then. `None`: the reader can have no more descriptors.
        process: Option<OwnedFd>,
    },
    /// Something that the user should know.
    Note(String),
    /// This way to the old ids is not open here; another may be.
    Refused(String),
    /// It could not be done.
    Failed(String),
    /// Something on this host is in the way.
    Hindered(String),
    /// Another program has what only one can have.
    InUse(String),
    /// The agent went away, and has said why over its own link if it could.
    AgentLeft,
    /// All is ready; the next thing is the exec. Told by the first process only, when the agent has taken over all.
    Ready,
    /// The other end was closed.
    End,
}

/// A socket pair: the front's end, and the new process's.
///
/// # Errors
/// EMFILE.
pub fn channel() -> Result<(OwnedFd, OwnedFd), RebuildError> {
    let make = || -> std::io::Result<(OwnedFd, OwnedFd)> {
        let (front, process) = fd::socketpair(libc::SOCK_SEQPACKET)?;
        scm::expect(front.as_fd())?;
        Ok((front, process))
    };
    make().map_err(RebuildError::io("making a socket pair"))
}

/// Tells that the caller exists.
///
/// # Errors
/// EMFILE, ETOOMANYREFS: it cannot be told, and the caller must not go on.
pub fn announce(socket: &OwnedFd) -> Result<(), RebuildError> {
    let announce = || -> io::Result<()> {
        let own = clone::pidfd_open(attributes::own_pid())?;
        let begun = Instant::now();
        loop {
            match scm::send(socket.as_fd(), b"b", Some(own.as_fd())) {
                // So many of the user's are under way in sockets (unix(7)); they are few again when they have been
                // read.
                Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
                    if begun.elapsed() > UNDER_WAY_LIMIT {
                        return Err(error);
                    }
                    std::thread::sleep(PAUSE);
                }
                // A front that is gone is no reason to stop.
                _ => return Ok(()),
            }
        }
    };
    announce().map_err(RebuildError::io("announcing the new process"))
}

/// Sends one message other than [`Message::Spawned`]. A front that is gone is no reason to stop: there is no one
/// left to tell.
pub fn send(socket: &OwnedFd, message: &Message) {
    let (kind, text) = match message {
        Message::Note(text) => (b'n', text.as_str()),
        Message::Refused(text) => (b'u', text.as_str()),
        Message::Failed(text) => (b'e', text.as_str()),
        Message::Hindered(text) => (b'h', text.as_str()),
        Message::InUse(text) => (b'i', text.as_str()),
        Message::AgentLeft => (b'a', ""),
        Message::Ready => (b'r', ""),
        Message::Spawned { .. } | Message::End => return,
    };
    let mut bytes = vec![kind];
    bytes.extend(text.bytes().take(MAX_TEXT));
    let _ = scm::send(socket.as_fd(), &bytes, None);
}

/// What a new process says of its failure. Of an id that it could not have there may be another way to get it.
pub fn failure_message(error: &RebuildError) -> Message {
    match error {
        RebuildError::Ids(why) => Message::Refused(why.clone()),
        RebuildError::PeerGone(_) => Message::AgentLeft,
        RebuildError::InUse(why) => Message::InUse(why.clone()),
        RebuildError::File { .. } | RebuildError::Refused(_) => Message::Hindered(error.to_string()),
        RebuildError::In { error: inner, .. } => match failure_message(inner) {
            Message::Hindered(_) => Message::Hindered(error.to_string()),
            _ => Message::Failed(error.to_string()),
        },
        other => Message::Failed(other.to_string()),
    }
}

/// Waits for the next message.
pub fn receive(socket: &OwnedFd) -> Message {
    let mut buffer = vec![0_u8; MAX_TEXT + 1];
    let Ok(received) = scm::receive(socket.as_fd(), &mut buffer) else { return Message::End };
    let Received { len, pid, passed } = received;
    let text = || String::from_utf8_lossy(&buffer[1..len]).into_owned();
    match buffer[..len].first() {
        Some(b'b') => Message::Spawned { pid, process: passed },
        Some(b'n') => Message::Note(text()),
        Some(b'u') => Message::Refused(text()),
        Some(b'e') => Message::Failed(text()),
        Some(b'h') => Message::Hindered(text()),
        Some(b'i') => Message::InUse(text()),
        Some(b'a') => Message::AgentLeft,
        Some(b'r') => Message::Ready,
        _ => Message::End,
    }
}

/// What the new process tells the agent when it is ready to be taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyMessage {
    /// Its process id as it sees it itself.
    pub inner_pid: i32,
    /// The same where the job lives.
    pub job_pid: i32,
    /// The ids of its threads can be chosen.
    pub ids_chosen: bool,
    /// It holds capabilities in a user namespace of its own that the program must not have.
    pub drop_capabilities: bool,
}

/// First bytes of the message.
const MAGIC: &[u8; 8] = b"HF-READY";
/// The agent's answer: it traces the process, which may execute.
pub const GO: &[u8; 5] = b"HF-GO";

impl ReadyMessage {
    /// As sent.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.inner_pid.to_le_bytes());
        bytes.extend(self.job_pid.to_le_bytes());
        bytes.extend([u8::from(self.ids_chosen), u8::from(self.drop_capabilities)]);
        bytes
    }
    /// The inverse.
    pub fn from_bytes(bytes: &[u8]) -> Option<ReadyMessage> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let &[a, b, c, d, e, f, g, h, ids, drop] = rest else { return None };
        Some(ReadyMessage {
            inner_pid: i32::from_le_bytes([a, b, c, d]),
            job_pid: i32::from_le_bytes([e, f, g, h]),
            ids_chosen: ids != 0,
            drop_capabilities: drop != 0,
        })
    }
}

/// What the first new process asks the agent for: connections to other members of a gang.
pub const MEMBERS: &[u8; 7] = b"HF-GANG";
/// There are no more.
const NO_MORE: &[u8; 7] = b"HF-DONE";

/// Answers [`MEMBERS`].
///
/// # Errors
/// Of sending.
pub fn give_members(socket: &OwnedFd, made: &BTreeMap<[u8; 16], OwnedFd>) -> Result<(), RebuildError> {
    let give = |data: &[u8], passed: &[BorrowedFd<'_>]| {
        let begun = Instant::now();
        loop {
            match scm::send_many(socket.as_fd(), data, passed) {
                Err(error)
                    if [Some(libc::ETOOMANYREFS), Some(libc::EAGAIN)].contains(&error.raw_os_error())
                        && begun.elapsed() < UNDER_WAY_LIMIT =>
                {
                    std::thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    };
    let all = || {
        made.iter().try_for_each(|(number, end)| give(number, &[end.as_fd()]))?;
        give(NO_MORE, &[])
    };
    all().map_err(RebuildError::io("handing connections to other members to the new process"))
}

/// Asks for connections to other members of a gang, by their numbers. `raise`: has each where it may stay.
///
/// # Errors
/// The agent has gone; as `raise`.
pub fn ask_for_members(
    agent: &OwnedFd,
    raise: impl Fn(&OwnedFd) -> Result<OwnedFd, RebuildError>,
) -> Result<BTreeMap<[u8; 16], OwnedFd>, RebuildError> {
    let gone = |_: io::Error| RebuildError::PeerGone(Peer::Agent);
    scm::send(agent.as_fd(), MEMBERS, None).map_err(gone)?;
    let mut all = BTreeMap::new();
    loop {
        let mut buffer = [0; 32];
        let (len, passed) = scm::receive_many(agent.as_fd(), &mut buffer).map_err(gone)?;
        let (said, number) = (&buffer[..len], buffer.first_chunk().copied().unwrap_or_default());
        match passed.as_slice() {
            [one] if len == number.len() => _ = all.insert(number, raise(one)?),
            [] if said == NO_MORE => return Ok(all),
            _ => return Err(RebuildError::PeerGone(Peer::Agent)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use holdfast_sys::spawn;

    #[test]
    fn messages_arrive_in_order_and_end() {
        let (front, process) = channel().unwrap();
        announce(&process).unwrap();
        let sent = [
            Message::Note("a".into()),
            Message::Failed(String::new()),
            Message::Hindered("b".into()),
            Message::InUse("c".into()),
            Message::AgentLeft,
            Message::Ready,
        ];
        sent.iter().for_each(|message| send(&process, message));
        let Message::Spawned { pid, process: Some(opened) } = receive(&front) else { panic!("the first") };
        assert_eq!(pid, std::process::id().cast_signed());
        spawn::signal_pidfd(&opened, 0).unwrap();
        for message in &sent {
            assert_eq!(format!("{:?}", receive(&front)), format!("{message:?}"));
        }
        drop(process);
        assert!(matches!(receive(&front), Message::End));
    }

    /// One that has ended, and for which its parent has waited, is known all the same.
    #[test]
    fn a_new_process_is_known_after_its_end() {
        let (front, process) = channel().unwrap();
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let own = clone::pidfd_open(child.id().cast_signed()).unwrap();
        scm::send(process.as_fd(), b"b", Some(own.as_fd())).unwrap();
        drop(own);
        child.kill().unwrap();
        child.wait().unwrap();
        let Message::Spawned { process: Some(opened), .. } = receive(&front) else { panic!("the first") };
        assert_eq!(spawn::signal_pidfd(&opened, 0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_ready_message_survives_the_wire() {
        let ready = ReadyMessage { inner_pid: 7, job_pid: 77, ids_chosen: true, drop_capabilities: false };
        assert_eq!(ReadyMessage::from_bytes(&ready.to_bytes()), Some(ready));
        assert_eq!(ReadyMessage::from_bytes(b"HF-READY"), None);
        assert_eq!(ReadyMessage::from_bytes(b""), None);
    }

    #[test]
    fn connections_are_handed_over_by_their_numbers() {
        let (agent, process) = channel().unwrap();
        let (one, other) = fd::socketpair(libc::SOCK_STREAM).unwrap();
        let made = BTreeMap::from([([7; 16], one), ([9; 16], other)]);
        let got = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                ask_for_members(&process, |end| end.try_clone().map_err(RebuildError::io("duplicating")))
            });
            let mut buffer = [0; 64];
            let asked = scm::receive(agent.as_fd(), &mut buffer).unwrap();
            assert_eq!(buffer[..asked.len], *MEMBERS);
            give_members(&agent, &made).unwrap();
            asking.join().unwrap().unwrap()
        });
        assert_eq!(got.keys().copied().collect::<Vec<_>>(), [[7; 16], [9; 16]]);
        fd::send(got[&[7; 16]].as_fd(), b"one", 0).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(fd::receive(made[&[9; 16]].as_fd(), &mut buffer, 0).unwrap(), 3);
        drop(agent);
        let gone = ask_for_members(&process, |end| end.try_clone().map_err(RebuildError::io("duplicating")));
        assert!(matches!(gone, Err(RebuildError::PeerGone(Peer::Agent))));
    }
}
