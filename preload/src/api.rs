//! The C API: see `include/holdfast.h` for its exact meaning.
//!
//! Runs in: the host program, any thread that calls it.
//! Invariants: no output, no open descriptor when a call returns, `errno` only set where the header says so. Without an
//! agent every call returns at once.
//! Fails by: the negative numbers below, which are those of the header (`tests/exports.rs` compares them).
//!
//! # Safety
//! Pointers come from the program; what must hold for them is what the header says.
#![allow(unsafe_code)]

use crate::message::{Answer, Text};
use crate::shared;
use crate::{agent, host, protected, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use holdfast_abi::environment::ENV_PROTECTED_DIR;
use holdfast_abi::{PAGE, SharedPage};

/// No agent, or it has gone.
const NO_AGENT: c_int = -1;
/// Another thread of this program is asking for a checkpoint.
const BUSY: c_int = -2;
/// The program holds something that cannot be checkpointed.
const REFUSED: c_int = -3;
/// The checkpoint failed.
const FAILED: c_int = -4;
/// An argument makes no sense.
const ARGUMENT: c_int = -5;
/// Not started from an image of protected memory.
const NO_IMAGE: c_int = -6;
/// The image has no such region.
const NOT_FOUND: c_int = -7;
/// The image has another size for it.
const SIZE: c_int = -8;
/// The image's file could not be read.
const READ: c_int = -9;

fn has_agent() -> bool {
    let mut room = [0; SharedPage::SOCKET_PATH_LEN];
    shared::text(SharedPage::SOCKET_PATH, &mut room).is_some()
}

/// Asks for a checkpoint; `wait`: until its commit, otherwise until its cut.
fn checkpoint(wait: bool) -> c_int {
    host::keep_errno(|| {
        let before = shared::from_agent(SharedPage::RESTARTS);
        let outcome = agent::checkpoint(wait);
        // Whatever came of the connection: if this is after a restart, the image was taken, and this is the way back.
        if shared::from_agent(SharedPage::RESTARTS) != before {
            return 1;
        }
        match outcome {
            Ok(Answer::Taken) => 0,
            Ok(Answer::Refused) => REFUSED,
            Ok(Answer::Failed) => FAILED,
            Err(agent::Trouble::Absent(_)) => NO_AGENT,
            Err(agent::Trouble::Busy) => BUSY,
        }
    })
}

/// `int holdfast_checkpoint(void)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn holdfast_checkpoint() -> c_int {
    checkpoint(true)
}

/// `int holdfast_checkpoint_start(void)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn holdfast_checkpoint_start() -> c_int {
    checkpoint(false)
}

/// `int holdfast_cuda_discard(const void *memory, size_t size)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn holdfast_cuda_discard(memory: *const c_void, size: usize) -> c_int {
    use holdfast_cuda_hooks::Refused;
    if !has_agent() {
        return NO_AGENT;
    }
    match host::keep_errno(|| holdfast_cuda_hooks::leave_out(memory.addr() as u64, size as u64)) {
        Ok(()) => 0,
        Err(Refused::Range) => ARGUMENT,
        Err(Refused::Full) => FAILED,
    }
}

/// `int holdfast_cuda_keep(const void *memory, size_t size)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn holdfast_cuda_keep(memory: *const c_void, size: usize) -> c_int {
    if !has_agent() {
        return NO_AGENT;
    }
    host::keep_errno(|| holdfast_cuda_hooks::keep(memory.addr() as u64, size as u64));
    0
}

/// `int holdfast_restarted(void)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn holdfast_restarted() -> c_int {
    if has_agent() {
        shared::from_agent(SharedPage::RESTARTS).min(c_int::MAX as u64) as c_int
    } else {
        NO_AGENT
    }
}

/// `void *holdfast_malloc_protected(const char *name, size_t size)`.
///
/// # Safety
/// `name` must be null or a NUL-terminated string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn holdfast_malloc_protected(name: *const c_char, size: usize) -> *mut c_void {
    if name.is_null() {
        host::set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    match protected::allocate(name.to_bytes(), size) {
        Ok(memory) => memory.cast(),
        Err(number) => {
            host::set_errno(number);
            null_mut()
        }
    }
}

/// `int holdfast_free_protected(void *memory)`.
///
/// # Safety
/// Nothing may use the memory any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn holdfast_free_protected(memory: *mut c_void) -> c_int {
    if protected::free(memory.cast()).is_ok() { 0 } else { ARGUMENT }
}

/// `int holdfast_restore_protected(const char *name, void *buffer, size_t size)`.
///
/// # Safety
/// `name` must be null or a NUL-terminated string, `buffer` null or writable for `size` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn holdfast_restore_protected(
    name: *const c_char,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    if name.is_null() || buffer.is_null() {
        return ARGUMENT;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if !protected::is_name(name) || size == 0 {
        return ARGUMENT;
    }
    let Some(folder) = host::variable(ENV_PROTECTED_DIR) else { return NO_IMAGE };
    let mut path = Text::<4096>::new();
    path.push(folder.to_bytes()).push(b"/").push_hex(name).push(b"\0");
    let Ok(path) = CStr::from_bytes_with_nul(path.as_bytes()) else { return READ };
    match sys::open(path, libc::O_RDONLY) {
        Ok(file) => {
            // SAFETY: the caller's promise about `buffer`.
            let result = unsafe { fill(file, buffer.cast(), size) };
            sys::close(file);
            result
        }
        Err(libc::ENOENT) => NOT_FOUND,
        Err(_) => READ,
    }
}

/// Reads `size` bytes of a region's file, which holds that or the next multiple of a page.
///
/// # Safety
/// `buffer` must be writable for `size` bytes.
unsafe fn fill(file: c_int, buffer: *mut u8, size: usize) -> c_int {
    let stored = match sys::file_size(file) {
        Ok(stored) => stored,
        Err(_) => return READ,
    };
    if stored < size as u64 || size.checked_next_multiple_of(PAGE).is_none_or(|whole| stored > whole as u64) {
        return SIZE;
    }
    let mut done = 0;
    while done < size {
        // SAFETY: `done` is less than `size`: within the caller's buffer.
        match unsafe { sys::read_to(file, buffer.add(done), size - done) } {
            Err(libc::EINTR) => {}
            Err(_) | Ok(0) => return READ,
            Ok(count) => done += count,
        }
    }
    0
}
