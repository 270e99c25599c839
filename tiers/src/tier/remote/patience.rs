//! How long a server may take.

use std::time::Duration;

/// Bytes per second below which a link counts as broken, for each request.
const SLOWEST: u64 = 32 << 10;

/// See the head of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For an answer, beside the time that the bytes take.
    pub(super) answer: Duration,
}

impl Patience {
    /// For a request or an answer of so many bytes.
    pub(super) fn limit(&self, bytes: u64) -> Duration {
        self.answer + Duration::from_secs(bytes / SLOWEST)
    }
}
