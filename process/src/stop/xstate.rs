//! Sizes of the extended processor state, from CPUID leaf 0xD (Intel SDM volume 1, chapter 13).
//!
//! PTRACE_GETREGSET always answers with the largest size the kernel knows; a signal frame and an image take only what
//! the task can hold: everything but the features that must be asked for (AMX tiles, bit 18), unless they are live.

use core::arch::x86_64::__cpuid_count;
use holdfast_image::processor::XstatePart;
use std::ops::Range;
use std::sync::OnceLock;

/// Features of which a task gets room only on demand (ARCH_REQ_XCOMP_PERM): AMX tile data.
const DYNAMIC: u64 = 1 << 18;
/// Bytes of the FXSAVE area and of the header after it.
const LEGACY_AND_HEADER: usize = 576;
/// Where the header says what is in use.
const XSTATE_BV: usize = 512;

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

/// Where the registers of each enabled feature are. CPUID is asked once: in a virtual machine it traps.
pub fn parts() -> &'static [XstatePart] {
    static PARTS: OnceLock<Vec<XstatePart>> = OnceLock::new();
    PARTS.get_or_init(|| {
        let part = |feature| {
            let leaf = __cpuid_count(0xd, feature);
            XstatePart { feature, offset: leaf.ebx, len: leaf.eax }
        };
        (2..63_u32).filter(|bit| enabled() >> bit & 1 == 1).map(part).collect()
    })
}

/// Its bytes.
fn place(part: &XstatePart) -> Range<usize> {
    let start = part.offset as usize;
    start..start.saturating_add(part.len as usize)
}

/// End of the standard-format area that holds `features`.
fn area_len(features: u64) -> usize {
    let held = parts().iter().filter(|part| features >> part.feature & 1 == 1);
    held.map(|part| place(part).end).fold(LEGACY_AND_HEADER, usize::max)
}

/// Features whose registers are not as they are at a program's start (XSTATE_BV).
pub fn in_use(state: &[u8]) -> u64 {
    u64::from_le_bytes(array(state, XSTATE_BV))
}

/// Features that have something in their registers: some processors call them in use for good (AMD64 manual volume 2,
/// 11.5.2). `parts`: where the processor of the state puts them; all that this applies to begin as zeros.
pub fn filled(state: &[u8], parts: &[XstatePart]) -> u64 {
    let is_empty =
        |part: &&XstatePart| state.get(place(part)).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0));
    parts.iter().filter(is_empty).fold(in_use(state), |filled, part| filled & !(1 << part.feature))
}

/// Whether this processor puts registers as in `from`, as far as that is known.
pub fn is_own(from: &[XstatePart]) -> bool {
    from.is_empty() || from == parts()
}

/// A state that a processor has put as in `from`, as this one puts it. What this one does not have is left out.
pub fn moved(state: &[u8], from: &[XstatePart]) -> Vec<u8> {
    if is_own(from) {
        return state.to_vec();
    }
    let kept = in_use(state) & enabled();
    let mut moved = state.to_vec();
    moved.resize(LEGACY_AND_HEADER, 0);
    moved.resize(area_len(static_features() | kept), 0);
    moved[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&kept.to_le_bytes());
    for to in parts().iter().filter(|part| kept >> part.feature & 1 == 1) {
        let old = from.iter().find(|part| part.feature == to.feature).and_then(|part| state.get(place(part)));
        if let (Some(old), Some(new)) = (old, moved.get_mut(place(to)))
            && old.len() == new.len()
        {
            new.copy_from_slice(old);
        }
    }
    moved
}

/// Cuts a state from PTRACE_GETREGSET to what the task holds.
pub fn cut(state: &[u8]) -> &[u8] {
    &state[..state.len().min(area_len(static_features() | in_use(state)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_registers_at_another_place() {
        // XMM in the legacy area, the upper half of YMM at 576 on all processors; this one may have more.
        let features = enabled() & 0b111;
        let elsewhere = |part: &XstatePart| XstatePart { offset: part.offset + 640, ..*part };
        let from: Vec<XstatePart> = parts().iter().map(elsewhere).collect();
        let mut old = vec![0; 8 * 1024];
        old[XSTATE_BV..XSTATE_BV + 8].copy_from_slice(&(features | 1 << 62).to_le_bytes());
        old[200] = 7;
        for part in &from {
            old[place(part).start] = 9;
        }
        let new = moved(&old, &from);
        assert_eq!((in_use(&new), new[200]), (features, 7), "what is not here is left out");
        assert_eq!(new.len(), area_len(static_features()));
        for part in parts() {
            let expected = if features >> part.feature & 1 == 1 { 9 } else { 0 };
            // What a program has to ask for, AMX say, may lie beyond the end.
            assert_eq!(new.get(place(part).start).copied().unwrap_or(0), expected, "{part:?}");
        }
        assert_eq!(filled(&old, &from), features | 1 << 62);
        assert_eq!(filled(&vec![0; 8 * 1024], &from), 0);
        assert_eq!(moved(&old, parts()), old);
        assert_eq!(moved(&old, &[]), old);
        let _ = moved(&old[..300], &from);
    }
}
