//! A round: one checkpoint, or the restart, of all members, as the checkpoint thread of one of them sees it.
//!
//! Begun by the leader; the others are told. Invariant: a round ends for all members in the same way. Fails by:
//! [`GangError`]; a round that is dropped before its end has failed.

use super::message::{Failed, FailedKind};
use super::seat::{FIRST_ROUND, Seat};
use holdfast_image::control::Wishes;
use holdfast_process::{Gang, GangError, Phase};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// See the head of the file.
#[derive(Debug)]
pub struct Round {
    seat: Arc<Seat>,
    number: u64,
    members: u32,
    is_over: AtomicBool,
    /// What the leader has called it: no other round, of any leader, has this mark.
    mark: OnceLock<String>,
}

impl Round {
    fn of(seat: &Arc<Seat>, number: u64) -> Arc<Round> {
        let members = seat.members_of(number);
        Arc::new(Round {
            seat: Arc::clone(seat),
            number,
            members,
            is_over: AtomicBool::new(false),
            mark: OnceLock::new(),
        })
    }

    /// The leader begins a checkpoint.
    ///
    /// # Errors
    /// A member was lost.
    pub fn begin(seat: &Arc<Seat>, stop: bool, wishes: &Wishes) -> Result<Arc<Round>, Failed> {
        Ok(Round::of(seat, seat.begin(stop, wishes)?))
    }

    /// Another member takes part in it.
    pub fn enter(seat: &Arc<Seat>, number: u64) -> Arc<Round> {
        Round::of(seat, number)
    }

    /// The restart.
    pub fn restart(seat: &Arc<Seat>) -> Arc<Round> {
        Round::of(seat, FIRST_ROUND)
    }

    /// The members.
    pub fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    /// All have done what can be done before the stop. The leader marks the round.
    ///
    /// # Errors
    /// It is over.
    pub fn prepared(&self, within: Duration) -> Result<(), GangError> {
        let own = if self.seat.place().is_leader() {
            crate::tiers::new_id().unwrap_or_default()
        } else {
            String::new()
        };
        let said = self.meet(Phase::Prepared, own.as_bytes(), within)?;
        let mark = said.first().map(|said| String::from_utf8_lossy(said).into_owned());
        let _ = self.mark.set(mark.unwrap_or_default());
        Ok(())
    }

    /// What the leader has called it, once all were prepared.
    pub fn mark(&self) -> &str {
        self.mark.get().map_or("", String::as_str)
    }

    /// This member cannot do its part: the round is over for all.
    pub fn fail(&self, reason: String, kind: FailedKind) {
        self.seat.fail(self.number, self.seat.own_failure(reason, kind), None);
    }

    /// Why it is over, if it has failed.
    pub fn failure(&self) -> Option<Failed> {
        self.seat.failure(self.number)
    }

    /// It has come to its end: what happens to members from now on is nothing to it.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.seat.end(self.number);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if !self.is_over.load(Ordering::Relaxed) {
            self.fail("it has given up".into(), FailedKind::Other);
        }
    }
}

impl Gang for Round {
    fn member(&self) -> u32 {
        self.seat.place().member
    }

    fn members(&self) -> u32 {
        self.members
    }

    fn meet(&self, phase: Phase, own: &[u8], within: Duration) -> Result<Vec<Vec<u8>>, GangError> {
        let name = phase.to_string();
        let met = self.seat.meet((self.number, phase as u32, &name), own, within);
        met.map_err(GangError::from)
    }

    fn goes_on(&self) -> Result<(), GangError> {
        self.failure().map_or(Ok(()), |failed| Err(failed.into()))
    }
}

impl From<Failed> for GangError {
    fn from(failed: Failed) -> GangError {
        GangError { member: failed.member, host: failed.host, reason: failed.reason }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        GangError::from(self.clone()).fmt(f)
    }
}
