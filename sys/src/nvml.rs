//! NVML, loaded at run time: how much memory of a device is free, without a context on it.
//!
//! Used by the process that calls the driver (`holdfast __cuda`): cuMemGetInfo would need a context, which takes some
//! 500 MiB of the very device that may be full. Source: "NVML API Reference Guide", Initialization and Cleanup, Device
//! Queries; nvmlMemory_t is three numbers of 64 bits: total, free, used.
//! How it fails: words; NVML comes with the driver, but not into every container.
//!
//! # Safety
//! Functions are called with the arguments that NVML's reference gives for the name that they were asked for by, after
//! nvmlInit; pointers are to locals, and are not kept. The library stays loaded as long as the process lives.
#![allow(unsafe_code)]

use crate::cuda::{Library, last_error};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The name by which the loader finds it.
pub const NAME: &str = "libnvidia-ml.so.1";
/// NVML_SUCCESS.
const SUCCESS: c_int = 0;

type Handle = *mut c_void;

/// NVML, initialised.
#[derive(Debug)]
pub struct Nvml {
    by_uuid: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int,
    memory: unsafe extern "C" fn(Handle, *mut [u64; 3]) -> c_int,
    minor: Option<unsafe extern "C" fn(Handle, *mut c_uint) -> c_int>,
}

/// Memory of a device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes that nothing has.
    pub free: u64,
    /// Bytes that there are.
    pub total: u64,
    /// The number in the name of its file, /dev/nvidiaN.
    pub minor: Option<u32>,
}

impl Nvml {
    /// Loads the library of this path, or of this name where the loader finds it, and initialises it.
    ///
    /// # Errors
    /// It cannot; in words.
    pub fn load(path: &Path) -> Result<Nvml, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "not a path".to_owned())?;
        let said = || format!("{}: {}", path.display(), last_error(path));
        let library = Library::open(&name).ok_or_else(said)?;
        let missing = |function: &str| format!("{} has no {function}", path.display());
        let init: unsafe extern "C" fn() -> c_int =
            library.function(c"nvmlInit_v2", 0).ok_or_else(|| missing("nvmlInit_v2"))?;
        let by_uuid = library.function(c"nvmlDeviceGetHandleByUUID", 0);
        let memory = library.function(c"nvmlDeviceGetMemoryInfo", 0);
        let nvml = Nvml {
            by_uuid: by_uuid.ok_or_else(|| missing("nvmlDeviceGetHandleByUUID"))?,
            memory: memory.ok_or_else(|| missing("nvmlDeviceGetMemoryInfo"))?,
            minor: library.function(c"nvmlDeviceGetMinorNumber", 0),
        };
        // SAFETY: no arguments.
        match unsafe { init() } {
            SUCCESS => Ok(nvml),
            code => Err(format!("nvmlInit_v2: error {code} of NVML")),
        }
    }

    /// That of the device of this UUID, as nvidia-smi prints it.
    ///
    /// # Errors
    /// It does not say; in words.
    pub fn room(&self, uuid: &str) -> Result<Room, String> {
        let failed = |function: &str, code: c_int| format!("{function} of {uuid}: error {code} of NVML");
        let text = CString::new(uuid).map_err(|_| "not a UUID".to_owned())?;
        let (mut handle, mut memory) = (ptr::null_mut(), [0; 3]);
        // SAFETY: a string that ends with NUL, and a local to write to.
        match unsafe { (self.by_uuid)(text.as_ptr(), &raw mut handle) } {
            SUCCESS => {}
            code => return Err(failed("nvmlDeviceGetHandleByUUID", code)),
        }
        // SAFETY: a handle of this library's, and a local of the size of an nvmlMemory_t.
        match unsafe { (self.memory)(handle, &raw mut memory) } {
            SUCCESS => {}
            code => return Err(failed("nvmlDeviceGetMemoryInfo", code)),
        }
        let mut number = 0;
        let minor = self.minor.filter(|minor| {
            // SAFETY: as above; a local to write to.
            (unsafe { minor(handle, &raw mut number) }) == SUCCESS
        });
        let [total, free, _] = memory;
        Ok(Room { free, total, minor: minor.map(|_| number) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvml_is_told_by_its_name() {
        let error = |path: &str| Nvml::load(Path::new(path)).unwrap_err();
        assert!(error("/nowhere/libnvidia-ml.so.1").starts_with("/nowhere/libnvidia-ml.so.1: "));
        assert_eq!(error("libm.so.6"), "libm.so.6 has no nvmlInit_v2");
    }
}
