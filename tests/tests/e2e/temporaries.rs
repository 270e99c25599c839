//! A program that makes its large arrays anew in each step (numpy's temporaries): the bound on copies holds though a
//! page fault may give it a huge page.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user_in_turn};
use serde_json::Value;

const JOB: &str = "j";
const IMAGES: u64 = 8;

fn number(shown: &Value, part: &str, name: &str) -> Result<u64> {
    shown[part][name].as_u64().with_context(|| format!("no {part}.{name}: {shown}"))
}

/// What an image tells: most copies at once, and their bound.
fn figures(bed: &Bed, image: u64) -> Result<[u64; 2]> {
    let shown = bed.show(&format!("{JOB}@{image}"))?;
    Ok([number(&shown, "epoch", "copies_peak")?, number(&shown, "epoch", "copies_limit")?])
}

#[test]
fn numpy_makes_no_more_copies_than_it_may() {
    each_user_in_turn(User::Ordinary, |bed| {
        let app = App::real("temporaries", &[PYTHON, "@temporaries.py", "20"]);
        let mut front = bed.run_command(JOB, &[], &app.words())?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("its first line", PATIENCE, || bed.text("out").contains("running"))?;
        for _ in 0..IMAGES {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        kill_program(pid, &mut front)?;
        let all: Vec<[u64; 2]> = (1..=IMAGES).map(|image| figures(bed, image)).collect::<Result<_>>()?;
        // What the first flush has shown, the later ones know.
        let over = all.iter().skip(1).filter(|[copies, bound]| copies > bound).count();
        ensure!(over <= 1, "copies, bound: {all:?}");
        Ok(())
    });
}
