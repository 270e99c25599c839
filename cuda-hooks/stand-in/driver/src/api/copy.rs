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

use crate::code::{Answer, Code};
use crate::command::Command;
use crate::layout::{Copy2D, Copy3D};
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

/// `CUmemorytype`: host, device, array, unified.
fn base(kind: u32, host: u64, device: u64) -> Answer<(u64, Wanted)> {
    match kind {
        1 => Ok((host, Wanted::Any)),
        2 => Ok((device, Wanted::Device)),
        4 => Ok((device, Wanted::Any)),
        // arrays are not made by the stand-in
        3 => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn of_2d(it: Copy2D) -> Answer<(Copy, (Wanted, Wanted))> {
    let (to, to_wanted) = base(it.to_kind, it.to_host, it.to_device)?;
    let (from, from_wanted) = base(it.from_kind, it.from_host, it.from_device)?;
    let pitch = |pitch: u64| if pitch == 0 { it.width } else { pitch };
    let side = |at: u64, x: u64, y: u64, row: u64| {
        let offset = y.checked_mul(row).and_then(|n| n.checked_add(x)).and_then(|n| n.checked_add(at));
        // "pitch ... must be greater than or equal to WidthInBytes + XInBytes"
        let fits = it.height <= 1 || x.checked_add(it.width).is_some_and(|n| n <= row);
        offset.filter(|_| fits).map(|at| Side { at, pitch: row, plane: 0 }).ok_or(Code::INVALID_VALUE)
    };
    let copy = Copy {
        to: side(to, it.to_x, it.to_y, pitch(it.to_pitch))?,
        from: side(from, it.from_x, it.from_y, pitch(it.from_pitch))?,
        width: it.width,
        height: it.height,
        depth: 1,
    };
    Ok((copy, (to_wanted, from_wanted)))
}

pub fn two(parameters: In<Copy2D>) -> Answer {
    let (copy, wanted) = of_2d(parameters.get()?)?;
    make(copy, wanted, Synchronous, 0)
}

pub fn two_async(parameters: In<Copy2D>, stream: usize) -> Answer {
    let (copy, wanted) = of_2d(parameters.get()?)?;
    make(copy, wanted, Asynchronous, stream)
}

/// A copy of three dimensions, as calls and nodes of graphs have it.
pub fn of_3d(it: &Copy3D) -> Answer<Copy> {
    three_of(it).map(|(copy, _)| copy)
}

fn three_of(it: &Copy3D) -> Answer<(Copy, (Wanted, Wanted))> {
    let (to, to_wanted) = base(it.to_kind, it.to_host, it.to_device)?;
    let (from, from_wanted) = base(it.from_kind, it.from_host, it.from_device)?;
    let side = |at: u64, place: [u64; 3], pitch: u64, rows: u64| {
        let pitch = if pitch == 0 { it.width } else { pitch };
        let plane = pitch.checked_mul(if rows == 0 { it.height } else { rows })?;
        let offset = place[2].checked_mul(plane)?.checked_add(place[1].checked_mul(pitch)?)?;
        Some(Side { at: at.checked_add(offset)?.checked_add(place[0])?, pitch, plane })
    };
    let copy = Copy {
        to: side(to, it.to_place, it.to_pitch, it.to_height).ok_or(Code::INVALID_VALUE)?,
        from: side(from, it.from_place, it.from_pitch, it.from_height).ok_or(Code::INVALID_VALUE)?,
        width: it.width,
        height: it.height,
        depth: it.depth,
    };
    Ok((copy, (to_wanted, from_wanted)))
}

pub fn three(parameters: In<Copy3D>) -> Answer {
    let (copy, wanted) = three_of(&parameters.get()?)?;
    make(copy, wanted, Synchronous, 0)
}

pub fn three_async(parameters: In<Copy3D>, stream: usize) -> Answer {
    let (copy, wanted) = three_of(&parameters.get()?)?;
    make(copy, wanted, Asynchronous, stream)
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
