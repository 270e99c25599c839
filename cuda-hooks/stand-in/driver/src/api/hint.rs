//! Hints about managed memory, and about how many threads a block should have: checked, and of no effect.

use crate::code::{Answer, Code};
use crate::layout::Location;
use crate::memory::heap::{self, Kind};
use crate::pointer::Out;
use crate::submit;

/// "The memory range must refer to managed memory ... or ... system-allocated pageable memory", which the device does
/// not reach (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS).
fn managed(at: u64, bytes: usize) -> Answer {
    let it = heap::find(at).filter(|it| it.kind == Kind::Managed).ok_or(Code::INVALID_VALUE)?;
    let inside = (bytes as u64).checked_add(at - it.base).is_some_and(|end| end <= it.size);
    if inside && bytes > 0 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// CU_DEVICE_CPU is -1.
fn device(device: i32) -> Answer {
    if device == -1 { Ok(()) } else { super::device::check(device) }
}

fn location(of: Location) -> Answer {
    match of.kind {
        1 => device(of.id),
        2..=4 => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    }
}

pub fn prefetch_v1(at: u64, bytes: usize, to: i32, stream: usize) -> Answer {
    managed(at, bytes)?;
    device(to)?;
    submit::target(stream).map(drop)
}

pub fn prefetch(at: u64, bytes: usize, to: Location, flags: u32, stream: usize) -> Answer {
    managed(at, bytes)?;
    location(to)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    submit::target(stream).map(drop)
}

/// `CUmem_advise`: 1 to 6.
pub fn advise_v1(at: u64, bytes: usize, advice: u32, of: i32) -> Answer {
    managed(at, bytes)?;
    device(of)?;
    if (1..=6).contains(&advice) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

pub fn advise(at: u64, bytes: usize, advice: u32, of: Location) -> Answer {
    managed(at, bytes)?;
    location(of)?;
    if (1..=6).contains(&advice) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// As many threads as the kernel and the caller allow; blocks that fill 132 multiprocessors.
pub fn block_size(blocks: Out<i32>, threads: Out<i32>, function: usize, limit: i32) -> Answer {
    let most = super::function::most_threads(function)?;
    let limit = u32::try_from(limit).map_err(|_| Code::INVALID_VALUE)?;
    let size = if limit == 0 { most } else { most.min(limit) };
    blocks.put((132 * (2048 / size.next_multiple_of(32).max(32)).max(1)) as i32)?;
    threads.put(size as i32)
}
