//! Executes one thread until its slice ends, it has to wait for others, or it exits.

use super::access::{Place, Reach, specific};
use super::machine::Machine;
use super::thread::{State, Thread};
use crate::error::FaultKind;
use crate::memory::Memory;
use crate::module::function_address;
use crate::op::{Address, Call, Callee, Compare, Destination, Guard, Join, Mask, Op, Operand, Special};
use crate::types::{CODE_STEP, CODE_WINDOW, Space};

/// Why a thread has stopped running.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    Slice,
    /// At an instruction that is done together with others: the block does it.
    Together,
    Exited,
}

/// Where a thread is in its launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Where {
    pub(super) block: [u32; 3],
    /// Instructions that all threads had executed before.
    pub(super) clock: u64,
}

pub(super) struct Runner<'r, M: ?Sized> {
    pub(super) reach: Reach<'r, M>,
    pub(super) place: Where,
}

impl<'r, M: Memory + ?Sized> Runner<'r, M> {
    pub(super) fn new(
        machine: &'r Machine<'r, M>,
        shared: &'r mut [u8],
        thread: &'r mut Thread,
        place: Where,
    ) -> Self {
        Runner { reach: Reach { machine, shared, thread }, place }
    }

    /// Runs at most `most` instructions: why it stopped, and after how many.
    pub(super) fn run(&mut self, most: u32) -> Result<(Stop, u32), FaultKind> {
        let machine = self.reach.machine;
        let mut used = 0;
        let mut function = self.reach.thread.function;
        let mut code = machine.module.functions[function].code.as_slice();
        while used < most {
            used += 1;
            self.place.clock += 1;
            let instruction = &code[self.reach.thread.pc];
            if let Some(guard) = instruction.guard
                && !self.holds(guard)
            {
                self.reach.thread.pc += 1;
                continue;
            }
            match &instruction.op {
                Op::Compute { to, mask, with, a, b, c, how } => {
                    let result = with(self.value(*a), self.value(*b), self.value(*c), *how);
                    self.reach.thread.set(*to, result & mask);
                }
                Op::Load { to, mask, bytes, shift, from } => {
                    let place = self.locate(from, *bytes)?;
                    let value = extended(self.reach.load(place, *bytes)?, *shift);
                    self.reach.thread.set(*to, value & mask);
                }
                Op::Store { from, bytes, to } => {
                    let place = self.locate(to, *bytes)?;
                    let value = self.value(*from);
                    self.reach.store(place, *bytes, value)?;
                }
                Op::Compare(compare) => self.compare(compare),
                Op::Branch(target) => {
                    self.reach.thread.pc = *target as usize;
                    continue;
                }
                Op::BranchTable { at, targets } => {
                    let Some(target) = targets.get(self.value(*at) as usize) else {
                        return Err(FaultKind::Undefined("brx.idx beyond its targets".into()));
                    };
                    self.reach.thread.pc = *target as usize;
                    continue;
                }
                Op::Return | Op::Call(_) => {
                    let goes_on = match &instruction.op {
                        Op::Call(call) => self.call(call)?,
                        _ => self.leave()?,
                    };
                    if !goes_on {
                        return Ok((Stop::Exited, used));
                    }
                    if function != self.reach.thread.function {
                        function = self.reach.thread.function;
                        code = machine.module.functions[function].code.as_slice();
                    }
                    continue;
                }
                Op::Exit => return Ok((Stop::Exited, used)),
                Op::Trap => return Err(FaultKind::Trap),
                Op::Barrier(_) | Op::Together(_) | Op::ActiveMask { .. } => {
                    return Ok((Stop::Together, used));
                }
                other => self.rare(other)?,
            }
            self.reach.thread.pc += 1;
        }
        Ok((Stop::Slice, used))
    }

    #[inline]
    pub(super) fn holds(&self, guard: Guard) -> bool {
        (self.reach.thread.register(guard.register) & 1 != 0) != guard.negated
    }

    /// Inlined always: what nearly all operands are is worth no call.
    #[inline(always)]
    pub(super) fn value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(register) => self.reach.thread.register(register),
            Operand::Value(value) => value,
            _ => self.rare_value(operand),
        }
    }

    #[inline(never)]
    fn rare_value(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Register(_) | Operand::Value(_) => 0,
            Operand::Global(variable, offset) => {
                let address = self.reach.machine.addresses.get(variable as usize).copied().unwrap_or(0);
                address.wrapping_add(offset as i64 as u64)
            }
            Operand::Local(at) => u64::from(self.reach.thread.local_base + at),
            Operand::Dynamic(offset) => u64::from(self.dynamic()).wrapping_add(offset as i64 as u64),
            Operand::Special(special) => self.special(special),
        }
    }

    /// Where dynamic shared memory begins.
    fn dynamic(&self) -> u32 {
        dynamic_start(self.reach.machine.module.functions[self.reach.machine.kernel].shared_bytes)
    }

    #[inline]
    fn locate(&self, address: &Address, bytes: u32) -> Result<Place, FaultKind> {
        let at = self.value(address.base).wrapping_add(address.offset as u64);
        self.reach.place(address.space, at, bytes)
    }

    fn compare(&mut self, compare: &Compare) {
        let result = (compare.with)(self.value(compare.a), self.value(compare.b), 0, compare.how) != 0;
        let joined = |result: bool| match compare.join {
            None => result,
            Some((Join::And, guard)) => result & self.holds(guard),
            Some((Join::Or, guard)) => result | self.holds(guard),
            Some((Join::Xor, guard)) => result ^ self.holds(guard),
        };
        let (p, q) = (joined(result), joined(!result));
        let truth = |holds: bool| if holds { compare.truth } else { 0 };
        self.reach.thread.put(compare.p, truth(p));
        self.reach.thread.put(compare.q, truth(q));
    }

    /// Into a function: always goes on.
    fn call(&mut self, call: &Call) -> Result<bool, FaultKind> {
        let functions = &self.reach.machine.module.functions;
        let number = match call.callee {
            Callee::Function(number) => number as usize,
            Callee::Pointer(operand) => {
                let address = self.value(operand);
                let number = address.wrapping_sub(CODE_WINDOW) / CODE_STEP;
                let good = number < functions.len() as u64 && function_address(number as usize) == address;
                if !good || functions[number as usize].entry {
                    return Err(FaultKind::InvalidPc(format!("{address:#x}")));
                }
                number as usize
            }
        };
        let callee =
            functions.get(number).ok_or_else(|| FaultKind::InvalidPc(format!("function {number}")))?;
        if !callee.defined {
            return match callee.name.as_str() {
                "__assertfail" => Err(FaultKind::Assert),
                name => Err(FaultKind::InvalidPc(format!("`{name}`, which has no body"))),
            };
        }
        let caller = &functions[self.reach.thread.function];
        self.reach.thread.enter(number, callee, caller, &call.arguments)?;
        Ok(true)
    }

    /// Out of a function; whether there was a caller.
    fn leave(&mut self) -> Result<bool, FaultKind> {
        let functions = &self.reach.machine.module.functions;
        let thread = &mut *self.reach.thread;
        let left = &functions[thread.function];
        if !thread.leave() {
            return Ok(false);
        }
        let caller = &functions[thread.function];
        if let Some(Op::Call(call)) = caller.code.get(thread.pc).map(|i| &i.op) {
            thread.take_results(caller, &left.outputs, &call.results)?;
        }
        thread.pc += 1;
        Ok(true)
    }

    /// Instructions that loops have few of.
    fn rare(&mut self, op: &Op) -> Result<(), FaultKind> {
        match op {
            Op::LoadVector { to, bytes, shift, from } => self.load_vector(to, *bytes, *shift, from)?,
            Op::StoreVector { from, bytes, to } => {
                let mut place = self.locate(to, bytes * from.len() as u32)?;
                for part in from {
                    let value = self.value(*part);
                    self.reach.store(place, *bytes, value)?;
                    place = Reach::<M>::next(place, *bytes);
                }
            }
            Op::Atomic { to, with, bytes, at, b, c } => {
                let place = self.locate(at, *bytes)?;
                let (b, c) = (self.value(*b), self.value(*c));
                let old = self.reach.update(place, *bytes, |old| with(old, b, c, 0))?;
                self.reach.thread.put(*to, old);
            }
            Op::Copy { to, from, bytes, source } => self.copy(to, from, *bytes, *source)?,
            Op::Insert(insert) => {
                let (to, [a, b, position, length], bits) = &**insert;
                let (position, length) = (self.value(*position), self.value(*length));
                let result = crate::alu::insert(*bits, self.value(*a), self.value(*b), position, length);
                self.reach.thread.set(*to, result & (u64::MAX >> (64 - bits)));
            }
            Op::Carry { .. } | Op::MadCarry(_) => self.carry(op),
            Op::Pack { to, parts, bits } => {
                let packed = parts
                    .iter()
                    .rev()
                    .fold(0, |word, part| word << bits | self.value(*part) & (u64::MAX >> (64 - bits)));
                self.reach.thread.set(*to, packed);
            }
            Op::Unpack { to, from, bits } => {
                let value = self.value(*from);
                for (n, part) in to.iter().enumerate() {
                    self.reach.thread.put(*part, value >> (n as u32 * bits) & (u64::MAX >> (64 - bits)));
                }
            }
            Op::ToGeneric { to, from, window } => {
                let value = self.value(*from).wrapping_add(*window);
                self.reach.thread.set(*to, value);
            }
            Op::ToSpace { to, from, window } => {
                let value = self.value(*from).wrapping_sub(*window);
                self.reach.thread.set(*to, value);
            }
            Op::IsSpace { to, from, space } => {
                let is = specific(self.value(*from)).0;
                let same = is == *space || (*space == Space::Const && is == Space::Global);
                self.reach.thread.set(*to, same.into());
            }
            Op::StackSave { to } => {
                let top = u64::from(self.reach.thread.local_top);
                self.reach.thread.set(*to, top);
            }
            Op::StackRestore { from } => {
                let top = self.value(*from).min(u64::from(self.reach.thread.local_top));
                self.reach.thread.local_top = top as u32;
            }
            Op::Alloca { to, size, align } => {
                let at = u64::from(self.reach.thread.local_top).next_multiple_of(*align);
                let top = at.saturating_add(self.value(*size)).min(u64::from(u32::MAX));
                self.reach.thread.grow_local(top as u32)?;
                self.reach.thread.local_top = top as u32;
                self.reach.thread.set(*to, at);
            }
            _ => {}
        }
        Ok(())
    }

    fn load_vector(
        &mut self,
        to: &[Destination],
        bytes: u32,
        shift: u32,
        from: &Address,
    ) -> Result<(), FaultKind> {
        let mut place = self.locate(from, bytes * to.len() as u32)?;
        for part in to {
            let value = extended(self.reach.load(place, bytes)?, shift);
            self.reach.thread.put(*part, value);
            place = Reach::<M>::next(place, bytes);
        }
        Ok(())
    }

    fn copy(&mut self, to: &Address, from: &Address, bytes: u32, source: Operand) -> Result<(), FaultKind> {
        let (mut to, mut from) = (self.locate(to, bytes)?, self.locate(from, bytes)?);
        let source = self.value(source).min(u64::from(bytes));
        for n in 0..u64::from(bytes) {
            let value = if n < source { self.reach.load(from, 1)? } else { 0 };
            self.reach.store(to, 1, value)?;
            (to, from) = (Reach::<M>::next(to, 1), Reach::<M>::next(from, 1));
        }
        Ok(())
    }

    /// ISA 9.7.2: the carry, or the borrow, is the bit above the result.
    fn carry(&mut self, op: &Op) {
        let carry = u128::from(self.reach.thread.carry);
        match op {
            Op::Carry { to, a, b, subtract, reads, writes, bits } => {
                let (a, b) = (u128::from(self.value(*a)), u128::from(self.value(*b)));
                let input = if *reads { carry } else { 0 };
                let result = if *subtract { a.wrapping_sub(b).wrapping_sub(input) } else { a + b + input };
                self.finish_carry(*to, result, *writes, *bits);
            }
            Op::MadCarry(mad) => {
                let mask = u64::MAX >> (64 - mad.bits);
                let product = (mad.product)(self.value(mad.a), self.value(mad.b), 0, 0) & mask;
                let input = if mad.reads { carry } else { 0 };
                let result = u128::from(product) + u128::from(self.value(mad.c)) + input;
                self.finish_carry(mad.to, result, mad.writes, mad.bits);
            }
            _ => {}
        }
    }

    fn finish_carry(&mut self, to: u32, result: u128, writes: bool, bits: u32) {
        self.reach.thread.set(to, result as u64 & (u64::MAX >> (64 - bits)));
        if writes {
            self.reach.thread.carry = result >> bits & 1 == 1;
        }
    }

    /// ISA 10. Time is the number of instructions executed.
    fn special(&self, special: Special) -> u64 {
        let (thread, launch) = (&*self.reach.thread, self.reach.machine.launch);
        let of = |numbers: [u32; 3], d: u8| u64::from(numbers[d as usize % 3]);
        let lane = thread.lane();
        let fixed = || self.reach.machine.module.functions[self.reach.machine.kernel].shared_bytes;
        match special {
            Special::Tid(d) => of(thread.tid, d),
            Special::Ntid(d) => of(launch.block, d),
            Special::Ctaid(d) => of(self.place.block, d),
            Special::Nctaid(d) => of(launch.grid, d),
            Special::LaneId => lane.into(),
            Special::WarpId => u64::from(thread.index / 32),
            Special::NumWarps => launch.block.iter().map(|&n| u64::from(n)).product::<u64>().div_ceil(32),
            Special::SmId => u64::from(self.place.block[0] % launch.resident.max(1)),
            Special::NumSms => launch.resident.max(1).into(),
            Special::GridId => 1,
            Special::LaneMask(mask) => {
                let bit = 1u64 << lane;
                let mask = match mask {
                    Mask::Eq => bit,
                    Mask::Lt => bit - 1,
                    Mask::Le => (bit - 1) | bit,
                    Mask::Ge => !(bit - 1),
                    Mask::Gt => !(bit - 1) & !bit,
                };
                mask & 0xffff_ffff
            }
            Special::Clock => self.place.clock & 0xffff_ffff,
            Special::ClockHigh => self.place.clock >> 32,
            Special::Clock64 | Special::GlobalTimer => self.place.clock,
            Special::TotalShared => u64::from(fixed()) + u64::from(launch.shared_bytes),
            Special::DynamicShared => launch.shared_bytes.into(),
        }
    }
}

/// What a thread does next is not its own: it may run again.
pub(super) fn past(thread: &mut Thread) {
    thread.pc += 1;
    thread.state = State::Ready;
}

/// `.extern .shared` arrays begin behind fixed ones, aligned as any type needs it.
pub(super) fn dynamic_start(fixed: u32) -> u32 {
    fixed.next_multiple_of(16)
}

#[inline]
fn extended(value: u64, shift: u32) -> u64 {
    (((value << shift) as i64) >> shift) as u64
}
