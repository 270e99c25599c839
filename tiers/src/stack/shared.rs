//! What the threads of a cascade share: the state of each tier, and what was asked of them.
//!
//! Used by [`super::cascade`], which answers from it, and by [`super::worker`], which changes it. Invariants: no thread
//! waits for a tier with the lock held; what a listing says of a tier is written down when it changes.

use super::TierSpec;
use super::inventory::Inventory;
use super::local::LocalVersions;
use super::others::{HostOf, OtherImage};
use super::plan::wanted;
use super::record::{TierRecord, TiersRecord};
use crate::Job;
use crate::policy::Pinned;
use crate::tier::{Tier, TierError};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Opens a tier.
pub type Opener = Arc<dyn Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + Send + Sync>;

/// Is told of a tier that fails, or is only read.
pub type OnFailure = Box<dyn Fn(&TierState, bool) + Send + Sync>;

/// Is told of the first image of a tier that has a number of ours and is not ours.
pub type OnOther = Box<dyn Fn(&TierSpec, &OtherImage) + Send + Sync>;

/// Tells whether the run has come to its end.
pub type IsOver = Box<dyn Fn() -> bool + Send + Sync>;

/// What a tier is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// It is looked what is there.
    Looking,
    /// It has all that it wants.
    Idle,
    /// A version is being copied.
    Copying {
        /// Its number.
        epoch: u64,
        /// Bytes copied.
        done: u64,
        /// Bytes to be copied.
        total: u64,
    },
    /// Something failed; it is tried again then.
    Failed {
        /// When.
        again: Instant,
    },
}

/// What is known of a tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierState {
    /// The tier and its rules.
    pub spec: TierSpec,
    /// Versions that it has; not those of [`TierState::others`].
    pub versions: BTreeSet<u64>,
    /// Its images that have numbers of ours and are not ours, by number: no copies.
    pub others: BTreeMap<u64, OtherImage>,
    /// Versions that it is to get.
    pub waiting: BTreeSet<u64>,
    /// What it is doing.
    pub activity: Activity,
    /// The last failure, until it is over.
    pub error: Option<String>,
    /// Failures in a row.
    pub failures: u32,
    /// Why it is only read, if so: it is to get nothing.
    pub read_only: Option<String>,
    /// Why only one host may write there, as far as it was written to.
    pub single_writer: Option<String>,
    /// How fast its last copies went, bytes of images per second, if any was large enough to tell.
    pub speed: Option<u64>,
    /// When something has moved last.
    pub(super) moved: Instant,
    /// The greatest number that anything there has.
    pub(super) greatest: u64,
    /// Versions that cannot be read at their source.
    pub(super) unusable: BTreeSet<u64>,
    /// The newest version that its rules have removed.
    pub(super) removed: Option<u64>,
    /// The last commit, and the last request to hurry, that it has looked after.
    pub(super) seen: u64,
    pub(super) hurried: u64,
}

pub(super) struct Inner {
    pub(super) states: Vec<TierState>,
    /// Number of the last commit or request.
    pub(super) asked: u64,
    /// Number of the last request to try again at once.
    pub(super) hurried: u64,
    pub(super) stopping: bool,
    /// Something is known that is not written down.
    pub(super) unwritten: bool,
}

pub(super) struct Shared {
    pub(super) job: Job,
    pub(super) folder: String,
    pub(super) keep_in_memory: usize,
    pub(super) pinned: Pinned,
    pub(super) local: LocalVersions,
    pub(super) open: Opener,
    pub(super) pack: bool,
    pub(super) on_failure: OnFailure,
    pub(super) on_other: OnOther,
    pub(super) host_of: HostOf,
    pub(super) is_over: IsOver,
    pub(super) inner: Mutex<Inner>,
    pub(super) changed: Condvar,
    /// Held while what is known is written down.
    pub(super) recording: Mutex<()>,
}

impl TierState {
    /// What was found there.
    pub(super) fn has(&mut self, there: &Inventory, others: BTreeMap<u64, OtherImage>) {
        self.versions =
            there.versions.iter().copied().filter(|number| !others.contains_key(number)).collect();
        self.others = others;
        self.greatest = self.greatest.max(there.greatest());
    }

    pub(super) fn wanted(&self, here: &BTreeSet<u64>) -> Vec<u64> {
        if self.read_only.is_some() {
            return Vec::new();
        }
        let usable = here.difference(&self.unusable).copied().collect();
        wanted(&self.spec.rules, &usable, &self.versions, self.removed)
    }
}

impl Shared {
    /// Writes down what is known, if that is news. Who stops the cascade is the last to do so: a thread that ends
    /// later knows less than who comes after it.
    pub(super) fn write_record(&self, is_last: bool) {
        let _recording = self.recording.lock();
        let states = {
            let mut inner = self.inner.lock();
            if (inner.stopping && !is_last) || !std::mem::take(&mut inner.unwritten) {
                return;
            }
            inner.states.clone()
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let tier = |state: &TierState| TierRecord {
            tier: state.spec.name(),
            versions: state.versions.iter().copied().collect(),
            waiting: state.waiting.iter().copied().collect(),
            others: state.others.values().cloned().collect(),
            error: state.error.clone(),
            read_only: state.read_only.clone(),
            single_writer: state.single_writer.clone(),
            greatest: state.greatest,
            speed: state.speed,
            known_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
        };
        let record = TiersRecord { tiers: states.iter().map(tier).collect() };
        // Advice only: what cannot be written is tried again with the next news.
        if record.write(&self.job).is_err() {
            self.inner.lock().unwritten = true;
        }
    }
}
