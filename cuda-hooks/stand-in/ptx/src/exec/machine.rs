//! A launch as it was asked for, and what all of its threads share.

use crate::module::Module;

/// How a kernel is launched.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block in each dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The kernel's parameters as they lie in memory: `Function::parameters`.
    pub parameters: Vec<u8>,
    /// Zero: threads in their order, in long slices. Another: an order of its own, in slices of many lengths.
    pub seed: u64,
    /// Blocks that run at a time; all of a cooperative launch.
    pub resident: u32,
}

/// What all threads of a launch share.
pub(super) struct Machine<'g, M: ?Sized> {
    pub(super) module: &'g Module,
    pub(super) addresses: &'g [u64],
    pub(super) kernel: usize,
    pub(super) launch: &'g Launch,
    pub(super) memory: &'g M,
}
