//! Standard streams of a restart, number by number: whatever they were at `run` and are at `restart`, each byte that
//! the program writes is where its user would look, and once; what it reads comes from where the user says; and the
//! log of the script that calls is never cut.
//!
//! The whole table is in the long form; the short one has each pair once for one of the numbers.

use anyhow::{Context, Result, ensure};
use holdfast_sys::terminal;
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const O_NONBLOCK: i32 = 0o4000;
const O_NOCTTY: i32 = 0o400;

/// What a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Terminal,
    Pipe,
    File,
    /// With O_APPEND.
    Append,
    Null,
    Closed,
    /// A file that only root may open.
    Foreign,
}

use Kind::{Append, Closed, Foreign, Null, Pipe, Terminal};

const AT_RUN: [Kind; 7] = [Terminal, Pipe, Kind::File, Append, Null, Closed, Foreign];
const AT_RESTART: [Kind; 5] = [Terminal, Pipe, Kind::File, Null, Closed];

impl Kind {
    fn is_file(self) -> bool {
        matches!(self, Kind::File | Append | Foreign)
    }
}

/// The other end of a stream.
enum End {
    Nothing,
    Master(File),
    Reader(PipeReader),
    Path(String),
}

/// A stream and its other end.
struct Stream {
    kind: Kind,
    own: Option<Stdio>,
    copy: Option<Stdio>,
    end: End,
}

impl Stream {
    /// `name`: of its file. `input`: what can be read from it; none: it is written to.
    fn make(bed: &Bed, kind: Kind, name: &str, input: Option<&str>) -> Result<Stream> {
        let (own, end) = match kind {
            Terminal => {
                let master = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(O_NONBLOCK | O_NOCTTY)
                    .open("/dev/ptmx")?;
                terminal::lock(master.as_fd(), false)?;
                let slave = terminal::open_slave(master.as_fd(), 2 | O_NOCTTY as u32)?;
                if let Some(text) = input {
                    (&master).write_all(format!("{text}\n\u{4}").as_bytes())?;
                }
                (Some(File::from(slave)), End::Master(master))
            }
            Pipe => {
                let (reader, mut writer) = std::io::pipe()?;
                if let Some(text) = input {
                    writer.write_all(text.as_bytes())?;
                    (Some(File::from(std::os::fd::OwnedFd::from(reader))), End::Nothing)
                } else {
                    (Some(File::from(std::os::fd::OwnedFd::from(writer))), End::Reader(reader))
                }
            }
            Kind::File | Append | Foreign => {
                bed.create(name)?.write_all(input.unwrap_or_default().as_bytes())?;
                let path = bed.work().join(name);
                let mut options = OpenOptions::new();
                options
                    .read(input.is_some())
                    .write(input.is_none())
                    .append(kind == Append && input.is_none());
                let file = options.open(&path)?;
                if kind == Foreign && am_root() {
                    std::os::unix::fs::chown(&path, Some(0), Some(0))?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                }
                (Some(file), End::Path(name.to_owned()))
            }
            Null => (Some(OpenOptions::new().read(true).write(true).open("/dev/null")?), End::Nothing),
            Closed => (None, End::Nothing),
        };
        let copy = own.as_ref().map(File::try_clone).transpose()?.map(Stdio::from);
        Ok(Stream { kind, own: own.map(Stdio::from), copy, end })
    }

    /// All that was written to it. Nobody has it any more.
    fn text(&mut self, bed: &Bed) -> Result<String> {
        let mut bytes = Vec::new();
        match &mut self.end {
            End::Nothing => {}
            // EIO: no slave is open any more.
            End::Master(master) => drop(master.read_to_end(&mut bytes)),
            End::Reader(reader) => drop(reader.read_to_end(&mut bytes)?),
            End::Path(name) => bytes = fs::read(bed.work().join(name))?,
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The streams of one command; `shared`: 2 is the same description as 1.
struct Streams(Vec<Stream>);

impl Streams {
    fn make(bed: &Bed, kinds: [Kind; 3], shared: bool, at: &str) -> Result<Streams> {
        let input = format!("input of {at}");
        let mut streams = Vec::new();
        for (number, kind) in kinds.into_iter().enumerate().take(if shared { 2 } else { 3 }) {
            let input = (number == 0).then_some(input.as_str());
            streams.push(Stream::make(bed, kind, &format!("{at}.{number}"), input)?);
        }
        Ok(Streams(streams))
    }

    /// `holdfast ARGUMENTS` with them. What a shell would call `2>&1`, and `1>&-`, is done by one.
    fn command(&mut self, bed: &Bed, arguments: &[&str]) -> Command {
        let shared = self.0.len() == 2;
        let closed = self.0.iter().enumerate().filter(|(_, stream)| stream.kind == Closed);
        let mut closed: String = closed.map(|(number, _)| format!(" {number}>&-")).collect();
        // A shell would call `1>&- 2>&1` an error: of a closed descriptor there is no copy.
        if shared {
            closed.push_str(if self.kind(1) == Closed { " 2>&-" } else { " 2>&1" });
        }
        let mut command = bed.command("/bin/sh".as_ref());
        command
            .args(["-c", &format!("exec \"$0\" \"$@\"{closed}")])
            .arg(bed.kit().holdfast())
            .args(arguments);
        for (number, stream) in self.0.iter_mut().enumerate() {
            let Some(own) = stream.own.take() else { continue };
            stream.copy = None;
            match number {
                0 => command.stdin(own),
                1 => command.stdout(own),
                _ => command.stderr(own),
            };
        }
        command
    }

    fn kind(&self, number: usize) -> Kind {
        self.0.get(number).or(self.0.last()).map_or(Closed, |stream| stream.kind)
    }
}

/// Where the program's stream goes on.
fn goes_on_in_its_file(user: User, run: Kind, restart: Kind) -> bool {
    let is_opened = run != Foreign || user == User::Root;
    run.is_file() && is_opened && matches!(restart, Terminal | Null | Closed)
}

fn count(texts: &[String], what: &str) -> Vec<usize> {
    texts.iter().map(|text| text.matches(what).count()).collect()
}

/// One line of the table: from `run` to the end.
fn one(user: User, run: [Kind; 3], restart: [Kind; 3], shared: bool) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let bed = &bed;
    let mut before = Streams::make(bed, run, shared, "run")?;
    let program = bed.kit().program("streams");
    let program = program.to_str().context("a path")?;
    let mut front = before.command(bed, &["run", "--name", "j", "--", program]).spawn()?;
    bed.until("the beginning", PATIENCE, || bed.work().join("begun").exists())?;
    bed.say(&["checkpoint", "j"])?.success()?;
    bed.create("go")?;
    bed.until("the second line", PATIENCE, || bed.work().join("written").exists())?;
    let pid = bed.pid("j")?.context("a pid")?;
    processes::signal(pid, "KILL");
    ensure!(shell_code(wait(&mut front, PATIENCE)?) == 137, "{}", bed.text("run.2"));
    bed.create("read")?;
    let mut after = Streams::make(bed, restart, shared, "restart")?;
    let mut front = after.command(bed, &["restart", "j"]).spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())?;
    let old = before.0.iter_mut().map(|one| one.text(bed)).collect::<Result<Vec<String>>>()?;
    let new = after.0.iter_mut().map(|one| one.text(bed)).collect::<Result<Vec<String>>>()?;
    ensure!(code == 0, "status {code}: {new:?}");
    for number in 1..3 {
        let (run, restart) = (before.kind(number), after.kind(number));
        let at = if shared { 1 } else { number };
        let in_file = goes_on_in_its_file(user, run, restart);
        let (is_told, is_told_now) = (!matches!(run, Null | Closed), !matches!(restart, Null | Closed));
        // What was written after the image is cut off where that can be done.
        let is_cut = run.is_file() && (run != Foreign || user == User::Root);
        // An empty stream of the program stays one, but where it is redirected.
        let follows = match run {
            Closed => false,
            Null => matches!(restart, Pipe | Kind::File),
            _ => !in_file,
        };
        let mut expected_old = vec![0; old.len()];
        let mut expected_new = vec![0; new.len()];
        expected_old[at] = usize::from(is_told && !is_cut) + usize::from(in_file);
        expected_new[at] = usize::from(follows && is_told_now);
        let what = format!("after-{number}");
        let found = (count(&old, &what), count(&new, &what));
        ensure!(found == (expected_old, expected_new), "{what}: {found:?}: {old:?}, {new:?}");
        let what = format!("before-{number}");
        let expected: Vec<usize> = (0..old.len()).map(|other| usize::from(other == at && is_told)).collect();
        ensure!(
            (count(&old, &what), count(&new, &what)) == (expected, vec![0; new.len()]),
            "{what}: {old:?}, {new:?}"
        );
    }
    let (run, restart) = (before.kind(0), after.kind(0));
    let expected = if goes_on_in_its_file(user, run, restart) {
        "input of run"
    } else if matches!(restart, Pipe | Kind::File) && run != Closed
        || restart == Terminal && !matches!(run, Closed | Null)
    {
        "input of restart"
    } else {
        ""
    };
    let input = bed.text("input");
    ensure!(input.trim_end() == expected, "input {input:?} instead of {expected:?}");
    ensure!(new.iter().chain(&old).all(|text| !text.contains('\0')), "a hole: {old:?}, {new:?}");
    bed.check_clean("j")
}

/// Lines of the table: each pair of kinds once for each number.
fn table() -> Vec<([Kind; 3], [Kind; 3])> {
    let pairs: Vec<(Kind, Kind)> =
        AT_RUN.into_iter().flat_map(|run| AT_RESTART.map(|restart| (run, restart))).collect();
    let pair = |at: usize| pairs[at % pairs.len()];
    let line = |at: usize| {
        let all = [pair(at), pair(at + 12), pair(at + 23)];
        (all.map(|(run, _)| run), all.map(|(_, restart)| restart))
    };
    (0..pairs.len()).map(line).collect()
}

#[test]
fn every_stream_is_where_its_user_looks() {
    let lines = table();
    for (at, (run, restart)) in lines.iter().enumerate() {
        // The short form: each pair for one of the numbers, as one of the users.
        for (turn, user) in [User::Root, User::Ordinary].into_iter().enumerate() {
            if !full() && (at % 3 != 0 || (at / 3) % 2 != turn) {
                continue;
            }
            let result = one(user, *run, *restart, false);
            result.with_context(|| format!("as {user:?}, {run:?} at run, {restart:?} at restart")).unwrap();
        }
    }
}

#[test]
fn streams_that_are_one_may_be_two_and_the_other_way_round() {
    for (at, (run, restart)) in table().iter().enumerate() {
        for user in [User::Root, User::Ordinary] {
            if full() || at % 15 == 3 && (user == User::Root) == (at % 2 == 0) {
                let result = one(user, *run, *restart, true);
                result.with_context(|| format!("as {user:?}, {run:?}, {restart:?}, 2>&1")).unwrap();
            }
        }
    }
}

/// Starts a script with its output in `log`, at its end or from its beginning.
fn script(bed: &Bed, text: &str, append: bool) -> Result<std::process::Child> {
    if !append || !bed.work().join("log").exists() {
        bed.create("log")?;
    }
    let log = OpenOptions::new().write(true).append(append).open(bed.work().join("log"))?;
    let mut command = bed.command("/bin/sh".as_ref());
    command.args(["-c", text]).arg(bed.kit().holdfast()).arg(bed.kit().program("streams"));
    Ok(command.stdout(log.try_clone()?).stderr(log).process_group(0).spawn()?)
}

/// Runs the program in a script up to an image and the line after it, and kills it.
fn first_life(bed: &Bed) -> Result<()> {
    bed.until("the beginning", PATIENCE, || bed.work().join("begun").exists())?;
    bed.say(&["checkpoint", "j"])?.success()?;
    bed.create("go")?;
    bed.until("the second line", PATIENCE, || bed.work().join("written").exists())?;
    processes::signal(bed.pid("j")?.context("a pid")?, "KILL");
    bed.create("read").map(drop)
}

fn check_log(bed: &Bed, lines: &[(&str, usize)]) -> Result<()> {
    let log = bed.text("log");
    ensure!(!log.contains('\0'), "a hole: {log:?}");
    for (line, count) in lines {
        ensure!(log.matches(line).count() == *count, "{line}: {log}");
    }
    Ok(())
}

#[test]
fn the_log_of_a_script_stays_whole() {
    for (user, append) in
        [(User::Root, false), (User::Ordinary, true), (User::Ordinary, false), (User::Root, true)]
    {
        if !full() && append == (user == User::Root) {
            continue;
        }
        let Some(bed) = Bed::new(user) else { continue };
        let bed = &bed;
        // One script with both; then one that comes after it.
        let both = "echo first; \"$0\" run --name j -- \"$1\"; echo between; \"$0\" restart j; echo last $?";
        let mut shell = script(bed, both, append).unwrap();
        first_life(bed).unwrap();
        assert_eq!(shell_code(wait(&mut shell, PATIENCE).unwrap()), 0);
        let lines =
            [("first", 1), ("before-1", 1), ("after-1", 2), ("after-2", 2), ("between", 1), ("last 0", 1)];
        check_log(bed, &lines).unwrap();
        let more = "echo again; \"$0\" restart j@1 > other; echo over $?";
        let mut shell = script(bed, more, true).unwrap();
        assert_eq!(shell_code(wait(&mut shell, PATIENCE).unwrap()), 0);
        let lines =
            [("first", 1), ("after-1", 2), ("after-2", 3), ("last 0", 1), ("again", 1), ("over 0", 1)];
        check_log(bed, &lines).unwrap();
        assert_eq!(bed.text("other"), "after-1\n");
        bed.check_clean("j").unwrap();
    }
}

/// A restart into the very file, as a batch system that begins its log anew has it, and `--stdio`.
#[test]
fn a_stream_goes_where_stdio_says() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let bed = &bed;
    let program = bed.kit().program("streams");
    let input = bed.create("in").and_then(|mut file| Ok(file.write_all(b"of the file")?));
    input.unwrap();
    let stdin = || File::open(bed.work().join("in")).unwrap();
    let mut front = bed.run_command("j", &[], &[program.to_str().unwrap()]).unwrap();
    let mut front = front.stdin(stdin()).spawn().unwrap();
    first_life(bed).unwrap();
    assert_eq!(shell_code(wait(&mut front, PATIENCE).unwrap()), 137);
    // (options, its file is given again, what is in that, what is in the other)
    let cases: [(&[&str], bool, &str, &str); 4] = [
        (&[], false, "before-1\n", "after-1\n"),
        (&["--stdio", "keep"], false, "before-1\nafter-1\n", ""),
        (&["--stdio=here"], false, "before-1\n", "after-1\n"),
        (&[], true, "after-1\n", ""),
    ];
    for (options, own, old, new) in cases {
        let file = bed.create(if own { "out" } else { "other" }).unwrap();
        let mut command = bed.restart_command("j@1", options).unwrap();
        let mut front = command.stdin(stdin()).stdout(file).spawn().unwrap();
        let code = shell_code(wait(&mut front, PATIENCE).unwrap());
        assert_eq!(code, 0, "{}", bed.text("restart.err"));
        assert_eq!((bed.text("out").as_str(), bed.text("other").as_str()), (old, new), "{options:?} {own}");
        assert_eq!(bed.text("input"), "of the file");
        bed.create("other").unwrap();
    }
    bed.check_clean("j").unwrap();
}
