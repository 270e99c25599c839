//! A small object store in a thread: what Holdfast asks of S3, and of a WebDAV server that is only read, from memory.
//!
//! Used by the tests of tiers that are down, slow, full or refuse. It checks no signature and knows no uploads in parts
//! (images of the tests are shorter than 8 MiB). S3: `/BUCKET/KEY`; WebDAV: the same objects below `/`.
//! Invariants: one request a connection; what it is told to do next ([`Mood`]) holds from the next request on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Longest body that is taken.
const MOST: usize = 64 << 20;
const DATE: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// How the server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// It does what it is asked.
    Well,
    /// Each connection is closed at once.
    Down,
    /// Nothing is ever answered.
    Silent,
    /// All that is written finds no space.
    Full,
    /// No credentials are right.
    Refusing,
    /// It takes and gives so many bytes per second on each connection.
    Slow(u64),
}

/// Bytes between two looks at how fast it may be.
const PIECE: usize = 8 << 10;

#[derive(Debug)]
struct State {
    mood: Mood,
    objects: BTreeMap<String, Vec<u8>>,
    /// Connections that wait for an answer until the server ends.
    held: Vec<TcpStream>,
    /// Keys that were written, in this order.
    puts: Vec<String>,
}

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct ObjectServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// What a client asks for.
struct Asked {
    method: String,
    /// Without the first `/`, unescaped.
    path: String,
    query: BTreeMap<String, String>,
    /// Names in small letters.
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Without a body: the length that it would have.
    len: Option<usize>,
}

impl Answer {
    fn new(status: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), len: None }
    }

    fn error(status: &'static str, code: &str) -> Answer {
        Answer::new(status, format!("<Error><Code>{code}</Code><Message>told to</Message></Error>"))
    }
}

impl ObjectServer {
    /// A server at a port of 127.0.0.1 that is free; it ends with the process.
    ///
    /// # Errors
    /// No port can be had.
    pub fn start() -> io::Result<ObjectServer> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let state = State { mood: Mood::Well, objects: BTreeMap::new(), held: Vec::new(), puts: Vec::new() };
        let server = ObjectServer { address: listener.local_addr()?, state: Arc::new(Mutex::new(state)) };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                thread::spawn(move || server.serve(stream));
            }
        });
        Ok(server)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes how it behaves. Who waits for an answer loses the connection.
    pub fn set(&self, mood: Mood) {
        let mut state = self.state();
        state.mood = mood;
        state.held.clear();
    }

    /// Where it is: `HOST:PORT`.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Keys of the objects that it has.
    pub fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    /// Keys of the objects that were written, in this order.
    pub fn puts(&self) -> Vec<String> {
        self.state().puts.clone()
    }

    /// What a client of S3 needs in its environment.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "test".to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
        ]
    }

    fn serve(&self, stream: TcpStream) {
        if self.state().mood == Mood::Down {
            return;
        }
        let Ok(copy) = stream.try_clone() else { return };
        let Ok(Some(asked)) = read(&mut BufReader::new(copy), |bytes| self.pause(bytes)) else { return };
        let mut state = self.state();
        if state.mood == Mood::Silent {
            state.held.push(stream);
            return;
        }
        let answer = state.answer(&asked);
        drop(state);
        // Who does not listen any more gets nothing.
        let _ = write(stream, &answer, |bytes| self.pause(bytes));
    }

    /// The time of so many bytes, if it is slow by now.
    fn pause(&self, bytes: usize) {
        let mood = self.state().mood;
        if let Mood::Slow(rate) = mood {
            thread::sleep(Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64));
        }
    }
}

impl State {
    fn answer(&mut self, asked: &Asked) -> Answer {
        let writes = asked.method == "PUT";
        match self.mood {
            Mood::Refusing => return Answer::error("403 Forbidden", "AccessDenied"),
            Mood::Full if writes => return Answer::error("507 Insufficient Storage", "XMinioStorageFull"),
            _ => {}
        }
        match asked.method.as_str() {
            "PUT"
                if asked.headers.contains_key("if-none-match") && self.objects.contains_key(&asked.path) =>
            {
                Answer::error("412 Precondition Failed", "PreconditionFailed")
            }
            "PUT" => {
                self.puts.push(asked.path.clone());
                self.objects.insert(asked.path.clone(), asked.body.clone());
                Answer { headers: vec![("ETag", "\"x\"".into())], ..Answer::new("200 OK", "") }
            }
            "DELETE" => {
                self.objects.remove(&asked.path);
                Answer::new("204 No Content", "")
            }
            "GET" if asked.query.contains_key("list-type") => self.list(asked),
            "GET" | "HEAD" => self.get(asked),
            "PROPFIND" => self.propfind(&asked.path),
            _ => Answer::error("501 Not Implemented", "NotImplemented"),
        }
    }

    fn get(&self, asked: &Asked) -> Answer {
        let Some(object) = self.objects.get(&asked.path) else {
            return Answer::error("404 Not Found", "NoSuchKey");
        };
        let range = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let range = range.and_then(|range| {
            let (from, to) = range.split_once('-')?;
            let (from, to) = (from.parse().ok()?, to.parse().unwrap_or(usize::MAX));
            object.get(from..to.saturating_add(1).min(object.len())).map(|part| (from, part))
        });
        let (status, part) = range.map_or(("200 OK", &object[..]), |(_, part)| ("206 Partial Content", part));
        let mut answer = Answer::new(status, part);
        answer.headers = vec![("ETag", "\"x\"".into()), ("Last-Modified", DATE.into())];
        if let Some((from, part)) = range {
            let last = (from + part.len()).saturating_sub(1);
            answer.headers.push(("Content-Range", format!("bytes {from}-{last}/{}", object.len())));
        }
        if asked.method == "HEAD" {
            answer.len = Some(part.len());
            answer.body.clear();
        }
        answer
    }

    /// Objects and folders right below a prefix (`folder/` or nothing).
    fn below(&self, prefix: &str) -> (Vec<(&str, usize)>, BTreeSet<String>) {
        let (mut objects, mut folders) = (Vec::new(), BTreeSet::new());
        for (key, object) in &self.objects {
            match key.strip_prefix(prefix).map(|rest| rest.split_once('/')) {
                Some(Some((folder, _))) => drop(folders.insert(format!("{prefix}{folder}"))),
                Some(None) => objects.push((key.as_str(), object.len())),
                None => {}
            }
        }
        (objects, folders)
    }

    fn list(&self, asked: &Asked) -> Answer {
        let bucket = format!("{}/", asked.path.trim_end_matches('/'));
        let prefix = format!("{bucket}{}", asked.query.get("prefix").map_or("", String::as_str));
        let (objects, folders) = self.below(&prefix);
        let mut text = String::from("<ListBucketResult><IsTruncated>false</IsTruncated>");
        for (key, len) in objects {
            let key = key.strip_prefix(&bucket).unwrap_or(key);
            text += &format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"x\"</ETag><Size>{len}</Size></Contents>"
            );
        }
        for folder in folders {
            let folder = folder.strip_prefix(&bucket).unwrap_or(&folder);
            text += &format!("<CommonPrefixes><Prefix>{folder}/</Prefix></CommonPrefixes>");
        }
        Answer::new("200 OK", text + "</ListBucketResult>")
    }

    fn propfind(&self, path: &str) -> Answer {
        let prefix = path.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let (objects, folders) = self.below(&prefix);
        if objects.is_empty() && folders.is_empty() {
            return Answer::error("404 Not Found", "NotFound");
        }
        let entry = |path: &str, len: usize, kind: &str| {
            format!(
                "<D:response><D:href>/{path}</D:href><D:propstat><D:prop><D:getlastmodified>{DATE}\
                 </D:getlastmodified><D:getcontentlength>{len}</D:getcontentlength><D:resourcetype>{kind}\
                 </D:resourcetype></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
            )
        };
        let folder = |path: &str| entry(&format!("{path}/"), 0, "<D:collection/>");
        let mut text = String::from("<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\">");
        text += &folder(prefix.trim_end_matches('/'));
        folders.iter().for_each(|path| text += &folder(path));
        objects.iter().for_each(|(path, len)| text += &entry(path, *len, ""));
        Answer::new("207 Multi-Status", text + "</D:multistatus>")
    }
}

/// Reads one request; `None`: the client has said nothing.
fn read(stream: &mut BufReader<TcpStream>, pause: impl Fn(usize)) -> io::Result<Option<Asked>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (unescaped(name), unescaped(value))
    };
    let mut asked = Asked {
        method: method.to_owned(),
        path: unescaped(path.trim_start_matches('/')),
        query: query.split('&').map(pair).collect(),
        headers: BTreeMap::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        asked.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = asked.headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    asked.body.resize(len.min(MOST), 0);
    for piece in asked.body.chunks_mut(PIECE) {
        stream.read_exact(piece)?;
        pause(piece.len());
    }
    Ok(Some(asked))
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let escaped = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn write(mut stream: TcpStream, answer: &Answer, pause: impl Fn(usize)) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {}\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", answer.len.unwrap_or(answer.body.len()));
    stream.write_all(head.as_bytes())?;
    for piece in answer.body.chunks(PIECE) {
        stream.write_all(piece)?;
        pause(piece.len());
    }
    Ok(())
}
