//! The front as its users see it: exit status, signals, standard streams, environment and descriptors of a program that
//! never sees a checkpoint must be those that it has without Holdfast.
//!
//! The library is replaced by one that does nothing (the C library itself): what libholdfast does inside programs is
//! tested in `preload` and `tests`.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("front-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn store(&self) -> PathBuf {
        self.0.join("store")
    }
    fn holdfast(&self, words: &[&str]) -> Command {
        let library = ["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6", "/usr/lib/libc.so.6"];
        let library = library.iter().find(|path| Path::new(path).exists()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env("HOLDFAST_STORE", self.store()).env("HOLDFAST_LIB", library).args(words);
        command
    }
    fn run(&self, script: &str) -> Output {
        self.holdfast(&["run", "--", "sh", "-c", script]).output().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // An agent may still be about to end.
        for _ in 0..50 {
            if fs::remove_dir_all(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} never appeared", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn status_and_streams_are_the_programs() {
    let folder = Folder::new("status");
    let output = folder.run("echo out; echo err >&2; exit 7");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n".into(), "err\n".into()));
    for signal in [1, 6, 9, 15] {
        assert_eq!(folder.run(&format!("kill -{signal} $$")).status.signal(), Some(signal));
    }
    let mut child =
        folder.holdfast(&["run", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "through");
}

/// What a program can see of how it was started, except what is said to change.
const LOOK: &str = "ls /proc/self/fd; grep -E '^(SigBlk|SigIgn|SigCgt|Threads)' /proc/self/status; \
                    tr '\\0' '\\n' < /proc/$$/environ | \
                    grep -vE '^(LD_PRELOAD|HOLDFAST_.*|ASAN_OPTIONS|_)=' ; pwd; umask; \
                    ps -o pgid= -p $$ | wc -l";

fn look(mut command: Command, wrapper: &str) -> String {
    // The wrapper sets up signals and descriptors before it executes what is to be compared.
    command.args(["sh", "-c", LOOK]);
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")))
        .collect();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{wrapper} exec {}", words.join(" "))]);
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap());
    }
    shell.env("ZZZ", "1").env("AAA", "2");
    text(&shell.output().unwrap().stdout)
}

#[test]
fn the_program_sees_what_it_would_see_without() {
    let folder = Folder::new("look");
    for wrapper in
        ["", "trap '' PIPE INT HUP;", "exec 7</dev/null 9>/dev/null;", "exec 0<&-;", "trap '' CHLD;"]
    {
        let mut plain = Command::new("env");
        plain.env("HOLDFAST_STORE", folder.store());
        let expected = look(plain, wrapper);
        assert!(expected.contains("SigIgn") && expected.contains("ZZZ=1"), "{expected}");
        assert_eq!(look(folder.holdfast(&["run", "--"]), wrapper), expected, "after: {wrapper}");
    }
}

#[test]
fn the_front_closes_descriptors_that_were_handed_down() {
    let folder = Folder::new("handed");
    let script = format!(
        "{{ '{}' run -- sh -c 'exec 7>&-; sleep 5' 7>&1 >/dev/null 2>&1 & }} | {{ cat; echo over; }}",
        env!("CARGO_BIN_EXE_holdfast")
    );
    let shape = folder.holdfast(&[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]);
    for (name, value) in shape.get_envs() {
        shell.env(name, value.unwrap());
    }
    let begun = Instant::now();
    assert_eq!(text(&shell.output().unwrap().stdout), "over\n");
    assert!(begun.elapsed() < Duration::from_secs(4), "the pipe was kept open");
}

fn start(folder: &Folder, options: &[&str], script: &str) -> Child {
    let mut words = vec!["run"];
    words.extend(options);
    words.extend(["--", "sh", "-c", script]);
    folder.holdfast(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn kill(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn signals_are_passed_on() {
    let folder = Folder::new("signals");
    let ready = folder.0.join("ready");
    for signal in ["HUP", "INT", "TERM", "USR1", "USR2"] {
        let _ = fs::remove_file(&ready);
        let script = format!(
            "trap 'echo got {signal}; exit 3' {signal}; touch {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let child = start(&folder, &[], &script);
        wait_for(&ready);
        kill(&child, &format!("-{signal}"));
        let output = child.wait_with_output().unwrap();
        assert_eq!((text(&output.stdout), output.status.code()), (format!("got {signal}\n"), Some(3)));
    }
}

#[test]
fn a_failed_stop_hands_the_signal_to_the_program() {
    let folder = Folder::new("stop");
    let ready = folder.0.join("ready");
    let script = format!("trap 'exit 9' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let child = start(&folder, &["--on", "TERM=checkpoint-stop"], &script);
    wait_for(&ready);
    // No process has registered (the library is not there), so no image can be made.
    kill(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert!(text(&output.stderr).contains("SIGTERM is passed on to the program"), "{}", text(&output.stderr));
}

#[test]
fn agents_end_with_their_programs_and_leave_no_socket() {
    let folder = Folder::new("ends");
    assert!(folder.holdfast(&["run", "--name", "a", "--", "true"]).status().unwrap().success());
    let socket = folder.store().join("a/agent.sock");
    let begun = Instant::now();
    while socket.exists() {
        assert!(begun.elapsed() < Duration::from_secs(5), "the agent does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn jobs_are_listed_and_one_name_runs_once() {
    let folder = Folder::new("names");
    let ready = folder.0.join("ready");
    let list = || {
        let listed = folder.holdfast(&["list", "--json"]).output().unwrap().stdout;
        serde_json::from_slice::<serde_json::Value>(&listed).unwrap()["jobs"].clone()
    };
    assert_eq!(list(), serde_json::json!([]));
    let mut child = start(&folder, &["--name", "a"], &format!("touch {}; exec sleep 20", ready.display()));
    wait_for(&ready);
    // No registration: the agent waits for one as long as the front lives.
    let second = folder.holdfast(&["run", "--name", "a", "--", "true"]).output().unwrap();
    assert_eq!(second.status.code(), Some(69), "{}", text(&second.stderr));
    let jobs = list();
    assert_eq!((&jobs[0]["job"], &jobs[0]["agent_pid"].is_number()), (&"a".into(), &true));
    kill(&child, "-TERM");
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[test]
fn failures_have_their_codes() {
    let folder = Folder::new("codes");
    let script = folder.0.join("plain");
    fs::write(&script, "echo hi\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let open = folder.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let cases: [(&[&str], i32); 11] = [
        (&["frobnicate"], 64),
        (&["run", "--every", "never", "--", "true"], 64),
        (&["run", "--name", "../x", "--", "true"], 64),
        (&["restart", "nothing"], 66),
        (&["checkpoint", "nothing"], 66),
        (&["checkpoint", "1"], 66),
        (&["show", "nothing@3"], 66),
        (&["run", "--", "no-such-program"], 127),
        (&["run", "--", script.to_str().unwrap()], 126),
        (&["--store", open.to_str().unwrap(), "list"], 77),
        (&["--version"], 0),
    ];
    for (words, code) in cases {
        let output = folder.holdfast(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output.stderr));
        assert_eq!(code == 0, output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = Folder::new("pipe");
    for words in ["list", "--help", "doctor", "completions bash"] {
        let words: Vec<&str> = words.split(' ').collect();
        let mut child =
            folder.holdfast(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()), "{words:?}");
    }
}
