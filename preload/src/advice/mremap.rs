//! `mremap`, where the kernel wants one mapping and would have found one without Holdfast.
//!
//! Three things make several mappings of what was one, or keep the kernel from taking several: a lazy restart maps
//! the image's segments, privately, where the program had memory without a file (and a file's mapping grows into the
//! rest of that file); memory that is mapped next to tracked memory is not joined with it before the next scan; and
//! tracked mappings are not moved several at a time (Linux 6.17 on, mm/mremap.c, vma_multi_allowed: none that
//! userfaultfd is armed for), others are. Here what grows or moves does so mapping by mapping.
//!
//! Runs in: the host program, any thread, also in signal handlers; jemalloc of this library comes here too.
//! Invariants: a call that the kernel carries out costs one load more; only one that moves memory of unchanged length
//! to a fixed place looks at the mappings first, because the kernel may have moved a part of it when it fails.
//! Allowed and not on plain Linux: the same with several mappings that were never one, if they are private, without a
//! file and protected alike, and before 6.17 also if they are not. Fails by: ENOMEM after a lazy restart where the
//! mappings cannot be looked at, with nothing changed; else as the kernel.
//!
//! # Safety
//! The export has the C signature; memory is moved only where the program asked for just that.
#![allow(unsafe_code)]

use super::ranges::{failed, is_error, is_lazy, map, note, range, touches};
use crate::guard::memory;
use crate::maps::Walk;
use crate::shared;
use crate::{host, sys};
use core::ffi::{c_int, c_void};
use holdfast_abi::{PAGE, SharedPage};

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

/// # Safety
/// Nothing may use the range any more.
pub(super) unsafe fn unmap(start: usize, len: usize) -> isize {
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
        if flags & !known != 0 || stays {
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

    /// Nothing but another place.
    fn keeps_length(&self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0 && self.new_len == self.end - self.start
    }
}

/// mremap(2) for the program.
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn remap(args: [usize; 6]) -> isize {
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
    let Some(order) = Move::of(args) else { return plain() };
    let lazy = shared::from_agent(SharedPage::LAZY_COUNT) != 0 && touches(order.start, order.end);
    if !lazy && !order.keeps_length() {
        // The kernel finds several mappings before it does anything.
        let result = plain();
        if result != failed(libc::EFAULT) {
            return result;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { carry_out(&order, lazy) }.unwrap_or_else(plain)
}

/// `None`: the kernel does it, or refuses it as it would have without Holdfast.
///
/// # Safety
/// As for mremap(2).
#[cold]
unsafe fn carry_out(order: &Move, lazy: bool) -> Option<isize> {
    let looked = Walk::begin()
        .and_then(|mut walk| survey(&mut walk, order.start, order.end).map(|found| (walk, found)));
    let (mut walk, found) = match looked {
        Ok(looked) => looked,
        Err(_) => return lazy.then_some(failed(libc::ENOMEM)),
    };
    let twice = order.flags & libc::MREMAP_DONTUNMAP != 0;
    if found.lazy && twice {
        // The old place would show the file again, not zeros.
        return Some(failed(libc::EINVAL));
    }
    if !found.lazy && found.whole {
        return None;
    }
    if order.keeps_length() {
        if found.lazy {
            note(order.target, order.target + order.new_len);
        }
        // SAFETY: the caller's promise; what is at the target is given away.
        let (_, result) = unsafe { shift(&mut walk, order.start, order.end, order.target, order.flags) };
        return Some(if is_error(result) { result } else { order.target as isize });
    }
    match found.prot {
        // SAFETY: the caller's promise.
        Some(prot) if !twice => Some(unsafe { rebuild(&mut walk, order, prot) }),
        _ => found.lazy.then_some(failed(libc::EFAULT)),
    }
}

/// Lets memory of several mappings, all private and protected alike, shrink at its end, grow, and move for that.
///
/// # Safety
/// As for mremap(2).
unsafe fn rebuild(walk: &mut Walk, order: &Move, prot: c_int) -> isize {
    let Move { start, new_len, target, .. } = *order;
    let mut end = order.end;
    let fixed = order.flags & libc::MREMAP_FIXED != 0;
    if new_len < end - start {
        // SAFETY: the program gives the rest away.
        let result = unsafe { unmap(start + new_len, end - start - new_len) };
        if is_error(result) {
            return result;
        }
        end = start + new_len;
    }
    if !fixed {
        let more = new_len - (end - start);
        // SAFETY: not over anything that is there.
        let grown = unsafe { map(end, more, prot, libc::MAP_FIXED_NOREPLACE) };
        if grown == end as isize {
            return start as isize;
        }
        if !is_error(grown) {
            // Kernels before 4.17 take the address for a hint.
            // SAFETY: made just now.
            let _ = unsafe { unmap(grown as usize, more) };
        }
        if order.flags & libc::MREMAP_MAYMOVE == 0 {
            return failed(libc::ENOMEM);
        }
    }
    // SAFETY: with MREMAP_FIXED the program gives away what is at the target.
    let place =
        unsafe { map(target * usize::from(fixed), new_len, prot, libc::MAP_FIXED * c_int::from(fixed)) };
    if is_error(place) {
        return place;
    }
    // SAFETY: the place is fresh and large enough; the program wants its memory moved.
    unsafe { relocate(walk, start, end, place as usize, new_len) }
}

/// What lies in a range.
struct Survey {
    /// Something from a segment.
    lazy: bool,
    /// One mapping. Such as were protected apart, or put in the place of segments, stay several where each had pages of
    /// its own (mm/vma.c, is_mergeable_anon_vma).
    whole: bool,
    /// The protection of all of it; `None` if it could never have been one mapping.
    prot: Option<c_int>,
}

fn survey(walk: &mut Walk, start: usize, end: usize) -> Result<Survey, c_int> {
    let mut found = Survey { lazy: false, whole: false, prot: None };
    let (mut at, mut alike) = (start, true);
    while at < end {
        match walk.next(at, false)? {
            Some(mapping) if mapping.start <= at => {
                let lazy = is_lazy(&mapping);
                found.lazy |= lazy;
                found.whole |= mapping.start <= start && mapping.end >= end;
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
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller's promise.
    let (moved, result) = unsafe { shift(walk, start, end, place, flags) };
    if !is_error(result) {
        return place as isize;
    }
    let back = match walk.rewind() {
        // SAFETY: back to where it was just taken from; that place is free.
        Ok(()) => unsafe { shift(walk, place, place + moved, start, flags) }.1,
        Err(number) => failed(number),
    };
    if !is_error(back) {
        // SAFETY: fresh, and holds nothing of the program's.
        let _ = unsafe { unmap(place, place_len) };
    }
    result
}

/// Moves mapping by mapping: the bytes that were moved, and 0 or the error that ended it. As in the kernel
/// (mm/mremap.c, remap_move) there must be memory at the start, and gaps after it stay gaps.
///
/// # Safety
/// As for mremap(2) with MREMAP_MAYMOVE and MREMAP_FIXED, which must be among the flags.
unsafe fn shift(walk: &mut Walk, start: usize, end: usize, place: usize, flags: c_int) -> (usize, isize) {
    let mut at = start;
    while at < end {
        let (from, to) = match walk.next(at, false) {
            Ok(Some(mapping)) if mapping.start <= at || at > start => {
                (mapping.start.max(at).min(end), mapping.end.min(end))
            }
            Ok(None) if at > start => (end, end),
            _ => return (at - start, failed(libc::EFAULT)),
        };
        if from < to {
            let args = [from, to - from, to - from, flags as usize, place + (from - start), 0];
            // SAFETY: the caller's promise.
            let result = unsafe { sys::raw(libc::SYS_mremap, args) };
            if is_error(result) {
                return (from - start, result);
            }
        }
        at = to;
    }
    (end - start, 0)
}
