//! `madvise` after a lazy restart; and that `remap_file_pages` was called.
//!
//! A lazy restart maps the image's segments, privately, where the program had memory without a file. Two calls tell
//! the difference, this one and mremap(2), which is [`mremap`]'s: MADV_DONTNEED and MADV_FREE must leave zeros
//! (allocators count on it), and so must MADV_GUARD_INSTALL once the guard is taken away, while a mapping of a file
//! goes back to the file's bytes, which are the image's. Here the ranges that are advised away become memory without
//! a file. Everything else (writing, protecting, locking, forking, unmapping) is alike.
//!
//! Runs in: the host program, any thread, also in signal handlers; jemalloc of this library comes here too.
//! Invariants: with [`SharedPage::LAZY_COUNT`] 0 (always, but after a lazy restart) it costs one load more than the
//! plain call. The table of ranges may hold too much: what counts is that a mapping is private and of one of the
//! files in the table, so a file that the program itself maps there later stays one. Memory with MADV_WIPEONFORK,
//! MADV_DONTFORK or a lock is never mapped lazily, so those flags are not lost. Fails by: EAGAIN where the mappings
//! cannot be looked at, with nothing changed. Not hooked: calls by the C library itself (they count on no zeros, and
//! take a failed mremap for "copy it"), and system calls not made through the C library: a restart does not map
//! lazily where it knows of such (Go, sanitizers).
//!
//! # Safety
//! The export has the C signature; memory is replaced only where the program asked for just that.
#![allow(unsafe_code)]

mod mremap;
mod ranges;

use crate::guard::memory;
use crate::maps::{Mapping, Walk};
use crate::{host, shared, sys};
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::Ordering::SeqCst;
use holdfast_abi::SharedPage;
use ranges::{failed, is_error, is_lazy, map, range, touches};

/// include/uapi/asm-generic/mman-common.h (Linux 6.13).
const MADV_GUARD_INSTALL: c_int = 102;

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

/// These three by their numbers, for `syscall(2)`; `None`: another call.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    match number {
        // SAFETY: the caller's promise.
        libc::SYS_madvise => Some(unsafe { advise(args) }),
        // SAFETY: the caller's promise.
        libc::SYS_mremap => Some(unsafe { mremap::remap(args) }),
        libc::SYS_remap_file_pages => {
            shared::word(SharedPage::REMAPPED).fetch_add(1, SeqCst);
            // SAFETY: the caller's promise.
            Some(unsafe { sys::raw(number, args) })
        }
        _ => None,
    }
}

/// `remap_file_pages(2)`: taken note of, because pages of shared memory may have no address afterwards.
///
/// # Safety
/// As for the C function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn remap_file_pages(
    start: *mut c_void,
    len: usize,
    prot: c_int,
    offset: usize,
    flags: c_int,
) -> c_int {
    let args = [start.expose_provenance(), len, prot as usize, offset, flags as usize, 0];
    // SAFETY: the caller's own call.
    let result = unsafe { by_number(libc::SYS_remap_file_pages, args) };
    host::from_kernel(result.unwrap_or(-(libc::ENOSYS as isize))) as c_int
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
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_DONTNEED_LOCKED
            | libc::MADV_REMOVE
            | MADV_GUARD_INSTALL
    )
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
    let [start, len, advice, ..] = args;
    if advice as c_int == MADV_GUARD_INSTALL
        && range(start, len).is_some_and(|(start, end)| holds_file(start, end))
    {
        return failed(libc::EINVAL);
    }
    if shared::from_agent(SharedPage::LAZY_COUNT) == 0 {
        return plain();
    }
    let drops = matches!(
        advice as c_int,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED | MADV_GUARD_INSTALL
    );
    match range(start, len) {
        // SAFETY: the caller's promise.
        Some((start, end)) if drops && touches(start, end) => unsafe { discard(start, end, advice) },
        _ => plain(),
    }
}

/// Whether the program has mapped a file privately there. A guard in such a mapping is refused, as by kernels before
/// 6.15: where pages of it are tracked the call never ends, because dropping them leaves markers in their places,
/// which are dropped again and again (Linux 6.18; mm/madvise.c, madvise_guard_install, and mm/memory.c,
/// zap_install_uffd_wp_if_needed).
#[cold]
fn holds_file(start: usize, end: usize) -> bool {
    let Ok(mut walk) = Walk::begin() else { return false };
    let mut at = start;
    while let Ok(Some(mapping)) = walk.next(at, true) {
        if mapping.start >= end {
            break;
        }
        if !mapping.shared && mapping.inode != 0 && !is_lazy(&mapping) {
            return true;
        }
        at = mapping.end;
    }
    false
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
            let mut result = unsafe { replace(from, to - from, mapping.prot, advice) };
            if !is_error(result) && advice as c_int == MADV_GUARD_INSTALL {
                // SAFETY: the program's own call.
                result = unsafe { sys::raw(libc::SYS_madvise, [from, to - from, advice, 0, 0, 0]) };
            }
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

#[cfg(test)]
mod tests;
