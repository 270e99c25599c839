//! The CUDA driver API as libholdfast sees it: wrappers around the driver's functions, inside the user's program.
//!
//! Linked into `libholdfast.so` by preload. Rules of the place are those of preload (`preload/src/lib.rs`): the program
//! comes first; no heap of our own, no lock held over a call; `errno` is kept; no panic. A program that
//! never asks for a function of the driver runs none of this but three comparisons in `dlsym`.
//!
//! How a program comes to a wrapper: by `dlsym` or `dlvsym` ([`resolve`]), by cuGetProcAddress, whose answer is
//! replaced ([`driver`]), or because it is linked with libcuda and binds to the exports of [`wrappers`], which are
//! before it in the order of the loader. What is done with which function is one table: `functions.txt`.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`table`] | the rows: all functions of the driver's headers |
//! | [`wrappers`] | one function per row that is not forwarded; the exports |
//! | [`unknown`] | wrappers of functions that the table does not have |
//! | [`gate`], [`entry`], [`wait`], [`thread`] | who is inside the driver; closing it, and waiting until none is |
//! | [`resolve`], [`driver`], [`next`] | looking functions up; the driver's own functions; the C library's `dlsym` |
//! | [`track`], [`objects`] | what the program has made: what an image has to say, and what forbids one |
//! | [`arena`] | device memory that libholdfast owns: cuMemAlloc, cuMemFree, questions about pointers |
//! | [`service`] | the thread that brings the content of that memory to the host and back |
//! | [`lent`] | device memory that another process, the keeper, has |
//! | [`area`] | the memory that the agent reads; fork |
//! | [`platform`], [`syscall`] | what is asked of the kernel and of preload; raw system calls, preload's too |
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]
#[cfg(test)]
extern crate std;

pub mod area;
mod arena;
pub mod driver;
mod entry;
pub mod gate;
mod lent;
mod next;
mod objects;
mod platform;
pub mod resolve;
pub mod service;
pub mod syscall;
pub mod table;
pub mod thread;
mod track;
mod unknown;
mod wait;
pub mod wrappers;

/// What the gate works on; `model.rs` has another one.
mod layout {
    pub use holdfast_abi::{CudaArea, CudaThread};
}

#[cfg(all(test, loom))]
mod model;

pub use arena::{Refused, keep, leave_out};
pub use next::{address_of_dlsym, address_of_dlvsym};

/// In a child made by fork, in its only thread: nothing of the parent's is left.
pub fn forked() {
    arena::forked();
    area::forked();
}
