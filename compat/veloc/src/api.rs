//! The functions of C. What each does and returns is said in `include/veloc.h`.
//!
//! There is one session in a process, as with VELOC. Calls of several threads wait for each other; a child of fork gets
//! VELOC_FAILURE. Why a call has failed is said on standard error.
//!
//! # Safety
//! Pointers are the program's, as the header demands: texts end with a zero, arrays of ids have the length that is said
//! beside them, memory has its size and stays until it is unregistered, `routed` has room for VELOC_MAX_NAME bytes. All
//! that can be looked at is: nulls, text that is no UTF-8, numbers.
#![allow(unsafe_code)]

use crate::config::Config;
use crate::mpi::Mpi;
use crate::session::{Session, Which};
use holdfast_objects::boundary::{guarded, note};
use holdfast_objects::client::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
/// VELOC_MAX_NAME.
const MAX_NAME: usize = 1024;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);
/// The process that has begun.
static PROCESS: AtomicU32 = AtomicU32::new(0);

fn say(call: &str, error: &Error) {
    note(error);
    eprintln!("veloc (holdfast): {call}: {error}");
}

fn number<T: From<i8>>(call: &str, done: Result<T, Error>) -> T {
    done.unwrap_or_else(|error| {
        say(call, &error);
        T::from(-1)
    })
}

fn locked<T>(act: impl FnOnce(&mut Option<Session>) -> Result<T, Error>) -> Result<T, Error> {
    guarded(|| {
        // Before the lock, which another thread of the parent may have had.
        let begun = PROCESS.load(Ordering::Acquire);
        if begun != 0 && begun != std::process::id() {
            return Err(Error::State(
                "this process is a child (fork) of the one that has called VELOC_Init".into(),
            ));
        }
        act(&mut SESSION.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

fn with<T: From<i8>>(call: &str, act: impl FnOnce(&mut Session) -> Result<T, Error>) -> T {
    let done = locked(|session| match session {
        Some(session) => act(session),
        None => Err(Error::State("VELOC_Init comes before".into())),
    });
    number(call, done)
}

fn done(call: &str, act: impl FnOnce(&mut Session) -> Result<(), Error>) -> c_int {
    with(call, |session| act(session).map(|()| SUCCESS))
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

fn version(number: c_int) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| Error::Argument(format!("version {number} is below 0")))
}

/// # Safety
/// So many ids, unless null.
unsafe fn which(mode: c_int, ids: *const c_int, count: c_int) -> Result<Which, Error> {
    let len = usize::try_from(count).unwrap_or(0);
    if ids.is_null() && len > 0 {
        return Err(Error::Argument("the ids are NULL".into()));
    }
    let ids = match len {
        0 => Default::default(),
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts(ids, len) }.iter().copied().collect(),
    };
    match mode {
        0 => Ok(Which::All),
        1 => Ok(Which::Some(ids)),
        2 => Ok(Which::Rest(ids)),
        _ => Err(Error::Argument(format!("mode {mode} is none: ALL, SOME or REST"))),
    }
}

/// # Safety
/// A text that ends with a zero, or null.
unsafe fn configured(file: *const c_char) -> Result<Config, Error> {
    // SAFETY: as the caller says.
    let file = if file.is_null() { "" } else { unsafe { text(file, "the configuration file") }? };
    let wrong = |why: String| Error::Argument(format!("configuration {file}: {why}"));
    let text = match file {
        "" => String::new(),
        _ => std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?,
    };
    Config::parse(&text, |name| std::env::var(name).ok()).map_err(wrong)
}

fn begin(session: &mut Option<Session>, new: Session) -> Result<(), Error> {
    if session.is_some() {
        return Err(Error::State("VELOC has begun already: VELOC_Finalize comes before".into()));
    }
    for note in new.notes() {
        eprintln!("veloc (holdfast): {note}");
    }
    PROCESS.store(std::process::id(), Ordering::Release);
    *session = Some(new);
    Ok(())
}

/// `VELOC_Init`: the communicator as it came, in a value of the size of a register.
///
/// # Safety
/// As said above; a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Init(comm: usize, file: *const c_char) -> c_int {
    let done = locked(|session| {
        // Not before MPI was found to be there: its calls are all ranks'.
        let mpi = Mpi::of(comm).map_err(Error::State)?;
        // SAFETY: as the caller says.
        let config = unsafe { configured(file) };
        begin(session, Session::new(config, Some(mpi), 0)?)
    });
    number("VELOC_Init", done.map(|()| SUCCESS))
}

/// `VELOC_Init_single`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Init_single(id: c_uint, file: *const c_char) -> c_int {
    let done = locked(|session| {
        // SAFETY: as the caller says.
        begin(session, Session::new(unsafe { configured(file) }, None, id)?)
    });
    number("VELOC_Init_single", done.map(|()| SUCCESS))
}

/// `VELOC_Finalize`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Finalize(drain: c_int) -> c_int {
    let done = locked(|session| {
        let Some(mut ended) = session.take() else {
            return Err(Error::State("VELOC_Init comes before".into()));
        };
        PROCESS.store(0, Ordering::Release);
        if drain != 0 { ended.wait() } else { Ok(()) }
    });
    number("VELOC_Finalize", done.map(|()| SUCCESS))
}

/// `VELOC_Mem_protect`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Mem_protect(
    id: c_int,
    memory: *mut c_void,
    count: usize,
    element: usize,
) -> c_int {
    // SAFETY: as the caller says.
    done("VELOC_Mem_protect", |session| unsafe { session.protect(id, memory, count, element, "") })
}

/// `VELOC_Region_protect`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_protect(
    id: c_int,
    memory: *mut c_void,
    count: usize,
    element: usize,
    name: *const c_char,
) -> c_int {
    done("VELOC_Region_protect", |session| {
        // SAFETY: as the caller says.
        unsafe { session.protect(id, memory, count, element, text(name, "the name")?) }
    })
}

/// `VELOC_Mem_unprotect`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Mem_unprotect(id: c_int) -> c_int {
    done("VELOC_Mem_unprotect", |session| session.unprotect(id, ""))
}

/// `VELOC_Region_unprotect`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_unprotect(id: c_int, name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    done("VELOC_Region_unprotect", |session| session.unprotect(id, unsafe { text(name, "the name") }?))
}

/// `VELOC_Mem_clear`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Mem_clear() -> c_int {
    done("VELOC_Mem_clear", |session| {
        session.clear("");
        Ok(())
    })
}

/// `VELOC_Region_clear`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Region_clear(name: *const c_char) -> c_int {
    done("VELOC_Region_clear", |session| {
        // SAFETY: as the caller says.
        session.clear(unsafe { text(name, "the name") }?);
        Ok(())
    })
}

/// `VELOC_Route_file`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Route_file(original: *const c_char, routed: *mut c_char) -> c_int {
    done("VELOC_Route_file", |session| {
        // SAFETY: as the caller says.
        let original = unsafe { text(original, "the original") }?;
        if routed.is_null() {
            return Err(Error::Argument("the memory for the path is NULL".into()));
        }
        let path = session.route(original)?.into_os_string().into_encoded_bytes();
        let path = &path[..path.len().min(MAX_NAME - 1)];
        // SAFETY: there is room for VELOC_MAX_NAME bytes, as the caller says: the path, cut to that, and a zero.
        unsafe {
            std::ptr::copy_nonoverlapping(path.as_ptr(), routed.cast(), path.len());
            *routed.add(path.len()) = 0;
        }
        Ok(())
    })
}

/// `VELOC_Cleanup`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Cleanup(name: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    done("VELOC_Cleanup", |session| session.cleanup(unsafe { text(name, "the name") }?))
}

/// `VELOC_Checkpoint_begin`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint_begin(name: *const c_char, number: c_int) -> c_int {
    done("VELOC_Checkpoint_begin", |session| {
        // SAFETY: as the caller says.
        session.checkpoint_begin(unsafe { text(name, "the name") }?, version(number)?)
    })
}

/// `VELOC_Checkpoint_selective`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint_selective(mode: c_int, ids: *const c_int, count: c_int) -> c_int {
    done("VELOC_Checkpoint_selective", |session| {
        // SAFETY: as the caller says.
        session.checkpoint_memory(&unsafe { which(mode, ids, count) }?)
    })
}

/// `VELOC_Checkpoint_mem`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_mem() -> c_int {
    done("VELOC_Checkpoint_mem", |session| session.checkpoint_memory(&Which::All))
}

/// `VELOC_Checkpoint_end`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_end(success: c_int) -> c_int {
    done("VELOC_Checkpoint_end", |session| session.checkpoint_end(success != 0))
}

/// `VELOC_Checkpoint_wait`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_wait() -> c_int {
    done("VELOC_Checkpoint_wait", Session::wait)
}

/// `VELOC_Checkpoint_finished`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Checkpoint_finished() -> c_int {
    with("VELOC_Checkpoint_finished", |session| session.is_finished().map(c_int::from))
}

/// `VELOC_Checkpoint`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Checkpoint(name: *const c_char, number: c_int) -> c_int {
    done("VELOC_Checkpoint", |session| {
        // SAFETY: as the caller says.
        session.checkpoint(unsafe { text(name, "the name") }?, version(number)?)
    })
}

/// `VELOC_Restart_test`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart_test(name: *const c_char, number: c_int) -> c_int {
    with("VELOC_Restart_test", |session| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name") }?;
        let below = Some(version(number)?).filter(|version| *version > 0);
        let found = session.restart_test(name, below)?;
        Ok(found.and_then(|version| c_int::try_from(version).ok()).unwrap_or(FAILURE))
    })
}

/// `VELOC_Restart_begin`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart_begin(name: *const c_char, number: c_int) -> c_int {
    done("VELOC_Restart_begin", |session| {
        // SAFETY: as the caller says.
        session.restart_begin(unsafe { text(name, "the name") }?, version(number)?)
    })
}

/// `VELOC_Recover_selective`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Recover_selective(mode: c_int, ids: *const c_int, count: c_int) -> c_int {
    done("VELOC_Recover_selective", |session| {
        // SAFETY: as the caller says.
        session.recover(&unsafe { which(mode, ids, count) }?)
    })
}

/// `VELOC_Recover_mem`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Recover_mem() -> c_int {
    done("VELOC_Recover_mem", |session| session.recover(&Which::All))
}

/// `VELOC_Recover_size`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Recover_size(id: c_int) -> c_int {
    with("VELOC_Recover_size", |session| {
        let Some(bytes) = session.recover_size(id)? else { return Ok(FAILURE) };
        c_int::try_from(bytes).map_err(|_| {
            Error::Argument(format!(
                "id {id} has {bytes} bytes, more than an int: call HOLDFAST_recover_size"
            ))
        })
    })
}

/// `HOLDFAST_recover_size`.
#[unsafe(no_mangle)]
pub extern "C" fn HOLDFAST_recover_size(id: c_int) -> i64 {
    with("HOLDFAST_recover_size", |session| {
        Ok(session.recover_size(id)?.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(-1))
    })
}

/// `VELOC_Restart_end`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Restart_end(_success: c_int) -> c_int {
    done("VELOC_Restart_end", Session::restart_end)
}

/// `VELOC_Restart`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Restart(name: *const c_char, number: c_int) -> c_int {
    done("VELOC_Restart", |session| {
        // SAFETY: as the caller says.
        session.restart(unsafe { text(name, "the name") }?, version(number)?)
    })
}

/// `VELOC_Prefetch_enqueue`.
///
/// # Safety
/// As said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VELOC_Prefetch_enqueue(name: *const c_char, number: c_int) -> c_int {
    done("VELOC_Prefetch_enqueue", |session| {
        // SAFETY: as the caller says.
        session.enqueue(unsafe { text(name, "the name") }?, version(number)?)
    })
}

/// `VELOC_Prefetch_start`.
#[unsafe(no_mangle)]
pub extern "C" fn VELOC_Prefetch_start() -> c_int {
    done("VELOC_Prefetch_start", Session::start)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn calls_out_of_order_and_nulls_fail() {
        // SAFETY: nulls are what is tried.
        unsafe {
            assert_eq!(VELOC_Checkpoint(c"heat".as_ptr(), 1), FAILURE);
            assert_eq!(VELOC_Restart_test(c"heat".as_ptr(), 0), FAILURE);
            assert_eq!(VELOC_Finalize(1), FAILURE);
            assert_eq!(VELOC_Init_single(0, c"/does/not/exist".as_ptr()), FAILURE);
            let file = std::env::temp_dir().join(format!("holdfast-veloc-{}.cfg", std::process::id()));
            std::fs::write(&file, "scratch = /tmp/holdfast-veloc-none\nmode = async\n").unwrap();
            let path = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
            assert_eq!(VELOC_Init_single(7, path.as_ptr()), SUCCESS);
            assert_eq!(VELOC_Init_single(7, path.as_ptr()), FAILURE);
            assert_eq!(VELOC_Mem_protect(0, null_mut(), 1, 8), FAILURE);
            assert_eq!(VELOC_Mem_protect(0, null_mut(), usize::MAX, 8), FAILURE);
            assert_eq!(VELOC_Mem_protect(0, null_mut(), 0, 8), SUCCESS);
            assert_eq!(VELOC_Region_protect(0, null_mut(), 0, 8, null()), FAILURE);
            assert_eq!((VELOC_Mem_unprotect(0), VELOC_Mem_unprotect(0)), (SUCCESS, FAILURE));
            assert_eq!(VELOC_Checkpoint_begin(c"a/b".as_ptr(), 1), FAILURE);
            assert_eq!(VELOC_Checkpoint_begin(c"a".as_ptr(), -1), FAILURE);
            assert_eq!((VELOC_Checkpoint_mem(), VELOC_Checkpoint_end(1)), (FAILURE, FAILURE));
            assert_eq!((VELOC_Recover_mem(), VELOC_Recover_size(1)), (FAILURE, FAILURE));
            assert_eq!(VELOC_Checkpoint_selective(1, null(), 1), FAILURE);
            assert_eq!(VELOC_Checkpoint_selective(9, null(), 0), FAILURE);
            assert_eq!(VELOC_Route_file(c"x".as_ptr(), null_mut()), FAILURE);
            assert_eq!((VELOC_Checkpoint_finished(), VELOC_Checkpoint_wait()), (1, SUCCESS));
            assert_eq!((VELOC_Restart_end(1), VELOC_Finalize(0)), (SUCCESS, SUCCESS));
            std::fs::remove_file(file).unwrap();
        }
    }
}
