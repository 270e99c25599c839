//! io_uring is absent: no image can hold a ring, and programs that use rings go another way where there are none
//! (Node.js, MariaDB, PostgreSQL), as on a kernel without them.
//!
//! Runs in: the host program, any thread. Invariant: nothing is absent in a program that no agent knows
//! (`lifecycle.rs`), or where the user has asked for rings (`holdfast run --io-uring keep`). Fails by: ENOSYS, the
//! kernel's own answer where it has no io_uring. Not hooked: system calls not made through the C library or liburing;
//! the agent refuses a ring of theirs by name (`process/src/refuse.rs`).
//!
//! # Safety
//! The exports have the signatures of liburing's functions (liburing.h) and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::host;
use core::ffi::{CStr, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use holdfast_abi::environment::{ENV_IO_URING, IO_URING_KEEP};

static ABSENT: AtomicBool = AtomicBool::new(false);

/// The agent knows this process: from now on there is no io_uring, if the user has not asked for it.
pub fn start() {
    ABSENT.store(!host::variable_is(ENV_IO_URING, IO_URING_KEEP), Relaxed);
}

/// What `io_uring_setup(2)` returns where it is absent; `None`: it is another call, or it is not absent.
pub fn by_number(number: c_long) -> Option<isize> {
    (number == libc::SYS_io_uring_setup && ABSENT.load(Relaxed)).then_some(-(libc::ENOSYS as isize))
}

/// liburing's own function of this name, if there are rings.
fn real(name: &CStr) -> Option<*mut c_void> {
    let found = if ABSENT.load(Relaxed) { core::ptr::null_mut() } else { host::next_definition(name) };
    (!found.is_null()).then_some(found)
}

/// Functions of liburing that make a ring, by system calls of its own: they return an error's number, negative.
macro_rules! makers {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As for liburing's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                let name = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_until_nul(name.as_bytes()).unwrap_or_default();
                let Some(real) = real(name) else { return -libc::ENOSYS };
                // SAFETY: a function of this name has this signature (liburing.h).
                let real = unsafe {
                    core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> c_int>(real)
                };
                // SAFETY: the caller's promise.
                unsafe { real($($argument),*) }
            }
        )*
    };
}

makers! {
    /// `io_uring_queue_init(3)`.
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    /// `io_uring_queue_init_params(3)`.
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    /// `io_uring_queue_init_mem(3)`.
    io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: usize
    );
    /// `io_uring_setup(2)`, by liburing's wrapper.
    io_uring_setup(entries: c_uint, params: *mut c_void);
}

/// `io_uring_get_probe(3)`: makes a ring for a moment to ask it.
///
/// # Safety
/// As for liburing's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn io_uring_get_probe() -> *mut c_void {
    let Some(real) = real(c"io_uring_get_probe") else { return core::ptr::null_mut() };
    // SAFETY: a function of this name has this signature (liburing.h).
    let real = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_void>(real) };
    // SAFETY: the caller's promise.
    unsafe { real() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_making_of_a_ring_is_absent_and_only_once_an_agent_knows_the_process() {
        assert_eq!(by_number(libc::SYS_io_uring_setup), None);
        start();
        assert_eq!(by_number(libc::SYS_io_uring_setup), Some(-(libc::ENOSYS as isize)));
        assert_eq!(by_number(libc::SYS_io_uring_enter), None, "of a ring that was there before");
        // SAFETY: nothing is looked at where rings are absent.
        let made = unsafe { io_uring_queue_init(8, core::ptr::null_mut(), 0) };
        assert_eq!(made, -libc::ENOSYS);
    }
}
