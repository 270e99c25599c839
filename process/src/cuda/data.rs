//! Device memory that libholdfast owns in a process: brought to the program's own memory before the driver's
//! checkpoint, and back after it, by libholdfast's service thread (`cuda-hooks/src/service/`).
//!
//! Called by the agent, behind its closed gates: [`Held::leave`] before Lock, [`Held::back`] after Unlock; at a restart
//! [`Held::of_image`]. Invariants: of the process's memory only the agent's words are written
//! ([`CudaData`]); a gate is not opened while content is away: whatever fails, the thread is told to open it when the
//! content is back. A command that takes too long is called off. What is read may be anything.
//! Fails by: [`DataError`]; a process that has ended is no failure.

use super::discarded;
use super::hooks::{Closed, Hooks};
use super::uses;
use crate::refuse;
use crate::stop::interrupt::has_ended;
use holdfast_abi::{CudaArea, CudaData, CudaFigure};
use holdfast_image::cuda::CudaStop;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::procfs::Status;
use holdfast_sys::{attributes, cuda, fault, procmem, ptrace};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two looks at the answer, at first and at most.
const LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_millis(2);
/// The signal is sent again after so long: the kernel may have had no room for it.
const AGAIN: Duration = Duration::from_millis(100);
/// What is long for bringing content back after a command was called off.
const UNDO: Duration = Duration::from_secs(120);
/// How many tries content has to be restored, and the wait between them.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: u64 = 2;

/// What a process's service thread is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// All work on devices is done.
    Drain,
    /// Blocks that a keeper had, which has ended, are libholdfast's from now on.
    Adopt,
    /// Content goes to the program's memory, and blocks are unmapped.
    Leave,
    /// The way back.
    Return,
    /// How much memory of the host Leave would take.
    Measure,
}

impl Step {
    const fn command(self) -> u64 {
        match self {
            Step::Drain => CudaData::COMMAND_DRAIN,
            Step::Adopt => CudaData::COMMAND_ADOPT,
            Step::Leave => CudaData::COMMAND_LEAVE,
            Step::Return => CudaData::COMMAND_RETURN,
            Step::Measure => CudaData::COMMAND_MEASURE,
        }
    }
}

/// Why a step was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataError {
    /// The process.
    pub pid: i32,
    /// Which step.
    pub step: Step,
    /// As [`CudaData::result`] has it; `None`: no answer in time.
    pub result: Option<u64>,
    /// The driver's function. Empty: none, or not known.
    pub function: String,
    /// Of how many bytes it was; 0: of none.
    pub bytes: u64,
    /// Number of the block, + 1; 0: none.
    pub block: u64,
    /// The content is still away: calls of CUDA wait.
    pub away: bool,
}

impl fmt::Display for DataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pid, name) = (self.pid, refuse::name_of(self.pid));
        let what = match self.step {
            Step::Drain => "its work on devices",
            Step::Adopt => "taking over the device memory that its keeper had",
            Step::Leave => "copying its device memory to the host",
            Step::Return => "copying its device memory back",
            Step::Measure => "looking for changes in its device memory",
        };
        write!(f, "process {pid} ({name}): {what}")?;
        if let Some(block) = self.block.checked_sub(1) {
            write!(f, ", block {block}")?;
        }
        let function = match (self.function.as_str(), self.bytes) {
            ("", _) => String::new(),
            (name, 0) => format!("{name}: "),
            (name, bytes) if bytes % (1 << 20) == 0 => format!("{name} of {} MiB: ", bytes >> 20),
            (name, bytes) => format!("{name} of {} KiB: ", bytes.div_ceil(1 << 10)),
        };
        let lower = |result: u64| (result & u64::from(u32::MAX)).try_into().unwrap_or(0);
        match self.result.map(|result| (result & !u64::from(u32::MAX), result)) {
            None if self.step == Step::Drain => f.write_str(
                " was not done in time; try again later, or give it more seconds (HOLDFAST_CUDA_LOCK, 10 by default)",
            ),
            None => f.write_str(
                " was not done in time; it may need more seconds (HOLDFAST_CUDA_DEADLINE), or hang: docs/cuda.md",
            ),
            Some((0, OUT_OF_MEMORY)) => write!(
                f,
                ": {function}{}: the device has no free memory; free memory of other programs",
                cuda::describe(lower(OUT_OF_MEMORY))
            ),
            Some((0, result)) => {
                let error = cuda::describe(lower(result));
                write!(f, ": {function}{error}: HOLDFAST_CUDA_DATA=driver leaves it to the driver")
            }
            Some((CudaData::FAULT_DAMAGED, _)) => f.write_str(
                ": the copy in its memory is not what was copied from the device: something has overwritten it; \
                 restart an older image",
            ),
            Some((CudaData::FAULT_SYSTEM, result)) => write!(
                f,
                ": {}: it needs as much memory of the host as it has on devices (HOLDFAST_CUDA_DATA=driver leaves it \
                 to the driver){}",
                io::Error::from_raw_os_error(lower(result)),
                limits_of(pid)
            ),
            Some((CudaData::FAULT_KEEPER, _)) => f.write_str(": its keeper does not answer"),
            Some((_, result)) => write!(f, ": libholdfast does not do that now ({result:#x})"),
        }?;
        match self.result {
            Some(CudaData::FAULT_DAMAGED) => Ok(()),
            _ if self.away => f.write_str("; its CUDA calls wait until the memory is back"),
            _ => Ok(()),
        }
    }
}

/// What limits the addresses of a process, in words; empty: nothing does (getrlimit(2)).
fn limits_of(pid: i32) -> String {
    let Ok(status) = Status::read(pid, pid) else { return String::new() };
    let used = |name| status.get(name).and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let limits = [("RLIMIT_AS", libc::RLIMIT_AS, "VmSize"), ("RLIMIT_DATA", libc::RLIMIT_DATA, "VmData")];
    let words = limits.into_iter().filter_map(|(name, resource, field)| {
        let (soft, _) = attributes::limit(pid, resource).ok().filter(|(soft, _)| *soft != u64::MAX)?;
        let used = used(field).unwrap_or(0).saturating_mul(1024);
        let (soft, used) = (soft >> 20, used >> 20);
        Some(format!(
            "; its limit {name} is {soft} MiB, and it uses {used} MiB: raise it (prlimit(1), ulimit)"
        ))
    });
    words.collect()
}

/// Device memory of a process that libholdfast has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owned {
    hooks: Hooks,
    pid: i32,
    data: u64,
}

impl Owned {
    /// That of a process whose content libholdfast itself has to move; none: there is none.
    pub fn of(hooks: &Hooks) -> Option<Owned> {
        let (pid, area) = hooks.place();
        let data = procmem::read_u64(pid, area + CudaArea::DATA as u64).ok().filter(|data| *data != 0)?;
        let owned = Owned { hooks: *hooks, pid, data };
        let word = |offset| owned.word(offset).ok();
        let is_ours = matches!(word(CudaData::OWNER)?, CudaData::BY_LIBRARY | CudaData::BY_KEEPER);
        let has = word(CudaData::BLOCK_COUNT)? != 0 && is_ours;
        has.then_some(owned)
    }

    /// A keeper has the physical memory, and what is in it.
    pub(super) fn is_kept(&self) -> bool {
        self.word(CudaData::OWNER).is_ok_and(|owner| owner == CudaData::BY_KEEPER)
    }

    fn word(&self, offset: usize) -> io::Result<u64> {
        procmem::read_u64(self.pid, self.data + offset as u64)
    }

    fn write(&self, offset: usize, words: &[u64]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        procmem::write(self.pid, self.data + offset as u64, &bytes)
    }

    /// Whether the content is away, or on its way.
    fn is_away(&self) -> bool {
        self.word(CudaData::STATE).is_ok_and(|state| state != CudaData::RESIDENT)
    }

    /// Bytes of its blocks.
    pub fn bytes(&self) -> u64 {
        self.word(CudaData::BLOCK_BYTES).unwrap_or(0)
    }

    /// Bytes of them that the program has asked for.
    fn requested(&self) -> u64 {
        self.word(CudaData::REQUESTED_BYTES).unwrap_or(0)
    }

    /// Bytes of the host's memory that [`Step::Leave`] would take now, behind a closed gate.
    pub(super) fn measure(&self, limits: Limits) -> Result<u64, DataError> {
        if self.is_kept() {
            return Ok(0);
        }
        let limit = limits.drain.saturating_add(limits.data);
        Owned::all(&[*self], Step::Measure, limit)?;
        Ok(self.figure(CudaFigure::NEEDED_BYTES))
    }

    /// The service thread as this process knows it.
    fn thread(&self) -> Option<i32> {
        let inner = i32::try_from(self.word(CudaData::SERVICE_THREAD).ok()?).ok().filter(|tid| *tid != 0)?;
        uses::thread(self.pid, inner)
    }

    /// Writes a command, and its number, which is returned.
    fn send(&self, step: Step, arguments: &[u64]) -> io::Result<u64> {
        let number = self.word(CudaData::ASKED)?.wrapping_add(1);
        self.write(CudaData::ARGUMENTS, arguments)?;
        self.write(CudaData::COMMAND, &[step.command()])?;
        self.write(CudaData::ASKED, &[number])?;
        self.wake();
        Ok(number)
    }

    fn wake(&self) {
        if let Some(thread) = self.thread() {
            // Sent again if there is no answer.
            let _ = ptrace::tgkill(self.pid, thread, CudaData::SIGNAL);
        }
    }

    /// Waits for the answer to a command.
    fn answer(&self, step: Step, number: u64, limit: Duration) -> Result<(), DataError> {
        let begun = Instant::now();
        let (mut pause, mut woken) = (LOOK, begun);
        let error = |result| DataError { away: self.is_away(), ..self.failed(step, result) };
        loop {
            match self.word(CudaData::DONE) {
                Ok(done) if done == number => break,
                Err(_) if has_ended(self.pid) => return Ok(()),
                _ => {}
            }
            if begun.elapsed() > limit {
                return if has_ended(self.pid) { Ok(()) } else { Err(error(None)) };
            }
            if woken.elapsed() > AGAIN {
                self.wake();
                woken = Instant::now();
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_LOOK);
        }
        let word = |offset| self.word(offset).unwrap_or(0);
        match word(CudaData::RESULT) {
            0 => Ok(()),
            result => Err(DataError {
                function: self.function(word(CudaData::FAILED_FUNCTION)),
                bytes: word(CudaData::FAILED_BYTES),
                block: word(CudaData::FAILED_BLOCK),
                ..error(Some(result))
            }),
        }
    }

    /// The name of a row of the table of functions, + 1, as the documentation has it: without its version.
    fn function(&self, number: u64) -> String {
        let symbol = number.checked_sub(1).map_or_else(String::new, |row| self.hooks.symbol(row));
        symbol.trim_end_matches("_v2").to_owned()
    }

    fn failed(&self, step: Step, result: Option<u64>) -> DataError {
        DataError { pid: self.pid, step, result, function: String::new(), bytes: 0, block: 0, away: false }
    }

    fn gone(&self, step: Step) -> DataError {
        self.failed(step, Some(CudaData::FAULT_COMMAND))
    }

    /// Makes a step in all of these processes at once.
    fn all(owned: &[Owned], step: Step, limit: Duration) -> Result<(), DataError> {
        let sent: Vec<_> = owned.iter().map(|one| one.send(step, &[0])).collect();
        let begun = Instant::now();
        let mut first = Ok(());
        for (one, number) in owned.iter().zip(sent) {
            let left = limit.saturating_sub(begun.elapsed());
            let result = match number {
                Ok(number) => one.answer(step, number, left),
                Err(_) if has_ended(one.pid) => Ok(()),
                Err(_) => Err(one.gone(step)),
            };
            first = first.and(result);
        }
        first
    }

    /// Has the content restored, whatever was asked before. `of_image`: what is discarded is not there, and zero.
    fn back(&self, limit: Duration, spare: Option<&dyn Spare>, of_image: bool) -> Result<(), DataError> {
        let mut last = Ok(());
        for _ in 0..TRIES {
            if let Some(Err(why)) = spare.filter(|_| self.is_kept()).map(Spare::ready) {
                tracing::error!("{why}");
            }
            let flag = if of_image { CudaData::OF_IMAGE } else { 0 };
            last =
                self.send(Step::Return, &[0, flag]).map_err(|_| self.gone(Step::Return)).and_then(|number| {
                    // What waits for work in a command that was called off moves nothing any more.
                    if self.is_away() { self.answer(Step::Return, number, limit) } else { Ok(()) }
                });
            match last {
                Err(_) if has_ended(self.pid) => return Ok(()),
                Err(DataError { result: Some(result), .. }) if result != CudaData::FAULT_DAMAGED => {
                    thread::sleep(PAUSE);
                }
                _ => break,
            }
        }
        if last.is_err() {
            // From now on it is the thread's affair.
            let _ = self.write(CudaData::ARGUMENTS, &[CudaData::OPENS_GATE]);
            if !self.is_away() {
                return Ok(());
            }
        }
        last
    }

    fn figure(&self, figure: usize) -> u64 {
        self.word(CudaData::FIGURES + figure * 8).unwrap_or(0)
    }
}

/// Bytes of device memory of a process that the driver carries.
pub(super) fn carried(hooks: &Hooks) -> u64 {
    hooks.device_bytes().saturating_sub(Owned::of(hooks).map_or(0, |owned| owned.requested()))
}

/// Which word of the arguments has the seal: a number that the image of the process and what the keeper has taken for
/// it have in common.
const SEAL: usize = 3 * 8;

/// Has the keeper take what it has of processes, whose work on devices is done, before they release it. `None`: it
/// has ended, and nothing of it is to be had any more.
pub type Keep<'a> = dyn FnMut(&[i32]) -> Result<Option<Kept>, String> + 'a;

/// What a keeper has taken.
#[derive(Debug)]
pub struct Kept {
    /// By process: what is to be in its memory, too.
    pub seals: BTreeMap<i32, u64>,
    /// What it cost.
    pub figures: CudaStop,
    /// The memory itself.
    pub spare: Box<dyn Spare>,
}

/// Memory that a keeper has and processes have released: it lasts although the keeper ends.
pub trait Spare: fmt::Debug + Send {
    /// Before processes ask for it: sees to it that a keeper answers.
    ///
    /// # Errors
    /// None does.
    fn ready(&self) -> Result<(), String>;
    /// They have it again.
    fn over(&self);
}

/// How long steps may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For work on devices to be done.
    pub drain: Duration,
    /// For content to be moved.
    pub data: Duration,
}

/// Processes whose gates are closed, and whose device memory is away, if libholdfast has it. Dropped: it is brought
/// back, and the gates are opened.
#[derive(Debug)]
pub struct Held {
    owned: Vec<Owned>,
    gates: Option<Closed>,
    limits: Limits,
    figures: CudaStop,
    begun: Instant,
    spare: Option<Box<dyn Spare>>,
    /// The processes are of an image.
    of_image: bool,
}

impl Held {
    /// Brings the content of all these processes to their own memory.
    ///
    /// # Errors
    /// Why not, in words; content is back, and the gates are open, unless they say otherwise.
    pub fn leave(gates: Closed, limits: Limits, keep: &mut Keep<'_>) -> Result<Held, String> {
        let owned: Vec<Owned> = gates.hooks().iter().filter_map(Owned::of).collect();
        let driver_bytes = gates.hooks().iter().map(carried).sum();
        let mut held = Held::new(owned, gates, limits);
        if held.owned.is_empty() {
            held.figures.driver_bytes = driver_bytes;
            return Ok(held);
        }
        let left = Owned::all(&held.owned, Step::Drain, limits.drain)
            .map_err(|error| error.to_string())
            .and_then(|()| held.keep(keep))
            .and_then(|()| {
                Owned::all(&held.owned, Step::Leave, limits.data).map_err(|error| error.to_string())
            });
        if let Err(words) = left {
            return Err(held.end().map_or_else(|left| format!("{words}; {left}"), |()| words.clone()));
        }
        held.figures.leave_ns = elapsed_ns(held.begun);
        held.figures.driver_bytes = driver_bytes;
        for one in &held.owned {
            let figures = &mut held.figures;
            figures.data_bytes += one.bytes();
            for (sum, figure) in [
                (&mut figures.drain_ns, CudaFigure::DRAIN_NS),
                (&mut figures.hash_ns, CudaFigure::HASH_NS),
                (&mut figures.copy_ns, CudaFigure::COPY_NS),
                (&mut figures.unmap_ns, CudaFigure::UNMAP_NS),
                (&mut figures.hashed_bytes, CudaFigure::HASHED_BYTES),
                (&mut figures.dirty_bytes, CudaFigure::DIRTY_BYTES),
                (&mut figures.zero_bytes, CudaFigure::ZERO_BYTES),
            ] {
                *sum += one.figure(figure);
            }
        }
        held.figures.discarded_bytes = held.discarded().iter().map(|(_, _, bytes)| bytes).sum();
        fault::point("cuda-data-away");
        Ok(held)
    }

    /// Has the keeper take what it has of these processes.
    fn keep(&mut self, keep: &mut Keep<'_>) -> Result<(), String> {
        let kept: Vec<Owned> = self.owned.iter().filter(|one| one.is_kept()).copied().collect();
        if kept.is_empty() {
            return Ok(());
        }
        let pids: Vec<i32> = kept.iter().map(|one| one.pid).collect();
        let Some(Kept { seals, figures, spare }) = keep(&pids)? else {
            return Owned::all(&kept, Step::Adopt, self.limits.data).map_err(|error| error.to_string());
        };
        (self.figures, self.spare) = (figures, Some(spare));
        for one in kept {
            let seal = seals.get(&one.pid).copied().unwrap_or(0);
            // A process that has ended is none of the image.
            let _ = one.write(CudaData::ARGUMENTS + SEAL, &[seal]);
        }
        Ok(())
    }

    /// libholdfast's thread in a process, where it has one.
    pub(super) fn thread(&self, pid: i32) -> Option<i32> {
        self.owned.iter().find(|one| one.pid == pid)?.thread()
    }

    /// Whether a keeper has memory of this process, and it was cut together with what has this seal.
    pub fn is_sealed(&self, pid: i32, seal: u64) -> bool {
        let own = self.owned.iter().find(|one| one.pid == pid && one.is_kept());
        own.is_some_and(|one| one.word(CudaData::ARGUMENTS + SEAL).is_ok_and(|found| found == seal))
    }

    /// Processes whose memory a keeper has.
    pub fn kept(&self) -> Vec<i32> {
        self.owned.iter().filter(|one| one.is_kept()).map(|one| one.pid).collect()
    }

    /// Of an image that was cut with the content away.
    pub fn of_image(hooks: Vec<Hooks>, limits: Limits) -> Held {
        let owned = hooks.iter().filter_map(Owned::of).collect();
        let mut held = Held::new(owned, Closed::are(hooks), limits);
        held.of_image = true;
        held
    }

    fn new(owned: Vec<Owned>, gates: Closed, limits: Limits) -> Held {
        let (gates, figures) = (Some(gates), CudaStop::default());
        Held { owned, gates, limits, figures, begun: Instant::now(), spare: None, of_image: false }
    }

    /// What the image need not have: process, first address and bytes.
    pub fn discarded(&self) -> Vec<(i32, u64, u64)> {
        let own = self.owned.iter().filter(|one| !one.is_kept());
        let of = |one: &Owned| {
            let places = discarded::of(one.pid, |offset| one.word(offset).unwrap_or(0));
            let pid = one.pid;
            places.into_iter().map(move |(start, bytes)| (pid, start, bytes)).collect::<Vec<_>>()
        };
        own.flat_map(of).collect()
    }

    /// Since when.
    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// Brings content back, and opens the gates. Notes how long all of it took.
    ///
    /// # Errors
    /// What could not be restored, in words: the gates stay closed.
    pub fn back(mut self, figures: &mut CudaStop) -> Result<(), String> {
        let begun = Instant::now();
        let owned = self.owned.clone();
        let result = self.end();
        if self.figures.data_bytes > 0 {
            self.figures.return_ns = elapsed_ns(begun);
        }
        for one in owned {
            self.figures.map_ns += one.figure(CudaFigure::MAP_NS);
            self.figures.fill_ns += one.figure(CudaFigure::FILL_NS);
            self.figures.check_ns += one.figure(CudaFigure::CHECK_NS);
        }
        self.note(figures);
        result
    }

    /// Adds its figures to those of a checkpoint.
    pub fn note(&self, figures: &mut CudaStop) {
        let CudaStop { processes, lock_ns, checkpoint_ns, host_ns, restore_ns, unlock_ns, .. } = *figures;
        let of_driver =
            CudaStop { processes, lock_ns, checkpoint_ns, host_ns, restore_ns, unlock_ns, ..self.figures };
        *figures = of_driver;
    }

    /// Leaves it to the threads in the processes, which the driver does not let run on: content is restored, and gates
    /// are opened, when it does.
    pub fn leave_to_thread(mut self) {
        // Not over: they will ask for it.
        if let Some(Err(why)) = self.spare.take().map(|spare| spare.ready()) {
            tracing::error!("{why}");
        }
        for one in std::mem::take(&mut self.owned) {
            // Of a process that has ended nothing is left to do.
            let _ = one.send(Step::Return, &[CudaData::OPENS_GATE, 0]);
            if let Some(gates) = &mut self.gates {
                gates.forget(one.pid);
            }
        }
    }

    /// The processes are about to end as they are.
    pub fn ending(mut self) {
        self.owned.clear();
        if let Some(gates) = self.gates.take() {
            gates.ending();
        }
    }

    fn end(&mut self) -> Result<(), String> {
        let limit = self.limits.data.max(UNDO);
        let owned = std::mem::take(&mut self.owned);
        let failed: Vec<String> = owned
            .iter()
            .filter_map(|one| {
                one.back(limit, self.spare.as_deref(), self.of_image).err().map(|error| (one.pid, error))
            })
            .map(|(pid, error)| {
                if let Some(gates) = &mut self.gates {
                    gates.forget(pid);
                }
                error.to_string()
            })
            .collect();
        self.gates = None;
        let spare = self.spare.take();
        if !failed.is_empty() {
            // The processes still ask for it.
            return Err(failed.join("; "));
        }
        spare.iter().for_each(|spare| spare.over());
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(left) = self.end() {
            tracing::error!("{left}");
        }
    }
}

#[cfg(test)]
mod tests;
