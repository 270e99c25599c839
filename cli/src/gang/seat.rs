//! What a member knows of the others: connections, who was lost, and the round that is under way.
//!
//! Made by [`super::gather`]; one for each agent of a gang. Threads that read connections tell it what came; the loop
//! of the agent begins rounds; the checkpoint thread meets the others in them ([`super::round`]). Invariants: a phase
//! is over when all members have come to it, and none goes on before; a round that has failed stays so, for all.
//! Nothing is sent while the state is locked. Fails by: [`Failed`], with member, host and reason.

use super::message::{Failed, FailedKind, Message, Prepare};
use super::wire::Wire;
use crate::settings::GangPlace;
use holdfast_image::control::{Secret, Wishes};
use holdfast_process::Phase;
use holdfast_sys::poll::Bell;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

mod growth;

/// What the agent's loop is told.
#[derive(Debug)]
pub enum Heard {
    /// From the leader: take part in this round.
    Prepare(Prepare),
    /// From a member: it asks for a checkpoint.
    Ask {
        /// Which.
        member: u32,
        /// End the programs then.
        stop: bool,
        /// How.
        wishes: Wishes,
    },
    /// From the leader: there is no round.
    NoRound(Failed),
    /// The program of the leader has ended.
    Over,
    /// From a member that was added: its server listens.
    Serves {
        /// Which.
        member: u32,
        /// At this port of its host.
        port: u16,
    },
    /// A member was lost.
    Lost(Failed),
    /// A member has failed, and all are to be restarted.
    Fails(Failed),
}

type Listener = Box<dyn Fn(Heard) + Send + Sync>;
/// Hears of the protection of an image: from whom, of which, why there is none.
type GuardListener = Box<dyn Fn(u32, u64, Option<String>) + Send + Sync>;

/// Who listens, and what came before it did.
#[derive(Default)]
struct Ear {
    listener: Option<Listener>,
    before: Vec<Heard>,
}

/// One phase of a round.
#[derive(Default)]
struct Slot {
    said: BTreeMap<u32, Vec<u8>>,
    all: Option<Vec<Vec<u8>>>,
}

/// One round.
struct Table {
    number: u64,
    /// How many there were when it began.
    members: u32,
    phases: BTreeMap<u32, Slot>,
    failed: Option<Failed>,
    over: bool,
}

impl Table {
    fn new(number: u64, members: u32) -> Table {
        Table { number, members, phases: BTreeMap::new(), failed: None, over: false }
    }
}

#[derive(Default)]
struct State {
    /// How many there are: an open gang grows.
    members: u32,
    /// One that is being added, and what tells this start of it from others.
    awaited: Option<(u32, u64)>,
    /// Of the last [`Message::Complete`].
    told: u64,
    key: Option<Secret>,
    links: BTreeMap<u32, Arc<Wire>>,
    hosts: BTreeMap<u32, String>,
    lost: BTreeMap<u32, String>,
    complete: bool,
    round: Option<Table>,
    /// Why rounds before it have failed: who takes part in them may not have noticed yet.
    before: BTreeMap<u64, Failed>,
}

impl State {
    /// Whether this member may come.
    fn awaits(&self, member: u32, start: Option<u64>) -> bool {
        let is_awaited = match self.complete {
            true => self.awaited.is_some_and(|(one, by)| (one, Some(by)) == (member, start)),
            false => start.is_none(),
        };
        is_awaited && !self.links.contains_key(&member)
    }

    /// Whether this member is being added.
    fn is_added(&self, member: u32) -> bool {
        self.awaited.is_some_and(|(awaited, _)| awaited == member)
    }

    /// The way to the members of the round that is under way. One that was added since is none of them.
    fn links_of_round(&self) -> Vec<(u32, Arc<Wire>)> {
        let members = self.round.as_ref().map_or(0, |table| table.members);
        let links = self.links.iter().filter(|(member, _)| **member < members);
        links.map(|(member, wire)| (*member, Arc::clone(wire))).collect()
    }

    /// Another round is under way.
    fn next(&mut self, number: u64) {
        /// Rounds that are remembered.
        const BEFORE: usize = 8;
        if let Some(Table { number, failed: Some(failed), .. }) =
            self.round.replace(Table::new(number, self.members))
        {
            self.before.insert(number, failed);
        }
        while self.before.len() > BEFORE {
            self.before.pop_first();
        }
    }
}

/// A message on its way out, with its bytes.
type Parcel = (Message, Vec<u8>);

/// See the head of the file.
pub struct Seat {
    place: GangPlace,
    host: String,
    /// Rung when someone has come or was lost.
    bell: Bell,
    state: Mutex<State>,
    changed: Condvar,
    ear: Mutex<Ear>,
    /// Commands that are being answered.
    answering: AtomicUsize,
    guards: OnceLock<GuardListener>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "member {} of {} of gang {}", self.place.member, self.place.members, self.place.name)
    }
}

/// How long all others may take to hear that this one leaves, when they have not read what was said before.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Every gang begins with a round of that number: the restart, if it is one.
pub const FIRST_ROUND: u64 = 1;

impl Seat {
    /// Of a member that has met none of the others yet.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new(place: GangPlace, host: String) -> io::Result<Arc<Seat>> {
        let hosts = BTreeMap::from([(place.member, host.clone())]);
        let (members, round) = (place.members, Some(Table::new(FIRST_ROUND, place.members)));
        let state = State { members, hosts, round, ..State::default() };
        let (state, changed, ear) = (Mutex::new(state), Condvar::new(), Mutex::default());
        let (answering, guards) = (AtomicUsize::new(0), OnceLock::new());
        Ok(Arc::new(Seat { place, host, bell: Bell::new()?, state, changed, ear, answering, guards }))
    }

    /// Which member it is.
    pub fn place(&self) -> &GangPlace {
        &self.place
    }

    /// The host of this member.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The hosts of the members, in order.
    pub fn hosts(&self) -> Vec<String> {
        self.state.lock().hosts.values().cloned().collect()
    }

    /// Rung when something has changed.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// From now on this is told; what came before it is told at once.
    pub fn listen(&self, listener: Listener) {
        let mut ear = self.ear.lock();
        ear.before.drain(..).for_each(&listener);
        ear.listener = Some(listener);
    }

    pub(super) fn tell(&self, heard: Heard) {
        let mut ear = self.ear.lock();
        match &ear.listener {
            Some(listener) => listener(heard),
            None => ear.before.push(heard),
        }
    }

    /// Whether this member may come.
    pub(super) fn awaits(&self, member: u32) -> bool {
        self.state.lock().awaits(member, None)
    }

    /// A member has come. `false`: it is there already, or the gang was complete.
    pub(super) fn attach(&self, (member, start): (u32, Option<u64>), host: &str, wire: &Arc<Wire>) -> bool {
        let mut state = self.state.lock();
        if !state.awaits(member, start) {
            return false;
        }
        state.links.insert(member, Arc::clone(wire));
        state.hosts.insert(member, host.to_owned());
        let grows = state.complete;
        state.members = state.members.max(member.saturating_add(1));
        drop(state);
        self.bell.ring();
        if grows {
            // The new one is told last: what it says then comes after all others know of it.
            self.tell_who_is_there();
        }
        true
    }

    /// The leader tells all who is there.
    fn tell_who_is_there(&self) {
        let mut state = self.state.lock();
        state.told += 1;
        let (number, hosts, key) = (state.told, state.hosts.values().cloned().collect(), state.key.clone());
        let links = state.links.clone().into_iter().collect();
        drop(state);
        self.send_all(links, &(Message::Complete { number, hosts, key }, Vec::new()));
    }

    /// How many members take part in a round.
    pub(super) fn members_of(&self, round: u64) -> u32 {
        let state = self.state.lock();
        let table = state.round.as_ref().filter(|table| table.number == round);
        table.map_or(state.members, |table| table.members)
    }

    /// The members that have not come yet.
    pub(super) fn missing(&self) -> Vec<u32> {
        let state = self.state.lock();
        (1..state.members).filter(|member| !state.links.contains_key(member)).collect()
    }

    /// Whether all have come, as far as this member knows.
    pub(super) fn is_complete(&self) -> bool {
        self.state.lock().complete
    }

    /// Whether the leader is gone, or was never there.
    pub(super) fn has_no_leader(&self) -> bool {
        !self.state.lock().links.contains_key(&0)
    }

    /// All have come, of which the leader tells the others. `false`: one was lost again.
    pub(super) fn complete(&self) -> bool {
        let mut state = self.state.lock();
        if state.links.len() + 1 != state.members as usize {
            return false;
        }
        state.complete = true;
        drop(state);
        self.tell_who_is_there();
        true
    }

    /// What the connection to `from` has brought.
    pub(super) fn take(&self, from: u32, message: Message, body: Vec<u8>) {
        match message {
            Message::Complete { number, hosts, key } => {
                let mut state = self.state.lock();
                if number <= state.told {
                    return;
                }
                state.told = number;
                state.members = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
                state.key = key;
                state.hosts = (0..).zip(hosts).collect();
                state.complete = true;
                drop(state);
                self.bell.ring();
            }
            Message::Prepare(prepare) => {
                self.enter(prepare.round);
                self.tell(Heard::Prepare(prepare));
            }
            Message::Say { round, phase } => self.said(from, (round, phase), body),
            Message::Met { round, phase, lens } => self.met((round, phase), &lens, &body),
            Message::Failed { round, why } => self.fail(round, why, Some(from)),
            Message::Ask { stop, wishes } => self.tell(Heard::Ask { member: from, stop, wishes }),
            Message::Serves { port } => self.tell(Heard::Serves { member: from, port }),
            Message::NoRound { why } => self.tell(Heard::NoRound(why)),
            Message::Guarded { image, why } => {
                if let Some(listener) = self.guards.get() {
                    listener(from, image, why);
                }
            }
            Message::Fails => {
                let why = "its program has failed".to_owned();
                let failed = self.failed_of(&self.state.lock(), Some(from), why, FailedKind::Other);
                self.tell(Heard::Fails(failed));
            }
            Message::Bye => self.has_ended(from),
            other => tracing::warn!("member {from} of the gang has sent {other:?}"),
        }
    }

    /// A round of which the leader has told: it is the one that is under way.
    fn enter(&self, number: u64) {
        let mut state = self.state.lock();
        // It may have failed before it was told of.
        if state.round.as_ref().is_none_or(|table| table.number < number) {
            state.next(number);
        }
    }

    /// The leader begins a round.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn begin(&self, stop: bool, wishes: &Wishes) -> Result<u64, Failed> {
        let mut state = self.state.lock();
        if let Some((member, why)) = state.lost.first_key_value() {
            return Err(self.failed_of(&state, Some(*member), why.clone(), FailedKind::Other));
        }
        let round = state.round.as_ref().map_or(FIRST_ROUND, |table| table.number) + 1;
        state.next(round);
        let links: Vec<_> = state.links.clone().into_iter().collect();
        drop(state);
        let prepare = Prepare { round, stop, wishes: wishes.clone() };
        self.send_all(links, &(Message::Prepare(prepare), Vec::new()));
        Ok(round)
    }

    /// Asks the leader for a checkpoint.
    ///
    /// # Errors
    /// It was lost.
    pub fn ask(&self, stop: bool, wishes: Wishes) -> Result<(), Failed> {
        self.to_leader(&(Message::Ask { stop, wishes }, Vec::new()))
    }

    /// Tells the members that what they have asked for does not come.
    pub fn no_round(&self, why: &Failed) {
        let links = self.state.lock().links.clone().into_iter().collect();
        self.send_all(links, &(Message::NoRound { why: why.clone() }, Vec::new()));
    }

    /// This is told how the protection of images goes.
    pub fn hear_of_guards(&self, listener: GuardListener) {
        let _ = self.guards.set(listener);
    }

    /// How the protection of an image went: a member says it to the leader, the leader to all.
    pub fn say_guarded(&self, image: u64, why: Option<String>) {
        let links = self.state.lock().links.clone().into_iter().collect();
        self.send_all(links, &(Message::Guarded { image, why }, Vec::new()));
    }

    /// Whether all that it is connected with are still there.
    pub fn is_whole(&self) -> bool {
        let links = self.state.lock().links.len();
        links == if self.place.is_leader() { self.place.members as usize - 1 } else { 1 }
    }

    /// Who the leader was, and why it is not there.
    fn to_leader(&self, parcel: &Parcel) -> Result<(), Failed> {
        let state = self.state.lock();
        let Some(wire) = state.links.get(&0).cloned() else {
            let why = state.lost.get(&0).cloned().unwrap_or_else(|| "it was never there".into());
            return Err(self.failed_of(&state, Some(0), why, FailedKind::Other));
        };
        drop(state);
        self.send_all(vec![(0, wire)], parcel);
        Ok(())
    }

    /// A failure with the host of the member.
    fn failed_of(&self, state: &State, member: Option<u32>, reason: String, kind: FailedKind) -> Failed {
        let host = member.and_then(|member| state.hosts.get(&member).cloned()).unwrap_or_default();
        Failed { member, host, reason, kind }
    }

    /// A failure of this member.
    pub fn own_failure(&self, reason: String, kind: FailedKind) -> Failed {
        Failed { member: Some(self.place.member), host: self.host.clone(), reason, kind }
    }

    /// Sends; one that cannot be reached is lost.
    fn send_all(&self, links: Vec<(u32, Arc<Wire>)>, (message, body): &Parcel) {
        for (member, wire) in links {
            if let Err(error) = wire.send(message, body) {
                wire.close();
                self.lose(member, &format!("it was lost: {error}"));
            }
        }
    }

    /// The program of a member has ended in order; what it has said before counts.
    fn has_ended(&self, member: u32) {
        let mut state = self.state.lock();
        if !state.is_added(member) {
            state.lost.insert(member, "its program has ended".into());
        }
        drop(state);
        if member == 0 {
            self.tell(Heard::Over);
        }
    }

    /// Whether the leader was lost, and not only has said no.
    pub fn has_lost_leader(&self) -> bool {
        self.state.lock().lost.contains_key(&0)
    }

    /// A member was lost: the round that is under way is over.
    pub(super) fn lose(&self, member: u32, why: &str) {
        let mut state = self.state.lock();
        let was_there = state.links.remove(&member).is_some();
        if state.is_added(member) {
            // The one that is being added: what has started it notices.
            return;
        }
        // Before all have come, it may come again.
        let has_ended = state.lost.contains_key(&member);
        if state.complete && was_there && !has_ended {
            tracing::warn!("member {member} of the gang: {why}");
            state.lost.insert(member, why.to_owned());
        }
        let why = state.lost.get(&member).cloned().unwrap_or_else(|| why.to_owned());
        let failed = self.failed_of(&state, Some(member), why, FailedKind::Other);
        let under_way = state.round.as_ref().filter(|table| !table.over).map(|table| table.number);
        let is_complete = state.complete;
        drop(state);
        self.bell.ring();
        if !is_complete || !was_there {
            return;
        }
        if let Some(round) = under_way {
            self.fail(round, failed.clone(), Some(member));
        }
        if !has_ended {
            self.tell(Heard::Lost(failed));
        }
    }

    /// A round is over: of all that `from` does not know of it are told.
    pub(super) fn fail(&self, round: u64, why: Failed, from: Option<u32>) {
        let mut state = self.state.lock();
        if state.round.as_ref().is_none_or(|table| table.number < round) && !self.place.is_leader() {
            state.next(round);
        }
        let Some(table) = state.round.as_mut().filter(|table| table.number == round) else { return };
        if table.failed.is_some() || table.over {
            return;
        }
        tracing::info!("round {round} of the gang is over: {why:?}");
        table.failed = Some(why.clone());
        self.changed.notify_all();
        let mut links = state.links_of_round();
        links.retain(|(member, _)| Some(*member) != from);
        drop(state);
        self.send_all(links, &(Message::Failed { round, why }, Vec::new()));
    }

    /// The round has come to its end: what happens to members from now on is nothing to it.
    pub(super) fn end(&self, round: u64) {
        if let Some(table) = self.state.lock().round.as_mut().filter(|table| table.number == round) {
            table.over = true;
        }
    }

    /// Why a round has failed, if it has.
    pub(super) fn failure(&self, round: u64) -> Option<Failed> {
        let state = self.state.lock();
        match &state.round {
            Some(table) if table.number == round => table.failed.clone(),
            _ => state.before.get(&round).cloned().or_else(|| {
                Some(self.failed_of(&state, None, "another round has begun".into(), FailedKind::Other))
            }),
        }
    }

    /// A member has come to a phase.
    fn said(&self, from: u32, (round, phase): (u64, u32), body: Vec<u8>) {
        let mut state = self.state.lock();
        let Some(table) = state.round.as_mut().filter(|table| table.number == round) else { return };
        if table.failed.is_some() || table.over {
            return;
        }
        table.phases.entry(phase).or_default().said.insert(from, body);
        self.close_phase(state, phase);
    }

    /// Once all have come to a phase, they are told what each has said. Of the leader.
    fn close_phase(&self, mut state: MutexGuard<'_, State>, phase: u32) {
        let links = state.links_of_round();
        let Some(table) = state.round.as_mut() else { return };
        let slot = table.phases.entry(phase).or_default();
        if slot.said.len() != table.members as usize || slot.all.is_some() {
            return;
        }
        let all: Vec<Vec<u8>> = std::mem::take(&mut slot.said).into_values().collect();
        let lens = all.iter().map(|one| one.len() as u64).collect();
        let parcel = (Message::Met { round: table.number, phase, lens }, all.concat());
        slot.all = Some(all);
        self.changed.notify_all();
        drop(state);
        self.send_all(links, &parcel);
    }

    /// From the leader: all have come to a phase.
    fn met(&self, (round, phase): (u64, u32), lens: &[u64], mut body: &[u8]) {
        let mut all = Vec::new();
        for len in lens {
            let split = usize::try_from(*len).ok().and_then(|len| body.split_at_checked(len));
            let Some((one, rest)) = split else { break };
            all.push(one.to_vec());
            body = rest;
        }
        let members = self.members_of(round) as usize;
        if all.len() != members || all.len() != lens.len() || !body.is_empty() {
            let why = self.own_failure("what the leader has sent makes no sense".into(), FailedKind::Other);
            return self.fail(round, why, None);
        }
        let mut state = self.state.lock();
        if let Some(table) = state.round.as_mut().filter(|table| table.number == round) {
            table.phases.entry(phase).or_default().all = Some(all);
            self.changed.notify_all();
        }
    }

    /// Says `own` in a phase of a round, and waits for the others.
    ///
    /// # Errors
    /// The round is over.
    pub(super) fn meet(
        &self,
        (round, phase, name): (u64, u32, &str),
        own: &[u8],
        within: Duration,
    ) -> Result<Vec<Vec<u8>>, Failed> {
        let end = Instant::now() + within;
        if self.place.is_leader() {
            self.said(0, (round, phase), own.to_vec());
        } else if let Err(why) = self.to_leader(&(Message::Say { round, phase }, own.to_vec())) {
            self.fail(round, why, None);
        }
        loop {
            if let Some(failed) = self.failure(round) {
                return Err(failed);
            }
            let mut state = self.state.lock();
            let slot = |state: &mut State| {
                let table = state.round.as_mut().filter(|table| table.number == round)?;
                if table.failed.is_some() { None } else { table.phases.get_mut(&phase)?.all.take() }
            };
            if let Some(all) = slot(&mut state) {
                return Ok(all);
            }
            let may_change = state.round.as_ref().is_some_and(|t| t.number == round && t.failed.is_none());
            if may_change && self.changed.wait_until(&mut state, end).timed_out() {
                let why = self.late(&state, (round, phase, name));
                drop(state);
                self.fail(round, why, None);
            }
        }
    }

    /// Who has not come. In a stop, which is short, a busy host may be late: all try again.
    fn late(&self, state: &State, (round, phase, name): (u64, u32, &str)) -> Failed {
        let table = state.round.as_ref().filter(|table| table.number == round);
        let said = table.and_then(|table| table.phases.get(&phase)).map(|slot| &slot.said);
        let late = match self.place.is_leader() {
            true => (0..table.map_or(0, |table| table.members))
                .find(|one| said.is_none_or(|said| !said.contains_key(one))),
            false => Some(0),
        };
        let in_stop =
            [Phase::Stopped, Phase::Drained, Phase::Captured].iter().any(|one| *one as u32 == phase);
        let kind = if in_stop { FailedKind::Again } else { FailedKind::Other };
        self.failed_of(state, late, format!("it was not {name} in time"), kind)
    }

    /// Does what answers a command: this agent does not leave before.
    pub(super) fn answering<T>(&self, answer: impl FnOnce() -> T) -> T {
        self.answering.fetch_add(1, Ordering::AcqRel);
        let answered = answer();
        self.answering.fetch_sub(1, Ordering::AcqRel);
        answered
    }

    /// Its program has failed: all others are told, by the leader too, whose own is ended then.
    pub fn say_fails(&self) {
        let links = self.state.lock().links.clone().into_iter().collect();
        self.send_all(links, &(Message::Fails, Vec::new()));
    }

    /// This member leaves in order: its program has ended.
    pub fn leave(&self) {
        let begun = Instant::now();
        while self.answering.load(Ordering::Acquire) > 0 && begun.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(1));
        }
        let links: Vec<_> = self.state.lock().links.clone().into_iter().collect();
        for (_, wire) in &links {
            let _ = wire.send(&Message::Bye, &[]);
        }
        let end = Instant::now() + LAST_WORDS;
        for (_, wire) in &links {
            wire.finish(end.saturating_duration_since(Instant::now()));
        }
    }

    /// All connections end, as those of an agent that was killed.
    #[cfg(test)]
    pub fn close_all(&self) {
        self.state.lock().links.values().for_each(|wire| wire.close());
    }
}
