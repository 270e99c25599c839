//! `madvise` and `mremap` after a lazy restart.
//!
//! A lazy restart maps the image's segments, privately, where the program had memory without a file. Two calls tell the
//! difference: MADV_DONTNEED and MADV_FREE must leave zeros (allocators count on it), while a mapping of a file goes
//! back to the file's bytes, which are the image's; and mremap(2) wants one mapping, and lets one of a file grow into
//! the rest of that file. Here the ranges that are advised away become memory without a file, and what grows or moves
//! does so mapping by mapping. Everything else (writing, protecting, locking, forking, unmapping) is alike.
//!
//! Runs in: the host program, any thread, also in signal handlers; jemalloc of this library comes here too.
//! Invariants: with [`shared::LAZY_COUNT`] 0 (always, but after a lazy restart) each costs one load more than the plain
//! call. The table of ranges may hold too much: what counts is that a mapping is private and of one of the files in
//! the table, so a file that the program itself maps there later stays one. Memory with MADV_WIPEONFORK, MADV_DONTFORK
//! or a lock is never mapped lazily, so those flags are not lost.
//! Fails by: EAGAIN (advice) or ENOMEM (moving) where the mappings cannot be looked at, with nothing changed.
//! Not hooked: calls by the C library itself (they count on no zeros, and take a failed mremap for "copy it"), and
//! system calls not made through the C library: a restart does not map lazily where it knows of such (Go).
//!
//! # Safety
//! The exports have the C signatures; memory is replaced or moved only where the program asked for just that.
#![allow(unsafe_code)]

use crate::guard::memory;
use crate::maps::{Mapping, Walk};
use crate::shared::{self, LAZY_COUNT, LAZY_FILE_COUNT, LAZY_FILE_MAX, LAZY_FILES, LAZY_MAX, LAZY_TABLE};
use crate::{host, sys};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Bytes in a page of x86-64.
const PAGE: usize = 4096;

const fn failed(number: c_int) -> isize {
    -(number as isize)
}

const fn is_error(result: isize) -> bool {
    result < 0 && result >= -4095
}

/// `madvise(2)`.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's own call.
    let result = unsafe { advise([start as usize, len, advice as usize, 0, 0, 0]) };
    if is_error(result) {
        host::set_errno(-result as c_int);
        return -1;
    }
    result as c_int
}

/// `mremap(2)`. In C the last argument is optional; the kernel looks at it only where a flag says so.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    start: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    // SAFETY: the caller's own call.
    let result = unsafe { remap([start as usize, len, new_len, flags as usize, target as usize, 0]) };
    if is_error(result) {
        host::set_errno(-result as c_int);
        return libc::MAP_FAILED;
    }
    result as *mut c_void
}

/// The same two by their numbers, for `syscall(2)`; `None`: another call.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    match number {
        // SAFETY: the caller's promise.
        libc::SYS_madvise => Some(unsafe { advise(args) }),
        // SAFETY: the caller's promise.
        libc::SYS_mremap => Some(unsafe { remap(args) }),
        _ => None,
    }
}

/// The page-aligned range of a call; `None` where the kernel will refuse it or has nothing to do.
fn range(start: usize, len: usize) -> Option<(usize, usize)> {
    let end = start.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    (start.is_multiple_of(PAGE) && end > start).then_some((start, end))
}

/// Whether memory of the range may be mapped from segments.
fn touches(start: usize, end: usize) -> bool {
    let count = (shared::from_agent(LAZY_COUNT) as usize).min(LAZY_MAX);
    (0..count).any(|index| {
        let at = LAZY_TABLE + index * 16;
        (shared::from_agent(at) as usize) < end && start < shared::from_agent(at + 8) as usize
    })
}

/// Adds a range to those of [`touches`], before anybody is told of it.
fn note(start: usize, end: usize) {
    let count = (shared::word(LAZY_COUNT).load(Acquire) as usize).min(LAZY_MAX);
    for index in count..LAZY_MAX {
        let at = LAZY_TABLE + index * 16;
        if shared::word(at).compare_exchange(0, start as u64, AcqRel, Relaxed).is_ok() {
            shared::word(at + 8).store(end as u64, Release);
            shared::word(LAZY_COUNT).fetch_max(index as u64 + 1, AcqRel);
            return;
        }
    }
    // Full: from now on every call looks at the mappings themselves.
    shared::word(LAZY_TABLE).store(1, Relaxed);
    shared::word(LAZY_TABLE + 8).store(u64::MAX, Relaxed);
}

/// Whether a mapping is one that the restart made from a segment.
fn is_lazy(mapping: &Mapping) -> bool {
    let count = (shared::from_agent(LAZY_FILE_COUNT) as usize).min(LAZY_FILE_MAX);
    !mapping.shared
        && mapping.inode != 0
        && (0..count).any(|index| {
            let at = LAZY_FILES + index * 16;
            shared::from_agent(at) == mapping.device && shared::from_agent(at + 8) == mapping.inode
        })
}

/// madvise(2) for the program.
///
/// # Safety
/// As for the system call.
unsafe fn advise(args: [usize; 6]) -> isize {
    let [start, len, advice, ..] = args;
    if loses_content(advice as c_int) {
        // SAFETY: the caller's promise.
        return memory::around(start, len, false, || unsafe { advise_opened(args) });
    }
    // SAFETY: the caller's promise.
    unsafe { advise_opened(args) }
}

/// Whether pages change or vanish by this advice.
const fn loses_content(advice: c_int) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED | libc::MADV_REMOVE)
}

/// The same, with nothing guarded in the way.
///
/// # Safety
/// As for the system call.
unsafe fn advise_opened(args: [usize; 6]) -> isize {
    let plain = || {
        // SAFETY: the caller's promise.
        unsafe { sys::raw(libc::SYS_madvise, args) }
    };
    if shared::from_agent(LAZY_COUNT) == 0 {
        return plain();
    }
    let [start, len, advice, ..] = args;
    let drops = matches!(advice as c_int, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED);
    match range(start, len) {
        // SAFETY: the caller's promise.
        Some((start, end)) if drops && touches(start, end) => unsafe { discard(start, end, advice) },
        _ => plain(),
    }
}

/// Advises a range away, piece by piece; as in the kernel, parts without memory do not keep the rest from it
/// (mm/madvise.c, madvise_walk_vmas).
///
/// # Safety
/// As for madvise(2) with that advice.
#[cold]
unsafe fn discard(start: usize, end: usize, advice: usize) -> isize {
    let Ok(mut walk) = Walk::begin() else { return failed(libc::EAGAIN) };
    let (mut at, mut gaps) = (start, false);
    while at < end {
        let lazy = match next_lazy(&mut walk, at, end) {
            Ok(lazy) => lazy,
            Err(_) => return failed(libc::EAGAIN),
        };
        let (from, to) = lazy.map_or((end, end), |mapping| (mapping.start.max(at), mapping.end.min(end)));
        if at < from {
            // SAFETY: the caller's promise.
            match unsafe { sys::raw(libc::SYS_madvise, [at, from - at, advice, 0, 0, 0]) } {
                result if result == failed(libc::ENOMEM) => gaps = true,
                result if is_error(result) => return result,
                _ => {}
            }
        }
        if let Some(mapping) = lazy {
            // SAFETY: the caller gives the content of the range away.
            let result = unsafe { replace(from, to - from, mapping.prot, advice) };
            if is_error(result) {
                return result;
            }
        }
        at = to;
    }
    if gaps { failed(libc::ENOMEM) } else { 0 }
}

/// The first mapping from a segment that reaches into the range.
fn next_lazy(walk: &mut Walk, start: usize, end: usize) -> Result<Option<Mapping>, c_int> {
    let mut at = start;
    loop {
        match walk.next(at, true)? {
            Some(mapping) if mapping.start < end => {
                if is_lazy(&mapping) {
                    return Ok(Some(mapping));
                }
                at = mapping.end;
            }
            _ => return Ok(None),
        }
    }
}

/// Puts fresh memory where a segment was mapped.
///
/// # Safety
/// The content of the range is given away.
unsafe fn replace(start: usize, len: usize, prot: c_int, advice: usize) -> isize {
    if advice as c_int != libc::MADV_DONTNEED_LOCKED {
        // Locked memory is refused by both (mm/madvise.c, can_madv_lru_vma and madvise_dontneed_free_valid_vma); this
        // advice changes nothing that a program can see.
        const MADV_COLD: usize = 20;
        // SAFETY: as said.
        let result = unsafe { sys::raw(libc::SYS_madvise, [start, len, MADV_COLD, 0, 0, 0]) };
        if is_error(result) {
            return result;
        }
    }
    // SAFETY: replaces exactly what the caller gives away.
    match unsafe { map(start, len, prot, libc::MAP_FIXED) } {
        result if is_error(result) => failed(libc::EAGAIN),
        _ => 0,
    }
}

/// Fresh private memory, not accounted: as the restart makes it.
///
/// # Safety
/// With MAP_FIXED: what is there is given away.
unsafe fn map(start: usize, len: usize, prot: c_int, flags: c_int) -> isize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: the caller's promise.
    unsafe { sys::raw(libc::SYS_mmap, [start, len, prot as usize, flags as usize, usize::MAX, 0]) }
}

/// # Safety
/// Nobody may use the range any more.
unsafe fn unmap(start: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { sys::raw(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }
}

/// What mremap(2) is to do.
struct Move {
    start: usize,
    end: usize,
    new_len: usize,
    flags: c_int,
    target: usize,
}

impl Move {
    /// `None`: for the kernel alone, to refuse or because nothing grows or moves.
    fn of(args: [usize; 6]) -> Option<Move> {
        let [start, len, new_len, flags, target, _] = args;
        let flags = flags as c_int;
        let (start, end) = range(start, len)?;
        let new_len = new_len.checked_next_multiple_of(PAGE).filter(|&len| len > 0)?;
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let stays = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) == 0 && new_len <= end - start;
        if flags & !known != 0 || stays || !touches(start, end) {
            return None;
        }
        if flags & libc::MREMAP_FIXED != 0 {
            let (to, to_end) = range(target, new_len)?;
            if flags & libc::MREMAP_MAYMOVE == 0 || (to < end && start < to_end) {
                return None;
            }
        }
        Some(Move { start, end, new_len, flags, target })
    }
}

/// mremap(2) for the program.
///
/// # Safety
/// As for the system call.
unsafe fn remap(args: [usize; 6]) -> isize {
    let [start, len, new_len, flags, target, _] = args;
    let replaced = if flags as c_int & libc::MREMAP_FIXED == 0 { 0 } else { new_len };
    memory::around(start, len, true, || {
        // SAFETY: the caller's promise.
        memory::around(target, replaced, true, || unsafe { remap_opened(args) })
    })
}

/// The same, with nothing guarded in the way.
///
/// # Safety
/// As for the system call.
unsafe fn remap_opened(args: [usize; 6]) -> isize {
    let plain = || {
        // SAFETY: the caller's promise.
        unsafe { sys::raw(libc::SYS_mremap, args) }
    };
    if shared::from_agent(LAZY_COUNT) == 0 {
        return plain();
    }
    match Move::of(args) {
        // SAFETY: the caller's promise.
        Some(order) => match unsafe { carry_out(&order) } {
            Some(result) => result,
            None => plain(),
        },
        None => plain(),
    }
}

/// `None`: the kernel does it, or refuses it as it would have without a restart.
///
/// # Safety
/// As for mremap(2).
#[cold]
unsafe fn carry_out(order: &Move) -> Option<isize> {
    let Ok(mut walk) = Walk::begin() else { return Some(failed(libc::ENOMEM)) };
    let prot = match survey(&mut walk, order.start, order.end) {
        Ok(Survey { lazy: false, count: 1, .. }) => return None,
        // The old place would show the file again, not zeros.
        Ok(Survey { lazy: true, .. }) if order.flags & libc::MREMAP_DONTUNMAP != 0 => {
            return Some(failed(libc::EINVAL));
        }
        Ok(Survey { prot: Some(prot), .. }) if order.flags & libc::MREMAP_DONTUNMAP == 0 => prot,
        Ok(Survey { lazy: true, .. }) => return Some(failed(libc::EFAULT)),
        Ok(_) => return None,
        Err(_) => return Some(failed(libc::ENOMEM)),
    };
    let Move { start, new_len, target, .. } = *order;
    let mut end = order.end;
    let fixed = order.flags & libc::MREMAP_FIXED != 0;
    if new_len < end - start {
        // SAFETY: the program gives the rest away.
        let result = unsafe { unmap(start + new_len, end - start - new_len) };
        if is_error(result) {
            return Some(result);
        }
        end = start + new_len;
    }
    if !fixed {
        let more = new_len - (end - start);
        // SAFETY: not over anything that is there.
        let grown = unsafe { map(end, more, prot, libc::MAP_FIXED_NOREPLACE) };
        if grown == end as isize {
            return Some(start as isize);
        }
        if !is_error(grown) {
            // Kernels before 4.17 take the address for a hint.
            // SAFETY: made just now.
            let _ = unsafe { unmap(grown as usize, more) };
        }
        if order.flags & libc::MREMAP_MAYMOVE == 0 {
            return Some(failed(libc::ENOMEM));
        }
    }
    // SAFETY: with MREMAP_FIXED the program gives away what is at the target.
    let place =
        unsafe { map(target * usize::from(fixed), new_len, prot, libc::MAP_FIXED * c_int::from(fixed)) };
    if is_error(place) {
        return Some(place);
    }
    // SAFETY: the place is fresh and large enough; the program wants its memory moved.
    Some(unsafe { relocate(&mut walk, start, end, place as usize, new_len) })
}

/// What lies in a range.
struct Survey {
    /// Something from a segment.
    lazy: bool,
    /// Number of mappings. What was put in the place of segments stays several where each had pages of its own
    /// (mm/vma.c, is_mergeable_anon_vma).
    count: usize,
    /// The protection of all of it; `None` if it could never have been one mapping.
    prot: Option<c_int>,
}

fn survey(walk: &mut Walk, start: usize, end: usize) -> Result<Survey, c_int> {
    let mut found = Survey { lazy: false, count: 0, prot: None };
    let (mut at, mut alike) = (start, true);
    while at < end {
        match walk.next(at, false)? {
            Some(mapping) if mapping.start <= at => {
                let lazy = is_lazy(&mapping);
                found.lazy |= lazy;
                found.count += 1;
                alike &= !mapping.shared && (lazy || mapping.inode == 0);
                alike &= *found.prot.get_or_insert(mapping.prot) == mapping.prot;
                at = mapping.end;
            }
            Some(mapping) if mapping.start < end => (at, alike) = (mapping.start, false),
            _ => (at, alike) = (end, false),
        }
    }
    if !alike {
        found.prot = None;
    }
    walk.rewind()?;
    Ok(found)
}

/// Moves the mappings of a range to a fresh place; what cannot be moved is moved back.
///
/// # Safety
/// The place must be fresh, and not shorter; the program wants its memory there.
unsafe fn relocate(walk: &mut Walk, start: usize, end: usize, place: usize, place_len: usize) -> isize {
    note(place, place + place_len);
    // SAFETY: the caller's promise.
    let (moved, result) = unsafe { shift(walk, start, end, place) };
    if !is_error(result) {
        return place as isize;
    }
    let back = match walk.rewind() {
        // SAFETY: back to where it was just taken from; that place is free.
        Ok(()) => unsafe { shift(walk, place, place + moved, start) }.1,
        Err(number) => failed(number),
    };
    if !is_error(back) {
        // SAFETY: fresh, and holds nothing of the program's.
        let _ = unsafe { unmap(place, place_len) };
    }
    result
}

/// Moves mapping by mapping: the bytes that were moved, and 0 or the error that ended it.
///
/// # Safety
/// As for mremap(2).
unsafe fn shift(walk: &mut Walk, start: usize, end: usize, place: usize) -> (usize, isize) {
    let mut at = start;
    while at < end {
        let len = match walk.next(at, false) {
            Ok(Some(mapping)) if mapping.start <= at => mapping.end.min(end) - at,
            _ => return (at - start, failed(libc::EFAULT)),
        };
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::raw(libc::SYS_mremap, [at, len, len, flags, place + (at - start), 0]) };
        if is_error(result) {
            return (at - start, result);
        }
        at += len;
    }
    (end - start, 0)
}

#[cfg(test)]
mod tests;
