//! Events.

use crate::capture;
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context::{self, CONTEXTS, EVENTS};
use crate::event::Event;
use crate::ledger;
use crate::pointer::Out;
use crate::submit;

/// Default, blocking, without timing; interprocess ones are not made.
pub fn create(event: Out<usize>, flags: u32) -> Answer {
    let context = context::current()?;
    event.require()?;
    if flags & 4 != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if flags > 3 {
        return Err(Code::INVALID_VALUE);
    }
    event.put(EVENTS.add(&Event::new(flags, context.handle())))
}

pub fn record(event: usize, stream: usize) -> Answer {
    record_with(event, stream, 0)
}

/// "hEvent and hStream must be from the same context".
pub fn record_with(event: usize, stream: usize, flags: u32) -> Answer {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let event = EVENTS.get(event)?;
    let target = submit::target(stream)?;
    if event.context != target.context.handle() {
        return Err(Code::INVALID_HANDLE);
    }
    if capture::record_event(&target.stream, &event, flags)? {
        return Ok(());
    }
    capture::forget_event(&event);
    let number = event.prepare();
    let point = target.put(Command::Record(std::sync::Arc::clone(&event), number))?;
    if let Some(point) = point {
        event.set(number, point);
    }
    Ok(())
}

fn fault(event: &Event) -> Answer {
    CONTEXTS.get(event.context).map_or(Ok(()), |context| context.check())
}

pub fn query(event: usize) -> Answer {
    let event = EVENTS.get(event)?;
    capture::forbid_event(&event)?;
    fault(&event)?;
    match event.point() {
        Some(point) if !point.is_done() => Err(Code::NOT_READY),
        _ => Ok(()),
    }
}

pub fn synchronize(event: usize) -> Answer {
    let event = EVENTS.get(event)?;
    capture::forbid_event(&event)?;
    if let Some(point) = event.point() {
        point.wait();
        ledger::waited(event.due());
    }
    fault(&event)
}

pub fn destroy(event: usize) -> Answer {
    EVENTS.remove(event).map(drop)
}

pub fn elapsed(milliseconds: Out<f32>, start: usize, end: usize) -> Answer {
    milliseconds.require()?;
    let (start, end) = (EVENTS.get(start)?, EVENTS.get(end)?);
    milliseconds.put(Event::elapsed(&start, &end)?)
}
