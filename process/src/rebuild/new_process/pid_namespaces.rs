//! Pid namespaces that programs of the job had made, made anew with their process 1, which is a process of the job.
//!
//! Called by [`super::fork_tree`]: a process of one is forked with both of its ids, which the restart may choose as the
//! namespace belongs to its own user namespace. That is other than it was where a program had made it in a user
//! namespace of its own: there /proc cannot be mounted anew after a restart, nor ids be chosen. How it fails: as the
//! kernel says; process 1 takes all others of its namespace with it.

use crate::rebuild::error::RebuildError;
use holdfast_image::fork_plan::Birth;
use holdfast_image::pid_namespaces::Inside;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::{clone, ids, namespaces};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long process 1 of a namespace is waited for, which another process makes.
const LIMIT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);
/// Ids of helpers begin here, as those of ordinary processes do when ids begin anew (kernel/pid.c, RESERVED_PIDS).
const FIRST: i32 = 300;

/// What is known of all of them.
#[derive(Debug, Default)]
pub struct PidNamespaces {
    /// Ids that are used in one.
    taken: BTreeSet<i32>,
    /// By process 1: the id that was given last there.
    last: BTreeMap<i32, i32>,
}

impl PidNamespaces {
    /// Of a job.
    pub fn of(record: &ProcessRecord) -> PidNamespaces {
        let inside = || record.processes().filter(|process| process.inner.is_some());
        let ids = |process: &ProcessRecord| -> Vec<i32> {
            let threads = process.threads.iter().map(|thread| thread.tid);
            let led = process.inner.map(|inner| [inner.pgid, inner.sid]).into_iter().flatten();
            threads.chain(led).chain(process.zombies.iter().filter_map(|zombie| zombie.inner_pid)).collect()
        };
        let taken: BTreeSet<i32> = inside().flat_map(ids).collect();
        let last = inside().filter(|process| process.is_init()).map(|init| {
            let all = record.processes().filter(|one| one.pid_namespace() == Some(init.pid));
            (init.pid, init.last_id.or_else(|| all.flat_map(ids).max()).unwrap_or(1))
        });
        let last = last.collect();
        PidNamespaces { taken, last }
    }

    /// Forks a process of one; 0 in it. `taken`: ids that are used where the job lives.
    ///
    /// # Errors
    /// EEXIST: an id is taken; EPERM: the ids may not be chosen.
    pub fn fork(&self, own: &Birth, (pid, inside): (i32, Inside), taken: &BTreeSet<i32>) -> io::Result<i32> {
        let is_init = inside.init == pid;
        let is_beside = own.inside.is_some_and(|own| own.init == inside.init);
        if !is_init && !is_beside {
            enter(inside.init)?;
        }
        let flags = if is_init { u64::from(libc::CLONE_NEWPID.cast_unsigned()) } else { 0 };
        let made = self.fork_as(flags, (pid, inside.pid), taken);
        // In the child there is nothing to go back to.
        if !is_init && !is_beside && !matches!(made, Ok(0)) {
            namespaces::join(File::open("/proc/self/ns/pid")?.as_fd())?;
        }
        if let (true, Ok(0), Some(last)) = (is_init, &made, self.last.get(&inside.init)) {
            // As in `front::last_pid`: best effort.
            let _ = ids::go_on_behind(*last);
        }
        made
    }

    fn fork_as(&self, flags: u64, (outer, inner): (i32, i32), taken: &BTreeSet<i32>) -> io::Result<i32> {
        if outer != 0 {
            return clone::fork_as(flags, &[inner, outer]);
        }
        // Of a helper any that no process of the job has; others on this host may have one.
        let free = (FIRST..i32::MAX).filter(|id| !taken.contains(id) && !self.taken.contains(id));
        for id in free {
            match clone::fork_as(flags, &[id, id]) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                made => return made,
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }
}

/// Has the children of the caller be in a namespace, by its process 1, which may still be made.
fn enter(init: i32) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match File::open(format!("/proc/{init}/ns/pid")) {
            Ok(found) => return namespaces::join(found.as_fd()),
            Err(_) if begun.elapsed() < LIMIT => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
}

/// The same for good.
///
/// # Errors
/// The restart lacks the right to it.
pub fn enter_for_children(init: i32) -> Result<(), RebuildError> {
    enter(init).map_err(RebuildError::io("going into the pid namespace of the children"))
}
