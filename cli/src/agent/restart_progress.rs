//! Tells the front how much of the memory of a restart has been copied, for its progress bar.
//!
//! Used by the agent while it rebuilds a program, from any thread. Invariant: a restart that is over soon, and a front
//! that does not listen, cost nothing: what is told is never waited for.

use crate::front_link::{Link, Tell};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// So often.
const INTERVAL: Duration = Duration::from_millis(200);

/// See the head of the file.
pub struct RestartProgress<'a> {
    link: Option<&'a Link>,
    state: Mutex<State>,
}

struct State {
    done: u64,
    total: u64,
    told: Instant,
}

impl RestartProgress<'_> {
    /// Tells by this link, if there is one.
    pub fn new(link: Option<&Link>) -> RestartProgress<'_> {
        RestartProgress { link, state: Mutex::new(State { done: 0, total: 0, told: Instant::now() }) }
    }

    /// So many bytes more are to be copied: of one process after the other.
    pub fn expect(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.total = state.total.saturating_add(bytes);
    }

    /// So many were.
    pub fn passed(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.done = state.done.saturating_add(bytes);
        if let Some(link) = self.link.filter(|_| state.told.elapsed() >= INTERVAL) {
            state.told = Instant::now();
            link.tell(&Tell::Progress { done: state.done, total: state.total });
        }
    }
}
