//! Streams, host functions, values in memory.

use std::ffi::c_void;

use crate::callback::{HostFunction, StreamCallback};
use crate::capture;
use crate::code::{Answer, Code};
use crate::command::{Command, Comparison};
use crate::context::{self, CONTEXTS, EVENTS, STREAMS};
use crate::handles::Handles;
use crate::layout::MemoryOperation;
use crate::ledger;
use crate::memory::space::{self, Access};
use crate::pointer::{In, Out};
use crate::stream::Kind;
use crate::submit;

pub fn create(stream: Out<usize>, flags: u32) -> Answer {
    create_with_priority(stream, flags, 0)
}

/// "Priorities outside of this range are clamped": 0 to -5.
pub fn create_with_priority(stream: Out<usize>, flags: u32, priority: i32) -> Answer {
    let context = context::current()?;
    stream.require()?;
    let kind = match flags {
        0 => Kind::Blocking,
        1 => Kind::NonBlocking,
        _ => return Err(Code::INVALID_VALUE),
    };
    stream.put(Handles::of(&context.make_stream(kind, priority.clamp(-5, 0))?))
}

pub fn destroy(handle: usize) -> Answer {
    let stream = STREAMS.remove(handle)?;
    capture::invalidate(&stream);
    if let Ok(context) = CONTEXTS.get(stream.context) {
        context.destroy_stream(&stream);
    }
    Ok(())
}

pub fn query(handle: usize) -> Answer {
    let target = submit::target(handle)?;
    capture::forbid(&target.stream)?;
    if target.stream.is_idle() { target.context.check() } else { Err(Code::NOT_READY) }
}

pub fn synchronize(handle: usize) -> Answer {
    let done = submit::target(handle)?.wait();
    ledger::waited(ledger::due());
    done
}

/// Waiting for an event that was never recorded does nothing.
pub fn wait_event(handle: usize, event: usize, flags: u32) -> Answer {
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    let target = submit::target(handle)?;
    let event = EVENTS.get(event)?;
    if capture::wait_event(&target.stream, &event)? {
        return Ok(());
    }
    match event.point() {
        Some(point) => target.context.submit(&target.stream, vec![point], Command::Nothing).map(drop),
        None => Ok(()),
    }
}

pub fn priority(handle: usize, priority: Out<i32>) -> Answer {
    priority.put(context::stream(handle)?.1.priority)
}

pub fn flags(handle: usize, flags: Out<u32>) -> Answer {
    flags.put(context::stream(handle)?.1.flags())
}

pub fn context(handle: usize, context: Out<usize>) -> Answer {
    context.put(context::stream(handle)?.0.handle())
}

pub fn context_v2(handle: usize, context: Out<usize>, green: Out<usize>) -> Answer {
    context.put(context::stream(handle)?.0.handle())?;
    green.offer(0);
    Ok(())
}

pub fn device(handle: usize, device: Out<i32>) -> Answer {
    context::stream(handle)?;
    device.put(0)
}

pub fn id(handle: usize, id: Out<u64>) -> Answer {
    id.put(context::stream(handle)?.1.id)
}

pub fn copy_attributes(to: usize, from: usize) -> Answer {
    context::stream(to)?;
    context::stream(from).map(drop)
}

type Host = Option<unsafe extern "C" fn(*mut c_void)>;

pub fn host_function(handle: usize, function: Host, data: usize) -> Answer {
    let function = HostFunction::new(function, data)?;
    submit::target(handle)?.put(Command::Host(function)).map(drop)
}

type Callback = Option<unsafe extern "C" fn(usize, u32, *mut c_void)>;

/// It cannot be captured ("This function is ... not supported in stream capture").
pub fn callback(handle: usize, function: Callback, data: usize, flags: u32) -> Answer {
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let callback = StreamCallback::new(function, handle, data)?;
    let target = submit::target(handle)?;
    capture::forbid(&target.stream)?;
    target.put(Command::Callback(callback)).map(drop)
}

fn checked(at: u64, bytes: u32) -> Answer {
    // "addr must be 4-byte (8-byte) aligned"
    if !at.is_multiple_of(bytes.into()) {
        return Err(Code::INVALID_VALUE);
    }
    space::mapping(at).ok_or(Code::INVALID_VALUE)?;
    space::view().pieces(at, bytes.into(), Access::Write).ok_or(Code::INVALID_VALUE).map(drop)
}

fn write(handle: usize, at: u64, bytes: u32, value: u64) -> Answer {
    checked(at, bytes)?;
    submit::target(handle)?.put(Command::WriteValue(at, bytes, value)).map(drop)
}

fn wait(handle: usize, comparison: Comparison) -> Answer {
    checked(comparison.at, comparison.bytes)?;
    submit::target(handle)?.put(Command::WaitValue(comparison)).map(drop)
}

/// Values to wait for (1, 4) and to write (2, 5), one after the other; barriers (3, 6) are between all work here.
pub fn batch(handle: usize, count: u32, operations: In<MemoryOperation>, flags: u32) -> Answer {
    // "count must be less than 256"
    if count >= 256 || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let operations = operations.list(count as usize)?;
    operations.iter().try_for_each(|it| match it.operation {
        1 => wait_32(handle, it.at, it.value as u32, it.flags),
        2 => write_32(handle, it.at, it.value as u32, it.flags),
        4 => wait_64(handle, it.at, it.value, it.flags),
        5 => write_64(handle, it.at, it.value, it.flags),
        3 | 6 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    })
}

pub fn write_32(handle: usize, at: u64, value: u32, _flags: u32) -> Answer {
    write(handle, at, 4, value.into())
}

pub fn write_64(handle: usize, at: u64, value: u64, _flags: u32) -> Answer {
    write(handle, at, 8, value)
}

pub fn wait_32(handle: usize, at: u64, value: u32, flags: u32) -> Answer {
    wait(handle, Comparison { at, bytes: 4, value: value.into(), how: flags })
}

pub fn wait_64(handle: usize, at: u64, value: u64, flags: u32) -> Answer {
    wait(handle, Comparison { at, bytes: 8, value, how: flags })
}
