//! What the protocol of [`super::table`] does outside its tables: copies, protections, time, whether the agent lives.
//!
//! `model.rs` has the same names for its own memory.
//!
//! # Safety
//! Pages are copied and opened for a caller that promises what each function asks for.
#![allow(unsafe_code)]

use core::ptr;
use holdfast_abi::PAGE;

pub use crate::agent::is_there as agent_is_there;
pub use crate::sys::{monotonic_ms, nap, open_memory};

/// Copies a page of the program.
///
/// # Safety
/// The page at `from` can be read; `to` is a page that nothing else uses.
pub unsafe fn copy_page(from: usize, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(ptr::with_exposed_provenance::<u8>(from), to, PAGE) };
}

/// For the model, whose sequentially consistent operations are weaker than those of the language.
#[inline(always)]
pub fn order_of_seqcst() {}
