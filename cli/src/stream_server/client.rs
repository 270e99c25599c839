//! `holdfast cat --from`: an object of a stream on another host, as `holdfast cat` prints one of this host.
//!
//! Invariants: an object is printed when all of it has come, and each once; no size that the server says is believed
//! before so many bytes have come. Fails by: what the server has refused, or that it was lost.

use super::key_file;
use super::session::BEAT;
use crate::exit::{Exit, Failure};
use crate::gang::wire::Wire;
use holdfast_streams::message::{Ask, Message, Parts, Refusal};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one address may take to answer.
const CONNECT: Duration = Duration::from_secs(10);
/// A server that has said nothing for so long is lost.
const SILENCE: Duration = Duration::from_secs(6 * BEAT.as_secs());

/// What is wanted, of whom.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// `ADDRESS:PORT`.
    pub from: &'a str,
    /// The file of the key.
    pub key: &'a Path,
    /// `NAME` or `NAME/RANK`.
    pub stream: &'a str,
    /// 0: the newest.
    pub version: u64,
    /// `None`: the list.
    pub object: Option<&'a str>,
    /// See [`Ask`].
    pub follow: bool,
}

/// Prints the objects of a version: their names and sizes in bytes.
type List<'a> = dyn Fn(u64, &BTreeMap<String, u64>) -> Result<(), Failure> + 'a;

/// Prints an object of this version; `false`: nothing more is wanted.
type Print<'a> = dyn FnMut(u64, &[u8]) -> Result<bool, Failure> + 'a;

/// Prints it: `list` a list, `print` an object of a version; `false` from it: nothing more is wanted.
///
/// # Errors
/// See the head of the file.
pub fn read(wanted: &Wanted<'_>, list: &List<'_>, print: &mut Print<'_>) -> Result<(), Failure> {
    let from = wanted.from;
    let lost = |error: io::Error| {
        let what = match error.kind() {
            ErrorKind::UnexpectedEof => "it has ended".to_owned(),
            ErrorKind::TimedOut => format!("it has not answered for {} s", SILENCE.as_secs()),
            _ => error.to_string(),
        };
        Failure::new(Exit::Internal, format!("the server of streams at {from} was lost: {what}"))
    };
    let wire = ask(wanted)?;
    loop {
        match wire.receive(Some(Instant::now() + SILENCE)).map_err(lost)? {
            (Message::Here, _) => {}
            (Message::Done, _) => return Ok(()),
            (Message::List { version, objects }, _) => list(version, &objects)?,
            (Message::Object { version, bytes }, _) => {
                if !print(version, &object(&wire, bytes).map_err(lost)?)? {
                    return Ok(());
                }
            }
            (Message::Refused { reason, kind }, _) => return Err(refused(from, reason, kind)),
            (other @ (Message::Ask(_) | Message::Part), _) => {
                let what = format!("the server of streams at {from} has said {other:?}");
                return Err(Failure::new(Exit::Internal, what));
            }
        }
    }
}

fn refused(from: &str, reason: String, kind: Refusal) -> Failure {
    let exit = match kind {
        Refusal::NotExported => Exit::Refused,
        Refusal::NotFound => Exit::NotFound,
        Refusal::Usage => Exit::Usage,
        Refusal::Damaged => Exit::BadImage,
    };
    Failure::new(exit, format!("the server of streams at {from}: {reason}"))
}

/// Connects, proves the key, and says what is wanted.
fn ask(wanted: &Wanted<'_>) -> Result<Wire<Message>, Failure> {
    let from = wanted.from;
    let key = key_file::read(wanted.key, false)?;
    let config = key.client().map_err(|error| Failure::new(Exit::Internal, format!("TLS: {error}")))?;
    let config = Arc::new(config);
    let addresses: Vec<SocketAddr> = from
        .to_socket_addrs()
        .map_err(|error| Failure::new(Exit::Usage, format!("--from {from}: {error}; write ADDRESS:PORT")))?
        .collect();
    let mut why = io::Error::from(ErrorKind::NotFound);
    for address in addresses {
        let stream = match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => stream,
            Err(error) => {
                why = error;
                continue;
            }
        };
        let ask = Message::Ask(Ask {
            version: env!("CARGO_PKG_VERSION").into(),
            host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().into(),
            stream: wanted.stream.to_owned(),
            at: wanted.version,
            object: wanted.object.map(str::to_owned),
            follow: wanted.follow,
        });
        let wire = Wire::connect(stream, &config).and_then(|wire| wire.send(&ask, &[]).map(|()| wire));
        return wire.map_err(|error| {
            let key = wanted.key.display();
            let what = format!(
                "what listens at {from} does not have the key in {key}, or is no `holdfast serve --listen`: {error}"
            );
            Failure::new(Exit::Refused, what)
        });
    }
    Err(Failure::new(Exit::NotFound, format!("no server of streams can be reached at {from}: {why}")))
}

/// The parts of an object of so many bytes.
fn object(wire: &Wire<Message>, bytes: u64) -> io::Result<Vec<u8>> {
    let mut parts = Parts::of(bytes);
    while !parts.are_whole() {
        let (message, part) = wire.receive(Some(Instant::now() + SILENCE))?;
        parts.add(&message, &part).map_err(|what| io::Error::new(ErrorKind::InvalidData, what))?;
    }
    Ok(parts.take())
}
