//! What is done before and after a call that has addresses: the kernel gets a copy of the program's with the addresses
//! that are here now; of what the kernel tells, addresses become those that the program knows.
//!
//! Called by the frames of [`super::hooks`] and for `syscall(2)`, only while there are tables. Invariants: memory that
//! the program gives is not written, but for what the kernel has told; the rest of a message is the program's own.
//! Fails by: passing the call on as it is, for the kernel to refuse what makes no sense.
//!
//! # Safety
//! The program's memory is read by a call that fails where there is none, and written only where the kernel has just
//! written the same bytes.
#![allow(unsafe_code)]

use super::table::{TABLE, Way, translate};
use crate::{filters, host, sys};
use core::ffi::c_int;
use core::mem::size_of;
use core::ptr::{self, with_exposed_provenance_mut};
use holdfast_abi::PAGE;
use holdfast_filters::Call;

/// Which argument is what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Argument `.0` points to an address of as many bytes as argument `.1` says.
    Given(usize, usize),
    /// Argument `.0` points to room for one; argument `.1` to how much, and then to how much was told.
    Told(usize, usize),
    /// Argument 1 points to a struct msghdr that is sent.
    Sent,
    /// Argument 1 points to one that is filled.
    Received,
    /// Argument 1 points to as many struct mmsghdr as argument 2 says, which are sent.
    SentMany,
    /// They are filled.
    ReceivedMany,
}

/// Room for an address: struct sockaddr_storage.
const NAME: usize = 128;
/// struct msghdr, and one in struct mmsghdr (socket.h).
const MESSAGE: usize = size_of::<libc::msghdr>();
const MANY: usize = size_of::<libc::mmsghdr>();
/// The kernel takes no more messages at once (net/socket.c, __sys_sendmmsg).
const MOST: usize = libc::UIO_MAXIOV as usize;
/// Of messages that are received two bits each are noted.
const MOST_RECEIVED: usize = NAME * 4;

/// A call, as the frame in assembly has it on its stack.
#[repr(C, align(16))]
pub struct Frame {
    /// Arguments on the stack.
    pub stack: [usize; 2],
    /// The six in registers.
    pub args: [usize; 6],
    /// What the call has returned.
    pub result: usize,
    /// Which function.
    pub index: usize,
    /// How much room there is for the address that the call tells.
    room: usize,
    message: [usize; MESSAGE / 8],
    name: [u8; NAME],
    spare: [usize; 2],
}

// The frame in assembly has these places.
const _: () = assert!(
    core::mem::offset_of!(Frame, args) == 16
        && core::mem::offset_of!(Frame, result) == 64
        && core::mem::offset_of!(Frame, index) == 72
        && size_of::<Frame>() == Frame::LEN
        && MESSAGE == 56
        && MANY == 64
);

impl Frame {
    /// Its length, bytes.
    pub const LEN: usize = 288;

    /// Of a call that has no frame of its own.
    #[cfg(not(test))]
    pub fn new(args: [usize; 6]) -> Frame {
        let (message, name) = ([0; MESSAGE / 8], [0; NAME]);
        Frame { stack: [0; 2], args, result: 0, index: 0, room: 0, message, name, spare: [0; 2] }
    }

    fn arg(&self, number: usize) -> usize {
        self.args.iter().chain(&self.stack).nth(number).copied().unwrap_or(0)
    }

    /// Puts a translated copy in the place of an address.
    fn give(&mut self, (place, len): (usize, usize)) -> bool {
        let Some(name) = self.name.get_mut(..len) else { return false };
        read(place, name) && translate(name, Way::ToKernel)
    }
}

/// Gets a call ready. `true`: its messages are to be sent by [`send_many`].
pub fn before(frame: &mut Frame, rule: Rule) -> bool {
    if TABLE.is_empty() {
        // There may be tables after the call.
        frame.room = usize::MAX;
        if rule == Rule::ReceivedMany {
            frame.name = [u8::MAX; NAME];
        }
        return false;
    }
    match rule {
        Rule::Given(place, len) => {
            if frame.give((frame.arg(place), frame.arg(len) as u32 as usize)) {
                let copy = frame.name.as_ptr().expose_provenance();
                frame.args.get_mut(place).into_iter().for_each(|argument| *argument = copy);
            }
        }
        Rule::Told(_, len) => frame.room = word32(frame.arg(len)),
        Rule::Sent => {
            if read_words(frame.arg(1), &mut frame.message)
                && frame.give((frame.message[0], frame.message[1] as u32 as usize))
            {
                frame.message[0] = frame.name.as_ptr().expose_provenance();
                frame.args[1] = frame.message.as_ptr().expose_provenance();
            }
        }
        Rule::Received => {
            let mut head = [0; 2];
            frame.room = if read_words(frame.arg(1), &mut head) { head[1] as u32 as usize } else { 0 };
        }
        Rule::SentMany => return (0..frame.arg(2).min(MOST)).any(|at| needs_copy(frame.arg(1), at)),
        Rule::ReceivedMany => {
            frame.name = [0; NAME];
            for at in 0..frame.arg(2).min(MOST_RECEIVED) {
                let mut head = [0; 2];
                let has_name = read_words(frame.arg(1).wrapping_add(at * MANY), &mut head) && head[0] != 0;
                let room = if has_name { head[1] as u32 as usize } else { 0 };
                let sizes = [size_of::<libc::sockaddr_in>(), size_of::<libc::sockaddr_in6>()];
                let bits = sizes.iter().filter(|size| room >= **size).count() as u8;
                frame.name.get_mut(at / 4).into_iter().for_each(|byte| *byte |= bits << (at % 4 * 2));
            }
        }
    }
    false
}

/// What a call has told.
pub fn after(frame: &Frame, rule: Rule) {
    // Of those that return a long it is a length, or -1.
    if TABLE.is_empty() || frame.result as i32 == -1 {
        return;
    }
    match rule {
        Rule::Given(..) | Rule::Sent | Rule::SentMany => {}
        Rule::Told(place, len) => {
            let told = word32(frame.arg(len)).min(frame.room);
            retell(frame.arg(place), told);
        }
        Rule::Received => {
            let mut head = [0; 2];
            if read_words(frame.arg(1), &mut head) {
                retell(head[0], (head[1] as u32 as usize).min(frame.room));
            }
        }
        Rule::ReceivedMany => {
            for at in 0..((frame.result as i32).unsigned_abs() as usize).min(MOST_RECEIVED) {
                let room = match frame.name.get(at / 4).map_or(0, |byte| byte >> (at % 4 * 2) & 3) {
                    0 => continue,
                    1 => size_of::<libc::sockaddr_in>(),
                    _ => size_of::<libc::sockaddr_in6>(),
                };
                let mut head = [0; 2];
                if read_words(frame.arg(1).wrapping_add(at * MANY), &mut head) {
                    retell(head[0], (head[1] as u32 as usize).min(room));
                }
            }
        }
    }
}

/// Translates what the kernel has told the program.
fn retell(place: usize, len: usize) {
    let mut name = [0; size_of::<libc::sockaddr_in6>()];
    let Some(name) = name.get_mut(..len.min(size_of::<libc::sockaddr_in6>())) else { return };
    if place != 0 && read(place, name) && translate(name, Way::ToProgram) {
        // SAFETY: the kernel has just written these bytes there, for the program.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr(), with_exposed_provenance_mut(place), name.len()) };
    }
}

fn needs_copy(messages: usize, at: usize) -> bool {
    let (mut head, mut name) = ([0; 2], [0; NAME]);
    let Some(place) = messages.checked_add(at * MANY) else { return false };
    let len = if read_words(place, &mut head) { head[1] as u32 as usize } else { 0 };
    name.get_mut(..len).is_some_and(|name| read(head[0], name) && translate(name, Way::ToKernel))
}

/// `sendmmsg(2)`, one message after the other. No cancellation point.
pub extern "C" fn send_many(fd: c_int, messages: usize, count: u32, flags: c_int) -> c_int {
    host::from_kernel(send_each(fd, messages, count as usize, flags)) as c_int
}

/// As the kernel returns it: how many were sent, or why not the first.
pub fn send_each(fd: c_int, messages: usize, count: usize, flags: c_int) -> isize {
    let mut sent = 0;
    for at in 0..count.min(MOST) {
        let place = messages.wrapping_add(at * MANY);
        let (mut copy, mut name) = ([0; MESSAGE / 8], [0; NAME]);
        let mut message = place;
        if read_words(place, &mut copy) {
            let len = copy[1] as u32 as usize;
            if name.get_mut(..len).is_some_and(|name| read(copy[0], name) && translate(name, Way::ToKernel)) {
                copy[0] = name.as_ptr().expose_provenance();
                message = copy.as_ptr().expose_provenance();
            }
        }
        // SAFETY: the program's own call, but for the copies, which live as long.
        let result = unsafe { sys::raw(libc::SYS_sendmsg, [fd as usize, message, flags as usize, 0, 0, 0]) };
        if result < 0 {
            return if sent == 0 { result } else { sent };
        }
        // SAFETY: the program's own array, where the kernel writes this word (`msg_len`).
        unsafe { with_exposed_provenance_mut::<u32>(place + MESSAGE).write_unaligned(result as u32) };
        sent += 1;
    }
    sent
}

/// A `socklen_t`; 0 where there is none.
fn word32(place: usize) -> usize {
    let mut word = [0; 4];
    if read(place, &mut word) { u32::from_ne_bytes(word) as usize } else { 0 }
}

fn read_words<const WORDS: usize>(place: usize, into: &mut [usize; WORDS]) -> bool {
    // SAFETY: the bytes of words, of which any are words.
    let bytes = unsafe { core::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), size_of_val(into)) };
    read(place, bytes)
}

/// Copies memory of the program. Where there is none the kernel has to say so, not a fault here.
fn read(place: usize, into: &mut [u8]) -> bool {
    const PEEK: [Call; 1] =
        [Call { number: libc::SYS_process_vm_readv as u32, args: [0; 6], first_is_open: true }];
    if !(PAGE..1 << 47).contains(&place) {
        return into.is_empty();
    }
    if filters::allow(&PEEK) {
        match sys::peek_bytes(place, into) {
            Err(libc::ENOSYS | libc::EPERM | libc::EACCES) => {}
            other => return other.is_ok(),
        }
    }
    // A filter of the host's or of the program's forbids the call.
    // SAFETY: memory that the program gives to a call as its own.
    unsafe {
        ptr::copy_nonoverlapping(with_exposed_provenance_mut::<u8>(place), into.as_mut_ptr(), into.len())
    };
    true
}
