//! The body of an answer that may take for ever, be of any length, or stop in the middle.
//!
//! Put by the courier around the body of each success; those of errors it reads itself. Invariants: a body has the time
//! that its bytes take at the slowest speed that counts, and no more; it has at most the length that was asked for, and
//! all answers of one operation together at most [`MAX_ANSWERS`]; what the server claims about its length makes no
//! caller take memory for it; whatever ends it too early is noted.

use super::failure::{Answer, Seen};
use super::patience::Patience;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody};
use reqwest::header::RANGE;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};

/// Most bytes of what is no part of an object: some 200 000 entries of a listing.
pub(super) const MAX_ANSWERS: u64 = 64 << 20;

/// Most bytes that are taken at once because a server says so.
const CLAIMED: u64 = 16 << 20;

/// What may come back for a request.
pub(super) struct Expected {
    /// Length of the part of an object that was asked for.
    range: Option<u64>,
    /// What a listing has in it: the library takes any other document for an empty one.
    listing: Option<&'static str>,
    is_head: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("no more of the answer within {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("more than was asked for")]
    TooLong,
    #[error("it is no listing; is there a server of this kind at the address?")]
    NoListing,
}

impl Expected {
    pub(super) fn of(request: &HttpRequest) -> Expected {
        let range = request.headers().get(RANGE).and_then(|value| range_len(value.to_str().ok()?));
        let asks =
            |what| request.uri().query().is_some_and(|query| query.split('&').any(|part| part == what));
        let listing = match request.method().as_str() {
            "GET" if asks("list-type=2") => Some("<ListBucketResult"),
            "GET" if asks("comp=list") => Some("<EnumerationResults"),
            "PROPFIND" => Some("multistatus"),
            _ => None,
        };
        Expected { range, listing, is_head: request.method() == "HEAD" }
    }

    /// A success with its body watched; that of a listing is read, and is one.
    ///
    /// # Errors
    /// The listing is none, or does not come to its end.
    pub(super) async fn take(
        &self,
        response: HttpResponse,
        seen: &Arc<Seen>,
        patience: Patience,
    ) -> Result<HttpResponse, HttpError> {
        let response = self.watch(response, seen, patience);
        let Some(word) = self.listing else { return Ok(response) };
        let (parts, body) = response.into_parts();
        let body = body.bytes().await?;
        if !body.windows(word.len()).any(|bytes| bytes == word.as_bytes()) {
            seen.note(Answer::Nonsense(Wrong::NoListing.to_string()));
            return Err(HttpError::new(HttpErrorKind::Decode, Wrong::NoListing));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }

    fn watch(&self, response: HttpResponse, seen: &Arc<Seen>, patience: Patience) -> HttpResponse {
        let status = response.status().as_u16();
        seen.note(match self.range {
            Some(_) if status == 200 && !self.is_head => {
                Answer::Nonsense("it sends the whole where a part was asked for".to_owned())
            }
            _ => Answer::of(status, b""),
        });
        let left = match self.range {
            Some(len) => len,
            None => MAX_ANSWERS.saturating_sub(seen.received()),
        };
        let (parts, body) = response.into_parts();
        let watched = Watched {
            body,
            left,
            received: 0,
            counts: self.range.is_none(),
            seen: Arc::clone(seen),
            patience,
            began: Instant::now(),
            end: Box::pin(sleep(patience.limit(0))),
        };
        HttpResponse::from_parts(parts, HttpResponseBody::new(watched))
    }
}

/// The length that `bytes=FIRST-LAST` means.
fn range_len(value: &str) -> Option<u64> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

struct Watched {
    body: HttpResponseBody,
    /// Bytes that may still come.
    left: u64,
    received: u64,
    /// Whether they count for the operation.
    counts: bool,
    seen: Arc<Seen>,
    patience: Patience,
    began: Instant,
    end: Pin<Box<Sleep>>,
}

impl Watched {
    fn pass(&mut self, len: u64) -> Result<(), HttpError> {
        let Some(left) = self.left.checked_sub(len) else {
            self.seen.note(Answer::Nonsense(Wrong::TooLong.to_string()));
            return Err(HttpError::new(HttpErrorKind::Decode, Wrong::TooLong));
        };
        self.left = left;
        self.received += len;
        if self.counts {
            self.seen.receive(len);
        }
        self.end.as_mut().reset(self.began + self.patience.limit(self.received));
        Ok(())
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        // First the limit: a server that sends one byte after the other is never pending for long.
        if self.end.as_mut().poll(context).is_ready() {
            let why = Wrong::TooSlow(self.patience.limit(self.received));
            self.seen.note(Answer::Lost(why.to_string()));
            return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Timeout, why))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| match frame {
            Ok(frame) => {
                self.pass(frame.data_ref().map_or(0, |bytes| bytes.len() as u64))?;
                Ok(frame)
            }
            Err(error) => {
                self.seen.note(Answer::lost(&error));
                Err(error)
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    /// The collector of the body takes so much memory at once: never what the server says, if that is more.
    fn size_hint(&self) -> SizeHint {
        let hint = self.body.size_hint();
        let mut bounded = SizeHint::new();
        bounded.set_lower(hint.lower().min(self.left).min(CLAIMED));
        if let Some(upper) = hint.upper() {
            bounded.set_upper(upper.max(bounded.lower()));
        }
        bounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_range_is_known() {
        assert_eq!(range_len("bytes=0-0"), Some(1));
        assert_eq!(range_len("bytes=10-19"), Some(10));
        for other in ["bytes=5-4", "bytes=-5", "bytes=5-", "bytes=0-18446744073709551615", "", "items=0-1"] {
            assert_eq!(range_len(other), None, "{other}");
        }
    }
}
