//! Events: a place in a stream that can be waited for. Used by `api::event` and by commands.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::ledger;
use crate::stream::Point;

/// CU_EVENT_DISABLE_TIMING
pub const DISABLE_TIMING: u32 = 2;

/// An event.
pub struct Event {
    /// As it was made.
    pub flags: u32,
    /// Handle of its context.
    pub context: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    point: Option<Point>,
    recorded: u64,
    /// In the time of the ledger.
    due: u64,
    happened: Option<Instant>,
}

impl Event {
    /// One that was never recorded.
    pub fn new(flags: u32, context: usize) -> Arc<Event> {
        Arc::new(Event { flags, context, state: Mutex::default() })
    }

    /// It will be recorded: gives the number that the command has to bring.
    pub fn prepare(&self) -> u64 {
        let mut state = self.state.lock();
        state.recorded += 1;
        state.due = ledger::due();
        state.recorded
    }

    /// Where it will be recorded. A later record replaces an earlier one.
    pub fn set(&self, number: u64, point: Point) {
        let mut state = self.state.lock();
        if state.recorded == number {
            state.point = Some(point);
        }
    }

    /// The stream has come to it.
    pub fn happened(&self, number: u64) {
        let mut state = self.state.lock();
        if state.recorded == number {
            state.happened = Some(Instant::now());
        }
    }

    /// When it happens, in the time of the ledger.
    pub fn due(&self) -> u64 {
        self.state.lock().due
    }

    /// What to wait for; nothing before it was recorded ("this call has no effect").
    pub fn point(&self) -> Option<Point> {
        self.state.lock().point.clone()
    }

    /// Milliseconds between two events.
    pub fn elapsed(start: &Event, end: &Event) -> Answer<f32> {
        if (start.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(Code::INVALID_HANDLE);
        }
        let time = |event: &Event| {
            let state = event.state.lock();
            match &state.point {
                // "If either event has not been recorded ... CUDA_ERROR_INVALID_HANDLE" (cuEventElapsedTime)
                None => Err(Code::INVALID_HANDLE),
                Some(point) if !point.is_done() => Err(Code::NOT_READY),
                Some(_) => state.happened.ok_or(Code::NOT_READY),
            }
        };
        let (from, to) = (time(start)?, time(end)?);
        let later = to.saturating_duration_since(from).as_secs_f32();
        Ok((later - from.saturating_duration_since(to).as_secs_f32()) * 1000.0)
    }
}
