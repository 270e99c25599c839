//! Content of blocks goes to the copy on the host and is restored: what the service thread's commands do.
//!
//! Runs in: the service thread, while the gate is closed and nothing is inside. Going: all contexts' work is done, all
//! chunks are hashed, those that have changed are copied, and only when all content is safe the blocks are unmapped and
//! their physical memory given back. Coming: physical memory is made and mapped at the same addresses, filled from the
//! copy, and hashed again: what is not as its digest says is damaged, and no call of the program gets to see it.
//! Invariants: a block whose content is not in the copy stays mapped. What fails on the way out is undone.
//! Fails by: [`Failed`].

use super::calls::{self, Failed, Outcome};
use super::hasher::{Hasher, Place, Run};
use super::host::HostCopy;
use super::ring::{Ring, Way};
use crate::platform;
use crate::{area, objects};
use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use holdfast_abi::{CudaBlock, CudaData, CudaFigure, CudaKind};
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, digest};
use holdfast_cuda_kernels::list::Counts;

/// CUDA_ERROR_INVALID_CONTEXT: the context has ended.
const INVALID_CONTEXT: u64 = 201;
/// CUDA_ERROR_CONTEXT_IS_DESTROYED.
const CONTEXT_IS_DESTROYED: u64 = 709;
/// What is copied before the processor hashes it.
const PART: u64 = 16 << 20;
/// Contexts that are looked up at a time.
const CONTEXTS: usize = 64;

/// The blocks, and where their content goes.
#[derive(Clone, Copy)]
pub struct Mover {
    /// The words.
    pub data: &'static CudaData,
    /// The table.
    pub blocks: &'static [CudaBlock],
    /// See [`Work::make`](super::Work::make).
    pub make: fn(&CudaBlock) -> Result<(), Failed>,
    /// See [`Work::discarded`](super::Work::discarded).
    pub discarded: fn(usize) -> (u64, u64),
}

fn damaged(block: usize) -> Failed {
    Failed::with(CudaData::FAULT_DAMAGED).at(block)
}

/// Adds the nanoseconds of some work to a figure.
fn timed<T>(data: &CudaData, figure: usize, work: impl FnOnce() -> T) -> T {
    let begun = platform::monotonic_ns();
    let result = work();
    count(data, figure, platform::monotonic_ns().saturating_sub(begun));
    result
}

fn count(data: &CudaData, figure: usize, more: u64) {
    if let Some(figure) = data.figures.get(figure) {
        figure.fetch_add(more, Relaxed);
    }
}

impl Mover {
    fn copy(self) -> HostCopy {
        HostCopy(self.data)
    }

    /// Blocks that are in force.
    fn all(self) -> impl Iterator<Item = (usize, &'static CudaBlock)> {
        let used = self.data.block_count.load(SeqCst) as usize;
        self.blocks.iter().take(used).enumerate().filter(|(_, block)| block.address.load(SeqCst) != 0)
    }

    /// Blocks of a device that are mapped.
    fn of(self, device: u32) -> impl Iterator<Item = (usize, &'static CudaBlock)> {
        self.all().filter(move |(_, block)| ordinal(block) == device && block.handle.load(Relaxed) != 0)
    }

    /// The devices that have blocks, each once, and a context of each.
    fn each_device(self, mut each: impl FnMut(u32) -> Outcome) -> Outcome {
        let mut last = None;
        let after = |last: Option<u32>, device: u32| last.is_none_or(|last| device > last);
        while let Some(device) =
            self.all().map(|(_, block)| ordinal(block)).filter(|device| after(last, *device)).min()
        {
            each(device)?;
            last = Some(device);
        }
        Ok(())
    }

    /// Runs `work` with a context of a device current: that of one of its blocks.
    fn on(self, device: u32, work: impl FnOnce(u64) -> Outcome) -> Outcome {
        let mut last = Failed::with(CudaData::FAULT_COMMAND);
        let mut tried = 0;
        for (index, block) in self.of(device) {
            let context = block.context.load(Relaxed);
            if context == tried {
                continue;
            }
            tried = context;
            match calls::push(context) {
                Ok(()) => {
                    let result = work(context);
                    return result.and(calls::pop());
                }
                Err(failed) => last = failed.at(index),
            }
        }
        Err(last)
    }

    /// Waits until all contexts have done their work.
    pub fn drain(self) -> Outcome {
        timed(self.data, CudaFigure::DRAIN_NS, || {
            let mut known = 0;
            loop {
                let found = contexts(known);
                for context in found.iter().map(Cell::get).filter(|context| *context != 0) {
                    synchronize(context)?;
                    known += 1;
                }
                if found.iter().any(|context| context.get() == 0) {
                    break;
                }
            }
            let mut last = 0;
            for (index, block) in self.all() {
                let context = block.context.load(Relaxed);
                if context != last && context != 0 {
                    synchronize(context).map_err(|failed| failed.at(index))?;
                }
                last = context;
            }
            Ok(())
        })
    }

    /// Brings content to the copy, and the blocks away. `called_off`: it is not wanted any more.
    pub fn leave(self, called_off: impl Fn() -> bool) -> Outcome {
        let over = Failed::with(CudaData::FAULT_COMMAND);
        self.data.figures.iter().for_each(|figure| figure.store(0, Relaxed));
        self.drain()?;
        let (idle, work) = (self.is_idle(), area::work().map_or(0, |work| work.wrapping_add(1)));
        // What follows may end half way.
        self.data.work.store(0, Relaxed);
        let end = |(_, block): (usize, &CudaBlock)| {
            block.offset.load(Relaxed).checked_add(block.bytes.load(Relaxed))
        };
        let len = self.all().try_fold(0, |len, block| end(block).map(|end| end.max(len))).ok_or(over)?;
        self.copy().ready(len)?;
        self.copy().keep_only(|each| {
            self.all().for_each(|(_, block)| each(block.offset.load(Relaxed), block.bytes.load(Relaxed)));
        })?;
        if idle {
            self.save_nothing();
        } else {
            self.each_device(|device| self.on(device, |context| self.save(device, context, &called_off)))?;
        }
        self.go_away(called_off, || self.copy().protect(false))?;
        self.data.work.store(work, Relaxed);
        Ok(())
    }

    /// Whether no device has had work since the last [`Mover::leave`], or since the beginning: the copy is what blocks
    /// hold, and of those that were made since nothing was written. Once there was work this is proof of no block: what
    /// was begun before one was made may get its address later, by pinned memory.
    fn is_idle(self) -> bool {
        match (self.data.work.load(Relaxed), area::work()) {
            (_, None) => false,
            (0, Some(now)) => now == 0,
            (then, Some(now)) => now.wrapping_add(1) == then,
        }
    }

    /// The content of what was never written is zero from now on.
    fn save_nothing(self) {
        let copy = self.copy();
        let zero = zero_chunk(copy);
        for (_, block) in self.all() {
            let first = block.offset.load(Relaxed) / CHUNK;
            (first..first + block.bytes.load(Relaxed) / CHUNK)
                .filter(|slot| copy.digest(*slot) == Digest::NONE)
                .for_each(|slot| copy.set(slot, zero));
        }
    }

    /// Says how much memory of the host [`Mover::leave`] would take: that of chunks without memory in the copy that are
    /// not zero. `called_off`: it is not asked for any more.
    pub fn measure(self, called_off: impl Fn() -> bool) -> Outcome {
        let (copy, needed) = (self.copy(), Cell::new(0));
        let zero = zero_chunk(copy);
        let count = |offset: u64, bytes: u64| {
            let slots = (offset / CHUNK..).take((bytes / CHUNK) as usize);
            let without =
                slots.map(|slot| copy.digest(slot)).filter(|old| [Digest::NONE, zero].contains(old));
            needed.set(needed.get() + without.count() as u64 * CHUNK);
        };
        self.drain()?;
        let devices =
            |each: &dyn Fn(u32) -> Outcome| if self.is_idle() { Ok(()) } else { self.each_device(each) };
        devices(&|device| {
            self.on(device, |context| {
                // As in `save`: then all may be needed.
                let Ok(mut hasher) = Hasher::make(copy, context) else {
                    let all = self.of(device);
                    all.for_each(|(_, block)| count(block.offset.load(Relaxed), block.bytes.load(Relaxed)));
                    return Ok(());
                };
                let each = |run: Run, _: &[Digest]| {
                    if !run.zero {
                        count(run.offset, run.bytes);
                    }
                    Ok(())
                };
                let batch = |hasher: &Hasher, counts| hasher.runs(counts, each);
                let result = self.hash(device, &mut hasher, &called_off, batch);
                result.and(hasher.end())
            })
        })?;
        self.data.figures[CudaFigure::NEEDED_BYTES % CudaFigure::ROOM].store(needed.get(), Relaxed);
        Ok(())
    }

    /// Unmaps all blocks, whose content is safe, and does what is to be done then. What fails is undone.
    fn go_away(self, called_off: impl Fn() -> bool, then: impl FnOnce() -> Outcome) -> Outcome {
        self.data.state.store(CudaData::CHANGING, SeqCst);
        if called_off() {
            self.data.state.store(CudaData::RESIDENT, SeqCst);
            return Err(Failed::with(CudaData::FAULT_COMMAND));
        }
        match timed(self.data, CudaFigure::UNMAP_NS, || self.take_away()).and_then(|()| then()) {
            Ok(()) => {
                self.data.state.store(CudaData::AWAY, SeqCst);
                Ok(())
            }
            Err(failed) => {
                // What cannot come back either is said again by the next command.
                let _ = self.restore();
                Err(failed)
            }
        }
    }

    /// A keeper has the physical memory, and what is in it.
    fn is_kept(self) -> bool {
        self.data.owner.load(Relaxed) == CudaData::BY_KEEPER
    }

    /// Brings the blocks away whose content a keeper has. `called_off`: it is not wanted any more.
    pub fn unmap_kept(self, called_off: impl Fn() -> bool) -> Outcome {
        self.data.figures.iter().for_each(|figure| figure.store(0, Relaxed));
        self.drain()?;
        self.go_away(called_off, || Ok(()))
    }

    /// Blocks of a keeper that has ended are the library's: what is mapped lasts by its mapping.
    pub fn adopt(self) {
        self.all().for_each(|(_, block)| block.name.store(0, SeqCst));
        self.data.owner.store(CudaData::BY_LIBRARY, SeqCst);
    }

    fn take_away(self) -> Outcome {
        for (index, block) in self.all() {
            let handle = block.handle.load(Relaxed);
            if handle != 0 {
                calls::unmap(block.address.load(Relaxed), block.bytes.load(Relaxed))
                    .map_err(|failed| failed.at(index))?;
                block.handle.store(0, SeqCst);
                calls::release(handle).map_err(|failed| failed.at(index))?;
            }
        }
        Ok(())
    }

    /// Copies what has changed on a device, in its context.
    fn save(self, device: u32, context: u64, called_off: &impl Fn() -> bool) -> Outcome {
        let bytes: u64 = self.of(device).map(|(_, block)| block.bytes.load(Relaxed)).sum();
        count(self.data, CudaFigure::HASHED_BYTES, bytes);
        let hashed = timed(self.data, CudaFigure::HASH_NS, || Hasher::make(self.copy(), context));
        // A device that has no room for tables, or is none for the kernels.
        let Ok(mut hasher) = hashed else { return self.save_by_processor(device, context, called_off) };
        let batch = |hasher: &Hasher, counts| self.save_batch(hasher, counts, context, called_off);
        let result = self.hash(device, &mut hasher, called_off, batch);
        let ended = hasher.end();
        result.and(ended)
    }

    /// Hashes the blocks of a device by batches: which have how much that is not as its digests say.
    fn hash(
        self,
        device: u32,
        hasher: &mut Hasher,
        called_off: &impl Fn() -> bool,
        mut batch: impl FnMut(&Hasher, Counts) -> Outcome,
    ) -> Outcome {
        let mut flush = |hasher: &mut Hasher| {
            if called_off() {
                return Err(Failed::with(CudaData::FAULT_COMMAND));
            }
            let counts = timed(self.data, CudaFigure::HASH_NS, || hasher.hash())?;
            batch(hasher, counts)?;
            hasher.clear();
            Ok(())
        };
        for (index, block) in self.of(device) {
            let [address, bytes, offset] = platform::loaded([&block.address, &block.bytes, &block.offset]);
            let mut done = 0;
            while done < bytes {
                let place = Place { offset: offset + done, block: index };
                match hasher.add(address + done, bytes - done, place) {
                    0 if hasher.is_empty() => return Err(Failed::with(CudaData::FAULT_COMMAND).at(index)),
                    0 => flush(hasher)?,
                    more => done += more,
                }
            }
        }
        if hasher.is_empty() { Ok(()) } else { flush(hasher) }
    }

    /// Copies what has changed of a batch; only when all of it is in the copy its digests are.
    fn save_batch(
        self,
        hasher: &Hasher,
        counts: Counts,
        context: u64,
        called_off: &impl Fn() -> bool,
    ) -> Outcome {
        let copy = self.copy();
        timed(self.data, CudaFigure::COPY_NS, || {
            let mut ring = Ring::begin(Way::Out, context, counts.dirty * CHUNK)?;
            let copied = hasher.runs(counts, |run, _| self.save_run(run, &mut ring, called_off));
            ring.end(copied)
        })?;
        // The gate may be open by now, and what was copied another than what was hashed: it has no digest.
        if called_off() {
            return Err(Failed::with(CudaData::FAULT_COMMAND));
        }
        hasher.runs(counts, |run, fresh| {
            let digest = |nth| fresh.get(nth as usize).copied().unwrap_or(Digest::NONE);
            copy.set_all(run.offset, run.bytes, digest);
            Ok(())
        })
    }

    fn save_run(self, run: Run, ring: &mut Ring, called_off: &impl Fn() -> bool) -> Outcome {
        let copy = self.copy();
        copy.set_all(run.offset, run.bytes, |_| Digest::NONE);
        if run.zero {
            copy.clear(run.offset, run.bytes);
            count(self.data, CudaFigure::ZERO_BYTES, run.bytes);
            return Ok(());
        }
        count(self.data, CudaFigure::DIRTY_BYTES, run.bytes);
        copy.prefer_huge(run.offset, run.bytes);
        let to = copy.at(run.offset, run.bytes).ok_or(damaged(run.block))?;
        ring.add(run.address, to, run.bytes, called_off).map_err(|failed| failed.at(run.block))
    }

    /// Copies all, and has the processor hash it.
    fn save_by_processor(self, device: u32, context: u64, called_off: &impl Fn() -> bool) -> Outcome {
        for (index, block) in self.of(device) {
            let [address, bytes, offset] = platform::loaded([&block.address, &block.bytes, &block.offset]);
            let at = |within: u64| self.copy().at(offset + within, PART.min(bytes - within));
            for within in (0..bytes).step_by(PART as usize) {
                let to = at(within).ok_or(damaged(index))?;
                let slot = (offset + within) / CHUNK;
                let mut old = [Digest::NONE; (PART / CHUNK) as usize];
                (slot..).zip(&mut old).for_each(|(slot, old)| *old = self.copy().digest(slot));
                let part = PART.min(bytes - within);
                self.copy().set_all(offset + within, part, |_| Digest::NONE);
                timed(self.data, CudaFigure::COPY_NS, || {
                    let mut ring = Ring::begin(Way::Out, context, part)?;
                    let copied = ring.add(address + within, to, part, called_off);
                    ring.end(copied)
                })
                .map_err(|failed| failed.at(index))?;
                let old = old.get(..(part / CHUNK) as usize).unwrap_or_default();
                timed(self.data, CudaFigure::HASH_NS, || self.look_at(slot, old)).ok_or(damaged(index))?;
            }
        }
        Ok(())
    }

    /// Has the processor hash chunks of the copy, which had these digests.
    fn look_at(self, first: u64, old: &[Digest]) -> Option<()> {
        let (copy, keys) = (self.copy(), self.copy().keys());
        for (slot, old) in (first..).zip(old) {
            let (fresh, zero) = copy.look(&keys, slot)?;
            if zero {
                copy.clear(slot * CHUNK, CHUNK);
            }
            if fresh != *old {
                let figure = if zero { CudaFigure::ZERO_BYTES } else { CudaFigure::DIRTY_BYTES };
                count(self.data, figure, CHUNK);
            }
            copy.set(slot, fresh);
        }
        Some(())
    }

    /// In a process of an image, which does not have what is discarded: that is zero.
    pub fn forget_discarded(self) {
        let copy = self.copy();
        let zero = zero_chunk(copy);
        for (start, bytes) in (0..CudaData::MAX_DISCARDS).map(self.discarded).filter(|(_, bytes)| *bytes > 0)
        {
            for (_, block) in self.all() {
                let [address, len, offset] = platform::loaded([&block.address, &block.bytes, &block.offset]);
                if address <= start && start + bytes <= address + len {
                    let at = offset + (start - address);
                    copy.clear(at, bytes);
                    copy.set_all(at, bytes, |_| zero);
                }
            }
        }
    }

    /// Makes all blocks again, with their content.
    pub fn restore(self) -> Outcome {
        self.data.state.store(CudaData::CHANGING, SeqCst);
        let result = self.fill_all();
        let state = if result.is_ok() { CudaData::RESIDENT } else { CudaData::AWAY };
        self.data.state.store(state, SeqCst);
        result
    }

    fn fill_all(self) -> Outcome {
        for figure in [CudaFigure::MAP_NS, CudaFigure::FILL_NS, CudaFigure::CHECK_NS] {
            self.data.figures[figure % CudaFigure::ROOM].store(0, Relaxed);
        }
        timed(self.data, CudaFigure::MAP_NS, || {
            for (index, block) in self.all().filter(|(_, block)| block.handle.load(Relaxed) == 0) {
                (self.make)(block).map_err(|failed| failed.at(index))?;
            }
            Ok(())
        })?;
        if self.is_kept() {
            return Ok(());
        }
        self.each_device(|device| {
            self.on(device, |context| {
                timed(self.data, CudaFigure::FILL_NS, || {
                    let bytes = self.of(device).map(|(_, block)| block.bytes.load(Relaxed)).sum();
                    let mut ring = Ring::begin(Way::In, context, bytes)?;
                    let filled = self.fill(device, &mut ring);
                    ring.end(filled).and_then(|()| calls::synchronize())
                })?;
                timed(self.data, CudaFigure::CHECK_NS, || self.check(device, context))
            })
        })
    }

    /// Fills the blocks of a device from the copy.
    fn fill(self, device: u32, ring: &mut Ring) -> Outcome {
        let copy = self.copy();
        let zero = zero_chunk(copy);
        for (index, block) in self.of(device) {
            let [address, bytes, offset] = platform::loaded([&block.address, &block.bytes, &block.offset]);
            let is_zero = |chunk: u64| copy.digest(offset / CHUNK + chunk) == zero;
            let (mut first, chunks) = (0, bytes / CHUNK);
            while first < chunks {
                let kind = is_zero(first);
                let end = (first..chunks).find(|chunk| is_zero(*chunk) != kind).unwrap_or(chunks);
                let (at, len) = (first * CHUNK, (end - first) * CHUNK);
                let from = copy.at(offset + at, len).ok_or(damaged(index))?;
                let done = if kind {
                    calls::clear(address + at, len)
                } else {
                    ring.add(address + at, from, len, &|| false)
                };
                done.map_err(|failed| failed.at(index))?;
                first = end;
            }
        }
        Ok(())
    }

    /// Compares what is on a device with the digests.
    fn check(self, device: u32, context: u64) -> Outcome {
        let Ok(mut hasher) = Hasher::make(self.copy(), context) else {
            return self.check_by_processor(device);
        };
        let batch = |hasher: &Hasher, counts| hasher.runs(counts, |run, _| Err(damaged(run.block)));
        let result = self.hash(device, &mut hasher, &|| false, batch);
        let ended = hasher.end();
        result.and(ended)
    }

    /// The same with what it was filled from.
    fn check_by_processor(self, device: u32) -> Outcome {
        let (copy, keys) = (self.copy(), self.copy().keys());
        for (index, block) in self.of(device) {
            let first = block.offset.load(Relaxed) / CHUNK;
            for slot in first..first + block.bytes.load(Relaxed) / CHUNK {
                if copy.look(&keys, slot).map(|(found, _)| found) != Some(copy.digest(slot)) {
                    return Err(damaged(index));
                }
            }
        }
        Ok(())
    }
}

/// The digest of a chunk that is zero.
fn zero_chunk(copy: HostCopy) -> Digest {
    const ZEROS: &[u8] = &[0; CHUNK as usize];
    digest(&copy.keys(), ZEROS)
}

fn ordinal(block: &CudaBlock) -> u32 {
    block.device.load(Relaxed) as u32
}

/// Waits until a context has done its work. One that has ended has none.
fn synchronize(context: u64) -> Outcome {
    match calls::push(context) {
        Ok(()) => {}
        Err(Failed { result: INVALID_CONTEXT | CONTEXT_IS_DESTROYED, .. }) => return Ok(()),
        Err(failed) => return Err(failed),
    }
    let done = calls::synchronize();
    calls::pop().and(done)
}

/// Contexts that the program has, from the one of that number on; 0: there are no more.
fn contexts(skip: usize) -> [Cell<u64>; CONTEXTS] {
    let found = [const { Cell::new(0) }; CONTEXTS];
    let (seen, place) = (Cell::new(0), Cell::new(0));
    if area::objects().is_some() {
        objects::any(|object| {
            let context = match object.kind {
                CudaKind::CONTEXT => object.handle,
                CudaKind::PRIMARY => object.value,
                _ => 0,
            };
            if context != 0 {
                let number = seen.replace(seen.get() + 1);
                if number >= skip
                    && let Some(entry) = found.get(place.get())
                {
                    entry.set(context);
                    place.set(place.get() + 1);
                }
            }
            false
        });
    }
    found
}
