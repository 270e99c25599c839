//! The threads that copy between memory and the store, as the policy says: one down, one up (which clients help:
//! [`super::fetching`]).
//!
//! Started by the server. Invariants: nothing is read or written with the server's lock held; a copy that fails is told
//! to the policy, which tries again, and to the client that waits for it.

use super::Server;
use super::buffers::Buffer;
use super::ensemble;
use super::fetching::is_up;
use super::ranks::{Rank, Source, Version};
use super::state::{MEMORY, STORE, State, is_of};
use holdfast_image::Epoch;
use holdfast_objects::buffer::{Layout, Table};
use holdfast_tiers::codec::Compression;
use holdfast_tiers::policy::{Event, Place, SegmentId, Transfer};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// Most versions of a rank that become durable together, and bytes of all but the first: others wait for them.
const MOST_TOGETHER: usize = 8;
const BYTES_TOGETHER: u64 = 64 << 20;

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

    /// Stores a version, and with it those of its rank that wait for the store, too: they become durable together.
    fn commit(&self, segment: SegmentId) -> Result<(), String> {
        let (rank, waiting) = {
            let mut state = self.state.lock();
            if state.held.get(&segment).is_some_and(|held| held.stored.is_some()) {
                // With another one.
                return Ok(());
            }
            let found = state.waiting_with(segment);
            found.ok_or("it was given up")?
        };
        let versions: Vec<Version<'_>> = waiting.iter().map(Waiting::version).collect();
        let begun = Instant::now();
        let (made, done) = rank.lock().commit_all(&versions);
        let took = begun.elapsed() / u32::try_from(made.len().max(1)).unwrap_or(1);
        let bytes: u64 = made.iter().map(|made| made.figures.bytes_stored).sum();
        let rate = bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        let mut probed = None;
        let mut state = self.state.lock();
        for waiting in &waiting {
            state.committing.remove(&waiting.segment);
        }
        for (waiting, made) in waiting.iter().zip(made) {
            let whose = (waiting.content.0.set.as_str(), waiting.content.0.rank);
            state.courses.stored(whose, waiting.segment, &made, took);
            match state.held.contains_key(&waiting.segment) {
                true => state.mark_stored(waiting.segment, made.stored),
                // It was given up meanwhile.
                false => state.removals.push((Arc::clone(&rank), made.stored.epoch)),
            }
            probed = probed.or_else(|| state.courses.wants_probe(whose.0, whose.1).then_some(waiting));
        }
        let is_stored = state.held.get(&segment).is_none_or(|held| held.stored.is_some());
        drop(state);
        if let Some(Waiting { buffer, content, .. }) = probed {
            let (Table { set, rank, .. }, layout) = &**content;
            let found = ensemble::probe(&buffer.file, layout, rate);
            self.state.lock().courses.probed(set, *rank, found);
        }
        // What failed of the others has its own turn.
        if is_stored { Ok(()) } else { done.map_err(|failure| failure.message) }
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

/// A version that is being stored.
struct Waiting {
    segment: SegmentId,
    buffer: Buffer,
    content: Arc<(Table, Layout)>,
    put_at: Instant,
    packed: Option<Compression>,
}

impl Waiting {
    fn version(&self) -> Version<'_> {
        let Waiting { buffer, content, put_at, packed, .. } = self;
        Version { file: &buffer.file, content: (&content.0, &content.1), put_at: *put_at, packed: *packed }
    }
}

impl State {
    /// A version that is to be stored, and the others of its rank that wait for the store, as they were put.
    fn waiting_with(&mut self, segment: SegmentId) -> Option<(Arc<Mutex<Rank>>, Vec<Waiting>)> {
        let own = self.held.get(&segment).filter(|own| own.buffer.is_some() && own.content.is_some())?;
        let rank = Arc::clone(self.sets.get(&own.set)?.members.get(&own.rank)?);
        let (set, number, mut bytes) = (own.set.clone(), own.rank, own.bytes);
        let mut others: Vec<(Instant, SegmentId)> = self
            .unstored()
            .filter(|other| *other != segment)
            .filter_map(|other| {
                let held = self.held.get(&other).filter(|held| held.rank == number && held.set == set)?;
                (self.is_in_memory(other) && !self.is_held_back(other)).then_some((held.put_at, other))
            })
            .collect();
        others.sort_unstable();
        others.truncate(MOST_TOGETHER - 1);
        others.retain(|(_, other)| {
            bytes += self.held.get(other).map_or(0, |held| held.bytes);
            bytes <= BYTES_TOGETHER
        });
        others.push((own.put_at, segment));
        others.sort_unstable();
        let waiting = others.into_iter().filter_map(|(put_at, segment)| {
            let held = self.held.get(&segment)?;
            let (buffer, content) = (held.buffer.clone()?, held.content.clone()?);
            let packed = self.courses.decide(&set, number, segment);
            self.committing.insert(segment);
            Some(Waiting { segment, buffer, content, put_at, packed })
        });
        let waiting: Vec<Waiting> = waiting.collect();
        #[cfg(test)]
        self.groups.push(waiting.len());
        Some((rank, waiting))
    }

    /// Where the store has a segment, and its image there. What is being written of the same rank is not waited for.
    pub(super) fn place_of(&self, segment: SegmentId) -> Option<(Source, Epoch)> {
        let held = self.held.get(&segment)?;
        let source = self.sets.get(&held.set)?.sources.get(&held.rank)?;
        Some((source.clone(), held.stored.as_ref()?.epoch))
    }
}
