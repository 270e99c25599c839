//! The one table of the driver's functions: name for `cuGetProcAddress`, since which version of CUDA, the exported
//! symbol, and what it does. The exports, the answers of `cuGetProcAddress`, and the test that both agree come from it.
//!
//! A row is: rule (`entrance.rs`), name, version, symbol, where there is one the version and symbol for per-thread
//! default streams, arguments, call. Names, versions and types are those of cuda.h and cudaTypedefs.h 13.0. What a
//! program wants and is not here is not found, as in an older driver. `cuGetProcAddress` has its rows in this file: it
//! searches the table that it is in.
//!
//! # Safety
//! Exported symbols have the driver's names, which no other library may have in one process; arguments are plain
//! numbers, or pointers that are wrapped (`pointer.rs`).
#![allow(unsafe_code)]

mod entry;
mod memory;
mod objects;
mod old;
mod private;
mod work;

use std::ffi::c_void;

use crate::api::resolve;
use crate::entrance::{self, DefaultStream, Rule};
use crate::pointer::{Out, Text};
use crate::settings::settings;
use entry::{Address, Entry, entry, functions};

pub use entry::Found;

functions! {
    Free "cuGetProcAddress" 11030 cuGetProcAddress
        (symbol: Text, function: Out<usize>, version: i32, flags: u64)
        => resolve::v1(find, symbol, function, version, flags);
    Free "cuGetProcAddress" 12000 cuGetProcAddress_v2
        (symbol: Text, function: Out<usize>, version: i32, flags: u64, status: Out<u32>)
        => resolve::v2(find, symbol, function, version, flags, status);
}

/// All of them.
fn all() -> impl Iterator<Item = &'static Entry> {
    let others = objects::TABLE.iter().chain(memory::TABLE).chain(work::TABLE).chain(old::TABLE);
    TABLE.iter().chain(others).flat_map(|rows| rows.iter())
}

/// The newest function of a name that a version of CUDA has: of the two sets that the flags choose between.
fn find(name: &str, version: i32, per_thread: bool) -> Found {
    let named = || all().filter(|entry| entry.name == name);
    let known = |entry: &&Entry| entry.since <= settings().version;
    if !named().any(|entry| known(&entry)) {
        return Found::Not;
    }
    let of = |which: bool| {
        let fits = |entry: &&Entry| entry.since <= version && entry.per_thread == which;
        named().filter(known).filter(fits).max_by_key(|entry| entry.since)
    };
    let best = if per_thread { of(true).or_else(|| of(false)) } else { of(false) };
    best.map_or(Found::Newer, |entry| Found::Function(entry.address.0 as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_there_once_and_is_found() {
        let mut seen = std::collections::HashSet::new();
        for entry in all() {
            assert!(
                seen.insert((entry.name, entry.since, entry.per_thread)),
                "{} {}",
                entry.name,
                entry.since
            );
            let found = find(entry.name, entry.since, entry.per_thread);
            let right = matches!(found, Found::Function(at) if at == entry.address.0 as usize);
            assert!(right, "{} {}", entry.name, entry.since);
            assert!(matches!(find(entry.name, 1000, false), Found::Newer));
        }
        assert!(matches!(find("cuHoldfast", 13000, false), Found::Not));
    }
}
