//! Branches and calls (ISA 9.7.12), barriers and what warps do together (9.7.13).

use super::{One, Result};
use crate::op::{Barrier, BarrierResult, Call, Callee, Op, Operand, Reduce, Shuffle, Slot, Together, WarpOp};
use crate::raw::Arg;
use crate::types::{Space, Type};

const NONE: Operand = Operand::Value(0);

impl<'a> One<'a, '_> {
    pub(super) fn control(&mut self) -> Result<Op> {
        match self.raw.name {
            "bra" => {
                self.has("uni");
                self.count(1, 1)?;
                let Arg::Name(label) = self.arg(0)? else {
                    return Err("a label belongs here".into());
                };
                Ok(Op::Branch(self.target(label)?))
            }
            "brx" => {
                self.has("idx");
                self.has("uni");
                self.count(2, 2)?;
                let Arg::Name(list) = self.arg(1)? else {
                    return Err("a list of targets belongs here".into());
                };
                let list = self.body.table(self.raw.scope, list).ok_or("there is no such list of targets")?;
                let targets = list.iter().map(|label| self.target(label)).collect::<Result<_>>()?;
                Ok(Op::BranchTable { at: self.value(0, Type::U32)?, targets })
            }
            "call" => self.call(),
            "ret" => {
                self.has("uni");
                Ok(Op::Return)
            }
            "exit" => Ok(Op::Exit),
            "trap" | "brkpt" => Ok(Op::Trap),
            "bar" | "barrier" => self.barrier(),
            "shfl" | "vote" | "match" | "redux" | "elect" => self.together(),
            "activemask" => {
                self.ty()?;
                Ok(Op::ActiveMask { to: self.register(0)?.0 })
            }
            _ => {
                self.all_understood(); // fences: every access is done at once; sleep: no time here
                Ok(Op::Nothing)
            }
        }
    }

    fn target(&self, label: &'a str) -> Result<u32> {
        let at =
            self.body.label(self.raw.scope, label).ok_or_else(|| format!("there is no label `{label}`"))?;
        u32::try_from(at).map_err(|_| "too many instructions".into())
    }

    fn slots(&self, args: &[Arg<'a>]) -> Result<Box<[Slot]>> {
        args.iter()
            .map(|arg| match arg {
                Arg::Parameter { space: Space::Param, at, bytes, offset: 0 } => {
                    Ok(Slot::Memory { at: *at, bytes: *bytes })
                }
                Arg::Register(register, ty) => Ok(Slot::Register { register: *register, mask: ty.mask() }),
                Arg::Number(number) => Ok(Slot::Constant(super::literal(*number, Type::B64)?)),
                _ => Err("a parameter or a register belongs into a call".into()),
            })
            .collect()
    }

    fn call(&mut self) -> Result<Op> {
        self.has("uni");
        let mut args = self.raw.args.as_slice();
        let mut results: Box<[Slot]> = Box::default();
        if let [Arg::List(list), rest @ ..] = args {
            (results, args) = (self.slots(list)?, rest);
        }
        let [callee, rest @ ..] = args else {
            return Err("`call` of nothing".into());
        };
        let arguments = match rest.first() {
            Some(Arg::List(list)) => self.slots(list)?,
            _ => Box::default(),
        };
        let callee = match callee {
            Arg::Function(number) => {
                let function = self.functions.get(*number).ok_or("no such function")?;
                check(&arguments, &function.inputs)?;
                check(&results, &function.outputs)?;
                if function.entry {
                    return Err("`call` of a kernel".into());
                }
                Callee::Function(*number as u32)
            }
            Arg::Register(register, _) => Callee::Pointer(Operand::Register(*register)),
            Arg::Name(name) => return Err(format!("`{name}` is no function that is declared")),
            _ => return Err("this cannot be called".into()),
        };
        Ok(Op::Call(Box::new(Call { callee, arguments, results })))
    }

    /// A barrier of a block (ISA 9.7.13.1), or of a warp (9.7.13.2).
    fn barrier(&mut self) -> Result<Op> {
        if self.has("warp") {
            self.has("sync");
            self.count(1, 1)?;
            return self.warp_op(Together::Barrier, (None, None), [NONE; 3], self.value(0, Type::B32)?);
        }
        self.has("cta");
        self.has("aligned");
        let kind = self.one_of(&["sync", "arrive", "red"]).ok_or_else(|| self.unsupported())?;
        let mut barrier = Barrier {
            id: NONE,
            count: None,
            waits: kind != "arrive",
            result: BarrierResult::Nothing,
            to: None,
            predicate: None,
        };
        let mut first = 0;
        let mut last = self.raw.args.len();
        if kind == "red" {
            barrier.result = match self.one_of(&["popc", "and", "or"]) {
                Some("popc") => BarrierResult::Count,
                Some("and") => BarrierResult::And,
                Some(_) => BarrierResult::Or,
                None => return Err(self.unsupported()),
            };
            self.ty()?;
            self.count(3, 4)?;
            (first, last) = (1, last - 1);
            barrier.to = self.results(0)?.0;
            barrier.predicate = Some(self.guard(last)?);
        }
        if !(1..=2).contains(&(last - first)) {
            return Err("a barrier has a number, and perhaps a number of threads".into());
        }
        barrier.id = self.value(first, Type::U32)?;
        if last - first == 2 {
            barrier.count = Some(self.value(first + 1, Type::U32)?);
        } else if kind == "arrive" {
            return Err("`arrive` needs a number of threads".into());
        }
        Ok(Op::Barrier(Box::new(barrier)))
    }

    fn warp_op(
        &self,
        what: Together,
        results: (crate::op::Destination, crate::op::Destination),
        [a, b, c]: [Operand; 3],
        mask: Operand,
    ) -> Result<Op> {
        let (to, predicate) = results;
        Ok(Op::Together(Box::new(WarpOp { what, to, predicate, a, negated: false, b, c, mask })))
    }

    fn together(&mut self) -> Result<Op> {
        if !self.has("sync") {
            return Err(format!("`{}` without .sync is gone since sm_70", self.raw.name));
        }
        match self.raw.name {
            "shfl" => {
                let how = match self.one_of(&["up", "down", "bfly", "idx"]) {
                    Some("up") => Shuffle::Up,
                    Some("down") => Shuffle::Down,
                    Some("bfly") => Shuffle::Butterfly,
                    Some(_) => Shuffle::Index,
                    None => return Err(self.unsupported()),
                };
                let ty = self.ty()?;
                self.count(5, 5)?;
                let operands = [self.value(1, ty)?, self.value(2, Type::U32)?, self.value(3, Type::U32)?];
                self.warp_op(Together::Shuffle(how), self.results(0)?, operands, self.value(4, Type::B32)?)
            }
            "vote" => {
                let what = match self.one_of(&["all", "any", "uni", "ballot"]) {
                    Some("all") => Together::VoteAll,
                    Some("any") => Together::VoteAny,
                    Some("uni") => Together::VoteUniform,
                    Some(_) => Together::Ballot,
                    None => return Err(self.unsupported()),
                };
                self.ty()?;
                self.count(3, 3)?;
                let guard = self.guard(1)?;
                let operands = [Operand::Register(guard.register), NONE, NONE];
                let mut op = self.warp_op(what, self.results(0)?, operands, self.value(2, Type::B32)?)?;
                if let Op::Together(it) = &mut op {
                    it.negated = guard.negated;
                }
                Ok(op)
            }
            "match" => {
                let all = self.one_of(&["all", "any"]).ok_or_else(|| self.unsupported())? == "all";
                let ty = self.ty()?;
                self.count(3, 3)?;
                let what = if all { Together::MatchAll(ty.mask()) } else { Together::MatchAny(ty.mask()) };
                self.warp_op(
                    what,
                    self.results(0)?,
                    [self.value(1, ty)?, NONE, NONE],
                    self.value(2, Type::B32)?,
                )
            }
            "redux" => {
                let how = match self.one_of(&["add", "min", "max", "and", "or", "xor"]) {
                    Some("add") => Reduce::Add,
                    Some("min") => Reduce::Min,
                    Some("max") => Reduce::Max,
                    Some("and") => Reduce::And,
                    Some("or") => Reduce::Or,
                    Some(_) => Reduce::Xor,
                    None => return Err(self.unsupported()),
                };
                let ty = self.ty()?;
                self.count(3, 3)?;
                if ty.bits() != 32 || ty.is_float() {
                    return Err(self.unsupported());
                }
                let operands = [self.value(1, ty)?, NONE, NONE];
                self.warp_op(Together::Reduce(how, ty), self.results(0)?, operands, self.value(2, Type::B32)?)
            }
            _ => {
                self.count(2, 2)?;
                self.warp_op(Together::Elect, self.results(0)?, [NONE; 3], self.value(1, Type::B32)?)
            }
        }
    }
}

/// Whether what is passed has the sizes of what is declared.
fn check(given: &[Slot], wanted: &[Slot]) -> Result<()> {
    let fits = given.len() == wanted.len()
        && given.iter().zip(wanted).all(|(given, wanted)| match (given.bytes(), wanted.bytes()) {
            (Some(given), Some(wanted)) => given == wanted,
            _ => true,
        });
    if fits { Ok(()) } else { Err("a call with other parameters than the function has".into()) }
}
