//! PTX text into tokens (ISA 4.2 to 4.4). Called by `parse`. Any text gives tokens or an error; nothing is copied.

/// A token; texts are without dots and quotes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Token<'a> {
    /// `add`, `%r1`, `$L__BB0_1`
    Word(&'a str),
    /// `.u32`, `.shared::cta`
    Dot(&'a str),
    /// A literal of any kind, not yet read.
    Number(&'a str),
    /// Without its quotes, escapes as they are.
    Text,
    /// One character.
    Sign(char),
    /// After the last.
    End,
}

/// A number's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Number {
    Integer(u64),
    Single(u32),
    Double(u64),
}

/// A token and its line.
pub(crate) type Placed<'a> = (Token<'a>, u32);

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

/// All tokens, with `End` last; or the line of what cannot be a token, and what it is.
pub(crate) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, (u32, String)> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(text.len() / 4);
    let (mut at, mut line) = (0, 1u32);
    let run = |from: usize, good: &dyn Fn(u8) -> bool| {
        bytes[from..].iter().position(|&b| !good(b)).map_or(bytes.len(), |n| from + n)
    };
    while let Some(&byte) = bytes.get(at) {
        let from = at;
        match byte {
            b'\n' => {
                line = line.saturating_add(1);
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 0x0b | 0x0c => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = run(at, &|b| b != b'\n'),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(end) = text.get(at + 2..).and_then(|rest| rest.find("*/")) else {
                    return Err((line, "comment without end".into()));
                };
                at += end + 4;
                line = line.saturating_add(text[from..at].matches('\n').count() as u32);
            }
            b'"' => {
                at += 1;
                loop {
                    match bytes.get(at) {
                        Some(b'"') => break,
                        Some(b'\\') => at += 2,
                        Some(b'\n') | None => return Err((line, "text without end".into())),
                        Some(_) => at += 1,
                    }
                }
                at += 1;
                found.push((Token::Text, line));
            }
            b'@' if bytes.get(at + 1) == Some(&b'@') => at = run(at, &|b| b != b'\n'), // @@DWARF of old compilers
            b'.' if bytes.get(at + 1).is_some_and(|&b| is_word(b)) => {
                at = run(at + 1, &|b| is_word(b) || b == b':');
                while bytes[at - 1] == b':' {
                    at -= 1;
                }
                found.push((Token::Dot(&text[from + 1..at]), line));
            }
            b'0'..=b'9' => {
                at = run(at, &|b| is_word(b) || b == b'.');
                let exponent = bytes[at - 1].eq_ignore_ascii_case(&b'e') && bytes[from..at].contains(&b'.');
                if exponent && matches!(bytes.get(at), Some(b'+' | b'-')) {
                    at = run(at + 1, &|b| b.is_ascii_digit());
                }
                found.push((Token::Number(&text[from..at]), line));
            }
            _ if is_word(byte) || byte == b'%' => {
                at = run(at + 1, &is_word);
                found.push((Token::Word(&text[from..at]), line));
            }
            _ if byte.is_ascii_graphic() => {
                at += 1;
                found.push((Token::Sign(byte as char), line));
            }
            _ => return Err((line, "a character that PTX does not have".into())),
        }
    }
    found.push((Token::End, line));
    Ok(found)
}

/// The value of a literal (ISA 4.5.1, 4.5.2).
pub(crate) fn number(text: &str) -> Option<Number> {
    let hex = |digits: &str, width: usize| {
        (digits.len() == width).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
    };
    let digits = text.strip_suffix('U').unwrap_or(text);
    if let Some(rest) = text.strip_prefix("0f").or_else(|| text.strip_prefix("0F")) {
        return hex(rest, 8).map(|bits| Number::Single(bits as u32));
    }
    if let Some(rest) = text.strip_prefix("0d").or_else(|| text.strip_prefix("0D")) {
        return hex(rest, 16).map(Number::Double);
    }
    if text.contains('.') {
        return text.parse::<f64>().ok().map(|value| Number::Double(value.to_bits()));
    }
    let radix = |rest: &str, radix| u64::from_str_radix(rest, radix).ok().filter(|_| !rest.starts_with('+'));
    let value = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => radix(&digits[2..], 2),
        [b'0', _, ..] => radix(&digits[1..], 8),
        _ => radix(digits, 10),
    };
    value.map(Number::Integer)
}
