//! The thread of one tier: copies what the tier is to get, removes what it keeps no longer, and tries again what fails.
//!
//! Started by [`super::cascade`]. Invariants: those of the cascade; what is there is listed anew in each round; nothing
//! is removed before all that is wanted is there, but for room.
//! Fails by: the state of its tier ([`super::shared`]).

use super::TierSpec;
use super::backoff::{Backoff, chance};
use super::copy::{self, Copier, CopyError, Pace, Way};
use super::inventory::Inventory;
use super::local::Here;
use super::others::{Identities, OtherImage};
use super::packing::Packing;
use super::remove::{self, SegmentTables};
use super::shared::{Activity, Inner, Shared, TierState};
use crate::catalog::SegmentKey;
use crate::files::MAX_RECIPE_LEN;
use crate::format::manifest::SegmentEntry;
use crate::link::Link;
use crate::tier::TierError;
use crate::{MemoryFirst, TierFolder, files, names};
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// A copy of fewer bytes tells of the connection, not of its speed.
const TELLING: u64 = 1 << 20;

/// The thread of one tier.
pub(super) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    spec: TierSpec,
    link: Option<Link>,
    packing: Option<Packing>,
    tier: Option<TierFolder>,
    tables: SegmentTables,
    identities: Identities,
    /// Segments there that are another image's than ours of the same name.
    foreign: BTreeSet<SegmentKey>,
    backoff: Backoff,
    /// What an agent that died left unfinished was removed.
    cleaned: bool,
    has_failed: bool,
    /// That it has another run's images was told.
    has_told: bool,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Worker {
        let spec = shared.inner.lock().states[index].spec.clone();
        let link = spec.rate.map(|rate| Link::new(&spec.name(), rate));
        // The store itself is mapped by restarts.
        let packing = (shared.pack && !spec.is_store()).then(|| Packing::new(spec.rate));
        let (tier, tables, backoff) = (None, SegmentTables::default(), Backoff::default());
        Worker {
            shared,
            index,
            spec,
            link,
            packing,
            tier,
            tables,
            identities: Identities::default(),
            foreign: BTreeSet::new(),
            backoff,
            cleaned: false,
            has_failed: false,
            has_told: false,
        }
    }

    pub(super) fn run(mut self) {
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
            if let Ok(here) = self.shared.local.look() {
                self.change(|state| state.waiting = state.wanted(&here.good).into_iter().collect());
            }
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
        self.change(|state| {
            state.activity = Activity::Looking;
            state.unusable.clear();
        });
        let shared = Arc::clone(&self.shared);
        let home = shared.job.memory().filter(|_| self.spec.is_store());
        let to = self.open(home.is_some())?;
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
        if there.versions.is_empty() && !shared.inner.lock().states[self.index].versions.is_empty() {
            // Its file system may have gone: the folder that would be made now is another one.
            drop((shared.open)(&self.spec).map_err(CopyError::Target)?);
        }
        let problem = self.copy_wanted(&to, &mut there, home.is_some())?;
        let single_writer = to.tier().info().single_writer.clone();
        self.change(|state| {
            state.activity = Activity::Looking;
            state.single_writer = single_writer.or(state.single_writer.take());
        });
        match home {
            Some(memory) => self.leave_memory(memory)?,
            None => {
                self.trim(&to, &mut there, None)?;
                self.mark_end(&to, &there)?;
            }
        }
        self.tier = Some(to);
        problem.end()
    }

    /// Copies what is wanted, the newest first. Returns what is wrong with what was not. `is_home`: the tier is the
    /// job's own folder.
    fn copy_wanted(
        &mut self,
        to: &TierFolder,
        there: &mut Inventory,
        is_home: bool,
    ) -> Result<Problem, CopyError> {
        let shared = Arc::clone(&self.shared);
        self.foreign.retain(|key| there.segments.contains_key(key));
        let (mut problem, mut is_fresh) = (Problem::default(), true);
        // What cannot go there, for the place of it or of a part of it is another's. It waits all the same.
        let mut blocked = BTreeSet::new();
        loop {
            if is_home && !std::mem::take(&mut is_fresh) {
                // The agent writes there too.
                *there = to.inventory().map_err(CopyError::Target)?;
            }
            let here = shared.local.look().map_err(CopyError::Source)?;
            let others = if is_home { BTreeMap::new() } else { self.look_for_others(to, there)? };
            shared.local.forget_lost(there, &|number| others.contains_key(&number));
            let mut wanted = Vec::new();
            self.change(|state| {
                state.has(there, others.clone());
                wanted = state.wanted(&here.good);
                state.waiting = wanted.iter().copied().collect();
            });
            let may_go = |number: &&u64| !blocked.contains(*number) && !others.contains_key(*number);
            let Some(epoch) = wanted.iter().find(may_go).copied() else {
                self.note_bad(&here, &mut problem);
                problem.note_others(&wanted, &others);
                break;
            };
            match self.copy(to, Epoch(epoch), there) {
                Err(error @ CopyError::Foreign { .. }) => {
                    problem.said = Some(stays(epoch, &error));
                    blocked.insert(epoch);
                }
                Err(CopyError::Source(error)) => {
                    // One that was removed meanwhile needs no word.
                    if shared.local.look().map_or(true, |here| here.has(epoch)) {
                        problem.note(epoch, error);
                    }
                    self.change(|state| {
                        state.unusable.insert(epoch);
                    });
                }
                Err(CopyError::Target(TierError::Full { .. }))
                    if !is_home && self.trim(to, there, Some(epoch))? => {}
                copied => copied?,
            }
        }
        Ok(problem)
    }

    /// Tells the tier whether the run has come to its end. Of what another host has made newer than all here nothing is
    /// known.
    fn mark_end(&self, to: &TierFolder, there: &Inventory) -> Result<(), CopyError> {
        let newest = there.versions.last().copied().unwrap_or(0);
        let own = self.shared.local.look().map_err(CopyError::Source)?.good.last().copied().unwrap_or(0);
        let is_ours =
            newest <= own && !self.shared.inner.lock().states[self.index].others.contains_key(&newest);
        if newest == 0 || !is_ours {
            return Ok(());
        }
        let is_over = (self.shared.is_over)();
        let blob = |number: u64| to.blob(&names::end_name(Epoch(number))).map_err(CopyError::Target);
        for &number in there.ends.iter().filter(|number| !is_over || **number != newest) {
            to.tier().remove(&blob(number)?).map_err(CopyError::Target)?;
        }
        if !is_over || there.ends.contains(&newest) {
            return Ok(());
        }
        match to.tier().publish(&blob(newest)?, &[]) {
            Ok(()) | Err(TierError::Exists { .. }) => Ok(()),
            Err(error) => Err(CopyError::Target(error)),
        }
    }

    /// The tier's folder; one that was open already if nothing failed there.
    fn open(&mut self, is_home: bool) -> Result<TierFolder, CopyError> {
        let shared = &self.shared;
        match self.tier.take() {
            Some(to) => Ok(to),
            None if is_home => Ok(shared.job.store_folder().clone()),
            None => {
                let tier = (shared.open)(&self.spec).map_err(CopyError::Target)?;
                TierFolder::of(tier, &shared.folder).map_err(CopyError::Target)
            }
        }
    }

    /// Images there that have numbers of ours and are not ours. The first is told.
    fn look_for_others(
        &mut self,
        to: &TierFolder,
        there: &mut Inventory,
    ) -> Result<BTreeMap<u64, OtherImage>, CopyError> {
        let shared = Arc::clone(&self.shared);
        let ours = |number: u64| shared.local.identity(number);
        let others = self.identities.others(to, there, &ours, shared.host_of).map_err(CopyError::Target)?;
        if let Some(first) = others.values().next()
            && !std::mem::replace(&mut self.has_told, true)
        {
            (shared.on_other)(&self.spec, first);
        }
        Ok(others)
    }

    /// A part of ours whose name another image's has there, as far as that was seen.
    fn foreign_part(&self, epoch: u64) -> Option<SegmentKey> {
        let table = self.shared.local.table(epoch).filter(|_| !self.foreign.is_empty())?;
        table.iter().map(SegmentEntry::key).find(|key| self.foreign.contains(key))
    }

    /// Images of which not even the manifest can be read, as far as the tier would get them.
    fn note_bad(&self, here: &Here, problem: &mut Problem) {
        if here.bad.is_empty() {
            return;
        }
        let all = here.good.iter().chain(here.bad.keys()).copied().collect();
        let wanted = self.shared.inner.lock().states[self.index].wanted(&all);
        for number in wanted {
            if let Some(error) = here.bad.get(&number) {
                problem.note(number, error.again());
            }
        }
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
        let looked = to.inventory().map_err(CopyError::Target).and_then(|mut there| {
            self.shared.local.look().map_err(CopyError::Source)?;
            Ok((self.look_for_others(to, &mut there)?, there))
        });
        self.cleaned = looked.is_ok();
        let (others, there) = looked?;
        self.change(|state| state.has(&there, others));
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
        let others: BTreeMap<u64, OtherImage> = self.shared.inner.lock().states[self.index].others.clone();
        let theirs = others.keys().copied().collect();
        self.tables.are_others(&theirs);
        let rules = (&self.spec.rules, self.shared.pinned, &theirs);
        let removed = remove::apply(to, there, rules, &mut self.tables, coming)?;
        if removed.is_some() {
            self.change(|state| {
                state.removed = state.removed.max(removed);
                state.has(there, others);
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

    /// Copies one version, unless it is known that a part of it has no place there.
    fn copy(&mut self, to: &TierFolder, epoch: Epoch, there: &mut Inventory) -> Result<(), CopyError> {
        if let Some(part) = self.foreign_part(epoch.0) {
            return Err(copy::foreign(to, Some(part), epoch));
        }
        let copied = self.copy_now(to, epoch, there);
        match &copied {
            Ok(()) => self.identities.is_ours(epoch.0),
            Err(CopyError::Foreign { segment: Some(segment), .. }) => drop(self.foreign.insert(*segment)),
            // Another host's came there meanwhile.
            Err(CopyError::Foreign { segment: None, .. }) => drop(there.versions.insert(epoch.0)),
            Err(_) => {}
        }
        copied
    }

    fn copy_now(&self, to: &TierFolder, epoch: Epoch, there: &mut Inventory) -> Result<(), CopyError> {
        let recipe = self.shared.job.dir().join("job.json");
        let recipe = files::read_checked(&recipe, MAX_RECIPE_LEN).map_err(|error| {
            CopyError::Source(TierError::Settings { object: "job.json".into(), why: error.to_string() })
        })?;
        let pace = WorkerPace { worker: self, epoch: epoch.0 };
        let recipe = (!self.spec.is_store()).then_some(&recipe[..]);
        let copier = Copier { from: self.shared.job.folder(), to, way: Way::Down, pace: &pace };
        let begun = Instant::now();
        let copied = copier.version(epoch, recipe, there)?;
        if copied.bytes >= TELLING {
            let now = copied.bytes as f64 / begun.elapsed().as_secs_f64().max(1e-3);
            self.change(|state| {
                // The last one says most: what is long ago is of another day's network.
                let speed = state.speed.map_or(now, |before| before as f64 / 4.0 + now * 0.75);
                state.speed = Some(speed as u64);
            });
        }
        Ok(())
    }

    /// Changes the state of the tier; what a listing says of it is written down.
    fn change(&self, change: impl FnOnce(&mut TierState)) {
        let mut inner = self.shared.inner.lock();
        let state = &mut inner.states[self.index];
        let told = |state: &TierState| {
            let TierState { versions, others, waiting, error, read_only, single_writer, greatest, .. } =
                state;
            let why = (error.clone(), read_only.clone(), single_writer.clone());
            (versions.clone(), others.clone(), waiting.clone(), why, *greatest)
        };
        let before = told(state);
        change(state);
        state.moved = Instant::now();
        if told(state) != before {
            inner.unwritten = true;
        }
        drop(inner);
        self.shared.changed.notify_all();
        self.shared.write_record(false);
    }
}

fn stays(epoch: u64, why: &impl std::fmt::Display) -> String {
    bounded(format!("image {epoch} stays where it is: {why}"))
}

/// What is wrong with images at their source, or with their places on the tier.
#[derive(Default)]
struct Problem {
    said: Option<String>,
    /// One that may be over by itself.
    passing: Option<TierError>,
}

impl Problem {
    fn note(&mut self, epoch: u64, error: TierError) {
        self.said = Some(stays(epoch, &error));
        if error.is_transient() {
            self.passing = Some(error);
        }
    }

    /// Another run's images in the places of ours come before what follows from that.
    fn note_others(&mut self, wanted: &[u64], others: &BTreeMap<u64, OtherImage>) {
        if let Some(other) = others.values().find(|other| wanted.contains(&other.image)) {
            let why = format!("{other}; {}", other.remedy());
            self.said = Some(stays(other.image, &why));
        }
    }

    /// What may be over by itself is tried again, the rest when it is asked for.
    fn end(self) -> Result<Option<String>, CopyError> {
        self.passing.map_or(Ok(self.said), |error| Err(CopyError::Source(error)))
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
        let _settled = self.worker.spec.is_store().then(|| self.worker.shared.job.settle());
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
