//! What is done at each `fork(2)`: the allocator is locked over it, and the child registers with the agent.
//!
//! Runs in: [`register`] in the first allocation of a process, in the constructor, or in the first registration of a
//! fork handler, whichever comes first; the handlers in the thread that forks, around the fork.
//! Invariants: our handlers are the first that the C library knows. It runs those of preparation from the last to
//! the first and those after the fork from the first to the last (pthread_atfork(3)): every handler of the program's
//! runs while the allocator is open, and a child has registered before anything of the program's runs in it.
//! jemalloc's handlers are called by ours, whenever it registers them; while the process has one thread they are not:
//! no thread can be in the allocator then, and they would write to twenty pages of it in the parent and in the child,
//! each of which has to be copied (a third of what fork costs in a shell).
//! Fails by: children that are not followed, and an allocator that is not locked, where the C library has no memory
//! for three pointers. Not seen: a handler that is registered by the C library's own `__register_atfork`, looked up
//! in it by name, before the first allocation.
//!
//! # Safety
//! Handlers are C functions without arguments; the functions of the C library are called with its own signatures.
#![allow(unsafe_code)]

use crate::{host, lifecycle, malloc};
use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

type Handler = extern "C" fn();
type Register = unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

/// Ours are registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// A thread is between preparation and what comes after the fork, with the allocator locked. Only one can be.
static LOCKED: AtomicBool = AtomicBool::new(false);

/// jemalloc's handlers, as it registered them.
static PREPARE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static PARENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static CHILD: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The lock of the C library's list of open files; null where there is none.
static LIST_LOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static LIST_UNLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static LIST_RESET: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// `__libc_single_threaded` (glibc 2.32 on): false from the first pthread_create on, before there is a second thread.
static SINGLE_THREADED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Registers our handlers, once. The process has one thread, or it was done before.
pub fn register() {
    if !REGISTERED.swap(true, AcqRel) {
        // ENOMEM means that children are not followed: nothing to be done about it.
        let _ = host::keep_errno(|| pass_on(Some(prepare), Some(parent), Some(child), null_mut()));
    }
}

/// Gets ready to lock the allocator over forks. Called before jemalloc has given out its first block.
pub fn guard_allocator() {
    register();
    for (place, name) in [
        (&LIST_LOCK, c"_IO_list_lock"),
        (&LIST_UNLOCK, c"_IO_list_unlock"),
        (&LIST_RESET, c"_IO_list_resetlock"),
    ] {
        place.store(host::next_definition(name), Release);
    }
    // The one that is in use: the executable may have it (a copy relocation).
    SINGLE_THREADED.store(host::global_definition(c"__libc_single_threaded"), Release);
}

/// Whether no other thread can be in the allocator: glibc's own fork takes no lock then either (posix/fork.c).
fn is_alone() -> bool {
    let flag = SINGLE_THREADED.load(Acquire);
    // SAFETY: the C library's variable of one byte (sys/single_threaded.h). It is written by this thread alone as long
    // as it is true, hence no data race that could be read otherwise than false; volatile, as others write it.
    !flag.is_null() && unsafe { flag.cast::<u8>().read_volatile() } != 0
}

/// Name of the function behind pthread_atfork(3), which lies in the program itself (nptl/pthread_atfork.c).
const REGISTER: &CStr = c"__register_atfork";

fn pass_on(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    let next = host::next_definition(REGISTER);
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of this name has this signature; handlers live as long as the library that is
    // named by the last argument, and ours, for which it is null, is never unloaded.
    unsafe { mem::transmute::<*mut c_void, Register>(next)(prepare, parent, child, library) }
}

/// What pthread_atfork(3) calls, in the program and in its libraries: ours come first.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    library: *mut c_void,
) -> c_int {
    register();
    pass_on(prepare, parent, child, library)
}

/// pthread_atfork(3) as jemalloc calls it: [`prepare`], [`parent`] and [`child`] call its handlers.
extern "C" fn of_allocator(prepare: Handler, parent: Handler, child: Handler) -> c_int {
    CHILD.store(child as *mut c_void, Release);
    PARENT.store(parent as *mut c_void, Release);
    PREPARE.store(prepare as *mut c_void, Release);
    register();
    0
}

// Hidden, because the program's own calls are none of ours.
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .text.holdfast_atfork,\"ax\",@progbits",
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    ".type pthread_atfork, @function",
    "pthread_atfork: jmp {register}",
    ".size pthread_atfork, . - pthread_atfork",
    ".popsection",
    register = sym of_allocator,
);

/// Calls a function without arguments, if there is one.
fn call(place: &AtomicPtr<c_void>) {
    let function = place.load(Acquire);
    if !function.is_null() {
        // SAFETY: only handlers are stored in these places, and functions of the C library without arguments.
        unsafe { mem::transmute::<*mut c_void, Handler>(function)() };
    }
}

/// Whether [`prepare`] has locked the allocator; not any more then. Memory that both sides of a fork have costs a copy
/// when it is written: it is only where there was a lock.
fn was_locked() -> bool {
    LOCKED.load(Acquire) && LOCKED.swap(false, AcqRel)
}

/// Before the fork, after all others. fork(2) itself takes the lock of the list of files before that of the C
/// library's allocator, because a thread that has it may wait for one that allocates (sysdeps/nptl/fork.c): so do
/// we. It may be taken again.
extern "C" fn prepare() {
    if malloc::is_own() && !PREPARE.load(Acquire).is_null() && !is_alone() {
        call(&LIST_LOCK);
        call(&PREPARE);
        LOCKED.store(true, Release);
    }
}

/// After the fork, in the parent, before all others.
extern "C" fn parent() {
    if was_locked() {
        call(&PARENT);
        call(&LIST_UNLOCK);
    }
}

/// After the fork, in the child, before all others.
extern "C" fn child() {
    if was_locked() {
        call(&CHILD);
        // The C library has made the lock anew, but not where the parent had one thread.
        call(&LIST_RESET);
    }
    lifecycle::forked();
}
