//! Entries of the local descriptor table (modify_ldt(2)): segments that Wine, dosemu and old threading libraries have.
//!
//! Called by `capture_process`, inside the stop. The table belongs to the memory of the process and is read by any
//! thread of it. Fails by: [`TraceError`].

use crate::error::TraceError;
use crate::inject::live_thread::{BUFFERS, LiveThread};
use crate::inject::stub::Row;
use holdfast_image::bytes::Blob;
use holdfast_image::ldt;
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;

/// Bytes that the call of [`row`] writes.
pub const LEN: usize = 8;

/// The call that tells whether there is a table: [`is_there`].
pub fn row(buffer: u64) -> Row {
    read(buffer, LEN)
}

fn read(buffer: u64, len: usize) -> Row {
    /// modify_ldt(2): read.
    const READ: u64 = 0;
    Row::new(libc::SYS_modify_ldt, &[READ, buffer, len as u64])
}

/// Whether the call has found one: it tells how much was asked for then, whatever there is
/// (arch/x86/kernel/ldt.c, read_ldt); ENOSYS in a kernel without.
pub fn is_there(result: Option<&i64>) -> bool {
    result.is_some_and(|len| *len > 0)
}

/// All of it, without the empty end. The host is stopped at its marker afterwards.
///
/// # Errors
/// As [`LiveThread::run`].
pub fn ask(host: &LiveThread, area: &InjectArea) -> Result<Blob, TraceError> {
    let buffer = area.scratch.0 + BUFFERS;
    host.run(area, &[read(buffer, ldt::LEN_MAX)], &mut |_| Ok(()))?;
    let mut bytes = vec![0; ldt::LEN_MAX];
    procmem::read(host.thread.tid, buffer, &mut bytes)?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(used.next_multiple_of(ldt::ENTRY_LEN));
    Ok(Blob(bytes))
}
