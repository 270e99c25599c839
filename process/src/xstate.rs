//! Sizes of the extended processor state, from CPUID leaf 0xD (Intel SDM volume 1, chapter 13).
//!
//! PTRACE_GETREGSET always answers with the largest size the kernel knows; a signal frame and an image take only what
//! the task can hold: everything but the features that must be asked for (AMX tiles, bit 18), unless they are live.

use core::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Features of which a task gets room only on demand (ARCH_REQ_XCOMP_PERM): AMX tile data.
const DYNAMIC: u64 = 1 << 18;

/// The 8 bytes at `offset`, or zeros past the end.
pub fn array(bytes: &[u8], offset: usize) -> [u8; 8] {
    let mut out = [0; 8];
    if let Some(part) = bytes.get(offset..offset + 8) {
        out.copy_from_slice(part);
    }
    out
}

/// Features that the kernel enables for every task.
pub fn static_features() -> u64 {
    enabled() & !DYNAMIC
}

/// XCR0: features that the kernel enables.
pub fn enabled() -> u64 {
    static XCR0: OnceLock<u64> = OnceLock::new();
    *XCR0.get_or_init(|| {
        let leaf = __cpuid_count(0xd, 0);
        u64::from(leaf.edx) << 32 | u64::from(leaf.eax)
    })
}

/// End of the standard-format area of each enabled feature. CPUID is asked once: in a virtual machine it traps.
fn area_ends() -> &'static [usize; 63] {
    static ENDS: OnceLock<[usize; 63]> = OnceLock::new();
    ENDS.get_or_init(|| {
        let mut ends = [0; 63];
        for bit in (2..63_u32).filter(|bit| enabled() >> bit & 1 == 1) {
            let leaf = __cpuid_count(0xd, bit);
            ends[bit as usize] = leaf.eax as usize + leaf.ebx as usize;
        }
        ends
    })
}

/// End of the standard-format area that holds `features`.
fn area_len(features: u64) -> usize {
    const LEGACY_AND_HEADER: usize = 576;
    let ends = area_ends().iter().enumerate().filter(|(bit, _)| features >> bit & 1 == 1);
    ends.map(|(_, &end)| end).fold(LEGACY_AND_HEADER, usize::max)
}

/// Cuts a state from PTRACE_GETREGSET to what the task holds.
pub fn cut(state: &[u8]) -> &[u8] {
    let live = u64::from_le_bytes(array(state, 512));
    &state[..state.len().min(area_len(static_features() | live))]
}
