//! The same ids for processes where they cannot be chosen and no namespaces can be made, as in a container with the
//! default filter: the kernel gives ids one after the other (kernel/pid.c, alloc_pid), so each process is made when it
//! is its turn. Threads get other ids, which libholdfast shows as the old ones.
//!
//! Used by [`super::spawn`], after the ways that choose. What must hold: the ids of the program lie ahead here, which
//! [`begin_ahead`] sees to in such a container. How it fails: refused with a reason.

use super::ids::ids_in_use;
use holdfast_image::fork_plan::{self, Birth, Who};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::{clone, ids, probe};
use std::fs;

/// So many processes are made at most, to come to an id: some seconds.
const MOST: i32 = 50_000;
/// A program gets its first id behind this one: a restart needs ids below the program's for itself.
const AHEAD: i32 = 300;
/// The inode of the pid namespace of the host (include/uapi/linux/nsfs.h, PID_NS_INIT_INO).
const OF_THE_HOST: &str = "pid:[4026531836]";

/// Whether a restart here would have to count. A namespace of the host's has too many processes for that.
fn only_by_counting() -> bool {
    let inside = fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() != OF_THE_HOST);
    inside && !probe::can_choose_pid() && !probe::namespaces()
}

/// Has the next program get ids that a restart in a new container can come to. `holdfast run` calls it. As CRaC does
/// (CRAC_MIN_PID).
pub fn begin_ahead() {
    if ids::last().is_some_and(|last| last < AHEAD) && only_by_counting() {
        let passed = clone::pass_ids(AHEAD);
        tracing::debug!(?passed, "the program's ids begin behind {AHEAD}");
    }
}

/// Why the ids of a program cannot be counted to; `None`: they can.
pub fn why_not(record: &ProcessRecord) -> Option<String> {
    if !only_by_counting() {
        return Some("ids are counted to in a container only".into());
    }
    let plan = match fork_plan::plan(record) {
        Ok(plan) => plan.by_id(),
        Err(why) => return Some(why),
    };
    if plan.all().iter().any(|planned| planned.inside.is_some() || planned.children_in.is_some()) {
        return Some("a pid namespace of the program cannot be made where ids cannot be chosen".into());
    }
    if let Some(why) = out_of_order(&plan) {
        return Some(why);
    }
    if record.inject.shared.0 == 0 && record.processes().any(|process| process.threads.len() > 1) {
        return Some("libholdfast in the program cannot show it the old ids of its threads".into());
    }
    let wanted = plan.all().into_iter().map(|planned| planned.pid).collect();
    if let Some(why) = ids_in_use(&wanted) {
        return Some(why);
    }
    let (first, last) = (wanted.first().copied()?, wanted.last().copied()?);
    let here = ids::last().unwrap_or(0);
    if first <= here || last - here > MOST {
        return Some(format!(
            "ids go on behind {here} here, and the program had {first} to {last}: restart it in a new container"
        ));
    }
    None
}

/// Whether a process would have to be made before one with a smaller id.
fn out_of_order(plan: &Birth) -> Option<String> {
    if matches!(plan.who, Who::Helper) || plan.pid == 0 {
        return Some("a process that is gone led a session or group of it".into());
    }
    let mut before = plan.pid;
    for child in plan.children() {
        if child.pid != 0 && child.pid <= before {
            return Some(format!("process {} was made after process {before}", child.pid));
        }
        if let Some(why) = out_of_order(child) {
            return Some(why);
        }
        before = child.pid;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::fork_plan::Group;

    fn birth(pid: i32, after: Vec<Birth>) -> Birth {
        let who = if pid == 0 { Who::Helper } else { Who::Process(0) };
        Birth {
            who,
            pid,
            inside: None,
            children_in: None,
            session: false,
            group: Group::Inherited,
            joins_early: false,
            subreaper: false,
            before: Vec::new(),
            after,
        }
    }

    #[test]
    fn each_process_comes_after_its_parent_and_the_child_before_it() {
        let tree = birth(10, vec![birth(11, vec![birth(14, Vec::new())]), birth(12, Vec::new())]);
        assert_eq!(out_of_order(&tree), None, "whose turn it is, is known from the ids");
        for wrong in [
            birth(10, vec![birth(9, Vec::new())]),
            birth(10, vec![birth(12, Vec::new()), birth(11, Vec::new())]),
            birth(10, vec![birth(0, Vec::new())]),
            birth(10, vec![birth(11, vec![birth(5, Vec::new())])]),
        ] {
            assert!(out_of_order(&wrong).is_some(), "{wrong:?}");
        }
    }
}
