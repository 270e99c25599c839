//! The tables of addresses, and what they make of one.
//!
//! Runs in: the host program, any thread, also in signal handlers and before constructors; [`start`] in the constructor
//! only. Invariants: see [`super`]. Fails by: leaving addresses as they are.
//!
//! # Safety
//! All accesses to the tables are to a static array of atomics, at places checked against its length.
#![allow(unsafe_code)]

use crate::message::Text;
use crate::{filters, shared, sys};
use core::ffi::{CStr, c_long};
use core::mem::size_of;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_abi::{AddressTable, SharedPage};
use holdfast_filters::Call;

/// An address of IPv6, or one of IPv4 as IPv6 has it, as two words in the order of the network.
type Address = (u64, u64);

/// The tables; the first word is [`AddressTable::COUNT`]. `ids.rs` names them from assembly, too.
pub static TABLE: Table = Table([const { AtomicU64::new(0) }; AddressTable::LEN / 8]);

/// See [`TABLE`].
#[repr(C, align(4096))]
pub struct Table([AtomicU64; AddressTable::LEN / 8]);

impl Table {
    /// Whether no address is another one.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.word(AddressTable::COUNT) == 0
    }

    /// A word, which the agent may have written while the program was stopped; 0 outside.
    pub fn word(&self, offset: usize) -> u64 {
        // SAFETY: a reference is valid for reads; volatile, and no data race, as in `shared::from_agent`.
        self.0.get(offset / 8).map_or(0, |word| unsafe { word.as_ptr().read_volatile() })
    }

    fn address(&self, offset: usize) -> Address {
        (self.word(offset).swap_bytes(), self.word(offset + 8).swap_bytes())
    }

    /// What a table makes of an address; `None`: it stays.
    fn look_up(&self, (count, entries): (usize, usize), wanted: Address) -> Option<Address> {
        let (mut from, mut to) = (0, (self.word(count) as usize).min(AddressTable::MAX));
        while from < to {
            let middle = from + (to - from) / 2;
            let entry = entries + middle * AddressTable::ENTRY;
            let found = self.address(entry);
            if found == wanted {
                return Some(self.address(entry + size_of::<[u8; 16]>()));
            }
            if found < wanted { from = middle + 1 } else { to = middle }
        }
        None
    }
}

/// Which way an address goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the program to the kernel.
    ToKernel,
    /// From the kernel to the program.
    ToProgram,
}

impl Way {
    fn of(self, address: Address) -> Option<Address> {
        TABLE.look_up(
            match self {
                Way::ToKernel => (AddressTable::COUNT, AddressTable::FORWARD),
                Way::ToProgram => (AddressTable::BACK_COUNT, AddressTable::BACKWARD),
            },
            address,
        )
    }
}

/// The first words of `::ffff:a.b.c.d`.
const MAPPED: u64 = 0xffff_0000_0000;

/// Translates a struct sockaddr in place; whether anything has changed. What is too short for its family is left alone.
pub fn translate(name: &mut [u8], way: Way) -> bool {
    let Some((family, _)) = name.split_first_chunk::<2>() else { return false };
    match i32::from(u16::from_ne_bytes(*family)) {
        // struct sockaddr_in: family, port, address; struct sockaddr_in6: family, port, flow, address.
        libc::AF_INET => four(name.get_mut(4..8), way),
        libc::AF_INET6 => six(name.get_mut(8..24), way),
        _ => false,
    }
}

fn four(bytes: Option<&mut [u8]>, way: Way) -> bool {
    let Some(place) = bytes.and_then(|bytes| <&mut [u8; 4]>::try_from(bytes).ok()) else { return false };
    let known = (0, MAPPED | u64::from(u32::from_be_bytes(*place)));
    match way.of(known) {
        Some((0, low)) if low >> 32 == MAPPED >> 32 => {
            *place = (low as u32).to_be_bytes();
            true
        }
        _ => false,
    }
}

fn six(bytes: Option<&mut [u8]>, way: Way) -> bool {
    let Some(place) = bytes.and_then(|bytes| <&mut [u8; 16]>::try_from(bytes).ok()) else { return false };
    let bits = u128::from_be_bytes(*place);
    let Some((high, low)) = way.of(((bits >> 64) as u64, bits as u64)) else { return false };
    *place = (u128::from(high) << 64 | u128::from(low)).to_be_bytes();
    true
}

/// What reading the file takes. Where a seccomp filter of the program's forbids one, addresses stay as they are.
const CALLS: [Call; 3] =
    [call(libc::SYS_openat, libc::AT_FDCWD as u64), call(libc::SYS_read, 0), call(libc::SYS_close, 0)];

const fn call(number: c_long, first: u64) -> Call {
    Call { number: number as u32, args: [first, 0, 0, 0, 0, 0], first_is_open: number != libc::SYS_openat }
}

/// In the constructor, once the path of the socket is known: the tables of a restart before this program was executed.
pub fn start() {
    shared::word(SharedPage::ADDRESSES).store(core::ptr::from_ref(&TABLE).addr() as u64, Relaxed);
    let mut room = [0; SharedPage::SOCKET_PATH_LEN];
    let Some(socket) = shared::text(SharedPage::SOCKET_PATH, &mut room).map(CStr::to_bytes) else { return };
    let folder = socket.iter().rposition(|byte| *byte == b'/').and_then(|cut| socket.get(..=cut));
    let mut beside = Text::<{ SharedPage::SOCKET_PATH_LEN }>::new();
    beside.push(folder.unwrap_or(b"./")).push(AddressTable::FILE.as_bytes()).push(b"\0");
    let Ok(path) = CStr::from_bytes_until_nul(beside.as_bytes()) else { return };
    if !beside.fits() || !filters::allow(&CALLS) {
        return;
    }
    if let Ok(file) = sys::open(path, 0) {
        read_tables(file);
        sys::close(file);
    }
}

/// The numbers are the last to be written: what cannot be read as a whole is not in force.
fn read_tables(file: i32) {
    let mut head = [0; AddressTable::HEAD];
    if !fill(file, &mut head) {
        return;
    }
    let number = |at: usize| {
        let word =
            head.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word));
        (word as usize).min(AddressTable::MAX)
    };
    let counts = [number(AddressTable::COUNT), number(AddressTable::BACK_COUNT)];
    for (count, table) in counts.into_iter().zip([AddressTable::FORWARD, AddressTable::BACKWARD]) {
        for entry in 0..count {
            let mut pair = [0; AddressTable::ENTRY];
            if !fill(file, &mut pair) {
                return;
            }
            for (index, word) in pair.as_chunks::<8>().0.iter().enumerate() {
                let place = TABLE.0.get((table + entry * AddressTable::ENTRY) / 8 + index);
                place.iter().for_each(|place| place.store(u64::from_le_bytes(*word), Relaxed));
            }
        }
    }
    for (count, at) in counts.into_iter().zip([AddressTable::COUNT, AddressTable::BACK_COUNT]) {
        TABLE.0.get(at / 8).iter().for_each(|place| place.store(count as u64, Relaxed));
    }
}

fn fill(file: i32, mut into: &mut [u8]) -> bool {
    while !into.is_empty() {
        match sys::read(file, into) {
            Ok(0) => return false,
            Ok(read) => into = into.get_mut(read..).unwrap_or(&mut []),
            Err(libc::EINTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests;
