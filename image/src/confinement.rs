//! What threads have forbidden themselves: seccomp filters (seccomp(2)) that the programs of a job have installed.
//!
//! Part of the process record. Written by `process::capture::filters`, read by `process::rebuild`. Invariants: plain
//! data. A filter lies over another one, as the kernel has them (kernel/seccomp.c, `struct seccomp_filter`, prev): the
//! list of a process has each behind the one below it, so that a chain ends ([`check`]). Filters of the host, which
//! were there before `holdfast run`, are not in it.

use crate::bytes::Blob;
use serde::{Deserialize, Serialize};

/// One filter.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FilterRecord {
    /// The filter that it was installed over, by its place in the list. `None`: none of the program's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<u32>,
    /// What it does not allow is logged (SECCOMP_FILTER_FLAG_LOG).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logs: bool,
    /// Its program: `struct sock_filter` of eight bytes each.
    pub program: Blob,
}

/// What a thread is confined by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Confinement {
    /// The newest filter over it, by its place in the list of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<u32>,
    /// It is in seccomp's strict mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// It has set no_new_privs, though not the first thread of its process.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_new_privs: bool,
}

impl Confinement {
    /// Whether there is nothing to say of it.
    pub fn is_none(&self) -> bool {
        *self == Confinement::default()
    }
}

/// Bytes of an instruction, and most of a program (BPF_MAXINSNS, include/uapi/linux/bpf_common.h).
const INSTRUCTION: usize = 8;
const INSTRUCTIONS: usize = 4096;
/// Most filters of a process that are believed; the kernel's limit is one of instructions (MAX_INSNS_PER_PATH).
const FILTERS: usize = 4096;

/// The places of the filters over a thread, the oldest first.
pub fn chain(filters: &[FilterRecord], newest: Option<u32>) -> Vec<u32> {
    let below = |place: &u32| filters.get(*place as usize).and_then(|filter| filter.below);
    let mut chain: Vec<u32> = std::iter::successors(newest, below).take(FILTERS).collect();
    chain.reverse();
    chain
}

/// Checks the filters of a process, and what its threads say of them.
///
/// # Errors
/// Says what is wrong.
pub fn check(filters: &[FilterRecord], mut threads: impl Iterator<Item = Confinement>) -> Result<(), String> {
    if filters.len() > FILTERS {
        return Err(format!("{} seccomp filters are too many", filters.len()));
    }
    for (place, filter) in filters.iter().enumerate() {
        let len = filter.program.0.len();
        if len == 0 || !len.is_multiple_of(INSTRUCTION) || len / INSTRUCTION > INSTRUCTIONS {
            return Err(format!("seccomp filter {place} has a program of {len} bytes"));
        }
        if filter.below.is_some_and(|below| below as usize >= place) {
            return Err(format!("seccomp filter {place} lies over one behind it"));
        }
    }
    match threads.find(|thread| thread.filter.is_some_and(|place| place as usize >= filters.len())) {
        Some(_) => Err("a thread is under a seccomp filter that there is not".into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(below: Option<u32>, len: usize) -> FilterRecord {
        FilterRecord { below, logs: false, program: Blob(vec![6; len]) }
    }

    fn under(filter: Option<u32>) -> Confinement {
        Confinement { filter, ..Confinement::default() }
    }

    #[test]
    fn a_chain_is_told_from_the_oldest_on() {
        let filters = [filter(None, 8), filter(Some(0), 16), filter(Some(0), 8), filter(Some(2), 8)];
        assert!(check(&filters, [under(None), under(Some(3))].into_iter()).is_ok());
        assert_eq!(chain(&filters, Some(3)), [0, 2, 3]);
        assert_eq!(chain(&filters, Some(1)), [0, 1]);
        assert_eq!(chain(&filters, None), [0_u32; 0]);
    }

    #[test]
    fn what_no_kernel_has_is_refused() {
        let wrong: [(&[FilterRecord], Option<u32>); 5] = [
            (&[filter(Some(0), 8)], None),
            (&[filter(None, 8), filter(Some(2), 8), filter(None, 8)], None),
            (&[filter(None, 12)], None),
            (&[filter(None, 0)], None),
            (&[filter(None, 8)], Some(1)),
        ];
        for (filters, newest) in wrong {
            assert!(check(filters, std::iter::once(under(newest))).is_err(), "{filters:?}");
        }
    }
}
