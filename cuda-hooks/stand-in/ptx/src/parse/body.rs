//! Bodies of kernels and functions: declarations, labels, instructions with their operands (ISA 4.3, 6, 9.2).

use std::collections::HashMap;

use super::cursor::{Failure, shown};
use super::function::Formal;
use super::variable::place;
use super::{Linkage, Named, Reader};
use crate::lexer::{Number, Token};
use crate::op::{Guard, Mask, Operand, Register, Special};
use crate::raw::{Arg, Body, Raw};
use crate::types::{Space, Type};

/// Most registers that one function may use.
const MOST_REGISTERS: u32 = 1 << 18;
const DEEPEST: usize = 64;

/// What a name of a body means.
enum Local<'a> {
    Register(Register, Type),
    /// `%r<100>`: a register gets its number when it is first named.
    Registers(u64, Type),
    Other(Arg<'a>),
}

/// Names of the blocks that the parser is in.
struct Names<'a> {
    blocks: Vec<(usize, HashMap<&'a str, Local<'a>>)>,
    registers: u32,
}

impl<'a> Names<'a> {
    fn declare(&mut self, name: &'a str, meaning: Local<'a>) -> bool {
        self.blocks.last_mut().is_some_and(|(_, names)| names.insert(name, meaning).is_none())
    }

    /// The register of a name, of any block around.
    fn find(&mut self, name: &'a str) -> Option<Arg<'a>> {
        for (_, names) in self.blocks.iter_mut().rev() {
            match names.get(name) {
                Some(Local::Register(register, ty)) => return Some(Arg::Register(*register, *ty)),
                Some(Local::Other(arg)) => return Some(arg.clone()),
                Some(Local::Registers(..)) | None => {}
            }
            let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
            for split in digits..name.len() {
                let (prefix, number) = name.split_at(split);
                let plain = number == "0" || !number.starts_with('0');
                if let (Some(Local::Registers(count, ty)), true) = (names.get(prefix), plain)
                    && number.parse::<u64>().is_ok_and(|n| n < *count)
                {
                    let (register, ty) = (self.registers, *ty);
                    self.registers += 1;
                    names.insert(name, Local::Register(register, ty));
                    return Some(Arg::Register(register, ty));
                }
            }
        }
        None
    }
}

/// Everything of one body.
struct Frame<'a> {
    body: Body<'a>,
    names: Names<'a>,
    parameters: u32,
    local: u32,
    /// Shared memory of this kernel alone.
    shared: u32,
    entry: bool,
}

impl<'a> Frame<'a> {
    fn scope(&self) -> usize {
        self.names.blocks.last().map_or(0, |(scope, _)| *scope)
    }

    fn open(&mut self) {
        let (outer, new) = (self.scope(), self.body.outer.len());
        self.body.outer.push(outer);
        self.names.blocks.push((new, HashMap::new()));
    }
}

impl<'a> Reader<'a> {
    /// From the first brace to the last.
    pub(super) fn body(&mut self, number: usize, formals: Vec<Formal<'a>>) -> Result<(), Failure> {
        let function = &self.functions[number];
        let mut frame = Frame {
            body: Body { function: number, ..Body::default() },
            names: Names { blocks: Vec::new(), registers: 0 },
            parameters: if function.entry { 0 } else { function.parameter_bytes },
            local: 0,
            shared: 0,
            entry: function.entry,
        };
        self.cursor.expect('{')?;
        frame.open();
        for formal in formals {
            let good = match formal {
                Formal::Memory(name, arg) => frame.names.declare(name, Local::Other(arg)),
                Formal::Register(name, ty) => {
                    frame.names.registers += 1;
                    let register = frame.names.registers - 1;
                    frame.names.declare(name, Local::Register(register, ty))
                }
            };
            if !good {
                return self.cursor.fail("two parameters of one name");
            }
        }
        while !frame.names.blocks.is_empty() {
            self.statement(&mut frame)?;
            if frame.names.registers > MOST_REGISTERS {
                return self.cursor.fail("too many registers");
            }
        }
        let function = &mut self.functions[number];
        function.registers = frame.names.registers;
        function.local_bytes = frame.local;
        function.shared_bytes = frame.shared;
        if !frame.entry {
            function.parameter_bytes = frame.parameters;
        } else {
            // of a kernel: what its calls need; its own parameters are the launch's
            function.parameter_bytes = frame.parameters;
        }
        self.bodies.push(frame.body);
        Ok(())
    }

    fn statement(&mut self, frame: &mut Frame<'a>) -> Result<(), Failure> {
        match self.cursor.peek() {
            Token::Sign('{') => {
                if frame.names.blocks.len() == DEEPEST {
                    return self.cursor.fail("blocks in more than 64 levels");
                }
                self.cursor.next();
                frame.open();
            }
            Token::Sign('}') => {
                frame.body.last_line = self.cursor.line();
                self.cursor.next();
                frame.names.blocks.pop();
            }
            Token::Sign(';') => {
                self.cursor.next();
            }
            Token::Dot(_) => {
                if !self.skip_directive()? {
                    self.declaration(frame)?;
                }
            }
            Token::Word(name) if self.cursor.peek_second() == Token::Sign(':') => {
                self.cursor.next();
                self.cursor.next();
                self.label(frame, name)?;
            }
            Token::Word(_) | Token::Sign('@') => self.instruction(frame)?,
            other => return self.cursor.fail(format!("an instruction belongs here, not {}", shown(other))),
        }
        Ok(())
    }

    fn label(&mut self, frame: &mut Frame<'a>, name: &'a str) -> Result<(), Failure> {
        let key = (frame.scope(), name);
        let fresh = match self.cursor.peek() {
            Token::Dot("callprototype" | "calltargets") => {
                self.cursor.skip_past(';')?;
                return Ok(());
            }
            Token::Dot("branchtargets") => {
                self.cursor.next();
                let mut targets = vec![self.cursor.word()?];
                while self.cursor.take(',') {
                    targets.push(self.cursor.word()?);
                }
                self.cursor.expect(';')?;
                frame.body.tables.insert(key, targets).is_none()
            }
            _ => frame.body.labels.insert(key, frame.body.instructions.len()).is_none(),
        };
        if fresh { Ok(()) } else { self.cursor.fail(format!("two labels `{name}`")) }
    }

    /// `.reg`, `.local`, `.shared`, `.param`, `.global` and `.const` in a body.
    fn declaration(&mut self, frame: &mut Frame<'a>) -> Result<(), Failure> {
        let kind = self.cursor.next();
        if kind == Token::Dot("reg") {
            return self.registers(frame);
        }
        let linkage = Linkage::default();
        let shape = self.shape()?;
        loop {
            let name = self.cursor.word()?;
            let arg = match kind {
                Token::Dot("local") => {
                    let at = self.small(&mut frame.local, shape)?.0;
                    Arg::Variable(Operand::Local(at), Space::Local)
                }
                Token::Dot("param") => {
                    let (at, bytes) = self.small(&mut frame.parameters, shape)?;
                    Arg::Parameter { space: Space::Param, at, bytes, offset: 0 }
                }
                Token::Dot("shared") if frame.entry => {
                    Arg::Shared { own: true, at: self.small(&mut frame.shared, shape)?.0 }
                }
                Token::Dot(space @ ("shared" | "global" | "const")) => {
                    let space = match space {
                        "shared" => Space::Shared,
                        "global" => Space::Global,
                        _ => Space::Const,
                    };
                    named(self.variable(space, shape, name, linkage)?)
                }
                other => return self.cursor.fail(format!("{} is not supported in a body", shown(other))),
            };
            if !frame.names.declare(name, Local::Other(arg)) {
                return self.cursor.fail(format!("`{name}` is declared twice"));
            }
            if !self.cursor.take(',') {
                return self.cursor.expect(';');
            }
        }
    }

    /// A place in one of the function's small memories: where, and how many bytes.
    fn small(&mut self, used: &mut u32, shape: super::variable::Shape) -> Result<(u32, u32), Failure> {
        let count = self.dimensions(super::variable::LARGEST_SMALL)?;
        match count.and_then(|count| place(u64::from(*used), shape, count)) {
            Some((at, end)) => {
                *used = end;
                Ok((at, end - at))
            }
            None => self.cursor.fail("of no size, or too large"),
        }
    }

    fn registers(&mut self, frame: &mut Frame<'a>) -> Result<(), Failure> {
        let shape = self.shape()?;
        if shape.vector != 1 {
            return self.cursor.fail("vectors of registers are not supported");
        }
        loop {
            let name = self.cursor.word()?;
            let meaning = if self.cursor.take('<') {
                let count = self.cursor.integer()?;
                self.cursor.expect('>')?;
                Local::Registers(count, shape.ty)
            } else {
                frame.names.registers += 1;
                Local::Register(frame.names.registers - 1, shape.ty)
            };
            if !frame.names.declare(name, meaning) {
                return self.cursor.fail(format!("`{name}` is declared twice"));
            }
            if !self.cursor.take(',') {
                return self.cursor.expect(';');
            }
        }
    }

    fn instruction(&mut self, frame: &mut Frame<'a>) -> Result<(), Failure> {
        let mut guard = None;
        if self.cursor.take('@') {
            let negated = self.cursor.take('!');
            let name = self.cursor.word()?;
            match frame.names.find(name) {
                Some(Arg::Register(register, Type::Pred)) => guard = Some(Guard { register, negated }),
                _ => return self.cursor.fail(format!("`{name}` is no predicate")),
            }
        }
        let line = self.cursor.line();
        let name = self.cursor.word()?;
        let mut modifiers = Vec::new();
        while let Token::Dot(modifier) = self.cursor.peek() {
            self.cursor.next();
            modifiers.push(modifier);
        }
        let mut args = Vec::new();
        if !self.cursor.take(';') {
            loop {
                args.push(self.argument(frame, true)?);
                if !self.cursor.take(',') {
                    break;
                }
            }
            self.cursor.expect(';')?;
        }
        let scope = frame.scope();
        frame.body.instructions.push(Raw { line, guard, name, modifiers, args, scope });
        Ok(())
    }

    fn argument(&mut self, frame: &mut Frame<'a>, lists: bool) -> Result<Arg<'a>, Failure> {
        match self.cursor.peek() {
            Token::Sign(open @ ('{' | '(')) if lists => {
                self.cursor.next();
                let close = if open == '{' { '}' } else { ')' };
                let mut parts = Vec::new();
                if self.cursor.take(close) {
                    return Ok(Arg::List(parts));
                }
                loop {
                    parts.push(self.argument(frame, false)?);
                    if !self.cursor.take(',') {
                        break;
                    }
                }
                self.cursor.expect(close)?;
                Ok(Arg::List(parts))
            }
            Token::Sign('[') if lists => {
                self.cursor.next();
                let base = self.argument(frame, false)?;
                let offset = self.cursor.offset()?;
                self.cursor.expect(']')?;
                Ok(Arg::Memory(Box::new(base), offset))
            }
            Token::Sign('!') => {
                self.cursor.next();
                let name = self.cursor.word()?;
                match frame.names.find(name) {
                    Some(Arg::Register(register, Type::Pred)) => Ok(Arg::Not(register)),
                    _ => self.cursor.fail(format!("`{name}` is no predicate")),
                }
            }
            Token::Sign('-' | '~') | Token::Number(_) => Ok(Arg::Number(self.cursor.number()?)),
            Token::Word(name) => {
                self.cursor.next();
                let arg = self.named_argument(frame, name)?;
                if self.cursor.take('|') {
                    let second = self.cursor.word()?;
                    let second = self.named_argument(frame, second)?;
                    return match (half(&arg), half(&second)) {
                        (Some(p), Some(q)) => Ok(Arg::Pair(p, q)),
                        _ => self.cursor.fail("registers belong beside `|`"),
                    };
                }
                Ok(arg)
            }
            other => self.cursor.fail(format!("an operand belongs here, not {}", shown(other))),
        }
    }

    fn named_argument(&mut self, frame: &mut Frame<'a>, name: &'a str) -> Result<Arg<'a>, Failure> {
        if name == "_" {
            return Ok(Arg::Sink);
        }
        if let Some(arg) = frame.names.find(name) {
            return self.moved(arg);
        }
        if let Some(&meaning) = self.names.get(name) {
            return self.moved(named(meaning));
        }
        if name == "WARP_SZ" {
            return Ok(Arg::Number(Number::Integer(32)));
        }
        if !name.starts_with('%') {
            return Ok(Arg::Name(name));
        }
        let part = match self.cursor.peek() {
            Token::Dot(part) => {
                self.cursor.next();
                part
            }
            _ => "",
        };
        match special(name, part) {
            Some(arg) => Ok(arg),
            None => self.cursor.fail(format!("`{name}` is no register that is declared or known")),
        }
    }

    /// `name + 8` outside brackets, or `name[0]` (ISA, mov: "move address of A[5] into ptr"; no other element here).
    fn moved(&mut self, arg: Arg<'a>) -> Result<Arg<'a>, Failure> {
        let is_place = matches!(arg, Arg::Variable(..) | Arg::Shared { .. });
        if is_place && self.cursor.take('[') {
            if self.cursor.integer()? != 0 {
                return self.cursor.fail("an element other than the first is not supported here");
            }
            self.cursor.expect(']')?;
            return Ok(arg);
        }
        if matches!(arg, Arg::Register(..)) || self.cursor.peek() != Token::Sign('+') {
            return Ok(arg);
        }
        let by = self.cursor.offset()?;
        let narrow = |at: u32| u32::try_from(i64::from(at).checked_add(by)?).ok();
        let moved = match arg {
            Arg::Variable(Operand::Global(n, at), space) => i64::from(at)
                .checked_add(by)
                .and_then(|at| i32::try_from(at).ok())
                .map(|at| Arg::Variable(Operand::Global(n, at), space)),
            Arg::Variable(Operand::Local(at), space) => {
                narrow(at).map(|at| Arg::Variable(Operand::Local(at), space))
            }
            Arg::Variable(Operand::Dynamic(at), space) => i64::from(at)
                .checked_add(by)
                .and_then(|at| i32::try_from(at).ok())
                .map(|at| Arg::Variable(Operand::Dynamic(at), space)),
            Arg::Shared { own, at } => narrow(at).map(|at| Arg::Shared { own, at }),
            Arg::Parameter { space, at, bytes, offset } => {
                offset.checked_add(by).map(|offset| Arg::Parameter { space, at, bytes, offset })
            }
            _ => None,
        };
        match moved {
            Some(arg) => Ok(arg),
            None => self.cursor.fail("an offset that is not supported here"),
        }
    }
}

fn half(arg: &Arg<'_>) -> Option<Option<(Register, Type)>> {
    match arg {
        Arg::Register(register, ty) => Some(Some((*register, *ty))),
        Arg::Sink => Some(None),
        _ => None,
    }
}

fn named<'a>(meaning: Named) -> Arg<'a> {
    match meaning {
        Named::Variable(number) => Arg::Variable(Operand::Global(number as u32, 0), Space::Global),
        Named::Shared(at) => Arg::Shared { own: false, at },
        Named::Dynamic => Arg::Variable(Operand::Dynamic(0), Space::Shared),
        Named::Function(number) => Arg::Function(number),
    }
}

/// ISA 10. Clusters are of one block.
fn special<'a>(name: &str, part: &str) -> Option<Arg<'a>> {
    let dimension = match part {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    let constant = |value| Some(Arg::Number(Number::Integer(value)));
    let special = match (name, dimension) {
        ("%tid", Some(d)) => Special::Tid(d),
        ("%ntid", Some(d)) => Special::Ntid(d),
        ("%ctaid" | "%clusterid", Some(d)) => Special::Ctaid(d),
        ("%nctaid" | "%nclusterid", Some(d)) => Special::Nctaid(d),
        ("%cluster_ctaid", Some(_)) => return constant(0),
        ("%cluster_nctaid", Some(_)) => return constant(1),
        ("%cluster_ctarank", None) => return constant(0),
        ("%cluster_nctarank", None) => return constant(1),
        ("%laneid", None) => Special::LaneId,
        ("%warpid", None) => Special::WarpId,
        ("%nwarpid", None) => Special::NumWarps,
        ("%smid", None) => Special::SmId,
        ("%nsmid", None) => Special::NumSms,
        ("%gridid", None) => Special::GridId,
        ("%lanemask_eq", None) => Special::LaneMask(Mask::Eq),
        ("%lanemask_le", None) => Special::LaneMask(Mask::Le),
        ("%lanemask_lt", None) => Special::LaneMask(Mask::Lt),
        ("%lanemask_ge", None) => Special::LaneMask(Mask::Ge),
        ("%lanemask_gt", None) => Special::LaneMask(Mask::Gt),
        ("%clock", None) => Special::Clock,
        ("%clock_hi", None) => Special::ClockHigh,
        ("%clock64", None) => Special::Clock64,
        ("%globaltimer" | "%globaltimer_lo", None) => Special::GlobalTimer,
        ("%total_smem_size" | "%aggr_smem_size", None) => Special::TotalShared,
        ("%dynamic_smem_size", None) => Special::DynamicShared,
        _ => return None,
    };
    Some(Arg::Special(special))
}
