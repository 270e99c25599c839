//! Access of devices to each other's memory: cuCtxEnablePeerAccess does not reach memory of the virtual memory
//! management API (CUDA C++ Programming Guide, "Virtual Memory Management"), so our blocks follow it by
//! cuMemSetAccess.
//!
//! Called by: `mod.rs`, inside the gate, after the driver's function has succeeded; and by `memory.rs` for new blocks.
//! Invariants: a device that may reach the memory of another one is entered before blocks are looked through: what is
//! made meanwhile has it, too. The driver's access is that of a context; ours is that of its device, which is more.
//! Fails by: the driver's error, with its own access ended again.

use super::calls::{self, SUCCESS};
use super::tables;
use crate::area;
use core::sync::atomic::Ordering::Relaxed;
use holdfast_abi::CudaKind;

/// Ordinals of devices in a set.
pub fn devices(set: u64) -> impl Iterator<Item = i32> {
    (0..64).filter(move |device| set >> device & 1 != 0)
}

/// The context of the calling thread may reach the memory of another one's device.
pub fn enabled(context: u64) -> u32 {
    let (Ok(reader), Ok(device)) = (calls::current_device(), calls::device_of(context)) else {
        return SUCCESS;
    };
    tables::locked(|tables| tables.add_reader(device, reader));
    match each_block(device, |address, bytes| calls::allow(address, bytes, reader, true)) {
        Ok(()) => SUCCESS,
        Err(error) => {
            let _ = calls::disable_peer(context);
            error
        }
    }
}

/// A context reaches another's memory no longer. With the last such pair all access between devices ends.
pub fn disabled() {
    if area::count(CudaKind::PEER).0.load(Relaxed) != 0 {
        return;
    }
    for device in 0..64 {
        let readers = tables::locked(|tables| tables.take_readers(device)).unwrap_or(0);
        for reader in devices(readers) {
            let _ = each_block(device, |address, bytes| calls::allow(address, bytes, reader, false));
        }
    }
}

/// Calls `work` with all blocks of a device; a block that has gone meanwhile is no failure.
fn each_block(device: i32, work: impl Fn(u64, u64) -> Result<(), u32>) -> Result<(), u32> {
    let mut from = 0;
    while let Some(Some((index, address, bytes))) = tables::locked(|tables| tables.block_of(device, from)) {
        let result = work(address, bytes);
        let lasts =
            || tables::locked(|tables| tables.block_of(device, index)) == Some(Some((index, address, bytes)));
        if result.is_err() && lasts() {
            return result;
        }
        from = index + 1;
    }
    Ok(())
}
