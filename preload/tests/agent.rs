//! What the library says to its agent, and what it leaves behind in the program: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::{Agent, Folder, Said, alone, output, plain, with_agent};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Checks a hello against the memory map of the live process that sent it.
fn check_registration(said: &Said, event: &str) {
    assert_eq!(said.text["request"], "hello");
    assert_eq!(said.event(), event);
    let area = &said.text["area"];
    let number = |name: &str| area[name].as_u64().unwrap();
    assert!(number("code_len") >= 65536 && number("scratch_len") >= 256 * 1024);
    let tracker = said.passed.as_ref().expect("a userfaultfd comes with it");
    let link = fs::read_link(format!("/proc/self/fd/{}", tracker.as_raw_fd())).unwrap();
    assert_eq!(link.to_string_lossy(), "anon_inode:[userfaultfd]");
    assert_ne!(number("shared"), 0);
}

fn check_maps(said: &Said) {
    let maps = fs::read_to_string(format!("/proc/{}/maps", said.pid)).unwrap();
    let area = &said.text["area"];
    let covered = |start: &str, len: Option<&str>, rights: &str| {
        let start = area[start].as_u64().unwrap();
        let end = start + len.map_or(192 * 1024, |name| area[name].as_u64().unwrap());
        maps.lines().any(|line| {
            let mut words = line.split_whitespace();
            let (from, to) = words.next().unwrap().split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            number(from) <= start && end <= number(to) && words.next() == Some(rights)
        })
    };
    assert!(covered("code", Some("code_len"), "r-xp"), "{maps}");
    assert!(covered("scratch", Some("scratch_len"), "rw-p"), "{maps}");
    assert!(covered("shared", None, "rw-p"), "{maps}");
}

#[test]
fn a_program_registers_and_looks_as_without_us() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let expected = output(plain(&lifecycle).arg("list"));
    assert_eq!(expected, "errno 0\nfd 0\nfd 1\nfd 2\nthread\n");
    assert_eq!(output(with_agent(&lifecycle, &agent).arg("list")), expected);
    check_registration(&agent.next(), "load");

    let sleeper = start(with_agent("sleep", &agent).arg("1"));
    let said = agent.next();
    assert_eq!(said.pid, sleeper.id() as i32);
    check_registration(&said, "load");
    check_maps(&said);
    finish(sleeper);
}

#[test]
fn a_path_longer_than_a_socket_address_is_reached() {
    let folder = Folder::new();
    let deep = folder.path().join("d".repeat(100)).join("e".repeat(100));
    let agent = Agent::new(&deep);
    let lifecycle = folder.compile("lifecycle", &[]);
    assert_eq!(output(with_agent(&lifecycle, &agent).arg("list")), "errno 0\nfd 0\nfd 1\nfd 2\nthread\n");
    check_registration(&agent.next(), "load");
}

#[test]
fn a_forked_child_registers_by_itself_and_a_spawned_one_by_its_constructor() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("fork"));
    let parent = agent.next();
    let child = agent.next();
    check_registration(&child, "fork");
    assert_ne!(child.pid, parent.pid);
    assert_eq!(child.text["area"], parent.text["area"], "the area is inherited");
    let spawned = agent.next();
    check_registration(&spawned, "load");
    assert!(spawned.pid != parent.pid && spawned.pid != child.pid);
    assert_eq!(finish(program), "child errno 12\nfd 0\nfd 1\nfd 2\n");
}

#[test]
fn setsid_and_daemon_are_told() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("setsid"));
    let events: Vec<_> = (0..3).map(|_| agent.next()).collect();
    assert_eq!(events.iter().map(Said::event).collect::<Vec<_>>(), ["load", "fork", "setsid"]);
    assert_eq!(events[1].pid, events[2].pid);
    assert_eq!(finish(program), "setsid 0\n");

    assert_eq!(output(with_agent(&lifecycle, &agent).arg("daemon")), "daemon\n");
    let events: Vec<_> = (0..3).map(|_| agent.next()).collect();
    assert_eq!(events.iter().map(Said::event).collect::<Vec<_>>(), ["load", "fork", "setsid"]);
    assert_ne!(events[0].pid, events[2].pid);
}

#[test]
fn a_shell_and_its_commands_are_followed_through_exec() {
    let folder = Folder::new();
    let agent = Agent::new(folder.path());
    let shell = start(with_agent("bash", &agent).args(["-c", "exec sh -c 'exec echo done'"]));
    let pid = shell.id() as i32;
    for _ in 0..3 {
        let said = agent.next();
        check_registration(&said, "load");
        assert_eq!(said.pid, pid);
    }
    assert_eq!(finish(shell), "done\n");
}

#[test]
fn without_anybody_at_the_socket_the_program_just_runs() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let expected = "errno 0\nfd 0\nfd 1\nfd 2\nthread\n";
    let dead = Agent::new(folder.path());
    let path = dead.path.clone();
    drop(dead);
    for socket in [path.as_path(), Path::new("/nowhere/agent.sock"), Path::new("relative"), Path::new("")] {
        let mut command = plain(&lifecycle);
        command.env("LD_PRELOAD", common::library()).env("HOLDFAST_SOCKET", socket).arg("list");
        assert_eq!(output(&mut command), expected, "{socket:?}");
    }
    let mut command = plain(&lifecycle);
    command.env("LD_PRELOAD", common::library()).env("HOLDFAST_SOCKET", "x".repeat(4000)).arg("list");
    assert_eq!(output(&mut command), expected);
}

#[test]
fn an_agent_that_does_not_accept_delays_the_program_only_shortly() {
    let folder = Folder::new();
    let agent = Agent::new(folder.path());
    let began = Instant::now();
    // More programs than the backlog of 64 holds.
    let mut command = with_agent("bash", &agent);
    command.args(["-c", "for i in $(seq 70); do /bin/true & done; wait; echo done"]);
    assert_eq!(output(&mut command), "done\n");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[test]
fn alternate_stacks_are_counted_and_errno_is_that_of_the_call() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    assert_eq!(output(alone(&lifecycle).arg("altstack")), "altstack 0 0 1 5 1\n");
}

#[test]
fn the_hooked_id_calls_do_what_they_do_without_us() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let expected = output(plain(&lifecycle).arg("ids"));
    assert!(expected.contains("raw fork 7"), "{expected}");
    assert_eq!(output(alone(&lifecycle).arg("ids")), expected);
}

#[test]
fn the_api_returns_its_codes_without_an_agent() {
    let folder = Folder::new();
    let expected = "checkpoint -1\nstart -1\nrestarted -1\nrestore -6\nrestore bad -5\nfree -5\nprotected 1 errno 77\n\
                    again 1\nfree 0\nfree again -5\n";
    for options in [&[][..], &["-no-pie"], &["-O2", "-fno-plt"]] {
        let weak = folder.compile("weak", options);
        assert_eq!(output(&mut plain(&weak)), "not loaded\n");
        assert_eq!(output(&mut alone(&weak)), expected, "{options:?}");
    }
}

#[test]
fn a_checkpoint_asked_for_by_the_program_waits_for_its_answer() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("checkpoint"));
    let hello = agent.next();
    for answer in [
        r#"{"reply":"checkpointed","epoch":1,"stop_ns":5,"committed":true}"#.to_owned(),
        format!(r#"{{"reply":"refused","reasons":["{}"]}}"#, "r".repeat(3000)),
    ] {
        let said = agent.next();
        assert_eq!(said.text, serde_json::json!({"request": "checkpoint", "stop": false, "wait": true}));
        let own = read_word(hello.pid, hello.text["area"]["shared"].as_u64().unwrap() + 32);
        let link = fs::read_link(format!("/proc/{}/fd/{}", hello.pid, own - 1)).unwrap();
        assert!(link.to_string_lossy().starts_with("socket:"), "its number is published: {link:?}");
        said.answer(&answer);
    }
    drop(agent.next()); // hangs up without an answer
    assert_eq!(finish(program), "first 0\nsecond -3\nthird -1\nrestarted 0\nfd 0\nfd 1\nfd 2\n");
}

#[test]
fn a_checkpoint_that_is_only_started_asks_for_an_answer_at_the_cut() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("start"));
    agent.next();
    for answer in [
        r#"{"reply":"checkpointed","epoch":1,"stop_ns":5,"committed":false}"#,
        r#"{"reply":"error","message":"no space"}"#,
    ] {
        let said = agent.next();
        assert_eq!(said.text, serde_json::json!({"request": "checkpoint", "stop": false, "wait": false}));
        said.answer(answer);
    }
    assert_eq!(finish(program), "first 0\nsecond -4\nfd 0\nfd 1\nfd 2\n");
}

fn read_word(pid: i32, at: u64) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut word = [0; 8];
    fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut word, at).unwrap();
    u64::from_le_bytes(word)
}

/// Stands in for a restart: the count goes up, and the connection is dead.
#[test]
fn a_checkpoint_returns_one_after_a_restart() {
    use std::os::unix::fs::FileExt;
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("two threads"));
    let hello = agent.next();
    let said = agent.next();
    let shared = hello.text["area"]["shared"].as_u64().unwrap();
    let memory = fs::File::options().write(true).open(format!("/proc/{}/mem", hello.pid)).unwrap();
    memory.write_all_at(&1_u64.to_le_bytes(), shared + 8).unwrap();
    memory.write_all_at(&0_u64.to_le_bytes(), shared + 32).unwrap();
    drop(said);
    agent.next().answer(r#"{"reply":"error","message":"disk full"}"#);
    assert_eq!(finish(program), "second 1\nfirst -4\n");
}

/// Stands in for a restart in which the kernel gave another id: the program must not notice.
#[test]
fn ids_stay_those_that_the_program_knows() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::FileExt;
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let mut command = with_agent(&lifecycle, &agent);
    let mut program = start(command.args(["virtual", "0"]).stdin(Stdio::piped()));
    let hello = agent.next();
    let mut output = BufReader::new(program.stdout.take().unwrap());
    let mut text = String::new();
    output.read_line(&mut text).unwrap();
    assert_eq!(text, "ready\n");
    let known = 3_999_999_i32; // beyond what the kernel gives out here
    let shared = hello.text["area"]["shared"].as_u64().unwrap();
    let memory = fs::File::options().write(true).open(format!("/proc/{}/mem", hello.pid)).unwrap();
    memory.write_all_at(&[known.to_le_bytes(), hello.pid.to_le_bytes()].concat(), shared + 1032).unwrap();
    memory.write_all_at(&1_u64.to_le_bytes(), shared + 1024).unwrap();
    memory.write_all_at(&1_u64.to_le_bytes(), shared + 24).unwrap();
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    text.clear();
    output.read_to_string(&mut text).unwrap();
    assert!(program.wait().unwrap().success());
    assert_eq!(
        text,
        format!(
            "ids 1 1 1\nkill 0 -1 1\nsyscall -1 1\nmmap 1\nnice 5 0\naffinity 0 1\nset affinity 0\nsigqueue 0\n\
             siginfo 4711 1 1 1\nraw fork 7\nknown {known} 1\nunknown 0\ntgkill 0\ngroups 1 0\n"
        )
    );
}

#[test]
fn two_threads_do_not_ask_at_once() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let program = start(with_agent(&lifecycle, &agent).arg("busy"));
    agent.next();
    let said = agent.next();
    std::thread::sleep(Duration::from_millis(700));
    said.answer(r#"{"reply":"checkpointed","epoch":1,"stop_ns":5,"committed":true}"#);
    assert_eq!(finish(program), "first -2\nsecond 0\n");
}

#[test]
fn signals_ask_for_checkpoints() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    for (variable, stop) in [("HOLDFAST_SIGNAL", false), ("HOLDFAST_ON_STOP", true)] {
        let program = start(with_agent(&lifecycle, &agent).args(["signal", "10"]).env(variable, "10"));
        agent.next();
        let said = agent.next();
        let mut expected = serde_json::json!({"request": "checkpoint", "stop": stop, "wait": false});
        if stop {
            expected["wishes"] = serde_json::json!({"signal": 10});
        }
        assert_eq!(said.text, expected);
        assert_eq!(finish(program), "after the signal, errno 9\nfd 0\nfd 1\nfd 2\n");
    }
}

#[test]
fn a_stop_signal_without_an_agent_does_what_it_does_by_default() {
    use std::os::unix::process::ExitStatusExt;
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    // No agent at all, and one that has gone after the hello.
    let status = alone(&lifecycle)
        .args(["signal", "15"])
        .env("HOLDFAST_ON_STOP", "15")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(15));
    let agent = Agent::new(folder.path());
    let mut sleeper = start(with_agent("sleep", &agent).arg("30").env("HOLDFAST_ON_STOP", "15"));
    let pid = agent.next().pid;
    drop(agent);
    std::thread::sleep(Duration::from_millis(300));
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    assert_eq!(sleeper.wait().unwrap().signal(), Some(15));
}

/// The image comes first; what the program has set for the signal is done without an agent, and told as it was set.
#[test]
fn a_program_keeps_its_own_action_for_the_stop_signal() {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::process::ExitStatusExt;
    let folder = Folder::new();
    let actions = folder.compile("actions", &[]);
    let agent = Agent::new(folder.path());
    let mut command = with_agent(&actions, &agent);
    command.env("HOLDFAST_ON_STOP", "15").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().unwrap();
    let (mut input, output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines().map(Result::unwrap);
    let pid = agent.next().pid;
    let begin: Vec<String> = lines.by_ref().take_while(|line| line != "ready").collect();
    let one = "one 10000000 1, 0 calls";
    assert_eq!(
        begin,
        [
            "start: default 0 0, 0 calls".into(),
            format!("set: {one}"),
            format!("vfork: {one}"),
            "old 1".into()
        ]
    );
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    assert_eq!(agent.next().text["wishes"], serde_json::json!({"signal": 15}));
    writeln!(input).unwrap();
    assert_eq!(lines.next().unwrap(), "asked: one 10000000 0, 0 calls");
    drop(agent);
    writeln!(input).unwrap();
    let rest: Vec<String> = lines.collect();
    let expected = [
        "alone: one 10000000 0, 1 calls",
        "once: three 80000004 1, 1 calls",
        "context 1",
        "after: default 0 0, 2 calls",
        "ignores: ignored 0 1, 2 calls",
        "default: default 0 0, 2 calls",
    ];
    assert_eq!(rest, expected);
    assert_eq!(program.wait().unwrap().signal(), Some(15));
}

#[test]
fn protected_content_is_read_back_by_name() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let mut page = b"twelve bytes\0".to_vec();
    page.resize(4096, 0);
    fs::write(folder.path().join("6669656c64"), &page).unwrap();
    let mut command = alone(&lifecycle);
    command.arg("restore").env("HOLDFAST_PROTECTED_DIR", folder.path());
    assert_eq!(output(&mut command), "restore 0 twelve bytes\nsize -8\nnot found -7\n");
}

/// The library starts the agent: a script that stands in for it shows how it was started.
#[test]
fn the_library_starts_the_agent_when_nothing_else_has() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    let agent = Agent::new(folder.path());
    let script = folder.path().join("holdfast");
    let seen = folder.path().join("seen");
    let text = format!(
        "#!/bin/sh\necho \"$@ preload=$LD_PRELOAD name=$HOLDFAST_NAME\" >{0}\nset -- /proc/$$/fd/*\necho $# >>{0}\n\
         echo {1}\nexec >&-\nexec sleep 1\n",
        seen.display(),
        agent.path.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = plain(&lifecycle);
    command.arg("environment").env("LD_PRELOAD", common::library());
    command.env("HOLDFAST_BIN", &script).env("HOLDFAST_NAME", "job");
    let path = agent.path.display();
    assert_eq!(output(&mut command), format!("{path}\n{path} 1\nfd 0\nfd 1\nfd 2\nchildren 1\n"));
    check_registration(&agent.next(), "load");
    let seen = fs::read_to_string(&seen).unwrap();
    let mut lines = seen.lines();
    assert_eq!(lines.next(), Some("__agent --attach-env preload= name=job"));
    assert!(lines.next().unwrap().parse::<u32>().unwrap() <= 5, "0, 1, 2, the script, the folder: {seen}");
}

#[test]
fn an_agent_that_does_not_come_up_is_not_waited_for_for_long() {
    let folder = Folder::new();
    let lifecycle = folder.compile("lifecycle", &[]);
    // The library gives it some two seconds: on a busy machine the program may take many more, but not a minute.
    for text in ["#!/bin/sh\nexec sleep 60\n", "#!/bin/sh\nexit 1\n"] {
        let script = folder.path().join("holdfast");
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let began = Instant::now();
        let mut command = plain(&lifecycle);
        command.arg("list").env("LD_PRELOAD", common::library()).env("HOLDFAST_BIN", &script);
        assert_eq!(output(&mut command), "errno 0\nfd 0\nfd 1\nfd 2\nthread\n");
        assert!(began.elapsed() < Duration::from_secs(55), "{:?}", began.elapsed());
    }
}

#[test]
fn debugging_says_one_line() {
    let mut command = alone("true");
    command.env("HOLDFAST_DEBUG", "1");
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(said.starts_with("holdfast: process ") && said.ends_with(": no agent asked for\n"), "{said}");
}
