//! Types and state spaces (ISA 5.1, 5.2). Used by all other files; knows none of them.

/// A fundamental type (ISA 5.2.1), with the packed halves (5.2.3).
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

use Type::*;

/// All types, in the order of their numbers.
pub(crate) const ALL: [Type; 19] =
    [Pred, B8, B16, B32, B64, U8, U16, U32, U64, S8, S16, S32, S64, F16, F16x2, Bf16, Bf16x2, F32, F64];
const NAMES: [&str; 19] = [
    "pred", "b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f16", "f16x2",
    "bf16", "bf16x2", "f32", "f64",
];

impl Type {
    /// The type that a modifier without its dot names.
    pub(crate) fn named(name: &str) -> Option<Type> {
        NAMES.iter().position(|&n| n == name).map(|i| ALL[i])
    }

    /// Width; a predicate has one bit.
    pub fn bits(self) -> u32 {
        match self {
            Pred => 1,
            B8 | U8 | S8 => 8,
            B16 | U16 | S16 | F16 | Bf16 => 16,
            B32 | U32 | S32 | F32 | F16x2 | Bf16x2 => 32,
            B64 | U64 | S64 | F64 => 64,
        }
    }

    /// Size in memory.
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, S8 | S16 | S32 | S64)
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64)
    }

    /// The bits that a value of the type may have.
    pub(crate) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// A value of the type, extended to 64 bits by its sign, if it has one.
    pub(crate) fn extend(self, value: u64) -> u64 {
        if self.is_signed() { sign_extend(value, self.bits()) } else { value & self.mask() }
    }
}

/// `bits` are 1 to 64.
pub(crate) fn sign_extend(value: u64, bits: u32) -> u64 {
    let shift = 64 - bits;
    (((value << shift) as i64) >> shift) as u64
}

/// A state space that an address may be in. `.const` variables are in global memory.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// Parameters of the kernel.
    KernelParam,
    /// Parameters of a function, and of the calls that it makes.
    Param,
}

impl Space {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Const => "const",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::KernelParam | Space::Param => "param",
        }
    }
}

/// Where shared memory appears among generic addresses (ISA 5.1: the windows are the implementation's choice). Device
/// memory must not be given addresses inside the windows.
pub(crate) const SHARED_WINDOW: u64 = 0x0000_6000_0000_0000;
/// The same of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x0000_6000_1000_0000;
/// The same of the kernel's parameters (ISA 9.7.9.20, `cvta.param`).
pub(crate) const PARAM_WINDOW: u64 = 0x0000_6000_2000_0000;
/// Size of each window.
pub(crate) const WINDOW: u64 = 0x1000_0000;
/// Where functions have their addresses: nothing can be read there.
pub(crate) const CODE_WINDOW: u64 = 0x0000_6000_3000_0000;
/// Distance of two functions' addresses.
pub(crate) const CODE_STEP: u64 = 16;
