//! Protected memory: named, page-aligned ranges that are always tracked and flushed first.
//!
//! Runs in: the host program, any thread (not in signal handlers).
//! The table lies in the page of shared variables, where the agent reads it at every stop; nothing is sent. An entry is
//! in force while its length is not 0.
//! Invariants: an entry belongs to the thread that changed its start from 0 to [`CLAIMED`] until the length is stored
//! (last, with release) or the start is 0 again; the count only grows. So a cut at any instruction sees whole entries.
//! Two threads that ask for the same new name at the same moment may both be told that it is taken.
//! Fails by: a positive error number of errno(3).
//!
//! # Safety
//! Ranges are mapped and unmapped here, each by the one thread that owns its entry.
#![allow(unsafe_code)]

use crate::guard;
use crate::shared::{self, word};
use crate::sys::{self, Sys};
use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use holdfast_abi::{PAGE, ProtectedRegion, SharedPage};

/// Room for a name with its NUL, bytes.
pub const NAME_ROOM: usize = SharedPage::PROTECTED_NAME_LEN;
/// Start of an entry that is just being made; no mapping starts there.
const CLAIMED: u64 = 1;

/// One entry of the table.
#[derive(Clone, Copy)]
struct Entry(usize);

impl Entry {
    fn all() -> impl Iterator<Item = Entry> {
        (0..SharedPage::PROTECTED_MAX)
            .map(|index| Entry(SharedPage::PROTECTED_TABLE + index * SharedPage::PROTECTED_ENTRY))
    }
    fn used() -> impl Iterator<Item = Entry> {
        let count =
            word(SharedPage::PROTECTED_COUNT).load(Acquire).min(SharedPage::PROTECTED_MAX as u64) as usize;
        Entry::all().take(count)
    }
    fn start(self) -> &'static AtomicU64 {
        word(self.0 + ProtectedRegion::START)
    }
    fn len(self) -> &'static AtomicU64 {
        word(self.0 + ProtectedRegion::LEN)
    }
    fn is_named(self, name: &[u8]) -> bool {
        let mut room = [0; NAME_ROOM];
        self.len().load(Acquire) != 0
            && shared::text(self.0 + ProtectedRegion::NAME, &mut room)
                .is_some_and(|found| found.to_bytes() == name)
    }
    fn number(self) -> u64 {
        ((self.0 - SharedPage::PROTECTED_TABLE) / SharedPage::PROTECTED_ENTRY) as u64
    }
}

/// Whether a name may be used: 1 to 111 bytes.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() < NAME_ROOM
}

/// Maps `size` bytes under `name`: EINVAL (name or size), EEXIST (name taken), ENOSPC (table full), ENOMEM.
pub fn allocate(name: &[u8], size: usize) -> Sys<*mut u8> {
    let len = size.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
    if !is_name(name) || len == 0 {
        return Err(libc::EINVAL);
    }
    if Entry::used().any(|entry| entry.is_named(name)) {
        return Err(libc::EEXIST);
    }
    let claim = |entry: &Entry| entry.start().compare_exchange(0, CLAIMED, AcqRel, Acquire).is_ok();
    let entry = Entry::all().find(claim).ok_or(libc::ENOSPC)?;
    let result = fill(entry, name, len);
    if result.is_err() {
        entry.start().store(0, Release);
    }
    result
}

/// Maps the memory and puts a claimed entry in force.
fn fill(entry: Entry, name: &[u8], len: usize) -> Sys<*mut u8> {
    let memory = sys::map(len, libc::PROT_READ | libc::PROT_WRITE, 0)?;
    // A name of its own keeps the kernel from merging it with other memory.
    sys::name_mapping(memory, len, c"holdfast protected");
    shared::set_text(entry.0 + ProtectedRegion::NAME, NAME_ROOM, name);
    word(SharedPage::PROTECTED_COUNT).fetch_max(entry.number() + 1, AcqRel);
    entry.start().store(memory.addr() as u64, Relaxed);
    entry.len().store(len as u64, Release);
    if Entry::used().any(|other| other.0 != entry.0 && other.is_named(name)) {
        entry.len().store(0, Release);
        // SAFETY: mapped above and not given out.
        let _ = unsafe { sys::unmap(memory, len) };
        return Err(libc::EEXIST);
    }
    Ok(memory)
}

/// Unmaps memory from [`allocate`]: EINVAL if `memory` is none.
pub fn free(memory: *mut u8) -> Result<(), c_int> {
    let start = memory.addr() as u64;
    let entry = Entry::used().find(|entry| start > CLAIMED && entry.start().load(Acquire) == start);
    let entry = entry.ok_or(libc::EINVAL)?;
    let len = entry.len().swap(0, AcqRel);
    if len == 0 {
        return Err(libc::EINVAL);
    }
    let result = guard::memory::around(memory.addr(), len as usize, true, || {
        // SAFETY: the range of this entry, which only this thread ends (the length was not 0 and now is); the caller of
        // the C API promises not to use it any more.
        unsafe { sys::unmap(memory, len as usize) }
    });
    entry.start().store(0, Release);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_checked_and_free_again() {
        let first = allocate(b"field", 5000).unwrap();
        assert!(first.addr().is_multiple_of(PAGE));
        assert_eq!(allocate(b"field", 1), Err(libc::EEXIST));
        assert_eq!(allocate(b"", 1), Err(libc::EINVAL));
        assert_eq!(allocate(&[b'n'; NAME_ROOM], 1), Err(libc::EINVAL));
        assert_eq!(allocate(b"none", 0), Err(libc::EINVAL));
        assert_eq!(allocate(b"huge", usize::MAX), Err(libc::ENOMEM));
        let second = allocate(&[b'n'; NAME_ROOM - 1], 1).unwrap();
        let entry = Entry::used().find(|entry| entry.is_named(b"field")).unwrap();
        assert_eq!(entry.start().load(Relaxed), first.addr() as u64);
        assert_eq!(entry.len().load(Relaxed), 8192);
        assert_eq!(free(first), Ok(()));
        assert_eq!(free(first), Err(libc::EINVAL));
        assert_eq!(free(core::ptr::null_mut()), Err(libc::EINVAL));
        let again = allocate(b"field", 1).unwrap();
        assert_eq!(free(again), Ok(()));
        assert_eq!(free(second), Ok(()));
    }
}
