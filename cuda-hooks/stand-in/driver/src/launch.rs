//! Launches of kernels: what is checked when they are submitted, and how they run. Used by `api::launch`, `command`.

use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_ptx::{Fault, FaultKind, Grid, Launch, LaunchError, Program, Progress};

use crate::code::{Answer, Code};
use crate::memory::space;
use crate::module::Function;
use crate::settings::{self, settings};

/// Instructions between two looks at whether the context ends; memory cannot be unmapped meanwhile.
const SLICE: u64 = 50_000;
/// Blocks of a launch that run at a time.
const RESIDENT: u32 = 4;

/// How a kernel is launched.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared: u32,
    /// All blocks must run at a time.
    pub cooperative: bool,
}

/// A launch that was checked.
pub struct Kernel {
    program: Program,
    name: String,
    launch: Launch,
}

impl Kernel {
    /// Checks a launch as the driver does when it is submitted.
    pub fn new(function: &Function, shape: Shape, parameters: Vec<u8>) -> Answer<Kernel> {
        if settings().strikes(settings::Fault::Launch) {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        let allowed = function.dynamic_shared.load(Ordering::Relaxed).max(function.default_dynamic());
        if shape.shared > allowed {
            return Err(Code::INVALID_VALUE);
        }
        let blocks: u64 = shape.grid.iter().map(|&n| u64::from(n)).product();
        let all = u32::try_from(blocks).unwrap_or(u32::MAX);
        let launch = Launch {
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared,
            parameters,
            seed: 0,
            resident: if shape.cooperative { all } else { RESIDENT },
        };
        // cuLaunchCooperativeKernel: CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE beyond what fits on the device; an H100
        // has 132 multiprocessors of at most 32 blocks
        if shape.cooperative && blocks > 132 * 32 {
            return Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let kernel = Kernel { program: function.program.clone(), name: function.kernel().into(), launch };
        kernel.grid(0).map_err(|error| match error {
            LaunchError::NoKernel(_) => Code::NOT_FOUND,
            LaunchError::Shape { .. } | LaunchError::Parameters { .. } => Code::INVALID_VALUE,
        })?;
        Ok(kernel)
    }

    fn grid(&self, seed: u64) -> Result<Grid, LaunchError> {
        Grid::new(self.program.clone(), &self.name, Launch { seed, ..self.launch.clone() })
    }

    /// Runs it to its end, or until its context is ending.
    pub fn run(&self, ending: &AtomicBool, seed: u64) -> Answer {
        let seed = if settings().seed == 0 { 0 } else { seed | 1 };
        let mut grid = self.grid(seed).map_err(|_| Code::LAUNCH_FAILED)?;
        loop {
            let progress = grid.run(&space::view(), SLICE);
            match progress {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Running) if ending.load(Ordering::Relaxed) => {
                    return Err(Code::CONTEXT_IS_DESTROYED);
                }
                Ok(Progress::Running) => {}
                Err(fault) => return Err(code(&fault)),
            }
        }
    }
}

/// The driver's result for a fault; what it was is said on standard error, for a real driver has tools for that.
fn code(fault: &Fault) -> Code {
    eprintln!("stand-in: {fault}");
    match fault.kind {
        FaultKind::IllegalAddress { .. } | FaultKind::ReadOnly { .. } => Code::ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress { .. } => Code::MISALIGNED_ADDRESS,
        FaultKind::InvalidPc(_) => Code::INVALID_PC,
        FaultKind::Assert => Code::ASSERT,
        FaultKind::StackOverflow(_) => Code::HARDWARE_STACK_ERROR,
        // a deadlock hangs for ever on a device; here it is found out
        FaultKind::Trap | FaultKind::Deadlock(_) | FaultKind::Undefined(_) => Code::LAUNCH_FAILED,
    }
}
