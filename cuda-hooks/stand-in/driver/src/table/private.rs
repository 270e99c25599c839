//! The undocumented table of functions by which libcudart retains the primary context (cuGetExportTable).
//!
//! Called by: `objects.rs`. What goes through it goes past every wrapper, as with the real driver: a hook that waits
//! for cuDevicePrimaryCtxRetain never sees a program of the runtime. Identity and slot as other implementations of the
//! driver have them (ZLUDA, CUDART_INTERFACE).
//!
//! # Safety
//! See `mod.rs`.
#![allow(unsafe_code)]

use crate::api::context;
use crate::code::{Answer, Code};
use crate::entrance::{self, DefaultStream, Rule};
use crate::pointer::{In, Out};

/// Identity of the table.
const RUNTIME: [u8; 16] =
    [0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9];

/// Its size in bytes, a function that is not here, cuDevicePrimaryCtxRetain by another way.
#[repr(C)]
struct Table {
    bytes: usize,
    absent: usize,
    retain: extern "C" fn(Out<usize>, i32) -> u32,
}

static TABLE: Table = Table { bytes: size_of::<Table>(), absent: 0, retain };

extern "C" fn retain(to: Out<usize>, device: i32) -> u32 {
    entrance::call("cuDevicePrimaryCtxRetain", Rule::Gated, DefaultStream::Legacy, || {
        context::primary_retain(to, device)
    })
}

/// Of the undocumented tables there is the one by which libcudart retains the primary context, with that function
/// alone: a program that needs more has to do without.
pub fn export_table(table: Out<usize>, id: In<[u8; 16]>) -> Answer {
    let known = id.get()? == RUNTIME;
    table.put(if known { (&raw const TABLE).addr() } else { 0 })?;
    if known { Ok(()) } else { Err(Code::NOT_FOUND) }
}
