//! The driver's functions that the arena calls, with their types.
//!
//! Called by: the other files of the arena, inside the gate, with no lock held. Calls of this thread pass untouched
//! meanwhile: they are the hooks' own. Invariants: arguments are as cuda.h (CUDA 13.0) has them.
//! Fails by: the driver's error; [`driver::NOT_SUPPORTED`] where there is no such function.
//!
//! # Safety
//! Functions of the driver, found by their symbols, called with the types of the driver's header; what they write to
//! lies on this file's stack.
#![allow(unsafe_code)]

use crate::{driver, thread};
use core::ffi::{CStr, c_int};
use core::mem;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// CUDA_SUCCESS.
pub const SUCCESS: u32 = 0;
/// CUDA_ERROR_NOT_READY: work is under way.
const NOT_READY: u32 = 600;
/// CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT.
pub const TEXTURE_ALIGNMENT: u32 = 14;
/// CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED.
pub const VMM_SUPPORTED: u32 = 102;
/// CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.
pub const RDMA_SUPPORTED: u32 = 110;

/// Struct CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: u32,
    id: c_int,
}

impl Location {
    /// CU_MEM_LOCATION_TYPE_DEVICE.
    fn of(device: i32) -> Location {
        Location { kind: 1, id: device }
    }
}

/// Struct CUmemAllocationProp.
#[repr(C)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    metadata: usize,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

impl Properties {
    /// CU_MEM_ALLOCATION_TYPE_PINNED on a device.
    fn of(device: i32, rdma: bool) -> Properties {
        let location = Location::of(device);
        Properties {
            kind: 1,
            handle_types: 0,
            location,
            metadata: 0,
            compression: 0,
            rdma: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// Struct CUmemAccessDesc.
#[repr(C)]
struct Access {
    location: Location,
    flags: u32,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

/// Calls the driver's function of a symbol; where it is, is looked up once.
macro_rules! call {
    ($symbol:literal ($($argument:expr => $type:ty),*)) => {{
        static PLACE: AtomicUsize = AtomicUsize::new(0);
        match find(&PLACE, $symbol) {
            0 => driver::NOT_SUPPORTED,
            address => {
                // SAFETY: the driver's function of this symbol has these types; see the head of the file.
                let function = unsafe { mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address) };
                // SAFETY: as above.
                thread::bypass(|| unsafe { function($($argument),*) })
            }
        }
    }};
}

fn find(place: &AtomicUsize, symbol: &CStr) -> usize {
    match place.load(Relaxed) {
        0 => {
            let found = driver::known(symbol);
            place.store(found, Relaxed);
            found
        }
        found => found,
    }
}

/// A result and what came with it.
fn answer<T>(result: u32, value: T) -> Result<T, u32> {
    if result == SUCCESS { Ok(value) } else { Err(result) }
}

/// The context of the calling thread; 0: none.
pub fn current_context() -> u64 {
    let mut context = 0_u64;
    let result = call!(c"cuCtxGetCurrent"(&raw mut context => *mut u64));
    answer(result, context).unwrap_or(0)
}

/// Whether the context of the calling thread can still be used: after a fault every call that works on memory returns
/// its error (cuda.h, CUDA_ERROR_ILLEGAL_ADDRESS). Asked of the legacy default stream, CU_STREAM_LEGACY; nothing may be
/// captured meanwhile.
pub fn is_healthy() -> bool {
    matches!(call!(c"cuStreamQuery"(1 => usize)), SUCCESS | NOT_READY)
}

/// The device of the context of the calling thread.
pub fn current_device() -> Result<i32, u32> {
    let mut device = -1;
    let result = call!(c"cuCtxGetDevice"(&raw mut device => *mut c_int));
    answer(result, device)
}

/// Whether the context that a device keeps (its primary context) is in use; `None`: the driver does not say.
pub fn primary_is_active(device: i32) -> Option<bool> {
    let (mut flags, mut active) = (0_u32, 0);
    let result = call!(c"cuDevicePrimaryCtxGetState"
        (device => c_int, &raw mut flags => *mut u32, &raw mut active => *mut c_int));
    (result == SUCCESS).then_some(active != 0)
}

/// Whether a context is the one that a device keeps. It is asked for only where there is one: retained it would
/// otherwise be made. What is retained here is released again.
pub fn is_primary(context: u64, device: i32) -> bool {
    if primary_is_active(device) != Some(true) {
        return false;
    }
    let mut primary = 0_u64;
    if call!(c"cuDevicePrimaryCtxRetain"(&raw mut primary => *mut u64, device => c_int)) != SUCCESS {
        return false;
    }
    let _ = call!(c"cuDevicePrimaryCtxRelease_v2"(device => c_int));
    primary == context
}

/// How many devices the program has.
pub fn device_count() -> Result<i32, u32> {
    let mut count = 0;
    let result = call!(c"cuDeviceGetCount"(&raw mut count => *mut c_int));
    answer(result, count)
}

/// An attribute of a device; 0 where the driver does not know it.
pub fn attribute(device: i32, attribute: u32) -> i32 {
    let mut value = 0;
    let result = call!(c"cuDeviceGetAttribute"
        (&raw mut value => *mut c_int, attribute => u32, device => c_int));
    answer(result, value).unwrap_or(0)
}

/// Bytes of a device.
pub fn total_memory(device: i32) -> Result<u64, u32> {
    let mut bytes = 0_usize;
    let result = call!(c"cuDeviceTotalMem_v2"(&raw mut bytes => *mut usize, device => c_int));
    answer(result, bytes as u64)
}

/// Unit of physical memory: CU_MEM_ALLOC_GRANULARITY_RECOMMENDED.
pub fn granularity(device: i32, rdma: bool) -> Result<u64, u32> {
    let (properties, mut bytes) = (Properties::of(device, rdma), 0_usize);
    let result = call!(c"cuMemGetAllocationGranularity"
        (&raw mut bytes => *mut usize, &raw const properties => *const Properties, 1 => u32));
    answer(result, bytes as u64)
}

/// Addresses without memory.
pub fn reserve(bytes: u64, alignment: u64) -> Result<u64, u32> {
    let mut address = 0_u64;
    let result = call!(c"cuMemAddressReserve"(&raw mut address => *mut u64, bytes as usize => usize,
        alignment as usize => usize, 0 => u64, 0 => u64));
    answer(result, address)
}

/// Gives addresses back that nothing is mapped at.
pub fn unreserve(address: u64, bytes: u64) -> Result<(), u32> {
    answer(call!(c"cuMemAddressFree"(address => u64, bytes as usize => usize)), ())
}

/// Physical memory of a device.
pub fn create(device: i32, rdma: bool, bytes: u64) -> Result<u64, u32> {
    let (properties, mut handle) = (Properties::of(device, rdma), 0_u64);
    let result = call!(c"cuMemCreate"(&raw mut handle => *mut u64, bytes as usize => usize,
        &raw const properties => *const Properties, 0 => u64));
    answer(result, handle)
}

/// Gives physical memory back, once it is mapped nowhere.
pub fn release(handle: u64) -> Result<(), u32> {
    answer(call!(c"cuMemRelease"(handle => u64)), ())
}

/// Maps physical memory at an address.
pub fn map(address: u64, bytes: u64, handle: u64) -> Result<(), u32> {
    let result = call!(c"cuMemMap"
        (address => u64, bytes as usize => usize, 0 => usize, handle => u64, 0 => u64));
    answer(result, ())
}

/// Ends the mapping.
pub fn unmap(address: u64, bytes: u64) -> Result<(), u32> {
    answer(call!(c"cuMemUnmap"(address => u64, bytes as usize => usize)), ())
}

/// Lets a device read and write (CU_MEM_ACCESS_FLAGS_PROT_READWRITE), or neither (..._NONE).
pub fn allow(address: u64, bytes: u64, device: i32, may: bool) -> Result<(), u32> {
    let access = Access { location: Location::of(device), flags: if may { 3 } else { 0 } };
    let result = call!(c"cuMemSetAccess"
        (address => u64, bytes as usize => usize, &raw const access => *const Access, 1 => usize));
    answer(result, ())
}

/// The device of a context.
pub fn device_of(context: u64) -> Result<i32, u32> {
    within(context, current_device)
}

/// Ends the access of the context of the calling thread to the memory of another one's device.
pub fn disable_peer(context: u64) -> Result<(), u32> {
    answer(call!(c"cuCtxDisablePeerAccess"(context => u64)), ())
}

/// Waits for the default stream: the one of all threads (CU_STREAM_LEGACY), or the thread's own (CU_STREAM_PER_THREAD).
pub fn settle(per_thread: bool) -> u32 {
    call!(c"cuStreamSynchronize"(if per_thread { 2 } else { 1 } => usize))
}

/// Runs `work` with a context that is current.
fn within<T>(context: u64, work: impl FnOnce() -> Result<T, u32>) -> Result<T, u32> {
    answer(call!(c"cuCtxPushCurrent_v2"(context => u64)), ())?;
    let result = work();
    let mut popped = 0_u64;
    let _ = call!(c"cuCtxPopCurrent_v2"(&raw mut popped => *mut u64));
    result
}

/// Waits until a context has done its work: the error that its work has ended with, if any.
pub fn synchronize(context: u64) -> Result<(), u32> {
    within(context, || answer(call!(c"cuCtxSynchronize"()), ()))
}
