//! What a member lets the others of its gang read: streams and parity of its sets.
//!
//! A thread accepts, one more for each connection answers, as long as the shelf is there. Invariant: who does not have
//! the key of the gang gets nothing; what is read is a set's, whose files do not go as long as it is there. Fails by: a
//! refusal with words, which the other side has as the failure of its part.

use super::super::addresses::reached_at;
use super::super::key::Key;
use super::super::message::{Message, Wanted};
use super::super::wire::Wire;
use super::PIECE;
use crate::exit::{Exit, Failure};
use crate::listening;
use holdfast_tiers::Job;
use holdfast_tiers::redundancy::{GroupFile, MemberStream, Parity, open_parity, sets};
use parking_lot::Mutex;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections at most: all members of all groups that one may be in, and some more.
const MOST: usize = 512;

/// How long a set is waited for that is about to be begun, and how often it is looked.
const BEGINNING: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// A set that is read.
struct Set {
    file: GroupFile,
    stream: MemberStream,
    /// Opened when it is asked for: it is made last.
    parity: Mutex<Option<Arc<Parity>>>,
}

/// See the head of the file.
pub struct Shelf {
    job: Job,
    config: Arc<ServerConfig>,
    addresses: Vec<String>,
    open: Mutex<BTreeMap<String, Arc<Set>>>,
    /// What each thread that answers does first.
    begin: fn(),
}

impl Shelf {
    /// Begins to listen. `begin`: what each thread that answers does first.
    ///
    /// # Errors
    /// It cannot.
    pub fn new(job: &Job, key: &Key, begin: fn()) -> Result<Arc<Shelf>, Failure> {
        let failed = |error: io::Error| Failure::system("listening for the members of the gang", &error);
        let config = key.server().map_err(|error| Failure::new(Exit::Internal, format!("TLS: {error}")))?;
        let listener = listening::anywhere().map_err(failed)?;
        let addresses = reached_at(listener.local_addr().map_err(failed)?);
        let (job, config, open) = (job.clone(), Arc::new(config), Mutex::default());
        let shelf = Arc::new(Shelf { job, config, addresses, open, begin });
        let of_thread = Arc::clone(&shelf);
        thread::Builder::new()
            .name("guard-accept".into())
            .spawn(move || {
                listening::accept_all(&listener, ("guard-peer", MOST), move |stream, _turn| {
                    (of_thread.begin)();
                    let _ = serve(&of_thread, stream);
                });
            })
            .map_err(failed)?;
        Ok(shelf)
    }

    /// Where it is reached, best first.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Files that were opened are opened anew when they are asked for again: some may have been removed.
    pub fn forget(&self) {
        self.open.lock().clear();
    }

    fn set(&self, id: &str) -> Result<Arc<Set>, String> {
        let mut open = self.open.lock();
        if let Some(set) = open.get(id) {
            return Ok(Arc::clone(set));
        }
        let all = sets(&self.job).map_err(|error| error.to_string())?;
        let found = all.into_iter().filter_map(|set| set.file.ok()).find(|file| file.set == id);
        let file = found.ok_or_else(|| format!("job {} does not have this set", self.job.name()))?;
        let files = file.own().map(|own| own.files.as_slice()).unwrap_or_default();
        let stream = MemberStream::open(&self.job, files).map_err(|error| error.to_string())?;
        let set = Arc::new(Set { file, stream, parity: Mutex::default() });
        open.insert(id.to_owned(), Arc::clone(&set));
        Ok(set)
    }

    /// The set, which may be about to be begun: the other member was faster.
    fn awaited(&self, id: &str) -> Result<Arc<Set>, String> {
        let begun = Instant::now();
        loop {
            match self.set(id) {
                Err(_) if begun.elapsed() < BEGINNING => thread::sleep(LOOK),
                set => return set,
            }
        }
    }

    fn parity(&self, set: &Set) -> Result<Arc<Parity>, String> {
        let mut parity = set.parity.lock();
        if let Some(open) = &*parity {
            return Ok(Arc::clone(open));
        }
        let opened = Arc::new(open_parity(&self.job, &set.file).map_err(|error| error.to_string())?);
        *parity = Some(Arc::clone(&opened));
        Ok(opened)
    }

    fn read(&self, id: &str, wanted: Wanted) -> Result<Vec<u8>, String> {
        let set = self.awaited(id)?;
        let buffer = |len: u64| match usize::try_from(len) {
            Ok(len) if len as u64 <= PIECE => Ok(vec![0; len]),
            _ => Err(format!("{len} bytes are too many at once")),
        };
        match wanted {
            Wanted::Group => Ok(set.file.encode()),
            Wanted::Sums => {
                let sums = &self.parity(&set)?.sums;
                serde_json::to_vec(sums).map_err(|error| error.to_string())
            }
            Wanted::Stream { offset, len } => {
                let mut bytes = buffer(len)?;
                set.stream.read_at(offset, &mut bytes).map_err(|error| error.to_string())?;
                Ok(bytes)
            }
            Wanted::Parity { offset, len } => {
                let mut bytes = buffer(len)?;
                self.parity(&set)?.read_at(offset, &mut bytes).map_err(|error| error.to_string())?;
                Ok(bytes)
            }
        }
    }
}

/// One connection, up to its end.
fn serve(shelf: &Shelf, stream: TcpStream) -> io::Result<()> {
    let wire = Wire::accept(stream, &shelf.config)?;
    while let (Message::Get { set, wanted }, _) = wire.receive(None)? {
        match shelf.read(&set, wanted) {
            Ok(bytes) => wire.send(&Message::Piece, &bytes)?,
            Err(reason) => wire.send(&Message::Refused { reason }, &[])?,
        }
    }
    Ok(())
}
