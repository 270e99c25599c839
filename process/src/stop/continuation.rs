//! Continuation slots: how an interrupted call goes on without its program noticing.
//!
//! A slot is 256 bytes in the code range of the injection area: `syscall`, a few instructions that put the program's
//! registers right again, and their data. A thread is pointed at the instruction *behind* the slot's `syscall` with
//! rax = -ERESTART…, as if the kernel had just interrupted that very call: the kernel's own restart logic then runs it
//! again (with the shortened timeout or the rest of the buffer that the agent put into the registers), or delivers a
//! pending signal and returns EINTR: native semantics without a race (docs/stop.md, A.3).
//!
//! A thread found in a slot at a later stop is recognised by its rip; the slot then says when the wait ends. Slots
//! are in the program's memory, hence in its images, and work after a restart as before it.
//!
//! Invariants: a slot is not used again while a frame of its thread may still return into it.
//!
//! # Safety
//! The code below is data to this process: it is copied as bytes into the traced one and never called here.
#![allow(unsafe_code)]

use holdfast_image::record::InjectArea;
use holdfast_sys::clock;
use holdfast_sys::procmem::ForcedMemory;
use std::io;
use std::ops::Range;

/// Bytes of one slot.
pub const SLOT_LEN: u64 = 256;
/// The first slot begins one page into the code range, behind the stub.
const FIRST: u64 = 4096;
/// Offset of the instruction behind the slot's `syscall`.
const BEHIND: u64 = 2;
/// Offset of the slot's data.
const DATA: usize = 96;
/// Offset of the slot's timespec.
const TIMESPEC: usize = DATA + 56;
/// Where in the scratch range each slot has 1 KiB for a vector of buffers.
const VECTORS: u64 = 256 * 1024;
/// Length of one such piece.
pub const VECTOR_LEN: u64 = 1024;

core::arch::global_asm!(
    ".pushsection .rodata.holdfast_slot,\"a\"",
    ".globl holdfast_slot_start",
    ".hidden holdfast_slot_start",
    "holdfast_slot_start:",
    "    syscall",
    "    mov rcx, [rip + 20f]", // done: bytes transferred before; 0 for waits
    "    jrcxz 3f",             // (leaves the flags alone, as the system call did)
    "    test rax, rax",
    "    js 2f",
    "    add rax, rcx",
    "    jmp 3f",
    "2:  mov rax, rcx", // an error after a partial transfer is reported by the next call
    "3:  mov rdi, [rip + 21f]",
    "    mov rsi, [rip + 22f]",
    "    mov rdx, [rip + 23f]",
    "    mov r10, [rip + 24f]",
    "    mov r8,  [rip + 25f]",
    "    jmp [rip + 26f]",
    ".org holdfast_slot_start + 96",
    "20: .quad 0",
    "21: .quad 0",
    "22: .quad 0",
    "23: .quad 0",
    "24: .quad 0",
    "25: .quad 0",
    "26: .quad 0",
    ".org holdfast_slot_start + 256",
    ".popsection",
);

unsafe extern "C" {
    static holdfast_slot_start: [u8; SLOT_LEN as usize];
}

/// What a slot holds. Registers are those with which the program made the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Bytes transferred so far (short counts); 0 for waits.
    pub done: u64,
    /// rdi, rsi, rdx, r10, r8 to be put back.
    pub args: [u64; 5],
    /// Where the program goes on.
    pub rip: u64,
    /// When the wait ends on CLOCK_MONOTONIC, nanoseconds; 0: not a wait.
    pub deadline_ns: u64,
    /// Thread that uses it (as the program knows it); 0: free.
    pub tid: i32,
    /// Its stack pointer.
    pub sp: u64,
    /// Used by an image only: free again at the next stop.
    pub image_only: bool,
}

impl Slot {
    fn to_bytes(self) -> Vec<u8> {
        // SAFETY: the symbol is defined by the block above with exactly this length, in a read-only section.
        let mut bytes = unsafe { holdfast_slot_start }.to_vec();
        let words = [
            self.done,
            self.args[0],
            self.args[1],
            self.args[2],
            self.args[3],
            self.args[4],
            self.rip,
            0,
            0,
            self.deadline_ns,
            u64::from(self.tid.cast_unsigned()),
            self.sp,
        ];
        for (index, word) in words.into_iter().enumerate() {
            bytes[DATA + index * 8..DATA + index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Slot {
        let word = |index: usize| u64::from_le_bytes(crate::stop::xstate::array(bytes, DATA + index * 8));
        Slot {
            done: word(0),
            args: [word(1), word(2), word(3), word(4), word(5)],
            rip: word(6),
            deadline_ns: word(9),
            tid: i32::try_from(word(10)).unwrap_or(0),
            sp: word(11),
            image_only: false,
        }
    }
}

/// All slots of one program, mirrored in the agent.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
}

impl Slots {
    /// Reads the slots of a program met for the first time (all free, or those of a restarted program).
    ///
    /// # Errors
    /// The memory cannot be read.
    pub fn load(memory: &ForcedMemory, area: &InjectArea) -> io::Result<Slots> {
        let len = usize::try_from(area.code_len - FIRST).unwrap_or(0);
        let mut bytes = vec![0_u8; len];
        memory.read(area.code.0 + FIRST, &mut bytes)?;
        let slots = bytes.chunks_exact(SLOT_LEN as usize).map(Slot::from_bytes).collect();
        Ok(Slots { slots })
    }

    /// The slot that `rip` lies in.
    pub fn at(&self, area: &InjectArea, rip: u64) -> Option<(u32, Slot)> {
        let offset = rip.checked_sub(area.code.0 + FIRST)?;
        let index = usize::try_from(offset / SLOT_LEN).ok()?;
        let slot = self.slots.get(index)?;
        (slot.tid != 0).then_some((u32::try_from(index).ok()?, *slot))
    }

    /// Gives back what no frame can return into any more. `threads`: id, rip and rsp of all living threads. `stack`
    /// reads what can be read of the memory from an address on.
    pub fn collect(
        &mut self,
        area: &InjectArea,
        threads: &[(i32, u64, u64)],
        stack: impl Fn(u64, usize) -> Vec<u8>,
    ) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.tid == 0 {
                continue;
            }
            let begin = area.code.0 + FIRST + index as u64 * SLOT_LEN;
            let range = begin..begin + SLOT_LEN;
            let in_use = threads.iter().find(|thread| thread.0 == slot.tid).is_some_and(|&(_, rip, rsp)| {
                range.contains(&rip) || !slot.image_only && returns_into(&range, slot.sp, rsp, &stack)
            });
            if !in_use {
                *slot = Slot::default();
            }
        }
    }

    /// A free slot's number.
    pub fn free(&self) -> Option<u32> {
        self.slots.iter().position(|slot| slot.tid == 0).and_then(|index| u32::try_from(index).ok())
    }

    /// Writes a slot into the program, with the timespec of what is left of its wait.
    ///
    /// # Errors
    /// The memory cannot be written.
    pub fn set(
        &mut self,
        memory: &ForcedMemory,
        area: &InjectArea,
        number: u32,
        slot: Slot,
        remaining_ns: u64,
    ) -> io::Result<()> {
        let mut bytes = slot.to_bytes();
        bytes[TIMESPEC..TIMESPEC + 16].copy_from_slice(&timespec(remaining_ns));
        memory.write(address(area, number), &bytes)?;
        if let Some(mirror) = self.slots.get_mut(number as usize) {
            *mirror = slot;
        }
        Ok(())
    }
}

/// Whether a signal frame above `rsp` may lead back into a slot whose call was made at `sp`: its handler runs, on the
/// same stack or another one. Rather too often than not: stale words look like frames.
fn returns_into(slot: &Range<u64>, sp: u64, rsp: u64, stack: impl Fn(u64, usize) -> Vec<u8>) -> bool {
    /// Most that handlers may have on the stack of the call, and on another one.
    const SAME: u64 = 8 << 20;
    const OTHER: u64 = 256 << 10;
    if rsp == sp {
        return false; // the same call again, or its neighbour
    }
    let below = sp.checked_sub(rsp).filter(|below| *below <= SAME);
    let words = stack(rsp, usize::try_from(below.unwrap_or(OTHER)).unwrap_or(0));
    words.chunks_exact(8).any(|word| slot.contains(&u64::from_le_bytes(crate::stop::xstate::array(word, 0))))
}

/// struct timespec.
fn timespec(ns: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(ns / 1_000_000_000).to_le_bytes());
    bytes[8..].copy_from_slice(&(ns % 1_000_000_000).to_le_bytes());
    bytes
}

/// First byte of a slot.
pub fn address(area: &InjectArea, number: u32) -> u64 {
    area.code.0 + FIRST + u64::from(number) * SLOT_LEN
}

/// Where a thread continues: behind the slot's `syscall`.
pub fn entry(area: &InjectArea, number: u32) -> u64 {
    address(area, number) + BEHIND
}

/// Address of the slot's timespec.
pub fn timespec_address(area: &InjectArea, number: u32) -> u64 {
    address(area, number) + TIMESPEC as u64
}

/// Address of the slot's piece for a vector of buffers; `None` where the scratch range is too short for it.
pub fn vector_address(area: &InjectArea, number: u32) -> Option<u64> {
    let offset = VECTORS + u64::from(number) * VECTOR_LEN;
    (offset + VECTOR_LEN <= area.scratch_len).then_some(area.scratch.0 + offset)
}

/// At a restart: the wait of this slot goes on for `remaining_ns` from now.
///
/// # Errors
/// The memory cannot be written.
pub fn rearm(memory: &ForcedMemory, area: &InjectArea, slot: u32, remaining_ns: u64) -> io::Result<()> {
    let at = address(area, slot);
    if at + SLOT_LEN > area.code.0 + area.code_len {
        return Err(io::Error::other(format!("slot {slot} lies outside the injection area")));
    }
    let deadline_ns = clock::monotonic_ns().saturating_add(remaining_ns);
    memory.write(at + TIMESPEC as u64, &timespec(remaining_ns))?;
    memory.write(at + TIMESPEC as u64 + 16, &deadline_ns.to_le_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_survives_its_bytes() {
        let slot = Slot {
            done: 5,
            args: [1, 2, 3, 4, 5],
            rip: 77,
            deadline_ns: 9,
            tid: 12,
            sp: 99,
            image_only: false,
        };
        let bytes = slot.to_bytes();
        assert_eq!(bytes.len(), SLOT_LEN as usize);
        assert_eq!(&bytes[..2], &[0x0f, 0x05]);
        assert_eq!(Slot::from_bytes(&bytes), slot);
    }

    #[test]
    fn a_slot_is_kept_while_a_frame_may_return_into_it() {
        let frame = |slot: u64| {
            move |_: u64, len: usize| {
                let mut bytes = vec![0; len];
                bytes[len - 8..].copy_from_slice(&(0x11000 + slot * SLOT_LEN).to_le_bytes());
                bytes
            }
        };
        let area =
            InjectArea { code: holdfast_image::Addr(0x10000), code_len: 65536, ..InjectArea::default() };
        let waiting = Slot { tid: 7, sp: 1000, ..Slot::default() };
        let mut slots = Slots { slots: vec![waiting; 3] };
        slots.slots[1].image_only = true;
        slots.slots[2].tid = 8;
        slots.collect(&area, &[(7, 0x4000, 904)], frame(0)); // inside a handler, below the call
        assert_eq!(slots.slots.iter().map(|s| s.tid).collect::<Vec<_>>(), [7, 0, 0]);
        slots.collect(&area, &[(7, entry(&area, 0), 900)], frame(3));
        assert_eq!(slots.at(&area, entry(&area, 0)).unwrap().0, 0);
        slots.collect(&area, &[(7, 0x4000, 1 << 40)], frame(0)); // a handler on another stack
        assert_eq!(slots.free(), Some(1));
        // The call has returned, to a caller above, into the next call, or into one that is deeper.
        for now in [1008, 1000, 904] {
            let mut slots = slots.clone();
            slots.collect(&area, &[(7, 0x4000, now)], frame(3));
            assert_eq!(slots.free(), Some(0), "{now}");
        }
    }
}
