//! Kernels that find changed device memory, gather it and put it back; their twins for the processor.
//!
//! For cuda-hooks, which launches the kernels in the program's context while its device is drained.
//!
//! A checkpoint is: [`launch::HashChunks`] over all ranges, [`launch::ListChunks`] of what has changed,
//! [`launch::CopyChunks`] of that into the GPU cache. A restart is: `CopyChunks` the other way, then `HashChunks` again
//! with the image's digests as the previous ones: what `ListChunks` then gives is damaged. Digests of an epoch are
//! written beside those of the one before, so that a checkpoint which fails leaves the old ones.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`chunk`] | chunks, ranges of device memory, and which chunk is where |
//! | [`digest`] | the 128-bit digest of a chunk |
//! | [`list`] | the state of a chunk, the lists of those that have changed |
//! | [`launch`] | what a launch of each kernel has to be, as plain data |
//!
//! Invariants: no heap, no panic, no unsafe (what is here runs inside the user's program, too). The PTX and the twins
//! agree bit by bit (`tests/ptx.rs`). Digests are in images: a change of what they are is a new format.
//! Fails by `None` where a description would not fit the kernels.
#![no_std]
#![forbid(unsafe_code)]

pub mod chunk;
pub mod digest;
pub mod launch;
pub mod list;

/// The module with all kernels, with the zero byte at its end that `cuModuleLoadData` wants (CUDA driver API,
/// "Module Management", cuModuleLoadData).
pub const PTX: &[u8] = concat!(include_str!("../cuda/kernels.ptx"), "\0").as_bytes();
