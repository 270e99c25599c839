//! io_uring is absent for a program under `holdfast run`, through the C library and through liburing; who wants it
//! has it, and is refused a checkpoint. (A ring that was made past both is refused, too: `refusals.rs`, `check.rs`.)
//! Linux AIO is there, and absent through libaio for who asks for that.

use crate::plain_job::{as_user, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, wait};
use std::process::Child;

/// Prints what both ways to a ring say, holds the rings, and answers each line of the file `more` by one of its own.
const PROGRAM: &str = "
import ctypes, os, time
c = ctypes.CDLL(None, use_errno=True)
parameters = (ctypes.c_char * 120)()
fd = c.syscall(425, 8, parameters)
print('setup', fd > 2 or os.strerror(ctypes.get_errno()), flush=True)
try:
    ctypes.CDLL('liburing.so.2', mode=ctypes.RTLD_GLOBAL)
    ring = (ctypes.c_char * 4096)()
    made = ctypes.CDLL(None).io_uring_queue_init(8, ring, 0)
    print('liburing', os.strerror(-made), flush=True)
except OSError:
    print('liburing is not here', flush=True)
while not os.path.exists('end'):
    time.sleep(0.01)
print('end', flush=True)
";

fn start(bed: &Bed, options: &[&str]) -> Result<(Child, i32, String)> {
    let mut front = bed.run_command("j", options, &["/usr/bin/python3", "-c", PROGRAM])?.spawn()?;
    let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
    bed.until("what both ways say", PATIENCE, || bed.text("out").contains("liburing"))?;
    Ok((front, pid, bed.text("out")))
}

#[test]
fn a_program_finds_none_and_can_be_restarted() {
    as_user(|bed| {
        let (mut front, pid, said) = start(bed, &[])?;
        ensure!(said.starts_with("setup Function not implemented\n"), "{said}");
        ensure!(
            said.ends_with("liburing Function not implemented\n") || said.ends_with("not here\n"),
            "{said}"
        );
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        std::fs::write(bed.work().join("end"), "")?;
        let ended = bed.say(&["restart", "j", "--stdio", "here"])?;
        ensure!(ended.code() == 0 && ended.stdout == "end\n", "status {}: {}", ended.code(), ended.stdout);
        bed.check_clean("j")
    });
}

#[test]
fn who_asks_for_it_has_it_and_no_image() {
    as_user(|bed| {
        let (mut front, _, said) = start(bed, &["--io-uring", "keep"])?;
        if said.starts_with("setup True\n") {
            ensure!(said.ends_with("liburing Success\n") || said.ends_with("not here\n"), "{said}");
            fails(&bed.say(&["checkpoint", "j"])?, 69, "--io-uring keep")?;
        } else {
            println!("this kernel has no io_uring, or not for this user: {said}");
        }
        std::fs::write(bed.work().join("end"), "")?;
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.check_clean("j")
    });
}

/// Prints what libaio's wrapper says, which another library of this name may be before, and holds the context.
const AIO: &str = "
import ctypes, os, time
try:
    ctypes.CDLL('libaio.so.1', mode=ctypes.RTLD_GLOBAL)
    context = ctypes.c_void_p()
    said = ctypes.CDLL(None).io_setup(8, ctypes.byref(context))
    print('aio', os.strerror(-said), flush=True)
except OSError:
    print('aio: no library', flush=True)
while not os.path.exists('end'):
    time.sleep(0.01)
print('end', flush=True)
";

#[test]
fn linux_aio_comes_back_or_is_absent() {
    as_user(|bed| {
        for (options, says) in
            [(&[][..], "aio Success\n"), (&["--aio", "off"], "aio Function not implemented\n")]
        {
            let mut front = bed.run_command("j", options, &["/usr/bin/python3", "-c", AIO])?.spawn()?;
            let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
            bed.until("what libaio says", PATIENCE, || bed.text("out").ends_with('\n'))?;
            let said = bed.text("out");
            ensure!(said == says || said == "aio: no library\n", "{options:?}: {said}");
            bed.say(&["checkpoint", "j"])?.success()?;
            kill_program(pid, &mut front)?;
            std::fs::write(bed.work().join("end"), "")?;
            bed.say(&["restart", "j", "--stdio", "here"])?.success()?;
            std::fs::remove_file(bed.work().join("end"))?;
        }
        bed.check_clean("j")
    });
}
