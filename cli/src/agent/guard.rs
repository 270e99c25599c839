//! The agent's part in the redundancy between hosts: after each image of the gang, its parity of the others' streams,
//! made by a thread of its own while the program runs.
//!
//! Called where the image of the gang is made, and at the agent's end. Invariants: nothing of it is waited for by a
//! checkpoint, nor fails one; one set at a time is under way; what an image of the gang has as its protection is
//! written down by the leader when all members have said that their parity is there. Fails by: a warning at the leader,
//! and in all logs.

use crate::cascade::low_priority;
use crate::exit::Failure;
use crate::gang::folder::{GangFolder, Protected, Protections};
use crate::gang::guard::encode::{Desk, encode};
use crate::gang::guard::offer::{Known, Look, Offer, Plan, Said, look, plan};
use crate::gang::guard::peers::{Peers, Where};
use crate::gang::guard::shelf::Shelf;
use crate::gang::key::Key;
use crate::gang::seat::Seat;
use holdfast_image::Epoch;
use holdfast_sys::fault;
use holdfast_tiers::redundancy::{
    GroupFile, Protection, SetProblem, clean_heads, put_group, remove_set, sets,
};
use holdfast_tiers::{Job, JobLock};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long an agent whose program was ended by a checkpoint stays for the sake of its protection, at most.
const FINISHING: Duration = Duration::from_secs(3600);
/// How often it looks whether the others are still there.
const LOOK: Duration = Duration::from_millis(100);

/// Says something to the user.
pub type Voice = Box<dyn Fn(String) + Send + Sync>;

/// A set that is to be begun.
pub struct Task {
    /// Of this image of the gang.
    pub image: u64,
    file: GroupFile,
    /// Where the members of the group are read.
    at: BTreeMap<u32, Where>,
}

#[derive(Default)]
struct State {
    /// The image whose set is under way, until all have said how it went.
    now: Option<u64>,
    /// The number of this member's part in it.
    own: Option<u64>,
    /// What is to be begun.
    next: Option<Task>,
    /// What was written down of protected images when this member's part in a new one was looked at.
    known: Option<Protections>,
    /// Of the leader: what members have said of theirs.
    said: BTreeMap<u64, BTreeMap<u32, Option<String>>>,
    /// Of the leader: what is written down when all is well.
    record: Option<Protected>,
    /// The program was ended by a checkpoint: the set is waited for.
    is_last: bool,
    /// Sets of which a member has said that they are not whole: nothing new counts on them.
    broken: BTreeSet<String>,
}

/// See the head of the file.
pub struct Guard {
    protection: Protection,
    key: Key,
    shelf: Arc<Shelf>,
    seat: Arc<Seat>,
    folder: GangFolder,
    state: Mutex<State>,
    changed: Condvar,
    is_over: AtomicBool,
    /// Says something to the user.
    voice: OnceLock<Voice>,
}

impl Guard {
    /// Of a member that was started with `--protect`.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn new(
        protection: Protection,
        job: &Job,
        seat: &Arc<Seat>,
        folder: &GangFolder,
    ) -> Result<Arc<Guard>, Failure> {
        let key = folder.key()?;
        let shelf = Shelf::new(job, &key, low_priority)?;
        let (state, changed, is_over) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        let (seat, folder) = (Arc::clone(seat), folder.clone());
        let voice = OnceLock::new();
        let guard = Arc::new(Guard { protection, key, shelf, seat, folder, state, changed, is_over, voice });
        let ear = Arc::downgrade(&guard);
        guard.seat.hear_of_guards(Box::new(move |from, image, why| {
            if let Some(guard) = ear.upgrade() {
                guard.heard(from, image, why);
            }
        }));
        Ok(guard)
    }

    /// What this member says of its part when its image is committed, of which this is the manifest.
    ///
    /// # Errors
    /// In words: the image is not protected.
    pub fn offer(
        &self,
        job: &Job,
        lock: &JobLock,
        (epoch, manifest): (Epoch, &[u8]),
    ) -> Result<Offer, String> {
        let (busy, broken) = {
            let state = self.state.lock();
            (state.now.is_some(), state.broken.clone())
        };
        let looked = if busy {
            Look::default()
        } else {
            let records = self.folder.protections().map_err(|failure| failure.message)?;
            let looked = look(job, lock, (epoch, manifest), &Known { records: &records, broken: &broken })?;
            self.state.lock().known = Some(records);
            looked
        };
        let (protection, addresses) = (self.protection, self.shelf.addresses().to_vec());
        let Look { files, image_needs, needs, broken } = looked;
        Ok(Offer { protection, addresses, busy, files, image_needs, needs, broken })
    }

    /// The image of the gang is there: from now on the files of its set do not go, and its parity is made. `said`: what
    /// each member has offered, its host, its image. `is_last`: the program is ended now.
    pub fn prepare(
        self: &Arc<Guard>,
        (job, lock): (&Job, &JobLock),
        (image, set): (u64, &str),
        said: &[Said],
        is_last: bool,
    ) {
        let place = self.seat.place();
        let offers = said.iter().filter_map(|(offer, ..)| offer.as_ref()?.as_ref().ok());
        self.state.lock().broken.extend(offers.flat_map(|offer| offer.broken.keys().cloned()));
        let plan = match plan((&place.name, image, set), place.member, said) {
            Ok(plan) => plan,
            Err(why) => {
                let text = format!("image {image} of gang {} is not protected: {why}", place.name);
                // All members find that.
                if place.is_leader() {
                    self.say(text)
                } else {
                    tracing::warn!("{text}")
                }
                return clean(job, lock);
            }
        };
        let mut state = self.state.lock();
        state.is_last |= is_last;
        (state.now, state.own) = (Some(image), plan.file.own().map(|own| own.epoch));
        if place.is_leader() {
            let (protection, groups) = (plan.protection, plan.groups.clone());
            state.record = Some(Protected::new(&place.name, image, set, protection, groups));
        }
        drop(state);
        let begun = self
            .remove_unneeded((job, lock), &plan)
            .and_then(|()| put_group(job, lock, &plan.file).map_err(|error| error.to_string()));
        if let Err(why) = begun {
            tracing::warn!("image {image}: no parity: {why}");
            clean(job, lock);
            return self.tell(image, Some(why));
        }
        fault::point("guard-group");
        let where_of = |member: &u32| {
            let (offer, host, _) = said.get(usize::try_from(*member).ok()?)?;
            let addresses = offer.as_ref()?.as_ref().ok()?.addresses.clone();
            Some((*member, Where { host: host.clone(), addresses }))
        };
        let group = plan.file.members.iter().map(|one| one.member).collect::<Vec<_>>();
        let at = group.iter().filter_map(where_of).collect();
        self.state.lock().next = Some(Task { image, file: plan.file, at });
    }

    /// From now on the user is told.
    pub fn attach(&self, voice: Voice) {
        let _ = self.voice.set(voice);
    }

    fn say(&self, text: String) {
        match self.voice.get() {
            Some(voice) => voice(text),
            None => tracing::warn!("{text}"),
        }
    }

    /// This member's image whose parity is being made.
    pub fn under_way(&self) -> Option<u64> {
        let state = self.state.lock();
        state.own.filter(|_| state.now.is_some())
    }

    /// What is to be begun, if there is anything.
    pub fn next(&self) -> Option<Task> {
        self.state.lock().next.take()
    }

    /// Makes this member's parity, and says how that went.
    pub fn make(self: &Arc<Guard>, job: &Job, lock: &JobLock, task: &Task) {
        let begun = Instant::now();
        let is_wanted = || !self.is_over.load(Ordering::Relaxed);
        let desk = Desk { job, lock, is_wanted: &is_wanted };
        let made = Peers::new(&self.key, self.seat.host().to_owned(), task.at.clone())
            .and_then(|mut peers| encode(&desk, &task.file, &mut peers));
        let image = task.image;
        match &made {
            Ok(bytes) => tracing::info!("image {image}: {bytes} bytes of parity in {:?}", begun.elapsed()),
            Err(why) => tracing::warn!("image {image}: no parity: {why}"),
        }
        self.tell(image, made.err());
    }

    /// Says to the leader how this member's part went.
    pub fn tell(self: &Arc<Guard>, image: u64, why: Option<String>) {
        if self.seat.place().is_leader() {
            self.heard(0, image, why);
        } else {
            self.seat.say_guarded(image, why);
        }
    }

    /// Sets that no member needs go.
    fn remove_unneeded(&self, (job, lock): (&Job, &JobLock), plan: &Plan) -> Result<(), String> {
        let failed = |error: holdfast_tiers::StoreError| error.to_string();
        self.shelf.forget();
        let is_needed = |set: &String| plan.needed.contains(set) || *set == plan.file.set;
        if self.seat.place().is_leader() {
            // No set was under way since they were read, and no one else writes them.
            let known = self.state.lock().known.take().unwrap_or_default();
            let newest = known.iter().rev().find_map(|(number, one)| one.is_ok().then_some(*number));
            // What is written down of one that is damaged goes when there is a newer one.
            let goes = |(number, one): &(&u64, &Result<Protected, String>)| match one {
                Ok(one) => !is_needed(&one.set),
                Err(_) => newest.is_some_and(|newest| **number < newest),
            };
            for (number, _) in known.iter().filter(goes) {
                self.folder.unprotect(*number).map_err(|failure| failure.message)?;
            }
        }
        let all = sets(job).map_err(failed)?;
        let there: BTreeSet<&String> = all.iter().flat_map(|set| &set.file).map(|file| &file.set).collect();
        // One that is damaged may be any that is needed and not seen here.
        let all_seen = plan.needed.iter().all(|set| there.contains(set));
        for set in &all {
            let goes = match &set.file {
                Ok(file) => !is_needed(&file.set),
                Err(SetProblem::Damaged(_)) => all_seen,
                Err(SetProblem::Unseen(_)) => false,
            };
            if goes {
                remove_set(job, lock, set.number).map_err(failed)?;
            }
        }
        clean_heads(job, lock, plan.file.own().map(|own| own.epoch)).map(drop).map_err(failed)
    }

    /// A member has said how its part went; from the leader: how it went for all.
    fn heard(self: &Arc<Guard>, from: u32, image: u64, why: Option<String>) {
        if !self.seat.place().is_leader() {
            return self.ended(image, why.as_deref());
        }
        let mut state = self.state.lock();
        state.said.entry(image).or_default().insert(from, why);
        let all = state.said.get(&image).map_or(0, BTreeMap::len);
        if state.now != Some(image) || all != self.seat.place().members as usize {
            return;
        }
        let said = state.said.remove(&image).unwrap_or_default();
        let record = state.record.take();
        drop(state);
        // The disk is waited for, and who reads a connection waits for nothing else.
        let (of_thread, lines) = (Arc::clone(self), said.clone());
        let closing = move || of_thread.close(image, said, record);
        if let Err(error) = thread::Builder::new().name("guard-close".into()).spawn(closing) {
            tracing::warn!("image {image}: starting a thread: {error}");
            let none = lines.into_keys().next().map(|member| (member, Some(error.to_string())));
            self.close(image, none.into_iter().collect(), None);
        }
    }

    /// Of the leader: all have said how it went; it is written down, and all are told.
    fn close(&self, image: u64, said: BTreeMap<u32, Option<String>>, record: Option<Protected>) {
        let hosts = self.seat.hosts();
        let failed = said.into_iter().find_map(|(member, why)| {
            let host = usize::try_from(member).ok().and_then(|at| hosts.get(at).cloned()).unwrap_or_default();
            Some(format!("member {member} on {host}: {}", why?))
        });
        let why = failed.or_else(|| {
            let written = record.map_or(Ok(()), |record| self.folder.protect(&record));
            written.err().map(|failure| failure.message)
        });
        self.seat.say_guarded(image, why.clone());
        self.ended(image, why.as_deref());
    }

    fn ended(&self, image: u64, why: Option<&str>) {
        let name = &self.seat.place().name;
        match why {
            None => tracing::info!("image {image} of gang {name} is protected"),
            Some(why) => {
                let text = format!("image {image} of gang {name} is not protected: {why}");
                if self.seat.place().is_leader() { self.say(text) } else { tracing::warn!("{text}") }
            }
        }
        let mut state = self.state.lock();
        if state.now == Some(image) {
            state.now = None;
        }
        self.changed.notify_all();
    }

    /// The agent ends: what is under way is waited for if the program is to go on from that image, else given up.
    pub fn leave(&self) {
        let begun = Instant::now();
        let mut state = self.state.lock();
        while state.now.is_some() && state.is_last && begun.elapsed() < FINISHING && self.seat.is_whole() {
            self.changed.wait_for(&mut state, LOOK);
        }
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The image is not protected: nothing of that stays.
fn clean(job: &Job, lock: &JobLock) {
    if let Err(error) = clean_heads(job, lock, None) {
        tracing::warn!("what an image that is not protected has left: {error}");
    }
}
