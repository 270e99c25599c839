//! System V shared memory: which segments the program has made or attached, which the kernel does not tell when no
//! process has them attached; and their ids after a restart in which the kernel did not give the old ones back.
//!
//! Runs in: the host program, any thread, also in signal handlers. Invariants: ids that the program gives are turned
//! into the kernel's, results into those that it knows. Fails by: nothing of its own; the result is the kernel's. Not
//! hooked: system calls not made through the C library; `/proc/sysvipc/shm` shows the kernel's ids.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::sysv::{SEGMENTS, USED_SEGMENTS};
use crate::{host, sys};
use core::ffi::{c_int, c_long, c_void};
use core::ptr;

/// Commands of shmctl(2) that are about the system, or take a place in its table (include/uapi/linux/shm.h).
const BY_PLACE: [c_int; 4] = [3, 13, 14, 15]; // IPC_INFO, SHM_STAT, SHM_INFO, SHM_STAT_ANY

/// Makes a call of System V shared memory; `None`: it is another one.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, mut args: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let call = |args| unsafe { sys::raw(number, args) };
    match number {
        libc::SYS_shmget => {
            let remove = |id: isize| {
                let args = [id as usize, libc::IPC_RMID as usize, 0, 0, 0, 0];
                // SAFETY: removes what was made by this very call, and is not known to others yet.
                let _ = unsafe { sys::raw(libc::SYS_shmctl, args) };
            };
            let id = SEGMENTS.get(|| call(args), remove);
            if args[2] as c_int & libc::IPC_CREAT != 0 {
                USED_SEGMENTS.used(id as i32, is_gone);
            }
            Some(id)
        }
        libc::SYS_shmat => {
            let known = args[0] as i32;
            args[0] = SEGMENTS.to_kernel(known) as usize;
            let result = call(args);
            if !(-4095..0).contains(&result) {
                USED_SEGMENTS.used(known, is_gone);
            }
            Some(result)
        }
        libc::SYS_shmctl => {
            let command = args[1] as c_int;
            if !BY_PLACE.contains(&command) {
                args[0] = SEGMENTS.to_kernel(args[0] as i32) as usize;
            }
            let result = call(args);
            // Of SHM_STAT and SHM_STAT_ANY: an id.
            let is_id = result > 0 && matches!(command, 13 | 15);
            Some(if is_id { SEGMENTS.to_known(result as i32) as isize } else { result })
        }
        _ => None,
    }
}

/// Whether there is no segment any more that the program knows by an id.
fn is_gone(known: i32) -> bool {
    let mut status = [0_u64; 32]; // struct shmid_ds (include/uapi/linux/shm.h) has 112 bytes
    let at = status.as_mut_ptr().expose_provenance();
    let args = [SEGMENTS.to_kernel(known) as usize, libc::IPC_STAT as usize, at, 0, 0, 0];
    // SAFETY: the kernel writes a struct shmid_ds to `status`, or nothing.
    let result = unsafe { sys::raw(libc::SYS_shmctl, args) };
    [-(libc::EINVAL as isize), -(libc::EIDRM as isize)].contains(&result)
}

/// A call by its name in C.
fn c_call(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the exports' callers promise what the call needs.
    let result = unsafe { by_number(number, args) }.unwrap_or(-(libc::ENOSYS as isize));
    host::from_kernel(result)
}

/// `shmget(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn shmget(key: c_int, size: usize, flags: c_int) -> c_int {
    c_call(libc::SYS_shmget, [key as usize, size, flags as usize, 0, 0, 0]) as c_int
}

/// `shmat(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let result = c_call(libc::SYS_shmat, [id as usize, address.addr(), flags as usize, 0, 0, 0]);
    ptr::with_exposed_provenance_mut(result as usize)
}

/// `shmctl(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmctl(id: c_int, command: c_int, buffer: *mut c_void) -> c_int {
    c_call(libc::SYS_shmctl, [id as usize, command as usize, buffer.expose_provenance(), 0, 0, 0]) as c_int
}
