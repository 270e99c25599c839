//! Chunks of device memory are hashed on the device that has them, and compared with the digests of the copy.
//!
//! Runs in: the service thread, with the device's context current and its work done. The kernels of
//! `cuda-hooks/kernels` are loaded when the first block of a context is made ([`load`]), or at a checkpoint, and stay
//! as long as the context. They work in memory of the driver's that is given back before the
//! driver's own checkpoint. Many ranges are hashed at once, as many as the tables have room for: a batch.
//! Invariants: only chunks that were given are read, and none of them is written.
//! Fails by: [`Failed`]; a device without room for the tables, or one that the kernels are not for: no hasher, and the
//! processor hashes (`mover.rs`).
//!
//! # Safety
//! The tables on the host are a part of the ring (`ring.rs`) that one hasher has at a time, divided once.
#![allow(unsafe_code)]

use super::calls::{self, Failed, Outcome};
use super::host::HostCopy;
use super::ring;
use crate::platform;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use holdfast_abi::CudaData;
use holdfast_cuda_kernels::PTX;
use holdfast_cuda_kernels::chunk::{CHUNK, Range, number};
use holdfast_cuda_kernels::digest::{Digest, Keys};
use holdfast_cuda_kernels::launch::{
    Chunks, CountsAt, Digests, HashChunks, Kernel, ListChunks, Ranges, States, Table,
};
use holdfast_cuda_kernels::list::Counts;

/// Chunks of a batch: 4 GiB of device memory, with tables of 3 MiB.
const CHUNKS: usize = 1 << 16;
/// Ranges of a batch.
const RANGES: usize = 1 << 12;

/// Whose a range is.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// Offset in the copy.
    pub offset: u64,
    /// Number of the block.
    pub block: usize,
}

/// Tables on the host, in pinned memory.
struct Tables {
    counts: &'static mut [u8; Counts::BYTES as usize],
    ranges: &'static mut [Range],
    places: &'static mut [Place],
    table: &'static mut [[u8; Range::BYTES as usize]],
    digests: &'static mut [Digest],
    lists: [&'static mut [u32]; 2],
}

/// What is laid out one behind the other.
struct Layout(usize);

impl Layout {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.0;
        self.0 = (at + bytes).next_multiple_of(256);
        at
    }
}

impl Tables {
    fn make(context: u64) -> Option<Tables> {
        if !ring::prepare(context) {
            return None;
        }
        let start = calls::host(ring::tables());
        let mut layout = Layout(0);
        // SAFETY: parts of the ring's room for tables, plain numbers, zero at first, that do not overlap: together
        // less than its length (`ROOM`). One hasher has them, until `end`.
        unsafe {
            let at = |offset: usize| start.add(offset);
            Some(Tables {
                counts: &mut *at(layout.take(Counts::BYTES as usize)).cast(),
                ranges: core::slice::from_raw_parts_mut(at(layout.take(RANGES * 32)).cast(), RANGES),
                places: core::slice::from_raw_parts_mut(at(layout.take(RANGES * 16)).cast(), RANGES),
                table: core::slice::from_raw_parts_mut(at(layout.take(RANGES * 32)).cast(), RANGES),
                digests: core::slice::from_raw_parts_mut(at(layout.take(CHUNKS * 16)).cast(), CHUNKS),
                lists: [
                    core::slice::from_raw_parts_mut(at(layout.take(CHUNKS * 4)).cast(), CHUNKS),
                    core::slice::from_raw_parts_mut(at(layout.take(CHUNKS * 4)).cast(), CHUNKS),
                ],
            })
        }
    }

    /// Zero again: an image would have what is in them.
    fn end(self, ranges: usize, chunks: usize) {
        *self.counts = [0; Counts::BYTES as usize];
        wipe(self.ranges, ranges);
        wipe(self.places, ranges);
        wipe(self.table, ranges);
        wipe(self.digests, chunks);
        self.lists.into_iter().for_each(|list| wipe(list, chunks));
    }
}

/// The first entries of a table, plain numbers, are zero again.
fn wipe<T: Copy>(table: &mut [T], count: usize) {
    // SAFETY: no more entries than there are; all of these types may be zero.
    unsafe { core::ptr::write_bytes(table.as_mut_ptr(), 0, count.min(table.len())) };
}

/// What [`Tables`] take: 80 bytes for each range, 24 for each chunk, and what is lost between them.
const ROOM: usize = RANGES * 80 + CHUNKS * 24 + Counts::BYTES as usize + 8 * 256;
const _: () = assert!(ROOM <= ring::TABLES);

/// Tables on the device.
struct OnDevice {
    start: u64,
    ranges: u64,
    previous: u64,
    fresh: u64,
    states: u64,
    lists: [u64; 2],
    counts: u64,
}

impl OnDevice {
    fn make() -> Outcome<OnDevice> {
        let mut layout = Layout(0);
        let mut take = |bytes| layout.take(bytes) as u64;
        let ranges = take(RANGES * 32);
        let (previous, fresh) = (take(CHUNKS * 16), take(CHUNKS * 16));
        let states = take(CHUNKS);
        let [dirty, zero] = [take(CHUNKS * 4), take(CHUNKS * 4)];
        let counts = take(Counts::BYTES as usize);
        let start = calls::allocate(layout.0 as u64)?;
        Ok(OnDevice {
            start,
            ranges: start + ranges,
            previous: start + previous,
            fresh: start + fresh,
            states: start + states,
            lists: [start + dirty, start + zero],
            counts: start + counts,
        })
    }
}

/// Kernels in a context. All zero: none.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kernels {
    context: u64,
    module: u64,
    hash: u64,
    list: u64,
}

/// Those that stay loaded, of so many contexts: used by the service thread while the gate is closed, and by one thread
/// of the program inside of it ([`load`]).
static KEPT: [[AtomicU64; 4]; 8] = [const { [const { AtomicU64::new(0) }; 4] }; 8];
/// A thread of the program loads them.
static BUSY: AtomicBool = AtomicBool::new(false);

impl Kernels {
    fn set(entry: &[AtomicU64; 4], new: Kernels) {
        let Kernels { context, module, hash, list } = new;
        entry.iter().zip([context, module, hash, list]).for_each(|(to, word)| to.store(word, Relaxed));
    }

    /// The entry of the kept ones that has this context; 0: one that is free.
    fn entry(context: u64) -> Option<&'static [AtomicU64; 4]> {
        KEPT.iter().find(|[of, ..]| of.load(Relaxed) == context)
    }

    /// Those of a context that are loaded, else loads them: it is the current one.
    fn get(context: u64) -> Outcome<Kernels> {
        if let Some(entry) = Kernels::entry(context).filter(|_| context != 0) {
            let [context, module, hash, list] = platform::loaded(entry.each_ref());
            return Ok(Kernels { context, module, hash, list });
        }
        let module = calls::load(PTX)?;
        let kernel = |which: Kernel| calls::kernel(module, which.name());
        match (kernel(Kernel::Hash), kernel(Kernel::List)) {
            (Ok(hash), Ok(list)) => {
                let made = Kernels { context, module, hash, list };
                if let Some(entry) = Kernels::entry(0) {
                    Kernels::set(entry, made);
                }
                Ok(made)
            }
            (Err(failed), _) | (_, Err(failed)) => {
                let _ = calls::unload(module);
                Err(failed)
            }
        }
    }

    const NONE: Kernels = Kernels { context: 0, module: 0, hash: 0, list: 0 };

    /// They are not used any more: unloaded where there was no room to keep them.
    fn done(self) -> Outcome {
        if Kernels::entry(self.context).is_some() { Ok(()) } else { calls::unload(self.module) }
    }
}

/// Loads them in the current context, by a thread of the program's: a driver that may not keep compiled code in a file
/// compiles it each time, and would in every stop. What does not work is tried again at a checkpoint.
pub fn load(context: u64) {
    if Kernels::entry(context).is_none() && !BUSY.swap(true, AcqRel) {
        let kernels = Kernels::get(context);
        let _ = kernels.map(Kernels::done);
        BUSY.store(false, Release);
    }
}

/// What was loaded in a context ends with it.
pub fn context_ended(context: u64) {
    if let Some(entry) = Kernels::entry(context).filter(|_| context != 0) {
        Kernels::set(entry, Kernels::NONE);
    }
}

/// In a child made by fork, which has no devices.
pub fn forget_kept() {
    KEPT.iter().for_each(|entry| Kernels::set(entry, Kernels::NONE));
    BUSY.store(false, Relaxed);
}

/// See the head of the file.
pub struct Hasher {
    keys: Keys,
    copy: HostCopy,
    tables: Tables,
    device: OnDevice,
    kernels: Kernels,
    ranges: usize,
    chunks: usize,
    /// The most of both that a batch has had.
    most: (usize, usize),
}

/// A row of chunks, one behind the other, that are not as their digests say.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// On the device.
    pub address: u64,
    /// In the copy.
    pub offset: u64,
    /// Whole chunks.
    pub bytes: u64,
    /// Number of the block.
    pub block: usize,
    /// All zero.
    pub zero: bool,
}

impl Hasher {
    /// In a context, which is the current one.
    pub fn make(copy: HostCopy, context: u64) -> Outcome<Hasher> {
        let keys = copy.keys();
        let device = OnDevice::make()?;
        let full = Failed::with(CudaData::FAULT_SYSTEM | libc::ENOMEM as u64);
        match (Kernels::get(context), Tables::make(context)) {
            (Ok(kernels), Some(tables)) => {
                Ok(Hasher { keys, copy, tables, device, kernels, ranges: 0, chunks: 0, most: (0, 0) })
            }
            (kernels, _) => {
                let _ = calls::free(device.start);
                match kernels {
                    Err(failed) => Err(failed),
                    Ok(kernels) => kernels.done().and(Err(full)),
                }
            }
        }
    }

    /// Gives all back but the kernels, which stay loaded.
    ///
    /// # Errors
    /// The driver's.
    pub fn end(self) -> Outcome {
        let (ranges, chunks) = self.most;
        self.tables.end(ranges, chunks);
        let ended = self.kernels.done();
        calls::free(self.device.start).and(ended)
    }

    /// Adds the first chunks of a range, as many as there is room for: how many bytes. None: the batch is full.
    pub fn add(&mut self, address: u64, bytes: u64, place: Place) -> u64 {
        let room = (CHUNKS - self.chunks) as u64 * CHUNK;
        let taken = bytes.min(room);
        let range = Range::new(address, taken, self.chunks as u64);
        let entry = self.tables.ranges.get_mut(self.ranges).zip(self.tables.places.get_mut(self.ranges));
        match (range, entry) {
            (Some(range), Some((to, its))) => {
                (*to, *its) = (range, place);
                self.ranges += 1;
                self.chunks += range.chunks() as usize;
                taken
            }
            _ => 0,
        }
    }

    /// Hashes the batch, which is empty then. How many chunks are not as their digests say: with bytes, and all zero.
    pub fn hash(&mut self) -> Outcome<Counts> {
        let unsound = Failed::with(CudaData::FAULT_SYSTEM | libc::EINVAL as u64);
        self.most = (self.most.0.max(self.ranges), self.most.1.max(self.chunks));
        let Tables { ranges, places, table, digests, lists, counts: bytes } = &mut self.tables;
        let ranges = ranges.get_mut(..self.ranges).ok_or(unsound)?;
        let chunks = number(ranges).filter(|all| *all == self.chunks as u64).ok_or(unsound)?;
        for ((range, place), row) in ranges.iter().zip(places.iter()).zip(table.iter_mut()) {
            *row = range.to_bytes();
            let slot = place.offset / CHUNK;
            let old = digests.iter_mut().skip(range.first() as usize).take(range.chunks() as usize);
            (slot..).zip(old).for_each(|(slot, to)| *to = self.copy.digest(slot));
        }
        let at = &self.device;
        // SAFETY: tables of the host that are at least so long.
        unsafe {
            calls::to_device(at.ranges, table.as_ptr().cast(), ranges.len() as u64 * Range::BYTES)?;
            calls::to_device(at.previous, digests.as_ptr().cast(), chunks * Digest::BYTES)?;
        }
        let of = || {
            let ranges = Table { at: Ranges::at(at.ranges)?, count: ranges.len() as u64, chunks };
            let (previous, fresh) = (Digests::at(at.previous)?, Digests::at(at.fresh)?);
            let states = States::at(at.states)?;
            let hash = HashChunks { table: ranges, keys: self.keys, previous, fresh, states }.launch()?;
            let [dirty, zero] = at.lists;
            let (dirty, zero) = (Chunks::at(dirty)?, Chunks::at(zero)?);
            let list = ListChunks { states, chunks, dirty, zero, counts: CountsAt::at(at.counts)? };
            Some((hash, list.launch()?))
        };
        let (hash, list) = of().ok_or(unsound)?;
        calls::launch(self.kernels.hash, hash)?;
        calls::launch(self.kernels.list, list)?;
        // SAFETY: of that length; copies wait for the kernels, which are on the same stream.
        unsafe { calls::from_device(bytes.as_mut_ptr(), at.counts, Counts::BYTES) }?;
        let counts = Counts::from_bytes(**bytes, chunks).ok_or(unsound)?;
        for ((list, from), count) in lists.iter_mut().zip(at.lists).zip([counts.dirty, counts.zero]) {
            if count > 0 {
                // SAFETY: as long as a batch has chunks.
                unsafe { calls::from_device(list.as_mut_ptr().cast(), from, count * 4) }?;
            }
        }
        if counts.dirty + counts.zero > 0 {
            // SAFETY: as above.
            unsafe { calls::from_device(digests.as_mut_ptr().cast(), at.fresh, chunks * Digest::BYTES) }?;
        }
        Ok(counts)
    }

    /// Of the batch that was hashed, what is not as its digests say, and the digests that it has now.
    pub fn runs(&self, counts: Counts, mut each: impl FnMut(Run, &[Digest]) -> Outcome) -> Outcome {
        for (which, count) in [counts.dirty, counts.zero].into_iter().enumerate() {
            let mut list = self.tables.lists[which % 2].get(..count as usize).unwrap_or_default();
            while let Some((first, chunks)) = self.run(&mut list) {
                let ranges = self.tables.ranges.get(..self.ranges).unwrap_or_default();
                let index = ranges.partition_point(|range| range.first() <= first).saturating_sub(1);
                let (Some(range), Some(place)) = (ranges.get(index), self.tables.places.get(index)) else {
                    continue;
                };
                let within = (first - range.first()) * CHUNK;
                let run = Run {
                    address: range.address() + within,
                    offset: place.offset + within,
                    bytes: chunks * CHUNK,
                    block: place.block,
                    zero: which == 1,
                };
                let (from, to) = (first as usize, (first + chunks) as usize);
                each(run, self.tables.digests.get(from..to).unwrap_or_default())?;
            }
        }
        Ok(())
    }

    /// Takes from a list the chunks at its beginning that lie one behind the other in one range.
    fn run(&self, list: &mut &[u32]) -> Option<(u64, u64)> {
        let first = u64::from(*list.first()?);
        let ranges = self.tables.ranges.get(..self.ranges)?;
        let after = ranges.partition_point(|range| range.first() <= first);
        let end = ranges.get(after).map_or(self.chunks as u64, Range::first);
        let length = list
            .iter()
            .zip(first..end)
            .take_while(|(chunk, wanted)| u64::from(**chunk) == *wanted)
            .count()
            .max(1);
        *list = list.get(length..)?;
        Some((first, length as u64))
    }

    /// Begins the next batch.
    pub fn clear(&mut self) {
        (self.ranges, self.chunks) = (0, 0);
    }

    /// Whether there is nothing to hash.
    pub fn is_empty(&self) -> bool {
        self.ranges == 0
    }
}
