//! Data movement (ISA 9.7.9) and atomics (9.7.13.5, 9.7.13.6).

use super::{One, Result};
use crate::alu;
use crate::op::{Address, Destination, Op, Operand};
use crate::raw::Arg;
use crate::types::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Space, Type};

/// How memory is ordered and cached: here every access is done at once, in the order of its thread.
const ORDER: [&str; 18] = [
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "cluster", "gpu", "sys",
    "ca", "cg", "cs", "lu", "cv", "wb", "wt",
];

impl<'a> One<'a, '_> {
    pub(super) fn memory(&mut self) -> Result<Op> {
        match self.raw.name {
            "ld" | "ldu" => self.load(),
            "st" => self.store(),
            "atom" | "red" => self.atomic(),
            "mov" => self.mov(),
            "cvta" => self.cvta(),
            "cp" => self.copy(),
            "isspacep" => {
                let space = self.space();
                let (to, from) = (self.predicate(0)?, self.value(1, Type::U64)?);
                self.ty_or_none();
                Ok(Op::IsSpace { to, from, space })
            }
            "alloca" => {
                let ty = self.ty()?;
                self.count(2, 3)?;
                let align = match self.raw.args.get(2) {
                    Some(arg) => self.value_of(arg, Type::U32)?,
                    None => Operand::Value(8),
                };
                match align {
                    Operand::Value(align) if align.is_power_of_two() && align <= 1 << 16 => {
                        Ok(Op::Alloca { to: self.register(0)?.0, size: self.value(1, ty)?, align })
                    }
                    _ => Err(self.unsupported()),
                }
            }
            "stacksave" => {
                self.ty()?;
                Ok(Op::StackSave { to: self.register(0)?.0 })
            }
            "stackrestore" => {
                let ty = self.ty()?;
                Ok(Op::StackRestore { from: self.value(0, ty)? })
            }
            _ => {
                self.all_understood(); // prefetches and their like
                Ok(Op::Nothing)
            }
        }
    }

    fn space(&mut self) -> Space {
        match self.one_of(&[
            "global",
            "const",
            "shared",
            "shared::cta",
            "shared::cluster",
            "local",
            "param",
            "param::entry",
            "param::func",
        ]) {
            Some("global") => Space::Global,
            Some("const") => Space::Const,
            Some("shared" | "shared::cta" | "shared::cluster") => Space::Shared,
            Some("local") => Space::Local,
            Some(_) => Space::KernelParam,
            None => Space::Generic,
        }
    }

    fn order(&mut self) {
        for name in ORDER {
            self.has(name);
        }
        self.has("nc");
        for (n, modifier) in self.raw.modifiers.iter().enumerate() {
            self.used[n] |= modifier.starts_with("L1::") || modifier.starts_with("L2::");
        }
    }

    /// `[a + 4]`
    fn address(&self, n: usize, space: Space) -> Result<Address> {
        let Arg::Memory(base, offset) = self.arg(n)? else {
            return Err(format!("operand {} has to be an address in brackets", n + 1));
        };
        if let Arg::Parameter { space: of, at, bytes, offset: inside } = **base {
            if space != Space::KernelParam && space != of {
                return Err("a parameter is in .param space".into());
            }
            let offset = offset.wrapping_add(inside);
            if !(0..=i64::from(bytes)).contains(&offset) {
                return Err("outside the parameter".into());
            }
            return Ok(Address { space: of, base: Operand::Value(at.into()), offset });
        }
        let of = match **base {
            Arg::Variable(_, of) => Some(of),
            Arg::Shared { .. } => Some(Space::Shared),
            _ => None,
        };
        let fits = match of {
            Some(Space::Global) => matches!(space, Space::Global | Space::Const | Space::Generic),
            Some(of) => of == space,
            None => true,
        };
        if !fits {
            return Err("a variable of another state space".into());
        }
        Ok(Address { space, base: self.value_of(base, Type::U64)?, offset: *offset })
    }

    /// `.v2`, `.v4`, `.v8`
    fn vector(&mut self) -> usize {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    fn list(&self, n: usize, length: usize) -> Result<&[Arg<'a>]> {
        match self.arg(n)? {
            Arg::List(parts) if parts.len() == length => Ok(parts),
            _ => Err(format!("operand {} has to be {length} values in braces", n + 1)),
        }
    }

    fn destinations(&self, parts: &[Arg<'a>], least: u32) -> Result<Box<[Destination]>> {
        parts
            .iter()
            .map(|part| match part {
                Arg::Register(register, ty) if *ty != Type::Pred && ty.bits() >= least => {
                    Ok(Some((*register, ty.mask())))
                }
                Arg::Sink => Ok(None),
                _ => Err("registers that are wide enough belong into the braces".into()),
            })
            .collect()
    }

    fn load(&mut self) -> Result<Op> {
        self.order();
        let (space, vector, ty) = (self.space(), self.vector(), self.ty()?);
        self.count(2, 2)?;
        if ty == Type::Pred {
            return Err(self.unsupported());
        }
        let from = self.address(1, space)?;
        let (bytes, shift) = (ty.bytes(), if ty.is_signed() { 64 - ty.bits() } else { 0 });
        if vector > 1 {
            let to = self.destinations(self.list(0, vector)?, ty.bits())?;
            return Ok(Op::LoadVector { to, bytes, shift, from });
        }
        match self.register(0)? {
            (to, of) if of != Type::Pred && of.bits() >= ty.bits() => {
                Ok(Op::Load { to, mask: of.mask(), bytes, shift, from })
            }
            _ => Err("the register is too narrow".into()),
        }
    }

    fn store(&mut self) -> Result<Op> {
        self.order();
        let (space, vector, ty) = (self.space(), self.vector(), self.ty()?);
        self.count(2, 2)?;
        if ty == Type::Pred {
            return Err(self.unsupported());
        }
        let to = self.address(0, space)?;
        if vector > 1 {
            let parts = self.list(1, vector)?.iter().map(|part| self.value_of(part, ty));
            return Ok(Op::StoreVector { from: parts.collect::<Result<_>>()?, bytes: ty.bytes(), to });
        }
        Ok(Op::Store { from: self.value(1, ty)?, bytes: ty.bytes(), to })
    }

    fn atomic(&mut self) -> Result<Op> {
        self.order();
        self.has("noftz");
        let space = self.space();
        let name = self.one_of(&["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"]);
        let ty = self.ty()?;
        let with = name.and_then(|name| alu::atomic(name, ty)).ok_or_else(|| self.unsupported())?;
        let result = usize::from(self.raw.name == "atom");
        let sources = if name == Some("cas") { 2 } else { 1 };
        self.count(result + 1 + sources, result + 1 + sources)?;
        let to = if result == 1 { self.results(0)?.0 } else { None };
        let b = self.value(result + 1, ty)?;
        let c = if sources == 2 { self.value(result + 2, ty)? } else { Operand::Value(0) };
        Ok(Op::Atomic { to, with, bytes: ty.bytes(), at: self.address(result, space)?, b, c })
    }

    /// With lists in braces it packs or unpacks (ISA 9.7.9.4).
    fn mov(&mut self) -> Result<Op> {
        let ty = self.ty()?;
        self.count(2, 2)?;
        if let Arg::List(parts) = self.arg(1)? {
            let bits = ty.bits() / parts.len().max(1) as u32;
            if !matches!(parts.len(), 2 | 4 | 8) || bits < 8 {
                return Err(self.unsupported());
            }
            let part = [Type::B8, Type::B16, Type::B32].into_iter().find(|t| t.bits() == bits);
            let part = part.ok_or_else(|| self.unsupported())?;
            let parts = parts.iter().map(|arg| self.value_of(arg, part)).collect::<Result<_>>()?;
            return Ok(Op::Pack { to: self.register(0)?.0, parts, bits });
        }
        if let Arg::List(parts) = self.arg(0)? {
            let bits = ty.bits() / parts.len().max(1) as u32;
            if !matches!(parts.len(), 2 | 4 | 8) || bits < 8 {
                return Err(self.unsupported());
            }
            return Ok(Op::Unpack { to: self.destinations(parts, bits)?, from: self.value(1, ty)?, bits });
        }
        let (to, of) = self.register(0)?;
        let with = alu::integer("mov", ty).ok_or_else(|| self.unsupported())?;
        if of.bits() != ty.bits() {
            return Err("the register is of another width".into());
        }
        let none = Operand::Value(0);
        Ok(Op::Compute { to, mask: of.mask(), with, a: self.value(1, ty)?, b: none, c: none, how: 0 })
    }

    fn cvta(&mut self) -> Result<Op> {
        let back = self.has("to");
        let space = self.space();
        let ty = self.ty()?;
        self.count(2, 2)?;
        let ((to, of), from) = (self.register(0)?, self.value(1, ty)?);
        if ty.bits() != 64 || of.bits() != 64 {
            return Err(self.unsupported());
        }
        let window = match space {
            Space::Global | Space::Const => 0,
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::KernelParam => PARAM_WINDOW,
            _ => return Err(self.unsupported()),
        };
        Ok(if back { Op::ToSpace { to, from, window } } else { Op::ToGeneric { to, from, window } })
    }

    /// `cp.async` without bulk (ISA 9.7.9.25): done at once, so that waiting for it is nothing.
    fn copy(&mut self) -> Result<Op> {
        let asynchronous = self.has("async");
        if self.one_of(&["commit_group", "wait_group", "wait_all"]).is_some() {
            return Ok(Op::Nothing);
        }
        self.order();
        if !asynchronous || !(self.has("shared") || self.has("shared::cta")) || !self.has("global") {
            return Err(self.unsupported());
        }
        self.count(3, 4)?;
        let (to, from) = (self.address(0, Space::Shared)?, self.address(1, Space::Global)?);
        let Operand::Value(bytes @ (4 | 8 | 16)) = self.value(2, Type::U32)? else {
            return Err(self.unsupported());
        };
        let source = match self.raw.args.get(3) {
            Some(Arg::Register(_, Type::Pred) | Arg::Not(_)) => return Err(self.unsupported()),
            Some(arg) => self.value_of(arg, Type::U32)?,
            None => Operand::Value(bytes),
        };
        Ok(Op::Copy { to, from, bytes: bytes as u32, source })
    }
}
