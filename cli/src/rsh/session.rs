//! One command of the server of `holdfast rsh`: run by the user's shell, as sshd(8) does, without a terminal.
//!
//! Called by the server in a thread of its own; more threads read what the command says. What must hold: the command
//! has the environment and the folder of the server, signals at their defaults and a session of its own. Its end is
//! told when all that it has written was sent. If the client goes, the command gets SIGHUP. How it fails: status 126,
//! with the reason on its standard error.

use super::wire::{Kind, Side, Wire};
use crate::entries::{c_string, own_environment};
use crate::gang::key::Key;
use holdfast_sys::spawn::{self, Start};
use holdfast_sys::{attributes, fd, ptrace};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Bytes that are read of a command at once.
const PIECE: usize = 32 << 10;
/// What sshd and shells answer where nothing can be executed.
const CANNOT: u8 = 126;

/// The process of a command, until it is waited for, so that no other one has its number.
type Process = Arc<Mutex<Option<i32>>>;

/// Serves a connection up to its end.
pub fn serve(key: &Key, stream: TcpStream) {
    let Ok(wire) = Wire::prove(stream, Side::Server, key).map(Arc::new) else { return };
    let Ok(Some((Kind::Command, command))) = wire.receive() else { return };
    let running = match start(&wire, &command) {
        Ok(running) => running,
        Err(why) => {
            let _ = wire.send(Kind::Error, format!("holdfast: {why}\n").as_bytes());
            let _ = wire.send(Kind::Ended, &[CANNOT]);
            return wire.finish();
        }
    };
    follow(&wire, running);
}

/// Passes on what the client says, until it has gone.
fn follow(wire: &Wire, (process, input): (Process, File)) {
    let mut input = Some(input);
    loop {
        match wire.receive() {
            Ok(Some((Kind::Input, data))) => {
                // The command may not want it.
                if input.as_mut().is_some_and(|input| input.write_all(&data).is_err()) {
                    input = None;
                }
            }
            Ok(Some((Kind::InputEnd, _))) => input = None,
            _ => break,
        }
    }
    // Its group: that of its session.
    if let Some(pid) = *process.lock() {
        let _ = ptrace::kill(-pid, libc::SIGHUP);
    }
}

/// The shell of the user, as sshd has told it.
fn shell() -> PathBuf {
    let told = std::env::var_os("SHELL").map(PathBuf::from);
    told.filter(|shell| shell.is_absolute() && shell.is_file()).unwrap_or_else(|| Path::new("/bin/sh").into())
}

/// Starts a command; its process, and the way to its standard input.
fn start(wire: &Arc<Wire>, command: &[u8]) -> Result<(Process, File), String> {
    use std::os::unix::ffi::OsStrExt;
    let shell = shell();
    let failed = |error: io::Error| format!("{}: {error}", shell.display());
    let text = |bytes: &[u8]| c_string(std::ffi::OsStr::from_bytes(bytes)).map_err(|failure| failure.message);
    let name = shell.file_name().unwrap_or(shell.as_os_str());
    let pipe = || fd::pipe(libc::O_CLOEXEC).map_err(failed);
    let ((input, to_input), (of_output, output), (of_error, error)) = (pipe()?, pipe()?, pipe()?);
    let start = Start {
        path: text(shell.as_os_str().as_bytes())?,
        arguments: vec![text(name.as_bytes())?, text(b"-c")?, text(command)?],
        environment: own_environment().map_err(|failure| failure.message)?,
        ignored: vec![(libc::SIGPIPE, false)],
        descriptors: vec![input, output, error],
        session: true,
        ..Start::default()
    };
    let pid = start.spawn().map_err(failed)?;
    // What only it holds now ends with it.
    drop(start);
    let process = Arc::new(Mutex::new(Some(pid)));
    let (of_thread, its) = (Arc::clone(wire), Arc::clone(&process));
    let readers = [(Kind::Output, of_output), (Kind::Error, of_error)].map(|(kind, from)| {
        let wire = Arc::clone(wire);
        thread::spawn(move || read_all(&wire, kind, from))
    });
    thread::spawn(move || {
        let status = wait(pid, &its);
        for reader in readers {
            let _ = reader.join();
        }
        let _ = of_thread.send(Kind::Ended, &[status]);
        of_thread.finish();
    });
    Ok((process, File::from(to_input)))
}

/// Waits for the end of a command: its status, as shells count.
fn wait(pid: i32, process: &Process) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    while attributes::wait_for_end(pid).is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {}
    process.lock().take();
    let Ok(Some(status)) = spawn::wait(pid, true) else { return CANNOT };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(CANNOT)
}

/// Sends what a command says, up to its end. Without a client it is read all the same.
fn read_all(wire: &Wire, kind: Kind, from: OwnedFd) {
    let (mut from, mut piece, mut is_wanted) = (File::from(from), vec![0; PIECE], true);
    loop {
        match from.read(&mut piece) {
            Ok(0) => return,
            Ok(len) => is_wanted = is_wanted && wire.send(kind, &piece[..len]).is_ok(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
