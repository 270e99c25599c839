//! Descriptors for the new process, from the agent: files that the agent has open need no path in the process, which
//! may be in other namespaces.
//!
//! Called by [`super::address_space`]. The process makes a pair of sockets and the agent takes one end, or, where that
//! is forbidden, it connects to a socket of the agent's; the files come along with messages (SCM_RIGHTS, unix(7)). How
//! it fails: an error of a call; the process is ended then.

use super::remote_calls::{Need, SeedThread};
use crate::inject::copied_files::Meeting;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use holdfast_sys::{clone, procmem, scm};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Files in one message: the kernel takes 253 (include/net/scm.h, SCM_MAX_FD).
const MANY: usize = 128;
/// struct msghdr, struct iovec, and the head of a control message (x86-64).
const MESSAGE_LEN: usize = 56;
const HEAD_LEN: usize = 16;

/// Opens `files` in the process of `leader`; their numbers there.
///
/// # Errors
/// Names the call.
pub fn pass(leader: SeedThread, files: &[BorrowedFd<'_>]) -> Result<Vec<u64>, RebuildError> {
    const WHAT: &str = "handing files of the image to the new process";
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let io = || RebuildError::io(WHAT);
    let pid = leader.remote.tid;
    let (theirs, ours) = if clone::can_take_descriptors() {
        let (theirs, other) = pair(leader)?;
        let ours = clone::pidfd_open(pid).and_then(|pidfd| clone::pidfd_getfd(&pidfd, other)).map_err(io())?;
        close(leader, other)?;
        (theirs, ours)
    } else {
        connection(leader)?
    };
    let mut numbers = Vec::with_capacity(files.len());
    for some in files.chunks(MANY) {
        scm::send_many(ours.as_fd(), b"f", some).map_err(io())?;
        numbers.extend(receive(leader, theirs, some.len())?);
    }
    close(leader, theirs)?;
    Ok(numbers)
}

fn close(leader: SeedThread, fd: i32) -> Result<(), RebuildError> {
    let mut batch = leader.batch();
    batch.call(libc::SYS_close, &[fd.cast_unsigned().into()], Need::May)?;
    batch.finish().map(drop)
}

/// Has the process connect to a socket of the agent's: its number there, and the agent's end.
fn connection(leader: SeedThread) -> Result<(i32, OwnedFd), RebuildError> {
    let io = || RebuildError::io("connecting the new process to the agent");
    let meeting = Meeting::new().map_err(io())?;
    let mut batch = leader.batch();
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    batch.call(libc::SYS_socket, &[libc::AF_UNIX as u64, kind, 0], Need::Must("make a socket, for", 0))?;
    let (made, _) = batch.finish()?;
    let socket = made.first().and_then(|&number| i32::try_from(number).ok()).unwrap_or(-1);
    let mut batch = leader.batch();
    let address = meeting.address();
    batch.reserve(address.len())?;
    let args = [socket.cast_unsigned().into(), batch.data(&address), address.len() as u64];
    batch.row(Row::new(libc::SYS_connect, &args), Need::Must("connect to the agent, socket", args[0]));
    batch.finish()?;
    Ok((socket, meeting.accept(leader.remote.process).map_err(io())?))
}

/// Makes the sockets.
fn pair(leader: SeedThread) -> Result<(i32, i32), RebuildError> {
    let mut batch = leader.batch();
    batch.reserve(8)?;
    let at = batch.data(&[0; 8]);
    let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
    let row = Row::new(libc::SYS_socketpair, &[libc::AF_UNIX as u64, kind, 0, at]);
    batch.row(row, Need::Must("make sockets, for", 0));
    batch.finish()?;
    let bytes = read::<8>(leader, at)?;
    Ok((word(&bytes[..4]), word(&bytes[4..])))
}

/// Reads a message with `count` files.
fn receive(leader: SeedThread, socket: i32, count: usize) -> Result<Vec<u64>, RebuildError> {
    let room = (HEAD_LEN + 4 * count).next_multiple_of(8);
    let mut batch = leader.batch();
    batch.reserve(room + MESSAGE_LEN + 64)?;
    let (control, byte) = (batch.data(&vec![0; room]), batch.data(&[0; 8]));
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let piece = batch.data(&words(&[byte, 1]));
    let message = batch.data(&words(&[0, 0, piece, 1, control, room as u64, 0]));
    let args = [socket.cast_unsigned().into(), message, libc::MSG_CMSG_CLOEXEC as u64];
    batch.row(
        Row::new(libc::SYS_recvmsg, &args),
        Need::Must("take over files of the image, of", count as u64),
    );
    batch.finish()?;
    let mut bytes = vec![0; room];
    procmem::read(leader.remote.tid, control, &mut bytes)
        .map_err(RebuildError::io("reading numbers of files in the new process"))?;
    let (head, rest) = bytes.split_at(HEAD_LEN);
    let is_whole = word(&head[..4]) == i32::try_from(HEAD_LEN + 4 * count).unwrap_or(0)
        && (word(&head[8..12]), word(&head[12..])) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if !is_whole {
        // Some were too many for its limit (RLIMIT_NOFILE).
        return Err(RebuildError::Call {
            what: format!("open {count} files of the image in the new process"),
            source: std::io::Error::from_raw_os_error(libc::EMFILE),
        });
    }
    Ok(rest.chunks_exact(4).take(count).map(|number| word(number).cast_unsigned().into()).collect())
}

fn word(bytes: &[u8]) -> i32 {
    bytes.try_into().map_or(0, i32::from_le_bytes)
}

fn read<const LEN: usize>(leader: SeedThread, at: u64) -> Result<[u8; LEN], RebuildError> {
    let mut bytes = [0; LEN];
    procmem::read(leader.remote.tid, at, &mut bytes)
        .map_err(RebuildError::io("reading the numbers of sockets in the new process"))?;
    Ok(bytes)
}
