//! From instructions as written to the compact form. Called by `parse` when a module is read; `arithmetic`, `memory`,
//! `control` have a family of instructions each. A modifier or operand that is not understood is an error.

mod arithmetic;
mod control;
mod memory;

use crate::lexer::Number;
use crate::module::{Function, function_address};
use crate::op::{Destination, Guard, Instruction, Op, Operand, Register};
use crate::raw::{Arg, Body, Raw};
use crate::types::{Space, Type};

type Result<R> = std::result::Result<R, String>;

/// All instructions of a body. `shared`: where the kernel's own shared memory begins.
pub(crate) fn body(
    body: &Body<'_>,
    shared: u32,
    functions: &[Function],
) -> std::result::Result<Vec<Instruction>, (u32, String)> {
    let mut code = Vec::with_capacity(body.instructions.len() + 1);
    for raw in &body.instructions {
        let mut one = One { raw, body, shared, functions, used: vec![false; raw.modifiers.len()] };
        let op = one.decode().and_then(|op| one.finish().map(|()| op));
        let op = op.map_err(|what| (raw.line, what))?;
        code.push(Instruction { guard: raw.guard, op, line: raw.line });
    }
    // a body may end without `ret`, and labels may be behind its last instruction
    code.push(Instruction { guard: None, op: Op::Return, line: body.last_line });
    Ok(code)
}

/// One instruction while it is decoded.
struct One<'a, 'b> {
    raw: &'b Raw<'a>,
    body: &'b Body<'a>,
    shared: u32,
    functions: &'b [Function],
    /// Which modifiers have been understood.
    used: Vec<bool>,
}

impl<'a, 'b> One<'a, 'b> {
    fn decode(&mut self) -> Result<Op> {
        match self.raw.name {
            "ld" | "ldu" | "st" | "atom" | "red" | "cvta" | "isspacep" | "mov" | "cp" | "prefetch"
            | "prefetchu" | "alloca" | "stacksave" | "stackrestore" | "applypriority" | "discard" => {
                self.memory()
            }
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" | "shfl"
            | "vote" | "match" | "redux" | "elect" | "activemask" | "membar" | "fence" | "nanosleep"
            | "griddepcontrol" | "pmevent" => self.control(),
            _ => self.arithmetic(),
        }
    }

    /// Whether all modifiers were understood.
    fn finish(&self) -> Result<()> {
        match self.used.iter().position(|used| !used) {
            Some(n) => {
                Err(format!("`.{}` of `{}` is not supported here", self.raw.modifiers[n], self.raw.name))
            }
            None => Ok(()),
        }
    }

    fn unsupported(&self) -> String {
        format!("`{}` with these modifiers is not supported", self.raw.name)
    }

    /// Whether a modifier is there, now understood.
    fn has(&mut self, modifier: &str) -> bool {
        let at = self.raw.modifiers.iter().position(|&m| m == modifier);
        if let Some(at) = at {
            self.used[at] = true;
        }
        at.is_some()
    }

    /// The first of these that is there.
    fn one_of(&mut self, modifiers: &[&'static str]) -> Option<&'static str> {
        modifiers.iter().copied().find(|m| self.has(m))
    }

    fn all_understood(&mut self) {
        self.used.fill(true);
    }

    /// The next type among the modifiers.
    fn ty(&mut self) -> Result<Type> {
        self.ty_or_none().ok_or_else(|| format!("`{}` without a type that is known", self.raw.name))
    }

    fn ty_or_none(&mut self) -> Option<Type> {
        for (n, modifier) in self.raw.modifiers.iter().enumerate() {
            if let (false, Some(ty)) = (self.used[n], Type::named(modifier)) {
                self.used[n] = true;
                return Some(ty);
            }
        }
        None
    }

    fn arg(&self, n: usize) -> Result<&'b Arg<'a>> {
        self.raw.args.get(n).ok_or_else(|| format!("`{}` has too few operands", self.raw.name))
    }

    fn count(&self, least: usize, most: usize) -> Result<()> {
        let given = self.raw.args.len();
        if (least..=most).contains(&given) {
            Ok(())
        } else {
            Err(format!("`{}` has {given} operands, not {least} to {most}", self.raw.name))
        }
    }

    /// A register to write, by operand.
    fn register(&self, n: usize) -> Result<(Register, Type)> {
        match self.arg(n)? {
            Arg::Register(register, ty) => Ok((*register, *ty)),
            _ => Err(format!("operand {} has to be a register", n + 1)),
        }
    }

    fn predicate(&self, n: usize) -> Result<Register> {
        match self.register(n)? {
            (register, Type::Pred) => Ok(register),
            _ => Err(format!("operand {} has to be a predicate", n + 1)),
        }
    }

    /// A predicate to read, perhaps negated.
    fn guard(&self, n: usize) -> Result<Guard> {
        match self.arg(n)? {
            Arg::Not(register) => Ok(Guard { register: *register, negated: true }),
            _ => Ok(Guard { register: self.predicate(n)?, negated: false }),
        }
    }

    /// One or two results: `d` or `d|p`.
    fn results(&self, n: usize) -> Result<(Destination, Destination)> {
        let destination = |half: Option<(Register, Type)>| half.map(|(register, ty)| (register, ty.mask()));
        match self.arg(n)? {
            Arg::Register(register, ty) => Ok((destination(Some((*register, *ty))), None)),
            Arg::Sink => Ok((None, None)),
            Arg::Pair(p, q) => Ok((destination(*p), destination(*q))),
            _ => Err(format!("operand {} has to be a register", n + 1)),
        }
    }

    /// The value of an operand, for an instruction of a type.
    fn value(&self, n: usize, ty: Type) -> Result<Operand> {
        self.value_of(self.arg(n)?, ty)
    }

    fn value_of(&self, arg: &Arg<'a>, ty: Type) -> Result<Operand> {
        Ok(match arg {
            Arg::Register(_, of) if (*of == Type::Pred) != (ty == Type::Pred) => {
                return Err("a predicate beside other values".into());
            }
            Arg::Register(register, _) => Operand::Register(*register),
            Arg::Number(number) => Operand::Value(literal(*number, ty)?),
            Arg::Special(special) => Operand::Special(*special),
            Arg::Variable(operand, _) => *operand,
            Arg::Shared { own, at } => Operand::Value(u64::from(at + if *own { self.shared } else { 0 })),
            Arg::Function(number) => Operand::Value(function_address(*number)),
            Arg::Parameter { space: Space::KernelParam, at, offset, .. } => {
                Operand::Value(u64::from(*at).wrapping_add(*offset as u64))
            }
            Arg::Parameter { .. } => {
                return Err("the address of a function's parameter is not supported".into());
            }
            Arg::Name(name) => return Err(format!("`{name}` is not declared")),
            _ => return Err("this operand is not supported here".into()),
        })
    }
}

/// A literal as bits of a type (ISA 4.5).
fn literal(number: Number, ty: Type) -> Result<u64> {
    Ok(match (number, ty) {
        (Number::Integer(_), Type::F32 | Type::F64) => {
            return Err("an integer beside a floating-point type".into());
        }
        (Number::Integer(value), _) => value & ty.mask(),
        (Number::Single(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Number::Single(bits), _) if ty.bits() == 32 => u64::from(bits),
        (Number::Double(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Number::Double(bits), _) if ty.bits() == 64 => bits,
        _ => return Err("a literal of another type".into()),
    })
}
