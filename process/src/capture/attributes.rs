//! Settings that only the process or the thread itself can be asked for: the calls, and what their results say.
//!
//! Used by `state`, which runs the calls inside the stop, and by `cut`. A setting that this kernel does not know, or
//! tells only the privileged, is recorded as a new process has it.

use super::ldt;
use super::maps::Mapped;
use crate::error::TraceError;
use crate::inject::live_thread::{BUFFERS, LiveThread};
use crate::inject::stub::Row;
use crate::stop::xstate;
use holdfast_abi::SharedPage;
use holdfast_image::attributes::{MemoryPolicy, ProcessAttributes, ThreadAttributes};
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;

/// Bytes that the calls of [`process_rows`] write.
pub const PROCESS_LEN: usize = 8 + ldt::LEN;
/// Bytes that the calls of [`thread_rows`] write.
pub const THREAD_LEN: usize = NODES + MemoryPolicy::WORDS * 8;
/// Where the nodes of the memory policy are, after signal and mode.
const NODES: usize = 16;

// include/uapi/linux/prctl.h
const PR_GET_PDEATHSIG: u64 = 2;
const PR_GET_DUMPABLE: u64 = 3;
const PR_GET_TSC: u64 = 25;
const PR_GET_SECUREBITS: u64 = 27;
const PR_MCE_KILL_GET: u64 = 34;
const PR_GET_SPECULATION_CTRL: u64 = 52;
const PR_GET_CHILD_SUBREAPER: u64 = 37;
const PR_GET_THP_DISABLE: u64 = 42;
const PR_GET_IO_FLUSHER: u64 = 58;
const PR_GET_MDWE: u64 = 66;
const PR_GET_MEMORY_MERGE: u64 = 68;
const PR_MCE_KILL_DEFAULT: u32 = 2;
const PR_TSC_ENABLE: u32 = 1;
/// include/uapi/linux/membarrier.h
const MEMBARRIER_CMD_GET_REGISTRATIONS: u64 = 1 << 9;

/// include/uapi/linux/keyctl.h: KEYCTL_GET_KEYRING_ID of KEY_SPEC_THREAD_KEYRING or KEY_SPEC_PROCESS_KEYRING, without
/// making one. A session's is not asked for: that makes one (security/keys/process_keys.c, lookup_user_key).
const KEYCTL_GET_KEYRING_ID: u64 = 0;
const THREAD_KEYRING: i64 = -1;
const PROCESS_KEYRING: i64 = -2;

fn keyring(which: i64) -> Row {
    Row::new(libc::SYS_keyctl, &[KEYCTL_GET_KEYRING_ID, which.cast_unsigned(), 0])
}

/// The call that tells whether the calling thread has keys of its own: [`has_keys`].
pub fn thread_keyring() -> Row {
    keyring(THREAD_KEYRING)
}

/// Whether such a call has found a keyring. Otherwise it fails: ENOKEY, or ENOSYS in a kernel without keys.
pub fn has_keys(result: Option<&i64>) -> bool {
    result.is_some_and(|serial| *serial > 0)
}

fn prctl(args: &[u64]) -> Row {
    Row::new(libc::SYS_prctl, args)
}

fn int(bytes: &[u8], at: usize) -> u32 {
    (u64::from_le_bytes(xstate::array(bytes, at)) & 0xffff_ffff) as u32
}

/// Of a call that failed: 0.
fn value(results: &[i64], index: usize) -> u32 {
    results.get(index).and_then(|&result| u32::try_from(result).ok()).unwrap_or(0)
}

/// Calls that tell of the process.
pub fn process_rows(buffer: u64) -> Vec<Row> {
    vec![
        prctl(&[PR_GET_CHILD_SUBREAPER, buffer]),
        prctl(&[PR_GET_DUMPABLE]),
        prctl(&[PR_GET_MDWE]),
        prctl(&[PR_GET_THP_DISABLE]),
        Row::new(libc::SYS_membarrier, &[MEMBARRIER_CMD_GET_REGISTRATIONS]),
        keyring(PROCESS_KEYRING),
        prctl(&[PR_GET_MEMORY_MERGE]),
        ldt::row(buffer + 8),
    ]
}

/// Whether the process has a local descriptor table.
pub fn process_has_ldt(results: &[i64]) -> bool {
    ldt::is_there(results.get(7))
}

/// Whether the process has keys of its own.
pub fn process_has_keys(results: &[i64]) -> bool {
    has_keys(results.get(5))
}

/// What they told. `lock_future`: what libholdfast knows.
pub fn of_process(results: &[i64], bytes: &[u8], lock_future: u32) -> ProcessAttributes {
    ProcessAttributes {
        child_subreaper: int(bytes, 0) != 0,
        dumpable: results.get(1).and_then(|&result| u32::try_from(result).ok()),
        mdwe: value(results, 2),
        thp_disable: value(results, 3),
        membarrier: value(results, 4),
        lock_future,
        memory_merge: value(results, 6) == 1,
        // Asked by themselves, where there are any.
        protection_keys: 0,
    }
}

/// arch/x86/include/uapi/asm/prctl.h.
const ARCH_GET_CPUID: u64 = 0x1011;

/// Calls that tell of the calling thread.
pub fn thread_rows(buffer: u64) -> Vec<Row> {
    let nodes = (MemoryPolicy::WORDS * 64) as u64;
    vec![
        prctl(&[PR_GET_PDEATHSIG, buffer]),
        prctl(&[PR_GET_SECUREBITS]),
        prctl(&[PR_GET_IO_FLUSHER]),
        Row::new(libc::SYS_get_mempolicy, &[buffer + 8, buffer + NODES as u64, nodes]),
        Row::new(libc::SYS_personality, &[0xffff_ffff]),
        prctl(&[PR_MCE_KILL_GET]),
        prctl(&[PR_GET_TSC, buffer + 4]),
        prctl(&[PR_GET_SPECULATION_CTRL, 0]),
        prctl(&[PR_GET_SPECULATION_CTRL, 1]),
        Row::new(libc::SYS_arch_prctl, &[ARCH_GET_CPUID]),
    ]
}

/// What they told.
pub fn of_thread(results: &[i64], bytes: &[u8]) -> ThreadAttributes {
    ThreadAttributes {
        parent_death_signal: int(bytes, 0),
        securebits: value(results, 1),
        io_flusher: value(results, 2) == 1,
        memory_policy: policy(results.get(3), bytes, 8),
        personality: value(results, 4),
        memory_errors: told(results, 5).filter(|policy| *policy != PR_MCE_KILL_DEFAULT),
        timestamps: told(results, 6).map(|_| int(bytes, 4)).filter(|mode| *mode != PR_TSC_ENABLE),
        speculation: [7, 8].map(|index| told(results, index).and_then(chosen)),
        no_cpuid: told(results, 9) == Some(0),
        ..ThreadAttributes::default()
    }
}

fn told(results: &[i64], index: usize) -> Option<u32> {
    results.get(index).and_then(|&result| u32::try_from(result).ok())
}

/// What a thread has chosen of what it may choose. Enabled is how a new thread has it, where the host has no other
/// default.
fn chosen(state: u32) -> Option<u32> {
    const PR_SPEC_PRCTL: u32 = 1;
    const PR_SPEC_ENABLE: u32 = 2;
    (state & PR_SPEC_PRCTL != 0).then_some(state & !PR_SPEC_PRCTL).filter(|state| *state != PR_SPEC_ENABLE)
}

/// Policies of ranges of memory (mbind(2)) of all mappings; none as long as libholdfast, if it is there, has not seen
/// that call. Inside the stop; the host is stopped at its marker afterwards.
///
/// # Errors
/// As [`LiveThread::run`].
pub fn memory_policies(
    host: &LiveThread,
    area: &InjectArea,
    mapped: &[Mapped],
) -> Result<Vec<Option<MemoryPolicy>>, TraceError> {
    /// Mode and nodes.
    const LEN: usize = 8 + MemoryPolicy::WORDS * 8;
    const AT_ONCE: usize = 512;
    const MPOL_F_ADDR: u64 = 2;
    if area.shared.0 != 0
        && procmem::read_u64(host.thread.tid, area.shared.0 + SharedPage::BOUND as u64)? == 0
    {
        return Ok(Vec::new());
    }
    let buffer = area.scratch.0 + BUFFERS;
    let mut policies = Vec::with_capacity(mapped.len());
    for part in mapped.chunks(AT_ONCE) {
        let row = |(index, mapped): (usize, &Mapped)| {
            let (at, nodes) = (buffer + (index * LEN) as u64, (MemoryPolicy::WORDS * 64) as u64);
            Row::new(libc::SYS_get_mempolicy, &[at, at + 8, nodes, mapped.mapping.start, MPOL_F_ADDR])
        };
        let rows: Vec<Row> = part.iter().enumerate().map(row).collect();
        let results = host.run(area, &rows, &mut |_| Ok(()))?;
        let mut bytes = vec![0; part.len() * LEN];
        procmem::read(host.thread.tid, buffer, &mut bytes)?;
        let told = results.iter().zip(bytes.chunks_exact(LEN));
        policies.extend(told.map(|(result, bytes)| policy(Some(result), bytes, 0)));
    }
    Ok(policies)
}

/// What get_mempolicy(2) told: mode at `at`, nodes 8 bytes behind.
fn policy(result: Option<&i64>, bytes: &[u8], at: usize) -> Option<MemoryPolicy> {
    if result != Some(&0) {
        return None;
    }
    let mut nodes = [0; MemoryPolicy::WORDS];
    for (index, word) in nodes.iter_mut().enumerate() {
        *word = u64::from_le_bytes(xstate::array(bytes, at + 8 + index * 8));
    }
    MemoryPolicy::new(int(bytes, at), &nodes)
}
