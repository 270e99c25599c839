//! The threads that copy between memory and the store, as the policy says: one down, one up (which clients help:
//! [`super::fetching`]).
//!
//! Started by the server. Invariants: nothing is read or written with the server's lock held; a copy that fails is told
//! to the policy, which tries again, and to the client that waits for it.

use super::Server;
use super::ensemble;
use super::fetching::is_up;
use super::ranks::{Rank, Source};
use super::state::{MEMORY, STORE, State, is_of};
use holdfast_image::Epoch;
use holdfast_objects::buffer::Table;
use holdfast_tiers::policy::{Event, Place, SegmentId, Transfer};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

impl Server {
    /// Copies into the store until the server ends.
    pub(super) fn down(&self) {
        loop {
            let mut state = self.state.lock();
            let work = loop {
                if state.stopping {
                    return;
                }
                let is_filled = |state: &State, transfer: &Transfer| {
                    is_of(transfer, Place::Tier(MEMORY), Place::Tier(STORE))
                        && !state.is_held_back(transfer.segment)
                        || is_of(transfer, Place::Application, Place::Tier(STORE))
                            && state.held.get(&transfer.segment).is_none_or(|held| held.content.is_some())
                };
                let work = state.take_due(is_filled);
                if work.is_some() || !state.removals.is_empty() {
                    break work;
                }
                self.wait(&mut state);
            };
            let removals = std::mem::take(&mut state.removals);
            drop(state);
            remove(removals);
            if let Some(transfer) = work {
                let done = self.commit(transfer.segment);
                self.report(transfer, done);
                if transfer.from == Place::Application {
                    // It has passed memory by.
                    self.state.lock().leave_memory(transfer.segment);
                }
            }
        }
    }

    /// Copies from the store to memory until the server ends.
    pub(super) fn up(&self) {
        loop {
            let transfer = {
                let mut state = self.state.lock();
                loop {
                    if state.stopping {
                        return;
                    }
                    if let Some(transfer) = state.take_due(|_, transfer| is_up(transfer)) {
                        break transfer;
                    }
                    self.wait(&mut state);
                }
            };
            self.fetch(transfer);
        }
    }

    /// Tells the policy how a copy ended; what went wrong on the way down is told to its client.
    pub(super) fn report(&self, transfer: Transfer, done: Result<(), String>) {
        let mut state = self.state.lock();
        let segment = transfer.segment;
        let event = match &done {
            Ok(()) => Event::Copied(transfer),
            Err(_) => Event::Failed(transfer),
        };
        // It is told what it asked for: an error is a defect, which the next event meets as well.
        let _ = state.step(event);
        let named = state.held.get(&segment).map(|held| (held.set.clone(), held.rank, held.version));
        if let (Err(why), Some((name, rank, version))) = (done, &named) {
            tracing::warn!("{name}, rank {rank}, version {version}: {why}");
            if transfer.is_down()
                && !state.is_retiring(segment)
                && let Some(set) = state.sets.get_mut(name)
            {
                set.failures.entry(*rank).or_default().push(format!("version {version}: {why}"));
            }
        }
        if let Some((name, ..)) = named.filter(|_| transfer.is_down()) {
            state.apply_rule(&name);
        }
        state.retire_more();
        drop(state);
        self.changed.notify_all();
    }

    fn commit(&self, segment: SegmentId) -> Result<(), String> {
        let found = {
            let mut state = self.state.lock();
            let found = state.held.get(&segment).and_then(|held| {
                let rank = state.sets.get(&held.set)?.members.get(&held.rank)?;
                Some((Arc::clone(rank), held.buffer.clone()?, held.content.clone()?, held.put_at))
            });
            found.map(|found| {
                let Table { set, rank, .. } = &found.2.0;
                (state.courses.decide(set, *rank, segment), found)
            })
        };
        let Some((packed, (rank, buffer, content, put_at))) = found else {
            return Err("it was given up".into());
        };
        let (table, layout) = &*content;
        let begun = Instant::now();
        let mut rank = rank.lock();
        let made = rank.commit_by(&buffer.file, (table, layout), put_at, packed);
        drop(rank);
        let made = made.map_err(|failure| failure.message)?;
        let took = begun.elapsed();
        let rate = made.figures.bytes_stored as f64 / took.as_secs_f64().max(1e-9);
        let wants_probe = {
            let mut state = self.state.lock();
            state.courses.stored((&table.set, table.rank), segment, &made, took);
            state.mark_stored(segment, made.stored);
            state.courses.wants_probe(&table.set, table.rank)
        };
        if wants_probe {
            let found = ensemble::probe(&buffer.file, layout, rate);
            self.state.lock().courses.probed(&table.set, table.rank, found);
        }
        Ok(())
    }
}

fn remove(removals: Vec<(Arc<Mutex<Rank>>, Epoch)>) {
    let mut left = removals;
    while let Some((rank, _)) = left.first().cloned() {
        let (own, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(other, _)| Arc::ptr_eq(other, &rank));
        let epochs: BTreeSet<Epoch> = own.into_iter().map(|(_, epoch)| epoch).collect();
        if let Err(error) = rank.lock().remove(&epochs) {
            tracing::warn!("removing versions: {error}");
        }
        left = others;
    }
}

impl State {
    /// Where the store has a segment, and its image there. What is being written of the same rank is not waited for.
    pub(super) fn place_of(&self, segment: SegmentId) -> Option<(Source, Epoch)> {
        let held = self.held.get(&segment)?;
        let source = self.sets.get(&held.set)?.sources.get(&held.rank)?;
        Some((source.clone(), held.stored.as_ref()?.epoch))
    }
}
