//! `--compress`: what is compressed comes back, whichever codec it was; damage in it is read from another tier, or
//! refused, never handed to the program.

use super::plain_job::{JOB, command, kill_all, none_is_left, restarts, right_output, start, started};
use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, shell_code, wait};
use std::fs;
use std::path::PathBuf;
use std::process::Child;

/// Frames of an image by a codec, and how often they are smaller than their pages.
fn frames(bed: &Bed, image: &str, codec: &str) -> Result<(u64, f64)> {
    let shown = bed.show(image)?;
    let all = shown["codecs"].as_array().context("codecs")?;
    let Some(of) = all.iter().find(|of| of["codec"] == codec) else { return Ok((0, 1.0)) };
    let number = |key: &str| of[key].as_u64().with_context(|| shown["codecs"].to_string());
    Ok((number("frames")?, number("bytes")? as f64 / number("stored")? as f64))
}

/// Agent and program are killed; the program may end when it is restarted.
fn kill(bed: &Bed, job: &str, front: &mut Child, pid: i32) -> Result<()> {
    kill_all(bed, job, front, pid)?;
    bed.may_end()
}

#[test]
fn zstd_is_used_shown_and_comes_back() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--compress", "zstd"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let (count, ratio) = frames(bed, "j@1", "zstd")?;
        ensure!(count > 0 && ratio > 1.05, "{count} frames, {ratio}");
        ensure!(frames(bed, "j@1", "lz4")?.0 == 0, "no codec but zstd was asked for");
        let text = bed.say(&["show", "j@1"])?.success()?.stdout;
        ensure!(text.contains("CODEC") && text.contains("  zstd"), "{text}");
        // One image otherwise, and the job from now on.
        bed.say(&["checkpoint", JOB, "--compress", "shuffle-lz4"])?.success()?;
        ensure!(frames(bed, "j@2", "shuffle-lz4")?.0 > 0, "shuffle-lz4 was asked for");
        kill(bed, JOB, &mut front, pid)?;
        bed.say(&["verify", "j@2"])?.success()?;
        restarts(bed, "j@2", &["--compress", "none"])
    });
}

#[test]
fn the_choice_is_made_by_itself_and_configured() {
    each_user(|bed| {
        fs::write(bed.store().join("config.toml"), "compress = \"brotli\"\n")?;
        let refused = bed.say(&["run", "--name", JOB, "--", "/bin/true"])?;
        let right = refused.stderr.contains("config.toml: line 1") && refused.stderr.contains("brotli");
        ensure!(refused.code() == 64 && right, "{}: {}", refused.code(), refused.stderr);
        let refused = bed.say(&["run", "--compress", "brotli", "--", "/bin/true"])?;
        ensure!(refused.code() == 64 && refused.stderr.contains("shuffle-zstd"), "{}", refused.stderr);
        fs::write(bed.store().join("config.toml"), "compress = \"lz4\"\n")?;
        // The command line comes first.
        let (mut front, pid) = start(bed, &["--compress", "auto"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill(bed, JOB, &mut front, pid)?;
        bed.say(&["verify", "j@1"])?.success()?;
        restarts(bed, "j@1", &[])?;
        let (mut front, pid) = started(bed, "k", &mut command(bed, "k", &[])?)?;
        bed.say(&["checkpoint", "k"])?.success()?;
        ensure!(frames(bed, "k@1", "lz4")?.0 > 0, "the configuration says lz4");
        kill(bed, "k", &mut front, pid)
    });
}

/// Changes a byte in the middle of the first compressed frame of an image's segments, wherever its headers
/// (docs/format.md) say that it is. The segment.
fn damage(bed: &Bed) -> Result<PathBuf> {
    for entry in fs::read_dir(bed.job(JOB))? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")) {
            continue;
        }
        let mut bytes = fs::read(&path)?;
        let block = bytes[bytes.len() - 4096..].to_vec();
        let field =
            |slot: &[u8], at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap_or([0; 8]));
        for slot in block.chunks_exact(64).skip(1) {
            if &slot[..4] == b"HFRM" && slot[4] == 2 {
                let at = usize::try_from(field(slot, 24) + field(slot, 32) / 2)?;
                bytes[at] = bytes[at].wrapping_add(1);
                fs::write(&path, bytes)?;
                return Ok(path);
            }
        }
    }
    bail!("no frame by zstd")
}

#[test]
fn damage_is_read_from_another_tier_or_refused() {
    each_user(|bed| {
        let tier = format!("dir={}/pfs", bed.work().display());
        let (mut front, pid) = start(bed, &["--compress", "zstd", "--tier", &tier])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("the image on the tier", PATIENCE, || {
            bed.show("j@1").is_ok_and(|shown| shown["tiers"] == serde_json::json!(["local", tier]))
        })?;
        kill(bed, JOB, &mut front, pid)?;
        let segment = damage(bed)?;
        let found = bed.say(&["verify", "j@1"])?;
        let told = found.stdout.clone() + &found.stderr;
        let name = segment.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(found.code() == 65 && told.contains(&name), "{}: {told}", found.code());
        // What the program has printed meanwhile goes with the restart.
        restarts(bed, "j@1", &[])?;
        none_is_left(bed)?;
        // Damaged here and nowhere else to be had.
        fs::remove_dir_all(bed.work().join("pfs"))?;
        let _ = damage(bed)?;
        let mut front = bed.restart_command("j@1", &[])?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("restart.err");
        ensure!(code == 65 && said.contains(&name), "status {code}: {said}");
        ensure!(bed.text("out") == right_output(), "nothing ran: {}", bed.text("out"));
        Ok(())
    });
}
