//! Linux AIO: contexts are noted, with how many requests each has taken. The kernel does not tell whether requests are
//! under way; a ring tells how many have ended, so the agent knows it by what is noted here. Where the user asks for
//! that (`--aio off`) there are none: programs that need them would not start.
//!
//! Runs in: the host program, any thread. Invariants: while a call that makes a context, ends it or gives it work is
//! under way, `aio_calls` is not 0; between calls an entry of the table has what its context has taken, modulo 2^64. A
//! forked child has no contexts ([`forked`]; fs/aio.c, the ring is VM_DONTCOPY). They come back at their addresses
//! after a restart, so the table stays. Fails by: a context that is not in the table, because it is full or because of
//! a call past the C library and libaio: the agent refuses it by name (`process/src/refuse.rs`); a signal handler that
//! jumps out of such a call leaves it counted.
//!
//! # Safety
//! The exports have the signatures of libaio's functions (libaio.h) and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::host;
use crate::{shared, sys};
use core::ffi::{CStr, c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use holdfast_abi::environment::{AIO_OFF, ENV_AIO};
use holdfast_abi::{AioContext, SharedPage};

static ABSENT: AtomicBool = AtomicBool::new(false);

/// The agent knows this process: from now on there is no AIO, if the user has asked for none.
pub fn start() {
    ABSENT.store(host::variable_is(ENV_AIO, AIO_OFF), Relaxed);
}

/// In a child made by fork(2).
pub fn forked() {
    shared::clear(shared::word(SharedPage::AIO_CALLS));
    entries().for_each(|entry| shared::clear(entry.context));
}

/// Makes a call of this module by its number; `None`: it is another one.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let call = || unsafe { sys::raw(number, args) };
    match number {
        // SAFETY: the caller's promise.
        libc::SYS_io_setup => Some(unsafe { making(args[1], call) }),
        libc::SYS_io_submit => Some(submitting(args[0], call)),
        libc::SYS_io_destroy => Some(ending(args[0], call)),
        _ => None,
    }
}

struct Entry {
    context: &'static AtomicU64,
    submitted: &'static AtomicU64,
}

fn entries() -> impl Iterator<Item = Entry> {
    (0..SharedPage::AIO_MAX).map(|index| {
        let at = SharedPage::AIO_TABLE + index * SharedPage::AIO_ENTRY;
        Entry {
            context: shared::word(at + AioContext::CONTEXT),
            submitted: shared::word(at + AioContext::SUBMITTED),
        }
    })
}

fn entry_of(context: usize) -> Option<Entry> {
    entries().find(|entry| context != 0 && entry.context.load(SeqCst) == context as u64)
}

/// Counts a call while it is under way.
fn counted(call: impl FnOnce() -> isize) -> isize {
    shared::word(SharedPage::AIO_CALLS).fetch_add(1, SeqCst);
    let result = call();
    shared::word(SharedPage::AIO_CALLS).fetch_sub(1, SeqCst);
    result
}

/// `result`: what the call returns; `context`: where it writes what it has made.
///
/// # Safety
/// As for `io_setup(2)`.
unsafe fn making(context: usize, call: impl FnOnce() -> isize) -> isize {
    if ABSENT.load(Relaxed) {
        return -(libc::ENOSYS as isize);
    }
    counted(|| {
        let result = call();
        if result as c_int == 0 {
            // SAFETY: the kernel has just written there.
            note(unsafe { core::ptr::with_exposed_provenance::<u64>(context).read_unaligned() });
        }
        result
    })
}

fn note(context: u64) {
    for entry in entries() {
        // What an entry that is not in force counts means nothing.
        if entry.context.compare_exchange(0, context, SeqCst, SeqCst).is_ok() {
            entry.submitted.store(0, SeqCst);
            return;
        }
    }
}

fn submitting(context: usize, call: impl FnOnce() -> isize) -> isize {
    counted(|| {
        let result = call();
        // An int in C, a long as the kernel's.
        if let (Ok(taken), Some(entry)) = (u64::try_from(result as c_int), entry_of(context)) {
            entry.submitted.fetch_add(taken, SeqCst);
        }
        result
    })
}

fn ending(context: usize, call: impl FnOnce() -> isize) -> isize {
    counted(|| {
        let result = call();
        if let (0, Some(entry)) = (result as c_int, entry_of(context)) {
            entry.context.store(0, SeqCst);
        }
        result
    })
}

type Function = unsafe extern "C" fn(usize, usize, usize) -> isize;

/// libaio's own function of this name, looked for once.
fn real(name: &CStr, known: &AtomicPtr<c_void>) -> Option<Function> {
    let mut found = known.load(Relaxed);
    if found.is_null() {
        found = host::next_definition(name);
        known.store(found, Relaxed);
    }
    if found.is_null() {
        return None;
    }
    // SAFETY: a function of this name has three arguments of a register each, or fewer (libaio.h).
    Some(unsafe { core::mem::transmute::<*mut c_void, Function>(found) })
}

/// Calls it; ENOSYS where the program has no libaio. The functions return an error's number, negative.
///
/// # Safety
/// As for libaio's function.
unsafe fn forward(name: &CStr, known: &AtomicPtr<c_void>, args: [usize; 3]) -> isize {
    let Some(real) = real(name, known) else { return -(libc::ENOSYS as isize) };
    // SAFETY: the caller's promise.
    unsafe { real(args[0], args[1], args[2]) }
}

/// `io_setup(2)`, by libaio's wrapper.
///
/// # Safety
/// As for libaio's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_setup(events: c_int, context: *mut *mut c_void) -> c_int {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let at = context.expose_provenance();
    // SAFETY: the caller's promise.
    unsafe { making(at, || forward(c"io_setup", &REAL, [events as usize, at, 0])) as c_int }
}

/// `io_submit(2)`, likewise.
///
/// # Safety
/// As for libaio's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_submit(context: usize, count: c_long, requests: *mut c_void) -> isize {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let args = [context, count as usize, requests.expose_provenance()];
    // SAFETY: the caller's promise.
    submitting(context, || unsafe { forward(c"io_submit", &REAL, args) })
}

/// `io_destroy(2)`, likewise.
///
/// # Safety
/// As for libaio's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_destroy(context: usize) -> isize {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: the caller's promise.
    ending(context, || unsafe { forward(c"io_destroy", &REAL, [context, 0, 0]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submitted(context: usize) -> Option<u64> {
        entry_of(context).map(|entry| entry.submitted.load(SeqCst))
    }

    #[test]
    fn a_context_has_what_it_has_taken_until_its_end() {
        let mut made = 0x7000_u64;
        let at = (&raw mut made).expose_provenance();
        // SAFETY: `made` is there.
        let make = |result: isize| unsafe { making(at, || result) };
        assert_eq!((make(-11), submitted(0x7000)), (-11, None));
        assert_eq!((make(0), submitted(0x7000)), (0, Some(0)));
        for (result, sum) in [(3, 3), (-11, 3), (0, 3), (2, 5)] {
            assert_eq!((submitting(0x7000, || result), submitted(0x7000)), (result, Some(sum)));
        }
        submitting(0x8000, || {
            assert_eq!(shared::word(SharedPage::AIO_CALLS).load(SeqCst), 1, "under way");
            1
        });
        assert_eq!((submitted(0x8000), submitted(0)), (None, None));
        assert_eq!((ending(0x7000, || -22), submitted(0x7000)), (-22, Some(5)));
        assert_eq!((ending(0x7000, || 0), submitted(0x7000)), (0, None));
        // Another one at the same address.
        make(0);
        assert_eq!(submitted(0x7000), Some(0));
        forked();
        assert_eq!((submitted(0x7000), shared::word(SharedPage::AIO_CALLS).load(SeqCst)), (None, 0));
        assert_eq!(unsafe_by_number(libc::SYS_io_getevents), None);
    }

    fn unsafe_by_number(number: c_long) -> Option<isize> {
        // SAFETY: no call is made.
        unsafe { by_number(number, [0; 6]) }
    }
}
