//! Protection keys (pkeys(7)), allocated anew under their numbers, before anything is mapped: the kernel takes the
//! first one that is free for memory that may only be executed. Runs in the agent, by tables in the seed.

use super::remote_calls::{Need, SeedThread};
use crate::rebuild::error::RebuildError;
use holdfast_image::record::ProcessRecord;
use std::io;

/// include/uapi/asm-generic/mman-common.h: rights as in a new process. Those of threads come with their registers.
const PKEY_DISABLE_ACCESS: u64 = 1;

/// Allocates those of the record.
///
/// # Errors
/// The kernel or the processor has none, or gives other numbers.
pub fn allocate(leader: SeedThread, record: &ProcessRecord) -> Result<(), RebuildError> {
    let wanted = record.attributes.protection_keys;
    let last = 31_u32.saturating_sub(wanted.leading_zeros());
    let mut batch = leader.batch();
    for key in 1..=last {
        let need = Need::Must("allocate protection key", u64::from(key));
        batch.call(libc::SYS_pkey_alloc, &[0, PKEY_DISABLE_ACCESS], need)?;
    }
    let (numbers, _) = batch.finish()?;
    if !numbers.iter().copied().eq((1..=i64::from(last)).take(numbers.len())) {
        let source = io::Error::other(format!("the kernel gives {numbers:?}"));
        return Err(RebuildError::Call { what: format!("allocate protection keys to {last}"), source });
    }
    let mut batch = leader.batch();
    for key in (1..=last).filter(|key| wanted >> key & 1 == 0) {
        batch.call(
            libc::SYS_pkey_free,
            &[u64::from(key)],
            Need::Must("free protection key", u64::from(key)),
        )?;
    }
    batch.finish().map(|_| ())
}
