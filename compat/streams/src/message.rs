//! What a reader and the server of streams say to each other, one JSON object per frame (`holdfast_image::framing`).
//!
//! Both have the same version of Holdfast, or nothing but [`Message::Ask`] and [`Message::Refused`] is said.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The parts of an object, as they come from a server that need not be an honest one.
#[derive(Debug)]
pub struct Parts {
    bytes: u64,
    whole: Vec<u8>,
}

impl Parts {
    /// Of an object of so many bytes, which are not believed: what has come is what there is.
    pub fn of(bytes: u64) -> Parts {
        Parts { bytes, whole: Vec::new() }
    }

    /// Whether all have come.
    pub fn are_whole(&self) -> bool {
        self.whole.len() as u64 >= self.bytes
    }

    /// What has come.
    pub fn take(self) -> Vec<u8> {
        self.whole
    }

    /// The next one.
    ///
    /// # Errors
    /// It is none of this object: what it is.
    pub fn add(&mut self, message: &Message, part: &[u8]) -> Result<(), String> {
        let fits = !part.is_empty() && (self.whole.len() + part.len()) as u64 <= self.bytes;
        if *message != Message::Part || !fits {
            return Err(format!("{message:?} with {} bytes instead of a part of an object", part.len()));
        }
        self.whole.extend(part);
        Ok(())
    }
}

/// Most bytes of an object that go with one message.
pub const PART: usize = 1 << 20;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "message", content = "of", rename_all = "snake_case")]
pub enum Message {
    /// The first, and the only one of a reader.
    Ask(Ask),
    /// The answer: no; the connection is over.
    Refused {
        /// Why.
        reason: String,
        /// Which.
        kind: Refusal,
    },
    /// The objects of a version, with their sizes in bytes.
    List {
        /// Of this version.
        version: u64,
        /// By their names.
        objects: BTreeMap<String, u64>,
    },
    /// An object follows, of so many bytes.
    Object {
        /// At this version.
        version: u64,
        /// In [`Message::Part`]s.
        bytes: u64,
    },
    /// The next bytes of the object: they come with it.
    Part,
    /// The server is there, and waits for the producer.
    Here,
    /// No more comes.
    Done,
}

/// What is asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// The reader's version of Holdfast.
    pub version: String,
    /// Its host.
    pub host: String,
    /// `NAME` or `NAME/RANK`.
    pub stream: String,
    /// This version of the stream; 0: the newest that may be read.
    pub at: u64,
    /// `None`: the list of objects.
    pub object: Option<String>,
    /// And of each version to come, until the producer has ended.
    pub follow: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It may not be read.
    NotExported,
    /// There is no such stream, version or object.
    NotFound,
    /// What is asked for makes no sense.
    Usage,
    /// The log cannot be read.
    Damaged,
}
