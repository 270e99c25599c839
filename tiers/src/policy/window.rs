//! Which neighbours of a cache are evicted to make room: the window of least waiting time.
//!
//! Used by [`super::Hierarchy`]. The eviction of the paper on prefetching (VELOC, HPDC 2023, algorithm 1), with its
//! defects mended: every window is looked at, those that end at the last fragment too; only windows of which no part
//! would do; what cannot be evicted at all is counted, not given an infinite waiting time, which could not be
//! subtracted again; integers, so that ties are ties.
//! Invariant: equals the search over all windows (the property test has 10 000 tables).

use std::ops::Range;

/// What the window search has to know of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    /// Its size, not 0.
    pub bytes: u64,
    /// Predicted time until it can be evicted; 0: now.
    pub wait_ns: u64,
    /// How far away its next use is: the farther, the better to evict.
    pub distance: u64,
    /// It cannot be evicted, however long one waits.
    pub blocked: bool,
}

/// Which of several windows without waiting time is best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ties {
    /// The greatest sum of distances, as in the paper: prefers many small fragments.
    Sum,
    /// The greatest mean distance.
    Mean,
    /// The one whose nearest fragment is farthest, of equal ones the smallest: does not evict what is needed soon
    /// because it lies beside a gap.
    #[default]
    Nearest,
}

/// A window of neighbouring fragments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Indices of its fragments.
    pub range: Range<usize>,
    /// Sum of their waiting times.
    pub wait_ns: u128,
    /// Sum of their distances.
    pub distance: u128,
    /// The least of them.
    pub nearest: u64,
    /// Sum of their sizes.
    pub bytes: u128,
}

impl Window {
    /// Whether this one is better; of equal ones the first stays.
    fn better_than(&self, other: &Window, ties: Ties) -> bool {
        if self.wait_ns != other.wait_ns {
            return self.wait_ns < other.wait_ns;
        }
        match ties {
            Ties::Sum => self.distance > other.distance,
            Ties::Mean => {
                self.distance * other.range.len() as u128 > other.distance * self.range.len() as u128
            }
            Ties::Nearest => (self.nearest, other.bytes) > (other.nearest, self.bytes),
        }
    }
}

/// The best window of at least so many bytes without a blocked fragment: of those of which no smaller part has as
/// many bytes, the one of least waiting time, then of greatest distance, then the first. `None`: there is none.
pub(super) fn best_window(weights: &[Weight], bytes: u64, ties: Ties) -> Option<Window> {
    let bytes = u128::from(bytes);
    let mut best: Option<Window> = None;
    let (mut end, mut size, mut wait_ns, mut distance, mut blocked) = (0, 0u128, 0u128, 0u128, 0usize);
    for start in 0..weights.len() {
        while size < bytes && end < weights.len() {
            size += u128::from(weights[end].bytes);
            wait_ns += u128::from(weights[end].wait_ns);
            distance += u128::from(weights[end].distance);
            blocked += usize::from(weights[end].blocked);
            end += 1;
        }
        if size < bytes || end == start {
            break;
        }
        let first = &weights[start];
        if blocked == 0 && size - u128::from(first.bytes) < bytes {
            let nearest = weights[start..end].iter().map(|weight| weight.distance).min().unwrap_or(0);
            let window = Window { range: start..end, wait_ns, distance, nearest, bytes: size };
            if best.as_ref().is_none_or(|best| window.better_than(best, ties)) {
                best = Some(window);
            }
        }
        size -= u128::from(first.bytes);
        wait_ns -= u128::from(first.wait_ns);
        distance -= u128::from(first.distance);
        blocked -= usize::from(first.blocked);
    }
    best
}

/// The same where neighbourhood does not matter: the fragments of least waiting time, then of greatest distance, so
/// many that they have as many bytes, and none that could be left out. Indices, ascending, and the sum of the waiting
/// times. What [`super::pieces`] finds without a look at all is this.
#[cfg(test)]
pub(super) fn best_pieces(weights: &[Weight], bytes: u64) -> Option<(Vec<usize>, u128)> {
    let mut order: Vec<usize> = (0..weights.len()).filter(|&index| !weights[index].blocked).collect();
    order.sort_by_key(|&index| (weights[index].wait_ns, std::cmp::Reverse(weights[index].distance)));
    let (mut chosen, mut size) = (Vec::new(), 0u128);
    for index in order {
        if size >= u128::from(bytes) {
            break;
        }
        size += u128::from(weights[index].bytes);
        chosen.push(index);
    }
    if size < u128::from(bytes) || chosen.is_empty() {
        return None;
    }
    // The last one made it enough; of those before, the nearest that are not needed beside it stay.
    for place in (0..chosen.len()).rev() {
        let without = size - u128::from(weights[chosen[place]].bytes);
        if without >= u128::from(bytes) {
            size = without;
            chosen.remove(place);
        }
    }
    chosen.sort_unstable();
    let wait_ns = chosen.iter().map(|&index| u128::from(weights[index].wait_ns)).sum();
    Some((chosen, wait_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn weight() -> impl Strategy<Value = Weight> {
        // Small numbers, so that ties are frequent.
        (1u64..9, prop_oneof![3 => Just(0u64), 2 => 1u64..6], 1u64..8, prop::bool::weighted(0.15))
            .prop_map(|(bytes, wait_ns, distance, blocked)| Weight { bytes, wait_ns, distance, blocked })
    }

    /// All windows, each summed up anew.
    fn exhaustive(weights: &[Weight], bytes: u64, ties: Ties) -> Option<Window> {
        let mut best: Option<Window> = None;
        for start in 0..weights.len() {
            for end in start + 1..=weights.len() {
                let window = &weights[start..end];
                let size = |part: &[Weight]| part.iter().map(|w| w.bytes).sum::<u64>();
                let minimal = size(&window[1..]) < bytes && size(&window[..window.len() - 1]) < bytes;
                if size(window) < bytes || !minimal || window.iter().any(|w| w.blocked) {
                    continue;
                }
                let found = Window {
                    range: start..end,
                    wait_ns: window.iter().map(|w| u128::from(w.wait_ns)).sum(),
                    distance: window.iter().map(|w| u128::from(w.distance)).sum(),
                    nearest: window.iter().map(|w| w.distance).min().unwrap_or(0),
                    bytes: size(window).into(),
                };
                // The less the better, as in a sort.
                let rank = |w: &Window| {
                    let value = match ties {
                        Ties::Sum => w.distance * 5040,
                        Ties::Mean => w.distance * 5040 / w.range.len() as u128,
                        Ties::Nearest => u128::from(w.nearest) * 5040 - w.bytes,
                    };
                    (w.wait_ns, u128::MAX - value)
                };
                if best.as_ref().is_none_or(|best| rank(&found) < rank(best)) {
                    best = Some(found);
                }
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 10_000 }, ..ProptestConfig::default() })]
        #[test]
        fn equals_the_search_over_all_windows(
            weights in prop::collection::vec(weight(), 0..24),
            // At most seven fragments in a window: their number divides 5040, so that means are integers.
            bytes in 1u64..8,
            ties in prop::sample::select(vec![Ties::Sum, Ties::Mean, Ties::Nearest]),
        ) {
            prop_assert_eq!(best_window(&weights, bytes, ties), exhaustive(&weights, bytes, ties));
        }

        #[test]
        fn equals_it_where_windows_are_long(
            weights in prop::collection::vec(weight(), 0..40),
            bytes in 1u64..120,
        ) {
            prop_assert_eq!(best_window(&weights, bytes, Ties::Sum), exhaustive(&weights, bytes, Ties::Sum));
        }
    }

    proptest! {
        #[test]
        fn pieces_are_the_farthest_and_no_more(
            weights in prop::collection::vec(weight(), 0..24),
            bytes in 1u64..60,
        ) {
            let open: u64 = weights.iter().filter(|w| !w.blocked).map(|w| w.bytes).sum();
            let Some((chosen, wait_ns)) = best_pieces(&weights, bytes) else {
                prop_assert!(open < bytes);
                return Ok(());
            };
            let size: u64 = chosen.iter().map(|&index| weights[index].bytes).sum();
            prop_assert!(size >= bytes);
            prop_assert!(chosen.iter().all(|&i| size - weights[i].bytes < bytes && !weights[i].blocked));
            // Without waiting, if that is possible at all.
            let now: u64 = weights.iter().filter(|w| !w.blocked && w.wait_ns == 0).map(|w| w.bytes).sum();
            prop_assert_eq!(wait_ns == 0, now >= bytes);
        }
    }

    #[test]
    fn more_than_all_is_no_window() {
        let weight = Weight { bytes: 4, wait_ns: 0, distance: 1, blocked: false };
        assert_eq!(best_window(&[weight; 3], 13, Ties::Sum), None);
        assert_eq!(best_window(&[weight; 3], 12, Ties::Sum).map(|w| w.range), Some(0..3));
        assert_eq!(best_window(&[], 1, Ties::Mean), None);
    }
}
