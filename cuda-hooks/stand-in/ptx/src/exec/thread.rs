//! The state of one thread: registers, frames of its calls, local memory, parameters.

use crate::error::FaultKind;
use crate::memory::{load, store};
use crate::module::Function;
use crate::op::{Destination, Slot};

/// Local memory of a thread (512 KiB on all devices; CUDA C++ Programming Guide, table of compute capabilities).
pub(super) const MOST_LOCAL: u32 = 512 << 10;
const MOST_CALLS: usize = 10_000;
/// Where frames begin in local memory.
const FRAME_ALIGN: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Ready,
    /// At a barrier of its block.
    Barrier(usize),
    /// At an instruction that lanes of this mask do together.
    Warp(u32),
    /// At `activemask`, until others of its warp have come or wait.
    Converging,
    Exited,
}

/// What a call keeps of its caller.
#[derive(Clone, Copy, Debug)]
struct Caller {
    function: usize,
    pc: usize,
    base: usize,
    local_base: u32,
    local_top: u32,
    parameter_base: usize,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) index: u32,
    pub(super) tid: [u32; 3],
    pub(super) state: State,
    pub(super) function: usize,
    pub(super) pc: usize,
    pub(super) carry: bool,
    registers: Vec<u64>,
    base: usize,
    pub(super) local: Vec<u8>,
    pub(super) local_base: u32,
    pub(super) local_top: u32,
    pub(super) parameters: Vec<u8>,
    pub(super) parameter_base: usize,
    callers: Vec<Caller>,
    /// What fresh local memory has in it.
    fill: u8,
}

impl Thread {
    pub(super) fn new(index: u32, tid: [u32; 3], number: usize, kernel: &Function, fill: u8) -> Thread {
        Thread {
            index,
            tid,
            state: State::Ready,
            function: number,
            pc: 0,
            carry: false,
            registers: vec![0; kernel.registers as usize],
            base: 0,
            local: vec![fill; kernel.local_bytes as usize],
            local_base: 0,
            local_top: kernel.local_bytes,
            parameters: vec![0; kernel.parameter_bytes as usize],
            parameter_base: 0,
            callers: Vec::new(),
            fill,
        }
    }

    pub(super) fn lane(&self) -> u32 {
        self.index % 32
    }

    pub(super) fn depth(&self) -> usize {
        self.callers.len()
    }

    #[inline]
    pub(super) fn register(&self, register: u32) -> u64 {
        self.registers[self.base + register as usize]
    }

    /// `value` has no bits that the register has not.
    #[inline]
    pub(super) fn set(&mut self, register: u32, value: u64) {
        self.registers[self.base + register as usize] = value;
    }

    #[inline]
    pub(super) fn put(&mut self, to: Destination, value: u64) {
        if let Some((register, mask)) = to {
            self.set(register, value & mask);
        }
    }

    /// Into a function, whose parameters get the arguments.
    pub(super) fn enter(
        &mut self,
        number: usize,
        callee: &Function,
        caller: &Function,
        arguments: &[Slot],
    ) -> Result<(), FaultKind> {
        if self.callers.len() == MOST_CALLS {
            return Err(FaultKind::StackOverflow("more than 10000 calls in each other".into()));
        }
        if arguments.len() != callee.inputs.len() {
            return Err(FaultKind::Undefined("call with another number of parameters".into()));
        }
        let local_base = self.local_top.next_multiple_of(FRAME_ALIGN);
        let local_top = local_base.saturating_add(callee.local_bytes);
        self.grow_local(local_top)?;
        self.callers.push(Caller {
            function: self.function,
            pc: self.pc,
            base: self.base,
            local_base: self.local_base,
            local_top: self.local_top,
            parameter_base: self.parameter_base,
        });
        let (base, parameter_base) =
            (self.base + caller.registers as usize, self.parameter_base + caller.parameter_bytes as usize);
        self.registers.resize(base, 0);
        self.registers.resize(base + callee.registers as usize, 0);
        self.parameters.resize(parameter_base, 0);
        self.parameters.resize(parameter_base + callee.parameter_bytes as usize, 0);
        for (from, to) in arguments.iter().zip(&callee.inputs) {
            self.pass((*from, self.base, self.parameter_base), (*to, base, parameter_base))?;
        }
        (self.function, self.pc, self.base, self.parameter_base) = (number, 0, base, parameter_base);
        (self.local_base, self.local_top) = (local_base, local_top);
        Ok(())
    }

    /// Makes local memory as large as that, if it may be.
    pub(super) fn grow_local(&mut self, top: u32) -> Result<(), FaultKind> {
        if top > MOST_LOCAL {
            return Err(FaultKind::StackOverflow("more than 512 KiB of local memory".into()));
        }
        self.local.resize(self.local.len().max(top as usize), self.fill);
        Ok(())
    }

    /// Back to the caller, at its call: `false` if there is none.
    pub(super) fn leave(&mut self) -> bool {
        let Some(caller) = self.callers.pop() else {
            return false;
        };
        (self.function, self.pc, self.base) = (caller.function, caller.pc, caller.base);
        (self.local_base, self.local_top) = (caller.local_base, caller.local_top);
        self.parameter_base = caller.parameter_base;
        true
    }

    /// What a function that has just been left gave back.
    pub(super) fn take_results(
        &mut self,
        caller: &Function,
        outputs: &[Slot],
        to: &[Slot],
    ) -> Result<(), FaultKind> {
        if to.len() > outputs.len() {
            return Err(FaultKind::Undefined("call for a result that the function has not".into()));
        }
        let base = self.base + caller.registers as usize;
        let parameter_base = self.parameter_base + caller.parameter_bytes as usize;
        for (from, to) in outputs.iter().zip(to) {
            self.pass((*from, base, parameter_base), (*to, self.base, self.parameter_base))?;
        }
        Ok(())
    }

    /// Between two frames; each side with its first register and first byte of parameters.
    fn pass(&mut self, from: (Slot, usize, usize), to: (Slot, usize, usize)) -> Result<(), FaultKind> {
        let unfit = || FaultKind::Undefined("a parameter of another size than the function has".into());
        if let (Slot::Memory { at, bytes }, Slot::Memory { at: to_at, bytes: to_bytes }) = (from.0, to.0) {
            let (start, end) = (from.2 + at as usize, to.2 + to_at as usize);
            if bytes != to_bytes || end + bytes as usize > self.parameters.len() {
                return Err(unfit());
            }
            self.parameters.copy_within(start..start + bytes as usize, end);
            return Ok(());
        }
        let value = match from.0 {
            Slot::Constant(value) => value,
            Slot::Register { register, .. } => self.registers[from.1 + register as usize],
            Slot::Memory { at, bytes: bytes @ (1 | 2 | 4 | 8) } => {
                let start = from.2 + at as usize;
                self.parameters.get(start..start + bytes as usize).map(load).ok_or_else(unfit)?
            }
            Slot::Memory { .. } => return Err(unfit()),
        };
        match to.0 {
            Slot::Register { register, mask } => self.registers[to.1 + register as usize] = value & mask,
            Slot::Memory { at, bytes: bytes @ (1 | 2 | 4 | 8) } => {
                let start = to.2 + at as usize;
                store(self.parameters.get_mut(start..start + bytes as usize).ok_or_else(unfit)?, value);
            }
            _ => return Err(unfit()),
        }
        Ok(())
    }
}
