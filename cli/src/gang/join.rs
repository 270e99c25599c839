//! The part of every other member, and of commands: it looks for the leader in the store, and joins it.
//!
//! Invariant: what a leader before has left is found out by asking, not by dates: one that does not answer, or does
//! not have the key, is not the leader. Fails by: why it was refused, or whom it has waited for.

use super::addresses::in_order;
use super::folder::{GangFolder, Leader};
use super::key::Key;
use super::message::{Join, Member, Message};
use super::reading::{SILENCE, read_all};
use super::seat::Seat;
use super::waiting::{Meanwhile, Patience, Plan, host_name};
use super::wire::Wire;
use crate::exit::{Exit, Failure};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often the leader is looked for.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one of its addresses may take to answer.
const CONNECT: Duration = Duration::from_secs(2);
/// How long its answer may take.
const ANSWER: Duration = Duration::from_secs(15);

/// Why the leader is not there.
pub(super) enum NotMet {
    /// It may come.
    Yet(String),
    /// It has said no.
    Refused(String),
}

pub(super) fn join(plan: &Plan<'_>, meanwhile: &Meanwhile<'_>) -> Result<Arc<Seat>, Failure> {
    let place = plan.place;
    let folder = GangFolder::make(plan.store, place)?;
    let mut patience = Patience::new(place);
    let Plan { image, meets, .. } = *plan;
    let member =
        Some(Member { member: place.member, members: place.members, image, meets, start: place.start });
    loop {
        let why = match find(&folder, member) {
            Ok((wire, leader)) => match wait_for_all(plan, meanwhile, &mut patience, (wire, &leader))? {
                Ok(seat) => return Ok(seat),
                Err(why) => why,
            },
            Err(NotMet::Yet(why)) => why,
            Err(NotMet::Refused(reason)) => {
                let what = format!(
                    "the leader of gang {} has refused member {}: {reason}",
                    place.name, place.member
                );
                return Err(Failure::new(Exit::Refused, what));
            }
        };
        if patience.is_over() {
            let (name, limit) = (&place.name, place.wait_s);
            let what = format!(
                "member 0, the leader of gang {name}, was not found within {limit} s (--gang-wait): {why}; nothing was \
                 started"
            );
            return Err(Failure::new(Exit::Refused, what));
        }
        patience.say(meanwhile, || format!("member 0, the leader of gang {}: {why}", place.name));
        meanwhile.wait(None, PAUSE.min(patience.left().max(Duration::from_millis(1))))?;
    }
}

/// Waits until the others have come. An inner error: the leader is gone again.
fn wait_for_all(
    plan: &Plan<'_>,
    meanwhile: &Meanwhile<'_>,
    patience: &mut Patience,
    (wire, leader): (Wire, &Leader),
) -> Result<Result<Arc<Seat>, String>, Failure> {
    let place = plan.place;
    let seat = Seat::new(place.clone(), host_name()).map_err(|error| Failure::system("eventfd", &error))?;
    let wire = Arc::new(wire);
    seat.attach((0, None), &leader.host, &wire);
    let (of_thread, read) = (Arc::clone(&seat), Arc::clone(&wire));
    thread::Builder::new()
        .name("gang-leader".into())
        .spawn(move || read_all(&of_thread, 0, &read, SILENCE))
        .map_err(|error| Failure::system("starting a thread", &error))?;
    loop {
        if seat.is_complete() {
            return Ok(Ok(seat));
        }
        if seat.has_no_leader() {
            return Ok(Err(format!("the one on {} is gone again", leader.host)));
        }
        if patience.is_over() {
            wire.close();
            let (name, limit) = (&place.name, place.wait_s);
            let what = format!(
                "not all members of gang {name} came within {limit} s (--gang-wait); its leader on {} knows who did \
                 not; nothing was started",
                leader.host
            );
            return Err(Failure::new(Exit::Refused, what));
        }
        patience.say(meanwhile, || format!("other members of gang {}", place.name));
        if let Err(failure) = meanwhile.wait(Some(&seat), patience.left()) {
            wire.close();
            return Err(failure);
        }
    }
}

/// Looks for the leader once, and says who asks.
pub(super) fn find(folder: &GangFolder, member: Option<Member>) -> Result<(Wire, Leader), NotMet> {
    let leader = folder.leader().map_err(|failure| NotMet::Yet(failure.message))?;
    let none = || NotMet::Yet(format!("{} has no leader", folder.path().display()));
    let leader = leader.ok_or_else(none)?;
    let key = Key::read(&leader.key);
    let config = key.and_then(|key| key.client().ok()).map(Arc::new);
    let Some(config) = config else {
        return Err(NotMet::Yet(format!("what {} has of it is damaged", folder.path().display())));
    };
    let mut why = format!("the one on {} has no address", leader.host);
    for address in in_order(&leader.addresses, leader.host == host_name()) {
        let wire =
            TcpStream::connect_timeout(&address, CONNECT).and_then(|stream| Wire::connect(stream, &config));
        let met = wire.and_then(|wire| {
            let (version, gang) = (env!("CARGO_PKG_VERSION").to_owned(), folder.name().to_owned());
            let join = Join { version, gang, host: host_name(), member };
            wire.send(&Message::Join(join), &[])?;
            let (answer, _) = wire.receive(Some(Instant::now() + ANSWER))?;
            Ok((wire, answer))
        });
        match met {
            Ok((wire, Message::Welcome)) => return Ok((wire, leader)),
            Ok((_, Message::Later { reason })) => return Err(NotMet::Yet(reason)),
            Ok((_, Message::Refused { reason })) => return Err(NotMet::Refused(reason)),
            Ok((_, other)) => why = format!("the one at {address} has answered {other:?}"),
            Err(error) => {
                why = format!(
                    "the one on {} does not answer at {address} ({error}); it has ended, or does not have the key of \
                     the gang",
                    leader.host
                );
            }
        }
    }
    Err(NotMet::Yet(why))
}
