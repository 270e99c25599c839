//! Gangs to which members are added while they run.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::added::Added;
use super::gather::gather;
use super::round::Round;
use super::seat::{Heard, Seat};
use super::waiting::{Meanwhile, Plan};
use crate::exit::Failure;
use crate::settings::GangPlace;
use holdfast_image::control::{Secret, Wishes};
use holdfast_process::{Gang, Phase};
use holdfast_tiers::Store;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn come(
    store: &Store,
    (member, start): (u32, Option<u64>),
    wait_s: u64,
    key: Option<Secret>,
) -> Result<Arc<Seat>, Failure> {
    let (name, listen) = ("sim".into(), Some("127.0.0.1:0".into()));
    let (members, hosts) = (member + 1, Vec::new());
    let (open, folder, protect) = (true, None, None);
    let place = GangPlace { name, member, members, open, start, hosts, listen, wait_s, folder, protect };
    let meanwhile = Meanwhile { fds: Vec::new(), is_over: &|| None, say: &|_| () };
    gather(&Plan { store, place: &place, image: None, meets: false, key }, &meanwhile)
}

fn heard(seat: &Arc<Seat>) -> Receiver<Heard> {
    let (sender, receiver) = mpsc::channel();
    seat.listen(Box::new(move |heard| drop(sender.send(heard))));
    receiver
}

/// Adds the next member, as the loop of the leader does.
fn add(store: &Store, leader: &Arc<Seat>, ear: &Receiver<Heard>) -> Arc<Seat> {
    let member = leader.expect(9);
    for stale in [None, Some(8)] {
        let why = come(store, (member, stale), 0, None).unwrap_err().message;
        let words = if stale.is_none() { "is complete" } else { "does not wait for this member" };
        assert!(why.contains(words), "{why}");
    }
    let seat = come(store, (member, Some(9)), 60, None).unwrap();
    seat.serves(7).unwrap();
    assert!(matches!(ear.recv_timeout(LONG), Ok(Heard::Serves { member: one, port: 7 }) if one == member));
    leader.has_grown();
    seat
}

#[test]
fn each_round_has_the_members_that_were_there_when_it_began() {
    let folder = std::env::temp_dir().join(format!("holdfast-gang-grows-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let store = Store::open(&folder).unwrap();
    store.create_job("sim.0").unwrap();
    let added = Added::new().unwrap();
    let leader = come(&store, (0, None), 60, Some(added.key().clone())).unwrap();
    let mut ears = vec![heard(&leader)];
    let mut seats = vec![Arc::clone(&leader)];
    assert!(come(&store, (1, Some(9)), 0, None).is_err(), "none is awaited");
    for members in 1..=3 {
        let mut rounds = vec![Round::begin(&leader, false, &Wishes::default()).unwrap()];
        for (seat, ear) in seats.iter().zip(&ears).skip(1) {
            let Ok(Heard::Prepare(prepare)) = ear.recv_timeout(LONG) else { panic!("no round") };
            // Of a round before it came it has heard nothing; those before it are over well.
            let failed = seat.failure(prepare.round - 1).map(|failed| failed.reason);
            assert_eq!(failed.as_deref(), Some("another round has begun"));
            rounds.push(Round::enter(seat, prepare.round));
        }
        // One that comes meanwhile is not waited for.
        let next = add(&store, &leader, &ears[0]);
        thread::scope(|scope| {
            for (member, round) in (0_u8..).zip(&rounds) {
                scope.spawn(move || {
                    assert_eq!(round.members(), members);
                    let said = round.meet(Phase::Prepared, &[member], LONG).unwrap();
                    assert_eq!(said, (0..members as u8).map(|one| vec![one]).collect::<Vec<_>>());
                    round.end();
                });
            }
        });
        assert_eq!(next.key().as_ref(), Some(added.key()), "it proves the same key");
        assert!(leader.address_of(members).is_some_and(|address| address.is_loopback()));
        ears.push(heard(&next));
        seats.push(next);
    }
    // One that is given up has never been there: its number is the next one's.
    let gone = leader.expect(1);
    let seat = come(&store, (gone, Some(1)), 60, None).unwrap();
    seat.close_all();
    leader.give_up();
    assert_eq!(leader.expect(2), gone);
    leader.give_up();
    assert!(Round::begin(&leader, false, &Wishes::default()).is_ok(), "no member is lost");
    // One that is lost when it was there, before that is known, is lost.
    leader.expect(3);
    let seat = come(&store, (gone, Some(3)), 60, None).unwrap();
    seat.serves(7).unwrap();
    assert!(matches!(ears[0].recv_timeout(LONG), Ok(Heard::Serves { .. })));
    seat.close_all();
    while leader.address_of(gone).is_some() {
        thread::sleep(Duration::from_millis(1));
    }
    leader.has_grown();
    assert!(matches!(ears[0].recv_timeout(LONG), Ok(Heard::Lost(why)) if why.member == Some(gone)));
    assert!(Round::begin(&leader, false, &Wishes::default()).is_err(), "a member is lost");
    let _ = std::fs::remove_dir_all(&folder);
}
