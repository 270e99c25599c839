//! What the program may ask of memory of ours: answered as the driver would if it had allocated it.
//!
//! Called by: `mod.rs`, inside the gate, any thread. The driver is asked first, so that faults of the call are its own;
//! what it says of our blocks is replaced by what is true of the allocation. Addresses of ours where nothing is
//! allocated are asked of it as [`NOWHERE`], an address that no device memory has.
//! Fails by: the driver's error.
//!
//! # Safety
//! Answers are written where the driver has just written its own, with its types (CUDA driver API, "Unified
//! Addressing", table of CUpointer_attribute).
#![allow(unsafe_code)]

use super::calls::SUCCESS;
use super::memory::INVALID_VALUE;
use super::small::Entry;
use super::tables::{self, Found};
use core::ptr::with_exposed_provenance;

/// An address without an owner: not null, which some functions treat apart.
const NOWHERE: usize = 8;

// CUpointer_attribute.
const CONTEXT: u32 = 1;
const SYNC_MEMOPS: u32 = 6;
const BUFFER_ID: u32 = 7;
const RANGE_START: u32 = 11;
const RANGE_SIZE: u32 = 12;
const ALLOWED_HANDLE_TYPES: u32 = 14;

/// The allocation that an address of ours is of; what was freed is none.
fn find(address: usize) -> Option<Found> {
    tables::locked(|tables| tables.find(address as u64))?.filter(|found| found.flags & Entry::ENDED == 0)
}

/// cuMemGetAddressRange(&base, &size, address): either may be null.
pub fn address_range(base: usize, size: usize, address: usize, real: impl FnOnce(usize) -> u32) -> u32 {
    let Some(found) = find(address) else { return real(NOWHERE) };
    let result = real(address);
    if result == SUCCESS {
        // SAFETY: see the head of the file.
        unsafe {
            write(base, found.start);
            write(size, found.bytes);
        }
    }
    result
}

/// cuPointerGetAttribute(&value, attribute, address).
pub fn attribute(value: usize, attribute: u32, address: usize, real: impl FnOnce(usize) -> u32) -> u32 {
    let Some(found) = find(address) else { return real(NOWHERE) };
    let result = real(address);
    if result == SUCCESS {
        // SAFETY: see the head of the file.
        unsafe { replace(value, attribute, &found) };
    }
    result
}

/// cuPointerGetAttributes(count, attributes, values, address): an array of numbers, and one of addresses.
pub fn attributes(
    [count, attributes, values]: [usize; 3],
    address: usize,
    real: impl FnOnce(usize) -> u32,
) -> u32 {
    let Some(found) = find(address) else { return real(NOWHERE) };
    let result = real(address);
    if result == SUCCESS {
        for index in 0..count & u32::MAX as usize {
            // SAFETY: see the head of the file: the driver has read so many of both.
            unsafe {
                let attribute = with_exposed_provenance::<u32>(attributes).add(index).read_unaligned();
                let value = with_exposed_provenance::<usize>(values).add(index).read_unaligned();
                replace(value, attribute, &found);
            }
        }
    }
    result
}

/// cuPointerSetAttribute(&value, attribute, address). Whether drivers have CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for memory
/// of the virtual memory management API is not verified: where one has not, synchronous operations are made so here.
pub fn set_attribute(value: usize, attribute: u32, address: usize, real: impl FnOnce(usize) -> u32) -> u32 {
    let Some(found) = find(address) else { return real(NOWHERE) };
    let result = real(address);
    if attribute != SYNC_MEMOPS || value == 0 || !(result == SUCCESS || result == INVALID_VALUE) {
        return result;
    }
    // SAFETY: the program's own argument, an int that the driver has to read.
    let set = unsafe { with_exposed_provenance::<u32>(value).read_unaligned() } != 0;
    if set && result != SUCCESS {
        super::begin_to_settle();
    }
    let (set, clear) = if set { (Entry::SYNC, 0) } else { (0, Entry::SYNC) };
    tables::locked(|tables| tables.flag(&found, set, clear));
    SUCCESS
}

/// # Safety
/// 0, or where the driver has just written a word.
unsafe fn write(place: usize, value: u64) {
    if place != 0 {
        // SAFETY: the caller's promise.
        unsafe { with_exposed_provenance::<u64>(place).cast_mut().write_unaligned(value) };
    }
}

/// # Safety
/// `value` is 0, or where the driver has just written this attribute.
unsafe fn replace(value: usize, attribute: u32, found: &Found) {
    // SAFETY: the caller's promise; all but one are words (see the head of the file).
    unsafe {
        match attribute {
            CONTEXT => write(value, found.context),
            BUFFER_ID => write(value, found.number),
            RANGE_START => write(value, found.start),
            RANGE_SIZE => write(value, found.bytes),
            ALLOWED_HANDLE_TYPES => write(value, 0),
            SYNC_MEMOPS if value != 0 => {
                let flag = u8::from(found.flags & Entry::SYNC != 0);
                with_exposed_provenance::<u8>(value).cast_mut().write(flag);
            }
            _ => {}
        }
    }
}
