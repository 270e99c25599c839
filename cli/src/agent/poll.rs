//! Engine `slots`: while a flush goes on, what the program waits for goes out first.
//!
//! Runs in: a thread of the checkpoint, as long as the flush does. Fails by: ending, when the program has ended; the
//! flush then fails by itself.

use super::watch::Watch;
use holdfast_pager::FlushQueue;
use holdfast_process::{Class, Guard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Time between two looks. A thread that waits for a page looks as often.
const GAP: Duration = Duration::from_micros(100);

/// Feeds queue and watch until `over`. `copies_first`: pages that hold a slot go out before the order of the flush.
pub fn run(guard: &Guard, queue: &FlushQueue, watch: &Watch, copies_first: bool, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let events = match guard.poll() {
            Ok(events) => events,
            Err(error) => return tracing::debug!(%error, "looking at the guarded program"),
        };
        for page in events.waiting {
            queue.promote(page);
        }
        for seen in events.seen {
            watch.fault(&seen);
            if copies_first && seen.class == Class::Cow {
                queue.slot(seen.page);
            }
        }
        thread::sleep(GAP);
    }
}
