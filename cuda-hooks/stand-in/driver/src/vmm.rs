//! Virtual memory management: physical memory with handles, addresses without memory, and what is shared with other
//! processes. Used by `api::vmm`, `api::shared`, `checkpoint`.
//!
//! Invariants: memory lives as long as a handle or a mapping ("the memory will be freed when all outstanding mappings
//! to the memory are unmapped and when all outstanding references to the handle are also released", cuMemRelease).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::code::{Answer, Code};
use crate::layout::AllocationProperties;
use crate::memory::physical::{GRANULARITY, Physical};
use crate::memory::space::{self, Backing};

/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
pub const DESCRIPTOR: u32 = 1;

struct Object {
    properties: AllocationProperties,
    memory: Weak<Physical>,
    held: Option<Arc<Physical>>,
    references: u64,
    shared: bool,
}

#[derive(Default)]
struct All {
    next: u64,
    objects: BTreeMap<u64, Object>,
    ranges: BTreeMap<u64, u64>,
    multicast: BTreeSet<u64>,
    ipc: bool,
}

static ALL: Mutex<All> = Mutex::new(All {
    next: 0,
    objects: BTreeMap::new(),
    ranges: BTreeMap::new(),
    multicast: BTreeSet::new(),
    ipc: false,
});

impl All {
    fn number(&mut self) -> u64 {
        self.next += 1;
        // handles of one kind are not taken for those of another, nor for pointers
        0x5000_0000_0000 + self.next * 16
    }

    fn object(&mut self, handle: u64) -> Answer<&mut Object> {
        self.objects.get_mut(&handle).filter(|it| it.references > 0).ok_or(Code::INVALID_VALUE)
    }

    fn of_memory(&mut self, memory: &Arc<Physical>) -> Option<(u64, &mut Object)> {
        let same = |it: &Object| it.memory.as_ptr() == Arc::as_ptr(memory);
        self.objects.iter_mut().find(|(_, it)| same(it)).map(|(&handle, it)| (handle, it))
    }
}

fn keep(memory: Arc<Physical>, properties: AllocationProperties, shared: bool) -> u64 {
    let mut all = ALL.lock();
    all.objects.retain(|_, it| it.references > 0 || it.memory.strong_count() > 0);
    let handle = all.number();
    let weak = Arc::downgrade(&memory);
    all.objects
        .insert(handle, Object { properties, memory: weak, held: Some(memory), references: 1, shared });
    handle
}

/// Physical memory.
pub fn create(size: u64, properties: AllocationProperties) -> Answer<u64> {
    if size == 0 || !size.is_multiple_of(GRANULARITY) {
        return Err(Code::INVALID_VALUE);
    }
    let exportable = properties.handle_types & DESCRIPTOR != 0;
    let memory = if exportable { Physical::exportable(size)? } else { Physical::new(size)? };
    Ok(keep(memory, properties, false))
}

/// One reference less.
pub fn release(handle: u64) -> Answer {
    let gone = {
        let mut all = ALL.lock();
        if all.multicast.remove(&handle) {
            return Ok(());
        }
        let object = all.object(handle)?;
        object.references -= 1;
        if object.references == 0 { object.held.take() } else { None }
    };
    drop(gone);
    Ok(())
}

/// The handle of what is mapped at an address, with one more reference.
pub fn retain(address: u64) -> Answer<u64> {
    let (_, mapping) = space::mapping(address).ok_or(Code::INVALID_VALUE)?;
    let Backing::Device { physical, .. } = mapping.backing else { return Err(Code::INVALID_VALUE) };
    let mut all = ALL.lock();
    let (handle, object) = all.of_memory(&physical).ok_or(Code::INVALID_VALUE)?;
    object.references += 1;
    object.held = Some(physical);
    Ok(handle)
}

/// The memory of a handle.
pub fn memory(handle: u64) -> Answer<Arc<Physical>> {
    ALL.lock().object(handle)?.held.clone().ok_or(Code::INVALID_VALUE)
}

/// What it was made with.
pub fn properties(handle: u64) -> Answer<AllocationProperties> {
    ALL.lock().object(handle).map(|object| object.properties)
}

/// A descriptor for another process.
pub fn export(handle: u64) -> Answer<std::os::fd::OwnedFd> {
    let memory = {
        let mut all = ALL.lock();
        let object = all.object(handle)?;
        if object.properties.handle_types & DESCRIPTOR == 0 {
            return Err(Code::INVALID_VALUE);
        }
        object.shared = true;
        object.held.clone().ok_or(Code::INVALID_VALUE)?
    };
    memory.export()
}

/// What another process has exported.
pub fn import(file: std::os::fd::OwnedFd, properties: AllocationProperties) -> Answer<u64> {
    Ok(keep(Physical::import(file)?, properties, true))
}

/// Addresses for the program to map at.
pub fn reserve(size: u64, alignment: u64, near: u64) -> Answer<u64> {
    let at = space::reserve(size, alignment, near)?;
    ALL.lock().ranges.insert(at, size);
    Ok(at)
}

/// The other way; nothing may be mapped there.
pub fn free(at: u64, size: u64) -> Answer {
    let mut all = ALL.lock();
    if all.ranges.get(&at) != Some(&size) {
        return Err(Code::INVALID_VALUE);
    }
    space::release(at, size)?;
    all.ranges.remove(&at);
    Ok(())
}

/// An address is of a range that the program has reserved.
pub fn is_vmm(address: u64) -> bool {
    covers(address, 1)
}

/// A whole range is.
pub fn covers(address: u64, length: u64) -> bool {
    let all = ALL.lock();
    let Some((&at, &size)) = all.ranges.range(..=address).next_back() else { return false };
    address - at < size && size - (address - at) >= length
}

/// Process-wide number of a mapping.
pub fn id_of(address: u64) -> u64 {
    space::mapping(address).map_or(0, |(at, _)| at)
}

/// As what the memory at an address can be exported.
pub fn handle_types(address: u64) -> u64 {
    let Some((_, mapping)) = space::mapping(address) else { return 0 };
    let Backing::Device { physical, .. } = mapping.backing else { return 0 };
    ALL.lock().of_memory(&physical).map_or(0, |(_, it)| it.properties.handle_types.into())
}

/// A multicast object.
pub fn make_multicast() -> u64 {
    let mut all = ALL.lock();
    let handle = all.number();
    all.multicast.insert(handle);
    handle
}

/// It is one.
pub fn is_multicast(handle: u64) -> bool {
    ALL.lock().multicast.contains(&handle)
}

/// There is one, bound or not.
pub fn has_multicast() -> bool {
    !ALL.lock().multicast.is_empty()
}

/// Memory was given to other processes by cuIpcGetMemHandle.
pub fn used_ipc() {
    ALL.lock().ipc = true;
}

/// Anything is shared with another process, or was imported from one.
pub fn is_shared() -> bool {
    let all = ALL.lock();
    all.ipc || all.objects.values().any(|it| it.shared && it.memory.strong_count() > 0)
}
