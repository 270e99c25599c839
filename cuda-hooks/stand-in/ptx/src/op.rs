//! The compact form of instructions. Made by `decode`, executed by `exec`.
//!
//! Registers are numbers within a function's frame; each is 64 bits wide and holds a value of its declared width, the
//! bits above it zero. What an arithmetic instruction computes is a plain function, chosen once.

use crate::types::{Space, Type};

pub(crate) type Register = u32;

/// `a`, `b`, `c` and whatever the instruction's modifiers say.
pub(crate) type Compute = fn(u64, u64, u64, u32) -> u64;

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    Register(Register),
    Value(u64),
    /// Address of a variable of the module plus an offset.
    Global(u32, i32),
    /// The same within local memory of the frame.
    Local(u32),
    /// Within shared memory, after what is there of fixed size.
    Dynamic(i32),
    Special(Special),
}

/// Registers that cannot be written (ISA 10). The number is the dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NumWarps,
    SmId,
    NumSms,
    GridId,
    LaneMask(Mask),
    Clock,
    ClockHigh,
    Clock64,
    GlobalTimer,
    TotalShared,
    DynamicShared,
}

/// Which lanes, seen from one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// A predicate, perhaps negated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guard {
    pub(crate) register: Register,
    pub(crate) negated: bool,
}

/// `[base + offset]` in a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) space: Space,
    pub(crate) base: Operand,
    pub(crate) offset: i64,
}

/// A register to write, with the bits it has; `None` is the sink `_`.
pub(crate) type Destination = Option<(Register, u64)>;

/// How two predicates are joined (ISA 9.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Join {
    And,
    Or,
    Xor,
}

/// What an atomic operation makes of the old value `a` and the operands `b`, `c`.
pub(crate) type Atomic = Compute;

/// What is done by all lanes of a mask together (ISA 9.7.9.6, 9.7.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Together {
    Barrier,
    Shuffle(Shuffle),
    VoteAll,
    VoteAny,
    VoteUniform,
    Ballot,
    MatchAny(u64),
    MatchAll(u64),
    Reduce(Reduce, Type),
    Elect,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reduce {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// What a barrier gives its threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BarrierResult {
    Nothing,
    Count,
    And,
    Or,
}

/// An instruction without its guard.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Nothing,
    Compute {
        to: Register,
        mask: u64,
        with: Compute,
        a: Operand,
        b: Operand,
        c: Operand,
        how: u32,
    },
    Compare(Box<Compare>),
    /// `add.cc` and its like: `a + (b ^ flip) + carry`, for `sub` with `flip` all ones (ISA 9.7.2)
    Carry {
        to: Register,
        a: Operand,
        b: Operand,
        subtract: bool,
        reads: bool,
        writes: bool,
        bits: u32,
    },
    /// `mad.lo.cc` and its like
    MadCarry(Box<MadCarry>),
    /// `bfi`: the operands as written, and the width
    Insert(Box<(Register, [Operand; 4], u32)>),
    Pack {
        to: Register,
        parts: Box<[Operand]>,
        bits: u32,
    },
    Unpack {
        to: Box<[Destination]>,
        from: Operand,
        bits: u32,
    },
    /// `shift`: the value is extended by its sign from 64 - `shift` bits, or not at all
    Load {
        to: Register,
        mask: u64,
        bytes: u32,
        shift: u32,
        from: Address,
    },
    LoadVector {
        to: Box<[Destination]>,
        bytes: u32,
        shift: u32,
        from: Address,
    },
    Store {
        from: Operand,
        bytes: u32,
        to: Address,
    },
    StoreVector {
        from: Box<[Operand]>,
        bytes: u32,
        to: Address,
    },
    Atomic {
        to: Destination,
        with: Atomic,
        bytes: u32,
        at: Address,
        b: Operand,
        c: Operand,
    },
    /// `cp.async`: at once. `source` may be shorter, zeros follow.
    Copy {
        to: Address,
        from: Address,
        bytes: u32,
        source: Operand,
    },
    /// `cvta` between a window and generic addresses
    ToGeneric {
        to: Register,
        from: Operand,
        window: u64,
    },
    ToSpace {
        to: Register,
        from: Operand,
        window: u64,
    },
    IsSpace {
        to: Register,
        from: Operand,
        space: Space,
    },
    Branch(u32),
    BranchTable {
        at: Operand,
        targets: Box<[u32]>,
    },
    Call(Box<Call>),
    Return,
    Exit,
    Trap,
    Barrier(Box<Barrier>),
    Together(Box<WarpOp>),
    ActiveMask {
        to: Register,
    },
    StackSave {
        to: Register,
    },
    StackRestore {
        from: Operand,
    },
    Alloca {
        to: Register,
        size: Operand,
        align: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Compare {
    pub(crate) p: Destination,
    pub(crate) q: Destination,
    pub(crate) with: Compute,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) join: Option<(Join, Guard)>,
    /// Of `set`: what true is; for `setp` one.
    pub(crate) truth: u64,
    pub(crate) how: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct MadCarry {
    pub(crate) to: Register,
    pub(crate) product: Compute,
    pub(crate) a: Operand,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) bits: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Barrier {
    pub(crate) id: Operand,
    pub(crate) count: Option<Operand>,
    pub(crate) waits: bool,
    pub(crate) result: BarrierResult,
    pub(crate) to: Destination,
    pub(crate) predicate: Option<Guard>,
}

#[derive(Clone, Debug)]
pub(crate) struct WarpOp {
    pub(crate) what: Together,
    pub(crate) to: Destination,
    /// The second result, a predicate.
    pub(crate) predicate: Destination,
    pub(crate) a: Operand,
    /// `a` is a predicate to be negated.
    pub(crate) negated: bool,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    pub(crate) mask: Operand,
}

/// Where a parameter lies: in the frame's parameter memory, or in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Memory { at: u32, bytes: u32 },
    Register { register: Register, mask: u64 },
    Constant(u64),
}

impl Slot {
    pub(crate) fn bytes(self) -> Option<u32> {
        match self {
            Slot::Memory { bytes, .. } => Some(bytes),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) callee: Callee,
    pub(crate) arguments: Box<[Slot]>,
    pub(crate) results: Box<[Slot]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Callee {
    Function(u32),
    Pointer(Operand),
}

/// An instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) op: Op,
    pub(crate) line: u32,
}
