//! Integers, floats, comparisons, conversions, logic (ISA 9.7.1 to 9.7.8, 9.7.9.7, 9.7.9.21).

use super::{One, Result};
use crate::alu;
use crate::convert;
use crate::float::{FTZ, NAN, RELU, Rounding, SAT};
use crate::op::{Compare, Compute, Join, MadCarry, Op, Operand};
use crate::types::Type;

const NONE: Operand = Operand::Value(0);

impl One<'_, '_> {
    pub(super) fn arithmetic(&mut self) -> Result<Op> {
        match self.raw.name {
            "setp" => self.setp(),
            "set" => self.set(),
            "cvt" => self.cvt(),
            "testp" => {
                self.count(2, 2)?;
                let test =
                    self.one_of(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"]);
                let ty = self.ty()?;
                let with = test.and_then(|test| alu::test(test, ty)).ok_or_else(|| self.unsupported())?;
                let (to, a) = (self.predicate(0)?, self.value(1, ty)?);
                Ok(Op::Compute { to, mask: 1, with, a, b: NONE, c: NONE, how: 0 })
            }
            "addc" | "subc" | "madc" => self.carry(),
            "add" | "sub" | "mad" if self.raw.modifiers.contains(&"cc") => self.carry(),
            "selp" | "slct" | "lop3" | "shf" | "prmt" | "dp4a" | "bfi" => self.selection(),
            _ => self.plain(),
        }
    }

    /// Rounding and flags of floats.
    fn how(&mut self) -> u32 {
        let rounding = match self.one_of(&["rn", "rz", "rm", "rp"]) {
            Some("rz") => Rounding::Zero,
            Some("rm") => Rounding::Down,
            Some("rp") => Rounding::Up,
            _ => Rounding::Nearest,
        };
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        rounding as u32
            | flag(self.has("ftz"), FTZ)
            | flag(self.has("sat"), SAT)
            | flag(self.has("NaN"), NAN)
            | flag(self.has("relu"), RELU)
    }

    /// Those whose operands are all of the instruction's type, or nearly.
    fn plain(&mut self) -> Result<Op> {
        let name = self.raw.name;
        let approximate = self.has("approx") | self.has("full");
        let part = self.one_of(&["lo", "hi", "wide", "shiftamt"]);
        let ty = self.ty()?;
        let (with, how): (Option<Compute>, u32) = if ty.is_float() {
            let how = self.how();
            match ty {
                Type::F32 => (alu::single(name), how),
                Type::F64 if approximate && name == "rcp" => {
                    (alu::double("rcp.approx", Rounding::Nearest), how)
                }
                Type::F64 => (alu::double(name, Rounding::of(how)), how & 3),
                _ => match alu::half(name, ty) {
                    Some((with, add)) => (Some(with), add | how),
                    None => (None, 0),
                },
            }
        } else {
            let saturated = self.has("sat");
            let whole = match (part, saturated) {
                (_, true) => format!("{name}.sat"),
                (Some(part), _) => format!("{name}.{part}"),
                _ if ty == Type::Pred && name == "not" => "not.pred".into(),
                _ => name.into(),
            };
            (alu::integer(&whole, ty), 0)
        };
        let with = with.ok_or_else(|| self.unsupported())?;
        let sources = match name {
            "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl" | "shr"
            | "copysign" | "mul24" => 2,
            "mad" | "fma" | "sad" | "bfe" | "mad24" => 3,
            _ => 1,
        };
        self.count(sources + 1, sources + 1)?;
        let wide = match (part, ty) {
            (Some("wide"), Type::S16 | Type::U16) => Type::U32,
            (Some("wide"), Type::S32 | Type::U32) => Type::U64,
            (Some("wide"), _) => return Err(self.unsupported()),
            _ => ty,
        };
        let source = |n: usize| match (name, n) {
            ("shl" | "shr" | "bfe", 2 | 3) => Type::U32,
            ("mad", 3) => wide,
            _ => ty,
        };
        let (to, of) = self.register(0)?;
        let mut operands = [NONE; 3];
        for (n, operand) in operands.iter_mut().enumerate().take(sources) {
            *operand = self.value(n + 1, source(n + 1))?;
        }
        let result = if matches!(name, "popc" | "clz" | "bfind") { Type::U32 } else { wide };
        if result.bits() != of.bits() {
            return Err(format!("the result has {} bits, its register {}", result.bits(), of.bits()));
        }
        let [a, b, c] = operands;
        Ok(Op::Compute { to, mask: of.mask(), with, a, b, c, how })
    }

    /// Those with a selector, a table or a mode.
    fn selection(&mut self) -> Result<Op> {
        let name = self.raw.name;
        let mut how = 0;
        let direction = self.one_of(&["l", "r"]);
        let kind = self.one_of(&["wrap", "clamp"]);
        let mode = (1..7).find(|&n| self.has(alu::PERMUTE[n])).unwrap_or(0) as u32;
        if self.has("ftz") {
            how = FTZ;
        }
        let ty = self.ty()?;
        let mut types = [ty; 3];
        let mut whole = name.to_string();
        match name {
            "selp" => {
                let guard = self.guard(3)?;
                let (to, of) = self.register(0)?;
                let with = alu::integer(name, ty).ok_or_else(|| self.unsupported())?;
                let (a, b, c) = (self.value(1, ty)?, self.value(2, ty)?, Operand::Register(guard.register));
                return Ok(Op::Compute { to, mask: of.mask(), with, a, b, c, how: guard.negated.into() });
            }
            "slct" => {
                types[2] = self.ty()?;
                whole = if types[2] == Type::F32 { "slct.f32".into() } else { "slct.s32".into() };
            }
            "lop3" => {
                let Operand::Value(table) = self.value(4, Type::U32)? else {
                    return Err("the table of `lop3` has to be a number".into());
                };
                how = table as u32;
            }
            "shf" => whole = format!("shf.{}.{}", direction.unwrap_or(""), kind.unwrap_or("")),
            "prmt" => how = mode,
            "dp4a" => {
                let second = self.ty()?;
                how = u32::from(ty.is_signed()) | u32::from(second.is_signed()) << 1;
            }
            _ => {
                self.count(5, 5)?;
                let (to, of) = self.register(0)?;
                let (position, length) = (self.value(3, Type::U32)?, self.value(4, Type::U32)?);
                let operands = [self.value(1, ty)?, self.value(2, ty)?, position, length];
                return Ok(Op::Insert(Box::new((to, operands, of.bits()))));
            }
        }
        self.count(4, if name == "lop3" { 5 } else { 4 })?;
        let with = alu::integer(&whole, ty).ok_or_else(|| self.unsupported())?;
        let (to, of) = self.register(0)?;
        let (a, b, c) = (self.value(1, types[0])?, self.value(2, types[1])?, self.value(3, types[2])?);
        Ok(Op::Compute { to, mask: of.mask(), with, a, b, c, how })
    }

    /// Extended precision (ISA 9.7.2): with a carry in or out.
    fn carry(&mut self) -> Result<Op> {
        let writes = self.has("cc");
        let reads = self.raw.name.ends_with('c');
        let part = self.one_of(&["lo", "hi"]);
        let ty = self.ty()?;
        let ((to, of), bits) = (self.register(0)?, ty.bits());
        let (a, b) = (self.value(1, ty)?, self.value(2, ty)?);
        if of.bits() != bits || bits < 32 || ty.is_float() {
            return Err(self.unsupported());
        }
        if let Some(part) = part {
            self.count(4, 4)?;
            let product = alu::integer(&format!("mul.{part}"), ty).ok_or_else(|| self.unsupported())?;
            let c = self.value(3, ty)?;
            return Ok(Op::MadCarry(Box::new(MadCarry { to, product, a, b, c, reads, writes, bits })));
        }
        self.count(3, 3)?;
        Ok(Op::Carry { to, a, b, subtract: self.raw.name.starts_with("sub"), reads, writes, bits })
    }

    /// What `set` and `setp` have in common: the test, and how it is joined with a predicate.
    fn comparison(&mut self) -> Result<(Compare, Type)> {
        let name = self.one_of(&[
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
            "geu", "num", "nan",
        ]);
        let join = match self.one_of(&["and", "or", "xor"]) {
            Some("and") => Some(Join::And),
            Some("or") => Some(Join::Or),
            Some(_) => Some(Join::Xor),
            None => None,
        };
        let how = if self.has("ftz") { FTZ } else { 0 };
        let result = if self.raw.name == "set" { self.ty()? } else { Type::Pred };
        let ty = self.ty()?;
        self.count(if join.is_some() { 4 } else { 3 }, 4)?;
        let with = name.and_then(|name| alu::compare(name, ty)).ok_or_else(|| self.unsupported())?;
        let join = match join {
            Some(join) => Some((join, self.guard(3)?)),
            None => None,
        };
        let (p, q) = self.results(0)?;
        let compare =
            Compare { p, q, with, a: self.value(1, ty)?, b: self.value(2, ty)?, join, truth: 1, how };
        Ok((compare, result))
    }

    fn setp(&mut self) -> Result<Op> {
        let (compare, _) = self.comparison()?;
        if compare.p.iter().chain(&compare.q).any(|&(_, mask)| mask != 1) {
            return Err("`setp` writes predicates".into());
        }
        Ok(Op::Compare(Box::new(compare)))
    }

    fn set(&mut self) -> Result<Op> {
        let (mut compare, result) = self.comparison()?;
        compare.truth = match result {
            Type::F32 => 1f32.to_bits().into(),
            Type::U32 | Type::S32 => u32::MAX.into(),
            _ => return Err(self.unsupported()),
        };
        Ok(Op::Compare(Box::new(compare)))
    }

    fn cvt(&mut self) -> Result<Op> {
        let integral = match self.one_of(&["rni", "rzi", "rmi", "rpi"]) {
            Some("rni") => Some(Rounding::Nearest),
            Some("rzi") => Some(Rounding::Zero),
            Some("rmi") => Some(Rounding::Down),
            Some(_) => Some(Rounding::Up),
            None => None,
        };
        let mut flags = self.how();
        if let Some(rounding) = integral {
            flags |= rounding as u32 | convert::INTEGRAL;
        }
        let (to_type, from) = (self.ty()?, self.ty()?);
        let pair = matches!(to_type, Type::F16x2 | Type::Bf16x2);
        let single = |ty| !matches!(ty, Type::Pred | Type::F16x2 | Type::Bf16x2);
        if !single(from) || (pair && from != Type::F32) || (!pair && !single(to_type)) {
            return Err(self.unsupported());
        }
        if from.is_float() && !to_type.is_float() && integral.is_none() {
            return Err("`cvt` of a float to an integer needs .rni, .rzi, .rmi or .rpi".into());
        }
        let how = convert::how(to_type, from, flags).ok_or_else(|| self.unsupported())?;
        let (to, of) = self.register(0)?;
        if of.bits() < to_type.bits() {
            return Err("the register is too narrow for the result".into());
        }
        self.count(if pair { 3 } else { 2 }, if pair { 3 } else { 2 })?;
        let a = self.value(1, from)?;
        let (with, b): (Compute, _) =
            if pair { (convert::pack_halves, self.value(2, from)?) } else { (convert::convert, NONE) };
        Ok(Op::Compute { to, mask: of.mask(), with, a, b, c: NONE, how })
    }
}
