//! An agent's end of its keeper ([`super::process`]): started when it is to be used, asked with a deadline.
//!
//! Used by the checkpoint thread, by flush workers ([`Keeper::read`]), and by a restart. What must hold: one question
//! at a time; a keeper that has not answered in time, or has ended, is asked nothing more, and every question fails
//! then. Fails by: words.

use super::messages::{Answer, Block, LENT, MOST, PACKED, Question, RING, Run, Taken};
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
use std::os::unix::fs::FileExt;
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
    /// `None`: it is lost.
    socket: Mutex<Option<OwnedFd>>,
    /// Its other end is open as long as the process lasts.
    pipe: OwnedFd,
    ring: File,
    /// What the image has, to be told when there is enough of it.
    stored: Mutex<Vec<Run>>,
    /// Nothing is known that would keep it from packing.
    packs: AtomicBool,
}

impl Keeper {
    /// Starts one that listens at this path. `log`: its standard error.
    ///
    /// # Errors
    /// In words.
    pub fn start(socket: &Path, cache: Cow, log: OwnedFd) -> Result<Keeper, String> {
        let (ours, pipe, ring) = launch(socket, cache, log).map_err(|failure| failure.message)?;
        let keeper = Keeper {
            socket: Mutex::new(Some(ours)),
            pipe,
            ring,
            stored: Mutex::default(),
            packs: AtomicBool::new(true),
        };
        keeper.wait().map_err(|why| format!("starting a keeper: {why}"))?;
        Ok(keeper)
    }

    fn wait(&self) -> Result<(), String> {
        let mut socket = self.socket.lock();
        receive(&mut socket).map(drop)
    }

    fn ask(&self, question: &Question) -> Result<(), String> {
        self.ask_for(question).map(drop)
    }

    /// The same, with what comes along.
    fn ask_for(&self, question: &Question) -> Result<(Answer, Vec<OwnedFd>), String> {
        let mut socket = self.socket.lock();
        ask(&mut socket, question)
    }

    /// It has ended, or it was given up.
    pub fn is_lost(&self) -> bool {
        let open = |fd: &OwnedFd| fd::poll_state(fd.as_fd()).is_ok_and(|state| state & libc::POLLHUP == 0);
        !open(&self.pipe) || self.socket.lock().is_none()
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
            let mut socket = self.socket.lock();
            let open = socket.as_ref().ok_or(LOST)?;
            scm::send_many(open.as_fd(), &text, &files)
                .map_err(|error| format!("giving a keeper what another had: {error}"))?;
            receive(&mut socket)?;
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
        self.ask_described(&Question::Take { owners: owners.to_vec(), whole })
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

    /// Reads what was taken.
    ///
    /// # Errors
    /// The keeper does not have it.
    pub fn read(&self, start: u64, buffer: &mut [u8]) -> Result<(), String> {
        let mut at = start;
        for piece in buffer.chunks_mut(RING as usize) {
            // The ring is the question's until it is read.
            let mut socket = self.socket.lock();
            ask(&mut socket, &Question::Read { run: (at, piece.len() as u64) })?;
            self.ring.read_exact_at(piece, 0).map_err(|error| format!("reading the ring: {error}"))?;
            drop(socket);
            at += piece.len() as u64;
        }
        Ok(())
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
        let mut socket = self.socket.lock();
        let bytes = match ask(&mut socket, &Question::Pack { chunks, codec }) {
            Ok((Answer::Packed { bytes }, _)) => bytes,
            Err(why) if socket.is_none() => return Err(why),
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
        self.ring
            .read_exact_at(&mut into[begin..], 0)
            .map_err(|error| format!("reading the ring: {error}"))?;
        Ok(lens)
    }

    /// The image has these.
    pub fn stored(&self, run: Run) {
        let mut stored = self.stored.lock();
        stored.push(run);
        if stored.len() >= MOST {
            let runs = std::mem::take(&mut *stored);
            drop(stored);
            if let Some(socket) = self.socket.lock().as_ref() {
                // One that is lost has nothing to give up.
                let _ = messages::send(socket.as_fd(), &Question::Stored { runs });
            }
        }
    }

    /// The image is committed, or has failed.
    ///
    /// # Errors
    /// The keeper is lost.
    pub fn over(&self, committed: bool) -> Result<(), String> {
        self.stored.lock().clear();
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

    /// Brings pages of the image there.
    ///
    /// # Errors
    /// They belong to nothing that was made.
    pub fn fill(&self, pieces: &[(u64, &[u8])]) -> Result<(), String> {
        let (mut rest, mut taken) = (pieces.iter().copied(), None);
        loop {
            let mut socket = self.socket.lock();
            let (mut runs, mut offset) = (Vec::new(), 0_u64);
            while let Some((start, bytes)) = taken.take().or_else(|| rest.next()) {
                let room = (RING - offset) as usize;
                let (now, later) = bytes.split_at(bytes.len().min(room));
                if !now.is_empty() {
                    self.ring
                        .write_all_at(now, offset)
                        .map_err(|error| format!("writing the ring: {error}"))?;
                    runs.push((start, now.len() as u64));
                    offset += now.len() as u64;
                }
                if !later.is_empty() {
                    taken = Some((start + now.len() as u64, later));
                    break;
                }
                if runs.len() >= MOST {
                    break;
                }
            }
            if runs.is_empty() {
                return Ok(());
            }
            ask(&mut socket, &Question::Fill { runs })?;
        }
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

fn ask(socket: &mut Option<OwnedFd>, question: &Question) -> Result<(Answer, Vec<OwnedFd>), String> {
    let open = socket.as_ref().ok_or(LOST)?;
    if messages::send(open.as_fd(), question).is_err() {
        *socket = None;
        return Err(LOST.into());
    }
    receive(socket)
}

fn receive(socket: &mut Option<OwnedFd>) -> Result<(Answer, Vec<OwnedFd>), String> {
    let open = socket.take().ok_or(LOST)?;
    let ready = poll::readable_within(open.as_fd(), DEADLINE);
    if !ready.map_err(|error| format!("waiting for the keeper: {error}"))? {
        return Err(format!("the keeper has not answered in {DEADLINE:?}"));
    }
    let mut buffer = vec![0; LONGEST];
    let (len, along) = match scm::receive_many(open.as_fd(), &mut buffer) {
        Ok((0, _)) | Err(_) => return Err(LOST.into()),
        Ok(received) => received,
    };
    let answer =
        serde_json::from_slice(&buffer[..len]).map_err(|error| format!("the keeper's answer: {error}"))?;
    *socket = Some(open);
    match answer {
        Answer::Failed { why } => Err(why),
        answer => Ok((answer, along)),
    }
}

fn launch(socket: &Path, cache: Cow, log: OwnedFd) -> Result<(OwnedFd, OwnedFd, File), Failure> {
    let system = |what: &'static str| move |error: io::Error| Failure::system(what, &error);
    let (pipe, end) = fd::pipe(libc::O_CLOEXEC).map_err(system("a pipe for a keeper"))?;
    let made = || {
        let ring = File::from(memfd::unsealed(c"holdfast-ring")?);
        ring.set_len(RING)?;
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
