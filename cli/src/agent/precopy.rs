//! Pre-copy: pages that changed are stored while the program still runs, so that little is left at the stop.
//!
//! Runs in: the checkpoint thread, before the cut. Nothing is torn by it: the tracker is armed before a page is read,
//! and a page that is written again is stored again. What it costs in vain is bandwidth; the rules here keep that
//! small. Fails by: a store that fails fails the image. A program that went away meanwhile is the cut's business.

use super::carry_over::CarryOver;
use super::error::CheckpointError;
use super::request::CheckpointRequest;
use crate::settings::{EngineChoice, Settings};
use holdfast_image::PageCount;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageSource;
use holdfast_process::{LivePages, Members};
use holdfast_tiers::{ImageWriter, PipelineOptions};
use std::thread;
use std::time::{Duration, Instant};

/// How long it is watched what the program writes. The history does not make up for it: it tells what is written first
/// after a cut, not whether the program goes over all of its memory once more before the next.
const SAMPLE: Duration = Duration::from_millis(20);
/// Storing so few pages twice costs less than finding out whether that will happen.
const FEW: PageCount = PageCount((16 << 20) / holdfast_image::PAGE_SIZE);
/// A second pass is worth its scan if the first one took longer and stored more than this.
const SECOND_AFTER: Duration = Duration::from_millis(50);
const SECOND_ABOVE: PageCount = PageCount((64 << 20) / holdfast_image::PAGE_SIZE);

/// What a pre-copy has done.
#[derive(Debug, Default)]
pub struct Precopied {
    /// All pages that were found to be written before the stop.
    pub dirty: PageSet,
    /// Pages that were stored, those of both passes counted twice.
    pub stored: u64,
}

/// Whether this checkpoint may have one.
pub fn is_wanted(settings: &Settings, request: &CheckpointRequest) -> bool {
    // Who waits for the cut would wait for it; who waits for the commit does so anyway, and all others run on
    // meanwhile.
    !request.options.until_cut
        && !settings.only_protected
        && !settings.is_sync()
        && matches!(settings.engine, EngineChoice::Auto | EngineChoice::Copy)
}

/// Whether storing these pages now is worth it: not if more than half of them would be written again before the flush
/// after the stop could begin, as long as the program goes on as in the time `sampled`, in which it wrote `rewritten`
/// of `dirty` pages again.
fn is_worth(dirty: PageCount, rewritten: PageCount, sampled: Duration, flush: Duration) -> bool {
    let again = rewritten.0 as f64 * (flush.as_secs_f64() / sampled.as_secs_f64()).max(1.0);
    again <= dirty.0 as f64 / 2.0
}

fn wants_second(took: Duration, stored: PageCount) -> bool {
    took > SECOND_AFTER && stored > SECOND_ABOVE
}

/// Stores what is worth it. `done` gets the bytes read.
///
/// # Errors
/// The store failed.
pub fn run(
    writer: &mut ImageWriter,
    members: &Members,
    carry_over: &CarryOver,
    options: &PipelineOptions,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Precopied, CheckpointError> {
    let mut result = Precopied::default();
    let begun = Instant::now();
    let Some(first) = pass(members, &mut result) else { return Ok(result) };
    if members.may_have_transfers() {
        tracing::info!("no pre-copy: the program has files open with O_DIRECT");
        return Ok(result);
    }
    let Some(pages) = choose(members, carry_over, first, options) else { return Ok(result) };
    let stored = store(writer, members, pages, options, done, &mut result)?;
    if wants_second(begun.elapsed(), stored)
        && let Some(second) = pass(members, &mut result)
        && !members.may_have_transfers()
        && let Some(pages) = leave_hot_out(carry_over, second)
    {
        store(writer, members, pages, options, done, &mut result)?;
    }
    Ok(result)
}

/// Re-arms the tracker. `None`: the program is gone, or nothing is tracked.
fn pass(members: &Members, result: &mut Precopied) -> Option<PageSet> {
    let dirty = members.pass().ok().filter(|dirty| !dirty.is_empty())?;
    result.dirty = result.dirty.union(&dirty);
    Some(dirty)
}

fn leave_hot_out(carry_over: &CarryOver, dirty: PageSet) -> Option<PageSet> {
    let prediction = carry_over.history.predict();
    Some(dirty.difference(&prediction.hot(&dirty))).filter(|pages| !pages.is_empty())
}

fn choose(
    members: &Members,
    carry_over: &CarryOver,
    dirty: PageSet,
    options: &PipelineOptions,
) -> Option<PageSet> {
    let pages = leave_hot_out(carry_over, dirty)?;
    if pages.pages() <= FEW {
        return Some(pages);
    }
    let begun = Instant::now();
    thread::sleep(SAMPLE);
    let again = members.written(&pages).ok()?;
    let flush = carry_over.flush_rate.time_for(pages.pages().0, options.rate);
    if is_worth(pages.pages(), again.pages(), begun.elapsed(), flush) {
        return Some(pages.difference(&again)).filter(|pages| !pages.is_empty());
    }
    tracing::info!(
        "no pre-copy: {} of {} pages were written again in {:?}",
        again.pages().0,
        pages.pages().0,
        begun.elapsed()
    );
    None
}

fn store(
    writer: &mut ImageWriter,
    members: &Members,
    pages: PageSet,
    options: &PipelineOptions,
    done: &(dyn Fn(u64) + Sync),
    result: &mut Precopied,
) -> Result<PageCount, CheckpointError> {
    let source = LivePages::new(members.targets(), pages);
    let wanted = source.pages();
    let stored = writer.precopy(&source, options, done)?;
    members.precopied(&stored);
    tracing::debug!("pre-copy: {} of {} pages", stored.pages().0, wanted.0);
    result.stored += stored.pages().0;
    Ok(stored.pages())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::OrderChoice;

    fn pages(count: u64) -> PageCount {
        PageCount(count)
    }

    #[test]
    fn what_is_written_all_the_time_is_not_stored_before_the_stop() {
        let (sample, flush) = (Duration::from_millis(20), Duration::from_secs(1));
        assert!(is_worth(pages(100_000), pages(0), sample, flush));
        assert!(is_worth(pages(100_000), pages(1000), sample, flush));
        assert!(!is_worth(pages(100_000), pages(1001), sample, flush));
        assert!(!is_worth(pages(100_000), pages(100_000), sample, flush));
        // A flush that is shorter than the sample is as good as one that lasts as long.
        assert!(!is_worth(pages(100), pages(51), sample, Duration::ZERO));
        assert!(is_worth(pages(100), pages(50), sample, Duration::ZERO));
    }

    #[test]
    fn a_second_pass_needs_a_long_and_large_first_one() {
        assert!(wants_second(Duration::from_millis(51), pages(SECOND_ABOVE.0 + 1)));
        assert!(!wants_second(Duration::from_millis(50), pages(SECOND_ABOVE.0 + 1)));
        assert!(!wants_second(Duration::from_secs(1), SECOND_ABOVE));
    }

    #[test]
    fn only_engines_that_gain_by_it_have_one_and_nobody_waits_for_it() {
        use super::super::request::CheckpointOptions;
        let order = |until_cut| {
            CheckpointRequest::for_tests(CheckpointOptions { until_cut, ..CheckpointOptions::default() })
        };
        let auto = Settings::default();
        assert!(is_wanted(&auto, &order(false)));
        assert!(!is_wanted(&auto, &order(true)));
        for (engine, wanted) in [
            (EngineChoice::Copy, true),
            (EngineChoice::Fork, false),
            (EngineChoice::Slots, false),
            (EngineChoice::Sync, false),
        ] {
            assert_eq!(is_wanted(&Settings { engine, ..Settings::default() }, &order(false)), wanted);
        }
        assert!(!is_wanted(&Settings { order: OrderChoice::Sync, ..auto.clone() }, &order(false)));
        assert!(!is_wanted(&Settings { only_protected: true, ..auto }, &order(false)));
    }
}
