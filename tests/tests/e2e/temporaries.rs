//! A program that makes its large arrays anew in each step (numpy's temporaries): the bound on copies holds though a
//! page fault may give it a huge page, and a pre-copy does not store what is about to be given back.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, PYTHON};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user_in_turn};
use serde_json::Value;

const JOB: &str = "j";
const IMAGES: u64 = 24;

fn number(shown: &Value, part: &str, name: &str) -> Result<u64> {
    shown[part][name].as_u64().with_context(|| format!("no {part}.{name}: {shown}"))
}

/// What an image tells: most copies, their bound, pages that a pre-copy has stored in vain, and all pages.
fn figures(bed: &Bed, image: u64) -> Result<[u64; 4]> {
    let shown = bed.show(&format!("{JOB}@{image}"))?;
    let stored = number(&shown, "epoch", "pages_precopy")?;
    let in_vain = stored.saturating_sub(number(&shown, "flush", "pages_precopied")?);
    let bound = number(&shown, "epoch", "copies_limit")?;
    Ok([number(&shown, "epoch", "copies_peak")?, bound, in_vain, number(&shown, "epoch", "pages_tracked")?])
}

/// Takes an image. Beside many other tests Holdfast may say that it cannot tell who belongs to the job, and to try
/// again.
fn checkpoint(bed: &Bed) -> Result<()> {
    for _ in 0..4 {
        let taken = bed.say(&["checkpoint", JOB])?;
        if taken.code() != 70 || !taken.stderr.contains("try again later") {
            return taken.success().map(drop);
        }
    }
    bed.say(&["checkpoint", JOB])?.success().map(drop)
}

#[test]
fn numpy_makes_no_more_copies_than_it_may_and_nothing_is_stored_twice() {
    each_user_in_turn(User::Ordinary, |bed| {
        let app = App::real("temporaries", &[PYTHON, "@temporaries.py", "20"]);
        let mut front = bed.run_command(JOB, &[], &app.words())?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("its first line", PATIENCE, || bed.text("out").contains("running"))?;
        for _ in 0..IMAGES {
            checkpoint(bed)?;
        }
        kill_program(pid, &mut front)?;
        let all: Vec<[u64; 4]> = (1..=IMAGES).map(|image| figures(bed, image)).collect::<Result<_>>()?;
        // What the first flush has shown, the later ones know.
        let over = all.iter().skip(1).filter(|[copies, bound, ..]| copies > bound).count();
        ensure!(over <= 1, "copies, bound, stored in vain, pages: {all:?}");
        // One may fall into a step; it is known then.
        let lost = all.iter().filter(|[.., in_vain, pages]| *in_vain > pages / 20).count();
        ensure!(lost <= 1, "copies, bound, stored in vain, pages: {all:?}");
        Ok(())
    });
}
