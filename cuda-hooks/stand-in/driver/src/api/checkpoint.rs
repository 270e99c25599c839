//! The checkpoint API: arguments are read by offset, 64 bytes that must be zero where nothing is said of them. Their
//! layouts differ between header versions (NVIDIA/cuda-python#2144).

use crate::checkpoint::client;
use crate::checkpoint::message::Operation;
use crate::code::{Answer, Code};
use crate::pointer::{In, Out};

/// The argument structure, or zeros: "optional".
fn arguments(given: In<u8>) -> Answer<[u8; 64]> {
    let mut bytes = [0; 64];
    if !given.is_null() {
        bytes.copy_from_slice(&given.list(64)?);
    }
    Ok(bytes)
}

fn must_be_zero(bytes: &[u8]) -> Answer {
    if bytes.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

fn word(bytes: &[u8; 64], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

pub fn restore_thread(process: i32, thread: Out<i32>) -> Answer {
    thread.put(client::restore_thread(process)?.1)
}

pub fn state(process: i32, state: Out<u32>) -> Answer {
    state.require()?;
    state.put(client::ask(process, Operation::State, 0, Vec::new())?)
}

/// `timeoutMs` is at 0.
pub fn lock(process: i32, given: In<u8>) -> Answer {
    let bytes = arguments(given)?;
    must_be_zero(&bytes[4..])?;
    client::ask(process, Operation::Lock, word(&bytes, 0), Vec::new()).map(drop)
}

pub fn checkpoint(process: i32, given: In<u8>) -> Answer {
    must_be_zero(&arguments(given)?)?;
    client::ask(process, Operation::Checkpoint, 0, Vec::new()).map(drop)
}

/// `gpuPairs` is at 0, `gpuPairsCount` at 8 (CUDA 13.1 and later; 13.0's structure has the same places).
pub fn restore(process: i32, given: In<u8>) -> Answer {
    let bytes = arguments(given)?;
    must_be_zero(&bytes[12..])?;
    let count = word(&bytes, 8) as usize;
    let mut pairs = Vec::new();
    if count > 0 {
        let list: In<[u8; 16]> = given.cast::<In<[u8; 16]>>().get()?;
        for index in 0..count {
            pairs.push((list.at(2 * index)?, list.at(2 * index + 1)?));
        }
    }
    client::ask(process, Operation::Restore, 0, pairs).map(drop)
}

pub fn unlock(process: i32, given: In<u8>) -> Answer {
    must_be_zero(&arguments(given)?)?;
    client::ask(process, Operation::Unlock, 0, Vec::new()).map(drop)
}
