//! Runs a launch. `Grid` has the blocks that run at a time and the order of their threads; `block` what the threads of
//! one block do together; `run` executes one thread; `thread` has its state, `access` its memory,
//! `machine` what all of them share.
//!
//! Every thread has its own program counter, and runs until its slice ends or it has to wait. Which thread is next, and
//! how long its slice is, come from the seed alone. Memory is sequentially consistent: weaker than that no test can
//! demand, stronger is not provoked by other orders than those of slices.

mod access;
mod block;
mod machine;
mod run;
mod thread;

use crate::error::{Fault, FaultKind, LaunchError};
use crate::memory::Memory;
use crate::module::Program;
use block::Block;
use machine::Machine;

pub use machine::Launch;

/// What a call of `Grid::run` has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All blocks have ended.
    Done,
    /// The instructions that were granted are used up.
    Running,
}

/// A launch, while it runs.
#[derive(Debug)]
pub struct Grid {
    program: Program,
    kernel: usize,
    launch: Launch,
    blocks: Vec<Block>,
    turn: usize,
    next: u64,
    total: u64,
    random: Random,
    executed: u64,
}

/// Shared memory that a block can have (sm_90: 227 KiB; CUDA C++ Programming Guide, table of compute capabilities).
const MOST_SHARED: u32 = 227 << 10;

impl Grid {
    /// A launch that has not begun.
    pub fn new(program: Program, kernel: &str, launch: Launch) -> Result<Grid, LaunchError> {
        let number = program.module.kernel(kernel).ok_or_else(|| LaunchError::NoKernel(kernel.into()))?;
        let function = &program.module.functions[number];
        let wanted = function.parameters.last().map_or(0, |p| (p.offset + p.size) as usize);
        let given = launch.parameters.len();
        if wanted != given {
            return Err(LaunchError::Parameters { kernel: kernel.into(), wanted, given });
        }
        if let Some(why) = misshapen(&launch, function) {
            return Err(LaunchError::Shape { kernel: kernel.into(), why });
        }
        let total = launch.grid.iter().map(|&n| u64::from(n)).product();
        let random = Random(launch.seed);
        let (blocks, turn, next, executed) = (Vec::new(), 0, 0, 0);
        Ok(Grid { program, kernel: number, launch, blocks, turn, next, total, random, executed })
    }

    /// Instructions executed so far, by all threads together.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Runs on for about so many instructions. After a fault the launch is over; what it has written stays.
    pub fn run<M: Memory + ?Sized>(&mut self, memory: &M, instructions: u64) -> Result<Progress, Box<Fault>> {
        let end = self.executed.saturating_add(instructions);
        let machine = Machine {
            module: &self.program.module,
            addresses: &self.program.addresses,
            kernel: self.kernel,
            launch: &self.launch,
            memory,
        };
        loop {
            while self.blocks.len() < self.launch.resident.max(1) as usize && self.next < self.total {
                self.blocks.push(Block::new(&machine, self.next));
                self.next += 1;
            }
            if self.blocks.is_empty() {
                return Ok(Progress::Done);
            }
            if self.executed >= end {
                return Ok(Progress::Running);
            }
            let seeded = self.launch.seed != 0;
            let at =
                if seeded { self.random.below(self.blocks.len()) } else { self.turn % self.blocks.len() };
            self.turn = self.turn.wrapping_add(1);
            let block = &mut self.blocks[at];
            let slice = if seeded { 1 << self.random.below(10) } else { 4096 };
            let first = seeded.then(|| self.random.below(block.size()));
            match block.slice(&machine, first, slice, self.executed) {
                Ok(used) => self.executed += u64::from(used),
                Err((thread, kind)) => {
                    let fault = fault(&machine, block, thread, kind);
                    (self.blocks, self.next) = (Vec::new(), self.total);
                    return Err(fault);
                }
            }
            if block.ended() {
                self.blocks.swap_remove(at);
            }
        }
    }
}

/// Why no device would take it, or not this kernel.
fn misshapen(launch: &Launch, function: &crate::Function) -> Option<String> {
    let (grid, block) = (launch.grid, launch.block);
    let threads = block.iter().fold(1u32, |product, &n| product.saturating_mul(n));
    if grid.contains(&0) || block.contains(&0) {
        return Some("a grid or block of nothing".into());
    }
    if grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
        return Some(format!("a grid of {grid:?} blocks"));
    }
    if threads > 1024 || block[2] > 64 {
        return Some(format!("blocks of {block:?} threads"));
    }
    if function.max_threads.is_some_and(|most| threads > most) {
        return Some(format!("{threads} threads, more than its .maxntid or .reqntid"));
    }
    if function.required_threads.is_some_and(|required| required != block) {
        return Some(format!("blocks of {block:?} threads, not those of its .reqntid"));
    }
    if function.local_bytes > thread::MOST_LOCAL {
        return Some(format!("{} bytes of local memory", function.local_bytes));
    }
    let shared = function.shared_bytes.saturating_add(launch.shared_bytes);
    (shared > MOST_SHARED).then(|| format!("{shared} bytes of shared memory"))
}

fn fault<M: ?Sized>(machine: &Machine<'_, M>, block: &Block, thread: usize, kind: FaultKind) -> Box<Fault> {
    let (function, pc, tid) = block.position(thread);
    let line = machine.module.functions[function].code.get(pc).map_or(0, |i| i.line);
    Box::new(Fault {
        kind,
        kernel: machine.module.functions[machine.kernel].name.clone(),
        function: machine.module.functions[function].name.clone(),
        line,
        text: machine.module.line(line).into(),
        block: block.id(),
        thread: tid,
    })
}

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}
