//! One reader of streams on another host, from its first word to its last.
//!
//! Runs in a thread of the server. Invariants: a version outside of what was exported is never read for it; what waits
//! to be sent is bounded: the next part follows when the one before is gone; a reader that has gone, or reads no more,
//! is noticed, and its cursor in the log goes with it. Fails by: [`Message::Refused`].

use crate::gang::wire::{UNREAD, Wire};
use crate::settings::{Export, allowed};
use holdfast_streams::Error;
use holdfast_streams::message::{Ask, Message, PART, Refusal};
use holdfast_streams::place::Place;
use holdfast_streams::reader::{Next, Reader};
use rustls::ServerConfig;
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a reader that has the key may take to say what it wants.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// Between two looks whether the producer has ended, or the reader has gone.
const LOOK: Duration = Duration::from_millis(200);
/// How often a reader that waits is told that the server is there.
pub(super) const BEAT: Duration = Duration::from_secs(10);

/// What readers are offered.
pub(super) struct Offer {
    pub(super) config: Arc<ServerConfig>,
    pub(super) exports: Vec<Export>,
    /// Of the logs.
    pub(super) folder: PathBuf,
}

/// Why a session ends before its end.
enum Over {
    /// The reader is told.
    Refused(String, Refusal),
    /// It has gone, or does not read.
    Gone,
}

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Over {
        Over::Gone
    }
}

impl From<Error> for Over {
    fn from(error: Error) -> Over {
        let kind = match &error {
            Error::Argument(_) => Refusal::Usage,
            Error::NoStream { .. } | Error::NoVersion { .. } | Error::NoObject { .. } => Refusal::NotFound,
            _ => Refusal::Damaged,
        };
        Over::Refused(error.to_string(), kind)
    }
}

pub(super) fn serve(offer: &Offer, stream: TcpStream) {
    let Ok(wire) = Wire::accept(stream, &offer.config) else { return };
    let Ok((Message::Ask(ask), _)) = wire.receive(Some(Instant::now() + INTRODUCTION)) else { return };
    let last = match answer(offer, &wire, &ask) {
        Ok(()) => Message::Done,
        Err(Over::Refused(reason, kind)) => Message::Refused { reason, kind },
        Err(Over::Gone) => return,
    };
    if wire.send(&last, &[]).is_ok() {
        wire.finish(UNREAD);
    }
}

fn answer(offer: &Offer, wire: &Wire<Message>, ask: &Ask) -> Result<(), Over> {
    let own = env!("CARGO_PKG_VERSION");
    if ask.version != own {
        let reason = format!("the reader has Holdfast {}, the server {own}", ask.version);
        return Err(Over::Refused(reason, Refusal::Usage));
    }
    let place = Place::parse(&ask.stream, &offer.folder)?;
    let text = place.to_string();
    let (name, rank) = text.rsplit_once('/').unwrap_or((&text, "0"));
    let versions = allowed(&offer.exports, name, rank.parse().unwrap_or(0));
    let may_read = |version: u64| versions.iter().any(|range| range.contains(&version));
    if versions.is_empty() || ask.at > 0 && !may_read(ask.at) {
        let version = if versions.is_empty() { String::new() } else { format!("version {} of ", ask.at) };
        let reason = format!("{version}stream {place} is not exported (holdfast serve --export)");
        return Err(Over::Refused(reason, Refusal::NotExported));
    }
    let mut reader = Reader::open(&place, &format!("a reader on {}", ask.host))?;
    match &ask.object {
        None => {
            seek(&mut reader, ask.at, &versions)?;
            let list = Message::List { version: reader.version(), objects: reader.objects() };
            Ok(wire.send(&list, &[])?)
        }
        Some(object) if !ask.follow => {
            seek(&mut reader, ask.at, &versions)?;
            send_object(wire, &reader, object)
        }
        Some(object) => {
            if ask.at > 0 {
                reader.seek(ask.at)?;
                send_object(wire, &reader, object)?;
            }
            follow(wire, &mut reader, object, &versions)
        }
    }
}

/// Goes to a version; 0: to the newest that may be read.
fn seek(reader: &mut Reader, at: u64, versions: &[RangeInclusive<u64>]) -> Result<(), Over> {
    let may_read = |version: u64| versions.iter().any(|range| range.contains(&version));
    let wanted = match at {
        0 => {
            let all = reader.versions()?;
            let newest = all.iter().map(|one| one.number).filter(|number| may_read(*number)).max();
            let none = "none of the versions that are exported is there";
            newest.ok_or_else(|| Over::Refused(none.into(), Refusal::NotFound))?
        }
        at => at,
    };
    reader.seek(wanted)?;
    Ok(())
}

/// Each version to come, until the producer has ended or the last that may be read is sent.
fn follow(
    wire: &Wire<Message>,
    reader: &mut Reader,
    object: &str,
    versions: &[RangeInclusive<u64>],
) -> Result<(), Over> {
    let may_read = |version: u64| versions.iter().any(|range| range.contains(&version));
    let last = versions.iter().map(|range| *range.end()).max().unwrap_or(0);
    let mut said = Instant::now();
    while reader.version() < last {
        match reader.next_with(object, LOOK)? {
            Next::Version if may_read(reader.version()) => {
                send_object(wire, reader, object)?;
                said = Instant::now();
            }
            Next::Over => return Ok(()),
            Next::Version | Next::NotYet => {}
        }
        if said.elapsed() >= BEAT {
            wire.send(&Message::Here, &[])?;
            said = Instant::now();
        }
        match wire.receive(Some(Instant::now())) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            // It says nothing more than what it wants.
            _ => return Err(Over::Gone),
        }
    }
    Ok(())
}

fn send_object(wire: &Wire<Message>, reader: &Reader, object: &str) -> Result<(), Over> {
    let bytes = reader.read(object)?;
    wire.send(&Message::Object { version: reader.version(), bytes: bytes.len() as u64 }, &[])?;
    for part in bytes.chunks(PART) {
        wire.send(&Message::Part, part)?;
        if !wire.finish(UNREAD) {
            return Err(Over::Gone);
        }
    }
    Ok(())
}
