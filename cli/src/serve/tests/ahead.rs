//! Buffers that are given ahead: a put needs none of its own, and who waits for room gets it all the same.

use super::{Client, World, content, layout};
use holdfast_objects::buffer::{CLAIMED_AT, CLOSED_AT, HEAD, REVOKED, State as BufferState};
use holdfast_objects::wire::{self, Answer, Request};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

impl Client {
    fn fill(&self, buffer: u64, version: u64) {
        let (layout, file) = (layout(self.rank, version, self.ranks, self.run), &self.files[&buffer]);
        file.write_all_at(&content(self.rank, version, self.run), layout.places[0]).unwrap();
        file.write_all_at(&layout.table, HEAD).unwrap();
        file.write_all_at(&layout.head(BufferState::Put)[..32], 0).unwrap();
    }

    /// Puts a version in a buffer that it has; the one for the next version.
    fn put_ahead(&mut self, buffer: u64, version: u64) -> Option<u64> {
        self.fill(buffer, version);
        match self.ask(&Request::Put { buffer, ahead: true }) {
            Answer::Buffer { buffer, .. } => Some(buffer),
            Answer::NoBuffer => None,
            other => panic!("{other:?}"),
        }
    }

    fn word(&self, buffer: u64, at: u64) -> u32 {
        let mut word = [0; 4];
        self.files[&buffer].read_exact_at(&mut word, at).unwrap();
        u32::from_le_bytes(word)
    }
}

#[test]
fn what_is_put_into_a_buffer_that_was_given_ahead_is_there_as_hinted_at_before() {
    let (_world, mut client) = World::new(16).into_client();
    // The last one that is put is wanted first.
    (1..=6).rev().for_each(|version| client.tell(&Request::Hint { version }));
    let mut buffer = client.room(1);
    for version in 1..=20 {
        // There is none while the store has yet to get what memory is full of.
        let ahead = client.put_ahead(buffer, version);
        assert_eq!(client.newest(), Some(version));
        buffer = ahead.unwrap_or_else(|| client.room(version + 1));
    }
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    client.tell(&Request::Start);
    for version in (1..=20).rev() {
        assert_eq!(client.restore(version), Ok(client.run));
    }
    client.tell(&Request::Abandon { buffer });
    assert_eq!(client.newest(), Some(20));
}

#[test]
fn what_was_given_ahead_goes_with_its_client_and_its_server() {
    let world = World::new(100);
    let run = {
        let mut client = world.client(0, 1);
        let buffer = client.room(1);
        client.put_ahead(buffer, 1).unwrap();
        client.run
    };
    world.wait_until("it has gone", |world| {
        let state = world.server.state.lock();
        state.ahead.is_empty() && state.held.values().all(|held| held.content.is_some())
    });
    let killed = {
        let mut client = world.client(0, 1);
        world.kill();
        let buffer = client.room(2);
        let ahead = client.put_ahead(buffer, 2).unwrap();
        // It is put into it, and server and client die before the message.
        client.fill(ahead, 3);
        std::fs::copy(world.buffers().join(ahead.to_string()), world.buffers().join("90")).unwrap();
        client.run
    };
    let (_world, mut client) = world.next(100).into_client();
    assert_eq!(client.newest(), Some(3));
    assert_eq!(client.restore(1), Ok(run));
    assert_eq!((client.restore(2), client.restore(3)), (Ok(killed), Ok(killed)));
}

/// All of the room is asked for by one client, and another one has some of it ahead.
#[test]
fn who_waits_for_room_gets_what_was_given_ahead() {
    for is_claimed in [false, true] {
        let world = World::new(8);
        let (mut first, other) = (world.client(0, 2), world.client(1, 2));
        let buffer = first.room(1);
        let ahead = first.put_ahead(buffer, 1).unwrap();
        assert_eq!(first.ask(&Request::Wait), Answer::Done);
        if is_claimed {
            first.files[&ahead].write_all_at(&1_u32.to_le_bytes(), CLAIMED_AT).unwrap();
        }
        let bytes = 8 * layout(0, 1, 2, first.run).len;
        other.tell(&Request::Room { version: 1, bytes });
        while first.word(ahead, CLOSED_AT) != REVOKED {
            thread::sleep(Duration::from_millis(1));
        }
        if is_claimed {
            // It was faster: it may put it, or give it back.
            first.fill(ahead, 2);
            first.tell(&Request::Put { buffer: ahead, ahead: false });
            assert_eq!(first.newest(), None);
            assert_eq!(first.restore(2), Ok(first.run));
        } else {
            first.tell(&Request::Abandon { buffer: ahead });
        }
        let (answer, _) = wire::receive::<Answer>(other.socket.as_fd()).unwrap().unwrap();
        let Answer::Buffer { buffer, .. } = answer else { panic!("{answer:?}") };
        other.tell(&Request::Abandon { buffer });
        assert_eq!(first.ask(&Request::Wait), Answer::Done);
        assert_ne!(first.room(3), ahead);
    }
}

/// A buffer is an open file as well, of which a server may have so many only.
#[test]
fn many_small_versions_are_in_memory_no_more_than_files_may_be_open() {
    let world = World::new(8);
    {
        let mut state = world.server.state.lock();
        assert_eq!(state.weight(layout(0, 0, 1, 0).len), layout(0, 0, 1, 0).len);
        state.least = state.room / 3;
    }
    let mut client = world.client(0, 1);
    for version in 1..=8 {
        client.put(version);
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
        assert!(world.in_memory().len() <= 3, "{:?}", world.in_memory());
    }
    for version in 1..=8 {
        assert_eq!(client.restore(version), Ok(client.run), "version {version}");
    }
}
