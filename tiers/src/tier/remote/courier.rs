//! What carries each request to a server, and sees each answer.
//!
//! Called by `object_store` for every attempt of every request. It adds three things to its client:
//! * a limit of time that grows with what is sent, so that neither a slow link fails nor a silent server holds us;
//! * notes of what was answered ([`super::failure`]), and limits for what is ([`super::answer`]);
//! * at S3, the end of an upload in parts is made conditional as a put of one piece is (`If-None-Match: *`): the
//!   library has that for copies alone. A server that does not know it (501) is asked again without.

use super::answer::Expected;
use super::client;
use super::failure::{Answer, SEEN};
use super::patience::Patience;
use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientOptions, HeaderValue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Most bytes of an error's body that are looked at.
const MAX_ERROR_BODY: usize = 64 << 10;
/// Where clouds tell their hosts' credentials.
const METADATA_HOSTS: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// Makes couriers.
#[derive(Debug)]
pub(super) struct Couriers {
    pub(super) patience: Patience,
    /// Whether uploads in parts end conditionally.
    pub(super) conditional_end: bool,
}

impl HttpConnector for Couriers {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Courier {
            inner: HttpClient::new(client::client(options)?),
            patience: self.patience,
            conditional_end: AtomicBool::new(self.conditional_end),
        }))
    }
}

#[derive(Debug)]
struct Courier {
    inner: HttpClient,
    patience: Patience,
    conditional_end: AtomicBool,
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", .0.as_secs())]
struct NoAnswer(Duration);

#[async_trait]
impl HttpService for Courier {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !(is_end_of_upload(&request) && self.conditional_end.load(Ordering::Relaxed)) {
            return self.carry(request).await;
        }
        let plain = request.clone();
        request.headers_mut().insert("if-none-match", HeaderValue::from_static("*"));
        let response = self.carry(request).await?;
        if response.status().as_u16() != 501 {
            return Ok(response);
        }
        self.conditional_end.store(false, Ordering::Relaxed);
        self.carry(plain).await
    }
}

impl Courier {
    async fn carry(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let seen = SEEN.try_with(Arc::clone).unwrap_or_default();
        seen.attempt();
        let metadata = request.uri().host().is_some_and(|host| METADATA_HOSTS.contains(&host));
        let limit = self.patience.limit(request.body().content_length() as u64);
        let expected = Expected::of(&request);
        let noted = |error: HttpError| {
            seen.note(if metadata { Answer::NoCredentials } else { Answer::lost(&error) });
            error
        };
        let response = within(limit, self.inner.execute(request)).await.map_err(noted)?;
        let status = response.status();
        if status.is_success() {
            return expected.take(response, &seen, self.patience).await;
        }
        let (parts, body) = response.into_parts();
        let body = within(self.patience.answer, beginning(body)).await.map_err(noted)?;
        let elsewhere = parts.headers.get("location").and_then(|location| location.to_str().ok());
        seen.note(match elsewhere.filter(|_| status.is_redirection()) {
            _ if metadata => Answer::NoCredentials,
            Some(location) => Answer::moved(status.as_u16(), location),
            None => Answer::of(status.as_u16(), &body),
        });
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(HttpError::new(HttpErrorKind::Timeout, NoAnswer(limit))),
    }
}

/// The body of an error; nothing of one that is longer than any error is.
async fn beginning(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    match Limited::new(body, MAX_ERROR_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes().to_vec()),
        Err(error) => match error.downcast::<HttpError>() {
            Ok(error) => Err(*error),
            Err(_) => Ok(Vec::new()),
        },
    }
}

/// CompleteMultipartUpload of S3: POST KEY?uploadId=ID.
fn is_end_of_upload(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or("");
    request.method() == "POST" && query.split('&').any(|part| part.starts_with("uploadId="))
}
