//! Where the ids of new processes and threads go on after a restart: behind the last one of the program before.
//!
//! Used by `spawn` and `namespace`, before any process is made. A program remembers processes that have ended by
//! their ids, and would take a new one with the same id for the old one: a shell that waits for a job gets the
//! status of something else. Best effort: without the right to it ids go on where they are here.

use super::ids::wanted_ids;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::ids;

/// In a pid namespace that has no other processes.
pub fn in_own_namespace(record: &ProcessRecord) {
    set(last(record));
}

/// Among others: ids that are ahead already, as on the host where it was just killed, stay there.
pub fn among_others(record: &ProcessRecord) {
    let last = last(record);
    if ids::last().is_some_and(|here| here < last) {
        set(last);
    }
}

fn set(id: i32) {
    if let Err(error) = ids::go_on_behind(id) {
        tracing::debug!(id, %error, "ids go on where they are");
    }
}

/// An image that does not say has no more than the ids that are in use.
fn last(record: &ProcessRecord) -> i32 {
    let in_use = || wanted_ids(record).ok()?.last().copied();
    record.last_id.or_else(in_use).unwrap_or(1)
}
