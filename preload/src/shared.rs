//! The page of shared variables: memory of the program that the agent reads, and writes while the program is stopped.
//!
//! Runs in: the host program, any thread, also in signal handlers.
//! Invariants: the layout is `holdfast_image::control::SharedPage` (the test below compares every number); it lies in
//! the library's .bss, so it is inherited by fork, is part of every image, and costs nothing until touched.
//! Words that the agent writes are read volatile: the compiler sees no store to them anywhere.
//!
//! # Safety
//! All accesses are to a static array of atomics, at offsets checked against its length.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// "HOLDFAST".
pub const MAGIC: usize = 0;
/// Restarts behind this process; written by the agent.
pub const RESTARTS: usize = 8;
/// Count of calls that changed what only the calling thread can tell.
pub const FACT_GENERATION: usize = 16;
/// 1: process ids are virtual; written by the agent.
pub const VIRTUAL_IDS: usize = 24;
/// Descriptor of ours that is open now, plus one; 0: none; `u64::MAX`: one is just being opened or closed.
pub const OWN_FD: usize = 32;
/// Path of the agent's socket, NUL-terminated; rewritten by the agent at a restart.
pub const SOCKET_PATH: usize = 64;
/// Room for it, bytes.
pub const SOCKET_PATH_LEN: usize = 512;
/// Address of the area of engine `slots`; 0: not started with it.
pub const GUARD_AREA: usize = 576;
/// Number of entries of the id table; written by the agent.
pub const ID_COUNT: usize = 1024;
/// Pairs of i32: id that the program knows, id of the kernel.
pub const ID_TABLE: usize = 1032;
/// Most entries of the id table.
pub const ID_MAX: usize = 4096;
/// Number of entries of the table of segments; written by the agent.
pub const SEGMENT_COUNT: usize = 34816;
/// Pairs of i32: id of System V shared memory that the program knows, id of the kernel.
pub const SEGMENT_TABLE: usize = 34824;
/// Most entries of the table of segments.
pub const SEGMENT_MAX: usize = 512;
/// Number of entries of the table of semaphore sets; more than [`IPC_MAX`]: some did not fit.
pub const SEMAPHORE_COUNT: usize = 38_920;
/// Pairs of i32: id that the program knows, id of the kernel with its highest bit set. All that were used.
pub const SEMAPHORE_TABLE: usize = 38_928;
/// The same of message queues.
pub const QUEUE_COUNT: usize = 39_936;
/// See [`SEMAPHORE_TABLE`].
pub const QUEUE_TABLE: usize = 39_944;
/// Most entries of each.
pub const IPC_MAX: usize = 126;
/// Number of entries of the table of protected regions that were ever used.
pub const PROTECTED_COUNT: usize = 40960;
/// The table: start, length (0: entry not in force), NUL-terminated name.
pub const PROTECTED_TABLE: usize = 40968;
/// Bytes of one entry.
pub const PROTECTED_ENTRY: usize = 128;
/// Most protected regions.
pub const PROTECTED_MAX: usize = 1024;
/// Number of threads that walk the mappings just now, with a descriptor open.
pub const WALKERS: usize = 40;
/// `MCL_FUTURE` and `MCL_ONFAULT`, as the last `mlockall` or `munlockall` left them.
pub const LOCK_FUTURE: usize = 48;
/// Count of `mbind` calls.
pub const BOUND: usize = 56;
/// Number of ranges where memory may be mapped from segments; written by the agent, see `advice.rs`.
pub const LAZY_COUNT: usize = 176_128;
/// Pairs: first byte, first byte after.
pub const LAZY_TABLE: usize = 176_136;
/// Most ranges.
pub const LAZY_MAX: usize = 1024;
/// Number of mapped segment files.
pub const LAZY_FILE_COUNT: usize = 192_520;
/// Pairs: device as major << 32 | minor, inode.
pub const LAZY_FILES: usize = 192_528;
/// Most segment files.
pub const LAZY_FILE_MAX: usize = 255;
/// Length of the whole area, bytes.
pub const LEN: usize = 192 * 1024;

// No table runs into the next one or over the end.
const _: () = assert!(
    ID_TABLE + ID_MAX * 8 <= SEGMENT_COUNT
        && SEGMENT_TABLE + SEGMENT_MAX * 8 <= SEMAPHORE_COUNT
        && SEMAPHORE_TABLE + IPC_MAX * 8 <= QUEUE_COUNT
        && QUEUE_TABLE + IPC_MAX * 8 <= PROTECTED_COUNT
        && PROTECTED_TABLE + PROTECTED_MAX * PROTECTED_ENTRY <= LAZY_COUNT
        && LAZY_TABLE + LAZY_MAX * 16 <= LAZY_FILE_COUNT
        && LAZY_FILES + LAZY_FILE_MAX * 16 <= LEN
);

/// The area itself.
#[repr(C, align(4096))]
pub struct Shared([AtomicU64; LEN / 8]);

/// The one instance. `ids.rs` also names it from assembly.
pub static SHARED: Shared = Shared([const { AtomicU64::new(0) }; LEN / 8]);

/// Address of the area, for the hello message.
pub fn address() -> u64 {
    core::ptr::from_ref(&SHARED).addr() as u64
}

/// The word at byte `offset`; the first one if the offset is outside (it never is).
#[inline(always)]
pub fn word(offset: usize) -> &'static AtomicU64 {
    SHARED.0.get(offset / 8).unwrap_or(&SHARED.0[0])
}

/// A word that the agent writes while the program is stopped.
#[inline(always)]
pub fn from_agent(offset: usize) -> u64 {
    // SAFETY: a reference is valid for reads. Volatile, because the store to it is outside of all that the compiler
    // sees; no data race, because the agent writes only while every thread of the program is stopped.
    unsafe { word(offset).as_ptr().read_volatile() }
}

/// Copies the NUL-terminated text at `offset` into `buffer`; `None` if it is empty or not ended within it.
pub fn text(offset: usize, buffer: &mut [u8]) -> Option<&CStr> {
    for (index, chunk) in buffer.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&from_agent(offset + index * 8).to_le_bytes());
    }
    CStr::from_bytes_until_nul(buffer).ok().filter(|text| !text.is_empty())
}

/// Stores `value` at `offset`, filled up with NULs to `room` bytes; false (and nothing stored) if it does not fit.
pub fn set_text(offset: usize, room: usize, value: &[u8]) -> bool {
    if value.len() >= room {
        return false;
    }
    for index in 0..room / 8 {
        let mut bytes = [0; 8];
        for (place, byte) in bytes.iter_mut().zip(value.iter().skip(index * 8)) {
            *place = *byte;
        }
        word(offset + index * 8).store(u64::from_le_bytes(bytes), Relaxed);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::control::SharedPage;

    #[test]
    fn the_layout_is_the_one_that_the_agent_knows() {
        assert_eq!(
            [MAGIC, RESTARTS, FACT_GENERATION, VIRTUAL_IDS, OWN_FD, SOCKET_PATH, SOCKET_PATH_LEN],
            [
                SharedPage::MAGIC,
                SharedPage::RESTARTS,
                SharedPage::FACT_GENERATION,
                SharedPage::VIRTUAL_IDS,
                SharedPage::OWN_FD,
                SharedPage::SOCKET_PATH,
                SharedPage::SOCKET_PATH_LEN
            ]
        );
        assert_eq!(
            [
                ID_COUNT,
                ID_TABLE,
                ID_MAX,
                PROTECTED_COUNT,
                PROTECTED_TABLE,
                PROTECTED_ENTRY,
                PROTECTED_MAX,
                LEN
            ],
            [
                SharedPage::ID_COUNT,
                SharedPage::ID_TABLE,
                SharedPage::ID_MAX,
                SharedPage::PROTECTED_COUNT,
                SharedPage::PROTECTED_TABLE,
                SharedPage::PROTECTED_ENTRY,
                SharedPage::PROTECTED_MAX,
                SharedPage::LEN
            ]
        );
        assert_eq!(
            [SEGMENT_COUNT, SEGMENT_TABLE, SEGMENT_MAX],
            [SharedPage::SEGMENT_COUNT, SharedPage::SEGMENT_TABLE, SharedPage::SEGMENT_MAX]
        );
        assert_eq!(
            [SEMAPHORE_COUNT, SEMAPHORE_TABLE, QUEUE_COUNT, QUEUE_TABLE, IPC_MAX],
            [
                SharedPage::SEMAPHORE_COUNT,
                SharedPage::SEMAPHORE_TABLE,
                SharedPage::QUEUE_COUNT,
                SharedPage::QUEUE_TABLE,
                SharedPage::IPC_MAX
            ]
        );
        assert_eq!(
            [
                WALKERS,
                LOCK_FUTURE,
                BOUND,
                LAZY_COUNT,
                LAZY_TABLE,
                LAZY_MAX,
                LAZY_FILE_COUNT,
                LAZY_FILES,
                LAZY_FILE_MAX
            ],
            [
                SharedPage::WALKERS,
                SharedPage::LOCK_FUTURE,
                SharedPage::BOUND,
                SharedPage::LAZY_COUNT,
                SharedPage::LAZY_TABLE,
                SharedPage::LAZY_MAX,
                SharedPage::LAZY_FILE_COUNT,
                SharedPage::LAZY_FILES,
                SharedPage::LAZY_FILE_MAX
            ]
        );
    }

    #[test]
    fn text_comes_back_and_what_is_too_long_is_refused() {
        let mut buffer = [0; SOCKET_PATH_LEN];
        assert!(set_text(SOCKET_PATH, SOCKET_PATH_LEN, b"/run/a.sock"));
        assert_eq!(text(SOCKET_PATH, &mut buffer), Some(c"/run/a.sock"));
        assert!(!set_text(SOCKET_PATH, SOCKET_PATH_LEN, &[b'x'; SOCKET_PATH_LEN]));
        assert_eq!(text(SOCKET_PATH, &mut buffer), Some(c"/run/a.sock"));
        assert!(set_text(SOCKET_PATH, SOCKET_PATH_LEN, b""));
        assert_eq!(text(SOCKET_PATH, &mut buffer), None);
    }
}
