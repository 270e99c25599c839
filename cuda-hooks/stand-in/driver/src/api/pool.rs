//! Memory of pools: allocated and freed in the order of a stream.
//!
//! A pointer is valid at once, as an address; that its memory may be used on the stream alone, behind the allocation,
//! is the program's to see to. What is freed can be allocated again when the stream has come to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::capture;
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::context;
use crate::graph_memory;
use crate::handles::Handles;
use crate::layout::{Location, PoolProperties};
use crate::memory::heap::{self, Kind};
use crate::pointer::{In, Out};
use crate::submit;

/// A pool: what it keeps is decided by the heap; its attributes are remembered.
#[derive(Default)]
pub struct Pool {
    threshold: AtomicU64,
    flags: [AtomicU64; 3],
}

static POOLS: Handles<Pool> = Handles::new();
static DEFAULT: Mutex<Option<Arc<Pool>>> = Mutex::new(None);
static CURRENT: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

fn default_pool() -> Arc<Pool> {
    let mut default = DEFAULT.lock();
    let pool = default.get_or_insert_with(|| {
        let pool = Arc::new(Pool::default());
        pool.flags.iter().for_each(|flag| flag.store(1, Ordering::Relaxed));
        POOLS.add(&pool);
        pool
    });
    Arc::clone(pool)
}

fn current_pool() -> Arc<Pool> {
    CURRENT.lock().clone().unwrap_or_else(default_pool)
}

pub fn get_default(pool: Out<usize>, device: i32) -> Answer {
    super::device::check(device)?;
    pool.put(Handles::of(&default_pool()))
}

pub fn get(pool: Out<usize>, device: i32) -> Answer {
    super::device::check(device)?;
    pool.put(Handles::of(&current_pool()))
}

pub fn set(device: i32, pool: usize) -> Answer {
    super::device::check(device)?;
    *CURRENT.lock() = Some(POOLS.get(pool)?);
    Ok(())
}

pub fn create(pool: Out<usize>, properties: In<PoolProperties>) -> Answer {
    pool.require()?;
    let of = properties.get()?;
    if of.kind != 1 || of.location != (Location { kind: 1, id: 0 }) {
        return Err(Code::INVALID_VALUE);
    }
    // a pool that can be exported is of no use to a process alone
    if of.handle_types != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    pool.put(POOLS.add(&Arc::new(Pool::default())))
}

/// "Destroying the current mempool of a device sets the default mempool of that device as the current mempool".
pub fn destroy(pool: usize) -> Answer {
    if pool == Handles::of(&default_pool()) {
        return Err(Code::INVALID_VALUE);
    }
    let gone = POOLS.remove(pool)?;
    let mut current = CURRENT.lock();
    if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, &gone)) {
        *current = None;
    }
    Ok(())
}

pub fn trim(pool: usize, _keep: usize) -> Answer {
    POOLS.get(pool).map(drop)
}

/// `CUmemPool_attribute`: three switches, the threshold, then bytes reserved and used, now and at most.
pub fn set_attribute(pool: usize, attribute: u32, value: In<u32>) -> Answer {
    let pool = POOLS.get(pool)?;
    match attribute {
        1..=3 => pool.flags[attribute as usize - 1].store(value.get()?.into(), Ordering::Relaxed),
        4 => pool.threshold.store(value.cast::<u64>().get()?, Ordering::Relaxed),
        6 | 8 if value.cast::<u64>().get()? == 0 => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

pub fn get_attribute(pool: usize, attribute: u32, value: Out<u32>) -> Answer {
    let of = POOLS.get(pool)?;
    match attribute {
        1..=3 => value.put(of.flags[attribute as usize - 1].load(Ordering::Relaxed) as u32),
        4 => value.cast::<u64>().put(of.threshold.load(Ordering::Relaxed)),
        5..=8 => value.cast::<u64>().put(heap::used(|kind| kind == Kind::Linear { pool })),
        _ => Err(Code::INVALID_VALUE),
    }
}

pub fn allocate(pointer: Out<u64>, size: usize, stream: usize) -> Answer {
    allocate_from(pointer, size, Handles::of(&current_pool()), stream)
}

pub fn allocate_from(pointer: Out<u64>, size: usize, pool: usize, stream: usize) -> Answer {
    pointer.require()?;
    POOLS.get(pool)?;
    let target = submit::target(stream)?;
    // memory of graphs is not made here
    capture::forbid(&target.stream)?;
    let at = heap::allocate(size as u64, Kind::Linear { pool }, target.context.handle())?;
    target.put(Command::Nothing)?;
    pointer.put(at)
}

/// Memory of cuMemAlloc is CUDA_ERROR_INVALID_VALUE here; what the real driver says of it is not verified.
pub fn free(pointer: u64, stream: usize) -> Answer {
    if let Some(memory) = graph_memory::allocated(pointer) {
        let target = submit::target(stream)?;
        capture::forbid(&target.stream)?;
        target.put(Command::GiveMemory(Arc::clone(&memory)))?;
        memory.will_be(false);
        return Ok(());
    }
    let of_pool = |kind| matches!(kind, Kind::Linear { pool } if pool != 0);
    let it = heap::find(pointer).filter(|it| it.base == pointer && of_pool(it.kind));
    it.ok_or(Code::INVALID_VALUE)?;
    let target = submit::target(stream)?;
    capture::forbid(&target.stream)?;
    target.put(Command::Free(pointer)).map(drop)
}

/// Every context of the device has it.
pub fn set_access(pool: usize, _descriptions: In<u8>, _count: usize) -> Answer {
    POOLS.get(pool).map(drop)
}

pub fn get_access(flags: Out<u32>, pool: usize, location: In<Location>) -> Answer {
    POOLS.get(pool)?;
    location.get()?;
    context::current()?;
    flags.put(3)
}
