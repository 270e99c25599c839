//! What the server shares with the agents of its store: memory and rate.

use super::*;
use holdfast_tiers::Share;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What an agent of the store sees that the server may still take.
fn claimed(agent: &Share) -> u64 {
    let mut sum = 0;
    agent.claim(|others| {
        sum = others.iter().map(|claim| claim.memory).sum();
        0
    });
    sum
}

/// Whether anybody has taken of the rate of a store.
fn is_rated(root: &Path) -> bool {
    let meta = fs::metadata(root).unwrap();
    let top = format!("/dev/shm/holdfast-share-{}", holdfast_sys::unix_socket::effective_user());
    let clock = format!("{top}/{:x}-{:x}/clock", meta.dev(), meta.ino());
    fs::metadata(clock).unwrap().len() > 0
}

#[test]
fn an_agent_sees_what_the_server_may_still_take() {
    let (world, mut client) = World::new(10).into_client();
    let agent = Share::of(&world.root).unwrap();
    let one = layout(0, 0, 1, 0).len;
    assert_eq!(claimed(&agent), 10 * one);
    client.put(1);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert_eq!(claimed(&agent), 9 * one);
}

#[test]
fn versions_go_to_the_store_at_the_rate_of_a_job() {
    let (world, mut client) = World::new(10).into_client();
    client.put(1);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert!(!is_rated(&world.root));
    let agent = Share::of(&world.root).unwrap();
    agent.want_rate(Some(1 << 40));
    client.put(2);
    assert_eq!(client.ask(&Request::Wait), Answer::Done);
    assert!(is_rated(&world.root));
}
