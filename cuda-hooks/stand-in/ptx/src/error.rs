//! What can go wrong: in a text, at a launch, in a thread. Made by `parse`, `decode` and `exec`.

use crate::types::Space;

/// A text that is not PTX, or has what this interpreter lacks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}: `{text}`")]
pub struct ParseError {
    /// Counted from one.
    pub line: u32,
    /// What is wrong or lacking.
    pub what: String,
    /// The line itself.
    pub text: String,
}

/// A launch that cannot begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaunchError {
    /// The module has no entry of this name.
    #[error("the module has no kernel `{0}`")]
    NoKernel(String),
    /// Grid or block of a size that no device takes, or that the kernel forbids.
    #[error("kernel `{kernel}` cannot be launched: {why}")]
    Shape {
        /// Its name.
        kernel: String,
        /// What does not fit.
        why: String,
    },
    /// Parameters of another size than the kernel's.
    #[error("kernel `{kernel}` has {wanted} bytes of parameters, not {given}")]
    Parameters {
        /// Its name.
        kernel: String,
        /// Size of its parameters with their padding.
        wanted: usize,
        /// Size of what came.
        given: usize,
    },
}

/// Where and why a kernel ended before its time.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "kernel `{kernel}`, function `{function}`, line {line} (`{text}`), block {block:?}, thread {thread:?}: {kind}"
)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The kernel that was launched.
    pub kernel: String,
    /// The function that ran.
    pub function: String,
    /// The instruction's line in the PTX text.
    pub line: u32,
    /// That line.
    pub text: String,
    /// `%ctaid`
    pub block: [u32; 3],
    /// `%tid`
    pub thread: [u32; 3],
}

/// What stops a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultKind {
    /// CUDA_ERROR_ILLEGAL_ADDRESS
    #[error("illegal address {address:#x}: {bytes} bytes in {} memory", space.name())]
    IllegalAddress {
        /// State space of the instruction.
        space: Space,
        /// As the program gave it.
        address: u64,
        /// Of the whole access.
        bytes: u32,
    },
    /// CUDA_ERROR_MISALIGNED_ADDRESS
    #[error("misaligned address {address:#x}: {bytes} bytes in {} memory", space.name())]
    MisalignedAddress {
        /// State space of the instruction.
        space: Space,
        /// As the program gave it.
        address: u64,
        /// Of the whole access.
        bytes: u32,
    },
    /// A store to `.const` or to the kernel's parameters.
    #[error("store to read-only memory at {address:#x}")]
    ReadOnly {
        /// As the program gave it.
        address: u64,
    },
    /// CUDA_ERROR_INVALID_PC: a call through what is no function, or a function without a body.
    #[error("call of {0}, which is no function of the module")]
    InvalidPc(String),
    /// `trap`, `brkpt` (ISA, "Miscellaneous Instructions")
    #[error("trap")]
    Trap,
    /// `__assertfail`
    #[error("assertion failed")]
    Assert,
    /// All threads wait.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// What the ISA calls undefined behaviour, found out.
    #[error("undefined: {0}")]
    Undefined(String),
    /// Local memory or depth of calls used up.
    #[error("stack overflow: {0}")]
    StackOverflow(String),
}
