//! Who gets the signals that files cause (F_SETOWN, F_SETSIG; fcntl(2)).
//!
//! Called by [`super::rebuild_process`] for each process twice: while it has the ids of the restart, and when it has
//! its own. The kernel keeps with an owner who has set it, and asks those ids whom a signal may reach (fs/fcntl.c,
//! sigio_perm): what another user has set is set by a process that is that user, or not at all. Signals go to processes
//! of the job only: any other number may be anybody's by now. After what was in flight is in the files, and after
//! locks: no process is told of either. How it fails: a note; an error if the process ended.

use super::remote_calls::Need;
use super::threads::NewThread;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::{Job, Member};
use holdfast_image::record::{Owner, ProcessRecord};
use holdfast_sys::{procfs, unix_socket};

/// include/uapi/asm-generic/fcntl.h.
const F_SETSIG: u64 = 10;
const F_SETOWN_EX: u64 = 15;
const F_OWNER_TID: i32 = 0;
const F_OWNER_PGRP: i32 = 2;
const O_ASYNC: u32 = libc::O_ASYNC.cast_unsigned();

/// By whom an owner is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setter {
    /// Its process, while that has the ids of the restart.
    Restart(usize),
    /// This process, when it has its own.
    Process(usize),
}

/// Who sets it; `None`: no process of the job is who had set it. `own`: the user who restarts.
fn setter(job: &Job<'_>, index: usize, owner: &Owner, own: u32) -> Option<Setter> {
    let holder = job.holder(index).map(|(place, _)| place)?;
    let users = |record: &ProcessRecord| {
        record.rights.as_ref().map_or([own; 2], |rights| [rights.users[0], rights.users[1]])
    };
    if owner.set_by == Some([own; 2]) || own != 0 {
        return Some(Setter::Restart(holder));
    }
    let mut having = job.members().filter(|member| member.number(index).is_some());
    let found = match owner.set_by {
        Some(set_by) => having.find(|member| users(member.own) == set_by),
        // An image of old: by one that is not root, if there is one.
        None => having.find(|member| member.own.rights.is_some()).or_else(|| job.member(holder)),
    };
    found.map(|member| Setter::Process(member.index))
}

/// The id as the process that sets it knows it; `None`: it is of no process of the job.
fn target(job: &Job<'_>, member: Member<'_>, threads: &[NewThread<'_>], owner: &Owner) -> Option<i32> {
    let Owner { kind, id, .. } = *owner;
    // Its own ids may be others now.
    let own = |tid: i32| threads.iter().find(|one| one.record.tid == tid).map(|one| one.seed.remote.inner.1);
    let of_thread = |one: &ProcessRecord| {
        let thread = one.threads.iter().find(|thread| thread.job_tid.unwrap_or(thread.tid) == id)?;
        Some(if member.own.inner.is_some() { thread.tid } else { id })
            .filter(|_| one.known_to(member.own).is_some())
    };
    let known = match kind {
        F_OWNER_TID => job.members().find_map(|one| of_thread(one.own)),
        _ => job.members().find(|one| one.own.pid == id).and_then(|one| one.own.known_to(member.own)),
    };
    if let Some(id) = known {
        return own(id).or(Some(id));
    }
    let is_group = kind == F_OWNER_PGRP && member.own.pgid == id;
    let leader = threads.first().filter(|_| is_group)?.seed.remote.tid;
    let status = procfs::Status::read(leader, leader).ok()?;
    // As it sees itself; 0: its group is outside its pid namespace.
    let group: i32 = status.get("NSpgid")?.split_whitespace().next_back()?.parse().ok()?;
    (group != 0).then_some(group)
}

/// Sets those that are set at this moment; one line for each that is not. `at`: [`Setter`] of this process.
///
/// # Errors
/// The process ended.
pub fn set(
    threads: &[NewThread<'_>],
    member: Member<'_>,
    at: fn(usize) -> Setter,
) -> Result<Vec<String>, RebuildError> {
    let (Some(leader), job) = (threads.first(), member.job) else { return Ok(Vec::new()) };
    let (mut batch, mut notes) = (leader.seed.batch(), Vec::new());
    let moment = at(member.index);
    for (index, description) in job.descriptions().iter().enumerate() {
        let Some(fd) = member.number(index) else { continue };
        let is_held = member.held(index).is_some() && moment == Setter::Restart(member.index);
        let number = u64::from(fd.cast_unsigned());
        if description.flags & O_ASYNC != 0 && is_held {
            // The signal tells the number that was in use when this was set (fs/fcntl.c, fasync_insert_entry).
            for flags in [description.flags & !O_ASYNC, description.flags] {
                let row = Row::new(libc::SYS_fcntl, &[number, libc::F_SETFL as u64, flags.into()]);
                batch.row(row, Need::May);
            }
        }
        let Some(owner) = description.owner else { continue };
        let setter = setter(job, index, &owner, unix_socket::effective_user());
        let id = target(job, member, threads, &owner);
        if is_held && (setter.is_none() || id.is_none()) {
            let (kind, id) = (if owner.kind == F_OWNER_PGRP { "process group" } else { "process" }, owner.id);
            let whose = if setter.is_none() { "as another user had said" } else { "not of the job" };
            notes.push(format!(
                "descriptor {fd}: its signals went to {kind} {id}, {whose}: nobody gets them now (F_SETOWN)"
            ));
        }
        let Some(id) = id.filter(|_| setter == Some(moment)) else { continue };
        batch.reserve(8)?;
        let words: Vec<u8> = [owner.kind, id].iter().flat_map(|word| word.to_le_bytes()).collect();
        let address = batch.data(&words);
        // One that has ended since gets nothing.
        batch.row(Row::new(libc::SYS_fcntl, &[number, F_SETOWN_EX, address]), Need::May);
        let signal = u64::from(owner.signal.cast_unsigned());
        batch.row(Row::new(libc::SYS_fcntl, &[number, F_SETSIG, signal]), Need::May);
    }
    batch.finish().map(|_| notes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use holdfast_image::credentials::Credentials;
    use holdfast_image::record::{Description, Descriptor, Object};

    /// Root's process and one that is another user have it.
    #[test]
    fn who_had_set_it_sets_it_or_none_does() {
        let mut parent = record(Vec::new());
        parent.files.descriptors = vec![Descriptor { fd: 3, description: 0, cloexec: false }];
        let mut child = parent.clone();
        child.rights = Some(Credentials { users: [2102; 3], groups: [2102; 3], ..Credentials::default() });
        let object = Object::EventFd { count: 0, semaphore: false };
        parent.files.descriptions =
            vec![Description { flags: 2, object, locks: Vec::new(), owner: None, streams: 0, within: None }];
        parent.others = vec![child];
        let job = Job::new(&parent);
        let by = |set_by: Option<[u32; 2]>, own: u32| {
            setter(&job, 0, &Owner { kind: 1, id: 1, signal: 0, set_by }, own)
        };
        assert_eq!(by(Some([0, 0]), 0), Some(Setter::Restart(0)));
        assert_eq!(by(Some([2102, 2102]), 0), Some(Setter::Process(1)));
        assert_eq!(by(Some([0, 2102]), 0), None);
        assert_eq!(by(None, 0), Some(Setter::Process(1)));
        assert_eq!(by(Some([1000, 1000]), 1000), Some(Setter::Restart(0)));
    }
}
