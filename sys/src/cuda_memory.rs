//! Memory of CUDA devices, by the driver API: what a process that owns some for others needs, and no more.
//!
//! Used by the keeper (`holdfast __keeper`) and by tests. A [`Device`] has its primary context; every call makes that
//! current first, so that a thread may use several devices. Sources: "CUDA Driver API", modules Device Management,
//! Primary Context Management, Memory Management, Virtual Memory Management, Module Management and Execution Control;
//! names, numbers and types of arguments as cuda.h 13.0 declares them.
//! How it fails: [`DeviceError`] with the function and the driver's code.
//!
//! # Safety
//! Functions are called with the arguments that cuda.h declares for the name that they were asked for by. Memory of the
//! host that is read or written is a slice of the caller's, and such copies have ended when the call returns: "this
//! function exhibits synchronous behavior for most use cases"; where it may not be, cuCtxSynchronize follows. Those of
//! [`Device::to_host_later`] and [`Device::to_device_later`] go on after the call: see there.
#![allow(unsafe_code)]

use crate::cuda::{Library, LoadError, NOT_FOUND, SUCCESS, describe, last_error};
use crate::nvcomp::{Chunk, Nvcomp, Plan};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use thiserror::Error;

/// CUDA_ERROR_OUT_OF_MEMORY.
pub const OUT_OF_MEMORY: i32 = 2;
/// CUDA_ERROR_DEVICE_UNAVAILABLE ("often ... due to use of CU_COMPUTEMODE_EXCLUSIVE_PROCESS").
const UNAVAILABLE: i32 = 46;
/// CUDA_ERROR_INVALID_VALUE.
const INVALID_VALUE: i32 = 1;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const DESCRIPTOR: c_uint = 1;
/// CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_ALLOCATION_TYPE_PINNED.
const ON_DEVICE: c_uint = 1;
const PINNED: c_uint = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: c_uint = 3;

/// CU_MEMHOSTREGISTER_PORTABLE.
const PORTABLE: c_uint = 1;
/// CU_EVENT_DISABLE_TIMING.
const NO_TIME: c_uint = 2;

/// A call that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{function}: {}", describe(*code))]
pub struct DeviceError {
    /// Name of the driver's function.
    pub function: &'static str,
    /// A CUresult.
    pub code: i32,
}

/// CUmemAllocationProp: type, kinds of handles, location (type, number), a pointer for Windows, flags.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties([c_uint; 4], [u64; 2]);

/// CUmemAccessDesc: location (type, number), flags.
#[repr(C)]
struct Access([c_uint; 3]);

macro_rules! functions {
    ($($field:ident: $name:literal, $version:literal, ($($argument:ty),*);)*) => {
        /// The driver's functions.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Functions, DeviceError> {
                let missing = |function| DeviceError { function, code: NOT_FOUND };
                Ok(Functions {
                    $($field: CString::new($name).ok()
                        .and_then(|name| library.function(&name, $version))
                        .ok_or_else(|| missing($name))?,)*
                })
            }
        }

        /// Names for messages.
        mod names {
            #![allow(non_upper_case_globals)]
            $(pub(super) const $field: &str = $name;)*
        }
    };
}

functions! {
    init: "cuInit", 2000, (c_uint);
    device_count: "cuDeviceGetCount", 2000, (*mut c_int);
    device_get: "cuDeviceGet", 2000, (*mut c_int, c_int);
    device_uuid: "cuDeviceGetUuid", 11040, (*mut [u8; 16], c_int);
    retain: "cuDevicePrimaryCtxRetain", 7000, (*mut *mut c_void, c_int);
    set_current: "cuCtxSetCurrent", 4000, (*mut c_void);
    synchronize: "cuCtxSynchronize", 2000, ();
    memory_info: "cuMemGetInfo", 3020, (*mut usize, *mut usize);
    allocate: "cuMemAlloc", 3020, (*mut u64, usize);
    free: "cuMemFree", 3020, (u64);
    reserve: "cuMemAddressReserve", 10020, (*mut u64, usize, usize, u64, u64);
    free_range: "cuMemAddressFree", 10020, (u64, usize);
    create: "cuMemCreate", 10020, (*mut u64, usize, *const Properties, u64);
    release: "cuMemRelease", 10020, (u64);
    map: "cuMemMap", 10020, (u64, usize, usize, u64, u64);
    unmap: "cuMemUnmap", 10020, (u64, usize);
    set_access: "cuMemSetAccess", 10020, (u64, usize, *const Access, usize);
    export: "cuMemExportToShareableHandle", 10020, (*mut c_int, u64, c_uint, u64);
    import: "cuMemImportFromShareableHandle", 10020, (*mut u64, *mut c_void, c_uint);
    to_host: "cuMemcpyDtoH", 3020, (*mut c_void, u64, usize);
    to_host_async: "cuMemcpyDtoHAsync", 3020, (*mut c_void, u64, usize, *mut c_void);
    to_device: "cuMemcpyHtoD", 3020, (u64, *const c_void, usize);
    to_device_async: "cuMemcpyHtoDAsync", 3020, (u64, *const c_void, usize, *mut c_void);
    event_create: "cuEventCreate", 2000, (*mut *mut c_void, c_uint);
    event_record: "cuEventRecord", 2000, (*mut c_void, *mut c_void);
    event_wait: "cuEventSynchronize", 2000, (*mut c_void);
    event_destroy: "cuEventDestroy", 4000, (*mut c_void);
    on_device: "cuMemcpyDtoD", 3020, (u64, u64, usize);
    set: "cuMemsetD8", 3020, (u64, u8, usize);
    register: "cuMemHostRegister", 6050, (*mut c_void, usize, c_uint);
    unregister: "cuMemHostUnregister", 4000, (*mut c_void);
    load: "cuModuleLoadData", 2000, (*mut *mut c_void, *const c_void);
    get_function: "cuModuleGetFunction", 2000, (*mut *mut c_void, *mut c_void, *const c_char);
    launch: "cuLaunchKernel", 4000, (*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void,
        *mut *mut c_void, *mut *mut c_void);
}

/// Calls a function of the driver's.
macro_rules! call {
    ($functions:expr, $name:ident $(, $argument:expr)*) => {{
        // SAFETY: the arguments have the types that the table has from the header; pointers are to locals, or to what
        // the caller has lent, and are not kept.
        match unsafe { ($functions.$name)($($argument),*) } {
            SUCCESS => Ok(()),
            code => Err(DeviceError { function: names::$name, code }),
        }
    }};
}

/// A device, and its primary context.
pub struct Device {
    functions: Rc<Functions>,
    context: *mut c_void,
    number: c_uint,
    /// As the driver tells it.
    pub uuid: [u8; 16],
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(*mut c_void);

/// Loads the library of this path, initialises the driver, and opens all devices.
///
/// # Errors
/// It cannot be loaded or initialised, or lacks a function; in words.
pub fn open(path: &Path) -> Result<Vec<Device>, String> {
    let error = |reason: String| LoadError { path: path.display().to_string(), reason }.to_string();
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| error("not a path".into()))?;
    let library = Library::open(&name).ok_or_else(|| error(last_error(path)))?;
    let functions = Functions::of(&library).map_err(|missing| error(missing.to_string()))?;
    let devices = || -> Result<Vec<Device>, DeviceError> {
        let functions = Rc::new(functions);
        call!(functions, init, 0)?;
        let mut count = 0;
        call!(functions, device_count, &raw mut count)?;
        (0..count).map(|number| Device::open(&functions, number)).collect()
    };
    devices().map_err(|failed| match failed.code {
        UNAVAILABLE => error(format!(
            "{failed}; another process may have the device for itself (compute mode EXCLUSIVE_PROCESS: \
             `nvidia-smi -c DEFAULT` ends it)"
        )),
        _ => error(failed.to_string()),
    })
}

impl Device {
    fn open(functions: &Rc<Functions>, ordinal: c_int) -> Result<Device, DeviceError> {
        let (mut device, mut uuid, mut context) = (0, [0; 16], ptr::null_mut());
        call!(functions, device_get, &raw mut device, ordinal)?;
        call!(functions, device_uuid, &raw mut uuid, device)?;
        call!(functions, retain, &raw mut context, device)?;
        let number = device.cast_unsigned();
        Ok(Device { functions: Rc::clone(functions), context, number, uuid })
    }

    /// Its context becomes that of this thread.
    fn enter(&self) -> Result<&Functions, DeviceError> {
        call!(self.functions, set_current, self.context)?;
        Ok(&self.functions)
    }

    fn properties(&self) -> Properties {
        Properties([PINNED, DESCRIPTOR, ON_DEVICE, self.number], [0; 2])
    }

    /// Bytes that are free, and all.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let (mut free, mut all) = (0, 0);
        call!(self.enter()?, memory_info, &raw mut free, &raw mut all)?;
        Ok((free as u64, all as u64))
    }

    /// Waits until all is done that was begun.
    ///
    /// # Errors
    /// What was begun has failed.
    pub fn finish(&self) -> Result<(), DeviceError> {
        call!(self.enter()?, synchronize)
    }

    /// Memory of the driver's, until [`Device::free`].
    ///
    /// # Errors
    /// There is not so much.
    pub fn allocate(&self, bytes: u64) -> Result<u64, DeviceError> {
        let mut at = 0;
        call!(self.enter()?, allocate, &raw mut at, bytes as usize)?;
        Ok(at)
    }

    /// The other way.
    ///
    /// # Errors
    /// There is none.
    pub fn free(&self, at: u64) -> Result<(), DeviceError> {
        call!(self.enter()?, free, at)
    }

    /// Physical memory that can be exported: its handle.
    ///
    /// # Errors
    /// There is not so much.
    pub fn create(&self, bytes: u64) -> Result<u64, DeviceError> {
        let (mut handle, properties) = (0, self.properties());
        call!(self.enter()?, create, &raw mut handle, bytes as usize, &raw const properties, 0)?;
        Ok(handle)
    }

    /// Gives a reference to physical memory back.
    ///
    /// # Errors
    /// There is no such handle.
    pub fn release(&self, handle: u64) -> Result<(), DeviceError> {
        call!(self.enter()?, release, handle)
    }

    /// A descriptor of physical memory, for another process.
    ///
    /// # Errors
    /// The driver does not give one.
    pub fn export(&self, handle: u64) -> Result<OwnedFd, DeviceError> {
        let mut number = -1;
        call!(self.enter()?, export, &raw mut number, handle, DESCRIPTOR, 0)?;
        // SAFETY: the driver has just opened it for the caller, whose it is.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Physical memory of another process: a handle.
    ///
    /// # Errors
    /// It is none, or none of this device's.
    pub fn import(&self, memory: BorrowedFd<'_>) -> Result<u64, DeviceError> {
        let mut handle = 0;
        // The number itself, in the place of a pointer (reference of cuMemImportFromShareableHandle).
        let number = ptr::without_provenance_mut(memory.as_raw_fd() as usize);
        call!(self.enter()?, import, &raw mut handle, number, DESCRIPTOR)?;
        Ok(handle)
    }

    /// Maps physical memory where the driver finds room: the address.
    ///
    /// # Errors
    /// There is no room; nothing is mapped.
    pub fn map(&self, handle: u64, bytes: u64) -> Result<u64, DeviceError> {
        let (functions, bytes, mut at) = (self.enter()?, bytes as usize, 0);
        call!(functions, reserve, &raw mut at, bytes, 0, 0, 0)?;
        let access = Access([ON_DEVICE, self.number, READ_WRITE]);
        let mapped = call!(functions, map, at, bytes, 0, handle, 0);
        let usable =
            mapped.clone().and_then(|()| call!(functions, set_access, at, bytes, &raw const access, 1));
        if usable.is_err() {
            let _ = mapped.and_then(|()| call!(functions, unmap, at, bytes));
            let _ = call!(functions, free_range, at, bytes);
        }
        usable.map(|()| at)
    }

    /// The other way.
    ///
    /// # Errors
    /// Nothing is mapped there.
    pub fn unmap(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        let functions = self.enter()?;
        call!(functions, unmap, at, bytes as usize)?;
        call!(functions, free_range, at, bytes as usize)
    }

    /// Fills a slice from the device.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn to_host(&self, from: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        if into.is_empty() {
            return Ok(());
        }
        call!(self.enter()?, to_host, into.as_mut_ptr().cast(), from, into.len())
    }

    /// Fills the beginning of a slice, of memory that is pinned better than not, with what is at several places of the
    /// device, one behind the other.
    ///
    /// # Errors
    /// See [`DeviceError`]; CUDA_ERROR_INVALID_VALUE: the slice is too short.
    pub fn to_host_all(&self, places: &[Range<u64>], into: &mut [u8]) -> Result<(), DeviceError> {
        let functions = self.enter()?;
        let bytes: u64 = places.iter().map(|place| place.end.saturating_sub(place.start)).sum();
        if bytes > into.len() as u64 {
            return Err(DeviceError { function: names::to_host_async, code: INVALID_VALUE });
        }
        let mut rest = into;
        let mut copied = Ok(());
        for place in places.iter().filter(|place| place.start < place.end) {
            let (now, later) = rest.split_at_mut((place.end - place.start) as usize);
            rest = later;
            let to = now.as_mut_ptr().cast();
            copied = call!(functions, to_host_async, to, place.start, now.len(), ptr::null_mut());
            if copied.is_err() {
                break;
            }
        }
        // Nothing may be under way into the slice when it is given back.
        let finished = self.finish();
        copied.and(finished)
    }

    /// Begins to fill memory of the host.
    ///
    /// # Errors
    /// See [`DeviceError`]; nothing is under way.
    ///
    /// # Safety
    /// So many bytes can be written at `to`, and nothing refers to them until an [`Event`] of later has happened, or
    /// [`Device::finish`] has returned.
    pub(crate) unsafe fn to_host_later(
        &self,
        from: u64,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        call!(self.enter()?, to_host_async, to.as_ptr().cast(), from, bytes, ptr::null_mut())
    }

    /// Begins to copy memory of the host to the device.
    ///
    /// # Errors
    /// See [`DeviceError`]; nothing is under way.
    ///
    /// # Safety
    /// So many bytes can be read at `from`, and nothing changes them until then: see [`Device::to_host_later`].
    pub(crate) unsafe fn to_device_later(
        &self,
        to: u64,
        from: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), DeviceError> {
        call!(self.enter()?, to_device_async, to, from.as_ptr().cast(), bytes, ptr::null_mut())
    }

    /// What happens when all is done that was begun up to now.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub(crate) fn event(self: &Rc<Self>) -> Result<Event, DeviceError> {
        let (functions, mut event) = (self.enter()?, ptr::null_mut());
        call!(functions, event_create, &raw mut event, NO_TIME)?;
        let event = Event { device: Rc::clone(self), event };
        call!(functions, event_record, event.event, ptr::null_mut())?;
        Ok(event)
    }

    /// Its context becomes that of this thread, for whatever uses that.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn enter_context(&self) -> Result<(), DeviceError> {
        self.enter().map(drop)
    }

    /// Has nvCOMP pack chunks of this device's by a plan for as many, in a workspace of [`Plan::bytes`] that nothing
    /// else uses: where each is in the workspace; `None`: it has not become shorter.
    ///
    /// # Errors
    /// In words.
    pub fn pack(
        &self,
        nvcomp: &Nvcomp,
        plan: &Plan,
        workspace: u64,
        chunks: &[Chunk],
    ) -> Result<Vec<Option<Range<u64>>>, String> {
        let words = |error: DeviceError| error.to_string();
        if !workspace.is_multiple_of(Plan::ALIGNMENT) {
            return Err(format!("the workspace at {workspace:#x} is not aligned"));
        }
        let head = plan.head(workspace, chunks).map_err(|error| error.to_string())?;
        self.to_device(workspace, &head).map_err(words)?;
        // SAFETY: the workspace is the caller's, aligned, and has its head; whatever is wrong with an address of the
        // device the driver tells, and it touches nothing of the host; the context was made current by the copy.
        let packed = unsafe { nvcomp.compress(plan, workspace, 0) };
        let finished = self.finish();
        packed.map_err(|error| error.to_string())?;
        finished.map_err(words)?;
        let at = plan.results_at();
        let mut results = vec![0; (at.end - at.start) as usize];
        self.to_host(workspace + at.start, &mut results).map_err(words)?;
        Ok(plan.results(chunks, &results))
    }

    /// Copies a slice to the device.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn to_device(&self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        if from.is_empty() {
            return Ok(());
        }
        call!(self.enter()?, to_device, to, from.as_ptr().cast(), from.len())?;
        // From memory that is not pinned it may return before the last bytes are there ("API synchronization
        // behavior"): what follows may be in another process.
        self.finish()
    }

    /// Copies on the device.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn on_device(&self, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        call!(self.enter()?, on_device, to, from, bytes as usize)
    }

    /// Fills memory of the device with a byte.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn set(&self, at: u64, byte: u8, bytes: u64) -> Result<(), DeviceError> {
        call!(self.enter()?, set, at, byte, bytes as usize)
    }

    /// Pins memory of this process, for all devices, until [`Device::unregister`].
    ///
    /// # Errors
    /// The driver does not pin it.
    pub(crate) fn register(&self, at: NonNull<c_void>, bytes: usize) -> Result<(), DeviceError> {
        call!(self.enter()?, register, at.as_ptr(), bytes, PORTABLE)
    }

    /// The other way.
    ///
    /// # Errors
    /// It is not pinned, or work has failed.
    pub(crate) fn unregister(&self, at: NonNull<c_void>) -> Result<(), DeviceError> {
        call!(self.enter()?, unregister, at.as_ptr())
    }

    /// Loads kernels from PTX that ends with NUL.
    ///
    /// # Errors
    /// They are not for this device; a name that is not there.
    pub fn load<const COUNT: usize>(
        &self,
        ptx: &CStr,
        kernels: [&CStr; COUNT],
    ) -> Result<[Kernel; COUNT], DeviceError> {
        let (functions, mut module) = (self.enter()?, ptr::null_mut());
        call!(functions, load, &raw mut module, ptx.as_ptr().cast())?;
        let mut found = [Kernel(ptr::null_mut()); COUNT];
        for (kernel, name) in found.iter_mut().zip(kernels) {
            call!(functions, get_function, &raw mut kernel.0, module, name.as_ptr())?;
        }
        Ok(found)
    }

    /// Begins a kernel, whose parameters all have eight bytes.
    ///
    /// # Errors
    /// It cannot be begun, or what was begun before has failed.
    pub fn launch(
        &self,
        kernel: Kernel,
        [grid, block]: [[u32; 3]; 2],
        parameters: &[u64],
    ) -> Result<(), DeviceError> {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|parameter| ptr::from_ref(parameter).cast_mut().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        let (stream, extra) = (ptr::null_mut(), ptr::null_mut());
        call!(
            self.enter()?,
            launch,
            kernel.0,
            gx,
            gy,
            gz,
            bx,
            by,
            bz,
            0,
            stream,
            pointers.as_mut_ptr(),
            extra
        )
    }
}

/// A place in what a device has to do.
#[derive(Debug)]
pub(crate) struct Event {
    device: Rc<Device>,
    event: *mut c_void,
}

impl Event {
    /// Waits until it has come there.
    ///
    /// # Errors
    /// What was begun has failed.
    pub(crate) fn wait(&self) -> Result<(), DeviceError> {
        call!(self.device.enter()?, event_wait, self.event)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.enter().and_then(|functions| call!(functions, event_destroy, self.event));
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_driver_is_told_by_its_name() {
        let error = |path: &str| open(Path::new(path)).unwrap_err();
        assert!(error("/nowhere/libcuda.so.1").starts_with("/nowhere/libcuda.so.1: "));
        assert!(error("libm.so.6").contains("cuInit"));
    }
}
