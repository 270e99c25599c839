//! What the new processes tell the front until their exec: one message each over a socket pair that all of them have.
//!
//! The socket is close-on-exec: the front sees its end at the last exec.

use super::error::RebuildError;
use holdfast_sys::{credentials, fd};
use std::os::fd::{AsFd, OwnedFd};

/// Longest text of one message, bytes.
const MAX_TEXT: usize = 16 * 1024;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A process exists, the first one first; its id as the reader sees it.
    Born(i32),
    /// Something that the user should know.
    Note(String),
    /// This way to the old ids is not open here; another may be.
    Refused(String),
    /// It could not be done.
    Failed(String),
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
        credentials::expect(front.as_fd())?;
        Ok((front, process))
    };
    make().map_err(RebuildError::io("making a socket pair"))
}

/// Sends one message. A front that is gone is no reason to stop: nobody is left to tell.
pub fn tell(socket: &OwnedFd, message: &Message) {
    let (kind, text) = match message {
        Message::Born(_) => (b'b', ""),
        Message::Note(text) => (b'n', text.as_str()),
        Message::Refused(text) => (b'u', text.as_str()),
        Message::Failed(text) => (b'e', text.as_str()),
        Message::Ready | Message::End => (b'r', ""),
    };
    let mut bytes = vec![kind];
    bytes.extend(text.bytes().take(MAX_TEXT));
    let _ = credentials::send(socket.as_fd(), &bytes);
}

/// What a new process says of its failure. Of an id that it could not have there may be another way to get it.
pub fn failure(error: &RebuildError) -> Message {
    match error {
        RebuildError::Ids(why) => Message::Refused(why.clone()),
        other => Message::Failed(other.to_string()),
    }
}

/// Waits for the next message.
pub fn hear(socket: &OwnedFd) -> Message {
    let mut buffer = vec![0_u8; MAX_TEXT + 1];
    let Ok((len, pid)) = credentials::receive(socket.as_fd(), &mut buffer) else { return Message::End };
    let text = || String::from_utf8_lossy(&buffer[1..len]).into_owned();
    match buffer[..len].first() {
        Some(b'b') => Message::Born(pid),
        Some(b'n') => Message::Note(text()),
        Some(b'u') => Message::Refused(text()),
        Some(b'e') => Message::Failed(text()),
        Some(b'r') => Message::Ready,
        _ => Message::End,
    }
}

/// What the new process tells the agent when it is ready to be taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handover {
    /// Its process id as it sees it itself.
    pub inner_pid: i32,
    /// The ids of its threads can be chosen.
    pub ids_chosen: bool,
    /// It holds capabilities in a user namespace of its own that the program must not have.
    pub drop_capabilities: bool,
}

/// First bytes of the message.
const MAGIC: &[u8; 8] = b"HF-READY";
/// The agent's answer: it traces the process, which may execute.
pub const GO: &[u8; 5] = b"HF-GO";

impl Handover {
    /// As sent.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.inner_pid.to_le_bytes());
        bytes.extend([u8::from(self.ids_chosen), u8::from(self.drop_capabilities)]);
        bytes
    }
    /// The inverse.
    pub fn from_bytes(bytes: &[u8]) -> Option<Handover> {
        let rest = bytes.strip_prefix(MAGIC)?;
        let &[a, b, c, d, ids, drop] = rest else { return None };
        Some(Handover {
            inner_pid: i32::from_le_bytes([a, b, c, d]),
            ids_chosen: ids != 0,
            drop_capabilities: drop != 0,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_end() {
        let (front, process) = channel().unwrap();
        let sent =
            [Message::Born(0), Message::Note("a".into()), Message::Failed(String::new()), Message::Ready];
        sent.iter().for_each(|message| tell(&process, message));
        assert_eq!(hear(&front), Message::Born(std::process::id().cast_signed()));
        for message in &sent[1..] {
            assert_eq!(&hear(&front), message);
        }
        drop(process);
        assert_eq!(hear(&front), Message::End);
    }

    #[test]
    fn a_handover_survives_the_wire() {
        let handover = Handover { inner_pid: 77, ids_chosen: true, drop_capabilities: false };
        assert_eq!(Handover::from_bytes(&handover.to_bytes()), Some(handover));
        assert_eq!(Handover::from_bytes(b"HF-READY"), None);
        assert_eq!(Handover::from_bytes(b""), None);
    }
}
