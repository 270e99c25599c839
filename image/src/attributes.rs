//! Settings of a process and of its threads that have little to do with each other, and that mostly the kernel alone
//! knows: `prctl(2)`, `membarrier(2)`, `mlockall(2)`, `ioprio_set(2)`, `set_mempolicy(2)`.
//!
//! Part of [`crate::record::ProcessRecord`]; plain data. Every field has a default that says "as a new process",
//! because images that were made before the field have none.

use crate::{Addr, PAGE_SIZE};
use serde::{Deserialize, Serialize};

/// Settings of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessAttributes {
    /// `PR_GET_DUMPABLE`; `None`: not recorded.
    pub dumpable: Option<u32>,
    /// `PR_GET_CHILD_SUBREAPER`.
    pub child_subreaper: bool,
    /// `PR_GET_MDWE`: memory that was writable may not become executable.
    pub mdwe: u32,
    /// `PR_GET_THP_DISABLE`: 0, 1, or 1 and flags.
    pub thp_disable: u32,
    /// `MEMBARRIER_CMD_GET_REGISTRATIONS`.
    pub membarrier: u32,
    /// `MCL_FUTURE` and `MCL_ONFAULT` of `mlockall(2)`: how memory is locked that is mapped from now on; 0: not.
    pub lock_future: u32,
    /// `PR_GET_MEMORY_MERGE`: all memory may be merged with equal one (KSM).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory_merge: bool,
    /// Protection keys that it has allocated (`pkey_alloc(2)`): a bit for each.
    #[serde(skip_serializing_if = "is_zero")]
    pub protection_keys: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Parameters of SCHED_DEADLINE (sched_setattr(2)), nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Deadline {
    /// Time on a processor in each period.
    pub runtime_ns: u64,
    /// Within so long of its beginning.
    pub deadline_ns: u64,
    /// The period.
    pub period_ns: u64,
    /// SCHED_FLAG_*.
    pub flags: u64,
}

/// Settings of a thread.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadAttributes {
    /// `PR_GET_PDEATHSIG`; 0: none.
    pub parent_death_signal: u32,
    /// `PR_GET_SECUREBITS`, with `SECBIT_KEEP_CAPS`.
    pub securebits: u32,
    /// `PR_GET_IO_FLUSHER`.
    pub io_flusher: bool,
    /// `ioprio_get(2)`; `None`: not recorded.
    pub io_priority: Option<u32>,
    /// Length of its turns on a processor, nanoseconds (sched_setattr(2)); `None`: as a new thread has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_ns: Option<u64>,
    /// What belongs to policy SCHED_DEADLINE; `None`: it is another one.
    pub deadline: Option<Deadline>,
    /// `get_mempolicy(2)`; `None`: the default.
    pub memory_policy: Option<MemoryPolicy>,
    /// `personality(2)`.
    pub personality: u32,
    /// `PR_MCE_KILL_GET`; `None`: not recorded, or the default.
    pub memory_errors: Option<u32>,
    /// `PR_GET_TSC`; `None`: not recorded, or allowed.
    pub timestamps: Option<u32>,
    /// `PR_GET_SPECULATION_CTRL` of each kind (PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH), where the thread has
    /// chosen; `None`: it has not.
    pub speculation: [Option<u32>; 2],
    /// The instruction CPUID is forbidden (ARCH_SET_CPUID of arch_prctl(2)).
    pub no_cpuid: bool,
}

/// On which NUMA nodes memory is taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryPolicy {
    /// `MPOL_*` with its flags.
    pub mode: u32,
    /// Set of nodes, lowest first.
    pub nodes: Vec<u64>,
}

impl MemoryPolicy {
    /// Words of the largest set of nodes that a kernel has (MAX_NUMNODES is 1024 on x86-64).
    pub const WORDS: usize = 16;

    /// Of what `get_mempolicy(2)` told; the default is `None`.
    pub fn new(mode: u32, nodes: &[u64]) -> Option<MemoryPolicy> {
        let used = nodes.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        (mode != 0).then(|| MemoryPolicy { mode, nodes: nodes[..used].to_vec() })
    }

    /// The set as the kernel takes it, all words of it.
    pub fn node_words(&self) -> [u64; MemoryPolicy::WORDS] {
        let mut words = [0; MemoryPolicy::WORDS];
        for (word, nodes) in words.iter_mut().zip(&self.nodes) {
            *word = *nodes;
        }
        words
    }
}

/// Memory that may not be touched though it is mapped (`MADV_GUARD_INSTALL`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GuardRegion {
    /// First byte.
    pub start: Addr,
    /// First byte after it.
    pub end: Addr,
}

/// Checks those of a record.
///
/// # Errors
/// Names the first that is no range of pages, or out of order.
pub(crate) fn check_guards(guards: &[GuardRegion]) -> Result<(), String> {
    let mut floor = Addr(PAGE_SIZE);
    for &GuardRegion { start, end } in guards {
        let aligned = start.is_page_aligned() && end.is_page_aligned();
        if !aligned || start < floor || start >= end || end.0 > 1 << 47 {
            return Err(format!("guard region {start}-{end} is not a valid range"));
        }
        floor = end;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn images_without_these_fields_are_of_processes_as_new() {
        assert_eq!(serde_json::from_str::<ProcessAttributes>("{}").unwrap(), ProcessAttributes::default());
        let thread: ThreadAttributes = serde_json::from_str("{\"securebits\": 16}").unwrap();
        assert_eq!(thread, ThreadAttributes { securebits: 16, ..ThreadAttributes::default() });
    }

    #[test]
    fn guards_are_ranges_of_pages_in_order() {
        let guard = |start, end| GuardRegion { start: Addr(start), end: Addr(end) };
        assert!(check_guards(&[guard(0x1000, 0x2000), guard(0x2000, 0x5000)]).is_ok());
        for wrong in [guard(0, 0x1000), guard(0x1001, 0x2000), guard(0x2000, 0x2000), guard(0x1000, 1 << 60)]
        {
            assert!(check_guards(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(check_guards(&[guard(0x3000, 0x4000), guard(0x1000, 0x2000)]).is_err());
    }

    #[test]
    fn a_policy_keeps_its_nodes_without_the_empty_words() {
        assert_eq!(MemoryPolicy::new(0, &[1]), None);
        let policy = MemoryPolicy::new(2, &[1, 4, 0, 0]).unwrap();
        assert_eq!(policy.nodes, [1, 4]);
        assert_eq!(policy.node_words()[..3], [1, 4, 0]);
        assert!(MemoryPolicy::new(4, &[0; 16]).unwrap().nodes.is_empty());
    }
}
