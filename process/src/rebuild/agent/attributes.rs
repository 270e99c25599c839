//! Settings of the process and of its threads, as [`holdfast_image::attributes`] has them. Runs in the agent, by
//! tables in the program's injection area.
//!
//! Four moments: [`of_memory`] (before there are pages), [`before_threads`] (registrations that are cheap while
//! there is one thread), [`of_thread`] (while the process still has the rights of the restart), and [`at_the_end`]
//! (what forbids something that the restart does itself). How it fails: a setting that is refused here (no
//! privilege, no such node) is told in a note, and the program runs without it.

use super::remote_calls::{Batch, Need, SeedThread};
use super::threads::NewThread;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use holdfast_image::attributes::MemoryPolicy;
use holdfast_image::record::ProcessRecord;
use std::io;

// include/uapi/linux/prctl.h
const PR_SET_PDEATHSIG: u64 = 1;
const PR_SET_DUMPABLE: u64 = 4;
const PR_SET_KEEPCAPS: u64 = 8;
const PR_SET_SECUREBITS: u64 = 28;
const PR_SET_CHILD_SUBREAPER: u64 = 36;
const PR_SET_IO_FLUSHER: u64 = 57;
const PR_SET_TSC: u64 = 26;
const PR_MCE_KILL: u64 = 33;
const PR_MCE_KILL_SET: u64 = 1;
const PR_SET_SPECULATION_CTRL: u64 = 53;
const PR_SET_MDWE: u64 = 65;
const PR_SET_MEMORY_MERGE: u64 = 67;
/// arch/x86/include/uapi/asm/prctl.h.
const ARCH_SET_CPUID: u64 = 0x1012;
/// SECBIT_KEEP_CAPS (include/uapi/linux/securebits.h), which needs no privilege.
const KEEP_CAPS: u32 = 1 << 4;

/// Calls whose failure is told and accepted.
struct OptionalCalls {
    batch: Batch,
    names: Vec<String>,
}

impl OptionalCalls {
    fn new(thread: SeedThread) -> OptionalCalls {
        OptionalCalls { batch: thread.batch(), names: Vec::new() }
    }

    fn call(
        &mut self,
        number: libc::c_long,
        args: &[u64],
        name: impl Into<String>,
    ) -> Result<(), RebuildError> {
        self.names.push(name.into());
        self.batch.call(number, args, Need::May)
    }

    /// A call that takes a policy: mbind(2) of a range, or set_mempolicy(2) where there is none.
    fn policy(
        &mut self,
        range: Option<(u64, u64)>,
        policy: &MemoryPolicy,
        name: String,
    ) -> Result<(), RebuildError> {
        let words = policy.node_words();
        self.batch.reserve(words.len() * 8)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (mode, nodes) = (u64::from(policy.mode), self.batch.data(&bytes));
        // The kernel counts one bit less than it is told (mm/mempolicy.c, get_nodes).
        let bits = words.len() as u64 * 64 + 1;
        let row = match range {
            Some((start, len)) => Row::new(libc::SYS_mbind, &[start, len, mode, nodes, bits]),
            None => Row::new(libc::SYS_set_mempolicy, &[mode, nodes, bits]),
        };
        self.names.push(name);
        self.batch.row(row, Need::May);
        Ok(())
    }

    /// Makes the calls; one line for each that failed.
    fn finish(self) -> Result<Vec<String>, RebuildError> {
        let (results, _) = self.batch.finish()?;
        let failed = results.iter().zip(self.names).filter(|(result, _)| (-4095..0).contains(*result));
        Ok(failed
            .map(|(result, name)| {
                let error = io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0));
                format!("{name} could not be restored: {error}")
            })
            .collect())
    }
}

/// NUMA policies of memory, before pages come into it. `leader`: with its tables in the seed.
///
/// # Errors
/// The process ended.
pub fn of_memory(leader: SeedThread, record: &ProcessRecord) -> Result<Vec<String>, RebuildError> {
    let mut calls = OptionalCalls::new(leader);
    for region in &record.regions {
        if let Some(policy) = &region.memory_policy {
            let range = (region.start.0, region.end.0 - region.start.0);
            calls.policy(Some(range), policy, format!("the NUMA policy of memory at {}", region.start))?;
        }
    }
    let mut notes = calls.finish()?;
    // A host without the nodes refuses them all.
    let more = notes.len().saturating_sub(1);
    notes.truncate(1);
    notes.extend((more > 0).then(|| format!("nor could {more} more policies of memory")));
    Ok(notes)
}

/// Settings that do not matter to the restart, in the leader, before there are other threads: to register for
/// membarrier then takes no waiting for all processors (kernel/sched/membarrier.c,
/// sync_runqueues_membarrier_state).
///
/// # Errors
/// The process ended.
pub fn before_threads(leader: SeedThread, record: &ProcessRecord) -> Result<Vec<String>, RebuildError> {
    let wanted = &record.attributes;
    let mut calls = OptionalCalls::new(leader);
    if wanted.child_subreaper {
        calls.call(libc::SYS_prctl, &[PR_SET_CHILD_SUBREAPER, 1], "being a child subreaper")?;
    }
    for bit in (0..32).filter(|bit| wanted.membarrier >> bit & 1 == 1) {
        let name = format!("the registration for membarrier with command {:#x}", 1_u32 << bit);
        calls.call(libc::SYS_membarrier, &[1 << bit], name)?;
    }
    calls.finish()
}

/// Settings of one thread.
///
/// # Errors
/// The process ended.
pub fn of_thread(thread: &NewThread<'_>) -> Result<Vec<String>, RebuildError> {
    let (wanted, tid) = (&thread.record.attributes, thread.record.tid);
    let mut calls = OptionalCalls::new(thread.seed);
    if wanted.parent_death_signal != 0 {
        let args = [PR_SET_PDEATHSIG, u64::from(wanted.parent_death_signal)];
        calls.call(libc::SYS_prctl, &args, format!("thread {tid}: its parent-death signal"))?;
    }
    if wanted.securebits & !KEEP_CAPS != 0 {
        let bits = wanted.securebits;
        let args = [PR_SET_SECUREBITS, u64::from(bits)];
        calls.call(libc::SYS_prctl, &args, format!("thread {tid}: its securebits {bits:#x}"))?;
    } else if wanted.securebits & KEEP_CAPS != 0 {
        calls.call(libc::SYS_prctl, &[PR_SET_KEEPCAPS, 1], format!("thread {tid}: its PR_SET_KEEPCAPS"))?;
    }
    if wanted.io_flusher {
        let name = format!("thread {tid}: its PR_SET_IO_FLUSHER");
        calls.call(libc::SYS_prctl, &[PR_SET_IO_FLUSHER, 1], name)?;
    }
    if let Some(policy) = &wanted.memory_policy {
        calls.policy(None, policy, format!("thread {tid}: its NUMA memory policy"))?;
    }
    if let Some(policy) = wanted.memory_errors {
        let args = [PR_MCE_KILL, PR_MCE_KILL_SET, u64::from(policy)];
        calls.call(libc::SYS_prctl, &args, format!("thread {tid}: its PR_MCE_KILL"))?;
    }
    if let Some(mode) = wanted.timestamps {
        let args = [PR_SET_TSC, u64::from(mode)];
        calls.call(libc::SYS_prctl, &args, format!("thread {tid}: its PR_SET_TSC"))?;
    }
    for (kind, state) in (0_u64..).zip(wanted.speculation) {
        if let Some(state) = state {
            let args = [PR_SET_SPECULATION_CTRL, kind, u64::from(state)];
            calls.call(libc::SYS_prctl, &args, format!("thread {tid}: its speculation control {kind}"))?;
        }
    }
    if wanted.no_cpuid {
        calls.call(
            libc::SYS_arch_prctl,
            &[ARCH_SET_CPUID, 0],
            format!("thread {tid}: its ARCH_SET_CPUID"),
        )?;
    }
    // Always: a restart may have been started with another one.
    let args = [u64::from(wanted.personality)];
    calls.call(libc::SYS_personality, &args, format!("thread {tid}: its personality"))?;
    calls.finish()
}

/// What would be in the way of a restart: mappings that may not be changed any more, memory that is mapped from now on
/// is locked, the agent may not look, nothing that was writable becomes executable.
///
/// # Errors
/// The process ended.
pub fn at_the_end(leader: SeedThread, record: &ProcessRecord) -> Result<Vec<String>, RebuildError> {
    let wanted = &record.attributes;
    let mut calls = OptionalCalls::new(leader);
    for region in record.regions.iter().filter(|region| region.has("sl")) {
        let args = [region.start.0, region.end.0 - region.start.0, 0];
        calls.call(libc::SYS_mseal, &args, format!("the seal of memory at {} (mseal)", region.start))?;
    }
    if wanted.lock_future != 0 {
        let args = [u64::from(wanted.lock_future)];
        calls.call(libc::SYS_mlockall, &args, "the lock on memory to come (mlockall)")?;
    }
    if wanted.memory_merge {
        calls.call(libc::SYS_prctl, &[PR_SET_MEMORY_MERGE, 1], "PR_SET_MEMORY_MERGE")?;
    }
    if wanted.mdwe != 0 {
        calls.call(libc::SYS_prctl, &[PR_SET_MDWE, u64::from(wanted.mdwe)], "PR_SET_MDWE")?;
    }
    // 2 is what the kernel alone may set (man PR_SET_DUMPABLE(2const)); 0 is as strict for all but core dumps.
    if wanted.dumpable.is_some_and(|dumpable| dumpable != 1) {
        calls.call(libc::SYS_prctl, &[PR_SET_DUMPABLE, 0], "PR_SET_DUMPABLE")?;
    }
    calls.finish()
}
