//! Memory that is served by a page server, because it cannot be mapped from the image: it comes when it is touched,
//! checked, without the agent too, and is the base of later images; without a server it is copied, and that is said.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::artifacts::kit;
use holdfast_tests::object_server::ObjectServer;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, allow_fuse, each_user, shell_code, wait};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Child;

const JOB: &str = "z";
const SIGBUS: i32 = 7;
const BAD_IMAGE: i32 = 65;
const SERVED: &str = "served by a process of its own";

/// A job with an image of a program that waits, and is dead.
fn waiting(bed: &Bed) -> Result<()> {
    let app = App::program("untouched", &["24"]);
    let mut front = bed.run_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("memory", PATIENCE, || bed.text("out").contains("ready"))?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)
}

/// Restarts it lazily; its pid.
fn restart(bed: &Bed) -> Result<(Child, i32)> {
    let mut front = bed.restart_command(JOB, &["--lazy"])?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    Ok((front, pid))
}

/// Whether there can be a page server on this host.
fn can_serve(bed: &Bed) -> bool {
    allow_fuse();
    bed.say(&["doctor"])
        .is_ok_and(|ended| ended.stdout.contains("ok       any memory can be restored lazily"))
}

/// libasan gives memory back by system calls of its own, past libholdfast, and looks at the end for allocations in all
/// of it: where memory were mapped from the image, those that were freed would be there again, as leaks.
#[test]
fn what_a_sanitizer_gives_back_stays_gone() {
    each_user(|bed| {
        let source = kit().app("allocations.c").to_string_lossy().into_owned();
        let app = App::real("allocations", &["./program"])
            .prepared(&format!("gcc -O1 -g -fsanitize=address -o program {source}"));
        app.prepare(bed)?;
        let options =
            "quarantine_size_mb=1:thread_local_quarantine_size_kb=64:allocator_release_to_os_interval_ms=0";
        let mut command = bed.run_command(JOB, &["--compress", "none"], &app.words())?;
        let mut front = command.env("ASAN_OPTIONS", options).spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("memory", PATIENCE, || bed.text("out").contains("ready"))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_program(pid, &mut front)?;
        for options in [&[][..], &["--lazy"]] {
            let mut front = bed.restart_command(JOB, options)?.spawn()?;
            let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
            let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
            ensure!(!maps.contains("/segment-") && !maps.contains("/holdfast-pages-"), "{maps}");
            bed.create("go")?;
            let code = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(
                code == 0 && bed.text("out") == "ready\nPASS\n",
                "status {code}: {}",
                bed.text("restart.err")
            );
            fs::remove_file(bed.work().join("go"))?;
        }
        bed.check_clean(JOB)
    });
}

fn is_right(bed: &Bed, front: &mut Child) -> Result<()> {
    bed.create("go")?;
    let code = shell_code(wait(front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(
        code == 0 && out.ends_with("all as it was\nPASS\n"),
        "status {code}: {out}{}",
        bed.text("restart.err")
    );
    bed.check_clean(JOB)
}

#[test]
fn memory_is_served_without_the_agent_too() {
    each_user(|bed| {
        waiting(bed)?;
        let served = can_serve(bed);
        let (mut front, pid) = restart(bed)?;
        if served {
            // It comes when all is restarted; the job is listed before.
            bed.until("a word of it", PATIENCE, || bed.text("restart.err").contains(SERVED))?;
        }
        let told = bed.text("restart.err");
        ensure!(told.contains(SERVED) == served, "{told}");
        ensure!(served || told.contains("is copied: no page server: "), "{told}");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        ensure!(maps.contains("/holdfast-pages-") == served, "{maps}");
        let shown = bed.show(JOB)?;
        ensure!(shown["last_restart"]["served"] == served, "{}", shown["last_restart"]);
        processes::kill(&[bed.agent_pid(JOB)?.context("an agent")?]);
        is_right(bed, &mut front)
    });
}

/// The store is lost: manifest and frames come from the server.
#[test]
fn memory_is_served_from_another_tier() {
    const BUCKET: &str = "s3://bucket/images";
    each_user(|bed| {
        let server = ObjectServer::start()?;
        let app = App::program("untouched", &["24"]);
        let mut command = bed.run_command(JOB, &["--tier", BUCKET], &app.words())?;
        let mut front = command.envs(server.environment()).spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("memory", PATIENCE, || bed.text("out").contains("ready"))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let mut sync = bed.holdfast(&["sync", JOB, "--wait"]);
        sync.envs(server.environment());
        bed.output(sync, PATIENCE)?.success()?;
        kill_program(pid, &mut front)?;
        bed.until("the end of the agent", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        fs::remove_dir_all(bed.job(JOB))?;
        let served = can_serve(bed);
        let mut restart = bed.restart_command(JOB, &["--lazy", "--tier", BUCKET])?;
        let mut front = restart.envs(server.environment()).spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        if served {
            bed.until("a word of it", PATIENCE, || bed.text("restart.err").contains(SERVED))?;
        }
        is_right(bed, &mut front)
    });
}

#[test]
fn who_waits_for_a_page_server_can_be_interrupted() {
    each_user(|bed| {
        waiting(bed)?;
        if !can_serve(bed) {
            return Ok(());
        }
        let mut restart = bed.restart_command(JOB, &["--lazy"])?;
        let mut front = restart.env("HOLDFAST_FAULT", "pages-ready+100000000").spawn()?;
        let server = || process(bed, "__pages");
        bed.until("a page server", PATIENCE, || server().is_some())?;
        processes::signal(front.id().cast_signed(), "INT");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let told = bed.text("restart.err");
        ensure!(code == 130 && told.contains("SIGINT came before"), "status {code}: {told}");
        processes::kill(&[server().context("it sleeps on")?]);
        // The image is as good as before.
        let (mut front, _) = self::restart(bed)?;
        is_right(bed, &mut front)
    });
}

/// The first of the bed's processes that has this word in its command line.
fn process(bed: &Bed, word: &str) -> Option<i32> {
    processes::of(bed.dir()).into_iter().find(|pid| processes::command_line(*pid).contains(word))
}

#[test]
fn a_restart_whose_page_server_dies_begins_again() {
    each_user(|bed| {
        waiting(bed)?;
        if !can_serve(bed) {
            return Ok(());
        }
        let mut restart = bed.restart_command(JOB, &["--lazy"])?;
        // An agent is started when there is a server; it waits with a process half built, long enough for this test.
        let mut front = restart.env("HOLDFAST_FAULT", "seed-ready+4000").spawn()?;
        bed.until("an agent", PATIENCE, || process(bed, " __agent ").is_some())?;
        processes::kill(&[process(bed, " __pages ").context("a page server")?]);
        is_right(bed, &mut front)
    });
}

#[test]
fn what_was_never_touched_is_in_the_next_image() {
    each_user(|bed| {
        waiting(bed)?;
        can_serve(bed);
        let (mut front, pid) = restart(bed)?;
        let first = bed.images(JOB);
        bed.say(&["checkpoint", JOB])?.success()?;
        let shown = bed.show(JOB)?;
        // Stack and libraries; not the 24 MiB that are still served.
        let stored = shown["flush"]["pages_stored"].as_u64().context("a figure")?;
        ensure!(bed.images(JOB).len() > first.len() && stored < 1000, "{stored} pages");
        kill_program(pid, &mut front)?;
        // From an image of a process that was served itself.
        let (mut front, _) = restart(bed)?;
        is_right(bed, &mut front)
    });
}

#[test]
fn a_damaged_page_is_never_handed_out() {
    each_user(|bed| {
        waiting(bed)?;
        if !can_serve(bed) {
            return Ok(());
        }
        for entry in fs::read_dir(bed.job(JOB))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("segment-") {
                let file = fs::File::options().read(true).write(true).open(entry.path())?;
                let (middle, mut byte) = (file.metadata()?.len() / 2, [0]);
                file.read_exact_at(&mut byte, middle)?;
                file.write_all_at(&[!byte[0]], middle)?;
            }
        }
        let mut front = bed.restart_command(JOB, &["--lazy"])?.spawn()?;
        bed.create("go")?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let (out, told) = (bed.text("out"), bed.text("restart.err"));
        let is_sigbus = code == 128 + SIGBUS;
        // Or it was refused, where what is damaged was copied.
        ensure!(
            (is_sigbus || code == BAD_IMAGE) && !out.contains("FAIL") && !out.contains("PASS"),
            "{code}: {out}{told}"
        );
        ensure!(!is_sigbus || told.contains("killed by SIGBUS, perhaps because its page server"), "{told}");
        bed.check_clean(JOB)
    });
}
