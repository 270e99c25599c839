//! An agent's end of its keeper ([`super::process`]): started when it is to be used, asked with a deadline.
//!
//! Used by the checkpoint thread, by flush workers ([`Keeper::read`]), and by a restart. What must hold: one question
//! at a time; a keeper that has not answered in time, or has ended, is asked nothing more, and every question fails
//! then. Fails by: words.

use super::ahead::{Ahead, Filling};
use super::messages::{Answer, Block, LENT, MOST, PACKED, Question, RING_FILE, Run, Taken};
use crate::cuda::messages::{self, LONGEST};
use crate::cuda::room::Holder;
use crate::entries::helper_environment;
use crate::exit::Failure;
use crate::helper::Helper;
use crate::settings::Cow;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_image::pages::SourceCodec;
use holdfast_sys::memfd;
use holdfast_sys::{fd, poll, scm};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a keeper may take for one thing: loading a driver takes seconds, and so may filling a device.
const DEADLINE: Duration = Duration::from_secs(120);
/// There is none any more.
const LOST: &str = "the keeper of the program's device memory has ended, and its data for the image is \
lost; libholdfast keeps the memory of the program from now on: try again";

/// See the head of the file.
#[derive(Debug)]
pub struct Keeper {
    pub(super) link: Mutex<Link>,
    /// Its other end is open as long as the process lasts.
    pipe: OwnedFd,
    pub(super) ring: File,
    /// What the image has, to be told when there is enough of it.
    stored: Mutex<Vec<Run>>,
    /// Nothing is known that would keep it from packing.
    packs: AtomicBool,
}

/// The connection, and what is known of the windows of the ring.
#[derive(Debug)]
pub(super) struct Link {
    /// `None`: it is lost.
    socket: Option<OwnedFd>,
    pub(super) ahead: Ahead,
    pub(super) filling: Filling,
}

impl Keeper {
    /// Starts one that listens at this path. `log`: its standard error.
    ///
    /// # Errors
    /// In words.
    pub fn start(socket: &Path, cache: Cow, log: OwnedFd) -> Result<Keeper, String> {
        let (ours, pipe, ring) = launch(socket, cache, log).map_err(|failure| failure.message)?;
        let keeper = Keeper {
            link: Mutex::new(Link {
                socket: Some(ours),
                ahead: Ahead::default(),
                filling: Filling::default(),
            }),
            pipe,
            ring,
            stored: Mutex::default(),
            packs: AtomicBool::new(true),
        };
        keeper.wait().map_err(|why| format!("starting a keeper: {why}"))?;
        Ok(keeper)
    }

    fn wait(&self) -> Result<(), String> {
        self.link.lock().receive().map(drop)
    }

    fn ask(&self, question: &Question) -> Result<(), String> {
        self.ask_for(question).map(drop)
    }

    /// The same, with what comes along.
    fn ask_for(&self, question: &Question) -> Result<(Answer, Vec<OwnedFd>), String> {
        self.link.lock().ask(question)
    }

    /// It has ended, or it was given up.
    pub fn is_lost(&self) -> bool {
        let open = |fd: &OwnedFd| fd::poll_state(fd.as_fd()).is_ok_and(|state| state & libc::POLLHUP == 0);
        !open(&self.pipe) || self.link.lock().is_lost()
    }

    /// Descriptors of memory, by name; what is not there any more is left out.
    ///
    /// # Errors
    /// It gives none; there is no room for so many.
    pub fn lend(&self, names: &[u64]) -> Result<Vec<(u64, OwnedFd)>, String> {
        let mut all = Vec::with_capacity(names.len());
        for some in names.chunks(LENT) {
            let (answer, files) = self.ask_for(&Question::Lend { names: some.to_vec() })?;
            let Answer::Lent { names } = answer else {
                return Err("the keeper lends nothing".into());
            };
            if names.len() != files.len() {
                return Err(format!(
                    "of {} descriptors of device memory only {} arrived: raise the limit of open files \
                     (ulimit -Hn)",
                    names.len(),
                    files.len()
                ));
            }
            all.extend(names.into_iter().zip(files));
        }
        Ok(all)
    }

    /// Memory of one that has ended: name, process, descriptor.
    ///
    /// # Errors
    /// It does not take them.
    pub fn inherit(&self, all: &[(u64, i32, OwnedFd)]) -> Result<(), String> {
        for some in all.chunks(LENT) {
            let blocks = some.iter().map(|(name, owner, _)| (*name, *owner)).collect();
            let files: Vec<_> = some.iter().map(|(.., file)| file.as_fd()).collect();
            let text =
                serde_json::to_vec(&Question::Inherit { blocks }).map_err(|error| error.to_string())?;
            let mut link = self.link.lock();
            let open = link.socket.as_ref().ok_or(LOST)?;
            scm::send_many(open.as_fd(), &text, &files)
                .map_err(|error| format!("giving a keeper what another had: {error}"))?;
            link.receive()?;
        }
        Ok(())
    }

    /// Has it load a driver.
    ///
    /// # Errors
    /// It cannot.
    pub fn load(&self, library: &Path) -> Result<(), String> {
        self.ask(&Question::Load { library: library.to_owned() })
    }

    /// See [`Question::Take`].
    ///
    /// # Errors
    /// Nothing is taken.
    pub fn take(&self, owners: &[i32], whole: bool) -> Result<Taken, String> {
        self.stored.lock().clear();
        let taken = self.ask_described(&Question::Take { owners: owners.to_vec(), whole })?;
        self.link.lock().ahead = Ahead::of(&taken.dirty);
        Ok(taken)
    }

    /// See [`Question::Blocks`].
    ///
    /// # Errors
    /// The keeper is lost.
    pub fn blocks(&self, owners: &[i32]) -> Result<Taken, String> {
        self.stored.lock().clear();
        self.ask_described(&Question::Blocks { owners: owners.to_vec() })
    }

    fn ask_described(&self, question: &Question) -> Result<Taken, String> {
        let (_, mut files) = self.ask_for(question)?;
        let mut text = Vec::new();
        let mut file = File::from(files.pop().ok_or("the keeper has not said what it has taken")?);
        file.read_to_end(&mut text).map_err(|error| format!("reading what the keeper has taken: {error}"))?;
        serde_json::from_slice(&text).map_err(|error| format!("what the keeper has taken: {error}"))
    }

    /// What does not have the digests that were filled in, and what of it is in the cache.
    ///
    /// # Errors
    /// The device has failed.
    pub fn differing(&self) -> Result<(Vec<Run>, Vec<Run>), String> {
        let Taken { dirty, zero, cached, .. } = self.ask_described(&Question::Differing)?;
        Ok((dirty.into_iter().chain(zero).collect(), cached))
    }

    /// See [`Question::Bring`]: what was brought.
    ///
    /// # Errors
    /// The device has failed.
    pub fn bring(&self) -> Result<Vec<Run>, String> {
        Ok(self.ask_described(&Question::Bring)?.cached)
    }

    /// Makes memory zero.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn clear(&self, all: &[Run]) -> Result<(), String> {
        all.chunks(MOST).try_for_each(|some| self.ask(&Question::Clear { runs: some.to_vec() }))
    }

    /// See [`Question::Yield`].
    ///
    /// # Errors
    /// It does not move.
    pub fn give_way(&self) -> Result<(), String> {
        self.ask(&Question::Yield)
    }

    /// Whether it is worth asking it to pack.
    pub fn packs(&self) -> bool {
        self.packs.load(Ordering::Relaxed)
    }

    /// Appends chunks that were taken to `into`, packed: bytes of each, of as many of them as could be packed now. See
    /// [`Question::Pack`].
    ///
    /// # Errors
    /// The keeper is lost.
    pub fn pack(&self, chunks: &[u64], codec: SourceCodec, into: &mut Vec<u8>) -> Result<Vec<usize>, String> {
        let chunks = chunks[..chunks.len().min(PACKED)].to_vec();
        let most = chunks.len();
        // The ring is the question's until it is read.
        let mut link = self.link.lock();
        let bytes = match link.ask(&Question::Pack { chunks, codec }) {
            Ok((Answer::Packed { bytes }, _)) => bytes,
            Err(why) if link.is_lost() => return Err(why),
            other => {
                let why = other.err().unwrap_or_else(|| "the keeper has answered something else".into());
                tracing::info!("device memory is not packed on the device: {why}");
                self.packs.store(false, Ordering::Relaxed);
                return Ok(Vec::new());
            }
        };
        let lens: Vec<usize> = bytes.iter().map(|len| *len as usize).collect();
        if lens.len() > most || lens.iter().any(|len| *len == 0 || *len > CHUNK as usize) {
            return Err("the keeper says of chunks that they have become what they cannot".into());
        }
        let begin = into.len();
        into.resize(begin + lens.iter().sum::<usize>(), 0);
        self.read_ring(&mut into[begin..], 0)?;
        Ok(lens)
    }

    /// The image has these.
    pub fn stored(&self, run: Run) {
        let mut stored = self.stored.lock();
        stored.push(run);
        if stored.len() >= MOST {
            let runs = std::mem::take(&mut *stored);
            drop(stored);
            // One that is lost has nothing to give up.
            let _ = self.link.lock().tell(&Question::Stored { runs });
        }
    }

    /// The image is committed, or has failed.
    ///
    /// # Errors
    /// The keeper is lost.
    pub fn over(&self, committed: bool) -> Result<(), String> {
        self.stored.lock().clear();
        self.link.lock().ahead = Ahead::default();
        self.ask(&Question::Over { committed })
    }

    /// After a restart: makes what an image has.
    ///
    /// # Errors
    /// There is no such device, or no memory.
    pub fn remake(&self, key: [u8; 16], blocks: &[Block]) -> Result<(), String> {
        self.ask(&Question::Key { key })?;
        blocks.chunks(MOST).try_for_each(|some| self.ask(&Question::Remake { blocks: some.to_vec() }))
    }

    /// Compares all that was remade with the digests that were filled in.
    ///
    /// # Errors
    /// It is something else.
    pub fn check(&self) -> Result<(), String> {
        self.ask(&Question::Check)
    }
}

impl Holder for Keeper {
    fn hold(&self, owner: i32, uuid: [u8; 16], bytes: u64) -> Result<(), String> {
        self.ask(&Question::Hold { owner, uuid, bytes })
    }
    fn give(&self, owner: i32) {
        // One that is lost holds nothing.
        let _ = self.ask(&Question::Give { owner });
    }
}

impl Link {
    pub(super) fn is_lost(&self) -> bool {
        self.socket.is_none()
    }

    /// Says what has no answer.
    pub(super) fn tell(&mut self, question: &Question) -> Result<(), String> {
        let open = self.socket.as_ref().ok_or(LOST)?;
        if messages::send(open.as_fd(), question).is_err() {
            self.socket = None;
            return Err(LOST.into());
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, question: &Question) -> Result<(Answer, Vec<OwnedFd>), String> {
        self.tell(question)?;
        self.receive()
    }

    fn receive(&mut self) -> Result<(Answer, Vec<OwnedFd>), String> {
        let open = self.socket.take().ok_or(LOST)?;
        let ready = poll::readable_within(open.as_fd(), DEADLINE);
        if !ready.map_err(|error| format!("waiting for the keeper: {error}"))? {
            return Err(format!("the keeper has not answered in {DEADLINE:?}"));
        }
        let mut buffer = vec![0; LONGEST];
        let (len, along) = match scm::receive_many(open.as_fd(), &mut buffer) {
            Ok((0, _)) | Err(_) => return Err(LOST.into()),
            Ok(received) => received,
        };
        let answer = serde_json::from_slice(&buffer[..len])
            .map_err(|error| format!("the keeper's answer: {error}"))?;
        self.socket = Some(open);
        match answer {
            Answer::Failed { why } => Err(why),
            answer => Ok((answer, along)),
        }
    }
}

fn launch(socket: &Path, cache: Cow, log: OwnedFd) -> Result<(OwnedFd, OwnedFd, File), Failure> {
    let system = |what: &'static str| move |error: io::Error| Failure::system(what, &error);
    let (pipe, end) = fd::pipe(libc::O_CLOEXEC).map_err(system("a pipe for a keeper"))?;
    let made = || {
        let ring = File::from(memfd::unsealed(c"holdfast-ring")?);
        ring.set_len(RING_FILE)?;
        Ok((ring.try_clone()?.into(), ring))
    };
    let (theirs, ring) = made().map_err(system("a ring for a keeper"))?;
    let cache = cache.to_string();
    let mut words: Vec<&OsStr> =
        ["__keeper", "--agent", "3", "--ring", "4", "--gpu-cache", &cache, "--socket"].map(OsStr::new).into();
    words.push(socket.as_os_str());
    let environment = helper_environment()?;
    let descriptors = vec![theirs, end];
    let keeper = Helper { what: "a keeper", words, environment, log, descriptors, at_default: &[] };
    let (_, ours) = keeper.start()?;
    Ok((ours, pipe, ring))
}
