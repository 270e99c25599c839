//! What is to be read of a program's memory: `VARIABLE`, `*POINTER+BYTES`, `0xADDRESS+BYTES`.
//!
//! Called by the parent. Fails by: words that say what is accepted.

use crate::settings::parse_size;

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Region {
    /// All of a variable.
    Variable(String),
    /// What a variable points to.
    Pointed {
        /// Its name.
        pointer: String,
        /// So many bytes.
        bytes: u64,
    },
    /// What is at an address.
    At {
        /// The first byte.
        address: u64,
        /// So many.
        bytes: u64,
    },
}

impl Region {
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Region, String> {
        let accepted = || format!("{text:?} is no region: VARIABLE, '*POINTER+BYTES', or 0xADDRESS+BYTES");
        let pointer = text.strip_prefix('*');
        let address = text.strip_prefix("0x");
        if pointer.is_none() && address.is_none() {
            return if text.is_empty() { Err(accepted()) } else { Ok(Region::Variable(text.to_owned())) };
        }
        let (place, bytes) = text.rsplit_once('+').ok_or_else(accepted)?;
        let bytes = match bytes.parse() {
            Ok(bytes) => bytes,
            Err(_) => parse_size(bytes).map_err(|error| format!("{}: {error}", accepted()))?,
        };
        if bytes == 0 {
            return Err(accepted());
        }
        match (place.strip_prefix('*'), place.strip_prefix("0x")) {
            (Some(pointer), _) if !pointer.is_empty() => {
                Ok(Region::Pointed { pointer: pointer.to_owned(), bytes })
            }
            (_, Some(digits)) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => {
                let address = u64::from_str_radix(digits, 16).map_err(|_| accepted())?;
                Ok(Region::At { address, bytes })
            }
            _ => Err(accepted()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_parsed_and_nonsense_is_refused() {
        let variable = |name: &str| Ok(Region::Variable(name.into()));
        assert_eq!(Region::parse("field"), variable("field"));
        // Names of C++ as its linker has them.
        assert_eq!(Region::parse("_ZN3sim5fieldE"), variable("_ZN3sim5fieldE"));
        let pointed = Region::Pointed { pointer: "field".into(), bytes: 4096 };
        assert_eq!(Region::parse("*field+4K"), Ok(pointed));
        assert_eq!(Region::parse("0x7f00+16"), Ok(Region::At { address: 0x7f00, bytes: 16 }));
        let wrong = [
            "", "*", "*field", "*+8", "*field+", "*field+x", "0x", "0x+8", "0x10", "0xg+8", "0x10+0",
            "0x+f+8",
        ];
        for text in wrong {
            assert!(Region::parse(text).is_err_and(|said| said.contains("is no region")), "{text}");
        }
    }
}
