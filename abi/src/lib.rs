//! What libholdfast and the agent share: layouts of memory in the program, limits, and names that both sides write.
//!
//! Nothing of this is typed anywhere else. The library (in the program) and the agent (by process_vm_readv(2) and
//! process_vm_writev(2)) reach a table by its offset; offsets are derived from the `#[repr(C)]` structs here.
//! Images hold this memory, and an image may be restarted by a later version: a layout may grow into what is reserved,
//! but no field moves. The tests of this crate freeze every number.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`SharedPage`] | the library's page of shared variables |
//! | [`GuardArea`], [`GuardThread`] | tables of engine `slots` (docs/slots.md) |
//! | [`CudaArea`], [`CudaThread`], [`CudaObject`] | what CUDA hooks have seen, and their gate (docs/cuda-hooks.md) |
//! | [`CudaData`], [`CudaBlock`], [`CudaFigure`] | device memory that libholdfast owns (docs/cuda.md) |
//! | [`KeeperQuestion`], [`KeeperAnswer`] | what libholdfast asks of a keeper (docs/cuda.md) |
//! | [`FilterNotes`], [`LandlockNotes`] | seccomp filters and Landlock rule sets of the program |
//! | [`AddressTable`] | addresses of hosts that are others since a restart |
//! | [`inject`] | ranges that the library reserves for the agent's injected code and data |
//! | [`environment`] | environment variables that libholdfast reads |
//! | [`registration`] | why a process registers with the agent |
//!
//! All integers are little-endian, as on every processor that this runs on (x86-64).
#![no_std]
#![forbid(unsafe_code)]

/// Byte offsets of fields, as constants of their struct.
macro_rules! offsets {
    ($layout:ident { $($name:ident = $($field:ident).+;)* }) => {
        impl $layout {
            $(
                #[doc = concat!("Offset of `", stringify!($($field).+), "`, bytes.")]
                pub const $name: usize = core::mem::offset_of!($layout, $($field).+);
            )*
        }
    };
}

mod address_table;
mod cuda_area;
mod cuda_data;
pub mod environment;
mod filter_notes;
mod guard_area;
mod guard_thread;
pub mod inject;
mod keeper;
mod landlock_notes;
mod procmap;
pub mod registration;
mod shared_page;
mod watched_paths;

pub use address_table::{AddressPair, AddressTable};
pub use cuda_area::{CudaArea, CudaKind, CudaObject, CudaThread};
pub use cuda_data::{CudaBlock, CudaData, CudaFigure};
pub use filter_notes::{FilterNote, FilterNotes};
pub use guard_area::{
    AgentWords, GuardArea, GuardRange, HandlerWords, LargeAllocation, LibraryWords, OwnPage,
};
pub use guard_thread::{GuardBuffer, GuardThread};
pub use keeper::{KeeperAnswer, KeeperQuestion};
pub use landlock_notes::{LandlockLayer, LandlockNotes, LandlockRule, LandlockRuleset};
pub use procmap::ProcmapQuery;
pub use shared_page::{AddressRange, AioContext, FileNumber, IdPair, ProtectedRegion, SharedPage};
pub use watched_paths::WatchedPaths;

/// Bytes in a page of x86-64.
pub const PAGE: usize = 4096;
