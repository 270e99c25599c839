//! Where in its tokens a parser is.

use crate::lexer::{Number, Placed, Token, number};

/// Line and what is wrong in it.
pub(crate) type Failure = (u32, String);

pub(super) struct Cursor<'a> {
    tokens: Vec<Placed<'a>>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// `tokens` end with `End`.
    pub(super) fn new(tokens: Vec<Placed<'a>>) -> Self {
        Cursor { tokens, at: 0 }
    }

    fn ahead(&self, by: usize) -> Placed<'a> {
        self.tokens.get(self.at + by).or(self.tokens.last()).copied().unwrap_or((Token::End, 0))
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.ahead(0).0
    }

    pub(super) fn peek_second(&self) -> Token<'a> {
        self.ahead(1).0
    }

    pub(super) fn line(&self) -> u32 {
        self.ahead(0).1
    }

    /// The token, and past it.
    pub(super) fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at = (self.at + 1).min(self.tokens.len().saturating_sub(1));
        token
    }

    pub(super) fn fail<R>(&self, what: impl Into<String>) -> Result<R, Failure> {
        Err((self.line(), what.into()))
    }

    /// Past a sign, if it is there.
    pub(super) fn take(&mut self, sign: char) -> bool {
        let there = self.peek() == Token::Sign(sign);
        if there {
            self.next();
        }
        there
    }

    pub(super) fn expect(&mut self, sign: char) -> Result<(), Failure> {
        if self.take(sign) {
            Ok(())
        } else {
            self.fail(format!("`{sign}` belongs here, not {}", shown(self.peek())))
        }
    }

    pub(super) fn word(&mut self) -> Result<&'a str, Failure> {
        match self.peek() {
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            other => self.fail(format!("a name belongs here, not {}", shown(other))),
        }
    }

    /// A literal, perhaps with a sign.
    pub(super) fn number(&mut self) -> Result<Number, Failure> {
        let negative = self.take('-');
        let inverted = !negative && self.take('~');
        let Token::Number(text) = self.peek() else {
            return self.fail(format!("a number belongs here, not {}", shown(self.peek())));
        };
        let Some(value) = number(text) else {
            return self.fail("not a number that fits in 64 bits");
        };
        self.next();
        Ok(match value {
            Number::Integer(value) if negative => Number::Integer(value.wrapping_neg()),
            Number::Integer(value) if inverted => Number::Integer(!value),
            Number::Single(bits) if negative => Number::Single(bits ^ 1 << 31),
            Number::Double(bits) if negative => Number::Double(bits ^ 1 << 63),
            other => other,
        })
    }

    pub(super) fn integer(&mut self) -> Result<u64, Failure> {
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.fail("an integer belongs here"),
        }
    }

    /// `+ 4`, `+ -4`, `- 4`, or nothing.
    pub(super) fn offset(&mut self) -> Result<i64, Failure> {
        match self.peek() {
            Token::Sign('+') => {
                self.next();
                Ok(self.integer()? as i64)
            }
            Token::Sign('-') => Ok(self.integer()? as i64),
            _ => Ok(0),
        }
    }

    /// To the first token of another line.
    pub(super) fn skip_line(&mut self) {
        let line = self.line();
        while self.line() == line && self.peek() != Token::End {
            self.next();
        }
    }

    /// Past the next such sign.
    pub(super) fn skip_past(&mut self, sign: char) -> Result<(), Failure> {
        let line = self.line();
        loop {
            match self.next() {
                Token::Sign(found) if found == sign => return Ok(()),
                Token::End => return Err((line, format!("no `{sign}` after this"))),
                _ => {}
            }
        }
    }
}

/// A token in a message.
pub(super) fn shown(token: Token<'_>) -> String {
    match token {
        Token::Word(text) | Token::Number(text) => format!("`{text}`"),
        Token::Dot(text) => format!("`.{text}`"),
        Token::Sign(sign) => format!("`{sign}`"),
        Token::Text => "a text in quotes".into(),
        Token::End => "the end".into(),
    }
}
