//! What the program waits for goes before what is read ahead for it.
//!
//! Used by the page server where an image lies on another tier: both share one link. Invariant: reading ahead goes on
//! after [`LONGEST`] however much is asked for, so that it comes to an end. Nothing here fails.

use parking_lot::{Condvar, Mutex};
use std::time::{Duration, Instant};

/// Who has just got a page will ask for the next one.
const QUIET: Duration = Duration::from_millis(20);
/// So long one piece waits at most.
const LONGEST: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    waiting: usize,
    last: Option<Instant>,
}

/// How many requests of the program are being answered.
#[derive(Default)]
pub struct Demand {
    state: Mutex<State>,
    answered: Condvar,
}

/// A request; dropped when it is answered.
pub struct Request<'a>(&'a Demand);

impl Demand {
    /// A request comes.
    pub fn request(&self) -> Request<'_> {
        self.state.lock().waiting += 1;
        Request(self)
    }

    /// Returns when nothing is asked for, and has not been just now.
    pub fn give_way(&self) {
        let until = Instant::now() + LONGEST;
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let quiet_at = match state.waiting {
                0 => state.last.map_or(now, |last| last + QUIET),
                _ => until,
            };
            if now >= until || quiet_at <= now {
                return;
            }
            let _ = self.answered.wait_until(&mut state, quiet_at.min(until));
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        state.last = Some(Instant::now());
        self.0.answered.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_reads_ahead_waits_for_who_has_asked() {
        let demand = Demand::default();
        demand.give_way();
        let begun = Instant::now();
        let request = demand.request();
        thread::scope(|scope| {
            let ahead = scope.spawn(|| {
                demand.give_way();
                Instant::now()
            });
            thread::sleep(QUIET);
            let answered = Instant::now();
            drop(request);
            let went_on = ahead.join().expect("no panic");
            // Or so long that it may go on in any case, on a machine that is busy.
            assert!(went_on >= answered + QUIET || went_on >= begun + LONGEST);
        });
        // Nothing starves.
        let _request = demand.request();
        demand.give_way();
    }
}
