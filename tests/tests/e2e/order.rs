//! `--order`: in which order the pages of an image were written, as its frames lie in the segments.

use anyhow::{Context, Result, ensure};
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_pager::{Access, History, PageAccess};
use holdfast_tests::apps::App;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user_in_turn, shell_code, wait};
use holdfast_tiers::format::manifest::{Manifest, Place};
use std::collections::BTreeMap;
use std::fs;

const JOB: &str = "o";
/// So many pages at so many bytes a second: a second. Small enough that the first writes use up the copies.
const PAGES: u64 = 512;
const SLOW: [&str; 8] = ["--engine", "slots", "--cow", "64K", "--rate", "2M", "--compress", "none"];
/// The image that is written while the program waits for it.
const LAST: u64 = 3;

/// The pages of the program's region that image [`LAST`] has stored, by segment in the order in which they were
/// appended, and what it knows of the writes during the flush before.
fn stored(bed: &Bed, order: &str) -> Result<(Vec<Vec<Addr>>, History)> {
    let options = [&SLOW[..], &["--order", order]].concat();
    let app = App::program("ordered", &[&PAGES.to_string()]);
    let mut front = bed.run_command(JOB, &options, &app.words())?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(code == 0, "status {code}: {out}{}", bed.text("err"));
    let region = out.lines().find_map(|line| line.strip_prefix("region 0x")).context("a region")?;
    let region = u64::from_str_radix(region, 16)?..u64::from_str_radix(region, 16)? + PAGES * PAGE_SIZE;
    let path = bed.job(JOB).join(format!("manifest-{LAST:06}"));
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let manifest = Manifest::open(&bytes)?;
    let segments = manifest.segments()?;
    let frames = manifest.frames(&segments)?;
    let mut found: BTreeMap<u32, BTreeMap<(u32, u32), Addr>> = BTreeMap::new();
    for entry in manifest.index(&frames)? {
        let Place::Frame { frame, page } = entry.place else { continue };
        let segment = frames[frame as usize].segment;
        if segments[segment as usize].epoch.0 == LAST && region.contains(&entry.run.start.0) {
            let numbers = 0..u32::try_from(entry.run.pages.0)?;
            found.entry(segment).or_default().extend(numbers.map(|number| {
                ((frame, page + number), Addr(entry.run.start.0 + u64::from(number) * PAGE_SIZE))
            }));
        }
    }
    let pages = found.into_values().map(|pages| pages.into_values().collect()).collect();
    Ok((pages, History::decode(&manifest.history()?)?))
}

/// What is known of pages that were written during the flush before.
fn written(pages: &[Addr], history: &History) -> Result<Vec<PageAccess>> {
    let epoch = history.epoch(1).context("an epoch")?;
    let during = |page: &PageAccess| matches!(page.access, Access::Wait | Access::Cow | Access::Avoided);
    Ok(pages.iter().filter_map(|page| epoch.get(*page)).filter(during).collect())
}

/// AI-Ckpt's: the class, then the time. [`Access`] is in this order.
fn is_by_class(pages: &[PageAccess]) -> bool {
    pages.is_sorted_by_key(|page| (page.access, page.at))
}

#[test]
fn classes_are_written_in_the_order_of_ai_ckpt() {
    each_user_in_turn(User::Ordinary, |bed| {
        let (segments, history) = stored(bed, "classes")?;
        let mut count: BTreeMap<Access, u64> = BTreeMap::new();
        for pages in &segments {
            let written = written(pages, &history)?;
            written.iter().for_each(|page| *count.entry(page.access).or_default() += 1);
            ensure!(is_by_class(&written), "not in the order of the classes: {written:?}");
        }
        // Else no order could be told from another.
        let enough = |access| count.get(&access).is_some_and(|pages| *pages >= 8);
        ensure!(enough(Access::Wait) && enough(Access::Cow), "too few: {count:?}");
        println!("{count:?}");
        Ok(())
    });
}

#[test]
fn neither_history_nor_addresses_are_the_order_of_the_classes() {
    for order in ["history", "address"] {
        each_user_in_turn(User::Root, |bed| {
            let (segments, history) = stored(bed, order)?;
            let by_class = segments.iter().map(|pages| Ok(is_by_class(&written(pages, &history)?)));
            let by_class: Vec<bool> = by_class.collect::<Result<_>>()?;
            ensure!(by_class.contains(&false), "--order {order} is that of the classes");
            let by_address = segments.iter().all(|pages| pages.is_sorted());
            ensure!(by_address == (order == "address"), "--order {order}: {segments:?}");
            Ok(())
        });
    }
}
