//! Memory of the device, as kernels see it. The stand-in driver puts its shadow memory behind `Memory`; `TestMemory` is
//! for the tests of this crate.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The address, or a byte behind it, is no memory of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfRange;

/// Global memory. Values are little-endian and have `bytes` bytes: 1, 2, 4 or 8; addresses are multiples of that.
pub trait Memory {
    /// A plain load.
    fn load(&self, address: u64, bytes: u32) -> Result<u64, OutOfRange>;
    /// A plain store.
    fn store(&self, address: u64, bytes: u32, value: u64) -> Result<(), OutOfRange>;
    /// Replaces a value by what `new` makes of it, atomically with regard to all launches; gives the old one.
    fn update(&self, address: u64, bytes: u32, new: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutOfRange>;
}

/// Some ranges of bytes, in one thread.
#[derive(Default, Debug)]
pub struct TestMemory {
    ranges: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl TestMemory {
    /// Adds memory; ranges must not overlap.
    pub fn add(&self, address: u64, bytes: Vec<u8>) {
        self.ranges.borrow_mut().insert(address, bytes);
    }

    /// What is there; nothing, if the range is not in one piece.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        self.within(address, length, |bytes| bytes.to_vec()).unwrap_or_default()
    }

    /// Changes what is there.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.within(address, bytes.len(), |there| there.copy_from_slice(bytes))
    }

    fn within<R>(
        &self,
        address: u64,
        length: usize,
        act: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, OutOfRange> {
        let mut ranges = self.ranges.borrow_mut();
        let (start, range) = ranges.range_mut(..=address).next_back().ok_or(OutOfRange)?;
        let from = usize::try_from(address - start).map_err(|_| OutOfRange)?;
        let bytes = range.get_mut(from..from.checked_add(length).ok_or(OutOfRange)?).ok_or(OutOfRange)?;
        Ok(act(bytes))
    }
}

impl Memory for TestMemory {
    fn load(&self, address: u64, bytes: u32) -> Result<u64, OutOfRange> {
        self.within(address, bytes as usize, |there| load(there))
    }

    fn store(&self, address: u64, bytes: u32, value: u64) -> Result<(), OutOfRange> {
        self.within(address, bytes as usize, |there| store(there, value))
    }

    fn update(&self, address: u64, bytes: u32, new: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutOfRange> {
        self.within(address, bytes as usize, |there| {
            let old = load(there);
            store(there, new(old));
            old
        })
    }
}

/// The value of at most eight bytes.
pub(crate) fn load(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

/// The other way.
pub(crate) fn store(bytes: &mut [u8], value: u64) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
}
