//! Servers that were not written for it: killed and restarted, or rolled back, they serve the next client with what
//! they held at the image.

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

const JOB: &str = "server";
/// Values and their length: 300 MB in all.
const VALUES: usize = 3000;
const LENGTH: usize = 100_000;

/// A port that nobody has at the moment.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Bytes that do not compress, and are the same for the same number.
fn value(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    (0..LENGTH)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// A connection to a server.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(stream) })
    }
    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(&parts.concat())?)
    }
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
    fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// What the test asks of a server.
trait Protocol {
    fn command(&self, port: u16) -> Vec<String>;
    fn set(&self, client: &mut Client, key: &str, value: &[u8]) -> Result<()>;
    fn get(&self, client: &mut Client, key: &str) -> Result<Vec<u8>>;
}

struct Redis;

impl Protocol for Redis {
    fn command(&self, port: u16) -> Vec<String> {
        let line = format!("/usr/bin/redis-server --port {port} --bind 127.0.0.1 --appendonly no --save");
        line.split(' ').map(str::to_owned).chain([String::new()]).collect()
    }
    fn set(&self, client: &mut Client, key: &str, value: &[u8]) -> Result<()> {
        let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
        client.send(&[head.as_bytes(), value, b"\r\n"])?;
        let answer = client.line()?;
        ensure!(answer == "+OK", "SET {key}: {answer}");
        Ok(())
    }
    fn get(&self, client: &mut Client, key: &str) -> Result<Vec<u8>> {
        client.send(&[format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).as_bytes()])?;
        let head = client.line()?;
        let len = head.strip_prefix('$').with_context(|| format!("GET {key}: {head}"))?.parse()?;
        client.bytes(len)
    }
}

struct Memcached;

impl Protocol for Memcached {
    fn command(&self, port: u16) -> Vec<String> {
        let user = if holdfast_tests::sandbox::am_root() { "-u root " } else { "" };
        let line = format!("/usr/bin/memcached {user}-l 127.0.0.1 -p {port} -m 600 -t 4");
        line.split(' ').map(str::to_owned).collect()
    }
    fn set(&self, client: &mut Client, key: &str, value: &[u8]) -> Result<()> {
        let head = format!("set {key} 0 0 {}\r\n", value.len());
        client.send(&[head.as_bytes(), value, b"\r\n"])?;
        let answer = client.line()?;
        ensure!(answer == "STORED", "set {key}: {answer}");
        Ok(())
    }
    fn get(&self, client: &mut Client, key: &str) -> Result<Vec<u8>> {
        client.send(&[format!("get {key}\r\n").as_bytes()])?;
        let head = client.line()?;
        let len = head.rsplit(' ').next().unwrap_or_default().parse().with_context(|| head.clone())?;
        let bytes = client.bytes(len)?;
        ensure!(client.line()? == "END", "get {key}: no end");
        Ok(bytes)
    }
}

fn connect(bed: &Bed, port: u16) -> Result<Client> {
    let mut client = None;
    bed.until("a server that answers", PATIENCE, || {
        client = Client::new(port).ok();
        client.is_some()
    })?;
    client.context("a client")
}

/// Filled, and then three times: an image, a change that is lost with the server, a restart; the next client finds all
/// that was there at the image.
fn serve(protocol: &dyn Protocol, user: User) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let port = free_port()?;
    let command = protocol.command(port);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut front = bed.run_command(JOB, &[], &words)?.spawn()?;
    let mut pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    let mut client = connect(&bed, port)?;
    for number in 0..VALUES {
        protocol.set(&mut client, &format!("key{number}"), &value(number))?;
    }
    for round in 1..=3_usize {
        protocol.set(&mut client, "round", round.to_string().as_bytes())?;
        drop(client);
        // The server may not have heard yet that its client has gone.
        bed.until("an image", PATIENCE, || {
            bed.say(&["checkpoint", JOB]).is_ok_and(|ended| ended.status.success())
        })?;
        let mut last = connect(&bed, port)?;
        protocol.set(&mut last, "round", b"lost")?;
        protocol.set(&mut last, "key7", b"lost")?;
        kill_program(pid, &mut front)?;
        front = bed.restart_command(JOB, &[])?.spawn()?;
        pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        client = connect(&bed, port)?;
        ensure!(protocol.get(&mut client, "round")? == round.to_string().as_bytes(), "round {round}");
        for number in (7..VALUES).step_by(97) {
            let found = protocol.get(&mut client, &format!("key{number}"))?;
            ensure!(found == value(number), "round {round}: key{number} is not as it was");
        }
    }
    kill_program(pid, &mut front)?;
    bed.check_clean(JOB)
}

/// Filled, and then twice: an image, many changes and values that are new, a rollback; the next client finds all that
/// was there at the image, and nothing else, in the same process.
fn goes_back(user: User) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let (port, values) = (free_port()?, if full() { VALUES } else { VALUES / 10 });
    let command = Redis.command(port);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut front = bed.run_command(JOB, &[], &words)?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    let mut client = connect(&bed, port)?;
    let key = |number: usize| format!("key{number}");
    for number in 0..values {
        Redis.set(&mut client, &key(number), &value(number))?;
    }
    drop(client);
    // The server may not have heard yet that its client has gone: then it is refused.
    let done = |words: &[&str]| {
        bed.until(words[0], PATIENCE, || bed.say(words).is_ok_and(|ended| ended.status.success()))
    };
    done(&["checkpoint", JOB])?;
    for round in 0..2 {
        let mut client = connect(&bed, port)?;
        for number in (round..values).step_by(3).chain(values..values + 20) {
            Redis.set(&mut client, &key(number), &value(values * 2 + number))?;
        }
        drop(client);
        done(&["rollback", JOB])?;
        let mut client = connect(&bed, port)?;
        for number in 0..values {
            let found = Redis.get(&mut client, &key(number))?;
            ensure!(found == value(number), "round {round}: key{number} is not as it was");
        }
        client.send(&[b"DBSIZE\r\n"])?;
        ensure!(client.line()? == format!(":{values}"), "round {round}: there are more keys");
    }
    ensure!(bed.pid(JOB)? == Some(pid), "it is the same process");
    kill_program(pid, &mut front)?;
    bed.check_clean(JOB)
}

#[test]
fn redis_goes_back_in_place() {
    for user in [User::Root, User::Ordinary] {
        goes_back(user).unwrap_or_else(|error| panic!("as {user:?}: {error:#}"));
    }
}

fn must(protocol: &dyn Protocol, user: User) {
    if let Err(error) = serve(protocol, user) {
        panic!("as {user:?}: {error:#}");
    }
}

#[test]
fn redis_as_root() {
    must(&Redis, User::Root);
}

#[test]
fn redis_as_ordinary_user() {
    must(&Redis, User::Ordinary);
}

#[test]
fn memcached_as_root() {
    must(&Memcached, User::Root);
}

#[test]
fn memcached_as_ordinary_user() {
    must(&Memcached, User::Ordinary);
}
