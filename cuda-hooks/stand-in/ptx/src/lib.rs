//! PTX on a processor: parser and interpreter, for the stand-in CUDA driver of the tests. Never shipped.
//!
//! `Module::parse` reads PTX text as nvcc writes it and decodes it once; `Program` gives the module's variables their
//! addresses; `Grid` is one launch, which runs in slices of so many instructions. Memory of the device is behind the
//! trait `Memory`. No unsafe, no I/O, no thread, no clock: the same seed gives the same order of threads.
//!
//! Facts are from NVIDIA's "Parallel Thread Execution ISA", version 9.0; comments name its sections as "ISA 9.7.1.1"
//! (the numbers move between versions: where one does not fit, the instruction's name is what to look for).
//! What an instruction or a directive needs that is not here is an error with its line and text, never a guess.

mod alu;
mod convert;
mod decode;
mod error;
mod exec;
mod float;
mod half;
mod lexer;
mod memory;
mod module;
mod op;
mod parse;
mod raw;
mod types;

pub use error::{Fault, FaultKind, LaunchError, ParseError};
pub use exec::{Grid, Launch, Progress};
pub use memory::{Memory, OutOfRange, TestMemory};
pub use module::{Function, Module, Parameter, Program, Target, Variable};
pub use types::{Space, Type};
