//! The one table of the driver's functions: name for `cuGetProcAddress`, since which version of CUDA, the exported
//! symbol, and what it does. The exports, the answers of `cuGetProcAddress`, and the test that both agree come from it.
//!
//! A row is: rule (`gate.rs`), name, version, symbol, where there is one the version and symbol for per-thread default
//! streams, arguments, call. Names, versions and types are those of cuda.h and cudaTypedefs.h 13.0. What a program
//! wants and is not here is not found, as in an older driver.
//!
//! # Safety
//! Exported symbols have the driver's names, which no other library may have in one process; arguments are plain
//! numbers, or pointers that are wrapped (`pointer.rs`).
#![allow(unsafe_code)]

mod memory;
mod objects;
pub mod private;
mod work;

use std::ffi::c_void;

use crate::settings::settings;

type Function = Option<unsafe extern "C" fn(*mut c_void)>;
type StreamFunction = Option<unsafe extern "C" fn(usize, u32, *mut c_void)>;

/// A function.
pub struct Entry {
    /// For `cuGetProcAddress`.
    pub name: &'static str,
    /// Version of CUDA that brought it.
    pub since: i32,
    /// For per-thread default streams.
    pub per_thread: bool,
    address: Address,
}

/// Of a function: never changes, and nothing is read through it.
struct Address(*const c_void);
// SAFETY: see the type.
unsafe impl Sync for Address {}

macro_rules! entry {
    ($rule:ident $default:ident $name:literal $since:literal $symbol:ident ($($arg:ident: $type:ty),*) $call:expr) => {
        Entry {
            name: $name,
            since: $since,
            per_thread: matches!(DefaultStream::$default, DefaultStream::PerThread),
            address: {
                #[unsafe(no_mangle)]
                #[allow(non_snake_case)]
                extern "C" fn $symbol($($arg: $type),*) -> u32 {
                    gate::call($name, Rule::$rule, DefaultStream::$default, || $call)
                }
                Address($symbol as *const c_void)
            },
        }
    };
}

/// What a search has found.
pub enum Found {
    /// Its address.
    Function(usize),
    /// No function of this name.
    Not,
    /// Only in newer versions than were asked for.
    Newer,
}

/// All of them.
fn all() -> impl Iterator<Item = &'static Entry> {
    objects::TABLE.iter().chain(memory::TABLE).chain(work::TABLE).flat_map(|rows| rows.iter())
}

/// The newest function of a name that a version of CUDA has: of the two sets that the flags choose between.
pub fn find(name: &str, version: i32, per_thread: bool) -> Found {
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

macro_rules! functions {
    ($(
        $rule:ident $name:literal $since:literal $symbol:ident $args:tt $(| $late:literal $thread:ident)? => $call:expr;
    )+) => {
        pub(super) static TABLE: &[&[Entry]] = &[$(&[
            entry!($rule Legacy $name $since $symbol $args $call),
            $(entry!($rule PerThread $name $late $thread $args $call),)?
        ]),+];
    };
}
use {entry, functions};

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
