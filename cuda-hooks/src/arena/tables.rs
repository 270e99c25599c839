//! What the arena has: addresses, blocks, allocations, and whose they are.
//!
//! Called by: `memory.rs` and `query.rs`, inside the gate; the agent and the service thread read the table of blocks
//! while the gate is closed and drained, when nothing changes. All of it is one reservation, zero at first, which lasts
//! as long as the process: part of every image, cleared in a child made by fork.
//! Invariants: the lock is held over work on the tables, never over a call of the driver. A block is in force while its
//! entry has an address; its granules are taken from before it is mapped until after it is unmapped. `offset` of a
//! block is its first granule's place among those of all arenas, and `slot` the same in chunks of 64 KiB: so what was
//! once stored of an address is found again whatever lies there.
//! Fails by: `None`, where a table is full or the lock cannot be had: the driver's own allocation takes over.
//!
//! # Safety
//! The reservation is one `Tables`, of plain atomics and never unmapped.
#![allow(unsafe_code)]

use super::small::{GRANULE, SMALL_UNITS, Small, UNIT, units};
use crate::lent::Lent;
use crate::{area, platform};
use core::hint::spin_loop;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use holdfast_abi::{CudaBlock, CudaData};

/// Devices that have addresses, and all devices.
const ARENAS: usize = 16;
const DEVICES: usize = 64;
/// Contexts that have memory.
const OWNERS: usize = 64;
/// Granules of all arenas: 2 TiB of addresses.
const GRANULES: usize = 1 << 20;
/// Blocks that small requests share: 8 GiB.
const SMALLS: usize = 4096;
/// Freed allocations whose memory is still in use.
const PENDING: usize = 128;
/// Bytes of a chunk: its digest has a slot.
const CHUNK: u64 = 64 << 10;
/// Looks at the lock before the thread sleeps.
const SPINS: u32 = 1000;
/// How long it sleeps, nanoseconds, and when it gives up, milliseconds.
const NAP_NS: i64 = 20_000;
const PATIENCE_MS: i64 = 10_000;
/// Numbers of allocations, as the program sees them, are unlike those of the driver.
const OURS: u64 = 1 << 63;

/// Addresses of a device.
#[repr(C)]
pub struct Arena {
    /// The first; 0: the entry is free, or the driver gave none. Written last.
    base: AtomicU64,
    end: AtomicU64,
    /// The device's ordinal + 1; 0: the entry is free.
    device: AtomicU64,
    /// Its part of all granules.
    first: AtomicU32,
    count: AtomicU32,
    /// No granule before this one is free.
    hint: AtomicU32,
    /// 1: its memory is made so that other devices can reach it.
    rdma: AtomicU32,
}

/// A context that has memory.
#[repr(C)]
pub(super) struct Owner {
    handle: AtomicU64,
    arena: AtomicU32,
    /// First block with room for small requests, + 1.
    pub(super) open: AtomicU32,
    /// How many of them are empty: one is kept.
    pub(super) empty: AtomicU32,
}

/// What is known of a block besides its entry.
#[repr(C)]
pub(super) struct Note {
    /// Bytes that the program has asked for; of a block that is shared: 0.
    pub(super) requested: AtomicU64,
    number: AtomicU64,
    /// Those of [`Entry`](super::small::Entry).
    flags: AtomicU64,
    pub(super) owner: AtomicU32,
    /// The record, + 1, of a block that is shared.
    pub(super) small: AtomicU32,
    /// Next entry that is free, + 1.
    next: AtomicU32,
}

#[repr(C)]
pub(super) struct Head {
    free_block: AtomicU32,
    pub(super) free_small: AtomicU32,
    pub(super) small_count: AtomicU32,
    granules: AtomicU32,
    numbers: AtomicU64,
    pub(super) pending: [AtomicU64; PENDING],
    pub(super) pending_count: AtomicU32,
    /// By ordinal: which other devices may reach the memory of a device.
    readers: [AtomicU64; DEVICES],
}

/// All tables.
#[repr(C)]
pub struct Tables {
    pub(super) head: Head,
    arenas: [Arena; ARENAS],
    pub(super) owners: [Owner; OWNERS],
    pub(super) blocks: [CudaBlock; CudaData::MAX_BLOCKS],
    pub(super) notes: [Note; CudaData::MAX_BLOCKS],
    granules: [AtomicU32; GRANULES],
    pub(super) smalls: [Small; SMALLS],
}

static PLACE: AtomicU64 = AtomicU64::new(0);
/// 0: the tables are free.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// A block that is to be made.
#[derive(Clone, Copy)]
pub struct Plan {
    block: usize,
    owner: usize,
    /// Whose it will be.
    pub context: u64,
    pub device: i32,
    pub address: u64,
    pub bytes: u64,
    pub rdma: bool,
    /// Devices that may reach it besides its own.
    pub readers: u64,
    first: usize,
}

/// A block that is not in force any more, and is still mapped.
#[derive(Clone, Copy)]
pub struct Leaving {
    pub(super) block: usize,
    pub address: u64,
    pub bytes: u64,
    pub lent: Lent,
}

/// An allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub start: u64,
    pub bytes: u64,
    /// Unlike that of anything else in the process.
    pub number: u64,
    /// Those of [`Entry`](super::small::Entry).
    pub flags: u64,
    pub context: u64,
    pub device: i32,
    pub(super) block: usize,
    pub(super) unit: Option<usize>,
}

/// Reserves the tables; false where the kernel has no memory.
pub fn prepare() -> bool {
    if PLACE.load(Acquire) == 0 {
        let mine = platform::reserve(size_of::<Tables>()).expose_provenance() as u64;
        // A thread that was faster: what was reserved in vain is addresses, and no memory.
        let _ = PLACE.compare_exchange(0, mine, AcqRel, Relaxed);
    }
    let place = PLACE.load(Acquire);
    if place != 0 {
        super::words().blocks.store(place + core::mem::offset_of!(Tables, blocks) as u64, Relaxed);
    }
    place != 0
}

/// In a child made by fork.
pub fn forked() {
    let place = PLACE.load(Relaxed) as usize;
    if place != 0 {
        // SAFETY: a reservation of this length, which nothing in the child needs.
        unsafe { platform::clear(place, size_of::<Tables>()) };
    }
    LOCK.store(0, Relaxed);
}

/// The tables, without the lock.
fn tables() -> Option<&'static Tables> {
    let place = PLACE.load(Acquire) as usize;
    // SAFETY: as the head of the file says.
    (place != 0).then(|| unsafe { &*ptr::with_exposed_provenance::<Tables>(place) })
}

/// Runs `work` on the tables. Without a guard that unlocks when it is dropped: see `objects.rs`.
pub fn locked<T>(work: impl FnOnce(&'static Tables) -> T) -> Option<T> {
    let tables = tables()?;
    let take = || LOCK.compare_exchange_weak(0, 1, Acquire, Relaxed).is_ok();
    let taken = (0..SPINS).any(|_| {
        spin_loop();
        take()
    }) || wait_for(take);
    if !taken {
        return None;
    }
    let result = work(tables);
    LOCK.store(0, Release);
    Some(result)
}

#[cold]
fn wait_for(take: impl Fn() -> bool) -> bool {
    let start = platform::monotonic_ms();
    while platform::monotonic_ms().wrapping_sub(start) < PATIENCE_MS {
        if take() {
            return true;
        }
        platform::nap(NAP_NS);
    }
    false
}

/// Whether an address is one of those that libholdfast has reserved.
pub fn is_ours(address: u64) -> bool {
    tables().is_some_and(|tables| tables.arena_of(address).is_some())
}

/// How the memory at an address of ours is made: so that other devices can reach it directly, and which may read it.
pub fn properties(address: u64) -> (bool, u64) {
    let of = |tables: &'static Tables| {
        let arena = tables.arena_of(address)?;
        Some((arena.rdma.load(Relaxed) != 0, tables.readers(arena.device.load(Relaxed) as i32 - 1)))
    };
    tables().and_then(of).unwrap_or((false, 0))
}

pub(super) fn index(word: &AtomicU32) -> Option<usize> {
    word.load(Relaxed).checked_sub(1).map(|index| index as usize)
}

pub(super) fn put(word: &AtomicU32, index: Option<usize>) {
    word.store(index.map_or(0, |index| index as u32 + 1), Relaxed);
}

pub(super) fn add(word: &AtomicU64, by: u64) {
    word.fetch_add(by, Relaxed);
}

pub(super) fn subtract(word: &AtomicU64, by: u64) {
    word.fetch_sub(by, Relaxed);
}

impl Tables {
    fn arena_of(&self, address: u64) -> Option<&Arena> {
        self.arenas.iter().find(|arena| {
            let base = arena.base.load(Acquire);
            base != 0 && (base..arena.end.load(Relaxed)).contains(&address)
        })
    }

    /// Whether the addresses of a device were asked for, and whether there are any.
    pub fn has_arena(&self, device: i32) -> Option<bool> {
        let of = |arena: &&Arena| arena.device.load(Relaxed) == device as u64 + 1;
        self.arenas.iter().find(of).map(|arena| arena.base.load(Relaxed) != 0)
    }

    /// So many bytes of addresses can still be entered.
    pub fn room(&self) -> u64 {
        let free = self.arenas.iter().any(|arena| arena.device.load(Relaxed) == 0);
        let left = GRANULES.saturating_sub(self.head.granules.load(Relaxed) as usize);
        if free { left as u64 * GRANULE } else { 0 }
    }

    /// Enters the addresses of a device; `base` 0: there are none. False: there is no room, or they are entered.
    pub fn add_arena(&self, device: i32, base: u64, bytes: u64, rdma: bool) -> bool {
        let (first, count) = (self.head.granules.load(Relaxed), (bytes / GRANULE) as usize);
        let fits = first as usize + count <= GRANULES && self.has_arena(device).is_none();
        let Some(arena) = self.arenas.iter().find(|arena| fits && arena.device.load(Relaxed) == 0) else {
            return false;
        };
        arena.device.store(device as u64 + 1, Relaxed);
        arena.end.store(base + bytes, Relaxed);
        arena.first.store(first, Relaxed);
        arena.count.store(count as u32, Relaxed);
        arena.hint.store(first, Relaxed);
        arena.rdma.store(rdma.into(), Relaxed);
        self.head.granules.store(first + count as u32, Relaxed);
        arena.base.store(base, Release);
        true
    }

    /// The entry of a context.
    pub fn owner(&self, context: u64) -> Option<usize> {
        self.owners.iter().position(|owner| owner.handle.load(Relaxed) == context)
    }

    /// Enters a context, whose memory is on a device with addresses.
    pub fn add_owner(&self, context: u64, device: i32) -> Option<usize> {
        if let Some(known) = self.owner(context) {
            return Some(known);
        }
        let of = |arena: &Arena| arena.device.load(Relaxed) == device as u64 + 1;
        let arena = self.arenas.iter().position(of)?;
        let place = self.owners.iter().position(|owner| owner.handle.load(Relaxed) == 0)?;
        let owner = self.owners.get(place)?;
        owner.arena.store(arena as u32, Relaxed);
        owner.open.store(0, Relaxed);
        owner.empty.store(0, Relaxed);
        owner.handle.store(context, Relaxed);
        Some(place)
    }

    /// Takes a context out, all of whose blocks have left.
    pub fn remove_owner(&self, context: u64) {
        if let Some(owner) = self.owner(context).and_then(|owner| self.owners.get(owner)) {
            owner.handle.store(0, Relaxed);
        }
    }

    /// An entry and addresses for a block.
    pub fn plan(&self, owner: usize, bytes: u64) -> Option<Plan> {
        let context = self.owners.get(owner)?;
        let arena = self.arenas.get(context.arena.load(Relaxed) as usize)?;
        let block = match index(&self.head.free_block) {
            Some(block) => block,
            None => super::words().block_count.load(Relaxed) as usize,
        };
        let note = self.notes.get(block)?;
        let first = self.free_run(arena, (bytes / GRANULE) as usize)?;
        if index(&self.head.free_block).is_some() {
            self.head.free_block.store(note.next.load(Relaxed), Relaxed);
        } else {
            super::words().block_count.store(block as u64 + 1, Relaxed);
        }
        self.fill(first, bytes, Some(block));
        if first == arena.hint.load(Relaxed) as usize {
            arena.hint.store((first as u64 + bytes / GRANULE) as u32, Relaxed);
        }
        let distance = (first - arena.first.load(Relaxed) as usize) as u64 * GRANULE;
        Some(Plan {
            block,
            owner,
            context: context.handle.load(Relaxed),
            device: arena.device.load(Relaxed) as i32 - 1,
            address: arena.base.load(Relaxed) + distance,
            bytes,
            rdma: arena.rdma.load(Relaxed) != 0,
            readers: self.readers(arena.device.load(Relaxed) as i32 - 1),
            first,
        })
    }

    /// Which other devices may reach the memory of a device.
    pub fn readers(&self, device: i32) -> u64 {
        self.head.readers.get(device as usize).map_or(0, |set| set.load(Relaxed))
    }

    /// One more.
    pub fn add_reader(&self, device: i32, reader: i32) {
        if let (Some(set), 0..64, true) = (self.head.readers.get(device as usize), reader, reader != device) {
            set.fetch_or(1 << reader, Relaxed);
        }
    }

    /// None any more; those that there were.
    pub fn take_readers(&self, device: i32) -> u64 {
        self.head.readers.get(device as usize).map_or(0, |set| set.swap(0, Relaxed))
    }

    /// The first block of a device from an index on: its index, address and length.
    pub fn block_of(&self, device: i32, from: usize) -> Option<(usize, u64, u64)> {
        let count = crate::arena::words().block_count.load(Relaxed) as usize;
        (from..count).find_map(|index| {
            let block = self.blocks.get(index)?;
            let (address, of) = (block.address.load(Relaxed), block.device.load(Relaxed) as u32);
            (address != 0 && of == device as u32).then(|| (index, address, block.bytes.load(Relaxed)))
        })
    }

    /// The lowest run of free granules of an arena.
    fn free_run(&self, arena: &Arena, wanted: usize) -> Option<usize> {
        let end = (arena.first.load(Relaxed) + arena.count.load(Relaxed)) as usize;
        let from = arena.hint.load(Relaxed) as usize;
        let mut run = 0;
        for (place, granule) in self.granules.get(from..end)?.iter().enumerate() {
            run = if granule.load(Relaxed) == 0 { run + 1 } else { 0 };
            if run == wanted {
                return Some(from + place + 1 - wanted);
            }
        }
        None
    }

    fn fill(&self, first: usize, bytes: u64, block: Option<usize>) {
        let count = (bytes / GRANULE) as usize;
        self.granules.iter().skip(first).take(count).for_each(|granule| put(granule, block));
    }

    /// Gives a block's addresses and its entry back.
    pub(super) fn vacate(&self, block: usize, address: u64, bytes: u64) {
        let Some(arena) = self.arena_of(address) else { return };
        let first = arena.first.load(Relaxed) as usize
            + (address.wrapping_sub(arena.base.load(Relaxed)) / GRANULE) as usize;
        self.fill(first, bytes, None);
        arena.hint.fetch_min(first as u32, Relaxed);
        if let Some(note) = self.notes.get(block) {
            note.next.store(self.head.free_block.load(Relaxed), Relaxed);
            put(&self.head.free_block, Some(block));
        }
    }

    /// The block was not made.
    pub fn cancel(&self, plan: &Plan) {
        self.vacate(plan.block, plan.address, plan.bytes);
    }

    /// The block is made and mapped: for one allocation of `requested` bytes, or, if that is 0, for small ones. False:
    /// its context has ended, or there is no room.
    pub fn publish(&self, plan: &Plan, lent: Lent, requested: u64) -> bool {
        let (Some(owner), Some(note), Some(block)) =
            (self.owners.get(plan.owner), self.notes.get(plan.block), self.blocks.get(plan.block))
        else {
            return false;
        };
        if owner.handle.load(Relaxed) != plan.context {
            return false;
        }
        let mut kind = 0;
        if requested == 0 {
            let Some(small) = self.begin_small(plan.owner, plan.block) else { return false };
            put(&note.small, Some(small));
            kind = CudaBlock::SMALL;
        } else {
            note.small.store(0, Relaxed);
            add(&super::words().requested_bytes, requested);
        }
        note.requested.store(requested, Relaxed);
        note.number.store(self.number(), Relaxed);
        note.flags.store(0, Relaxed);
        note.owner.store(plan.owner as u32, Relaxed);
        block.bytes.store(plan.bytes, Relaxed);
        block.handle.store(lent.handle, Relaxed);
        block.device.store(plan.device as u64 | kind, Relaxed);
        block.context.store(plan.context, Relaxed);
        block.offset.store(plan.first as u64 * GRANULE, Relaxed);
        block.slot.store(plan.first as u64 * (GRANULE / CHUNK), Relaxed);
        block.name.store(lent.name, Relaxed);
        block.address.store(plan.address, Release);
        add(&super::words().block_bytes, plan.bytes);
        self.changed();
        true
    }

    pub(super) fn changed(&self) {
        super::words().generation.fetch_add(1, Relaxed);
        area::area().data.store(super::address(), Relaxed);
    }

    pub(super) fn number(&self) -> u64 {
        self.head.numbers.fetch_add(1, Relaxed) + 1
    }

    /// The block at an address.
    fn block_at(&self, address: u64) -> Option<(usize, &CudaBlock, &Note)> {
        let arena = self.arena_of(address)?;
        let distance = (address - arena.base.load(Relaxed)) / GRANULE;
        let granule = self.granules.get(arena.first.load(Relaxed) as usize + distance as usize)?;
        let index = index(granule)?;
        let block = self.blocks.get(index)?;
        (block.address.load(Relaxed) != 0).then_some((index, block, self.notes.get(index)?))
    }

    /// The allocation that an address is of, also one that the program has freed.
    pub fn find(&self, address: u64) -> Option<Found> {
        let (index, block, note) = self.block_at(address)?;
        let (base, requested) = (block.address.load(Relaxed), note.requested.load(Relaxed));
        let mut found = Found {
            start: base,
            bytes: requested,
            number: OURS | note.number.load(Relaxed),
            flags: note.flags.load(Relaxed),
            context: block.context.load(Relaxed),
            device: (block.device.load(Relaxed) as u32).cast_signed(),
            block: index,
            unit: None,
        };
        if let Some(small) = self::index(&note.small).and_then(|small| self.smalls.get(small)) {
            let (unit, entry) = small.of(address - base)?;
            found.start += unit as u64 * UNIT;
            found.bytes = entry.bytes();
            found.number = OURS | entry.number();
            found.flags = entry.flags();
            found.unit = Some(unit);
        }
        (address - found.start < found.bytes).then_some(found)
    }

    /// Sets or clears flags of an allocation.
    pub fn flag(&self, found: &Found, set: u64, clear: u64) {
        let Some(note) = self.notes.get(found.block) else { return };
        match (found.unit, index(&note.small).and_then(|small| self.smalls.get(small))) {
            (Some(unit), Some(small)) => small.flag(unit, set, clear),
            _ => note.flags.store(note.flags.load(Relaxed) & !clear | set, Relaxed),
        }
    }
}

/// Whether a request shares a block.
pub fn is_small(bytes: u64) -> bool {
    units(bytes) < SMALL_UNITS
}

#[cfg(test)]
mod tests;
