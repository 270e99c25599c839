//! How an open gang grows, as its members know it.
//!
//! Called by the loop of the leader's agent, which adds one member at a time and begins no round meanwhile; and by the
//! agents of members that were added. Invariant: in a round all know the same number of members. Fails by: nothing; a
//! member that does not come is given up.

use super::super::message::{Failed, Message};
use super::Seat;
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

    /// The leader of an open gang adds a member: its number. No round may begin before it is there, or given up.
    pub fn expect(&self) -> u32 {
        let mut state = self.state.lock();
        state.awaited = Some(state.members);
        state.members
    }

    /// The member that was added is there.
    pub fn has_grown(&self) {
        self.state.lock().awaited = None;
    }

    /// The member that was to be added is not there.
    pub fn give_up(&self) {
        let mut state = self.state.lock();
        let Some(member) = state.awaited.take() else { return };
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
