//! Numbers of bytes as users write them: `64M`, `200G`, `2T`, or digits alone. One way for all options and files.

use std::fmt;

/// Units of 1024, the largest first.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Reads a number of bytes; `None`: it is none, or more than 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let unit = |(unit, shift)| Some((text.strip_suffix([unit, char::to_ascii_lowercase(&unit)])?, shift));
    let (number, shift) = UNITS.into_iter().find_map(unit).unwrap_or((text, 0));
    // No sign, no blank.
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)
}

/// A number that a user gave without a unit, and most likely forgot it.
pub fn lacks_unit(text: &str) -> bool {
    /// Nothing that is asked for is smaller than that.
    const LEAST: u64 = 1 << 20;
    text.bytes().all(|byte| byte.is_ascii_digit())
        && parse(text).is_some_and(|bytes| 0 < bytes && bytes < LEAST)
}

/// A number of bytes in the words that [`parse`] reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.into_iter().find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift) {
            Some((unit, shift)) => write!(out, "{}{unit}", self.0 >> shift),
            None => write!(out, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        assert_eq!(parse("55M"), Some(55 << 20));
        assert_eq!(
            (parse("1g"), parse("2T"), parse("500k")),
            (Some(1 << 30), Some(2 << 40), Some(500 << 10))
        );
        assert_eq!((parse("4096"), parse("0"), parse("0M")), (Some(4096), Some(0), Some(0)));
        for text in
            ["", "M", "-1", "+1", " 1", "1 M", "1MB", "1.5M", "x", "99999999T", "18446744073709551616", "1é"]
        {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert!(lacks_unit("20") && lacks_unit("1048575"));
        assert!(!lacks_unit("0") && !lacks_unit("20K") && !lacks_unit("1048576") && !lacks_unit("x"));
        for bytes in [0, 1, 1000, 1 << 10, 3 << 20, 200 << 30, 7 << 40, u64::MAX] {
            assert_eq!(parse(&Size(bytes).to_string()), Some(bytes));
        }
        assert_eq!(Size(200 << 30).to_string(), "200G");
    }
}
