//! Two members in threads of this process, with real connections between them.

use super::*;
use crate::gang::testing;
use holdfast_sys::fd;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

fn pair() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one.into(), listener.accept().unwrap().0.into())
}

/// An end, called by a number of the test's own.
fn end(inode: u64, socket: &OwnedFd) -> End {
    let address = |bytes: io::Result<Vec<u8>>| canonical(&bytes.unwrap()).unwrap();
    let ends =
        (address(socket::local_address(socket.as_fd())), address(socket::peer_address(socket.as_fd())));
    End { inode, socket: socket.try_clone().unwrap(), ends, info: socket::tcp_info(socket.as_fd()).unwrap() }
}

/// Sends until nothing more fits, and how much that is.
fn stuff(from: &OwnedFd) -> usize {
    let mut sent = 0;
    while let Ok(len) = fd::send(from.as_fd(), &[42; 65536], libc::MSG_DONTWAIT) {
        sent += len;
    }
    sent
}

fn long() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// What both members come to, each of which has these ends, on networks of these names.
fn both(ends: [Vec<End>; 2], networks: [&str; 2]) -> [Members; 2] {
    let gang = testing::threads(2);
    let [one, other] = ends;
    let own = |network: &str| Said { network: network.to_owned(), ..Said::default() };
    thread::scope(|scope| {
        let beside = scope.spawn(|| meet(&gang[1], &other, own(networks[1]), long()).unwrap());
        let first = meet(&gang[0], &one, own(networks[0]), long()).unwrap();
        [first, beside.join().unwrap()]
    })
}

#[test]
fn what_was_sent_to_another_member_waits_there() {
    for (both_ways, shut) in [(false, false), (true, false), (false, true), (true, true)] {
        let (from, to) = pair();
        let sent = stuff(&from);
        let back = if both_ways { stuff(&to) } else { 0 };
        if shut {
            socket::shut_writing(from.as_fd()).unwrap();
        }
        let [one, other] = both([vec![end(1, &from)], vec![end(2, &to)]], ["a", "a"]);
        let (known, theirs) = (one.known.get(&1).unwrap(), other.known.get(&2).unwrap());
        assert_eq!((&known.why, &theirs.why), (&None, &None), "{both_ways} {shut}");
        assert_eq!((known.member, theirs.member), (1, 0));
        assert!(known.connection == theirs.connection && known.connection != [0; 16]);
        assert_eq!((waiting(&to).unwrap(), waiting(&from).unwrap()), (sent, back));
    }
}

#[test]
fn connections_to_others_are_none_of_the_gangs() {
    let (one, other) = pair();
    let [members, none] = both([vec![end(1, &one)], Vec::new()], ["a", "a"]);
    assert!(!members.known.contains_key(&1) && members.is_gang && none.is_gang);
    // The same address on another host.
    let [members, _] = both([vec![end(1, &one)], vec![end(2, &other)]], ["a", "b"]);
    assert!(!members.known.contains_key(&1));
    // An address that two have.
    let [members, _] = both([vec![end(1, &one)], vec![end(2, &other), end(3, &other)]], ["a", "a"]);
    assert_eq!(members.known.get(&1).unwrap().why.as_deref(), Some(SEVERAL));
}

#[test]
fn where_another_member_listens_a_connection_is_not_accepted() {
    let gang = testing::threads(2);
    let said = |network: &str, at: &[&str]| Said {
        network: network.to_owned(),
        listening: at.iter().map(|at| at.parse().unwrap()).collect(),
        ..Said::default()
    };
    let members = thread::scope(|scope| {
        let theirs = || meet(&gang[1], &[], said("b", &["0.0.0.0:80", "127.0.0.1:90"]), long()).unwrap();
        let beside = scope.spawn(theirs);
        let own = meet(&gang[0], &[], said("a", &["0.0.0.0:70"]), long()).unwrap();
        drop(beside.join().unwrap());
        own
    });
    assert_eq!(members.listening, [(1, "0.0.0.0:80".parse().unwrap())]);
}

/// A member that has closed all its connections has none to say where it is.
#[test]
fn where_another_member_is_shows_without_a_connection() {
    let of = |networks: [&str; 2]| {
        let gang = testing::threads(2);
        let said = |network: &str, at: &[&str]| Said {
            network: network.to_owned(),
            addresses: at.iter().map(|at| at.parse().unwrap()).collect(),
            ..Said::default()
        };
        let at = ["127.0.0.1", "172.17.0.1", "10.0.0.2"];
        let members = thread::scope(|scope| {
            scope.spawn(|| drop(meet(&gang[1], &[], said(networks[1], &at), long()).unwrap()));
            meet(&gang[0], &[], said(networks[0], &["127.0.0.1", "172.17.0.1", "10.0.0.1"]), long()).unwrap()
        });
        let mut known: Vec<String> = members.addresses.keys().map(IpAddr::to_string).collect();
        known.sort();
        known
    };
    // A bridge's address is one of each host.
    assert_eq!(of(["a", "b"]), ["10.0.0.2"]);
    assert_eq!(of(["a", "a"]), ["10.0.0.2", "127.0.0.1", "172.17.0.1"]);
}

#[test]
fn who_listens_at_all_addresses_listens_at_those_of_its_host() {
    let trie = "Local:\n  |-- 10.1.2.3\n  /32 host LOCAL\n  |-- 127.0.0.1\n  /32 host LOCAL\n";
    let six = "20010db8000000000000000000000007 02 40 00 80     eth0\n";
    let table = |name: &str| Some(if name == "fib_trie" { trie.to_owned() } else { six.to_owned() });
    let of = |at: &[&str], table: &dyn Fn(&str) -> Option<String>| {
        let at = at.iter().map(|at| at.parse().unwrap()).collect();
        let found = at_each_address(at, &addresses_of(table));
        let mut found: Vec<String> = found.iter().map(SocketAddr::to_string).collect();
        found.sort();
        found
    };
    assert_eq!(of(&["0.0.0.0:80", "10.1.2.3:80"], &table), ["10.1.2.3:80", "127.0.0.1:80"]);
    assert_eq!(of(&["[::]:80"], &table), ["10.1.2.3:80", "127.0.0.1:80", "[2001:db8::7]:80"]);
    assert_eq!(of(&["10.9.9.9:1"], &table), ["10.9.9.9:1"]);
    let only_four = |name: &str| table(name).filter(|_| name == "fib_trie");
    assert_eq!(of(&["[::]:80"], &only_four), ["10.1.2.3:80", "127.0.0.1:80"]);
    assert_eq!(of(&["0.0.0.0:80"], &|_| None), ["0.0.0.0:80"], "any address counts");
    let has = |at: &str, there: &str| listens_at(&at.parse().unwrap(), &there.parse().unwrap());
    assert!(has("127.0.0.1:80", "127.0.0.2:80") && has("0.0.0.0:80", "10.1.2.3:80"));
    assert!(!has("127.0.0.1:80", "127.0.0.1:81") && !has("10.1.2.3:80", "10.1.2.4:80"));
}

#[test]
fn a_member_that_does_not_come_is_an_error_and_what_it_says_is_checked() {
    let (one, _other) = pair();
    let gang = testing::threads(2);
    let own = || Said { network: "a".to_owned(), ..Said::default() };
    let lost = meet(&gang[0], &[end(1, &one)], own(), Instant::now());
    assert!(lost.is_err_and(|error| error.member == Some(1)));
    let long_number = u64::MAX.to_string();
    for said in [
        "end",
        "end x y 1 2 3 4",
        "end 1.2.3.4:5 1.2.3.4:6 1 2 3",
        "end 1.2.3.4:5 1.2.3.4:6 1 2 3 4 5",
        "listens nowhere",
        "something else",
        &format!("end 1.2.3.4:5 1.2.3.4:6 1 {long_number} 3 4"),
    ] {
        let gang = testing::threads(2);
        gang[1].meet(Phase::Stopped, said.as_bytes(), Duration::ZERO).unwrap_err();
        let error = meet(&gang[0], &[], own(), long()).err().unwrap();
        assert!(error.to_string().contains("is not understood"), "{said}: {error}");
    }
    for said in
        ["end", "1.2.3.4:5 1.2.3.4:6 1 2 g", "1.2.3.4:5 1.2.3.4:6 1 2 3 4", "1.2.3.4:5 1.2.3.4:6 -1 2 3"]
    {
        let gang = testing::threads(2);
        gang[1].meet(Phase::Stopped, b"network b", Duration::ZERO).unwrap_err();
        gang[1].meet(Phase::Drained, said.as_bytes(), Duration::ZERO).unwrap_err();
        let error = meet(&gang[0], &[], own(), long()).err().unwrap();
        assert!(error.to_string().contains("is not understood"), "{said}: {error}");
    }
}

/// One member sees an end that goes on receiving: its buffers are full, and it cannot be asked for more.
#[test]
fn a_connection_that_is_not_whole_is_told_at_both_ends() {
    let (from, to) = pair();
    let sent = stuff(&from) as u64;
    // A look moves this: it is the program's own, and no room is made.
    if fd::set_socket_option(to.as_fd(), libc::SO_PEEK_OFF, 0).is_err() {
        return;
    }
    let [one, other] = both([vec![end(1, &from)], vec![end(2, &to)]], ["a", "a"]);
    let came = waiting(&to).unwrap() as u64;
    for (member, why) in [(1, &one.known.get(&1).unwrap().why), (0, &other.known.get(&2).unwrap().why)] {
        let why = why.as_deref().unwrap();
        let expected =
            format!("with member {member} of the gang whose reader is slow: {} bytes", sent - came);
        assert!(why.contains(&expected), "{why}");
    }
}
