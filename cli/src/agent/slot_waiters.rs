//! Engine `slots`: while a flush goes on, what the program waits for goes out first.
//!
//! Runs in: a thread of the checkpoint, as long as the flush does. Fails by: ending, when the program has ended; the
//! flush then fails by itself.

use super::write_monitor::WriteMonitor;
use holdfast_image::PageCount;
use holdfast_pager::FlushQueue;
use holdfast_process::{Class, Guard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Time between two looks, and while a thread waits for a page: it looks as often.
const GAP: Duration = Duration::from_micros(100);
const SHORT_GAP: Duration = Duration::from_micros(20);
/// So many looks later the gap is the long one again: who has waited will mostly wait again at once.
const SHORT_LOOKS: u32 = 50;

/// Feeds queue and monitor until `over`.
///
/// `copies_first`: once more copies than that are held, or a thread waits, copies go out before the order of the
/// flush, for each makes room for another one. Not earlier: what is copied need not be stored soon, and the order may
/// have left it for last so that the flush gets ahead of the program. None: never.
pub fn run(
    guard: &Guard,
    queue: &FlushQueue,
    monitor: &WriteMonitor,
    copies_first: Option<PageCount>,
    over: &AtomicBool,
) {
    holdfast_sys::clock::no_timer_slack();
    let mut copied = Vec::new();
    let mut short_looks = 0_u32;
    while !over.load(Ordering::Relaxed) {
        let events = match guard.poll() {
            Ok(events) => events,
            Err(error) => return tracing::debug!(%error, "looking at the guarded program"),
        };
        let short = copies_first.is_some_and(|most| !events.waiting.is_empty() || events.used > most);
        short_looks = if events.waiting.is_empty() { short_looks.saturating_sub(1) } else { SHORT_LOOKS };
        queue.wait_for(&events.waiting);
        for seen in events.seen {
            monitor.fault(&seen);
            if seen.class == Class::Cow && copies_first.is_some() {
                copied.push(seen.page);
            }
        }
        if short {
            for page in copied.drain(..) {
                queue.slot(page);
            }
        }
        thread::sleep(if short_looks > 0 { SHORT_GAP } else { GAP });
    }
}
