//! The server with clients of its own, over real sockets and a real store.

mod ahead;
mod ensemble;
mod fetching;
mod groups;
mod hints;
mod restarted;
mod shared;

use super::buffers::Buffers;
use super::state::{MEMORY, State};
use super::{Server, session, spawn};
use holdfast_objects::buffer::{HEAD, Layout, Object, State as BufferState, Table};
use holdfast_objects::wire::{self, Answer, PROTOCOL, Request};
use holdfast_tiers::Store;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes of the one object of each version.
const BYTES: u64 = 64 << 10;

/// A store of its own; its server ends, and all that is left of both goes, when it is dropped.
struct World {
    root: PathBuf,
    server: Arc<Server>,
    /// How many versions the sets keep.
    keep: Option<u64>,
}

impl World {
    /// With room for so many versions in memory.
    fn new(room: u64) -> World {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("holdfast-serve-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        World::at(root, room)
    }

    fn at(root: PathBuf, room: u64) -> World {
        World::with(root, room, &[Server::down, Server::up])
    }

    fn with(root: PathBuf, room: u64, workers: &[fn(&Server)]) -> World {
        let store = Store::open(&root).unwrap();
        store.objects_folder().unwrap();
        let room = room * layout(0, 0, 1, 0).len;
        let share = crate::sharing::of(&store);
        let (buffers, left) = Buffers::open(&root, room, Arc::clone(&share)).unwrap();
        let state = Mutex::new(State::new(buffers, room));
        let server =
            Arc::new(Server { state, store, share, changed: Condvar::new(), opening: Mutex::new(0) });
        server.recover(left).unwrap();
        for work in workers.iter().copied() {
            let server = Arc::clone(&server);
            spawn("worker", move || work(&server)).unwrap();
        }
        World { root, server, keep: None }
    }

    fn client(&self, rank: u32, ranks: u32) -> Client {
        self.going_on(rank, ranks, None, None)
    }

    /// A client that goes on with a run.
    fn going_on(&self, rank: u32, ranks: u32, run: Option<u64>, highest: Option<u64>) -> Client {
        let (own, theirs) = holdfast_sys::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let server = Arc::clone(&self.server);
        thread::spawn(move || session::serve(&server, theirs));
        let mut client = Client { socket: own, rank, ranks, run: 0, files: BTreeMap::new() };
        let (protocol, set) = (PROTOCOL, "set".to_owned());
        let (tiers, keep) = (Vec::new(), self.keep);
        let open = Request::Open { protocol, set, rank, ranks, tiers, keep, run, highest };
        match client.ask(&open) {
            Answer::Opened { run } => client.run = run,
            other => panic!("{other:?}"),
        }
        client
    }

    /// With a client that is its only rank.
    fn into_client(self) -> (World, Client) {
        let client = self.client(0, 1);
        (self, client)
    }

    /// Versions of rank 0 that are in memory.
    fn in_memory(&self) -> Vec<u64> {
        let state = self.server.state.lock();
        let held = state.held.values().filter(|held| held.rank == 0 && held.buffer.is_some());
        let mut versions: Vec<u64> = held.map(|held| held.version).collect();
        versions.sort_unstable();
        versions
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&World) -> bool) {
        for _ in 0..6000 {
            if is_so(self) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("{what}: in memory are {:?}", self.in_memory());
    }

    /// As if the server had been killed: nothing is brought anywhere any more.
    fn kill(&self) {
        self.server.state.lock().stopping = true;
        self.server.changed.notify_all();
    }

    /// The server that comes after one that was killed, when all of its clients have gone; with so much room.
    fn next(self, room: u64) -> World {
        self.kill();
        self.wait_until("the clients have gone", |world| {
            let state = world.server.state.lock();
            state.sets.values().all(|set| set.clients.is_empty())
        });
        // The locks of its ranks go with a server that is killed, and that of its buffers.
        let mut state = self.server.state.lock();
        state.sets.clear();
        state.buffers.unlock();
        drop(state);
        let next = World::at(self.root.clone(), room);
        std::mem::forget(self);
        next
    }

    /// The folder of its buffers.
    fn buffers(&self) -> PathBuf {
        self.server.state.lock().buffers.folders().0
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.leave();
        super::leftovers::remove(&self.buffers());
        let _ = fs::remove_dir_all(&self.root);
    }
}

struct Client {
    socket: OwnedFd,
    rank: u32,
    ranks: u32,
    run: u64,
    files: BTreeMap<u64, File>,
}

fn table(rank: u32, ranks: u32, version: u64, run: u64) -> Table {
    let objects = vec![Object { key: "x".into(), bytes: BYTES, element: 8 }];
    Table { set: "set".into(), rank, ranks, version, run, objects }
}

/// All tables of these tests are of one length, so that all buffers are.
fn layout(rank: u32, version: u64, ranks: u32, run: u64) -> Layout {
    Layout::of(&table(rank, ranks, version, run)).unwrap()
}

fn content(rank: u32, version: u64, run: u64) -> Vec<u8> {
    let seed = run ^ (version << 8) ^ u64::from(rank);
    (0..BYTES / 8).flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed).to_le_bytes()).collect()
}

impl Client {
    fn tell(&self, request: &Request) {
        wire::send(self.socket.as_fd(), request, None).unwrap();
    }

    fn ask(&mut self, request: &Request) -> Answer {
        self.tell(request);
        // Who waits longer waits for ever.
        let answered = holdfast_sys::poll::readable(&[self.socket.as_fd()], Some(Duration::from_secs(60)));
        assert_eq!(answered.unwrap(), [true], "{request:?}: no answer");
        let (answer, passed) = wire::receive(self.socket.as_fd()).unwrap().unwrap();
        if let (Answer::Buffer { buffer, .. }, Some(passed)) = (&answer, passed) {
            self.files.insert(*buffer, passed.into());
        }
        answer
    }

    fn room(&mut self, version: u64) -> u64 {
        let bytes = layout(self.rank, version, self.ranks, self.run).len;
        match self.ask(&Request::Room { version, bytes }) {
            Answer::Buffer { buffer, .. } => buffer,
            other => panic!("{other:?}"),
        }
    }

    fn put(&mut self, version: u64) {
        let buffer = self.room(version);
        let (layout, file) = (layout(self.rank, version, self.ranks, self.run), &self.files[&buffer]);
        file.write_all_at(&content(self.rank, version, self.run), layout.places[0]).unwrap();
        file.write_all_at(&layout.table, HEAD).unwrap();
        file.write_all_at(&layout.head(BufferState::Put), 0).unwrap();
        self.tell(&Request::Put { buffer, ahead: false });
    }

    /// What was restored; of which run.
    fn restore(&mut self, version: u64) -> Result<u64, Answer> {
        let buffer = match self.ask(&Request::Restore { version }) {
            Answer::Buffer { buffer, .. } => buffer,
            other => return Err(other),
        };
        let file = &self.files[&buffer];
        let mut head = [0; HEAD as usize];
        file.read_exact_at(&mut head, 0).unwrap();
        let head = holdfast_objects::buffer::Head::decode(&head).unwrap();
        let mut bytes = vec![0; usize::try_from(head.table).unwrap()];
        file.read_exact_at(&mut bytes, HEAD).unwrap();
        let (table, layout) = head.table(&bytes).unwrap();
        let mut found = vec![0; usize::try_from(BYTES).unwrap()];
        file.read_exact_at(&mut found, layout.places[0]).unwrap();
        assert!(found == content(self.rank, version, table.run), "version {version}: not what was put");
        self.tell(&Request::Restored { buffer });
        Ok(table.run)
    }

    fn newest(&mut self) -> Option<u64> {
        match self.ask(&Request::Newest { below: None }) {
            Answer::Version(version) => version,
            other => panic!("{other:?}"),
        }
    }
}

/// First in, first out would evict what is wanted next, and so would least recently used.
#[test]
fn what_is_hinted_at_stays_in_memory_or_is_prefetched_and_what_is_not_goes() {
    let world = World::new(4);
    let mut client = world.client(0, 1);
    for version in 1..=8 {
        client.put(version);
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
    }
    assert_eq!(world.in_memory(), [5, 6, 7, 8]);
    // The oldest are wanted first.
    client.tell(&Request::Hint { version: 5 });
    client.tell(&Request::Hint { version: 6 });
    for version in [9, 10] {
        client.put(version);
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
    }
    assert_eq!(world.in_memory(), [5, 6, 9, 10], "what is new takes the place of what no hint is for");
    assert_eq!((client.restore(5), client.restore(6)), (Ok(client.run), Ok(client.run)));
    // What was restored makes room for what is prefetched.
    for version in [2, 1] {
        client.tell(&Request::Hint { version });
    }
    client.tell(&Request::Start);
    world.wait_until("what is hinted at is prefetched", |world| {
        let there = world.in_memory();
        there.contains(&1) && there.contains(&2)
    });
    assert_eq!(world.in_memory(), [1, 2, 9, 10]);
    // Nothing is lost by all that.
    for version in 1..=10 {
        assert_eq!(client.restore(version), Ok(client.run), "version {version}");
    }
}

#[test]
fn a_version_is_offered_when_all_ranks_have_put_it_in_one_run() {
    let world = World::new(100);
    {
        let mut clients: Vec<Client> = (0..3).map(|rank| world.client(rank, 3)).collect();
        assert!(clients.iter().all(|client| client.run == clients[0].run));
        for client in &mut clients {
            client.put(1);
        }
        clients[0].put(2);
        clients[1].put(2);
        for client in &mut clients {
            assert_eq!(client.ask(&Request::Wait), Answer::Done);
            assert_eq!(client.newest(), Some(1));
        }
        assert!(clients[0].restore(2).is_ok(), "its own part, in the run in which it was put");
        assert!(matches!(clients[2].restore(2), Err(Answer::Failed { .. })));
        assert_eq!(clients[2].restore(3), Err(Answer::Missing));
    }
    // The program is started again.
    let mut clients: Vec<Client> = (0..3).map(|rank| world.client(rank, 3)).collect();
    clients[2].put(2);
    assert_eq!(clients[2].ask(&Request::Wait), Answer::Done);
    assert_eq!(clients[0].newest(), Some(1), "parts of two runs are no whole version");
    clients[0].put(2);
    clients[1].put(2);
    for client in &mut clients {
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
        assert_eq!((client.newest(), client.restore(2)), (Some(2), Ok(client.run)));
        assert_ne!(client.restore(1), Ok(client.run));
    }
    drop(clients);
    // With other ranks there is nothing to go on from.
    assert_eq!(world.client(0, 2).newest(), None);
}

#[test]
fn what_was_put_outlives_the_server_and_what_was_being_filled_does_not() {
    let world = World::new(100);
    let run = {
        let mut client = world.client(0, 1);
        world.kill();
        client.put(1);
        client.put(2);
        client.room(3);
        // The messages were read: what was put is known.
        client.newest();
        client.run
    };
    let next = world.next(100);
    let mut client = next.client(0, 1);
    assert_ne!(client.run, run);
    assert_eq!(client.newest(), Some(2));
    assert_eq!((client.restore(1), client.restore(2)), (Ok(run), Ok(run)));
    assert_eq!(client.restore(3), Err(Answer::Missing));
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
}

/// As a client leaves it that puts a version once more and is killed with its server.
#[test]
fn of_two_buffers_of_one_version_the_newer_one_counts() {
    let world = World::new(100);
    let run = {
        let mut client = world.client(0, 1);
        world.kill();
        let buffer = client.room(1);
        let (layout, file) = (layout(0, 1, 1, client.run), &client.files[&buffer]);
        for (name, age, bytes) in
            [("90", 20_u64, content(0, 1, client.run)), ("91", 10, vec![0; usize::try_from(BYTES).unwrap()])]
        {
            file.write_all_at(&bytes, layout.places[0]).unwrap();
            file.write_all_at(&layout.table, HEAD).unwrap();
            file.write_all_at(&layout.head(BufferState::Put), 0).unwrap();
            file.write_all_at(&age.to_le_bytes(), holdfast_objects::buffer::AGE_AT).unwrap();
            // What is of a client that goes is given up.
            fs::copy(world.buffers().join(buffer.to_string()), world.buffers().join(name)).unwrap();
        }
        client.run
    };
    let (_world, mut client) = world.next(100).into_client();
    assert_eq!(client.restore(1), Ok(run));
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(client.restore(1), Ok(run));
}

#[test]
fn a_buffer_that_cannot_be_read_is_told_once_and_kept() {
    let world = World::new(100);
    let buffer = {
        let mut client = world.client(0, 1);
        let buffer = client.room(1);
        let layout = layout(0, 1, 1, client.run);
        client.files[&buffer].write_all_at(&layout.head(BufferState::Put), 0).unwrap();
        world.kill();
        // What is of a client that goes is given up.
        fs::copy(world.buffers().join(buffer.to_string()), world.buffers().join("99")).unwrap();
        buffer
    };
    assert_ne!(buffer, 99);
    let (world, mut client) = world.next(100).into_client();
    let answer = client.ask(&Request::Wait);
    assert!(matches!(&answer, Answer::Failed { why } if why.contains("99.unread")), "{answer:?}");
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert!(world.buffers().join("99.unread").exists());
    assert!(client.room(1) > 99);
}

/// Two clients that write to one buffer, or one that reads what another one writes.
#[test]
fn what_a_client_may_still_use_is_given_to_no_other() {
    let world = World::new(100);
    let (mut first, mut other) = (world.client(0, 2), world.client(1, 2));
    let filled = first.room(1);
    drop(first.socket);
    world.wait_until("it has gone", |world| world.server.state.lock().sets["set"].clients.len() == 1);
    assert_ne!(other.room(1), filled);
    let numbers: Vec<u64> = other.files.keys().copied().collect();
    drop(other);
    let world = world.next(100);
    let mut next = world.client(0, 2);
    assert!(numbers.iter().all(|number| next.room(1) != *number));
}

fn taken_over_with_room(room: u64) {
    let world = World::new(100);
    {
        let mut client = world.client(0, 1);
        world.kill();
        (1..=5).for_each(|version| client.put(version));
        client.newest();
    }
    // Room for none, or for some of them.
    let (_world, mut client) = world.next(room).into_client();
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(client.newest(), Some(5));
    assert!((1..=5).all(|version| client.restore(version).is_ok()));
}

#[test]
fn a_server_with_less_room_takes_over_what_was_put() {
    taken_over_with_room(2);
    taken_over_with_room(0);
}

#[test]
fn a_store_that_has_nothing_leaves_nothing_in_memory() {
    let (world, mut client) = World::new(100).into_client();
    (1..=3).for_each(|version| client.put(version));
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    let folder = world.buffers();
    assert!(folder.exists());
    assert_eq!(client.ask(&Request::Drop), Answer::Done);
    drop(client);
    world.server.leave();
    assert!(!folder.exists());
    // And one that is no more.
    let (world, mut client) = World::new(100).into_client();
    world.kill();
    client.put(1);
    client.newest();
    let folder = world.buffers();
    world.server.leave();
    assert!(folder.exists(), "what is in memory alone stays");
    fs::remove_dir_all(&world.root).unwrap();
    world.server.leave();
    assert!(!folder.exists());
}

#[test]
fn a_client_that_goes_takes_what_it_was_filling_with_it() {
    let world = World::new(2);
    for version in 1..=20 {
        let mut client = world.client(0, 1);
        client.put(version);
        client.room(version + 100);
        let number = client.room(version + 200);
        client.tell(&Request::Abandon { buffer: number });
        assert_eq!(client.newest(), Some(version));
    }
    let mut client = world.client(0, 1);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    world.wait_until("the buffers of all that have gone are free", |world| {
        world.server.state.lock().held.values().all(|held| held.content.is_some())
    });
    assert_eq!(client.ask(&Request::Drop), Answer::Done);
    assert_eq!((client.newest(), world.in_memory()), (None, vec![]));
}

/// A client that has such a buffer mapped would keep its memory.
#[test]
fn a_client_is_told_once_of_buffers_that_were_removed() {
    let world = World::new(100);
    let mut client = world.client(0, 1);
    client.put(1);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    let known: Vec<u64> = client.files.keys().copied().collect();
    // The folder stays for one that is in use.
    client.room(9);
    assert_eq!(client.ask(&Request::Drop), Answer::Done);
    world.wait_until("its buffer is free", |world| world.in_memory() == [9]);
    world.server.state.lock().buffers.leave();
    let gone = |client: &mut Client, version| match client.ask(&Request::Room { version, bytes: 1 << 20 }) {
        Answer::Buffer { gone, .. } => gone,
        other => panic!("{other:?}"),
    };
    assert_eq!(gone(&mut client, 2), known);
    assert!(gone(&mut client, 3).is_empty());
}

/// An image that builds on one that is not there any more could not be read.
#[test]
fn what_is_put_after_all_was_dropped_is_stored() {
    let world = World::new(100);
    let mut client = world.client(0, 1);
    for version in [1, 2] {
        client.put(version);
    }
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(client.ask(&Request::Drop), Answer::Done);
    client.put(3);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    let folder = world.root.join("objects/set/0");
    assert!(!folder.join("manifest-000001").exists() && folder.join("manifest-000003").exists());
    assert_eq!(client.restore(3), Ok(client.run));
}

#[test]
fn a_store_that_fails_is_told_once_and_tried_again() {
    let world = World::new(100);
    let mut client = world.client(0, 1);
    client.put(1);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    // The next image's segment cannot get its name.
    let folder = world.root.join("objects/set/0");
    let blocks = folder.join("manifest-000002");
    fs::create_dir(&blocks).unwrap();
    client.put(2);
    let answer = client.ask(&Request::Wait);
    assert!(matches!(&answer, Answer::Failed { why } if why.contains("version 2")), "{answer:?}");
    assert_eq!(client.restore(2), Ok(client.run), "it is in memory all the same");
    fs::remove_dir(&blocks).unwrap();
    loop {
        match client.ask(&Request::Wait) {
            Answer::Done => break,
            Answer::Failed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        fs::read_dir(&folder)
            .unwrap()
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with("manifest-")
            })
            .count(),
        2
    );
    let state = world.server.state.lock();
    assert!(state.held.values().all(|held| held.stored.is_some()), "tier {MEMORY} alone has something");
}

/// Versions come faster than the store takes them.
#[test]
fn what_is_passed_over_is_so_on_all_ranks_and_the_newest_are_kept() {
    let mut world = World::new(1000);
    world.keep = Some(2);
    let mut clients: Vec<Client> = (0..2).map(|rank| world.client(rank, 2)).collect();
    let slow = Arc::clone(&world.server.state.lock().sets["set"].members[&0]);
    let held = slow.lock();
    for version in 1..=60 {
        for client in &mut clients {
            client.put(version);
        }
        // An answer comes behind the puts of its own client, not behind those of the other one.
        clients[1].newest();
        assert_eq!(clients[0].newest(), Some(version));
    }
    drop(held);
    for client in &mut clients {
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
    }
    world.wait_until("what is not kept has gone", |world| {
        let state = world.server.state.lock();
        state.held.len() == 4 && state.removals.is_empty()
    });
    let stored = |rank: u32| {
        let job = world.server.store.job(&holdfast_tiers::rank_name("set", rank)).unwrap();
        let images = job.images().unwrap();
        // One that is being removed may be gone since it was listed.
        let image = |epoch| job.open_image(epoch).ok();
        let version = |image| crate::names::objects_of(&image).unwrap().version;
        images.iter().filter_map(|info| image(info.epoch)).map(version).collect::<Vec<u64>>()
    };
    world.wait_until("the images have gone", |_| stored(0).len() == 2 && stored(1).len() == 2);
    assert_eq!((stored(0), stored(1)), (vec![59, 60], vec![59, 60]));
    let last = world.server.store.job("objects/set/0").unwrap().next_epoch().unwrap().0 - 1;
    // The first one was on its way.
    assert!(last <= 4, "{last} were stored");
}

/// The room that it asked for is free again, and so is what it wanted to read.
#[test]
fn a_client_that_goes_while_it_waits_for_its_turn_holds_no_room() {
    let world = World::new(1);
    let mut first = world.client(0, 2);
    let buffer = first.room(1);
    {
        let waits = world.client(1, 2);
        let bytes = layout(1, 1, 2, waits.run).len;
        waits.tell(&Request::Room { version: 1, bytes });
        world.wait_until("it waits for room", |world| world.server.state.lock().held.len() == 2);
    }
    world.wait_until("it has gone", |world| world.server.state.lock().held.len() == 1);
    first.tell(&Request::Abandon { buffer });
    let mut next = world.client(1, 2);
    for version in 1..=3 {
        next.put(version);
        assert_eq!(next.ask(&Request::Wait), Answer::Done);
        assert_eq!(next.restore(version), Ok(next.run));
    }
}
