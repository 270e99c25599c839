//! Bytes, bytes per second and nanoseconds.
//!
//! Used by all of `policy`. Times are rounded up: nothing is predicted to be over too early.

const SECOND: u128 = 1_000_000_000;

/// How long so many bytes take at so many bytes per second; a link of 0 bytes per second takes for ever.
pub fn transfer_ns(bytes: u64, rate: u64) -> u64 {
    if rate == 0 {
        return if bytes == 0 { 0 } else { u64::MAX };
    }
    u64::try_from((u128::from(bytes) * SECOND).div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
}

/// What a rate is taken for, after it was measured once more: a quarter of the new, three of the old.
pub(super) fn measured(rate: u64, bytes: u64, ns: u64) -> u64 {
    if ns == 0 || bytes == 0 {
        return rate;
    }
    let new = u128::from(bytes) * SECOND / u128::from(ns);
    u64::try_from((u128::from(rate) * 3 + new) / 4).unwrap_or(u64::MAX).max(1)
}

/// `whole * numerator / denominator`, rounded down.
pub fn part(whole: u64, numerator: u64, denominator: u64) -> u64 {
    let value = u128::from(whole) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The longest time in which no more than so many bytes pass.
pub fn drained_ns(bytes: u64, rate: u64) -> u64 {
    if rate == 0 {
        return u64::MAX;
    }
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}
