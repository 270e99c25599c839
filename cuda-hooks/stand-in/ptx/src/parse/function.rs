//! Heads of kernels and functions (ISA 5.6, 11.2 to 11.4): name, parameters, results, directives.

use super::cursor::{Failure, shown};
use super::variable::place;
use super::{Linkage, Named, Reader};
use crate::lexer::Token;
use crate::module::{Function, Parameter};
use crate::op::Slot;
use crate::raw::Arg;
use crate::types::{Space, Type};

/// A parameter as declared: its name, and what the name means in the body.
pub(super) enum Formal<'a> {
    Memory(&'a str, Arg<'a>),
    Register(&'a str, Type),
}

/// What is between name and body.
#[derive(Default)]
struct Directives {
    most: Option<u32>,
    required: Option<[u32; 3]>,
}

impl<'a> Reader<'a> {
    pub(super) fn function(&mut self, entry: bool, linkage: Linkage) -> Result<(), Failure> {
        self.cursor.next();
        let mut function = Function {
            name: String::new(),
            entry,
            defined: false,
            parameters: Vec::new(),
            max_threads: None,
            required_threads: None,
            shared_bytes: 0,
            local_bytes: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            registers: 0,
            parameter_bytes: 0,
            code: Vec::new(),
        };
        let mut formals = Vec::new();
        while let Token::Dot(_) = self.cursor.peek() {
            self.cursor.next(); // .attribute(...) of a function
            if self.cursor.take('(') {
                self.cursor.skip_past(')')?;
            }
        }
        if !entry && self.cursor.peek() == Token::Sign('(') {
            self.formals(&mut function, &mut formals, true)?;
        }
        let name = self.cursor.word()?;
        function.name = name.into();
        if self.cursor.peek() == Token::Sign('(') {
            self.formals(&mut function, &mut formals, false)?;
        }
        let directives = self.directives()?;
        function.max_threads = directives.most;
        function.required_threads = directives.required;
        let number = self.declare(name, function)?;
        if self.cursor.take(';') {
            return Ok(());
        }
        if linkage.external {
            return self.cursor.fail(format!("`{name}` is .extern and has a body"));
        }
        if self.functions[number].defined {
            return self.cursor.fail(format!("`{name}` has two bodies"));
        }
        self.functions[number].defined = true;
        self.body(number, formals)
    }

    /// The number of a function: that of its first declaration.
    fn declare(&mut self, name: &'a str, function: Function) -> Result<usize, Failure> {
        match self.names.get(name) {
            Some(&Named::Function(number)) => {
                let before = &mut self.functions[number];
                let shape = |f: &Function| {
                    let bytes = |slots: &[Slot]| slots.iter().map(|s| s.bytes()).collect::<Vec<_>>();
                    (f.entry, bytes(&f.inputs), bytes(&f.outputs))
                };
                if shape(before) != shape(&function) {
                    return self.cursor.fail(format!("`{name}` is declared with other parameters before"));
                }
                if !before.defined {
                    *before = function;
                }
                Ok(number)
            }
            Some(_) => self.cursor.fail(format!("`{name}` is a variable before")),
            None => {
                self.functions.push(function);
                self.names.insert(name, Named::Function(self.functions.len() - 1));
                Ok(self.functions.len() - 1)
            }
        }
    }

    /// `(.param .u64 a, .param .align 8 .b8 b[16])`, or results.
    fn formals(
        &mut self,
        function: &mut Function,
        formals: &mut Vec<Formal<'a>>,
        results: bool,
    ) -> Result<(), Failure> {
        self.cursor.expect('(')?;
        if self.cursor.take(')') {
            return Ok(());
        }
        loop {
            let slot = match self.cursor.next() {
                Token::Dot("param") => {
                    let shape = self.shape()?;
                    let name = self.cursor.word()?;
                    let count = self.dimensions(1 << 20)?.unwrap_or(0);
                    let Some((at, end)) = place(function.parameter_bytes.into(), shape, count) else {
                        return self.cursor.fail("too many parameters");
                    };
                    function.parameter_bytes = end;
                    let (bytes, space) =
                        (end - at, if function.entry { Space::KernelParam } else { Space::Param });
                    if function.entry {
                        function.parameters.push(Parameter {
                            offset: at,
                            size: bytes,
                            align: shape.align as u32,
                        });
                    }
                    formals.push(Formal::Memory(name, Arg::Parameter { space, at, bytes, offset: 0 }));
                    Slot::Memory { at, bytes }
                }
                Token::Dot("reg") if !function.entry => {
                    let shape = self.shape()?;
                    formals.push(Formal::Register(self.cursor.word()?, shape.ty));
                    let register = function.registers;
                    function.registers += 1;
                    Slot::Register { register, mask: shape.ty.mask() }
                }
                other => return self.cursor.fail(format!("a parameter belongs here, not {}", shown(other))),
            };
            if results {
                function.outputs.push(slot)
            } else {
                function.inputs.push(slot)
            }
            if !self.cursor.take(',') {
                return self.cursor.expect(')');
            }
        }
    }

    /// Those of ISA 11.4, and `.noreturn`.
    fn directives(&mut self) -> Result<Directives, Failure> {
        let mut found = Directives::default();
        while let Token::Dot(name) = self.cursor.peek() {
            let line = self.cursor.line();
            self.cursor.next();
            match name {
                "maxntid" | "reqntid" => {
                    let numbers = self.numbers()?;
                    let numbers = numbers.map(|n| n as u32);
                    found.most = Some(numbers.iter().fold(1u32, |product, &n| product.saturating_mul(n)));
                    if name == "reqntid" {
                        found.required = Some(numbers);
                    }
                }
                "maxnreg" | "minnctapersm" | "maxnctapersm" | "maxclusterrank" | "abi_preserve" => {
                    self.cursor.integer()?;
                }
                "noreturn" => {}
                "pragma" => self.cursor.skip_past(';')?,
                _ => return Err((line, format!("`.{name}` of a function is not supported"))),
            }
        }
        Ok(found)
    }

    fn numbers(&mut self) -> Result<[u64; 3], Failure> {
        let mut numbers = [self.cursor.integer()?, 1, 1];
        for number in &mut numbers[1..] {
            if !self.cursor.take(',') {
                break;
            }
            *number = self.cursor.integer()?;
        }
        if numbers.iter().any(|&n| n > u64::from(u32::MAX)) {
            self.cursor.fail("too large")
        } else {
            Ok(numbers)
        }
    }
}
