//! A value that threads share, and time: the real one, or a virtual one that moves on when all of them wait.
//!
//! Virtual time makes real threads as fast as they can be and their order that of a simulator, on a machine of any
//! speed: what a thread does takes no time, what it waits for does. Each thread has a number, from 0 on.
//! Invariant: a thread that waits for a time goes on no sooner, one that waits for nothing else when it is woken.
//! Fails by: a panic of all threads, when one of them has panicked, or when all wait and none for a time.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// See the head of the file.
pub struct Timed<T> {
    inner: Mutex<State<T>>,
    /// By thread.
    goes_on: Vec<Condvar>,
    /// When real time began; none: it is virtual.
    start: Option<Instant>,
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Runs,
    WaitsToBeWoken,
    WaitsUntil(u64),
    HasLeft,
}

/// The value, under its lock.
pub struct State<T> {
    value: T,
    now: u64,
    /// By thread.
    doing: Vec<Doing>,
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
pub struct Member<'a, T> {
    timed: &'a Timed<T>,
    thread: usize,
}

impl<T> Timed<T> {
    /// For so many threads, each of which calls [`Timed::enter`].
    pub fn new(value: T, threads: usize, is_real: bool) -> Timed<T> {
        let state = State { value, now: 0, doing: vec![Doing::Runs; threads], failed: false };
        Timed {
            inner: Mutex::new(state),
            goes_on: (0..threads).map(|_| Condvar::new()).collect(),
            start: is_real.then(Instant::now),
        }
    }

    pub fn enter(&self, thread: usize) -> Member<'_, T> {
        Member { timed: self, thread }
    }

    pub fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.inner.lock()
    }

    /// Nanoseconds from the beginning.
    pub fn now(&self, state: &State<T>) -> u64 {
        self.start.map_or(state.now, |start| start.elapsed().as_nanos() as u64)
    }

    /// A thread that waits to be woken goes on.
    pub fn wake(&self, state: &mut State<T>, thread: usize) {
        if state.doing[thread] == Doing::WaitsToBeWoken {
            self.go_on(state, thread);
        }
    }

    fn go_on(&self, state: &mut State<T>, thread: usize) {
        state.doing[thread] = Doing::Runs;
        self.goes_on[thread].notify_one();
    }

    /// If all wait, it is as late as the first of them wants it to be.
    fn move_on(&self, state: &mut State<T>) {
        if self.start.is_some() || state.doing.contains(&Doing::Runs) {
            return;
        }
        let until = |doing: &Doing| if let Doing::WaitsUntil(until) = doing { Some(*until) } else { None };
        match state.doing.iter().filter_map(until).min() {
            Some(first) => {
                state.now = state.now.max(first);
                for thread in 0..state.doing.len() {
                    if until(&state.doing[thread]).is_some_and(|until| until <= state.now) {
                        self.go_on(state, thread);
                    }
                }
            }
            None if state.doing.iter().all(|doing| *doing == Doing::HasLeft) => {}
            None => self.fail(state),
        }
    }

    fn fail(&self, state: &mut State<T>) {
        state.failed = true;
        for thread in &self.goes_on {
            thread.notify_one();
        }
    }
}

impl<T> Member<'_, T> {
    /// Waits until another thread wakes this one.
    pub fn wait(&self, state: &mut MutexGuard<'_, State<T>>) {
        self.stop(state, Doing::WaitsToBeWoken);
    }

    /// Waits until a time.
    pub fn sleep_until(&self, until: u64) {
        let mut state = self.timed.lock();
        if self.timed.now(&state) < until {
            self.stop(&mut state, Doing::WaitsUntil(until));
        }
    }

    fn stop(&self, state: &mut MutexGuard<'_, State<T>>, doing: Doing) {
        let Member { timed, thread } = *self;
        state.doing[thread] = doing;
        timed.move_on(state);
        while state.doing[thread] != Doing::Runs && !state.failed {
            match (timed.start, doing) {
                (Some(start), Doing::WaitsUntil(until)) => {
                    let end = start + Duration::from_nanos(until);
                    if timed.goes_on[thread].wait_until(state, end).timed_out() {
                        state.doing[thread] = Doing::Runs;
                    }
                }
                _ => timed.goes_on[thread].wait(state),
            }
        }
        assert!(!state.failed, "another thread has failed, or nothing will ever happen again");
    }
}

impl<T> Drop for Member<'_, T> {
    fn drop(&mut self) {
        let mut state = self.timed.lock();
        state.doing[self.thread] = Doing::HasLeft;
        if std::thread::panicking() {
            self.timed.fail(&mut state);
        } else {
            self.timed.move_on(&mut state);
        }
    }
}
