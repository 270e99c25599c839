//! Device memory that a keeper has (HOLDFAST_CUDA_DATA=keeper), on the stand-in driver: it is in the image, and as much
//! of it as kernels have written; a restart has it again; it outlives the agent and the keeper; what is damaged is
//! noticed before the program runs on; programs come before the cache; a probe of the driver says whether it works.

use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_all;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user, shell_code, wait};
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command};

const JOB: &str = "k";
/// Steps of the program, MiB of its memory, chunks of 64 KiB that each step writes to.
const WORDS: [&str; 3] = ["30", "2", "3"];
const CHUNK: u64 = 64 << 10;

fn with_keeper<'a>(bed: &Bed, command: &'a mut Command) -> Result<&'a mut Command> {
    let driver = bed.kit().stand_in()?;
    // A cache with room for nothing: all that has changed goes to the host.
    let cache = if bed.user() == User::Root { "50%" } else { "0" };
    command.env("LD_LIBRARY_PATH", driver).env("STAND_IN_SEED", "7");
    Ok(command.env("HOLDFAST_CUDA_DATA", "keeper").env("HOLDFAST_GPU_CACHE", cache))
}

fn say(bed: &Bed, arguments: &[&str]) -> Result<Ended> {
    let mut command = bed.holdfast(arguments);
    with_keeper(bed, &mut command)?;
    bed.output(command, PATIENCE)
}

/// What the program says where nothing happens to it, in so many steps.
fn undisturbed(bed: &Bed, steps: usize) -> Result<String> {
    let mut command = bed.command(&bed.kit().cuda_program("touches"));
    command.arg(steps.to_string()).args(&WORDS[1..]).env("LD_LIBRARY_PATH", bed.kit().stand_in()?);
    Ok(bed.output(command, PATIENCE)?.success()?.stdout)
}

fn start(bed: &Bed, variables: &[(&str, &str)]) -> Result<(Child, i32)> {
    let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
    let words: Vec<&str> = [program.as_str()].into_iter().chain(WORDS).collect();
    let mut command = bed.staying_command(JOB, &[], &words)?;
    let mut front = with_keeper(bed, &mut command)?.envs(variables.iter().copied()).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    lines(bed, 2)?;
    Ok((front, pid))
}

fn restart(bed: &Bed) -> Result<(Child, i32)> {
    let mut command = bed.restart_command(JOB, &[])?;
    let mut front = with_keeper(bed, &mut command)?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    Ok((front, pid))
}

/// Waits for so many more lines of the program.
fn lines(bed: &Bed, more: usize) -> Result<()> {
    let before = lines_said(bed);
    bed.until("more lines", PATIENCE, || lines_said(bed) >= before + more || bed.text("out").contains("PASS"))
}

fn ends_well(bed: &Bed, front: &mut Child) -> Result<()> {
    bed.may_end()?;
    let code = shell_code(wait(front, PATIENCE)?);
    // It makes more steps until it may end. The last line is no step.
    let out = bed.text("out");
    let expected = undisturbed(bed, out.lines().count().saturating_sub(1))?;
    ensure!(code == 0 && out == expected, "status {code}: {out}{}", bed.text("restart.err"));
    bed.check_clean(JOB)
}

fn stop(bed: &Bed) -> Result<Value> {
    Ok(bed.show(JOB)?["stop"]["cuda"].clone())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn lines_said(bed: &Bed) -> usize {
    bed.text("out").lines().count()
}

/// Takes an image; how many lines there were before. It has those at least: it is not known how many were written until
/// the cut.
fn checkpoint(bed: &Bed) -> Result<usize> {
    let before = lines_said(bed);
    say(bed, &["checkpoint", JOB])?.success()?;
    Ok(before)
}

/// The newest image has what was written since an image that was asked for at `lines` lines, and not much more.
fn is_small(bed: &Bed, lines: usize) -> Result<()> {
    let cuda = stop(bed)?;
    let (data, dirty) = (number(&cuda["data_bytes"]), number(&cuda["dirty_bytes"]));
    // The step that is under way was begun before or after either of them.
    let written = lines_said(bed) - lines + 3;
    ensure!(data >= 2 << 20 && dirty > 0, "{cuda}");
    ensure!(dirty <= written as u64 * 3 * CHUNK, "{dirty} bytes, {written} steps: {cuda}");
    Ok(())
}

#[test]
fn is_in_images_and_back_again() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        let before = checkpoint(bed)?;
        ensure!(number(&stop(bed)?["dirty_bytes"]) >= 2 << 20, "the first has all of it: {}", stop(bed)?);
        // What the step of the first line has written may be in the image before.
        lines(bed, 2)?;
        let asked = checkpoint(bed)?;
        is_small(bed, before)?;
        kill_all(bed, pid, &mut front)?;
        // It goes on with the lines of the image.
        let (mut front, pid) = restart(bed)?;
        lines(bed, 2)?;
        checkpoint(bed)?;
        // An increment after a restart is one.
        is_small(bed, asked)?;
        kill_all(bed, pid, &mut front)?;
        let (mut front, _) = restart(bed)?;
        ends_well(bed, &mut front)
    });
}

/// `holdfast rollback`: bytes of device memory that it has put back, and how many of them the cache had.
fn rollback(bed: &Bed, image: &str) -> Result<(u64, u64)> {
    let said = say(bed, &["rollback", image, "--json"])?.success()?;
    let said: Value = serde_json::from_str(&said.stdout)?;
    Ok((number(&said["device_bytes"]), number(&said["device_cached_bytes"])))
}

/// What images have stays in the cache, and goes back from there: that of the newest image, and that of an older one.
/// What finds no room there, or is something else by now, comes from the store.
#[test]
fn a_rollback_reads_the_cache_before_the_store() {
    for (cache, fault) in [("50%", ""), ("0", ""), ("50%", "other-cached-chunk")] {
        each_user(|bed| {
            let variables = [("HOLDFAST_GPU_CACHE", cache), ("HOLDFAST_FAULT", fault)];
            let (mut front, _) = start(bed, &variables)?;
            checkpoint(bed)?;
            lines(bed, 2)?;
            let asked = checkpoint(bed)?;
            for image in [JOB, "k@1"] {
                // What the step of the first line has written may be in the image.
                lines(bed, 2)?;
                let (bytes, cached) = rollback(bed, image)?;
                let is_right = match (cache, fault) {
                    ("0", _) => cached == 0,
                    (_, "") => cached == bytes,
                    // One chunk more at each rollback.
                    _ => cached > 0 && cached <= bytes - CHUNK,
                };
                ensure!(bytes > 0 && is_right, "{image}, {cache}, {fault:?}: {cached} of {bytes}");
                if image == JOB {
                    // What is written from here on is an increment of the newest image.
                    lines(bed, 2)?;
                    checkpoint(bed)?;
                    is_small(bed, asked)?;
                }
            }
            ends_well(bed, &mut front)
        });
    }
}

/// Bytes of copies between a keeper and its devices, those of them with memory that is not pinned, and nanoseconds that
/// all took: a ledger of the stand-in (`stand-in/driver/src/ledger.rs`). Those of the program are not counted.
fn ledger(file: &Path) -> Result<[u64; 3]> {
    let bytes = std::fs::read(file)?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let [_, pinned, _, pageable, took] = words[..] else { anyhow::bail!("{words:?}") };
    std::fs::remove_file(file)?;
    Ok([pinned, pageable, took])
}

/// No longer than a copy engine of 20 GB/s needs, and a fifth; what does not depend on the bytes takes a fifth of a
/// millisecond.
fn is_fast(file: &Path, least: u64) -> Result<()> {
    let [pinned, pageable, took] = ledger(file)?;
    ensure!(pinned >= least && pageable == 0, "{pinned} bytes of pinned memory, {pageable} of other");
    ensure!(took <= pinned * 12 / 10 / 20 + 200_000, "{pinned} bytes in {took} ns");
    Ok(())
}

/// Also what finds no room in the cache (uid 1000): copies with memory that is not pinned are many times slower, and
/// copies that are waited for one by one leave the engine idle. The long form has 256 MiB: the device's hash is
/// interpreted, and with 2 GiB takes longer than a keeper may.
#[test]
fn moves_through_pinned_memory_as_fast_as_the_device_copies() {
    let mib: u64 = if holdfast_tests::full() { 256 } else { 8 };
    each_user(|bed| {
        let (text, memory) = (mib.to_string(), format!("{}M", 3 * mib + 512));
        let cache = if bed.user() == User::Root { "none" } else { "1M" };
        let file = bed.work().join("ledger");
        let with_ledger = |command: &mut Command| {
            command.env("STAND_IN_LEDGER", &file).env("STAND_IN_COPY_RATE", "20000000000");
            command.env("STAND_IN_DELAY", "0").env("STAND_IN_MEMORY", &memory);
        };
        let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
        let words = ["env", "-u", "STAND_IN_LEDGER", &program, "60", &text, "3"];
        let mut command = bed.staying_command(JOB, &["--gpu-cache", cache], &words)?;
        with_ledger(with_keeper(bed, &mut command)?);
        let mut front = command.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        lines(bed, 1)?;
        checkpoint(bed)?;
        is_fast(&file, mib << 20)?;
        kill_all(bed, pid, &mut front)?;
        let mut command = bed.restart_command(JOB, &[])?;
        with_ledger(with_keeper(bed, &mut command)?);
        let mut front = command.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        is_fast(&file, mib << 20)?;
        kill_all(bed, pid, &mut front)
    });
}

/// In compute mode EXCLUSIVE_PROCESS a keeper gets no context: memory is the driver's, and the log names the mode.
#[test]
fn a_device_that_one_process_has_for_itself_has_no_keeper() {
    each_user(|bed| {
        let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
        let words = ["env", "-u", "STAND_IN_FAIL", &program, "30", "2", "3"];
        let mut command = bed.staying_command(JOB, &[], &words)?;
        command.env("STAND_IN_FAIL", "cuDevicePrimaryCtxRetain:46");
        let mut front = with_keeper(bed, &mut command)?.spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        lines(bed, 2)?;
        checkpoint(bed)?;
        let log = std::fs::read_to_string(bed.job(JOB).join("agent.log"))?;
        ensure!(
            log.contains("no device memory is kept outside") && log.contains("EXCLUSIVE_PROCESS"),
            "{log}"
        );
        let checked = say(bed, &["check", JOB])?.success()?;
        ensure!(checked.stdout.contains("kept by the driver"), "{}", checked.stdout);
        ends_well(bed, &mut front)
    });
}

/// The keeper has what the program has let go of, whatever becomes of the agent.
#[test]
fn outlives_the_agent() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[("HOLDFAST_FAULT", "cuda-data-away")])?;
        let ended = say(bed, &["checkpoint", JOB])?;
        ensure!(ended.code() != 0, "the agent lives");
        ends_well(bed, &mut front)
    });
}

fn keeper(bed: &Bed) -> Result<i32> {
    let is_keeper = |pid: &i32| processes::command_line(*pid).contains("__keeper");
    processes::of(bed.dir()).into_iter().find(is_keeper).context("the keeper")
}

/// Images are libholdfast's own, and can be restarted. `known`: it has made one already; the first has all.
fn goes_on_without_keeper(bed: &Bed, pid: i32, front: &mut Child, known: bool) -> Result<()> {
    lines(bed, 1)?;
    let before = checkpoint(bed)?;
    let cuda = stop(bed)?;
    ensure!(known || number(&cuda["dirty_bytes"]) >= 2 << 20, "all of it is new to libholdfast: {cuda}");
    lines(bed, 1)?;
    checkpoint(bed)?;
    is_small(bed, before)?;
    kill_all(bed, pid, front)?;
    let (mut front, _) = restart(bed)?;
    ends_well(bed, &mut front)
}

#[test]
fn a_keeper_that_is_gone_leaves_its_memory_to_libholdfast() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        say(bed, &["checkpoint", JOB])?.success()?;
        let keeper = keeper(bed)?;
        processes::signal(keeper, "KILL");
        bed.until("its end", PATIENCE, || processes::state(keeper).is_none_or(|state| state == 'Z'))?;
        goes_on_without_keeper(bed, pid, &mut front, false)
    });
}

/// It dies before the program lets go of its memory, while that is away, when it is asked for it, and in the flush.
#[test]
fn a_keeper_that_dies_in_a_checkpoint_takes_nothing_with_it() {
    let points = [
        "cuda-keeper-asked",
        "cuda-keeper-lent",
        "cuda-keeper-open",
        "cuda-keeper-read",
        "cuda-keeper-packed",
    ];
    for (nth, point) in points.into_iter().enumerate() {
        let user = if nth % 2 == 0 { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        let dies = || -> Result<()> {
            let (mut front, pid) = start(&bed, &[("HOLDFAST_FAULT", point)])?;
            let first = say(&bed, &["checkpoint", JOB])?;
            let log = std::fs::read_to_string(bed.job(JOB).join("agent.log"))?;
            ensure!(log.contains(&format!("killed at the fault point {point}")), "{log}");
            // When it is asked for memory, the flush may be done already: then the image is whole.
            if nth == 0 || (point == "cuda-keeper-open" && first.code() == 0) {
                first.success()?;
            } else {
                let words = "the keeper of the program's device memory has ended";
                ensure!(first.code() != 0 && first.stderr.contains(words), "{}", first.stderr);
            }
            goes_on_without_keeper(&bed, pid, &mut front, nth == 0)
        };
        dies().unwrap_or_else(|error| panic!("{point}: {error:#}"));
    }
}

/// `holdfast restart` that must be refused in these words; nothing of the program is left.
fn restart_fails(bed: &Bed, fault: &str, words: &str) -> Result<()> {
    let mut command = bed.restart_command(JOB, &[])?;
    let before = bed.text("out");
    let mut front = with_keeper(bed, &mut command)?.env("HOLDFAST_FAULT", fault).spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("restart.err");
    ensure!(code == 69 && said.contains(words), "{fault}: status {code}: {said}");
    // The restart has cut its file to what it had at the checkpoint.
    ensure!(before.starts_with(&bed.text("out")), "{fault}: the program has gone on");
    bed.check_clean(JOB)
}

/// Content that is not as its digests say, digests of other content, device memory of another moment than the
/// processes: no call of the program comes through, and the last image that is whole restarts.
#[test]
fn what_does_not_belong_together_is_not_restarted() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        say(bed, &["checkpoint", JOB])?.success()?;
        kill_all(bed, pid, &mut front)?;
        let damaged = "chunks of device memory are not what their digests in the image say";
        restart_fails(bed, "other-device-pages", damaged)?;
        restart_fails(bed, "other-digests", damaged)?;
        // An increment of two moments.
        let mut command = bed.restart_command(JOB, &[])?;
        let mut front = with_keeper(bed, &mut command)?.env("HOLDFAST_FAULT", "other-half").spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        lines(bed, 1)?;
        say(bed, &["checkpoint", JOB])?.success()?;
        kill_all(bed, pid, &mut front)?;
        restart_fails(bed, "", "device memory in the image is not that of process")?;
        let mut command = bed.restart_command(&format!("{JOB}@1"), &[])?;
        let mut front = with_keeper(bed, &mut command)?.spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        ends_well(bed, &mut front)
    });
}

/// The driver has no memory for the program while the cache has some: the cache goes, and the program does not see it;
/// where there is no cache, it does.
#[test]
fn the_cache_gives_way_to_what_the_driver_allocates() {
    each_user(|bed| {
        let program = bed.kit().program("starved").to_string_lossy().into_owned();
        let words = ["/usr/bin/env", "STAND_IN_FAULT=out-of-memory@1,out-of-memory@3", &program, "4"];
        // So slowly that the cache is there as long as the program needs.
        let options = ["--gpu-cache", "50%", "--compress", "none", "--rate", "64K"];
        let mut command = bed.run_command(JOB, &options, &words)?;
        command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?);
        let mut front = command.env("HOLDFAST_CUDA_DATA", "keeper").spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        bed.until("its memory", PATIENCE, || bed.text("out").contains("has it"))?;
        let mut checkpoint = bed.holdfast(&["checkpoint", JOB, "--no-wait"]);
        with_keeper(bed, &mut checkpoint)?;
        bed.output(checkpoint, PATIENCE)?.success()?;
        bed.create("go")?;
        let is_over = || ["PASS", "FAIL"].iter().any(|word| bed.text("out").contains(word));
        bed.until("its end", PATIENCE, is_over)?;
        let out = bed.text("out");
        ensure!(out.contains("cuMemAllocAsync 0, cuMemCreate 2"), "{out}{}", bed.text("err"));
        // The image would take minutes.
        processes::kill_all(bed.dir());
        wait(&mut front, PATIENCE).map(drop)
    });
}

/// 4 MiB, most of whose bits are zeros, and a cache with room for them.
fn start_packed(bed: &Bed, options: &[&str], variables: &[(&str, &str)]) -> Result<(Child, i32)> {
    let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
    let mut command = bed.staying_command(JOB, options, &[&program, "30", "4", "3", "8"])?;
    command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).env("HOLDFAST_NVCOMP", bed.kit().nvcomp());
    command.env("HOLDFAST_CUDA_DATA", "keeper").env("HOLDFAST_GPU_CACHE", "50%");
    let mut front = command.envs(variables.iter().copied()).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    lines(bed, 1)?;
    Ok((front, pid))
}

/// A checkpoint: bytes that were compressed on the device, and what it had of device memory to store.
fn packed(bed: &Bed) -> Result<(u64, u64)> {
    say(bed, &["checkpoint", JOB])?.success()?;
    let image = bed.show(JOB)?;
    let on_device = number(&image["flush"]["bytes_compressed_on_device"]);
    Ok((on_device, number(&image["stop"]["cuda"]["dirty_bytes"])))
}

fn ends_well_packed(bed: &Bed, pid: i32, front: &mut Child) -> Result<()> {
    kill_all(bed, pid, front)?;
    let (mut front, _) = restart(bed)?;
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out").contains("PASS"), "status {code}: {}", bed.text("restart.err"));
    bed.check_clean(JOB)
}

/// By a codec that the user has chosen, and by the one that a slow store makes worth it.
#[test]
fn what_is_in_the_cache_is_compressed_on_the_device() {
    each_user(|bed| {
        let options = match bed.user() {
            User::Root => ["--compress", "zstd", "--rate", "none"],
            _ => ["--compress", "auto", "--rate", "16M"],
        };
        let options = if options[3] == "none" { &options[..2] } else { &options[..] };
        let (mut front, pid) = start_packed(bed, options, &[])?;
        let (_, all) = packed(bed)?;
        ensure!(all >= 4 << 20, "{all}: the cache has been full");
        lines(bed, 1)?;
        // From now on there is room beside the chunks.
        let (second, dirty) = packed(bed)?;
        ensure!(dirty > 0 && second == dirty, "{second} of {dirty}");
        let shown = bed.say(&["show", JOB])?.success()?.stdout;
        ensure!(shown.contains("on the device"), "{shown}");
        bed.say(&["verify", JOB])?.success()?;
        ends_well_packed(bed, pid, &mut front)
    });
}

/// A library that fails, that makes something else of memory, that is not known, that is not there: processors compress
/// instead, and the log says why.
#[test]
fn what_a_device_does_not_compress_comes_as_it_is() {
    let cases = [
        ("HOLDFAST_FAULT", "other-packed-chunk", "that are not its content any more"),
        ("NVCOMP_STAND_IN_FAULT", "launch", "CompressAsync: a call of CUDA failed"),
        ("NVCOMP_STAND_IN_VERSION", "7100", "nvCOMP 7.1.0 is not known"),
        ("HOLDFAST_NVCOMP", "/nowhere/libnvcomp.so.6", "/nowhere/libnvcomp.so.6"),
        ("HOLDFAST_NVCOMP", "none", "HOLDFAST_NVCOMP is none"),
    ];
    for (nth, (name, value, words)) in cases.into_iter().enumerate() {
        let user = if nth % 2 == 0 { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        let comes = || -> Result<()> {
            let (mut front, pid) = start_packed(&bed, &["--compress", "lz4"], &[(name, value)])?;
            packed(&bed)?;
            lines(&bed, 1)?;
            let (on_device, _) = packed(&bed)?;
            let log = std::fs::read_to_string(bed.job(JOB).join("agent.log"))?;
            ensure!(
                log.contains("device memory is not packed on the device: ") && log.contains(words),
                "{log}"
            );
            ensure!(on_device == 0, "{on_device}");
            ends_well_packed(&bed, pid, &mut front)
        };
        comes().unwrap_or_else(|error| panic!("{name}={value}: {error:#}"));
    }
}

/// `auto`: a keeper where the driver checkpoints a process that has had memory of another's; `doctor` says which.
#[test]
fn a_probe_of_the_driver_says_whether_a_keeper_works() {
    each_user(|bed| {
        for (fault, works) in [("", true), ("checkpoint", false)] {
            let mut command = bed.holdfast(&["doctor"]);
            command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).env("STAND_IN_FAULT", fault);
            let said = bed.output(command, PATIENCE)?.stdout;
            let words = match works {
                true => "ok       device memory in a process of its own: works with this driver",
                false => {
                    "no       device memory in a process of its own: cuCheckpointProcessCheckpoint of a process"
                }
            };
            ensure!(said.contains(words), "{said}");
            let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
            let words: Vec<&str> =
                ["/usr/bin/env", "STAND_IN_FAULT=", &program].into_iter().chain(WORDS).collect();
            let mut command = bed.staying_command(JOB, &[], &words)?;
            command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).env("STAND_IN_FAULT", fault);
            let mut front = command.env("HOLDFAST_CUDA_DATA", "auto").spawn()?;
            let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
            lines(bed, 1)?;
            ensure!(keeper(bed).is_ok() == works, "fault {fault:?}");
            kill_all(bed, pid, &mut front)?;
            bed.until("the end of everything", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        }
        Ok(())
    });
}
