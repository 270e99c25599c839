//! Contexts and what is current.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::device::check;
use crate::code::{Answer, Code};
use crate::context::{self, CONTEXTS, Context};
use crate::handles::Handles;
use crate::ledger;
use crate::pointer::{In, Out};

pub fn primary_retain(context: Out<usize>, device: i32) -> Answer {
    check(device)?;
    context.require()?;
    context.put(Handles::of(&context::retain_primary()))
}

pub fn primary_release(device: i32) -> Answer {
    check(device)?;
    context::release_primary()
}

pub fn primary_reset(device: i32) -> Answer {
    check(device)?;
    context::reset_primary();
    Ok(())
}

pub fn primary_set_flags(device: i32, flags: u32) -> Answer {
    check(device)?;
    context::set_primary_flags(flags);
    Ok(())
}

pub fn primary_state(device: i32, flags: Out<u32>, active: Out<i32>) -> Answer {
    check(device)?;
    let (now, there) = context::primary_state();
    flags.put(now)?;
    active.put(there.into())
}

pub fn create(context: Out<usize>, flags: u32, device: i32) -> Answer {
    check(device)?;
    context.require()?;
    let new = Context::new(flags);
    context::push(Arc::clone(&new));
    context.put(Handles::of(&new))
}

pub fn create_v3(context: Out<usize>, affinity: In<u8>, count: i32, flags: u32, device: i32) -> Answer {
    if !affinity.is_null() && count > 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    create(context, flags, device)
}

pub fn create_v4(context: Out<usize>, parameters: In<u8>, flags: u32, device: i32) -> Answer {
    if !parameters.is_null() {
        return Err(Code::NOT_SUPPORTED);
    }
    create(context, flags, device)
}

/// "It is the responsibility of the calling function to ensure that no API call issues using ctx while
/// cuCtxDestroy() is executing"; it is popped where it is current in this thread.
pub fn destroy(handle: usize) -> Answer {
    let context = CONTEXTS.get(handle).map_err(|_| Code::INVALID_CONTEXT)?;
    if context::is_primary(&context) {
        return Err(Code::INVALID_CONTEXT);
    }
    if context::top().is_some_and(|top| Arc::ptr_eq(&top, &context)) {
        context::pop();
    }
    context.destroy();
    Ok(())
}

fn of(handle: usize) -> Answer<Arc<Context>> {
    CONTEXTS.get(handle).map_err(|_| Code::INVALID_CONTEXT)
}

pub fn push(handle: usize) -> Answer {
    context::push(of(handle)?);
    Ok(())
}

pub fn pop(handle: Out<usize>) -> Answer {
    let context = context::pop().ok_or(Code::INVALID_CONTEXT)?;
    handle.offer(Handles::of(&context));
    Ok(())
}

/// "If ctx is NULL, unbinds the context ... if there exists a CUDA context stack on the calling CPU thread, this will
/// replace the top of that stack with ctx".
pub fn set_current(handle: usize) -> Answer {
    let new = if handle == 0 { None } else { Some(of(handle)?) };
    context::pop();
    new.into_iter().for_each(context::push);
    Ok(())
}

pub fn get_current(handle: Out<usize>) -> Answer {
    handle.put(context::top().map_or(0, |context| Handles::of(&context)))
}

fn given(handle: usize) -> Answer<Arc<Context>> {
    if handle == 0 { context::current() } else { of(handle) }
}

pub fn get_device(device: Out<i32>) -> Answer {
    context::current()?;
    device.put(0)
}

pub fn get_device_v2(device: Out<i32>, handle: usize) -> Answer {
    given(handle)?;
    device.put(0)
}

pub fn get_id(handle: usize, id: Out<u64>) -> Answer {
    id.put(given(handle)?.id)
}

pub fn get_flags(flags: Out<u32>) -> Answer {
    flags.put(context::current()?.flags.load(Ordering::Relaxed))
}

pub fn set_flags(flags: u32) -> Answer {
    context::current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

pub fn api_version(handle: usize, version: Out<u32>) -> Answer {
    given(handle)?;
    // what contexts of cuCtxCreate_v2 and later say
    version.put(3020)
}

pub fn synchronize() -> Answer {
    synchronize_v2(0)
}

pub fn synchronize_v2(handle: usize) -> Answer {
    let context = given(handle)?;
    super::graph::must_not_capture(&context)?;
    let done = context.synchronize();
    ledger::waited(ledger::due());
    done
}

pub fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Answer {
    context::current()?;
    least.offer(0);
    greatest.offer(-5);
    Ok(())
}

/// `CUlimit`: kept, and of no effect. First: what a driver says before they are set.
static LIMITS: [AtomicUsize; 8] = [
    AtomicUsize::new(1024),
    AtomicUsize::new(1 << 20),
    AtomicUsize::new(8 << 20),
    AtomicUsize::new(2),
    AtomicUsize::new(2048),
    AtomicUsize::new(64),
    AtomicUsize::new(0),
    AtomicUsize::new(0),
];

fn limit(number: u32) -> Answer<&'static AtomicUsize> {
    LIMITS.get(number as usize).ok_or(Code::UNSUPPORTED_LIMIT)
}

pub fn set_limit(number: u32, value: usize) -> Answer {
    context::current()?;
    limit(number)?.store(value, Ordering::Relaxed);
    Ok(())
}

pub fn get_limit(value: Out<usize>, number: u32) -> Answer {
    context::current()?;
    value.put(limit(number)?.load(Ordering::Relaxed))
}

/// Caches and banks: a preference of which nothing is seen.
pub fn get_preference(value: Out<u32>) -> Answer {
    context::current()?;
    value.put(0)
}

pub fn set_preference(_value: u32) -> Answer {
    context::current().map(drop)
}

pub fn reset_persisting_cache() -> Answer {
    context::current().map(drop)
}

/// There is no other device.
pub fn enable_peer(handle: usize, flags: u32) -> Answer {
    of(handle)?;
    if flags != 0 { Err(Code::INVALID_VALUE) } else { Err(Code::INVALID_DEVICE) }
}

pub fn disable_peer(handle: usize) -> Answer {
    of(handle)?;
    Err(Code::PEER_ACCESS_NOT_ENABLED)
}

/// Parts of a device as contexts of their own: not here, as on a device that has no such parts (driver API, "Green
/// Contexts": CUDA_ERROR_NOT_SUPPORTED is among the results of cuGreenCtxCreate).
pub fn no_green_contexts() -> Answer {
    Err(Code::NOT_SUPPORTED)
}
