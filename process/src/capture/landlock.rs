//! Landlock domains (landlock(7)): what a thread has forbidden itself, and with it all that it makes and executes. A
//! new process cannot be put into the domain of an old one: one that is not known is refused, as what was forbidden
//! would be allowed.
//!
//! The kernel does not tell of a domain: what libholdfast has noted is made again ([`landlock_notes`]). But a thread in
//! one may not look into a process outside of it (security/landlock/task.c, hook_ptrace_access_check), so it is asked,
//! inside the stop, for the robust list of an [`outsider`] (get_robust_list(2), kernel/futex/syscalls.c), which it
//! could have otherwise. Domains that the agent is in itself do not count. Where no process answers for sure, and for
//! `check`, there is what libholdfast has noted. Fails by: nothing; what is not sure is no finding.

use super::landlock_notes;
use crate::inject::stub::Row;
use crate::job::membership;
use crate::refuse;
use crate::stop::threads::Thread;
use holdfast_image::landlock::LandlockLayer;
use holdfast_image::record::InjectArea;
use holdfast_image::refusal::Refusal;
use holdfast_sys::attributes;
use holdfast_sys::procfs::{self, Status};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Bytes that the call of [`row`] writes.
pub const LEN: usize = 16;
/// include/uapi/linux/capability.h.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// A process of the agent's side that the process `pid` may look into, unless Landlock forbids it; its id as that
/// process sees it. `status`: of any thread of it; `depth`: of the job ([`crate::namespaces::Namespaces::depth`]): in a
/// pid namespace of the job's own there is none.
pub fn outsider(pid: i32, status: &Status, depth: usize) -> Option<i32> {
    if status.depth() != depth {
        return None;
    }
    let own = std::process::id().cast_signed();
    let (other, inner) = if status.is_nested() { (init_of(pid)?, 1) } else { (own, own) };
    suits(pid, status, other).then_some(inner)
}

/// Process 1 of the pid namespace that a process lives in: a restart has made it.
fn init_of(pid: i32) -> Option<i32> {
    let is_init = |above: &i32| Status::read(*above, *above).is_ok_and(|of| of.innermost("NSpid") == Some(1));
    membership::ancestors(pid).find(is_init)
}

/// Whether nothing but Landlock can keep a thread with `status` from looking into `other`: the other questions that
/// the kernel asks (kernel/ptrace.c, __ptrace_may_access; security/commoncap.c, cap_ptrace_access_check) have the
/// answer yes. Other security modules say EACCES.
fn suits(pid: i32, status: &Status, other: i32) -> bool {
    let Ok(its) = Status::read(other, other) else { return false };
    let user_namespace = |pid: i32| procfs::link(&format!("/proc/{pid}/ns/user")).ok();
    if user_namespace(pid).is_none_or(|own| user_namespace(other) != Some(own)) {
        return false;
    }
    if status.mask("CapEff") & CAP_SYS_PTRACE != 0 {
        return true;
    }
    let ids = |status: &Status, key: &str| -> Vec<i64> {
        let ids = status.get(key).unwrap_or_default().split_whitespace();
        ids.take(3).filter_map(|id| id.parse().ok()).collect()
    };
    let same = |key: &str| {
        let own = ids(status, key).first().copied();
        let its = ids(&its, key);
        its.len() == 3 && its.iter().all(|id| Some(*id) == own)
    };
    let is_subset = its.mask("CapPrm") & !status.mask("CapPrm") == 0;
    same("Uid") && same("Gid") && is_subset && is_dumpable(other, &its)
}

fn is_dumpable(pid: i32, status: &Status) -> bool {
    if pid.cast_unsigned() == std::process::id() {
        return attributes::is_dumpable();
    }
    // What is not belongs to root here (fs/proc/base.c, task_dump_owner), so of root's own it cannot be told.
    let owner = fs::metadata(format!("/proc/{pid}/status")).map(|file| i64::from(file.uid())).ok();
    owner.is_some_and(|owner| owner != 0 && Some(owner) == status.number("Uid"))
}

/// The call that is refused to a thread in a domain. `outsider`: without one, the thread itself, which it always may.
pub fn row(outsider: Option<i32>, buffer: u64) -> Row {
    let whom = u64::from(outsider.unwrap_or(0).cast_unsigned());
    Row::new(libc::SYS_get_robust_list, &[whom, buffer, buffer + 8])
}

/// Whether such a call was.
pub fn is_confined(result: Option<&i64>) -> bool {
    result == Some(&-i64::from(libc::EPERM))
}

/// Why the domain of a process could not be made again, by what libholdfast has noted.
pub fn noted(pid: i32, tid: i32, area: &InjectArea) -> Option<Refusal> {
    landlock_notes::domain(pid, tid, area).err().map(|why| refuse::landlock(pid, &why))
}

/// The domain of a process; or that it, or threads of it, are in one that is not known. `threads`: each, and whether
/// the call was refused to it. Inside the stop.
///
/// # Errors
/// One could not be made again.
pub fn found<'a>(
    pid: i32,
    area: &InjectArea,
    (outsider, depth): (Option<i32>, usize),
    threads: impl Iterator<Item = (&'a Thread, bool)>,
) -> Result<Vec<LandlockLayer>, Vec<Refusal>> {
    // A thread may have ids of its own (setuid(2) past the C library).
    let is_sure = |thread: &Thread| {
        Status::read(pid, thread.tid)
            .is_ok_and(|status| self::outsider(pid, &status, depth).is_some_and(|now| Some(now) == outsider))
    };
    let (mut all, mut confined) = (0, Vec::new());
    let mut any = None;
    for (thread, refused) in threads {
        all += 1;
        any = any.or(Some(thread.tid));
        if refused && is_sure(thread) {
            confined.push(thread.inner);
        }
    }
    match any.map(|tid| landlock_notes::domain(pid, tid, area)) {
        Some(Ok(domain)) if !domain.is_empty() => return Ok(domain),
        Some(Err(why)) => return Err(vec![refuse::landlock(pid, &why)]),
        _ => {}
    }
    if confined.is_empty() {
        return Ok(Vec::new());
    }
    if confined.len() == all {
        return Err(vec![refuse::landlock(pid, UNSEEN)]);
    }
    Err(confined.into_iter().map(|inner| refuse::landlock_of_thread(inner, UNSEEN)).collect())
}

const UNSEEN: &str = "which libholdfast has not seen being made, so that no restart can restore it";

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_the_same_ids_answers_for_sure_and_no_other() {
        let own = std::process::id().cast_signed();
        let status = Status::read(own, own).unwrap();
        // It may always look into itself.
        assert_eq!(outsider(own, &status, 1), attributes::is_dumpable().then_some(own));
        assert!(!suits(own, &status, i32::MAX), "there is no such process");
        assert!(
            is_confined(Some(&-1)) && !is_confined(Some(&0)) && !is_confined(Some(&-3)) && !is_confined(None)
        );
        assert_eq!(
            row(None, 4096).to_bytes(),
            Row::new(libc::SYS_get_robust_list, &[0, 4096, 4104]).to_bytes()
        );
    }
}
