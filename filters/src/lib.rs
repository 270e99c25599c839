//! What a seccomp filter says to a system call, asked without making the call: an interpreter of its program.
//!
//! Used by the agent before it has a call made in a confined thread, and by libholdfast before it makes one of its own
//! there. The program is classic BPF of the kind that the kernel takes (kernel/seccomp.c, `seccomp_check_filter`): it
//! reads words of `struct seccomp_data` and jumps forward only, so that it ends. Invariant: an answer "allowed" is
//! right. What cannot be known before the call (the address of the instruction, an argument that is the result of
//! another call) counts as forbidden as soon as the program reads it. Fails by: [`Verdict::Unknown`], likewise for a
//! program that the kernel would not have taken.
#![no_std]
#![forbid(unsafe_code)]

/// One instruction (`struct sock_filter`, include/uapi/linux/filter.h), as the eight bytes that it has in memory.
pub type Instruction = [u8; 8];

/// A system call that is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Call {
    /// Its number.
    pub number: u32,
    /// Its arguments.
    pub args: [u64; 6],
    /// The first argument is not known yet.
    pub first_is_open: bool,
}

/// What a filter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The call is made.
    Allowed,
    /// It is not: SECCOMP_RET_* with its data.
    Forbidden(u32),
    /// Not to be known before.
    Unknown,
}

/// include/uapi/linux/audit.h: AUDIT_ARCH_X86_64.
const ARCH: u32 = 0xc000_003e;
/// include/uapi/linux/seccomp.h.
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_LOG: u32 = 0x7ffc_0000;
/// The action asks a process that has the filter's listener.
pub const RET_USER_NOTIF: u32 = 0x7fc0_0000;
/// The bits of an action without its data.
pub const RET_ACTION: u32 = 0xffff_0000;
/// Words of memory that a program has (BPF_MEMWORDS).
const MEMORY: usize = 16;
/// Bytes of `struct seccomp_data`.
const DATA_LEN: u32 = 64;

// include/uapi/linux/bpf_common.h and filter.h: classes, and what is or-ed to them.
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const LD_IMM: u16 = 0x00;
const LD_ABS: u16 = 0x20;
const LD_MEM: u16 = 0x60;
const LD_LEN: u16 = 0x80;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const LDX_LEN: u16 = 0x81;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
/// The second operand is the register X instead of the constant.
const BY_X: u16 = 0x08;
const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;

impl Call {
    /// The word at an offset of `struct seccomp_data`: number, architecture, instruction pointer, arguments.
    fn word(&self, offset: u32) -> Option<u32> {
        if !offset.is_multiple_of(4) || offset >= DATA_LEN {
            return None;
        }
        match offset {
            0 => Some(self.number),
            4 => Some(ARCH),
            8 | 12 => None,
            16 | 20 if self.first_is_open => None,
            _ => {
                let argument = *self.args.get((offset as usize - 16) / 8)?;
                Some(if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 })
            }
        }
    }
}

/// A machine of classic BPF.
struct Machine {
    a: u32,
    x: u32,
    memory: [u32; MEMORY],
}

impl Machine {
    fn operand(&self, code: u16, k: u32) -> u32 {
        if code & BY_X == 0 { k } else { self.x }
    }

    /// An arithmetic instruction; `None`: there is none such. A division by 0 ends the program with 0
    /// (net/core/filter.c), which forbids the call: not known here.
    fn compute(&mut self, code: u16, k: u32) -> Option<()> {
        let by = self.operand(code, k);
        self.a = match code & OPERATION {
            0x00 => self.a.wrapping_add(by),
            0x10 => self.a.wrapping_sub(by),
            0x20 => self.a.wrapping_mul(by),
            0x30 => self.a.checked_div(by)?,
            0x40 => self.a | by,
            0x50 => self.a & by,
            0x60 => self.a.wrapping_shl(by),
            0x70 => self.a.wrapping_shr(by),
            0x80 => self.a.wrapping_neg(),
            0x90 => self.a.checked_rem(by)?,
            0xa0 => self.a ^ by,
            _ => return None,
        };
        Some(())
    }

    /// How many instructions a jump goes over.
    fn jump(&self, code: u16, (yes, no): (u8, u8), k: u32) -> Option<usize> {
        let with = self.operand(code, k);
        let holds = match code & OPERATION {
            0x00 => return usize::try_from(k).ok(),
            0x10 => self.a == with,
            0x20 => self.a > with,
            0x30 => self.a >= with,
            0x40 => self.a & with != 0,
            _ => return None,
        };
        Some(usize::from(if holds { yes } else { no }))
    }

    /// Any other instruction but the end.
    fn step(&mut self, code: u16, k: u32, call: &Call) -> Option<()> {
        let place = k as usize;
        match code {
            LD_ABS => self.a = call.word(k)?,
            LD_IMM => self.a = k,
            LD_LEN => self.a = DATA_LEN,
            LD_MEM => self.a = *self.memory.get(place)?,
            LDX_IMM => self.x = k,
            LDX_LEN => self.x = DATA_LEN,
            LDX_MEM => self.x = *self.memory.get(place)?,
            ST => *self.memory.get_mut(place)? = self.a,
            STX => *self.memory.get_mut(place)? = self.x,
            TAX => self.x = self.a,
            TXA => self.a = self.x,
            _ if code & CLASS == ALU => self.compute(code, k)?,
            _ => return None,
        }
        Some(())
    }
}

fn parts(instruction: &Instruction) -> (u16, (u8, u8), u32) {
    let [c0, c1, yes, no, k0, k1, k2, k3] = *instruction;
    (u16::from_le_bytes([c0, c1]), (yes, no), u32::from_le_bytes([k0, k1, k2, k3]))
}

/// What the program returns; `None`: not to be known.
fn returned<'a>(
    count: usize,
    instruction: impl Fn(usize) -> Option<&'a Instruction>,
    call: &Call,
) -> Option<u32> {
    let mut machine = Machine { a: 0, x: 0, memory: [0; MEMORY] };
    let mut at = 0;
    while at < count {
        let (code, ways, k) = parts(instruction(at)?);
        at += 1;
        match code {
            RET_K => return Some(k),
            RET_A => return Some(machine.a),
            _ if code & CLASS == JMP => at = at.checked_add(machine.jump(code, ways, k)?)?,
            _ => machine.step(code, k, call)?,
        }
    }
    None
}

/// What a filter says to a call.
pub fn verdict(program: &[Instruction], call: &Call) -> Verdict {
    match returned(program.len(), |at| program.get(at), call) {
        None => Verdict::Unknown,
        Some(action) if matches!(action & RET_ACTION, RET_ALLOW | RET_LOG) => Verdict::Allowed,
        Some(action) => Verdict::Forbidden(action),
    }
}

/// Whether a filter may ask a listener (SECCOMP_RET_USER_NOTIF), or returns what it has computed, which may be that.
pub fn may_ask_a_listener(program: &[Instruction]) -> bool {
    program.iter().any(|instruction| match parts(instruction) {
        (RET_K, _, k) => k & RET_ACTION == RET_USER_NOTIF,
        (RET_A, ..) => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests;
