//! Ids of System V shared memory after a restart in which the kernel did not give the old ones back.
//!
//! Runs in: the host program, any thread, also in signal handlers.
//! Invariants: ids that the program gives are turned into the kernel's, results into those that it knows; an id that is
//! not in the table is the same on both sides. While [`SEGMENT_COUNT`] is 0 (always, but after such a restart) each
//! call costs one load more than the plain one. The table is inherited by fork, not by exec.
//! Fails by: nothing of its own; the result is the kernel's.
//! Not hooked: system calls not made through the C library; `/proc/sysvipc/shm` shows the kernel's ids.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::shared::{self, SEGMENT_COUNT, SEGMENT_MAX, SEGMENT_TABLE};
use crate::{host, sys};
use core::ffi::{c_int, c_long, c_void};
use core::ptr;

/// Commands of shmctl(2) that are about the system, or take a place in its table (include/uapi/linux/shm.h).
const BY_PLACE: [c_int; 4] = [3, 13, 14, 15]; // IPC_INFO, SHM_STAT, SHM_INFO, SHM_STAT_ANY

/// The first entry (id that the program knows, id of the kernel) that something says anything to.
fn find<T>(matches: impl Fn(i32, i32) -> Option<T>) -> Option<T> {
    let count = shared::from_agent(SEGMENT_COUNT).min(SEGMENT_MAX as u64) as usize;
    (0..count).find_map(|index| {
        let pair = shared::from_agent(SEGMENT_TABLE + index * 8);
        matches(pair as i32, (pair >> 32) as i32)
    })
}

fn to_kernel(id: i32) -> i32 {
    find(|known, kernel| (known == id).then_some(kernel)).unwrap_or(id)
}

fn to_known(id: i32) -> i32 {
    find(|known, kernel| (kernel == id).then_some(known)).unwrap_or(id)
}

/// Makes a call of System V shared memory; `None`: it is another one.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, mut args: [usize; 6]) -> Option<isize> {
    // SAFETY: the caller's promise.
    let call = |args| unsafe { sys::raw(number, args) };
    match number {
        libc::SYS_shmget => Some(get(|| call(args))),
        libc::SYS_shmat => {
            args[0] = to_kernel(args[0] as i32) as usize;
            Some(call(args))
        }
        libc::SYS_shmctl => {
            let command = args[1] as c_int;
            if !BY_PLACE.contains(&command) {
                args[0] = to_kernel(args[0] as i32) as usize;
            }
            let result = call(args);
            // Of SHM_STAT and SHM_STAT_ANY: an id.
            let is_id = result > 0 && matches!(command, 13 | 15);
            Some(if is_id { to_known(result as i32) as isize } else { result })
        }
        _ => None,
    }
}

/// An id that the program knows as that of something else cannot be used; the kernel gives another one next time.
fn get(call: impl Fn() -> isize) -> isize {
    let first = call();
    let is_taken = |id: isize| id >= 0 && find(|known, _| (known as isize == id).then_some(())).is_some();
    if to_known(first as i32) as isize != first || !is_taken(first) {
        return to_known(first as i32) as isize;
    }
    let second = call();
    if second == first || is_taken(second) {
        return second; // by its key: nothing can be done
    }
    // SAFETY: removes what was made by this very call, and nobody knows yet.
    let _ = unsafe { sys::raw(libc::SYS_shmctl, [first as usize, libc::IPC_RMID as usize, 0, 0, 0, 0]) };
    second
}

/// A call by its name in C.
fn c_call(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the exports' callers promise what the call needs.
    let result = unsafe { by_number(number, args) }.unwrap_or(-(libc::ENOSYS as isize));
    if (-4095..0).contains(&result) {
        host::set_errno(-result as c_int);
        return -1;
    }
    result
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

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn ids_are_translated_and_one_that_is_known_for_another_is_not_given() {
        let pair = |known: u32, kernel: u32| u64::from(known) | u64::from(kernel) << 32;
        shared::word(SEGMENT_TABLE).store(pair(100, 7100), Relaxed);
        shared::word(SEGMENT_TABLE + 8).store(pair(101, 100), Relaxed);
        assert_eq!((to_kernel(100), to_known(7100)), (100, 7100), "nothing while there are none");
        shared::word(SEGMENT_COUNT).store(2, Relaxed);
        assert_eq!([to_kernel(100), to_kernel(101), to_kernel(5)], [7100, 100, 5]);
        assert_eq!([to_known(7100), to_known(100), to_known(5)], [100, 101, 5]);
        let asked = Cell::new(0);
        let giving = |ids: [isize; 2]| {
            asked.set(0);
            get(|| {
                asked.set(asked.get() + 1);
                ids[asked.get() - 1]
            })
        };
        assert_eq!((giving([7100, 0]), asked.get()), (100, 1));
        assert_eq!((giving([8, 0]), asked.get()), (8, 1));
        assert_eq!((giving([-17, 0]), asked.get()), (-17, 1));
        assert_eq!((giving([101, 9]), asked.get()), (9, 2), "the program would take it for the other one");
        shared::word(SEGMENT_COUNT).store(u64::MAX, Relaxed);
        assert_eq!(to_kernel(3), 3, "a count beyond the table is cut");
        shared::word(SEGMENT_COUNT).store(0, Relaxed);
    }
}
