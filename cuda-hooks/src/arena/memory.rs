//! Allocating and freeing: what the program's calls do instead of the driver's functions.
//!
//! Called by: `mod.rs`, inside the gate, any thread. The order for a block: its addresses are taken, physical
//! memory is made and mapped there, and only then it is in force; it goes out of force, is unmapped, and only then its
//! addresses are free. Invariants: cuMemFree waits until the block's context has done its work, as the driver's does
//! (not promised, relied on by everyone); memory that other work may use is not given out again before. Anything that
//! is not possible is the driver's affair: `None`, and its own function is called.
//! Fails by: the driver's error of a wait, with the memory freed; memory that stays taken, where the lock cannot be had
//! or the driver does not unmap.

use super::calls::{self, SUCCESS};
use super::discard;
use super::peers;
use super::small::{Entry, GRANULE};
use super::tables::{self, Found, Leaving, Plan, Tables};
use crate::entry::{enter, leave};
use crate::lent::{self, Lent};
use crate::service::{self, Failed};
use crate::{area, objects, platform, table};
use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::{CudaBlock, CudaData, CudaKind};

/// CUDA_ERROR_INVALID_VALUE.
pub const INVALID_VALUE: u32 = 1;
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to ..._WRONG_THREAD: the call is not allowed while streams are captured.
const CAPTURE: RangeInclusive<u32> = 900..=908;
/// A thread that is slower than others each time lets the driver allocate.
const TRIES: u32 = 8;
/// Addresses of a device are as many as it has memory, times this: what is freed leaves gaps.
const SPREAD: u64 = 4;
/// Most that are freed together.
const TOGETHER: usize = 32;

/// Whether a stream is being captured: then the driver decides what is allowed.
pub fn captures() -> bool {
    area::count(CudaKind::CAPTURE).0.load(Relaxed) != 0
}

/// Allocates in the context of the calling thread.
pub fn allocate(bytes: u64) -> Option<u64> {
    if bytes == 0 || captures() {
        return None;
    }
    let owner = owner()?;
    if !calls::is_healthy() {
        return None;
    }
    if !tables::is_small(bytes) {
        return make(owner, bytes.checked_next_multiple_of(GRANULE)?, bytes);
    }
    for _ in 0..TRIES {
        if let Some(address) = tables::locked(|tables| tables.take_small(owner, bytes))? {
            return Some(address);
        }
        make(owner, GRANULE, 0)?;
    }
    None
}

/// The entry of the context of the calling thread; entered if it can have memory of ours.
fn owner() -> Option<usize> {
    let context = calls::current_context();
    if context == 0 {
        return None;
    }
    let known = tables::locked(|tables| tables.owner(context))?;
    if known.is_some() {
        return known;
    }
    let device = calls::current_device().ok()?;
    if !objects::has(CudaKind::CONTEXT, context) && !is_primary(context, device) {
        // Of others (green contexts, contexts of another library) it is not known when they end.
        return None;
    }
    let has = match tables::locked(|tables| tables.has_arena(device))? {
        Some(has) => has,
        None => reserve(device)?,
    };
    if has { tables::locked(|tables| tables.add_owner(context, device))? } else { None }
}

/// Whether a context is the primary one of its device. libcudart retains that by a function of a private table
/// (cuGetExportTable), which no wrapper sees, and releases or resets it by the functions of these names: so what was
/// retained unseen is entered here, and its end is seen.
fn is_primary(context: u64, device: i32) -> bool {
    let entered = |object: &objects::Object| object.kind == CudaKind::PRIMARY && object.value == context;
    if objects::any(entered) {
        return true;
    }
    let is = calls::is_primary(context, device);
    if is {
        objects::enter_primary(device as u32, context);
    }
    is
}

/// Reserves the addresses of a device, if it can have memory at addresses of ours.
fn reserve(device: i32) -> Option<bool> {
    let rdma = calls::attribute(device, calls::RDMA_SUPPORTED) != 0;
    let fits = calls::attribute(device, calls::VMM_SUPPORTED) != 0
        && calls::granularity(device, rdma).is_ok_and(|unit| unit != 0 && GRANULE.is_multiple_of(unit));
    let bytes = calls::total_memory(device)
        .ok()
        .filter(|_| fits)
        .and_then(|total| total.checked_next_multiple_of(GRANULE)?.checked_mul(SPREAD))
        .unwrap_or(0)
        .min(tables::locked(Tables::room)?);
    let base = if bytes == 0 { 0 } else { calls::reserve(bytes, GRANULE).unwrap_or(0) };
    let (entered, has) = tables::locked(|tables| {
        let entered = tables.add_arena(device, base, if base == 0 { 0 } else { bytes }, rdma);
        (entered, tables.has_arena(device))
    })?;
    if base != 0 && !entered {
        // Another thread was faster.
        let _ = calls::unreserve(base, bytes);
    }
    has
}

/// Makes a block of so many bytes, for one allocation of `requested`, or, if that is 0, for small ones.
fn make(owner: usize, bytes: u64, requested: u64) -> Option<u64> {
    let plan = tables::locked(|tables| tables.plan(owner, bytes))??;
    let Some(lent) = physical(&plan).or_else(|| give_way().then(|| physical(&plan))?) else {
        tables::locked(|tables| tables.cancel(&plan));
        return None;
    };
    if tables::locked(|tables| tables.publish(&plan, lent, requested)) == Some(true) {
        if super::words().owner.load(Relaxed) == CudaData::BY_LIBRARY {
            service::prepare(plan.context);
        }
        // Those that came since the plan.
        let readers = tables::locked(|tables| tables.readers(plan.device)).unwrap_or(0);
        for reader in peers::devices(readers & !plan.readers) {
            let _ = calls::allow(plan.address, plan.bytes, reader, true);
        }
        return Some(plan.address);
    }
    if unmap(plan.address, plan.bytes, lent) {
        tables::locked(|tables| tables.cancel(&plan));
    }
    None
}

/// Physical memory at the addresses of a plan.
fn physical(plan: &Plan) -> Option<Lent> {
    let lent = match super::words().owner.load(Relaxed) {
        CudaData::BY_KEEPER => lent::make(plan.device, plan.bytes).ok()?,
        _ => Lent { name: 0, handle: calls::create(plan.device, plan.rdma, plan.bytes).ok()? },
    };
    if place((plan.address, plan.bytes), lent.handle, plan.device, plan.readers).is_err() {
        give_back(lent);
        return None;
    }
    Some(lent)
}

/// Maps physical memory for a device, and others that may reach it (`readers`); nothing is mapped after an error.
fn place((address, bytes): (u64, u64), handle: u64, device: i32, readers: u64) -> Result<(), Failed> {
    let failed = |symbol, error: u32| Failed::of(symbol, u64::from(error), bytes);
    calls::map(address, bytes, handle).map_err(|error| failed(c"cuMemMap", error))?;
    for device in peers::devices(readers).chain([device]) {
        calls::allow(address, bytes, device, true).map_err(|error| {
            let _ = calls::unmap(address, bytes);
            failed(c"cuMemSetAccess", error)
        })?;
    }
    Ok(())
}

/// Makes the physical memory of a block that was unmapped, as it was, or has it of the keeper again.
pub fn make_again(block: &CudaBlock) -> Result<(), Failed> {
    let [address, bytes, device] = platform::loaded([&block.address, &block.bytes, &block.device]);
    let device = (device as u32).cast_signed();
    let (rdma, readers) = tables::properties(address);
    let handle = match block.name.load(Relaxed) {
        0 => calls::create(device, rdma, bytes)
            .map_err(|error| Failed::of(c"cuMemCreate", u64::from(error), bytes))?,
        name => lent::open(name).map_err(Failed::with)?,
    };
    place((address, bytes), handle, device, readers).inspect_err(|_| {
        let _ = calls::release(handle);
    })?;
    block.handle.store(handle, Relaxed);
    Ok(())
}

fn unmap(address: u64, bytes: u64, lent: Lent) -> bool {
    let unmapped = calls::unmap(address, bytes).is_ok();
    give_back(lent);
    unmapped
}

fn give_back(lent: Lent) {
    let _ = calls::release(lent.handle);
    if lent.name != 0 {
        lent::drop_one(lent.name);
    }
}

/// Unmaps a block that has left, and frees its addresses.
fn finish(leaving: &Leaving) {
    if unmap(leaving.address, leaving.bytes, leaving.lent) {
        tables::locked(|tables| tables.left(leaving));
    }
}

/// Gives back what only we keep; whether that was anything.
pub fn give_way() -> bool {
    let mut gave = false;
    // No thread may wait now.
    if captures() {
        return gave;
    }
    while let Some(Some(found)) = tables::locked(|tables| tables.take_pending(None)) {
        let _ = calls::synchronize(found.context);
        release(found.start);
        gave = true;
    }
    while let Some(Some(leaving)) = tables::locked(Tables::leave_empty) {
        finish(&leaving);
        gave = true;
    }
    gave
}

fn release(address: u64) {
    if let Some(Some(leaving)) = tables::locked(|tables| tables.release(address)) {
        finish(&leaving);
    }
}

/// The allocation that begins at an address, marked as freed; `Err`: the result of the call.
fn end(address: u64) -> Result<Found, u32> {
    tables::locked(|tables| {
        let found = tables.find(address).filter(|found| found.start == address);
        let found = found.filter(|found| found.flags & Entry::ENDED == 0).ok_or(INVALID_VALUE)?;
        tables.flag(&found, Entry::ENDED, 0);
        discard::keep(found.start, found.bytes);
        Ok(found)
    })
    // What cannot be looked up stays taken.
    .unwrap_or(Err(SUCCESS))
}

fn take_back(found: &Found) {
    tables::locked(|tables| tables.flag(found, 0, Entry::ENDED));
}

/// Frees memory of ours: cuMemFree(address).
pub fn free(address: u64, real: impl FnOnce() -> u32) -> u32 {
    let found = match end(address) {
        Ok(found) => found,
        Err(result) => return result,
    };
    if captures() {
        // An address that the driver has not allocated: what it says of it, it says of the capture before.
        let result = real();
        if CAPTURE.contains(&result) {
            take_back(&found);
            return result;
        }
        // No thread may wait now; another cuMemFree will.
        if tables::locked(|tables| tables.keep_pending(address)) == Some(true) {
            return SUCCESS;
        }
    }
    // What was freed before this wait is unused after it, too.
    let mut others = [0; TOGETHER];
    for place in &mut others {
        match tables::locked(|tables| tables.take_pending(Some(found.context))) {
            Some(Some(next)) => *place = next.start,
            _ => break,
        }
    }
    let result = calls::synchronize(found.context).err().unwrap_or(SUCCESS);
    release(address);
    others.into_iter().filter(|other| *other != 0).for_each(release);
    result
}

/// The same behind the work of a stream: cuMemFreeAsync(address, stream). No thread waits here.
pub fn free_in_stream(address: u64, real: impl FnOnce() -> u32) -> u32 {
    if captures() {
        return real();
    }
    match end(address) {
        Ok(found) if tables::locked(|tables| tables.keep_pending(address)) != Some(true) => {
            let result = calls::synchronize(found.context).err().unwrap_or(SUCCESS);
            release(address);
            result
        }
        Ok(_) => SUCCESS,
        Err(result) => result,
    }
}

/// All memory of a context ends with it.
pub fn context_ended(context: u64) {
    service::context_ended(context);
    while let Some(Some(leaving)) = tables::locked(|tables| tables.leave_of(context)) {
        tables::locked(|_| discard::keep(leaving.address, leaving.bytes));
        finish(&leaving);
    }
    tables::locked(|tables| tables.remove_owner(context));
}

/// Who makes the physical memory: decided once.
pub fn is_owned() -> bool {
    matches!(super::words().owner.load(Relaxed), CudaData::BY_LIBRARY | CudaData::BY_KEEPER)
}

/// Why a range is not entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It is not within one allocation of ours.
    Range,
    /// The table is full.
    Full,
}

/// Enters a range that an image need not have.
fn discard_locked(start: u64, bytes: u64) -> bool {
    super::words().discards.store(discard::address(), Relaxed);
    discard::add(start, bytes)
}

/// A new allocation of a size that `--cuda-skip` names. Inside the gate.
pub fn by_size(address: u64, bytes: u64) {
    let (least, most) = platform::skipped_sizes();
    let is_ours = super::words().owner.load(Relaxed) == CudaData::BY_LIBRARY;
    if is_ours && most != 0 && (least..=most).contains(&bytes) {
        tables::locked(|_| discard_locked(address, bytes));
    }
}

/// Runs `work` inside the gate, with the lock.
fn inside<T>(work: impl FnOnce(&'static Tables) -> T) -> Option<T> {
    let call = enter(table::find(c"cuMemFree_v2").unwrap_or(0) as u64, 0);
    let result = tables::locked(work);
    leave(call);
    result
}

/// The content of this memory need not be in images.
///
/// # Errors
/// See [`Refused`].
pub fn leave_out(start: u64, bytes: u64) -> Result<(), Refused> {
    inside(|tables| {
        // What a keeper has is saved by the keeper.
        let is_ours = super::words().owner.load(Relaxed) == CudaData::BY_LIBRARY;
        let found = tables.find(start).filter(|_| is_ours).ok_or(Refused::Range)?;
        let end = start.checked_add(bytes).ok_or(Refused::Range)?;
        if bytes == 0 || end > found.start.saturating_add(found.bytes) {
            return Err(Refused::Range);
        }
        discard::keep(start, bytes);
        if discard_locked(start, bytes) { Ok(()) } else { Err(Refused::Full) }
    })
    // Without tables nothing is ours.
    .unwrap_or(Err(Refused::Range))
}

/// The content of this memory is saved again.
pub fn keep(start: u64, bytes: u64) {
    inside(|_| discard::keep(start, bytes));
}
