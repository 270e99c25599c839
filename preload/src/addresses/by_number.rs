//! Calls with addresses that the program makes by `syscall(2)`.
//!
//! Called by `ids.rs`, in the host program, any thread. Fails by: nothing of its own; the result is the kernel's.
//!
//! # Safety
//! Arguments are the program's own, or copies that live as long as the call.
#![allow(unsafe_code)]

use super::calls::{Frame, after, before, send_each};
use super::hooks;
use crate::sys;
use core::ffi::{c_int, c_long};

/// Makes a call of the list for `syscall(2)`; `None`: it is not in there, or there are no tables.
///
/// # Safety
/// As for the system call.
pub unsafe fn by_number(number: c_long, args: [usize; 6]) -> Option<isize> {
    let rule = hooks::rule_of(number)?;
    let mut frame = Frame::new(args);
    if before(&mut frame, rule) {
        return Some(send_each(args[0] as c_int, args[1], args[2] as u32 as usize, args[3] as c_int));
    }
    // SAFETY: the caller's promise; copies live as long as the frame.
    let result = unsafe { sys::raw(number, frame.args) };
    if result >= 0 {
        frame.result = result as usize;
        after(&frame, rule);
    }
    Some(result)
}
