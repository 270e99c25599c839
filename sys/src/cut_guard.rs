//! A file that is cut while it is mapped: an error afterwards, instead of SIGBUS.
//!
//! Called by the writer of a stream (compat/streams), which lives in a program that is not ours, for as long as it has
//! its log: to set a handler for each put would take a good part of a small one. The handler, of SIGBUS, puts anonymous
//! memory where the file ends, and notes it: what is done there goes on, to no effect, and its caller looks at
//! [`Guard::was_cut`] at the end. Every other SIGBUS goes to the handler that was there before, or does what it would
//! have done. That handler is there again when the last guard has gone.
//!
//! Not seen: a thread that blocks SIGBUS is killed by the kernel; a handler that the program sets meanwhile stays, and
//! gets the signal; the mask of the one before is not set while it is called.
//!
//! # Safety
//! The handler makes system calls and uses atomics, nothing else; it replaces pages only between the bounds of a
//! guard, which are a mapping of its caller, of this process. [`BEFORE`] is written under the lock while no guard is
//! there, and read by the handler while one is.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;
/// si_code: there is no memory at this address (asm-generic/siginfo.h).
const BUS_ADRERR: c_int = 2;

/// Where a mapping is that is looked after.
struct Range {
    /// 0: it is free.
    start: AtomicUsize,
    /// 0: it is not set yet.
    end: AtomicUsize,
    process: AtomicI32,
    was_cut: AtomicBool,
}

static RANGES: [Range; 64] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        process: AtomicI32::new(0),
        was_cut: AtomicBool::new(false),
    }
}; 64];
/// How many guards there are.
static GUARDS: Mutex<usize> = Mutex::new(0);

struct Action(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: as the head of this file says.
unsafe impl Sync for Action {}

/// What SIGBUS did before.
static BEFORE: Action = Action(UnsafeCell::new(MaybeUninit::zeroed()));

fn guards() -> MutexGuard<'static, usize> {
    GUARDS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapping is looked after until this is dropped.
#[derive(Debug)]
pub struct Guard {
    /// `None`: there are too many.
    slot: Option<usize>,
}

impl Guard {
    /// Of so many bytes of memory, which are a mapping of a file.
    pub(crate) fn of(start: *const u8, len: usize) -> Guard {
        let is_free =
            |range: &Range| range.start.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        let Some(slot) = RANGES.iter().position(is_free) else { return Guard { slot: None } };
        let range = &RANGES[slot];
        range.was_cut.store(false, Ordering::SeqCst);
        range.process.store(std::process::id().cast_signed(), Ordering::SeqCst);
        range.start.store(start.addr(), Ordering::SeqCst);
        range.end.store(start.addr() + len, Ordering::SeqCst);
        let mut count = guards();
        if *count == 0 {
            install();
        }
        *count += 1;
        Guard { slot: Some(slot) }
    }

    /// Whether something was touched that the file does not have any more.
    pub fn was_cut(&self) -> bool {
        self.slot.is_some_and(|slot| RANGES[slot].was_cut.load(Ordering::SeqCst))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut count = guards();
        *count -= 1;
        if *count == 0 {
            uninstall();
        }
        drop(count);
        RANGES[slot].end.store(0, Ordering::SeqCst);
        RANGES[slot].start.store(0, Ordering::SeqCst);
    }
}

fn own() -> usize {
    on_bus as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize
}

/// Under the lock, with no guard there.
fn install() {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a struct sigaction is plain data, and zeroed is one; both pointers are of this frame, or null.
    unsafe {
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) != 0 {
            return;
        }
        // A program that sets again what it found meanwhile has set ours.
        if before.assume_init_ref().sa_sigaction != own() {
            *BEFORE.0.get() = before;
        }
        let mut ours: libc::sigaction = MaybeUninit::zeroed().assume_init();
        ours.sa_sigaction = own();
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
    }
}

/// Under the lock. What the program has set meanwhile stays.
fn uninstall() {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: as in `install`; `BEFORE` was written by it.
    unsafe {
        libc::sigaction(libc::SIGBUS, (*BEFORE.0.get()).as_ptr(), found.as_mut_ptr());
        if found.assume_init_ref().sa_sigaction != own() {
            libc::sigaction(libc::SIGBUS, found.as_ptr(), std::ptr::null_mut());
        }
    }
}

extern "C" fn on_bus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's siginfo of this signal; `BEFORE` was written before this handler was there; errno is this
    // thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let code = (*info).si_code;
        if code != BUS_ADRERR || !is_replaced((*info).si_addr().addr()) {
            as_before(signal, info, context, code <= 0);
        }
        *libc::__errno_location() = errno;
    }
}

/// What SIGBUS did before. `was_sent`: nothing has faulted.
///
/// # Safety
/// In the handler, with what it was given.
unsafe fn as_before(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, was_sent: bool) {
    // SAFETY: `BEFORE` was written before the handler was there; it has what the program set as its handler, of the
    // form that its flags say.
    unsafe {
        let before = (*BEFORE.0.get()).assume_init_ref();
        let handler = std::ptr::with_exposed_provenance::<()>(before.sa_sigaction);
        match before.sa_sigaction {
            libc::SIG_IGN if was_sent => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, &raw const *before, std::ptr::null_mut());
                // What has faulted does so again; what was sent is sent again, and comes when this has returned.
                if was_sent {
                    libc::raise(signal);
                }
            }
            _ if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            _ => {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Puts memory where a file has ended, if a guard looks after this address.
fn is_replaced(address: usize) -> bool {
    let page = address - address % PAGE;
    for range in &RANGES {
        let bounds = range.start.load(Ordering::SeqCst)..range.end.load(Ordering::SeqCst);
        // A child of fork has nothing there, or something else.
        if !bounds.contains(&address) || range.process.load(Ordering::SeqCst) != process() {
            continue;
        }
        range.was_cut.store(true, Ordering::SeqCst);
        // All of the rest, as each page would be a signal more; or this page, where that is more than there may be.
        return [bounds.end.next_multiple_of(PAGE) - page, PAGE].into_iter().any(|len| replace(page, len));
    }
    false
}

fn process() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }
}

fn replace(page: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let place = std::ptr::with_exposed_provenance_mut(page);
    // SAFETY: pages of the mapping that a guard looks after, of which no reference is made; its owner unmaps them.
    unsafe { libc::mmap(place, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) != libc::MAP_FAILED }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mapped_buffer::{MappedBuffer, Use};
    use std::fs::File;
    use std::os::fd::AsFd;

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn of_program(_: c_int) {
        SEEN.fetch_add(1, Ordering::SeqCst);
    }

    fn found() -> usize {
        let mut found = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: a pointer to a local; zeroed is a struct sigaction.
        unsafe {
            libc::sigaction(libc::SIGBUS, std::ptr::null(), found.as_mut_ptr());
            found.assume_init().sa_sigaction
        }
    }

    #[test]
    fn what_was_cut_is_an_error_and_other_signals_are_the_programs() {
        let theirs = of_program as extern "C" fn(c_int) as usize;
        // SAFETY: a handler that counts; no other test of this crate sets one of this signal.
        unsafe { libc::signal(libc::SIGBUS, theirs) };
        let file = File::from(crate::memfd::unsealed(c"cut").unwrap());
        let len = 64 * PAGE as u64;
        file.set_len(len).unwrap();
        let mut mapped = MappedBuffer::for_use(file.as_fd(), len, Use::Sparse).unwrap();
        let guard = mapped.guard();
        mapped.write(0, &[1; 3 * PAGE]).unwrap();
        assert!(!guard.was_cut());
        file.set_len(PAGE as u64 + 1).unwrap();
        mapped.write(PAGE as u64, &[2; 40 * PAGE]).unwrap();
        mapped.set_long(len - 8, 7).unwrap();
        assert!(guard.was_cut() && mapped.long(len - 8).unwrap() == 7);
        // What the file still has is the file's.
        let mut first = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut first, 0).unwrap();
        assert_eq!((first, file.metadata().unwrap().len()), ([1], PAGE as u64 + 1));
        let other = mapped.guard();
        assert!(!other.was_cut());
        drop((guard, other));
        assert_eq!(found(), theirs);
        // One that is sent goes to the program, each time.
        let guard = mapped.guard();
        assert_ne!(found(), theirs);
        for count in 1..3 {
            // SAFETY: handlers are there.
            unsafe { libc::raise(libc::SIGBUS) };
            assert_eq!(SEEN.load(Ordering::SeqCst), count);
        }
        drop(guard);
        assert_eq!(found(), theirs);
    }
}
