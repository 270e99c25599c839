//! Servers that are broken or mean harm: each call ends, soon, in an error that says what is wrong; no caller takes the
//! memory that a server asks for, and what is not the blob is never taken for it.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::answer::MAX_ANSWERS;
use super::test_server::{Asked, at, error_body, raw_server, send, server};
use super::{BlobName, PROBE, RemoteTier, Tier, TierError};
use crate::TierFolder;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FOUND: &str = "etag: x\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT";
/// Length of the object that these servers say they have.
const LEN: u64 = 1000;

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

/// A server that has an object of [`LEN`] bytes, and sends its bytes as the function does.
fn with_object(bytes: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> RemoteTier {
    let url = raw_server(move |asked, stream| match asked.method() {
        "HEAD" => send(stream, "200 OK", &format!("{FOUND}\r\ncontent-length: {LEN}"), b""),
        _ => bytes(asked, stream),
    });
    at(&url, 1)
}

/// How reading the first ten bytes of it fails.
fn read_error(tier: &RemoteTier) -> TierError {
    let blob = tier.open(&name("sim/s")).unwrap();
    assert_eq!(blob.len(), LEN);
    blob.read_at(0, &mut [0; 10]).unwrap_err()
}

fn contents(key: &str) -> String {
    format!(
        "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag>\
         <Size>4</Size></Contents>"
    )
}

fn page(inner: &str, next: Option<&str>) -> String {
    let token = next.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    format!("<ListBucketResult>{inner}{}</ListBucketResult>", token.unwrap_or_default())
}

/// How listing fails at a server that answers every request with this body.
fn list_error(body: String) -> TierError {
    at(&server(move |_| Some(("200 OK", body.clone()))), 1).list("sim").unwrap_err()
}

#[test]
fn what_is_no_part_of_the_blob_is_not_taken_for_it() {
    let part = "206 Partial Content";
    type Send = fn(&mut TcpStream, &str);
    let cases: [(&str, Send); 8] = [
        ("cut off", |to, part| send(to, part, &headers("bytes 0-9/1000", 10), b"01234")),
        ("another range", |to, part| send(to, part, &headers("bytes 1-10/1000", 10), b"0123456789")),
        ("a shorter range", |to, part| send(to, part, &headers("bytes 0-4/1000", 5), b"01234")),
        ("a longer body", |to, part| send(to, part, &headers("bytes 0-9/1000", 11), b"0123456789a")),
        ("a shorter body", |to, part| send(to, part, &headers("bytes 0-9/1000", 5), b"01234")),
        ("no range", |to, part| send(to, part, &format!("{FOUND}\r\ncontent-length: 10"), b"0123456789")),
        ("a range that is none", |to, part| {
            send(to, part, &headers("bytes 0-18446744073709551614/5", 10), b"0123456789");
        }),
        ("the whole", |to, _| send(to, "200 OK", &headers("bytes 0-9/1000", 10), b"0123456789")),
    ];
    for (what, answer) in cases {
        let error = read_error(&with_object(move |_, stream| answer(stream, part)));
        assert!(matches!(error, TierError::Unavailable { .. } | TierError::Short { .. }), "{what}: {error}");
        assert!(what != "the whole" || error.to_string().contains("the whole where a part"), "{error}");
    }
}

fn headers(range: &str, len: usize) -> String {
    format!("{FOUND}\r\ncontent-range: {range}\r\ncontent-length: {len}")
}

#[test]
fn a_body_without_end_costs_neither_memory_nor_time() {
    // As long as the client listens.
    fn for_ever(stream: &mut TcpStream, sent: &AtomicU64) {
        let piece = vec![b' '; 1 << 20];
        while stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).is_ok()
            && stream.write_all(&piece).is_ok()
            && stream.write_all(b"\r\n").is_ok()
        {
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    }
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let tier = with_object(move |asked, stream| {
        let (status, range) = if asked.headers.contains("range:") {
            ("206 Partial Content", "content-range: bytes 0-9/1000\r\n")
        } else {
            ("200 OK", "")
        };
        send(stream, status, &format!("{FOUND}\r\n{range}transfer-encoding: chunked"), b"");
        for_ever(stream, &counted);
    });
    let error = read_error(&tier);
    assert!(error.to_string().contains("makes no sense"), "{error}");
    let error = tier.list("sim").unwrap_err();
    assert!(error.to_string().contains("more than was asked for"), "{error}");
    // What is on its way in buffers besides.
    assert!(sent.load(Ordering::Relaxed) < 4 * MAX_ANSWERS, "{sent:?}");
}

#[test]
fn a_length_that_is_a_lie_takes_no_memory() {
    for length in ["4611686018427387904", "18446744073709551615", "1000000000000"] {
        let url = raw_server(move |_, stream| {
            send(stream, "200 OK", &format!("content-length: {length}"), b"<ListBucketResult>");
            // A second piece: only then is space taken for the whole.
            let _ = stream.flush();
            std::thread::sleep(Duration::from_millis(20));
            let _ = stream.write_all(&[b' '; 70_000]);
        });
        let error = at(&url, 1).list("sim").unwrap_err();
        assert!(matches!(error, TierError::Unavailable { .. }), "{length}: {error}");
    }
    let huge = raw_server(|_, stream| {
        send(stream, "200 OK", &format!("{FOUND}\r\ncontent-length: 18446744073709551615"), b"");
    });
    // The reader of a blob as a whole has a limit of its own.
    if let Ok(blob) = at(&huge, 1).open(&name("sim/m")) {
        let error = crate::tier::read_whole(&*blob, 1000, || "m".to_owned()).unwrap_err();
        assert!(!error.is_transient(), "{error}");
    }
}

#[test]
fn a_server_that_sends_byte_by_byte_is_not_waited_for() {
    let drip = |stream: &mut TcpStream, head: &str| {
        let _ = stream.set_nodelay(true);
        let mut alive = stream.write_all(head.as_bytes()).is_ok();
        while alive {
            std::thread::sleep(Duration::from_millis(50));
            alive = stream.write_all(b" ").is_ok();
        }
    };
    let begin = Instant::now();
    let tier = with_object(move |asked, stream| {
        let status = if asked.headers.contains("range:") { "206 Partial Content" } else { "200 OK" };
        let length = "content-range: bytes 0-9/1000\r\ncontent-length: 1000000";
        // The headers, or the body.
        let ends = if asked.line.contains("list-type") { "\r\n\r\n" } else { "\r\nx: " };
        drip(stream, &format!("HTTP/1.1 {status}\r\n{FOUND}\r\n{length}{ends}"));
    });
    let error = tier.list("sim").unwrap_err();
    assert!(error.to_string().contains("within 1 s"), "{error}");
    assert!(matches!(tier.open(&name("sim/m")), Ok(_) | Err(TierError::Unavailable { .. })));
    assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
}

#[test]
fn listings_have_only_what_is_in_the_folder() {
    let body =
        ["sim/m", "sim/deeper/x", "other/m", "m", "simm", "sim/.hidden", "sim/a%20b", "sim/-rf", "SIM/m"];
    let prefixes = ["sim/x/", "other/", "sim/deeper/still/", "sim/.x/"];
    let inner = body.map(contents).concat()
        + &prefixes.map(|at| format!("<CommonPrefixes><Prefix>{at}</Prefix></CommonPrefixes>")).concat();
    let tier = at(&server(move |_| Some(("200 OK", page(&inner, None)))), 30);
    let listing = tier.list("sim").unwrap();
    assert_eq!(listing.blobs.iter().map(|blob| blob.name.as_str()).collect::<Vec<_>>(), ["sim/m"]);
    assert_eq!(listing.folders, ["x"]);
}

#[test]
fn a_key_that_is_no_path_is_named() {
    for key in ["sim/../../etc/passwd", "sim//m", "sim/./m", "sim/&#27;[2J"] {
        let error = list_error(page(&contents(key), None));
        assert!(matches!(error, TierError::Settings { .. }), "{key}: {error}");
        let text = error.to_string();
        assert!(text.contains("cannot name") && !text.contains('\x1b'), "{key}: {error}");
    }
}

/// A new image gets a greater number than any that a tier lists.
#[test]
fn numbers_that_no_job_counts_to_are_not_believed() {
    let last = u64::MAX;
    let inner = ["manifest-000003", "segment-000004-000", "job-000003"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("manifest-{last}"), format!("segment-{last}-000"), format!("job-{last}")]);
    let inner: String = inner.map(|file| contents(&format!("sim/id/{file}"))).collect();
    let tier = at(&server(move |_| Some(("200 OK", page(&inner, None)))), 30);
    let found = TierFolder::of(Arc::new(tier), "sim/id").unwrap().inventory().unwrap();
    assert_eq!((found.greatest(), found.versions.len(), found.recipes.len()), (4, 1, 1), "{found:?}");
}

#[test]
fn listings_that_are_none_are_said() {
    let deep = "<a>".repeat(1_000_000);
    let bodies = [
        String::new(),
        "<html><body>Welcome to the hotel</body></html>".to_owned(),
        page(&contents("sim/m").replace("<Size>4", "<Size>-4"), None),
        page(&contents("sim/m").replace("2026-01-01", "2026-99-01"), None),
        page("<Contents>", None),
        format!("<ListBucketResult>{deep}"),
        format!("<!DOCTYPE x [<!ENTITY a \"{}\">]>{}", "b".repeat(1000), page(&contents("sim/&a;"), None)),
    ];
    for body in bodies {
        let beginning: String = body.chars().take(60).collect();
        let error = list_error(body);
        assert!(error.to_string().contains("makes no sense"), "{beginning}: {error}");
    }
}

#[test]
fn long_listings_are_read_to_the_end_and_those_without_end_are_not() {
    let numbers = AtomicU64::new(0);
    let tier = at(
        &server(move |_| {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let inner: String = (0..1000).map(|at| contents(&format!("sim/s-{number:02}-{at:03}"))).collect();
            let next = format!("token{number}");
            Some(("200 OK", page(&inner, (number < 19).then_some(&next))))
        }),
        30,
    );
    let listing = tier.list("sim").unwrap();
    assert_eq!(listing.blobs.len(), 20_000);
    assert_eq!(listing.blobs.last().unwrap().name, name("sim/s-19-999"));
    // The same page again and again.
    let inner: String = (0..1000).map(|_| contents(&format!("sim/{}", "x".repeat(150)))).collect();
    let filler = format!("<!-- {} -->", " ".repeat(4 << 20));
    let error = list_error(page(&(inner + &filler), Some("same")));
    assert!(error.to_string().contains("more than was asked for"), "{error}");
}

#[test]
fn a_server_without_the_bucket_is_not_an_empty_tier() {
    for code in ["NoSuchBucket", "", "NoSuchKey"] {
        let tier = at(&server(move |_| Some(("404 Not Found", error_body(code)))), 30);
        let error = tier.list("sim").unwrap_err();
        assert!(
            matches!(&error, TierError::Settings { why, .. } if why.contains("bucket")),
            "{code}: {error}"
        );
    }
}

#[test]
fn a_bucket_that_goes_away_in_the_middle_ends_the_upload() {
    let begun = Arc::new(AtomicU64::new(0));
    let tier = at(
        &server(move |asked| {
            let id = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
            Some(match asked.method() {
                "PUT" if asked.line.contains(PROBE) => ("412 Precondition Failed", error_body("x")),
                "PUT" if begun.fetch_add(1, Ordering::Relaxed) == 0 => ("200 OK\r\netag: x", String::new()),
                "POST" if asked.line.contains("uploads") => ("200 OK", id.to_owned()),
                _ => ("404 Not Found", error_body("NoSuchBucket")),
            })
        }),
        30,
    );
    let mut writer = tier.create(&name("sim/s"), None).unwrap();
    let failed = (0..4).find_map(|_| writer.append(&vec![1; 8 << 20]).err());
    let error = failed.unwrap_or_else(|| writer.finish().unwrap_err());
    assert!(matches!(&error, TierError::Settings { why, .. } if why.contains("no such bucket")), "{error}");
}

#[test]
fn redirects_end() {
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        for to in ["/bucket/elsewhere", "file:///etc/passwd", "\u{1}"] {
            let url = raw_server(move |_, stream| {
                send(stream, status, &format!("location: {to}\r\ncontent-length: 0"), b"");
            });
            let tier = at(&url, 2);
            for result in [
                tier.list("sim").map(drop),
                tier.open(&name("sim/m")).map(drop),
                tier.publish(&name("sim/m"), b"m"),
            ] {
                let error = result.unwrap_err();
                assert!(
                    matches!(error, TierError::Settings { .. } | TierError::Unavailable { .. }),
                    "{status} {to}: {error}"
                );
            }
        }
    }
}

/// Neither credentials, nor the session token, nor memory of a program get to a server that was not named.
#[test]
fn a_server_does_not_send_us_on_to_another() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let other = raw_server(move |_, stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        send(stream, "200 OK", &format!("{FOUND}\r\ncontent-length: 0"), b"");
    });
    let port = other.rsplit(':').next().unwrap().to_owned();
    for status in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        for to in
            [other.clone(), format!("http://KEY:SECRET@localhost:{port}"), format!("//127.0.0.1:{port}")]
        {
            let url = raw_server(move |_, stream| {
                send(stream, status, &format!("location: {to}/x?signature=SECRET\r\ncontent-length: 0"), b"");
            });
            let tier = at(&url, 2);
            for result in [
                tier.list("sim").map(drop),
                tier.open(&name("sim/m")).map(drop),
                tier.publish(&name("sim/m"), b"memory"),
            ] {
                let error = result.unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, TierError::Settings { .. }), "{status}: {text}");
                assert!(text.contains(&format!(":{port}\", which is not followed")), "{status}: {text}");
                assert!(!text.contains("SECRET"), "{status}: {text}");
            }
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "it was asked");
}

/// Within itself it may: a folder that is asked for without a slash at its end, for one.
#[test]
fn a_server_may_send_us_on_within_itself() {
    let url = raw_server(|asked, stream| {
        if asked.line.contains("/elsewhere") {
            let body = page(&contents("sim/m"), None);
            return send(stream, "200 OK", &format!("content-length: {}", body.len()), body.as_bytes());
        }
        send(stream, "307 Temporary Redirect", "location: /elsewhere\r\ncontent-length: 0", b"");
    });
    assert_eq!(at(&url, 30).list("sim").unwrap().blobs.len(), 1);
}

#[test]
fn a_server_that_says_yes_to_everything_is_found_out() {
    // Status 200, an empty body: to the probe, to puts, to the beginning and the end of uploads.
    let tier = at(&server(|_| Some(("200 OK\r\netag: x", String::new()))), 1);
    assert!(tier.list("sim").is_err());
    // It has everything already, and its lengths are nothing's.
    assert!(tier.publish(&name("sim/m"), b"m").is_err());
    assert!(tier.info().single_writer.is_some());
    let mut writer = tier.create(&name("sim/s"), None).unwrap();
    assert!(writer.append(&vec![1; 9 << 20]).is_err());
    // An end of an upload that is an error with status 200, as S3 may send it.
    let url = server(|asked| {
        let id = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
        Some(match asked.method() {
            "PUT" => ("200 OK\r\netag: x", String::new()),
            "POST" if asked.line.contains("uploads") => ("200 OK", id.to_owned()),
            "POST" => ("200 OK", error_body("InternalError")),
            "DELETE" => ("204 No Content", String::new()),
            _ => ("404 Not Found", error_body("NoSuchKey")),
        })
    });
    let tier = at(&url, 1);
    let mut writer = tier.create(&name("sim/s"), None).unwrap();
    writer.append(&vec![1; 9 << 20]).unwrap();
    assert!(matches!(writer.finish(), Err(TierError::Unavailable { .. })));
}
