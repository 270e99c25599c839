//! How well one epoch predicts another: a figure by which [`crate::history`] finds the period of a program.
//!
//! Half of it says whether pages were written during the flush or not, half in which order those were written that
//! matter to the flush. Deterministic: the sample is every n-th page that the later epoch knows, and the pairs come
//! from a fixed sequence. Cost: one walk over the later epoch, one over the sample.

use crate::access::{Access, EpochAccess, PageAccess, Tick};
use crate::chunk::run_at;
use holdfast_image::Addr;

/// Pages compared, at most about twice as many.
const SAMPLE: usize = 4096;
/// Pairs of pages compared for each page of the sample.
const PAIRS_PER_PAGE: usize = 4;

/// When a page was written first; never is later than any time.
fn when(page: Option<PageAccess>) -> Option<Tick> {
    page.map(|page| if page.access == Access::Untouched { Tick::MAX } else { page.at })
}

fn is_during(page: Option<PageAccess>) -> bool {
    page.is_some_and(|page| matches!(page.access, Access::Wait | Access::Cow | Access::Avoided))
}

/// Agreement of `earlier`, taken as a prediction, with `later`: 500 is chance, 1000 is exact. `None`: the later epoch
/// has no page to compare.
pub(crate) fn agreement_permille(earlier: &EpochAccess, later: &EpochAccess) -> Option<u32> {
    let sample = sample(later);
    if sample.is_empty() {
        return None;
    }
    let pages: Vec<_> = sample.iter().map(|page| (earlier.get(*page), later.get(*page))).collect();
    let alike = pages.iter().filter(|(old, new)| old.is_some() && is_during(*old) == is_during(*new));
    let class = alike.count() * 1000 / pages.len();
    let order = order_permille(&pages).unwrap_or(class);
    u32::try_from((class + order) / 2).ok()
}

/// Every n-th page that the epoch knows.
fn sample(epoch: &EpochAccess) -> Vec<Addr> {
    let known = epoch.chunks().iter().flat_map(|(number, chunk)| {
        let known = chunk.iter().enumerate().filter(|(_, packed)| packed.is_known());
        known.map(|(place, _)| run_at(*number, place, 1).start)
    });
    let all = known.clone().count();
    known.step_by((all / SAMPLE).max(1)).collect()
}

/// Of the pairs of which at least one page was written during the flush, and not both at the same time: how many did
/// the earlier epoch see in the same order? A tie there, or a page it does not know, counts one half.
fn order_permille(pages: &[(Option<PageAccess>, Option<PageAccess>)]) -> Option<usize> {
    let (mut pairs, mut halves) = (0_usize, 0_usize);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..pages.len() * PAIRS_PER_PAGE {
        let mut draw = || {
            // Knuth's MMIX generator; the high bits are the good ones.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            pages.get((random >> 33) as usize % pages.len())
        };
        let (Some(a), Some(b)) = (draw(), draw()) else { continue };
        let now = when(a.1).cmp(&when(b.1));
        if now.is_eq() || !is_during(a.1) && !is_during(b.1) {
            continue;
        }
        pairs += 1;
        halves += match (when(a.0), when(b.0)) {
            (Some(first), Some(second)) if first.cmp(&second) == now => 2,
            (Some(first), Some(second)) if first != second => 0,
            _ => 1,
        };
    }
    (pairs > 0).then(|| halves * 500 / pairs)
}
