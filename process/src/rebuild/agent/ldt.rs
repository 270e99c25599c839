//! The local descriptor table of a process (modify_ldt(2)), before its threads get selectors that lead into it. Runs in
//! the agent, by tables in the program's injection area.

use super::remote_calls::{Need, SeedThread};
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use holdfast_image::ldt;
use holdfast_image::record::ProcessRecord;

/// modify_ldt(2): write an entry, all of its bits.
const WRITE: u64 = 0x11;

/// Makes all entries.
///
/// # Errors
/// Names the entry: this kernel has no such tables, or no segments of 16 bits.
pub fn restore(leader: SeedThread, record: &ProcessRecord) -> Result<(), RebuildError> {
    let mut batch = leader.batch();
    for entry in ldt::entries(&record.ldt.0) {
        let bytes: Vec<u8> = entry.iter().flat_map(|word| word.to_le_bytes()).collect();
        batch.reserve(bytes.len())?;
        let address = batch.data(&bytes);
        let need =
            Need::Must("make the entry of the local descriptor table (modify_ldt)", u64::from(entry[0]));
        batch.row(Row::new(libc::SYS_modify_ldt, &[WRITE, address, bytes.len() as u64]), need);
    }
    batch.finish().map(|_| ())
}
