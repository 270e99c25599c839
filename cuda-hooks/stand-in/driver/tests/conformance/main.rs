//! What the driver API promises, asked of a driver: of the stand-in here, of a real one by
//!
//!     CONFORMANCE_LIBCUDA=/usr/lib/x86_64-linux-gnu/libcuda.so.1 cargo test -p holdfast-stand-in --test conformance
//!
//! unchanged. A difference is a defect of the stand-in. What only the stand-in has is in `../stand_in.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod arrays;
mod basics;
mod checkpoints;
mod driver;
mod graphs;
mod kernels;
mod memory;
mod modules;
mod streams;
mod virtual_memory;

/// Kernels that nvcc has made (`ptx/tests/kernels/basic.cu`).
const BASIC: &str = include_str!("../../../ptx/tests/kernels/basic.ptx");
