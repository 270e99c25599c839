//! `holdfast __keeper`: the process that owns device memory for the programs of a job.
//!
//! Started by an agent ([`super::client`]). Two kinds of questions come to it: those of its agent, over the socket that
//! it was started with, and those of programs, each over a connection of its own to a socket beside the agent's, which
//! only the user's own processes and root may use ([`holdfast_abi::KeeperQuestion`]). It does one thing at a time. The
//! ring is pinned where the driver does that. What must hold: memory lasts until its process gives it up or ends,
//! whatever becomes of the agent: a program whose agent has died gets back what it has here. Without an agent and
//! without memory it ends. Fails by: words to the agent, and codes to programs, which go on with memory of the
//! driver's.

use super::blocks::{Blocks, Denied};
use super::held::Held;
use super::messages::{Answer, LENT, Question, RING, Taken};
use super::windows::Windows;
use crate::args::KeeperArgs;
use crate::cuda::caller;
use crate::cuda::messages::{self, LONGEST};
use crate::exit::{Exit, Failure};
use holdfast_abi::{KeeperAnswer, KeeperQuestion};
use holdfast_process::cuda::uses;
use holdfast_sys::memfd;
use holdfast_sys::{attributes, clone, fault, fd, poll, scm, signals, unix_socket};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// How long a program may take to say what it wants, once it is connected.
const PATIENCE: Duration = Duration::from_millis(250);

/// See the head of the file.
struct Keeper {
    agent: Option<OwnedFd>,
    listener: OwnedFd,
    ring: Windows,
    blocks: Blocks,
    held: Held,
    /// Processes that own something, each with a descriptor that tells its end.
    owners: BTreeMap<i32, OwnedFd>,
    /// Of a keeper that has ended: memory by its name, and whose it is.
    inherited: BTreeMap<u64, (i32, OwnedFd)>,
    /// A driver that cannot be used is told of once.
    told: bool,
}

/// Answers until no process needs it.
///
/// # Errors
/// It cannot begin.
pub fn run(args: &KeeperArgs) -> Result<(), Failure> {
    let inherited =
        |number| fd::inherited(number).map_err(|error| Failure::system("taking over a socket", &error));
    let (agent, ring) = (inherited(args.agent)?, inherited(args.ring)?);
    let ring = Windows::of(ring.as_fd()).map_err(|error| Failure::system("mapping the ring", &error))?;
    attributes::leave_no_core();
    // A descriptor for each block.
    attributes::allow_descriptors();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        signals::set_ignored(signal, true);
    }
    // One that died has left it.
    let _ = fs::remove_file(&args.socket);
    let failed =
        |error: io::Error| Failure::system(format_args!("listening at {}", args.socket.display()), &error);
    let listener = unix_socket::listen(&args.socket).map_err(failed)?;
    fs::set_permissions(&args.socket, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let own = fs::metadata(&args.socket).map(|is| (is.dev(), is.ino())).ok();
    let mut key = [0; 16];
    let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key));
    random.map_err(|error| Failure::system("reading random bytes", &error))?;
    let blocks = Blocks::new(key, args.gpu_cache.0);
    messages::send(agent.as_fd(), &Answer::Done)
        .map_err(|error| Failure::system("telling the agent", &error))?;
    let (owners, inherited) = (BTreeMap::new(), BTreeMap::new());
    let held = Held::default();
    let mut keeper =
        Keeper { agent: Some(agent), listener, ring, blocks, held, owners, inherited, told: false };
    let served = keeper.serve();
    // Another keeper of the job may have taken the place.
    if fs::metadata(&args.socket).map(|is| (is.dev(), is.ino())).ok() == own {
        let _ = fs::remove_file(&args.socket);
    }
    served.map_err(|error| Failure::new(Exit::Internal, format!("keeping device memory: {error}")))
}

impl Keeper {
    fn serve(&mut self) -> io::Result<()> {
        while self.agent.is_some() || !self.blocks.is_empty() || !self.inherited.is_empty() {
            let ends: Vec<i32> = self.owners.keys().copied().collect();
            let agent = self.agent.as_ref().map(AsFd::as_fd);
            let mut all: Vec<BorrowedFd<'_>> = vec![self.listener.as_fd()];
            all.extend(self.owners.values().map(AsFd::as_fd));
            all.extend(agent);
            let ready = poll::readable(&all, None)?;
            let has_asked = self.agent.is_some() && ready.last() == Some(&true);
            let ended: Vec<i32> =
                ends.into_iter().zip(&ready[1..]).filter_map(|(pid, is)| is.then_some(pid)).collect();
            if ready.first() == Some(&true) || !ended.is_empty() {
                // Programs give memory up, and may need that of the cache.
                self.ring.settle();
            }
            for pid in ended {
                self.owners.remove(&pid);
                self.blocks.ended(pid);
                self.held.give(pid);
                self.inherited.retain(|_, (owner, _)| *owner != pid);
            }
            if has_asked {
                self.answer_agent();
            }
            if ready.first() == Some(&true) {
                self.answer_program();
            }
        }
        Ok(())
    }

    /// An agent that has ended, or says what is no question, is gone.
    fn answer_agent(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        let mut text = vec![0; LONGEST];
        let received = scm::receive_many(agent.as_fd(), &mut text);
        let question = received.ok().and_then(|(len, along)| {
            Some((serde_json::from_slice::<Question>(text.get(..len)?).ok()?, along))
        });
        let Some((question, along)) = question else {
            let _ = self.blocks.over(false);
            return;
        };
        let lends = matches!(question, Question::Lend { .. });
        if !question.goes_on() {
            self.ring.settle();
        }
        let sent = match question {
            Question::Take { owners, whole } => {
                fault::point("cuda-keeper-asked");
                self.send_described(&agent, |blocks| blocks.take(&owners, whole))
            }
            Question::Blocks { owners } => self.send_described(&agent, |blocks| blocks.describe_all(&owners)),
            Question::Differing => self.send_described(&agent, Blocks::find),
            Question::Bring => self.send_described(&agent, Blocks::bring),
            Question::Stored { runs } => {
                self.blocks.stored(&runs);
                Ok(())
            }
            Question::Begin { window, runs } => {
                self.ring.begin(window, &runs, &self.blocks);
                Ok(())
            }
            Question::Fill { window, runs } => {
                self.ring.fill(window, &runs, &self.blocks);
                Ok(())
            }
            Question::Lend { names } => {
                let (names, files): (_, Vec<_>) =
                    self.blocks.lend(&names[..names.len().min(LENT)]).into_iter().unzip();
                let text = serde_json::to_vec(&Answer::Lent { names }).unwrap_or_default();
                if files.is_empty() {
                    fd::send(agent.as_fd(), &text, libc::MSG_NOSIGNAL).map(drop)
                } else {
                    scm::send_many(agent.as_fd(), &text, &files)
                }
            }
            Question::Inherit { blocks } => {
                let answer = match self.inherit(&blocks, along) {
                    Ok(()) => Answer::Done,
                    Err(why) => Answer::Failed { why },
                };
                messages::send(agent.as_fd(), &answer)
            }
            Question::Pack { chunks, codec } => {
                let answer = match self.blocks.pack(&chunks, codec, self.ring.question()) {
                    Ok(bytes) => Answer::Packed { bytes },
                    Err(why) => Answer::Failed { why },
                };
                fault::point("cuda-keeper-packed");
                messages::send(agent.as_fd(), &answer)
            }
            question => {
                let answer = match self.answer(question) {
                    Ok(()) => Answer::Done,
                    Err(why) => Answer::Failed { why },
                };
                messages::send(agent.as_fd(), &answer)
            }
        };
        if sent.is_ok() {
            self.agent = Some(agent);
        }
        if lends {
            fault::point("cuda-keeper-lent");
        }
    }

    /// Sends what comes of a question in a file, which is as long as it is.
    fn send_described(
        &mut self,
        agent: &OwnedFd,
        answer: impl FnOnce(&mut Blocks) -> Result<Taken, String>,
    ) -> io::Result<()> {
        let file = answer(&mut self.blocks).and_then(|taken| {
            described(&taken).map_err(|error| format!("describing what was taken: {error}"))
        });
        match file {
            Ok(file) => {
                let text = serde_json::to_vec(&Answer::Done).unwrap_or_default();
                scm::send_many(agent.as_fd(), &text, &[file.as_fd()])
            }
            Err(why) => messages::send(agent.as_fd(), &Answer::Failed { why }),
        }
    }

    fn inherit(&mut self, blocks: &[(u64, i32)], files: Vec<OwnedFd>) -> Result<(), String> {
        if blocks.len() != files.len() {
            return Err(format!("{} descriptors came for {} blocks", files.len(), blocks.len()));
        }
        for (&(name, owner), file) in blocks.iter().zip(files) {
            // One that has ended needs nothing.
            if self.watch(owner).is_ok() {
                self.inherited.insert(name, (owner, file));
            }
        }
        Ok(())
    }

    fn answer(&mut self, question: Question) -> Result<(), String> {
        match question {
            Question::Load { library } => self.load(&library),
            Question::Read { run: (start, len) } => {
                let part = usize::try_from(len).ok().filter(|_| len <= RING).map(|len| 0..len);
                let part = part.ok_or("more was asked for than the ring has room for")?;
                self.blocks.begin(&[(start, len)], &mut self.ring.ring, part.clone())?;
                self.ring.ring.wait(&part).map_err(|error| error.to_string())?;
                fault::point("cuda-keeper-read");
                Ok(())
            }
            Question::Over { committed } => {
                self.inherited.clear();
                self.blocks.over(committed)
            }
            Question::Key { key } => {
                self.blocks.set_key(key);
                Ok(())
            }
            Question::Remake { blocks } => blocks.iter().try_for_each(|block| {
                self.watch(block.owner).map_err(|error| format!("process {}: {error}", block.owner))?;
                self.blocks.remake(block)
            }),
            Question::Await { window } => {
                let done = self.ring.wait(window);
                fault::point("cuda-keeper-read");
                done
            }
            Question::Check => self.blocks.check(),
            Question::Clear { runs } => self.blocks.clear(&runs),
            Question::Yield => self.blocks.give_way().map(drop),
            Question::Hold { owner, uuid, bytes } => self.held.hold(&self.blocks, owner, uuid, bytes),
            Question::Give { owner } => {
                self.held.give(owner);
                Ok(())
            }
            Question::Take { .. }
            | Question::Blocks { .. }
            | Question::Differing
            | Question::Bring
            | Question::Pack { .. }
            | Question::Begin { .. }
            | Question::Fill { .. }
            | Question::Stored { .. }
            | Question::Lend { .. }
            | Question::Inherit { .. } => Ok(()),
        }
    }

    fn load(&mut self, library: &Path) -> Result<(), String> {
        if self.blocks.is_loaded() {
            return Ok(());
        }
        if library.is_absolute() {
            caller::trust(library)?;
        }
        self.blocks.load(library)?;
        if let Some(Err(error)) = self.blocks.pin(&mut self.ring.ring) {
            crate::report::note(&format!(
                "what is copied from devices goes through memory that is not pinned: {error}"
            ));
        }
        Ok(())
    }

    /// Takes note of a process, to be told of its end.
    fn watch(&mut self, pid: i32) -> io::Result<()> {
        if let Entry::Vacant(place) = self.owners.entry(pid) {
            place.insert(clone::pidfd_open(pid)?);
        }
        Ok(())
    }

    /// One connection: one question, one answer.
    fn answer_program(&mut self) {
        let Ok(connection) = unix_socket::accept(self.listener.as_fd()) else { return };
        let Ok(peer) = unix_socket::peer(connection.as_fd()) else { return };
        let trusted = peer.uid == 0 || peer.uid == unix_socket::effective_user();
        if !trusted || peer.pid <= 0 {
            return;
        }
        let asked = poll::readable_within(connection.as_fd(), PATIENCE).unwrap_or(false);
        let mut bytes = [0; KeeperQuestion::LEN + 1];
        let len = if asked { fd::receive(connection.as_fd(), &mut bytes, 0).unwrap_or(0) } else { 0 };
        let Some(question) = KeeperQuestion::from_bytes(&bytes[..len]) else { return };
        let (answer, file) = self.ask(peer.pid, question);
        let along: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        let sent = scm::send_many(connection.as_fd(), &answer.to_bytes(), &along);
        if sent.is_err() && question.act == KeeperQuestion::MAKE && answer.result == 0 {
            // Its name is not known elsewhere.
            let _ = self.blocks.drop_one(peer.pid, answer.name);
        }
    }

    fn ask(&mut self, pid: i32, question: KeeperQuestion) -> (KeeperAnswer, Option<OwnedFd>) {
        let mut bytes = question.bytes;
        let done = match question.act {
            KeeperQuestion::MAKE => self.make(pid, &question),
            KeeperQuestion::OPEN => self.open(pid, question.name).map(|file| (question.name, Some(file))),
            KeeperQuestion::DROP => self.blocks.drop_one(pid, question.name).map(|()| (question.name, None)),
            KeeperQuestion::YIELD => self.blocks.give_way().map_err(|_| Denied::Device).map(|more| {
                bytes = more;
                (0, None)
            }),
            _ => Err(Denied::Name),
        };
        let (result, name, file) = match done {
            Ok((name, file)) => (0, name, file),
            Err(Denied::Code(code)) => (u64::from(code.cast_unsigned()), 0, None),
            Err(Denied::Name) => (KeeperAnswer::REFUSED_NAME, 0, None),
            Err(Denied::Device) => (KeeperAnswer::REFUSED_DEVICE, 0, None),
        };
        (KeeperAnswer { magic: KeeperQuestion::MAGIC, result, name, bytes }, file)
    }

    fn open(&self, pid: i32, name: u64) -> Result<OwnedFd, Denied> {
        if let Some((_, file)) = self.inherited.get(&name).filter(|(owner, _)| *owner == pid) {
            return file.try_clone().map_err(|_| Denied::Device);
        }
        fault::point("cuda-keeper-open");
        self.blocks.open(pid, name)
    }

    fn make(&mut self, pid: i32, question: &KeeperQuestion) -> Result<(u64, Option<OwnedFd>), Denied> {
        if !self.blocks.is_loaded()
            && let Err(why) = self.load_that_of(pid)
        {
            if !std::mem::replace(&mut self.told, true) {
                crate::report::warn(&format!("no device memory is kept outside of the program: {why}"));
            }
            return Err(Denied::Device);
        }
        self.watch(pid).map_err(|_| Denied::Device)?;
        let [low, high] = question.uuid;
        let uuid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        let (name, file) = self.blocks.make(pid, question.bytes, uuid)?;
        Ok((name, Some(file)))
    }

    /// The driver is the one that the first program has mapped.
    fn load_that_of(&mut self, pid: i32) -> Result<(), String> {
        let found = uses::among(&[pid], |_| false).pop();
        let found = found.ok_or_else(|| format!("process {pid} uses no CUDA driver"))?;
        self.load(&found.library.path)
    }
}

/// What was taken, in a file of memory.
fn described(taken: &Taken) -> io::Result<File> {
    let mut file = File::from(memfd::unsealed(c"holdfast-taken")?);
    file.write_all(&serde_json::to_vec(taken)?)?;
    file.rewind()?;
    Ok(file)
}
