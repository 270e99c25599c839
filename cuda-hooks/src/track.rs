//! What a call has made or ended: the effects of the table's rows.
//!
//! Runs in: wrappers that are tracked, inside the gate, before and after the driver's function. What a call ends is
//! taken out before it: as soon as the driver has freed an address, another thread may get it. A call that fails puts
//! it back.
//! Invariants: only a success changes anything. Memory of the program is read only where the driver has to read or
//! write it too, in a call that it has found no fault with.
//! Fails by: objects too many (a checkpoint is refused that need not be), or, where the table of objects is full,
//! [`CudaArea::lost`](holdfast_abi::CudaArea::lost).
//!
//! # Safety
//! Arguments are those of the driver's header, by position; functions of the driver are called with its types.
#![allow(unsafe_code)]

use crate::objects::{self, Object};
use crate::{area, arena, driver, platform};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr::{null_mut, with_exposed_provenance};
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::CudaKind;

/// CUDA_SUCCESS.
const SUCCESS: u32 = 0;
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: the capture has ended, without a graph (reference of cuStreamEndCapture).
const CAPTURE_INVALIDATED: u32 = 901;
/// CU_MEM_ALLOCATION_TYPE_MANAGED, of CUDA 13.0 on.
const TYPE_MANAGED: u32 = 2;

/// Where a number comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// 0.
    Nothing,
    /// This argument.
    Value(u8),
    /// The word that this argument points to.
    At(u8),
    /// The word that the first argument points to, times the second.
    Product(u8, u8),
}

/// What a row's function does to the objects.
#[derive(Clone, Copy, Debug)]
pub enum Effect {
    /// None.
    Nothing,
    /// An address in its answer is replaced by its wrapper: cuGetProcAddress(name, &address, ...).
    Addresses,
    /// Counts tables of functions.
    Tables,
    /// The driver is initialised.
    Initialised,
    /// Makes an object.
    Add { kind: u8, key: Source, bytes: Source },
    /// Ends objects: one of each kind of `one`, all of those of `all` (bits).
    End { one: u32, all: u32, key: Source },
    /// cuCtxDestroy(context).
    ContextEnd,
    /// cuDevicePrimaryCtxRetain(&context, device).
    PrimaryRetain,
    /// cuDevicePrimaryCtxRelease(device).
    PrimaryRelease,
    /// cuDevicePrimaryCtxReset(device).
    PrimaryReset,
    /// cuMemPoolCreate(&pool, &properties).
    PoolCreate,
    /// cuMemGetMemPool(&pool, location, type).
    PoolManaged,
    /// Makes one of this kind that holds physical memory as cuMemCreate does; its handle is where argument 0 points to.
    Hold(u8),
    /// cuMemRelease(handle).
    Release,
    /// cuMemMap(address, bytes, offset, handle, flags).
    Map,
    /// cuMemUnmap(address, bytes).
    Unmap,
    /// cuStreamEndCapture(stream, &graph).
    CaptureEnd,
    /// cuGraphInstantiate(&executable, graph, ...).
    GraphMade,
    /// cuGraphExecDestroy(executable).
    GraphEnded,
}

/// What [`before`] has taken out.
pub struct Ended([Option<Object>; 4]);

impl Ended {
    /// Nothing.
    pub const NONE: Ended = Ended([None; 4]);
}

/// What ends with its context (reference of cuCtxDestroy: memory of cuMemAlloc, cuMemAllocHost, cuMemAllocManaged and
/// cuMemAllocPitch, arrays, graphics resources, external memory and semaphores; streams, hence their captures).
const OF_CONTEXT: u32 = 1 << CudaKind::DEVICE
    | 1 << CudaKind::MANAGED
    | 1 << CudaKind::PINNED
    | 1 << CudaKind::REGISTERED
    | 1 << CudaKind::ARRAY
    | 1 << CudaKind::GRAPHICS
    | 1 << CudaKind::EXTERNAL
    | 1 << CudaKind::CAPTURE
    | 1 << CudaKind::IPC
    | 1 << CudaKind::PEER
    | 1 << CudaKind::DMA_BUF;

/// What physical memory and multicast objects were shared as: lasts as long as they do.
const SHARED: u32 = 1 << CudaKind::EXPORTED | 1 << CudaKind::IMPORTED | 1 << CudaKind::MULTICAST;

fn argument(arguments: &[usize], index: u8) -> usize {
    arguments.get(usize::from(index)).copied().unwrap_or(0)
}

/// The word at an address; 0 at 0.
fn word_at(address: usize) -> u64 {
    if address == 0 {
        return 0;
    }
    // SAFETY: the driver has read or written a word there, in a call that succeeded, or is about to.
    unsafe { with_exposed_provenance::<u64>(address).read_unaligned() }
}

fn value(source: Source, arguments: &[usize]) -> u64 {
    match source {
        Source::Nothing => 0,
        Source::Value(index) => argument(arguments, index) as u64,
        Source::At(index) => word_at(argument(arguments, index)),
        Source::Product(at, by) => {
            word_at(argument(arguments, at)).wrapping_mul(argument(arguments, by) as u64)
        }
    }
}

/// Kinds of a set.
fn kinds(set: u32) -> impl Iterator<Item = u8> {
    (0..CudaKind::ROOM as u8).filter(move |kind| set >> kind & 1 != 0)
}

/// Before the call. Without it, an address might be given out again before it is taken out.
pub fn before(effect: &Effect, arguments: &[usize]) -> Ended {
    let mut ended = Ended::NONE;
    if let Effect::End { one, key, .. } = *effect {
        let key = value(key, arguments);
        let mut places = ended.0.iter_mut();
        for kind in kinds(one).filter(|kind| area::count(*kind).0.load(Relaxed) != 0) {
            if let (Some(object), Some(place)) = (objects::end(kind, key), places.next()) {
                *place = Some(object);
            }
        }
    }
    ended
}

/// After it.
pub fn after(effect: &Effect, arguments: &[usize], result: u32, ended: &Ended) {
    if result != SUCCESS {
        for object in ended.0.iter().flatten() {
            objects::add(*object);
        }
        // Other errors end the capture or do not: the driver is asked.
        let is_over = || result == CAPTURE_INVALIDATED || !is_capturing(argument(arguments, 0));
        if !matches!(effect, Effect::CaptureEnd) || !is_over() {
            return;
        }
    }
    platform::keep_errno(|| apply(effect, arguments));
}

fn apply(effect: &Effect, arguments: &[usize]) {
    let first = argument(arguments, 0) as u64;
    match *effect {
        Effect::Nothing => {}
        Effect::Addresses => replace_address(argument(arguments, 1)),
        Effect::Tables => {
            area::area().export_tables.fetch_add(1, Relaxed);
        }
        Effect::Initialised => area::area().initialised.store(1, Relaxed),
        Effect::Add { kind, key, bytes } => {
            add(kind, value(key, arguments), value(bytes, arguments));
        }
        Effect::End { all, key, .. } => {
            let key = value(key, arguments);
            for kind in kinds(all).filter(|kind| area::count(*kind).0.load(Relaxed) != 0) {
                while objects::end(kind, key).is_some() {}
            }
        }
        Effect::ContextEnd => context_ended(first, CudaKind::CONTEXT),
        Effect::PrimaryRetain => {
            objects::enter_primary(argument(arguments, 1) as u32, word_at(argument(arguments, 0)));
        }
        // What cannot be asked is taken for still in use.
        Effect::PrimaryRelease if arena::primary_is_active(first as c_int).unwrap_or(true) => {}
        Effect::PrimaryRelease | Effect::PrimaryReset => {
            if let Some(primary) = objects::end(CudaKind::PRIMARY, first & u64::from(u32::MAX)) {
                context_ended(primary.value, CudaKind::PRIMARY);
            }
        }
        Effect::PoolCreate if word_at(argument(arguments, 1)) as u32 != TYPE_MANAGED => {}
        Effect::PoolManaged if argument(arguments, 2) as u32 != TYPE_MANAGED => {}
        Effect::PoolCreate | Effect::PoolManaged => {
            add(CudaKind::MANAGED, word_at(argument(arguments, 0)), 0);
        }
        Effect::Hold(kind) => {
            let handle = word_at(argument(arguments, 0));
            add(CudaKind::PHYSICAL, handle, 0);
            add(kind, handle, 0);
        }
        Effect::Release => {
            objects::end(CudaKind::PHYSICAL, first);
            forget_shared(first);
        }
        Effect::Map => objects::add(Object {
            kind: CudaKind::MAPPED,
            handle: first,
            value: argument(arguments, 3) as u64,
            context: 0,
        }),
        Effect::Unmap => unmapped(first, argument(arguments, 1) as u64),
        Effect::CaptureEnd => {
            objects::end(CudaKind::CAPTURE, first);
        }
        Effect::GraphMade => {
            area::count(CudaKind::GRAPH).0.fetch_add(1, Relaxed);
        }
        Effect::GraphEnded => {
            // Never below zero: one of before libholdfast was counted is ended, too.
            let less = |count: u64| count.checked_sub(1);
            let _ = area::count(CudaKind::GRAPH).0.fetch_update(Relaxed, Relaxed, less);
        }
    }
}

fn add(kind: u8, handle: u64, value: u64) {
    objects::add(Object { kind, handle, value, context: current_context() });
}

/// The context of the calling thread, or 0.
fn current_context() -> u64 {
    let get = driver::known(c"cuCtxGetCurrent");
    let mut context: *mut c_void = null_mut();
    // SAFETY: the driver's function of this name writes one handle.
    let known = get != 0
        && unsafe {
            mem::transmute::<usize, unsafe extern "C" fn(*mut *mut c_void) -> u32>(get)(&raw mut context)
        } == SUCCESS;
    if known { context.addr() as u64 } else { 0 }
}

/// Whether a stream is being captured. What cannot be asked is.
fn is_capturing(stream: usize) -> bool {
    type Ask = unsafe extern "C" fn(usize, *mut c_int) -> u32;
    // CU_STREAM_PER_THREAD: of a stream that is 0 only this variant can be captured.
    const PER_THREAD: usize = 2;
    let ask = driver::known(c"cuStreamIsCapturing");
    let mut status = -1;
    // SAFETY: the driver's function of this name writes one number.
    let known = ask != 0
        && unsafe {
            let ask = mem::transmute::<usize, Ask>(ask);
            ask(if stream == 0 { PER_THREAD } else { stream }, &raw mut status)
        } == SUCCESS;
    !known || status != 0
}

/// A context has ended, and what belongs to it.
fn context_ended(context: u64, kind: u8) {
    if kind == CudaKind::CONTEXT {
        objects::end(CudaKind::CONTEXT, context);
    }
    if context != 0 {
        arena::context_ended(context);
        objects::end_all(|object| OF_CONTEXT >> object.kind & 1 != 0 && object.context == context);
    }
}

/// Mappings have ended; with the last one of what was released, what it was shared as.
fn unmapped(start: u64, len: u64) {
    let end = start.saturating_add(len);
    // Of more different handles in one call what they were shared as stays in force.
    let handles = [const { Cell::new(0) }; 16];
    objects::end_all(|object| {
        let ends = object.kind == CudaKind::MAPPED && (start..end).contains(&object.handle);
        if ends
            && let Some(place) = handles.iter().find(|place| place.get() == 0 || place.get() == object.value)
        {
            place.set(object.value);
        }
        ends
    });
    handles.iter().filter(|handle| handle.get() != 0).for_each(|handle| forget_shared(handle.get()));
}

/// Takes out what physical memory was shared as, if it is neither held nor mapped any more (reference of cuMemRelease:
/// the memory lasts until it is unmapped).
fn forget_shared(handle: u64) {
    let shared: u64 = kinds(SHARED).map(|kind| area::count(kind).0.load(Relaxed)).sum();
    let lasts = || {
        objects::has(CudaKind::PHYSICAL, handle)
            || objects::any(|object| object.kind == CudaKind::MAPPED && is_same(object.value, handle))
    };
    if shared != 0 && !lasts() {
        for kind in kinds(SHARED) {
            while objects::end(kind, handle).is_some() {}
        }
    }
}

/// Whether two handles are the same, as far as keys have them.
fn is_same(one: u64, other: u64) -> bool {
    (one ^ other) & ((1 << CudaKind::SHIFT) - 1) == 0
}

/// Puts the wrapper in the place of the function that cuGetProcAddress has answered with.
fn replace_address(place: usize) {
    if place == 0 {
        return;
    }
    let place = with_exposed_provenance::<*mut c_void>(place).cast_mut();
    // SAFETY: the driver has written an address there.
    unsafe {
        let found = place.read();
        if !found.is_null() {
            place.write(driver::replacement(found));
        }
    }
}
