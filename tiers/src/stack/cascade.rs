//! The threads that keep the lower tiers as their rules say: one for each, so that none waits for another.
//!
//! Started by the agent, and by `holdfast sync` where there is none. A commit wakes them; what fails is tried again,
//! each time after a longer wait. Invariants: no caller ever waits for a tier: all that they are told is kept here; a
//! thread that is caught in a call on a dead server is left behind at the end; a version that cannot be read at its
//! source is left out, and said; memory is one buffer, and the tables of a manifest, per tier.

use super::TierSpec;
use super::backoff::{Backoff, chance};
use super::copy::{Copier, CopyError, Pace, Way};
use super::inventory::Inventory;
use super::link::Link;
use super::local::LocalVersions;
use super::packing::Packing;
use super::plan::{LocalRules, local_removals, wanted};
use super::record::{TierRecord, TiersRecord};
use super::remove::{self, SegmentTables};
use crate::files::MAX_RECIPE_LEN;
use crate::tier::{Tier, TierError};
use crate::{Job, MemoryFirst, TierFolder, files, names};
use holdfast_image::Epoch;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A tier on which nothing has moved for so long is not waited for at the end.
const STALLED: Duration = Duration::from_secs(30);

/// Opens a tier.
pub type Opener = Arc<dyn Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + Send + Sync>;

/// Is told of a tier that fails, or is only read.
pub type OnFailure = Box<dyn Fn(&TierState, bool) + Send + Sync>;

/// What a cascade is made of.
pub struct CascadeOptions {
    /// Whose versions.
    pub job: Job,
    /// The job's folder in each lower tier.
    pub folder: String,
    /// The lower tiers; with memory above the job's folder that as well, as `local`.
    pub tiers: Vec<TierSpec>,
    /// So many of the newest images stay in memory.
    pub keep_in_memory: usize,
    /// A version that stays on all of them: the program may be served from it.
    pub pinned: Option<u64>,
    /// How they are opened.
    pub open: Opener,
    /// Whether segments are packed on their way where that pays.
    pub pack: bool,
    /// Called by each thread when it begins.
    pub on_thread: fn(),
    /// Called when a tier fails that did not fail before; `true`: for the first time. Once for one that is only read.
    pub on_failure: OnFailure,
}

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
    /// Versions that it has.
    pub versions: BTreeSet<u64>,
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
    /// When something has moved last.
    moved: Instant,
    /// The greatest number that anything there has.
    greatest: u64,
    /// Versions that cannot be read at their source.
    unusable: BTreeSet<u64>,
    /// The newest version that its rules have removed.
    removed: Option<u64>,
    /// The last commit, and the last request to hurry, that it has looked after.
    seen: u64,
    hurried: u64,
}

struct Inner {
    states: Vec<TierState>,
    /// Number of the last commit or request.
    asked: u64,
    /// Number of the last request to try again at once.
    hurried: u64,
    stopping: bool,
}

struct Shared {
    job: Job,
    folder: String,
    keep_in_memory: usize,
    pinned: Option<u64>,
    local: LocalVersions,
    open: Opener,
    pack: bool,
    on_failure: OnFailure,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Held while what is known is written down.
    recording: Mutex<()>,
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
        let state = |spec: &TierSpec| TierState {
            spec: spec.clone(),
            versions: record
                .of(&spec.address)
                .map(|tier| tier.versions.iter().copied().collect())
                .unwrap_or_default(),
            waiting: BTreeSet::new(),
            activity: Activity::Looking,
            error: None,
            failures: 0,
            read_only: None,
            moved: Instant::now(),
            greatest: record.of(&spec.address).map_or(0, |tier| tier.greatest),
            unusable: BTreeSet::new(),
            removed: None,
            seen: 0,
            hurried: 0,
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
            inner: Mutex::new(Inner { states, asked: 1, hurried: 0, stopping: false }),
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

    /// Which images of the first tier go by its rules, and which of them a lower tier will not get therefore. `pinned`
    /// stays.
    pub fn removals(&self, rules: &LocalRules, pinned: Option<u64>) -> (Vec<u64>, Vec<u64>) {
        let here = match self.shared.local.numbers() {
            Ok(here) => here,
            Err(_) => return Default::default(),
        };
        let waiting: BTreeSet<u64> = {
            let inner = self.shared.inner.lock();
            inner.states.iter().flat_map(|state| state.wanted(&here)).collect()
        };
        local_removals(rules, &self.shared.local.held(&waiting, pinned))
    }

    /// Ends the threads, at their next piece; does not wait for them.
    pub fn stop(&self) {
        self.shared.inner.lock().stopping = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Cascade {
    fn drop(&mut self) {
        self.stop();
    }
}

impl TierState {
    fn wanted(&self, here: &BTreeSet<u64>) -> Vec<u64> {
        if self.read_only.is_some() {
            return Vec::new();
        }
        let usable = here.difference(&self.unusable).copied().collect();
        wanted(&self.spec.rules, &usable, &self.versions, self.removed)
    }
}

/// The thread of one tier.
struct Worker {
    shared: Arc<Shared>,
    index: usize,
    spec: TierSpec,
    link: Option<Link>,
    packing: Option<Packing>,
    tier: Option<TierFolder>,
    tables: SegmentTables,
    backoff: Backoff,
    /// What an agent that died left unfinished was removed.
    cleaned: bool,
    has_failed: bool,
}

impl Worker {
    fn new(shared: Arc<Shared>, index: usize) -> Worker {
        let spec = shared.inner.lock().states[index].spec.clone();
        let link = spec.rate.map(|rate| Link::new(&spec.address, rate));
        // The store itself is mapped by restarts.
        let packing = (shared.pack && !spec.is_local()).then(|| Packing::new(spec.rate));
        let (tier, tables, backoff) = (None, SegmentTables::default(), Backoff::default());
        Worker {
            shared,
            index,
            spec,
            link,
            packing,
            tier,
            tables,
            backoff,
            cleaned: false,
            has_failed: false,
        }
    }

    fn run(mut self) {
        loop {
            let (asked, hurried) = {
                let inner = self.shared.inner.lock();
                (inner.asked, inner.hurried)
            };
            match self.round() {
                Ok(problem) => {
                    self.backoff.succeeded();
                    self.change(|state| {
                        (state.activity, state.error, state.failures) = (Activity::Idle, problem, 0);
                        (state.seen, state.hurried) = (asked, hurried);
                    });
                    self.wait(None, |inner| inner.asked > asked);
                }
                Err(CopyError::Stopped) => return,
                Err(error) => {
                    let again = Instant::now() + self.backoff.failed(chance());
                    self.change(|state| {
                        state.activity = Activity::Failed { again };
                        state.error = Some(bounded(error.to_string()));
                        state.failures = state.failures.saturating_add(1);
                        (state.seen, state.hurried) = (asked, hurried);
                    });
                    let state = self.shared.inner.lock().states[self.index].clone();
                    if state.failures == 1 {
                        (self.shared.on_failure)(&state, !std::mem::replace(&mut self.has_failed, true));
                    }
                    // What is wrong may be wrong with the connection.
                    self.tier = None;
                    self.pause(again, hurried);
                }
            }
            if self.shared.inner.lock().stopping {
                return;
            }
        }
    }

    /// Waits until something that failed is to be tried again. What is committed meanwhile waits as well.
    fn pause(&self, again: Instant, hurried: u64) {
        loop {
            let asked = self.shared.inner.lock().asked;
            let here = self.shared.local.numbers().unwrap_or_default();
            self.change(|state| state.waiting = state.wanted(&here).into_iter().collect());
            self.wait(Some(again), |inner| inner.hurried > hurried || inner.asked > asked);
            let inner = self.shared.inner.lock();
            if inner.stopping || inner.hurried > hurried || Instant::now() >= again {
                return;
            }
        }
    }

    /// Waits for the moment, or until `enough`, or the end.
    fn wait(&self, until: Option<Instant>, enough: impl Fn(&Inner) -> bool) {
        let mut inner = self.shared.inner.lock();
        while !inner.stopping && !enough(&inner) {
            match until {
                None => self.shared.changed.wait(&mut inner),
                Some(until) => {
                    if self.shared.changed.wait_until(&mut inner, until).timed_out() {
                        return;
                    }
                }
            }
        }
    }

    /// Copies what is wanted, then removes what is kept no longer. Returns what is wrong with versions at the source.
    fn round(&mut self) -> Result<Option<String>, CopyError> {
        self.change(|state| state.activity = Activity::Looking);
        let shared = Arc::clone(&self.shared);
        let home = shared.job.memory().filter(|_| self.spec.is_local());
        let to = match (self.tier.take(), home) {
            (Some(to), _) => to,
            (None, Some(memory)) => {
                TierFolder::of(Arc::new(memory.folder().clone()), "").map_err(CopyError::Target)?
            }
            (None, None) => {
                let tier = (shared.open)(&self.spec).map_err(CopyError::Target)?;
                TierFolder::of(tier, &shared.folder).map_err(CopyError::Target)?
            }
        };
        if let Some(why) = to.tier().info().read_only.clone() {
            let looked = self.read_only(&to, why).map(|()| None);
            self.tier = Some(to);
            return looked;
        }
        // The job's own folder is cleaned by the agent, which may be writing there.
        if !self.cleaned && home.is_none() {
            // The job's lock is ours: no other writer of this folder is at work.
            to.tier().clean(&shared.folder).map_err(CopyError::Target)?;
            self.cleaned = true;
        }
        let mut there = to.inventory().map_err(CopyError::Target)?;
        let (mut problem, mut is_fresh) = (None, true);
        loop {
            if home.is_some() && !std::mem::take(&mut is_fresh) {
                // The agent writes there too.
                there = to.inventory().map_err(CopyError::Target)?;
            }
            let here = shared.local.numbers().unwrap_or_default();
            shared.local.forget_lost(&to, &mut there).map_err(CopyError::Target)?;
            let mut next = None;
            self.change(|state| {
                state.versions.clone_from(&there.versions);
                state.greatest = state.greatest.max(there.greatest());
                let wanted = state.wanted(&here);
                next = wanted.first().copied();
                state.waiting = wanted.into_iter().collect();
            });
            let Some(epoch) = next else { break };
            match self.copy(&to, Epoch(epoch), &mut there) {
                Err(CopyError::Source(error)) => {
                    // One that was removed meanwhile needs no word.
                    if shared.local.numbers().is_ok_and(|here| here.contains(&epoch)) {
                        problem = Some(bounded(format!("image {epoch} stays where it is: {error}")));
                    }
                    self.change(|state| {
                        state.unusable.insert(epoch);
                    });
                }
                Err(CopyError::Target(TierError::Full { .. }))
                    if home.is_none() && self.trim(&to, &mut there, Some(epoch))? => {}
                other => other?,
            }
        }
        self.change(|state| state.activity = Activity::Looking);
        match home {
            Some(memory) => self.leave_memory(memory)?,
            None => drop(self.trim(&to, &mut there, None)?),
        }
        self.tier = Some(to);
        Ok(problem)
    }

    /// What the job's folder has now is removed from memory, but for the newest images.
    fn leave_memory(&self, memory: &MemoryFirst) -> Result<(), CopyError> {
        let keep = if memory.is_written() { self.shared.keep_in_memory } else { 0 };
        memory.trim(keep).map(drop).map_err(CopyError::Source)
    }

    /// Looks once what there is on a tier that is only read, and says that nothing will come.
    fn read_only(&mut self, to: &TierFolder, why: String) -> Result<(), CopyError> {
        if std::mem::replace(&mut self.cleaned, true) {
            return Ok(());
        }
        self.change(|state| state.read_only = Some(why));
        self.change(|state| state.waiting.clear());
        let looked = to.inventory().map_err(CopyError::Target);
        self.cleaned = looked.is_ok();
        let there = looked?.versions;
        self.change(|state| state.versions = there);
        let state = self.shared.inner.lock().states[self.index].clone();
        (self.shared.on_failure)(&state, true);
        Ok(())
    }

    /// Removes what the rules no longer keep, or would no longer keep if a version were there that finds no room.
    /// Whether a version went.
    fn trim(
        &mut self,
        to: &TierFolder,
        there: &mut Inventory,
        coming: Option<u64>,
    ) -> Result<bool, CopyError> {
        self.learn_tables();
        let coming = coming.map(|number| (number, self.shared.local.table(number).unwrap_or_default()));
        let removed =
            remove::apply(to, there, (&self.spec.rules, self.shared.pinned), &mut self.tables, coming)?;
        if removed.is_some() {
            self.change(|state| {
                state.removed = state.removed.max(removed);
                state.versions.clone_from(&there.versions);
            });
        }
        Ok(removed.is_some())
    }

    /// The segment tables that need not be read from the tier.
    fn learn_tables(&mut self) {
        let versions = self.shared.inner.lock().states[self.index].versions.clone();
        for number in versions {
            if let Some(table) = self.shared.local.table(number) {
                self.tables.learn(number, table);
            }
        }
    }

    fn copy(&self, to: &TierFolder, epoch: Epoch, there: &mut Inventory) -> Result<(), CopyError> {
        let recipe = self.shared.job.dir().join("job.json");
        let recipe = files::read_checked(&recipe, MAX_RECIPE_LEN).map_err(|error| {
            CopyError::Source(TierError::Settings { object: "job.json".into(), why: error.to_string() })
        })?;
        let pace = WorkerPace { worker: self, epoch: epoch.0 };
        let recipe = (!self.spec.is_local()).then_some(&recipe[..]);
        let copier = Copier { from: self.shared.job.folder(), to, way: Way::Down, pace: &pace };
        copier.version(epoch, recipe, there).map(drop)
    }

    /// Changes the state of the tier; what a listing says of it is written down.
    fn change(&self, change: impl FnOnce(&mut TierState)) {
        let mut inner = self.shared.inner.lock();
        let state = &mut inner.states[self.index];
        let told = |state: &TierState| {
            let TierState { versions, waiting, error, read_only, greatest, .. } = state;
            (versions.clone(), waiting.clone(), error.clone(), read_only.clone(), *greatest)
        };
        let before = told(state);
        change(state);
        state.moved = Instant::now();
        let is_news = told(state) != before;
        drop(inner);
        self.shared.changed.notify_all();
        if is_news {
            self.shared.write_record();
        }
    }
}

impl Shared {
    fn write_record(&self) {
        let _recording = self.recording.lock();
        let states = self.inner.lock().states.clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let tier = |state: &TierState| TierRecord {
            tier: state.spec.address.clone(),
            versions: state.versions.iter().copied().collect(),
            waiting: state.waiting.iter().copied().collect(),
            error: state.error.clone(),
            read_only: state.read_only.clone(),
            greatest: state.greatest,
            known_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
        };
        let record = TiersRecord { tiers: states.iter().map(tier).collect() };
        // Advice only: what cannot be written is not known.
        let _ = record.write(&self.job);
    }
}

/// Progress and speed of one copy.
struct WorkerPace<'a> {
    worker: &'a Worker,
    epoch: u64,
}

impl Pace for WorkerPace<'_> {
    fn begin(&self, total: u64) {
        self.worker.change(|state| {
            state.activity = Activity::Copying { epoch: self.epoch, done: 0, total };
        });
    }

    fn pass(&self, bytes: u64) -> bool {
        let wait = self.worker.link.as_ref().map(|link| link.take(bytes)).filter(|wait| !wait.is_zero());
        if let Some(wait) = wait {
            self.worker.wait(Some(Instant::now() + wait), |_| false);
        }
        let mut inner = self.worker.shared.inner.lock();
        let state = &mut inner.states[self.worker.index];
        state.moved = Instant::now();
        !inner.stopping
    }

    fn done(&self, bytes: u64) {
        let mut inner = self.worker.shared.inner.lock();
        let state = &mut inner.states[self.worker.index];
        if let Activity::Copying { done, .. } = &mut state.activity {
            *done += bytes;
        }
        state.moved = Instant::now();
    }

    fn packing(&self) -> Option<&Packing> {
        self.worker.packing.as_ref()
    }

    /// An image that is removed while it is copied to the job's own folder must not be there afterwards: what it names
    /// may be gone.
    fn commit(&self, commit: &mut dyn FnMut() -> Result<(), CopyError>) -> Result<(), CopyError> {
        let _settled = self.worker.spec.is_local().then(|| self.worker.shared.job.settle());
        let folder = self.worker.shared.job.folder();
        let name = folder.blob(&names::manifest_name(Epoch(self.epoch)));
        match name.map(|name| folder.tier().open(&name)) {
            Ok(Err(error @ TierError::NotFound { .. })) => Err(CopyError::Source(error)),
            _ => commit(),
        }
    }

    fn piece(&self) -> u64 {
        self.worker.spec.rate.map_or(u64::MAX, |rate| rate / 8)
    }
}

/// As much of a message as a listing can bear.
fn bounded(message: String) -> String {
    const MOST: usize = 500;
    if message.chars().count() <= MOST {
        message
    } else {
        message.chars().take(MOST).chain(['…']).collect()
    }
}
