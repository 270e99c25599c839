//! One client: a rank of a set, from its first message to its end.
//!
//! A thread of the server for each. Invariant: when a client has gone, however it did, what it was filling is given up,
//! and what it was reading may be evicted.

use super::buffers::Buffer;
use super::state::{Held, MEMORY, State};
use super::{Opening, Server, fetching};
use crate::exit::Failure;
use holdfast_objects::buffer::State as BufferState;
use holdfast_objects::wire::{self, Answer, Request};
use holdfast_sys::{fd, unix_socket};
use holdfast_tiers::policy::{Event, Place, PolicyError, SegmentId, Transfer};
use parking_lot::MutexGuard;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// What a client does with a buffer.
enum Use {
    /// It fills it.
    Filling,
    /// It has it for its next put.
    Ahead,
    /// It reads it; one that no tier has is for it alone.
    Reading(Option<Buffer>),
}

/// A buffer that a client has.
struct Lent {
    segment: SegmentId,
    /// The copy that the policy was asked for.
    transfer: Transfer,
    is: Use,
}

/// Why a request was not done.
enum Refusal {
    Missing,
    Because(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Because(why)
    }
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Refusal {
        Refusal::Because(error.to_string())
    }
}

/// See the head of the file.
struct Session<'a> {
    server: &'a Server,
    socket: Arc<OwnedFd>,
    set: String,
    rank: u32,
    run: u64,
    /// By number of the buffer.
    lent: BTreeMap<u64, Lent>,
    /// Buffers that it has descriptors of.
    known: BTreeSet<u64>,
    /// What it has put last: number and length of the buffer.
    last: Option<(u64, u64)>,
}

/// Serves a client until it has gone.
pub fn serve(server: &Server, socket: OwnedFd) {
    let is_ours = |peer: unix_socket::Peer| peer.uid == unix_socket::effective_user();
    if !unix_socket::peer(socket.as_fd()).is_ok_and(is_ours) {
        return;
    }
    // A thread of its own waits for what it says.
    if fd::fcntl(socket.as_fd(), libc::F_SETFL, 0).is_err() {
        return;
    }
    let socket = Arc::new(socket);
    let Ok(Some((request, _))) = wire::receive::<Request>(socket.as_fd()) else { return };
    let (number, mut session) = match open(server, &socket, request) {
        Ok(opened) => opened,
        Err(why) => {
            let _ = wire::send(socket.as_fd(), &Answer::Failed { why }, None);
            return;
        }
    };
    let run = session.run;
    if session.send(&Answer::Opened { run }, None).is_ok() {
        while let Ok(Some((request, _))) = wire::receive::<Request>(socket.as_fd()) {
            if session.answer(request).is_err() {
                break;
            }
        }
    }
    session.end();
    server.close((&session.set, session.rank), number);
}

fn open<'a>(
    server: &'a Server,
    socket: &Arc<OwnedFd>,
    request: Request,
) -> Result<(u64, Session<'a>), String> {
    request.check()?;
    let Request::Open { set, rank, ranks, tiers, keep, run, highest, .. } = request else {
        return Err("a client begins by opening a set of objects".into());
    };
    let opening = Opening { set: &set, rank, ranks, tiers: &tiers, keep, run, highest };
    let opened = server.open(&opening, Arc::clone(socket)).map_err(|failure: Failure| failure.message)?;
    if let Ok(peer) = unix_socket::peer(socket.as_fd()) {
        server.begin_course(&set, rank, peer.pid);
    }
    let (lent, known) = (BTreeMap::new(), BTreeSet::new());
    let socket = Arc::clone(socket);
    Ok((opened.client, Session { server, socket, set, rank, run: opened.run, lent, known, last: None }))
}

impl Session<'_> {
    fn send(&self, answer: &Answer, passed: Option<&Buffer>) -> std::io::Result<()> {
        wire::send(self.socket.as_fd(), answer, passed.map(|buffer| buffer.file.as_fd()))
    }

    /// Does what is asked for.
    fn answer(&mut self, request: Request) -> std::io::Result<()> {
        let answer = match request {
            Request::Room { version, bytes } => return self.answer_buffer(|own| own.room(version, bytes)),
            Request::Restore { version } => return self.answer_buffer(|own| own.restore(version)),
            Request::Put { buffer, ahead } => {
                self.note(|own| own.put(buffer))?;
                return if ahead { self.answer_ahead(buffer) } else { Ok(()) };
            }
            Request::Abandon { buffer } | Request::Restored { buffer } => {
                return self.note(|own| own.give_back(buffer));
            }
            Request::Hint { version } => return self.note(|own| own.hint(version)),
            Request::Start => return self.note(|own| own.step(Event::StartPrefetch)),
            Request::Discard { version } => return self.note(|own| own.discard(version)),
            Request::Wait => self.wait(),
            Request::IsFinished => {
                let state = self.server.state.lock();
                let has_failed =
                    state.sets.get(&self.set).is_some_and(|set| set.failures.contains_key(&self.rank));
                Answer::Finished(has_failed || !state.is_pending(&self.set, self.rank))
            }
            Request::Newest { below } => Answer::Version(self.server.state.lock().newest(&self.set, below)),
            Request::Drop => self.drop_all(),
            Request::Open { .. } => Answer::Failed { why: "the set is open".into() },
        };
        self.send(&answer, None)
    }

    fn answer_buffer(
        &mut self,
        make: impl FnOnce(&mut Self) -> Result<(Buffer, Lent), Refusal>,
    ) -> std::io::Result<()> {
        match make(self) {
            Ok((buffer, lent)) => {
                let is_new = self.known.insert(buffer.number);
                let gone = self.gone();
                let answer = Answer::Buffer { buffer: buffer.number, bytes: buffer.bytes, is_new, gone };
                self.lent.insert(buffer.number, lent);
                self.send(&answer, Some(&buffer).filter(|_| is_new))
            }
            Err(Refusal::Missing) => self.send(&Answer::Missing, None),
            Err(Refusal::Because(why)) => self.send(&Answer::Failed { why }, None),
        }
    }

    /// A buffer for the next put, as long as this one, if that is to be had at once.
    fn answer_ahead(&mut self, put: u64) -> std::io::Result<()> {
        let mut state = self.server.state.lock();
        let bytes =
            std::mem::take(&mut self.last).filter(|(number, _)| *number == put).map(|(_, bytes)| bytes);
        let given = bytes.and_then(|bytes| self.ahead(&mut state, bytes));
        drop(state);
        self.server.changed.notify_all();
        match given {
            Some(given) => self.answer_buffer(|_| Ok(given)),
            None => self.send(&Answer::NoBuffer, None),
        }
    }

    fn ahead(&self, state: &mut State, bytes: u64) -> Option<(Buffer, Lent)> {
        if !state.may_give_ahead(bytes) {
            return None;
        }
        let segment = state.new_segment();
        state.held.insert(segment, Held::new(&self.set, self.rank, (u64::MAX, self.run), bytes));
        let weight = state.weight(bytes);
        let begun = state.step(Event::Write { segment, bytes: weight, discardable: false });
        let is_mine = |_: &State, transfer: &Transfer| {
            (transfer.segment, transfer.from) == (segment, Place::Application)
        };
        let Some(transfer) = state.take_due(is_mine) else {
            state.held.remove(&segment);
            if begun.is_ok() {
                state.abandoned.push(segment);
            }
            return None;
        };
        let made = match transfer.to {
            Place::Tier(MEMORY) => state.buffers.take(bytes, &self.known).ok(),
            _ => None,
        };
        let Some(buffer) = made.filter(|buffer| buffer.give_ahead().is_ok()) else {
            // A defect of the policy is met by the next event as well.
            let _ = state.withdraw(transfer);
            return None;
        };
        if let Some(held) = state.held.get_mut(&segment) {
            held.buffer = Some(buffer.clone());
        }
        state.ahead.insert(buffer.number, (buffer.clone(), transfer));
        Some((buffer, Lent { segment, transfer, is: Use::Ahead }))
    }

    /// Buffers that the client has mapped and that were removed since, of which it has not been told.
    fn gone(&mut self) -> Vec<u64> {
        let state = self.server.state.lock();
        let gone = self.known.iter().copied().filter(|number| !state.buffers.has(*number));
        let gone: Vec<u64> = gone.take(wire::MAX_GONE).collect();
        drop(state);
        self.known.retain(|number| !gone.contains(number));
        gone
    }

    /// What has no answer: what goes wrong is told by the next [`Request::Wait`].
    fn note(&mut self, act: impl FnOnce(&mut Self) -> Result<(), Refusal>) -> std::io::Result<()> {
        if let Err(Refusal::Because(why)) = act(self) {
            let mut state = self.server.state.lock();
            if let Some(set) = state.sets.get_mut(&self.set) {
                set.failures.entry(self.rank).or_default().push(why);
            }
        }
        self.server.changed.notify_all();
        Ok(())
    }

    fn step(&self, event: Event) -> Result<(), Refusal> {
        Ok(self.server.state.lock().step(event)?)
    }

    /// Waits until the policy has the client's own thread make a copy of this segment.
    fn turn(
        &self,
        state: &mut MutexGuard<'_, State>,
        segment: SegmentId,
        up: bool,
    ) -> Result<Transfer, Refusal> {
        loop {
            let is_mine = |_: &State, transfer: &Transfer| {
                let end = if up { transfer.to } else { transfer.from };
                transfer.segment == segment && end == Place::Application
            };
            if let Some(transfer) = state.take_due(is_mine) {
                return Ok(transfer);
            }
            if state.lost.remove(&segment) {
                let why = if up { "no tier has it intact" } else { "no tier takes it" };
                return Err(Refusal::Because(why.into()));
            }
            if self.has_gone() {
                state.abandoned.push(segment);
                return Err(Refusal::Because("the client has gone".into()));
            }
            // What is read ahead is read at a low priority: this thread does it.
            if up && let Some(copy) = state.copy_up_of(segment) {
                MutexGuard::unlocked(state, || self.server.help(&copy));
                continue;
            }
            if !up && !state.ahead.is_empty() {
                state.revoke_ahead()?;
                self.server.changed.notify_all();
                continue;
            }
            self.server.wait(state);
        }
    }

    fn has_gone(&self) -> bool {
        fd::poll_for(self.socket.as_fd(), 0).is_ok_and(|events| events != 0)
    }

    fn room(&mut self, version: u64, bytes: u64) -> Result<(Buffer, Lent), Refusal> {
        let mut state = self.server.state.lock();
        state.courses.asked(&self.set, self.rank);
        let promised =
            state.sets.get_mut(&self.set).and_then(|set| set.promised.remove(&(self.rank, version)));
        let segment = promised.unwrap_or_else(|| state.new_segment());
        state.held.insert(segment, Held::new(&self.set, self.rank, (version, self.run), bytes));
        let weight = state.weight(bytes);
        state.step(Event::Write { segment, bytes: weight, discardable: false })?;
        self.server.changed.notify_all();
        loop {
            let transfer = self.turn(&mut state, segment, false).inspect_err(|_| {
                state.held.remove(&segment);
            })?;
            match state.buffers.take(bytes, &self.known) {
                Ok(buffer) => {
                    if let Some(held) = state.held.get_mut(&segment) {
                        held.buffer = Some(buffer.clone());
                    }
                    return Ok((buffer, Lent { segment, transfer, is: Use::Filling }));
                }
                // Another tier takes it, or none.
                Err(error) => {
                    tracing::warn!("making a buffer of {bytes} bytes: {error}");
                    state.step(Event::Failed(transfer))?;
                }
            }
        }
    }

    fn put(&mut self, number: u64) -> Result<(), Refusal> {
        let lent = self.lent.remove(&number).filter(|lent| !matches!(lent.is, Use::Reading(_)));
        let Some(Lent { segment, transfer, is }) = lent else {
            return Err(Refusal::Because(format!("buffer {number} was not given out to be filled")));
        };
        let mut state = self.server.state.lock();
        let state = &mut *state;
        state.ahead.remove(&number);
        let Some(held) = state.held.get(&segment) else {
            return Err(Refusal::Because(format!("buffer {number} was taken back")));
        };
        let found = held.buffer.as_ref().map(Buffer::version);
        self.last = Some((number, held.bytes));
        if let (Use::Ahead, Some(Ok(Some((_, table, _))))) = (is, &found) {
            state.name(segment, table.version)?;
        }
        let Some(held) = state.held.get_mut(&segment) else { return Ok(()) };
        let whose = (self.set.as_str(), self.rank, held.version, self.run);
        let good = match found {
            Some(Ok(Some((head, table, layout))))
                if head.state == BufferState::Put
                    && (table.set.as_str(), table.rank, table.version, table.run) == whose =>
            {
                Ok((table, layout))
            }
            Some(Err(why)) => Err(why),
            _ => Err("the buffer has not the version that it was asked for".to_owned()),
        };
        let version = held.version;
        match good {
            Ok(content) => {
                (held.content, held.put_at) = (Some(Arc::new(content)), Instant::now());
                state.publish(segment);
                let bytes = state.held.get(&segment).map_or(0, |held| held.bytes);
                state.courses.put(&self.set, self.rank, segment, bytes);
                match transfer.to {
                    Place::Tier(MEMORY) => state.step(Event::Copied(transfer))?,
                    _ => state.due.push(transfer),
                }
                state.pass_over(&self.set);
                Ok(())
            }
            Err(why) => {
                state.withdraw(transfer)?;
                Err(Refusal::Because(format!("version {version}: {why}")))
            }
        }
    }

    fn restore(&mut self, version: u64) -> Result<(Buffer, Lent), Refusal> {
        let mut state = self.server.state.lock();
        let segment = state.restorable(&self.set, self.rank, version)?.ok_or(Refusal::Missing)?;
        state.step(Event::Restore(segment))?;
        self.server.changed.notify_all();
        loop {
            let transfer = self.turn(&mut state, segment, true)?;
            if transfer.from == Place::Tier(MEMORY)
                && let Some(buffer) = state.held.get(&segment).and_then(|held| held.buffer.clone())
            {
                return Ok((buffer, Lent { segment, transfer, is: Use::Reading(None) }));
            }
            let bytes = state.held.get(&segment).map(|held| held.bytes);
            let place = state.place_of(segment);
            let made =
                bytes.map(|bytes| state.buffers.take(bytes, &self.known).map_err(|error| error.to_string()));
            let read = MutexGuard::unlocked(&mut state, || {
                let (Some((source, epoch)), Some(made)) = (place, made) else {
                    return Err("the store has it no longer".to_owned());
                };
                let buffer = made?;
                fetching::read(&source, epoch, &buffer)?;
                Ok(buffer)
            });
            match read {
                Ok(buffer) => {
                    let is = Use::Reading(Some(buffer.clone()));
                    return Ok((buffer, Lent { segment, transfer, is }));
                }
                Err(why) => {
                    state.step(Event::Failed(transfer))?;
                    if state.lost.remove(&segment) {
                        return Err(Refusal::Because(format!("version {version} of {}: {why}", self.set)));
                    }
                }
            }
        }
    }

    /// The client needs a buffer no longer: it has what it wanted, or puts nothing.
    fn give_back(&mut self, number: u64) -> Result<(), Refusal> {
        let Some(Lent { segment, transfer, is }) = self.lent.remove(&number) else { return Ok(()) };
        let mut state = self.server.state.lock();
        match is {
            Use::Filling => state.withdraw(transfer)?,
            // One that was taken back is the client's no longer, unless it was faster.
            Use::Ahead => {
                state.ahead.remove(&number);
                if state.held.contains_key(&segment) {
                    state.withdraw(transfer)?;
                }
            }
            Use::Reading(own) => {
                if let Some(buffer) = own {
                    state.buffers.give_up(buffer);
                }
                state.step(Event::Copied(transfer))?;
                state.retire_more();
            }
        }
        Ok(())
    }

    fn hint(&mut self, version: u64) -> Result<(), Refusal> {
        let mut state = self.server.state.lock();
        // One that is not whole now may be when it is its turn.
        let known = state.restorable(&self.set, self.rank, version).ok().flatten();
        match known.or_else(|| state.promised(&self.set, (self.rank, version))) {
            Some(segment) => Ok(state.step(Event::Hint(segment))?),
            None => Ok(()),
        }
    }

    fn discard(&mut self, version: u64) -> Result<(), Refusal> {
        let mut state = self.server.state.lock();
        match state.restorable(&self.set, self.rank, version) {
            Ok(Some(segment)) => Ok(state.step(Event::Discard(segment))?),
            _ => Ok(()),
        }
    }

    fn wait(&self) -> Answer {
        let mut state = self.server.state.lock();
        state.courses.release(&self.set, self.rank);
        self.server.changed.notify_all();
        loop {
            let failures = state.sets.get_mut(&self.set).and_then(|set| set.failures.remove(&self.rank));
            if let Some(why) = failures {
                return Answer::Failed { why: why.join("; ") };
            }
            if !state.is_pending(&self.set, self.rank) || self.has_gone() {
                return Answer::Done;
            }
            self.server.wait(&mut state);
        }
    }

    fn drop_all(&self) -> Answer {
        let mut state = self.server.state.lock();
        loop {
            let own = |(segment, held): (&SegmentId, &Held)| {
                (held.set == self.set && held.rank == self.rank && held.content.is_some()).then_some(*segment)
            };
            let left: Vec<SegmentId> = state.held.iter().filter_map(own).collect();
            if (left.is_empty() && state.removals.is_empty()) || self.has_gone() {
                return Answer::Done;
            }
            left.into_iter().for_each(|segment| state.retire(segment));
            self.server.changed.notify_all();
            self.server.wait(&mut state);
        }
    }

    fn end(&mut self) {
        for number in self.lent.keys().copied().collect::<Vec<_>>() {
            // The connection has ended; the client may be there, and copying.
            self.server.state.lock().buffers.use_once(number);
            // A defect of the policy is met by the next event as well.
            let _ = self.give_back(number);
        }
        self.server.changed.notify_all();
    }
}
