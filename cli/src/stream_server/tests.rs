//! A reader and a server of streams in one process: what comes is what was put; hostile sides get an error, no more.

use super::client::{Wanted, read};
use super::server::accept_all;
use super::session::Offer;
use crate::exit::{Exit, Failure};
use crate::file_system::write_own;
use crate::gang::key::Key;
use crate::gang::wire::Wire;
use crate::settings::parse_export;
use holdfast_streams::message::{Ask, Message, Refusal};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

/// A folder that goes at the end of the test, with a key in it.
struct Home(PathBuf, Key);

impl Home {
    fn new(name: &str) -> Home {
        let folder = std::env::temp_dir().join(format!("holdfast-readers-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let key = Key::new().unwrap();
        write_own(&folder.join("key"), key.text().as_bytes()).unwrap();
        Home(folder, key)
    }

    fn read(&self, from: &str, object: Option<&str>) -> Result<Vec<Vec<u8>>, Failure> {
        let mut printed = Vec::new();
        let key = self.0.join("key");
        let wanted = Wanted { from, key: &key, stream: "sim", version: 0, object, follow: false };
        read(&wanted, &|_, _| Ok(()), &mut |_, bytes| {
            printed.push(bytes.to_vec());
            Ok(true)
        })?;
        Ok(printed)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server that answers one reader as a hostile one would: with these messages. What the reader makes of them.
fn answered(home: &Home, messages: &[(Message, &[u8])]) -> Result<Vec<Vec<u8>>, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = listener.local_addr().unwrap().to_string();
    let config = Arc::new(home.1.server().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            let wire: Wire<Message> = Wire::accept(listener.accept().unwrap().0, &config).unwrap();
            wire.receive(None).unwrap();
            for (message, body) in messages {
                // It may be gone already.
                let _ = wire.send(message, body);
            }
            wire.finish(std::time::Duration::from_secs(60));
        });
        home.read(&from, Some("x"))
    })
}

#[test]
fn an_object_is_printed_when_all_of_it_has_come_and_no_size_is_believed() {
    let home = Home::new("hostile");
    let object = |bytes| Message::Object { version: 1, bytes };
    let whole =
        [(object(5), &b""[..]), (Message::Part, b"abc"), (Message::Part, b"de"), (Message::Done, b"")];
    assert_eq!(answered(&home, &whole).unwrap(), [b"abcde"]);
    assert_eq!(
        answered(&home, &[(object(0), b""), (Message::Here, b""), (Message::Done, b"")]).unwrap(),
        [b""]
    );
    for wrong in [
        &whole[..2],
        &[(object(2), b""), (Message::Part, b"abc")],
        &[(object(u64::MAX), b""), (Message::Part, b"abc")],
        &[(object(5), b""), (Message::Part, b"")],
        &[(object(5), b""), (Message::Done, b"")],
        &[(object(5), b""), (object(5), b"")],
        &[(Message::Part, b"abc")],
        &[(Message::Here, b"")],
        &[],
    ] {
        let failure = answered(&home, wrong).unwrap_err();
        assert!(failure.message.contains("the server of streams at 127.0.0.1:"), "{}", failure.message);
    }
    let refused = Message::Refused { reason: "no".into(), kind: Refusal::NotExported };
    let failure = answered(&home, &[(refused, b"")]).unwrap_err();
    assert!(failure.exit == Exit::Refused && failure.message.ends_with(": no"), "{}", failure.message);
}

/// A server of this folder's streams; its address.
fn serving(home: &Home) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = listener.local_addr().unwrap().to_string();
    let exports = vec![parse_export("sim@2-3").unwrap()];
    let offer = Offer { config: Arc::new(home.1.server().unwrap()), exports, folder: home.0.clone() };
    thread::spawn(move || accept_all(&listener, offer));
    from
}

fn asked(home: &Home, from: &str, ask: Ask) -> Message {
    let config = Arc::new(home.1.client().unwrap());
    let wire = Wire::connect(TcpStream::connect(from).unwrap(), &config).unwrap();
    wire.send(&Message::Ask(ask), &[]).unwrap();
    wire.receive(None).unwrap().0
}

#[test]
fn what_is_not_exported_or_makes_no_sense_is_refused_by_name() {
    let home = Home::new("refused");
    let from = serving(&home);
    let ask = |stream: &str, at| Ask {
        version: env!("CARGO_PKG_VERSION").into(),
        host: "b".into(),
        stream: stream.into(),
        at,
        object: None,
        follow: false,
    };
    for (ask, words, expected) in [
        (ask("other", 0), "stream other/0 is not exported", Refusal::NotExported),
        (ask("sim", 4), "version 4 of stream sim/0 is not exported", Refusal::NotExported),
        (ask("../sim", 0), "names no stream", Refusal::Usage),
        (ask("sim", 2), "sim/0", Refusal::NotFound),
        (Ask { version: "0.0.0".into(), ..ask("sim", 0) }, "the reader has Holdfast 0.0.0", Refusal::Usage),
    ] {
        match asked(&home, &from, ask) {
            Message::Refused { reason, kind } => {
                assert!(reason.contains(words) && kind == expected, "{reason} {kind:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Who has another key, and who says something else, gets no byte; the server goes on.
    let other = Home::new("other-key");
    let failure = other.read(&from, None).unwrap_err();
    assert!(failure.exit == Exit::Refused && failure.message.contains("does not have the key"));
    let mut stranger = TcpStream::connect(&from).unwrap();
    std::io::Write::write_all(&mut stranger, b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut got = Vec::new();
    // A TLS alert at most, or a reset.
    let _ = std::io::Read::read_to_end(&mut stranger, &mut got);
    assert!(got.len() < 16, "{got:?}");
    assert_eq!(home.read(&from, None).unwrap_err().exit, Exit::NotFound);
}
