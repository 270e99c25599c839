//! A PTX module, decoded, and a program: a module whose variables have addresses. Made by `parse`, run by `exec`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::op::{Instruction, Slot};
use crate::types::{CODE_STEP, CODE_WINDOW, Space};

/// What the address in an initialiser is of (ISA 5.4.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Of a variable, by its number.
    Variable(usize),
    /// Of a function, by its number.
    Function(usize),
}

/// A variable of `.global` or `.const`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// As in the text.
    pub name: String,
    /// `Global` or `Const`.
    pub space: Space,
    /// Declared `.extern`: another module of the same program has it.
    pub external: bool,
    /// Declared `.visible`, `.weak` or `.common`.
    pub visible: bool,
    /// Declared `.attribute(.managed)`.
    pub managed: bool,
    /// Power of two.
    pub align: u64,
    /// In bytes.
    pub size: u64,
    /// What it begins with; what is missing at its end is zero.
    pub initial: Vec<u8>,
    /// Addresses in it: offset, what of, what is added. Eight bytes each.
    pub addresses: Vec<(u64, Target, i64)>,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter {
    /// From the beginning of all.
    pub offset: u32,
    /// In bytes.
    pub size: u32,
    /// Power of two.
    pub align: u32,
}

/// A kernel or a function.
#[derive(Clone, Debug)]
pub struct Function {
    /// As in the text.
    pub name: String,
    /// A kernel.
    pub entry: bool,
    /// Has a body.
    pub defined: bool,
    /// Of a kernel.
    pub parameters: Vec<Parameter>,
    /// `.maxntid`, product of its numbers; `.reqntid` likewise.
    pub max_threads: Option<u32>,
    /// `.reqntid`
    pub required_threads: Option<[u32; 3]>,
    /// Shared memory of fixed size.
    pub shared_bytes: u32,
    /// Local memory of one call.
    pub local_bytes: u32,
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
    pub(crate) registers: u32,
    pub(crate) parameter_bytes: u32,
    pub(crate) code: Vec<Instruction>,
}

/// A text, decoded.
#[derive(Debug)]
pub struct Module {
    /// `.version`, as major and minor.
    pub version: (u32, u32),
    /// `.target sm_NN`
    pub target: u32,
    /// In their order in the text.
    pub variables: Vec<Variable>,
    /// In the order in which they are first named.
    pub functions: Vec<Function>,
    pub(crate) by_name: HashMap<String, usize>,
    pub(crate) text: String,
}

impl Module {
    /// The number of a kernel.
    pub fn kernel(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied().filter(|&n| self.functions[n].entry && self.functions[n].defined)
    }

    /// The number of a variable.
    pub fn variable(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|v| v.name == name)
    }

    /// A line of the text, without the blanks around it.
    pub(crate) fn line(&self, line: u32) -> &str {
        source_line(&self.text, line)
    }
}

pub(crate) fn source_line(text: &str, line: u32) -> &str {
    text.lines().nth((line as usize).saturating_sub(1)).unwrap_or("").trim()
}

/// A module whose variables have addresses.
#[derive(Clone, Debug)]
pub struct Program {
    /// The module.
    pub module: Arc<Module>,
    pub(crate) addresses: Arc<[u64]>,
}

impl Program {
    /// `addresses` are those of `module.variables`, which the caller has allocated; `None` if their number differs.
    pub fn new(module: Arc<Module>, addresses: Vec<u64>) -> Option<Program> {
        (addresses.len() == module.variables.len()).then(|| Program { module, addresses: addresses.into() })
    }

    /// The bytes that a variable begins with.
    pub fn initial(&self, variable: usize) -> Option<Vec<u8>> {
        let it = self.module.variables.get(variable)?;
        let mut bytes = it.initial.clone();
        bytes.resize(usize::try_from(it.size).ok()?, 0);
        for &(offset, target, add) in &it.addresses {
            let address = match target {
                Target::Variable(n) => self.addresses.get(n).copied()?,
                Target::Function(n) => function_address(n),
            };
            let from = usize::try_from(offset).ok()?;
            let value = address.wrapping_add(add as u64).to_le_bytes();
            bytes.get_mut(from..from.checked_add(8)?)?.copy_from_slice(&value);
        }
        Some(bytes)
    }
}

pub(crate) fn function_address(function: usize) -> u64 {
    CODE_WINDOW + function as u64 * CODE_STEP
}
