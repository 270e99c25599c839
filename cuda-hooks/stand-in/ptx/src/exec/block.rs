//! A block: its threads, whose turn it is, and what they do together: barriers (ISA 9.7.13.1), what the lanes of a warp
//! do at once (9.7.9.6, 9.7.13), `activemask`.
//!
//! Barriers wait for all threads that have not exited (CUDA C++ Programming Guide, "Volta Independent Thread
//! Scheduling"), those with a count for so many arrivals. When no thread can run and not all have exited, it is a
//! deadlock: nothing outside a block can wake its threads.

use super::machine::Machine;
use super::run::{Runner, Stop, Where, dynamic_start, past};
use super::thread::{State, Thread};
use crate::error::FaultKind;
use crate::memory::Memory;
use crate::op::{Barrier, BarrierResult, Op, Reduce, Shuffle, Together, WarpOp};
use crate::types::{Type, sign_extend};

/// Slices that threads at `activemask` wait at most for others of their warp, which may spin.
const PATIENCE: u32 = 500;
/// What a shuffle from a lane that takes no part gives: unpredictable, says the ISA.
const UNPREDICTABLE: u64 = 0xbad0_bad0;

/// A number of the block, for faults.
pub(super) type Failed = (usize, FaultKind);

#[derive(Clone, Copy, Default, Debug)]
struct AtBarrier {
    arrived: u32,
    count: Option<u32>,
    trues: u32,
}

/// The threads that can run: a bit each, a word for each warp.
#[derive(Debug)]
struct Ready {
    warps: Vec<u32>,
    count: u32,
}

impl Ready {
    fn all(count: u32) -> Ready {
        let warp = |first: u32| u32::MAX >> (32 - (count - first).min(32));
        Ready { warps: (0..count).step_by(32).map(warp).collect(), count }
    }

    /// Those of a warp.
    fn of(&self, warp: usize) -> u32 {
        self.warps[warp]
    }

    /// One that could run.
    fn clear(&mut self, thread: usize) {
        self.warps[thread / 32] &= !(1 << (thread % 32));
        self.count -= 1;
    }

    /// One that could not.
    fn set(&mut self, thread: usize) {
        self.warps[thread / 32] |= 1 << (thread % 32);
        self.count += 1;
    }

    /// The first one from `from` on, around the end.
    fn next(&self, from: usize) -> Option<usize> {
        let (warp, all) = (from / 32, self.warps.len());
        let upper = self.warps[warp] & (u32::MAX << (from % 32));
        let others = (1..=all).map(|n| (warp + n) % all).map(|n| (n, self.warps[n]));
        let mut found = std::iter::once((warp, upper)).chain(others).filter(|(_, word)| *word != 0);
        found.next().map(|(n, word)| n * 32 + word.trailing_zeros() as usize)
    }
}

#[derive(Debug)]
pub(super) struct Block {
    id: [u32; 3],
    shared: Vec<u8>,
    threads: Vec<Thread>,
    live: u32,
    ready: Ready,
    turn: usize,
    barriers: [AtBarrier; 16],
    converging: u32,
    waited: u32,
}

impl Block {
    pub(super) fn new<M: ?Sized>(machine: &Machine<'_, M>, number: u64) -> Block {
        let (grid, size) = (machine.launch.grid, machine.launch.block);
        let kernel = &machine.module.functions[machine.kernel];
        let (x, y) = (u64::from(grid[0]), u64::from(grid[1]));
        let id = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        // memory that was not written is not zero on a device
        let fill = if machine.launch.seed == 0 { 0 } else { (machine.launch.seed as u8) | 1 };
        let bytes = dynamic_start(kernel.shared_bytes) + machine.launch.shared_bytes;
        let count = size.iter().product::<u32>();
        let thread = |index: u32| {
            let tid = [index % size[0], index / size[0] % size[1], index / size[0] / size[1]];
            Thread::new(index, tid, machine.kernel, kernel, fill)
        };
        Block {
            id,
            shared: vec![fill; bytes as usize],
            threads: (0..count).map(thread).collect(),
            live: count,
            ready: Ready::all(count),
            turn: 0,
            barriers: Default::default(),
            converging: 0,
            waited: 0,
        }
    }

    pub(super) fn id(&self) -> [u32; 3] {
        self.id
    }

    pub(super) fn size(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn ended(&self) -> bool {
        self.live == 0
    }

    /// Function, instruction and `%tid` of a thread.
    pub(super) fn position(&self, thread: usize) -> (usize, usize, [u32; 3]) {
        self.threads.get(thread).map_or((0, 0, [0; 3]), |t| (t.function, t.pc, t.tid))
    }

    /// Runs one thread, the first that can from `first` on, or the one whose turn it is.
    pub(super) fn slice<M: Memory + ?Sized>(
        &mut self,
        machine: &Machine<'_, M>,
        first: Option<usize>,
        most: u32,
        clock: u64,
    ) -> Result<u32, Failed> {
        if self.ready.count == 0 {
            self.release_all(machine);
        }
        let from = first.unwrap_or(self.turn);
        let Some(at) = self.ready.next(from) else {
            return Err(self.deadlock());
        };
        self.turn = at;
        let place = Where { block: self.id, clock };
        let mut runner = Runner::new(machine, &mut self.shared, &mut self.threads[at], place);
        let (stop, used) = runner.run(most).map_err(|kind| (at, kind))?;
        match stop {
            Stop::Slice => self.turn = (at + 1) % self.threads.len(),
            Stop::Together => self.together(machine, at, place)?,
            Stop::Exited => self.exit(machine, at)?,
        }
        if self.converging > 0 {
            self.waited += 1;
            let warp = at / 32;
            if self.ready.of(warp) == 0 {
                self.release(machine, warp);
            } else if self.waited > PATIENCE {
                self.release_all(machine);
            }
        }
        Ok(used)
    }

    fn deadlock(&self) -> Failed {
        let waits = |t: &Thread| !matches!(t.state, State::Exited);
        let first = self.threads.iter().position(waits).unwrap_or(0);
        let exited = self.threads.iter().filter(|t| t.state == State::Exited).count();
        let at = |state: fn(&State) -> bool| self.threads.iter().filter(|t| state(&t.state)).count();
        let (barrier, warp) = (at(|s| matches!(s, State::Barrier(_))), at(|s| matches!(s, State::Warp(_))));
        let text = format!(
            "{barrier} threads wait at a barrier, {warp} for others of their warp, {exited} have exited"
        );
        (first, FaultKind::Deadlock(text))
    }

    fn warp(&self, warp: usize) -> std::ops::Range<usize> {
        warp * 32..self.threads.len().min(warp * 32 + 32)
    }

    fn wait(&mut self, thread: usize, state: State) {
        self.threads[thread].state = state;
        self.ready.clear(thread);
    }

    fn wake(&mut self, thread: usize) {
        past(&mut self.threads[thread]);
        self.ready.set(thread);
    }

    fn exit<M: Memory + ?Sized>(&mut self, machine: &Machine<'_, M>, thread: usize) -> Result<(), Failed> {
        self.wait(thread, State::Exited);
        self.live -= 1;
        for id in 0..self.barriers.len() {
            self.check_barrier(machine, id);
        }
        let waiting: Vec<usize> =
            self.warp(thread / 32).filter(|&n| matches!(self.threads[n].state, State::Warp(_))).collect();
        for other in waiting {
            self.check_warp(machine, other);
        }
        Ok(())
    }

    fn together<M: Memory + ?Sized>(
        &mut self,
        machine: &Machine<'_, M>,
        at: usize,
        place: Where,
    ) -> Result<(), Failed> {
        let thread = &self.threads[at];
        match &machine.module.functions[thread.function].code[thread.pc].op {
            Op::Barrier(barrier) => self.arrive(machine, at, barrier, place).map_err(|kind| (at, kind)),
            Op::Together(op) => {
                let lane = thread.lane();
                let runner = Runner::new(machine, &mut self.shared, &mut self.threads[at], place);
                let mask = runner.value(op.mask) as u32;
                if mask >> lane & 1 == 0 {
                    return Err((
                        at,
                        FaultKind::Undefined(format!("lane {lane} is not in its own mask {mask:#x}")),
                    ));
                }
                self.wait(at, State::Warp(mask));
                self.check_warp(machine, at);
                Ok(())
            }
            _ => {
                self.wait(at, State::Converging);
                self.converging += 1;
                Ok(())
            }
        }
    }

    fn arrive<M: Memory + ?Sized>(
        &mut self,
        machine: &Machine<'_, M>,
        at: usize,
        barrier: &Barrier,
        place: Where,
    ) -> Result<(), FaultKind> {
        let threads = self.threads.len() as u64;
        let runner = Runner::new(machine, &mut self.shared, &mut self.threads[at], place);
        let id = runner.value(barrier.id);
        let count = barrier.count.map(|count| runner.value(count));
        let holds = barrier.predicate.is_some_and(|guard| runner.holds(guard));
        let Some(state) = usize::try_from(id).ok().and_then(|id| self.barriers.get_mut(id)) else {
            return Err(FaultKind::Undefined(format!("barrier {id}: there are 16")));
        };
        if let Some(count) = count
            && (count == 0 || count % 32 != 0 || count > threads.next_multiple_of(32))
        {
            return Err(FaultKind::Undefined(format!("barrier of {count} threads")));
        }
        let count = count.map(|count| count as u32);
        if state.arrived > 0 && state.count != count {
            return Err(FaultKind::Undefined(format!("barrier {id} with two numbers of threads")));
        }
        state.count = count;
        state.arrived += 1;
        state.trues += u32::from(holds);
        if barrier.waits {
            self.wait(at, State::Barrier(id as usize));
        } else {
            past(&mut self.threads[at]);
        }
        self.check_barrier(machine, id as usize);
        Ok(())
    }

    /// Opens a barrier, if all have arrived.
    fn check_barrier<M: ?Sized>(&mut self, machine: &Machine<'_, M>, id: usize) {
        let state = self.barriers[id];
        if state.arrived == 0 || state.arrived < state.count.unwrap_or(self.live) {
            return;
        }
        self.barriers[id] = AtBarrier::default();
        for n in 0..self.threads.len() {
            let thread = &mut self.threads[n];
            if thread.state != State::Barrier(id) {
                continue;
            }
            if let Op::Barrier(barrier) = &machine.module.functions[thread.function].code[thread.pc].op {
                let result = match barrier.result {
                    BarrierResult::Nothing => 0,
                    BarrierResult::Count => u64::from(state.trues),
                    BarrierResult::And => u64::from(state.trues == state.arrived),
                    BarrierResult::Or => u64::from(state.trues > 0),
                };
                thread.put(barrier.to, result);
            }
            self.wake(n);
        }
    }

    /// Does what a thread of a warp waits for, if all of its mask that have not exited wait for the same.
    fn check_warp<M: Memory + ?Sized>(&mut self, machine: &Machine<'_, M>, at: usize) {
        let State::Warp(mask) = self.threads[at].state else {
            return;
        };
        // Most often: all lanes but the last one come here in vain.
        if self.ready.of(at / 32) & mask != 0 {
            return;
        }
        let op_of = |thread: &Thread| match &machine.module.functions[thread.function].code[thread.pc].op {
            Op::Together(op) => Some(&**op),
            _ => None,
        };
        let Some(what) = op_of(&self.threads[at]).map(|op| op.what) else {
            return;
        };
        let mut lanes: [Option<(usize, &WarpOp)>; 32] = [None; 32];
        for n in self.warp(at / 32) {
            let thread = &self.threads[n];
            let lane = thread.lane();
            if mask >> lane & 1 == 0 || thread.state == State::Exited {
                continue;
            }
            match op_of(thread) {
                Some(op) if thread.state == State::Warp(mask) && op.what == what => {
                    lanes[lane as usize] = Some((n, op));
                }
                _ => return,
            }
        }
        self.perform(machine, what, &lanes);
    }

    fn perform<M: Memory + ?Sized>(
        &mut self,
        machine: &Machine<'_, M>,
        what: Together,
        lanes: &[Option<(usize, &WarpOp)>; 32],
    ) {
        let place = Where { block: self.id, clock: 0 };
        let mut given: [Option<[u64; 3]>; 32] = [None; 32];
        for (lane, there) in lanes.iter().enumerate() {
            if let Some((n, op)) = there {
                let runner = Runner::new(machine, &mut self.shared, &mut self.threads[*n], place);
                let a = runner.value(op.a) ^ u64::from(op.negated);
                given[lane] = Some([a, runner.value(op.b), runner.value(op.c)]);
            }
        }
        for (lane, there) in lanes.iter().enumerate() {
            if let Some((n, op)) = there {
                let (value, holds) = result(what, lane, &given);
                self.threads[*n].put(op.to, value);
                self.threads[*n].put(op.predicate, holds.into());
                self.wake(*n);
            }
        }
    }

    /// Gives all threads of a warp that wait at one `activemask` their mask.
    fn release<M: ?Sized>(&mut self, machine: &Machine<'_, M>, warp: usize) {
        let key = |t: &Thread| (t.function, t.pc, t.depth());
        let waiting: Vec<usize> =
            self.warp(warp).filter(|&n| self.threads[n].state == State::Converging).collect();
        let keys: Vec<_> = waiting.iter().map(|&n| (key(&self.threads[n]), self.threads[n].lane())).collect();
        for &n in &waiting {
            let own = key(&self.threads[n]);
            let mask =
                keys.iter().filter(|(other, _)| *other == own).fold(0u64, |mask, (_, lane)| mask | 1 << lane);
            if let Op::ActiveMask { to } = &machine.module.functions[own.0].code[own.1].op {
                self.threads[n].set(*to, mask);
            }
            self.converging -= 1;
            self.wake(n);
        }
        self.waited = 0;
    }

    fn release_all<M: ?Sized>(&mut self, machine: &Machine<'_, M>) {
        for warp in 0..self.threads.len().div_ceil(32) {
            self.release(machine, warp);
        }
    }
}

/// What a lane gets: a value and a predicate. `given` has `a`, `b`, `c` of those that take part.
fn result(what: Together, lane: usize, given: &[Option<[u64; 3]>; 32]) -> (u64, bool) {
    let [a, b, c] = given[lane].unwrap_or_default();
    let all = || given.iter().flatten().map(|values| values[0]);
    let mask_of = |good: &dyn Fn(u64) -> bool| {
        given
            .iter()
            .enumerate()
            .fold(0u64, |mask, (n, values)| mask | values.map_or(0, |values| u64::from(good(values[0])) << n))
    };
    match what {
        Together::Barrier => (0, false),
        Together::Shuffle(how) => {
            let (from, inside) = source(how, lane as i64, b, c);
            let value = given.get(from).copied().flatten().map_or(UNPREDICTABLE, |values| values[0]);
            (value, inside)
        }
        Together::VoteAll => (all().all(|a| a & 1 == 1).into(), false),
        Together::VoteAny => (all().any(|a| a & 1 == 1).into(), false),
        Together::VoteUniform => (all().all(|other| other & 1 == a & 1).into(), false),
        Together::Ballot => (mask_of(&|a| a & 1 == 1), false),
        Together::MatchAny(bits) => (mask_of(&|other| other & bits == a & bits), false),
        Together::MatchAll(bits) => {
            let same = all().all(|other| other & bits == a & bits);
            (if same { mask_of(&|_| true) } else { 0 }, same)
        }
        Together::Reduce(how, ty) => (all().reduce(|x, y| reduce(how, ty, x, y)).unwrap_or(0), false),
        Together::Elect => {
            let leader = given.iter().position(Option::is_some).unwrap_or(0);
            (leader as u64, leader == lane)
        }
    }
}

/// The lane that a shuffle reads from, and whether it is in range (ISA 9.7.9.6).
fn source(how: Shuffle, lane: i64, b: u64, c: u64) -> (usize, bool) {
    let (by, clamp, segment) = ((b & 31) as i64, (c & 31) as i64, (c >> 8 & 31) as i64);
    let last = (lane & segment) | (clamp & !segment);
    let first = lane & segment;
    let (from, inside) = match how {
        Shuffle::Up => (lane - by, lane - by >= last),
        Shuffle::Down => (lane + by, lane + by <= last),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= last),
        Shuffle::Index => (first | (by & !segment), first | (by & !segment) <= last),
    };
    (if inside { from } else { lane } as usize, inside)
}

fn reduce(how: Reduce, ty: Type, x: u64, y: u64) -> u64 {
    let (sx, sy) = (sign_extend(x, 32) as i64, sign_extend(y, 32) as i64);
    match how {
        Reduce::Add => x.wrapping_add(y) & 0xffff_ffff,
        Reduce::Min if ty.is_signed() => {
            if sx <= sy {
                x
            } else {
                y
            }
        }
        Reduce::Max if ty.is_signed() => {
            if sx >= sy {
                x
            } else {
                y
            }
        }
        Reduce::Min => x.min(y),
        Reduce::Max => x.max(y),
        Reduce::And => x & y,
        Reduce::Or => x | y,
        Reduce::Xor => x ^ y,
    }
}
