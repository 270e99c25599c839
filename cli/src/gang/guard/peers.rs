//! What a member reads of the others' sets.
//!
//! A connection to each of them that is asked, made when it is. Invariant: an answer is that of the question before
//! it; nothing is waited for longer than [`ANSWER`]. Fails by: [`Absent`], with the member and the reason.

use super::super::addresses::in_order;
use super::super::key::Key;
use super::super::message::{Message, Wanted};
use super::super::wire::Wire;
use rustls::ClientConfig;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one of its addresses may take to answer.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a piece may take: a disk may be slow.
const ANSWER: Duration = Duration::from_secs(120);

/// So many questions are under way to each member: while one is answered, the next is on its way.
const AHEAD: u64 = 4;

/// A member from which nothing, or nothing right, is to be had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Absent {
    /// Which.
    pub member: u32,
    /// Why.
    pub why: String,
}

/// What stops a reader of many pieces.
pub enum Problem {
    /// A member, which counts as lost.
    Of(Absent),
    /// This one, in words.
    Own(String),
}

/// Where a member lets others read.
#[derive(Clone, Debug)]
pub struct Where {
    /// Its host.
    pub host: String,
    /// Its addresses, best first.
    pub addresses: Vec<String>,
}

/// See the head of the file.
pub struct Peers {
    host: String,
    config: Arc<ClientConfig>,
    at: BTreeMap<u32, Where>,
    wires: BTreeMap<u32, Wire>,
}

impl Peers {
    /// Of these members; `host`: our own.
    ///
    /// # Errors
    /// Of TLS.
    pub fn new(key: &Key, host: String, at: BTreeMap<u32, Where>) -> Result<Peers, String> {
        let config = Arc::new(key.client().map_err(|error| format!("TLS: {error}"))?);
        Ok(Peers { host, config, at, wires: BTreeMap::new() })
    }

    /// How a member is called in messages.
    pub fn named(&self, member: u32) -> String {
        match self.at.get(&member) {
            Some(at) => format!("member {member} on {}", at.host),
            None => format!("member {member}"),
        }
    }

    fn connect(&self, member: u32) -> Result<Wire, String> {
        let at = self.at.get(&member).ok_or("it has not said where it is reached")?;
        let mut why = "it has no address".to_owned();
        for address in in_order(&at.addresses, at.host == self.host) {
            let wire = TcpStream::connect_timeout(&address, CONNECT)
                .and_then(|stream| Wire::connect(stream, &self.config));
            match wire {
                Ok(wire) => return Ok(wire),
                Err(error) => why = format!("it does not answer at {address} ({error})"),
            }
        }
        Err(why)
    }

    /// Asks several members at the same time: their answers, in order.
    ///
    /// # Errors
    /// The first that does not answer.
    pub fn read(&mut self, set: &str, asked: &[(u32, Wanted)]) -> Result<Vec<Vec<u8>>, Absent> {
        self.ask(set, asked)?;
        self.answers(asked)
    }

    /// Asks so many times, each time several members, and is ahead with asking: `each` gets the answers in order.
    ///
    /// # Errors
    /// The first that does not answer; what `each` says.
    pub fn read_all(
        &mut self,
        set: &str,
        count: u64,
        asked: &dyn Fn(u64) -> Vec<(u32, Wanted)>,
        each: &mut dyn FnMut(u64, Vec<Vec<u8>>) -> Result<(), Problem>,
    ) -> Result<(), Problem> {
        let mut ahead = VecDeque::new();
        for at in 0..count {
            let next = at + ahead.len() as u64;
            for next in next..count.min(at + AHEAD) {
                let questions = asked(next);
                self.ask(set, &questions).map_err(Problem::Of)?;
                ahead.push_back(questions);
            }
            let questions = ahead.pop_front().unwrap_or_default();
            let answers = self.answers(&questions).map_err(Problem::Of)?;
            if let Err(problem) = each(at, answers) {
                // What is under way are answers to no question any more.
                self.wires.clear();
                return Err(problem);
            }
        }
        Ok(())
    }

    fn ask(&mut self, set: &str, asked: &[(u32, Wanted)]) -> Result<(), Absent> {
        for (member, wanted) in asked {
            let absent = |why: String| Absent { member: *member, why };
            if !self.wires.contains_key(member) {
                let wire = self.connect(*member).map_err(absent)?;
                self.wires.insert(*member, wire);
            }
            let get = Message::Get { set: set.to_owned(), wanted: *wanted };
            let sent = self.wires.get(member).map_or(Ok(()), |wire| wire.send(&get, &[]));
            sent.map_err(|error| self.lost(*member, &error))?;
        }
        Ok(())
    }

    fn answers(&mut self, asked: &[(u32, Wanted)]) -> Result<Vec<Vec<u8>>, Absent> {
        let mut answers = Vec::new();
        for (member, wanted) in asked {
            let Some(wire) = self.wires.get(member) else { continue };
            let answer = match wire.receive(Some(Instant::now() + ANSWER)) {
                Ok((Message::Piece, bytes)) => Ok(bytes),
                Ok((Message::Refused { reason }, _)) => Err(reason),
                Ok((other, _)) => Err(format!("unexpected answer: {other:?}")),
                Err(error) => return Err(self.lost(*member, &error)),
            };
            let fits = |bytes: &Vec<u8>| wanted.len().is_none_or(|len| len == bytes.len() as u64);
            let answer = answer.and_then(|bytes| {
                if fits(&bytes) { Ok(bytes) } else { Err("it has sent another length".into()) }
            });
            match answer {
                Ok(bytes) => answers.push(bytes),
                Err(why) => {
                    // The other answers are those of no question any more.
                    self.wires.clear();
                    return Err(Absent { member: *member, why });
                }
            }
        }
        Ok(answers)
    }

    fn lost(&mut self, member: u32, error: &io::Error) -> Absent {
        self.wires.clear();
        let why = match error.kind() {
            io::ErrorKind::TimedOut => format!("it has not answered within {} s", ANSWER.as_secs()),
            io::ErrorKind::UnexpectedEof => "its agent has ended".to_owned(),
            _ => error.to_string(),
        };
        Absent { member, why }
    }
}
