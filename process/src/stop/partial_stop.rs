//! A process of which all threads but a few are stopped for a moment; those work for us meanwhile.
//!
//! Used by the tracer thread, for the CUDA driver's checkpoint (`crate::cuda::sequence`): while the driver leaves its
//! addresses no thread of the program may map anything there. What must hold: whatever fails, the threads go on as
//! after a cut. A thread that runs on may wait for a lock that a stopped one has: then these run one after the other,
//! each for a moment, until it goes on; what is free by then of the driver's addresses is kept free before.
//! Fails by: [`CutError`]; all threads run.

use crate::capture::filters;
use crate::cuda::uses;
use crate::error::CutError;
use crate::inject::live_thread::MAX_ROWS;
use crate::inject::stub::Row;
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::stop::interrupt::Stopped;
use crate::stop::resume::{self, StoppedProgram};
use crate::stop::threads;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::ptrace;
use std::collections::BTreeMap;
use std::io;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

/// Longest stop that is tried, how often, and the pause in between.
const DEADLINE: Duration = Duration::from_millis(50);
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);
/// A thread that waits at the same place for so long waits for one that is stopped. Each of these runs for so long
/// then, and how often it is looked whether that was enough.
const STUCK: Duration = Duration::from_millis(50);
const BREATH: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_micros(20);

/// See the head of the file.
pub struct PartialStop {
    target: Target,
    spared: Vec<i32>,
    /// Addresses that the driver may leave.
    places: Vec<(u64, u64)>,
    held: StoppedProgram,
    looked: Instant,
    /// In which call each spared thread was then.
    calls: Calls,
}

type Calls = BTreeMap<i32, [u64; 9]>;

impl PartialStop {
    /// Stops all threads but the spared ones. `places`: addresses that are to be kept free.
    ///
    /// # Errors
    /// They cannot be stopped in time; they run on.
    pub fn begin(
        target: Target,
        spared: Vec<i32>,
        places: Vec<(u64, u64)>,
        state: &mut TracerState,
    ) -> Result<PartialStop, CutError> {
        let held = stop(&target, &spared, state)?;
        Ok(PartialStop { target, spared, places, held, looked: Instant::now(), calls: Calls::new() })
    }

    /// Addresses without memory at those of the places where nothing is.
    ///
    /// # Errors
    /// The kernel refuses, or the process has ended.
    pub fn reserve(&mut self) -> Result<(), CutError> {
        let free = uses::unmapped(self.target.pid, &self.places);
        tracing::debug!("process {}: {} places of the driver are free", self.target.pid, free.len());
        if free.is_empty() { Ok(()) } else { reserve_in(&self.target, &mut self.held, &free) }
    }

    /// Looks whether a spared thread waits for a stopped one. Called again and again.
    pub fn tend(&mut self, state: &mut TracerState) {
        if self.looked.elapsed() < STUCK {
            return;
        }
        let calls = self.calls_now();
        let waits = |(tid, call): (&i32, &[u64; 9])| {
            call[0] == libc::SYS_futex.cast_unsigned() && self.calls.get(tid) == Some(call)
        };
        if calls.iter().any(waits)
            && let Err(error) = self.breathe(&calls, state)
        {
            tracing::debug!(pid = self.target.pid, %error, "while its threads run a little");
        }
        self.calls = self.calls_now();
        self.looked = Instant::now();
    }

    /// All threads run.
    pub fn end(self, state: &mut TracerState) {
        self.held.resume(&mut state.stragglers);
    }

    fn calls_now(&self) -> Calls {
        let look = |&tid: &i32| Some((tid, procfs::current_call(self.target.pid, tid).ok()??));
        self.spared.iter().filter_map(look).collect()
    }

    /// Lets one thread after the other run for a moment, until a spared one goes on.
    fn breathe(&mut self, calls: &Calls, state: &mut TracerState) -> Result<(), CutError> {
        self.reserve()?;
        if let Some(host) = self.held.host.take() {
            host.put_back()?;
        }
        for tid in self.held.tids() {
            let Some(stopped) = self.held.stopped.threads.remove(&tid) else { continue };
            let stopped = Stopped { threads: BTreeMap::from([(tid, stopped)]) };
            let mut one = StoppedProgram::new(self.target.pid, stopped);
            one.threads = self.held.threads.extract_if(.., |thread| thread.tid == tid).collect();
            one.resume(&mut state.stragglers);
            let begun = Instant::now();
            while begun.elapsed() < BREATH && self.calls_now() == *calls {
                thread::sleep(LOOK);
            }
            self.stop_rest(state)?;
            if self.calls_now() != *calls {
                break;
            }
        }
        Ok(())
    }

    /// Stops what runs and is not spared.
    fn stop_rest(&mut self, state: &mut TracerState) -> Result<(), CutError> {
        let mut others = self.held.tids();
        others.extend(&self.spared);
        let rest = match stop(&self.target, &others, state) {
            // None is left: it has ended.
            Err(CutError::Gone) => return Ok(()),
            rest => rest?,
        };
        self.held.stopped.threads.extend(rest.stopped.threads);
        self.held.threads.extend(rest.threads);
        Ok(())
    }
}

fn stop(target: &Target, spared: &[i32], state: &mut TracerState) -> Result<StoppedProgram, CutError> {
    let mut last = CutError::Gone;
    for _ in 0..TRIES {
        match resume::park_but(slice::from_ref(target), spared, DEADLINE, state).map(|mut all| all.pop()) {
            Ok(Some(held)) => return Ok(held),
            Ok(None) => return Err(CutError::Gone),
            Err(error @ CutError::Busy { .. }) => last = error,
            Err(error) => return Err(error),
        }
        state.stragglers.tend();
        thread::sleep(PAUSE);
    }
    Err(last)
}

fn reserve_in(target: &Target, held: &mut StoppedProgram, ranges: &[(u64, u64)]) -> Result<(), CutError> {
    if held.host.is_none() {
        let live = held.living().ok_or(CutError::Gone)?;
        let status = Status::read(held.pid, live)?;
        let inner = status.innermost("NStgid").unwrap_or(held.pid);
        let shared = threads::pending_mask(&ptrace::pending_signals(live, true)?);
        filters::settle(held.pid, &mut held.threads, &target.area, &status, true)?;
        held.host = threads::host_of(&held.threads, held.pid, inner, status.mask("SigCgt"), shared);
    }
    let host = held.host.as_ref().ok_or(CutError::Gone)?;
    for part in ranges.chunks(MAX_ROWS) {
        let rows: Vec<Row> = part.iter().map(|&(start, end)| row(start, end - start)).collect();
        let results = host.run(&target.area, &rows, &mut |_| Ok(()))?;
        for (result, &(start, end)) in results.iter().zip(part) {
            let there = -i64::from(libc::EEXIST);
            if *result < 0 && *result != there {
                let error = io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0));
                let what = format!("keeping its addresses {start:#x}-{end:#x} free: {error}");
                return Err(CutError::Failed { what });
            }
        }
    }
    Ok(())
}

fn row(start: u64, len: u64) -> Row {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_NONE;
    let words = [start, len, u64::from(prot.cast_unsigned()), u64::from(flags.cast_unsigned()), u64::MAX, 0];
    Row::new(libc::SYS_mmap, &words)
}
