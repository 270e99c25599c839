//! The driver's own functions: where they are, and which wrapper belongs to an address.
//!
//! Runs in: the host program, when it first asks for a function of the driver, or first calls one; any thread.
//! What a function is, its address says, never a name alone: cuGetProcAddress() chooses by name, version and flags,
//! and a driver may have functions that the table does not know. So all addresses of the table's rows are collected
//! once: as the driver library exports them, and as cuGetProcAddress() gives them for the version that each row begins
//! with. An address of the driver that is not among them gets a wrapper that knows nothing of it (`unknown.rs`).
//! Invariants: the driver is asked first, so the program never gets a function that it lacks. One driver library per
//! process: the first. It stays loaded: what was collected must stay right. What another library intercepts (it
//! exports the name, too, and is before the driver) stays its own: calls by name pass through ours to it.
//! Fails by: functions without wrappers.
//!
//! # Safety
//! Addresses come from the loader and from the driver; they are called with the types of the driver's header.
#![allow(unsafe_code)]

use crate::table::{self, ROWS, Row};
use crate::{area, next, platform, thread, unknown};
use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::ptr::{self, null, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use holdfast_abi::CudaData;

/// What a wrapper returns that has nothing to call: CUDA_ERROR_STUB_LIBRARY (cuda.h: what runs has no driver).
pub const NO_DRIVER: u32 = 34;
/// The same where there is a driver, but not this function: CUDA_ERROR_NOT_SUPPORTED.
pub const NOT_SUPPORTED: u32 = 801;
/// Flags of cuGetProcAddress: CU_GET_PROC_ADDRESS_LEGACY_STREAM and ..._PER_THREAD_DEFAULT_STREAM.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// Entries of the map from addresses to rows, a power of two; each row has at most three addresses.
const ROOM: usize = 4096;
/// In an entry of the map: the row from this bit on; the address below (47 bits in every process).
const SHIFT: u32 = 48;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> u32;

static REAL: [AtomicUsize; ROWS.len()] = [const { AtomicUsize::new(0) }; ROWS.len()];
static MAP: [AtomicU64; ROOM] = [const { AtomicU64::new(0) }; ROOM];
/// 0: not known yet; see [`is_off`].
static IS_OFF: AtomicU8 = AtomicU8::new(0);
static FOUND: AtomicBool = AtomicBool::new(false);
/// Where the driver library is loaded.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Whether the driver library is known.
pub fn is_found() -> bool {
    FOUND.load(Acquire)
}

/// The driver's function of a row, looked for if it is not known; 0: there is none.
#[inline(always)]
pub(crate) fn real(row: usize) -> usize {
    match REAL.get(row).map(|place| place.load(Relaxed)) {
        Some(0) | None => look_for(row),
        Some(address) => address,
    }
}

/// The driver's function of a symbol, if it is known.
pub(crate) fn known(symbol: &CStr) -> usize {
    table::find(symbol).and_then(|row| REAL.get(row)).map_or(0, |place| place.load(Relaxed))
}

/// What the wrapper of a row returns that has nothing to call.
#[cold]
pub(crate) fn missing() -> u32 {
    if is_found() { NOT_SUPPORTED } else { NO_DRIVER }
}

/// The wrapper that takes the place of the function at `address`; `address` itself if there is none.
pub(crate) fn replacement(address: *mut c_void) -> *mut c_void {
    match row_at(address) {
        Some(row) => wrapper_of(row).unwrap_or(address),
        None if !is_the_drivers(address) => address,
        None => unknown::wrapper(address).unwrap_or_else(|| {
            area::past_the_gate();
            address
        }),
    }
}

/// Whether an address lies in the driver library.
fn is_the_drivers(address: *mut c_void) -> bool {
    let base = BASE.load(Relaxed);
    base != 0 && object_at(address).is_some_and(|object| object.dli_fbase.addr() == base)
}

/// The object that an address lies in.
fn object_at(address: *mut c_void) -> Option<libc::Dl_info> {
    let mut object: libc::Dl_info =
        libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() };
    // SAFETY: dladdr writes `object` only, and accepts any address.
    let known = unsafe { libc::dladdr(address, &raw mut object) } != 0;
    (known && !object.dli_fname.is_null()).then_some(object)
}

/// Whether the driver library, if it is loaded, exports a name.
pub(crate) fn exports(symbol: &CStr) -> bool {
    let handle = loaded();
    if handle.is_null() {
        return false;
    }
    let found = own_dlsym(handle, symbol);
    // SAFETY: the handle of just now. A name that is not there has left an error behind, which the program's own call
    // did not make.
    unsafe {
        libc::dlclose(handle);
        libc::dlerror();
    }
    !found.is_null()
}

/// The wrapper of a row, if it has one.
fn wrapper_of(row: usize) -> Option<*mut c_void> {
    if row >= ROWS.len() {
        return None;
    }
    let table: *const i32;
    // SAFETY: an address that the linker knows.
    unsafe {
        asm!("lea {}, [rip + holdfast_cuda_wrappers]", out(reg) table, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: the table (`wrappers.rs`) has one word for each row.
    let distance = unsafe { table.add(row).read() };
    (distance != 0)
        .then(|| ptr::with_exposed_provenance_mut(table.addr().wrapping_add_signed(distance as isize)))
}

/// Whether nothing is to be seen of the driver (`--cuda off`): asked once.
pub(crate) fn is_off() -> bool {
    const OFF: u8 = 2;
    match IS_OFF.load(Relaxed) {
        0 => {
            let off = if platform::wished_owner() == CudaData::OFF { OFF } else { 1 };
            IS_OFF.store(off, Relaxed);
            off == OFF
        }
        known => known == OFF,
    }
}

/// A program that was linked with the driver calls the function for the first time.
#[cold]
fn look_for(row: usize) -> usize {
    let Some(entry) = ROWS.get(row) else { return 0 };
    if !thread::passes() && !is_found() {
        platform::keep_errno(|| {
            let mut definition = own_dlsym(libc::RTLD_NEXT, entry.symbol());
            if is_off() {
                let driver = loaded();
                if definition.is_null() && !driver.is_null() {
                    definition = own_dlsym(driver, entry.symbol());
                }
            } else if definition.is_null() || !bind_to_object_of(definition) {
                bind_loaded();
            }
            if let Some(place) = REAL.get(row)
                && place.load(Relaxed) == 0
                && !definition.is_null()
            {
                place.store(definition.addr(), Relaxed);
            }
        });
    }
    REAL.get(row).map_or(0, |place| place.load(Relaxed))
}

/// Looks a symbol up as the C library does, on this library's behalf.
pub(crate) fn own_dlsym(handle: *mut c_void, symbol: &CStr) -> *mut c_void {
    // SAFETY: the C library's function, or that of the library that intercepts it.
    unsafe {
        let dlsym = mem::transmute::<*mut c_void, Dlsym>(next::address_of_dlsym());
        let found = dlsym(handle, symbol.as_ptr());
        // A call, not a jump: the C library has to see the address of this library behind itself.
        core::hint::black_box(found)
    }
}

/// Collects the functions of the object that has the one at `address`, if it is a driver library.
pub(crate) fn bind_to_object_of(address: *mut c_void) -> bool {
    if is_found() {
        return true;
    }
    object_at(address).is_some_and(|object| bind_name(object.dli_fname))
}

/// The same with the driver library by its usual name, if it is loaded.
fn bind_loaded() -> bool {
    bind_name(c"libcuda.so.1".as_ptr())
}

/// A handle of the driver library by its usual name, if it is loaded.
pub(crate) fn loaded() -> *mut c_void {
    // SAFETY: a NUL-terminated name; nothing is loaded by this flag.
    unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}

fn bind_name(name: *const c_char) -> bool {
    // SAFETY: a NUL-terminated name; nothing is loaded by this flag, but what is loaded stays so from now on.
    let handle = unsafe { libc::dlopen(name, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let bound = !handle.is_null() && thread::bypass(|| bind(handle));
    if !handle.is_null() && !bound {
        // SAFETY: the handle of just now.
        unsafe { libc::dlclose(handle) };
    }
    // SAFETY: takes nothing. Names that the driver lacks have left an error behind, which the program's own call did
    // not make.
    unsafe { libc::dlerror() };
    bound
}

/// Whether a library is a driver: not every library with a name that begins so.
fn is_driver(handle: *mut c_void) -> bool {
    [c"cuInit", c"cuDriverGetVersion", c"cuCtxGetCurrent"]
        .iter()
        .all(|symbol| !own_dlsym(handle, symbol).is_null())
}

fn bind(handle: *mut c_void) -> bool {
    if !is_driver(handle) {
        return false;
    }
    area::prepare();
    if let Some(object) = object_at(own_dlsym(handle, c"cuInit")) {
        BASE.store(object.dli_fbase.addr(), Relaxed);
    }
    for (row, entry) in ROWS.iter().enumerate() {
        collect_export(handle, row, entry);
    }
    // The newer version has a fifth argument, which the older does not look at.
    let get = [c"cuGetProcAddress_v2", c"cuGetProcAddress"]
        .iter()
        .map(|symbol| own_dlsym(handle, symbol))
        .find(|get| !get.is_null());
    if let Some(get) = get {
        // SAFETY: the driver's function of this name has this type in its header.
        let get = unsafe { mem::transmute::<*mut c_void, Get>(get) };
        for (row, entry) in ROWS.iter().enumerate() {
            collect_given(handle, get, row, entry);
        }
    }
    FOUND.store(true, Release);
    true
}

/// The address by which the driver library exports a row's function.
fn collect_export(handle: *mut c_void, row: usize, entry: &Row) {
    let own = own_dlsym(handle, entry.symbol());
    let Some(place) = REAL.get(row) else { return };
    // What a call by name leads to without this library. Only what has a wrapper is exported here.
    let by_name = if entry.has_wrapper() { own_dlsym(libc::RTLD_NEXT, entry.symbol()) } else { null_mut() };
    if by_name.is_null() || by_name == own {
        if !own.is_null() {
            place.store(own.addr(), Relaxed);
            remember(own, row);
        }
        return;
    }
    place.store(by_name.addr(), Relaxed);
    if !own.is_null() {
        area::past_the_gate();
    }
}

/// The address that cuGetProcAddress() gives for a row's name and version.
fn collect_given(handle: *mut c_void, get: Get, row: usize, entry: &Row) {
    let own = own_dlsym(handle, entry.symbol());
    let intercepted = !own.is_null() && REAL.get(row).is_some_and(|place| place.load(Relaxed) != own.addr());
    if intercepted {
        return;
    }
    let (mut given, mut status) = (null_mut(), 0);
    let flags = if entry.per_thread { PER_THREAD } else { LEGACY };
    // SAFETY: the driver's function, with the types of its header; it writes one address and one status.
    let result =
        unsafe { get(entry.name().as_ptr(), &raw mut given, entry.version as c_int, flags, &raw mut status) };
    if result != 0 || given.is_null() {
        return;
    }
    // An address that is known belongs to the row that exports it, whatever its name.
    if row_at(given).is_none() {
        remember(given, row);
    }
    if let Some(place) = REAL.get(row)
        && place.load(Relaxed) == 0
        && entry.has_wrapper()
    {
        place.store(given.addr(), Relaxed);
    }
}

/// Where an address is looked for first.
fn place_of(address: usize) -> usize {
    (address >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - ROOM.trailing_zeros())
}

/// Puts an address into the map. Threads that do so at once put in the same.
fn remember(address: *mut c_void, row: usize) {
    let address = address.addr();
    if address >> SHIFT != 0 {
        return;
    }
    let entry = address as u64 | (row as u64) << SHIFT;
    for step in 0..ROOM {
        let Some(place) = MAP.get((place_of(address) + step) % ROOM) else { return };
        let found = match place.compare_exchange(0, entry, Release, Acquire) {
            Ok(_) => return,
            Err(found) => found,
        };
        if found & ((1 << SHIFT) - 1) == address as u64 {
            return;
        }
    }
}

/// The row whose function is at `address`.
fn row_at(address: *mut c_void) -> Option<usize> {
    let address = address.addr();
    for step in 0..ROOM {
        let entry = MAP.get((place_of(address) + step) % ROOM)?.load(Acquire);
        if entry == 0 {
            return None;
        }
        if entry & ((1 << SHIFT) - 1) == address as u64 {
            return Some((entry >> SHIFT) as usize);
        }
    }
    None
}
