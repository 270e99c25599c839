//! What a restart makes of files that are another user's by now, and of folders that have become symbolic links: it
//! uses neither, and says which it is. As root, for the tests must make files of other users; for both users' jobs.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::restart_chain::{self, kill_program};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user_by_root, shell_code, wait};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const JOB: &str = "j";
/// A user that has nothing to do with the jobs.
pub(crate) const OTHER: u32 = 2102;

/// Runs a Python program until it has made `ready`, and ends it by a checkpoint.
pub(crate) fn checkpoint(bed: &Bed, options: &[&str], program: &str) -> Result<()> {
    let program =
        format!("import mmap, os, socket, time\n{program}\nopen('ready', 'w').close()\ntime.sleep(300)");
    fs::set_permissions(bed.work(), Permissions::from_mode(0o777))?;
    let mut front = bed.run_command(JOB, options, &[PYTHON, "-c", &program])?.spawn()?;
    bed.until("a program that is ready", PATIENCE, || bed.work().join("ready").exists())
        .with_context(|| bed.text("err"))?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    Ok(())
}

/// Restarts; the program's pid, after which it is killed.
pub(crate) fn restarts(bed: &Bed, options: &[&str], look: impl FnOnce(i32) -> Result<()>) -> Result<String> {
    let mut front = bed.restart_command(JOB, options)?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    // What is put back has been, when the agent answers.
    bed.say(&["check", JOB])?;
    look(pid)?;
    kill_program(pid, &mut front)?;
    Ok(bed.text("restart.err"))
}

/// A restart that must fail, and say these words.
pub(crate) fn refused(bed: &Bed, words: &[&str]) -> Result<()> {
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("restart.err");
    ensure!(code == 69 && words.iter().all(|word| said.contains(word)), "status {code}: {said}");
    Ok(())
}

/// Gives a file to another user, and lets all write it.
fn give(path: &Path) -> Result<()> {
    chown(path, Some(OTHER), Some(OTHER))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o666))?)
}

type Make = fn(&Path) -> Result<()>;

/// As after /tmp was emptied, and another user has put files of the same names there.
#[test]
fn another_users_file_of_the_same_name_is_refused() {
    let program = "f = os.open('data', os.O_RDWR | os.O_CREAT, 0o600)\nos.write(f, b'own' * 100)\n\
                   g = os.open('shared', os.O_RDWR | os.O_CREAT, 0o600)\nos.ftruncate(g, 8192)\n\
                   m = mmap.mmap(g, 8192)\nm[0] = 65\nos.close(g)\n\
                   os.mkfifo('fifo', 0o600)\np = os.open('fifo', os.O_RDWR)\n\
                   s = socket.socket(socket.AF_UNIX)\ns.bind('socket')\ns.listen()\n\
                   os.mkdir('folder')\nd = os.open('folder', os.O_RDONLY)";
    each_user_by_root(|bed| {
        checkpoint(bed, &["--save-files=none"], program)?;
        let aside = bed.dir().join("aside");
        let make: [(&str, Make); 5] = [
            ("data", |path| Ok(fs::write(path, [b'x'; 1000])?)),
            ("shared", |path| Ok(fs::write(path, [b'x'; 8192])?)),
            ("fifo", |path| {
                ensure!(Command::new("mkfifo").arg(path).status()?.success());
                Ok(())
            }),
            ("socket", |path| {
                UnixListener::bind(path)?;
                Ok(())
            }),
            ("folder", |path| Ok(fs::create_dir(path)?)),
        ];
        for (name, make) in make {
            let path = bed.work().join(name);
            fs::rename(&path, &aside)?;
            make(&path)?;
            give(&path)?;
            let was = fs::symlink_metadata(&path)?;
            refused(bed, &[name, &format!("user {OTHER}"), "--accept-replaced"])?;
            let now = fs::symlink_metadata(&path)?;
            let facts = |m: &fs::Metadata| (m.ino(), m.uid(), m.mode(), m.len(), m.mtime_nsec());
            ensure!(facts(&was) == facts(&now), "{name} was changed");
            if was.is_dir() {
                fs::remove_dir(&path)?
            } else {
                fs::remove_file(&path)?
            }
            fs::rename(&aside, &path)?;
        }
        of_another_kind_or_mode(bed, &aside)?;
        bed.check_clean(JOB)
    });
}

/// The rest of the test: `data` of another kind, of a wider mode, one's own, and what is accepted.
fn of_another_kind_or_mode(bed: &Bed, aside: &Path) -> Result<()> {
    let path = bed.work().join("data");
    fs::rename(&path, aside)?;
    fs::create_dir(&path)?;
    refused(bed, &["data", "a folder"])?;
    fs::remove_dir(&path)?;
    let owner = fs::metadata(aside)?;
    let write = |mode: u32| -> Result<()> {
        fs::write(&path, [b'x'; 1000])?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(mode))?)
    };
    write(0o666)?;
    refused(bed, &["data", "more users", "--accept-replaced"])?;
    ensure!(fs::read(&path)? == [b'x'; 1000], "it was changed");
    write(0o600)?;
    let is_cut = |_| {
        ensure!(fs::metadata(&path)?.len() == 300, "{}", bed.text("restart.err"));
        Ok(())
    };
    let said = restarts(bed, &[], is_cut)?;
    ensure!(said.contains("it was replaced"), "{said}");
    write(0o600)?;
    give(&path)?;
    refused(bed, &["data", "user 2102"])?;
    restarts(bed, &["--accept-replaced", &path.to_string_lossy()], is_cut)?;
    let unknown = bed.say(&["restart", "--accept-replaced", "/no/such", JOB])?;
    ensure!(unknown.code() == 64 && unknown.stderr.contains("/no/such"), "{}", unknown.stderr);
    Ok(())
}

#[test]
fn a_folder_that_has_become_a_link_is_refused() {
    let program = "os.mkdir('folder')\nf = os.open('folder/data', os.O_RDWR | os.O_CREAT, 0o600)\n\
                   os.write(f, b'own' * 100)";
    each_user_by_root(|bed| {
        checkpoint(bed, &[], program)?;
        let (folder, moved, other) =
            (bed.work().join("folder"), bed.dir().join("moved"), bed.dir().join("other"));
        let owner = fs::metadata(&folder)?;
        fs::create_dir(&other)?;
        fs::write(other.join("data"), [b'x'; 1000])?;
        fs::set_permissions(other.join("data"), Permissions::from_mode(0o600))?;
        for path in [other.clone(), other.join("data")] {
            chown(path, Some(owner.uid()), Some(owner.gid()))?;
        }
        fs::rename(&folder, &moved)?;
        symlink(&other, &folder)?;
        refused(bed, &["folder/data", "symbolic link", "--map"])?;
        ensure!(fs::read(other.join("data"))? == [b'x'; 1000], "it was changed");
        // Where it is now may be told with a link in it.
        let link = bed.dir().join("link");
        symlink(&moved, &link)?;
        let map = format!("{}={}", folder.display(), link.display());
        restarts(bed, &["--map", &map], |_| Ok(()))?;
        bed.check_clean(JOB)
    });
}

/// A job of root's whose program has become another user.
pub(crate) struct Dropped {
    pub(crate) bed: Bed,
    /// The other user's own folder.
    pub(crate) theirs: PathBuf,
    /// Root's alone.
    pub(crate) secret: PathBuf,
}

impl Dropped {
    /// `program`: what it does as the other user.
    pub(crate) fn start(program: &str) -> Result<Option<Dropped>> {
        let Some(bed) = Bed::new(User::Root) else { return Ok(None) };
        let (theirs, secret) = (bed.work().join("theirs"), bed.dir().join("secret"));
        fs::create_dir(&theirs)?;
        chown(&theirs, Some(OTHER), Some(OTHER))?;
        fs::create_dir(&secret)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o700))?;
        let program = format!(
            "f = os.open('root.log', os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)\nos.setgroups([])\n\
             os.setresgid({OTHER}, {OTHER}, {OTHER})\nos.setresuid({OTHER}, {OTHER}, {OTHER})\n{program}"
        );
        checkpoint(&bed, &[], &program)?;
        Ok(Some(Dropped { bed, theirs, secret }))
    }

    /// Has the other user's folder be a link to root's.
    fn swap(&self) -> Result<PathBuf> {
        let moved = self.bed.dir().join("moved");
        fs::rename(&self.theirs, &moved)?;
        symlink(&self.secret, &self.theirs)?;
        Ok(moved)
    }
}

#[test]
fn files_are_opened_as_the_process_that_had_them() -> Result<()> {
    let program = "d = os.open('theirs/data', os.O_RDWR | os.O_CREAT, 0o600)\nos.write(d, b'own')\n\
                   e = os.open('theirs/empty', os.O_RDWR | os.O_CREAT, 0o640)";
    let Some(Dropped { bed, theirs, .. }) = &Dropped::start(program)? else { return Ok(()) };
    // Its log it could not open any more; what is made anew is its own.
    fs::remove_file(theirs.join("empty"))?;
    restarts(bed, &[], |pid| {
        let log = bed.work().join("root.log");
        let found = fs::read_dir(format!("/proc/{pid}/fd"))?;
        ensure!(found.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == log)));
        let made = fs::metadata(theirs.join("empty"))?;
        ensure!((made.uid(), made.gid(), made.mode() & 0o7777) == (OTHER, OTHER, 0o640), "{made:?}");
        Ok(())
    })?;
    // Another file of root's: the image proves no right to that.
    let log = bed.work().join("root.log");
    fs::rename(&log, bed.dir().join("old.log"))?;
    fs::write(&log, "secret")?;
    fs::set_permissions(&log, Permissions::from_mode(0o600))?;
    refused(bed, &["root.log", "2102"])?;
    ensure!(fs::read_to_string(&log)? == "secret");
    bed.check_clean(JOB)
}

#[test]
fn a_swapped_folder_gives_nothing_of_roots_away() -> Result<()> {
    let program = "d = os.open('theirs/data', os.O_RDWR | os.O_CREAT, 0o600)\nos.write(d, b'own')";
    let Some(dropped) = Dropped::start(program)? else { return Ok(()) };
    let (bed, data) = (&dropped.bed, dropped.secret.join("data"));
    fs::write(&data, "secret")?;
    dropped.swap()?;
    refused(bed, &["theirs/data", "symbolic link"])?;
    // Not by a link of the file itself either, nor by a name that root's file has.
    fs::remove_file(&dropped.theirs)?;
    fs::create_dir(&dropped.theirs)?;
    symlink(&data, dropped.theirs.join("data"))?;
    refused(bed, &["theirs/data", "symbolic link"])?;
    fs::remove_file(dropped.theirs.join("data"))?;
    fs::hard_link(&data, dropped.theirs.join("data"))?;
    refused(bed, &["theirs/data"])?;
    ensure!(fs::read_to_string(&data)? == "secret");
    bed.check_clean(JOB)
}

#[test]
fn no_socket_is_removed_in_a_folder_that_the_process_could_not_write() -> Result<()> {
    let program = "s = socket.socket(socket.AF_UNIX)\ns.bind('theirs/socket')\ns.listen()";
    let Some(dropped) = Dropped::start(program)? else { return Ok(()) };
    let (bed, socket) = (&dropped.bed, dropped.secret.join("socket"));
    drop(UnixListener::bind(&socket)?);
    let moved = dropped.swap()?;
    // The folder of an address may have links in it, as the program has written it; it is the process that goes there.
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code != 0 && bed.text("restart.err").contains("socket"), "{}", bed.text("restart.err"));
    ensure!(fs::symlink_metadata(&socket)?.file_type().is_socket());
    fs::remove_file(&dropped.theirs)?;
    fs::rename(moved, &dropped.theirs)?;
    restarts(bed, &[], |_| {
        let made = fs::symlink_metadata(dropped.theirs.join("socket"))?;
        ensure!((made.uid(), made.gid()) == (OTHER, OTHER) && made.file_type().is_socket(), "{made:?}");
        Ok(())
    })?;
    bed.check_clean(JOB)
}

/// A process that has become another user, its connections with one that has not, and its own. Root's restart makes
/// all of them: servers ask who is at the other end (SO_PEERCRED).
const PEERS: &str = "
import os, socket, struct, time
def ids(s): return struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
def listen(name):
    s = socket.socket(socket.AF_UNIX)
    s.bind(name)
    os.chmod(name, 0o777)
    s.listen()
    return s
def connect(name):
    s = socket.socket(socket.AF_UNIX)
    s.connect(name)
    return s
def tell(name, sockets):
    while not os.path.exists('tell'): time.sleep(0.01)
    with open(name + '.new', 'w') as file: print(*map(ids, sockets()), file=file)
    os.rename(name + '.new', name)
    time.sleep(300)
roots, (reader, writer) = listen('roots'), os.pipe()
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(2103, 2103, 2103)
    os.setresuid(2102, 2102, 2102)
    client, pair, own = connect('roots'), socket.socketpair(), listen('own')
    waiting = connect('own')
    os.write(writer, b'x')
    tell('child', lambda: [client, *pair, own, *sorted((own.accept()[0], own.accept()[0]), key=ids)])
os.read(reader, 1)
served = roots.accept()[0]
client = connect('own')
open('ready', 'w').close()
tell('parent', lambda: [served, client, connect('own'), roots])
";

#[test]
fn connections_keep_their_users() -> Result<()> {
    let Some(bed) = Bed::new(User::Root) else { return Ok(()) };
    fs::set_permissions(bed.work(), Permissions::from_mode(0o777))?;
    let mut front = bed.run_command(JOB, &[], &[PYTHON, "-c", PEERS])?.spawn()?;
    bed.until("all connections", PATIENCE, || bed.work().join("ready").exists())
        .with_context(|| bed.text("err"))?;
    bed.say(&["checkpoint", "--stop", JOB])?.success()?;
    wait(&mut front, PATIENCE)?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    fs::write(bed.work().join("tell"), "")?;
    let both = ["parent", "child"].map(|name| bed.work().join(name));
    bed.until("what they are told", PATIENCE, || both.iter().all(|path| path.exists()))
        .with_context(|| bed.text("err"))?;
    let (root, other) = ("(0, 0)", "(2102, 2103)");
    let parent = [other, other, other, root].join(" ");
    ensure!(bed.text("parent").trim() == parent, "root is told {}", bed.text("parent"));
    let child = [root, other, other, other, root, other].join(" ");
    ensure!(bed.text("child").trim() == child, "the other is told {}", bed.text("child"));
    restart_chain::kill_all(&bed, pid, &mut front)?;
    bed.check_clean(JOB)
}
