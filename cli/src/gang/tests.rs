//! Members of a gang in one process: they find each other, meet, fail and are lost; who is not of it is refused.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::agree::{Met, agree};
use super::choice::choose;
use super::folder::{GangFolder, Leader, Needed, Protected};
use super::gather::gather;
use super::image::{GangImage, MemberImage};
use super::join::{NotMet, find};
use super::key::Key;
use super::message::{FailedKind, Join, Member, Message};
use super::reading::{Silence, read_all};
use super::round::Round;
use super::seat::{FIRST_ROUND, Heard, Seat};
use super::waiting::{Meanwhile, Plan};
use super::wire::{Wire, both_sides};
use crate::exit::Failure;
use crate::settings::{GangPlace, Recipe};
use holdfast_image::Epoch;
use holdfast_image::control::Wishes;
use holdfast_process::{Gang, Phase};
use holdfast_tiers::Store;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A store that goes at the end of the test.
struct Home(PathBuf, Store);

impl Home {
    fn new(name: &str) -> Home {
        let folder = std::env::temp_dir().join(format!("holdfast-gang-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let store = Store::open(&folder).unwrap();
        for member in 0..3 {
            store.create_job(&format!("sim.{member}")).unwrap();
        }
        Home(folder, store)
    }

    fn folder(&self) -> GangFolder {
        GangFolder::make(&self.1, &place(0, 3, 60)).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn place(member: u32, members: u32, wait_s: u64) -> GangPlace {
    let (name, listen, hosts) = ("sim".into(), Some("127.0.0.1:0".into()), Vec::new());
    let (open, start, folder, protect) = (false, None, None, None);
    GangPlace { name, member, members, open, start, hosts, listen, wait_s, folder, protect }
}

fn seat_of(store: &Store, place: &GangPlace, image: Option<u64>) -> Result<Arc<Seat>, Failure> {
    let meanwhile = Meanwhile { fds: Vec::new(), is_over: &|| None, say: &|_| () };
    gather(&Plan { store, place, image, meets: false, key: None }, &meanwhile)
}

/// All members of a gang that has come together.
fn gang(home: &Home, members: u32) -> Vec<Arc<Seat>> {
    thread::scope(|scope| {
        let seats: Vec<_> = (0..members)
            .map(|member| scope.spawn(move || seat_of(&home.1, &place(member, members, 60), None).unwrap()))
            .collect();
        seats.into_iter().map(|seat| seat.join().unwrap()).collect()
    })
}

/// What the loop of a member hears.
fn heard(seat: &Arc<Seat>) -> Receiver<Heard> {
    let (sender, receiver) = mpsc::channel();
    seat.listen(Box::new(move |heard| drop(sender.send(heard))));
    receiver
}

/// A round that the first begins, as all see it.
fn round(seats: &[Arc<Seat>]) -> Vec<Arc<Round>> {
    let ears: Vec<_> = seats[1..].iter().map(heard).collect();
    let mut rounds = vec![Round::begin(&seats[0], false, &Wishes::default()).unwrap()];
    for (seat, ear) in seats[1..].iter().zip(ears) {
        let Ok(Heard::Prepare(prepare)) = ear.recv_timeout(LONG) else { panic!("no round") };
        rounds.push(Round::enter(seat, prepare.round));
    }
    rounds
}

#[test]
fn all_hear_what_each_has_said_in_each_phase() {
    let home = Home::new("meet");
    let seats = gang(&home, 3);
    for number in 0..3_u8 {
        let rounds = round(&seats);
        thread::scope(|scope| {
            for (member, round) in rounds.iter().enumerate() {
                scope.spawn(move || {
                    for phase in [Phase::Prepared, Phase::Stopped, Phase::Committed] {
                        let own = vec![member as u8 + number; 1 + 100_000 * member];
                        let all = round.meet(phase, &own, LONG).unwrap();
                        let lens: Vec<usize> = all.iter().map(Vec::len).collect();
                        assert_eq!(lens, [1, 100_001, 200_001]);
                        assert!(all.iter().enumerate().all(|(from, said)| said[0] == from as u8 + number));
                    }
                    round.end();
                });
            }
        });
    }
}

#[test]
fn one_that_fails_or_is_late_ends_the_round_for_all() {
    let home = Home::new("fail");
    let seats = gang(&home, 3);
    let rounds = round(&seats);
    thread::scope(|scope| {
        scope.spawn(|| rounds[1].fail("fd 3 is not supported".into(), FailedKind::Refused));
        for round in [&rounds[0], &rounds[2]] {
            scope.spawn(|| {
                let error = round.meet(Phase::Stopped, &[], LONG).unwrap_err();
                assert_eq!((error.member, error.reason.as_str()), (Some(1), "fd 3 is not supported"));
                assert!(error.to_string().starts_with("member 1 on "), "{error}");
                assert!(round.meet(Phase::Captured, &[], LONG).is_err(), "the round is over");
                assert_eq!(round.failure().unwrap().kind, FailedKind::Refused);
            });
        }
    });
    drop(rounds);
    let rounds = round(&seats);
    thread::scope(|scope| {
        scope.spawn(|| rounds[2].meet(Phase::Stopped, &[], LONG).unwrap_err());
        let error = rounds[0].meet(Phase::Stopped, &[], Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.member, Some(1), "{error}");
        assert!(error.reason.contains("not stopped in time"), "{error}");
    });
    assert!(rounds[1].meet(Phase::Stopped, &[], LONG).is_err());
    // One that is late in a stop may not be so at the next try.
    assert!(rounds.iter().all(|round| round.failure().is_some_and(|why| why.kind == FailedKind::Again)));
    // The next one begins anew; who has not noticed the end of the one before is told why it has ended.
    let old = rounds;
    let rounds = round(&seats);
    thread::scope(|scope| {
        for round in &rounds {
            scope.spawn(|| round.meet(Phase::Prepared, b"x", LONG).unwrap());
        }
    });
    assert!(old.iter().all(|round| round.failure().is_some_and(|why| why.member == Some(1))));
}

#[test]
fn one_that_is_lost_ends_the_gangs_rounds() {
    let home = Home::new("lost");
    let seats = gang(&home, 2);
    let (leader, other) = (heard(&seats[0]), heard(&seats[1]));
    let first = Round::begin(&seats[0], true, &Wishes::default()).unwrap();
    assert!(matches!(other.recv_timeout(LONG), Ok(Heard::Prepare(prepare)) if prepare.stop));
    seats[1].ask(false, Wishes::default()).unwrap();
    assert!(matches!(leader.recv_timeout(LONG), Ok(Heard::Ask { member: 1, stop: false, .. })));
    seats[1].close_all();
    let error = first.meet(Phase::Prepared, &[], LONG).unwrap_err();
    assert_eq!(error.member, Some(1), "{error}");
    assert!(matches!(leader.recv_timeout(LONG), Ok(Heard::Lost(why)) if why.member == Some(1)));
    assert!(matches!(other.recv_timeout(LONG), Ok(Heard::Lost(why)) if why.member == Some(0)));
    assert_eq!(Round::begin(&seats[0], false, &Wishes::default()).unwrap_err().member, Some(1));
    assert_eq!(seats[1].ask(false, Wishes::default()).unwrap_err().member, Some(0));
}

/// Its kernel acknowledges what it is sent.
#[test]
fn one_that_hangs_is_lost_and_one_that_says_that_it_is_there_is_not() {
    let silence = Silence { beat: Duration::from_millis(5), most: Duration::from_millis(50) };
    for hangs in [true, false] {
        let (own, other) = both_sides();
        let own = Arc::new(own);
        let seat = Seat::new(place(0, 2, 0), "a".into()).unwrap();
        assert!(seat.attach((1, None), "b", &own) && seat.complete());
        let ear = heard(&seat);
        let silence = if hangs { silence } else { Silence { most: LONG, ..silence } };
        thread::scope(|scope| {
            scope.spawn(|| read_all(&seat, 1, &own, silence));
            for _ in 0..if hangs { 0 } else { 20 } {
                while other.receive(None).unwrap().0 != Message::Here {}
                other.send(&Message::Here, &[]).unwrap();
                assert!(ear.try_recv().is_err(), "it was not lost");
            }
            if !hangs {
                other.close();
            }
            let Ok(Heard::Lost(why)) = ear.recv_timeout(LONG) else { panic!("it is there") };
            let words = if hangs { "it has not answered for" } else { "its agent has ended" };
            assert!(why.member == Some(1) && why.reason.contains(words), "{why:?}");
        });
    }
}

#[test]
fn one_that_has_ended_is_called_so() {
    let home = Home::new("ended");
    let seats = gang(&home, 2);
    let leader = heard(&seats[0]);
    seats[1].leave();
    seats[1].close_all();
    let why = loop {
        match Round::begin(&seats[0], false, &Wishes::default()) {
            Err(why) => break why,
            Ok(round) => drop(round.meet(Phase::Prepared, &[], LONG)),
        }
    };
    assert_eq!(why.reason, "its program has ended");
    assert!(leader.try_recv().is_err(), "that is no loss");
}

/// Says to the leader who comes; its answer.
fn introduced(home: &Home, join: Join) -> Message {
    let leader = loop {
        if let Some(leader) = home.folder().leader().unwrap() {
            break leader;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let config = Arc::new(Key::read(&leader.key).unwrap().client().unwrap());
    let wire = Wire::connect(TcpStream::connect(&leader.addresses[0]).unwrap(), &config).unwrap();
    wire.send(&Message::Join(join), &[]).unwrap();
    wire.receive(None).unwrap().0
}

#[test]
fn who_does_not_fit_is_refused_by_name_and_the_others_come_together() {
    let home = Home::new("refused");
    let join = |version: &str, gang: &str, member, members, image| Join {
        version: version.into(),
        gang: gang.into(),
        host: "b".into(),
        member: Some(Member { member, members, image, meets: false, start: None }),
    };
    let own = env!("CARGO_PKG_VERSION");
    thread::scope(|scope| {
        let leader = scope.spawn(|| seat_of(&home.1, &place(0, 2, 60), Some(4)));
        for (join, words) in [
            (join("0.0.0", "sim", 1, 2, Some(4)), "it has Holdfast 0.0.0, the leader"),
            (join(own, "sum", 1, 2, Some(4)), "it is of gang sum, not of gang sim"),
            (join(own, "sim", 1, 3, Some(4)), "there are 3 members; gang sim has 2"),
            (join(own, "sim", 0, 2, Some(4)), "the other members of gang sim are 1 to 1"),
            (join(own, "sim", 2, 2, Some(4)), "the other members of gang sim are 1 to 1"),
            (join(own, "sim", 1, 2, Some(3)), "it restarts image 3, member 0 restarts image 4"),
            (join(own, "sim", 1, 2, None), "it starts afresh, member 0 restarts image 4"),
        ] {
            let answer = introduced(&home, join);
            assert!(matches!(&answer, Message::Refused { reason } if reason.contains(words)), "{answer:?}");
        }
        // Who asks with a key that is not the gang's is not answered.
        let true_one = home.folder().leader().unwrap().unwrap();
        let wrong = Leader { key: Key::new().unwrap().text(), ..true_one.clone() };
        home.folder().announce(&wrong).unwrap();
        let member = Some(Member { member: 1, members: 2, image: Some(4), meets: false, start: None });
        match find(&home.folder(), member) {
            Err(NotMet::Yet(why)) => assert!(why.contains("does not have the key of the gang"), "{why}"),
            _ => panic!("a wrong key was taken"),
        }
        home.folder().announce(&true_one).unwrap();
        let other = seat_of(&home.1, &place(1, 2, 60), Some(4)).unwrap();
        let leader = leader.join().unwrap().unwrap();
        let twice = introduced(&home, join(own, "sim", 1, 2, Some(4)));
        assert!(matches!(&twice, Message::Later { reason } if reason.contains("is complete")), "{twice:?}");
        let other_image = introduced(&home, join(own, "sim", 1, 2, None));
        assert!(
            matches!(&other_image, Message::Later { .. }),
            "the leader of the run before may be about to end"
        );
        assert_eq!((leader.place().member, other.place().member), (0, 1));
    });
}

/// The newest protected image stays until there is a newer one: a host that is lost now is rebuilt of it.
#[test]
fn the_newest_protected_image_is_needed() {
    let home = Home::new("protected");
    let folder = home.folder();
    let of = || folder.needed_of(1).unwrap();
    let protect = |number: u64, set: &str| {
        folder.protect(&Protected::new("sim", number, set, "partner".parse().unwrap(), Vec::new())).unwrap();
    };
    for number in 1..=3 {
        folder.publish(&image(number, &[number, 10 + number])).unwrap();
    }
    assert_eq!(of(), Needed { newest: Some(13), ..Needed::default() });
    protect(1, &image(1, &[1, 11]).id());
    assert_eq!(of(), Needed { newest: Some(13), protected: Some(11), encoded: None });
    protect(3, "another image of this number");
    assert_eq!(of(), Needed { newest: Some(13), protected: Some(11), encoded: None });
    protect(2, &image(2, &[2, 12]).id());
    assert_eq!(of(), Needed { newest: Some(13), protected: Some(12), encoded: None });
    // What cannot be read may say what it was.
    std::fs::write(folder.path().join("protected-000002"), b"x").unwrap();
    assert_eq!(of().protected, Some(12));
    assert!(folder.protections().unwrap()[&2].as_ref().is_err_and(|why| why.contains("protected-000002")));
    std::fs::write(folder.path().join("gang-000002"), b"x").unwrap();
    assert!(folder.needed_of(1).is_err(), "then nothing may be removed");
    folder.remove(2).unwrap();
    assert_eq!(of().protected, Some(11), "it is of no image any more");
}

/// Who has asked for it is killed while another member has yet to say something: the lock is not kept.
#[test]
fn members_that_agree_give_up_when_that_is_not_wanted_any_more() {
    let home = Home::new("unwanted");
    let (over, ours) = std::io::pipe().unwrap();
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        let store = &home.1;
        let other = scope.spawn(|| seat_of(store, &met_place(1), None).unwrap());
        scope.spawn(move || {
            let (job, place) = (store.job("sim.0").unwrap(), met_place(0));
            let lock = job.lock().unwrap();
            let meanwhile = Meanwhile { fds: vec![over.as_fd()], is_over: &|| None, say: &|_| () };
            let plan = Plan { store, place: &place, image: None, meets: false, key: None };
            let met = Met { plan, job: &job, lock: &lock, over: over.as_fd() };
            done.send(agree(&met, None, &meanwhile).unwrap_err().message).unwrap();
        });
        // The other one is there, and says nothing.
        let other = other.join().unwrap();
        drop(ours);
        let why = ended.recv_timeout(LONG).unwrap();
        assert!(why.contains("the command was ended while the members agreed on an image"), "{why}");
        let heard = other.meet((FIRST_ROUND, 1, "there"), &[], LONG).unwrap_err();
        assert!(heard.reason.contains("the command was ended"), "{heard:?}");
    });
}

fn met_place(member: u32) -> GangPlace {
    place(member, 2, 60)
}

#[test]
fn who_does_not_come_is_named() {
    let home = Home::new("missing");
    let failed = seat_of(&home.1, &place(0, 3, 0), None).unwrap_err().message;
    assert!(failed.contains("members 1, 2 of gang sim did not come within 0 s"), "{failed}");
    let failed = seat_of(&home.1, &place(1, 2, 0), None).unwrap_err().message;
    assert!(failed.contains("member 0, the leader of gang sim, was not found within 0 s"), "{failed}");
    // What a leader left that was killed is no leader.
    let key = Key::new().unwrap().text();
    let addresses = vec!["127.0.0.1:1".to_owned()];
    let dead = Leader { version: "1".into(), run: "x".into(), host: "a".into(), addresses, key };
    home.folder().announce(&dead).unwrap();
    let failed = seat_of(&home.1, &place(1, 2, 0), None).unwrap_err().message;
    assert!(failed.contains("the one on a does not answer at 127.0.0.1:1"), "{failed}");
    let seats = gang(&home, 2);
    assert_eq!(seats.len(), 2, "another one takes its place");
}

fn image(number: u64, epochs: &[u64]) -> GangImage {
    let part = |(member, epoch): (u32, &u64)| MemberImage {
        member,
        host: "a".into(),
        epoch: Epoch(*epoch),
        run_ns: 7,
        digest: "0".into(),
        ssh: None,
    };
    GangImage::new("sim", number, 1, (0..).zip(epochs).map(part).collect())
}

#[test]
fn images_of_a_gang_are_created_once_and_read_as_they_are() {
    let home = Home::new("images");
    let folder = home.folder();
    assert!(folder.images().unwrap().is_empty() && folder.needed_of(0).unwrap() == Needed::default());
    folder.publish(&image(1, &[3, 5])).unwrap();
    assert!(folder.publish(&image(1, &[4, 6])).is_err(), "it is there");
    folder.publish(&image(2, &[4, 8])).unwrap();
    assert_eq!((folder.images().unwrap(), folder.image(1).unwrap()), (vec![1, 2], image(1, &[3, 5])));
    assert_eq!((folder.needed_of(1).unwrap().newest, folder.needed_of(2).unwrap().newest), (Some(8), None));
    Recipe { created_ns: 7, ..Recipe::default() }.write(&home.1.job("sim.0").unwrap()).unwrap();
    let none = choose(&home.1, "sim", None).unwrap_err().message;
    assert!(none.contains("image 2 of gang sim is not whole: image 4 of member 0"), "{none}");
    let none = choose(&home.1, "sim", Some(9)).unwrap_err().message;
    assert!(none.contains("gang sim has no image 9; it has 1, 2"), "{none}");
    for wrong in [
        image(2, &[4]).encode()[1..].to_vec(),
        GangImage { format: 2, ..image(2, &[4]) }.encode(),
        GangImage { gang: "sum".into(), ..image(2, &[4]) }.encode(),
        GangImage { members: Vec::new(), ..image(2, &[4]) }.encode(),
        GangImage { members: image(2, &[4, 5]).members.split_off(1), ..image(2, &[4]) }.encode(),
        image(3, &[4]).encode(),
    ] {
        let path = folder.path().join("gang-000002");
        std::fs::write(&path, &wrong).unwrap();
        assert!(
            folder.image(2).is_err() && folder.needed_of(0).is_err(),
            "{}",
            String::from_utf8_lossy(&wrong)
        );
    }
    folder.remove(2).unwrap();
    assert_eq!(folder.images().unwrap(), [1]);
}
