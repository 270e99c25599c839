//! Physical memory of blocks that a keeper has: a process of the agent's, which makes it and lends it to this one, so
//! that it can be released for the driver's checkpoint and be had again after it.
//!
//! Called by: the arena, inside the gate, and the service thread, while the gate is closed: so no image is taken while
//! a descriptor is open. Invariants: no descriptor stays open; what was made and cannot be imported is given up again.
//! Fails by: the driver's error, the keeper's, or [`NO_KEEPER`].
//!
//! # Safety
//! Functions of the driver, found by their symbols, called with the types of the driver's header (cuda.h of CUDA 13.0);
//! what they write to lies on this file's stack.
#![allow(unsafe_code)]

use crate::{driver, platform, thread};
use core::ffi::{c_int, c_void};
use core::mem;
use core::ptr::without_provenance_mut;
use holdfast_abi::{KeeperAnswer, KeeperQuestion};

/// There is no keeper, or it does not answer.
pub const NO_KEEPER: u64 = 3 << 32;
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const DESCRIPTOR: u32 = 1;

/// Memory of the keeper's, and the driver's handle of it here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The keeper's name of it.
    pub name: u64,
    /// The driver's handle.
    pub handle: u64,
}

/// Calls the driver's function of a symbol.
macro_rules! call {
    ($symbol:literal ($($argument:expr => $type:ty),*)) => {
        match driver::known($symbol) {
            0 => driver::NOT_SUPPORTED,
            address => {
                // SAFETY: the driver's function of this symbol has these types.
                let function = unsafe { mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(address) };
                // SAFETY: pointers are to locals.
                thread::bypass(|| unsafe { function($($argument),*) })
            }
        }
    };
}

/// Asks the keeper. The descriptor that comes along is the caller's.
fn ask(act: u64, name: u64, bytes: u64, uuid: [u64; 2]) -> Result<(KeeperAnswer, Option<c_int>), u64> {
    let question = KeeperQuestion { magic: KeeperQuestion::MAGIC, act, name, bytes, uuid, reserved: [0; 2] };
    let (answer, memory) = platform::ask_keeper(&question).ok_or(NO_KEEPER)?;
    if answer.result == 0 {
        return Ok((answer, memory));
    }
    memory.into_iter().for_each(platform::close);
    Err(answer.result)
}

/// UUID of a device, as two words.
fn uuid(device: i32) -> Result<[u64; 2], u64> {
    let mut uuid = [0_u64; 2];
    let place: *mut c_void = (&raw mut uuid).cast();
    match call!(c"cuDeviceGetUuid_v2"(place => *mut c_void, device => c_int)) {
        0 => Ok(uuid),
        error => Err(u64::from(error)),
    }
}

fn import(memory: c_int) -> Result<u64, u64> {
    let mut handle = 0_u64;
    // The number itself in the place of a pointer (reference of cuMemImportFromShareableHandle).
    let number = without_provenance_mut::<c_void>(memory as usize);
    let result = call!(c"cuMemImportFromShareableHandle"
        (&raw mut handle => *mut u64, number => *mut c_void, DESCRIPTOR => u32));
    platform::close(memory);
    if result == 0 { Ok(handle) } else { Err(u64::from(result)) }
}

/// New memory of a device.
pub fn make(device: i32, bytes: u64) -> Result<Lent, u64> {
    let (answer, memory) = ask(KeeperQuestion::MAKE, 0, bytes, uuid(device)?)?;
    let imported = memory.ok_or(NO_KEEPER).and_then(import);
    if imported.is_err() {
        drop_one(answer.name);
    }
    Ok(Lent { name: answer.name, handle: imported? })
}

/// Memory that there is: a handle of it.
pub fn open(name: u64) -> Result<u64, u64> {
    let (_, memory) = ask(KeeperQuestion::OPEN, name, 0, [0; 2])?;
    memory.ok_or(NO_KEEPER).and_then(import)
}

/// Gives memory up, once it is mapped nowhere.
pub fn drop_one(name: u64) {
    if let Ok((_, Some(memory))) = ask(KeeperQuestion::DROP, name, 0, [0; 2]) {
        platform::close(memory);
    }
}

/// The keeper gives its cache on the device up, as the program is short of memory. False: it has none.
pub fn yield_cache() -> bool {
    ask(KeeperQuestion::YIELD, 0, 0, [0; 2]).is_ok_and(|(answer, _)| answer.bytes > 0)
}

/// Whether there is one. It has no cache yet when that is asked.
pub fn is_there() -> bool {
    ask(KeeperQuestion::YIELD, 0, 0, [0; 2]).is_ok()
}

const _: () = assert!(NO_KEEPER == holdfast_abi::CudaData::FAULT_KEEPER);
