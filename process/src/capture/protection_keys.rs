//! Protection keys (pkeys(7)): which a process has allocated. Which memory has one is among its flags (`map_flags`),
//! what each thread may do with it among its registers.
//!
//! Called by `capture_process`, inside the stop. The kernel does not list them; it refuses those that are not allocated
//! before it looks whether there is memory (mm/mprotect.c, do_mprotect_pkey). It is asked only where a key is in use:
//! memory has one, or a thread's rights are not those of a new process. Fails by: [`TraceError`].

use crate::capture::maps::{Flags, Mapped, flags_at};
use crate::error::TraceError;
use crate::inject::live_thread::LiveThread;
use crate::inject::stub::Row;
use crate::stop::threads::Thread;
use crate::stop::xstate;
use holdfast_image::record::InjectArea;
use holdfast_sys::procfs;

/// arch/x86/include/asm/pkeys.h, arch_max_pkey.
const KEYS: u64 = 16;
/// Number of the feature in XCR0.
const PKRU: u32 = 9;
/// Rights of a new process: nothing with any key but 0 (arch/x86/mm/pkeys.c, init_pkru_value).
const NEW: u32 = 0x5555_5554;
/// Behind the addresses of programs; no page is there (Documentation/arch/x86/x86_64/mm.rst).
const NOWHERE: u64 = 0x7fff_ffff_e000;

/// Whether one is in use, as far as can be seen.
fn are_used(all: &[Mapped], flags: &Flags, threads: &[Thread]) -> bool {
    let has_key = |mapped: &Mapped| {
        flags_at(flags, mapped.mapping.start).iter().any(|flag| flag.starts_with(procfs::KEY))
    };
    let Some(part) = xstate::parts().iter().find(|part| part.feature == PKRU) else { return false };
    let rights = |thread: &Thread| {
        let at = part.offset as usize;
        let bytes = thread.xstate.get(at..at + 4)?.try_into().ok()?;
        let is_set = xstate::filled(&thread.xstate, xstate::parts()) >> PKRU & 1 == 1;
        Some(if is_set { u32::from_le_bytes(bytes) } else { 0 })
    };
    all.iter().any(has_key) || threads.iter().any(|thread| rights(thread).is_some_and(|rights| rights != NEW))
}

/// Those that are allocated: a bit for each but key 0, which everybody has.
///
/// # Errors
/// As [`LiveThread::run`].
pub fn ask(
    (host, area): (&LiveThread, &InjectArea),
    all: &[Mapped],
    flags: &Flags,
    threads: &[Thread],
) -> Result<u32, TraceError> {
    if !are_used(all, flags, threads) {
        return Ok(0);
    }
    let protect = |key| Row::new(libc::SYS_pkey_mprotect, &[NOWHERE, 4096, 0, key]);
    let rows: Vec<Row> = (1..KEYS).map(protect).collect();
    let results = host.run(area, &rows, &mut |_| Ok(()))?;
    let allocated = |result: &i64| *result == -i64::from(libc::ENOMEM);
    let bits = (1..).zip(&results).filter(|(_, result)| allocated(result)).map(|(key, _)| 1 << key);
    Ok(bits.fold(0, |all, bit: u32| all | bit))
}
