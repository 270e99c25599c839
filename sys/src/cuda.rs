//! libcuda, loaded at run time: what a caller of the driver's checkpoint API needs of it, and no more.
//!
//! Used by the processes that call the driver (`holdfast __cuda`), never by an agent nor by a program. Functions are
//! asked for by cuGetProcAddress in the version that brought them, and by their names where that has none. Sources:
//! "CUDA Driver API", modules Initialization, Version Management, Device Management, Driver Entry Point Access and CUDA
//! Checkpointing; names, numbers and types of arguments as cuda.h 13.0 declares them.
//! How it fails: [`LoadError`]; a function that the driver lacks is [`NOT_FOUND`].
//!
//! By hand: dlopen(3) and dlsym(3), and calls through what they give.
//!
//! # Safety
//! A pointer is called with the arguments that the driver's documentation gives for the name that it was asked for by.
//! Argument structures of the checkpoint API are [`ARGUMENTS`] zeroed bytes: their fields differ between releases,
//! their size has not (cuda.h: CUcheckpointLockArgs, and the others). The library stays loaded as long as the process
//! lives.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use thiserror::Error;

/// CUDA_SUCCESS.
pub const SUCCESS: i32 = 0;
/// CUDA_ERROR_NOT_FOUND: here also a function that the driver does not have.
pub const NOT_FOUND: i32 = 500;
/// The version of CUDA that brought the checkpoint API.
const CHECKPOINT_API: c_int = 12080;
/// The one that brought the UUIDs of parts of devices (cuDeviceGetUuid_v2).
const UUID_V2: c_int = 11040;
/// Bytes of each argument structure.
const ARGUMENTS: usize = 64;
/// Longest name of a device that is taken.
const NAME: usize = 128;

/// Codes of results that say something to a user (cuda.h, CUresult).
const CODES: &[(i32, &str)] = &[
    (1, "invalid value"),
    (2, "out of memory"),
    (3, "not initialized"),
    (34, "stub library: there is no driver"),
    (46, "device unavailable"),
    (100, "no device"),
    (101, "invalid device"),
    (304, "a call of the operating system failed"),
    (401, "illegal state"),
    (NOT_FOUND, "not found"),
    (600, "not ready"),
    (800, "not permitted"),
    (801, "not supported"),
    (802, "system not ready"),
    (803, "driver and library do not fit together"),
    (804, "the library is too new for the driver"),
    (909, "timeout"),
    (999, "unknown error"),
];

/// A result in words, with its number.
pub fn describe(code: i32) -> String {
    match CODES.iter().find(|(known, _)| *known == code) {
        Some((_, words)) => format!("{words} (error {code})"),
        None => format!("error {code}"),
    }
}

/// The library cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {reason}")]
pub struct LoadError {
    /// Which.
    pub path: String,
    /// What the loader says, or what is missing.
    pub reason: String,
}

/// Device that was checkpointed, device to restore onto: UUIDs, as a CUcheckpointGpuPair has them (cuda.h 13.0).
pub type DevicePair = [[u8; 16]; 2];

/// A step of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// RUNNING to LOCKED; within so many milliseconds, or for ever if 0.
    Lock(u32),
    /// LOCKED to CHECKPOINTED.
    Checkpoint,
    /// CHECKPOINTED to LOCKED; onto these devices, or the same ones if there are none.
    Restore(&'a [DevicePair]),
    /// LOCKED to RUNNING.
    Unlock,
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetInt = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetDevice = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
type GetName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;
type Act = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;
type Ask = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// A driver, as far as it is needed here.
#[derive(Debug)]
pub struct Driver {
    init: Init,
    version: Option<GetInt>,
    count: Option<GetInt>,
    device: Option<GetDevice>,
    uuid: Option<GetUuid>,
    name: Option<GetName>,
    lock: Option<Act>,
    checkpoint: Option<Act>,
    restore: Option<Act>,
    unlock: Option<Act>,
    state: Option<Ask>,
    restore_thread: Option<Ask>,
}

/// A loaded library.
pub(crate) struct Library {
    handle: *mut c_void,
    resolve: Option<GetProcAddress>,
}

impl Library {
    pub(crate) fn open(path: &CStr) -> Option<Library> {
        // SAFETY: a string that ends with NUL; the library's own initialisers run, as they do in the program.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return None;
        }
        let mut library = Library { handle, resolve: None };
        let resolve = library.by_name(c"cuGetProcAddress_v2");
        // SAFETY: cuda.h declares cuGetProcAddress_v2 with these arguments.
        library.resolve =
            resolve.map(|found| unsafe { std::mem::transmute::<*mut c_void, GetProcAddress>(found) });
        Some(library)
    }

    fn by_name(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of dlopen and was not closed; the name ends with NUL.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }

    /// A function, in the form of this version of CUDA.
    fn find(&self, name: &CStr, version: c_int) -> Option<*mut c_void> {
        let Some(resolve) = self.resolve else { return self.by_name(name) };
        let (mut found, mut status) = (ptr::null_mut(), 0);
        // SAFETY: two locals to write to, and a name that ends with NUL; flags 0: the default.
        let code = unsafe { resolve(name.as_ptr(), &raw mut found, version, 0, &raw mut status) };
        let found = if code == SUCCESS && !found.is_null() { Some(found) } else { None };
        found.or_else(|| self.by_name(name))
    }

    /// The same, as a function pointer: the type is that of the field that it is for.
    pub(crate) fn function<Function: Copy>(&self, name: &CStr, version: c_int) -> Option<Function> {
        let found = self.find(name, version)?;
        // SAFETY: `Function` is one of the types above or of `nvcomp`, as long as a pointer; the library's header
        // declares the function of this name with its arguments.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, Function>(&found) })
    }
}

impl Driver {
    /// Loads the library of this path, or of this name where the loader finds it.
    ///
    /// # Errors
    /// It cannot be loaded, or is no libcuda.
    pub fn load(path: &Path) -> Result<Driver, LoadError> {
        let error = |reason: String| LoadError { path: path.display().to_string(), reason };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| error("not a path".into()))?;
        let library = Library::open(&name).ok_or_else(|| error(last_error(path)))?;
        let init: Option<Init> = library.function(c"cuInit", 2000);
        Ok(Driver {
            init: init.ok_or_else(|| error("it has no function cuInit: it is no libcuda".into()))?,
            version: library.function(c"cuDriverGetVersion", 2020),
            count: library.function(c"cuDeviceGetCount", 2000),
            device: library.function(c"cuDeviceGet", 2000),
            uuid: library.function(c"cuDeviceGetUuid", UUID_V2),
            name: library.function(c"cuDeviceGetName", 2000),
            lock: library.function(c"cuCheckpointProcessLock", CHECKPOINT_API),
            checkpoint: library.function(c"cuCheckpointProcessCheckpoint", CHECKPOINT_API),
            restore: library.function(c"cuCheckpointProcessRestore", CHECKPOINT_API),
            unlock: library.function(c"cuCheckpointProcessUnlock", CHECKPOINT_API),
            state: library.function(c"cuCheckpointProcessGetState", CHECKPOINT_API),
            restore_thread: library.function(c"cuCheckpointProcessGetRestoreThreadId", CHECKPOINT_API),
        })
    }

    /// Whether it has all of the checkpoint API.
    pub fn can_checkpoint(&self) -> bool {
        let acts = [self.lock, self.checkpoint, self.restore, self.unlock];
        acts.iter().all(Option::is_some) && self.state.is_some() && self.restore_thread.is_some()
    }

    /// `cuInit`; once per process, before all else.
    pub fn init(&self) -> i32 {
        // SAFETY: flags must be 0.
        unsafe { (self.init)(0) }
    }

    /// `cuDriverGetVersion`; 0: not known.
    pub fn version(&self) -> i32 {
        int(self.version).unwrap_or(0)
    }

    /// UUID and name of each device, as far as the driver tells them.
    pub fn devices(&self) -> Vec<([u8; 16], String)> {
        (0..int(self.count).unwrap_or(0)).filter_map(|number| self.device_of(number)).collect()
    }

    fn device_of(&self, number: c_int) -> Option<([u8; 16], String)> {
        let (mut device, mut uuid, mut name) = (0, [0; 16], [0_u8; NAME]);
        // SAFETY: a local to write to.
        let code = unsafe { (self.device?)(&raw mut device, number) };
        // SAFETY: a local of 16 bytes, which is what a CUuuid has.
        if code != SUCCESS || unsafe { (self.uuid?)(&raw mut uuid, device) } != SUCCESS {
            return None;
        }
        // SAFETY: a local of as many bytes as are said.
        let code = unsafe { (self.name?)(name.as_mut_ptr().cast(), NAME as c_int, device) };
        let text = CStr::from_bytes_until_nul(&name).ok().filter(|_| code == SUCCESS);
        Some((uuid, text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())))
    }

    /// One step of the process `pid`.
    pub fn act(&self, action: Action<'_>, pid: i32) -> i32 {
        let mut arguments = [0_u64; ARGUMENTS / 8];
        let function = match action {
            Action::Lock(timeout_ms) => {
                // Its first field, of 32 bits.
                arguments[0] = u64::from(timeout_ms);
                self.lock
            }
            Action::Checkpoint => self.checkpoint,
            Action::Restore(pairs) => {
                // Its first two fields: the address of the pairs, and their number, of 32 bits.
                if let Some(first) = pairs.first() {
                    arguments[0] = ptr::from_ref(first).expose_provenance() as u64;
                    arguments[1] = u64::from(u32::try_from(pairs.len()).unwrap_or(0));
                }
                self.restore
            }
            Action::Unlock => self.unlock,
        };
        // SAFETY: the structure is larger than none of those that a driver reads or writes, and zeroed but for what is
        // set; it and the pairs, which the driver only reads, outlive the call.
        function.map_or(NOT_FOUND, |function| unsafe { function(pid, arguments.as_mut_ptr().cast()) })
    }

    /// `cuCheckpointProcessGetState`: a CUprocessState.
    ///
    /// # Errors
    /// The driver's code.
    pub fn state(&self, pid: i32) -> Result<i32, i32> {
        ask(self.state, pid)
    }

    /// `cuCheckpointProcessGetRestoreThreadId`.
    ///
    /// # Errors
    /// The driver's code.
    pub fn restore_thread(&self, pid: i32) -> Result<i32, i32> {
        ask(self.restore_thread, pid)
    }
}

fn int(function: Option<GetInt>) -> Option<c_int> {
    let mut value = 0;
    // SAFETY: a local to write to.
    let code = unsafe { function?(&raw mut value) };
    (code == SUCCESS).then_some(value)
}

fn ask(function: Option<Ask>, pid: i32) -> Result<i32, i32> {
    let mut value = 0;
    // SAFETY: a local of an int, or of an enumeration of that size, to write to.
    let code = unsafe { function.ok_or(NOT_FOUND)?(pid, &raw mut value) };
    if code == SUCCESS { Ok(value) } else { Err(code) }
}

/// What the loader says of its last failure, without the name of the library, where that is the one at fault.
pub(crate) fn last_error(library: &Path) -> String {
    // SAFETY: no arguments; the text is the loader's, and is copied before its next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it cannot be loaded".into();
    }
    // SAFETY: as said; it ends with NUL.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let name = format!("{}: ", library.display());
    text.strip_prefix(&name).unwrap_or(&text).to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_told_by_its_name() {
        let error = |path: &str| Driver::load(Path::new(path)).unwrap_err().to_string();
        assert!(error("/nowhere/libcuda.so.1").starts_with("/nowhere/libcuda.so.1: "));
        assert!(error("libm.so.6").contains("it is no libcuda"));
    }

    #[test]
    fn results_are_told_in_words() {
        assert_eq!(describe(600), "not ready (error 600)");
        assert_eq!(describe(-7), "error -7");
    }
}
