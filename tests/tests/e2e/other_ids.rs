//! A process of root's job that has become another user: what a restart does for it, it does as that user. As root, for
//! only root's jobs have such processes. What is in files and folders is in `file_owners`.

use crate::file_owners::{Dropped, JOB, OTHER, refused, restarts};
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::restart_chain;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, wait};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command};

/// A process of root's that has nothing to do with any job, ended when this is dropped.
struct Victim(Child);

impl Victim {
    fn start() -> Result<Victim> {
        Ok(Victim(Command::new("sleep").arg("1000").spawn()?))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket whose folder is gone, on a way that the other user has written: it leads to a folder of root's now.
#[test]
fn no_folder_is_made_where_the_links_of_another_user_lead() -> Result<()> {
    let program = "os.makedirs('theirs/real/run')\nos.symlink('real', 'theirs/link')\n\
                   s = socket.socket(socket.AF_UNIX)\ns.bind('theirs/link/run/socket')\ns.listen()";
    let Some(Dropped { bed, theirs, secret }) = &Dropped::start(program)? else { return Ok(()) };
    // Whoever had a folder in it could use it.
    fs::set_permissions(secret, Permissions::from_mode(0o711))?;
    fs::remove_dir_all(theirs.join("real"))?;
    fs::remove_file(theirs.join("link"))?;
    symlink(secret, theirs.join("link"))?;
    refused(bed, &["theirs/link/run", "cannot be made anew"])?;
    ensure!(fs::read_dir(secret)?.next().is_none(), "there is something in root's folder");
    // Its own it makes itself.
    fs::remove_file(theirs.join("link"))?;
    symlink("real", theirs.join("link"))?;
    fs::create_dir(theirs.join("real"))?;
    std::os::unix::fs::chown(theirs.join("real"), Some(OTHER), Some(OTHER))?;
    restarts(bed, &[], |_| {
        let made = fs::metadata(theirs.join("real/run"))?;
        ensure!((made.uid(), made.gid()) == (OTHER, OTHER), "{made:?}");
        Ok(())
    })?;
    bed.check_clean(JOB)
}

/// The kernel asks who has set the owner of a file whom its signals may reach (F_SETOWN).
#[test]
fn signals_of_files_reach_nobody_whom_the_process_could_not_reach() -> Result<()> {
    let victim = Victim::start()?;
    let program = format!(
        "import fcntl, signal, threading\ndef signalled(number, frame): open('own', 'w').close()\n\
         signal.signal(signal.SIGIO, signalled)\nends = []\n\
         for owner in {}, os.getpid():\n    reader, writer = os.pipe()\n    ends.append(writer)\n    \
         fcntl.fcntl(reader, fcntl.F_SETOWN, owner)\n    \
         fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)\n\
         def write():\n    while not os.path.exists('go'): time.sleep(0.01)\n    \
         for end in ends: os.write(end, b'x')\n    open('done', 'w').close()\n\
         threading.Thread(target=write).start()",
        victim.0.id()
    );
    let Some(Dropped { bed, .. }) = &Dropped::start(&program)? else { return Ok(()) };
    let said = restarts(bed, &[], |_| {
        fs::write(bed.work().join("go"), "")?;
        for file in ["done", "own"] {
            bed.until(file, PATIENCE, || bed.work().join(file).exists())?;
        }
        let state = fs::read_to_string(format!("/proc/{}/stat", victim.0.id()))?;
        ensure!(!state.contains(") Z "), "a process of root's was ended by a signal of another user's file");
        Ok(())
    })?;
    ensure!(said.contains("F_SETOWN") && said.contains(&victim.0.id().to_string()), "{said}");
    bed.check_clean(JOB)
}

/// Messages of a process that has become another user, and of a child of it that has ended, wait for one that has not.
/// What it is told of their senders it tells before the checkpoint and afterwards (MSG_PEEK).
const MESSAGES: &str = "
import os, socket, struct, time
KINDS, PEEK_OFF = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET), 42
def told(end):
    end.setsockopt(socket.SOL_SOCKET, PEEK_OFF, 0)
    seen = []
    while True:
        try: data, more, flags, address = end.recvmsg(10, 200, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError: break
        seen += [data] + [struct.unpack('3i', value) for _, kind, value in more if kind == 2]
    end.setsockopt(socket.SOL_SOCKET, PEEK_OFF, -1)
    return seen
def tell(name):
    with open(name + '.new', 'w') as file: print(*map(told, ends), file=file)
    os.rename(name + '.new', name)
pairs = [socket.socketpair(socket.AF_UNIX, kind) for kind in KINDS]
late = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener, named = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for end, name in (listener, 'listener'), (named, 'named'):
    end.bind(name)
    os.chmod(name, 0o777)
listener.listen()
for end in [pair[0] for pair in pairs] + [named, listener]:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
reader, writer = os.pipe()
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(2103, 2103, 2103)
    os.setresuid(2102, 2102, 2102)
    client, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    client.connect('listener')
    def send():
        for end in [pair[1] for pair in pairs] + [late[1], client]: end.send(b'x')
        datagrams.sendto(b'x', 'named')
    if os.fork() == 0:
        send()
        os._exit(0)
    os.wait()
    send()
    os.write(writer, b'x')
    time.sleep(300)
os.read(reader, 1)
served = listener.accept()[0]
served.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
late[0].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
ends = [pair[0] for pair in pairs] + [late[0], served, named]
tell('before')
open('ready', 'w').close()
while not os.path.exists('tell'): time.sleep(0.01)
tell('after')
time.sleep(300)
";

#[test]
fn messages_that_wait_keep_their_senders() -> Result<()> {
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    fs::set_permissions(bed.work(), Permissions::from_mode(0o777))?;
    let mut front = bed.run_command(JOB, &[], &[PYTHON, "-c", MESSAGES])?.spawn()?;
    bed.until("all messages", PATIENCE, || bed.work().join("ready").exists())
        .with_context(|| bed.text("err"))?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    fs::write(bed.work().join("tell"), "")?;
    bed.until("what is told", PATIENCE, || bed.work().join("after").exists())
        .with_context(|| bed.text("err"))?;
    let (before, after) = (bed.text("before"), bed.text("after"));
    ensure!(before.contains("2102, 2103") && before == after, "{before} before, {after} after");
    restart_chain::kill_all(&bed, pid, &mut front)?;
    bed.check_clean(JOB)
}

/// A socket that led to a name of its own user's, which leads to a server of root's now.
#[test]
fn nothing_is_connected_with_what_the_process_could_not_reach() -> Result<()> {
    let program = "t = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\nt.bind('theirs/server')\n\
                   s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.connect('theirs/server')\nt.close()\n\
                   u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.bind(('127.0.0.1', 0))\n\
                   import threading\ndef send():\n    while not os.path.exists('go'): time.sleep(0.01)\n    \
                   try: s.send(b'x')\n    except OSError as error: print(error)\n    \
                   print(os.fstat(u.fileno()).st_uid, file=open('uid.new', 'w'), flush=True)\n    \
                   os.rename('uid.new', 'uid')\n\
                   threading.Thread(target=send).start()";
    let Some(Dropped { bed, theirs, secret }) = &Dropped::start(program)? else { return Ok(()) };
    let server = UnixDatagram::bind(secret.join("server"))?;
    server.set_nonblocking(true)?;
    fs::remove_file(theirs.join("server"))?;
    fs::remove_dir(theirs)?;
    symlink(secret, theirs)?;
    let said = restarts(bed, &[], |_| {
        fs::write(bed.work().join("go"), "")?;
        bed.until("the program", PATIENCE, || bed.work().join("uid").exists())?;
        ensure!(server.recv(&mut [0; 8]).is_err(), "root's server has got a message of the process's");
        // What it makes is its own to rules of the network, and where ports are shared.
        ensure!(bed.text("uid").trim() == OTHER.to_string(), "its socket is user {}'s", bed.text("uid"));
        Ok(())
    })?;
    ensure!(said.contains("is not connected any more"), "{said}");
    bed.check_clean(JOB)
}
