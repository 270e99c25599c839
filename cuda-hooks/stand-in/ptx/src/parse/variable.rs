//! Declarations of variables (ISA 5.4): of the module here; their common parts are used for bodies and heads too.

use super::cursor::{Failure, shown};
use super::{Linkage, Named, Reader};
use crate::lexer::{Number, Token};
use crate::module::{Target, Variable};
use crate::types::{Space, Type};

/// Most bytes of one variable: what a device has at most.
const LARGEST: u64 = 1 << 36;
/// Most bytes of parameters (ISA 4.1 of the programming guide: 32764 for kernels), shared and local memory.
pub(super) const LARGEST_SMALL: u64 = 1 << 20;
const DEEPEST: u32 = 8;

/// What is before and behind a variable's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) ty: Type,
    pub(super) vector: u64,
    pub(super) align: u64,
    pub(super) managed: bool,
}

impl Shape {
    pub(super) fn element(self) -> u64 {
        u64::from(self.ty.bytes()) * self.vector
    }
}

impl<'a> Reader<'a> {
    /// `.align 8 .v2 .b32` and what else may be before a name, in any order.
    pub(super) fn shape(&mut self) -> Result<Shape, Failure> {
        let (mut ty, mut vector, mut align, mut managed) = (None, 1, 0, false);
        while let Token::Dot(name) = self.cursor.peek() {
            self.cursor.next();
            match name {
                "align" => align = self.cursor.integer()?,
                "v2" => vector = 2,
                "v4" => vector = 4,
                "ptr" | "global" | "const" | "shared" | "local" => {} // what a parameter points to (ISA 4.4)
                "attribute" => {
                    self.cursor.expect('(')?;
                    managed |= self.cursor.peek() == Token::Dot("managed");
                    self.cursor.skip_past(')')?;
                }
                _ => match Type::named(name) {
                    Some(named) => ty = Some(named),
                    None => return self.cursor.fail(format!("`.{name}` is not supported in a declaration")),
                },
            }
        }
        let Some(ty) = ty else {
            return self.cursor.fail("a type belongs before the name");
        };
        let natural = u64::from(ty.bytes()) * vector;
        let align = if align == 0 { natural } else { align };
        if !align.is_power_of_two() || align > 1 << 16 {
            return self.cursor.fail("an alignment has to be a power of two");
        }
        Ok(Shape { ty, vector, align, managed })
    }

    /// `[3][4]` behind a name: the number of elements, `None` for `[]`.
    pub(super) fn dimensions(&mut self, largest: u64) -> Result<Option<u64>, Failure> {
        let (mut product, mut open) = (Some(1u64), false);
        while self.cursor.take('[') {
            if self.cursor.take(']') {
                open = true;
                continue;
            }
            let count = self.cursor.integer()?;
            self.cursor.expect(']')?;
            product = product.and_then(|p| p.checked_mul(count)).filter(|&p| p <= largest);
        }
        match product {
            _ if open => Ok(None),
            Some(count) => Ok(Some(count)),
            None => self.cursor.fail("too large"),
        }
    }

    /// A declaration of `.global`, `.const` or `.shared` variables, to its semicolon.
    pub(super) fn module_variables(&mut self, linkage: Linkage) -> Result<(), Failure> {
        let space = match self.cursor.next() {
            Token::Dot("global") => Space::Global,
            Token::Dot("const") => Space::Const,
            _ => Space::Shared,
        };
        let shape = self.shape()?;
        loop {
            let name = self.cursor.word()?;
            let named = self.variable(space, shape, name, linkage)?;
            if let Some(before) = self.names.insert(name, named) {
                // declared and then defined; numbers given out for the declaration have to stay right
                if !self.redefined(before, named) {
                    return self.cursor.fail(format!("`{name}` is declared twice"));
                }
                self.names.insert(name, before);
            }
            if !self.cursor.take(',') {
                return self.cursor.expect(';');
            }
        }
    }

    fn redefined(&mut self, before: Named, now: Named) -> bool {
        match (before, now) {
            (Named::Variable(before), Named::Variable(now)) if self.variables[before].external => {
                self.variables[before] = self.variables[now].clone();
                now + 1 == self.variables.len() && self.variables.pop().is_some()
            }
            (Named::Dynamic, Named::Dynamic) => true,
            _ => false,
        }
    }

    /// One variable from behind its name on, in any space of the module.
    pub(super) fn variable(
        &mut self,
        space: Space,
        shape: Shape,
        name: &'a str,
        linkage: Linkage,
    ) -> Result<Named, Failure> {
        let count = self.dimensions(LARGEST)?;
        if space == Space::Shared {
            return match count {
                None | Some(0) => Ok(Named::Dynamic),
                Some(_) if linkage.external => Ok(Named::Dynamic),
                Some(count) => self.place_shared(shape, count).map(Named::Shared),
            };
        }
        let (mut initial, mut addresses) = (Vec::new(), Vec::new());
        if self.cursor.take('=') {
            self.initialiser(shape, &mut initial, &mut addresses, 0)?;
        }
        let size = match count {
            Some(count) => count.checked_mul(shape.element()).filter(|&size| size <= LARGEST),
            None => Some(initial.len() as u64),
        };
        match size {
            Some(size) if initial.len() as u64 <= size => self.variables.push(Variable {
                name: name.into(),
                space,
                external: linkage.external,
                visible: linkage.visible,
                managed: shape.managed,
                align: shape.align,
                size,
                initial,
                addresses,
            }),
            _ => return self.cursor.fail("too large, or more initial values than it has elements"),
        }
        Ok(Named::Variable(self.variables.len() - 1))
    }

    /// Gives an array a place in the module's shared memory.
    pub(super) fn place_shared(&mut self, shape: Shape, count: u64) -> Result<u32, Failure> {
        let Some((at, end)) = place(u64::from(self.shared), shape, count) else {
            return self.cursor.fail("too large for shared memory");
        };
        self.shared = end;
        Ok(at)
    }

    fn initialiser(
        &mut self,
        shape: Shape,
        bytes: &mut Vec<u8>,
        addresses: &mut Vec<(u64, Target, i64)>,
        depth: u32,
    ) -> Result<(), Failure> {
        if !self.cursor.take('{') {
            return self.initial_value(shape.ty, bytes, addresses);
        }
        if depth == DEEPEST {
            return self.cursor.fail("braces in more than eight levels");
        }
        while !self.cursor.take('}') {
            self.initialiser(shape, bytes, addresses, depth + 1)?;
            if !self.cursor.take(',') && self.cursor.peek() != Token::Sign('}') {
                return self.cursor.fail("`,` or `}` belongs here");
            }
        }
        Ok(())
    }

    fn initial_value(
        &mut self,
        ty: Type,
        bytes: &mut Vec<u8>,
        addresses: &mut Vec<(u64, Target, i64)>,
    ) -> Result<(), Failure> {
        let value = match self.cursor.peek() {
            Token::Word(word) => {
                let generic = word == "generic" && self.cursor.peek_second() == Token::Sign('(');
                if generic {
                    self.cursor.next();
                    self.cursor.next();
                }
                let name = self.cursor.word()?;
                let inside = self.cursor.offset()?;
                if generic {
                    self.cursor.expect(')')?;
                }
                let add = inside.wrapping_add(self.cursor.offset()?);
                let target = match self.names.get(name) {
                    Some(Named::Variable(n)) => Target::Variable(*n),
                    Some(Named::Function(n)) => Target::Function(*n),
                    _ => return self.cursor.fail(format!("no address of `{name}` can be had here")),
                };
                if ty.bytes() != 8 {
                    return self.cursor.fail("an address needs 64 bits");
                }
                addresses.push((bytes.len() as u64, target, add));
                0
            }
            Token::Sign('-' | '~') | Token::Number(_) => match (self.cursor.number()?, ty) {
                (Number::Integer(value), Type::F32) => u64::from((value as i64 as f32).to_bits()),
                (Number::Integer(value), Type::F64) => (value as i64 as f64).to_bits(),
                (Number::Double(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
                (Number::Single(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
                (Number::Integer(value) | Number::Double(value), _) => value,
                (Number::Single(bits), _) => u64::from(bits),
            },
            other => return self.cursor.fail(format!("an initial value belongs here, not {}", shown(other))),
        };
        bytes.extend_from_slice(&value.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }
}

/// Where the next variable begins and ends behind `used` bytes of a small memory.
pub(super) fn place(used: u64, shape: Shape, count: u64) -> Option<(u32, u32)> {
    let at = used.checked_next_multiple_of(shape.align)?;
    let end = count.checked_mul(shape.element()).and_then(|size| at.checked_add(size))?;
    (end <= LARGEST_SMALL).then_some((at as u32, end as u32))
}
