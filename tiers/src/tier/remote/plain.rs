//! Short questions to the metadata service of a cloud's host, by plain HTTP: is this machine about to go?
//!
//! Used by the agent (`--on-spot`), every few seconds; here because the client of HTTP is. Invariants: no proxy, as
//! these addresses mean the host itself; no wait without a limit; no more of an answer than fits is read.
//! Fails by: what went wrong, in words.

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const LONGEST: usize = 256 << 10;

/// Asks, one question after the other.
#[derive(Debug)]
pub struct Asker {
    runtime: Runtime,
    client: reqwest::Client,
}

/// What was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// Status of HTTP.
    pub status: u16,
    /// The body.
    pub text: String,
}

impl Asker {
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// No thread, or no descriptor, is left.
    pub fn new() -> Result<Asker, String> {
        // As in `connect`.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let client = reqwest::Client::builder().no_proxy().http1_only().timeout(LIMIT);
        let client = client.redirect(reqwest::redirect::Policy::none()).build();
        Ok(Asker { runtime, client: client.map_err(|error| in_words(&error))? })
    }

    /// What the service at `url` has.
    ///
    /// # Errors
    /// Nothing answers within five seconds, or too much.
    pub fn get(&self, url: &str, header: (&str, &str)) -> Result<Answered, String> {
        self.ask(self.client.get(url), header)
    }

    /// What it gives for nothing: a token.
    ///
    /// # Errors
    /// As [`Asker::get`].
    pub fn put(&self, url: &str, header: (&str, &str)) -> Result<Answered, String> {
        self.ask(self.client.put(url).header("content-length", "0"), header)
    }

    fn ask(&self, request: reqwest::RequestBuilder, (name, value): (&str, &str)) -> Result<Answered, String> {
        let asked = async {
            let response = request.header(name, value).send().await.map_err(|error| in_words(&error))?;
            let status = response.status().as_u16();
            let body = Limited::new(reqwest::Body::from(response), LONGEST).collect().await;
            let bytes: Bytes = body.map_err(|error| error.to_string())?.to_bytes();
            Ok(Answered { status, text: String::from_utf8_lossy(&bytes).into_owned() })
        };
        self.runtime.block_on(asked)
    }
}

/// The innermost cause: those around it name the URL again.
fn in_words(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", LIMIT.as_secs());
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
