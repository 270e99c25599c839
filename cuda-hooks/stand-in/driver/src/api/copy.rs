//! Copies and fills. When a call returns is as in "API synchronization behavior" of the driver's documentation:
//!
//! | from, to | synchronous call | asynchronous call |
//! | --- | --- | --- |
//! | pageable, device | bytes are taken, then returns: they may not be there yet | the same |
//! | pinned, device | returns when it is done | returns at once |
//! | device, pageable | returns when it is done | "will return only once the copy has completed" |
//! | device, pinned | returns when it is done | returns at once |
//! | device, device | "no host-side synchronization is performed" | the same |
//! | host, host | returns when it is done | the same for pageable memory |

use std::sync::Arc;

use crate::array::ARRAYS;
use crate::code::{Answer, Code};
use crate::command::Command;
use crate::layout::{Copy2D, Copy3D};
use crate::ledger;
use crate::memory::copy::{Copy, Fill, Side};
use crate::memory::space::{self, Access, Backing};
use crate::pointer::In;
use crate::submit::{self, Target};

/// Where an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Pinned,
    Pageable,
}

fn place(address: u64) -> Answer<Place> {
    match space::mapping(address) {
        Some((_, mapping)) if matches!(mapping.backing, Backing::Host) => Ok(Place::Pinned),
        Some(_) => Ok(Place::Device),
        None if space::is_reserved(address) || address == 0 => Err(Code::INVALID_VALUE),
        None => Ok(Place::Pageable),
    }
}

/// What a side must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Device,
    Any,
}

fn checked(copy: &Copy, side: Side, wanted: Wanted, access: Access) -> Answer<Place> {
    let place = place(side.at)?;
    if wanted == Wanted::Device && place == Place::Pageable {
        return Err(Code::INVALID_VALUE);
    }
    space::view().pieces(side.at, copy.extent(side)?, access).ok_or(Code::INVALID_VALUE)?;
    Ok(place)
}

/// When the call returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Synchronous,
    Asynchronous,
}

fn make(copy: Copy, wanted: (Wanted, Wanted), how: How, stream: usize) -> Answer {
    if copy.is_empty() {
        return submit::target(stream).map(drop);
    }
    let to = checked(&copy, copy.to, wanted.0, Access::Write)?;
    let from = checked(&copy, copy.from, wanted.1, Access::Read)?;
    let target = submit::target(stream)?;
    if target.is_captured() && how == How::Asynchronous {
        return target.put(Command::Copy(copy)).map(drop);
    }
    if (from == Place::Device) != (to == Place::Device) {
        let pinned = from == Place::Pinned || to == Place::Pinned;
        ledger::copied(copy.bytes(), pinned, how == How::Synchronous);
    }
    match (from, to) {
        (Place::Pageable, Place::Device) => {
            if how == How::Synchronous {
                target.run(Command::Nothing)?;
            }
            let (staged, bytes) = copy.staged(&space::view())?;
            target.put(Command::Staged(staged, Arc::new(bytes))).map(drop)
        }
        (Place::Device, Place::Device) => target.put(Command::Copy(copy)).map(drop),
        (Place::Pageable, _) | (_, Place::Pageable) => target.run(Command::Copy(copy)),
        _ if how == How::Synchronous => target.run(Command::Copy(copy)),
        _ => target.put(Command::Copy(copy)).map(drop),
    }
}

use How::{Asynchronous, Synchronous};
const ANY: (Wanted, Wanted) = (Wanted::Any, Wanted::Any);
const TO_DEVICE: (Wanted, Wanted) = (Wanted::Device, Wanted::Any);
const TO_HOST: (Wanted, Wanted) = (Wanted::Any, Wanted::Device);
const DEVICE: (Wanted, Wanted) = (Wanted::Device, Wanted::Device);

fn flat(to: u64, from: u64, bytes: usize) -> Copy {
    Copy::flat(to, from, bytes as u64)
}

pub fn any(to: u64, from: u64, bytes: usize) -> Answer {
    make(flat(to, from, bytes), ANY, Synchronous, 0)
}

pub fn any_async(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    make(flat(to, from, bytes), ANY, Asynchronous, stream)
}

pub fn to_device(to: u64, from: u64, bytes: usize) -> Answer {
    make(flat(to, from, bytes), TO_DEVICE, Synchronous, 0)
}

pub fn to_device_async(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    make(flat(to, from, bytes), TO_DEVICE, Asynchronous, stream)
}

pub fn to_host(to: u64, from: u64, bytes: usize) -> Answer {
    make(flat(to, from, bytes), TO_HOST, Synchronous, 0)
}

pub fn to_host_async(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    make(flat(to, from, bytes), TO_HOST, Asynchronous, stream)
}

pub fn device_to_device(to: u64, from: u64, bytes: usize) -> Answer {
    make(flat(to, from, bytes), DEVICE, Synchronous, 0)
}

pub fn device_to_device_async(to: u64, from: u64, bytes: usize, stream: usize) -> Answer {
    make(flat(to, from, bytes), DEVICE, Asynchronous, stream)
}

pub fn peer(to: u64, _to_context: usize, from: u64, _from_context: usize, bytes: usize) -> Answer {
    device_to_device(to, from, bytes)
}

pub fn peer_async(
    to: u64,
    _to_context: usize,
    from: u64,
    _from_context: usize,
    bytes: usize,
    stream: usize,
) -> Answer {
    device_to_device_async(to, from, bytes, stream)
}

/// What a structure says of one side.
struct Described {
    kind: u32,
    host: u64,
    device: u64,
    array: usize,
    place: [u64; 3],
    pitch: u64,
    rows: u64,
}

impl Described {
    /// `CUmemorytype`: host, device, array, unified. Pitches of arrays are their own.
    fn side(&self, size: [u64; 3]) -> Answer<(Side, Wanted)> {
        let (base, wanted) = match self.kind {
            1 => (self.host, Wanted::Any),
            2 => (self.device, Wanted::Device),
            3 => return Ok((ARRAYS.get(self.array)?.side(self.place, size)?, Wanted::Device)),
            4 => (self.device, Wanted::Any),
            _ => return Err(Code::INVALID_VALUE),
        };
        let pitch = if self.pitch == 0 { size[0] } else { self.pitch };
        // "... must be greater than or equal to WidthInBytes + XInBytes"
        let row = self.place[0].checked_add(size[0]).ok_or(Code::INVALID_VALUE)?;
        if (size[1] > 1 || size[2] > 1) && row > pitch {
            return Err(Code::INVALID_VALUE);
        }
        let plane = pitch.checked_mul(if self.rows == 0 { size[1] } else { self.rows });
        let at = plane.and_then(|plane| {
            let offset = self.place[2].checked_mul(plane)?.checked_add(self.place[1].checked_mul(pitch)?)?;
            Some((base.checked_add(offset)?.checked_add(self.place[0])?, plane))
        });
        let (at, plane) = at.ok_or(Code::INVALID_VALUE)?;
        Ok((Side { at, pitch, plane }, wanted))
    }
}

fn described(to: &Described, from: &Described, size: [u64; 3]) -> Answer<(Copy, (Wanted, Wanted))> {
    let ((to, to_wanted), (from, from_wanted)) = (to.side(size)?, from.side(size)?);
    let [width, height, depth] = size;
    Ok((Copy { to, from, width, height, depth }, (to_wanted, from_wanted)))
}

fn of_2d(it: &Copy2D) -> Answer<(Copy, (Wanted, Wanted))> {
    let to = Described {
        kind: it.to_kind,
        host: it.to_host,
        device: it.to_device,
        array: it.to_array as usize,
        place: [it.to_x, it.to_y, 0],
        pitch: it.to_pitch,
        rows: 0,
    };
    let from = Described {
        kind: it.from_kind,
        host: it.from_host,
        device: it.from_device,
        array: it.from_array as usize,
        place: [it.from_x, it.from_y, 0],
        pitch: it.from_pitch,
        rows: 0,
    };
    described(&to, &from, [it.width, it.height, 1])
}

fn three_of(it: &Copy3D) -> Answer<(Copy, (Wanted, Wanted))> {
    let to = Described {
        kind: it.to_kind,
        host: it.to_host,
        device: it.to_device,
        array: it.to_array as usize,
        place: it.to_place,
        pitch: it.to_pitch,
        rows: it.to_height,
    };
    let from = Described {
        kind: it.from_kind,
        host: it.from_host,
        device: it.from_device,
        array: it.from_array as usize,
        place: it.from_place,
        pitch: it.from_pitch,
        rows: it.from_height,
    };
    described(&to, &from, [it.width, it.height, it.depth])
}

/// A copy of three dimensions, as a node of a graph has it.
pub fn of_3d(it: &Copy3D) -> Answer<Copy> {
    three_of(it).map(|(copy, _)| copy)
}

pub fn two(parameters: In<Copy2D>) -> Answer {
    let (copy, wanted) = of_2d(&parameters.get()?)?;
    make(copy, wanted, Synchronous, 0)
}

pub fn two_async(parameters: In<Copy2D>, stream: usize) -> Answer {
    let (copy, wanted) = of_2d(&parameters.get()?)?;
    make(copy, wanted, Asynchronous, stream)
}

pub fn three(parameters: In<Copy3D>) -> Answer {
    let (copy, wanted) = three_of(&parameters.get()?)?;
    make(copy, wanted, Synchronous, 0)
}

pub fn three_async(parameters: In<Copy3D>, stream: usize) -> Answer {
    let (copy, wanted) = three_of(&parameters.get()?)?;
    make(copy, wanted, Asynchronous, stream)
}

fn array(handle: usize, offset: usize, bytes: usize) -> Answer<u64> {
    ARRAYS.get(handle)?.bytes(offset as u64, bytes as u64)
}

pub fn device_to_array(to: usize, offset: usize, from: u64, bytes: usize) -> Answer {
    device_to_device(array(to, offset, bytes)?, from, bytes)
}

pub fn array_to_device(to: u64, from: usize, offset: usize, bytes: usize) -> Answer {
    device_to_device(to, array(from, offset, bytes)?, bytes)
}

pub fn host_to_array(to: usize, offset: usize, from: u64, bytes: usize) -> Answer {
    to_device(array(to, offset, bytes)?, from, bytes)
}

pub fn array_to_host(to: u64, from: usize, offset: usize, bytes: usize) -> Answer {
    to_host(to, array(from, offset, bytes)?, bytes)
}

pub fn array_to_array(to: usize, to_offset: usize, from: usize, offset: usize, bytes: usize) -> Answer {
    device_to_device(array(to, to_offset, bytes)?, array(from, offset, bytes)?, bytes)
}

pub fn host_to_array_async(to: usize, offset: usize, from: u64, bytes: usize, stream: usize) -> Answer {
    to_device_async(array(to, offset, bytes)?, from, bytes, stream)
}

pub fn array_to_host_async(to: u64, from: usize, offset: usize, bytes: usize, stream: usize) -> Answer {
    to_host_async(to, array(from, offset, bytes)?, bytes, stream)
}

/// Copies of a batch have no order among each other ("the copies ... may be executed in any order"); attributes are
/// hints. "hStream must not be the legacy NULL stream."
pub fn batch(to: In<u64>, from: In<u64>, sizes: In<usize>, count: usize, stream: usize) -> Answer {
    if stream == 0 || count == 0 {
        return Err(Code::INVALID_VALUE);
    }
    (0..count).try_for_each(|n| any_async(to.at(n)?, from.at(n)?, sizes.at(n)?, stream))
}

fn fill(target: &Target, fill: Fill, how: How) -> Answer {
    if !fill.at.is_multiple_of(fill.bytes.into()) {
        return Err(Code::INVALID_VALUE);
    }
    if fill.width == 0 || fill.height == 0 {
        return Ok(());
    }
    let row = fill.width.checked_mul(fill.bytes.into()).ok_or(Code::INVALID_VALUE)?;
    let whole = Copy { width: row, height: fill.height, ..Copy::flat(fill.at, fill.at, row) };
    let side = Side { at: fill.at, pitch: fill.pitch, plane: 0 };
    let place = checked(&whole, side, Wanted::Device, Access::Write)?;
    // "asynchronous with respect to the host except when the target is pinned host memory"
    if how == Synchronous && place == Place::Pinned {
        return target.run(Command::Fill(fill));
    }
    target.put(Command::Fill(fill)).map(drop)
}

/// A fill as a node of a graph has it.
pub fn checked_fill(of: Fill) -> Answer<Command> {
    if ![1, 2, 4].contains(&of.bytes) || !of.at.is_multiple_of(of.bytes.into()) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Command::Fill(of))
}

fn filled(to: u64, value: u32, bytes: u32, count: usize) -> Fill {
    Fill { at: to, pitch: 0, value, bytes, width: count as u64, height: 1 }
}

pub fn fill_8(to: u64, value: u8, count: usize) -> Answer {
    fill(&submit::target(0)?, filled(to, value.into(), 1, count), Synchronous)
}

pub fn fill_16(to: u64, value: u16, count: usize) -> Answer {
    fill(&submit::target(0)?, filled(to, value.into(), 2, count), Synchronous)
}

pub fn fill_32(to: u64, value: u32, count: usize) -> Answer {
    fill(&submit::target(0)?, filled(to, value, 4, count), Synchronous)
}

pub fn fill_8_async(to: u64, value: u8, count: usize, stream: usize) -> Answer {
    fill(&submit::target(stream)?, filled(to, value.into(), 1, count), Asynchronous)
}

pub fn fill_16_async(to: u64, value: u16, count: usize, stream: usize) -> Answer {
    fill(&submit::target(stream)?, filled(to, value.into(), 2, count), Asynchronous)
}

pub fn fill_32_async(to: u64, value: u32, count: usize, stream: usize) -> Answer {
    fill(&submit::target(stream)?, filled(to, value, 4, count), Asynchronous)
}

fn rows(to: u64, pitch: usize, value: u32, bytes: u32, size: (usize, usize)) -> Fill {
    Fill { at: to, pitch: pitch as u64, value, bytes, width: size.0 as u64, height: size.1 as u64 }
}

pub fn fill_2d_8(to: u64, pitch: usize, value: u8, width: usize, height: usize) -> Answer {
    fill(&submit::target(0)?, rows(to, pitch, value.into(), 1, (width, height)), Synchronous)
}

pub fn fill_2d_16(to: u64, pitch: usize, value: u16, width: usize, height: usize) -> Answer {
    fill(&submit::target(0)?, rows(to, pitch, value.into(), 2, (width, height)), Synchronous)
}

pub fn fill_2d_32(to: u64, pitch: usize, value: u32, width: usize, height: usize) -> Answer {
    fill(&submit::target(0)?, rows(to, pitch, value, 4, (width, height)), Synchronous)
}

pub fn fill_2d_8_async(
    to: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: usize,
) -> Answer {
    fill(&submit::target(stream)?, rows(to, pitch, value.into(), 1, (width, height)), Asynchronous)
}

pub fn fill_2d_16_async(
    to: u64,
    pitch: usize,
    value: u16,
    width: usize,
    height: usize,
    stream: usize,
) -> Answer {
    fill(&submit::target(stream)?, rows(to, pitch, value.into(), 2, (width, height)), Asynchronous)
}

pub fn fill_2d_32_async(
    to: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: usize,
) -> Answer {
    fill(&submit::target(stream)?, rows(to, pitch, value, 4, (width, height)), Asynchronous)
}
