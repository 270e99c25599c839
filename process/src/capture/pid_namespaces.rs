//! Pid namespaces that programs of the job have made: which processes are in them, and by which ids.
//!
//! [`of`] is called by [`super::namespaces`], before the stop, for `check` and inside the stop; [`settle`] by
//! `build_record`, which has all processes. One level is recorded; a namespace is known by its process 1, which must be
//! of the job: a restart makes it, and all others in it. Fails by: words for a refusal. A process that has ended is in
//! none.

use crate::namespaces::{self, Namespaces, PID_NAME};
use holdfast_image::pid_namespaces::InnerIds;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::procfs::{self, Status};

const REMEDY: &str = "which is not supported: start `holdfast run` inside";

/// Those of a process that are not the job's, by their inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PidNamespaces {
    /// That which it is in.
    pub own: Option<u64>,
    /// That of its children, if it is another one.
    pub children: Option<u64>,
}

/// Of a process. `own`: all its namespaces, `job`: those of the job.
///
/// # Errors
/// A restart could not make them again.
pub fn of(pid: i32, own: &Namespaces, job: &Namespaces) -> Result<PidNamespaces, String> {
    if own.has_empty_pid() {
        return Err(format!(
            "it has left the namespaces of its job (pid) for one that has no process yet, {REMEDY} the new one"
        ));
    }
    let (Some(children), Some(of_job)) = (own.inode(PID_NAME), job.inode(PID_NAME)) else {
        return Ok(PidNamespaces::default());
    };
    if children == of_job {
        return Ok(PidNamespaces::default());
    }
    let link = procfs::link(&format!("/proc/{pid}/ns/pid")).ok();
    let (Some(here), Ok(status)) = (link.and_then(|link| namespaces::inode(&link)), Status::read(pid, pid))
    else {
        return Ok(PidNamespaces::default());
    };
    let deep = status.depth() > job.depth() + 1 || here != of_job && children != here;
    if deep || status.depth() < job.depth() {
        return Err(format!(
            "it is, or its children are, in a pid namespace within one of its job's programs, {REMEDY}"
        ));
    }
    if here == of_job {
        if procfs::task_count(pid).is_ok_and(|threads| threads > 1) {
            return Err(format!(
                "it has threads, and its children are in another pid namespace, {REMEDY} the new one"
            ));
        }
        return Ok(PidNamespaces { own: None, children: Some(children) });
    }
    Ok(PidNamespaces { own: Some(here), children: None })
}

/// What the ids of a process are in its own namespace; of whom it is named by, nothing is known yet.
pub fn ids(status: &Status) -> InnerIds {
    let id = |key: &str| status.innermost(key).unwrap_or(0);
    InnerIds { init: 0, pid: id("NStgid"), pgid: id("NSpgid"), sid: id("NSsid") }
}

/// Why a process cannot be restored whose namespace has no process 1 in the job.
pub const NO_INIT: &str = "process 1 of its pid namespace, or of that of its children, is not of the job, which is not \
                           supported: start `holdfast run` inside";

/// Names all of them. `inodes`: of each process in turn.
///
/// # Errors
/// One has no process 1 in the job; that process, and why.
pub fn settle(records: &mut [&mut ProcessRecord], inodes: &[PidNamespaces]) -> Result<Inits, (i32, String)> {
    let all = records.iter().zip(inodes);
    let inits = Inits::of(all.map(|(one, of)| (of, one.inner.map_or(0, |inner| inner.pid), one.pid)));
    for (record, of) in records.iter_mut().zip(inodes) {
        if inits.lack(of) {
            return Err((record.pid, NO_INIT.into()));
        }
        record.children_in = of.children.and_then(|inode| inits.named(inode));
        let named = of.own.and_then(|inode| inits.named(inode));
        record.inner = record.inner.zip(named).map(|(inner, init)| InnerIds { init, ..inner });
    }
    Ok(inits)
}

/// Process 1 of each namespace, by its inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inits(Vec<(u64, i32)>);

impl Inits {
    /// Of all processes: where each is, its id there, and the one by which it is known.
    pub fn of<'a>(all: impl Iterator<Item = (&'a PidNamespaces, i32, i32)>) -> Inits {
        let inits = all.filter(|(_, inner, _)| *inner == 1);
        Inits(inits.filter_map(|(of, _, pid)| Some((of.own?, pid))).collect())
    }

    /// That of one.
    pub fn named(&self, inode: u64) -> Option<i32> {
        self.0.iter().find(|(known, _)| *known == inode).map(|(_, init)| *init)
    }

    /// Whether that is missing of one that a process, or its children, are in.
    pub fn lack(&self, of: &PidNamespaces) -> bool {
        [of.own, of.children].into_iter().flatten().any(|inode| self.named(inode).is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;

    #[test]
    fn a_process_of_the_job_is_in_none_of_its_own() {
        let own = std::process::id().cast_signed();
        assert_eq!(of(own, &Namespaces::own(), &Namespaces::own()), Ok(PidNamespaces::default()));
        assert_eq!(of(own, &Namespaces::of_job(own), &Namespaces::own()), Ok(PidNamespaces::default()));
    }

    #[test]
    fn a_namespace_is_named_by_its_first_process_or_refused() {
        let of = |pid, own: Option<i32>| {
            let inner = own.map(|own| InnerIds { init: 0, pid: own, pgid: 0, sid: 0 });
            ProcessRecord { pid, inner, ..record(Vec::new()) }
        };
        let (mut outside, mut init, mut inside) = (of(10, None), of(11, Some(1)), of(12, Some(2)));
        let none = PidNamespaces::default();
        let inodes = [PidNamespaces { children: Some(7), ..none }, PidNamespaces { own: Some(7), ..none }];
        let settled = settle(&mut [&mut outside, &mut init, &mut inside], &[inodes[0], inodes[1], inodes[1]]);
        assert_eq!(settled.map(|inits| (inits.named(7), inits.named(8))), Ok((Some(11), None)));
        assert_eq!(outside.children_in, Some(11));
        assert_eq!((init.pid_namespace(), inside.pid_namespace()), (Some(11), Some(11)));
        assert!(settle(&mut [&mut outside, &mut inside], &inodes).is_err_and(|(pid, _)| pid == 10));
    }
}
