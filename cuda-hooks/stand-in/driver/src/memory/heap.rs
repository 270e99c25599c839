//! What a program has allocated: linear memory of the device, pinned and registered memory of the host, managed memory.
//! Used by `api` and by modules for their variables.
//!
//! Memory of the device that is smaller than 1 MiB shares blocks of 2 MiB, at multiples of 512 bytes, as cuMemAlloc
//! does on today's drivers (observed by many; the API promises 256, "suitably aligned for any kind of variable"): so a
//! kernel that writes beyond an allocation hits its neighbour without a fault, here as there.
//! Fails by: CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_INVALID_VALUE for what was never allocated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::physical::{GRANULARITY, Physical};
use super::ranges::Ranges;
use super::space::{self, Access, Backing, Mapping};
use crate::code::{Answer, Code};
use crate::system;

const UNIT: u64 = 512;
const SMALL: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// What kind of memory a pointer is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `cuMemAlloc`; of a pool, if it is not zero.
    Linear {
        /// Handle of the pool.
        pool: usize,
    },
    /// Variables of a module.
    Module,
    /// A CUDA array.
    Array,
    /// `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// `cuMemHostRegister`, with its flags.
    Registered(u32),
    /// `cuMemAllocManaged`
    Managed,
}

impl Kind {
    /// The bytes are the host's.
    pub fn on_host(self) -> bool {
        matches!(self, Kind::Pinned(_) | Kind::Registered(_))
    }
}

/// Something allocated.
#[derive(Clone, Copy, Debug)]
pub struct Allocation {
    /// Its pointer.
    pub base: u64,
    /// As it was asked for.
    pub size: u64,
    /// What it is.
    pub kind: Kind,
    /// Handle of the context in which that was done.
    pub context: usize,
    /// Process-wide, never used again (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub id: u64,
}

#[derive(Default)]
struct Heap {
    allocations: BTreeMap<u64, Allocation>,
    slabs: BTreeMap<u64, Ranges>,
}

static HEAP: Mutex<Heap> = Mutex::new(Heap { allocations: BTreeMap::new(), slabs: BTreeMap::new() });
static IDS: AtomicU64 = AtomicU64::new(1);

/// A number that nothing else in this process has.
pub fn next_id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

impl Heap {
    fn record(&mut self, base: u64, size: u64, kind: Kind, context: usize) {
        self.allocations.insert(base, Allocation { base, size, kind, context, id: next_id() });
    }

    fn small(&mut self, bytes: u64) -> Answer<u64> {
        for (&slab, free) in &mut self.slabs {
            if let Some(offset) = free.take(bytes) {
                return Ok(slab + offset);
            }
        }
        let slab = block(GRANULARITY)?;
        let mut free = Ranges::new(GRANULARITY);
        let offset = free.take(bytes).unwrap_or(0);
        self.slabs.insert(slab, free);
        Ok(slab + offset)
    }

    fn give(&mut self, base: u64, size: u64) {
        let bytes = size.next_multiple_of(UNIT);
        if bytes >= SMALL {
            return give_block(base, bytes.next_multiple_of(GRANULARITY));
        }
        let slab = base & !(GRANULARITY - 1);
        let Some(free) = self.slabs.get_mut(&slab) else { return };
        free.give(base - slab, bytes);
        if free.all_free(GRANULARITY) {
            self.slabs.remove(&slab);
            give_block(slab, GRANULARITY);
        }
    }
}

/// Memory of the device with addresses of its own.
fn block(length: u64) -> Answer<u64> {
    let physical = Physical::new(length)?;
    let at = space::reserve(length, GRANULARITY, 0)?;
    let backing = Backing::Device { physical, offset: 0 };
    space::map(at, Mapping { length, backing, access: Access::Write })?;
    Ok(at)
}

fn give_block(at: u64, length: u64) {
    space::unmap(at);
    // it is the driver's own reservation, with nothing on it any more
    let _ = space::release(at, length);
}

/// Allocates memory of the device.
pub fn allocate(size: u64, kind: Kind, context: usize) -> Answer<u64> {
    // "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE" (cuMemAlloc)
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = size.checked_next_multiple_of(GRANULARITY).map(|_| size.next_multiple_of(UNIT));
    let bytes = bytes.ok_or(Code::OUT_OF_MEMORY)?;
    let mut heap = HEAP.lock();
    let base = if bytes < SMALL { heap.small(bytes)? } else { block(bytes.next_multiple_of(GRANULARITY))? };
    heap.record(base, size, kind, context);
    Ok(base)
}

/// Takes an allocation out of the books: what frees it comes next.
pub fn forget(base: u64, fits: impl Fn(Kind) -> bool) -> Answer<Allocation> {
    let mut heap = HEAP.lock();
    let found = heap.allocations.get(&base).copied().filter(|it| fits(it.kind)).ok_or(Code::INVALID_VALUE)?;
    heap.allocations.remove(&base);
    Ok(found)
}

/// Frees what `forget` gave.
pub fn free(it: Allocation) {
    match it.kind {
        Kind::Linear { .. } | Kind::Module | Kind::Array => HEAP.lock().give(it.base, it.size),
        Kind::Pinned(_) | Kind::Managed => {
            space::unmap(it.base);
            system::unmap(it.base, it.size.next_multiple_of(PAGE));
        }
        Kind::Registered(_) => drop(space::unmap(it.base)),
    }
}

/// Allocates pinned memory of the host, which the device has at the same addresses (unified addressing).
pub fn pin(size: u64, flags: u32, context: usize) -> Answer<u64> {
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = size.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let at = system::map_pages(length).map_err(|_| Code::OUT_OF_MEMORY)?;
    share(at, length)?;
    HEAP.lock().record(at, size, Kind::Pinned(flags), context);
    Ok(at)
}

/// Pins memory that the program has.
pub fn register(at: u64, size: u64, flags: u32, context: usize) -> Answer {
    if at == 0 || size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let mut heap = HEAP.lock();
    let end = at.checked_add(size).ok_or(Code::INVALID_VALUE)?;
    let taken = |it: &Allocation| it.base < end && it.base + it.size > at;
    if heap.allocations.range(..end).next_back().is_some_and(|(_, it)| taken(it)) {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    share(at, size)?;
    heap.record(at, size, Kind::Registered(flags), context);
    Ok(())
}

/// Allocates managed memory: one mapping of a file of memory, as of /dev/nvidia-uvm. It is never moved: a checkpoint
/// refuses it (CRIU, plugins/cuda/README).
pub fn manage(size: u64, context: usize) -> Answer<u64> {
    if size == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let length = size.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let file = system::memory_file(c"nvidia-uvm", length).map_err(|_| Code::OUT_OF_MEMORY)?;
    let at = system::map_file(&file, length).map_err(|_| Code::OUT_OF_MEMORY)?;
    share(at, length)?;
    HEAP.lock().record(at, size, Kind::Managed, context);
    Ok(at)
}

fn share(at: u64, length: u64) -> Answer {
    space::map(at, Mapping { length, backing: Backing::Host, access: Access::Write })
}

/// The allocation that an address is in.
pub fn find(address: u64) -> Option<Allocation> {
    let heap = HEAP.lock();
    let (_, it) = heap.allocations.range(..=address).next_back()?;
    (address - it.base < it.size).then_some(*it)
}

/// Whether there is anything of a kind.
pub fn any(fits: impl Fn(Kind) -> bool) -> bool {
    HEAP.lock().allocations.values().any(|it| fits(it.kind))
}

/// Bytes of a kind.
pub fn used(fits: impl Fn(Kind) -> bool) -> u64 {
    HEAP.lock().allocations.values().filter(|it| fits(it.kind)).map(|it| it.size).sum()
}

/// Frees everything of a context.
pub fn free_all(context: usize) {
    let of: Vec<Allocation> = {
        let mut heap = HEAP.lock();
        let of = heap.allocations.values().filter(|it| it.context == context).copied().collect();
        heap.allocations.retain(|_, it| it.context != context);
        of
    };
    of.into_iter().for_each(free);
}
