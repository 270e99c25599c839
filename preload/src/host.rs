//! The few functions of the C library that the library uses: `errno`, the environment, the loader.
//!
//! Runs in: the host program, in constructors and in first calls; only [`keep_errno`] and [`set_errno`] also in signal
//! handlers (`__errno_location` is async-signal-safe).
//!
//! # Safety
//! All of this is C with the C library's own guarantees; each block names the one that it leans on.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::{mem, ptr};

pub use holdfast_cuda_hooks::syscall::keep_errno;

// With `no_std` nothing else asks for the C library.
#[link(name = "c")]
unsafe extern "C" {
    static mut environ: *const *const c_char;
    fn __errno_location() -> *mut c_int;
}

/// Whether the program lives on the C library that this one was made for. Others load it, too (LD_PRELOAD is theirs
/// as well), and must find nothing in it that they do not know, or they end the program: every name of glibc's own is
/// looked up.
pub fn is_glibc() -> bool {
    !next_definition(c"gnu_get_libc_version").is_null()
}

/// `errno`.
pub fn errno() -> c_int {
    // SAFETY: the address of the calling thread's errno.
    unsafe { __errno_location().read() }
}

/// Sets `errno`.
pub fn set_errno(number: c_int) {
    // SAFETY: the address of the calling thread's errno.
    unsafe { __errno_location().write(number) };
}

/// Turns what the kernel has returned into the convention of C.
pub fn from_kernel(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// Turns a result of [`crate::sys`] into the convention of C: -1 and `errno`.
pub fn to_c(result: Result<i64, c_int>) -> i64 {
    result.unwrap_or_else(|number| {
        set_errno(number);
        -1
    })
}

/// Whether the C library has set up its environment, hence itself: false in the very first calls by the loader.
pub fn is_up() -> bool {
    // SAFETY: a pointer-sized variable of the C library; a racing write by the program leaves it non-null.
    unsafe { !(&raw const environ).read_volatile().is_null() }
}

/// The environment: a null-terminated array.
pub fn environment() -> *const *const c_char {
    // SAFETY: as in `is_up`.
    unsafe { (&raw const environ).read_volatile() }
}

/// Where the variable `environ` is, as the program has it: an executable may have a copy of its own (R_X86_64_COPY).
pub fn environ_address() -> u64 {
    (&raw const environ).addr() as u64
}

/// Puts another array in its place.
///
/// # Safety
/// Single-threaded (constructor); the array must be null-terminated and live as long as the program.
pub unsafe fn set_environment(array: *const *const c_char) {
    // SAFETY: the caller's promise. Programs may assign `environ` (man environ(7)), so the C library copes with it.
    unsafe { (&raw mut environ).write_volatile(array) };
}

/// Calls `visit` for each string of the environment until it returns false.
pub fn each_variable(mut visit: impl FnMut(&'static CStr) -> bool) {
    let mut entry = environment();
    if entry.is_null() {
        return;
    }
    loop {
        // SAFETY: `environ` is a null-terminated array of NUL-terminated strings. They live as long as no thread calls
        // setenv at the same time: this runs in constructors and first calls, and in C API calls whose callers must
        // not change the environment in another thread meanwhile (said in holdfast.h).
        let text = unsafe { entry.read() };
        if text.is_null() {
            return;
        }
        // SAFETY: as above.
        if !visit(unsafe { CStr::from_ptr(text) }) {
            return;
        }
        // SAFETY: not yet at the null, so there is a next one.
        entry = unsafe { entry.add(1) };
    }
}

/// The value of `name` in the environment. Unlike getenv(3) it may be called before constructors have run.
pub fn variable(name: &str) -> Option<&'static CStr> {
    let mut found = None;
    each_variable(|entry| {
        let value = value_of(entry, name);
        if value.is_some() {
            found = value;
        }
        value.is_none()
    });
    found
}

/// The number that a variable has; 0 without one.
pub fn number(name: &str) -> u64 {
    let digits = variable(name).map_or(&b""[..], CStr::to_bytes);
    digits
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
}

/// Whether `fits` is true of any string of the environment.
pub fn environment_has(fits: impl Fn(&[u8]) -> bool) -> bool {
    let mut found = false;
    each_variable(|entry| {
        found = fits(entry.to_bytes());
        !found
    });
    found
}

/// Whether an environment variable has that value.
pub fn variable_is(name: &str, value: &str) -> bool {
    variable(name).is_some_and(|found| found.to_bytes() == value.as_bytes())
}

/// `VALUE` if `entry` is `name=VALUE`.
pub fn value_of<'a>(entry: &'a CStr, name: &str) -> Option<&'a CStr> {
    let rest = entry.to_bytes_with_nul().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
    CStr::from_bytes_with_nul(rest).ok()
}

/// The definition of `symbol` that comes after this library's, null if there is none.
pub fn next_definition(symbol: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name. RTLD_NEXT is relative to the caller's address, which lies in this library.
    unsafe { libc::dlsym(libc::RTLD_NEXT, symbol.as_ptr()) }
}

/// The definition of `symbol` that the program uses, null if there is none.
pub fn global_definition(symbol: &CStr) -> *mut c_void {
    // SAFETY: a NUL-terminated name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) }
}

/// Whether `address` is no function but the way to one: an executable that is not position-independent, and takes the
/// address of a library's function, has an entry of its own for it, of which the loader says that it is that function
/// (System V ABI, AMD64 supplement, "Function Addresses").
pub fn is_entry_to_another(address: *const c_void) -> bool {
    // dlfcn.h; the libc crate does not have it.
    const RTLD_DL_SYMENT: c_int = 1;
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let mut symbol: *const libc::Elf64_Sym = ptr::null();
    type Dladdr1 = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info, *mut *mut c_void, c_int) -> c_int;
    let dladdr1 = next_definition(c"dladdr1");
    if dladdr1.is_null() {
        return false;
    }
    // SAFETY: the function of this name writes `found` and, with this flag, a pointer to a symbol of a loaded object
    // (man dladdr(3)).
    let known = unsafe {
        let dladdr1 = mem::transmute::<*mut c_void, Dladdr1>(dladdr1);
        dladdr1(address, &raw mut found, (&raw mut symbol).cast(), RTLD_DL_SYMENT) != 0
    };
    // SAFETY: not null, so it points into the symbol table of an object that stays loaded. Section 0: undefined there.
    known && !symbol.is_null() && unsafe { (*symbol).st_shndx } == 0
}

/// The object (program or library) that holds `address`: its load address and the path it was loaded by.
pub fn object_of(address: *const c_void) -> Option<(*const c_void, &'static CStr)> {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: dladdr writes `found` only and accepts any address.
    let known = unsafe { libc::dladdr(address, &raw mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own copy of the path, alive as long as the object is loaded.
    Some((found.dli_fbase.cast_const(), unsafe { CStr::from_ptr(found.dli_fname) }))
}
