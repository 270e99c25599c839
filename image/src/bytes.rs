//! Byte strings inside JSON: hex for binary data, escaped text for paths and names.
//!
//! Paths on Linux are bytes, not UTF-8; losing one would restart a program on the wrong file.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Binary data, written as lower-case hex.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

impl Blob {
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(self.0.len() * 2);
        for byte in &self.0 {
            text.push(char::from(HEX[usize::from(byte >> 4)]));
            text.push(char::from(HEX[usize::from(byte & 15)]));
        }
        s.serialize_str(&text)
    }
}

fn nibble(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(D::Error::custom("odd number of hex digits"));
        }
        pairs
            .iter()
            .map(|&[high, low]| Some(nibble(high)? << 4 | nibble(low)?))
            .collect::<Option<Vec<u8>>>()
            .map(Blob)
            .ok_or_else(|| D::Error::custom("not a hex digit"))
    }
}

/// A path or name: any bytes. Printable as text; bytes that are not UTF-8, and `\`, are written as `\xNN`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// The name as a path of this system.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
    fn escaped(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c == '\\' || c.is_control() {
                    let mut raw = [0; 4];
                    c.encode_utf8(&mut raw).bytes().for_each(|b| push_escape(&mut text, b));
                } else {
                    text.push(c);
                }
            }
            chunk.invalid().iter().for_each(|&b| push_escape(&mut text, b));
        }
        text
    }
}

fn push_escape(text: &mut String, byte: u8) {
    text.push_str("\\x");
    text.push(char::from(HEX[usize::from(byte >> 4)]));
    text.push(char::from(HEX[usize::from(byte & 15)]));
}

impl From<&Path> for Name {
    fn from(path: &Path) -> Name {
        Name(path.as_os_str().as_bytes().to_vec())
    }
}
impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name(text.as_bytes().to_vec())
    }
}
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escaped())
    }
}
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.escaped())
    }
}
impl Serialize for Name {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.escaped())
    }
}
impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let mut raw = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            rest = tail;
            if first != b'\\' {
                raw.push(first);
                continue;
            }
            let [b'x', high, low, after @ ..] = rest else {
                return Err(D::Error::custom("bad escape in a name"));
            };
            let (Some(high), Some(low)) = (nibble(*high), nibble(*low)) else {
                return Err(D::Error::custom("bad escape in a name"));
            };
            raw.push(high << 4 | low);
            rest = after;
        }
        Ok(Name(raw))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_name_survives_json(raw: Vec<u8>) {
            let name = Name(raw);
            let text = serde_json::to_string(&name).unwrap();
            prop_assert_eq!(serde_json::from_str::<Name>(&text).unwrap(), name);
        }
        #[test]
        fn any_blob_survives_json(raw: Vec<u8>) {
            let blob = Blob(raw);
            let text = serde_json::to_string(&blob).unwrap();
            prop_assert_eq!(serde_json::from_str::<Blob>(&text).unwrap(), blob);
        }
    }

    #[test]
    fn broken_escapes_are_refused() {
        for text in [r#""\\""#, r#""\\x""#, r#""\\x1""#, r#""\\xzz""#, r#""\\y00""#] {
            assert!(serde_json::from_str::<Name>(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Blob>("\"abc\"").is_err());
        assert!(serde_json::from_str::<Blob>("\"zz\"").is_err());
    }
}
