//! Linear memory of the device, and what pointers are of.

use crate::code::{Answer, Code};
use crate::context::{self, CONTEXTS};
use crate::memory::heap::{self, Allocation, Kind};
use crate::memory::physical;
use crate::memory::space::{self, Backing};
use crate::pointer::{In, Out};
use crate::{capture, graph_memory, vmm};

pub fn information(free: Out<usize>, total: Out<usize>) -> Answer {
    context::current()?;
    let (left, all) = physical::information()?;
    free.put(left as usize)?;
    total.put(all as usize)
}

pub fn allocate(pointer: Out<u64>, size: usize) -> Answer {
    let context = context::current()?;
    pointer.require()?;
    capture::forbid_unsafe()?;
    pointer.put(heap::allocate(size as u64, Kind::Linear { pool: 0 }, context.handle())?)
}

/// Rows at multiples of 512 bytes (observed: CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT of today's devices).
pub fn allocate_pitch(
    pointer: Out<u64>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Answer {
    pitch.require()?;
    if ![4, 8, 16].contains(&element) || width == 0 || height == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(Code::OUT_OF_MEMORY)?;
    allocate(pointer, row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?)?;
    pitch.put(row)
}

/// Waits for the device first: all streams of the context, as today's drivers do. Freeing the null pointer does
/// nothing.
pub fn free(pointer: u64) -> Answer {
    if pointer == 0 {
        return Ok(());
    }
    capture::forbid_unsafe()?;
    if let Some(memory) = graph_memory::allocated(pointer) {
        let state = context::current()?.synchronize();
        memory.will_be(false);
        return memory.give().and(state);
    }
    let linear = |kind| matches!(kind, Kind::Linear { .. } | Kind::Managed);
    let it =
        heap::find(pointer).filter(|it| it.base == pointer && linear(it.kind)).ok_or(Code::INVALID_VALUE)?;
    let state = CONTEXTS.get(it.context).map_or(Ok(()), |context| context.synchronize());
    heap::free(heap::forget(pointer, linear)?);
    state
}

pub fn address_range(base: Out<u64>, size: Out<usize>, pointer: u64) -> Answer {
    // "CUDA_ERROR_NOT_FOUND" where it is no allocation (cuMemGetAddressRange)
    let (from, length) = range(pointer).ok_or(Code::NOT_FOUND)?;
    base.offer(from);
    size.offer(length as usize);
    Ok(())
}

fn range(pointer: u64) -> Option<(u64, u64)> {
    if let Some(it) = heap::find(pointer) {
        return Some((it.base, it.size));
    }
    space::mapping(pointer).filter(|_| vmm::is_vmm(pointer)).map(|(at, mapping)| (at, mapping.length))
}

pub fn allocate_managed(pointer: Out<u64>, size: usize, flags: u32) -> Answer {
    let context = context::current()?;
    pointer.require()?;
    // CU_MEM_ATTACH_GLOBAL, CU_MEM_ATTACH_HOST
    if flags != 1 && flags != 2 {
        return Err(Code::INVALID_VALUE);
    }
    pointer.put(heap::manage(size as u64, context.handle())?)
}

/// CU_POINTER_ATTRIBUTE_RANGE_START_ADDR.
const RANGE_START: u32 = 11;
/// CU_POINTER_ATTRIBUTE_RANGE_SIZE.
const RANGE_SIZE: u32 = 12;

/// One of `CUpointer_attribute`; types as its documentation gives them.
pub fn attribute(data: Out<u8>, attribute: u32, pointer: u64) -> Answer {
    data.require()?;
    attribute_of(pointer, attribute)?.write(data)
}

/// "If the pointer is not ... CUDA_ERROR_INVALID_VALUE is not returned: each attribute is given a default NULL value"
/// (cuPointerGetAttributes); start and size of a range stay as they are (driver 580.159.04).
pub fn attributes(count: u32, attributes: In<u32>, data: In<Out<u8>>, pointer: u64) -> Answer {
    for index in 0..count as usize {
        let (number, to) = (attributes.at(index)?, data.at(index)?);
        to.require()?;
        let unwritten = matches!(number, RANGE_START | RANGE_SIZE);
        match attribute_of(pointer, number) {
            Ok(value) => value.write(to)?,
            Err(_) if unwritten => {}
            Err(_) => Value::none(number).write(to)?,
        }
    }
    Ok(())
}

/// A value with the size that it has in memory.
enum Value {
    Byte(bool),
    Word(u32),
    Long(u64),
}

impl Value {
    fn write(self, to: Out<u8>) -> Answer {
        match self {
            Value::Byte(value) => to.put(value.into()),
            Value::Word(value) => to.cast().put(value),
            Value::Long(value) => to.cast().put(value),
        }
    }

    fn none(attribute: u32) -> Value {
        match attribute {
            2 => Value::Word(0),
            9 => Value::Word(-2i32 as u32),
            16 => Value::Word(0),
            6 | 8 | 10 | 13 | 15 => Value::Byte(false),
            _ => Value::Long(0),
        }
    }
}

fn attribute_of(pointer: u64, attribute: u32) -> Answer<Value> {
    let it = heap::find(pointer);
    let mapped = space::mapping(pointer);
    let reserved = space::reservation(pointer).filter(|_| vmm::is_vmm(pointer));
    if it.is_none() && mapped.is_none() && reserved.is_none() {
        return Err(Code::INVALID_VALUE);
    }
    if !(1..=21).contains(&attribute) || attribute == 5 {
        return Err(Code::INVALID_VALUE);
    }
    let on_host = it.is_some_and(|it| it.kind.on_host());
    let kind = |fits: fn(Kind) -> bool| it.is_some_and(|it| fits(it.kind));
    let (base, size) = range(pointer).or(reserved).unwrap_or((pointer, 0));
    Ok(match attribute {
        1 => Value::Long(it.map_or(0, |it| it.context as u64)),
        // CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
        2 => Value::Word(if on_host { 1 } else { 2 }),
        3 => Value::Long(pointer),
        4 if on_host || kind(|kind| kind == Kind::Managed) => Value::Long(pointer),
        4 => return Err(Code::INVALID_VALUE),
        7 => Value::Long(it.map_or_else(|| vmm::id_of(pointer), |it| it.id)),
        8 => Value::Byte(kind(|kind| kind == Kind::Managed)),
        9 => Value::Word(0),
        10 => Value::Byte(kind(|kind| matches!(kind, Kind::Linear { pool: 0 }))),
        RANGE_START => Value::Long(base),
        RANGE_SIZE => Value::Long(size),
        13 => Value::Byte(mapped.is_some()),
        14 => Value::Long(vmm::handle_types(pointer)),
        15 => Value::Byte(false),
        16 => Value::Word(mapped.map_or(0, |(_, mapping)| mapping.access as u32)),
        17 => Value::Long(pool_of(it)),
        18 => Value::Long(mapped.map_or(0, |(_, mapping)| mapping.length)),
        19 => Value::Long(mapped.map_or(0, |(at, _)| at)),
        20 => Value::Long(mapped.map_or(0, |(at, mapping)| block_id(at, &mapping.backing))),
        _ => Value::Byte(false),
    })
}

fn pool_of(it: Option<Allocation>) -> u64 {
    match it.map(|it| it.kind) {
        Some(Kind::Linear { pool }) => pool as u64,
        _ => 0,
    }
}

fn block_id(at: u64, backing: &Backing) -> u64 {
    match backing {
        Backing::Device { physical, .. } => std::sync::Arc::as_ptr(physical) as u64,
        Backing::Host => at,
    }
}

/// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS alone can be set.
pub fn set_attribute(value: In<u32>, attribute: u32, pointer: u64) -> Answer {
    value.get()?;
    heap::find(pointer).ok_or(Code::INVALID_VALUE)?;
    if attribute == 6 { Ok(()) } else { Err(Code::INVALID_VALUE) }
}
