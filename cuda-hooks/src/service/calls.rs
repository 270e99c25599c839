//! The driver's own functions, as the service thread calls them: never through the gate, which is closed then.
//!
//! Runs in: the service thread. Invariants: what fails says which function it was and the driver's error (CUresult).
//! Fails by: [`Failed`]; a driver that lacks a function: CUDA_ERROR_NOT_SUPPORTED.
//!
//! # Safety
//! The functions have the types of the driver's header (cuda.h of CUDA 13.0); addresses of the host are those of memory
//! of the service's own, which callers have for as long as they say.
#![allow(unsafe_code)]

use crate::driver::{self, NOT_SUPPORTED};
use crate::table;
use core::ffi::{CStr, c_void};
use core::mem;
use core::ptr::{null, null_mut, with_exposed_provenance_mut};
use holdfast_cuda_kernels::launch::Launch;

/// What went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// The driver's error, or one of [`CudaData`](holdfast_abi::CudaData)'s faults.
    pub result: u64,
    /// Row of the function in the table, + 1; 0: none of the driver's.
    pub function: u64,
    /// Number of the block, + 1; 0: of none.
    pub block: u64,
    /// Of how many bytes it was; 0: of none.
    pub bytes: u64,
}

impl Failed {
    /// Not a function of the driver's.
    pub const fn with(result: u64) -> Failed {
        Failed { result, function: 0, block: 0, bytes: 0 }
    }

    /// The driver's function of this symbol, for so many bytes.
    pub fn of(symbol: &CStr, result: u64, bytes: u64) -> Failed {
        Failed {
            function: table::find(symbol).map_or(0, |row| row as u64 + 1),
            bytes,
            ..Failed::with(result)
        }
    }

    /// At this block.
    pub const fn at(self, block: usize) -> Failed {
        Failed { block: block as u64 + 1, ..self }
    }
}

/// What came of a call.
pub type Outcome<T = ()> = Result<T, Failed>;

fn function(symbol: &CStr) -> Outcome<usize> {
    match driver::known(symbol) {
        0 => Err(Failed::of(symbol, u64::from(NOT_SUPPORTED), 0)),
        address => Ok(address),
    }
}

/// Calls the driver's function of a symbol; with it: for how many bytes.
macro_rules! call {
    ($symbol:literal, $($value:expr => $type:ty),*) => { call!($symbol of 0, $($value => $type),*) };
    ($symbol:literal of $bytes:expr, $($value:expr => $type:ty),*) => {{
        let address = function($symbol)?;
        // SAFETY: the types of the header; pointers are to locals, or to what the caller has promised.
        let result = unsafe {
            mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address)($($value),*)
        };
        match result {
            0 => Ok(()),
            error => Err(Failed::of($symbol, u64::from(error), $bytes)),
        }
    }};
}

/// Makes a context current on top of what is.
pub fn push(context: u64) -> Outcome {
    call!(c"cuCtxPushCurrent_v2", context => u64)
}

/// Takes it off again.
pub fn pop() -> Outcome {
    let mut context = null_mut();
    call!(c"cuCtxPopCurrent_v2", &raw mut context => *mut *mut c_void)
}

/// Waits for all work of the current context.
pub fn synchronize() -> Outcome {
    call!(c"cuCtxSynchronize",)
}

/// Ends a mapping.
pub fn unmap(address: u64, bytes: u64) -> Outcome {
    call!(c"cuMemUnmap" of bytes, address => u64, bytes => u64)
}

/// Gives physical memory back.
pub fn release(handle: u64) -> Outcome {
    call!(c"cuMemRelease", handle => u64)
}

/// Memory of the driver's, for as long as a command takes.
pub fn allocate(bytes: u64) -> Outcome<u64> {
    let mut address = 0_u64;
    call!(c"cuMemAlloc_v2" of bytes, &raw mut address => *mut u64, bytes => u64).map(|()| address)
}

/// The other way.
pub fn free(address: u64) -> Outcome {
    call!(c"cuMemFree_v2", address => u64)
}

/// Zeros.
pub fn clear(address: u64, bytes: u64) -> Outcome {
    call!(c"cuMemsetD8_v2" of bytes, address => u64, 0 => u32, bytes => u64)
}

/// Copies to the device.
///
/// # Safety
/// So many bytes can be read at `from`.
pub unsafe fn to_device(to: u64, from: *const u8, bytes: u64) -> Outcome {
    call!(c"cuMemcpyHtoD_v2" of bytes, to => u64, from => *const u8, bytes => u64)
}

/// Copies from the device.
///
/// # Safety
/// So many bytes can be written at `to`, and nothing else refers to them.
pub unsafe fn from_device(to: *mut u8, from: u64, bytes: u64) -> Outcome {
    call!(c"cuMemcpyDtoH_v2" of bytes, to => *mut u8, from => u64, bytes => u64)
}

/// The same as [`to_device`] behind the work of the default stream: the call may return before it is done.
///
/// # Safety
/// So many bytes can be read at `from`, and nothing changes them until it is done.
pub unsafe fn to_device_later(to: u64, from: *const u8, bytes: u64) -> Outcome {
    let stream = null_mut();
    call!(c"cuMemcpyHtoDAsync_v2" of bytes, to => u64, from => *const u8, bytes => u64, stream => *mut c_void)
}

/// The same as [`from_device`].
///
/// # Safety
/// So many bytes can be written at `to`, and nothing else refers to them until it is done.
pub unsafe fn from_device_later(to: *mut u8, from: u64, bytes: u64) -> Outcome {
    let stream = null_mut();
    call!(c"cuMemcpyDtoHAsync_v2" of bytes, to => *mut u8, from => u64, bytes => u64, stream => *mut c_void)
}

/// Pins memory of the host, for all contexts.
pub fn register(at: u64, bytes: u64) -> Outcome {
    const PORTABLE: u32 = 1;
    call!(c"cuMemHostRegister_v2" of bytes, at => u64, bytes => u64, PORTABLE => u32)
}

/// Makes an event that has no time.
pub fn event() -> Outcome<u64> {
    const DISABLE_TIMING: u32 = 2;
    let mut event = 0_u64;
    call!(c"cuEventCreate", &raw mut event => *mut u64, DISABLE_TIMING => u32).map(|()| event)
}

/// It happens when the default stream comes to this place.
pub fn record(event: u64) -> Outcome {
    let stream = null_mut();
    call!(c"cuEventRecord", event => u64, stream => *mut c_void)
}

/// Waits until it has happened.
pub fn await_event(event: u64) -> Outcome {
    call!(c"cuEventSynchronize", event => u64)
}

/// Ends it.
pub fn end_event(event: u64) -> Outcome {
    call!(c"cuEventDestroy_v2", event => u64)
}

/// Loads a module from its text, with the zero at its end.
pub fn load(text: &'static [u8]) -> Outcome<u64> {
    let mut module = 0_u64;
    call!(c"cuModuleLoadData", &raw mut module => *mut u64, text.as_ptr() => *const u8).map(|()| module)
}

/// A kernel of it.
pub fn kernel(module: u64, name: &'static CStr) -> Outcome<u64> {
    let mut kernel = 0_u64;
    let place = &raw mut kernel;
    call!(c"cuModuleGetFunction", place => *mut u64, module => u64, name.as_ptr() => *const core::ffi::c_char)
        .map(|()| kernel)
}

/// Ends it.
pub fn unload(module: u64) -> Outcome {
    call!(c"cuModuleUnload", module => u64)
}

/// Launches a kernel on the default stream of the current context.
pub fn launch(kernel: u64, mut how: Launch) -> Outcome {
    let ([gx, gy, gz], [bx, by, bz]) = (how.grid(), how.block());
    let mut parameters = how.pointers();
    let (stream, extra) = (null_mut::<c_void>(), null::<c_void>());
    call!(c"cuLaunchKernel", kernel => u64, gx => u32, gy => u32, gz => u32, bx => u32, by => u32, bz => u32,
        0 => u32, stream => *mut c_void, parameters.as_mut_ptr() => *mut *mut c_void, extra => *const c_void)
}

/// Memory of the host as a place to copy from or to.
pub fn host(address: u64) -> *mut u8 {
    with_exposed_provenance_mut(address as usize)
}
