//! Programs that use CUDA: which processes, by which driver, and the driver's part of a checkpoint and of a restart.
//!
//! Used by the cut (`super::cut`), by the checkpoint thread after it ([`AfterCut`]), by `check`, and by a restart. The
//! order of calls and how failures are undone is `holdfast_process::cuda`'s business. What must hold: without a process
//! that uses CUDA nothing is started; an image is cut only of processes that the driver has checkpointed; they are
//! RUNNING again when the flush is done, whatever becomes of the image. Fails by: [`CheckpointError`], [`Failure`].

use super::error::CheckpointError;
use super::kept::{self, TakenMemory, Taking};
use crate::cuda::driver::{AgentDriver, Patience};
use crate::cuda::room::{Holder, Voice, sum};
use crate::cuda::{refused, release};
use crate::exit::{Exit, Failure};
use crate::keeper::client::Keeper;
use crate::report;
use crate::settings::{Cow, CudaChoice, Settings};
use holdfast_image::bytes::Name;
use holdfast_image::cuda::{CudaRecord, CudaStop, DeviceMemory, DeviceNeed};
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::ProcessRecord;
use holdfast_image::refusal::Refusal;
use holdfast_process::cuda::devices::{self, Pair};
use holdfast_process::cuda::uses::Places;
use holdfast_process::cuda::{
    Closed, CudaUse, Held, Hooks, Libcuda, Limits, PartialStop, PartialStops, SuspendError, Suspended,
    job_file, named, obstacles, restore_all, room, suspend, uses,
};
use holdfast_process::rebuild::RebuiltMember;
use holdfast_process::{Members, PartlyStopped, Target, Tracer, refuse_process};
use holdfast_sys::cuda::DevicePair;
use holdfast_sys::ptrace;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Releases of the driver from this one on checkpoint memory that several processes have (README of NVIDIA's
/// cuda-checkpoint, "IPC").
const SHARES_MEMORY: u32 = 610;

/// Releases of the driver from this one on keep their addresses at a Checkpoint, but for a place below all others
/// (tests/gpu/results, 580.159.04).
const KEEPS_PLACES: u32 = 580;

/// Which device of this machine is to stand for which of the image: OLD=NEW, with commas between.
const DEVICES: &str = "HOLDFAST_CUDA_DEVICES";

/// The first number of the driver's release, or 0.
fn release_number() -> u32 {
    release().split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Stops the threads of a job's processes, but for a few, while the driver leaves its addresses.
struct JobStops<'a> {
    tracer: &'a Tracer,
    targets: &'a [Target],
}

impl PartialStops for JobStops<'_> {
    /// So is a driver whose release is not known.
    fn is_needed(&self) -> bool {
        release_number() < KEEPS_PLACES
    }

    fn stop(&self, places: &Places, spared: &[i32]) -> Result<Box<dyn PartialStop>, String> {
        let target = self.targets.iter().find(|target| target.pid == places.pid);
        let target = target.ok_or_else(|| format!("process {} is none of the job's", places.pid))?;
        let part = self.tracer.stop_part(target, spared, &places.all);
        Ok(Box::new(JobStop(part.map_err(|error| error.to_string())?)))
    }
}

struct JobStop(PartlyStopped);

impl PartialStop for JobStop {
    fn reserve(&self) -> Result<(), String> {
        self.0.reserve().map_err(|error| error.to_string())
    }
}

/// The driver, once a process has used it.
pub struct Cuda {
    patience: Patience,
    driver: Mutex<Option<Arc<AgentDriver>>>,
    keeper: Mutex<Option<Arc<Keeper>>>,
    /// Where the agent listens.
    socket: Mutex<PathBuf>,
    /// Most device memory for what is not in the image yet, as the user has said.
    cache: Option<Cow>,
    /// Device memory went back to another image: what the keeper knows of the last one holds no more.
    went_back: AtomicBool,
    /// Devices of the image, and those that are used for them here.
    moved: Mutex<Vec<DevicePair>>,
    /// What the user is told by.
    voice: Voice,
    /// The user wants nothing of it (`--cuda off`).
    off: bool,
}

/// Processes that are ready for a cut.
pub struct Ready {
    /// To be resumed after it.
    pub suspended: Suspended,
    /// What their records are to say, by their ids.
    pub records: BTreeMap<i32, CudaRecord>,
    /// What a keeper has taken of them for the image.
    pub kept: Option<TakenMemory>,
}

impl Cuda {
    /// Nothing is started yet. `voice`: what tells the user.
    pub fn new(settings: &Settings, voice: Voice) -> Cuda {
        let (cache, off) = (settings.gpu_cache, settings.cuda == CudaChoice::Off);
        let patience = Patience::of_environment(|name| std::env::var(name).ok());
        let (driver, keeper, moved, went_back) = Default::default();
        Cuda { patience, driver, keeper, socket: Mutex::default(), cache, went_back, moved, voice, off }
    }

    /// Starts a keeper of device memory, if the user has asked for one. `socket`: where the agent listens.
    ///
    /// # Errors
    /// There can be none.
    pub fn start_keeper(&self, socket: &Path) -> Result<(), Failure> {
        if self.off {
            return Ok(());
        }
        kept::understood().map_err(|why| Failure::new(Exit::Usage, why))?;
        let wished = kept::wished(socket, self.cache).map_err(|why| Failure::new(Exit::Internal, why))?;
        *self.keeper.lock() = wished;
        *self.socket.lock() = socket.to_owned();
        Ok(())
    }

    /// What tells the user.
    pub fn voice(&self) -> Voice {
        Arc::clone(&self.voice)
    }

    /// Which of these processes use CUDA now.
    pub fn users(members: &Members) -> Vec<CudaUse> {
        let targets = members.targets();
        let pids: Vec<i32> = targets.iter().map(|target| target.pid).collect();
        let hooks =
            |pid| targets.iter().find(|one| one.pid == pid).and_then(|one| Hooks::of(one.pid, &one.area));
        uses::among(&pids, |pid| hooks(pid).is_some_and(|hooks| hooks.have_begun()))
    }

    fn limits(&self) -> Limits {
        Limits { drain: self.patience.lock, data: self.patience.checkpoint }
    }

    fn driver(&self, library: &Libcuda) -> Result<Arc<AgentDriver>, String> {
        if !library.is_there() {
            return Err(format!("{} is not the file any more that it has mapped", library.path.display()));
        }
        let mut known = self.driver.lock();
        if let Some(driver) = known.as_ref().filter(|driver| driver.library() == library.path) {
            return Ok(Arc::clone(driver));
        }
        let driver = Arc::new(AgentDriver::new(&library.path, self.patience, Arc::clone(&self.voice)));
        *known = Some(Arc::clone(&driver));
        Ok(driver)
    }

    /// What libholdfast has seen in those of the processes that use CUDA.
    fn hooks(members: &Members, used: &[CudaUse]) -> Vec<Hooks> {
        let uses = |pid: i32| used.iter().any(|one| one.pid == pid);
        let targets = members.targets().iter().filter(|target| uses(target.pid));
        targets.filter_map(|target| Hooks::of(target.pid, &target.area)).collect()
    }

    /// Who has their device memory.
    pub fn device_memory(members: &Members, used: &[CudaUse]) -> Option<DeviceMemory> {
        let each = Cuda::hooks(members, used);
        let sum = each.iter().map(room::demand).fold(DeviceMemory::default(), |sum, one| DeviceMemory {
            library: sum.library.saturating_add(one.library),
            keeper: sum.keeper.saturating_add(one.keeper),
            driver: sum.driver.saturating_add(one.driver),
        });
        (!each.is_empty()).then_some(sum)
    }

    /// What is in the way of checkpointing these processes.
    pub fn obstacles(&self, members: &Members, used: &[CudaUse]) -> Vec<Refusal> {
        let Some(first) = used.first() else { return Vec::new() };
        if self.off {
            let reason = "it uses CUDA, which --cuda off leaves out: start it without --cuda off";
            return vec![refuse_process(first.pid, reason)];
        }
        let release = release();
        if let Some(why) = refused(&release) {
            let reason = format!(
                "the NVIDIA driver {release} cannot be used for checkpoints: {why}; take another release"
            );
            return vec![refuse_process(first.pid, reason)];
        }
        match self.driver(&first.library) {
            Ok(driver) => {
                let shares = release_number() >= SHARES_MEMORY;
                let hooks = Cuda::hooks(members, used);
                let seen = hooks.iter().flat_map(|hooks| hooks.refusals(shares));
                let pids: Vec<i32> = used.iter().map(|one| one.pid).collect();
                let mut by_name = named::obstacles(&pids, release_number());
                by_name.extend(graphs_with_nccl(&hooks));
                if !by_name.is_empty() {
                    return by_name;
                }
                let found: Vec<Refusal> = obstacles(&*driver, used).into_iter().chain(seen).collect();
                if !found.is_empty() {
                    return found;
                }
                let full = full_devices(&driver, members, used);
                let has_more = !full.is_empty() && self.cache_gives_way();
                if has_more { full_devices(&driver, members, used) } else { full }
            }
            Err(why) => {
                vec![refuse_process(first.pid, format!("its CUDA state cannot be checkpointed: {why}"))]
            }
        }
    }

    /// Has the driver checkpoint all processes that use CUDA; none: nothing is to be done.
    ///
    /// # Errors
    /// Why that cannot be; they are RUNNING again.
    pub fn suspend(
        &self,
        members: &Members,
        taking: Taking,
        tracer: &Tracer,
    ) -> Result<Option<Ready>, CheckpointError> {
        let used = Cuda::users(members);
        let Some(first) = used.first() else { return Ok(None) };
        let found = self.obstacles(members, &used);
        if !found.is_empty() {
            return Err(CheckpointError::Refused(found));
        }
        let driver = self.driver(&first.library).map_err(CheckpointError::Failed)?;
        let facts = driver.facts().map_err(CheckpointError::Failed)?;
        let gate = Closed::close(Cuda::hooks(members, &used), self.patience.lock).map_err(|inside| {
            let seconds = self.patience.lock.as_secs_f64();
            CheckpointError::Failed(format!(
                "{inside}, which has not returned for {seconds} s; try again later, or give it more \
                 seconds (HOLDFAST_CUDA_LOCK, 10 by default)"
            ))
        })?;
        // Again: what forbids a checkpoint may have begun before the gate was closed.
        let shares = release_number() >= SHARES_MEMORY;
        let seen = gate.hooks().iter().flat_map(|hooks| hooks.refusals(shares));
        let found: Vec<Refusal> = seen.chain(graphs_with_nccl(gate.hooks())).collect();
        if !found.is_empty() {
            return Err(CheckpointError::Refused(found));
        }
        let limits = self.limits();
        room::for_all(gate.hooks(), limits).map_err(|refusal| CheckpointError::Refused(vec![refusal]))?;
        let is_image = taking != Taking::Nothing;
        let went_back = is_image && self.went_back.load(Ordering::Relaxed);
        let taking = if went_back { Taking::Whole } else { taking };
        let mut kept = None;
        let mut keep = |pids: &[i32]| {
            let (keeper, agent) = (self.keeper.lock().clone(), self.socket.lock().clone());
            let taken = keeper.as_ref().map(|keeper| TakenMemory::take(keeper, pids, taking, &agent));
            match (taken, keeper) {
                (Some(Ok((taken, lasting))), _) => {
                    if is_image {
                        self.went_back.store(false, Ordering::Relaxed);
                    }
                    kept = Some(taken);
                    Ok(Some(lasting))
                }
                (Some(Err(why)), Some(keeper)) if !keeper.is_lost() => Err(why),
                _ => {
                    tracing::warn!(
                        "the keeper has ended: libholdfast keeps the device memory of the \
                        program now"
                    );
                    *self.keeper.lock() = None;
                    Ok(None)
                }
            }
        };
        let held = Held::leave(gate, limits, &mut keep).map_err(CheckpointError::Failed)?;
        let keeper = self.keeper.lock().clone();
        driver.rooms().held_by(keeper.map(|keeper| keeper as Arc<dyn Holder>));
        let rooms = Arc::clone(&driver);
        let stops = JobStops { tracer, targets: members.targets() };
        let suspended = suspend(driver, &used, held, &stops).map_err(|error| match error {
            SuspendError::Refused(refusals) => CheckpointError::Refused(refusals),
            SuspendError::Failed(what) => CheckpointError::Failed(what),
        })?;
        let record = CudaRecord {
            state: CudaRecord::STATE.to_owned(),
            api_version: facts.api_version,
            release: release(),
            library: Name::from(first.library.path.as_path()),
            devices: facts.devices,
            job_file: None,
            kept: None,
            needs: Vec::new(),
        };
        // After the last of them, and before any is restored: then it changes again.
        let of_process = |pid: &i32| {
            let job_file = job_file::saved(*pid).map_err(CheckpointError::Failed)?;
            let kept = kept.as_ref().and_then(|kept| kept.of(*pid));
            let needs = rooms.rooms().needs(*pid);
            Ok((*pid, CudaRecord { job_file, kept, needs, ..record.clone() }))
        };
        let records = suspended.pids().iter().map(of_process).collect::<Result<_, CheckpointError>>()?;
        Ok(Some(Ready { suspended, records, kept }))
    }

    /// Before a restart: what cannot be restored is told of before anything runs. With what there is to say of it.
    ///
    /// # Errors
    /// It cannot.
    pub fn prepare(&self, record: &ProcessRecord) -> Result<Option<String>, Failure> {
        let all = || record.processes().filter_map(|process| process.cuda.as_ref());
        let Some(cuda) = all().next() else { return Ok(None) };
        let path = cuda.library.as_path().to_owned();
        let driver = Arc::new(AgentDriver::new(&path, self.patience, Arc::clone(&self.voice)));
        let cannot = |why: String| {
            let what = format!("the CUDA state of the program cannot be restored here: {why}");
            Failure::new(Exit::Refused, what)
        };
        let here = driver.facts().map_err(cannot)?.devices;
        let wanted = std::env::var(DEVICES).unwrap_or_default();
        let pairs = devices::pairs(&cuda.devices, &here, &wanted).map_err(cannot)?;
        driver.restore_onto(devices::bytes(&pairs));
        *self.moved.lock() = devices::bytes(&pairs);
        // In a rollback a keeper has it.
        let is_there = self.keeper.lock().is_some();
        let kept = all().filter_map(|one| one.kept.as_ref()).filter(|_| !is_there);
        let kept = kept.flat_map(|kept| &kept.blocks);
        let kept = kept.map(|block| DeviceNeed { uuid: block.uuid, bytes: block.bytes });
        let needs = all().flat_map(|one| one.needs.iter().copied()).chain(kept);
        driver.wait_for_room(&sum(needs)).map_err(cannot)?;
        // Processes of a job have the same one, if any.
        let file = |process: &'_ ProcessRecord| process.cuda.as_ref().and_then(|one| one.job_file.clone());
        let files: BTreeMap<_, _> = record
            .processes()
            .filter_map(|process| file(process).map(|file| (file.path.clone(), (file, process))))
            .collect();
        for (file, process) in files.values() {
            job_file::put_back(file, process).map_err(cannot)?;
        }
        *self.driver.lock() = Some(driver);
        let others: Vec<String> =
            pairs.iter().filter(|pair| pair.old != pair.new).map(Pair::to_string).collect();
        Ok((!others.is_empty()).then(|| format!("restored onto other devices: {}", others.join(", "))))
    }

    /// Before that: device memory that a keeper is to have gets what the image has of it.
    ///
    /// # Errors
    /// It cannot: the processes are ended.
    pub fn refill(
        &self,
        record: &ProcessRecord,
        members: &[RebuiltMember],
        socket: &Path,
        image: &dyn PageProvider,
    ) -> Result<(), Failure> {
        let pids: Vec<i32> = members.iter().map(|member| member.pid).collect();
        let start = || kept::start(socket, self.cache);
        let made = kept::put_back(record, &pids, &start, image, &self.moved.lock())
            .and_then(|made| if made.is_some() { Ok(made) } else { kept::wished(socket, self.cache) });
        *self.socket.lock() = socket.to_owned();
        *self.keeper.lock() = made.map_err(|why| ended(members, &why))?;
        Ok(())
    }

    /// The GPU cache of a keeper gives its memory back. Whether there is one.
    fn cache_gives_way(&self) -> bool {
        self.keeper.lock().clone().is_some_and(|keeper| keeper.give_way().is_ok())
    }

    /// What a keeper holds for processes that were checkpointed is given up: they are about to be restored.
    pub fn gives_room(&self, pids: &[i32]) {
        if let Some(keeper) = self.keeper.lock().clone() {
            pids.iter().for_each(|pid| keeper.give(*pid));
        }
    }

    /// Device memory of a keeper's is compared with an image that is not the last one, or put back to it: see
    /// [`Cuda::went_back`].
    pub fn goes_back(&self) {
        self.went_back.store(true, Ordering::Relaxed);
    }

    /// At the end of a restart, when the threads of all processes run: their CUDA state goes back to the devices.
    ///
    /// # Errors
    /// It cannot: the processes are ended.
    pub fn restore(&self, record: &ProcessRecord, members: &[RebuiltMember]) -> Result<(), Failure> {
        // Both in the order of the record.
        let both = record.processes().zip(members);
        let pids: Vec<i32> =
            both.filter_map(|(own, member)| own.cuda.is_some().then_some(member.pid)).collect();
        let driver = self.driver.lock().clone().filter(|_| !pids.is_empty());
        let Some(driver) = driver else { return Ok(()) };
        for (process, member) in record.processes().zip(members) {
            let needs = process.cuda.as_ref().map_or_else(Vec::new, |cuda| cuda.needs.clone());
            driver.rooms().are(member.pid, needs);
        }
        let mut figures = CudaStop { processes: pids.len() as u64, ..CudaStop::default() };
        // The image was cut with the gates closed, and with device memory away.
        let hooks: Vec<Hooks> = members.iter().filter_map(|one| Hooks::of(one.pid, &one.area)).collect();
        let held = Held::of_image(hooks, self.limits());
        let whole = sealed(record, members, &held);
        match whole.and_then(|()| restore_all(&*driver, &pids, &mut figures)) {
            Ok(()) => held.back(&mut figures),
            Err(why) => {
                // Of processes that are locked nothing is restored, and they are about to end.
                held.ending();
                Err(why)
            }
        }
        .map_err(|why| ended(members, &why))?;
        // They have them from now on.
        driver.restore_onto(Vec::new());
        tracing::info!("{}", restored(&figures));
        Ok(())
    }
}

/// See [`named::graphs_with_nccl`].
fn graphs_with_nccl(hooks: &[Hooks]) -> Vec<Refusal> {
    named::graphs_with_nccl(&hooks.iter().map(Hooks::graphs).collect::<Vec<_>>())
}

/// Processes whose devices are too full for a checkpoint, also when what libholdfast has there has left.
fn full_devices(driver: &AgentDriver, members: &Members, used: &[CudaUse]) -> Vec<Refusal> {
    let leaves = Cuda::device_memory(members, used).map_or(0, |memory| memory.library);
    let of = |one: &CudaUse| Some(refuse_process(one.pid, driver.too_full(one.pid, leaves)?));
    used.iter().filter_map(of).collect()
}

/// The line of a restart in the log.
fn restored(figures: &CudaStop) -> String {
    let CudaStop { processes, restore_ns, unlock_ns, return_ns, data_bytes, .. } = *figures;
    let [restore, unlock, back] = [restore_ns, unlock_ns, return_ns].map(report::short_time);
    let data = report::size(data_bytes);
    format!(
        "CUDA state restored, of processes: {processes}; by the driver in {restore}, calls went on after {unlock}; \
         device memory of libholdfast or a keeper: {data} in {back}"
    )
}

/// Whether device memory of a keeper's is that of these processes, at that instant.
fn sealed(record: &ProcessRecord, members: &[RebuiltMember], held: &Held) -> Result<(), String> {
    let mut kept = held.kept();
    for (process, member) in record.processes().zip(members) {
        let Some(memory) = process.cuda.as_ref().and_then(|cuda| cuda.kept.as_ref()) else { continue };
        kept.retain(|pid| *pid != member.pid);
        if !held.is_sealed(member.pid, memory.seal) {
            let pid = process.pid;
            return Err(format!(
                "device memory in the image is not that of process {pid}: the image is damaged"
            ));
        }
    }
    match kept.first() {
        None => Ok(()),
        Some(pid) => {
            Err(format!("the image has no device memory for process {pid}, which had some: it is damaged"))
        }
    }
}

/// A restart that cannot go on.
fn ended(members: &[RebuiltMember], why: &str) -> Failure {
    for member in members {
        let _ = ptrace::kill(member.pid, libc::SIGKILL);
    }
    let what = format!(
        "{why}; the program was ended, its image is as it was: restart again when its devices are free and have the \
         memory that it needs"
    );
    Failure::new(Exit::Refused, what)
}

/// What the driver has to do after a cut.
#[derive(Default)]
pub enum AfterCut {
    /// No process uses CUDA.
    #[default]
    Unused,
    /// The program's threads run, and its CUDA state is being restored beside the flush.
    Resuming(Resuming),
    /// The program is held until the flush is done.
    Held(Box<Suspended>),
}

impl AfterCut {
    /// Begins. `held`: the program's threads do not run. `host_ns`: how long they were stopped. `say`: what tells the
    /// user at once that the program stays stopped, while its image is still being stored.
    ///
    /// # Errors
    /// No thread can be made; the program's CUDA state is restored.
    pub fn begin(
        suspended: Option<Suspended>,
        held: bool,
        host_ns: u64,
        say: Voice,
    ) -> Result<AfterCut, CheckpointError> {
        match suspended {
            None => Ok(AfterCut::Unused),
            Some(suspended) if held => Ok(AfterCut::Held(Box::new(suspended))),
            Some(suspended) => {
                let resume = move || {
                    let (stop, total_ns, result) = suspended.resume(host_ns);
                    if let Err(left) = &result {
                        say(format!("{left}; its image is being stored"));
                    }
                    Resumed { stop, total_ns, result }
                };
                let thread = thread::Builder::new().name("cuda".into()).spawn(resume);
                let thread = thread.map_err(|error| {
                    CheckpointError::Failed(format!("starting the thread that restores CUDA: {error}"))
                })?;
                Ok(AfterCut::Resuming(Resuming(Some(thread))))
            }
        }
    }

    /// All pages are stored, and the program's threads run, unless it is `ending`: then it stays as it is. Notes where
    /// the time went.
    ///
    /// # Errors
    /// Beside what is left to do: what of the program cannot use its devices again.
    pub fn finish(
        self,
        ending: bool,
        breakdown: &mut StopBreakdown,
    ) -> (Option<Suspended>, Result<(), String>) {
        let host_ns = breakdown.total_ns;
        let mut note = |stop, total_ns| {
            breakdown.cuda = Some(stop);
            breakdown.total_ns = total_ns;
        };
        match self {
            AfterCut::Unused => (None, Ok(())),
            AfterCut::Resuming(resuming) => match resuming.wait() {
                Some(Resumed { stop, total_ns, result }) => {
                    note(stop, total_ns);
                    (None, result)
                }
                None => (None, Err("the thread that restores CUDA ended".into())),
            },
            AfterCut::Held(suspended) if ending => {
                let (stop, total_ns) = suspended.figures(host_ns);
                note(stop, total_ns);
                (Some(*suspended), Ok(()))
            }
            AfterCut::Held(suspended) => {
                let (stop, total_ns, result) = suspended.resume(host_ns);
                note(stop, total_ns);
                (None, result)
            }
        }
    }
}

/// What came of it.
struct Resumed {
    stop: CudaStop,
    total_ns: u64,
    result: Result<(), String>,
}

/// The thread that restores. Dropped, it is waited for.
pub struct Resuming(Option<JoinHandle<Resumed>>);

impl Resuming {
    fn wait(mut self) -> Option<Resumed> {
        self.0.take()?.join().ok()
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        // The next checkpoint must not begin before. It cannot panic, as that would end the agent.
        if let Some(Ok(Resumed { result: Err(left), .. })) = self.0.take().map(JoinHandle::join) {
            tracing::error!("{left}");
        }
    }
}
