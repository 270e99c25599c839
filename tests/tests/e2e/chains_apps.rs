//! Real programs, as root and as ordinary user: chained checkpoint, kill -9, restart rounds at random moments; output
//! and files must be those of an undisturbed run, byte by byte. In the short form each is run as one of the two, and
//! takes a quarter of the turns.

use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::artifacts::kit;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Plan, chain, chain_in_turn, few, many, turn_of, turns};
use holdfast_tests::sandbox::User;

/// Arrays of some hundred MiB, all of which change.
pub fn numpy_app() -> App {
    let (mib, turns) = if full() { ("500", "14") } else { ("200", "7") };
    App::real("python3 + numpy", &[PYTHON, "@arrays.py", mib, turns])
}

fn asyncio_app() -> App {
    App::real("python3 asyncio", &[PYTHON, "@asyncio_echo.py"])
}

fn java_app() -> App {
    App::real("java", &["/usr/bin/java", "-Xmx256m", "-cp", "@classes", "Main", &turns(130)])
}

/// A database in memory.
pub fn sqlite_app() -> App {
    let line = ["/usr/bin/sqlite3", "-batch", "-init", "/dev/null", ":memory:"];
    App::real("sqlite3", &line).reading(
        "long.sql",
        &format!("sed s/150000/{}/g {} > long.sql", turns(150_000), kit().app("long.sql").display()),
    )
}

/// sqlite that writes its file in place: see the program.
pub fn ledger(how: &str) -> App {
    App::real(&format!("sqlite, {how}"), &[PYTHON, "@ledger.py", how])
}

fn xz_app() -> App {
    let prepare = format!(
        "i=0; while [ $i -lt {} ]; do \
         echo \"$((i * 7919 % 100003)) line $i $((i * i % 9973))\"; i=$((i + 1)); done > in",
        turns(150_000)
    );
    App::real("xz", &["/usr/bin/xz", "-T1", "-6", "-c"]).reading("in", &prepare)
}

fn ffmpeg_app() -> App {
    let line = format!(
        "/usr/bin/ffmpeg -nostdin -v error -y -f lavfi -i testsrc2=size=1280x720:rate=25 -t {} -c:v mpeg4 -q:v 4 \
         -threads 2 -flags +bitexact -fflags +bitexact -f avi video.avi",
        turns(40)
    );
    App::real("ffmpeg", &line.split_whitespace().collect::<Vec<_>>()).leaving(&["video.avi"])
}

fn run(name: &str, app: &App, user: User, rounds: u32) {
    chain_in_turn(app, user, turn_of(name), Plan::of(rounds));
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
    python: App::real("python3", &[PYTHON, "@loop.py", &turns(170)]), many();
    python_numpy: numpy_app(), few();
    sqlite: sqlite_app(), few();
    sqlite_rollback: ledger("rollback"), few();
    sqlite_persist: ledger("persist"), few();
    sqlite_truncate: ledger("truncate"), few();
    sqlite_wal: ledger("wal"), few();
    sqlite_mmap: ledger("mmap"), few();
    python_asyncio: asyncio_app(), many();
    perl: App::real("perl", &["/usr/bin/perl", "@loop.pl", &turns(100)]), few();
    ruby: App::real("ruby", &["/usr/bin/ruby", "@loop.rb", &turns(45)]), few();
    lua: App::real("lua", &["/usr/bin/lua5.4", "@loop.lua", &turns(240)]), few();
    php: App::real("php", &["/usr/bin/php", "@loop.php", &turns(300)]), few();
    node: App::real("node", &["/usr/bin/node", "@loop.js", &turns(110)]), few();
    java: java_app(), few();
    go: App::real("go", &["@hasher", &turns(150)]), few();
    go_static: App::real("go, static", &["@hasher-static", &turns(150)]), few();
    busybox: App::real("busybox", &["/usr/bin/busybox", "sh", "@pipes.sh"]), few();
    r: App::real("Rscript", &["/usr/bin/Rscript", "@loop.R", &turns(160)]), few();
    octave: App::real("octave-cli", &["/usr/bin/octave-cli", "--norc", "@loop.m", &turns(170)]), few();
    xz: xz_app(), few();
    ffmpeg: ffmpeg_app(), few();
}

/// As if each restart were under another kernel: the old entries of the vdso lead to the new ones, from restart to
/// restart. A stop lets a thread that is reading the clock get out of there, if the program does anything else.
#[test]
fn under_other_kernels() {
    let line = ["/bin/bash", "@jobs.sh", &turns(60)];
    for (app, user) in [
        (App::program("clocks", &[]), User::Root),
        (App::real("python3 that reads the clock", &[PYTHON, "@clock.py", &turns(150)]), User::Ordinary),
        (asyncio_app(), User::Ordinary),
        (java_app(), User::Root),
        (App::real("bash", &line), User::Ordinary),
    ] {
        chain(&app, user, Plan::of(many()).under_other_kernels());
    }
}
