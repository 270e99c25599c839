//! `--outside close`: unix connections that lead out of the job are refused by name without it; with it a restarted
//! program reads what had arrived, and then finds them closed. Datagram sockets are connected again by their path, as
//! `logger` shows.

use crate::plain_job::{as_user, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Stdio;

/// Connected to a server as a stream, and not accepted yet by another one; when it may, it says what it finds.
const PROGRAM: &str = "
import os, socket, time
def connected(path):
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    return made
first, second = connected('server'), connected('.X11-unix/X7')
while first.recv(100, socket.MSG_PEEK) != b'hello':
    time.sleep(0.01)
print('ready', flush=True)
while not os.path.exists('go'):
    time.sleep(0.01)
for made in first, second:
    read = [made.recv(100) for _ in range(2)]
    try:
        made.send(b'more')
        print(read, 'sent')
    except OSError as error:
        print(read, error.strerror)
";

/// A socket that whoever runs the program can connect to.
fn open_to_all(bed: &Bed, name: &str) -> Result<()> {
    Ok(fs::set_permissions(bed.work().join(name), Permissions::from_mode(0o666))?)
}

#[test]
fn streams_are_refused_by_name_or_closed() {
    each_user(|bed| {
        fs::create_dir(bed.work().join(".X11-unix"))?;
        let listen = |name: &str| UnixListener::bind(bed.work().join(name));
        let (server, display) = (listen("server")?, listen(".X11-unix/X7")?);
        open_to_all(bed, "server")?;
        open_to_all(bed, ".X11-unix/X7")?;
        let mut front = bed.run_command("j", &[], &["/usr/bin/python3", "-c", PROGRAM])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        let mut stream = server.accept()?.0;
        stream.write_all(b"hello")?;
        bed.until("the connections", PATIENCE, || bed.text("out") == "ready\n")?;
        let refused = bed.say(&["checkpoint", "j"])?;
        fails(&refused, 69, "/server leads outside the job; --outside close")?;
        fails(&refused, 69, "/.X11-unix/X7 leads outside")?;
        fails(&refused, 69, "run an X server in the job")?;
        bed.say(&["checkpoint", "j", "--outside", "close"])?.success()?;
        kill_program(pid, &mut front)?;
        drop((server, display, stream));
        fs::write(bed.work().join("go"), "")?;
        let ended = bed.say(&["restart", "j", "--stdio", "here"])?.success()?;
        let expected = "[b'hello', b''] Broken pipe\n[b'', b''] Broken pipe\n";
        ensure!(ended.stdout == expected, "{}{}", ended.stdout, ended.stderr);
        bed.check_clean("j")
    });
}

/// util-linux: a line of its input is a datagram to the system's log.
#[test]
fn logger_goes_on_to_any_listener_at_its_path() {
    as_user(|bed| {
        let log = || -> Result<UnixDatagram> {
            let log = UnixDatagram::bind(bed.work().join("log"))?;
            log.set_read_timeout(Some(PATIENCE))?;
            open_to_all(bed, "log")?;
            Ok(log)
        };
        let next = |log: &UnixDatagram| -> Result<String> {
            let mut line = [0; 500];
            let len = log.recv(&mut line)?;
            Ok(String::from_utf8_lossy(&line[..len]).into_owned())
        };
        let first = log()?;
        let script =
            "(echo one; while ! test -e go; do sleep 0.01; done; echo two) | logger -d -u log -t tag";
        let mut command = bed.run_command("j", &["--outside", "close"], &["/bin/sh", "-c", script])?;
        let mut front = command.stdin(Stdio::null()).spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        let line = next(&first)?;
        ensure!(line.contains("tag") && line.ends_with("one"), "{line}");
        bed.say(&["checkpoint", "j"])?.success()?;
        holdfast_tests::restart_chain::kill_job(bed, &mut front)?;
        drop(first);
        fs::remove_file(bed.work().join("log"))?;
        let second = log()?;
        fs::write(bed.work().join("go"), "")?;
        bed.say(&["restart", "j"])?.success()?;
        let line = next(&second)?;
        ensure!(line.contains("tag") && line.ends_with("two"), "{line}");
        bed.check_clean("j")
    });
}
