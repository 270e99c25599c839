//! What has been known for one level for long; the planner's search begins there, and tests compare with it.

/// The interval for one level by Young (1974): the root of twice the cost over the rate.
pub fn young(cost: f64, rate: f64) -> f64 {
    (2.0 * cost / rate).sqrt()
}

/// The same to a higher order, by Daly (2006): what is computed between two checkpoints.
pub fn daly(cost: f64, rate: f64) -> f64 {
    let half = cost * rate / 2.0;
    if half >= 1.0 {
        return 1.0 / rate;
    }
    young(cost, rate) * (1.0 + half.sqrt() / 3.0 + half / 9.0) - cost
}
