//! A program that has databases of nscd mapped, which its user cannot open: it goes on where there is no nscd, and asks
//! anew where there is one. Each life that has one is in a mount namespace of its own with it.
//!
//! In the long form; nscd is unpacked by `scripts/install-deps.sh trees`, not installed: it would serve the machine.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::full;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, each_user_by_root, shell_code, wait};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const NSCD: &str = "/opt/holdfast-tests/nscd/usr/sbin/nscd";
/// It ends with the shell.
const WITH_NSCD: &str = r#"set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/cache
mkdir /run/nscd /var/cache/nscd
for database in passwd group; do
    printf 'enable-cache %s yes\npersistent %s yes\nshared %s yes\n' $database $database $database
done > /run/nscd.conf
setpriv --pdeathsig KILL "$0" -F -f /run/nscd.conf > /dev/null 2>&1 &
until [ -S /run/nscd/socket ]; do sleep 0.01; done
set +e
"$@"
code=$?
kill $!
exit $code"#;

/// A command of the bed beside an nscd.
fn with_nscd(command: &Command, output: &Bed) -> Result<Child> {
    let mut whole = Command::new("unshare");
    whole.args(["-m", "/bin/sh", "-c", WITH_NSCD, NSCD]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => whole.env(name, value),
            None => whole.env_remove(name),
        };
    }
    whole.current_dir(output.work()).process_group(0).stdin(Stdio::null());
    whole.stdout(output.create("nscd.out")?).stderr(output.create("nscd.err")?);
    Ok(whole.spawn()?)
}

fn has_database(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(" /var/cache/nscd/passwd"))
}

fn lines(bed: &Bed) -> usize {
    bed.text("names").lines().count()
}

fn ends_rightly(bed: &Bed, front: &mut Child) -> Result<()> {
    fs::write(bed.work().join("enough"), "")?;
    let code = shell_code(wait(front, LIMIT)?);
    let said = [bed.text("nscd.err"), bed.text("restart.err")].concat();
    let text = bed.text("names");
    let (rest, last) = text.trim_end().rsplit_once('\n').context("lines")?;
    ensure!(code == 0 && last == "PASS", "status {code}: {text}{said}");
    let right = |(turn, line): (usize, &str)| line == format!("{turn} 1 adm");
    ensure!(rest.lines().enumerate().all(right), "{text}");
    fs::remove_file(bed.work().join("enough"))?;
    Ok(())
}

#[test]
fn databases_of_nscd() {
    if !full() || !Path::new(NSCD).exists() {
        return println!("not run: HOLDFAST_TEST_FULL=1, and {NSCD} (scripts/install-deps.sh trees)");
    }
    each_user_by_root(|bed| {
        let script = format!("exec {PYTHON} \"$0\" > names");
        let app = App::real("names", &["/bin/sh", "-c", &script, "@names.py"]);
        let mut front = with_nscd(&bed.run_command("n", &[], &app.words())?, bed)?;
        let pid = bed.wait_live("n", &mut front)?.context("a pid")?;
        bed.until("its first lines", LIMIT, || lines(bed) > 3)?;
        ensure!(has_database(pid), "nothing of nscd is mapped: {}", bed.text("nscd.err"));
        for _ in 0..2 {
            bed.say(&["check", "n"])?.success()?;
            bed.say(&["checkpoint", "n"])?.success()?;
        }
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("n", &[])?.spawn()?;
        let pid = bed.wait_live("n", &mut front)?.context("a pid")?;
        let begun = lines(bed);
        bed.until("more lines", LIMIT, || lines(bed) > begun + 1)?;
        ensure!(!has_database(pid), "there is no nscd");
        bed.say(&["checkpoint", "n"])?.success()?;
        ends_rightly(bed, &mut front)?;
        let mut front = with_nscd(&bed.restart_command("n@2", &[])?, bed)?;
        let pid = bed.wait_live("n", &mut front)?.context("a pid")?;
        bed.until("it is asked anew", LIMIT, || has_database(pid))?;
        ends_rightly(bed, &mut front)?;
        bed.check_clean("n")
    });
}
