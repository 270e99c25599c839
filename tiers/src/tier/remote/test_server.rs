//! A server for tests that answers each request by a function, in whatever way a server should not.
//!
//! Used by `tests` (answers as S3 gives them) and `hostile` (answers that it never gives).
#![allow(clippy::unwrap_used)]

use super::patience::Patience;
use super::{RemoteTier, connect};
use object_store::aws::AmazonS3Builder;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A request as a server sees it.
pub(super) struct Asked {
    pub(super) line: String,
    pub(super) headers: String,
}

impl Asked {
    pub(super) fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or("")
    }
}

/// A server that leaves what is written to each connection to a function; then the connection ends.
pub(super) fn raw_server(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                if let Some(asked) = read_request(&stream) {
                    answer(&asked, &mut stream);
                }
            });
        }
    });
    url
}

/// An S3 server that answers each request by a function: status and headers, then the body. `None`: closes.
pub(super) fn server(
    answer: impl Fn(&Asked) -> Option<(&'static str, String)> + Send + Sync + 'static,
) -> String {
    raw_server(move |asked, stream| {
        if let Some((status, body)) = answer(asked) {
            send(stream, status, &format!("content-length: {}", body.len()), body.as_bytes());
        }
    })
}

/// One answer, with headers that are not compared with the body. The client may have gone.
pub(super) fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn read_request(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut headers, mut len) = (String::new(), String::new(), 0);
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return None;
    }
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header).unwrap_or(0) <= 2 {
            break;
        }
        let header = header.to_ascii_lowercase();
        len = header.strip_prefix("content-length:").map_or(len, |value| value.trim().parse().unwrap());
        headers += &header;
    }
    reader.read_exact(&mut vec![0; len]).ok()?;
    Some(Asked { line, headers })
}

/// The tier at such a server, which may take so long for an answer.
pub(super) fn at(url: &str, seconds: u64) -> RemoteTier {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = AmazonS3Builder::new()
        .with_allow_http(true)
        .with_endpoint(url)
        .with_bucket_name("bucket")
        .with_access_key_id("KEY")
        .with_secret_access_key("SECRET")
        .with_token("TOKEN");
    let patience = Patience { answer: Duration::from_secs(seconds) };
    let store = connect::with_client(builder, "s3://bucket", patience).unwrap();
    RemoteTier::over(store, String::new(), "s3://bucket".into(), patience, true).unwrap()
}

pub(super) fn error_body(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>words</Message></Error>")
}
