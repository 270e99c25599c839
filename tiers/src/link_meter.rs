//! How fast the first tier takes what is written to it.
//!
//! Held by the job's lock, so that an image begins with what the one before it has taught; what is long ago counts for
//! less. Fed by the pipeline's workers, which write at the same time: counted are the bytes, and the time in which at
//! least one of them waits for the tier. So it is the speed of the tier, whatever else the workers do.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A middling disk: what is believed before anything was measured, bytes per second.
const UNKNOWN: f64 = 500e6;
/// Less says nothing: buffers take the first bytes at once.
const LEAST: u64 = 16 << 20;

/// After so many bytes what was measured counts half.
const HALVED: u64 = 1 << 30;

/// See the head of the file.
#[derive(Default, Debug)]
pub(crate) struct LinkMeter(Mutex<State>);

#[derive(Debug)]
struct State {
    /// What is believed before anything was measured.
    believed: f64,
    writers: u32,
    since: Option<Instant>,
    busy: Duration,
    bytes: u64,
}

impl Default for State {
    fn default() -> State {
        State { believed: UNKNOWN, writers: 0, since: None, busy: Duration::ZERO, bytes: 0 }
    }
}

impl LinkMeter {
    /// One that believes in a speed, bytes per second, until it has measured it.
    pub(crate) fn believing(speed: f64) -> LinkMeter {
        LinkMeter(Mutex::new(State { believed: speed, ..State::default() }))
    }
    /// Writes `bytes` by `write`.
    pub(crate) fn measure<T>(&self, bytes: u64, write: impl FnOnce() -> T) -> T {
        self.0.lock().begin(Instant::now());
        let result = write();
        self.0.lock().end(Instant::now(), bytes);
        result
    }
    /// Bytes per second; no more than `bound`, if there is one.
    pub(crate) fn speed(&self, bound: Option<u64>) -> f64 {
        let speed = self.0.lock().speed();
        bound.map_or(speed, |bound| speed.min(bound as f64))
    }
}

impl State {
    fn begin(&mut self, now: Instant) {
        self.writers += 1;
        self.since.get_or_insert(now);
    }
    fn end(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        self.writers = self.writers.saturating_sub(1);
        // The time up to now goes with the bytes, also where another one is still writing.
        if let Some(since) = self.since.take() {
            self.busy += now.saturating_duration_since(since);
        }
        self.since = (self.writers > 0).then_some(now);
        if self.bytes > HALVED {
            (self.bytes, self.busy) = (self.bytes / 2, self.busy / 2);
        }
    }
    fn speed(&self) -> f64 {
        if self.bytes < LEAST || self.busy.is_zero() {
            return self.believed;
        }
        self.bytes as f64 / self.busy.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_at_the_same_time_share_the_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut state = State::default();
        assert!(state.speed() == UNKNOWN);
        // Two at once for 100 ms, none for a second, one for 60.
        state.begin(at(0));
        state.begin(at(40));
        state.end(at(50), 8 << 20);
        state.end(at(100), 8 << 20);
        state.begin(at(1100));
        state.end(at(1160), 16 << 20);
        let expected = f64::from(32 << 20) / 0.160;
        assert!((state.speed() / expected - 1.0).abs() < 0.001, "{}", state.speed());
        let meter = LinkMeter(Mutex::new(state));
        assert!(meter.speed(Some(1000)) == 1000.0);
        assert!(meter.speed(Some(u64::MAX)) == meter.speed(None));
        assert_eq!(meter.measure(1, || 7), 7);
    }

    #[test]
    fn it_knows_the_speed_though_there_is_always_a_writer() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut state = State::default();
        state.begin(at(0));
        for n in 0..100 {
            state.begin(at(n * 100));
            state.end(at(n * 100 + 100), 1 << 20);
        }
        let expected = f64::from(100 << 20) / 10.0;
        assert!((state.speed() / expected - 1.0).abs() < 0.001, "{}", state.speed());
    }
}
