//! One command of the server of `holdfast rsh`: run by the user's shell, as sshd(8) does, without a terminal.
//!
//! Called by the server in a thread of its own; more threads pass on what the command says, and what it is told. What
//! must hold: the command has the environment and the folder of the server, signals at their defaults and a session of
//! its own. Its end is told when all that it has written was sent. If the client goes, the command gets SIGHUP, whether
//! it reads or not. How it fails: status 126, with the reason on its standard error.

use super::launchers::of_command;
use super::wire::{Kind, Side, Wire};
use crate::entries::c_string;
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
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

/// Bytes that are read of a command at once.
const PIECE: usize = 32 << 10;
/// What sshd and shells answer where nothing can be executed.
const CANNOT: u8 = 126;

/// The process of a command, until it is waited for, so that no other one has its number.
type Process = Arc<Mutex<Option<i32>>>;

/// Whether the other side is of the gang, and the command that it asks for.
pub fn meet(key: &Key, stream: TcpStream) -> Option<(Arc<Wire>, Vec<u8>)> {
    let wire = Wire::prove(stream, Side::Server, key).ok()?;
    match wire.receive() {
        Ok(Some((Kind::Command, command))) => Some((Arc::new(wire), command)),
        _ => None,
    }
}

/// Serves it up to its end.
pub fn serve(wire: &Arc<Wire>, command: &[u8]) {
    match start(wire, command) {
        Ok(running) => follow(wire, running),
        Err(why) => {
            let _ = wire.send(Kind::Error, format!("holdfast: {why}\n").as_bytes());
            let _ = wire.send(Kind::Ended, &[CANNOT]);
            wire.finish();
        }
    }
}

/// Passes on what the client says, until it has gone.
fn follow(wire: &Wire, (process, input): (Process, Sender<Vec<u8>>)) {
    let mut input = Some(input);
    loop {
        match wire.receive() {
            // The thread is there as long as this is.
            Ok(Some((Kind::Input, data))) => drop(input.as_ref().map(|input| input.send(data))),
            Ok(Some((Kind::InputEnd, _))) => input = None,
            _ => break,
        }
    }
    // Its group: that of its session.
    if let Some(pid) = *process.lock() {
        let _ = ptrace::kill(-pid, libc::SIGHUP);
    }
}

/// Writes what the client says to a command's standard input, which may be full, and tells it how much was taken.
fn write_all(wire: &Wire, told: &Receiver<Vec<u8>>, to: OwnedFd) {
    let mut to = Some(File::from(to));
    while let Ok(data) = told.recv() {
        // The command may not want it.
        if to.as_mut().is_some_and(|to| to.write_all(&data).is_err()) {
            to = None;
        }
        let len = u32::try_from(data.len()).unwrap_or(0);
        let _ = wire.send(Kind::Taken, &len.to_le_bytes());
    }
}

/// The shell of the user, as sshd has told it.
fn shell() -> PathBuf {
    let told = std::env::var_os("SHELL").map(PathBuf::from);
    told.filter(|shell| shell.is_absolute() && shell.is_file()).unwrap_or_else(|| Path::new("/bin/sh").into())
}

/// A thread of a command.
fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, String> {
    thread::Builder::new()
        .name(name.into())
        .spawn(work)
        .map_err(|error| format!("starting a thread: {error}"))
}

/// Starts a command; its process, and the way to its standard input. Its threads are there before it is: one that
/// cannot be started leaves nothing that runs.
fn start(wire: &Arc<Wire>, command: &[u8]) -> Result<(Process, Sender<Vec<u8>>), String> {
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
        environment: of_command().map_err(|failure| failure.message)?,
        ignored: vec![(libc::SIGPIPE, false)],
        descriptors: vec![input, output, error],
        session: true,
        ..Start::default()
    };
    let ((says, told), of_input) = (mpsc::channel(), Arc::clone(wire));
    thread("rsh-input", move || write_all(&of_input, &told, to_input))?;
    let reader = |kind, from| {
        let wire = Arc::clone(wire);
        thread("rsh-output", move || read_all(&wire, kind, from))
    };
    let readers = [reader(Kind::Output, of_output)?, reader(Kind::Error, of_error)?];
    let process = Process::default();
    let (of_thread, its, (begun, pid)) = (Arc::clone(wire), Arc::clone(&process), mpsc::channel());
    thread("rsh-end", move || {
        // Else it was not started.
        let Ok(pid) = pid.recv() else { return };
        let status = wait(pid, &its);
        for reader in readers {
            let _ = reader.join();
        }
        let _ = of_thread.send(Kind::Ended, &[status]);
        of_thread.finish();
    })?;
    // Before it may be waited for.
    let mut known = process.lock();
    let pid = start.spawn().map_err(failed)?;
    *known = Some(pid);
    drop(known);
    let _ = begun.send(pid);
    Ok((process, says))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::wire::WINDOW;
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(60);

    /// A command, and the other side.
    fn serve_one(command: &str, other_side: impl FnOnce(&Wire)) {
        let (key, listener) = (Key::new().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let at = listener.local_addr().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (wire, command) = meet(&key, listener.accept().unwrap().0).unwrap();
                serve(&wire, &command);
            });
            let wire = Wire::prove(TcpStream::connect(at).unwrap(), Side::Client, &key).unwrap();
            wire.send(Kind::Command, command.as_bytes()).unwrap();
            other_side(&wire);
        });
    }

    /// It reads nothing, and its standard input is full.
    #[test]
    fn a_command_gets_sighup_when_its_client_goes_though_it_does_not_read() {
        let mut pid = String::new();
        serve_one("echo $$; exec sleep 1000", |wire| {
            let (kind, said) = wire.receive().unwrap().unwrap();
            assert_eq!(kind, Kind::Output);
            pid = String::from_utf8(said).unwrap().trim().to_owned();
            let piece = vec![b'x'; WINDOW / 16];
            (0..16).for_each(|_| wire.send(Kind::Input, &piece).unwrap());
        });
        let begun = Instant::now();
        while Path::new("/proc").join(&pid).exists() {
            assert!(begun.elapsed() < LONG, "it has got no signal");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_told_is_taken_also_by_a_command_that_does_not_want_it() {
        let gate = std::env::temp_dir().join(format!("holdfast-rsh-gate-{}", std::process::id()));
        for begin in ["cat >/dev/null", "exec <&-"] {
            let wait = format!("while [ ! -e {} ]; do sleep 0.01; done", gate.display());
            serve_one(&format!("{begin}; {wait}; exit 3"), |wire| {
                let piece = vec![b'x'; WINDOW / 16];
                (0..16).for_each(|_| wire.send(Kind::Input, &piece).unwrap());
                wire.send(Kind::InputEnd, &[]).unwrap();
                let mut taken = 0;
                while taken < WINDOW {
                    let (kind, len) = wire.receive().unwrap().unwrap();
                    assert_eq!(kind, Kind::Taken, "{begin}");
                    taken += u32::from_le_bytes(len.try_into().unwrap()) as usize;
                }
                File::create(&gate).unwrap();
                assert_eq!(wire.receive().unwrap().unwrap(), (Kind::Ended, vec![3]), "{begin}");
            });
            std::fs::remove_file(&gate).unwrap();
        }
    }
}
