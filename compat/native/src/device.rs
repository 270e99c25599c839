//! Memory of a CUDA device, for regions that are there: copied by the driver that the program has loaded itself.
//!
//! Called by a handle at a put and a restore. There is no copy of an object on the device: the server has neither a
//! context nor memory there, and what is put lies in a buffer of the host as all objects do. Fails by: the driver is
//! not loaded, or the number that it says; a thread without a current context is one such case (201).
//!
//! # Safety
//! Functions are called with the types that `cuda.h` gives them, found under their names in a library that is loaded.
//! The driver checks addresses of the device itself; memory of the host is a slice.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::io::{self, Write};

type ToHost = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
type ToDevice = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;

/// What is at an address of the device, copied piece by piece, each after the one before.
pub struct DeviceMemory {
    at: u64,
    to_host: ToHost,
    to_device: ToDevice,
}

impl DeviceMemory {
    /// From this address on.
    ///
    /// # Errors
    /// The program has not loaded the driver.
    pub fn at(at: u64) -> io::Result<DeviceMemory> {
        let (to_host, to_device) = (symbol(c"cuMemcpyDtoH_v2")?, symbol(c"cuMemcpyHtoD_v2")?);
        // SAFETY: the types of cuda.h (CUdeviceptr is an integer of 64 bits).
        let (to_host, to_device) = unsafe {
            (
                std::mem::transmute::<*mut c_void, ToHost>(to_host),
                std::mem::transmute::<*mut c_void, ToDevice>(to_device),
            )
        };
        Ok(DeviceMemory { at, to_host, to_device })
    }

    /// The next bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        // SAFETY: a slice to be written.
        let code = unsafe { (self.to_host)(bytes.as_mut_ptr().cast(), self.at, bytes.len()) };
        self.passed(code, "from", bytes.len())
    }

    fn passed(&mut self, code: c_int, way: &str, len: usize) -> io::Result<()> {
        if code != 0 {
            let why = match code {
                201 => " (this thread has no CUDA context)",
                _ => "",
            };
            let at = self.at;
            return Err(io::Error::other(format!(
                "CUDA error {code}{why} at the copy of {len} bytes {way} the device's address {at:#x}"
            )));
        }
        self.at += len as u64;
        Ok(())
    }
}

impl Write for DeviceMemory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: a slice to be read.
        let code = unsafe { (self.to_device)(self.at, bytes.as_ptr().cast(), bytes.len()) };
        self.passed(code, "to", bytes.len()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A function of the driver: as the program itself would call it (under `holdfast run`: the one of libholdfast).
fn symbol(name: &CStr) -> io::Result<*mut c_void> {
    // SAFETY: names that end with a zero; a library is looked for among those that are loaded.
    let found = unsafe {
        let own = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        match own.is_null() && !library.is_null() {
            true => libc::dlsym(library, name.as_ptr()),
            false => own,
        }
    };
    if found.is_null() {
        let why =
            "the program has not loaded the CUDA driver (libcuda.so.1): memory of a device is copied by it";
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    Ok(found)
}
