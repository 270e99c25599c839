//! The gang as the loop sees it: who asks for a checkpoint of all members, and the rounds that the leader begins.
//!
//! Part of the loop. Invariants: the leader alone begins rounds; who has asked another member waits there until a round
//! has served him, or the leader has said that there is none.

use super::super::error::CheckpointError;
use super::super::events::Event;
use super::super::gang::of_failed;
use super::super::request::CheckpointOptions;
use super::{EventLoop, Waiter};
use crate::front_link::Tell;
use crate::gang::message::{Failed, FailedKind, Prepare};
use crate::gang::round::Round;
use crate::gang::seat::{Heard, Seat};
use crate::settings::Changes;
use std::sync::Arc;

impl EventLoop {
    /// From now on what other members say is heard.
    pub fn listen_to_gang(&self) {
        let Some(gang) = &self.context.gang else { return };
        let reporter = self.reporter.clone();
        gang.seat.listen(Box::new(move |heard| reporter.report(Event::Gang(heard))));
    }

    /// The others, and whether another member leads them.
    fn seat(&self) -> Option<(Arc<Seat>, bool)> {
        self.context.gang.as_ref().map(|gang| (Arc::clone(&gang.seat), !gang.is_leader()))
    }

    pub(super) fn is_led(&self) -> bool {
        self.seat().is_some_and(|(_, is_led)| is_led)
    }

    /// Where another member leads the gang, it is asked. Else the waiter is given back.
    pub(super) fn ask_leader(&mut self, waiter: Waiter) -> Option<Waiter> {
        let Some((seat, true)) = self.seat() else { return Some(waiter) };
        // The round that is under way does what is asked for.
        if let Some(running) = &mut self.running
            && running.cut.is_none()
            && running.options.serves(&waiter.options)
        {
            running.waiters.push(waiter);
            return None;
        }
        let CheckpointOptions { stop, changes, .. } = waiter.options;
        self.asked.push(waiter);
        if let Err(why) = seat.ask(stop, changes.wishes()) {
            self.give_up(&why);
        }
        None
    }

    /// What was asked for does not come.
    fn give_up(&mut self, why: &Failed) {
        let waiters = std::mem::take(&mut self.asked);
        if waiters.is_empty() {
            return;
        }
        let failed = match of_failed(why) {
            CheckpointError::Again(line) => CheckpointError::Failed(line),
            failed => failed,
        };
        self.fail(waiters, &failed);
    }

    /// The round of the gang that a checkpoint is a part of: the one that was entered, or, of the leader, a new one.
    pub(super) fn round(
        &self,
        options: &CheckpointOptions,
        entered: Option<Arc<Round>>,
    ) -> Result<Option<Arc<Round>>, CheckpointError> {
        match self.seat() {
            Some((seat, false)) => Round::begin(&seat, options.stop, &options.changes.wishes())
                .map(Some)
                .map_err(|why| of_failed(&why)),
            _ => Ok(entered),
        }
    }

    /// A checkpoint does not begin, or is not tried again: the leader tells who has asked for it, another member tells
    /// the others.
    pub(super) fn no_round(&self, failed: &CheckpointError, entered: Option<&Round>) {
        if let Some(round) = entered {
            round.fail(failed.line(), FailedKind::Other);
        } else if let Some((seat, false)) = self.seat() {
            let kind = match failed {
                CheckpointError::Refused(_) | CheckpointError::Elsewhere { refused: true, .. } => {
                    FailedKind::Refused
                }
                _ => FailedKind::Other,
            };
            seat.no_round(&seat.own_failure(failed.line(), kind));
        }
    }

    /// Another member has said something.
    pub(super) fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Prepare(prepare) => {
                self.prepared = Some(prepare);
                if !self.is_at_work() {
                    self.start_prepared();
                }
            }
            Heard::Ask { member, stop, wishes } => match Changes::of_wishes(&wishes) {
                Ok(changes) => {
                    let options = CheckpointOptions { stop, changes, ..CheckpointOptions::default() };
                    let waiter = Waiter { client: None, wait: true, options, handler: None };
                    // One that is under way may be over for this member when it is not here: it gets its own.
                    if self.running.is_some() {
                        self.queued.push(waiter)
                    } else {
                        self.request_checkpoint(waiter)
                    }
                }
                Err(why) => tracing::warn!("member {member} of the gang asks for a checkpoint: {why}"),
            },
            Heard::NoRound(why) => self.give_up(&why),
            Heard::Serves { member, port } => self.member_serves(member, port),
            Heard::Over => self.end_own_server(),
            Heard::Fails(why) => {
                self.tell_gang_lost(&why);
            }
            Heard::Lost(why) => {
                self.warn_of_lost_gang(&why);
                self.give_up(&why);
                if why.member == Some(0) {
                    self.end_own_server();
                }
            }
        }
    }

    /// The front ends its program, if all are to be restarted then; whether there is one that does.
    fn tell_gang_lost(&self, why: &Failed) -> bool {
        let front = self.context.link.as_ref().filter(|_| self.context.settings().supervised);
        front.is_some_and(|link| {
            link.tell(&Tell::GangLost { why: why.to_string() });
            true
        })
    }

    /// What follows from that says who does it.
    fn warn_of_lost_gang(&self, why: &Failed) {
        let name = self.seat().map(|(seat, _)| seat.place().name.clone()).unwrap_or_default();
        let what = format!("{why}: no more images of gang {name} are made");
        if self.tell_gang_lost(why) {
            return tracing::warn!("{what}");
        }
        self.context.warn(format!(
            "{what}; the program runs on, and `holdfast restart {name} --gang …` of all members goes on from the last \
             one"
        ));
    }

    /// Begins the round that the leader has begun; whether there was one.
    pub(super) fn start_prepared(&mut self) -> bool {
        let Some(Prepare { round, stop, wishes }) = self.prepared.take() else { return false };
        let Some((seat, true)) = self.seat() else { return false };
        let round = Round::enter(&seat, round);
        let changes = match Changes::of_wishes(&wishes) {
            Ok(changes) => changes,
            Err(why) => {
                round.fail(why, FailedKind::Other);
                return false;
            }
        };
        let options = CheckpointOptions { stop, changes, ..CheckpointOptions::default() };
        let asked = std::mem::take(&mut self.asked);
        let (waiters, rest) = asked.into_iter().partition(|waiter| options.serves(&waiter.options));
        self.asked = rest;
        self.begin_checkpoint(options, waiters, Some(round));
        true
    }
}
