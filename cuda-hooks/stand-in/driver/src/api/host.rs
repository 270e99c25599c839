//! Pinned memory of the host.

use crate::code::{Answer, Code};
use crate::context::{self, CONTEXTS};
use crate::memory::heap::{self, Kind};
use crate::pointer::Out;

pub fn allocate(pointer: Out<u64>, size: usize) -> Answer {
    allocate_with(pointer, size, 0)
}

pub fn allocate_with(pointer: Out<u64>, size: usize, flags: u32) -> Answer {
    let context = context::current()?;
    pointer.require()?;
    if flags > 7 {
        return Err(Code::INVALID_VALUE);
    }
    pointer.put(heap::pin(size as u64, flags, context.handle())?)
}

/// Waits for the context, as cuMemFree.
pub fn free(pointer: u64) -> Answer {
    let pinned = |kind| matches!(kind, Kind::Pinned(_));
    let it =
        heap::find(pointer).filter(|it| it.base == pointer && pinned(it.kind)).ok_or(Code::INVALID_VALUE)?;
    let state = CONTEXTS.get(it.context).map_or(Ok(()), |context| context.synchronize());
    heap::free(heap::forget(pointer, pinned)?);
    state
}

pub fn register(pointer: u64, size: usize, flags: u32) -> Answer {
    let context = context::current()?;
    if flags > 15 {
        return Err(Code::INVALID_VALUE);
    }
    heap::register(pointer, size as u64, flags, context.handle())
}

pub fn unregister(pointer: u64) -> Answer {
    let registered = |kind| matches!(kind, Kind::Registered(_));
    let it = heap::find(pointer).filter(|it| it.base == pointer && registered(it.kind));
    let it = it.ok_or(Code::HOST_MEMORY_NOT_REGISTERED)?;
    let state = CONTEXTS.get(it.context).map_or(Ok(()), |context| context.synchronize());
    heap::free(heap::forget(pointer, registered)?);
    state
}

pub fn device_pointer(pointer: Out<u64>, host: u64, flags: u32) -> Answer {
    context::current()?;
    let it = heap::find(host).filter(|it| it.kind.on_host()).ok_or(Code::INVALID_VALUE)?;
    if flags != 0 || it.size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    pointer.put(host)
}

pub fn flags(flags: Out<u32>, host: u64) -> Answer {
    match heap::find(host).map(|it| it.kind) {
        Some(Kind::Pinned(given)) => flags.put(given),
        _ => Err(Code::INVALID_VALUE),
    }
}
