//! A row of the table, as the files of rows write it (`functions!`), and what a search in the table finds.
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use std::ffi::c_void;

pub(super) type Function = Option<unsafe extern "C" fn(*mut c_void)>;
pub(super) type StreamFunction = Option<unsafe extern "C" fn(usize, u32, *mut c_void)>;

/// A function.
pub struct Entry {
    /// For `cuGetProcAddress`.
    pub name: &'static str,
    /// Version of CUDA that brought it.
    pub since: i32,
    /// For per-thread default streams.
    pub per_thread: bool,
    pub(super) address: Address,
}

/// Of a function: never changes, and nothing is read through it.
pub(super) struct Address(pub(super) *const c_void);
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
                    entrance::call($name, Rule::$rule, DefaultStream::$default, || $call)
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
pub(super) use {entry, functions};
