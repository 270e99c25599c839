//! Parts of a whole, and how far a link gets. Used by the files on accumulated compression.

/// `whole * numerator / denominator`, rounded down.
pub(crate) fn part(whole: u64, numerator: u64, denominator: u64) -> u64 {
    let value = u128::from(whole) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The longest time in which no more than so many bytes pass.
pub(crate) fn drained_ns(bytes: u64, rate: u64) -> u64 {
    if rate == 0 {
        return u64::MAX;
    }
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX)
}
