//! The children of the processes of a job: those that have ended, and those that the agent does not know.
//!
//! Called inside the stop and before it, on the tracer thread. Fails by: [`CutError::Unsettled`], with those that are
//! not known.

use crate::error::CutError;
use crate::job::target::Target;
use crate::refuse;
use crate::thread_pool;
use holdfast_image::bytes::Name;
use holdfast_image::record::ZombieRecord;
use holdfast_sys::children;
use holdfast_sys::procfs::{self, Status};

/// Children that have ended, each with the pid of its parent.
///
/// They are looked at until a second look shows the same children: one that lived at the first look and has ended by
/// the time that its state is read has left its own children to one of these processes, and that look does not have
/// them (kernel/exit.c, exit_notify: they are handed on first).
///
/// # Errors
/// There is a child that lives and is not among the processes of the job, or there are other children at each look.
pub fn relatives(targets: &[Target]) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
    /// More than can end while the processes are stopped, but for those of a storm.
    const LOOKS: usize = 100;
    let children = |target: &Target| (target.pid, children::children(target.pid).unwrap_or_default());
    let look = || thread_pool::map(targets, thread_pool::workers(), children);
    let mut before = look();
    for _ in 0..LOOKS {
        let zombies = relatives_among(&before)?;
        let now = look();
        if now == before {
            return Ok(zombies);
        }
        before = now;
    }
    Err(CutError::Busy {
        what: "children of the job's processes end all the time, each with children of its own".into(),
    })
}

/// One look, where the children of each process are known.
///
/// # Errors
/// There is a child that lives and is not among the processes of the job.
pub fn relatives_among(job: &[(i32, Vec<i32>)]) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
    let is_of_job = |pid: i32| job.iter().any(|(other, _)| *other == pid);
    let (mut zombies, mut strangers) = (Vec::new(), Vec::new());
    for (parent, children) in job {
        for &child in children.iter().filter(|child| !is_of_job(**child)) {
            match zombie(child, job.first().map(|(first, _)| *first)) {
                Some(zombie) => zombies.push((*parent, zombie)),
                None => strangers.push(refuse::stranger(child)),
            }
        }
    }
    if strangers.is_empty() { Ok(zombies) } else { Err(CutError::Unsettled(strangers)) }
}

/// A process that has ended; `None`: it lives.
fn zombie(pid: i32, first: Option<i32>) -> Option<ZombieRecord> {
    let fields = procfs::stat_fields(pid, pid).ok()?;
    // proc_pid_stat(5): field 3 is the state, field 52 the exit code; these fields begin with the third.
    if fields.first()? != "Z" || procfs::tasks(pid).ok()?.len() > 1 {
        return None;
    }
    let status = Status::read(pid, pid).ok()?;
    // Ids where the job lives, and where its parent does.
    let depth = |pid: i32| Status::read(pid, pid).map_or(1, |status| status.depth());
    let job = first.map_or(status.depth(), depth);
    let parent = status.number("PPid").and_then(|parent| i32::try_from(parent).ok()).map_or(job, depth);
    let is_inside = status.depth() > job && parent == status.depth();
    Some(ZombieRecord {
        pid: status.at_depth("NStgid", job).unwrap_or(pid),
        inner_pid: status.innermost("NStgid").filter(|_| is_inside),
        pgid: status.at_depth("NSpgid", job).unwrap_or(0),
        sid: status.at_depth("NSsid", job).unwrap_or(0),
        status: fields.get(49)?.parse().ok()?,
        comm: Name::from(std::path::Path::new(&refuse::name_of(pid))),
    })
}
