//! What waits in a unix socket, message by message or piece by piece, with the descriptors that come with each.
//!
//! Called by `find_passed` for sockets in which descriptors wait, and by `sockets` and `datagrams` for those whose
//! owner has said where it looks next (SO_PEEK_OFF), inside the stop. Nothing is taken out, and where the owner looks
//! next is as it was. How it fails: what cannot be seen whole is not seen.

use super::in_flight::{
    DESCRIPTORS, Seen, ends_at, had_empty, is_at_mark, is_urgent, last_of, note_empty, own_peek_offset,
    unreadable, waiting,
};
use super::obstacle::Obstacle;
use holdfast_sys::socket::Received;
use holdfast_sys::{fd, socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Longest message that is kept.
const MESSAGE_LIMIT: usize = 256 * 1024;

/// What waits in a unix socket whose owner has said where it looks next (SO_PEEK_OFF).
///
/// # Errors
/// It cannot be seen.
pub(super) fn look(socket: &OwnedFd) -> Result<Vec<Seen>, Obstacle> {
    look_into(socket).map(|(seen, _)| seen).ok_or_else(|| unreadable(own_peek_offset()).into())
}

/// What waits, with the descriptors of each message or piece. `None`: it cannot be seen whole.
pub(super) fn look_into(socket: &OwnedFd) -> Option<(Vec<Seen>, Vec<Vec<OwnedFd>>)> {
    let kind = fd::socket_option(socket.as_fd(), libc::SO_TYPE).ok()?;
    let all = if kind == libc::SOCK_STREAM { look_into_stream(socket)? } else { look_into_messages(socket)? };
    let parts = all.into_iter().map(|(data, Received { address, sender, passed, .. })| {
        (Seen { data, sender, from: address, passed: Vec::new() }, passed)
    });
    Some(parts.unzip())
}

fn look_into_messages(socket: &OwnedFd) -> Option<Vec<(Vec<u8>, Received)>> {
    let (mut all, mut place, mut buffer) = (Vec::new(), 0, vec![0_u8; MESSAGE_LIMIT]);
    if had_empty(socket) {
        return None;
    }
    let last = last_of(socket);
    loop {
        if last.is_some_and(|last| place >= last) {
            return ends_at(socket, place).ok().map(|()| all);
        }
        match socket::look_at(socket.as_fd(), place, &mut buffer, libc::MSG_TRUNC) {
            Ok(seen) if seen.len > 0 && !seen.cut => {
                place += seen.len;
                all.push((buffer.get(..seen.len)?.to_vec(), seen));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(all),
            Ok(seen) if seen.len == 0 && !seen.cut => {
                note_empty(socket, DESCRIPTORS.into());
                return None;
            }
            Ok(_) | Err(_) => return None,
        }
    }
}

/// Piece by piece. A read ends behind the bytes that descriptors came with, and so does a look; before them it does not
/// (unix_stream_read_generic). They come with the first of these bytes.
fn look_into_stream(socket: &OwnedFd) -> Option<Vec<(Vec<u8>, Received)>> {
    let (mut all, mut place, total) = (Vec::<(Vec<u8>, Received)>::new(), 0, waiting(socket).ok()?);
    // Reads end there, too.
    if is_urgent(socket) || is_at_mark(socket) {
        return None;
    }
    while place < total {
        let mut data = vec![0_u8; total - place];
        let seen = socket::look_at(socket.as_fd(), place, &mut data, 0).ok()?;
        data.truncate(seen.len);
        // What ends a piece is a descriptor, another sender, or the mark of a byte out of band.
        let is_known = seen.sender.is_none_or(|sender| sender.pid != 0);
        let is_alike = |(_, last): &(Vec<u8>, Received)| {
            is_known && last.passed.is_empty() && last.sender == seen.sender
        };
        if seen.cut || data.is_empty() || all.last().is_some_and(is_alike) {
            return None;
        }
        let before = if seen.passed.is_empty() { 0 } else { first_with(socket, place, data.len())? };
        place += data.len();
        if before > 0 {
            let with = data.split_off(before);
            let (address, sender) = (Vec::new(), seen.sender);
            all.push((data, Received { len: before, address, passed: Vec::new(), cut: false, sender }));
            data = with;
        }
        all.push((data, seen));
    }
    Some(all)
}

/// How many of these bytes come before those with descriptors, which are the last of them, sent at once.
fn first_with(socket: &OwnedFd, place: usize, len: usize) -> Option<usize> {
    let mut all_but_one = vec![0_u8; len.checked_sub(1)?];
    socket::whole_pieces(socket.as_fd(), place, &mut all_but_one).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::scm;
    use std::fs;

    #[test]
    fn descriptors_are_seen_with_their_bytes_and_stay() {
        let (reader, writer) = fd::socketpair(libc::SOCK_STREAM).unwrap();
        let null = fs::File::open("/dev/null").unwrap();
        let send = |data: &[u8], count: usize| {
            let passed = vec![null.as_fd(); count];
            assert_eq!(scm::send_along(writer.as_fd(), data, None, &[], &passed).unwrap(), data.len());
        };
        for (data, count) in
            [(&b"x"[..], 1), (b"be", 0), (b"fore", 0), (b"with", 2), (b"y", 1), (b"behind", 0)]
        {
            send(data, count);
        }
        for offset in [-1, 3, -1] {
            fd::set_socket_option(reader.as_fd(), libc::SO_PEEK_OFF, offset).unwrap();
            let (seen, copies) = look_into(&reader).unwrap();
            let seen: Vec<&[u8]> = seen.iter().map(|seen| &seen.data[..]).collect();
            assert_eq!(seen, [&b"x"[..], b"before", b"with", b"y", b"behind"]);
            assert_eq!(copies.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 2, 1, 0]);
            assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PEEK_OFF).unwrap(), offset);
        }
        let mut room = [0; 20];
        assert_eq!(socket::receive_from(reader.as_fd(), &mut room, 0).unwrap().passed.len(), 1);
        assert_eq!(socket::receive_from(reader.as_fd(), &mut room, 0).unwrap().len, 10);
    }
}
