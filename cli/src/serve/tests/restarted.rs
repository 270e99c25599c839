//! Ranks that were restarted from an image by `holdfast restart` go on with their run where the image was taken.

use super::*;

/// All that the clients have said was read before one of them gets its answer.
fn newest(clients: &mut [Client]) -> Vec<Option<u64>> {
    clients.iter_mut().for_each(|client| {
        client.newest();
    });
    clients.iter_mut().map(Client::newest).collect()
}

#[test]
fn what_was_put_after_the_image_goes_and_is_mixed_with_nothing() {
    let world = World::new(100);
    let mut clients: Vec<Client> = (0..2).map(|rank| world.client(rank, 2)).collect();
    for version in 1..=4 {
        clients.iter_mut().for_each(|client| client.put(version));
    }
    for client in &mut clients {
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
    }
    assert_eq!(newest(&mut clients), [Some(4); 2]);
    let run = Some(clients[0].run);
    drop(clients);
    // The first rank had put version 2 by then, the second had not.
    let mut clients = vec![world.going_on(0, 2, run, Some(2)), world.going_on(1, 2, run, Some(1))];
    assert!(clients.iter().all(|client| Some(client.run) == run));
    assert_eq!(newest(&mut clients), [Some(1); 2]);
    clients[1].put(2);
    assert_eq!(newest(&mut clients), [Some(2); 2], "its two parts are of one run, as without the restart");
    clients[0].put(3);
    assert_eq!(newest(&mut clients), [Some(2); 2], "version 3 of the other rank is of before");
    clients[1].put(3);
    for client in &mut clients {
        assert_eq!(client.ask(&Request::Wait), Answer::Done);
        assert_eq!((client.newest(), client.restore(3)), (Some(3), Ok(client.run)));
        assert!(matches!(client.restore(4), Err(Answer::Missing)));
    }
}
