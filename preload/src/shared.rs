//! The page of shared variables: memory of the program that the agent reads, and writes while the program is stopped.
//!
//! Runs in: the host program, any thread, also in signal handlers. Invariants: the layout is [`SharedPage`]; the page
//! lies in the library's .bss, so it is inherited by fork, is part of every image, and costs nothing until touched.
//! Words that the agent writes are read volatile: the compiler sees no store to them anywhere.
//!
//! # Safety
//! All accesses are to a static array of atomics, at offsets checked against its length.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use holdfast_abi::SharedPage;

/// The area itself.
#[repr(C, align(4096))]
pub struct Shared([AtomicU64; SharedPage::LEN / 8]);

/// The one instance. `ids.rs` also names it from assembly.
pub static SHARED: Shared = Shared([const { AtomicU64::new(0) }; SharedPage::LEN / 8]);

/// Address of the area, for the registration.
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

/// Makes a word 0, in a child made by fork: memory that was never written stays so, and what both sides of the fork
/// have is not copied for nothing.
pub fn clear(word: &'static AtomicU64) {
    if word.load(SeqCst) != 0 {
        word.store(0, SeqCst);
    }
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

    #[test]
    fn text_is_read_as_written_and_what_is_too_long_is_refused() {
        let mut buffer = [0; SharedPage::SOCKET_PATH_LEN];
        assert!(set_text(SharedPage::SOCKET_PATH, SharedPage::SOCKET_PATH_LEN, b"/run/a.sock"));
        assert_eq!(text(SharedPage::SOCKET_PATH, &mut buffer), Some(c"/run/a.sock"));
        assert!(!set_text(
            SharedPage::SOCKET_PATH,
            SharedPage::SOCKET_PATH_LEN,
            &[b'x'; SharedPage::SOCKET_PATH_LEN]
        ));
        assert_eq!(text(SharedPage::SOCKET_PATH, &mut buffer), Some(c"/run/a.sock"));
        assert!(set_text(SharedPage::SOCKET_PATH, SharedPage::SOCKET_PATH_LEN, b""));
        assert_eq!(text(SharedPage::SOCKET_PATH, &mut buffer), None);
    }
}
