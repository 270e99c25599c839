//! The leader's part: it listens, lets in who has the key, and waits until all members are there.
//!
//! A thread accepts, one more for each connection reads it, as long as the agent lives: commands come later, too.
//! Invariants: who does not have the key gets nothing and keeps none waiting; one of another version, gang or size, a
//! second one of a rank, one that restarts another image are refused by name. Fails by: who did not come.

use super::addresses::reached_at;
use super::folder::{GangFolder, Leader};
use super::key::Key;
use super::message::{Join, Member, Message};
use super::reading::{SILENCE, read_all};
use super::seat::Seat;
use super::takeover;
use super::waiting::{Meanwhile, Patience, Plan, host_name, members};
use super::wire::Wire;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::listening::{self, Turn};
use holdfast_image::control::{Reply, Request};
use holdfast_tiers::Job;
use rustls::ServerConfig;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections that have not proved the key yet: more are closed at once.
const MOST_STRANGERS: usize = 64;
/// How long one that has may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// What the threads share.
struct Host {
    seat: Arc<Seat>,
    job: Job,
    /// What is begun: an image to be restarted, and whether they meet to agree on one.
    begins: (Option<u64>, bool),
    config: Arc<ServerConfig>,
}

pub(super) fn lead(plan: &Plan<'_>, meanwhile: &Meanwhile<'_>) -> Result<Arc<Seat>, Failure> {
    let place = plan.place;
    let failed = |what: &'static str| move |error: io::Error| Failure::system(what, &error);
    let folder = GangFolder::make(plan.store, place)?;
    let listener = match place.listen.as_deref() {
        Some(wanted) => listening::at("--gang-listen", wanted)?,
        None => listening::anywhere().map_err(failed("listening for the members of the gang"))?,
    };
    let key = Key::new().map_err(failed("making the key of the gang"))?;
    let config = key.server().map_err(|error| Failure::new(Exit::Internal, format!("TLS: {error}")))?;
    let seat = Seat::new(place.clone(), host_name()).map_err(failed("eventfd"))?;
    plan.key.iter().for_each(|key| seat.has_key(key.clone()));
    let at = listener.local_addr().map_err(failed("asking for the port"))?;
    let leader = Leader {
        version: env!("CARGO_PKG_VERSION").into(),
        run: crate::tiers::new_id()?,
        host: host_name(),
        addresses: reached_at(at),
        key: key.text(),
    };
    let host = Arc::new(Host {
        seat: Arc::clone(&seat),
        job: plan.store.job(&place.job_of(0))?,
        begins: (plan.image, plan.meets),
        config: Arc::new(config),
    });
    thread::Builder::new()
        .name("gang-accept".into())
        .spawn(move || {
            listening::accept_all(&listener, ("gang-peer", MOST_STRANGERS), move |stream, stranger| {
                serve(&host, stream, stranger);
            });
        })
        .map_err(failed("starting a thread"))?;
    takeover::clear(&folder);
    // From now on the others come.
    folder.announce(&leader)?;
    tracing::info!("leader of gang {}, {leader:?}", place.name);
    let mut patience = Patience::new(place);
    loop {
        let missing = seat.missing();
        if missing.is_empty() && seat.complete() {
            return Ok(seat);
        }
        if patience.is_over() {
            folder.withdraw();
            let (who, name, limit) = (members(&missing), &place.name, place.wait_s);
            let what = format!(
                "{who} of gang {name} did not come within {limit} s (--gang-wait); nothing was started"
            );
            return Err(Failure::new(Exit::Refused, what));
        }
        patience.say(meanwhile, || format!("{} of gang {}", members(&missing), place.name));
        if let Err(failure) = meanwhile.wait(Some(&seat), patience.left()) {
            folder.withdraw();
            return Err(failure);
        }
    }
}

/// One connection, up to its end.
fn serve(host: &Host, stream: TcpStream, stranger: Turn) {
    let from = stream.peer_addr();
    let met = Wire::accept(stream, &host.config).and_then(|wire| {
        let (first, _) = wire.receive(Some(Instant::now() + INTRODUCTION))?;
        Ok((wire, first))
    });
    drop(stranger);
    let (wire, first) = match met {
        Ok((wire, first)) => (Arc::new(wire), first),
        Err(error) => return tracing::info!("{from:?} is not of the gang: {error}"),
    };
    let Message::Join(join) = first else { return };
    let entered = admit(host, &join);
    let start = join.member.and_then(|member| member.start);
    match entered {
        Ok(Some(_)) if host.seat.is_complete() && start.is_none() => {
            // Who comes again has not seen the end of the run before.
            let reason = format!("the gang {} that runs there is complete", host.seat.place().name);
            let _ = wire.send(&Message::Later { reason }, &[]);
        }
        Err(reason) => {
            tracing::warn!("{from:?} on {} was refused: {reason}", join.host);
            let _ = wire.send(&Message::Refused { reason }, &[]);
        }
        Ok(Some(member)) => {
            // What the others are told comes after the answer.
            if wire.send(&Message::Welcome, &[]).is_ok()
                && host.seat.attach((member, start), &join.host, &wire)
            {
                tracing::info!("member {member} on {} has come", join.host);
                read_all(&host.seat, member, &wire, SILENCE);
            }
        }
        Ok(None) => serve_command(host, &wire),
    }
}

/// Whether it may come: the member that it is, or a command.
fn admit(host: &Host, join: &Join) -> Result<Option<u32>, String> {
    let place = host.seat.place();
    let version = env!("CARGO_PKG_VERSION");
    if join.version != version {
        return Err(format!("it has Holdfast {}, the leader of the gang {version}", join.version));
    }
    if join.gang != place.name {
        return Err(format!("it is of gang {}, not of gang {}", join.gang, place.name));
    }
    let Some(Member { member, members, image, meets, start }) = join.member else { return Ok(None) };
    if start.is_some() {
        // One that was given up, or is of a run before, may come late.
        return match host.seat.is_complete() && host.seat.expects(member, start) {
            true => Ok(Some(member)),
            false => Err(format!("gang {} does not wait for this member {member}", place.name)),
        };
    }
    let has_grown = place.open && host.seat.is_complete();
    if members != place.members && !has_grown {
        return Err(format!(
            "it thinks that there are {members} members; gang {} has {}",
            place.name, place.members
        ));
    }
    if member == 0 || member >= members {
        return Err(format!(
            "the other members of gang {} are 1 to {}",
            place.name,
            members.saturating_sub(1)
        ));
    }
    if host.seat.is_complete() {
        return Ok(Some(member));
    }
    if (image, meets) != host.begins {
        let of = |begins: (Option<u64>, bool)| match begins {
            (_, true) => "is to be restarted".to_owned(),
            (Some(image), false) => format!("restarts image {image}"),
            (None, false) => "starts afresh".to_owned(),
        };
        return Err(format!("it {}, member 0 {}", of((image, meets)), of(host.begins)));
    }
    if !host.seat.awaits(member) {
        return Err(format!("member {member} of gang {} is there already", place.name));
    }
    Ok(Some(member))
}

/// A command asks: as it would ask the agent of its own host.
fn serve_command(host: &Host, wire: &Wire) {
    if wire.send(&Message::Welcome, &[]).is_err() {
        return;
    }
    while let Ok((message, _)) = wire.receive(None) {
        let Message::Checkpoint { stop, wait, wishes } = message else { return };
        let request = Request::Checkpoint { stop, wait, wishes };
        let answer = || {
            let reply = Agent::connect(&host.job).and_then(|agent| agent.ask(&request));
            let reply = reply.unwrap_or_else(|failure| Reply::Error { message: failure.message });
            wire.send(&Message::Reply(Box::new(reply)), &[])
        };
        if host.seat.answering(answer).is_err() {
            return;
        }
    }
}
