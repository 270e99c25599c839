//! A device of the keeper's: kernels, tables of digests, and what a checkpoint does with them.
//!
//! Used by [`super::blocks`]. Digests of the last image and of the one being made lie beside each other on the device,
//! by slot ([`super::slots`]); a slot that has no digest in the last image is changed, whatever it has. Invariants:
//! a digest gets into the table of the last image when that image is committed, or read by a restart, not before.
//! Fails by: [`DeviceError`]; what was allocated is given back.

use super::cache::Moves;
use holdfast_cuda_kernels::PTX;
use holdfast_cuda_kernels::chunk::{self, CHUNK, Piece, find, number};
use holdfast_cuda_kernels::digest::{Digest, Keys};
use holdfast_cuda_kernels::launch::{
    self, Chunks, CopyChunks, CountsAt, Digests, HashChunks, Kernel as Which, Launch, ListChunks, Ranges,
    States, Table, Way,
};
use holdfast_cuda_kernels::list::Counts;
use holdfast_sys::cuda_memory::{Device, DeviceError, Kernel};
use holdfast_sys::cuda_window::Window;
use std::cell::RefCell;
use std::ffi::CStr;
use std::ops::Range;
use std::rc::Rc;

/// Slots that the tables have room for at first: 1 GiB.
const SLOTS: u64 = 1 << 14;
/// CUDA_ERROR_INVALID_VALUE: said here of a description that no kernel takes.
const INVALID: DeviceError = DeviceError { function: "describing chunks", code: 1 };

/// Memory of the driver's. Dropped, it is given back.
#[derive(Debug)]
pub struct Buffer {
    device: Rc<Device>,
    /// Where it is.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
}

impl Buffer {
    /// So many bytes.
    ///
    /// # Errors
    /// There are not so many.
    pub fn new(device: &Rc<Device>, bytes: u64) -> Result<Buffer, DeviceError> {
        let at = device.allocate(bytes.max(1))?;
        Ok(Buffer { device: Rc::clone(device), at, bytes })
    }

    fn zero(device: &Rc<Device>, bytes: u64) -> Result<Buffer, DeviceError> {
        let made = Buffer::new(device, bytes)?;
        device.set(made.at, 0, bytes)?;
        Ok(made)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.device.free(self.at);
    }
}

/// Where a block is: mapped in the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// First address.
    pub at: u64,
    /// Its length.
    pub bytes: u64,
    /// Its first slot.
    pub slot: u64,
}

/// Pinned memory, for what is copied to or from memory that is not: many times slower, and in small pieces slower
/// still. `None`: there is none.
pub type Bounce = Rc<RefCell<Option<Window>>>;

/// See the head of the file.
pub struct Bank {
    /// The device.
    pub device: Rc<Device>,
    bounce: Bounce,
    hash: Kernel,
    list: Kernel,
    gather: Kernel,
    previous: Buffer,
    fresh: Buffer,
    slots: u64,
}

/// What has changed.
pub struct Hashed {
    ranges: Vec<chunk::Range>,
    table: Table,
    list: Chunks,
    /// Slots of chunks that have changed and are not zero, ascending: in the order of the list on the device.
    pub dirty: Vec<u64>,
    /// Their numbers in the table.
    numbers: Vec<u32>,
    /// Slots of those that became zero.
    pub zero: Vec<u64>,
    /// Tables on the device, as long as chunks are to be gathered.
    _tables: Vec<Buffer>,
}

impl Bank {
    /// Loads the kernels.
    ///
    /// # Errors
    /// They are not for this device, or there is no memory.
    pub fn new(device: Rc<Device>, bounce: &Bounce) -> Result<Bank, DeviceError> {
        let ptx = CStr::from_bytes_with_nul(PTX).map_err(|_| INVALID)?;
        let names = [Which::Hash, Which::List, Which::Gather].map(Which::name);
        let [hash, list, gather] = device.load(ptx, names)?;
        let table = || Buffer::zero(&device, SLOTS * Digest::BYTES);
        let (previous, fresh) = (table()?, table()?);
        let bounce = Rc::clone(bounce);
        Ok(Bank { hash, list, gather, previous, fresh, slots: SLOTS, device, bounce })
    }

    /// Copies what is at several places of the device, one behind the other, all of it under way at once.
    ///
    /// # Errors
    /// The device has failed; CUDA_ERROR_INVALID_VALUE: there is no room for it.
    pub fn to_host(&self, places: &[Range<u64>], into: &mut [u8]) -> Result<(), DeviceError> {
        let mut bounce = self.bounce.borrow_mut();
        let Some(bounce) = bounce.as_mut().filter(|bounce| bounce.len() >= into.len()) else {
            return self.device.to_host_all(places, into);
        };
        let part = 0..into.len();
        bounce.begin_to_host(&self.device, places, part.clone())?;
        bounce.wait(&part)?;
        into.copy_from_slice(bounce.part(part).ok_or(INVALID)?);
        Ok(())
    }

    /// The same of one place, which may be longer than what is pinned.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let most = self.bounce.borrow().as_ref().map_or(into.len(), Window::len).max(1);
        let places = (at..).step_by(most);
        places.zip(into.chunks_mut(most)).try_for_each(|(at, piece)| {
            let place = at..at + piece.len() as u64;
            self.to_host(std::slice::from_ref(&place), piece)
        })
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), DeviceError> {
        let mut bounce = self.bounce.borrow_mut();
        let Some(bounce) = bounce.as_mut() else { return self.device.to_device(at, from) };
        let most = bounce.len();
        (at..).step_by(most).zip(from.chunks(most)).try_for_each(|(at, piece)| {
            let part = 0..piece.len();
            bounce.part(part.clone()).ok_or(INVALID)?.copy_from_slice(piece);
            bounce.begin_to_device(&self.device, &[(part.clone(), at)])?;
            bounce.wait(&part)
        })
    }

    /// Makes room for so many slots.
    ///
    /// # Errors
    /// There is no memory; all is as it was.
    pub fn reserve(&mut self, slots: u64) -> Result<(), DeviceError> {
        if slots <= self.slots {
            return Ok(());
        }
        let slots = slots.next_power_of_two();
        let table = || Buffer::zero(&self.device, slots * Digest::BYTES);
        let (previous, fresh) = (table()?, table()?);
        self.device.on_device(previous.at, self.previous.at, self.previous.bytes)?;
        self.device.on_device(fresh.at, self.fresh.at, self.fresh.bytes)?;
        self.device.finish()?;
        (self.previous, self.fresh, self.slots) = (previous, fresh, slots);
        Ok(())
    }

    /// What the last image has of these slots is forgotten.
    ///
    /// # Errors
    /// The device has failed.
    pub fn forget(&self, slot: u64, count: u64) -> Result<(), DeviceError> {
        self.device.set(self.previous.at + slot * Digest::BYTES, 0, count * Digest::BYTES)?;
        self.device.finish()
    }

    /// The image has these slots as they were hashed last.
    ///
    /// # Errors
    /// The device has failed.
    pub fn committed(&self, slot: u64, count: u64) -> Result<(), DeviceError> {
        let offset = slot * Digest::BYTES;
        self.device.on_device(self.previous.at + offset, self.fresh.at + offset, count * Digest::BYTES)?;
        self.device.finish()
    }

    /// The digests of slots as they were hashed last.
    ///
    /// # Errors
    /// The device has failed.
    pub fn digests(&self, slot: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.read(self.fresh.at + slot * Digest::BYTES, into)
    }

    /// The digests that the last image has of slots.
    ///
    /// # Errors
    /// The device has failed.
    pub fn image_digests(&self, slot: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        self.read(self.previous.at + slot * Digest::BYTES, into)
    }

    /// The digests that an image has of slots.
    ///
    /// # Errors
    /// The device has failed.
    pub fn set_digests(&self, slot: u64, digests: &[u8]) -> Result<(), DeviceError> {
        self.write(self.previous.at + slot * Digest::BYTES, digests)
    }

    fn launch(&self, kernel: Kernel, launch: Option<Launch>) -> Result<(), DeviceError> {
        let launch = launch.ok_or(INVALID)?;
        self.device.launch(kernel, [launch.grid(), launch.block()], launch.parameters())
    }

    /// Hashes all chunks of blocks, which ascend by their slots, and lists those that are not as in the last image.
    /// Nothing may write to them meanwhile.
    ///
    /// # Errors
    /// There is no memory for the tables, or the device has failed.
    pub fn changed(&self, keys: Keys, blocks: &[Placed]) -> Result<Hashed, DeviceError> {
        let range = |block: &Placed| chunk::Range::new(block.at, block.bytes, block.slot);
        let mut ranges: Vec<chunk::Range> = blocks.iter().map(range).collect::<Option<_>>().ok_or(INVALID)?;
        let chunks = number(&mut ranges).ok_or(INVALID)?;
        let bytes: Vec<u8> = ranges.iter().flat_map(|range| range.to_bytes()).collect();
        let table_at = Buffer::new(&self.device, bytes.len() as u64)?;
        self.write(table_at.at, &bytes)?;
        let room = |bytes: Option<u64>| Buffer::new(&self.device, bytes.ok_or(INVALID)?);
        let states = room(States::bytes(chunks))?;
        let (dirty, zero) = (room(Chunks::bytes(chunks))?, room(Chunks::bytes(chunks))?);
        let counts = room(Some(launch::COUNTS_BYTES))?;
        let at = Ranges::at(table_at.at).ok_or(INVALID)?;
        let table = Table { at, count: ranges.len() as u64, chunks };
        let digests = |table: &Buffer| Digests::at(table.at).ok_or(INVALID);
        let (previous, fresh) = (digests(&self.previous)?, digests(&self.fresh)?);
        let states_at = States::at(states.at).ok_or(INVALID)?;
        let hash = HashChunks { table, keys, previous, fresh, states: states_at };
        self.launch(self.hash, hash.launch())?;
        let list = |list: &Buffer| Chunks::at(list.at).ok_or(INVALID);
        let (dirty_at, zero_at) = (list(&dirty)?, list(&zero)?);
        let counts_at = CountsAt::at(counts.at).ok_or(INVALID)?;
        let listing =
            ListChunks { states: states_at, chunks, dirty: dirty_at, zero: zero_at, counts: counts_at };
        self.launch(self.list, listing.launch())?;
        self.device.finish()?;
        let mut found = [0; Counts::BYTES as usize];
        self.read(counts.at, &mut found)?;
        let found = Counts::from_bytes(found, chunks).ok_or(INVALID)?;
        let numbers = self.numbers(&dirty, found.dirty)?;
        let slots = |numbers: &[u32]| -> Result<Vec<u64>, DeviceError> {
            let slot = |chunk: &u32| Ok(find(&ranges, u64::from(*chunk)).ok_or(INVALID)?.slot);
            numbers.iter().map(slot).collect()
        };
        let zeros = slots(&self.numbers(&zero, found.zero)?)?;
        let changed = slots(&numbers)?;
        Ok(Hashed {
            ranges,
            table,
            list: dirty_at,
            dirty: changed,
            numbers,
            zero: zeros,
            _tables: vec![table_at, dirty],
        })
    }

    fn numbers(&self, list: &Buffer, count: u64) -> Result<Vec<u32>, DeviceError> {
        let mut bytes = vec![0; usize::try_from(count * 4).map_err(|_| INVALID)?];
        self.read(list.at, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
    }
}

/// Copies of what was hashed. The cache may be empty: then nothing is asked of it.
pub struct Copies<'a> {
    /// The device.
    pub bank: &'a Bank,
    /// What is to be gathered; `None`: all that was is in the cache.
    pub hashed: Option<&'a Hashed>,
    /// The cache.
    pub cache: Option<&'a Buffer>,
}

impl Copies<'_> {
    fn cache(&self, offset: u64) -> Result<u64, String> {
        Ok(self.cache.ok_or("there is no GPU cache any more")?.at + offset)
    }

    fn hashed(&self) -> Result<&Hashed, String> {
        self.hashed.ok_or_else(|| "what was hashed is gone".to_owned())
    }
}

fn words(error: &DeviceError) -> String {
    error.to_string()
}

impl Moves for Copies<'_> {
    fn gather(&mut self, first: usize, count: usize, offset: u64) -> Result<(), String> {
        let (hashed, to) = (self.hashed()?, launch::Cache::at(self.cache(offset)?));
        let (list, to) = (hashed.list.skip(first as u64), to.ok_or("the cache is not aligned")?);
        let list = list.ok_or("the list is too long")?;
        let copy = CopyChunks { table: hashed.table, list, number: count as u64, way: Way::Gather(to) };
        self.bank.launch(self.bank.gather, copy.launch()).map_err(|error| words(&error))
    }

    fn take(&mut self, first: usize, into: &mut [u8]) -> Result<(), String> {
        let hashed = self.hashed()?;
        let numbers = hashed.numbers.get(first..).unwrap_or_default();
        let mut places = Vec::new();
        for number in numbers.iter().take(into.len() / CHUNK as usize) {
            let Piece { address, .. } =
                find(&hashed.ranges, u64::from(*number)).ok_or("a chunk that is none")?;
            places.push(address..address + CHUNK);
        }
        self.bank.to_host(&places, into).map_err(|error| words(&error))
    }

    fn fetch(&mut self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        let at = self.cache(offset)?;
        let end = at + into.len() as u64;
        self.bank.to_host(std::slice::from_ref(&(at..end)), into).map_err(|error| words(&error))
    }

    fn bring(&mut self, offset: u64, address: u64, bytes: u64) -> Result<(), String> {
        let from = self.cache(offset)?;
        self.bank.device.on_device(address, from, bytes).map_err(|error| words(&error))
    }
}
