//! Who waits for what is being read ahead does not wait for the thread that reads ahead.

use super::*;

impl World {
    /// Versions 1 to 3, of which memory has room for two: what is hinted at after that is to be read ahead.
    fn with_hints(workers: &[fn(&Server)]) -> (World, Client) {
        let (world, mut client) = World::new(2).into_client();
        for version in 1..=3 {
            client.put(version);
            assert_eq!(client.ask(&Request::Wait), Answer::Done);
        }
        drop(client);
        world.wait_until("the client has gone", |world| {
            world.server.state.lock().sets.values().all(|set| set.clients.is_empty())
        });
        world.server.leave();
        let mut state = world.server.state.lock();
        state.sets.clear();
        state.buffers.unlock();
        drop(state);
        let next = World::with(world.root.clone(), 2, workers);
        std::mem::forget(world);
        let client = next.client(0, 1);
        for version in [1, 2] {
            client.tell(&Request::Hint { version });
        }
        client.tell(&Request::Start);
        (next, client)
    }
}

/// A thread that gets nothing of a processor is as one that is not there.
#[test]
fn a_client_reads_itself_what_the_thread_that_reads_ahead_has_not_begun() {
    let (world, mut client) = World::with_hints(&[Server::down]);
    world.wait_until("it is to be read ahead", |world| !world.server.state.lock().due.is_empty());
    assert!(client.restore(1).is_ok());
    assert!(client.restore(2).is_ok());
    assert!(client.restore(3).is_ok());
}

#[test]
fn a_client_reads_itself_what_the_thread_that_reads_ahead_does_not_finish() {
    let (world, mut client) = World::with_hints(&[Server::down]);
    world.wait_until("it is to be read ahead", |world| !world.server.state.lock().due.is_empty());
    let segment = world.segment(1).unwrap();
    let transfer = {
        let mut state = world.server.state.lock();
        state.take_due(|_, transfer| transfer.segment == segment).unwrap()
    };
    // It has begun the one piece that there is, and gets no further.
    let late = world.server.begin_fetch(transfer).unwrap();
    let piece = late.begin_piece().unwrap();
    assert!(client.restore(1).is_ok());
    assert_eq!(world.in_memory(), [1], "as if it had been read ahead");
    let (number, mut bytes) = (late.buffer().number, Vec::new());
    late.read(piece, &mut bytes).unwrap();
    assert!(client.restore(1).is_ok());
    // What it writes even later is in no buffer that is used for something else.
    for version in [4, 5, 6] {
        client.put(version);
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
    }
    late.read(piece, &mut bytes).unwrap();
    world.wait_until("it has gone", |world| !world.server.state.lock().buffers.has(number));
    for version in 1..=6 {
        assert!(client.restore(version).is_ok(), "version {version}");
    }
}

/// A version that is on its way to the store, by a thread of low priority, has the lock of its rank.
#[test]
fn a_restore_does_not_wait_for_what_is_being_written_of_its_rank() {
    let (world, mut client) = World::with_hints(&[]);
    let rank = Arc::clone(&world.server.state.lock().sets["set"].members[&0]);
    let writing = rank.lock();
    for version in 1..=3 {
        assert!(client.restore(version).is_ok(), "version {version}");
    }
    drop(writing);
}
