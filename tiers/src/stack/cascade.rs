//! The threads that keep the lower tiers as their rules say: one for each, so that none waits for another.
//!
//! Started by the agent, and by `holdfast sync` where there is none. A commit wakes them; what fails is tried again,
//! each time after a longer wait. Invariants: no caller ever waits for a tier: all that they are told is kept here; a
//! thread that is caught in a call on a dead server is left behind at the end; a version that cannot be read at its
//! source is left out, and said, until the next commit or request: it may be repaired by then; memory is one buffer,
//! and the tables of a manifest, per tier.

use super::TierSpec;
use super::local::LocalVersions;
use super::others::HostOf;
use super::plan::{LocalRules, local_removals};
use super::record::TiersRecord;
use super::shared::{Activity, Inner, IsOver, OnFailure, OnOther, Opener, Shared, TierState};
use super::worker::Worker;
use crate::Job;
use crate::policy::Pinned;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A tier on which nothing has moved for so long is not waited for at the end.
const STALLED: Duration = Duration::from_secs(30);

/// What a cascade is made of.
pub struct CascadeOptions {
    /// Whose versions.
    pub job: Job,
    /// The job's folder in each lower tier.
    pub folder: String,
    /// Where images are copied to: the lower tiers; with memory above the store that as well.
    pub tiers: Vec<TierSpec>,
    /// So many of the newest images stay in memory.
    pub keep_in_memory: usize,
    /// Versions that stay on all of them.
    pub pinned: Pinned,
    /// How they are opened.
    pub open: Opener,
    /// Whether segments are packed on their way where that pays.
    pub pack: bool,
    /// Called by each thread when it begins.
    pub on_thread: fn(),
    /// Called when a tier fails that did not fail before; `true`: for the first time. Once for one that is only read.
    pub on_failure: OnFailure,
    /// Called when a tier is found to have an image of another run under a number of ours; once for each tier.
    pub on_other: OnOther,
    /// The host that an image was made on.
    pub host_of: HostOf,
    /// Whether the run has come to its end: then the lower tiers are told.
    pub is_over: IsOver,
}

/// See the head of the file.
pub struct Cascade {
    shared: Arc<Shared>,
}

impl Cascade {
    /// Starts the threads.
    ///
    /// # Errors
    /// EAGAIN: no thread can be made.
    pub fn start(options: CascadeOptions) -> io::Result<Cascade> {
        let record = TiersRecord::read(&options.job);
        let state = |spec: &TierSpec| {
            let known = record.of(&spec.name()).cloned().unwrap_or_default();
            TierState {
                spec: spec.clone(),
                versions: known.versions.into_iter().collect(),
                others: known.others.into_iter().map(|other| (other.image, other)).collect(),
                waiting: BTreeSet::new(),
                activity: Activity::Looking,
                error: None,
                failures: 0,
                read_only: None,
                single_writer: known.single_writer,
                speed: known.speed,
                moved: Instant::now(),
                greatest: known.greatest,
                unusable: BTreeSet::new(),
                removed: None,
                seen: 0,
                hurried: 0,
            }
        };
        let states: Vec<TierState> = options.tiers.iter().map(state).collect();
        let count = states.len();
        let shared = Arc::new(Shared {
            local: LocalVersions::new(options.job.clone()),
            job: options.job,
            folder: options.folder,
            keep_in_memory: options.keep_in_memory,
            pinned: options.pinned,
            open: options.open,
            pack: options.pack,
            on_failure: options.on_failure,
            on_other: options.on_other,
            host_of: options.host_of,
            is_over: options.is_over,
            inner: Mutex::new(Inner { states, asked: 1, hurried: 0, stopping: false, unwritten: false }),
            changed: Condvar::new(),
            recording: Mutex::default(),
        });
        let cascade = Cascade { shared };
        for index in 0..count {
            let (shared, on_thread) = (Arc::clone(&cascade.shared), options.on_thread);
            thread::Builder::new().name("cascade".into()).spawn(move || {
                on_thread();
                Worker::new(shared, index).run();
            })?;
        }
        Ok(cascade)
    }

    /// A version was committed.
    pub fn wake(&self) {
        self.shared.inner.lock().asked += 1;
        self.shared.changed.notify_all();
    }

    /// What failed is tried again now.
    pub fn hurry(&self) {
        let mut inner = self.shared.inner.lock();
        inner.asked += 1;
        inner.hurried += 1;
        drop(inner);
        self.shared.changed.notify_all();
    }

    /// The greatest number that an image has on any tier, also one that is not complete there, as far as is known: a
    /// new one gets a greater number.
    pub fn newest(&self) -> u64 {
        let inner = self.shared.inner.lock();
        let greatest = |state: &TierState| state.versions.last().copied().unwrap_or(0).max(state.greatest);
        inner.states.iter().map(greatest).max().unwrap_or(0)
    }

    /// What is known of each tier.
    pub fn states(&self) -> Vec<TierState> {
        self.shared.inner.lock().states.clone()
    }

    /// Whether something moves, or is about to. What failed, or has not moved for long, does not count.
    pub fn is_busy(&self) -> bool {
        let inner = self.shared.inner.lock();
        inner.states.iter().any(|state| match state.activity {
            Activity::Failed { .. } => state.hurried < inner.hurried,
            Activity::Idle => state.seen < inner.asked,
            Activity::Looking | Activity::Copying { .. } => state.moved.elapsed() < STALLED,
        })
    }

    /// Which images of the first tier go by its rules, and which of them a lower tier will not get therefore. What
    /// `stays` names does not go.
    pub fn removals(&self, rules: &LocalRules, stays: &dyn Fn(u64) -> bool) -> (Vec<u64>, Vec<u64>) {
        // Of a folder that cannot be listed nothing goes.
        let Ok(here) = self.shared.local.look() else { return Default::default() };
        let waiting: BTreeSet<u64> = {
            let inner = self.shared.inner.lock();
            inner.states.iter().flat_map(|state| state.wanted(&here.good)).collect()
        };
        local_removals(rules, &self.shared.local.held(&waiting, stays))
    }

    /// Ends the threads, at their next piece; does not wait for them. What is known is written down; after that none
    /// of them writes there.
    pub fn stop(&self) {
        self.shared.inner.lock().stopping = true;
        self.shared.changed.notify_all();
        self.shared.write_record(true);
    }
}

impl Drop for Cascade {
    fn drop(&mut self) {
        self.stop();
    }
}
