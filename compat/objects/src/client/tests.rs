//! The client against a server in a thread, which dies where a test says so.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::buffer::{CLAIMED_AT, CLOSED_AT, HEAD, Head, Object, PAGE, STATE_AT, State, Table};
use crate::wire;
use holdfast_sys::poll;
use holdfast_sys::{memfd, unix_socket};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the server does at a request, by the name of that.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// It dies before it has done anything.
    Before(&'static str),
    /// It dies when it has answered.
    After(&'static str),
    /// As [`Fault::Before`], and so do all after it.
    Always(&'static str),
    /// It does not answer.
    Silent(&'static str),
    /// It refuses.
    Refused(&'static str),
}

#[derive(Default)]
struct Server {
    buffers: BTreeMap<u64, (File, u64, bool)>,
    versions: BTreeMap<u64, (Table, Vec<u8>)>,
    fault: Option<Fault>,
    requests: Vec<Request>,
    opened: Vec<Option<u64>>,
    new_buffers: u64,
    gone: Vec<u64>,
    known: u64,
    /// Whether its connections stay open when it dies, as long as a kernel takes to end a process.
    lingers: bool,
    lingering: Vec<OwnedFd>,
}

fn name(request: &Request) -> String {
    let text = format!("{request:?}");
    text.split([' ', '{']).next().unwrap_or("").to_owned()
}

impl Server {
    /// What a new server finds: versions in buffers, and nothing else.
    fn recover(&mut self) {
        for (file, len, _) in std::mem::take(&mut self.buffers).into_values() {
            file.write_all_at(&[1], CLOSED_AT).unwrap();
            self.store(&file, len);
        }
    }

    /// It dies, and another one begins.
    fn die(&mut self, connection: OwnedFd) {
        match self.lingers {
            true => self.lingering.push(connection),
            false => drop(connection),
        }
        self.recover();
    }

    fn store(&mut self, file: &File, len: u64) {
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let (head, rest) = bytes.split_first_chunk::<{ HEAD as usize }>().unwrap();
        let Ok(head) = Head::decode(head) else { return };
        if head.state == State::Put {
            let (table, layout) = head.table(&rest[..head.table as usize]).unwrap();
            assert!(layout.len <= len);
            // It is what a restore gives: in a buffer of this server.
            bytes[usize::try_from(CLOSED_AT).unwrap()] = 0;
            self.versions.insert(table.version, (table, bytes));
        }
    }

    fn buffer(&mut self, bytes: u64) -> (Answer, Option<OwnedFd>) {
        let free = self.buffers.iter_mut().find(|(_, (_, len, used))| !used && *len >= bytes);
        if let Some((number, (file, len, used))) = free {
            file.write_all_at(&[State::Empty as u8], STATE_AT).unwrap();
            file.write_all_at(&[0], CLAIMED_AT).unwrap();
            *used = true;
            self.known += 1;
            return (Answer::Buffer { buffer: *number, bytes: *len, is_new: false, gone: Vec::new() }, None);
        }
        let file = File::from(memfd::unsealed(c"buffer").unwrap());
        file.set_len(bytes).unwrap();
        let passed = file.try_clone().unwrap().into();
        self.new_buffers += 1;
        let number = self.new_buffers;
        self.buffers.insert(number, (file, bytes, true));
        let gone = std::mem::take(&mut self.gone);
        (Answer::Buffer { buffer: number, bytes, is_new: true, gone }, Some(passed))
    }

    fn answer(&mut self, request: Request) -> (Answer, Option<OwnedFd>) {
        let answer = match request {
            Request::Open { run, .. } => {
                self.opened.push(run);
                Answer::Opened { run: run.unwrap_or(7) }
            }
            Request::Room { bytes, .. } => return self.buffer(bytes),
            Request::Put { buffer, ahead } => {
                let (file, len, used) = self.buffers.get_mut(&buffer).unwrap();
                *used = false;
                let (file, len) = (file.try_clone().unwrap(), *len);
                let before = self.versions.len();
                self.store(&file, len);
                assert!(self.versions.len() >= before);
                match ahead {
                    true => return self.buffer(len),
                    false => Answer::Done,
                }
            }
            Request::Abandon { buffer } | Request::Restored { buffer } => {
                self.buffers.get_mut(&buffer).unwrap().2 = false;
                Answer::Done
            }
            Request::Restore { version } => {
                let Some((_, bytes)) = self.versions.get(&version).cloned() else {
                    return (Answer::Missing, None);
                };
                let (answer, passed) = self.buffer(bytes.len() as u64);
                let Answer::Buffer { buffer, .. } = answer else { unreachable!() };
                self.buffers[&buffer].0.write_all_at(&bytes, 0).unwrap();
                return (answer, passed);
            }
            Request::IsFinished => Answer::Finished(true),
            Request::Newest { below } => {
                Answer::Version(self.versions.keys().copied().rfind(|v| below.is_none_or(|below| *v < below)))
            }
            Request::Drop => {
                self.versions.clear();
                Answer::Done
            }
            _ => Answer::Done,
        };
        (answer, None)
    }

    /// Serves one connection until it ends.
    fn serve(server: &Mutex<Server>, connection: OwnedFd) {
        loop {
            poll::readable(&[connection.as_fd()], None).unwrap();
            let Ok(Some((request, _))) = wire::receive::<Request>(connection.as_fd()) else { return };
            let mut server = server.lock().unwrap();
            server.requests.push(request.clone());
            let (name, fault) = (name(&request), server.fault);
            match fault {
                Some(Fault::Before(at)) if at == name => {
                    server.fault = None;
                    return server.die(connection);
                }
                Some(Fault::Always(at)) if at == name => return server.die(connection),
                Some(Fault::Silent(at)) if at == name => {
                    server.fault = None;
                    continue;
                }
                Some(Fault::Refused(at)) if at == name => {
                    server.fault = None;
                    wire::send(connection.as_fd(), &Answer::Failed { why: "no".into() }, None).unwrap();
                    continue;
                }
                _ => {}
            }
            let is_answered = request.is_answered();
            let (answer, passed) = server.answer(request);
            if is_answered {
                wire::send(connection.as_fd(), &answer, passed.as_ref().map(AsFd::as_fd)).unwrap();
            }
            if fault == Some(Fault::After(Box::leak(name.into_boxed_str()))) {
                server.fault = None;
                return server.die(connection);
            }
        }
    }
}

struct Bed {
    folder: PathBuf,
    server: Arc<Mutex<Server>>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn bed(name: &str) -> (Bed, Client) {
    let folder = std::env::temp_dir().join(format!("holdfast-client-{name}-{}", std::process::id()));
    std::fs::create_dir_all(wire::folder(&folder)).unwrap();
    let listener = unix_socket::listen(&wire::socket(&folder)).unwrap();
    let server = Arc::new(Mutex::new(Server::default()));
    let shared = server.clone();
    std::thread::spawn(move || {
        loop {
            poll::readable(&[listener.as_fd()], None).unwrap();
            let Ok(connection) = unix_socket::accept(listener.as_fd()) else { continue };
            let shared = shared.clone();
            std::thread::spawn(move || Server::serve(&shared, connection));
        }
    });
    let options = ClientOptions {
        store: folder.clone(),
        set: "heat".into(),
        rank: 1,
        ranks: 4,
        holdfast: Some("/does/not/exist".into()),
        ..ClientOptions::default()
    };
    let client = Client::open(options).unwrap();
    (Bed { folder, server }, client)
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

fn put(client: &mut Client, version: u64, objects: &[(&str, Vec<u8>)]) -> Result<(), Error> {
    let planned = |(key, bytes): &(&str, Vec<u8>)| Object {
        key: (*key).to_owned(),
        bytes: bytes.len() as u64,
        element: 1,
    };
    client.begin(version, &objects.iter().map(planned).collect::<Vec<_>>())?;
    for (key, bytes) in objects {
        client.add(key, bytes, 8)?;
    }
    client.end()
}

fn check(client: &mut Client, version: u64, objects: &[(&str, Vec<u8>)]) {
    client.restore(version).unwrap();
    assert_eq!(client.objects().count(), objects.len());
    for (key, bytes) in objects {
        assert_eq!(client.size(key), Some(bytes.len() as u64), "{key}");
        let mut restored = vec![0; bytes.len()];
        client.copy(key, &mut restored).unwrap();
        assert!(restored == *bytes, "{key} of version {version}");
    }
    client.restored().unwrap();
}

fn some() -> Vec<(&'static str, Vec<u8>)> {
    vec![("a", bytes(1, 3 << 20)), ("b", Vec::new()), ("c", bytes(2, 4097)), ("d", bytes(3, PAGE as usize))]
}

#[test]
fn what_was_put_is_restored_and_buffers_are_used_again() {
    let (bed, mut client) = bed("restored");
    let (first, second) = (some(), vec![("other", bytes(9, 70_000))]);
    put(&mut client, 1, &first).unwrap();
    put(&mut client, 2, &second).unwrap();
    put(&mut client, 3, &first).unwrap();
    client.wait().unwrap();
    assert!(client.is_finished().unwrap());
    assert_eq!((client.newest(None).unwrap(), client.newest(Some(3)).unwrap()), (Some(3), Some(2)));
    for (version, objects) in [(1, &first), (2, &second), (3, &first)] {
        check(&mut client, version, objects);
    }
    let server = bed.server.lock().unwrap();
    assert!(
        server.new_buffers <= 2 && server.known >= 4,
        "{} new, {} known",
        server.new_buffers,
        server.known
    );
    let table = &server.versions[&3].0;
    assert_eq!((table.rank, table.ranks, table.run, table.set.as_str()), (1, 4, 7, "heat"));
    assert_eq!(table.objects[0].element, 8);
}

#[test]
fn only_the_first_put_waits_for_an_answer_of_the_server() {
    let (bed, mut client) = bed("ahead");
    let objects = some();
    for version in 1..=9 {
        put(&mut client, version, &objects).unwrap();
    }
    client.wait().unwrap();
    (1..=9).for_each(|version| check(&mut client, version, &objects));
    // One of another length is not what was given ahead.
    put(&mut client, 10, &[("other", bytes(9, 4 << 20))]).unwrap();
    check(&mut client, 10, &[("other", bytes(9, 4 << 20))]);
    let server = bed.server.lock().unwrap();
    let count = |what: &str| server.requests.iter().filter(|request| name(request) == what).count();
    assert_eq!((count("Room"), count("Put"), count("Abandon")), (2, 10, 1));
}

/// A mapping keeps the memory of a file that was removed.
#[test]
fn buffers_that_the_server_has_removed_are_not_kept_mapped() {
    let (bed, mut client) = bed("gone");
    for version in 1..=5 {
        put(&mut client, version, &[("a", bytes(1, 10_000 * version as usize))]).unwrap();
        client.wait().unwrap();
        let mut server = bed.server.lock().unwrap();
        // What was given ahead is in use.
        let free = |(number, (_, _, used)): (&u64, &(File, u64, bool))| (!used).then_some(*number);
        let free: Vec<u64> = server.buffers.iter().filter_map(free).collect();
        server.buffers.retain(|number, _| !free.contains(number));
        server.gone.extend(free);
    }
    assert!(client.connection.mapped() <= 2, "{}", client.connection.mapped());
    check(&mut client, 5, &[("a", bytes(1, 50_000))]);
}

#[test]
fn what_was_not_planned_gets_a_larger_buffer() {
    let (_bed, mut client) = bed("unplanned");
    client.begin(5, &[]).unwrap();
    let objects: Vec<(String, Vec<u8>)> =
        (0..200).map(|i| (format!("key {i:0>100}"), bytes(i, i * 97))).collect();
    for (key, bytes) in &objects {
        client.add(key, bytes, 1).unwrap();
    }
    assert!(client.has(&objects[3].0) && client.putting() == Some(5));
    client.end().unwrap();
    let objects: Vec<(&str, Vec<u8>)> =
        objects.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    check(&mut client, 5, &objects);
    put(&mut client, 6, &[]).unwrap();
    check(&mut client, 6, &[]);
}

#[test]
fn a_file_becomes_an_object_and_a_file_again() {
    let (bed, mut client) = bed("file");
    let (path, content) = (bed.folder.join("content"), bytes(1, (5 << 20) + 3));
    std::fs::write(&path, &content).unwrap();
    client.begin(1, &[]).unwrap();
    client.add_file("file:content", &File::open(&path).unwrap()).unwrap();
    client.end().unwrap();
    client.restore(1).unwrap();
    let mut written = Vec::new();
    client.copy_to("file:content", &mut written).unwrap();
    assert!(written == content);
    assert!(matches!(client.copy_to("file:other", &mut written), Err(Error::NoObject { .. })));
}

#[test]
fn what_cannot_be_done_says_so_and_changes_nothing() {
    let (bed, mut client) = bed("refused");
    assert!(matches!(client.add("a", b"x", 1), Err(Error::State(_))));
    assert!(matches!(client.end(), Err(Error::State(_))));
    client.begin(1, &[]).unwrap();
    assert!(matches!(client.begin(2, &[]), Err(Error::State(_))));
    client.add("a", b"twelve bytes", 1).unwrap();
    assert!(matches!(client.add("a", b"x", 1), Err(Error::Argument(_))));
    assert!(matches!(client.add("", b"x", 1), Err(Error::Argument(_))));
    client.end().unwrap();
    client.begin(2, &[]).unwrap();
    client.add("a", b"x", 1).unwrap();
    client.abandon().unwrap();
    assert!(matches!(client.restore(2), Err(Error::NoVersion { version: 2, .. })));
    client.restore(1).unwrap();
    assert!(matches!(client.copy("b", &mut []), Err(Error::NoObject { .. })));
    let mut short = [0; 11];
    assert!(matches!(client.copy("a", &mut short), Err(Error::Size { stored: 12, wanted: 11, .. })));
    assert_eq!(short, [0; 11]);
    let mut long = [b'-'; 13];
    assert_eq!(client.copy("a", &mut long).unwrap(), 12);
    assert_eq!(&long, b"twelve bytes-");
    bed.server.lock().unwrap().fault = Some(Fault::Refused("Wait"));
    assert!(matches!(client.wait(), Err(Error::Refused(why)) if why == "no"));
    client.wait().unwrap();
    client.drop_set().unwrap();
    assert_eq!(client.newest(None).unwrap(), None);
}

#[test]
fn a_server_that_dies_costs_nothing_that_was_put() {
    let (bed, mut client) = bed("dies");
    let objects = some();
    let mut version = 0;
    let faults =
        ["Open", "Room", "Put", "Wait", "IsFinished", "Newest", "Restore", "Restored", "Hint", "Discard"];
    for at in faults {
        for fault in [Fault::Before(at), Fault::After(at)] {
            if at == "Open" {
                // It is sent again when the connection is lost: with nothing under way that this server would still
                // read, beside the one that takes its place.
                client.is_finished().unwrap();
                bed.server.lock().unwrap().recover();
                client.connection.socket = None;
            }
            if at == "Room" {
                // It is not asked for where there is a buffer ahead.
                client.connection.take_ahead(0).unwrap();
            }
            bed.server.lock().unwrap().fault = Some(fault);
            version += 1;
            put(&mut client, version, &objects).unwrap();
            client.hint(version).unwrap();
            client.wait().unwrap();
            assert!(client.is_finished().unwrap());
            assert_eq!(client.newest(None).unwrap(), Some(version), "{fault:?}");
            check(&mut client, version, &objects);
            client.discard(version).unwrap();
        }
    }
    check(&mut client, 1, &objects);
    let server = bed.server.lock().unwrap();
    assert!(server.opened.len() > faults.len(), "{:?}", server.opened);
    assert!(
        server.opened[1..].iter().all(|run| *run == Some(7)),
        "it goes on with its run: {:?}",
        server.opened
    );
}

#[test]
fn a_server_is_told_how_far_its_client_has_got() {
    let (bed, mut client) = bed("far");
    for version in [5, 3] {
        put(&mut client, version, &some()).unwrap();
    }
    client.is_finished().unwrap();
    // As after a restart from an image: the other end has gone.
    bed.server.lock().unwrap().recover();
    client.connection.socket = None;
    client.is_finished().unwrap();
    let server = bed.server.lock().unwrap();
    let told = server.requests.iter().filter_map(|request| match request {
        Request::Open { run, highest, .. } => Some((*run, *highest)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(None, None), (Some(7), Some(5))]);
}

/// The kernel closes what a killed process has open in no order that a client could rely on: when the store's lock is
/// free, and the next server has looked at all buffers, a connection may still take messages, which none reads.
#[test]
fn a_put_that_a_dead_server_takes_is_made_again() {
    let (bed, mut client) = bed("lingers");
    bed.server.lock().unwrap().lingers = true;
    let objects = some();
    for version in 1..=5 {
        client.connection.take_ahead(0).unwrap();
        bed.server.lock().unwrap().fault = Some(Fault::After("Room"));
        put(&mut client, version, &objects).unwrap();
        bed.server.lock().unwrap().lingering.clear();
        assert_eq!(client.newest(None).unwrap(), Some(version));
    }
    for version in 6..=10 {
        client.begin(version, &[]).unwrap();
        client.add("a", &objects[0].1, 1).unwrap();
        // It dies when the next message is the last one of the put.
        bed.server.lock().unwrap().fault = Some(Fault::After("IsFinished"));
        client.is_finished().unwrap();
        client.end().unwrap();
        bed.server.lock().unwrap().lingering.clear();
        assert_eq!(client.newest(None).unwrap(), Some(version));
    }
    for version in 1..=5 {
        check(&mut client, version, &objects);
    }
}

#[test]
fn a_put_whose_server_has_died_is_made_again() {
    let (bed, mut client) = bed("again");
    let objects = some();
    client.begin(1, &[]).unwrap();
    for (key, bytes) in &objects {
        client.add(key, bytes, 1).unwrap();
    }
    // The buffer has no version yet: this death takes it. The next request is the last message of the put.
    bed.server.lock().unwrap().fault = Some(Fault::After("Newest"));
    client.newest(None).unwrap();
    client.end().unwrap();
    check(&mut client, 1, &objects);
    // And one of which the client learns between copy and end.
    client.begin(2, &[]).unwrap();
    client.add("a", &bytes(4, 100_000), 1).unwrap();
    bed.server.lock().unwrap().fault = Some(Fault::Before("Newest"));
    client.newest(None).unwrap();
    client.add("b", &bytes(5, 100_000), 1).unwrap();
    client.end().unwrap();
    check(&mut client, 2, &[("a", bytes(4, 100_000)), ("b", bytes(5, 100_000))]);
}

#[test]
fn a_server_that_dies_again_or_is_silent_is_an_error_and_no_hang() {
    let (bed, mut client) = bed("silent");
    bed.server.lock().unwrap().fault = Some(Fault::Always("Wait"));
    let error = client.wait().unwrap_err();
    assert!(matches!(error, Error::Died { .. }), "{error}");
    bed.server.lock().unwrap().fault = Some(Fault::Silent("Wait"));
    client.connection.patience = Duration::from_millis(50);
    let error = client.wait().unwrap_err();
    assert!(matches!(error, Error::Silent { .. }), "{error}");
    client.connection.patience = Duration::from_secs(600);
    client.wait().unwrap();
    client.connection.process = 1;
    assert!(matches!(client.wait(), Err(Error::Forked { .. })));
    assert!(matches!(client.begin(1, &[]), Err(Error::Forked { .. })));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = std::env::temp_dir().join(format!("holdfast-client-none-{}", std::process::id()));
    let options = ClientOptions {
        store: folder,
        set: "heat".into(),
        rank: 0,
        ranks: 1,
        holdfast: Some("/does/not/exist".into()),
        ..ClientOptions::default()
    };
    let error = Client::open(options.clone()).unwrap_err().to_string();
    assert!(error.contains("/does/not/exist"), "{error}");
    for wrong in [
        ClientOptions { rank: 1, ..options.clone() },
        ClientOptions { set: "a/b".into(), ..options.clone() },
        ClientOptions { store: PathBuf::new(), ..options.clone() },
    ] {
        assert!(matches!(Client::open(wrong), Err(Error::Argument(_))));
    }
}
