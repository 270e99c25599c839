//! What waited at one end of a pair or a connection, and how it is sent again.
//!
//! Runs in the new process; called by [`super::objects`] when both ends are there. How it fails: an error of send(2).

use super::senders::{Senders, Way};
use super::{socket_buffers, urgent};
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Passed, Sender, UrgentMark};
use holdfast_sys::{fd, objects, scm};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Sends a piece from one end to the other, as of this sender, with these descriptors.
pub type PutBack = fn((&OwnedFd, &OwnedFd), &[u8], Option<scm::Sender>, &[BorrowedFd<'_>]) -> io::Result<()>;

/// Every description of the job; `None`: it is restored as closed, or there is none yet.
pub type Made<'a> = &'a [Option<OwnedFd>];

/// What is sent along with a message, by descriptions. In place of what is closed: `/dev/null`.
///
/// # Errors
/// EBADF: there is no such description. As open.
pub fn along(files: &[u32], made: Made<'_>) -> io::Result<Vec<OwnedFd>> {
    let one = |file: &u32| match made.get(*file as usize) {
        Some(Some(made)) => made.try_clone(),
        Some(None) => objects::open(c"/dev/null", libc::O_RDWR.cast_unsigned(), 0),
        None => Err(io::Error::from_raw_os_error(libc::EBADF)),
    };
    files.iter().map(one).collect()
}

/// What waits at one end of two.
pub struct Flight<'a> {
    /// Same number: same two ends. Both kinds are numbered by inodes of sockets.
    pub number: u64,
    pub ends: &'a [OwnedFd; 2],
    pub data: &'a [Blob],
    /// Who had sent it, where that was told.
    pub senders: &'a [Sender],
    pub passed: &'a [Passed],
    pub marks: &'a [UrgentMark],
    /// It has sent its last.
    pub shut: bool,
    /// How it is sent.
    pub put_back: PutBack,
}

impl Flight<'_> {
    /// Sends it from one end to the other. Notes, by a name, what is not as it was.
    ///
    /// # Errors
    /// Of sending.
    pub fn send_again(
        &self,
        (from, to): (&OwnedFd, &OwnedFd),
        made: Made<'_>,
        senders: &Senders,
        (name, notes): (&str, &mut Vec<String>),
    ) -> io::Result<()> {
        let way = Way { from: from.as_fd(), to: Some(to.as_fd()) };
        if !self.marks.is_empty() {
            // Of a stream whose senders are not told: one piece, or none.
            let data = self.data.first().map_or(&[][..], |piece| &piece.0);
            let send = |sender| {
                let put_back = |piece: &[u8]| (self.put_back)((from, to), piece, sender, &[]);
                urgent::send_again((from, to), data, self.marks, put_back)
            };
            return senders.send(way, None, send, (name, notes));
        }
        self.data.iter().enumerate().try_for_each(|(at, piece)| {
            let files = self.passed.iter().find(|passed| passed.message as usize == at);
            let along = along(files.map_or(&[], |passed| &passed.files), made)?;
            let along: Vec<BorrowedFd<'_>> = along.iter().map(AsFd::as_fd).collect();
            let send = |sender| (self.put_back)((from, to), &piece.0, sender, &along);
            senders.send(way, self.senders.get(at).copied(), send, (name, notes))
        })
    }
}

/// Puts back a message.
///
/// # Errors
/// EMSGSIZE: it does not fit.
pub fn send_back(
    (socket, _): (&OwnedFd, &OwnedFd),
    message: &[u8],
    sender: Option<scm::Sender>,
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut sent = scm::send_along(socket.as_fd(), message, sender, &[], passed);
    if let Err(error) = &sent
        && error.kind() == io::ErrorKind::WouldBlock
    {
        // It did fit before: the kernel counts its own overhead, which depends on how the data was sent.
        let now = fd::socket_option(socket.as_fd(), libc::SO_SNDBUF)?;
        socket_buffers::set_buffer(socket, libc::SO_SNDBUF, now.saturating_mul(4).cast_unsigned());
        sent = scm::send_along(socket.as_fd(), message, sender, &[], passed);
        socket_buffers::set_buffer(socket, libc::SO_SNDBUF, now.cast_unsigned());
    }
    if sent? == message.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EMSGSIZE)) }
}
