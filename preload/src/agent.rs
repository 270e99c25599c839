//! The way to the agent: a connection for one message, checked, bounded in time, closed again.
//!
//! Runs in: the host program; constructor, fork handlers, signal handlers, C API. Invariants: no descriptor stays
//! open. While one is open its number is in [`SharedPage::OWN_FD`], so that an image taken at that moment knows
//! it as ours; while it is being opened or closed `u64::MAX` is there, and the agent waits a moment. The peer
//! must run as our user or as root, otherwise nothing is said to it. Fails by: `Err(Trouble)`; connecting and sending
//! end after [`PATIENCE_MS`] at the latest.

use crate::filters;
use crate::message::Text;
use crate::shared;
use crate::sys::{self, Sys};
use crate::{area, message};
use core::ffi::{CStr, c_int, c_long};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use holdfast_abi::registration::EVENT_SETSID;
use holdfast_abi::{KeeperAnswer, KeeperQuestion, SharedPage};
use holdfast_filters::Call;

/// How long connecting or sending may take, milliseconds.
const PATIENCE_MS: i64 = 250;
/// How long a keeper may take for an answer, milliseconds: the first one loads the driver, which takes seconds.
const KEEPER_MS: i64 = 60_000;
/// Our descriptors go up here, so that the program's next `open` gets the number that it expects. Not where there is
/// but one thread, which has none open when it goes on: the kernel would make a larger table of files for it, which a
/// short-lived process has no other use for.
const FD_FLOOR: c_int = 960;

/// What a connection may call. Where a seccomp filter of the program's forbids one of them there is none: the agent
/// does without (`process/src/job/adopt.rs`).
const CALLS: [Call; 13] = [
    call(libc::SYS_socket, libc::AF_UNIX as u64),
    call(libc::SYS_fcntl, 0),
    call(libc::SYS_setsockopt, 0),
    call(libc::SYS_getsockopt, 0),
    call(libc::SYS_geteuid, 0),
    call(libc::SYS_openat, libc::AT_FDCWD as u64),
    call(libc::SYS_connect, 0),
    call(libc::SYS_prctl, libc::PR_SET_PTRACER as u64),
    call(libc::SYS_userfaultfd, 0),
    call(libc::SYS_sendmsg, 0),
    call(libc::SYS_recvfrom, 0),
    call(libc::SYS_close, 0),
    call(libc::SYS_getpid, 0),
];

const fn call(number: c_long, first: u64) -> Call {
    Call { number: number as u32, args: [first, 0, 0, 0, 0, 0], first_is_open: false }
}

/// Why the agent could not be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// There is none, or it did not answer the door in time: what the kernel said, or 0.
    Absent(c_int),
    /// Another thread is asking.
    Busy,
}

/// The right to open descriptors of our own; given back when dropped.
struct Claim {
    published: bool,
}

impl Claim {
    fn take() -> Claim {
        Claim {
            published: shared::word(SharedPage::OWN_FD)
                .compare_exchange(0, SharedPage::OWN_FD_CHANGING, AcqRel, Acquire)
                .is_ok(),
        }
    }

    fn publish(&self, value: u64) {
        if self.published {
            shared::word(SharedPage::OWN_FD).store(value, Release);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.publish(0);
        // A call that does nothing: here a process stops that was let run to here only
        // (process/src/job/finish_registration.rs).
        sys::process_id();
    }
}

/// A connection to the agent. Closed when dropped, unless the program was restarted meanwhile: then the number is
/// closed already, or of something else.
pub struct Connection {
    fd: c_int,
    restarts: u64,
    claim: Claim,
}

impl Connection {
    /// Connects to the agent that the page of shared variables names. `alone`: this process has one thread.
    fn open(claim: Claim, alone: bool) -> Result<Connection, Trouble> {
        let mut room = [0; SharedPage::SOCKET_PATH_LEN];
        let path = shared::text(SharedPage::SOCKET_PATH, &mut room).ok_or(Trouble::Absent(0))?;
        let connection = Connection::open_at(path, claim, alone)?;
        let peer = sys::peer(connection.fd).map_err(Trouble::Absent)?;
        // An agent outside of our pid namespace has no pid here; 0 would take the permission away again.
        if peer.pid > 0 {
            sys::allow_tracer(peer.pid);
        }
        Ok(connection)
    }

    /// The same with a socket of this name beside the agent's.
    fn open_beside(name: &str, claim: Claim) -> Result<Connection, Trouble> {
        let mut room = [0; SharedPage::SOCKET_PATH_LEN];
        let path = shared::text(SharedPage::SOCKET_PATH, &mut room).ok_or(Trouble::Absent(0))?.to_bytes();
        let folder = path.iter().rposition(|byte| *byte == b'/').and_then(|cut| path.get(..=cut));
        let mut beside = Text::<{ SharedPage::SOCKET_PATH_LEN }>::new();
        beside.push(folder.ok_or(Trouble::Absent(0))?).push(name.as_bytes()).push(b"\0");
        let path = CStr::from_bytes_until_nul(beside.as_bytes()).map_err(|_| Trouble::Absent(0))?;
        Connection::open_at(path, claim, false)
    }

    fn open_at(path: &CStr, claim: Claim, alone: bool) -> Result<Connection, Trouble> {
        let restarts = shared::from_agent(SharedPage::RESTARTS);
        if !filters::allow(&CALLS) {
            return Err(Trouble::Absent(libc::EPERM));
        }
        filters::owned_by(sys::process_id());
        let fd = sys::socket().map_err(Trouble::Absent)?;
        let fd = if alone { fd } else { sys::move_up(fd, FD_FLOOR) };
        let connection = Connection { fd, restarts, claim };
        let peer = connection.reach(path).map_err(Trouble::Absent)?;
        let trusted = peer.uid == 0 || peer.uid == sys::effective_uid();
        if !trusted {
            return Err(Trouble::Absent(libc::EPERM));
        }
        Ok(connection)
    }

    fn reach(&self, path: &CStr) -> Sys<libc::ucred> {
        sys::bound_sending(self.fd, PATIENCE_MS)?;
        connect_to(self.fd, path)?;
        sys::peer(self.fd)
    }

    /// Sends a request and waits for its answer: as long as the agent lives and the program is not restarted.
    pub fn ask(&self, text: &[u8]) -> Result<message::Answer, Trouble> {
        self.claim.publish(self.fd as u64 + 1);
        sys::send(self.fd, text, None).map_err(Trouble::Absent)?;
        let mut reply = [0; 256];
        loop {
            if self.restarted() {
                return Err(Trouble::Absent(0));
            }
            match sys::receive(self.fd, &mut reply) {
                Err(libc::EINTR) => {}
                Err(error) => return Err(Trouble::Absent(error)),
                Ok(0) => return Err(Trouble::Absent(0)),
                Ok(len) => return Ok(message::answer(reply.get(..len).unwrap_or(&[]))),
            }
        }
    }

    fn restarted(&self) -> bool {
        shared::from_agent(SharedPage::RESTARTS) != self.restarts
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.restarted() {
            // The agent has taken the note out; what is there now was written after the restart.
            self.claim.published = false;
        } else {
            self.claim.publish(SharedPage::OWN_FD_CHANGING);
            sys::close(self.fd);
        }
    }
}

/// Connects `fd` to the socket at `path`, also where that is longer than a socket address holds (108 bytes).
fn connect_to(fd: c_int, path: &CStr) -> Sys<()> {
    let bytes = path.to_bytes();
    if let Some(address) = socket_address(bytes) {
        return sys::connect(fd, &address);
    }
    let cut = bytes.iter().rposition(|byte| *byte == b'/').ok_or(libc::ENAMETOOLONG)?;
    let mut folder = Text::<{ SharedPage::SOCKET_PATH_LEN }>::new();
    folder.push(bytes.get(..cut).unwrap_or(&[])).push(b"\0");
    let folder = CStr::from_bytes_until_nul(folder.as_bytes()).map_err(|_| libc::ENAMETOOLONG)?;
    let handle = sys::move_up(sys::open(folder, libc::O_PATH | libc::O_DIRECTORY)?, FD_FLOOR);
    let mut short = Text::<108>::new();
    short.push(b"/proc/self/fd/").push_number(handle as u64).push(bytes.get(cut..).unwrap_or(&[]));
    let result = match socket_address(short.as_bytes()) {
        Some(address) if short.fits() => sys::connect(fd, &address),
        _ => Err(libc::ENAMETOOLONG),
    };
    sys::close(handle);
    result
}

/// `path` as a socket address, if it fits with its NUL.
fn socket_address(path: &[u8]) -> Option<libc::sockaddr_un> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(path) {
        *place = *byte as core::ffi::c_char;
    }
    Some(address)
}

/// Tells the agent that this process is here after `event`, and where it may work; a userfaultfd goes with it.
pub fn register(event: &str) -> Result<(), Trouble> {
    // A constructor, or the child of a fork.
    let alone = event != EVENT_SETSID;
    let connection = Connection::open(Claim::take(), alone)?;
    let area = area::current().ok_or(Trouble::Absent(0))?;
    let text = message::register(event, &area);
    let tracker = sys::userfaultfd().ok();
    let sent = sys::send(connection.fd, text.as_bytes(), tracker);
    let Some(tracker) = tracker else { return sent.map_err(Trouble::Absent) };
    sys::close(tracker);
    // ETOOMANYREFS: the user has too many descriptors under way in sockets (unix(7)); the agent finds written pages
    // without it, too.
    sent.or_else(|_| sys::send(connection.fd, text.as_bytes(), None)).map_err(Trouble::Absent)
}

/// Whether an agent takes connections. For engine `slots`, when the agent gives no sign of life.
pub fn is_there() -> bool {
    Connection::open(Claim::take(), false).is_ok()
}

/// Asks the keeper of the job's device memory, if there is one; a descriptor may come with the answer. Only behind the
/// gate of the CUDA hooks: no image is taken meanwhile.
pub fn ask_keeper(question: &KeeperQuestion) -> Result<(KeeperAnswer, Option<c_int>), Trouble> {
    let connection = Connection::open_beside(KeeperQuestion::SOCKET, Claim::take())?;
    connection.claim.publish(connection.fd as u64 + 1);
    sys::bound_receiving(connection.fd, KEEPER_MS).map_err(Trouble::Absent)?;
    sys::send(connection.fd, &question.to_bytes(), None).map_err(Trouble::Absent)?;
    let mut reply = [0; KeeperAnswer::LEN];
    loop {
        match sys::receive_with(connection.fd, &mut reply) {
            Err(libc::EINTR) => {}
            Err(error) => return Err(Trouble::Absent(error)),
            Ok((len, passed)) => {
                let answer = reply.get(..len).and_then(KeeperAnswer::from_bytes);
                if answer.is_none() {
                    passed.into_iter().for_each(sys::close);
                }
                return answer.map(|answer| (answer, passed)).ok_or(Trouble::Absent(0));
            }
        }
    }
}

/// Asks for a checkpoint and waits for the answer, which comes after its commit (`wait`) or after its cut.
pub fn checkpoint(wait: bool) -> Result<message::Answer, Trouble> {
    let claim = Claim::take();
    if !claim.published {
        return Err(Trouble::Busy);
    }
    Connection::open(claim, false)?.ask(message::checkpoint(false, wait))
}

/// Asks for a checkpoint and does not wait for the answer. For signal handlers.
pub fn request_checkpoint() -> Result<(), Trouble> {
    let connection = Connection::open(Claim::take(), false)?;
    sys::send(connection.fd, message::checkpoint(false, false), None).map_err(Trouble::Absent)
}

/// Likewise for one that ends the program, by the handler of `signal`.
pub fn request_stop(signal: c_int) -> Result<(), Trouble> {
    let connection = Connection::open(Claim::take(), false)?;
    let text = message::stop(u64::from(signal.unsigned_abs()));
    sys::send(connection.fd, text.as_bytes(), None).map_err(Trouble::Absent)
}

/// In a child made by fork: closes the copy of a descriptor that another thread of the parent had open. Those of
/// [`crate::maps`] are not known; they end with the next exec.
pub fn abandon_inherited() {
    shared::clear(shared::word(SharedPage::WALKERS));
    let value = shared::word(SharedPage::OWN_FD).load(Relaxed);
    shared::clear(shared::word(SharedPage::OWN_FD));
    if value != 0 && value != SharedPage::OWN_FD_CHANGING {
        sys::close((value - 1) as c_int);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_107_bytes_and_no_more() {
        assert!(socket_address(&[b'x'; 107]).is_some());
        assert!(socket_address(&[b'x'; 108]).is_none());
    }

    #[test]
    fn a_second_claim_is_not_published_and_does_not_end_the_first() {
        let first = Claim::take();
        assert!(first.published);
        let second = Claim::take();
        assert!(!second.published);
        drop(second);
        assert_eq!(shared::word(SharedPage::OWN_FD).load(Relaxed), SharedPage::OWN_FD_CHANGING);
        drop(first);
        assert_eq!(shared::word(SharedPage::OWN_FD).load(Relaxed), 0);
    }
}
