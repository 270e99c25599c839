//! `holdfast rsh [OPTION] HOST COMMAND`: run by a launcher in place of ssh, inside a job of `run --gang ssh`.
//!
//! It asks the agent of its job where the server of that host is, which starts one there if there is none, and has it
//! run the command: standard streams and the status go through one TCP connection. What must hold: a checkpoint may
//! come at any moment, and a restart after it: the agent may be another one then, and is asked again. Fails by: status
//! 255, as ssh does.

use super::line::{self, Line};
use super::wire::{Kind, Side, WINDOW, Wire};
use crate::entries::RSH;
use crate::front::supervise::Ending;
use crate::gang::key::Key;
use crate::report;
use holdfast_abi::environment::ENV_SOCKET;
use holdfast_image::control::{MAX_MESSAGE, Reply, Request};
use holdfast_sys::{fd, unix_socket};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The status of a failure of ours, as of ssh.
const FAILED: i32 = 255;
/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(20);
/// How long it waits until the next agent is asked, which may be just starting: twice as long each time.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of standard input that are read at once.
const PIECE: usize = 32 << 10;

/// Runs a command on another host: its status.
pub fn run(words: &[String]) -> Ending {
    let status = line::parse(words).and_then(|line| on_host(&line)).unwrap_or_else(|why| {
        report::warn(&format!("holdfast rsh: {why}"));
        FAILED
    });
    // The status of wait(2): the code is its second byte.
    Ending::Program(ExitStatus::from_raw((status & 0xff) << 8))
}

/// The same where the binary was called by the name that Hydra takes.
pub fn under_its_name() -> Option<Ending> {
    let mut words = std::env::args_os();
    let name = PathBuf::from(words.next()?);
    if name.file_name()? != RSH {
        return None;
    }
    Some(run(&words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()))
}

fn on_host(line: &Line) -> Result<i32, String> {
    let host = &line.host;
    let (at, key) = server_of(line)?;
    let failed = |error: io::Error| format!("the server of {host} at {at}: {error}");
    let stream = TcpStream::connect_timeout(&at, CONNECT).map_err(failed)?;
    let wire = Arc::new(Wire::prove(stream, Side::Client, &key).map_err(failed)?);
    wire.send(Kind::Command, line.command.as_bytes()).map_err(failed)?;
    let taken = Arc::new(Taken::default());
    let (of_thread, of_input, no_input) = (Arc::clone(&wire), Arc::clone(&taken), line.no_input);
    // It ends with this process.
    thread::Builder::new()
        .name("rsh-input".into())
        .spawn(move || send_input(&of_thread, &of_input, no_input))
        .map_err(|error| format!("starting a thread: {error}"))?;
    loop {
        match wire.receive().map_err(failed)? {
            Some((Kind::Output, data)) => pass_on(&mut io::stdout(), &data)?,
            Some((Kind::Error, data)) => pass_on(&mut io::stderr(), &data)?,
            Some((Kind::Taken, len)) => taken.add(&len),
            Some((Kind::Ended, status)) => return Ok(status.first().copied().map_or(FAILED, i32::from)),
            Some(_) => return Err(format!("the server of {host} has said what makes no sense")),
            None => return Err(format!("the connection to {host} is lost")),
        }
    }
}

fn pass_on(to: &mut impl Write, data: &[u8]) -> Result<(), String> {
    to.write_all(data).and_then(|()| to.flush()).map_err(|error| format!("writing what it says: {error}"))
}

/// Bytes of standard input that are on their way.
#[derive(Default)]
struct Taken {
    sent: Mutex<usize>,
    changed: Condvar,
}

impl Taken {
    fn add(&self, len: &[u8]) {
        let len = len.try_into().map_or(0, u32::from_le_bytes) as usize;
        let mut sent = self.sent.lock();
        *sent = sent.saturating_sub(len);
        self.changed.notify_all();
    }

    /// Waits until no more than that are on their way with these.
    fn wait(&self, len: usize) {
        let mut sent = self.sent.lock();
        while *sent + len > WINDOW {
            self.changed.wait(&mut sent);
        }
        *sent += len;
    }
}

fn send_input(wire: &Wire, taken: &Taken, no_input: bool) {
    let mut piece = vec![0; if no_input { 0 } else { PIECE }];
    loop {
        match io::stdin().read(&mut piece) {
            Ok(0) => break,
            Ok(len) => {
                taken.wait(len);
                if wire.send(Kind::Input, &piece[..len]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let _ = wire.send(Kind::InputEnd, &[]);
}

/// Where the server of a host listens, and what it proves.
fn server_of(line: &Line) -> Result<(SocketAddr, Key), String> {
    let request = Request::Remote { host: line.host.clone(), options: line.options.clone() };
    match ask(&request)? {
        Reply::Remote { at, key } => match (at.parse(), Key::read(&key.0)) {
            (Ok(at), Some(key)) => Ok((at, key)),
            _ => Err(format!("the agent says that {} is at {at}", line.host)),
        },
        Reply::Error { message } => Err(message),
        other => Err(format!("unexpected answer of the agent: {other:?}")),
    }
}

/// Asks the agent of the job that this process is of, however long it takes. One that has gone after a restart is not
/// there any more: the next one is asked.
///
/// # Errors
/// There is no job, or no agent.
pub(super) fn ask(request: &Request) -> Result<Reply, String> {
    let Some(path) = std::env::var_os(ENV_SOCKET).map(PathBuf::from) else {
        return Err("it works in programs that run under --gang ssh alone".into());
    };
    let text = serde_json::to_vec(request).map_err(|error| error.to_string())?;
    let no_agent =
        |error: io::Error| format!("the agent of this job cannot be asked ({error}): was it killed?");
    let mut pause = PAUSE;
    loop {
        let socket = unix_socket::connect(&path).map_err(no_agent)?;
        let who = unix_socket::peer(socket.as_fd()).map_err(no_agent)?;
        if who.uid != unix_socket::effective_user() && who.uid != 0 {
            return Err(format!("{} is served by user {}, not by you", path.display(), who.uid));
        }
        let mut answer = vec![0; MAX_MESSAGE];
        let asked = fd::send(socket.as_fd(), &text, libc::MSG_NOSIGNAL)
            .and_then(|_| fd::receive(socket.as_fd(), &mut answer, 0));
        match asked {
            Ok(len) if len > 0 => {
                return serde_json::from_slice(&answer[..len])
                    .map_err(|error| format!("answer of the agent: {error}"));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => {}
        }
        thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
