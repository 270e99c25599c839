//! How an open gang grows, as its members know it.
//!
//! Called by the loop of the leader's agent, which adds one member at a time and begins no round meanwhile; and by the
//! agents of members that were added. Invariant: in a round all know the same number of members. Fails by: nothing; a
//! member that does not come is given up.

use super::super::message::{Failed, FailedKind, Message};
use super::{Heard, Seat};
use holdfast_image::control::Secret;
use std::net::IpAddr;

impl Seat {
    /// Of the leader of an open gang: what its servers prove.
    pub(in super::super) fn has_key(&self, key: Secret) {
        self.state.lock().key = Some(key);
    }

    /// What the servers of an open gang prove.
    pub fn key(&self) -> Option<Secret> {
        self.state.lock().key.clone()
    }

    /// The leader of an open gang adds a member: its number. `start`: what tells this start of it from others. No round
    /// may begin before it is there, or given up.
    pub fn expect(&self, start: u64) -> u32 {
        let mut state = self.state.lock();
        state.awaited = Some((state.members, start));
        state.members
    }

    /// Whether a member is being added, by this start of it.
    pub(in super::super) fn expects(&self, member: u32, start: Option<u64>) -> bool {
        self.state.lock().awaited.is_some_and(|(one, by)| one == member && start == Some(by))
    }

    /// The member that was added is there, or was lost again since it has said so.
    pub fn has_grown(&self) {
        let mut state = self.state.lock();
        let Some((member, _)) = state.awaited.take() else { return };
        if state.links.contains_key(&member) {
            return;
        }
        let why =
            state.lost.entry(member).or_insert_with(|| "it was lost: its agent has ended".into()).clone();
        let failed = self.failed_of(&state, Some(member), why, FailedKind::Other);
        drop(state);
        tracing::warn!("{failed}");
        self.tell(Heard::Lost(failed));
    }

    /// The member that was to be added is not there.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        let Some((member, _)) = state.awaited.take() else { return };
        let link = state.links.remove(&member);
        let was_there = state.hosts.remove(&member).is_some();
        state.lost.remove(&member);
        state.members = member;
        drop(state);
        link.iter().for_each(|wire| wire.close());
        if was_there {
            self.tell_who_is_there();
        }
    }

    /// The address from which a member has connected.
    pub fn address_of(&self, member: u32) -> Option<IpAddr> {
        let wire = self.state.lock().links.get(&member).cloned()?;
        wire.peer().ok().map(|address| address.ip().to_canonical())
    }

    /// The own server listens at this port.
    ///
    /// # Errors
    /// The leader was lost.
    pub fn serves(&self, port: u16) -> Result<(), Failed> {
        self.to_leader(&(Message::Serves { port }, Vec::new()))
    }
}
