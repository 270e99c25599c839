//! PTX text to a module: what is at its outermost level. `variable` has variables, `function` heads, `body` bodies.
//!
//! Bodies are decoded when all is read: only then is it known where shared memory of kernels begins.

mod body;
mod cursor;
mod function;
mod variable;

use std::collections::HashMap;

use crate::ParseError;
use crate::decode;
use crate::lexer::{Token, tokens};
use crate::module::{Function, Module, Variable, source_line};
use crate::raw::Body;
use cursor::{Cursor, Failure};

/// What a name of the module means.
#[derive(Clone, Copy, Debug)]
enum Named {
    Variable(usize),
    /// At an offset in shared memory.
    Shared(u32),
    /// Shared memory whose size the launch says.
    Dynamic,
    Function(usize),
}

/// A module while it is read.
struct Reader<'a> {
    cursor: Cursor<'a>,
    version: (u32, u32),
    target: u32,
    names: HashMap<&'a str, Named>,
    variables: Vec<Variable>,
    functions: Vec<Function>,
    bodies: Vec<Body<'a>>,
    /// Bytes of shared memory at module scope.
    shared: u32,
}

/// `.extern`, `.visible`, `.weak`, `.common` before a variable or function.
#[derive(Clone, Copy, Default, Debug)]
struct Linkage {
    external: bool,
    visible: bool,
}

impl Module {
    /// Reads and decodes a text.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        read(text).map_err(|(line, what)| ParseError { line, what, text: shortened(source_line(text, line)) })
    }
}

fn shortened(line: &str) -> String {
    if line.chars().count() <= 200 {
        line.into()
    } else {
        line.chars().take(197).chain("...".chars()).collect()
    }
}

fn read(text: &str) -> Result<Module, Failure> {
    let mut reader = Reader {
        cursor: Cursor::new(tokens(text)?),
        version: (0, 0),
        target: 0,
        names: HashMap::new(),
        variables: Vec::new(),
        functions: Vec::new(),
        bodies: Vec::new(),
        shared: 0,
    };
    while reader.cursor.peek() != Token::End {
        reader.top_level()?;
    }
    if reader.version == (0, 0) {
        return Err((1, "no .version: this is not PTX".into()));
    }
    for body in std::mem::take(&mut reader.bodies) {
        let entry = reader.functions[body.function].entry;
        let code = decode::body(&body, if entry { reader.shared } else { 0 }, &reader.functions)?;
        let function = &mut reader.functions[body.function];
        function.code = code;
        if entry {
            function.shared_bytes = function.shared_bytes.saturating_add(reader.shared);
        }
    }
    let by_name = reader.functions.iter().enumerate().map(|(n, f)| (f.name.clone(), n)).collect();
    let Reader { version, target, variables, functions, .. } = reader;
    Ok(Module { version, target, variables, functions, by_name, text: text.into() })
}

impl<'a> Reader<'a> {
    fn top_level(&mut self) -> Result<(), Failure> {
        let Token::Dot(directive) = self.cursor.peek() else {
            return self.cursor.fail("a directive belongs here");
        };
        match directive {
            "version" => {
                self.cursor.next();
                self.version = self.read_version()?;
            }
            "target" => {
                self.cursor.next();
                self.read_target()?;
            }
            "address_size" => {
                self.cursor.next();
                if self.cursor.integer()? != 64 {
                    return self.cursor.fail("addresses of 32 bits are not supported");
                }
            }
            _ if self.skip_directive()? => {}
            _ => {
                let linkage = self.linkage();
                match self.cursor.peek() {
                    Token::Dot("entry") => self.function(true, linkage)?,
                    Token::Dot("func") => self.function(false, linkage)?,
                    Token::Dot("global" | "const" | "shared") => self.module_variables(linkage)?,
                    _ => return self.cursor.fail("not supported at the outermost level"),
                }
            }
        }
        Ok(())
    }

    /// Directives that mean nothing here; also called in bodies.
    fn skip_directive(&mut self) -> Result<bool, Failure> {
        match self.cursor.peek() {
            Token::Dot("file" | "loc") => self.cursor.skip_line(),
            Token::Dot("pragma") => self.cursor.skip_past(';')?,
            Token::Dot("section") => {
                self.cursor.skip_past('{')?;
                self.cursor.skip_past('}')?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn linkage(&mut self) -> Linkage {
        let mut linkage = Linkage::default();
        loop {
            match self.cursor.peek() {
                Token::Dot("extern") => linkage.external = true,
                Token::Dot("visible" | "weak" | "common") => linkage.visible = true,
                _ => return linkage,
            }
            self.cursor.next();
        }
    }

    fn read_version(&mut self) -> Result<(u32, u32), Failure> {
        let read = |text: &str| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        };
        match self.cursor.peek() {
            Token::Number(text) => match read(text) {
                Some(version @ (1..=9, _)) => {
                    self.cursor.next();
                    Ok(version)
                }
                Some(_) => self.cursor.fail("PTX of a version that is not known: up to 9 it is"),
                None => self.cursor.fail("no version"),
            },
            _ => self.cursor.fail("no version"),
        }
    }

    fn read_target(&mut self) -> Result<(), Failure> {
        loop {
            let Token::Word(word) = self.cursor.next() else {
                return self.cursor.fail("a target belongs here");
            };
            if let Some(number) = word.strip_prefix("sm_") {
                let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
                self.target = digits.parse().unwrap_or(0);
            }
            if !self.cursor.take(',') {
                return Ok(());
            }
        }
    }
}
