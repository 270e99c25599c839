//! `holdfast serve`: an agent without a program. It keeps the objects that programs put themselves: memory first, then
//! the store, then what is below it.
//!
//! Started by the first client of a store on a host (`compat/objects`), or by hand; ends with the last one, when all
//! that was put is in the store. Threads: one for each client, one down, one up ([`workers`], [`fetching`]). What it
//! knows is in [`state`], what the store has of a rank in [`ranks`], what lies in memory in [`buffers`], what servers
//! of other stores have left there in [`leftovers`].
//! Invariants: one server for a store and host (a lock); a version that was put outlives client and server, and with
//! the store it outlives the host; only processes of this user are answered.

mod buffers;
mod ensemble;
mod fetching;
mod leftovers;
pub mod ranks;
mod session;
mod state;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
mod workers;

use crate::args::ServeArgs;
use crate::exit::{Exit, Failure};
use crate::{cascade, names, sharing};
use buffers::{Buffer, Buffers};
use ensemble::Course;
use holdfast_objects::buffer::State as BufferState;
use holdfast_objects::wire;
use holdfast_sys::{attributes, fd, poll, unix_socket};
use holdfast_tiers::policy::{Event, PolicyError};
use holdfast_tiers::{Share, Store};
use parking_lot::{Condvar, Mutex, MutexGuard};
use ranks::Rank;
use state::{Held, MEMORY, Set, State, defect};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a server without clients waits for the next one: the ranks of a program do not begin at once.
const IDLE: Duration = Duration::from_secs(5);
/// How often it is looked whether it may end, and whether a client that waits has gone.
const LOOK: Duration = Duration::from_millis(200);

/// What the threads share.
pub(super) struct Server {
    store: Store,
    /// With the agents of its jobs.
    share: Arc<Share>,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a rank is opened.
    opening: Mutex<u64>,
}

/// What a client opens.
pub(super) struct Opening<'a> {
    set: &'a str,
    rank: u32,
    ranks: u32,
    tiers: &'a [String],
    keep: Option<u64>,
    run: Option<u64>,
    /// The highest version that it has put in that run.
    highest: Option<u64>,
}

/// What it gets.
pub(super) struct Opened {
    client: u64,
    run: u64,
}

/// Serves the store until no client is left.
///
/// # Errors
/// It cannot begin.
pub fn run(args: &ServeArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = names::open_store(root)?;
    let folder = store.objects_folder()?;
    let Some(_lock) = lock(&folder)? else { return Ok(()) };
    log_to(&folder)?;
    attributes::leave_no_core();
    attributes::allow_descriptors();
    let share = sharing::of(&store);
    let mut room = Ok(0);
    share.claim(|others| {
        room = args.memory.map_or_else(|| buffers::usual_room(others), Ok);
        *room.as_ref().unwrap_or(&0)
    });
    let room = room?;
    let (buffers, left) = Buffers::open(store.root(), room, Arc::clone(&share))?;
    let (own, all) = buffers.folders();
    let server = Arc::new(Server {
        state: Mutex::new(State::new(buffers, room)),
        store,
        share,
        changed: Condvar::new(),
        opening: Mutex::new(0),
    });
    server.recover(left)?;
    let socket = wire::socket(server.store.root());
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Failure::system(format_args!("removing {}", socket.display()), &error));
        }
        _ => {}
    }
    let listener = unix_socket::listen(&socket)
        .map_err(|error| Failure::system(format_args!("listening at {}", socket.display()), &error))?;
    for (name, work) in [("down", Server::down as fn(&Server)), ("up", Server::up)] {
        let server = Arc::clone(&server);
        spawn(name, move || {
            cascade::low_priority();
            work(&server);
        })?;
    }
    // A folder that a store was in may be on a file system that does not answer: nothing waits for this.
    spawn("sweep", move || {
        cascade::low_priority();
        leftovers::sweep(&all, &own);
    })?;
    server.accept(&listener);
    let _ = fs::remove_file(&socket);
    server.leave();
    Ok(())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let made = thread::Builder::new().name(name.into()).spawn(work);
    made.map(drop).map_err(|error| Failure::system(format_args!("starting the thread {name}"), &error))
}

/// The right to serve; `None`: another server has it.
fn lock(folder: &Path) -> Result<Option<File>, Failure> {
    let path = folder.join("serve.lock");
    let failed = |error: &io::Error| Failure::system(format_args!("locking {}", path.display()), error);
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&path).map_err(|error| failed(&error))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(&error)),
    }
}

/// Standard error becomes the server's log.
fn log_to(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("serve.log");
    let log = File::options().append(true).create(true).mode(0o600).open(&path);
    let log = log.map_err(|error| Failure::system(format_args!("opening {}", path.display()), &error))?;
    fd::replace(2, log.as_fd()).map_err(|error| Failure::system("opening the log", &error))?;
    let writer = move || crate::log::Bounded(path.clone());
    tracing_subscriber::fmt().with_ansi(false).with_writer(writer).init();
    Ok(())
}

impl Server {
    /// Waits for a change, or for the time at which the policy wants to be asked again.
    fn wait(&self, state: &mut MutexGuard<'_, State>) {
        let until = state.wake.map_or(LOOK, |wake| wake.saturating_duration_since(Instant::now()).min(LOOK));
        self.changed.wait_for(state, until);
        state.tick();
    }

    fn accept(self: &Arc<Server>, listener: &OwnedFd) {
        let mut idle_since = Instant::now();
        loop {
            if poll::readable(&[listener.as_fd()], Some(LOOK)).is_ok_and(|ready| ready == [true])
                && let Ok(socket) = unix_socket::accept(listener.as_fd())
            {
                let server = Arc::clone(self);
                // One that there is no thread for sees its connection closed.
                let _ = spawn("client", move || session::serve(&server, socket));
                idle_since = Instant::now();
            }
            let is_idle = {
                let state = self.state.lock();
                let has_clients = state.sets.values().any(|set| !set.clients.is_empty());
                !has_clients && (state.is_settled() || state.buffers.is_store_gone())
            };
            self.keep_profiles(false);
            if !is_idle || self.is_copying_down() {
                idle_since = Instant::now();
            } else if idle_since.elapsed() > IDLE {
                return;
            }
        }
    }

    /// Whether a lower tier is still to get something.
    fn is_copying_down(&self) -> bool {
        let ranks: Vec<Arc<Mutex<Rank>>> =
            self.state.lock().sets.values().flat_map(|set| set.members.values().cloned()).collect();
        ranks.iter().any(|rank| rank.try_lock().is_none_or(|rank| rank.is_busy()))
    }

    /// All that is in memory is in the store, too.
    fn leave(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        let in_memory: Vec<_> =
            state.held.iter().filter(|(_, held)| held.stored.is_some()).map(|(id, _)| *id).collect();
        in_memory.into_iter().for_each(|segment| state.leave_memory(segment));
        state.buffers.leave();
        drop(state);
        self.keep_profiles(true);
        self.changed.notify_all();
    }

    /// Opens a set for a rank.
    fn open(&self, opening: &Opening<'_>, socket: Arc<OwnedFd>) -> Result<Opened, Failure> {
        let mut clients = self.opening.lock();
        self.load(opening.set, opening.rank)?;
        self.begin(opening)?;
        *clients += 1;
        let mut state = self.state.lock();
        let set = state.sets.entry(opening.set.to_owned()).or_default();
        // Whose end was not read yet has gone all the same.
        set.clients.retain(|_, client| !fd::poll_for(client.as_fd(), 0).is_ok_and(|events| events != 0));
        if !set.clients.is_empty() && set.ranks != opening.ranks {
            let what = format!(
                "the set {} is open with {} ranks: it cannot be opened with {}",
                opening.set, set.ranks, opening.ranks
            );
            return Err(Failure::new(Exit::Refused, what));
        }
        let is_over =
            set.clients.is_empty() && (set.opened.contains(&opening.rank) || set.ranks != opening.ranks);
        if is_over || set.opened.is_empty() {
            set.begin_run(opening.run);
        } else if opening.run.is_some_and(|run| run != set.run) {
            let what = format!("another run of the set {} has begun; end this program", opening.set);
            return Err(Failure::new(Exit::Refused, what));
        }
        let unread = std::mem::take(&mut state.unread);
        let set = state.sets.entry(opening.set.to_owned()).or_default();
        if !unread.is_empty() {
            set.failures.entry(opening.rank).or_default().extend(unread);
        }
        set.ranks = opening.ranks;
        set.keep = opening.keep.or(set.keep);
        set.opened.insert(opening.rank);
        set.clients.insert(*clients, socket);
        let run = set.run;
        if opening.run.is_some() {
            state.undo(opening.set, opening.rank, (run, opening.highest));
        }
        Ok(Opened { client: *clients, run })
    }

    /// What the runs of ranks that have ended have shown is kept, or that of all.
    fn keep_profiles(&self, all: bool) {
        let over = {
            let mut state = self.state.lock();
            let mut courses = std::mem::take(&mut state.courses);
            let over = courses.take_over(|set, rank| state.is_pending(set, rank), all);
            state.courses = courses;
            over
        };
        over.iter().for_each(Course::keep);
    }

    /// A rank of a program begins a run: by the plan for the run before, if that is known.
    fn begin_course(&self, set: &str, rank: u32, pid: i32) {
        let Some(build) = ensemble::build_of(pid) else { return };
        let (source, room) = {
            let state = self.state.lock();
            let known = state.sets.get(set);
            let source = known.and_then(|set| set.sources.get(&rank).cloned());
            (source, state.room / u64::from(known.map_or(1, |set| set.ranks.max(1))))
        };
        let Some((job, _)) = source else { return };
        let last = self.state.lock().courses.take(set, rank);
        last.iter().for_each(Course::keep);
        let course = Course::begin(job, build, room);
        self.state.lock().courses.begin(set, rank, course);
    }

    /// A client has gone.
    fn close(&self, (set, rank): (&str, u32), client: u64) {
        let mut state = self.state.lock();
        state.courses.end(set, rank);
        if let Some(set) = state.sets.get_mut(set) {
            set.clients.remove(&client);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes note of what the store has of all ranks of a set, and of this one in any case.
    fn load(&self, name: &str, own: u32) -> Result<(), Failure> {
        let ranks: BTreeSet<u32> = self.store.ranks(name)?.into_iter().chain([own]).collect();
        for rank in ranks {
            let is_known =
                self.state.lock().sets.get(name).is_some_and(|set| set.members.contains_key(&rank));
            if is_known {
                continue;
            }
            let (opened, found, broken) = Rank::open(&self.store, name, rank)?;
            broken.iter().for_each(|why| tracing::warn!("{why}; this version is not offered"));
            let mut state = self.state.lock();
            let set = state.sets.entry(name.to_owned()).or_default();
            set.sources.insert(rank, opened.job());
            set.members.insert(rank, Arc::new(Mutex::new(opened)));
            for stored in found {
                state.found(name, rank, stored)?;
            }
        }
        Ok(())
    }

    /// Has a rank written from now on.
    fn begin(&self, opening: &Opening<'_>) -> Result<(), Failure> {
        let rank = {
            let state = self.state.lock();
            state.sets.get(opening.set).and_then(|set| set.members.get(&opening.rank).cloned())
        };
        let Some(rank) = rank else { return Ok(()) };
        let mut rank = rank.lock();
        rank.begin(&self.store, opening.ranks, opening.tiers)?;
        rank.share(&self.share);
        let source = rank.job();
        drop(rank);
        if let Some(set) = self.state.lock().sets.get_mut(opening.set) {
            set.sources.insert(opening.rank, source);
        }
        Ok(())
    }

    /// What a server that died had in memory alone is put once more, in the order in which it was put.
    fn recover(&self, left: Vec<Buffer>) -> Result<(), Failure> {
        let mut put = Vec::new();
        for buffer in left {
            match buffer.version() {
                Ok(Some((head, table, layout))) if head.state == BufferState::Put => {
                    put.push((head.age, buffer, (table, layout)));
                }
                Ok(_) => self.state.lock().buffers.give_up(buffer),
                Err(why) => self.state.lock().put_aside(&buffer, &why),
            }
        }
        put.sort_by_key(|(age, buffer, _)| (*age, buffer.number));
        for (_, buffer, (table, layout)) in put {
            let opening = Opening {
                set: &table.set,
                rank: table.rank,
                ranks: table.ranks,
                tiers: &[],
                keep: None,
                run: None,
                highest: None,
            };
            self.load(&table.set, table.rank)?;
            self.begin(&opening)?;
            self.adopt(buffer, (table, layout))?;
        }
        Ok(())
    }

    fn adopt(
        &self,
        buffer: Buffer,
        content: (holdfast_objects::buffer::Table, holdfast_objects::buffer::Layout),
    ) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let (table, layout) = &content;
        // The store may have it, or what was put under this number before: it is stored once more, in its place.
        let segment = state.new_segment();
        let bytes = layout.len;
        let held = Held::new(&table.set, table.rank, (table.version, table.run), bytes);
        tracing::info!("{}, rank {}, version {} was found in memory", held.set, held.rank, held.version);
        if let Some(set) = state.sets.get_mut(&table.set) {
            set.ranks = set.ranks.max(table.ranks);
        }
        let (buffer, content) = (Some(buffer), Some(Arc::new(content)));
        state.held.insert(segment, Held { buffer, content, ..held });
        state.publish(segment);
        let bytes = state.weight(bytes);
        match state.step(Event::Found { segment, bytes, tier: MEMORY }) {
            // There is less room than the server before had, or it has passed the cache by: as one that is put.
            Err(PolicyError::NoRoom(..)) => {
                state.step(Event::Write { segment, bytes, discardable: false }).map_err(defect)
            }
            done => done.map_err(defect),
        }
    }
}

impl Set {
    /// A new run, or the one that a client goes on with.
    fn begin_run(&mut self, run: Option<u64>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let last = self.versions.keys().map(|(_, run)| *run).max().unwrap_or(0).max(self.run);
        self.run = run.unwrap_or_else(|| now.max(last.saturating_add(1)));
        self.opened.clear();
        // Hints of a program that has ended.
        self.promised.clear();
    }
}
