//! A value that threads share, and time: the real one, or a virtual one that moves on when all of them wait.
//!
//! Virtual time makes real threads as fast as they can be and their order that of a simulator, on a machine of any
//! speed: what a thread does takes no time, what it waits for does.
//! Invariant: a thread that waits looks again after every change and every moment for which any of them has asked.
//! Fails by: a panic of all threads, when one of them has panicked, or when all wait and none for a time.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// See the head of the file.
pub struct Timed<T> {
    inner: Mutex<State<T>>,
    changed: Condvar,
    /// When real time began; none: it is virtual.
    start: Option<Instant>,
}

/// The value, under its lock.
pub struct State<T> {
    value: T,
    now: u64,
    /// Threads that have not left, and those of them that do not wait.
    live: usize,
    running: usize,
    round: u64,
    /// For what times they wait.
    wakes: Vec<u64>,
    failed: bool,
}

impl<T> Deref for State<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for State<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// A thread that takes part, until it is dropped.
pub struct Member<'a, T>(&'a Timed<T>);

impl<T> Timed<T> {
    /// For so many threads, each of which calls [`Timed::enter`].
    pub fn new(value: T, threads: usize, is_real: bool) -> Timed<T> {
        let state = State {
            value,
            now: 0,
            live: threads,
            running: threads,
            round: 0,
            wakes: Vec::new(),
            failed: false,
        };
        Timed { inner: Mutex::new(state), changed: Condvar::new(), start: is_real.then(Instant::now) }
    }

    pub fn enter(&self) -> Member<'_, T> {
        Member(self)
    }

    pub fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.inner.lock()
    }

    /// Nanoseconds from the beginning.
    pub fn now(&self, state: &State<T>) -> u64 {
        self.start.map_or(state.now, |start| start.elapsed().as_nanos() as u64)
    }

    /// All that wait look again.
    pub fn change(&self, state: &mut State<T>) {
        state.round += 1;
        state.running = state.live;
        state.wakes.clear();
        self.changed.notify_all();
    }

    /// Waits for a change, or until a time.
    pub fn wait(&self, state: &mut MutexGuard<'_, State<T>>, until: Option<u64>) {
        match (self.start, until) {
            (Some(_), None) => self.changed.wait(state),
            (Some(start), Some(until)) => {
                self.changed.wait_until(state, start + Duration::from_nanos(until));
            }
            (None, until) => {
                let round = state.round;
                state.running -= 1;
                state.wakes.extend(until);
                self.move_on(state);
                while state.round == round && !state.failed {
                    self.changed.wait(state);
                }
            }
        }
        assert!(!state.failed, "another thread has failed");
    }

    /// Waits until a time, whatever changes.
    pub fn sleep_until(&self, state: &mut MutexGuard<'_, State<T>>, until: u64) {
        while self.now(state) < until {
            self.wait(state, Some(until));
        }
    }

    /// If all wait, it is as late as the first of them wants it to be.
    fn move_on(&self, state: &mut State<T>) {
        if self.start.is_some() || state.running > 0 || state.live == 0 {
            return;
        }
        match state.wakes.iter().min().copied() {
            Some(first) => {
                state.now = state.now.max(first);
                self.change(state);
            }
            None => {
                state.failed = true;
                self.changed.notify_all();
            }
        }
    }
}

impl<T> Drop for Member<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.live -= 1;
        state.running -= 1;
        if std::thread::panicking() {
            state.failed = true;
            self.0.changed.notify_all();
        } else {
            self.0.move_on(&mut state);
        }
    }
}
