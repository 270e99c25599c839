//! `dlsym` and `dlvsym` for names of the driver's functions.
//!
//! Called by: the exports of preload (`preload/src/dlsym.rs`), which pass every other name on with a jump: names that
//! do not begin with `cu` and a capital letter never come here.
//! Invariants: the program gets what the C library would give it, or the wrapper of just that function. The exports of
//! this library, which is before the driver in the order of the loader, are never the answer: where there is no driver,
//! its functions are not found. RTLD_NEXT means: after the object that asks; it is answered by the C library itself, to
//! which the export jumps, but for the case that it would find ours.
//! Fails by: [`Answer::PASS`]: the export jumps to the C library.
//!
//! # Safety
//! Handles and names are the program's, passed on as they are.
#![allow(unsafe_code)]

use crate::{area, driver, next, platform, table, thread};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::ptr::{null, null_mut};

/// What the exports do.
#[repr(C)]
pub struct Answer {
    /// What is returned, if that is decided.
    pub value: *mut c_void,
    /// 1: it is; 0: the C library is to be asked, as if nothing had been in between.
    pub decided: u64,
}

impl Answer {
    /// The C library is to be asked.
    pub const PASS: Answer = Answer { value: null_mut(), decided: 0 };

    fn is(value: *mut c_void) -> Answer {
        Answer { value, decided: 1 }
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
type Dladdr1 = unsafe extern "C" fn(*const c_void, *mut libc::Dl_info, *mut *mut c_void, c_int) -> c_int;

/// A question to the C library.
#[derive(Clone, Copy)]
struct Question<'a> {
    name: &'a CStr,
    /// Null: `dlsym`.
    version: *const c_char,
}

impl Question<'_> {
    /// Asks on this library's behalf.
    fn ask(self, handle: *mut c_void) -> *mut c_void {
        // SAFETY: the C library's functions; the program's strings.
        let found = unsafe {
            if self.version.is_null() {
                let dlsym = mem::transmute::<*mut c_void, Dlsym>(next::address_of_dlsym());
                dlsym(handle, self.name.as_ptr())
            } else {
                let dlvsym = mem::transmute::<*mut c_void, Dlvsym>(next::address_of_dlvsym());
                dlvsym(handle, self.name.as_ptr(), self.version)
            }
        };
        core::hint::black_box(found)
    }
}

/// Looks `name` up for the code at `caller`.
///
/// # Safety
/// As `dlsym(3)`; `version` is null, or as `dlvsym(3)` has it.
pub unsafe extern "C-unwind" fn look_up(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: *const c_void,
) -> Answer {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if thread::passes() {
        return Answer::PASS;
    }
    let question = Question { name, version };
    match table::find(name).and_then(|row| table::ROWS.get(row)).map(table::Row::has_wrapper) {
        Some(false) => Answer::PASS,
        None => platform::keep_errno(|| not_in_the_table(question, handle)),
        Some(true) => platform::keep_errno(|| {
            if handle == libc::RTLD_NEXT {
                next_of(question, caller)
            } else {
                Answer::is(found_at(question, handle))
            }
        }),
    }
}

/// A name that the table does not have: of a driver that is newer, or of something else altogether.
fn not_in_the_table(question: Question<'_>, handle: *mut c_void) -> Answer {
    let found = if handle == libc::RTLD_NEXT { null_mut() } else { question.ask(handle) };
    if !found.is_null() {
        return Answer::is(replaced(found));
    }
    // The C library may find it for the one that asks: that is not seen.
    if driver::exports(question.name) {
        area::past_the_gate();
    }
    Answer::PASS
}

/// In the object of a handle, or in the program.
fn found_at(question: Question<'_>, handle: *mut c_void) -> *mut c_void {
    let mut found = question.ask(handle);
    if is_ours(found) {
        // What the program would have found behind ours.
        found = question.ask(libc::RTLD_NEXT);
        if found.is_null() {
            found = in_scope_of_library(question);
        }
    }
    replaced(found)
}

/// A driver library that is loaded, but not for the whole program: a library that was loaded with it finds it so
/// (RTLD_DEFAULT: after the program's own objects those that were loaded with the one that asks).
fn in_scope_of_library(question: Question<'_>) -> *mut c_void {
    let driver = driver::loaded();
    if driver.is_null() {
        // Once more, for what dlerror(3) says.
        return question.ask(libc::RTLD_NEXT);
    }
    let found = question.ask(driver);
    // SAFETY: the handle of just now.
    unsafe { libc::dlclose(driver) };
    found
}

/// The wrapper of what was found, if it has one.
fn replaced(found: *mut c_void) -> *mut c_void {
    if found.is_null() || driver::is_off() || !driver::bind_to_object_of(found) {
        found
    } else {
        driver::replacement(found)
    }
}

/// RTLD_NEXT. An object after this library finds nothing of it. One before it does, and gets what is behind ours: a
/// wrapper that intercepts the driver's function calls ours so.
fn next_of(question: Question<'_>, caller: *const c_void) -> Answer {
    if !next::is_before_ours(object_of(caller)) || !is_ours(question.ask(libc::RTLD_DEFAULT)) {
        return Answer::PASS;
    }
    let found = question.ask(libc::RTLD_NEXT);
    Answer::is(replaced(found))
}

/// Whether an address lies in this library.
fn is_ours(address: *mut c_void) -> bool {
    if address.is_null() {
        return false;
    }
    let base = |address: *const c_void| {
        let mut object = nothing_known();
        // SAFETY: dladdr writes `object` only, and accepts any address.
        let known = unsafe { libc::dladdr(address, &raw mut object) } != 0;
        known.then_some(object.dli_fbase)
    };
    let own = look_up as *const c_void;
    base(address).is_some_and(|found| base(own) == Some(found))
}

fn nothing_known() -> libc::Dl_info {
    libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() }
}

/// The loader's entry of the object at `address`, or null.
fn object_of(address: *const c_void) -> *const c_void {
    // dlfcn.h; the libc crate does not have it.
    const RTLD_DL_LINKMAP: c_int = 2;
    let dladdr1 = driver::own_dlsym(libc::RTLD_NEXT, c"dladdr1");
    if dladdr1.is_null() {
        return null();
    }
    let (mut object, mut map) = (nothing_known(), null_mut());
    // SAFETY: the function of this name writes `object` and, with this flag, the entry (man dladdr(3)).
    let known = unsafe {
        let dladdr1 = mem::transmute::<*mut c_void, Dladdr1>(dladdr1);
        dladdr1(address, &raw mut object, &raw mut map, RTLD_DL_LINKMAP) != 0
    };
    if known { map } else { null() }
}
