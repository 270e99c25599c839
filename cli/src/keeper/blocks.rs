//! The device memory that a keeper has, and what a checkpoint and a restart do with it.
//!
//! Used by [`super::process`] alone, which asks for one thing after the other. Invariants: memory is a process's until
//! that gives it up or ends; what was taken for an image can be read until the image is committed or has failed; what
//! images have stays in the cache as long as there is room, for a rollback; a program that asks for memory comes before
//! the cache.
//! Fails by: the driver's code, to a program; by words, to the agent.

use super::bank::{Bank, Buffer, Copies, Hashed, Placed};
use super::cache::{Cache, Committed, ROOM, SEGMENT, Wanted};
use super::messages::{Block, PACKED, Run, Taken};
use super::packer::{self, Batch, Packer};
use super::runs::{digest_pages, runs};
use super::slots::{END, Slots};
use crate::cuda::room::LEAST;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::{Digest, Keys};
use holdfast_image::address_space::DIGESTS;
use holdfast_image::pages::SourceCodec;
use holdfast_pager::CowLimit;
use holdfast_sys::clock::{elapsed_ns, monotonic_ns};
use holdfast_sys::cuda_memory::{self, Device, DeviceError, OUT_OF_MEMORY};
use holdfast_sys::cuda_window::Window;
use holdfast_sys::{fault, memfd};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Segments for which a cache has room beside what programs have: small images, each of which takes one at least.
const SMALL: u64 = 16;
/// What a cache leaves free at least: the driver's checkpoint needs some, and so do small allocations of programs.
const LEFT: u64 = 2 * LEAST;
/// Granularity of physical memory: what cuMemGetAllocationGranularity says on every discrete GPU of today.
const UNIT: u64 = 2 << 20;

/// A block.
pub(super) struct Owned {
    owner: i32,
    pub(super) bank: usize,
    pub(super) bytes: u64,
    handle: u64,
    /// For those that are to have it, made once: an export in the middle of a checkpoint could fail.
    file: OwnedFd,
    /// Where it is mapped in the keeper.
    pub(super) at: u64,
    /// No other block, before or after, has the same.
    id: u64,
}

/// What was taken for an image.
#[derive(Default)]
pub(super) struct Pending {
    /// Name, id and device of the blocks.
    blocks: Vec<(u64, u64, usize)>,
    /// By name.
    pub(super) digests: BTreeMap<u64, Vec<u8>>,
    /// By device: chunks that became zero.
    zero: BTreeMap<usize, Vec<u64>>,
    /// What a rollback can have from the caches.
    pub(super) found: Found,
}

impl Pending {
    fn digest(&self, slot: u64) -> Option<Digest> {
        let (name, digests) = self.digests.range(..=slot).next_back()?;
        let at = usize::try_from((slot - name) * Digest::BYTES).ok()?;
        Some(Digest::from_bytes(*digests.get(at..)?.first_chunk()?))
    }
}

/// By device: what is to go back, ascending by slot.
pub(super) type Found = BTreeMap<usize, Vec<Wanted>>;

/// A cache and its memory; without that all of it is on the host.
pub(super) type Cached = (Cache, Option<Buffer>);

/// Why a program does not get memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Denied {
    /// There is no such memory of its own.
    Name,
    /// There is no such device, or no driver.
    Device,
    /// The driver said so.
    Code(i32),
}

impl From<DeviceError> for Denied {
    fn from(error: DeviceError) -> Denied {
        Denied::Code(error.code)
    }
}

/// See the head of the file.
pub struct Blocks {
    pub(super) banks: Vec<Bank>,
    pub(super) all: BTreeMap<u64, Owned>,
    slots: Slots,
    pub(super) key: [u8; 16],
    budget: CowLimit,
    pub(super) pending: Pending,
    /// By device.
    pub(super) caches: BTreeMap<usize, Cached>,
    next_id: u64,
    packer: Packer,
}

pub(super) fn words(error: DeviceError) -> String {
    error.to_string()
}

impl Blocks {
    /// None, and no driver.
    pub fn new(key: [u8; 16], budget: CowLimit) -> Blocks {
        Blocks {
            banks: Vec::new(),
            all: BTreeMap::new(),
            slots: Slots::default(),
            key,
            budget,
            pending: Pending::default(),
            caches: BTreeMap::new(),
            next_id: 0,
            packer: Packer::default(),
        }
    }

    /// Loads the driver, unless that was done.
    ///
    /// # Errors
    /// It cannot be used; in words.
    pub fn load(&mut self, library: &Path) -> Result<(), String> {
        if self.banks.is_empty() {
            let devices = cuda_memory::open(library)?;
            let devices: Vec<Rc<Device>> = devices.into_iter().map(Rc::new).collect();
            // Without it copies are slower, and right.
            let bounce = Rc::new(RefCell::new(devices.first().and_then(|device| pinned(device).ok())));
            let bank = |device| Bank::new(device, &bounce).map_err(words);
            self.banks = devices.into_iter().map(bank).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// Has the first device pin a window; `None`: there is none.
    pub fn pin(&self, window: &mut Window) -> Option<Result<(), DeviceError>> {
        self.banks.first().map(|bank| window.pin(&bank.device))
    }

    /// A driver is loaded.
    pub fn is_loaded(&self) -> bool {
        !self.banks.is_empty()
    }

    /// There is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Makes memory for a process: its name, and a descriptor.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn make(&mut self, owner: i32, bytes: u64, uuid: [u8; 16]) -> Result<(u64, OwnedFd), Denied> {
        if bytes == 0 || !bytes.is_multiple_of(UNIT) || bytes / CHUNK > END {
            return Err(Denied::Code(1));
        }
        let name = self.slots.take(bytes / CHUNK).ok_or(Denied::Code(OUT_OF_MEMORY))?;
        self.make_at(name, owner, bytes, uuid).and_then(|()| Ok((name, self.open(owner, name)?)))
    }

    /// With a name that is taken already.
    fn make_at(&mut self, name: u64, owner: i32, bytes: u64, uuid: [u8; 16]) -> Result<(), Denied> {
        let made = match self.banks.iter().position(|bank| bank.device.uuid == uuid) {
            Some(bank) => self.physical(bank, name, bytes).map(|place| (bank, place)),
            None => Err(Denied::Device),
        };
        match made {
            Ok((bank, (handle, at, file))) => {
                self.next_id += 1;
                self.all.insert(name, Owned { owner, bank, bytes, handle, file, at, id: self.next_id });
                Ok(())
            }
            Err(denied) => {
                self.slots.give(name);
                Err(denied)
            }
        }
    }

    /// Handle, address and descriptor of new memory.
    fn physical(&mut self, bank: usize, name: u64, bytes: u64) -> Result<(u64, u64, OwnedFd), Denied> {
        let handle = match self.banks[bank].device.create(bytes) {
            Err(error) if error.code == OUT_OF_MEMORY && self.give_way().is_ok() => {
                self.banks[bank].device.create(bytes)
            }
            made => made,
        }?;
        let end = self.slots.end();
        let device = Rc::clone(&self.banks[bank].device);
        let placed = device.map(handle, bytes).and_then(|at| {
            let ready = self.banks[bank].reserve(end);
            let ready = ready.and_then(|()| self.banks[bank].forget(name, bytes / CHUNK));
            match ready.and_then(|()| device.export(handle)) {
                Ok(file) => Ok((at, file)),
                Err(error) => {
                    let _ = device.unmap(at, bytes);
                    Err(error)
                }
            }
        });
        if placed.is_err() {
            let _ = device.release(handle);
        }
        let (at, file) = placed?;
        Ok((handle, at, file))
    }

    /// A descriptor of memory of a process's own.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn open(&self, owner: i32, name: u64) -> Result<OwnedFd, Denied> {
        let one = self.all.get(&name).filter(|one| one.owner == owner).ok_or(Denied::Name)?;
        one.file.try_clone().map_err(|_| Denied::Device)
    }

    /// Of these, those that there are.
    pub fn lend(&self, names: &[u64]) -> Vec<(u64, BorrowedFd<'_>)> {
        names.iter().filter_map(|name| Some((*name, self.all.get(name)?.file.as_fd()))).collect()
    }

    /// A process has given memory up. What was taken of it for an image stays.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn drop_one(&mut self, owner: i32, name: u64) -> Result<(), Denied> {
        let one = self.all.remove(&name);
        let one = match one {
            Some(one) if one.owner == owner => one,
            Some(other) => {
                self.all.insert(name, other);
                return Err(Denied::Name);
            }
            None => return Err(Denied::Name),
        };
        let device = &self.banks[one.bank].device;
        let unmapped = device.unmap(one.at, one.bytes);
        let released = device.release(one.handle);
        self.slots.give(name);
        let slots = name..name + one.bytes / CHUNK;
        if let Some((cache, _)) = self.caches.get_mut(&one.bank) {
            // A newer image can have them no more.
            let _ = cache.gone(slots);
        }
        Ok(unmapped.and(released)?)
    }

    /// A device.
    pub fn device(&self, uuid: [u8; 16]) -> Option<Rc<Device>> {
        self.banks.iter().find(|bank| bank.device.uuid == uuid).map(|bank| Rc::clone(&bank.device))
    }

    /// A process has ended.
    pub fn ended(&mut self, owner: i32) {
        let own = self.all.iter().filter(|(_, one)| one.owner == owner);
        for name in own.map(|(name, _)| *name).collect::<Vec<_>>() {
            let _ = self.drop_one(owner, name);
        }
    }

    /// The cache goes to the host: a program needs the memory. How many bytes it has given back.
    ///
    /// # Errors
    /// Copying has failed; it stays.
    pub fn give_way(&mut self) -> Result<u64, String> {
        let mut given = 0;
        for (bank, (cache, memory)) in &mut self.caches {
            let bank = &self.banks[*bank];
            let mut copies = Copies { bank, hashed: None, cache: memory.as_ref() };
            cache.give_way(&mut copies)?;
            given += memory.take().map_or(0, |memory| memory.bytes);
        }
        Ok(given)
    }

    /// See [`super::messages::Question::Take`].
    ///
    /// # Errors
    /// Nothing is taken; in words.
    pub fn take(&mut self, owners: &[i32], whole: bool) -> Result<Taken, String> {
        self.over(false)?;
        let taken = self.take_all(owners, whole);
        if taken.is_err() {
            // Some of it may be in the caches.
            self.pending = Pending::default();
            self.caches.clear();
        }
        taken
    }

    /// See [`super::messages::Question::Blocks`].
    ///
    /// # Errors
    /// The device has failed.
    pub fn describe_all(&mut self, owners: &[i32]) -> Result<Taken, String> {
        self.over(false)?;
        let mut taken = Taken { key: self.key, ..Taken::default() };
        self.describe(owners, &mut taken);
        Ok(taken)
    }

    fn describe(&mut self, owners: &[i32], taken: &mut Taken) {
        let known = self.all.iter().filter(|(_, one)| owners.contains(&one.owner));
        for (name, one) in known {
            self.pending.blocks.push((*name, one.id, one.bank));
            let uuid = self.banks[one.bank].device.uuid;
            taken.blocks.push(Block { name: *name, bytes: one.bytes, owner: one.owner, uuid });
        }
    }

    /// What these processes have on a device; `None`: all.
    pub(super) fn placed(&self, bank: usize, owners: Option<&[i32]>) -> Vec<Placed> {
        let is_of = |one: &Owned| owners.is_none_or(|owners| owners.contains(&one.owner));
        let own = self.all.iter().filter(|(_, one)| one.bank == bank && is_of(one));
        own.map(|(name, one)| Placed { at: one.at, bytes: one.bytes, slot: *name }).collect()
    }

    fn take_all(&mut self, owners: &[i32], whole: bool) -> Result<Taken, String> {
        let mut taken = Taken { key: self.key, ..Taken::default() };
        let (mut dirty, mut zero) = (Vec::new(), Vec::new());
        for number in 0..self.banks.len() {
            let placed = self.placed(number, Some(owners));
            if placed.is_empty() {
                continue;
            }
            let bank = &self.banks[number];
            if whole {
                let forget = |block: &Placed| bank.forget(block.slot, block.bytes / CHUNK);
                placed.iter().try_for_each(forget).map_err(words)?;
            }
            let begun = Instant::now();
            let hashed = bank.changed(Keys::new(self.key), &placed).map_err(words)?;
            taken.hash_ns += elapsed_ns(begun);
            let begun = Instant::now();
            let (spilled, has_cache) = self.gather(number, &hashed)?;
            taken.gather_ns += elapsed_ns(begun);
            taken.spilled_bytes += spilled;
            taken.cache_bytes += if has_cache { hashed.dirty.len() as u64 * CHUNK } else { 0 };
            for block in &placed {
                let mut digests = vec![0; usize::try_from(block.bytes / CHUNK * Digest::BYTES).unwrap_or(0)];
                self.banks[number].digests(block.slot, &mut digests).map_err(words)?;
                self.pending.digests.insert(block.slot, digests);
            }
            dirty.extend(hashed.dirty);
            self.pending.zero.insert(number, hashed.zero.clone());
            zero.extend(hashed.zero);
        }
        self.describe(owners, &mut taken);
        taken.dirty = runs(dirty);
        taken.zero = runs(zero);
        taken.digests = digest_pages(&taken.blocks);
        Ok(taken)
    }

    /// Copies what has changed to where it can be read later: bytes that went to the host, and whether there is a
    /// cache.
    fn gather(&mut self, number: usize, hashed: &Hashed) -> Result<(u64, bool), String> {
        self.make_room(number, hashed.dirty.len() as u64 * CHUNK);
        let bank = &self.banks[number];
        let (cache, memory) = self.caches.entry(number).or_insert_with(|| (Cache::new(0), None));
        let mut copies = Copies { bank, hashed: Some(hashed), cache: memory.as_ref() };
        cache.take(monotonic_ns(), &hashed.dirty, &mut copies)?;
        bank.device.finish().map_err(words)?;
        Ok((cache.spilled, memory.is_some()))
    }

    /// Sees to it that there is a cache for so many bytes, as far as the budget and the device allow: one that is there
    /// and can have them stays, with its history. A new one has room for as much again as the programs have,
    /// and for some small images.
    fn make_room(&mut self, number: usize, wanted: u64) {
        if wanted == 0 {
            return;
        }
        let device = Rc::clone(&self.banks[number].device);
        let (free, all) = device.memory().unwrap_or((0, 0));
        let budget = match self.budget {
            CowLimit::Share(percent) => all / 100 * u64::from(percent),
            CowLimit::Bytes(bytes) => bytes,
            CowLimit::Unlimited => u64::MAX,
        };
        let has = self.caches.get(&number).and_then(|(_, memory)| memory.as_ref());
        let has = has.map_or(0, |memory| memory.bytes);
        // The program's next allocation should not have to wait for the cache to give way.
        let most = budget.min((free + has).saturating_sub(LEFT.max(all / 32)));
        let workspace = self.packer.workspace().next_multiple_of(ROOM);
        let needed = wanted.next_multiple_of(ROOM) + workspace;
        // One that is as large as it may be is not made anew for a little more.
        if (1..=most).contains(&has) && (has >= needed || has >= most / 8 * 7) {
            return;
        }
        let own: u64 = self.placed(number, None).iter().map(|block| block.bytes.next_multiple_of(ROOM)).sum();
        self.caches.remove(&number);
        let mut bytes = (needed + own + SMALL * ROOM).min(most) / ROOM * ROOM;
        while bytes > 0 {
            if let Ok(memory) = Buffer::new(&device, bytes) {
                // Chunks come before the workspace.
                let capacity = bytes.saturating_sub(workspace).max(bytes.min(needed - workspace));
                self.caches.insert(number, (Cache::new(capacity), Some(memory)));
                return;
            }
            bytes = bytes / 2 / ROOM * ROOM;
        }
    }

    pub(super) fn copies<'a>(
        &'a self,
        bank: usize,
        hashed: Option<&'a Hashed>,
        cache: Option<&'a Buffer>,
    ) -> Copies<'a> {
        Copies { bank: &self.banks[bank], hashed, cache }
    }

    /// Packs chunks of one cache into the ring: how many bytes each has become; see
    /// [`super::messages::Question::Pack`].
    ///
    /// # Errors
    /// This keeper packs nothing; in words.
    pub fn pack(&mut self, chunks: &[u64], codec: SourceCodec, ring: &mut [u8]) -> Result<Vec<u32>, String> {
        let slots = chunks.iter().take(PACKED).map(|at| at / CHUNK);
        for (number, (cache, memory)) in &mut self.caches {
            let Some(memory) = memory else { continue };
            let of_cache = |slot: u64| {
                let at = memory.at + cache.offset(slot)?;
                Some(packer::Cached { at, digest: self.pending.digest(slot)? })
            };
            let found: Vec<packer::Cached> = slots.clone().map_while(of_cache).collect();
            if !found.is_empty() {
                let device = &self.banks[*number].device;
                let mut room = |bytes| Some(memory.at + cache.gap(bytes, memory.bytes)?);
                let batch = Batch { device, keys: &Keys::new(self.key), chunks: &found };
                return self.packer.pack(&batch, codec, &mut room, ring);
            }
        }
        Ok(Vec::new())
    }

    /// The image has these.
    pub fn stored(&mut self, runs: &[Run]) {
        let now = monotonic_ns();
        for &(start, len) in runs.iter().filter(|(start, _)| *start < DIGESTS) {
            let (mut at, end) = (start, start.saturating_add(len));
            while at < end {
                let here = (CHUNK - at % CHUNK).min(end - at);
                for (bank, (cache, memory)) in &mut self.caches {
                    let bank = &self.banks[*bank];
                    let mut copies = Copies { bank, hashed: None, cache: memory.as_ref() };
                    // What is stored is not copied.
                    let _ = cache.stored(now, at / CHUNK, here, &mut copies);
                }
                at += here;
            }
        }
    }

    /// The image is committed, or has failed.
    ///
    /// # Errors
    /// The device has failed.
    pub fn over(&mut self, committed: bool) -> Result<(), String> {
        let pending = std::mem::take(&mut self.pending);
        let mut failed = Vec::new();
        for (bank, (cache, memory)) in &mut self.caches {
            let own = &self.banks[*bank];
            let mut copies = Copies { bank: own, hashed: None, cache: memory.as_ref() };
            let digest = |slot| pending.digest(slot);
            let zero = pending.zero.get(bank).map_or(&[][..], Vec::as_slice);
            let image = committed.then_some(Committed { digest: &digest, zero });
            if cache.over(monotonic_ns(), image, &mut copies).is_err() {
                failed.push(*bank);
            }
        }
        failed.iter().for_each(|bank| drop(self.caches.remove(bank)));
        for (name, id, bank) in pending.blocks.into_iter().filter(|_| committed) {
            // One that was made since then in its place has nothing to do with the image.
            if let Some(one) = self.all.get(&name).filter(|one| one.id == id) {
                self.banks[bank].committed(name, one.bytes / CHUNK).map_err(words)?;
            }
        }
        Ok(())
    }

    /// See [`super::messages::Question::Key`].
    pub fn set_key(&mut self, key: [u8; 16]) {
        self.key = key;
    }

    /// Makes memory that an image has, filled with zeros.
    ///
    /// # Errors
    /// There is no such device, or no memory; in words.
    pub fn remake(&mut self, block: &Block) -> Result<(), String> {
        let Block { name, bytes, owner, uuid } = *block;
        let whole = bytes > 0 && bytes.is_multiple_of(UNIT);
        if !whole || !self.slots.take_at(name, bytes / CHUNK) {
            return Err(format!("the image has a block of device memory that cannot be: {block:?}"));
        }
        self.make_at(name, owner, bytes, uuid).map_err(|denied| match denied {
            Denied::Code(code) => {
                let words = holdfast_sys::cuda::describe(code);
                format!("there is no room for {bytes} bytes of device memory: {words}")
            }
            _ => format!("there is no device {}", holdfast_image::cuda::uuid(&uuid)),
        })?;
        let one = &self.all[&name];
        let device = &self.banks[one.bank].device;
        device.set(one.at, 0, bytes).and_then(|()| device.finish()).map_err(words)
    }

    /// Begins to copy the content of an image from a part of the ring, one run behind the other.
    ///
    /// # Errors
    /// There is nothing at these addresses; in words.
    pub fn fill(&self, runs: &[Run], ring: &mut Window, part: Range<usize>) -> Result<(), String> {
        let mut of_bank: BTreeMap<usize, Vec<(Range<usize>, u64)>> = BTreeMap::new();
        let mut from = part.start;
        for &(start, len) in runs {
            let to = usize::try_from(len).ok().and_then(|len| from.checked_add(len));
            let to =
                to.filter(|to| *to <= part.end).ok_or("more is to be filled than the ring has room for")?;
            let here = from..to;
            from = to;
            let bytes = ring.part(here.clone()).ok_or("the ring is too short")?;
            alter(start, bytes);
            if start >= DIGESTS {
                self.fill_digests((start - DIGESTS) / Digest::BYTES, bytes)?;
                continue;
            }
            let found = self.all.range(..=start / CHUNK).next_back();
            let found = found.filter(|(name, one)| start.saturating_add(len) <= *name * CHUNK + one.bytes);
            let (name, one) =
                found.ok_or_else(|| format!("the image has pages at {start:#x} of no block"))?;
            of_bank.entry(one.bank).or_default().push((here, one.at + (start - name * CHUNK)));
        }
        of_bank.iter().try_for_each(|(bank, parts)| {
            ring.begin_to_device(&self.banks[*bank].device, parts).map_err(words)
        })
    }

    /// Those of the blocks that were made: a page has those of others, too.
    fn fill_digests(&self, slot: u64, bytes: &[u8]) -> Result<(), String> {
        let end = slot + bytes.len() as u64 / Digest::BYTES;
        for (name, one) in &self.all {
            let (first, last) = ((*name).max(slot), (name + one.bytes / CHUNK).min(end));
            if first < last {
                let at = |slot_of: u64| ((slot_of - slot) * Digest::BYTES) as usize;
                self.banks[one.bank].set_digests(first, &bytes[at(first)..at(last)]).map_err(words)?;
            }
        }
        Ok(())
    }
}

/// Pinned memory for a segment.
fn pinned(device: &Rc<Device>) -> Result<Window, String> {
    let bytes = SEGMENT as u64 * CHUNK;
    let system = |error: io::Error| error.to_string();
    let file = File::from(memfd::unsealed(c"holdfast-bounce").map_err(system)?);
    file.set_len(bytes).map_err(system)?;
    let mut window = Window::of(file.as_fd(), bytes as usize).map_err(system)?;
    window.pin(device).map_err(words)?;
    Ok(window)
}

/// For tests: what an image has is taken for something else.
fn alter(start: u64, bytes: &mut [u8]) {
    let name = if start >= DIGESTS { "other-digests" } else { "other-device-pages" };
    if fault::is_asked(name) {
        bytes.iter_mut().for_each(|byte| *byte ^= 1);
    }
}
