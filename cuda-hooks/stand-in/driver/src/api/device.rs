//! `cuInit`, versions, errors, devices.

use parking_lot::Mutex;

use crate::checkpoint::{process, server};
use crate::code::{Answer, Code, describe};
use crate::device;
use crate::entrance;
use crate::memory::physical;
use crate::pointer::{Out, Text};
use crate::settings;
use crate::system;

static INIT: Mutex<()> = Mutex::new(());

extern "C" fn in_child() {
    entrance::forked();
}

pub fn init(flags: u32) -> Answer {
    let _one = INIT.lock();
    if flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    if entrance::is_forked() {
        return Err(Code::NOT_INITIALIZED);
    }
    if entrance::is_initialised() {
        return Ok(());
    }
    if let Err(wrong) = settings::read() {
        eprintln!("stand-in: {wrong}");
        return Err(Code::INVALID_VALUE);
    }
    let opened = physical::open().and_then(|()| process::open()).and_then(|()| server::start());
    opened.map_err(|_| Code::OPERATING_SYSTEM)?;
    system::at_fork(in_child);
    entrance::initialised();
    Ok(())
}

pub fn version(version: Out<i32>) -> Answer {
    version.put(settings::settings().version)
}

pub fn error_string(code: u32, text: Out<Text>) -> Answer {
    error(code, text, |row| row.1)
}

pub fn error_name(code: u32, text: Out<Text>) -> Answer {
    error(code, text, |row| row.0)
}

type Row = (&'static std::ffi::CStr, &'static std::ffi::CStr);

/// "If the error code is not recognized, CUDA_ERROR_INVALID_VALUE will be returned and *pStr will be set to NULL".
fn error(code: u32, text: Out<Text>, which: fn(Row) -> &'static std::ffi::CStr) -> Answer {
    match describe(code) {
        Some(row) => text.put(Text::of(which(row))),
        None => {
            text.put(Text::NULL)?;
            Err(Code::INVALID_VALUE)
        }
    }
}

pub fn count(count: Out<i32>) -> Answer {
    count.put(1)
}

pub fn get(device: Out<i32>, ordinal: i32) -> Answer {
    check(ordinal)?;
    device.put(ordinal)
}

/// The only device is number zero.
pub fn check(device: i32) -> Answer {
    if device == 0 { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}

pub fn name(name: Out<u8>, length: i32, device: i32) -> Answer {
    check(device)?;
    text(name, length, device::NAME)
}

pub fn pci_bus_id(name: Out<u8>, length: i32, device: i32) -> Answer {
    check(device)?;
    text(name, length, device::PCI)
}

fn text(to: Out<u8>, length: i32, text: &str) -> Answer {
    let length = usize::try_from(length).ok().filter(|&n| n > 0).ok_or(Code::INVALID_VALUE)?;
    let mut bytes: Vec<u8> = text.bytes().take(length - 1).collect();
    bytes.push(0);
    to.fill(&bytes)
}

pub fn by_pci_bus_id(device: Out<i32>, name: Text) -> Answer {
    let name = name.get()?;
    if !device::PCI.eq_ignore_ascii_case(&name) && !device::PCI[5..].eq_ignore_ascii_case(&name) {
        return Err(Code::INVALID_DEVICE);
    }
    device.put(0)
}

pub fn uuid(uuid: Out<[u8; 16]>, device: i32) -> Answer {
    check(device)?;
    uuid.put(device::uuid())
}

pub fn total_memory(bytes: Out<usize>, device: i32) -> Answer {
    check(device)?;
    bytes.put(physical::information()?.1 as usize)
}

pub fn attribute(value: Out<i32>, attribute: u32, device: i32) -> Answer {
    check(device)?;
    value.put(device::attribute(attribute).ok_or(Code::INVALID_VALUE)?)
}

pub fn compute_capability(major: Out<i32>, minor: Out<i32>, device: i32) -> Answer {
    check(device)?;
    major.put(9)?;
    minor.put(0)
}

pub fn can_access_peer(can: Out<i32>, device: i32, peer: i32) -> Answer {
    check(device)?;
    check(peer)?;
    can.put(0)
}
