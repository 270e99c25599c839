//! Virtual memory management.

use std::os::fd::IntoRawFd;

use crate::code::{Answer, Code};
use crate::layout::{AccessDescription, AllocationProperties, Location};
use crate::memory::physical::GRANULARITY;
use crate::memory::space::{self, Access, Backing, Mapping};
use crate::pointer::{In, Out};
use crate::system;
use crate::vmm::{self, DESCRIPTOR};

/// Memory of the device, pinned: CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE.
fn check(properties: &AllocationProperties) -> Answer {
    if properties.kind != 1 {
        return Err(Code::INVALID_VALUE);
    }
    match properties.location {
        Location { kind: 1, id: 0 } => {}
        Location { kind: 1, .. } => return Err(Code::INVALID_DEVICE),
        Location { kind: 2..=4, .. } => return Err(Code::NOT_SUPPORTED),
        Location { .. } => return Err(Code::INVALID_VALUE),
    }
    if properties.handle_types & !DESCRIPTOR != 0 { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
}

pub fn granularity(granularity: Out<usize>, properties: In<AllocationProperties>, which: u32) -> Answer {
    check(&properties.get()?)?;
    if which > 1 {
        return Err(Code::INVALID_VALUE);
    }
    granularity.put(GRANULARITY as usize)
}

/// "alignment must be a power of two"; the address is a wish. Sizes that are no multiple of the granularity are
/// CUDA_ERROR_INVALID_VALUE.
pub fn reserve(at: Out<u64>, size: usize, alignment: usize, near: u64, flags: u64) -> Answer {
    at.require()?;
    let (size, alignment) = (size as u64, alignment as u64);
    let odd = alignment != 0 && !alignment.is_power_of_two();
    if size == 0 || !size.is_multiple_of(GRANULARITY) || odd || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    at.put(vmm::reserve(size, alignment.max(GRANULARITY), near)?)
}

pub fn free_range(at: u64, size: usize) -> Answer {
    vmm::free(at, size as u64)
}

pub fn create(handle: Out<u64>, size: usize, properties: In<AllocationProperties>, flags: u64) -> Answer {
    handle.require()?;
    let properties = properties.get()?;
    check(&properties)?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    handle.put(vmm::create(size as u64, properties)?)
}

pub fn release(handle: u64) -> Answer {
    vmm::release(handle)
}

pub fn retain(handle: Out<u64>, at: u64) -> Answer {
    handle.require()?;
    handle.put(vmm::retain(at)?)
}

pub fn properties(properties: Out<AllocationProperties>, handle: u64) -> Answer {
    properties.put(vmm::properties(handle)?)
}

/// "offset ... currently must be zero"; both address and size are multiples of the granularity. What is mapped cannot
/// be accessed before cuMemSetAccess.
pub fn map(at: u64, size: usize, offset: usize, handle: u64, flags: u64) -> Answer {
    let size = size as u64;
    let whole = at.is_multiple_of(GRANULARITY) && size.is_multiple_of(GRANULARITY) && size > 0;
    if !whole || flags != 0 || !vmm::covers(at, size) {
        return Err(Code::INVALID_VALUE);
    }
    // 801 on an H200 with driver 580.159.04
    if vmm::is_multicast(handle) || offset != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let physical = vmm::memory(handle)?;
    // 801 on an H200 with driver 580.159.04
    if size > physical.length {
        return Err(Code::NOT_SUPPORTED);
    }
    let backing = Backing::Device { physical, offset: 0 };
    space::map(at, Mapping { length: size, backing, access: Access::None })
}

/// "The range ... must contain ... whole mappings": one that is cut is CUDA_ERROR_INVALID_VALUE.
pub fn unmap(at: u64, size: usize) -> Answer {
    if !vmm::covers(at, size as u64) {
        return Err(Code::INVALID_VALUE);
    }
    // 0 on an H200 with driver 580.159.04
    if !space::overlaps(at, size as u64) {
        return Ok(());
    }
    let starts = space::within(at, size as u64).ok_or(Code::INVALID_VALUE)?;
    starts.into_iter().for_each(|start| drop(space::unmap(start)));
    Ok(())
}

pub fn set_access(at: u64, size: usize, descriptions: In<AccessDescription>, count: usize) -> Answer {
    let starts = space::within(at, size as u64).ok_or(Code::INVALID_VALUE)?;
    if !vmm::covers(at, size as u64) || count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    for description in descriptions.list(count)? {
        if description.location != (Location { kind: 1, id: 0 }) {
            return Err(Code::INVALID_DEVICE);
        }
        let access = match description.flags {
            0 => Access::None,
            1 => Access::Read,
            3 => Access::Write,
            _ => return Err(Code::INVALID_VALUE),
        };
        space::set_access(&starts, access);
    }
    Ok(())
}

pub fn get_access(flags: Out<u64>, location: In<Location>, at: u64) -> Answer {
    if location.get()? != (Location { kind: 1, id: 0 }) {
        return Err(Code::INVALID_DEVICE);
    }
    let (_, mapping) = space::mapping(at).filter(|_| vmm::is_vmm(at)).ok_or(Code::INVALID_VALUE)?;
    flags.put(mapping.access as u64)
}

pub fn export(to: Out<i32>, handle: u64, kind: u32, flags: u64) -> Answer {
    to.require()?;
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if kind != DESCRIPTOR {
        return Err(Code::NOT_SUPPORTED);
    }
    to.put(vmm::export(handle)?.into_raw_fd())
}

/// The descriptor comes as the pointer itself; it stays the caller's.
pub fn import(handle: Out<u64>, from: usize, kind: u32) -> Answer {
    handle.require()?;
    if kind != DESCRIPTOR {
        return Err(Code::NOT_SUPPORTED);
    }
    let fd = i32::try_from(from).map_err(|_| Code::INVALID_VALUE)?;
    let file = system::duplicate(fd).map_err(|_| Code::INVALID_VALUE)?;
    let location = Location { kind: 1, id: 0 };
    let properties =
        AllocationProperties { kind: 1, handle_types: DESCRIPTOR, location, windows: 0, flags: [0; 8] };
    handle.put(vmm::import(file, properties)?)
}
