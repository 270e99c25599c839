//! Bytes at addresses of the host: the one place where memory of the device, or of the program, is touched. Used by
//! `space`, and by `physical` for images of the device.
//!
//! # Safety
//! An address is either inside a shadow mapping, found in the table of mappings while that is locked, or one that the
//! program gave as memory of the host: then it crashes if it is wrong, as with the real driver. That several streams,
//! or the program and a stream, access the same bytes at a time is the program's race; values of one to eight bytes are
//! accessed atomically, as kernels may.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

macro_rules! by_size {
    ($address:expr, $bytes:expr, |$cell:ident, $type:ident| $act:expr) => {
        match $bytes {
            // SAFETY: see the file's head; the interpreter's addresses are multiples of the size.
            1 => unsafe {
                let $cell = &*($address as *const AtomicU8);
                type $type = u8;
                $act
            },
            // SAFETY: as above.
            2 => unsafe {
                let $cell = &*($address as *const AtomicU16);
                type $type = u16;
                $act
            },
            // SAFETY: as above.
            4 => unsafe {
                let $cell = &*($address as *const AtomicU32);
                type $type = u32;
                $act
            },
            // SAFETY: as above.
            _ => unsafe {
                let $cell = &*($address as *const AtomicU64);
                type $type = u64;
                $act
            },
        }
    };
}

/// A value of 1, 2, 4 or 8 bytes.
pub fn load(address: u64, bytes: u32) -> u64 {
    by_size!(address, bytes, |cell, T| T::into(cell.load(Ordering::Acquire)))
}

/// The same.
pub fn store(address: u64, bytes: u32, value: u64) {
    by_size!(address, bytes, |cell, T| cell.store(value as T, Ordering::Release));
}

/// Replaces a value by what `new` makes of it, and gives the old one.
pub fn update(address: u64, bytes: u32, new: &mut dyn FnMut(u64) -> u64) -> u64 {
    by_size!(address, bytes, |cell, T| {
        let mut old = cell.load(Ordering::SeqCst);
        loop {
            let wanted = new(T::into(old)) as T;
            match cell.compare_exchange(old, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return T::into(old),
                Err(now) => old = now,
            }
        }
    })
}

/// Copies bytes; the ranges may overlap.
pub fn copy(to: u64, from: u64, length: u64) {
    // SAFETY: see the file's head: both ranges are whole.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length as usize) }
}

/// Copies bytes out.
pub fn read(from: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    copy(bytes.as_mut_ptr() as u64, from, length);
    bytes
}

/// Copies bytes in.
pub fn write(to: u64, bytes: &[u8]) {
    copy(to, bytes.as_ptr() as u64, bytes.len() as u64);
}
