//! The driver that the process has loaded, as far as it is needed here.
//!
//! # Safety
//! Functions are called with the arguments that cuda.h 13.0 declares for their names.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

type Synchronize = unsafe extern "C" fn(u64) -> i32;
type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize, u64) -> i32;
type ToDevice = unsafe extern "C" fn(u64, *const c_void, usize, u64) -> i32;

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: two strings that end with NUL. The library is loaded already: this is a reference more.
    let found = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if driver.is_null() { driver } else { libc::dlsym(driver, name.as_ptr()) }
    };
    (!found.is_null()).then_some(found)
}

/// Waits for a stream.
pub fn synchronize(stream: u64) -> Option<()> {
    let found = symbol(c"cuStreamSynchronize")?;
    // SAFETY: see the head of the file.
    let result = unsafe { std::mem::transmute::<*mut c_void, Synchronize>(found)(stream) };
    (result == 0).then_some(())
}

/// Bytes of the device.
pub fn read(at: u64, bytes: usize, stream: u64) -> Option<Vec<u8>> {
    let found = symbol(c"cuMemcpyDtoHAsync_v2")?;
    let mut buffer = vec![0u8; bytes];
    // SAFETY: as above; the buffer is that long, and there until the stream is done.
    let result = unsafe {
        let copy = std::mem::transmute::<*mut c_void, ToHost>(found);
        copy(buffer.as_mut_ptr().cast(), at, bytes, stream)
    };
    let done = synchronize(stream);
    (result == 0).then_some(())?;
    done.map(|()| buffer)
}

/// Puts bytes on the device, when the stream comes to it.
pub fn write(at: u64, bytes: Vec<u8>, stream: u64) -> Option<()> {
    let found = symbol(c"cuMemcpyHtoDAsync_v2")?;
    // Nothing says when the copy is done: they stay.
    let bytes = bytes.leak();
    // SAFETY: as above; the bytes are there for ever.
    let result = unsafe {
        let copy = std::mem::transmute::<*mut c_void, ToDevice>(found);
        copy(at, bytes.as_ptr().cast(), bytes.len(), stream)
    };
    (result == 0).then_some(())
}
