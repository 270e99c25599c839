//! How many seccomp filters of its own a thread is under, which the kernel tells all, and whether they can be known.
//!
//! Asked by [`super::filters`] inside a stop, by `refuse` before one and for `check`, by `job::adopt`, and by the
//! restart. Fails by: what cannot be told is a reason to refuse ([`unseen`]).

use holdfast_abi::SharedPage;
use holdfast_image::record::InjectArea;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::{attributes, procmem};
use std::io;
use std::sync::OnceLock;

/// include/uapi/linux/seccomp.h.
pub const MODE_STRICT: i64 = 1;

/// How many seccomp filters a thread is under (Linux 5.9, fs/proc/array.c, task_seccomp).
pub fn count(status: &Status) -> Option<i64> {
    status.number("Seccomp_filters")
}

/// How many the host (a container) has put over the agent. Filters are inherited and cannot be taken away, and the
/// agent comes from where the program comes from: a thread with as many has these very filters. They are neither saved
/// nor made again: the restarted program is under those of its new host.
pub fn of_the_host() -> i64 {
    static COUNT: OnceLock<i64> = OnceLock::new();
    let own = attributes::own_pid();
    *COUNT.get_or_init(|| Status::read(own, own).ok().as_ref().and_then(count).unwrap_or(0))
}

/// Whether the kernel tells us of filters and suspends them (kernel/seccomp.c, seccomp_get_filter; kernel/ptrace.c,
/// check_ptrace_options).
pub fn may_suspend() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    /// Inode of the first user namespace (include/linux/proc_ns.h, PROC_USER_INIT_INO).
    const FIRST: &[u8] = b"user:[4026531837]";
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let own = attributes::own_pid();
        let is_first = procfs::link("/proc/self/ns/user").is_ok_and(|link| link == FIRST);
        let may = |status: Status| {
            status.number("Seccomp") == Some(0) && status.mask("CapEff") & CAP_SYS_ADMIN != 0
        };
        is_first && Status::read(own, own).is_ok_and(may)
    })
}

/// Whether a thread is confined by more than the host.
pub fn is_confined(status: &Status) -> bool {
    match status.number("Seccomp") {
        None | Some(0) => false,
        Some(MODE_STRICT) => true,
        Some(_) => count(status).is_none_or(|count| count != of_the_host()),
    }
}

/// Why a thread with this status cannot be looked into, as far as that is known without a stop. `area`: of its process.
pub fn unseen(pid: i32, status: &Status, area: Option<&InjectArea>) -> Option<String> {
    if !is_confined(status) || may_suspend() {
        return None;
    }
    if status.number("Seccomp") == Some(MODE_STRICT) {
        return Some(STRICT.into());
    }
    match count(status) {
        None => Some(format!("{OWN}, and this kernel does not count them (Linux 5.9 does)")),
        // Elsewhere the stop tells.
        Some(_) if area.is_none_or(|area| notes_of(pid, area).is_ok_and(|at| at.is_some())) => None,
        Some(count) => Some(not_noted(count - of_the_host(), 0)),
    }
}

/// In the words of refusals.
pub const OWN: &str = "it runs under seccomp filters of its own";
const STRICT: &str = "it runs in seccomp's strict mode, in which no call of ours can be made: only root, outside of \
                      containers, can checkpoint it";

/// The words of a thread whose filters are not all known.
pub fn not_noted(there: i64, noted: usize) -> String {
    format!(
        "{OWN}, of which libholdfast has noted {noted} of {there}: others were installed past the C library, or before \
         it has executed its program; only root, outside of containers, is told of them"
    )
}

/// Where the notes of a process are, if it has any.
///
/// # Errors
/// Its memory cannot be read.
pub fn notes_of(tid: i32, area: &InjectArea) -> io::Result<Option<u64>> {
    let Some(page) = Some(area.shared.0).filter(|page| *page != 0) else { return Ok(None) };
    procmem::read_u64(tid, page + SharedPage::FILTERS as u64).map(|at| Some(at).filter(|at| *at != 0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_is_under_nothing_is_not_confined() {
        let own = attributes::own_pid();
        let status = Status::read(own, own).unwrap();
        assert!(!is_confined(&status));
        assert_eq!(unseen(own, &status, None), None);
    }
}
