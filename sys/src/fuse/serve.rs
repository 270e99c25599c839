//! Answering requests for a file: which thread answers what.
//!
//! Used by the page server. What must hold: one thread waits at the device whatever the others do, so that who opens or
//! closes the file, or is killed while it waits for a page, waits for no other page; what a process reads ahead is
//! answered by threads of its own; and no thread here ever asks for something of the file (see the head of
//! [`super`]). How it fails: as the device does; [`Content::gone`] is called then, too.

use super::protocol::{self, Head, Identity, Request};
use super::{Content, Device};
use crate::procfs;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So often those that wait for a page and have got a signal are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A request for pages.
#[derive(Clone, Copy)]
struct Read {
    head: Head,
    offset: u64,
    len: usize,
}

/// Reads that wait for a thread, and how many threads wait at the device.
#[derive(Default)]
struct Turns {
    reads: VecDeque<Read>,
    at_device: usize,
}

/// What is read ahead: requests, and the units ([`Content::unit`]) of those that are being answered.
#[derive(Default)]
struct Ahead {
    reads: VecDeque<Read>,
    busy: Vec<u64>,
}

/// Who waits for pages: its thread, and whether it has got a signal.
type UnderWay = HashMap<u64, (u32, bool)>;

#[derive(Default)]
struct State {
    turns: Turns,
    ahead: Ahead,
    under_way: UnderWay,
    /// Open files of all but the process that reads ahead.
    users: usize,
    ended: bool,
}

/// What the threads share.
pub struct Server<'a> {
    device: &'a Device,
    file: &'a Identity,
    content: &'a dyn Content,
    /// The thread that reads ahead.
    reader: u32,
    state: Mutex<State>,
    changed: Condvar,
}

impl<'a> Server<'a> {
    /// For a file; what the thread `reader` asks for is read ahead.
    pub fn new(device: &'a Device, file: &'a Identity, content: &'a dyn Content, reader: u32) -> Server<'a> {
        Server { device, file, content, reader, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests until no process has the file any more. At least two threads do this at once.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn serve(&self) -> io::Result<()> {
        let (mut buffer, mut pages) = (vec![0; protocol::REQUEST_LEN], Vec::new());
        loop {
            if let Some(read) = self.waiting_read() {
                self.answer(read, &mut pages, |offset, out| self.content.read(offset, out));
                continue;
            }
            match self.device.next(&mut buffer) {
                Ok(Some(len)) => {
                    let request = Request::parse(&buffer[..len]);
                    if let Some(read) = self.arrived(request) {
                        self.answer(read, &mut pages, |offset, out| self.content.read(offset, out));
                    }
                }
                ended => {
                    self.end();
                    return ended.map(|_| ());
                }
            }
        }
    }

    /// A read that waits for a thread. None: the caller is to wait at the device, and counts as doing so.
    fn waiting_read(&self) -> Option<Read> {
        let turns = &mut self.state().turns;
        if turns.at_device > 0
            && let Some(read) = turns.reads.pop_front()
        {
            return Some(read);
        }
        turns.at_device += 1;
        None
    }

    /// A thread has come back from the device with a request: the read that it is to answer.
    fn arrived(&self, request: Option<(Head, Request)>) -> Option<Read> {
        let mut state = self.state();
        state.turns.at_device -= 1;
        let (head, request) = request?;
        match request {
            Request::Read { offset, len } => {
                let read = Read { head, offset, len };
                state.under_way.insert(head.unique, (head.thread, false));
                if head.thread == self.reader {
                    state.ahead.reads.push_back(read);
                    self.changed.notify_all();
                } else if state.turns.at_device == 0 {
                    // The next thread that has answered one takes it: this one goes back.
                    state.turns.reads.push_back(read);
                } else {
                    return Some(read);
                }
                return None;
            }
            Request::Interrupt(unique) => match state.under_way.get_mut(&unique) {
                Some((_, interrupted)) => {
                    *interrupted = true;
                    self.changed.notify_all();
                }
                // Another thread has it in its hands still: once more, please (Documentation/filesystems/fuse, of
                // interrupts). Where it has been answered meanwhile, the kernel does not ask again.
                None => self.device.answer(head.unique, Err(libc::EAGAIN)),
            },
            Request::Open { ahead: false } => state.users += 1,
            Request::Release { ahead: false } => {
                state.users = state.users.saturating_sub(1);
                if state.users == 0 {
                    self.content.gone();
                }
            }
            _ => {}
        }
        drop(state);
        if let Some(answer) = self.file.answer(&request) {
            self.device.answer(head.unique, answer.as_deref().map_err(|errno| *errno));
        }
        None
    }

    fn answer(&self, read: Read, pages: &mut Vec<u8>, fill: impl Fn(u64, &mut [u8]) -> io::Result<()>) {
        pages.resize(read.len, 0);
        let filled = fill(read.offset, pages);
        self.state().under_way.remove(&read.head.unique);
        self.device.answer(read.head.unique, filled.map(|()| &pages[..]).map_err(|_| libc::EIO));
    }

    /// Answers what is read ahead, until [`Server::serve`] ends: in any number of threads, of which one at a time
    /// answers for a unit.
    pub fn serve_ahead(&self) {
        let mut pages = Vec::new();
        while let Some((read, unit)) = self.next_ahead() {
            self.answer(read, &mut pages, |offset, out| self.content.read_ahead(offset, out));
            self.state().ahead.busy.retain(|busy| *busy != unit);
            self.changed.notify_all();
        }
    }

    fn next_ahead(&self) -> Option<(Read, u64)> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let Ahead { reads, busy } = &mut state.ahead;
            let free = reads.iter().position(|read| !busy.contains(&self.content.unit(read.offset)));
            if let Some(read) = free.and_then(|at| reads.remove(at)) {
                let unit = self.content.unit(read.offset);
                busy.push(unit);
                return Some((read, unit));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers those that are killed while they wait for a page, until [`Server::serve`] ends. The kernel has a read of
    /// a single page wait whatever happens once the server has it (fs/fuse/dev.c, `request_wait_answer`): without an
    /// answer who asked could not be killed while a tier is slow. Others get their page: an error were a SIGBUS.
    pub fn answer_the_killed(&self) {
        let mut state = self.state();
        while !state.ended {
            let signalled = state.under_way.iter().filter(|(_, (_, interrupted))| *interrupted);
            let signalled: Vec<(u64, u32)> =
                signalled.map(|(unique, (thread, _))| (*unique, *thread)).collect();
            if signalled.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(state);
            let is_killed = |thread: u32| {
                let thread = i32::try_from(thread).unwrap_or(0);
                thread > 0 && procfs::is_dying(thread)
            };
            for (unique, _) in signalled.into_iter().filter(|(_, thread)| is_killed(*thread)) {
                self.state().under_way.remove(&unique);
                self.device.answer(unique, Err(libc::EINTR));
            }
            state = self.state();
            if !state.ended {
                state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
        self.content.gone();
    }
}
