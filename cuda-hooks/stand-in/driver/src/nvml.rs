//! NVML, as far as Holdfast asks it: free memory of the device. The tests give this library that name, too
//! (`libnvidia-ml.so.1`); a real libcuda has none of these functions. It is another process's question: no context is
//! needed, and what counts is what all processes have (`shared_device`).
//!
//! # Safety
//! Exported symbols have NVML's names; arguments are plain numbers, or pointers that are wrapped (`pointer.rs`).
#![allow(unsafe_code)]

use crate::device;
use crate::pointer::{Out, Text};
use crate::settings::settings;
use crate::shared_device;

const SUCCESS: i32 = 0;
const INVALID_ARGUMENT: i32 = 2;
const NOT_FOUND: i32 = 6;

/// `nvmlInit_v2`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> i32 {
    SUCCESS
}

/// `nvmlDeviceGetHandleByUUID`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByUUID(uuid: Text, handle: Out<usize>) -> i32 {
    let Ok(text) = uuid.get() else { return INVALID_ARGUMENT };
    let hex: String = device::uuid().iter().map(|byte| format!("{byte:02x}")).collect();
    let given: String = text.trim_start_matches("GPU-").chars().filter(|&letter| letter != '-').collect();
    if given != hex {
        return NOT_FOUND;
    }
    if handle.put(1).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// `nvmlDeviceGetMemoryInfo`: total, free, used.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo(_handle: usize, memory: Out<u64>) -> i32 {
    let total = settings().memory;
    let used = shared_device::others().min(total);
    if memory.fill(&[total, total - used, used]).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// `nvmlDeviceGetMinorNumber`
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMinorNumber(_handle: usize, number: Out<u32>) -> i32 {
    if number.put(0).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}
