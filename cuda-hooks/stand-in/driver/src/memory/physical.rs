//! Memory of the device: a file of memory named like a device node, mapped once, out of which allocations get parts.
//! The file and its mapping are what a process with a real driver has of /dev/nvidia0: they cannot be in an image of
//! the host. What is shared with other processes by a descriptor is a file of its own. Used by `heap`, `space`, `vmm`.
//!
//! Invariants: where bytes are is asked for at every access (`Physical::shadow`), for a checkpoint moves them into
//! private memory and a restore back. What is new has the content of what was there before: a program that relies on
//! zeros fails.
//! Fails by: CUDA_ERROR_OUT_OF_MEMORY where the device has no part that large.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::ranges::Ranges;
use super::raw;
use crate::code::{Answer, Code};
use crate::settings::{Fault, settings};
use crate::{shared_device, system};

/// Unit of physical memory: what `cuMemGetAllocationGranularity` says on every discrete GPU of today.
pub const GRANULARITY: u64 = 2 << 20;

/// So many of the first bytes of new memory have a pattern; the rest has what was there before.
const SPOILT: u64 = 64 << 10;

/// The device's memory.
struct Device {
    file: Mutex<Option<OwnedFd>>,
    at: AtomicU64,
    length: u64,
    free: Mutex<Ranges>,
    all: Mutex<Vec<Weak<Physical>>>,
    total: AtomicU64,
    used: AtomicU64,
}

static DEVICE: OnceLock<Device> = OnceLock::new();

/// A part of it.
#[derive(Debug)]
pub struct Physical {
    place: Place,
    /// In bytes.
    pub length: u64,
    /// Where a checkpoint puts its bytes: pages of the process's own, the same ones each time, so that what has not
    /// changed is as in the image before. Bytes of nothing that is CHECKPOINTED now are of no meaning.
    saved: Mutex<Option<Saved>>,
    /// What the checkpoint before has found, where a test wants that.
    before: Mutex<Option<Vec<u8>>>,
}

#[derive(Debug)]
struct Saved {
    at: u64,
    length: u64,
    holds: bool,
}

impl Drop for Saved {
    fn drop(&mut self) {
        system::unmap(self.at, self.length);
    }
}

#[derive(Debug)]
enum Place {
    Device { offset: u64 },
    File { file: Mutex<Option<OwnedFd>>, at: AtomicU64, imported: bool },
}

fn device() -> Answer<&'static Device> {
    DEVICE.get().ok_or(Code::NOT_INITIALIZED)
}

/// Opens the device.
pub fn open() -> io::Result<()> {
    let length = settings().memory.next_multiple_of(GRANULARITY);
    let file = system::memory_file(c"nvidia0", length)?;
    let at = system::map_file(&file, length)?;
    let _ = DEVICE.set(Device {
        file: Mutex::new(Some(file)),
        at: AtomicU64::new(at),
        length,
        free: Mutex::new(Ranges::new(length)),
        all: Mutex::default(),
        total: AtomicU64::new(length),
        used: AtomicU64::new(0),
    });
    Ok(())
}

/// Bytes of the device that this process has.
pub fn used() -> Answer<u64> {
    Ok(device()?.used.load(Ordering::Relaxed))
}

/// Free bytes, and all. What others have is not free: at least what this process has imported of it.
pub fn information() -> Answer<(u64, u64)> {
    let device = device()?;
    let total = device.total.load(Ordering::Relaxed);
    let is_imported = |one: &Arc<Physical>| matches!(one.place, Place::File { imported: true, .. });
    let imported = everything(device).iter().filter(|one| is_imported(one)).map(|one| one.length).sum();
    Ok((total.saturating_sub(used()?).saturating_sub(shared_device::others().max(imported)), total))
}

/// This process has fewer bytes of the device than before.
fn give_back(device: &Device, length: u64) {
    let before = device.used.fetch_sub(length, Ordering::Relaxed);
    shared_device::tell(before - length);
}

impl Physical {
    /// A part of so many bytes, a multiple of the granularity.
    pub fn new(length: u64) -> Answer<Arc<Physical>> {
        Physical::make(length, false)
    }

    /// The same, in a file of its own, which other processes can map.
    pub fn exportable(length: u64) -> Answer<Arc<Physical>> {
        Physical::make(length, true)
    }

    fn make(length: u64, exportable: bool) -> Answer<Arc<Physical>> {
        let device = device()?;
        if settings().strikes(Fault::OutOfMemory) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let total = device.total.load(Ordering::Relaxed);
        let total = total.saturating_sub(shared_device::others());
        let take = |used: u64| used.checked_add(length).filter(|&n| n <= total);
        let taken = device.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = taken.map_err(|_| Code::OUT_OF_MEMORY)?;
        shared_device::tell(before + length);
        let place = if exportable { file_place(length) } else { device_place(device, length) };
        match place {
            Some(place) => {
                let physical = Physical::keep(device, place, length);
                physical.spoil();
                Ok(physical)
            }
            None => {
                give_back(device, length);
                Err(Code::OUT_OF_MEMORY)
            }
        }
    }

    fn keep(device: &Device, place: Place, length: u64) -> Arc<Physical> {
        let physical =
            Arc::new(Physical { place, length, saved: Mutex::default(), before: Mutex::default() });
        let mut all = device.all.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&physical));
        physical
    }

    /// What is new is not zero: "the memory is not cleared" (cuMemAlloc).
    fn spoil(&self) {
        let some = self.length.min(SPOILT) as usize;
        raw::write(self.shadow(), &vec![0xa5; some]);
    }

    /// What another process has exported. It is the exporter's memory: it is not counted here.
    pub fn import(file: OwnedFd) -> Answer<Arc<Physical>> {
        let device = device()?;
        let length = system::length_of(&file).map_err(|_| Code::INVALID_VALUE)?;
        if length == 0 || !length.is_multiple_of(GRANULARITY) {
            return Err(Code::INVALID_VALUE);
        }
        let at = system::map_file(&file, length).map_err(|_| Code::INVALID_VALUE)?;
        let place = Place::File { file: Mutex::new(Some(file)), at: AtomicU64::new(at), imported: true };
        Ok(Physical::keep(device, place, length))
    }

    /// A descriptor of it for another process.
    pub fn export(&self) -> Answer<OwnedFd> {
        let Place::File { file, .. } = &self.place else { return Err(Code::INVALID_VALUE) };
        let file = file.lock();
        file.as_ref().and_then(|file| file.try_clone().ok()).ok_or(Code::OPERATING_SYSTEM)
    }

    /// Where its bytes are in this process.
    pub fn shadow(&self) -> u64 {
        match &self.place {
            Place::Device { offset } => DEVICE.get().map_or(0, |d| d.at.load(Ordering::Acquire)) + offset,
            Place::File { at, .. } => at.load(Ordering::Acquire),
        }
    }

    fn detach(&self) -> io::Result<()> {
        let mut place = self.saved.lock();
        if place.is_none() {
            *place = Some(Saved { at: system::map_pages(self.length)?, length: self.length, holds: false });
        }
        if let Some(saved) = place.as_mut() {
            raw::copy(saved.at, self.shadow(), self.length);
            saved.holds = true;
        }
        if let Place::File { file, at, .. } = &self.place {
            system::unmap(at.swap(0, Ordering::AcqRel), self.length);
            *file.lock() = None;
        }
        Ok(())
    }

    fn attach(&self, stale: bool) -> io::Result<()> {
        if let Place::File { file, at, .. } = &self.place {
            let new = system::memory_file(c"nvidia0", self.length)?;
            at.store(system::map_file(&new, self.length)?, Ordering::Release);
            *file.lock() = Some(new);
        }
        let mut place = self.saved.lock();
        if let Some(saved) = place.as_mut().filter(|saved| saved.holds) {
            saved.holds = false;
            let mut before = self.before.lock();
            match before.take().filter(|_| stale) {
                Some(wrong) => raw::write(self.shadow(), &wrong),
                None => raw::copy(self.shadow(), saved.at, self.length),
            }
            *before = settings().expects(Fault::StaleRestore).then(|| raw::read(saved.at, self.length));
        }
        Ok(())
    }
}

fn device_place(device: &Device, length: u64) -> Option<Place> {
    device.free.lock().take(length).map(|offset| Place::Device { offset })
}

fn file_place(length: u64) -> Option<Place> {
    let file = system::memory_file(c"nvidia0", length).ok()?;
    let at = system::map_file(&file, length).ok()?;
    Some(Place::File { file: Mutex::new(Some(file)), at: AtomicU64::new(at), imported: false })
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Some(device) = DEVICE.get() else { return };
        let counted = match &self.place {
            Place::Device { offset } => {
                device.free.lock().give(*offset, self.length);
                true
            }
            Place::File { at, imported, .. } => {
                let at = at.load(Ordering::Acquire);
                if at != 0 {
                    system::unmap(at, self.length);
                }
                !imported
            }
        };
        if counted {
            give_back(device, self.length);
        }
    }
}

fn everything(device: &Device) -> Vec<Arc<Physical>> {
    device.all.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Moves all bytes into private memory; then neither file nor mapping of the device is left. `keep` leaves the
/// addresses of the mapping reserved.
pub fn detach(keep: bool) -> Answer {
    let device = device()?;
    for physical in everything(device) {
        physical.detach().map_err(|_| Code::OPERATING_SYSTEM)?;
    }
    let at = device.at.load(Ordering::Acquire);
    if keep {
        system::reserve_over(at, device.length).map_err(|_| Code::OPERATING_SYSTEM)?;
    } else {
        system::unmap(at, device.length);
    }
    *device.file.lock() = None;
    shared_device::tell(0);
    Ok(())
}

/// The other way, on a device of `total` bytes: at the same addresses, or not at all.
pub fn attach(total: u64) -> Answer {
    let device = device()?;
    let used = used()?;
    if used > total {
        return Err(Code::OUT_OF_MEMORY);
    }
    let failed = |_| Code::OPERATING_SYSTEM;
    let file = system::memory_file(c"nvidia0", device.length).map_err(failed)?;
    system::map_file_over(&file, device.at.load(Ordering::Acquire), device.length).map_err(failed)?;
    *device.file.lock() = Some(file);
    let stale = settings().strikes(Fault::StaleRestore);
    for physical in everything(device) {
        physical.attach(stale).map_err(failed)?;
    }
    device.total.store(total.min(device.length), Ordering::Relaxed);
    shared_device::tell(used);
    Ok(())
}
