//! `cuGetProcAddress`, of both versions. The search in the table comes from the table, which this is in.

use crate::code::{Answer, Code};
use crate::pointer::{Out, Text};
use crate::settings::settings;
use crate::table::Found;

/// The newest function of a name that a version has, of one of the two sets.
type Search = fn(&str, i32, bool) -> Found;

/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
const PER_THREAD: u64 = 2;

/// Of CUDA 12.0: success with a null pointer, and a status, where there is no such function.
pub fn v2(
    search: Search,
    symbol: Text,
    function: Out<usize>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> Answer {
    let (address, found) = match find(search, symbol, function, version, flags)? {
        Found::Function(address) => (address, 0),
        Found::Not => (0, 1),
        Found::Newer => (0, 2),
    };
    status.offer(found);
    function.put(address)
}

/// Of CUDA 11.3. That it returned CUDA_ERROR_NOT_FOUND was in its documentation then; not verified on a driver of
/// today.
pub fn v1(search: Search, symbol: Text, function: Out<usize>, version: i32, flags: u64) -> Answer {
    match find(search, symbol, function, version, flags)? {
        Found::Function(address) => function.put(address),
        Found::Not | Found::Newer => {
            function.put(0)?;
            Err(Code::NOT_FOUND)
        }
    }
}

fn find(search: Search, symbol: Text, function: Out<usize>, version: i32, flags: u64) -> Answer<Found> {
    let symbol = symbol.get()?;
    function.require()?;
    // "If the specified CUDA version is greater than the driver version, the API will return CUDA_ERROR_INVALID_VALUE"
    if version > settings().version || flags > PER_THREAD {
        return Err(Code::INVALID_VALUE);
    }
    Ok(search(&symbol, version, flags == PER_THREAD))
}
