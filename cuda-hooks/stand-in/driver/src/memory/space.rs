//! The device's addresses: which ranges the driver has reserved, what is mapped at them, and how kernels and copies get
//! at the bytes. Used by `heap`, `vmm`, `copy`, `launch`.
//!
//! A reserved range is a mapping of the host without any access: a device pointer that the host follows crashes. The
//! bytes are somewhere else (`physical`). Memory of the host that is pinned is mapped at its own addresses.
//!
//! Invariants: the table is locked for reading during a slice of a kernel or a copy, so that nothing is unmapped under
//! it; nothing that holds a `View` takes another, or calls into the rest of the driver.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_ptx::{Memory, OutOfRange};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::physical::Physical;
use super::raw;
use crate::code::{Answer, Code};
use crate::system;

/// What the device may do with a mapping: `CUmemAccess_flags`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// What `cuMemMap` leaves, before `cuMemSetAccess`.
    None = 0,
    /// Loads.
    Read = 1,
    /// All.
    Write = 3,
}

/// Whose bytes are at a range of addresses.
#[derive(Clone, Debug)]
pub enum Backing {
    /// The device's.
    Device {
        /// Which memory.
        physical: Arc<Physical>,
        /// From where in it.
        offset: u64,
    },
    /// The host's, at the same addresses.
    Host,
}

/// A range of addresses that can be accessed.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// In bytes.
    pub length: u64,
    /// What is there.
    pub backing: Backing,
    /// How.
    pub access: Access,
}

impl Mapping {
    /// The host's address of its first byte.
    fn shadow(&self, start: u64) -> u64 {
        match &self.backing {
            Backing::Device { physical, offset } => physical.shadow() + offset,
            Backing::Host => start,
        }
    }
}

static TABLE: RwLock<BTreeMap<u64, Mapping>> = RwLock::new(BTreeMap::new());
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Reserves addresses.
pub fn reserve(length: u64, alignment: u64, near: u64) -> Answer<u64> {
    let at = system::reserve(length, alignment, near).map_err(|_| Code::OUT_OF_MEMORY)?;
    RESERVED.lock().insert(at, length);
    Ok(at)
}

/// Gives reserved addresses back to the host; all of a reservation, on which nothing is mapped.
pub fn release(at: u64, length: u64) -> Answer {
    // the table's lock is never taken inside the other one
    if overlaps(at, length) {
        return Err(Code::INVALID_VALUE);
    }
    let mut reserved = RESERVED.lock();
    if reserved.get(&at) != Some(&length) {
        return Err(Code::INVALID_VALUE);
    }
    reserved.remove(&at);
    system::unmap(at, length);
    Ok(())
}

/// Whether an address is one that the driver has reserved.
pub fn is_reserved(address: u64) -> bool {
    reservation(address).is_some()
}

/// The reservation that an address is in.
pub fn reservation(address: u64) -> Option<(u64, u64)> {
    let reserved = RESERVED.lock();
    let (&at, &length) = reserved.range(..=address).next_back()?;
    (address - at < length).then_some((at, length))
}

/// Whether anything is mapped in a range.
pub fn overlaps(at: u64, length: u64) -> bool {
    let table = TABLE.read();
    table.range(..at.saturating_add(length)).next_back().is_some_and(|(start, m)| start + m.length > at)
}

/// Maps; nothing may be there yet.
pub fn map(at: u64, mapping: Mapping) -> Answer {
    if overlaps(at, mapping.length) {
        return Err(Code::INVALID_VALUE);
    }
    TABLE.write().insert(at, mapping);
    Ok(())
}

/// Ends a mapping that begins there; waits for a kernel's slice to end.
pub fn unmap(at: u64) -> Option<Mapping> {
    TABLE.write().remove(&at)
}

/// The mapping that an address is in, and where it begins.
pub fn mapping(address: u64) -> Option<(u64, Mapping)> {
    let table = TABLE.read();
    let (&at, mapping) = table.range(..=address).next_back()?;
    (address - at < mapping.length).then(|| (at, mapping.clone()))
}

/// The mappings that fill a range, without a gap and none beyond it; what `cuMemUnmap` and `cuMemSetAccess` want.
pub fn within(at: u64, length: u64) -> Option<Vec<u64>> {
    let table = TABLE.read();
    let (mut next, end) = (at, at.checked_add(length)?);
    let mut found = Vec::new();
    while next < end {
        next += table.get(&next)?.length;
        found.push(next);
    }
    let starts = table.range(at..end).map(|(&start, _)| start).collect();
    (next == end).then_some(starts)
}

/// Changes how mappings can be accessed.
pub fn set_access(starts: &[u64], access: Access) {
    let mut table = TABLE.write();
    for start in starts {
        if let Some(mapping) = table.get_mut(start) {
            mapping.access = access;
        }
    }
}

/// All reserved ranges are given back to the host: what older drivers do at a checkpoint (DMTCP, plugin/cuda).
pub fn drop_reserved() {
    RESERVED.lock().iter().for_each(|(&at, &length)| system::unmap(at, length));
}

/// The other way. What the host has put there meanwhile is replaced (driver 580.159.04 maps with MAP_FIXED).
pub fn take_reserved() -> Answer {
    for (&at, &length) in RESERVED.lock().iter() {
        system::reserve_over(at, length).map_err(|_| Code::OPERATING_SYSTEM)?;
    }
    Ok(())
}

/// The table, locked, with the last answer.
pub struct View {
    table: RwLockReadGuard<'static, BTreeMap<u64, Mapping>>,
    last: Cell<(u64, u64, u64, Access)>,
}

/// As the device sees memory now.
pub fn view() -> View {
    View { table: TABLE.read(), last: Cell::new((0, 0, 0, Access::None)) }
}

impl View {
    /// The host's address of some bytes that lie in one mapping.
    fn find(&self, address: u64, bytes: u64, wanted: Access) -> Option<u64> {
        let end = address.checked_add(bytes)?;
        let (start, stop, shadow, access) = self.last.get();
        if address >= start && end <= stop && access >= wanted {
            return Some(shadow + (address - start));
        }
        let (&start, mapping) = self.table.range(..=address).next_back()?;
        let stop = start + mapping.length;
        if end > stop || mapping.access < wanted {
            return None;
        }
        let shadow = mapping.shadow(start);
        self.last.set((start, stop, shadow, mapping.access));
        Some(shadow + (address - start))
    }

    /// The host's addresses of a range: of the device in as many pieces as it is mapped, of the host in one.
    pub fn pieces(&self, address: u64, length: u64, wanted: Access) -> Option<Vec<(u64, u64)>> {
        let (mut at, end) = (address, address.checked_add(length)?);
        let mut pieces = Vec::new();
        while at < end {
            let mapped = self.table.range(..=at).next_back().filter(|(start, m)| at - *start < m.length);
            let Some((start, mapping)) = mapped else {
                if is_reserved(at) || !pieces.is_empty() {
                    return None;
                }
                return Some(vec![(address, length)]);
            };
            let bytes = (start + mapping.length).min(end) - at;
            pieces.push((self.find(at, bytes, wanted)?, bytes));
            at += bytes;
        }
        Some(pieces)
    }

    /// Copies, wherever both sides are.
    pub fn copy(&self, to: u64, from: u64, length: u64) -> Answer {
        let to = self.pieces(to, length, Access::Write).ok_or(Code::ILLEGAL_ADDRESS)?;
        let from = self.pieces(from, length, Access::Read).ok_or(Code::ILLEGAL_ADDRESS)?;
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let (mut target, mut source) = (to.next(), from.next());
        while let (Some((t, t_bytes)), Some((s, s_bytes))) = (target, source) {
            let bytes = t_bytes.min(s_bytes);
            raw::copy(t, s, bytes);
            target = if t_bytes > bytes { Some((t + bytes, t_bytes - bytes)) } else { to.next() };
            source = if s_bytes > bytes { Some((s + bytes, s_bytes - bytes)) } else { from.next() };
        }
        Ok(())
    }

    /// Repeats a value of 1, 2 or 4 bytes.
    pub fn fill(&self, to: u64, value: u32, bytes: u32, count: u64) -> Answer {
        let length = count.checked_mul(bytes.into()).ok_or(Code::INVALID_VALUE)?;
        let pattern = value.to_le_bytes();
        for (at, piece) in self.pieces(to, length, Access::Write).ok_or(Code::ILLEGAL_ADDRESS)? {
            let filled: Vec<u8> =
                pattern[..bytes as usize].iter().copied().cycle().take(piece as usize).collect();
            raw::write(at, &filled);
        }
        Ok(())
    }

    /// Bytes of the program, copied now.
    pub fn read(&self, from: u64, length: u64) -> Answer<Vec<u8>> {
        let pieces = self.pieces(from, length, Access::Read).ok_or(Code::ILLEGAL_ADDRESS)?;
        let mut bytes = Vec::with_capacity(length as usize);
        for (at, piece) in pieces {
            bytes.extend_from_slice(&raw::read(at, piece));
        }
        Ok(bytes)
    }

    /// The same, to an address of the driver's own.
    pub fn read_to(&self, to: u64, from: u64, length: u64) -> Answer {
        let mut at = to;
        for (piece, bytes) in self.pieces(from, length, Access::Read).ok_or(Code::ILLEGAL_ADDRESS)? {
            raw::copy(at, piece, bytes);
            at += bytes;
        }
        Ok(())
    }

    /// The other way.
    pub fn write_from(&self, to: u64, from: u64, length: u64) -> Answer {
        let mut at = from;
        for (piece, bytes) in self.pieces(to, length, Access::Write).ok_or(Code::ILLEGAL_ADDRESS)? {
            raw::copy(piece, at, bytes);
            at += bytes;
        }
        Ok(())
    }

    /// Some bytes, as they are.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Answer {
        let pieces = self.pieces(to, bytes.len() as u64, Access::Write).ok_or(Code::ILLEGAL_ADDRESS)?;
        let mut rest = bytes;
        for (at, piece) in pieces {
            let (now, later) = rest.split_at(piece as usize);
            raw::write(at, now);
            rest = later;
        }
        Ok(())
    }
}

impl Memory for View {
    fn load(&self, address: u64, bytes: u32) -> Result<u64, OutOfRange> {
        let at = self.find(address, bytes.into(), Access::Read).ok_or(OutOfRange)?;
        Ok(raw::load(at, bytes))
    }

    fn store(&self, address: u64, bytes: u32, value: u64) -> Result<(), OutOfRange> {
        let at = self.find(address, bytes.into(), Access::Write).ok_or(OutOfRange)?;
        raw::store(at, bytes, value);
        Ok(())
    }

    fn update(&self, address: u64, bytes: u32, new: &mut dyn FnMut(u64) -> u64) -> Result<u64, OutOfRange> {
        let at = self.find(address, bytes.into(), Access::Write).ok_or(OutOfRange)?;
        Ok(raw::update(at, bytes, new))
    }
}
