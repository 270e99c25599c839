//! Seccomp filters that the program installs (seccomp(2), prctl(PR_SET_SECCOMP)): noted, because the kernel tells them
//! root alone ([`FilterNotes`]); and asked, before the library makes calls of its own under them.
//!
//! Runs in: the host program, any thread, also in signal handlers. Each thread has a word that names its newest filter
//! ([`thread_block`]): one that a thread with filters makes by pthread_create(3) begins with its maker's, any other
//! with none. What the child of a vfork(2) installs, whose memory is its parent's, is not noted. Invariants: the call
//! and its result are the kernel's; a note is complete before a word names it; no call is made for it afterwards, as
//! the new filter may allow none. Fails by: a filter that
//! is not noted (no room, a call past the C library, a thread made by clone(2) itself): the agent counts, and refuses;
//! the library makes no calls of its own where it does not know all filters.
//!
//! # Safety
//! The export has the C signature of the function whose place it takes. A filter's program is read only after the
//! kernel has read it.
#![allow(unsafe_code)]

use crate::thread_block::thread_block;
use crate::{host, shared, sys};
use core::ffi::{c_int, c_long, c_void};
use core::mem;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use holdfast_abi::{FilterNote, FilterNotes, SharedPage};
use holdfast_filters::{Call, Instruction, Verdict};

/// Laid out as [`FilterNotes`].
#[repr(C)]
struct Notes {
    count: AtomicU64,
    used: AtomicU64,
    thread: AtomicU64,
    common: AtomicU64,
    filters: [Note; FilterNotes::MAX],
    instructions: [AtomicU64; FilterNotes::INSTRUCTIONS],
}

/// Laid out as [`FilterNote`].
#[repr(C)]
struct Note {
    below: AtomicU32,
    flags: AtomicU32,
    start: AtomicU32,
    len: AtomicU32,
}

const _: () = assert!(size_of::<Notes>() == FilterNotes::LEN && size_of::<Note>() == size_of::<FilterNote>());

static NOTES: Notes = Notes {
    count: AtomicU64::new(0),
    used: AtomicU64::new(0),
    thread: AtomicU64::new(0),
    common: AtomicU64::new(0),
    filters: [const {
        Note {
            below: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            start: AtomicU32::new(0),
            len: AtomicU32::new(0),
        }
    }; FilterNotes::MAX],
    instructions: [const { AtomicU64::new(0) }; FilterNotes::INSTRUCTIONS],
};

/// The word of a thread whose newest filter is not noted.
const NOT_NOTED: u64 = u64::MAX;

thread_block!("holdfast_filter", align 3, of AtomicU64);

// include/uapi/linux/seccomp.h, prctl.h
const SET_MODE_FILTER: usize = 1;
const MODE_FILTER: usize = 2;
const FLAG_TSYNC: u32 = 1;
const FLAG_NEW_LISTENER: u32 = 1 << 3;

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Program {
    len: u16,
    code: *const u64,
}

/// Makes one of the calls that install filters, and takes note; `None`: it is another call.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    let flags = match number {
        libc::SYS_seccomp if args[0] == SET_MODE_FILTER => args[1] as u32,
        libc::SYS_prctl if args[0] as c_int == libc::PR_SET_SECCOMP && args[1] == MODE_FILTER => 0,
        _ => return None,
    };
    let is_lent = memory_is_lent();
    // SAFETY: the caller's promise.
    let result = unsafe { sys::raw(number, args) };
    // More than 0 is a thread that could not be taken along, or the descriptor of a listener.
    if result == 0 || result > 0 && flags & FLAG_NEW_LISTENER != 0 && flags & FLAG_TSYNC == 0 {
        // SAFETY: the kernel has read what the pointer leads to.
        unsafe { installed(is_lent, flags, core::ptr::with_exposed_provenance(args[2])) };
    }
    Some(result)
}

/// The process whose memory this is, as the kernel has it: known since it registered.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Notes it.
pub fn owned_by(process: c_int) {
    OWNER.store(process, Relaxed);
}

/// What [`memory_is_lent`] calls.
const WHOSE: [Call; 2] = [
    Call { number: libc::SYS_getpid as u32, args: [0; 6], first_is_open: false },
    Call { number: libc::SYS_kcmp as u32, args: [0, 0, KCMP_VM as u64, 0, 0, 0], first_is_open: true },
];
/// include/uapi/linux/kcmp.h.
const KCMP_VM: usize = 1;

/// Whether this is the child of a vfork(2), in the memory of its parent, which waits: another process by its id, with
/// the same memory by kcmp(2). A copy that the bare system call has made has memory of its own. Where the calls are
/// forbidden, the kernel has no kcmp(2), or a restart has given other ids, it is not known, and counts as no.
fn memory_is_lent() -> bool {
    // SAFETY: none of them touches memory.
    let call = |number: c_long, args: [usize; 6]| unsafe { sys::raw(number, args) };
    let owner = OWNER.load(Relaxed) as usize;
    owner != 0 && allow(&WHOSE) && {
        let own = call(libc::SYS_getpid, [0; 6]).cast_unsigned();
        own != owner && call(libc::SYS_kcmp, [own, owner, KCMP_VM, 0, 0, 0]) == 0
    }
}

/// # Safety
/// `program` leads to a `struct sock_fprog` and its instructions.
unsafe fn installed(is_lent: bool, flags: u32, program: *const Program) {
    // SAFETY: the caller's promise.
    let Program { len, code } = unsafe { program.read() };
    let below = newest();
    // SAFETY: the caller's promise.
    let noted = if below == NOT_NOTED { None } else { unsafe { note(below, flags, code, usize::from(len)) } };
    let number = noted.unwrap_or(NOT_NOTED);
    if is_lent && each_allows(number, &WHOSE) {
        // It is over the child alone, which executes a program in a moment: this memory goes on as its parent's. Were
        // it asked again under a filter that forbids that, it would be ended; then nothing is known of the parent.
        return;
    }
    own().store(number, SeqCst);
    if flags & FLAG_TSYNC != 0 {
        NOTES.common.store(number, SeqCst);
    }
    NOTES.thread.store(offset().cast_unsigned(), Relaxed);
    shared::word(SharedPage::FILTERS).store(core::ptr::from_ref(&NOTES).addr() as u64, SeqCst);
}

/// The newest filter of the calling thread: see [`FilterNotes::common`].
fn newest() -> u64 {
    let (own, common) = (own().load(Relaxed), NOTES.common.load(SeqCst));
    let lies_over = || chain(own).any(|number| number == common);
    if common == 0 || own == NOT_NOTED || lies_over() { own } else { common }
}

/// A filter and those below it.
fn chain(newest: u64) -> impl Iterator<Item = u64> {
    let below = |number: &u64| note_of(*number).map(|note| u64::from(note.below.load(Acquire)));
    core::iter::successors(Some(newest), below).take_while(|number| *number != 0).take(FilterNotes::MAX)
}

fn note_of(number: u64) -> Option<&'static Note> {
    NOTES.filters.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// Its number; `None`: there is no room for it.
///
/// # Safety
/// `code` leads to `len` instructions.
unsafe fn note(below: u64, flags: u32, code: *const u64, len: usize) -> Option<u64> {
    let start = usize::try_from(NOTES.used.fetch_add(len as u64, SeqCst)).ok()?;
    let room = NOTES.instructions.get(start..start.checked_add(len)?)?;
    let number = NOTES.count.fetch_add(1, SeqCst) + 1;
    let note = note_of(number)?;
    for (place, slot) in room.iter().enumerate() {
        // SAFETY: the caller's promise. Instructions are aligned to four bytes.
        slot.store(unsafe { code.add(place).read_unaligned() }, Relaxed);
    }
    note.below.store(u32::try_from(below).ok()?, Relaxed);
    note.flags.store(flags, Relaxed);
    note.start.store(start as u32, Relaxed);
    note.len.store(len as u32, Release);
    Some(number)
}

/// Whether the filters over the calling thread allow all of these calls, whatever their arguments that are not given
/// here. Where there are none it costs two loads.
pub fn allow(calls: &[Call]) -> bool {
    let newest = newest();
    newest != NOT_NOTED && chain(newest).all(|number| each_allows(number, calls))
}

fn each_allows(number: u64, calls: &[Call]) -> bool {
    let Some(note) = note_of(number) else { return false };
    let (start, len) = (note.start.load(Relaxed) as usize, note.len.load(Acquire) as usize);
    let Some(code) = NOTES.instructions.get(start..start + len) else { return false };
    // The words are not written any more.
    // SAFETY: atomics have the layout of their integers, and an instruction is eight bytes of any value.
    let program = unsafe { core::slice::from_raw_parts(code.as_ptr().cast::<Instruction>(), code.len()) };
    calls.iter().all(|call| holdfast_filters::verdict(program, call) == Verdict::Allowed)
}

/// Whether filters were over the program before it was executed, besides those of the host (`host`: how many these
/// are): nothing is known of them. Makes calls that the loader has made, too.
pub fn are_unknown(host: u64) -> bool {
    let mut room = [0_u8; 4096];
    let Some(text) = sys::own_status(&mut room) else { return false };
    let mode = number_in(text, b"\nSeccomp:").unwrap_or(0);
    // A kernel before 5.9 does not count them.
    mode != 0 && number_in(text, b"\nSeccomp_filters:").map_or(host == 0, |count| count != host)
}

/// The number behind a key of a status file.
pub fn number_in(text: &[u8], key: &[u8]) -> Option<u64> {
    let at = text.windows(key.len()).position(|part| part == key)? + key.len();
    let digits = text.get(at..)?.iter().skip_while(|byte| byte.is_ascii_whitespace());
    let digits = digits.take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number: u64, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))))
}

type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut c_void, *const c_void, Start, *mut c_void) -> c_int;

/// What a thread is begun with that has its maker's filters.
struct Beginning {
    start: Start,
    argument: *mut c_void,
    newest: u64,
}

/// The C library's.
static CREATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Begins a thread.
///
/// # Safety
/// `beginning` is a block of [`pthread_create`], which is ours now.
unsafe extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's promise.
    let Beginning { start, argument, newest } = unsafe { beginning.cast::<Beginning>().read() };
    own().store(newest, SeqCst);
    // SAFETY: it came from malloc.
    unsafe { libc::free(beginning) };
    // SAFETY: the program's own function and argument.
    unsafe { start(argument) }
}

/// `pthread_create(3)`: the C library's own.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let mut next = CREATE.load(Acquire);
    if next.is_null() {
        next = host::next_definition(c"pthread_create");
        CREATE.store(next, Release);
    }
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function has this signature (pthread_create(3)).
    let next = unsafe { mem::transmute::<*mut c_void, Create>(next) };
    let newest = newest();
    if newest == 0 {
        // SAFETY: the caller's promise.
        return unsafe { next(thread, attributes, start, argument) };
    }
    // SAFETY: plain memory.
    let block = unsafe { libc::malloc(size_of::<Beginning>()) }.cast::<Beginning>();
    if block.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: fresh memory of that size; malloc aligns for any type.
    unsafe { block.write(Beginning { start, argument, newest }) };
    // SAFETY: the caller's promise; `begin` takes the block.
    let result = unsafe { next(thread, attributes, begin, block.cast()) };
    if result != 0 {
        // SAFETY: no thread was made that could have it.
        unsafe { libc::free(block.cast()) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u64 = 0x7fff_0000_0000_0006;
    const KILL: u64 = 0x8000_0000_0000_0006;

    /// In a thread of its own: each has a word of its own.
    #[test]
    fn a_thread_is_under_what_it_has_installed_and_what_was_given_to_all() {
        let both = std::thread::spawn(|| {
            let call = [Call::default()];
            assert!(allow(&call));
            let code = [ALLOW];
            let program = Program { len: 1, code: code.as_ptr() };
            // SAFETY: a program of one instruction.
            unsafe { installed(false, 0, &raw const program) };
            let first = newest();
            assert!(first > 0 && first != NOT_NOTED && allow(&call));
            let code = [KILL];
            let program = Program { len: 1, code: code.as_ptr() };
            // SAFETY: as above.
            unsafe { installed(false, FLAG_TSYNC, &raw const program) };
            assert!(!allow(&call));
            assert_eq!(chain(newest()).collect::<Vec<u64>>(), [newest(), first]);
            newest()
        });
        let both = both.join().unwrap();
        assert_eq!(newest(), both, "the other has given it to all");
        NOTES.common.store(0, SeqCst);
        assert_eq!(newest(), 0);
        assert_ne!(shared::word(SharedPage::FILTERS).load(Relaxed), 0);
    }

    #[test]
    fn the_status_file_tells_of_filters_that_were_there_before() {
        assert!(!are_unknown(0));
        let text = b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t13\n";
        assert_eq!(number_in(text, b"\nSeccomp:"), Some(2));
        assert_eq!(number_in(text, b"\nSeccomp_filters:"), Some(13));
        assert_eq!(number_in(text, b"\nTgid:"), None);
    }

    #[test]
    fn only_calls_that_install_a_filter_are_taken() {
        // SAFETY: none of them is made.
        unsafe {
            assert_eq!(by_number(libc::SYS_getpid, [0; 6]), None);
            assert_eq!(by_number(libc::SYS_seccomp, [0; 6]), None);
            assert_eq!(by_number(libc::SYS_prctl, [libc::PR_SET_NAME as usize, 0, 0, 0, 0, 0]), None);
            // EFAULT or EACCES, as the kernel says; nothing is noted.
            assert!(by_number(libc::SYS_seccomp, [SET_MODE_FILTER, 0, 0, 0, 0, 0]).unwrap() < 0);
        }
    }
}
