//! Versions of a rank that wait for the store together become durable together.

use super::*;

impl World {
    /// With one client that has put versions while nothing was brought to the store.
    fn with_waiting(versions: u64) -> (World, Client) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("holdfast-groups-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (world, mut client) = World::with(root, 100, &[]).into_client();
        (1..=versions).for_each(|version| client.put(version));
        // All messages were read.
        assert_eq!(client.newest(), Some(versions));
        (world, client)
    }

    fn begin(&self, work: fn(&Server)) {
        let server = Arc::clone(&self.server);
        spawn("worker", move || work(&server)).unwrap();
    }

    /// Numbers of the images of rank 0.
    fn images(&self) -> Vec<u64> {
        let rank = Arc::clone(&self.server.state.lock().sets["set"].members[&0]);
        let (job, _) = rank.lock().job();
        job.images().unwrap().iter().map(|info| info.epoch.0).collect()
    }
}

#[test]
fn what_waits_for_the_store_together_is_one_group_of_images() {
    let (world, mut client) = World::with_waiting(11);
    world.begin(Server::down);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(world.server.state.lock().groups, [8, 3]);
    assert_eq!(world.images(), (1..=11).collect::<Vec<_>>());
    let run = client.run;
    drop(client);
    // Another server reads them all from the store.
    let world = {
        world.wait_until("the client has gone", |world| {
            world.server.state.lock().sets.values().all(|set| set.clients.is_empty())
        });
        world.server.leave();
        world.next(100)
    };
    let mut client = world.client(0, 1);
    for version in 1..=11 {
        assert_eq!(client.restore(version), Ok(run), "version {version}");
    }
}

#[test]
fn what_is_given_up_before_its_turn_goes_from_the_store_as_well() {
    let (world, mut client) = World::with_waiting(8);
    world.begin(Server::down);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(client.ask(&Request::Drop), Answer::Done);
    world.wait_until("the images have gone", |world| world.images().is_empty());
    assert_eq!(client.newest(), None);
}

/// The first one is being stored, with the others, when they are given up and their memory is wanted.
#[test]
fn memory_of_what_is_being_stored_is_not_filled_with_something_else() {
    let (world, mut client) = World::with_waiting(3);
    let numbers = {
        let mut state = world.server.state.lock();
        let held: Vec<_> = state.held.iter().map(|(segment, held)| (*segment, held.buffer.clone())).collect();
        let (segments, buffers): (Vec<_>, Vec<_>) = held.into_iter().unzip();
        state.committing.extend(segments.iter().copied());
        segments.into_iter().for_each(|segment| state.retire(segment));
        buffers.into_iter().flatten().map(|buffer| buffer.number).collect::<Vec<_>>()
    };
    for version in 4..=9 {
        let buffer = client.room(version);
        assert!(!numbers.contains(&buffer), "buffer {buffer} is still read");
    }
}
