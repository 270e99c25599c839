//! Device memory that no image has, by `holdfast_cuda_discard` and by `--cuda-skip`: it stays while the program runs
//! on, and is zero after a restart; and programs of whose CUDA nothing is seen (`--cuda off`). On the stand-in driver,
//! with the server of `examples/cuda`.

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::{CudaJob, say};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user};
use std::fs;
use std::path::Path;

const JOB: &str = "d";
const REFUSED: i32 = 69;
const MIB: u64 = 1 << 20;
/// Of the weights, and of the cache.
const SIZE: u64 = 12 * MIB;

fn ask(bed: &Bed, server: &str, index: u32) -> Result<String> {
    let mut command = bed.command(Path::new("/usr/bin/python3"));
    command.args([server, "--ask", "server.sock", &index.to_string()]);
    Ok(bed.output(command, PATIENCE)?.success()?.stdout.trim().to_owned())
}

/// What the device part of the image's table in `show` says of what was not stored.
fn left_out(bed: &Bed) -> Result<u64> {
    let newest = bed.images(JOB).last().copied().context("an image")?;
    let shown = bed.show(&format!("{JOB}@{newest}"))?;
    shown.pointer("/stop/cuda/discarded_bytes").and_then(serde_json::Value::as_u64).context("discarded_bytes")
}

fn serves(bed: &Bed, options: &[&str], how: &str) -> Result<()> {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cuda/server.py");
    let own = bed.work().join("server.py");
    fs::copy(server, &own)?;
    let server = own.to_string_lossy().into_owned();
    let weights: Vec<u8> = (0..SIZE).map(|at| (at / 4099) as u8).collect();
    fs::write(bed.work().join("weights"), &weights)?;
    let weight = |index: u32, count: u32| format!("{index}: {}, {count} cached", weights[index as usize]);
    let words = ["/usr/bin/python3", &server, "server.sock", "weights", how];
    let mut job = CudaJob::begin_with(bed, JOB, options, &words, &[("HOLDFAST_CUDA_DATA", "library")])?;
    bed.until("the server", PATIENCE, || bed.text("out").ends_with("ready\n"))
        .with_context(|| bed.text("err"))?;
    ensure!(ask(bed, &server, 5)? == weight(5, 1));
    job.checkpoint()?;
    // It runs on with its cache.
    let told = ask(bed, &server, 7000)?;
    ensure!(told == weight(7000, 2), "{told}");
    ensure!(left_out(bed)? >= SIZE - MIB, "{}", left_out(bed)?);
    job.checkpoint()?;
    job.kill()?;
    let shown = say(bed, &["show", JOB], &[])?.success()?.stdout;
    ensure!(shown.contains(": zero after a restart"), "{shown}");
    job.revive(&[])?;
    let told = ask(bed, &server, 9_000_000)?;
    ensure!(told == weight(9_000_000, 1), "{told}");
    // The noise of the cache cannot be compressed, the weights can. Older images may still be there.
    let newest = bed.images(JOB).last().copied().context("an image")?;
    let shown = bed.show(&format!("{JOB}@{newest}"))?;
    let stored = shown.pointer("/image/total_bytes").and_then(serde_json::Value::as_u64);
    ensure!(stored.is_some_and(|stored| stored < SIZE), "{stored:?} bytes are stored");
    job.checkpoint()?;
    let told = ask(bed, &server, 11)?;
    ensure!(told == weight(11, 2), "{told}");
    job.kill()
}

#[test]
fn what_the_program_discards_is_in_no_image() {
    each_user(|bed| serves(bed, &["--compress", "lz4"], "asks"));
}

#[test]
fn what_has_a_size_that_is_skipped_is_in_no_image() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    // The weights are an allocation of that size, too: one byte more or less is another size.
    let range = format!("{}..{}", SIZE, SIZE);
    let refused = bed.say(&["run", "--cuda-skip", "2G..1G", "--", "true"]).unwrap();
    assert!(refused.stderr.contains("no range of sizes"), "{}", refused.stderr);
    if let Err(error) = skips(&bed, &range) {
        panic!("{error:#}");
    }
}

/// All of that size is zero after a restart.
fn skips(bed: &Bed, range: &str) -> Result<()> {
    let range = range.replace("..", "K..").replace(&SIZE.to_string(), &(SIZE / 1024).to_string()) + "K";
    let path = bed.work().join("own.py");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cuda/server.py"), &path)?;
    fs::write(bed.work().join("weights"), vec![9; SIZE as usize])?;
    let server = path.to_string_lossy().into_owned();
    let words = ["/usr/bin/python3", &server, "server.sock", "weights", "plain"];
    let variables = [("HOLDFAST_CUDA_DATA", "library")];
    let mut job = CudaJob::begin_with(bed, JOB, &["--cuda-skip", &range], &words, &variables)?;
    bed.until("the server", PATIENCE, || bed.text("out").ends_with("ready\n"))
        .with_context(|| bed.text("err"))?;
    ensure!(ask(bed, &server, 5)? == "5: 9, 1 cached");
    job.checkpoint()?;
    ensure!(ask(bed, &server, 5)? == "5: 9, 2 cached");
    ensure!(left_out(bed)? == 2 * SIZE, "{}", left_out(bed)?);
    job.kill()?;
    job.revive(&[])?;
    let told = ask(bed, &server, 5)?;
    ensure!(told == "5: 0, 1 cached", "{told}");
    job.kill()
}

#[test]
fn with_cuda_off_nothing_is_seen_of_it() {
    each_user(|bed| {
        let path = bed.kit().cuda_program("saxpy").to_string_lossy().into_owned();
        let job = CudaJob::begin_with(bed, JOB, &["--cuda", "off"], &[&path, "4"], &[])?;
        job.lines(2)?;
        let words = "it uses CUDA, which --cuda off leaves out: start it without --cuda off";
        job.fails(REFUSED, &["(saxpy): ", words])?;
        let checked = say(bed, &["check", JOB], &[])?;
        let told = &checked.stdout;
        ensure!(
            checked.code() == REFUSED && told.contains(words) && !told.contains("device memory:"),
            "{told}"
        );
        job.ends_well()
    });
}
