//! A function's body with names resolved, but for labels: what `parse` leaves to `decode`.

use std::collections::HashMap;

use crate::lexer::Number;
use crate::op::{Guard, Operand, Register, Special};
use crate::types::{Space, Type};

/// An operand as written.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arg<'a> {
    Register(Register, Type),
    Special(Special),
    Number(Number),
    /// Address of a variable in global, constant, local or dynamic shared memory.
    Variable(Operand, Space),
    /// Address of a variable in shared memory; `own`: of the kernel, behind those of the module.
    Shared {
        own: bool,
        at: u32,
    },
    /// A variable in parameter space, and an offset in it.
    Parameter {
        space: Space,
        at: u32,
        bytes: u32,
        offset: i64,
    },
    Function(usize),
    /// A label, or nothing that is known.
    Name(&'a str),
    Not(Register),
    /// `p|q`, each a register or the sink.
    Pair(Option<(Register, Type)>, Option<(Register, Type)>),
    Sink,
    /// In braces or parentheses.
    List(Vec<Arg<'a>>),
    /// In brackets, with an offset.
    Memory(Box<Arg<'a>>, i64),
}

/// An instruction as written.
#[derive(Clone, Debug)]
pub(crate) struct Raw<'a> {
    pub(crate) line: u32,
    pub(crate) guard: Option<Guard>,
    pub(crate) name: &'a str,
    pub(crate) modifiers: Vec<&'a str>,
    pub(crate) args: Vec<Arg<'a>>,
    /// The block in braces that it is in.
    pub(crate) scope: usize,
}

/// A body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body<'a> {
    pub(crate) function: usize,
    pub(crate) instructions: Vec<Raw<'a>>,
    /// Label, by block and name: number of the instruction behind it.
    pub(crate) labels: HashMap<(usize, &'a str), usize>,
    /// `.branchtargets`
    pub(crate) tables: HashMap<(usize, &'a str), Vec<&'a str>>,
    /// The block around each block; the first is its own.
    pub(crate) outer: Vec<usize>,
    pub(crate) last_line: u32,
}

impl<'a> Body<'a> {
    /// The instruction behind a label that a block can see.
    pub(crate) fn label(&self, scope: usize, name: &'a str) -> Option<usize> {
        self.visible(scope, |scope| self.labels.get(&(scope, name)).copied())
    }

    /// The labels of a `.branchtargets` that a block can see.
    pub(crate) fn table(&self, scope: usize, name: &'a str) -> Option<&Vec<&'a str>> {
        self.visible(scope, |scope| self.tables.get(&(scope, name)))
    }

    fn visible<R>(&self, mut scope: usize, find: impl Fn(usize) -> Option<R>) -> Option<R> {
        loop {
            if let Some(found) = find(scope) {
                return Some(found);
            }
            let outer = *self.outer.get(scope)?;
            if outer == scope {
                return None;
            }
            scope = outer;
        }
    }
}
