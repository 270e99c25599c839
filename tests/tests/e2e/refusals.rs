//! What cannot be brought back is refused by name, at `run` or at `checkpoint`, and the program is left alone.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::refused::{self, Outcome};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, each_user, shell_code, wait};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// One test for each line of the list in `tests/src/refused.rs`, as all whom it names.
macro_rules! tests {
    ($($test:ident: $($argument:literal)* => $feature:literal, refused $($word:literal)* $(, only $user:ident)?;)*) => {
        $(#[test] fn $test() { refuse_to_all(stringify!($test)); })*
    };
}
holdfast_tests::refused!(tests);

fn refuse_to_all(name: &str) {
    let entry = refused::entry(name).expect("a line of the list");
    for &user in entry.whom {
        let Some(bed) = Bed::new(user) else { continue };
        match refused::refuse(entry, &bed) {
            Ok(Outcome::Refused(words)) => println!("{words}"),
            Ok(Outcome::NotHere(why)) => println!("{user:?} cannot have it here: {why}"),
            Err(error) => panic!("{name} as {user:?}: {error:#}"),
        }
    }
}

/// With `--outside close`, of the job or of the one checkpoint, the program finds such a connection reset after a
/// restart.
#[test]
fn tcp_connection_that_may_be_lost() {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let result = (|| -> Result<()> {
            let outside = TcpListener::bind("127.0.0.1:0")?;
            let port = outside.local_addr()?.port().to_string();
            let app = App::program("refused", &["lost", "300", &port]);
            // The old name in one of them.
            let close: &[&str] =
                if user == User::Root { &["--tcp", "close"] } else { &["--outside", "close"] };
            let (always, once) = if user == User::Root { (close, &[][..]) } else { (&[][..], close) };
            let mut front = bed.run_command("r", always, &app.words())?.spawn()?;
            let pid = bed.wait_live("r", &mut front)?.context("a pid")?;
            bed.until("the first line", PATIENCE, || bed.text("out").contains("round 1"))?;
            bed.say(&[&["checkpoint", "r"], once].concat())?.success()?;
            bed.until("more", PATIENCE, || bed.text("out").contains("round 5"))?;
            kill_program(pid, &mut front)?;
            let mut front = bed.restart_command("r", &[])?.spawn()?;
            let code = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
            bed.check_clean("r")
        })();
        if let Err(error) = result {
            panic!("as {user:?}: {error:#}");
        }
    }
}

/// A Landlock domain is noticed in a program that was restarted, too, whose ids are others than the agent's where an
/// ordinary user has restarted it.
#[test]
fn landlock_domain_after_a_restart() {
    each_user(|bed| {
        let program = bed.kit().program("held").to_string_lossy().into_owned();
        let mut front = bed.staying_command("r", &[], &[&program, "domain_later", "15"])?.spawn()?;
        let pid = bed.wait_live("r", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains("round 1"))?;
        bed.say(&["checkpoint", "r"])?.success()?;
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("r", &[])?.spawn()?;
        bed.wait_live("r", &mut front)?.context("a pid")?;
        bed.say(&["checkpoint", "r"])?.success()?;
        fs::write(bed.work().join("confine"), "")?;
        bed.until("the domain", PATIENCE, || bed.work().join("confined").exists())?;
        let ended = bed.say(&["checkpoint", "r"])?;
        let is_refused = ended.code() == refused::STATUS && ended.stderr.contains("Landlock domain");
        ensure!(is_refused && ended.stderr.contains("thread"), "{}: {}", ended.code(), ended.stderr);
        bed.may_end()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
        bed.check_clean("r")
    });
}

/// A daemon that its user may not look into may be of the job, and is not left out of an image without a word. It is
/// below a reaper of its own: any other job above which it lands would be refused, too.
#[test]
fn orphan_that_its_user_may_not_look_into() {
    const REAPER: &str = "import ctypes, os, sys\n\
                          ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n\
                          front = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)\n\
                          while True:\n  \
                            ended, status = os.wait()\n  \
                            if ended == front: sys.exit(os.waitstatus_to_exitcode(status))\n";
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let result = (|| -> Result<()> {
        let program = bed.kit().program("tree_hidden");
        let mut command = bed.command(Path::new(PYTHON));
        command
            .args(["-c", REAPER])
            .arg(bed.kit().holdfast())
            .args(["run", "--name", "r", "--"])
            .arg(program);
        let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
        bed.wait_live("r", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains("round 1"))?;
        for command in [&["check", "r"][..], &["checkpoint", "r"]] {
            let ended = bed.say(command)?;
            let said = format!("{}{}", ended.stdout, ended.stderr);
            ensure!(ended.code() == 69, "{command:?}: status {}: {said}", ended.code());
            ensure!(said.contains("it may be of the job") && said.contains("end it"), "{said}");
        }
        ensure!(bed.images("r").is_empty(), "an image was made");
        fs::write(bed.work().join("enough"), "")?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
        bed.check_clean("r")
    })();
    if let Err(error) = result {
        panic!("{error:#}");
    }
}

/// `--save-files` has a limit, which `check` knows too; what only grows may be larger.
#[test]
fn files_that_are_too_large_to_be_saved() {
    const SCRIPT: &str = "exec 8>>log 9<>data; head -c 2000000 /dev/zero >&8; head -c 2000000 /dev/zero >&9; \
                          echo begun; while [ ! -e enough ]; do sleep 0.05; done; echo PASS";
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let result = (|| -> Result<()> {
            let app = App::real("sh", &["/bin/sh", "-c", SCRIPT]).with(&["--save-files=1M"]);
            let mut front = bed.run_command("r", app.options, &app.words())?.spawn()?;
            bed.wait_live("r", &mut front)?.context("a pid")?;
            bed.until("the first line", PATIENCE, || bed.text("out").contains("begun"))?;
            for command in [&["check", "r"][..], &["checkpoint", "r"]] {
                let ended = bed.say(command)?;
                let said = format!("{}{}", ended.stdout, ended.stderr);
                ensure!(ended.code() == 69, "{command:?}: status {}: {said}", ended.code());
                ensure!(
                    said.contains("fd 9") && said.contains("/data") && said.contains("1048576"),
                    "{said}"
                );
                ensure!(!said.contains("fd 8"), "what only grows is refused too: {said}");
            }
            fs::write(bed.work().join("enough"), "")?;
            let code = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(code == 0 && bed.text("out") == "begun\nPASS\n", "status {code}: {}", bed.text("out"));
            bed.check_clean("r")
        })();
        if let Err(error) = result {
            panic!("as {user:?}: {error:#}");
        }
    }
}

/// Runs `holdfast run -- PROGRAM`, which must fail with 69, say `words`, and not start the program.
fn refuse_to_run(bed: &Bed, program: &str, words: &[&str]) -> Result<()> {
    let ended = bed.output(bed.holdfast(&["run", "--name", "s", "--", program, "1"]), PATIENCE)?;
    ensure!(ended.code() == refused::STATUS, "status {}: {}{}", ended.code(), ended.stdout, ended.stderr);
    ensure!(ended.stdout.is_empty(), "the program has run: {}", ended.stdout);
    ensure!(ended.stderr.contains(program), "the program is not named: {}", ended.stderr);
    for word in words {
        ensure!(ended.stderr.contains(word), "{word:?} is not in {:?}", ended.stderr);
    }
    Ok(())
}

#[test]
fn setuid_program() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let copy = bed.dir().join("setuid");
    fs::copy(bed.kit().program("plain"), &copy).expect("copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("mode");
    refuse_to_run(&bed, &copy.to_string_lossy(), &["set-user-id"]).expect("refusal");
}

#[test]
fn missing_and_unusable_programs() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let code = |program: &str| bed.say(&["run", "--", program]).expect("run").code();
    assert_eq!(code("/no/such/program"), 127);
    assert_eq!(code("no-such-program-anywhere"), 127);
    assert_eq!(code("/etc/passwd"), 126);
}

/// A changed library or data file is named, and nothing is started.
#[test]
fn changed_file_at_restart() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let copy = bed.work().join("program");
    fs::copy(bed.kit().program("plain"), &copy)?;
    let mut front = bed.run_command("c", &[], &[&copy.to_string_lossy(), "200", "20"])?.spawn()?;
    let pid = bed.wait_live("c", &mut front)?.context("a pid")?;
    bed.say(&["checkpoint", "c"])?.success()?;
    holdfast_tests::restart_chain::kill_program(pid, &mut front)?;
    fs::remove_file(&copy)?;
    fs::copy(bed.kit().program("follow"), &copy)?;
    let ended = bed.say(&["restart", "c"])?;
    ensure!(ended.code() == refused::STATUS, "status {}: {}", ended.code(), ended.stderr);
    ensure!(ended.stderr.contains(&*copy.to_string_lossy()), "the file is not named: {}", ended.stderr);
    fs::copy(bed.kit().program("plain"), &copy)?;
    bed.check_clean("c")
}

/// Somebody else's store is not touched.
#[test]
fn store_of_another_user() {
    if !am_root() {
        return println!("not run: this part needs root");
    }
    let bed = Bed::new(User::Ordinary).expect("a bed");
    fs::set_permissions(bed.store(), fs::Permissions::from_mode(0o777)).expect("mode");
    let ended = bed.say(&["list"]).expect("list");
    assert_eq!(ended.code(), 77, "{}", ended.stderr);
    assert!(ended.stderr.contains(&*bed.store().to_string_lossy()), "{}", ended.stderr);
}

/// A file whose lock somebody else has now.
#[test]
fn lock_that_was_taken_by_another() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let result = (|| -> Result<()> {
        let app = App::program("locks", &["200"]);
        let mut front = bed.run_command("r", &[], &app.words())?.spawn()?;
        let pid = bed.wait_live("r", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains("round 1"))?;
        bed.say(&["checkpoint", "r"])?.success()?;
        kill_program(pid, &mut front)?;
        let file = fs::File::open(bed.work().join("lock.one"))?;
        file.lock()?;
        let before = bed.text("out");
        let mut front = bed.restart_command("r", &[])?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("restart.err");
        ensure!(
            code != 0 && said.contains("lock.one") && said.contains("end the program that has it"),
            "status {code}: {said}"
        );
        ensure!(bed.text("out") == before, "the output was changed");
        file.unlock()?;
        let mut front = bed.restart_command("r", &[])?.spawn()?;
        let pid = bed.wait_live("r", &mut front)?.with_context(|| bed.text("restart.err"))?;
        kill_program(pid, &mut front)?;
        bed.check_clean("r")
    })();
    result.expect("a refusal");
}
