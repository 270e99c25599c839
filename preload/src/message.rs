//! What the library says to the agent: a few JSON texts built on the stack.
//!
//! Pure. Invariants: the texts are those of `holdfast_image::control::Request` (the tests decode them with it); they
//! fit their buffer, and one that did not would be cut, which the agent answers as undecodable.

use crate::area::Area;

/// Text of at most `ROOM` bytes.
pub struct Text<const ROOM: usize> {
    bytes: [u8; ROOM],
    len: usize,
}

impl<const ROOM: usize> Text<ROOM> {
    /// Nothing yet.
    pub fn new() -> Self {
        Text { bytes: [0; ROOM], len: 0 }
    }

    /// Appends `bytes`, as far as there is room.
    pub fn push(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
        self
    }

    /// Appends `number` in decimal.
    pub fn push_number(&mut self, number: u64) -> &mut Self {
        let mut digits = [b'0'; 20];
        let mut rest = number;
        let mut used = 0;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(digits.len() - used..).unwrap_or(&[]))
    }

    /// Appends `bytes` as lower-case hexadecimal digits.
    pub fn push_hex(&mut self, bytes: &[u8]) -> &mut Self {
        let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) };
        for byte in bytes {
            self.push(&[digit(byte >> 4), digit(byte & 15)]);
        }
        self
    }

    /// What was appended.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// Whether everything fitted with a byte to spare (which is then NUL: the text is also a C string).
    pub fn fits(&self) -> bool {
        self.len < ROOM
    }
}

/// Registration after `event`: "load", "fork" or "setsid".
pub fn register(event: &str, area: &Area) -> Text<512> {
    let mut text = Text::new();
    text.push(b"{\"request\":\"hello\",\"event\":\"").push(event.as_bytes());
    text.push(b"\",\"version\":\"").push(env!("CARGO_PKG_VERSION").as_bytes());
    text.push(b"\",\"area\":{\"code\":").push_number(area.code);
    text.push(b",\"code_len\":").push_number(area.code_len);
    text.push(b",\"scratch\":").push_number(area.scratch);
    text.push(b",\"scratch_len\":").push_number(area.scratch_len);
    text.push(b",\"shared\":").push_number(area.shared).push(b"}}");
    text
}

/// A request for a checkpoint; `stop`: end the program once it is committed; `wait`: answer after the commit.
pub fn checkpoint(stop: bool, wait: bool) -> &'static [u8] {
    match (stop, wait) {
        (false, false) => b"{\"request\":\"checkpoint\",\"stop\":false,\"wait\":false}",
        (false, true) => b"{\"request\":\"checkpoint\",\"stop\":false,\"wait\":true}",
        (true, false) => b"{\"request\":\"checkpoint\",\"stop\":true,\"wait\":false}",
        (true, true) => b"{\"request\":\"checkpoint\",\"stop\":true,\"wait\":true}",
    }
}

/// A request for a checkpoint that ends the program, by the handler of `signal`: if it fails, the agent sends that with
/// [`holdfast_abi::environment::ON_STOP_FAILED`].
pub fn stop(signal: u64) -> Text<96> {
    let mut text = Text::new();
    text.push(b"{\"request\":\"checkpoint\",\"stop\":true,\"wait\":false,\"wishes\":{\"signal\":");
    text.push_number(signal).push(b"}}");
    text
}

/// What the agent answered to a request for a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The image is committed, or its cut is made if that is what was waited for.
    Taken,
    /// The program holds something open that cannot be restored.
    Refused,
    /// It failed, or the answer is none that this version knows.
    Failed,
}

/// Reads the first bytes of an answer: the tag comes first, and a message may have been cut behind it.
pub fn answer(text: &[u8]) -> Answer {
    if text.starts_with(b"{\"reply\":\"checkpointed\"") || text.starts_with(b"{\"reply\":\"ok\"") {
        Answer::Taken
    } else if text.starts_with(b"{\"reply\":\"refused\"") {
        Answer::Refused
    } else {
        Answer::Failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::control::{Reply, Request, Wishes};
    use holdfast_image::{Addr, Epoch, record::InjectArea};

    #[test]
    fn the_agent_decodes_a_registration_with_the_largest_numbers() {
        let area =
            Area { code: u64::MAX, code_len: u64::MAX, scratch: u64::MAX, scratch_len: u64::MAX, shared: 0 };
        let text = register("setsid", &area);
        assert!(text.fits());
        let expected = Request::Register {
            event: "setsid".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            area: InjectArea {
                code: Addr(u64::MAX),
                code_len: u64::MAX,
                scratch: Addr(u64::MAX),
                scratch_len: u64::MAX,
                shared: Addr(0),
            },
        };
        assert_eq!(serde_json::from_slice::<Request>(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn the_agent_decodes_a_request_for_a_checkpoint() {
        for (stop, wait) in [(false, false), (false, true), (true, false), (true, true)] {
            let decoded: Request = serde_json::from_slice(checkpoint(stop, wait)).unwrap();
            assert_eq!(decoded, Request::Checkpoint { stop, wait, wishes: Wishes::default() });
        }
    }

    #[test]
    fn the_agent_decodes_a_request_of_a_handler() {
        let decoded: Request = serde_json::from_slice(stop(64).as_bytes()).unwrap();
        let wishes = Wishes { signal: Some(64), ..Wishes::default() };
        assert_eq!(decoded, Request::Checkpoint { stop: true, wait: false, wishes });
    }

    #[test]
    fn the_agents_answers_are_told_apart() {
        let read = |reply: &Reply| answer(&serde_json::to_vec(reply).unwrap());
        let done = Reply::Checkpointed { epoch: Epoch(7), stop_ns: 1, committed: true, gang_image: None };
        assert_eq!(read(&done), Answer::Taken);
        assert_eq!(read(&Reply::Refused { reasons: vec!["fd 7".into()] }), Answer::Refused);
        assert_eq!(read(&Reply::Error { message: "full".into() }), Answer::Failed);
        assert_eq!(answer(b""), Answer::Failed);
    }

    #[test]
    fn text_that_does_not_fit_is_cut_and_says_so() {
        let mut text = Text::<8>::new();
        text.push(b"abc").push_number(1234);
        assert!(text.fits());
        assert_eq!(text.as_bytes(), b"abc1234");
        text.push_hex(&[0x0a, 0xff]);
        assert!(!text.fits());
        assert_eq!(text.as_bytes(), b"abc12340");
    }
}
