//! Another processor than that of the image: whether the program can run on it, and where its registers go.
//!
//! Used by [`super::preflight`](fn@super::preflight), and in the agent by `rebuild_job` and `rebuild_process`. What
//! must hold: nothing that the program may execute is missing, and no registers are where this processor would not
//! look for them. How it fails: an error names what is missing; nothing runs then.

use super::error::RebuildError;
use crate::capture::processor::{self, is_of};
use crate::stop::xstate;
use holdfast_image::processor::{CpuLevel, XstatePart};
use holdfast_image::record::{AltStack, HostRecord, ProcessRecord, ThreadRecord};
use holdfast_sys::procmem::ForcedMemory;

/// Protection keys: set in all threads, to the same unless the program uses them; and where they are matters to no
/// other registers.
const PKRU: u32 = 9;
/// Most of a stack that is looked through.
const STACK: u64 = 64 << 20;

/// XCR0 of programs that keep to a level.
fn registers_of(level: Option<CpuLevel>) -> u64 {
    match level {
        None => u64::MAX,
        Some(CpuLevel::V2) => 0b11,
        Some(CpuLevel::V3) => 0b111,
        Some(CpuLevel::V4) => 0b1110_0111,
    }
}

/// Why the processes of a record cannot run here, one line each.
pub fn obstacles(record: &ProcessRecord) -> Vec<String> {
    let host = &record.host;
    let from = &host.cpu;
    let mut lines = Vec::new();
    let mut lacking = processor::own().lacks(&host.instructions);
    lacking.retain(|name| host.baseline.is_none_or(|level| is_of(level, name)));
    if !lacking.is_empty() {
        let lacking = lacking.join(" ");
        lines.push(format!(
            "this processor lacks instructions that the program may use ({lacking}; it ran on {from}): \
             restart on such a \
             processor or a newer one (for the next time: run --cpu-baseline)"
        ));
    }
    let used = host.xcr0 & registers_of(host.baseline);
    let missing = used & !processor::registers();
    if missing != 0 {
        lines.push(format!(
            "this processor lacks features that the program may use (XCR0 bits {missing:#x}; it ran on \
             {from}): restart on \
             such a processor or a newer one"
        ));
    }
    if let Some(part) = host.xstate.iter().find(|part| used >> part.feature & 1 == 1 && is_elsewhere(part)) {
        lines.push(format!(
            "this processor puts extended registers (XSAVE feature {}) at another place than {from}, and \
             signal handlers of the \
             program would not find theirs: restart on the same kind of processor (for the next time: run \
             --cpu-baseline)",
            part.feature
        ));
    }
    // Of all others the registers that may be in use are named above.
    if host.baseline.is_some() {
        lines.extend(record.processes().find_map(|process| disobedient(process, &host.xstate)));
    }
    lines
}

/// Registers up to those of AVX are at the same place everywhere (Intel SDM volume 1, 13.4.3).
fn is_elsewhere(part: &XstatePart) -> bool {
    part.feature != PKRU && xstate::parts().iter().any(|own| own.feature == part.feature && own != part)
}

/// A thread with something in registers that are not here, though it was told to do without.
fn disobedient(process: &ProcessRecord, parts: &[XstatePart]) -> Option<String> {
    let missing = |thread: &ThreadRecord| {
        xstate::filled(&thread.xstate.0, parts) & !(processor::registers() | 1 << PKRU)
    };
    let thread = process.threads.iter().find(|thread| missing(thread) != 0)?;
    Some(format!(
        "thread {} of process {} has used registers that this processor lacks (XCR0 bits {:#x}), whatever \
         it was told: restart on a \
         processor that has them",
        thread.tid,
        process.pid,
        missing(thread)
    ))
}

/// What the user should know.
pub fn note(host: &HostRecord) -> Option<String> {
    let level = host.baseline?;
    let lacking = processor::own().lacks(&host.instructions).join(" ");
    (!lacking.is_empty()).then(|| {
        format!(
            "this processor lacks {lacking}; the program was told to keep to {level}, and ends by SIGILL \
             where it does not"
        )
    })
}

/// Puts the registers of all threads where this processor looks for them.
pub fn fit(record: &mut ProcessRecord) {
    let from = record.host.xstate.clone();
    let others = record.others.iter_mut().flat_map(|process| &mut process.threads);
    for thread in record.threads.iter_mut().chain(others) {
        thread.xstate.0 = xstate::moved(&thread.xstate.0, &from);
    }
}

/// Refuses threads in signal handlers where what was interrupted could not be restored: the kernel puts
/// registers on the stack as that processor had them, and a frame that does not suit this one loses all but the
/// oldest registers (arch/x86/kernel/fpu/signal.c, check_xstate_in_sigframe).
///
/// # Errors
/// There is one; its stack cannot be read.
pub fn check_frames(
    record: &ProcessRecord,
    thread: &ThreadRecord,
    rsp: u64,
    memory: &ForcedMemory,
) -> Result<(), RebuildError> {
    let host = &record.host;
    if xstate::is_own(&host.xstate) && host.xcr0 & !processor::registers() == 0 {
        return Ok(());
    }
    let region = record.regions.iter().find(|region| (region.start.0..region.end.0).contains(&rsp));
    let len = region.map_or(0, |region| (region.end.0 - rsp).min(STACK));
    let stack = memory.read_some(rsp, usize::try_from(len).unwrap_or(0));
    if is_within(&thread.alt_stack, rsp) || has_frame(&stack, rsp) {
        return Err(RebuildError::Refused(format!(
            "thread {} was in a signal handler, and what it had interrupted can only go on with the \
             extended registers of {}: restart \
             from another image (JOB@N; holdfast list JOB), or on such a processor",
            thread.tid, host.cpu
        )));
    }
    Ok(())
}

fn is_within(stack: &AltStack, rsp: u64) -> bool {
    rsp.checked_sub(stack.sp.0).is_some_and(|offset| offset < stack.size)
}

/// Whether there is a signal frame: 464 bytes after a 64-byte boundary `struct _fpx_sw_bytes`
/// (arch/x86/include/uapi/asm/sigcontext.h), whose second word leads to its end.
fn has_frame(stack: &[u8], start: u64) -> bool {
    const MAGIC1: u32 = 0x4650_5853;
    const MAGIC2: u32 = 0x4650_5845;
    const WITHIN: u64 = 464;
    let word = |at: usize| Some(u32::from_le_bytes(stack.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let first = (WITHIN.wrapping_sub(start) % 64) as usize;
    (first..stack.len()).step_by(64).any(|at| {
        let end = |size: u32| {
            at.checked_sub(WITHIN as usize).and_then(|state| word((state + size as usize).checked_sub(4)?))
        };
        word(at) == Some(MAGIC1) && word(at + 4).and_then(end) == Some(MAGIC2)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;

    #[test]
    fn a_signal_frame_is_found_wherever_the_stack_begins() {
        for start in [0x7ffc_0000_0000_u64, 0x7ffc_0000_0008, 0x7ffc_0000_0038] {
            let mut stack = vec![0; 8192];
            assert!(!has_frame(&stack, start));
            let state = (4096 - start % 64) as usize;
            stack[state + 464..][..4].copy_from_slice(&0x4650_5853_u32.to_le_bytes());
            stack[state + 468..][..4].copy_from_slice(&836_u32.to_le_bytes());
            assert!(!has_frame(&stack, start), "without its end");
            stack[state + 832..][..4].copy_from_slice(&0x4650_5845_u32.to_le_bytes());
            assert!(has_frame(&stack, start), "{start:#x}");
            assert!(!has_frame(&stack[..state + 832], start));
        }
    }

    #[test]
    fn another_host_is_told_apart_by_name() {
        let mut record = record(Vec::new());
        record.host = crate::capture::state::host(std::process::id().cast_signed(), &[]).unwrap();
        let own = record.host.clone();
        let mut lines = |host: HostRecord| {
            record.host = host;
            obstacles(&record)
        };
        assert_eq!(lines(own.clone()), [""; 0]);
        let mut other = HostRecord { cpu: "a processor to come".into(), ..own.clone() };
        other.instructions.push("avx4096".into());
        let found = lines(other.clone());
        assert!(
            found.len() == 1 && found[0].contains("avx4096") && found[0].contains("to come"),
            "{found:?}"
        );
        let found = lines(HostRecord { xcr0: own.xcr0 | 1 << 62, ..own.clone() });
        assert!(found.len() == 1 && found[0].contains("0x4000000000000000"), "{found:?}");
        // What a program of a level does not use need not be here.
        other.baseline = Some(CpuLevel::V2);
        other.xcr0 |= 1 << 62;
        assert_eq!(note(&HostRecord { baseline: None, ..other.clone() }), None);
        assert!(note(&other).is_some_and(|note| note.contains("avx4096") && note.contains("x86-64-v2")));
        assert_eq!(lines(other), [""; 0]);
        let mut moved = own.clone();
        let Some(part) = moved.xstate.iter_mut().find(|part| part.feature > 2 && part.feature != PKRU) else {
            return;
        };
        part.offset += 64;
        let found = lines(moved.clone());
        assert!(found.len() == 1 && found[0].contains("another place"), "{found:?}");
        assert_eq!(lines(HostRecord { baseline: Some(CpuLevel::V3), ..moved }), [""; 0]);
    }

    #[test]
    fn programs_of_a_level_use_its_registers() {
        let all = [None, Some(CpuLevel::V4), Some(CpuLevel::V3), Some(CpuLevel::V2)].map(registers_of);
        assert!(all.is_sorted_by(|more, less| more & less == *less), "{all:x?}");
    }
}
