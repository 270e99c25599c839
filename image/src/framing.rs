//! Frames of a connection: two lengths (32 bits each, little-endian), a message as JSON, and bytes that belong to it.
//!
//! Used by gangs and by servers of streams (`cli/src/gang/wire.rs`), whose other side may be hostile, and by the fuzz
//! target `streams`. Pure. Invariant: no length is believed before so many bytes have come.

use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind};

/// Longest message, and most bytes with one.
pub const MOST_MESSAGE: usize = 4 << 20;
/// See there.
pub const MOST_BODY: usize = 512 << 20;
/// The two lengths.
const HEAD: usize = 8;

/// Takes the first frame, if it is whole: the message, and what belongs to it.
///
/// # Errors
/// InvalidData: it is too long, or no message of this kind.
pub fn take<M: DeserializeOwned>(inbox: &mut Vec<u8>) -> io::Result<Option<(M, Vec<u8>)>> {
    let Some((head, rest)) = inbox.split_at_checked(HEAD) else { return Ok(None) };
    let len = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default()) as usize
    };
    let (text, body) = (len(0), len(4));
    if text > MOST_MESSAGE || body > MOST_BODY {
        let what = format!("a message of {text} and {body} bytes is none of ours");
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let Some((text, rest)) = rest.split_at_checked(text) else { return Ok(None) };
    let Some(body) = rest.get(..body).map(<[u8]>::to_vec) else { return Ok(None) };
    let message = serde_json::from_slice(text).map_err(io::Error::from)?;
    let whole = HEAD + text.len() + body.len();
    inbox.drain(..whole);
    Ok(Some((message, body)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_when_it_is_whole_and_no_length_is_believed() {
        let text = br#""bye""#;
        let mut frame = (text.len() as u32).to_le_bytes().to_vec();
        frame.extend(3_u32.to_le_bytes());
        frame.extend(text);
        frame.extend(b"abc");
        for cut in 0..frame.len() {
            assert!(take::<String>(&mut frame[..cut].to_vec()).unwrap().is_none(), "{cut}");
        }
        let mut two = [frame.as_slice(), b"x"].concat();
        let (message, body): (String, _) = take(&mut two).unwrap().unwrap();
        assert_eq!((message.as_str(), body.as_slice(), two.as_slice()), ("bye", &b"abc"[..], &b"x"[..]));
        let long = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        assert!(take::<String>(&mut long.clone()).is_err());
        let other = [1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        assert!(take::<String>(&mut [other, b"x".to_vec()].concat()).is_err());
    }
}
