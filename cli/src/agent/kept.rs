//! Device memory that a keeper has, in a checkpoint and at a restart: what of it is in the image.
//!
//! Used by `super::cuda` (when it is taken, and put back), by the checkpoint thread, and by the flush. What must hold:
//! it is taken behind the closed gates of its processes, when their work on devices is done, before they release it;
//! it lasts until they have it again, although the keeper ends; an image has it if, and only if, it has those processes
//! as they were then ([`KeptMemory::seal`]); the keeper holds an image for the last one when it is committed, not
//! before. Fails by: words.

use crate::keeper::client::Keeper;
use crate::keeper::messages::{Block, Run, Taken};
use crate::keeper::probe;
use crate::log;
use crate::settings::Cow;
use holdfast_abi::KeeperQuestion;
use holdfast_abi::environment::{
    CUDA_DATA_AUTO, CUDA_DATA_DRIVER, CUDA_DATA_KEEPER, CUDA_DATA_LIBRARY, ENV_CUDA_DATA,
};
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_image::address_space::{DEVICES, DIGESTS, global_run, split};
use holdfast_image::cuda::{CudaStop, KeptBlock, KeptMemory};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{PageError, PageProvider, PageRun, SourceCodec};
use holdfast_image::record::ProcessRecord;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_pager::CowLimit;
use holdfast_process::Cut;
use holdfast_process::cuda::{Kept, Spare};
use holdfast_sys::cuda::DevicePair;
use holdfast_sys::{attributes, fault};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So many descriptors a process has room for anyway.
const FEW: usize = 256;
/// Most device memory for what is not in the image yet.
const CACHE: &str = "HOLDFAST_GPU_CACHE";

/// A keeper, if the user has asked for one, or has left it to us and the driver is one for it. `agent`: where the agent
/// listens; `cache`: most device memory for what is not in the image yet.
///
/// # Errors
/// There can be none; in words.
pub fn wished(agent: &Path, cache: Option<Cow>) -> Result<Option<Arc<Keeper>>, String> {
    match std::env::var(ENV_CUDA_DATA).as_deref() {
        Ok(CUDA_DATA_KEEPER) => start(agent, cache).map(Some),
        Ok(CUDA_DATA_AUTO) => match probe::ask() {
            Ok(()) => start(agent, cache).map(Some),
            Err(why) => {
                tracing::info!("no keeper of device memory: {why}");
                Ok(None)
            }
        },
        _ => Ok(None),
    }
}

/// Whether what the environment says of the owner of device memory is understood.
///
/// # Errors
/// It is not; in words.
pub fn understood() -> Result<(), String> {
    match std::env::var(ENV_CUDA_DATA).as_deref() {
        Ok("" | CUDA_DATA_AUTO | CUDA_DATA_LIBRARY | CUDA_DATA_KEEPER | CUDA_DATA_DRIVER) | Err(_) => Ok(()),
        Ok(other) => Err(format!(
            "{ENV_CUDA_DATA}={other}: it must be {CUDA_DATA_AUTO}, {CUDA_DATA_LIBRARY}, {CUDA_DATA_KEEPER} or \
             {CUDA_DATA_DRIVER}"
        )),
    }
}

/// A keeper, whatever was asked for.
///
/// # Errors
/// There can be none; in words.
pub fn start(agent: &Path, cache: Option<Cow>) -> Result<Arc<Keeper>, String> {
    let cache = match cache {
        Some(cache) => cache,
        None => std::env::var(CACHE)
            .unwrap_or_else(|_| "10%".to_owned())
            .parse()
            .map_err(|why| format!("{CACHE}: {why}"))?,
    };
    launch(agent, cache).map(Arc::new)
}

fn launch(agent: &Path, cache: Cow) -> Result<Keeper, String> {
    let log = log::again().map_err(|failure| failure.message)?;
    Keeper::start(&agent.with_file_name(KeeperQuestion::SOCKET), cache, log)
}

fn pages((start, len): Run) -> PageRun {
    PageRun { start: Addr(start), pages: PageCount(len / PAGE_SIZE) }
}

fn set(runs: &[Run]) -> PageSet {
    runs.iter().map(|run| global_run(DEVICES, pages(*run))).collect()
}

/// What was taken for one image. Dropped, it is given up: that image has failed.
pub struct TakenMemory {
    keeper: Arc<Keeper>,
    taken: Taken,
    /// The pages of the image that were taken for it.
    changed: PageSet,
    /// By process.
    seals: BTreeMap<i32, u64>,
    over: bool,
}

/// A descriptor of all that processes have released, by name and process. While there is one, memory lasts
/// ("CUDA Driver API", cuMemRelease: "when all outstanding references to the handle (including its shareable
/// counterparts) are also released"), and a keeper that has ended has a successor that gives it to them.
#[derive(Debug)]
struct Descriptors {
    keeper: Arc<Keeper>,
    blocks: Vec<(u64, i32, OwnedFd)>,
    successor: Mutex<Option<Keeper>>,
    agent: PathBuf,
}

impl Spare for Descriptors {
    fn ready(&self) -> Result<(), String> {
        let mut successor = self.successor.lock();
        if !successor.as_ref().unwrap_or(&self.keeper).is_lost() {
            return Ok(());
        }
        let made = launch(&self.agent, Cow(CowLimit::Bytes(0)))?;
        made.inherit(&self.blocks)?;
        tracing::warn!("the keeper has ended: a new keeper returns the device memory to the program");
        *successor = Some(made);
        Ok(())
    }

    fn over(&self) {
        // It has no memory of its own: it ends with its agent's end of the socket.
        if let Some(Err(why)) = self.successor.lock().take().map(|successor| successor.over(false)) {
            tracing::warn!("the keeper that has given device memory back: {why}");
        }
    }
}

/// What is taken of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// What is not as in the last image.
    Changed,
    /// All of it: the image has no parent.
    Whole,
    /// Nothing: it is about to go back to an image.
    Nothing,
}

impl TakenMemory {
    /// Takes what these processes have, and has it last. `agent`: where the agent listens.
    ///
    /// # Errors
    /// In words.
    pub fn take(
        keeper: &Arc<Keeper>,
        owners: &[i32],
        taking: Taking,
        agent: &Path,
    ) -> Result<(TakenMemory, Kept), String> {
        let mut seals = BTreeMap::new();
        let mut random = File::open("/dev/urandom").map_err(|error| format!("/dev/urandom: {error}"))?;
        for owner in owners {
            let mut seal = [0; 8];
            random.read_exact(&mut seal).map_err(|error| format!("/dev/urandom: {error}"))?;
            seals.insert(*owner, u64::from_le_bytes(seal) | 1);
        }
        let taken = match taking {
            Taking::Nothing => keeper.blocks(owners),
            _ => keeper.take(owners, taking == Taking::Whole),
        };
        let taken = taken.map_err(|why| format!("device memory that the keeper has: {why}"))?;
        let changed = [&taken.dirty, &taken.zero, &taken.digests];
        let changed = changed.into_iter().fold(PageSet::new(), |all, runs| all.union(&set(runs)));
        let made =
            TakenMemory { keeper: Arc::clone(keeper), taken, changed, seals: seals.clone(), over: false };
        let spare = Box::new(made.descriptors(agent)?);
        let kept = Kept { seals, figures: made.figures(), spare };
        Ok((made, kept))
    }

    fn descriptors(&self, agent: &Path) -> Result<Descriptors, String> {
        let owners: BTreeMap<u64, i32> =
            self.taken.blocks.iter().map(|block| (block.name, block.owner)).collect();
        if owners.len() > FEW {
            attributes::allow_descriptors();
        }
        let names: Vec<u64> = owners.keys().copied().collect();
        let lent = self.keeper.lend(&names)?.into_iter();
        let blocks = lent.filter_map(|(name, file)| Some((name, *owners.get(&name)?, file))).collect();
        let (keeper, agent) = (Arc::clone(&self.keeper), agent.to_owned());
        Ok(Descriptors { keeper, blocks, successor: Mutex::default(), agent })
    }

    /// What it has cost.
    fn figures(&self) -> CudaStop {
        let bytes = |runs: &[Run]| runs.iter().map(|(_, len)| len).sum();
        CudaStop {
            hash_ns: self.taken.hash_ns,
            copy_ns: self.taken.gather_ns,
            dirty_bytes: bytes(&self.taken.dirty),
            zero_bytes: bytes(&self.taken.zero),
            hashed_bytes: self.taken.blocks.iter().map(|block| block.bytes).sum(),
            cached_bytes: self.taken.cache_bytes,
            ..CudaStop::default()
        }
    }

    /// The pages of the image that were taken for it.
    pub fn changed(&self) -> &PageSet {
        &self.changed
    }

    /// Adds it to what a cut has.
    pub fn add_to(&self, cut: &mut Cut) {
        let changed = &self.changed;
        let all: Vec<Run> = self.taken.blocks.iter().map(|block| place(block.name, block.bytes)).collect();
        let all = set(&all);
        cut.inherited.unchanged.extend(all.difference(changed).into_runs());
        cut.inherited.unchanged.sort_unstable();
        cut.tracked = PageCount(cut.tracked.0 + all.pages().0);
        cut.dirty = cut.dirty.union(changed);
    }

    /// What the record of a process has to say of it; `None`: nothing was taken of this one.
    pub fn of(&self, pid: i32) -> Option<KeptMemory> {
        let seal = *self.seals.get(&pid)?;
        // For tests: an image whose halves are of different moments.
        let seal = if fault::is_asked("other-half") { seal ^ 2 } else { seal };
        let own = self.taken.blocks.iter().filter(|block| block.owner == pid);
        let blocks = own.map(|block| KeptBlock { name: block.name, bytes: block.bytes, uuid: block.uuid });
        Some(KeptMemory { key: self.taken.key, seal, blocks: blocks.collect() })
    }

    /// Fills `buffer` with the pages from a global address on, if they are of devices.
    ///
    /// # Errors
    /// The keeper does not have them.
    pub fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        let (space, own) = split(start);
        if space != DEVICES {
            return Ok(false);
        }
        // A run of pages may have some of both.
        let (mut at, mut rest) = (own.0, buffer);
        while !rest.is_empty() {
            let (is_zero, len) = self.kind(at);
            let (now, later) = rest.split_at_mut(rest.len().min(usize::try_from(len).unwrap_or(usize::MAX)));
            if is_zero {
                now.fill(0);
            } else {
                self.keeper.read(at, now).map_err(|why| PageError::System(io::Error::other(why)))?;
            }
            at += now.len() as u64;
            rest = later;
        }
        Ok(true)
    }

    /// Takes runs of whole chunks of devices out of `runs`, each chunk a run of its own, if the keeper packs such.
    pub fn packable(&self, runs: &mut Vec<PageRun>) -> Vec<PageRun> {
        let mut units = Vec::new();
        if !self.keeper.packs() {
            return units;
        }
        let mut left = Vec::with_capacity(runs.len());
        for run in runs.drain(..) {
            let (space, own) = split(run.start);
            let end = own.0 + run.pages.bytes();
            let is_whole = own.0.is_multiple_of(CHUNK) && end.is_multiple_of(CHUNK);
            if space != DEVICES || end > DIGESTS || !is_whole {
                left.push(run);
                continue;
            }
            for at in (own.0..end).step_by(CHUNK as usize) {
                // One that became zero is not in the cache.
                let unit = global_run(DEVICES, pages((at, CHUNK)));
                if self.kind(at).0 { left.push(unit) } else { units.push(unit) }
            }
        }
        *runs = left;
        units
    }

    /// Chunks, packed; see [`holdfast_image::pages::PageSource::read_packed`].
    ///
    /// # Errors
    /// The keeper is lost.
    pub fn read_packed(
        &self,
        units: &[PageRun],
        codec: SourceCodec,
        into: &mut Vec<u8>,
    ) -> Result<Vec<usize>, PageError> {
        let chunks: Vec<u64> = units.iter().map(|unit| split(unit.start).1.0).collect();
        self.keeper.pack(&chunks, codec, into).map_err(|why| PageError::System(io::Error::other(why)))
    }

    /// Whether what is at an address became zero, and how far that goes.
    fn kind(&self, at: u64) -> (bool, u64) {
        let after = self.taken.zero.partition_point(|run| run.0 <= at);
        match after.checked_sub(1).and_then(|last| self.taken.zero.get(last)) {
            Some((start, len)) if at < start + len => (true, start + len - at),
            _ => (false, self.taken.zero.get(after).map_or(u64::MAX, |(start, _)| start - at)),
        }
    }

    /// The image has these pages.
    pub fn stored(&self, run: PageRun) {
        let (space, own) = split(run.start);
        if space == DEVICES {
            self.keeper.stored((own.0, run.pages.bytes()));
        }
    }

    /// The image is committed.
    pub fn committed(mut self) {
        self.over = true;
        if let Err(why) = self.keeper.over(true) {
            tracing::error!("the keeper does not know of the image: {why}");
        }
    }
}

impl Drop for TakenMemory {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.keeper.over(false);
        }
    }
}

/// Where a block is in the space of devices.
fn place(name: u64, bytes: u64) -> Run {
    (name.saturating_mul(CHUNK), bytes)
}

/// Makes a keeper, by `start`, that has what an image has, for the processes that were rebuilt: `None`, if it has
/// nothing. `moved`: devices that others are restored for.
///
/// # Errors
/// In words: there is no room, or the image is damaged.
pub fn put_back(
    record: &ProcessRecord,
    pids: &[i32],
    start: &dyn Fn() -> Result<Arc<Keeper>, String>,
    image: &dyn PageProvider,
    moved: &[DevicePair],
) -> Result<Option<Arc<Keeper>>, String> {
    let kept = |process: &ProcessRecord| process.cuda.as_ref().and_then(|cuda| cuda.kept.clone());
    let mut all =
        record.processes().zip(pids).filter_map(|(process, pid)| Some((*pid, kept(process)?))).peekable();
    let Some((_, KeptMemory { key, .. })) = all.peek().cloned() else { return Ok(None) };
    let library =
        record.processes().find_map(|process| process.cuda.as_ref()).map(|cuda| cuda.library.clone());
    let library = library.ok_or("the image does not name the driver")?;
    let mut blocks = Vec::new();
    for (owner, memory) in all {
        if memory.key != key {
            return Err("the image has device memory of two keepers".into());
        }
        let here = |uuid: [u8; 16]| moved.iter().find(|[old, _]| *old == uuid).map_or(uuid, |[_, new]| *new);
        let block = |one: &KeptBlock| Block { name: one.name, bytes: one.bytes, owner, uuid: here(one.uuid) };
        blocks.extend(memory.blocks.iter().map(block));
    }
    let keeper = start()?;
    keeper.load(library.as_path())?;
    keeper.remake(key, &blocks)?;
    // Of a process that ended in the middle of the checkpoint there may be pages, and no record.
    let mut known: Vec<Run> = blocks.iter().map(|block| place(block.name, block.bytes)).collect();
    known.push((DIGESTS, DIGESTS - PAGE_SIZE));
    fill(&keeper, image, &set(&known))?;
    keeper.check()?;
    Ok(Some(keeper))
}

/// Addresses of the space of devices, and what belongs there.
type Pieces<'a> = &'a [(u64, &'a [u8])];

/// Device memory that is to go back to what an image has, in the keeper that has it.
pub struct DevicesBack {
    keeper: Arc<Keeper>,
    /// What differs from the image.
    differing: PageSet,
}

/// How many bytes went back, and how many of them from the GPU cache.
#[derive(Clone, Copy, Default)]
pub struct PutBack {
    /// All of them.
    pub bytes: u64,
    /// See above.
    pub cached: u64,
}

impl DevicesBack {
    /// Compares what was held with an image that has the same blocks, and reads what differs and is not in the GPU
    /// cache, which checks it. What the keeper knows of the last image is what this one has then.
    ///
    /// # Errors
    /// In words: the keeper is lost, or the image is damaged.
    pub fn compare(taken: TakenMemory, image: &dyn PageProvider) -> Result<DevicesBack, String> {
        let keeper = Arc::clone(&taken.keeper);
        drop(taken);
        let mut back = DevicesBack { keeper, differing: PageSet::new() };
        let digests = set(&[(DIGESTS, DIGESTS - PAGE_SIZE)]);
        fill(&back.keeper, image, &digests)?;
        let (differing, cached) = back.keeper.differing()?;
        back.differing = set(&differing);
        gather(image, &back.differing.difference(&set(&cached)), &|_| Ok(()))?;
        Ok(back)
    }

    /// Brings it there.
    ///
    /// # Errors
    /// In words; some of it may be there.
    pub fn put_back(&self, image: &dyn PageProvider) -> Result<PutBack, String> {
        let brought = set(&self.keeper.bring()?);
        let others = self.differing.difference(&brought);
        let own = |run: &PageRun| (split(run.start).1.0, run.pages.bytes());
        self.keeper.clear(&others.runs().iter().map(own).collect::<Vec<Run>>())?;
        fill(&self.keeper, image, &others)?;
        Ok(PutBack { bytes: self.differing.pages().bytes(), cached: brought.pages().bytes() })
    }
}

/// Brings what an image has of these pages to where a keeper has them.
fn fill(keeper: &Keeper, image: &dyn PageProvider, pages: &PageSet) -> Result<(), String> {
    let gathered = gather(image, pages, &|pieces| keeper.fill(pieces));
    let filled = keeper.filled();
    gathered.and(filled)
}

/// Reads what an image has of these pages, and puts it somewhere.
fn gather(
    image: &dyn PageProvider,
    pages: &PageSet,
    put: &(impl Fn(Pieces<'_>) -> Result<(), String> + Sync),
) -> Result<(), String> {
    let stored: PageSet = image.extents().iter().map(|extent| extent.run).collect();
    let wanted = pages.intersection(&stored).into_runs();
    let put = |pieces: &[(Addr, &[u8])]| {
        let pieces: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (split(*at).1.0, *bytes)).collect();
        put(&pieces).map_err(|why| PageError::System(io::Error::other(why)))
    };
    image.gather(&wanted, &put).map_err(|error| format!("reading device memory from the image: {error}"))
}
