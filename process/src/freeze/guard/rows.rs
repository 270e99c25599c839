//! Any number of injected calls, for [`super::arm`] and [`super::lift`]: a table holds only so many.

use crate::error::TraceError;
use crate::inject::live_thread::{LiveThread, MAX_ROWS};
use crate::inject::stub::Row;
use holdfast_image::record::InjectArea;

/// Runs any number of rows; errors of single calls do not matter to the caller.
pub fn run(host: &LiveThread, area: &InjectArea, rows: &[Row]) -> Result<Vec<i64>, TraceError> {
    let mut results = Vec::with_capacity(rows.len());
    for part in rows.chunks(MAX_ROWS) {
        results.extend(host.run(area, part, &mut |_| Ok(()))?);
    }
    Ok(results)
}
