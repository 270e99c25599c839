//! Pid namespaces that programs of the job have made (pid_namespaces(7)), one level below that of the job.
//!
//! A process in one has two ids: one where the job lives, by which records know it everywhere, and its own, which it
//! and those beside it use. Part of the process record; written by `process::capture`, read by [`crate::fork_plan`] and
//! `process::rebuild`. Invariants ([`check`]): a namespace is named by the id, in the job, of its process 1, which is a
//! process of the record; no id is there twice in one.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The ids of a process where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InnerIds {
    /// Process 1 of its namespace, by its id in the job.
    pub init: i32,
    /// Its own.
    pub pid: i32,
    /// Its group; 0: that is of a process outside.
    pub pgid: i32,
    /// Its session, likewise.
    pub sid: i32,
}

/// In which namespace a new process is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside {
    /// Process 1 of it, by its id in the job.
    pub init: i32,
    /// The id there; 0: any that no process of the job has.
    pub pid: i32,
}

/// All ids of a process.
pub(crate) struct Ids {
    pub pid: i32,
    pub ppid: i32,
    pub inner: Option<InnerIds>,
    pub children_in: Option<i32>,
    /// Of its threads, the first one first: their own, and in the job.
    pub threads: Vec<(i32, Option<i32>)>,
    /// Own ones of children that have ended.
    pub zombies: Vec<i32>,
}

impl Ids {
    fn is_init(&self) -> bool {
        self.inner.is_some_and(|inner| inner.init == self.pid)
    }

    /// Of one that is where the job is.
    fn check_outside(&self) -> Result<(), &'static str> {
        let is_leader = self.threads.first() == Some(&(self.pid, None));
        if is_leader && self.threads.iter().all(|(_, job)| job.is_none()) { Ok(()) } else { Err(NO_LEADER) }
    }

    /// Of one that is not.
    fn check_inside(&self, inner: InnerIds, is_nested: bool) -> Result<(), &'static str> {
        if is_nested && self.is_init() {
            return Err("its pid namespace is within another one");
        }
        let is_leader = self.threads.first() == Some(&(inner.pid, Some(self.pid)));
        if !is_leader || self.threads.iter().any(|(_, job)| job.is_none_or(|id| id <= 0)) {
            return Err(NO_LEADER);
        }
        if inner.pid <= 0 || (inner.pid == 1) != self.is_init() {
            return Err("it cannot have its id in its pid namespace");
        }
        Ok(())
    }
}

const NO_LEADER: &str = "the first thread is not the leader";

/// Whether the ids of all processes of a job can be computed with: image files are not trusted. The first is the first.
///
/// # Errors
/// Says what is wrong.
pub(crate) fn check(all: &[Ids]) -> Result<(), String> {
    let inits: BTreeSet<i32> = all.iter().filter(|one| one.is_init()).map(|init| init.pid).collect();
    let inside: BTreeMap<i32, bool> = all.iter().map(|one| (one.pid, one.inner.is_some())).collect();
    let mut ids = BTreeSet::new();
    for (place, one) in all.iter().enumerate() {
        let wrong = |what: &str| format!("process {}: {what}", one.pid);
        if one.children_in.is_some_and(|init| !inits.contains(&init) || one.inner.is_some()) {
            return Err(wrong("there is no such pid namespace for its children"));
        }
        let Some(inner) = one.inner else {
            one.check_outside().map_err(wrong)?;
            continue;
        };
        if place == 0 || !inits.contains(&inner.init) {
            return Err(wrong("its pid namespace has no process 1 in the job"));
        }
        one.check_inside(inner, inside.get(&one.ppid) == Some(&true)).map_err(wrong)?;
        for id in one.threads.iter().map(|(own, _)| own).chain(&one.zombies) {
            if *id <= 0 || !ids.insert((inner.init, *id)) {
                return Err(wrong(&format!("id {id} is there twice in its pid namespace")));
            }
        }
    }
    Ok(())
}
