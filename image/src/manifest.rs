//! The manifest of an image: its presence under the final name is the commit.
//!
//! Here are the figures that a manifest carries; the byte format is in `tiers::format` and `docs/format.md`.

use serde::{Deserialize, Serialize};

/// Where the stop time went, nanoseconds each. The parts add up to `total_ns` but for what lies between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StopBreakdown {
    /// From the first interrupt to the last thread let go: what the program did not run.
    pub total_ns: u64,
    /// Seize, interrupt and wait for all threads.
    pub stop_ns: u64,
    /// Registers, extended state, masks, pending signals, rseq, robust lists.
    pub threads_ns: u64,
    /// Injected queries: brk, timers, handlers, alternate stacks.
    pub inject_ns: u64,
    /// Mappings.
    pub maps_ns: u64,
    /// Descriptors and data in flight.
    pub files_ns: u64,
    /// Shared and special memory copied inside the stop.
    pub copy_ns: u64,
    /// The clone that freezes the memory.
    pub clone_ns: u64,
    /// Registers back and detach.
    pub resume_ns: u64,
    /// Threads of the program.
    pub threads: u64,
    /// Mappings of the program.
    pub regions: u64,
}

/// What the flush did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FlushFigures {
    /// From resume to commit, nanoseconds.
    pub flush_ns: u64,
    /// Pages read from the source.
    pub pages_read: u64,
    /// Pages that were all zero: not stored.
    pub pages_zero: u64,
    /// Pages stored.
    pub pages_stored: u64,
    /// Bytes of the segment and the manifest.
    pub bytes_stored: u64,
    /// Bytes of pages in frames that were compressed.
    pub bytes_compressed_from: u64,
    /// What they became.
    pub bytes_compressed_to: u64,
}
