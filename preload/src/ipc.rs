//! System V semaphores and message queues: which ones the program uses, which the kernel does not tell, and their ids
//! after a restart in which the kernel did not give the old ones back.
//!
//! Runs in: the host program, any thread.
//! Invariants: as in [`crate::sysv`]. A call that waits over such a restart is made again with the new id.
//! Fails by: nothing of its own; the result is the kernel's.
//! Not hooked: system calls not made through the C library.
//!
//! # Safety
//! The exports have the C signatures of the functions that they stand in for and pass pointers on as they are.
#![allow(unsafe_code)]

use crate::shared;
use crate::sysv::{QUEUES, SEMAPHORES, Table};
use crate::{host, sys, undo};
use core::ffi::{CStr, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use holdfast_abi::SharedPage;

/// Commands of semctl(2) and msgctl(2) that are about the system, or take a place in its table
/// (include/uapi/linux/sem.h, msg.h).
const BY_PLACE: [c_int; 7] = [3, 11, 12, 13, 18, 19, 20];
/// Commands of semctl(2) that clear the adjustments of all processes (include/uapi/linux/sem.h).
const SETVAL: c_int = 16;
/// The same.
const SETALL: c_int = 17;

/// Semaphore sets or message queues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Semaphores,
    Queues,
}

impl Kind {
    fn of(number: c_long) -> Option<Kind> {
        match number {
            libc::SYS_semget | libc::SYS_semop | libc::SYS_semctl | libc::SYS_semtimedop => {
                Some(Kind::Semaphores)
            }
            libc::SYS_msgget | libc::SYS_msgsnd | libc::SYS_msgrcv | libc::SYS_msgctl => Some(Kind::Queues),
            _ => None,
        }
    }

    fn table(self) -> &'static Table {
        match self {
            Kind::Semaphores => &SEMAPHORES,
            Kind::Queues => &QUEUES,
        }
    }

    /// Removes an object.
    fn remove(self, id: isize) {
        let (id, command) = (id as usize, libc::IPC_RMID as usize);
        // SAFETY: numbers only.
        let _ = unsafe {
            match self {
                Kind::Semaphores => sys::raw(libc::SYS_semctl, [id, 0, command, 0, 0, 0]),
                Kind::Queues => sys::raw(libc::SYS_msgctl, [id, command, 0, 0, 0, 0]),
            }
        };
    }

    /// Whether there is no object any more with an id.
    fn is_gone(self, id: i32) -> bool {
        const GETNCNT: usize = 14;
        let mut status = [0_u64; 32]; // struct msqid_ds (include/uapi/linux/msg.h) has 120 bytes
        let (id, at) = (id as usize, status.as_mut_ptr().expose_provenance());
        // SAFETY: the kernel writes a struct msqid_ds to `status`, or nothing.
        let result = unsafe {
            match self {
                Kind::Semaphores => sys::raw(libc::SYS_semctl, [id, 0, GETNCNT, 0, 0, 0]),
                Kind::Queues => sys::raw(libc::SYS_msgctl, [id, libc::IPC_STAT as usize, at, 0, 0, 0]),
            }
        };
        says_gone(result)
    }

    /// Takes note of an object that is used.
    fn used(self, kernel: i32) {
        self.table().used(kernel, |id| self.is_gone(id));
    }

    /// Makes a call with the kernel's id; anew if it is another one since.
    fn on(self, id: i32, call: impl Fn(i32) -> isize) -> isize {
        loop {
            let restarts = shared::from_agent(SharedPage::RESTARTS);
            let kernel = self.table().to_kernel(id);
            let result = call(kernel);
            if says_gone(result) && restarts != shared::from_agent(SharedPage::RESTARTS) {
                continue;
            }
            if result >= 0 {
                self.used(kernel);
            }
            return result;
        }
    }

    /// Whether a command is about the system, or takes a place in its table. 11 and 12 are commands of queues and, as
    /// GETPID and GETVAL, of semaphores; 13 (GETALL) likewise.
    fn is_by_place(self, command: c_int) -> bool {
        BY_PLACE.contains(&command) && (self == Kind::Queues || !matches!(command, 11..=13))
    }

    /// Whether such a command returns an id: MSG_STAT, MSG_STAT_ANY; SEM_STAT, SEM_STAT_ANY.
    fn gives_id(self, command: c_int) -> bool {
        match self {
            Kind::Semaphores => matches!(command, 18 | 20),
            Kind::Queues => matches!(command, 11 | 13),
        }
    }
}

/// Whether the kernel says that there is no such object.
fn says_gone(result: isize) -> bool {
    [-(libc::EINVAL as isize), -(libc::EIDRM as isize)].contains(&result)
}

/// Makes a call of System V semaphores or queues; `None`: it is another one.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    let kind = Kind::of(number)?;
    let table = kind.table();
    // SAFETY: the caller's promise.
    let call = |args: [usize; 6]| unsafe { sys::raw(number, args) };
    let command = match number {
        libc::SYS_semget | libc::SYS_msgget => {
            let known = table.get(|| call(args), |id| kind.remove(id));
            kind.used(table.to_kernel(known as i32));
            return Some(known);
        }
        libc::SYS_semctl => Some(args[2] as c_int),
        libc::SYS_msgctl => Some(args[1] as c_int),
        _ => None,
    };
    if let Some(command) = command.filter(|command| kind.is_by_place(*command)) {
        let result = call(args);
        let is_id = result > 0 && kind.gives_id(command);
        return Some(if is_id { table.to_known(result as i32) as isize } else { result });
    }
    let [id, rest @ ..] = args;
    let with = |kernel: i32| call([kernel as usize, rest[0], rest[1], rest[2], rest[3], rest[4]]);
    let undo = match number {
        // SAFETY: the caller's promise.
        libc::SYS_semop | libc::SYS_semtimedop => unsafe { undo::Call::begin(rest[0], rest[1]) },
        _ => None,
    };
    let result = kind.on(id as i32, with);
    let now = table.to_kernel(id as i32);
    if let Some(undo) = undo {
        undo.end((result >= 0).then_some(now));
    }
    match (kind, command) {
        _ if result < 0 => {}
        (Kind::Semaphores, Some(SETVAL)) => undo::cleared(now, Some(rest[0] as u16)),
        (Kind::Semaphores, Some(SETALL)) => undo::cleared(now, None),
        (_, Some(libc::IPC_RMID)) => {
            if kind == Kind::Semaphores {
                undo::cleared(now, None);
            }
            table.forget(|kernel| kernel == now);
        }
        _ => {}
    }
    Some(result)
}

/// A call by its name in C.
fn c_call(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the exports' callers promise what the call needs.
    host::from_kernel(unsafe { by_number(number, args) }.unwrap_or(-(libc::ENOSYS as isize)))
}

/// `semget(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn semget(key: c_int, count: c_int, flags: c_int) -> c_int {
    c_call(libc::SYS_semget, [key as usize, count as usize, flags as usize, 0, 0, 0]) as c_int
}

/// `semop(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semop(id: c_int, operations: *mut c_void, count: usize) -> c_int {
    c_call(libc::SYS_semop, [id as usize, operations.expose_provenance(), count, 0, 0, 0]) as c_int
}

/// `semtimedop(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semtimedop(
    id: c_int,
    operations: *mut c_void,
    count: usize,
    timeout: *const c_void,
) -> c_int {
    let args = [id as usize, operations.expose_provenance(), count, timeout.expose_provenance(), 0, 0];
    c_call(libc::SYS_semtimedop, args) as c_int
}

/// `semctl(2)`: its fourth argument, which some commands have, comes in a register like any other (System V ABI,
/// 3.2.3).
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semctl(id: c_int, which: c_int, command: c_int, argument: usize) -> c_int {
    c_call(libc::SYS_semctl, [id as usize, which as usize, command as usize, argument, 0, 0]) as c_int
}

/// `msgget(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn msgget(key: c_int, flags: c_int) -> c_int {
    c_call(libc::SYS_msgget, [key as usize, flags as usize, 0, 0, 0, 0]) as c_int
}

/// `msgctl(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgctl(id: c_int, command: c_int, buffer: *mut c_void) -> c_int {
    c_call(libc::SYS_msgctl, [id as usize, command as usize, buffer.expose_provenance(), 0, 0, 0]) as c_int
}

/// The C library's own function: the calls below are cancellation points (pthreads(7)), as only it can make them.
fn own(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let found = host::next_definition(name);
    cache.store(found, Relaxed);
    found
}

/// What a C function has returned, as the kernel would have said it.
fn as_kernel(result: isize) -> isize {
    if result == -1 { -(host::errno() as isize) } else { result }
}

/// `msgsnd(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgsnd(id: c_int, message: *const c_void, len: usize, flags: c_int) -> c_int {
    type Own = unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> c_int;
    static OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let own = own(&OWN, c"msgsnd");
    if own.is_null() {
        let args = [id as usize, message.expose_provenance(), len, flags as usize, 0, 0];
        return c_call(libc::SYS_msgsnd, args) as c_int;
    }
    // SAFETY: the C library's function of that name, which has this signature.
    let own = unsafe { core::mem::transmute::<*mut c_void, Own>(own) };
    // SAFETY: the caller's promise.
    let call = |kernel| as_kernel(unsafe { own(kernel, message, len, flags) } as isize);
    host::from_kernel(Kind::Queues.on(id, call)) as c_int
}

/// `msgrcv(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgrcv(
    id: c_int,
    message: *mut c_void,
    len: usize,
    kind: c_long,
    flags: c_int,
) -> isize {
    type Own = unsafe extern "C" fn(c_int, *mut c_void, usize, c_long, c_int) -> isize;
    static OWN: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    let own = own(&OWN, c"msgrcv");
    if own.is_null() {
        let args = [id as usize, message.expose_provenance(), len, kind as usize, flags as usize, 0];
        return c_call(libc::SYS_msgrcv, args);
    }
    // SAFETY: the C library's function of that name, which has this signature.
    let own = unsafe { core::mem::transmute::<*mut c_void, Own>(own) };
    // SAFETY: the caller's promise.
    let call = |kernel| as_kernel(unsafe { own(kernel, message, len, kind, flags) });
    host::from_kernel(Kind::Queues.on(id, call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_call_is_made_again_only_after_a_restart() {
        let calls = Cell::new(0);
        let refused = -(libc::EINVAL as isize);
        let call = |restarted: bool| {
            calls.set(0);
            let own = |_| {
                calls.set(calls.get() + 1);
                if restarted && calls.get() == 1 {
                    let restarts = shared::word(SharedPage::RESTARTS);
                    restarts.store(restarts.load(Relaxed) + 1, Relaxed);
                }
                refused
            };
            Kind::Semaphores.on(9, own)
        };
        assert_eq!((call(false), calls.get()), (refused, 1));
        assert_eq!((call(true), calls.get()), (refused, 2));
    }

    #[test]
    fn commands_are_told_apart() {
        assert!(Kind::Queues.is_by_place(11) && Kind::Semaphores.is_by_place(18));
        let is_of_one = |command| !Kind::Semaphores.is_by_place(command);
        assert!(is_of_one(12) && is_of_one(13), "GETVAL, GETALL");
        assert!(!Kind::Queues.is_by_place(libc::IPC_RMID) && Kind::of(libc::SYS_shmat).is_none());
    }
}
