//! Two members in threads of this process make the connections between them anew.

use super::*;
use crate::gang::testing;
use crate::rebuild::RebuildOptions;
use crate::rebuild::testing as records;
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Description, Object, SocketState};
use holdfast_image::testing as sockets;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::thread;

/// What an image has of an end in which this waits.
fn end(stream: &OwnedFd, member: u32, number: u8, data: &[u8], shut: bool) -> SocketRecord {
    let state = SocketState::Member {
        connection: Blob(vec![number; 16]),
        member,
        peer: Blob(socket::peer_address(stream.as_fd()).unwrap()),
        data: vec![Blob(data.to_vec())],
        shut,
    };
    SocketRecord {
        protocol: libc::IPPROTO_TCP.cast_unsigned(),
        state,
        ..sockets::socket(libc::AF_INET.cast_unsigned(), socket::local_address(stream.as_fd()).unwrap())
    }
}

fn image(ends: Vec<SocketRecord>) -> ProcessRecord {
    let mut record = records::record(Vec::new());
    record.files.descriptions = ends
        .into_iter()
        .map(|end| Description {
            flags: 2,
            object: Object::Socket(Box::new(end)),
            locks: Vec::new(),
            owner: None,
            streams: 0,
            within: None,
        })
        .collect();
    record
}

/// A connection as a cut leaves it: client, server.
fn connection() -> (OwnedFd, OwnedFd) {
    // An address of this process's own: what other programs do matters not.
    let [.., high, middle, low] = std::process::id().to_be_bytes();
    let listener = TcpListener::bind(SocketAddr::from(([127, high | 128, middle, low], 0))).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ends: (OwnedFd, OwnedFd) = (client.into(), listener.accept().unwrap().0.into());
    for end in [&ends.0, &ends.1] {
        fd::set_socket_option(end.as_fd(), libc::SO_REUSEADDR, 1).unwrap();
    }
    ends
}

/// `first` ends in TIME_WAIT.
fn close(first: OwnedFd, other: OwnedFd) {
    socket::shut_writing(first.as_fd()).unwrap();
    socket::receive_from(other.as_fd(), &mut [0; 8], 0).unwrap();
    drop(other);
    socket::receive_from(first.as_fd(), &mut [0; 8], 0).unwrap();
}

fn both(one: &ProcessRecord, other: &ProcessRecord) -> [Result<Made, RebuildError>; 2] {
    let gang = testing::threads(2);
    thread::scope(|scope| {
        let beside = scope.spawn(|| make(other, Some(&gang[1]), &|| Ok(())));
        [make(one, Some(&gang[0]), &|| Ok(())), beside.join().unwrap()]
    })
}

fn check(end: &OwnedFd, was: &SocketRecord, peer: &[u8], expected: &[u8]) {
    assert_eq!(socket::local_address(end.as_fd()).unwrap(), was.local.0);
    assert_eq!(socket::peer_address(end.as_fd()).unwrap(), peer);
    let mut found = vec![0; expected.len()];
    fd::fcntl(end.as_fd(), libc::F_SETFL, 0).unwrap();
    TcpStream::from(end.try_clone().unwrap()).read_exact(&mut found).unwrap();
    assert!(found == expected, "{} bytes", expected.len());
}

/// Two connections, with much in them or nothing, whichever of the old ends is in TIME_WAIT.
#[test]
fn connections_between_members_are_made_anew_with_what_waited() {
    let much: Vec<u8> = (0..3_000_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
    for client_first in [true, false] {
        let ((one, other), (three, four)) = (connection(), connection());
        let clients = [end(&one, 1, 7, b"to the client", false), end(&three, 1, 3, &much, false)];
        let servers = [end(&other, 0, 7, &much, false), end(&four, 0, 3, b"", true)];
        for (client, server) in [(one, other), (three, four)] {
            if client_first {
                close(client, server);
            } else {
                close(server, client);
            }
        }
        let [here, there] = both(&image(clients.to_vec()), &image(servers.to_vec()));
        let (here, there) = (here.unwrap(), there.unwrap());
        check(&here[&[7; 16]], &clients[0], &servers[0].local.0, b"to the client");
        check(&there[&[7; 16]], &servers[0], &clients[0].local.0, &much);
        check(&here[&[3; 16]], &clients[1], &servers[1].local.0, &much);
        // It had sent its last.
        assert_eq!(fd::receive(here[&[3; 16]].as_fd(), &mut [0], libc::MSG_DONTWAIT).unwrap(), 0);
        for (from, to) in [(&here, &there), (&there, &here)] {
            fd::send(from[&[7; 16]].as_fd(), b"more", 0).unwrap();
            let mut found = [0; 4];
            TcpStream::from(to[&[7; 16]].try_clone().unwrap()).read_exact(&mut found).unwrap();
            assert_eq!(&found, b"more");
        }
    }
}

#[test]
fn a_member_is_not_restarted_alone_nor_with_an_image_of_another_checkpoint() {
    let (one, other) = connection();
    let (client, server) =
        (image(vec![end(&one, 1, 7, b"", false)]), image(vec![end(&other, 0, 8, b"", false)]));
    close(one, other);
    let alone = make(&client, None, &|| Ok(())).unwrap_err().to_string();
    assert!(alone.contains("with member 1 of the gang") && alone.contains("--gang"), "{alone}");
    let [here, there] = both(&client, &server).map(|made| made.unwrap_err().to_string());
    assert!(here.contains("not of one checkpoint") && there.contains("member 0"), "{here}; {there}");
    // One that says to lead to itself.
    let gang = testing::threads(1);
    let (one, _other) = connection();
    let own = image(vec![end(&one, 0, 7, b"", false)]);
    make(&own, Some(&gang[0]), &|| Ok(())).unwrap_err();
    for ends in [vec![], vec![end(&one, 0, 7, b"", false)]] {
        let doubled = image([ends.clone(), ends.clone()].concat());
        assert_eq!(meeting::ends(&doubled).is_err(), !ends.is_empty());
    }
}

/// A program that connects to the old address meanwhile is told nothing, and not in the way.
#[test]
fn a_stranger_at_the_address_is_not_taken() {
    let (one, other) = connection();
    let (client, server) = ([end(&one, 1, 7, b"for the client", false)], [end(&other, 0, 7, b"", false)]);
    let address = socket::local_address(other.as_fd()).unwrap();
    close(one, other);
    // The server's end is not in TIME_WAIT: its member listens, or the client's does, at the other address.
    let stranger = || {
        let stranger = socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let _ = socket::connect(stranger.as_fd(), &address);
        stranger
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let made = thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            let mut all = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) && all.len() < 100 {
                all.push(stranger());
            }
            all
        });
        let made = both(&image(client.to_vec()), &image(server.to_vec()));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        drop(strangers.join().unwrap());
        made
    });
    let [here, there] = made.map(Result::unwrap);
    check(&here[&[7; 16]], &client[0], &server[0].local.0, b"for the client");
    check(&there[&[7; 16]], &server[0], &client[0].local.0, b"");
}

#[test]
fn what_a_member_says_is_checked() {
    let (one, other) = connection();
    let client = image(vec![end(&one, 1, 7, b"", false)]);
    close(one, other);
    for said in ["", "a b", "a\nx", "a\n7 1.2.3.4:5 1.2.3.4:6 0 2 0", "a\n7 1.2.3.4:5 1.2.3.4:6 0 0"] {
        let gang = testing::threads(2);
        gang[1].meet(Phase::Facts, said.as_bytes(), Duration::ZERO).unwrap_err();
        let error = make(&client, Some(&gang[0]), &|| Ok(())).unwrap_err().to_string();
        assert!(error.contains("is not understood"), "{said}: {error}");
    }
}

/// It is not waited for as long as connections are tried.
#[test]
fn a_member_that_is_lost_is_not_waited_for() {
    let (one, other) = connection();
    let (client, server) =
        (image(vec![end(&one, 1, 7, b"", false)]), image(vec![end(&other, 0, 7, b"", false)]));
    close(one, other);
    let mut gang = testing::threads(2);
    let (there, here) = (gang.pop().unwrap(), std::sync::Arc::new(gang.pop().unwrap()));
    let options = RebuildOptions {
        lazy: false,
        socket_path: "/".into(),
        interrupt: None,
        left: Vec::new(),
        saved_dir: "/".into(),
        environment: Vec::new(),
        addresses: Vec::new(),
        gang: Some(here),
    };
    let begun = Instant::now();
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            // It has met the others, and is lost then.
            make(&server, Some(&there), &|| Err(RebuildError::Interrupted)).unwrap_err();
            there.lose();
        });
        make(&client, options.gang.as_deref(), &|| options.go_on()).unwrap_err().to_string()
    });
    assert!(error.contains("member 1: it was lost") && begun.elapsed() < CONNECTING / 2, "{error}");
}
