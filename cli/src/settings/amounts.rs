//! Durations, sizes and rates as a user writes them.

use holdfast_image::{PAGE_SIZE, size};
use std::time::Duration;

/// As [`parse_duration`], or none: `0`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    if matches!(text, "0" | "0s") { Ok(Duration::ZERO) } else { parse_duration(text) }
}

/// Parses `30s`, `10m`, `1h`, `2d`, `90` (seconds) and sums such as `1h30m`.
///
/// # Errors
/// Says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration; write 30s, 10m, 1h or 1h30m");
    let mut total = 0_u64;
    let mut rest = text;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.chars().next();
        let seconds = match unit {
            Some('s') => 1,
            None if total == 0 => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86400,
            _ => return Err(wrong()),
        };
        rest = &rest[unit.map_or(0, char::len_utf8)..];
        total = number.checked_mul(seconds).and_then(|n| n.checked_add(total)).ok_or_else(wrong)?;
    }
    if total == 0 { Err("the duration must be at least 1s".into()) } else { Ok(Duration::from_secs(total)) }
}

/// Parses a time that may be short or broken: `250ms`, `1.5s`, `10m`, `3d`, `90` (seconds), `0`, and sums such as
/// `1h30m`; seconds.
///
/// # Errors
/// Says what is accepted.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    /// A thousand years.
    const MOST: f64 = 3.2e10;
    let wrong = || format!("{text:?} is not a time; write 250ms, 1.5s, 10m, 3d or 1h30m");
    let (mut total, mut rest) = (0.0, text);
    let mut is_first = true;
    while is_first || !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, unit) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let length = unit.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(unit.len());
        let seconds = match &unit[..length] {
            "ms" => 1e-3,
            "s" => 1.0,
            "" if is_first => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(wrong()),
        };
        total += number * seconds;
        rest = &unit[length..];
        is_first = false;
    }
    if total <= MOST { Ok(total) } else { Err(format!("{text} is longer than a thousand years")) }
}

/// Parses a rate in bytes per second: `55M`, `1G`, `500K` (powers of 1024 each) or plain bytes.
///
/// # Errors
/// Says what is accepted.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a rate; write bytes per second, for example 55M or 1G");
    match size::parse(text) {
        Some(_) if size::lacks_unit(text) => Err(without_unit(text)),
        Some(rate) if rate >= PAGE_SIZE => Ok(rate),
        Some(_) => Err(format!("the rate {text} is below one page per second")),
        None => Err(wrong()),
    }
}

/// Reads a number of bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    if size::lacks_unit(text) {
        return Err(without_unit(text));
    }
    size::parse(text).ok_or_else(|| format!("{text:?} is not a size; write bytes, for example 64M or 2G"))
}

fn without_unit(text: &str) -> String {
    format!("{text} has no unit, and would be bytes; write {text}M or {text}G (or {text}K)")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, seconds) in
            [("30s", 30), ("10m", 600), ("1h", 3600), ("90", 90), ("1h30m", 5400), ("2d", 172_800)]
        {
            assert_eq!(parse_duration(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in [
            "",
            "0",
            "0s",
            "m",
            "-1s",
            "10x",
            "1.5h",
            "1h 5m",
            "99999999999999999999s",
            "9999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds() {
        for (text, seconds) in [
            ("0", 0.0),
            ("0s", 0.0),
            ("250ms", 0.25),
            ("1.5s", 1.5),
            ("90", 90.0),
            ("1h30m", 5400.0),
            ("2d", 172_800.0),
        ] {
            assert!((parse_seconds(text).unwrap() - seconds).abs() < 1e-9, "{text}");
        }
        for text in
            ["", "s", ".", "1..2s", "-1s", "1 s", "1e3", "10x", "1h 5m", "NaN", "inf", "99999999d", "5m3"]
        {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        assert_eq!(parse_rate("55M").unwrap(), 55 << 20);
        assert_eq!(parse_rate("1g").unwrap(), 1 << 30);
        assert_eq!(parse_rate("4K").unwrap(), 4096);
        assert_eq!(parse_rate("1048576").unwrap(), 1 << 20);
        assert!(parse_rate("55").unwrap_err().contains("55M"));
        for text in ["", "M", "-1M", "1.5M", "55MB", "4096", "3K", "0", "99999999999G"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
