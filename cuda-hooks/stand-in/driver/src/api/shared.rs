//! What is shared with other processes in ways that the stand-in only knows so far as a checkpoint has to refuse it:
//! IPC handles and multicast objects.

use crate::code::{Answer, Code};
use crate::layout::{IpcHandle, MulticastProperties};
use crate::memory::heap::{self, Kind};
use crate::memory::physical::GRANULARITY;
use crate::pointer::{In, Out, Plain};
use crate::vmm;

/// A handle that no process can open, for the device is of this one alone.
pub fn ipc_handle(handle: Out<IpcHandle>, pointer: u64) -> Answer {
    let it = heap::find(pointer).filter(|it| matches!(it.kind, Kind::Linear { .. }));
    let it = it.ok_or(Code::INVALID_VALUE)?;
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&it.base.to_le_bytes());
    vmm::used_ipc();
    handle.put(IpcHandle(bytes))
}

pub fn ipc_open(pointer: Out<u64>, _handle: IpcHandle, _flags: u32) -> Answer {
    pointer.require()?;
    Err(Code::NOT_SUPPORTED)
}

/// Of events, and of memory that other devices are to reach: this device has none
/// (CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED and DMA_BUF_SUPPORTED are 0).
pub fn no_handle<T: Plain>(handle: Out<T>, _of: u64) -> Answer {
    handle.require()?;
    Err(Code::NOT_SUPPORTED)
}

pub fn ipc_close(_pointer: u64) -> Answer {
    Err(Code::INVALID_VALUE)
}

/// Memory of Vulkan, Direct3D or NvSci, mipmapped arrays: not here (driver API, "External Resource Interoperability":
/// CUDA_ERROR_NOT_SUPPORTED is among the results of cuImportExternalMemory).
pub fn no_other_interface() -> Answer {
    Err(Code::NOT_SUPPORTED)
}

pub fn multicast_create(handle: Out<u64>, properties: In<MulticastProperties>) -> Answer {
    handle.require()?;
    let of = properties.get()?;
    if of.devices == 0 || of.size == 0 || !of.size.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    handle.put(vmm::make_multicast())
}

pub fn multicast_add_device(handle: u64, device: i32) -> Answer {
    super::device::check(device)?;
    if vmm::is_multicast(handle) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

pub fn multicast_granularity(
    granularity: Out<usize>,
    properties: In<MulticastProperties>,
    which: u32,
) -> Answer {
    properties.get()?;
    if which > 1 {
        return Err(Code::INVALID_VALUE);
    }
    granularity.put(GRANULARITY as usize)
}
