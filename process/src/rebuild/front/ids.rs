//! The ids of a program, and whether this host can give it them back.

use crate::rebuild::error::RebuildError;
use holdfast_image::fork_plan;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::procfs;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long the id of a program that was just killed is waited for.
const ZOMBIE_LIMIT: Duration = Duration::from_secs(2);

/// How the program gets its process and thread ids back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ids {
    /// The very same ids, on this host: needs CAP_CHECKPOINT_RESTORE, and that they are free.
    Same,
    /// The same ids in a user and pid namespace of its own: any user, where namespaces are allowed.
    Namespace,
    /// The same process ids, on this host, in the order in which the kernel gives them; other ids of threads.
    Counted,
    /// Other ids; libholdfast shows the program the old ones.
    Virtual,
}

/// Whether another process has one of the ids of the program and of those that help to make it. A zombie of the program
/// itself is waited for.
pub fn ids_in_use(wanted: &BTreeSet<i32>) -> Option<String> {
    let begun = Instant::now();
    loop {
        let taken = wanted.iter().find_map(|&tid| {
            let state = procfs::Status::read(tid, tid).ok()?;
            Some((tid, state.get("State").is_some_and(|s| s.starts_with('Z') || s.starts_with('X'))))
        });
        match taken {
            None => return None,
            Some((_, true)) if begun.elapsed() < ZOMBIE_LIMIT => std::thread::sleep(Duration::from_millis(5)),
            Some((tid, zombie)) => {
                let who =
                    if zombie { "a process that ended and was not waited for" } else { "another process" };
                return Some(format!("id {tid} belongs to {who}"));
            }
        }
    }
}

/// All ids that must be free.
pub fn wanted_ids(record: &ProcessRecord) -> Result<BTreeSet<i32>, RebuildError> {
    let plan = fork_plan::plan(record).map_err(RebuildError::Image)?;
    let threads = record
        .processes()
        .flat_map(|process| &process.threads)
        .map(|thread| thread.job_tid.unwrap_or(thread.tid));
    let processes = plan.all().into_iter().map(|planned| planned.pid).filter(|pid| *pid != 0);
    Ok(threads.chain(processes).collect())
}
