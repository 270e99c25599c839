//! The functions of C. What each does and returns is said in `preload/include/holdfast.h`, part "Objects".
//!
//! A handle may be used by any thread: calls wait for each other. A child of fork may only close it.
//!
//! # Safety
//! Pointers are the program's, as the header demands: a handle is null or one that `holdfast_open` has returned and
//! `holdfast_close` has not had; texts are null or end with a zero; memory has the size that is said beside it, and
//! stays until it is unregistered. All that can be looked at is: nulls, text that is no UTF-8, sizes.
#![allow(unsafe_code)]

use crate::handle::Handle;
use crate::options;
use holdfast_objects::boundary::{guarded, last, note};
use holdfast_objects::client::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, PoisonError};

/// What `holdfast_objects *` points to.
#[derive(Debug)]
pub struct Objects {
    /// The process that has opened it.
    process: u32,
    name: String,
    handle: Mutex<Handle>,
}

/// Not one of a program's versions: any version.
const ANY: u64 = u64::MAX;

/// The numbers of errors in the header, which a test of `preload` compares.
const FAILED: c_int = -4;
const ARGUMENT: c_int = -5;
const NOT_FOUND: c_int = -7;
const SIZE: c_int = -8;
const SERVER: c_int = -10;
const STATE: c_int = -11;
const FORKED: c_int = -12;

fn code(error: &Error) -> c_int {
    match error {
        Error::Argument(_) => ARGUMENT,
        Error::NoVersion { .. } | Error::NoObject { .. } => NOT_FOUND,
        Error::Size { .. } => SIZE,
        Error::NoServer { .. } | Error::Foreign { .. } | Error::Died { .. } | Error::Silent { .. } => SERVER,
        Error::State(_) => STATE,
        Error::Forked { .. } => FORKED,
        _ => FAILED,
    }
}

fn number(done: Result<i64, Error>) -> i64 {
    done.unwrap_or_else(|error| {
        note(&error);
        i64::from(code(&error))
    })
}

/// Does something with what a handle has.
///
/// # Safety
/// A handle of the header's kind.
unsafe fn with<T>(
    objects: *mut Objects,
    act: impl FnOnce(&mut Handle) -> Result<T, Error>,
) -> Result<T, Error> {
    guarded(|| {
        // SAFETY: null, or alive, as the caller says.
        let Some(objects) = (unsafe { objects.as_ref() }) else {
            return Err(Error::Argument("the handle is NULL: holdfast_open has failed, and said why".into()));
        };
        // Before the lock, which another thread of the parent may have had.
        if objects.process != std::process::id() {
            return Err(Error::Forked { set: objects.name.clone() });
        }
        act(&mut objects.handle.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// The same for a function that says no more than whether it was done.
///
/// # Safety
/// As [`with`].
unsafe fn done(objects: *mut Objects, act: impl FnOnce(&mut Handle) -> Result<(), Error>) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { with(objects, act) } {
        Ok(()) => 0,
        Err(error) => {
            note(&error);
            code(&error)
        }
    }
}

/// # Safety
/// Null, or a text that ends with a zero and stays as it is during the call.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(Error::Argument(format!("{what} is NULL")));
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::Argument(format!("{what} is not UTF-8: {}", text.to_string_lossy())))
}

fn version(number: u64) -> Result<u64, Error> {
    match i64::try_from(number) {
        Ok(_) => Ok(number),
        Err(_) => Err(Error::Argument(format!("version {number} is larger than a version can be"))),
    }
}

/// `holdfast_open`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_open(
    name: *const c_char,
    rank: c_uint,
    ranks: c_uint,
    options: *const c_char,
) -> *mut Objects {
    let opened = guarded(|| {
        // SAFETY: as the caller says.
        let (name, said) = unsafe {
            (text(name, "the name")?, if options.is_null() { "" } else { text(options, "the options")? })
        };
        let handle = Handle::open(options::parse(said, name, rank, ranks)?)?;
        let (process, name) = (std::process::id(), name.to_owned());
        Ok(Box::into_raw(Box::new(Objects { process, name, handle: Mutex::new(handle) })))
    });
    opened.unwrap_or_else(|error| {
        note(&error);
        std::ptr::null_mut()
    })
}

/// `holdfast_close`.
///
/// # Safety
/// As said above; no other thread uses the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_close(objects: *mut Objects) {
    let _ = guarded(|| {
        if !objects.is_null() {
            // SAFETY: of `holdfast_open`, and used by none any more, as the caller says.
            drop(unsafe { Box::from_raw(objects) });
        }
        Ok(())
    });
}

/// `holdfast_error`.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_error(_: *mut Objects) -> *const c_char {
    last()
}

/// `holdfast_region`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_region(
    objects: *mut Objects,
    key: *const c_char,
    memory: *mut c_void,
    bytes: usize,
    element: usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.register(text(key, "the key")?, memory, bytes, element)) }
}

/// `holdfast_region_device`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_region_device(
    objects: *mut Objects,
    key: *const c_char,
    memory: c_ulonglong,
    bytes: usize,
    element: usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.register_device(text(key, "the key")?, memory, bytes, element)) }
}

/// `holdfast_unregister`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_unregister(objects: *mut Objects, key: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.unregister(text(key, "the key")?)) }
}

/// `holdfast_put`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_put(objects: *mut Objects, number: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.put(version(number)?)) }
}

/// `holdfast_begin`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_begin(objects: *mut Objects, number: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.begin(version(number)?)) }
}

/// `holdfast_put_some`.
///
/// # Safety
/// As said above; `count` keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_put_some(
    objects: *mut Objects,
    keys: *const *const c_char,
    count: usize,
) -> c_int {
    let act = |handle: &mut Handle| {
        if keys.is_null() && count > 0 {
            return Err(Error::Argument("the keys are NULL".into()));
        }
        // SAFETY: as the caller says: so many, each a text.
        let all = (0..count).map(|i| unsafe { text(*keys.add(i), "a key") });
        handle.put_some(&all.collect::<Result<Vec<_>, _>>()?)
    };
    // SAFETY: as the caller says.
    unsafe { done(objects, act) }
}

/// `holdfast_put_rest`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_put_rest(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, Handle::put_rest) }
}

/// `holdfast_end`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_end(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().end()) }
}

/// `holdfast_abandon`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_abandon(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().abandon()) }
}

/// `holdfast_wait`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_wait(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().wait()) }
}

/// `holdfast_finished`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_finished(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { with(objects, |handle| handle.client().is_finished()) } {
        Ok(finished) => finished.into(),
        Err(error) => {
            note(&error);
            code(&error)
        }
    }
}

/// `holdfast_newest`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_newest(objects: *mut Objects, below: u64) -> i64 {
    let act = |handle: &mut Handle| {
        let newest = handle.client().newest((below != ANY).then_some(below))?;
        // Without an error text: it is an answer.
        Ok(newest.and_then(|version| i64::try_from(version).ok()).unwrap_or(-7))
    };
    // SAFETY: as the caller says.
    number(unsafe { with(objects, act) })
}

/// `holdfast_size`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_size(objects: *mut Objects, number: u64, key: *const c_char) -> i64 {
    // SAFETY: as the caller says.
    let size = unsafe { with(objects, |handle| handle.size(version(number)?, text(key, "the key")?)) };
    self::number(size.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
}

/// `holdfast_restore`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_restore(objects: *mut Objects, number: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.restore(version(number)?)) }
}

/// `holdfast_restore_into`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_restore_into(
    objects: *mut Objects,
    number: u64,
    key: *const c_char,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        done(objects, |handle| {
            handle.restore_into(version(number)?, text(key, "the key")?, memory, bytes).map(|_| ())
        })
    }
}

/// `holdfast_restored`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_restored(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().restored()) }
}

/// `holdfast_will_restore`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_will_restore(objects: *mut Objects, number: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().hint(version(number)?)) }
}

/// `holdfast_start`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_start(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().start()) }
}

/// `holdfast_discard`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_discard(objects: *mut Objects, number: u64) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().discard(version(number)?)) }
}

/// `holdfast_drop`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn holdfast_drop(objects: *mut Objects) -> c_int {
    // SAFETY: as the caller says.
    unsafe { done(objects, |handle| handle.client().drop_set()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    fn said() -> String {
        // SAFETY: the text of this thread, which ends with a zero.
        unsafe { CStr::from_ptr(holdfast_error(null_mut())) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn nulls_are_refused_with_a_text() {
        // SAFETY: nulls are what is tried.
        unsafe {
            assert!(holdfast_open(null(), 0, 1, null()).is_null());
            assert!(said().contains("NULL"), "{}", said());
            assert!(holdfast_open(c"heat".as_ptr(), 0, 1, c"stor=/x".as_ptr()).is_null());
            assert!(said().contains("stor=/x"), "{}", said());
            assert_eq!(holdfast_put(null_mut(), 1), -5);
            assert_eq!(holdfast_newest(null_mut(), ANY), -5);
            assert_eq!(holdfast_size(null_mut(), 1, null()), -5);
            assert_eq!(holdfast_region(null_mut(), null(), null_mut(), 1, 1), -5);
            holdfast_close(null_mut());
        }
    }
}
