//! What went wrong at a server, as a [`TierError`].
//!
//! `object_store` keeps the answer of the server to itself and has the address of the request in its texts, which at
//! some stores carries a signature. So the courier notes what it sees of each operation ([`Seen`]), and messages are
//! made of that alone: the status, and the code and message of the server's answer, cut short.
//! Called by the courier (notes) and by `requests` (the error).

use crate::tier::TierError;
use object_store::client::HttpError;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most characters of a server's words in a message.
const MAX_WORDS: usize = 160;

tokio::task_local! {
    /// What the operation that the present task is part of has seen.
    pub(super) static SEEN: std::sync::Arc<Seen>;
}

/// What was seen of one operation, over all its attempts.
#[derive(Default, Debug)]
pub(super) struct Seen {
    attempts: AtomicU32,
    received: AtomicU64,
    answer: Mutex<Option<Answer>>,
}

/// What the last attempt ended with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// A status, and what the server says to it.
    Status { status: u16, code: String, message: String },
    /// No answer, or not all of it.
    Lost(String),
    /// A success that is none.
    Nonsense(String),
    /// The host's own service for credentials does not answer: there are none.
    NoCredentials,
}

impl Seen {
    pub(super) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests were made.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    /// Bytes came that are no part of an object.
    pub(super) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How many did.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, answer: Answer) {
        *self.answer.lock() = Some(answer);
    }

    pub(super) fn answer(&self) -> Option<Answer> {
        self.answer.lock().clone()
    }

    /// Whether the server does not know the operation.
    pub(super) fn is_unsupported(&self) -> bool {
        matches!(self.answer(), Some(Answer::Status { status: 501, .. }))
    }

    /// Whether another write to the same name was under way, so that nothing is decided yet.
    pub(super) fn is_undecided(&self) -> bool {
        let undecided = ["ConditionalRequestConflict", "OperationAborted"];
        matches!(self.answer(), Some(Answer::Status { status: 409, code, .. }) if undecided.contains(&code.as_str()))
    }
}

impl Answer {
    /// Of a status and the beginning of the body that came with it: XML with Code and Message, if any.
    pub(super) fn of(status: u16, body: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(body);
        Answer::Status { status, code: element(&text, "Code"), message: element(&text, "Message") }
    }

    /// Of a status that sends us on, which was not followed. Of the address only the server: the rest of it may be a
    /// credential.
    pub(super) fn moved(status: u16, location: &str) -> Answer {
        let server = location.split_once("//").map_or("", |(_, rest)| rest);
        let server = server.split(['/', '?', '#']).next().unwrap_or_default();
        let server = shortened(server.rsplit('@').next().unwrap_or_default());
        Answer::Status {
            status,
            code: String::new(),
            message: format!("and redirects to {server:?}, which is not followed"),
        }
    }

    /// Of an error without an answer: the innermost cause.
    pub(super) fn lost(error: &HttpError) -> Answer {
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        Answer::Lost(shortened(&cause.to_string()))
    }
}

fn element(text: &str, name: &str) -> String {
    let inner = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
    let plain = [("&quot;", "\""), ("&apos;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    let inner = inner.map_or("", |(inner, _)| inner).to_owned();
    shortened(&plain.iter().fold(inner, |text, (escaped, plain)| text.replace(escaped, plain)))
}

/// The beginning of a text that a server has sent, in one line.
fn shortened(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WORDS).collect();
    line.trim().to_owned()
}

/// The error of an operation on `object`.
pub(super) fn error(object: &str, error: &object_store::Error, seen: &Seen) -> TierError {
    let object = object.to_owned();
    let answer = seen.answer();
    match (&answer, error) {
        (_, object_store::Error::InvalidPath { source }) => {
            TierError::Settings { object, why: impossible_key(source) }
        }
        (Some(Answer::NoCredentials), _) => TierError::Denied {
            object,
            why: "there are no credentials: neither in the environment nor in the usual files nor from this host \
                  (docs/remote.md)"
                .to_owned(),
        },
        (Some(Answer::Lost(why)), _) => TierError::Unavailable { object, why: why.clone() },
        (Some(Answer::Nonsense(why)), _) => {
            TierError::Unavailable { object, why: format!("the answer of the server makes no sense: {why}") }
        }
        (Some(Answer::Status { status, code, message }), _) => of_status(object, *status, code, message),
        (None, object_store::Error::NotFound { .. }) => TierError::NotFound { object },
        (None, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
            TierError::Exists { object }
        }
        (None, object_store::Error::NotImplemented { operation, .. }) => {
            TierError::Settings { object, why: format!("this store cannot do it: {operation}") }
        }
        // What it is about is seen from the outside: an answer that is none of the protocol.
        (None, _) => TierError::Unavailable { object, why: "the answer of the server makes no sense".to_owned() },
    }
}

fn of_status(object: String, status: u16, code: &str, message: &str) -> TierError {
    let mut why = format!("the server answers {status}");
    for more in [code, message].into_iter().filter(|more| !more.is_empty()) {
        why += &format!(" {more}");
    }
    let full =
        ["QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"];
    match status {
        _ if full.contains(&code) => TierError::Full { object },
        507 => TierError::Full { object },
        404 if matches!(code, "NoSuchBucket" | "ContainerNotFound") => TierError::Settings {
            object,
            why: "there is no such bucket (or container); make it, or correct the address".to_owned(),
        },
        404 | 410 => TierError::NotFound { object },
        409 | 412 => TierError::Exists { object },
        401 | 403 => TierError::Denied { object, why },
        400 if matches!(code, "ExpiredToken" | "InvalidToken" | "InvalidAccessKeyId") => {
            TierError::Denied { object, why }
        }
        408 | 425 | 429 | 500..=599 => TierError::Unavailable { object, why },
        300..=399 => {
            let what = "name the right server, or set the region of the bucket (AWS_REGION)";
            TierError::Settings { object, why: format!("{why}; {what}") }
        }
        // A success that ended in an error, and was not cut off.
        200..=299 => {
            let why =
                "the answer of the server makes no sense: is there a server of this kind at the address?";
            TierError::Unavailable { object, why: why.to_owned() }
        }
        _ => TierError::Settings { object, why },
    }
}

/// A listing has a key that is no path; the library shows the whole of none.
fn impossible_key(error: &object_store::path::Error) -> String {
    format!(
        "the server lists an object that Holdfast did not make and cannot name ({}); remove it, or use another prefix",
        shortened(&error.to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(answer: Answer) -> Seen {
        let seen = Seen::default();
        seen.note(answer);
        seen
    }

    fn mapped(answer: Answer) -> TierError {
        let any = object_store::Error::NotSupported { source: "SECRET in the text of the library".into() };
        error("s3://b/x", &any, &seen(answer))
    }

    #[test]
    fn every_answer_has_its_error() {
        let body =
            |code: &str| format!("<?xml?><Error><Code>{code}</Code><Message>m\u{7}\nm</Message></Error>");
        let of = |status, code: &str| mapped(Answer::of(status, body(code).as_bytes()));
        assert!(matches!(of(403, "SignatureDoesNotMatch"), TierError::Denied { .. }));
        assert!(matches!(of(401, ""), TierError::Denied { .. }));
        assert!(matches!(of(400, "ExpiredToken"), TierError::Denied { .. }));
        assert!(matches!(of(403, "QuotaExceeded"), TierError::Full { .. }));
        assert!(matches!(of(507, ""), TierError::Full { .. }));
        assert!(matches!(of(404, "NoSuchKey"), TierError::NotFound { .. }));
        assert!(matches!(of(404, "NoSuchBucket"), TierError::Settings { .. }));
        assert!(matches!(of(412, "PreconditionFailed"), TierError::Exists { .. }));
        assert!(matches!(of(301, "PermanentRedirect"), TierError::Settings { .. }));
        assert!(matches!(of(400, "InvalidRequest"), TierError::Settings { .. }));
        for status in [408, 429, 500, 502, 503, 504, 200] {
            assert!(of(status, "SlowDown").is_transient(), "{status}");
        }
        assert_eq!(element("<Message>a &lt;&quot;b&amp;lt;</Message>", "Message"), "a <\"b&lt;");
        assert!(mapped(Answer::Lost("Connection refused".into())).is_transient());
        assert!(matches!(mapped(Answer::NoCredentials), TierError::Denied { .. }));
        assert_eq!(
            of(503, "SlowDown").to_string(),
            "s3://b/x: not reachable: the server answers 503 SlowDown m  m; it is tried again"
        );
    }

    #[test]
    fn the_words_of_a_server_are_short_and_the_librarys_are_not_shown() {
        let answer =
            Answer::of(403, format!("<Code>{}</Code><Message>{}", "x".repeat(9999), "\x1b[2J").as_bytes());
        let text = mapped(answer).to_string();
        assert!(text.len() < 400 && !text.contains(['\x1b', '\n']) && !text.contains("SECRET"), "{text}");
    }

    #[test]
    fn what_is_not_decided_yet_is_told_from_what_is_taken() {
        let body = b"<Error><Code>ConditionalRequestConflict</Code></Error>";
        assert!(seen(Answer::of(409, body)).is_undecided());
        assert!(!seen(Answer::of(412, b"<Code>PreconditionFailed</Code>")).is_undecided());
    }
}
