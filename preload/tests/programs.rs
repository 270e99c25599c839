//! Real programs with the library loaded print what they print without it.
#![allow(clippy::unwrap_used)]

mod common;
use common::{Agent, Folder, alone, plain, with_agent};
use std::path::Path;
use std::process::{Command, Output};

/// Compares output and exit status; a program that is not installed is left out, and said so.
fn same(program: &str, arguments: &[&str]) {
    if !Path::new(program).exists() {
        println!("{program} is not installed: not tested");
        return;
    }
    let run = |command: &mut Command| -> Output { command.args(arguments).output().unwrap() };
    let expected = run(&mut plain(program));
    let show = |output: &Output| {
        let text = [&output.stdout[..], b"\n--- standard error\n", &output.stderr[..]].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(show(&run(&mut alone(program))), show(&expected), "alone");
    assert_eq!(show(&run(alone(program).env("HOLDFAST_MALLOC", "system"))), show(&expected), "malloc=system");
    let folder = Folder::new();
    let agent = Agent::new(folder.path());
    assert_eq!(show(&run(&mut with_agent(program, &agent))), show(&expected), "with an agent");
    assert_eq!(agent.next().event(), "load");
}

#[test]
fn python() {
    let text = "import subprocess, multiprocessing, threading\n\
                p = multiprocessing.Pool(2); print(sum(p.map(abs, range(1000)))); p.close(); p.join()\n\
                print(subprocess.check_output(['echo', 'x']))\n\
                t = [threading.Thread(target=lambda: sorted(map(str, range(50000)))) for _ in range(4)]\n\
                [x.start() for x in t]; [x.join() for x in t]\n\
                print(threading.active_count())";
    same("/usr/bin/python3", &["-c", text]);
}

#[test]
fn numpy() {
    same(
        "/usr/bin/python3",
        &["-c", "import numpy as n; a = n.ones((300, 300)); print((a @ a).sum(), n.arange(1e6).sum())"],
    );
}

#[test]
fn node() {
    same(
        "/usr/bin/node",
        &["-e", "let a = []; for (let i = 0; i < 1e5; i++) a.push({i}); console.log(a.length)"],
    );
}

#[test]
fn java() {
    same("/usr/bin/java", &["-version"]);
}

#[test]
fn r() {
    same("/usr/bin/Rscript", &["-e", "cat(sum(svd(matrix(1:900/7, 30))$d), '\\n')"]);
}

#[test]
fn redis() {
    same("/usr/bin/redis-server", &["--version"]);
}

#[test]
fn perl() {
    same(
        "/usr/bin/perl",
        &[
            "-e",
            "my %h; $h{$_} = $_ for 1..50000; print scalar(keys %h), ' ', $$ == getppid() ? 1 : 0, \"\\n\"",
        ],
    );
}

#[test]
fn ruby() {
    same("/usr/bin/ruby", &["-e", "puts (1..50000).map { |i| i.to_s }.join.size"]);
}

#[test]
fn lua() {
    same("/usr/bin/lua", &["-e", "local t = {} for i = 1, 100000 do t[i] = {i} end print(#t)"]);
}

#[test]
fn sqlite() {
    let query = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 50000) \
                 select count(*), sum(x) from c;";
    same("/usr/bin/sqlite3", &[":memory:", query]);
}

#[test]
fn shells_and_pipelines() {
    same(
        "/bin/bash",
        &[
            "-c",
            "for i in 1 2 3 4 5; do x=$(echo $i | tr 1-5 a-e); echo $x; done; (exit 3); echo $?; \
             seq 2000 | sort -R | sort -n | md5sum; exit 5",
        ],
    );
}
