//! The bound on copied pages: when the flush must hurry, when the writers must be held. Asked by the agent's watcher
//! every time it looks; the answer looks ahead to the next time, so that the bound holds in between too.
//!
//! AI-Ckpt (HPDC'13, algorithm 2) bounds the copies by a pool of slots of fixed size; with a frozen copy the kernel
//! makes the copies, and the bound is kept by holding the program.

use holdfast_image::size::{self, Size};
use holdfast_image::{PAGE_SIZE, PageCount};
use std::fmt;
use std::str::FromStr;

/// What one thread needs at least to make the kernel copy a page, in microseconds. Measured: 2.45 per first write to a
/// page that a frozen copy shares, everything included.
pub const COPY_US: u64 = 2;
/// The bounds of [`Budget::gap_us`].
const GAP_US: std::ops::RangeInclusive<u64> = 250..=5000;

/// What is to be done until the next look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verdict {
    /// There is room.
    Run,
    /// More than three quarters will be used: flush without compression, at full bandwidth.
    Hurry,
    /// Hold the writers until asked again.
    Hold,
}

/// See the head of the file. One per flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    limit: Option<PageCount>,
    room: Option<PageCount>,
    holding: bool,
}

impl Budget {
    /// `None`: no bound.
    pub fn new(limit: Option<PageCount>) -> Budget {
        Budget { limit, room: None, holding: false }
    }
    /// There is no memory for more copies than `room`, which is at least the bound: the writers are held while there
    /// could be more, however late the next look is.
    #[must_use]
    pub fn within(self, room: Option<PageCount>) -> Budget {
        Budget { room, ..self }
    }
    /// The bound.
    pub fn limit(&self) -> Option<PageCount> {
        self.limit
    }
    /// Whether the last verdict was to hold.
    pub fn is_holding(&self) -> bool {
        self.holding
    }
    /// Judges by what is held now. `copies`: pages copied whose copy is still held. `unreleased`: pages not stored yet,
    /// the copied ones among them: there can never be more copies than that. `gap_us`: time until the next look at the
    /// latest. `writers`: threads that may write.
    pub fn judge(&mut self, copies: PageCount, unreleased: PageCount, gap_us: u64, writers: u32) -> Verdict {
        let verdict = self.verdict(copies.0, unreleased.0, gap_us, writers);
        self.holding = verdict == Verdict::Hold;
        verdict
    }
    fn verdict(&self, copies: u64, unreleased: u64, gap_us: u64, writers: u32) -> Verdict {
        if self.room.is_some_and(|room| unreleased > room.0) {
            return Verdict::Hold;
        }
        let Some(PageCount(limit)) = self.limit else { return Verdict::Run };
        if unreleased <= limit {
            return Verdict::Run;
        }
        // A thread in the middle of a copy finishes it, hence one more each.
        let could = (gap_us / COPY_US).saturating_add(1).saturating_mul(u64::from(writers));
        let ahead = copies.saturating_add(could.min(unreleased.saturating_sub(copies)));
        // Letting go costs a round of stopping and resuming: only for an eighth of the bound at least.
        let slice = if self.holding { (limit / 8).max(1) } else { 0 };
        if ahead.saturating_add(slice) > limit {
            Verdict::Hold
        } else if ahead > limit - limit / 4 {
            Verdict::Hurry
        } else {
            Verdict::Run
        }
    }
    /// When to look next, in microseconds: in half the time in which the writers could use up the room, but not
    /// more often than every 250 and at least every 5000.
    pub fn gap_us(&self, copies: PageCount, unreleased: PageCount, writers: u32) -> u64 {
        let room = match self.limit {
            Some(limit) if unreleased > limit => limit.0.saturating_sub(copies.0),
            _ => return *GAP_US.end(),
        };
        let fill = room.saturating_mul(COPY_US) / u64::from(writers.max(1));
        (fill / 2).clamp(*GAP_US.start(), *GAP_US.end())
    }
}

/// The value of `--cow`: the most that copies may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CowLimit {
    /// Of the tracked memory, in hundredths of a percent; 0..=10000.
    Share(u32),
    /// Bytes.
    Bytes(u64),
    /// No bound.
    Unlimited,
}

impl Default for CowLimit {
    /// 5 %.
    fn default() -> CowLimit {
        CowLimit::Share(500)
    }
}

impl CowLimit {
    /// The bound for a program with `tracked` pages of memory, rounded down to whole pages; `None`: no bound.
    pub fn pages(self, tracked: PageCount) -> Option<PageCount> {
        match self {
            CowLimit::Share(share) => {
                let pages = u128::from(tracked.0) * u128::from(share) / 10_000;
                Some(PageCount(u64::try_from(pages).unwrap_or(u64::MAX)))
            }
            CowLimit::Bytes(bytes) => Some(PageCount(bytes / PAGE_SIZE)),
            CowLimit::Unlimited => None,
        }
    }
}

/// Not a bound on copies.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a bound on copies; use a share like 5% or 0.5%, a size like 256M or 64K, 0, or none")]
pub struct CowLimitError(String);

impl FromStr for CowLimit {
    type Err = CowLimitError;
    fn from_str(text: &str) -> Result<CowLimit, CowLimitError> {
        parse(text).ok_or_else(|| CowLimitError(text.to_owned()))
    }
}

/// Digits only: no sign, no blank.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn parse(text: &str) -> Option<CowLimit> {
    if text == "none" {
        return Some(CowLimit::Unlimited);
    }
    if let Some(share) = text.strip_suffix('%') {
        let (whole, hundredths) = match share.split_once('.') {
            None => (share, 0),
            Some((whole, tenths)) if tenths.len() == 1 => (whole, digits(tenths)? * 10),
            Some((whole, hundredths)) if hundredths.len() == 2 => (whole, digits(hundredths)?),
            Some(_) => return None,
        };
        let share = digits(whole)?.checked_mul(100)?.checked_add(hundredths)?;
        return u32::try_from(share).ok().filter(|share| *share <= 10_000).map(CowLimit::Share);
    }
    size::parse(text).map(CowLimit::Bytes)
}

impl fmt::Display for CowLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CowLimit::Unlimited => f.write_str("none"),
            CowLimit::Share(share) if share % 100 == 0 => write!(f, "{}%", share / 100),
            CowLimit::Share(share) => write!(f, "{}.{:02}%", share / 100, share % 100),
            CowLimit::Bytes(bytes) => Size(bytes).fmt(f),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_of_the_option() {
        let parse = |text: &str| text.parse::<CowLimit>();
        assert_eq!(parse("5%"), Ok(CowLimit::default()));
        assert_eq!(parse("0.5%"), Ok(CowLimit::Share(50)));
        assert_eq!(parse("12.25%"), Ok(CowLimit::Share(1225)));
        assert_eq!(parse("256M"), Ok(CowLimit::Bytes(256 << 20)));
        assert_eq!(parse("64k"), Ok(CowLimit::Bytes(64 << 10)));
        assert_eq!(parse("0"), Ok(CowLimit::Bytes(0)));
        assert_eq!(parse("none"), Ok(CowLimit::Unlimited));
        let wrong =
            ["", "%", "M", "101%", "-1", "+5%", "5 %", "1.5M", "5.%", ".5%", "0.123%", "99999999T", "all"];
        for text in wrong {
            assert_eq!(parse(text), Err(CowLimitError(text.to_owned())));
        }
        assert_eq!(CowLimit::Share(500).pages(PageCount(1000)), Some(PageCount(50)));
        assert_eq!(CowLimit::Share(10_000).pages(PageCount(u64::MAX)), Some(PageCount(u64::MAX)));
        assert_eq!(CowLimit::Bytes(65_535).pages(PageCount(1)), Some(PageCount(15)));
        assert_eq!(CowLimit::Unlimited.pages(PageCount(1)), None);
        assert_eq!(CowLimit::Share(50).to_string(), "0.50%");
        assert_eq!(CowLimit::Bytes(256 << 20).to_string(), "256M");
    }

    #[test]
    fn near_the_bound_it_hurries_then_holds_and_resumes_for_a_slice_only() {
        let mut budget = Budget::new(Some(PageCount(1000)));
        let mut judge = |copies| budget.judge(PageCount(copies), PageCount(5000), 198, 1);
        assert_eq!(judge(0), Verdict::Run);
        assert_eq!(judge(650), Verdict::Run);
        assert_eq!(judge(651), Verdict::Hurry);
        assert_eq!(judge(900), Verdict::Hurry);
        assert_eq!(judge(901), Verdict::Hold);
        assert_eq!(judge(900), Verdict::Hold, "a hundred copies more are not worth a round");
        assert_eq!(judge(776), Verdict::Hold);
        assert_eq!(judge(775), Verdict::Hurry);
        assert_eq!(judge(900), Verdict::Hurry);
    }

    #[test]
    fn no_bound_and_no_room() {
        let mut tight = Budget::new(Some(PageCount(1000))).within(Some(PageCount(2000)));
        assert_eq!(tight.judge(PageCount(0), PageCount(2001), 0, 1), Verdict::Hold);
        assert_eq!(tight.judge(PageCount(0), PageCount(2000), 0, 1), Verdict::Run);
        let mut none = Budget::new(None);
        assert_eq!(none.judge(PageCount(1 << 40), PageCount(1 << 41), 1 << 30, 1000), Verdict::Run);
        let mut zero = Budget::new(Some(PageCount(0)));
        assert_eq!(zero.judge(PageCount(0), PageCount(1), 0, 1), Verdict::Hold);
        assert!(zero.is_holding());
        assert_eq!(zero.judge(PageCount(0), PageCount(0), 0, 1), Verdict::Run);
        assert_eq!(zero.gap_us(PageCount(0), PageCount(1), 4), 250);
        assert_eq!(none.gap_us(PageCount(0), PageCount(1), 4), 5000);
    }

    proptest! {
        #[test]
        fn values_survive_their_text(share in 0..=10_000_u32, bytes: u64, zeros in 0..64_u32) {
            for value in [CowLimit::Share(share), CowLimit::Bytes(bytes >> zeros << zeros), CowLimit::Unlimited] {
                prop_assert_eq!(value.to_string().parse(), Ok(value));
            }
        }

        /// Writers that copy as fast as they can, in any order with a flusher: the bound holds at every instant, no
        /// writer is stopped for ever, and none once what is left fits.
        #[test]
        fn the_bound_holds_and_the_flush_ends(
            limit in 0..400_u64,
            pages in 1..2000_u64,
            writers in 1..5_u32,
            rounds in prop::collection::vec((0..600_u64, 1..100_u64, any::<bool>()), 1..50),
        ) {
            let mut budget = Budget::new(Some(PageCount(limit)));
            // Pages copied and not stored; pages neither copied nor stored.
            let (mut copied, mut fresh) = (0_u64, pages);
            for (gap_us, flushed, copied_first) in rounds.into_iter().cycle().take(5000) {
                let unreleased = copied + fresh;
                let verdict = budget.judge(PageCount(copied), PageCount(unreleased), gap_us, writers);
                if unreleased <= limit {
                    prop_assert_eq!(verdict, Verdict::Run);
                }
                if verdict != Verdict::Hold {
                    let new = fresh.min((gap_us / COPY_US + 1) * u64::from(writers));
                    (copied, fresh) = (copied + new, fresh - new);
                }
                prop_assert!(copied <= limit, "{copied} copies, bound {limit}");
                let own = if copied_first { flushed.min(copied) } else { 0 };
                copied -= own;
                let rest = (flushed - own).min(fresh);
                fresh -= rest;
                copied -= (flushed - own - rest).min(copied);
                if copied + fresh == 0 {
                    break;
                }
            }
            prop_assert_eq!(copied + fresh, 0);
        }
    }
}
