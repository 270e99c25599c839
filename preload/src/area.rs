//! Memory of the program that belongs to the agent: room for its stub code and for its buffers.
//!
//! Runs in: the constructor reserves it; children made by fork find it at the same addresses.
//! Invariants: `code` is mapped readable and executable and never written by us (the agent writes through
//! `/proc/PID/mem`); nothing in the program uses either range; neither costs memory until the agent uses it.
//! Fails by: `None`; then it does not register, and the program runs without checkpoints.

use crate::{shared, sys};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_abi::inject::{CODE_LEN, SCRATCH_LEN};

static CODE: AtomicU64 = AtomicU64::new(0);
static SCRATCH: AtomicU64 = AtomicU64::new(0);

/// The ranges, as the agent is told of them.
#[derive(Clone, Copy)]
pub struct Area {
    /// First byte of the code range.
    pub code: u64,
    /// Its length, bytes.
    pub code_len: u64,
    /// First byte of the scratch range.
    pub scratch: u64,
    /// Its length, bytes.
    pub scratch_len: u64,
    /// Address of the page of shared variables.
    pub shared: u64,
}

/// The ranges, if they are reserved.
pub fn current() -> Option<Area> {
    let (code, scratch) = (CODE.load(Relaxed), SCRATCH.load(Relaxed));
    (code != 0 && scratch != 0).then(|| Area {
        code,
        code_len: CODE_LEN as u64,
        scratch,
        scratch_len: SCRATCH_LEN as u64,
        shared: shared::address(),
    })
}

/// Reserves the ranges if that has not happened yet. Called by the constructor only.
pub fn reserve() -> Option<Area> {
    if current().is_none() {
        let code = sys::map(CODE_LEN, libc::PROT_READ | libc::PROT_EXEC, 0).ok()?;
        CODE.store(code.addr() as u64, Relaxed);
        sys::name_mapping(code, CODE_LEN, c"holdfast");
        let scratch = sys::map(SCRATCH_LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE).ok()?;
        SCRATCH.store(scratch.addr() as u64, Relaxed);
        sys::name_mapping(scratch, SCRATCH_LEN, c"holdfast");
    }
    current()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::{Addr, record::InjectArea};

    #[test]
    fn the_reserved_ranges_are_what_the_agent_asks_for() {
        let area = reserve().unwrap();
        let told = InjectArea {
            code: Addr(area.code),
            code_len: area.code_len,
            scratch: Addr(area.scratch),
            scratch_len: area.scratch_len,
            shared: Addr(area.shared),
        };
        assert!(told.is_valid(), "{told:?}");
        assert_eq!(reserve().map(|again| again.code), Some(area.code), "a second call reserves nothing");
    }
}
