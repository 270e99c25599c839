//! Remote tiers without a server of their own: over the library's store in memory, and over a server that answers what
//! a test has written down. A real server is in tests/s3.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../tests/all/common/conformance.rs"]
mod conformance;

use super::test_server::{at, error_body, server};
use super::*;
use object_store::memory::InMemory;

const PATIENCE: Patience = Patience { answer: Duration::from_secs(30) };

fn name(text: &str) -> BlobName {
    BlobName::new(text).unwrap()
}

fn in_memory(prefix: &str) -> RemoteTier {
    RemoteTier::over(Arc::new(InMemory::new()), prefix.into(), "s3://memory".into(), PATIENCE, true).unwrap()
}

#[test]
fn every_kind_of_prefix_conforms() {
    for prefix in ["", "one", "one/two"] {
        let tier = in_memory(prefix);
        conformance::conforms(&tier);
        assert_eq!(tier.info().single_writer, None);
    }
}

#[test]
fn a_long_blob_goes_up_in_parts_and_replaces_none() {
    long_blobs(&in_memory("p"));
}

fn long_blobs(tier: &dyn Tier) {
    let to = name("long/blob");
    tier.remove(&to).unwrap();
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| (at / 7) as u8).collect();
    let (mut first, mut second) = (tier.create(&to, None).unwrap(), tier.create(&to, None).unwrap());
    for writer in [&mut first, &mut second] {
        for piece in bytes.chunks(3_000_000) {
            writer.append(piece).unwrap();
        }
    }
    assert!(tier.list("long").unwrap().blobs.is_empty());
    assert_eq!(second.finish().unwrap(), 20_000_000);
    assert!(matches!(first.finish(), Err(TierError::Exists { .. })));
    let blob = tier.open(&to).unwrap();
    let mut read = vec![0; 19_000_000];
    blob.read_at(1_000_000, &mut read).unwrap();
    assert!(read == bytes[1_000_000..]);
    let mut third = tier.create(&to, None).unwrap();
    let refused = bytes.chunks(3_000_000).find_map(|piece| third.append(piece).err());
    assert!(matches!(refused, Some(TierError::Exists { .. })), "{refused:?}");
    assert!(third.append(b"x").is_err() && third.finish().is_err());
}

#[test]
fn a_server_that_is_down_is_asked_before_the_first_write() {
    // tcpmux: nothing serves it.
    let url = "http://127.0.0.1:1".to_owned();
    let tier = at(&url, 30);
    for result in [
        tier.publish(&name("sim/m"), b"m"),
        tier.create(&name("sim/s"), None).map(drop),
        tier.open(&name("sim/m")).map(drop),
        tier.list("sim").map(drop),
        tier.remove(&name("sim/m")),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, TierError::Unavailable { .. }) && error.is_transient(), "{error}");
        assert!(!error.to_string().contains("SECRET"), "{error}");
    }
}

#[test]
fn a_server_that_never_answers_does_not_hold_us() {
    let url = server(|_| {
        std::thread::park();
        None
    });
    let tier = at(&url, 1);
    let error = tier.open(&name("sim/m")).map(drop).unwrap_err();
    assert!(
        matches!(&error, TierError::Unavailable { why, .. } if why.contains("no answer within")),
        "{error}"
    );
}

#[test]
fn what_a_server_says_is_the_error() {
    type Check = fn(&TierError) -> bool;
    let cases: [(&str, &str, Check); 7] = [
        ("403 Forbidden", "SignatureDoesNotMatch", |error| matches!(error, TierError::Denied { .. })),
        ("401 Unauthorized", "", |error| matches!(error, TierError::Denied { .. })),
        ("507 Insufficient Storage", "", |error| matches!(error, TierError::Full { .. })),
        ("403 Forbidden", "QuotaExceeded", |error| matches!(error, TierError::Full { .. })),
        ("503 Slow Down", "SlowDown", |error| matches!(error, TierError::Unavailable { .. })),
        ("404 Not Found", "NoSuchBucket", |error| matches!(error, TierError::Settings { .. })),
        ("301 Moved", "PermanentRedirect", |error| matches!(error, TierError::Settings { .. })),
    ];
    for (status, code, check) in cases {
        let tier = at(&server(move |_| Some((status, error_body(code)))), 30);
        for error in [tier.list("sim").map(drop), tier.publish(&name("sim/m"), b"m")] {
            let error = error.unwrap_err();
            assert!(check(&error), "{status} {code}: {error}");
        }
    }
}

#[test]
fn credentials_that_are_wrong_are_refused_and_those_for_reading_are_enough_to_read() {
    let wrong = at(&server(|_| Some(("403 Forbidden", error_body("InvalidAccessKeyId")))), 30);
    assert!(matches!(wrong.list("sim"), Err(TierError::Denied { .. })));
    let reads = at(
        &server(|asked| {
            let list = "<ListBucketResult></ListBucketResult>".to_owned();
            Some(if asked.line.starts_with("GET") {
                ("200 OK", list)
            } else {
                ("403 Forbidden", error_body("AccessDenied"))
            })
        }),
        30,
    );
    assert!(matches!(reads.publish(&name("sim/m"), b"m"), Err(TierError::Denied { .. })));
    assert!(reads.list("sim").unwrap().blobs.is_empty());
}

#[test]
fn where_a_server_replaces_what_is_there_names_are_looked_up_and_it_is_said() {
    for status in ["200 OK", "501 Not Implemented"] {
        let tier = at(
            &server(move |asked| {
                let conditional = asked.headers.contains("if-none-match");
                Some(match asked.method() {
                    "PUT" if conditional => {
                        (if status == "200 OK" { "200 OK\r\netag: x" } else { status }, "".into())
                    }
                    "PUT" => ("200 OK\r\netag: x", "".into()),
                    _ if asked.line.contains("taken") => {
                        ("200 OK\r\netag: x\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT", "".into())
                    }
                    _ => ("404 Not Found", error_body("NoSuchKey")),
                })
            }),
            30,
        );
        tier.publish(&name("sim/free"), b"m").unwrap();
        let why = tier.info().single_writer.clone().unwrap();
        assert!(why.contains("replaces"), "{why}");
        assert!(matches!(tier.publish(&name("sim/taken"), b"m"), Err(TierError::Exists { .. })));
    }
}

#[test]
fn an_answer_that_was_lost_is_made_up_for_by_looking() {
    for (there, done) in [("mine", true), ("then", false)] {
        let first = std::sync::atomic::AtomicBool::new(true);
        let tier = at(
            &server(move |asked| {
                let found = "200 OK\r\netag: x\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT";
                let ranged = "206 Partial Content\r\netag: x\r\ncontent-range: bytes 0-3/4\r\n\
                              last-modified: Thu, 01 Jan 2026 00:00:00 GMT";
                match asked.method() {
                    "PUT" if asked.line.contains(PROBE) => Some(("412 Precondition Failed", error_body("x"))),
                    // Done, but the answer says that it was not; so it is tried again, and refused.
                    "PUT" if first.swap(false, std::sync::atomic::Ordering::SeqCst) => {
                        Some(("500 Internal Server Error", error_body("InternalError")))
                    }
                    "PUT" => Some(("412 Precondition Failed", error_body("PreconditionFailed"))),
                    "HEAD" => Some((found, "    ".into())),
                    _ => Some((ranged, there.into())),
                }
            }),
            30,
        );
        let published = tier.publish(&name("sim/m"), b"mine");
        assert_eq!(published.is_ok(), done, "{published:?}");
        assert!(done || matches!(published, Err(TierError::Exists { .. })));
    }
}

#[test]
fn the_end_of_an_upload_is_conditional_where_the_server_knows_that() {
    for knows in [true, false] {
        let tier = at(
            &server(move |asked| {
                let conditional = asked.headers.contains("if-none-match: *");
                let id =
                    "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
                let done = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>";
                Some(match asked.method() {
                    "PUT" if asked.line.contains(PROBE) => ("412 Precondition Failed", error_body("x")),
                    "PUT" => ("200 OK\r\netag: x", String::new()),
                    "POST" if asked.line.contains("uploads") => ("200 OK", id.to_owned()),
                    "POST" if conditional && knows => {
                        ("412 Precondition Failed", error_body("PreconditionFailed"))
                    }
                    "POST" if conditional => ("501 Not Implemented", error_body("NotImplemented")),
                    "POST" => ("200 OK", done.to_owned()),
                    "DELETE" => ("204 No Content", String::new()),
                    _ => ("404 Not Found", error_body("NoSuchKey")),
                })
            }),
            30,
        );
        let mut writer = tier.create(&name("sim/long"), None).unwrap();
        writer.append(&vec![1; 9 << 20]).unwrap();
        let finished = writer.finish();
        if knows {
            assert!(matches!(finished, Err(TierError::Exists { .. })), "{finished:?}");
        } else {
            assert_eq!(finished.unwrap(), 9 << 20);
        }
    }
}

#[test]
fn an_upload_that_cannot_be_ended_is_ended_by_clean() {
    let reachable = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let now = Arc::clone(&reachable);
    let tier = at(
        &server(move |asked| {
            let id = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>";
            let up = now.load(std::sync::atomic::Ordering::SeqCst);
            Some(match asked.method() {
                _ if !up => ("400 Bad Request", error_body("Down")),
                "PUT" if asked.line.contains(PROBE) => ("412 Precondition Failed", error_body("x")),
                "PUT" => ("200 OK\r\netag: x", String::new()),
                "POST" => ("200 OK", id.to_owned()),
                "DELETE" => ("204 No Content", String::new()),
                _ => ("404 Not Found", error_body("NoSuchKey")),
            })
        }),
        30,
    );
    let mut writer = tier.create(&name("sim/long"), None).unwrap();
    writer.append(&vec![1; 8 << 20]).unwrap();
    reachable.store(false, std::sync::atomic::Ordering::SeqCst);
    drop(writer);
    assert_eq!(tier.clean("other").unwrap(), 0);
    assert_eq!(tier.clean("sim").unwrap(), 0, "still not reachable");
    reachable.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(tier.clean("sim").unwrap(), 8 << 20);
    assert_eq!(tier.clean("sim").unwrap(), 0);
}

#[test]
fn a_web_server_is_only_read() {
    let url = server(|asked| {
        let found = "200 OK\r\netag: x\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT";
        let ranged = "206 Partial Content\r\netag: x\r\ncontent-range: bytes 1-2/4\r\n\
                      last-modified: Thu, 01 Jan 2026 00:00:00 GMT";
        let entry = |path: &str, kind: &str| {
            format!(
                "<D:response><D:href>{path}</D:href><D:propstat><D:prop>\
                 <D:getlastmodified>Thu, 01 Jan 2026 00:00:00 GMT</D:getlastmodified>\
                 <D:getcontentlength>4</D:getcontentlength><D:resourcetype>{kind}</D:resourcetype></D:prop>\
                 <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
            )
        };
        let list = format!(
            "<D:multistatus xmlns:D=\"DAV:\">{}{}{}</D:multistatus>",
            entry("/dav/sim/", "<D:collection/>"),
            entry("/dav/sim/m", ""),
            entry("/dav/sim/x/", "<D:collection/>")
        );
        Some(match asked.method() {
            "HEAD" => (found, "four".into()),
            "GET" => (ranged, "ou".into()),
            "PROPFIND" => ("207 Multi-Status", list),
            _ => ("405 Method Not Allowed", String::new()),
        })
    });
    let tier = RemoteTier::open(&Address::parse(&format!("{url}/dav")).unwrap()).unwrap();
    let listing = tier.list("sim").unwrap();
    assert_eq!(
        listing.blobs.iter().map(|blob| (blob.name.as_str(), blob.len)).collect::<Vec<_>>(),
        [("sim/m", 4)]
    );
    assert_eq!(listing.folders, ["x"]);
    let mut read = [0; 2];
    tier.open(&name("sim/m")).unwrap().read_at(1, &mut read).unwrap();
    assert_eq!(&read, b"ou");
    for refused in
        [tier.publish(&name("a"), b""), tier.remove(&name("a")), tier.create(&name("a"), None).map(drop)]
    {
        assert!(
            matches!(&refused, Err(TierError::Settings { why, .. }) if why.contains("read-only")),
            "{refused:?}"
        );
    }
    assert!(tier.info().read_only.is_some());
}

/// Any server, where the environment names a place in it: HOLDFAST_TEST_TIER=s3://bucket/prefix, with what that needs
/// besides; HOLDFAST_TEST_SINGLE_WRITER=1 (or 0) says what the probe must find.
#[test]
fn the_server_of_the_environment_conforms() {
    let Ok(place) = std::env::var("HOLDFAST_TEST_TIER") else {
        return println!("not run: HOLDFAST_TEST_TIER names no server");
    };
    let tier = crate::tier::address::open(&Address::parse(&place).unwrap()).unwrap();
    conformance::conforms(&*tier);
    long_blobs(&*tier);
    println!("{place}: single writer: {:?}", tier.info().single_writer);
    if let Ok(expected) = std::env::var("HOLDFAST_TEST_SINGLE_WRITER") {
        assert_eq!(tier.info().single_writer.is_some(), expected == "1");
    }
}
