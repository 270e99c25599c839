//! Real programs, as root and as ordinary user: chained checkpoint, kill -9, restart rounds at random moments; output
//! and files must be those of an undisturbed run, byte by byte.

use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::artifacts::kit;
use holdfast_tests::restart_chain::{Plan, chain, chain_in_turn, few, many};
use holdfast_tests::sandbox::User;

fn numpy_app() -> App {
    App::real("python3 + numpy", &[PYTHON, "@arrays.py", "500", "14"])
}

fn asyncio_app() -> App {
    App::real("python3 asyncio", &[PYTHON, "@asyncio_echo.py"])
}

fn java_app() -> App {
    App::real("java", &["/usr/bin/java", "-Xmx256m", "-cp", "@classes", "Main"])
}

fn sqlite_app() -> App {
    let line = ["/usr/bin/sqlite3", "-batch", "-init", "/dev/null", ":memory:"];
    App::real("sqlite3", &line)
        .reading("long.sql", &format!("cp {} long.sql", kit().app("long.sql").display()))
}

/// sqlite that writes its file in place: see the program.
fn ledger(how: &str) -> App {
    App::real(&format!("sqlite, {how}"), &[PYTHON, "@ledger.py", how])
}

fn xz_app() -> App {
    let prepare = "i=0; while [ $i -lt 150000 ]; do \
                   echo \"$((i * 7919 % 100003)) line $i $((i * i % 9973))\"; i=$((i + 1)); done > in";
    App::real("xz", &["/usr/bin/xz", "-T1", "-6", "-c"]).reading("in", prepare)
}

fn ffmpeg_app() -> App {
    let line = "/usr/bin/ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=size=1280x720:rate=25 -t 40 -c:v mpeg4 \
                -q:v 4 -threads 2 -flags +bitexact -fflags +bitexact -f avi video.avi";
    App::real("ffmpeg", &line.split_whitespace().collect::<Vec<_>>()).leaving(&["video.avi"])
}

/// Which user's turn a program is in the short form, the last letter of its name tells.
fn run(name: &str, app: &App, user: User, rounds: u32) {
    let turn =
        if name.bytes().last().is_some_and(|last| last % 2 == 1) { User::Ordinary } else { User::Root };
    chain_in_turn(app, user, turn, Plan::of(rounds));
}

macro_rules! apps {
    ($($test:ident: $app:expr, $rounds:expr;)*) => {
        mod root {
            use super::*;
            $(#[test] fn $test() { run(stringify!($test), &$app, User::Root, $rounds); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] fn $test() { run(stringify!($test), &$app, User::Ordinary, $rounds); })*
        }
    };
}

apps! {
    python: App::real("python3", &[PYTHON, "@loop.py"]), many();
    python_numpy: numpy_app(), few();
    sqlite: sqlite_app(), few();
    sqlite_rollback: ledger("rollback"), few();
    sqlite_persist: ledger("persist"), few();
    sqlite_truncate: ledger("truncate"), few();
    sqlite_wal: ledger("wal"), few();
    sqlite_mmap: ledger("mmap"), few();
    python_asyncio: asyncio_app(), many();
    perl: App::real("perl", &["/usr/bin/perl", "@loop.pl"]), few();
    ruby: App::real("ruby", &["/usr/bin/ruby", "@loop.rb"]), few();
    lua: App::real("lua", &["/usr/bin/lua5.4", "@loop.lua"]), few();
    php: App::real("php", &["/usr/bin/php", "@loop.php"]), few();
    node: App::real("node", &["/usr/bin/node", "@loop.js"]), few();
    java: java_app(), few();
    go: App::real("go", &["@hasher"]), few();
    go_static: App::real("go, static", &["@hasher-static"]), few();
    busybox: App::real("busybox", &["/usr/bin/busybox", "sh", "@pipes.sh"]), few();
    r: App::real("Rscript", &["/usr/bin/Rscript", "@loop.R"]), few();
    octave: App::real("octave-cli", &["/usr/bin/octave-cli", "--norc", "@loop.m"]), few();
    xz: xz_app(), few();
    ffmpeg: ffmpeg_app(), few();
}

/// As if each restart were under another kernel: the old entries of the vdso lead to the new ones, from restart to
/// restart. A stop lets a thread that is reading the clock get out of there, if the program does anything else.
#[test]
fn under_other_kernels() {
    let line = ["/bin/bash", "@jobs.sh"];
    for (app, user) in [
        (App::program("clocks", &[]), User::Root),
        (App::real("python3 that reads the clock", &[PYTHON, "@clock.py"]), User::Ordinary),
        (asyncio_app(), User::Ordinary),
        (java_app(), User::Root),
        (App::real("bash", &line), User::Ordinary),
    ] {
        chain(&app, user, Plan::of(many()).under_other_kernels());
    }
}
