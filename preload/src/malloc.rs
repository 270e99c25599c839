//! `malloc` and its family for the whole program.
//!
//! Runs in: the host program, any thread, from the loader's first allocation on. Who serves: jemalloc, unless
//! `HOLDFAST_MALLOC=system` is set or the program brings an allocator of its own (linked in, or from a library other
//! than the C library: it may use that allocator's own names too, which are not hooked): then every call goes to the
//! definition after ours, as if this library were not there. Decided once, as soon as the C library is up; what is
//! allocated before comes from [`bootstrap`]. Why jemalloc: freed memory goes back to the kernel as zero pages within
//! a second, so it is in no image; and its fork handlers make it usable in a forked child. Invariants: results,
//! alignment and `errno` are those of malloc(3), posix_memalign(3) and their glibc versions; `free` keeps `errno`.
//! jemalloc takes pthread mutexes of its own, never one of ours; its constructor is not called (`build.rs`).
//!
//! # Safety
//! The exports have the C signatures; blocks are told apart by address ([`bootstrap::owns`]) and go to what gave
//! them out. The mode is stored once, before which only [`bootstrap`] gives out blocks.
#![allow(unsafe_code)]

use crate::guard::large;
use crate::{bootstrap, fork, host, shared};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{self, null_mut};
use core::sync::atomic::{
    AtomicPtr, AtomicU8, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use holdfast_abi::PAGE;
use holdfast_abi::environment::{ENV_MALLOC, MALLOC_SYSTEM};
// The models (`make loom`) have nothing to do with the allocator, which takes minutes to be built.
#[cfg(loom)]
use libc as jemalloc;
#[cfg(not(loom))]
use tikv_jemalloc_sys as jemalloc;

/// Not decided yet: [`bootstrap`] serves.
const UNDECIDED: u8 = 0;
/// The call that decides is under way: [`bootstrap`] serves.
const DECIDING: u8 = 1;
/// jemalloc serves.
const JEMALLOC: u8 = 2;
/// The next definition serves.
const SYSTEM: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(UNDECIDED);

// jemalloc's settings, as a hidden symbol that overrides its weak one (an exported `static` would be visible to the
// program). `_RJEM_MALLOC_CONF` in the environment overrides them.
// - background_thread: no threads but the program's own.
// - dirty_decay_ms, muzzy_decay_ms: freed pages go back to the kernel after a second, and at once as zero pages (no
//   "muzzy" stage, in which they would still have content and be stored in images). 1 s or 10 s made no difference in
//   time on python, numpy and sqlite.
// - oversize_threshold: what is larger goes back at once. By default from 8 MiB on, which costs numpy with 16 MB
//   temporaries half of its speed; 32 MiB is the size from which glibc does the same (DEFAULT_MMAP_THRESHOLD_MAX).
// - slab_sizes: small blocks come from runs of up to 16 pages instead of 1 to 7. Neighbours in time are neighbours in
//   memory, as with glibc: python with PYTHONMALLOC=malloc was 14 % slower without it, and is a little faster than
//   glibc with it.
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .rodata.holdfast_malloc_conf,\"a\",@progbits",
    ".Lholdfast_malloc_conf:",
    ".asciz \"background_thread:false,dirty_decay_ms:1000,muzzy_decay_ms:0,\
     oversize_threshold:33554432,slab_sizes:1-4096:16\"",
    ".popsection",
    ".pushsection .data.rel.ro.holdfast_malloc_conf,\"aw\",@progbits",
    ".p2align 3",
    ".hidden _rjem_malloc_conf",
    ".globl _rjem_malloc_conf",
    ".type _rjem_malloc_conf, @object",
    ".size _rjem_malloc_conf, 8",
    "_rjem_malloc_conf: .quad .Lholdfast_malloc_conf",
    ".popsection",
);

// jemalloc's report of statistics, which cannot be asked for here (build.rs).
#[cfg(not(test))]
core::arch::global_asm!(
    ".pushsection .text.holdfast_stats_print,\"ax\",@progbits",
    ".hidden __wrap__rjem_je_stats_print",
    ".globl __wrap__rjem_je_stats_print",
    ".type __wrap__rjem_je_stats_print, @function",
    "__wrap__rjem_je_stats_print: ret",
    ".size __wrap__rjem_je_stats_print, . - __wrap__rjem_je_stats_print",
    ".popsection",
);

#[inline(always)]
fn mode() -> u8 {
    let mode = MODE.load(Acquire);
    if mode == JEMALLOC { mode } else { settle(mode) }
}

/// Whether jemalloc serves.
pub fn is_own() -> bool {
    mode() == JEMALLOC
}

/// Decides who serves, if it is time to.
#[cold]
fn settle(mode: u8) -> u8 {
    if mode != UNDECIDED || !host::is_up() {
        return mode;
    }
    if MODE.compare_exchange(UNDECIDED, DECIDING, AcqRel, Acquire).is_err() {
        return MODE.load(Acquire);
    }
    let decision = if host::keep_errno(own_allocator_wanted) { JEMALLOC } else { SYSTEM };
    if decision == SYSTEM {
        host::keep_errno(find_next);
    } else {
        host::keep_errno(|| {
            fork::guard_allocator();
            get_ready();
        });
    }
    MODE.store(decision, Release);
    decision
}

/// Has jemalloc set itself up, with what that does to errno. The process has one thread: pthread_create allocates
/// before there is a second one (nptl/allocatestack.c, _dl_allocate_tls).
fn get_ready() {
    // SAFETY: any size is allowed, and the block is freed once.
    unsafe { jemalloc::free(jemalloc::malloc(1)) };
}

/// Whether jemalloc is to serve this program.
fn own_allocator_wanted() -> bool {
    if host::variable_is(ENV_MALLOC, MALLOC_SYSTEM) {
        return false;
    }
    let object = |address: *mut c_void| host::object_of(address).map(|(base, _)| base);
    let ours = object(ptr::from_ref(&shared::SHARED).cast_mut().cast());
    let global = host::global_definition(c"malloc");
    let is_global = object(global) == ours || host::is_entry_to_another(global);
    let next_is_c_library =
        object(host::next_definition(c"malloc")) == object(host::next_definition(c"gnu_get_libc_version"));
    is_global && next_is_c_library
}

type Free = unsafe extern "C" fn(*mut c_void);
type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type ReallocArray = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
type UsableSize = unsafe extern "C" fn(*const c_void) -> usize;

/// The functions after ours, in the order of [`Next`].
const NAMES: [&CStr; 11] = [
    c"malloc",
    c"calloc",
    c"realloc",
    c"free",
    c"aligned_alloc",
    c"posix_memalign",
    c"memalign",
    c"valloc",
    c"pvalloc",
    c"malloc_usable_size",
    c"reallocarray",
];

/// Index into [`NAMES`] and [`NEXT`].
#[derive(Clone, Copy)]
enum Next {
    Malloc,
    Calloc,
    Realloc,
    Free,
    AlignedAlloc,
    PosixMemalign,
    Memalign,
    Valloc,
    Pvalloc,
    UsableSize,
    ReallocArray,
}

static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

fn find_next() {
    for (place, name) in NEXT.iter().zip(NAMES) {
        place.store(host::next_definition(name), Relaxed);
    }
}

/// Calls the next definition of `$which`, of type `$signature`; `$otherwise` if there is none.
macro_rules! next {
    ($which:ident: $signature:ty, ($($argument:expr),*), $otherwise:expr) => {{
        let address = NEXT[Next::$which as usize].load(Relaxed);
        if address.is_null() {
            $otherwise
        } else {
            // SAFETY: the loader found it under the name of a function with this signature (man malloc(3)), and it is
            // null no more since the mode says SYSTEM; the arguments are the caller's own.
            unsafe { core::mem::transmute::<*mut c_void, $signature>(address)($($argument),*) }
        }
    }};
}

/// Null and ENOMEM.
#[cold]
fn no_memory() -> *mut c_void {
    host::set_errno(libc::ENOMEM);
    null_mut()
}

/// A block from [`bootstrap`].
#[cold]
fn early(size: usize, align: usize) -> *mut c_void {
    let block = bootstrap::allocate(size, align);
    if block.is_null() { no_memory() } else { block.cast() }
}

/// `malloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    match mode() {
        // SAFETY: any size is allowed.
        JEMALLOC => large::note(unsafe { jemalloc::malloc(size) }, size),
        SYSTEM => next!(Malloc: Malloc, (size), no_memory()),
        _ => early(size, 1),
    }
}

/// `calloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    match mode() {
        // SAFETY: any numbers are allowed; it checks their product.
        JEMALLOC => large::note(unsafe { jemalloc::calloc(count, size) }, count.saturating_mul(size)),
        SYSTEM => next!(Calloc: Calloc, (count, size), no_memory()),
        _ => count.checked_mul(size).map_or_else(no_memory, |size| early(size, 1)),
    }
}

/// `free(3)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if bootstrap::owns(block.cast()) {
        return;
    }
    match mode() {
        // SAFETY: not from `bootstrap`, so from jemalloc, or null. errno is kept, as glibc does since 2.33: giving
        // pages back to the kernel may fail (locked memory).
        JEMALLOC => host::keep_errno(|| unsafe {
            forget(block);
            jemalloc::free(block);
        }),
        SYSTEM => next!(Free: Free, (block), ()),
        _ => {}
    }
}

/// `realloc(3)`; with size 0 it frees and returns null, as glibc's does.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if bootstrap::owns(block.cast()) {
        // SAFETY: a block from `bootstrap`.
        return unsafe { move_early(block, size) };
    }
    match mode() {
        // SAFETY: not from `bootstrap`, so from jemalloc, or null.
        JEMALLOC => unsafe {
            let before = forget(block);
            let moved = jemalloc::realloc(block, size);
            let failed = moved.is_null() && size != 0;
            large::note(if failed { block } else { moved }, if failed { before } else { size });
            moved
        },
        SYSTEM => next!(Realloc: Realloc, (block, size), no_memory()),
        _ => early(size, 1),
    }
}

/// With engine `slots`: a block of jemalloc's is about to be freed or moved; its usable size, bytes.
///
/// # Safety
/// From jemalloc, or null.
#[inline(always)]
unsafe fn forget(block: *mut c_void) -> usize {
    // For null, too, jemalloc would make the thread known to itself. The C library frees null at the end of each thread
    // (malloc/thread-freeres.c), after the destructors by which it is forgotten again: jemalloc would write into its
    // memory when that is gone.
    if block.is_null() || !large::is_on() {
        return 0;
    }
    // SAFETY: the caller's promise.
    let usable = unsafe { jemalloc::malloc_usable_size(block) };
    large::forget(block, usable);
    usable
}

/// Moves a block from [`bootstrap`] to what serves now.
///
/// # Safety
/// `block` must come from [`bootstrap`].
#[cold]
unsafe fn move_early(block: *mut c_void, size: usize) -> *mut c_void {
    if size == 0 {
        return null_mut();
    }
    let moved = malloc(size);
    if !moved.is_null() {
        // SAFETY: the caller's promise.
        let old = unsafe { bootstrap::size_of(block.cast()) };
        // SAFETY: both have room for the smaller size, and are different blocks.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), old.min(size)) };
    }
    moved
}

/// `reallocarray(3)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    if mode() == SYSTEM && !bootstrap::owns(block.cast()) {
        return next!(ReallocArray: ReallocArray, (block, count, size), no_memory());
    }
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc(block, bytes) },
        None => no_memory(),
    }
}

/// A block with that alignment (any power of two), by who serves if that is not the next definition.
fn aligned(align: usize, size: usize) -> *mut c_void {
    if mode() == JEMALLOC {
        // SAFETY: the alignment is a power of two.
        large::note(unsafe { jemalloc::aligned_alloc(align, size) }, size)
    } else {
        early(size, align)
    }
}

/// Null and EINVAL.
#[cold]
fn invalid() -> *mut c_void {
    host::set_errno(libc::EINVAL);
    null_mut()
}

/// `aligned_alloc(3)`: EINVAL for an alignment that is no power of two (older glibc rounds it up silently).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if mode() == SYSTEM {
        return next!(AlignedAlloc: Calloc, (align, size), no_memory());
    }
    if align.is_power_of_two() { aligned(align, size) } else { invalid() }
}

/// `memalign(3)`: as glibc's, it rounds the alignment up to a power of two.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    if mode() == SYSTEM {
        return next!(Memalign: Calloc, (align, size), no_memory());
    }
    align.checked_next_power_of_two().map_or_else(invalid, |align| aligned(align, size))
}

/// `posix_memalign(3)`: the error is the result; `errno` and, on failure, `*out` stay as they are.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if mode() == SYSTEM {
        return next!(PosixMemalign: PosixMemalign, (out, align, size), libc::ENOMEM);
    }
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    let block = host::keep_errno(|| aligned(align, size));
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's pointer to a pointer.
    unsafe { out.write(block) };
    0
}

/// `valloc(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    if mode() == SYSTEM {
        return next!(Valloc: Malloc, (size), no_memory());
    }
    aligned(PAGE, size)
}

/// `pvalloc(3)`: whole pages.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    if mode() == SYSTEM {
        return next!(Pvalloc: Malloc, (size), no_memory());
    }
    size.checked_next_multiple_of(PAGE).map_or_else(no_memory, |size| aligned(PAGE, size))
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(block: *const c_void) -> usize {
    if bootstrap::owns(block.cast()) {
        // SAFETY: a block from `bootstrap`.
        return unsafe { bootstrap::size_of(block.cast()) };
    }
    match mode() {
        // See `forget`.
        JEMALLOC if block.is_null() => 0,
        // SAFETY: not from `bootstrap`, so from jemalloc.
        JEMALLOC => unsafe { jemalloc::malloc_usable_size(block.cast_mut()) },
        SYSTEM => next!(UsableSize: UsableSize, (block), 0),
        _ => 0,
    }
}
